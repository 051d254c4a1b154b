# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# What suites share. A suite NAME is two files: NAME.suite, which defines `cases` (prints the names of all cases) and `case_of CASE`
# (runs one: status 0, or 4 after a line `SKIP: reason`, or anything else), and NAME.expected, one line per case:
#
#   CASE pass
#   CASE skip REASON
#   CASE fail OUTPUT
#
# What stands behind a line `# since 7.3` is not there in older kernels.
#
# Each case is a test of its own: it passes if it does what the list says. A skip that the list does not name, or for another reason
# than the list names, is a failure; a pass where the list names a skip is not. Reasons are patterns of the shell, and so is the
# output that a case shows which fails for no fault of the driver.

suite=${RXE_TEST%%.*}
expected=/share/suites/$suite.expected

test_case() {
	local name=${RXE_TEST#*.} want status reason output log
	want=$(sed -n "s/^${name//./\\.} //p" "$expected")
	log=$(mktemp)
	set +e
	(
		set -e
		case_of "$name"
	) >"$log" 2>&1
	status=$?
	set -e
	cat "$log"
	reason=$(sed -n 's/^SKIP: //p' "$log" | head -1)
	output=$(cat "$log")
	rm -f "$log"
	case $status:$want in
	0:pass) ;;
	0:skip*) echo "passes, though $expected names a skip" ;;
	4:pass) fail "skipped: $reason" ;;
	4:skip*)
		# shellcheck disable=SC2254
		case $reason in
		${want#skip }) exit 4 ;;
		*) fail "skipped for another reason than '${want#skip }': $reason" ;;
		esac
		;;
	[!0]*:fail*)
		# shellcheck disable=SC2254
		case $output in
		${want#fail }) echo "fails, as $expected says" ;;
		*) return 1 ;;
		esac
		;;
	*) return 1 ;;
	esac
}

# The list names every case there is, and no other.
test_all_listed() {
	sed -n 's/^\([^# ][^ ]*\) .*/\1/p' "$expected" | sort >/tmp/listed
	cases | sort >/tmp/cases
	diff /tmp/listed /tmp/cases || fail "the list (<) and the suite (>) differ"
}

# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Functions for suites. A suite NAME has two files. NAME.suite defines `cases`, which prints the names of all cases, and `case_of CASE`,
# which runs one; its status is 0 if the case passed, 4 after a line `SKIP: reason`, anything else if it failed. NAME.expected has a
# line per case:
#
#   CASE pass
#   CASE skip REASON
#   CASE either REASON
#   CASE fail OUTPUT
#
# The lines after `# since 7.3` do not apply to older kernels.
#
# Each case is a test, which passes if the result is the expected one. A skip that the list does not have, or with another reason, fails
# the test; a case that passes although the list has a skip does not. `either` is for cases that choose at random what they try, and are
# skipped if the device or its library does not have that. REASON and OUTPUT are patterns of the shell. OUTPUT is for cases that fail for
# reasons outside of the driver, and must match what they print.

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
	0:pass | 0:either*) ;;
	0:skip*) echo "passes, although $expected has a skip" ;;
	4:pass) fail "skipped: $reason" ;;
	4:skip* | 4:either*)
		# shellcheck disable=SC2254
		case $reason in
		${want#* }) exit 4 ;;
		*) fail "skipped with another reason than '${want#* }': $reason" ;;
		esac
		;;
	[!0]*:fail*)
		# shellcheck disable=SC2254
		case $output in
		${want#fail }) echo "fails as expected by $expected" ;;
		*) return 1 ;;
		esac
		;;
	*) return 1 ;;
	esac
}

# The list has all cases, and no others.
test_all_listed() {
	sed -n 's/^\([^# ][^ ]*\) .*/\1/p' "$expected" | sort >/tmp/listed
	cases | sort >/tmp/cases
	diff /tmp/listed /tmp/cases || fail "the list (<) and the suite (>) differ"
}

#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# lint.sh CHECK: runs one static check inside the toolchain root. Exit status 0 if there was nothing to report.
#
# fmt          formats the Rust code (fmt-check: reports what is not formatted)
# doc          builds the documentation of the crates that cargo can build, private items included; warnings are errors
# doc-module   does the same for the built module's crates rxe_kapi and rxe_rs, by rustdoc with the options that Kbuild compiled them with
# clippy       runs clippy on the module with the kernel's settings, and on all crates that cargo can build
# clippy-host  runs only the latter, without the network
# audit        checks the built module: no reachable panics, large stack frames or global symbols without the prefix; size of a QP
# checkpatch   runs the kernel's checkpatch on the C files
#
# KERNEL: the kernel series (default: the series chosen at set-up). CARGO_FLAGS: further options of cargo, such as --offline.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
cd "$clone"
[ -n "${RXE_IN_ROOT:-}" ] || exec "$here/in-root.sh" env KERNEL="${KERNEL:-}" "$here/lint.sh" "$@"
vars=$("$here/kernel.py" show $KERNEL) || exit 1
eval "$(printf '%s\n' "$vars" | sed "s/=\(.*\)/='\1'/")"
rust_files() { find rxe_rs tools ktests -name '*.rs' -not -path '*/target/*' 2>/dev/null; }
host_clippy() {
	own_targets
	CARGO_TARGET_DIR=$targets/1.85 cargo clippy --quiet --workspace --all-targets "$@" -- -D warnings
}
case ${1:-} in
fmt) rust_files | xargs -r rustfmt --edition 2021 ;;
fmt-check) rust_files | xargs -r rustfmt --edition 2021 --check ;;
clippy)
	# With the kernel's lints and toolchain. In a folder of its own, because objects made by clippy cannot be linked. make does not
	# compile again what it has compiled, so only a complete run in which clippy had nothing to say leaves them for the next one.
	folder=$clone/out/clippy-$SERIES
	mkdir -p out
	[ -e "$folder/clean" ] || rm -rf "$folder"
	rm -f "$folder/clean"
	{ "$here/build-module.sh" -o "$folder" -k "$SERIES" "$clone" CLIPPY=1 modules 2>&1 || echo "error: the build has failed"; } | tee out/clippy.log
	if grep -E '^(warning|error)' out/clippy.log; then exit 1; fi
	touch "$folder/clean"
	# shellcheck disable=SC2086
	host_clippy ${CARGO_FLAGS:-}
	;;
clippy-host)
	host_clippy --locked --offline
	;;
audit)
	"$here/panics.sh" "$clone/out/$SERIES"
	objdump -d -C "$clone/out/$SERIES/rxe_rs.ko" | "$here/frames.py" || die "stack frames are too large"
	say "no stack frame is above 2048 bytes"
	# With its reference count a queue pair fills a slab object of 2 KiB; the next size is 4 KiB.
	size=$(readelf --debug-dump=info "$clone/out/$SERIES/rxe_rs.ko" |
		awk '/DW_AT_name .*: QpCtx$/ { found = 1 } found && /DW_AT_byte_size/ { print $NF; exit }')
	[ "${size:-9999}" -le 2040 ] || die "QpCtx has ${size:-an unknown number of} bytes, and 2040 at most fit into a slab object of 2 KiB"
	say "a queue pair fits into a slab object of 2 KiB"
	# Global symbols of modules that are built into the kernel share one namespace.
	foreign=$(nm -A -g --defined-only "$clone/out/$SERIES"/rxe_rs/kapi/*.o "$clone/out/$SERIES"/rxe_rs/kapi/helpers/*.o |
		awk '$NF !~ /^(rxe_rs_|_R|__(cfi|pfx)_(rxe_rs_|_R))/ { print $NF }')
	[ -z "$foreign" ] || die "global symbols without the prefix rxe_rs_:
$foreign"
	say "global symbols of C files begin with rxe_rs_"
	;;
doc)
	own_targets
	RUSTDOCFLAGS="-D warnings" CARGO_TARGET_DIR=$targets/1.85 cargo doc --quiet --locked --no-deps --document-private-items \
		-p rxe_proto -p librxe_rs -p rxectl -p rxe-ci -p rxe_fuzz -p rxe_models -p rxe_models_macros ${CARGO_FLAGS:-}
	say "documentation: $targets/1.85/doc/rxe_proto/index.html"
	;;
doc-module)
	# As Kbuild, which uses unstable options of the stable compiler.
	export RUSTC_BOOTSTRAP=1 RXE_KAPI_OUT="$clone/out/$SERIES/rxe_rs/kapi"
	RXE_RS_VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
	export RXE_RS_VERSION
	for crate in kapi/rxe_kapi rxe_rs; do
		saved=$clone/out/$SERIES/rxe_rs/$(dirname "$crate")/.$(basename "$crate").o.cmd
		[ -f "$saved" ] || die "there is no $saved; run make first"
		# The line that Kbuild saved: variables, rustc, options, the source, and perhaps a call of objtool.
		command=$(sed -n '1s/^savedcmd_[^ ]* := //p' "$saved" |
			sed -E 's/ rustc / rustdoc --document-private-items -D warnings -o "$clone\/out\/doc" /; s/ --(emit=|out-dir )[^ ]*//g; s/ ;.*//; s/\$\$/$/g')
		(cd "$clone/out/$SERIES" && eval "$command") || exit 1
	done
	say "documentation: out/doc/rxe_rs/index.html"
	;;
checkpatch)
	# The settings of the kernel; for whole files checkpatch checks the line width only with --strict. The headers of the first
	# librxe_rs are left as they were released.
	find rxe_rs uapi ktests tools -name '*.[ch]' -not -path 'ktests/old_library/*' |
		xargs -r perl "$TREE/scripts/checkpatch.pl" --no-tree --terse --show-types --strict -f
	;;
*) die "usage: lint.sh fmt | fmt-check | doc | doc-module | clippy | clippy-host | audit | checkpatch" ;;
esac

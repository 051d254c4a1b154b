#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# build-deb.sh [-m MODULE] [-t TOOLS] [-o OUT]: builds the Debian packages that tools/deb/control describes, inside the toolchain root. A
# module and tools must have been built (make module tools). Prints the paths of the packages.
#
# -m MODULE   the module (default: that of the kernel series KERNEL); its package is for the kernel that it was built for, and all packages
#             are for the architecture of that kernel
# -t TOOLS    the folder of the tools for that architecture (default: out/tools or out/tools-arm64)
# -o OUT      the folder for the packages (default: out/deb)
#
# With SIGN_KEY and SIGN_CERT, files with a private key and its X.509 certificate, the module is signed by the kernel's sign-file, and the
# version of its package gets date and hash of the certificate, so that apt installs it over one that is not signed. package-version.sh has the
# version of the others. Packages of other versions are removed from OUT. Times in packages are that of the last commit, so that a second
# build gives the same files.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
usage='usage: build-deb.sh [-m MODULE] [-t TOOLS] [-o OUT]'
module='' tools='' out=$clone/out/deb sign=''
while getopts m:t:o:s opt; do
	case $opt in
	m) module=$OPTARG ;;
	t) tools=$OPTARG ;;
	o) out=$OPTARG ;;
	s) sign=-s ;;
	*) die "$usage" ;;
	esac
done
shift $((OPTIND - 1))
[ $# = 0 ] || die "$usage"
if [ -n "${SIGN_KEY:-}${SIGN_CERT:-}" ]; then
	for file in "SIGN_KEY=${SIGN_KEY:-}" "SIGN_CERT=${SIGN_CERT:-}"; do
		[ -r "${file#*=}" ] || die "cannot read $file; signing needs two files: SIGN_KEY, a private key, and SIGN_CERT, its certificate"
	done
	# The files need not be visible in the toolchain root, where sign-file opens these descriptors.
	exec 7<"$SIGN_KEY" 8<"$SIGN_CERT"
	sign=-s
fi
if [ -z "${RXE_IN_ROOT:-}" ]; then
	visible "$out" ${module:+"$module"} ${tools:+"$tools"}
	[ -n "$module" ] || module=$(KERNEL=${KERNEL:-} "$here/module-path.sh" --quiet)
	exec "$here/in-root.sh" "$here/build-deb.sh" $sign -m "$module" ${tools:+-t "$tools"} -o "$out"
fi

[ -n "$module" ] || die "$usage (-m is needed inside the toolchain root)"
[ -f "$module" ] || die "there is no $module; build it: make"
module=$(realpath "$module")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$clone/Cargo.toml")
built=$(modinfo -F version "$module" 2>/dev/null) || die "$module is no kernel module"
[ "$built" = "$version" ] || die "$module has version ${built:-none}, the source $version; build it again: make"
release=$(modinfo -F vermagic "$module")
release=${release%% *}
case $release in
'' | *[!a-z0-9.+-]*) die "a package cannot have the name of the kernel \"$release\": lower case letters, digits and . + - only" ;;
esac

# Of the packages; the source for DKMS has that of Cargo.toml.
packages=$("$here/package-version.sh")
case $release in
*arm64*) architecture=arm64 triplet=aarch64-linux-gnu strip=aarch64-linux-gnu-strip suffix=-arm64 ;;
*) architecture=amd64 triplet=x86_64-linux-gnu strip=strip suffix='' ;;
esac
tools=${tools:-$clone/out/tools$suffix}
[ -x "$tools/rxectl" ] || die "there is no $tools/rxectl; build it: make tools${suffix:+ FLAVOUR=$architecture}"
tools=$(realpath "$tools")

SOURCE_DATE_EPOCH=$(git -c safe.directory='*' -C "$clone" log -1 --format=%ct 2>/dev/null || stat -c %Y "$clone/Cargo.toml")
export SOURCE_DATE_EPOCH DEB_HOST_ARCH=$architecture
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/debian"
out=$(cd "$out" && pwd -P)
cd "$work"
fill() { sed "s/@RELEASE@/$release/g; s/@VERSION@/$version/g; s/@ARCHITECTURE@/$architecture/" "$clone/tools/deb/$1"; }
fill control >debian/control
{
	printf 'rxe-rs (%s) unstable; urgency=medium\n\n  * CHANGELOG.md of the source has the changes.\n\n' "$packages"
	printf ' -- %s  %s\n' "$(sed -n 's/^Maintainer: //p' debian/control)" "$(date -uRd "@$SOURCE_DATE_EPOCH")"
} >debian/changelog

# put MODE FILE… PATH: installs files as PATH of the package, or below it if it ends with a slash.
put() {
	mode=$1
	shift
	for to in "$@"; do :; done
	case $to in */) mkdir -p "$package$to" ;; *) mkdir -p "$package${to%/*}" ;; esac
	while [ $# -gt 1 ]; do
		install -m "$mode" "$1" "$package$to"
		shift
	done
}

# script NAME: installs a script that dpkg runs.
script() {
	mkdir -p "$package/DEBIAN"
	fill "${package%%-"$release"}.$1" >"$package/DEBIAN/$1"
	chmod 755 "$package/DEBIAN/$1"
}

# finish [PROGRAM [SUFFIX]]: builds the package; its shared libraries are those that PROGRAM needs, and SUFFIX is added to its version.
finish() {
	doc=/usr/share/doc/$package
	put 644 "$clone/tools/deb/copyright" "$doc/copyright"
	put 644 debian/changelog "$doc/changelog"
	find "$package/usr/share/man" "$package$doc/changelog" -type f 2>/dev/null | xargs -r gzip -9n
	mkdir -p "$package/DEBIAN"
	(cd "$package" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
	: >debian/substvars
	# It warns about diversions of the dynamic loader, which is the same file with and without them.
	[ -z "${1:-}" ] || dpkg-shlibdeps -Tdebian/substvars -e"$package$1" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
	dpkg-gencontrol -p"$package" -P"$package" -Tdebian/substvars -v"$packages${2:-}"
	# A pattern for all packages must not name two versions of one.
	rm -f "$out/${package}_"*"_$(sed -n 's/^Architecture: //p' "$package/DEBIAN/control").deb"
	dpkg-deb --root-owner-group --build "$package" "$out" >"$work/log"
	sed -n "s/.* in '\(.*\)'\.$/\1/p" "$work/log"
}

package=rxe-rs-modules-$release
put 644 "$module" "/usr/lib/modules/$release/updates/rxe_rs.ko"
ko=$package/usr/lib/modules/$release/updates/rxe_rs.ko
$strip --strip-debug "$ko"
if [ -n "$sign" ]; then
	tree=$cache/kernels/$release/src
	[ -x "$tree/scripts/sign-file" ] || die "the kernel $release, prepared here, has no sign-file; modules for other kernels cannot be signed"
	hash=$(sed -n 's/^CONFIG_MODULE_SIG_HASH="\(.*\)"$/\1/p' "$tree/.config")
	"$tree/scripts/sign-file" "$hash" /dev/fd/7 /dev/fd/8 "$ko" || die "cannot sign the module with SIGN_KEY and SIGN_CERT; see the messages above"
	since=$(openssl x509 -in /dev/fd/8 -noout -startdate)
	sign=+signed$(date -ud "${since#*=}" +%Y%m%d%H%M%S).$(sha256sum </dev/fd/8 | cut -c1-8)
fi
put 644 "$clone/tools/deb/rxe-rs-modules.conf" "/usr/lib/depmod.d/$package.conf"
script postinst
script postrm
finish '' "$sign"

package=rxe-rs-dkms
source=/usr/src/rxe_rs-$version
put 644 "$clone/Kbuild" "$clone/Cargo.toml" "$source/"
put 644 "$clone/uapi/rxe_rs.h" "$source/uapi/"
(cd "$clone" && find rxe_rs -path rxe_rs/proto/tests -prune -o -path rxe_rs/proto/examples -prune -o -path rxe_rs/proto/fuzz -prune -o \
	\( -name '*.rs' -o -name '*.[ch]' -o -name bindgen_parameters \) -print) | while read -r file; do
	put 644 "$clone/$file" "$source/${file%/*}/"
done
fill dkms.conf >"$package$source/dkms.conf"
put 755 "$clone/tools/deb/rxe-dkms" "$clone/tools/deb/kernel-tree" /usr/libexec/rxe_rs/
ln -s /usr/libexec/rxe_rs/rxe-dkms "$package$source/rxe-dkms"
put 644 "$clone/tools/deb/dkms-status.conf" /etc/dkms/framework.conf.d/rxe_rs.conf
mkdir "$package/DEBIAN"
echo /etc/dkms/framework.conf.d/rxe_rs.conf >"$package/DEBIAN/conffiles"
put 644 "$clone/tools/deb/rxe-rs-dkms.triggers" /DEBIAN/triggers
script postinst
script prerm
finish

package=rxe-rs-tools
put 755 "$tools/rxectl" /usr/bin/rxectl
$strip "$package/usr/bin/rxectl"
put 644 "$tools"/man/rxectl*.1 /usr/share/man/man1/
put 644 "$tools/man/rxe_rs.7" /usr/share/man/man7/rxe_rs.7
put 644 "$tools/completions/rxectl.bash" /usr/share/bash-completion/completions/rxectl
put 644 "$tools/completions/_rxectl" /usr/share/zsh/vendor-completions/_rxectl
put 644 "$tools/completions/rxectl.fish" /usr/share/fish/vendor_completions.d/rxectl.fish
put 755 "$clone/tools/deb/rxe-link" /usr/libexec/rxe_rs/rxe-link
put 644 "$clone/tools/deb/rxe@.service" /usr/lib/systemd/system/rxe@.service
put 644 "$clone/tools/deb/replace-rdma_rxe.conf" /usr/share/rxe_rs/replace-rdma_rxe.conf
put 644 "$clone/tools/deb/eth0.conf" /usr/share/doc/$package/examples/eth0.conf
# The pages for users, which refer to each other. They do not have the other documents of the source.
mkdir pages
for page in containers install mpi storage troubleshooting tuning two-hosts; do
	sed -E 's/\[([^]]*)\]\(\.\.\/([^)#]*)[^)]*\)/\1 (\2 of the source)/g' "$clone/docs/$page.md" >pages/$page.md
done
put 644 pages/*.md /usr/share/doc/$package/
mkdir -p $package/etc/rxe_rs
script postinst
script prerm
script postrm
finish /usr/bin/rxectl

package=librxe-rs1
libraries=/usr/lib/$triplet
put 644 "$tools/lib/librxe_rs.so.1" $libraries/librxe_rs.so.1
$strip --strip-unneeded "$package$libraries/librxe_rs.so.1"
mkdir $package/DEBIAN
echo "librxe_rs 1 librxe-rs1 (>= $version~)" >$package/DEBIAN/shlibs
echo 'activate-noawait ldconfig' >$package/DEBIAN/triggers
finish $libraries/librxe_rs.so.1

package=librxe-rs-dev
put 644 "$tools/lib/librxe_rs.a" $libraries/librxe_rs.a
ln -s librxe_rs.so.1 $package$libraries/librxe_rs.so
put 644 "$tools/include/rxe_rs.h" "$tools/include/rxe_rs_verbs.h" /usr/include/
put 644 "$clone/tools/librxe_rs/examples/exercise.rs" "$clone/tools/librxe_rs/examples/sliding_window.py" \
	"$clone/tools/examples/send_fallback.py" /usr/share/doc/$package/examples/
finish

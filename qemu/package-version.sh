#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# package-version.sh [FOLDER]: prints the version of Debian packages of the source in FOLDER (default: this clone). For the commit with the
# tag vVERSION that is VERSION, that of Cargo.toml. Other commits have different packages, and apt does not replace a package by one with the
# same version: before the release it is VERSION~gitTIME.COMMIT, after it VERSION+gitTIME.COMMIT. TIME is that of the commit (UTC), or with
# changes that are not committed that of the newest changed file, if that is later. Without git the version is VERSION.
set -eu
cd "${1:-$(dirname "$0")/..}"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
git() { command git -c safe.directory='*' "$@" 2>/dev/null; }
if ! commit=$(git log -1 --format=%h) || [ "$(git rev-parse --show-prefix)" ]; then
	echo "$version"
	exit
fi
sign='~' time=$(git log -1 --format=%ct)
! git merge-base --is-ancestor "v$version^{commit}" HEAD || sign=+
changes() { git diff --name-only "$@" HEAD && git ls-files --others --exclude-standard "$@"; }
if [ -n "$(changes)" ]; then
	commit=$commit.modified
	changed=$(changes -z | xargs -0r stat -c %Y 2>/dev/null | sort -n | tail -n 1 || :)
	[ "${changed:-0}" -le "$time" ] || time=$changed
elif [ "$(git rev-parse -q --verify "v$version^{commit}")" = "$(git rev-parse HEAD)" ]; then
	echo "$version"
	exit
fi
echo "$version${sign}git$(date -ud "@$time" +%Y%m%d.%H%M%S).$commit"

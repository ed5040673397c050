#!/bin/sh
# SPDX-License-Identifier: MIT
#
# version.sh - the version is the same wherever it is written.
. "$(dirname "$0")/../cli/lib.sh"
top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$top" || exit 99

version=$(sed -n "s/^ *version: '\(.*\)',/\1/p" meson.build)
[ -n "$version" ]
ok 'meson.build has a version'

# same WHERE WHAT
same() { is "$1 has the version of meson.build" "$version" "$2"; }

same 'the command' "$("$HOLDFAST" --version | sed 's/.* //')"
same include/holdfast.h "$(sed -n 's/^#define HF_VERSION_[MP][A-Z]* //p' include/holdfast.h | paste -sd.)"
same debian/changelog "$(sed -n '1s/.*(\(.*\)).*/\1/p' debian/changelog)"
same packaging/holdfast.spec "$(sed -n 's/^Version: *//p' packaging/holdfast.spec)"
same bindings/node/package.json "$(sed -n 's/^  "version": "\(.*\)",/\1/p' bindings/node/package.json)"
same bindings/go/README.md "$(sed -n 's/^require holdfast v//p' bindings/go/README.md | head -n 1)"
same CHANGELOG.md "$(sed -n 's/^## \([0-9.]*\),.*/\1/p' CHANGELOG.md | head -n 1)"
finish

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Dependencies point one way: manifest <- gen, manifest <- loader <- tools <- tests, tools <- examples. Includes are
# root-relative, and a file may include only from its own folder and the folders it may depend on. Also: one SPDX line per
# source file, no tabs, no trailing blanks, a final newline, and loader files of at most 400 lines.
#   sh tests/layers.sh ROOT
set -eu
cd "$1"
failed=0
fail() { echo "$1"; failed=1; }

check() { # FOLDER ALLOWED_REGEX
    bad=$(grep -rnE '^#include "' "$1" --include='*.[chS]' --include='*.cc' --include='*.hpp' --include='*.inc' |
        grep -vE "#include \"($2)" || true)
    [ -z "$bad" ] || fail "layer violation in $1:
$bad"
}
check manifest 'manifest/'
check gen '(gen|manifest)/'
# The public headers lie side by side where they are installed.
check loader '(loader|manifest)/|kda\.h"'
check tools '(tools|loader|manifest)/'
check examples '(tools|loader)/'
# The soft device includes the table of images that the build generates.
check tests '(tests|tools|loader|manifest|bodies)/|images\.inc"'
bad=$(grep -ln '#include' bodies/*.cu || true)
[ -z "$bad" ] || fail "bodies must not include anything: $bad"

for file in $(git ls-files 2>/dev/null || find . -type f -not -path './build*' -not -path './toolchain/*' | sed 's|^\./||'); do
    case $file in
    *.c | *.h | *.cc | *.hpp | *.inc | *.cu | *.cu.in | *.py | *.pyi | *.rs | *.toml | *.sh | meson.build | .ci/run) ;;
    *) continue ;;
    esac
    [ -f "$file" ] || continue
    head -n 2 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || fail "$file: no SPDX line"
    grep -nP '\t' "$file" >/dev/null && fail "$file: tab" || true
    grep -nE ' $' "$file" >/dev/null && fail "$file: trailing blank" || true
    [ -z "$(tail -c 1 "$file")" ] || fail "$file: no final newline"
done
for file in loader/*.c; do
    lines=$(wc -l <"$file")
    [ "$lines" -le 400 ] || fail "$file: $lines lines, a loader file over 400 holds two ideas"
done
exit $failed

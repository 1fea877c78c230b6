#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The soft device's table: the packer's rows as they are, and a row for each cubin NAME.TARGET.cubin.
#   sh images.sh FILE...
set -eu
for file; do
    case $file in
    *.cubin)
        name=${file##*/} name=${name%.cubin}
        digest=$(sha256sum <"$file" | cut -c 1-64)
        echo "KDA_IMAGE(${name%.*}, ${name#*.}, \"$digest\", $(wc -c <"$file"))"
        ;;
    *) cat "$file" ;;
    esac
done

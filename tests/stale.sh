#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One changed character of a template cannot pass unseen: in a copy of the tree, each gate that it comes to must fail, name
# the file, and print the command that accepts the change. In their order: frozen bodies, compiler, device.lock,
# cubins.lock, bundle.lock.
#   sh tests/stale.sh ROOT GEN KDA_CC NVRTC KDA_PACK LOCK_CHECK CUBIN...
set -eu
root=$1 gen=$2 cc=$3 nvrtc=$4 pack=$5 lock_check=$6
shift 6
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for folder in gen manifest bodies; do cp -r "$root/$folder" "$work/"; done
refuse() { # TEXT TEXT COMMAND...
    file=$1 fix=$2
    shift 2
    if "$@" >"$work/log" 2>&1; then echo "accepted: $*"; exit 1; fi
    for text in "$file" "$fix"; do
        grep -q -- "$text" "$work/log" || { cat "$work/log"; echo "does not say \"$text\": $*"; exit 1; }
    done
    echo "refused as it must be: $file"
}

"$gen" --check --root "$work"
template=$work/gen/packed.cu.in
sed -i 's/lane < WARP_ROWS/lane > WARP_ROWS/' "$template"
! cmp -s "$template" "$root/gen/packed.cu.in" || { echo 'the template has no such place: change this test'; exit 1; }
body=packed_t1_tile8
refuse "stale: bodies/$body.cu" 'ninja -C build regen' "$gen" --check --root "$work"

# The body generated, and its lock left as it was.
cp "$work/manifest/bodies.lock" "$work/kept"
"$gen" --root "$work"
refuse "$body: these bytes have not run" 'device.lock' \
    "$lock_check" "$work/manifest/bodies.lock" "$root/tests/device.lock"
cp "$work/manifest/bodies.lock" "$work/moved"
cp "$work/kept" "$work/manifest/bodies.lock"
refuse "bodies/$body.cu: not the body of manifest/bodies.lock" 'ninja -C build regen' \
    "$cc" --nvrtc "$nvrtc" --target sm_100f --root "$work" -o "$work/x.cubin" "$work/bodies/$body.cu"

# That lock accepted too: now it is the machine code that moved.
cp "$work/moved" "$work/manifest/bodies.lock"
mkdir "$work/new"
for cubin; do
    name=$(basename "$cubin" .cubin)
    case $name in
    packed_*) "$cc" --nvrtc "$nvrtc" --target "${name##*.}" --root "$work" -o "$work/new/$name.cubin" \
        "$work/bodies/${name%.*}.cu" ;;
    *) cp "$cubin" "$work/new/" ;;
    esac
done
refuse "$body.sm_100f.cubin: sha256 " 'ninja -C build relock' \
    "$pack" --lock "$work/manifest/cubins.lock" --check "$work"/new/*.cubin
"$pack" -o "$work/kda.bundle" --root "$work" "$work"/new/*.cubin
refuse 'kda.bundle: bundle id ' 'ninja -C build relock' \
    "$pack" --ids "$work/manifest/bundle.lock" --check "$work/kda.bundle"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel with pip, twice, installs it in a clean virtual environment, without an index, and runs the package's
# tests from there: nothing but the wheel, the soft device and DLPack capsules.
#   sh tests/python/wheel.sh ROOT BUILD SOFT_DIR PYTHON
set -eu
root=$(realpath "$1") build=$(realpath "$2") soft=$(realpath "$3") python=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH LD_LIBRARY_PATH
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
"$python" -m venv "$work/env"
python=$work/env/bin/python
"$python" -m pip wheel -q --no-index --no-deps --config-settings "build-dir=$build" -w "$work" "$root/loader/python"
"$python" "$root/loader/python/backend.py" "$build" "$work/again" >/dev/null
wheel=$(echo "$work"/kda-*.whl)
cmp "$wheel" "$work/again/$(basename "$wheel")"
"$python" -m pip install -q --no-index "$wheel"
if auditwheel=$(command -v auditwheel); then
    "$auditwheel" show "$wheel" | tr -d '\n' | grep -q "$(basename "$wheel" .whl | sed 's/.*-//')" ||
        { "$auditwheel" show "$wheel"; echo 'auditwheel finds another tag'; exit 1; }
    echo 'auditwheel: the same tag'
else
    echo 'auditwheel: skipped: not on this machine'
fi
cd "$root/tests/python"
LD_LIBRARY_PATH=$soft "$python" -c 'import kda; assert kda._library.FOLDER.parts[-2] == "site-packages"'
LD_LIBRARY_PATH=$soft "$python" test_front.py "$root"
# Without any driver the package loads, and a call says what is missing.
"$python" - <<'END'
import kda
try:
    kda.prepare()
except kda.DeviceError as error:
    assert error.status == kda.Status.NO_DRIVER, error
    print('no driver:', error)
else:
    raise SystemExit('prepared a device that is not there')
END
ls -l "$wheel" | awk '{print $5, "bytes"}'
basename "$wheel"

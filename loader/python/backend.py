# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel out of a finished build: the package, libkda.so, the bundle and kda-dump. Needs nothing but Python.

    pip wheel loader/python [--config-settings build-dir=BUILD]
    python3 loader/python/backend.py BUILD_DIR OUTPUT_DIR

The platform tag is the oldest glibc whose symbols the programs ask for, which is what auditwheel finds. The same build
gives the same bytes.
"""
import base64
import hashlib
import pathlib
import re
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MACHINES = {62: 'x86_64', 183: 'aarch64'}  # e_machine
SUMMARY = 'Decode kernels of Kimi Delta Attention, compiled ahead of time: a thin front over libkda'


def version():
    return re.search(r"version : '([0-9.]+)'", (ROOT / 'meson.build').read_text())[1]


def platform(programs):
    """manylinux_2_NN_MACHINE of ELF files."""
    minors, machines = set(), set()
    for data in programs:
        minors |= {int(minor) for minor in re.findall(rb'\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)', data)}
        machines.add(MACHINES[int.from_bytes(data[18:20], 'little')])
    if len(machines) != 1:
        raise SystemExit(f'backend: programs of {len(machines)} machines in one build: {sorted(machines)}')
    return f'manylinux_2_{max(minors)}_{machines.pop()}'


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    build = pathlib.Path((config_settings or {}).get('build-dir', ROOT / 'build'))
    programs = {'kda/libkda.so.0': build / 'libkda.so.0', 'kda/kda-dump': build / 'kda-dump'}
    for path in programs.values():
        if not path.exists():
            raise SystemExit(f'backend: {path} is not there: run ninja first, or name the build with build-dir')
    tag = f'py3-none-{platform(path.read_bytes() for path in programs.values())}'
    info = f'kda-{version()}.dist-info'
    files = {f'kda/{path.name}': path.read_bytes() for path in (HERE / 'kda').iterdir() if path.is_file()}
    files.update({name: path.read_bytes() for name, path in programs.items()})
    files['kda/kda.bundle'] = (build / 'kda.bundle').read_bytes()
    files[f'{info}/LICENSE'] = (ROOT / 'LICENSE').read_bytes()
    files[f'{info}/METADATA'] = (f'Metadata-Version: 2.1\nName: kda\nVersion: {version()}\nSummary: {SUMMARY}\n'
                                 'License: Apache-2.0\nRequires-Python: >=3.9\nLicense-File: LICENSE\n').encode()
    files[f'{info}/WHEEL'] = f'Wheel-Version: 1.0\nGenerator: kda\nRoot-Is-Purelib: false\nTag: {tag}\n'.encode()
    record = f'{info}/RECORD'
    rows = []
    for name, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()
        rows.append(f'{name},sha256={digest},{len(data)}')
    files[record] = '\n'.join(rows + [f'{record},,', '']).encode()

    wheel = f'kda-{version()}-{tag}.whl'
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / wheel, 'w') as out:
        for name in sorted(files, key=lambda name: (name.startswith(info), name)):
            entry = zipfile.ZipInfo(name)  # of 1980, whenever it is made
            entry.external_attr = (0o100755 if name in programs else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, files[name])
    return wheel


if __name__ == '__main__':
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    pathlib.Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    print(build_wheel(sys.argv[2], {'build-dir': sys.argv[1]}))

# SPDX-License-Identifier: Apache-2.0
"""python -m kda dump|env|route|... : kda-dump over the bundle of this package.

    python -m kda dump                    the manifest
    python -m kda env                     the driver and devices here, and what would run on them
    python -m kda route --op recurrent --cc 10.3 --cuda 13.0 --sms 152 --n 16 --h 16 --hv 32
    python -m kda --bundle FILE VERB ...  of another bundle
"""
import os
import sys

from ._library import FOLDER


def main(args):
    bundle = str(FOLDER / 'kda.bundle')
    if args[:1] == ['--bundle'] and len(args) > 2:
        bundle, args = args[1], args[2:]
    if not args or args[0] in ('-h', '--help'):
        print(__doc__, end='', file=sys.stdout if args else sys.stderr)
        return 0 if args else 2
    verb = [] if args[0] == 'dump' else args[:1]
    beside = FOLDER / 'kda-dump'
    program = str(beside) if beside.exists() else 'kda-dump'
    os.execvp(program, ['kda-dump', bundle, *verb, *args[1:]])


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

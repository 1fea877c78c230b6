# SPDX-License-Identifier: Apache-2.0
"""An argument as the library takes it, or a refusal that names it: one converter per kind.

A converter takes the operation, the name and what was found. A value of the wrong kind is a DtypeError, one out of its
range an ArgumentError; both say what is allowed. A bool is no number.
"""
import math
import operator
import os
from struct import Struct

from ._abi import Status
from ._errors import error

_pack_f32 = Struct('f').pack
_LONGEST = 80


def found(value):
    """A value in a line of text."""
    try:
        text = ' '.join(repr(value).split())
    except Exception:  # a repr of its own that fails, or an int of too many digits
        text = f'{type(value).__name__} without a repr'
    return text if len(text) <= _LONGEST else text[:_LONGEST - 3] + '...'


def _refusal(operation, name, value, wanted, status):
    return error(status, f'{operation}: {name} is {found(value)}, must be {wanted}')


class Integer:
    """Whatever has __index__, between two bounds. `status`: of a refusal for its range."""

    def __init__(self, lowest, highest, wanted, status=Status.ARGUMENT):
        self.lowest, self.highest, self.wanted, self.status = lowest, highest, wanted, status

    def __call__(self, operation, name, value):
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except Exception:  # whatever an __index__ raises
            number = None
        if number is None:
            raise _refusal(operation, name, value, self.wanted, Status.TYPE) from None
        if not self.lowest <= number <= self.highest:
            raise _refusal(operation, name, number, self.wanted, self.status)
        return number


INT32 = Integer(-1 << 31, (1 << 31) - 1, 'an integer of 32 bits')
UINT32 = Integer(0, (1 << 32) - 1, 'an unsigned integer of 32 bits')
STREAM = Integer(0, (1 << 64) - 1, 'None, or a CUstream handle: an integer of 0 to 2**64 - 1')
DEVICE = Integer(0, (1 << 31) - 1, 'the number of a device: an integer of 0 to 2**31 - 1')
EXTENT = Integer(0, (1 << 63) - 1, 'an integer of 0 to 2**63 - 1', Status.SHAPE)
STRIDE = Integer(0, (1 << 63) - 1, 'an integer of 0 to 2**63 - 1', Status.STRIDE)


def flag(operation, name, value):
    """A bool, or the number that the library judges."""
    return int(value) if isinstance(value, bool) else INT32(operation, name, value)


def truth(operation, name, value):
    """A bool, for which the library has no number of its own; None is False."""
    if value is not None and not isinstance(value, bool):
        raise _refusal(operation, name, value, 'False, True or None', Status.TYPE)
    return value


def number(operation, name, value):
    """A float that f32 holds, infinite where it is too large for that: the library judges it."""
    try:
        as_float = None if isinstance(value, bool) else math.ldexp(value, 0)  # float(), but not of strings
    except OverflowError:
        as_float = math.inf if value > 0 else -math.inf
    except Exception:  # whatever a __float__ raises
        as_float = None
    if as_float is None:
        raise _refusal(operation, name, value, 'a real number', Status.TYPE) from None
    try:
        _pack_f32(as_float)
    except OverflowError:
        as_float = math.copysign(math.inf, as_float)
    return as_float


class Choice:
    """One of a few strings."""

    def __init__(self, *allowed, status=Status.ARGUMENT):
        self.allowed, self.status = allowed, status
        self.wanted = ' or '.join(map(repr, allowed)) if len(allowed) == 2 else f'one of {", ".join(allowed)}'

    def __call__(self, operation, name, value):
        if not isinstance(value, str) or value not in self.allowed:
            raise _refusal(operation, name, value, self.wanted, self.status)
        return value


def extents(operation, name, values, kind):
    """A tuple of integers of a kind."""
    try:
        values = tuple(values)
    except TypeError:
        raise _refusal(operation, name, values, 'a tuple of integers', Status.TYPE) from None
    return tuple(kind(operation, f'{name}[{i}]', value) for i, value in enumerate(values))


def path_bytes(operation, name, value):
    """The name of a file."""
    wanted = 'None or the path of a file: a str, bytes or os.PathLike without a null character'
    try:
        path = os.fsencode(value)
    except TypeError:
        raise _refusal(operation, name, value, wanted, Status.TYPE) from None
    except ValueError:
        path = b'\0'  # no bytes stand for it
    if b'\0' in path:
        raise _refusal(operation, name, value, wanted, Status.ARGUMENT)
    return path


def no_tensor(operation, name, value, wanted='a torch tensor or an object with __dlpack__'):
    """The refusal of what is not a tensor."""
    if value is None:
        return error(Status.ARGUMENT, f'{operation}: {name} is None, it is mandatory')
    return error(Status.TYPE, f'{operation}: {name} is a {type(value).__name__}, must be {wanted}')

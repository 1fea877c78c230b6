# SPDX-License-Identifier: Apache-2.0
"""From Python's tensors to the argument structs of the library, and the launch.

A torch tensor is read by its methods. Everything else comes through `__dlpack__`, and the library reads the DLTensor; so
does a torch tensor that is not on the device of the call, or is of a type that no operation takes: the library says so.
No rule about shapes, strides or types is here.
"""
import math
from ctypes import c_void_p
from struct import Struct, error as struct_error

from . import _abi, _library
from ._abi import Dtype, Status
from ._library import ArgumentError, DtypeError, failure, library
from ._memory import CUDA, CUDA_MANAGED, DeviceTensor, current_context, dl_tensor, sweep

try:
    import torch
    from torch import Tensor
    from torch._C import _cuda_getCurrentRawStream as current_stream
except ImportError:
    torch = None
    Tensor = ()

    def current_stream(_):
        return 0

# ------------------------------------------------------------------------------------------- kda_tensor

_EMPTY = 4096  # the address that an empty tensor without one gets; it is never read
_OMITTED = bytes(80)
# By rank: address, type, rank, extents, strides.
_PACK = {rank: Struct(f'=QiI{rank}q{8 * (4 - rank)}x{rank}q{8 * (4 - rank)}x').pack for rank in (1, 2, 3, 4)}
_TYPES = {} if torch is None else {torch.bfloat16: int(Dtype.BF16), torch.float32: int(Dtype.F32),
                                   torch.int32: int(Dtype.I32), torch.float16: int(Dtype.F16),
                                   torch.int64: int(Dtype.I64)}


def _pack_torch(tensors, device):
    """The tensors of a call as kda_tensor; None if one of them has to come through __dlpack__."""
    packed = []
    try:
        for tensor in tensors:
            if tensor is None:
                packed.append(_OMITTED)
                continue
            if tensor.get_device() != device:
                return None
            shape = tensor.shape
            rank = len(shape)
            packed.append(_PACK[rank](tensor.data_ptr() or _EMPTY, _TYPES[tensor.dtype], rank, *shape,
                                      *tensor.stride()))
    except (AttributeError, KeyError):
        return None
    return b''.join(packed)


# ---------------------------------------------------------------------------------------------- DLPack

def _capsule(operation, name, tensor, stream):
    """A capsule of the tensor, whose data is ready on the stream."""
    if not hasattr(tensor, '__dlpack__'):
        raise DtypeError(Status.TYPE, f'{operation}: {name} is a {type(tensor).__name__}, must be a torch tensor or an '
                                      'object with __dlpack__')
    if tensor.__dlpack_device__()[0] not in (CUDA, CUDA_MANAGED):
        return tensor.__dlpack__()
    return tensor.__dlpack__(stream=stream or 1)  # 1 is the legacy default stream


def _device_of(tensor):
    try:
        kind, device = tensor.__dlpack_device__()
    except AttributeError:
        return 0
    return device if kind in (CUDA, CUDA_MANAGED) else 0


# ----------------------------------------------------------------------------------------------- calls

class _Operation:
    def __init__(self, name):
        self.name = name
        self.tensors, layout, self.scalars = _abi.OPERATIONS[name]
        self.pack = Struct(layout).pack
        self.pack_pointers = Struct(f'{len(self.tensors)}P').pack
        self.omitted = bytes(len(self.tensors) * len(_OMITTED))
        self.plain = getattr(library, f'kda_{name}')
        self.dlpack = getattr(library, f'kda_{name}_dlpack')

    def pack_odd(self, scalars):
        """Scalars that the struct cannot hold as they are: out of the range of f32, or no numbers at all."""
        fitting = []
        for name, value in zip(self.scalars, scalars):
            try:
                Struct('f' if isinstance(value, float) else 'i').pack(value)
            except OverflowError:
                value = math.copysign(math.inf, value)
            except struct_error:
                kind = ArgumentError if isinstance(value, int) else DtypeError
                status = Status.ARGUMENT if isinstance(value, int) else Status.TYPE
                raise kind(status, f'{self.name}: {name} is {value!r}, must be a number of 32 bits') from None
            fitting.append(value)
        return self.pack(*fitting)


_OPERATIONS = {name: _Operation(name) for name in _abi.OPERATIONS}


def _launch(function, context, args, stream):
    if stream:
        return function(context.handle, args, stream, failure.address)
    # The default stream is that of whichever context is current.
    with current_context(context.cuda):
        return function(context.handle, args, None, failure.address)


def call(name, tensors, scalars, stream=None):
    """Puts one kernel on `stream`: a handle, or None for torch's current stream of the device (without torch: the
    legacy default stream)."""
    operation = _OPERATIONS[name]
    try:
        rest = operation.pack(*scalars)
    except (struct_error, OverflowError):
        rest = operation.pack_odd(scalars)
    first = tensors[0]
    if isinstance(first, Tensor) and first.is_cuda:
        device = first.get_device()
        packed = _pack_torch(tensors, device)
    else:
        device, packed = _device_of(first), None
    bundle = _library.bundle
    context = bundle.contexts.get(device) or bundle.context(device)
    if stream is None:
        stream = current_stream(device) if isinstance(first, Tensor) else 0
    if packed is not None:
        status = _launch(operation.plain, context, packed + rest, stream)
    else:
        capsules = [tensor if tensor is None else _capsule(name, field, tensor, stream)
                    for field, tensor in zip(operation.tensors, tensors)]
        pointers = operation.pack_pointers(*(0 if capsule is None else dl_tensor(capsule) for capsule in capsules))
        status = _launch(operation.dlpack, context, pointers + operation.omitted + rest, stream)
        del capsules
        sweep()
    if status:
        raise failure.exception()


def allocate(like, shape):
    """A bf16 output for a call whose tensors are like this one."""
    if isinstance(like, Tensor):
        return torch.empty(tuple(shape), dtype=torch.bfloat16, device=like.device)
    return DeviceTensor(shape, 'bf16', _device_of(like))

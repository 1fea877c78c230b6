# SPDX-License-Identifier: Apache-2.0
"""From Python's tensors to the argument structs of the library, and the launch.

The library reads every tensor itself, as a DLTensor. Where all tensors are of a framework with DLPack's exchange API
(torch from 2.10 on) it is handed the objects and the framework's reader; else a capsule of each, by `__dlpack__`. No rule
about devices, shapes, strides or types is here.
"""
import ctypes
from struct import Struct, error as struct_error

from . import _abi, _library
from ._arguments import INT32, STREAM, UINT32, flag, no_tensor, number
from ._library import failure
from ._memory import CUDA, CUDA_MANAGED, DeviceTensor, capsule_pointer, current_context, sweep

try:
    import torch
    from torch import Tensor
except ImportError:
    torch = None
    Tensor = ()
try:
    # A tenth of the time of torch.cuda.current_stream(device).cuda_stream.
    from torch._C import _cuda_getCurrentRawStream as current_stream
except ImportError:
    def current_stream(device):
        return torch.cuda.current_stream(device).cuda_stream if torch.cuda.is_available() else 0

# --------------------------------------------------------------------------------------- exchange API

class _ExchangeAPI(ctypes.Structure):
    """DLPackExchangeAPI; later versions of the same major add to its end."""
    _fields_ = [('major', ctypes.c_uint32), ('minor', ctypes.c_uint32), ('previous', ctypes.c_void_p),
                ('allocate', ctypes.c_void_p), ('export', ctypes.c_void_p), ('adopt', ctypes.c_void_p),
                ('read', ctypes.c_void_p), ('work_stream', ctypes.c_void_p)]


_WorkStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class _Framework:
    """What a type of tensors says of itself. `reader` is the address of the function that reads an object of it, 0 where
    there is none: then objects come as capsules."""

    def __init__(self, kind):
        capsule = getattr(kind, '__dlpack_c_exchange_api__', None)
        address = capsule and capsule_pointer(capsule, b'dlpack_exchange_api')
        while address and _ExchangeAPI.from_address(address).major > 1:
            address = _ExchangeAPI.from_address(address).previous
        api = _ExchangeAPI.from_address(address) if address else _ExchangeAPI()
        self.reader = api.read or 0
        self.work_stream = _WorkStream(api.work_stream) if self.reader and api.work_stream else None
        self.is_torch = torch is not None and issubclass(kind, Tensor)

    def current_stream(self, device):
        """The stream that the framework works on; capsules are ready on any that is asked for."""
        if self.is_torch:
            return current_stream(device)
        out = ctypes.c_void_p()
        if self.work_stream:
            self.work_stream(CUDA, device, ctypes.byref(out))
        return out.value or 0


class _Frameworks(dict):
    """By type of tensor."""

    def __missing__(self, kind):
        framework = self[kind] = _Framework(kind)
        return framework


_frameworks = _Frameworks()


def _objects(tensors):
    """What the library is to read, and with what; None where a tensor has to come as a capsule."""
    reader = _frameworks[type(tensors[0])].reader
    if not reader:
        return None
    addresses = []
    for tensor in tensors:
        if tensor is None:
            addresses.append(0)
        elif _frameworks[type(tensor)].reader == reader:
            addresses.append(id(tensor))
        else:
            return None
    addresses.append(reader)
    return addresses


# -------------------------------------------------------------------------------------------- capsules

def _capsule(operation, name, tensor, stream):
    """A capsule of the tensor, whose data is ready on the stream."""
    if not hasattr(tensor, '__dlpack__') or not hasattr(tensor, '__dlpack_device__'):
        raise no_tensor(operation, name, tensor)
    if isinstance(tensor, Tensor):
        tensor = tensor.detach()  # one that requires a gradient has no capsule
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

_TENSOR_SIZE = 80  # of a kda_tensor; all zero it is an omitted one

# Fields that are arguments of another name in Python.
POOL = 'initial_state (or initial_state_source)'
_NAMES = {'a_log': 'A_log', 'out': 'output'}
_WINDOW_NAMES = {**_NAMES, 'state': POOL, 'ssm_state_indices': 'ssm_state_indices (or initial_state_indices)'}
_NAMES_OF = {'recurrent': _WINDOW_NAMES, 'verify': _WINDOW_NAMES}

# Converters of scalars, and what they need not convert, by the struct's letter; flags are of a kind of their own.
_KINDS = {'i': (INT32, int), 'I': (UINT32, int), 'f': (number, float)}
_FLAGS = {'beta_is_logit': (flag, bool)}


class _Operation:
    def __init__(self, name):
        self.name = name
        tensors, layout, self.scalars = _abi.OPERATIONS[name]
        names = _NAMES_OF.get(name, _NAMES)
        self.tensors = [names.get(field, field) for field in tensors]
        kinds = [_FLAGS.get(field) or _KINDS[letter] for field, letter in zip(self.scalars, layout)]
        self.converters = [converter for converter, _ in kinds]
        self.types = [kind for _, kind in kinds]
        self.pack = Struct(layout).pack
        self.pack_addresses = Struct(f'{len(tensors) + 1}P').pack
        self.omitted = bytes(len(tensors) * _TENSOR_SIZE)
        self.function = getattr(_library.holding_gil, f'kda_{name}_dlpack')

    def pack_scalars(self, *scalars):
        try:
            if [*map(type, scalars)] == self.types:
                return self.pack(*scalars)
        except (struct_error, OverflowError):
            pass  # out of range
        return self.pack(*(converter(self.name, field, value)
                           for converter, field, value in zip(self.converters, self.scalars, scalars)))

    def launch(self, context, addresses, rest, stream):
        args = self.pack_addresses(*addresses) + self.omitted + rest
        if stream:
            return self.function(context.handle, args, stream, failure.address)
        # The default stream is that of whichever context is current.
        with current_context(context.cuda):
            return self.function(context.handle, args, None, failure.address)


_operations = {name: _Operation(name) for name in _abi.OPERATIONS}


def call(name, tensors, scalars, stream=None):
    """Puts one kernel on `stream`: a handle, or None for the stream that the first tensor's framework works on."""
    operation = _operations[name]
    if stream is not None:
        stream = STREAM(name, 'stream', stream)
    rest = operation.pack_scalars(*scalars)
    first = tensors[0]
    device = first.get_device() if isinstance(first, Tensor) and first.is_cuda else _device_of(first)
    if stream is None:
        stream = _frameworks[type(first)].current_stream(device)
    bundle = _library.bundle
    context = bundle.contexts.get(device) or bundle.context(device, name)
    addresses = _objects(tensors)
    if addresses:
        status = operation.launch(context, addresses, rest, stream)
    else:
        capsules = [tensor if tensor is None else _capsule(name, field, tensor, stream)
                    for field, tensor in zip(operation.tensors, tensors)]
        addresses = [0 if capsule is None else capsule_pointer(capsule, b'dltensor') for capsule in capsules] + [0]
        status = operation.launch(context, addresses, rest, stream)
        del capsules
        sweep()
    if status:
        raise failure.exception()


def shape_of(operation, name, tensor):
    """The shape of a tensor that decides that of the output."""
    shape = getattr(tensor, 'shape', None)
    if shape is None:
        raise no_tensor(operation, name, tensor,
                        'a torch tensor or an object with __dlpack__, and with a shape where output is None')
    return shape


def allocate(like, shape):
    """A bf16 output for a call whose tensors are like this one."""
    if isinstance(like, Tensor):
        return torch.empty(tuple(shape), dtype=torch.bfloat16, device=like.device)
    return DeviceTensor(shape, 'bf16', _device_of(like))

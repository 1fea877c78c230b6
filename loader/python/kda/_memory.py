# SPDX-License-Identifier: Apache-2.0
"""Device memory for callers without a framework, and DLPack capsules of it."""
import ctypes
import math
import sys

from . import _abi, _library
from ._abi import Status
from ._arguments import DEVICE, EXTENT, STRIDE, Choice, extents
from ._errors import ArgumentError, DtypeError
from ._library import driver

CUDA, CUDA_MANAGED = 2, 13  # DLDeviceType


class current_context:
    """A block in which a CUDA context is the thread's current one."""

    def __init__(self, cuda):
        self.cuda = cuda

    def __enter__(self):
        driver.call('cuCtxPushCurrent_v2', ctypes.c_void_p(self.cuda))

    def __exit__(self, *_):
        driver.call('cuCtxPopCurrent_v2', ctypes.byref(ctypes.c_void_p()))


class DeviceTensor:
    """Device memory of a shape: what a call allocates where there is no torch.

    shape: extents; dtype: 'bf16', 'f32' or 'i32'; device: its number; strides: in elements, one per extent, None: compact.
    Exports DLPack, so that a framework can view it; the memory is freed with the last of this object and its capsules.
    Raises DeviceError where there is no device, or not enough memory; ArgumentError and DtypeError name the argument.
    """

    _CODES = {'bf16': (4, 16), 'f32': (2, 32), 'i32': (0, 32)}
    _check_dtype = Choice(*_CODES, status=Status.TYPE)

    def __init__(self, shape, dtype='bf16', device=0, strides=None):
        self.shape = extents('DeviceTensor', 'shape', shape, EXTENT)
        self.dtype = self._check_dtype('DeviceTensor', 'dtype', dtype)
        self.device = DEVICE('DeviceTensor', 'device', device)
        self.strides = None if strides is None else extents('DeviceTensor', 'strides', strides, STRIDE)
        if strides is not None and len(self.strides) != len(self.shape):
            raise ArgumentError(Status.STRIDE, f'DeviceTensor: strides has {len(self.strides)} numbers, must have '
                                               f'{len(self.shape)}, one per extent')
        elements = math.prod(self.shape)
        if strides is not None and elements:
            elements = 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides))
        self.nbytes = elements * self._CODES[dtype][1] // 8
        if self.nbytes > EXTENT.highest:
            raise ArgumentError(Status.LIMIT, f'DeviceTensor: shape asks for {self.nbytes} bytes, must be at most 2**63 - 1')
        self._cuda = _library.bundle.context(self.device, 'DeviceTensor').cuda
        address = ctypes.c_uint64()
        with current_context(self._cuda):
            driver.call('cuMemAlloc_v2', ctypes.byref(address), ctypes.c_size_t(max(self.nbytes, 1)))
        self.address = address.value

    def __del__(self):
        if getattr(self, 'address', 0) and driver.library is not None:
            with current_context(self._cuda):
                driver.call('cuMemFree_v2', ctypes.c_uint64(self.address))

    def write(self, data):
        """Copies `nbytes` bytes from the host, the gaps between elements included."""
        try:
            data = memoryview(data).tobytes()
        except TypeError:
            raise DtypeError(Status.TYPE, f'write: data is a {type(data).__name__}, must be bytes') from None
        if len(data) != self.nbytes:
            raise ArgumentError(Status.SHAPE, f'write: data has {len(data)} bytes, must have {self.nbytes}')
        with current_context(self._cuda):
            driver.call('cuMemcpyHtoD_v2', ctypes.c_uint64(self.address), data, ctypes.c_size_t(self.nbytes))
        return self

    def read(self):
        """The bytes, on the host, of everything queued on the default stream before."""
        out = ctypes.create_string_buffer(max(self.nbytes, 1))
        with current_context(self._cuda):
            driver.call('cuMemcpyDtoH_v2', out, ctypes.c_uint64(self.address), ctypes.c_size_t(self.nbytes))
        return out.raw[:self.nbytes]

    def __dlpack_device__(self):
        return CUDA, self.device

    def __dlpack__(self, *, stream=None, **_):
        # Nothing is ever queued here but by the calls that the user orders.
        return _Export(self).capsule


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_get = ctypes.pythonapi.PyCapsule_GetPointer
_get.restype, _get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_DLPACK = b'dltensor'  # the name of a capsule that nobody has consumed; the capsule borrows it


class _Managed(ctypes.Structure):
    _fields_ = [('tensor', _abi.kda_dl_tensor), ('manager', ctypes.c_void_p), ('deleter', ctypes.c_void_p)]


class _Export:
    """A DLManagedTensor and its capsule, alive until a consumer calls its deleter or nobody holds the capsule.

    A destructor in Python would run wherever the capsule is dropped, during an exception too, which ctypes cannot; so
    dropped capsules are looked for instead.
    """

    alive = {}  # by address

    def __init__(self, owner):
        self.sweep()
        code, bits = owner._CODES[owner.dtype]
        self.owner = owner
        self.shape = (ctypes.c_int64 * len(owner.shape))(*owner.shape)
        self.strides = owner.strides and (ctypes.c_int64 * len(owner.shape))(*owner.strides)
        self.managed = _Managed(
            _abi.kda_dl_tensor(data=owner.address, device_type=CUDA, device_id=owner.device, ndim=len(owner.shape),
                               code=code, bits=bits, lanes=1, shape=ctypes.addressof(self.shape),
                               strides=self.strides and ctypes.addressof(self.strides)),
            None, ctypes.cast(_deleted, ctypes.c_void_p).value)
        address = ctypes.addressof(self.managed)
        self.capsule = _new(address, _DLPACK, None)
        self.alive[address] = self

    @classmethod
    def sweep(cls):
        for address, export in list(cls.alive.items()):
            # Two references: the attribute, and the argument.
            if sys.getrefcount(export.capsule) <= 2 and _is_valid(export.capsule, _DLPACK):
                cls.alive.pop(address, None)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _deleted(managed):
    _Export.alive.pop(managed, None)


def capsule_pointer(capsule, name):
    """What is inside a capsule of this name, which is not consumed: it keeps that alive."""
    return _get(capsule, name)


sweep = _Export.sweep

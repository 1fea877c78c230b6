# SPDX-License-Identifier: Apache-2.0
"""The C library under the package: its functions with their types, its failures, bundles and contexts."""
import ctypes
import pathlib
import threading

from . import _abi
from ._abi import Status
from ._arguments import DEVICE, path_bytes
from ._errors import DeviceError, error

FOLDER = pathlib.Path(__file__).parent


def _open_library(kind):
    beside = FOLDER / 'libkda.so.0'
    library = kind(str(beside) if beside.exists() else 'libkda.so.0')
    for name, (result, params) in _abi.FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, params
    return library


library = _open_library(ctypes.CDLL)
holding_gil = _open_library(ctypes.PyDLL)  # for calls that read Python's objects


class _Failure(threading.local):
    """Where the calls of this thread write why they failed."""

    def __init__(self):
        self.error = _abi.kda_error()
        self.address = ctypes.addressof(self.error)

    def exception(self):
        return error(self.error.status, self.error.text.decode(errors='replace'), self.error.cuda)


failure = _Failure()


def check(status):
    if status:
        raise failure.exception()


# ------------------------------------------------------------------------------------------------ driver

INVALID_DEVICE = 101  # CUDA_ERROR_INVALID_DEVICE


class _Driver:
    """The few driver functions that a caller without torch needs. `library` is None where no driver is."""

    def __init__(self):
        try:
            self.library = ctypes.CDLL('libcuda.so.1')
        except OSError:
            self.library = None

    def call(self, name, *args):
        result = getattr(self.library, name)(*args)
        if result:
            raise DeviceError(Status.DRIVER, f'{name} failed with {result}', result)

    def primary_context(self, operation, device):
        """The handle of the primary context of a device, or None where kda_context_create will say why there is none."""
        if self.library is None or self.library.cuInit(0):
            return None
        count = ctypes.c_int()
        self.call('cuDeviceGetCount', ctypes.byref(count))
        if device >= count.value:
            raise DeviceError(Status.DRIVER, f'{operation}: device is {device}, must be below {count.value}, the number of '
                                             'devices', INVALID_DEVICE)
        handle = ctypes.c_void_p()
        self.call('cuDevicePrimaryCtxRetain', ctypes.byref(handle), ctypes.c_int(device))
        return handle.value


driver = _Driver()


# ----------------------------------------------------------------------------------- bundles and contexts

class Context:
    """A bundle bound to the primary context of a device."""

    def __init__(self, bundle, operation, device):
        self.cuda = driver.primary_context(operation, device)
        handle = ctypes.c_void_p()
        check(library.kda_context_create(bundle.handle, self.cuda, None, ctypes.addressof(handle), failure.address))
        self.handle = handle.value
        self.device = device


class Bundle:
    """An opened bundle of kernels, in use from the moment it is made by `use_bundle`.

    As a context manager it puts back, at the end of the block, the bundle that was in use before. It is never closed:
    its images stay loaded, because captured graphs may hold their kernels.
    """

    def __init__(self, path=None):
        handle = ctypes.c_void_p()
        if path is None:
            check(library.kda_bundle_open_builtin(ctypes.addressof(handle), failure.address))
        else:
            path = path_bytes('use_bundle', 'path', path)
            check(library.kda_bundle_open_file(path, ctypes.addressof(handle), failure.address))
        self.handle = handle.value
        self.contexts = {}  # by device
        self._lock = threading.Lock()
        self._before = None

    @property
    def id(self):
        """The bundle id, 64 hexadecimal digits."""
        out = ctypes.create_string_buffer(32)
        library.kda_bundle_id(self.handle, ctypes.addressof(out))
        return out.raw.hex()

    def verify(self):
        """Proves every byte of the bundle. Raises DeviceError (FORMAT, DIGEST, NO_MEMORY)."""
        check(library.kda_bundle_verify(self.handle, failure.address))

    def context(self, device, operation='context create'):
        """The context of a device, made on first use, for an operation that is named where there is none."""
        device = DEVICE(operation, 'device', device)
        context = self.contexts.get(device)
        if context is None:
            with self._lock:
                context = self.contexts.get(device)
                if context is None:
                    context = self.contexts[device] = Context(self, operation, device)
        return context

    def __enter__(self):
        return self

    def __exit__(self, *_):
        global bundle
        bundle = self._before


bundle = Bundle()


def use_bundle(path=None):
    """Opens a bundle and makes it the one that calls use from now on, on every thread.

    path: a bundle file, for example `kda-sm90a.bundle`, which serves Hopper; None: the one inside the library.
    Returns the `Bundle`, which is a context manager. Raises DeviceError (IO, FORMAT, VERSION, DIGEST, NO_MEMORY);
    DtypeError and ArgumentError for what is no path.
    """
    global bundle
    opened = Bundle(path)
    opened._before = bundle
    bundle = opened
    return opened

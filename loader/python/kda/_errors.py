# SPDX-License-Identifier: Apache-2.0
"""Refusals and failures as exceptions, with the library's status."""
from ._abi import Status


class Error(Exception):
    """A call that the library refused, or that failed.

    `status` is the library's `Status`, `cuda` the number of the driver's result where a driver call failed, else 0. The
    text is one line: the operation, what was found, what is allowed. It is raised as one of three subclasses, which are
    also ValueError, TypeError and RuntimeError.
    """

    def __init__(self, status, text, cuda=0):
        super().__init__(text)
        self.status = Status(status)
        self.cuda = cuda

    def __reduce__(self):
        return type(self), (self.status, str(self), self.cuda)


class ArgumentError(Error, ValueError):
    """Statuses ARGUMENT to NAME, but for TYPE: the caller can get the call right."""


class DtypeError(Error, TypeError):
    """Status TYPE: a wrong element type, or no tensor at all."""


class DeviceError(Error, RuntimeError):
    """Statuses from NO_ROUTE on: device, driver, bundle or memory."""


def error(status, text, cuda=0):
    if status == Status.TYPE:
        return DtypeError(status, text, cuda)
    return (ArgumentError if status < Status.NO_ROUTE else DeviceError)(status, text, cuda)

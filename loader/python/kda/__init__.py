# SPDX-License-Identifier: Apache-2.0
"""Decode kernels of Kimi Delta Attention (KDA), compiled ahead of time: a thin front over libkda.

`recurrent_kda`, `packed_kda_decode` and `fused_kda_decode` have the names, arguments, defaults and results of FlashInfer's;
`commit_kda` follows a verify. torch tensors are used in place, on torch's current stream; anything else with `__dlpack__`
works without torch. `prepare` loads the kernels before a graph capture, `use_bundle` opens another bundle.

Every refusal carries a `Status` of the C library and one line of text, mostly the library's own, and is also a ValueError,
TypeError or RuntimeError.
"""
from ._abi import Status
from ._errors import ArgumentError, DeviceError, DtypeError, Error
from ._library import Bundle, use_bundle
from ._memory import DeviceTensor
from ._operations import commit_kda, fused_kda_decode, packed_kda_decode, prepare, recurrent_kda

__version__ = '0.1.0'
__all__ = ['ArgumentError', 'Bundle', 'DeviceError', 'DeviceTensor', 'DtypeError', 'Error', 'Status', 'commit_kda',
           'fused_kda_decode', 'packed_kda_decode', 'prepare', 'recurrent_kda', 'use_bundle']

# SPDX-License-Identifier: Apache-2.0
from enum import IntEnum
from os import PathLike
from typing import Any, Literal, Optional, Tuple, TypeVar, Union

# A torch tensor, or anything on a CUDA device with __dlpack__ and __dlpack_device__.
Tensor = Any
Pool = TypeVar('Pool')
Backend = Literal['cake', 'auto']

class Status(IntEnum):
    OK: int
    ARGUMENT: int
    TYPE: int
    SHAPE: int
    UNSUPPORTED: int
    LIMIT: int
    STRIDE: int
    ALIGNMENT: int
    OVERLAP: int
    NAME: int
    NO_ROUTE: int
    CUDA_VERSION: int
    NOT_PREPARED: int
    IO: int
    FORMAT: int
    VERSION: int
    DIGEST: int
    NO_DRIVER: int
    DRIVER: int
    CONTEXT_LOST: int
    FORKED: int
    NO_MEMORY: int

class Error(Exception):
    status: Status
    cuda: int
    def __init__(self, status: int, text: str, cuda: int = 0) -> None: ...

class ArgumentError(Error, ValueError): ...
class DtypeError(Error, TypeError): ...
class DeviceError(Error, RuntimeError): ...

class Bundle:
    @property
    def id(self) -> str: ...
    def verify(self) -> None: ...
    def __enter__(self) -> Bundle: ...
    def __exit__(self, *_: object) -> None: ...

class DeviceTensor:
    shape: Tuple[int, ...]
    dtype: str
    device: int
    strides: Optional[Tuple[int, ...]]
    nbytes: int
    address: int
    def __init__(self, shape: Tuple[int, ...], dtype: Literal['bf16', 'f32', 'i32'] = 'bf16', device: int = 0,
                 strides: Optional[Tuple[int, ...]] = None) -> None: ...
    def write(self, data: bytes) -> DeviceTensor: ...
    def read(self) -> bytes: ...
    def __dlpack_device__(self) -> Tuple[int, int]: ...
    def __dlpack__(self, *, stream: Optional[int] = None, **_: Any) -> Any: ...

def use_bundle(path: Optional[Union[str, PathLike[str]]] = None) -> Bundle: ...
def prepare(device: int = 0) -> None: ...

def recurrent_kda(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Optional[Tensor] = None,
        dt_bias: Optional[Tensor] = None, scale: Optional[float] = None, initial_state: Optional[Tensor] = None,
        output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = True, use_gate_in_kernel: bool = False,
        lower_bound: Optional[float] = None, cu_seqlens: Optional[Tensor] = None,
        ssm_state_indices: Optional[Tensor] = None, num_spec_tokens: Optional[int] = None,
        num_accepted_tokens: Optional[Tensor] = None, output: Optional[Tensor] = None,
        initial_state_source: Optional[Tensor] = None, initial_state_indices: Optional[Tensor] = None,
        beta_is_logit: bool = False, *, disable_state_update: bool = False,
        correction_cache: Optional[Tensor] = None, kg_cache: Optional[Tensor] = None, backend: Backend = 'cake',
        enable_pdl: Optional[bool] = False, stream: Optional[int] = None) -> Tuple[Any, Optional[Any]]: ...

def packed_kda_decode(
        mixed_qkv: Tensor, raw_gate: Tensor, raw_beta: Tensor, A_log: Tensor, dt_bias: Tensor, state: Tensor,
        state_indices: Tensor, output: Optional[Tensor] = None, *, enable_pdl: Optional[bool] = False,
        stream: Optional[int] = None) -> Any: ...

def fused_kda_decode(
        x: Tensor, weight: Tensor, conv_state: Tensor, raw_gate: Tensor, raw_beta: Tensor, A_log: Tensor,
        dt_bias: Tensor, state_indices: Tensor, state: Tensor, output_gate: Tensor, norm_weight: Tensor,
        lower_bound: Optional[float] = -5.0, norm_eps: float = 1e-5, output: Optional[Tensor] = None, *,
        backend: Backend = 'cake',
        state_indices_mode: Optional[Literal['positive_unique', 'unique_or_null', 'repeated_positive']] = None,
        enable_pdl: Optional[bool] = False, stream: Optional[int] = None) -> Any: ...

def commit_kda(
        state: Pool, correction_cache: Tensor, kg_cache: Tensor, num_accepted_tokens: Tensor, heads: int,
        A_log: Optional[Tensor] = None, dt_bias: Optional[Tensor] = None, ssm_state_indices: Optional[Tensor] = None,
        use_gate_in_kernel: bool = False, lower_bound: Optional[float] = None, *, enable_pdl: Optional[bool] = False,
        stream: Optional[int] = None) -> Pool: ...

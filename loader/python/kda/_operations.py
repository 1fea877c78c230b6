# SPDX-License-Identifier: Apache-2.0
"""The operations under the names, arguments and defaults that serving engines know.

Each function maps its arguments to those of one C call and makes it. What it refuses by itself is what the C call has no
argument for, or no number or tensor to hand over; everything else is the library's to accept or refuse.
"""
from . import _abi, _library, _torch
from ._abi import Gate, Mode, Status
from ._arguments import Choice, no_tensor, truth
from ._call import POOL, allocate, call, shape_of, torch
from ._errors import ArgumentError

_SCALE = 128.0 ** -0.5
_PRECOMPUTED, _LOWER_BOUND, _SOFTPLUS = (int(gate) for gate in Gate)
_MODES = {mode.name.lower(): int(mode) for mode in Mode}
_check_backend = Choice('cake', 'auto')
_check_mode = Choice(*_MODES)


def _refuse(status, text):
    raise ArgumentError(status, text)


def _run(name, tensors, scalars, stream):
    if torch is not None and torch.compiler.is_compiling():
        _torch.run(name, tensors, scalars, stream)
    else:
        call(name, tensors, scalars, stream)


def _flags(name, enable_pdl):
    return _abi.KDA_FLAG_PDL if truth(name, 'enable_pdl', enable_pdl) else 0


def _gate(in_kernel, lower_bound):
    if not in_kernel:
        return _PRECOMPUTED
    return _SOFTPLUS if lower_bound is None else _LOWER_BOUND


def recurrent_kda(q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None, output_final_state=False,
                  use_qk_l2norm_in_kernel=True, use_gate_in_kernel=False, lower_bound=None, cu_seqlens=None,
                  ssm_state_indices=None, num_spec_tokens=None, num_accepted_tokens=None, output=None,
                  initial_state_source=None, initial_state_indices=None, beta_is_logit=False, *,
                  disable_state_update=False, correction_cache=None, kg_cache=None, backend='cake', enable_pdl=False,
                  stream=None):
    """Recurrent decode of T tokens per row; with disable_state_update the frozen verify of a window of them.

    N rows, H query/key heads, HV value heads, D = 128, tok = N*T packed tokens. bf16 unless said.

    q, k: [N,T,H,128], or [tok,H,128] with cu_seqlens. v, g: the same with HV heads; g is the log decay, or the raw gate
        with use_gate_in_kernel. beta: [N,T,HV] or [tok,HV], in (0,1), or logits with beta_is_logit.
    A_log: f32 [H]; dt_bias: f32 [H,128] or [H*128]; with use_gate_in_kernel only. lower_bound: < 0, log decay per token;
        None: the softplus gate.
    scale: of q after normalization; None: 128**-0.5.
    initial_state, or initial_state_source: the pool [num_slots,HV,128,128], [value row, key channel] per head. It is
        read, and updated in place: a checkpoint per token. One of the two; verify takes the source before the other.
    ssm_state_indices, or initial_state_indices: i32 [N,T] ([N] for T = 1 and for verify); None: n*T + t. A slot
        outside the pool is null: its row's output is +0 and nothing of it is read or written.
    cu_seqlens: i32 [N+1]. num_spec_tokens: T - 1. num_accepted_tokens: i32 [N], starts a row from its checkpoint
        accepted - 1.
    output: like v; None: allocated.
    disable_state_update: the pool keeps its bits; T is 1..16. correction_cache: f32 [num_slots,HV,T_cache,128] and
        kg_cache: bf16 [num_slots,HV,T_cache,256] receive what `commit_kda` needs.
    backend: 'cake' or 'auto', the same kernels. stream: a CUstream handle, as an int; None: torch's current stream, or the
        one that the framework of q names, or the legacy default stream.
    enable_pdl: programmatic dependent launch; None is False. The kernel may start while the one before it on the stream
        still runs; what it computes depends on that one as always. Recurrent decode may look ahead at indices and prefetch
        what they point to, so the tensors must be there while the kernel before runs.

    Returns (output, pool if output_final_state else None). Raises ArgumentError (a ValueError), DtypeError (a TypeError)
    and DeviceError (a RuntimeError), with a status of the library. During a graph capture a kernel that was never
    loaded is NOT_PREPARED: see `prepare`.
    """
    name = 'verify' if disable_state_update else 'recurrent'
    _check_backend(name, 'backend', backend)
    flags = _flags(name, enable_pdl) | (0 if num_spec_tokens is None else _abi.KDA_FLAG_SPECULATIVE)
    if not use_qk_l2norm_in_kernel:
        _refuse(Status.ARGUMENT if disable_state_update else Status.UNSUPPORTED,
                f'{name}: does not support use_qk_l2norm_in_kernel = False; supported: True')
    pool = initial_state if initial_state_source is None else initial_state_source
    indices = ssm_state_indices if initial_state_indices is None else initial_state_indices
    if pool is None:
        raise no_tensor(name, POOL, pool)
    if output is None:
        output = allocate(v, shape_of(name, 'v', v))
    gate = _gate(use_gate_in_kernel, lower_bound)
    scale = _SCALE if scale is None else scale
    bound = 0.0 if lower_bound is None else lower_bound
    spec = 0 if num_spec_tokens is None else num_spec_tokens
    if disable_state_update:
        if output_final_state:
            _refuse(Status.ARGUMENT, 'verify: output_final_state is True, must be False with disable_state_update')
        _run(name, (q, k, v, g, beta, A_log, dt_bias, pool, output, indices, cu_seqlens, correction_cache, kg_cache,
                    num_accepted_tokens), (gate, spec, 0, beta_is_logit, scale, bound, flags), stream)
        return output, None
    if correction_cache is not None or kg_cache is not None:
        _refuse(Status.ARGUMENT, f'recurrent: {"kg_cache" if correction_cache is None else "correction_cache"} is given, '
                                 'must be None without disable_state_update')
    if initial_state_indices is not None and ssm_state_indices is not None:
        _refuse(Status.UNSUPPORTED, 'recurrent: does not support initial_state_indices beside ssm_state_indices; '
                                    'supported: one of them')
    separate = None if initial_state_source is None or initial_state is initial_state_source else initial_state
    _run(name, (q, k, v, g, beta, A_log, dt_bias, pool, output, indices, cu_seqlens, num_accepted_tokens, separate),
         (gate, spec, beta_is_logit, scale, bound, flags), stream)
    return output, pool if output_final_state else None


def packed_kda_decode(mixed_qkv, raw_gate, raw_beta, A_log, dt_bias, state, state_indices, output=None, *,
                      enable_pdl=False, stream=None):
    """Decode of one token per row in the Kimi K3 layout: H = HV = 12, lower bound -5, scale 128**-0.5, logit beta.

    mixed_qkv: bf16 [N,4608], q, k and v of [12,128]. raw_gate: bf16 [N,1536]. raw_beta: bf16 [N,12]. A_log: f32 [12].
    dt_bias: f32 [1536]. state: bf16 [num_slots,12,128,128], updated in place. state_indices: i32 [N]; a slot outside the
    pool is null. Row and slot strides are free. output: bf16 [N,1,12,128]; None: allocated. enable_pdl, stream: as
    `recurrent_kda`.

    Returns output. Raises as `recurrent_kda`.
    """
    flags = _flags('packed', enable_pdl)
    if output is None:
        output = allocate(mixed_qkv, (*shape_of('packed', 'mixed_qkv', mixed_qkv)[:1], 1,
                                      *shape_of('packed', 'state', state)[1:3]))
    _run('packed', (mixed_qkv, raw_gate, raw_beta, A_log, dt_bias, state, state_indices, output), (flags,), stream)
    return output


def fused_kda_decode(x, weight, conv_state, raw_gate, raw_beta, A_log, dt_bias, state_indices, state, output_gate,
                     norm_weight, lower_bound=-5.0, norm_eps=1e-5, output=None, *, backend='cake',
                     state_indices_mode=None, enable_pdl=False, stream=None):
    """Decode of one token per row: causal convolution with SiLU, the recurrent update, RMS norm, sigmoid output gate.

    H heads, H in {8, 12, 24, 32, 48, 96}; hid = H*128.

    x: bf16 [N,3*hid], q, k and v. weight: f32 [3,4,hid]; tap 3 multiplies x. conv_state: bf16 [num_slots,3*hid,3] with
        strides {slot, 1, 3*hid}, the last three x, oldest first; updated in place.
    raw_gate: bf16 [1,N,H,128]. raw_beta: bf16 [1,N,H], logits. A_log: f32 [H]. dt_bias: f32 [hid].
    state: f32 or bf16 [num_slots,H,128,128], updated in place. state_indices: i32 [N]; slot 0 and slots outside the
        pool are null.
    output_gate: bf16 [N,H,128] or [1,N,H,128]. norm_weight: f32 [128]. norm_eps: >= 0. lower_bound: < 0; None: the
        softplus gate. output: bf16 [1,N,H,128]; None: allocated.
    state_indices_mode: what is known of the indices, mandatory: 'positive_unique' (all live and distinct),
        'unique_or_null' (the live ones are distinct), 'repeated_positive' (live ones may repeat).
    backend, enable_pdl, stream: as `recurrent_kda`.

    Returns output. Raises as `recurrent_kda`.
    """
    _check_backend('fused', 'backend', backend)
    if state_indices_mode is not None:
        _check_mode('fused', 'state_indices_mode', state_indices_mode)
    flags = _flags('fused', enable_pdl)
    if output is None:
        output = allocate(x, shape_of('fused', 'raw_gate', raw_gate))
    _run('fused', (x, weight, conv_state, raw_gate, raw_beta, A_log, dt_bias, state_indices, state, output_gate,
                   norm_weight, output),
         (_gate(True, lower_bound), _MODES.get(state_indices_mode, 0), 0.0 if lower_bound is None else lower_bound,
          norm_eps, flags), stream)
    return output


def commit_kda(state, correction_cache, kg_cache, num_accepted_tokens, heads, A_log=None, dt_bias=None,
               ssm_state_indices=None, use_gate_in_kernel=False, lower_bound=None, *, enable_pdl=False, stream=None):
    """Folds the first accepted tokens of a verified window into the pool, in place.

    state, correction_cache, kg_cache, A_log, dt_bias, ssm_state_indices, use_gate_in_kernel and lower_bound are those of
    the verifying `recurrent_kda` call, from this very state. num_accepted_tokens: i32 [N]. heads: H. enable_pdl, stream: as
    `recurrent_kda`.

    Returns state. Raises as `recurrent_kda`.
    """
    _run('commit', (state, correction_cache, kg_cache, ssm_state_indices, num_accepted_tokens, A_log, dt_bias),
         (_gate(use_gate_in_kernel, lower_bound), heads, 0, 0.0 if lower_bound is None else lower_bound,
          _flags('commit', enable_pdl)), stream)
    return state


def prepare(device=0):
    """Loads every kernel that the device could be routed to, so that calls can be captured in a CUDA graph.

    device: its number. Raises DeviceError: NO_ROUTE where the bundle in use has nothing for the device, NO_DRIVER, DRIVER
    where there is no such device, and others; DtypeError and ArgumentError for what is no number of a device.
    """
    context = _library.bundle.context(device, 'prepare')
    _library.check(_library.library.kda_context_prepare(context.handle, None, _library.failure.address))

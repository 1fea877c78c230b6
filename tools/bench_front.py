# SPDX-License-Identifier: Apache-2.0
"""Host time of the Python front: microseconds until a call returns, everything given, on a GPU with torch.

    python3 tools/bench_front.py [BUNDLE]

A call is timed in runs of 64 between synchronisations, so that the queue never fills; the median of the runs counts.
"""
import statistics
import struct
import sys
import time

import torch

import kda
from kda import _call, _library


def host_time(function, runs=200, calls=64):
    for _ in range(3 * calls):
        function()
    times = []
    for _ in range(runs):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - begin) / calls)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


def inputs(rows, heads, value_heads):
    def normal(*shape):
        return torch.randn(*shape, device='cuda', dtype=torch.bfloat16)
    return {'q': normal(rows, 1, heads, 128), 'k': normal(rows, 1, heads, 128), 'v': normal(rows, 1, value_heads, 128),
            'g': -normal(rows, 1, value_heads, 128).abs(), 'beta': torch.sigmoid(normal(rows, 1, value_heads)),
            'initial_state': normal(rows, value_heads, 128, 128)}


def kda_tensors(tensors):
    types = {torch.bfloat16: 1, torch.float32: 2, torch.int32: 3}
    return b''.join(bytes(80) if tensor is None else struct.pack(
        f'=QiI{tensor.ndim}q{32 - 8 * tensor.ndim}x{tensor.ndim}q{32 - 8 * tensor.ndim}x', tensor.data_ptr(),
        types[tensor.dtype], tensor.ndim, *tensor.shape, *tensor.stride()) for tensor in tensors)


def main():
    if len(sys.argv) > 1:
        kda.use_bundle(sys.argv[1])
    kda.prepare()
    made = inputs(1, 16, 16)
    output = torch.empty_like(made['v'])
    indices = torch.zeros(1, dtype=torch.int32, device='cuda')
    report = []

    def direct():
        kda.recurrent_kda(**made, ssm_state_indices=indices, output=output)

    tensors = (made['q'], made['k'], made['v'], made['g'], made['beta'], None, None, made['initial_state'], output,
               indices, None, None, None)
    scalars = (0, 0, 0, 128.0 ** -0.5, 0.0, 0)

    def operator():
        torch.ops.kda.recurrent(*tensors, *scalars, None)

    operation = _call._operations['recurrent']
    rest = operation.pack_scalars(*scalars)
    objects = operation.pack_addresses(*_call._objects(tensors)) + operation.omitted + rest
    context, error = _library.bundle.context(0).handle, _library.failure.address
    stream = torch.cuda.Stream()
    handle, plain = stream.cuda_stream, kda_tensors(tensors) + rest
    for _ in range(2):  # the first round warms the processor up
        report.clear()
        with torch.cuda.stream(stream):
            report.append(('direct call', host_time(direct)))
            report.append(('custom operator', host_time(operator)))
        report.append(('direct call, default stream', host_time(direct)))
        report.append(('kda_recurrent_dlpack through ctypes',
                       host_time(lambda: operation.function(context, objects, handle, error))))
        report.append(('kda_recurrent through ctypes',
                       host_time(lambda: _library.library.kda_recurrent(context, plain, handle, error))))
    step = torch.compile(direct)
    with torch.cuda.stream(stream):
        report.append(('compiled call', host_time(step)))
    try:
        from fla.ops.kda import fused_recurrent_kda
        from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd
        theirs = {name: made[name] for name in ('q', 'k', 'v', 'g', 'beta')}
        state = made['initial_state'].float()
        report.append(('flash-linear-attention, fused_recurrent_kda', host_time(
            lambda: fused_recurrent_kda(**theirs, initial_state=state, use_qk_l2norm_in_kernel=True,
                                        state_v_first=True))))
        report.append(('flash-linear-attention, its launch, everything given', host_time(
            lambda: fused_recurrent_kda_fwd(**theirs, initial_state=state, use_qk_l2norm_in_kernel=True,
                                            state_v_first=True, out=output))))
    except ImportError as error:
        print(f'flash-linear-attention: skipped: {error}')
    print(f'{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}, N = 1, H = HV = 16')
    for name, time_ in report:
        print(f'{time_:8.2f} us  {name}')


if __name__ == '__main__':
    main()

# SPDX-License-Identifier: Apache-2.0
"""Tensors on the device for the tests without torch: float lists in, float lists out."""
import random
import struct

import kda

_FORMAT = {'f32': 'f', 'i32': 'i', 'bf16': 'H'}


def bf16_bits(x):
    bits = struct.unpack('<I', struct.pack('<f', x))[0]
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def bf16_value(bits):
    return struct.unpack('<f', struct.pack('<I', bits << 16))[0]


def tensor(values, shape, dtype='bf16'):
    if dtype == 'bf16':
        values = [bf16_bits(x) for x in values]
    return kda.DeviceTensor(shape, dtype).write(struct.pack(f'<{len(values)}{_FORMAT[dtype]}', *values))


def values(tensor):
    count = tensor.nbytes // struct.calcsize(_FORMAT[tensor.dtype])
    got = struct.unpack(f'<{count}{_FORMAT[tensor.dtype]}', tensor.read())
    return [bf16_value(x) for x in got] if tensor.dtype == 'bf16' else list(got)


def normal(rng, shape, size=0.5):
    count = 1
    for extent in shape:
        count *= extent
    return tensor([size * rng.gauss(0, 1) for _ in range(count)], shape)


def recurrent_case(rows=2, heads=1, value_heads=2, slots=4, seed=1):
    """Keyword arguments of a dense one-token call; slot 0 is nobody's."""
    rng = random.Random(seed)
    beta = [1 / (1 + 2.718 ** -rng.gauss(0, 1)) for _ in range(rows * value_heads)]
    gate = [-abs(rng.gauss(0, 1)) for _ in range(rows * value_heads * 128)]
    return {
        'q': normal(rng, (rows, 1, heads, 128)),
        'k': normal(rng, (rows, 1, heads, 128)),
        'v': normal(rng, (rows, 1, value_heads, 128)),
        'g': tensor(gate, (rows, 1, value_heads, 128)),
        'beta': tensor(beta, (rows, 1, value_heads)),
        'initial_state': normal(rng, (slots, value_heads, 128, 128), 0.05),
        'ssm_state_indices': tensor(list(range(1, rows + 1)), (rows,), 'i32'),
    }

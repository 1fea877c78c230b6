# SPDX-License-Identifier: Apache-2.0
"""One decode step from Python, without torch: a row of ones through the recurrence, and what a refusal looks like."""
import struct

import kda

BF16 = {0.0: 0x0000, 0.5: 0x3f00, 1.0: 0x3f80}  # their bits


def filled(shape, value, strides=None):
    """Device memory that holds one value, to be taken through DLPack like an array of any framework."""
    tensor = kda.DeviceTensor(shape, strides=strides)
    return tensor.write(struct.pack('<H', BF16[value]) * (tensor.nbytes // 2))


def main():
    kda.prepare()
    rows, heads, value_heads, scale, beta = 2, 1, 2, 128 ** -0.5, 0.5
    args = {
        'q': filled((rows, 1, heads, 128), 1.0),
        'k': filled((rows, 1, heads, 128), 1.0),
        'v': filled((rows, 1, value_heads, 128), 1.0),
        'g': filled((rows, 1, value_heads, 128), 0.0),
        'beta': filled((rows, 1, value_heads), beta),
        'initial_state': filled((rows, value_heads, 128, 128), 0.0),
    }
    output, _ = kda.recurrent_kda(**args)

    # From a zero state a token of ones gives scale*beta*v.
    bits = struct.unpack(f'<{rows * value_heads * 128}H', output.read())
    for x in struct.unpack(f'<{len(bits)}f', struct.pack(f'<{len(bits)}I', *(half << 16 for half in bits))):
        assert abs(x - scale * beta) < 5e-3 * scale * beta, x
    print(f'hello: {scale * beta:.4f}')

    args['g'] = filled((rows, 1, value_heads, 128), 0.0, strides=(258, 258, 128, 1))
    try:
        kda.recurrent_kda(**args)
    except kda.ArgumentError as error:
        print(f'refused: KDA_E_{error.status.name}: {error}')
    else:
        raise SystemExit('a gate stride of 258 was accepted')


if __name__ == '__main__':
    main()

# SPDX-License-Identifier: Apache-2.0
"""One case per operation, on any kind of tensor: random data, a call, the float64 oracle's judgement.

A `World` makes tensors out of flat lists and reads them back. The cases use slot 0 for nobody and end with a row whose
slot is null; both hold NaN, which must not show.
"""
import math
import random
import struct

import oracle
from oracle import D, bf16, bf16_bits, bf16_value


class Bare:
    """Tensors without a framework: the package's own device memory, taken through DLPack."""

    FORMAT = {'f32': 'f', 'i32': 'i', 'bf16': 'H'}

    def __init__(self, kda):
        self.kda = kda

    def tensor(self, values, shape, dtype='bf16', strides=None):
        values = [bf16_bits(x) for x in values] if dtype == 'bf16' else values
        data = struct.pack(f'<{len(values)}{self.FORMAT[dtype]}', *values)
        return self.kda.DeviceTensor(shape, dtype, strides=strides).write(data)

    def read(self, tensor):
        data = tensor.read()
        values = struct.unpack(f'<{len(data) // struct.calcsize(self.FORMAT[tensor.dtype])}{self.FORMAT[tensor.dtype]}',
                               data)
        return [bf16_value(x) for x in values] if tensor.dtype == 'bf16' else list(values)


class Data:
    """Random numbers as the device holds them."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def normal(self, count, size=0.5):
        return [bf16(size * self.rng.gauss(0, 1)) for _ in range(count)]

    def beta(self, count):
        return [bf16(oracle.sigmoid(self.rng.gauss(0, 1))) for _ in range(count)]

    def decay(self, count):
        return [bf16(-oracle.softplus(-self.rng.gauss(0, 1) - 2)) for _ in range(count)]

    def f32(self, count, size, middle=0.0):
        return [struct.unpack('f', struct.pack('f', middle + size * self.rng.gauss(0, 1)))[0] for _ in range(count)]


def head_state(pool, heads, slot, head):
    at = (slot * heads + head) * D * D
    return [pool[at + v * D:at + (v + 1) * D] for v in range(D)]


def poison(values, begin, end):
    values[begin:end] = [math.nan] * (end - begin)


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def judged(judge, what):
    expect(judge.good(), f'{what}: norm error {judge.norm:.3g}, worst element at {judge.worst:.3g} of its tolerance')


def decode_inputs(data, rows, tokens, heads, value_heads, slots, raw_gate=False):
    """Flat lists of a window of tokens; the last row is to be null."""
    tok = rows * tokens
    lists = {'q': data.normal(tok * heads * D), 'k': data.normal(tok * heads * D),
             'v': data.normal(tok * value_heads * D), 'beta': data.beta(tok * value_heads),
             'g': data.normal(tok * value_heads * D) if raw_gate else data.decay(tok * value_heads * D),
             'pool': data.normal(slots * value_heads * D * D, 0.05)}
    for name in ('q', 'k', 'v', 'g', 'beta'):
        each = len(lists[name]) // rows
        poison(lists[name], (rows - 1) * each, rows * each)
    poison(lists['pool'], 0, value_heads * D * D)
    return lists


def tensors_of(world, lists, rows, tokens, heads, value_heads, slots):
    shape = {'q': (rows, tokens, heads, D), 'k': (rows, tokens, heads, D), 'v': (rows, tokens, value_heads, D),
             'g': (rows, tokens, value_heads, D), 'beta': (rows, tokens, value_heads)}
    made = {name: world.tensor(lists[name], extents) for name, extents in shape.items()}
    return made, world.tensor(lists['pool'], (slots, value_heads, D, D))


def token(lists, index, h, hv, heads, value_heads):
    def cut(name, count, head):
        at = (index * count + head) * D
        return lists[name][at:at + D]
    return (cut('q', heads, h), cut('k', heads, h), cut('v', value_heads, hv), cut('g', value_heads, hv),
            lists['beta'][index * value_heads + hv])


def check_rows(lists, out, pool, rows, tokens, heads, value_heads, start, stored, gate=lambda g, h: g):
    """Outputs and checkpoints of all live rows; zeros of the last one; untouched slots. `start(n)` is the initial slot,
    `stored(n, t)` the slot of a checkpoint, None if none is stored."""
    outputs, states = oracle.Judge(), oracle.Judge()
    written = set()
    for n in range(rows - 1):
        for hv in range(value_heads):
            h = hv // (value_heads // heads)
            state = head_state(lists['pool'], value_heads, start(n), hv)
            for t in range(tokens):
                q, k, v, g, beta = token(lists, n * tokens + t, h, hv, heads, value_heads)
                state, want, _ = oracle.step(state, q, k, v, gate(g, h), beta)
                at = ((n * tokens + t) * value_heads + hv) * D
                outputs.add(out[at:at + D], want)
                if stored(n, t) is not None:
                    written.add(stored(n, t))
                    states.add(head_state(pool, value_heads, stored(n, t), hv), state)
    judged(outputs, 'output')
    judged(states, 'state')
    zeros = out[(rows - 1) * tokens * value_heads * D:]
    expect(all(x == 0 and math.copysign(1, x) == 1 for x in zeros), 'the null row is not +0')
    size = value_heads * D * D
    for slot in range(len(pool) // size):
        same = [a == b or a != a and b != b
                for a, b in zip(pool[slot * size:(slot + 1) * size], lists['pool'][slot * size:(slot + 1) * size])]
        expect(slot in written or all(same), f'slot {slot} was touched')


# ---------------------------------------------------------------------------------------------- cases

def recurrent(kda, world, **more):
    """Dense, one token, grouped heads."""
    rows, heads, value_heads, slots = 4, 1, 2, 5
    lists = decode_inputs(Data(1), rows, 1, heads, value_heads, slots)
    made, pool = tensors_of(world, lists, rows, 1, heads, value_heads, slots)
    index = [3, 1, 4, -1]
    out, final = kda.recurrent_kda(**made, initial_state=pool, ssm_state_indices=world.tensor(index, (rows,), 'i32'),
                                   output_final_state=True, **more)
    expect(final is pool, 'the final state is not the pool')
    check_rows(lists, world.read(out), world.read(pool), rows, 1, heads, value_heads, lambda n: index[n],
               lambda n, t: index[n])


def speculative(kda, world, **more):
    """Two tokens per row with checkpoints; a row starts from the one that was accepted."""
    rows, tokens, heads, value_heads, slots = 3, 2, 1, 2, 6
    lists = decode_inputs(Data(2), rows, tokens, heads, value_heads, slots)
    made, pool = tensors_of(world, lists, rows, tokens, heads, value_heads, slots)
    index, accepted = [1, 2, 3, 4, -1, slots], [2, 1, 1]
    out, final = kda.recurrent_kda(**made, initial_state_source=pool, num_spec_tokens=1,
                                   ssm_state_indices=world.tensor(index, (rows, tokens), 'i32'),
                                   num_accepted_tokens=world.tensor(accepted, (rows,), 'i32'), **more)
    expect(final is None, 'a final state that nobody asked for')
    check_rows(lists, world.read(out), world.read(pool), rows, tokens, heads, value_heads,
               lambda n: index[n * tokens + accepted[n] - 1], lambda n, t: index[n * tokens + t])


def softplus(kda, world, **more):
    """The gate computed in the kernel, logit beta."""
    rows, heads, slots = 3, 2, 4
    data = Data(3)
    lists = decode_inputs(data, rows, 1, heads, heads, slots, raw_gate=True)
    logits = data.normal(rows * heads, 1.0)
    a_log, dt_bias = data.f32(heads, 0.2, -2), data.f32(heads * D, 0.25)
    made, pool = tensors_of(world, {**lists, 'beta': logits}, rows, 1, heads, heads, slots)
    lists['beta'] = [oracle.sigmoid(x) for x in logits]
    index = [2, 1, -5]
    out, _ = kda.recurrent_kda(**made, A_log=world.tensor(a_log, (heads,), 'f32'),
                               dt_bias=world.tensor(dt_bias, (heads, D), 'f32'), initial_state=pool,
                               use_gate_in_kernel=True, beta_is_logit=True, scale=D ** -0.5,
                               initial_state_indices=world.tensor(index, (rows,), 'i32'), **more)
    check_rows(lists, world.read(out), world.read(pool), rows, 1, heads, heads, lambda n: index[n],
               lambda n, t: index[n],
               lambda g, h: oracle.log_decay(g, a_log[h], dt_bias[h * D:(h + 1) * D]))


def packed(kda, world, **more):
    """The Kimi K3 layout."""
    rows, heads, slots = 2, 12, 3
    data = Data(4)
    lists = decode_inputs(data, rows, 1, heads, heads, slots, raw_gate=True)
    mixed = [x for n in range(rows) for name in 'qkv' for x in lists[name][n * heads * D:(n + 1) * heads * D]]
    logits = data.normal(rows * heads, 1.0)
    a_log, dt_bias = data.f32(heads, 0.2, -2), data.f32(heads * D, 0.25)
    lists['beta'] = [oracle.sigmoid(x) for x in logits]
    pool = world.tensor(lists['pool'], (slots, heads, D, D))
    index = [2, -1]
    out = kda.packed_kda_decode(world.tensor(mixed, (rows, 3 * heads * D)), world.tensor(lists['g'], (rows, heads * D)),
                                world.tensor(logits, (rows, heads)), world.tensor(a_log, (heads,), 'f32'),
                                world.tensor(dt_bias, (heads * D,), 'f32'), pool,
                                world.tensor(index, (rows,), 'i32'), **more)
    check_rows(lists, world.read(out), world.read(pool), rows, 1, heads, heads, lambda n: index[n],
               lambda n, t: index[n],
               lambda g, h: oracle.log_decay(g, a_log[h], dt_bias[h * D:(h + 1) * D], -5.0))


def fused(kda, world, lower_bound=-5.0, mode='unique_or_null', **more):
    """Convolution, recurrence, gated norm; f32 state; slot 0 and the last row are null."""
    rows, heads, slots = 3, 8, 4
    hid = heads * D
    data = Data(5)
    x, conv = data.normal(rows * 3 * hid, 1.0), data.normal(slots * 3 * 3 * hid, 1.0)  # conv: [slot, tap, channel]
    weight = data.f32(3 * 4 * hid, 0.5)
    gate, logits = data.normal(rows * hid), data.normal(rows * heads, 1.0)
    a_log, dt_bias = data.f32(heads, 0.2, -2), data.f32(hid, 0.25)
    state = data.f32(slots * heads * D * D, 0.05)
    output_gate, norm = data.normal(rows * hid, 1.0), data.f32(D, 0.1, 1.0)
    poison(x, (rows - 1) * 3 * hid, rows * 3 * hid)
    poison(state, 0, heads * D * D)
    index = [3, 1, 0]
    pool = world.tensor(state, (slots, heads, D, D), 'f32')
    window = world.tensor(conv, (slots, 3 * hid, 3), strides=(9 * hid, 1, 3 * hid))
    out = kda.fused_kda_decode(
        world.tensor(x, (rows, 3 * hid)), world.tensor(weight, (3, 4, hid), 'f32'), window,
        world.tensor(gate, (1, rows, heads, D)), world.tensor(logits, (1, rows, heads)),
        world.tensor(a_log, (heads,), 'f32'), world.tensor(dt_bias, (hid,), 'f32'),
        world.tensor(index, (rows,), 'i32'), pool, world.tensor(output_gate, (rows, heads, D)),
        world.tensor(norm, (D,), 'f32'), lower_bound, state_indices_mode=mode, **more)
    got, after, shifted = world.read(out), world.read(pool), world.read(window)
    outputs, states = oracle.Judge(), oracle.Judge(2e-3, 1e-2)
    taps = [[weight[(part * 4 + tap) * hid:(part * 4 + tap + 1) * hid] for tap in range(4)] for part in range(3)]
    for n in range(rows - 1):
        slot, row = index[n], x[n * 3 * hid:(n + 1) * 3 * hid]
        old = [conv[(slot * 3 + tap) * 3 * hid:(slot * 3 + tap + 1) * 3 * hid] for tap in range(3)]
        want = old[1] + old[2] + row
        expect(shifted[slot * 9 * hid:(slot + 1) * 9 * hid] == want, 'the window did not move by one token')
        columns = list(zip(*old))
        for h in range(heads):
            at = n * hid + h * D
            q, k, v = oracle.fused_token(row, taps, columns, h, heads)
            decay = oracle.log_decay(gate[at:at + D], a_log[h], dt_bias[h * D:(h + 1) * D], lower_bound)
            new, o, _ = oracle.step(head_state(state, heads, slot, h), q, k, v, decay,
                                    oracle.sigmoid(logits[n * heads + h]))
            outputs.add(got[at:at + D], oracle.gated_norm(o, norm, output_gate[at:at + D], 1e-5))
            states.add(head_state(after, heads, slot, h), new)
    judged(outputs, 'output')
    judged(states, 'state')
    expect(all(value == 0 for value in got[(rows - 1) * hid:]), 'the null row is not 0')


def fused_softplus(kda, world, **more):
    fused(kda, world, None, **more)


def verify_and_commit(kda, world, **more):
    """A window of three tokens that leaves the pool alone, then some of them accepted."""
    rows, tokens, heads, value_heads, slots = 4, 3, 1, 2, 5
    lists = decode_inputs(Data(6), rows, tokens, heads, value_heads, slots)
    made, pool = tensors_of(world, lists, rows, tokens, heads, value_heads, slots)
    index, accepted = [3, 1, 4, -1], [3, 0, 2, 1]
    slot_tensor = world.tensor(index, (rows,), 'i32')
    correction = world.tensor([0.0] * (slots * value_heads * tokens * D), (slots, value_heads, tokens, D), 'f32')
    kg = world.tensor([0.0] * (slots * value_heads * tokens * 2 * D), (slots, value_heads, tokens, 2 * D))
    out, final = kda.recurrent_kda(**made, initial_state=pool, ssm_state_indices=slot_tensor, disable_state_update=True,
                                   correction_cache=correction, kg_cache=kg, **more)
    expect(final is None, 'a final state of a call that has none')
    check_rows(lists, world.read(out), world.read(pool), rows, tokens, heads, value_heads, lambda n: index[n],
               lambda n, t: None)
    kda.commit_kda(pool, correction, kg, world.tensor(accepted, (rows,), 'i32'), heads, ssm_state_indices=slot_tensor,
                   **more)
    got, states = world.read(pool), oracle.Judge()
    for n in range(rows - 1):
        for hv in range(value_heads):
            state = head_state(lists['pool'], value_heads, index[n], hv)
            for t in range(accepted[n]):
                q, k, v, g, beta = token(lists, n * tokens + t, 0, hv, heads, value_heads)
                state, _, _ = oracle.step(state, q, k, v, g, beta)
            if accepted[n]:
                states.add(head_state(got, value_heads, index[n], hv), state)
            else:
                expect(head_state(got, value_heads, index[n], hv) == state, 'nothing was accepted, the state changed')
    judged(states, 'state')


ALL = {case.__name__: case for case in (recurrent, speculative, softplus, packed, fused, fused_softplus,
                                       verify_and_commit)}

# SPDX-License-Identifier: Apache-2.0
"""The operations in float64 over nested lists, one token of one head at a time; and how results are judged."""
import math
import struct

D = 128


def bf16_bits(x):
    bits = struct.unpack('<I', struct.pack('<f', x))[0]
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def bf16_value(bits):
    return struct.unpack('<f', struct.pack('<I', bits << 16))[0]


def bf16(x):
    return bf16_value(bf16_bits(x))


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def silu(x):
    return x * sigmoid(x)


def normalized(x):
    root = 1 / math.sqrt(sum(a * a for a in x) + 1e-6)
    return [a * root for a in x]


def log_decay(gate, a_log=0.0, dt_bias=None, lower_bound=None):
    """'precomputed' where a_log is None."""
    if a_log is None:
        return gate
    biased = [g + b for g, b in zip(gate, dt_bias)]
    if lower_bound is None:
        return [-math.exp(a_log) * softplus(x) for x in biased]
    return [lower_bound * sigmoid(math.exp(a_log) * x) for x in biased]


def step(state, q, k, v, decay, beta, scale=D ** -0.5):
    """One token of one value head: (new state, output, correction). q and k are raw."""
    qn, kn = [x * scale for x in normalized(q)], normalized(k)
    factors = [math.exp(x) for x in decay]
    after, out, corrections = [], [], []
    for row, value in zip(state, v):
        decayed = [s * f for s, f in zip(row, factors)]
        w = beta * (value - sum(s * x for s, x in zip(decayed, kn)))
        new = [s + w * x for s, x in zip(decayed, kn)]
        after.append(new)
        corrections.append(w)
        out.append(sum(s * x for s, x in zip(new, qn)))
    return after, out, corrections


def fused_token(x, weight, window, h, heads):
    """The convolved q, k and v of head h: x, weight and window are of a row; rounded to bf16 as stored."""
    hid = heads * D
    result = []
    for part in range(3):
        channels = range(part * hid + h * D, part * hid + (h + 1) * D)
        result.append([bf16(silu(sum(window[c][tap] * weight[part][tap][c - part * hid] for tap in range(3)) +
                                 x[c] * weight[part][3][c - part * hid])) for c in channels])
    return result


def gated_norm(out, norm_weight, gate, eps):
    rounded = [bf16(x) for x in out]
    inverse = 1 / math.sqrt(sum(x * x for x in rounded) / D + eps)
    return [x * inverse * w * sigmoid(g) for x, w, g in zip(rounded, norm_weight, gate)]


def flat(x):
    return [b for a in x for b in flat(a)] if isinstance(x, (list, tuple)) else [x]


class Judge:
    """N1: norm-relative error at most 2.2e-3. N2: |a-b| <= absolute + relative*|b|."""

    def __init__(self, absolute=1e-2, relative=1e-2):
        self.absolute, self.relative = absolute, relative
        self.difference, self.reference, self.worst = 0.0, 0.0, 0.0

    def add(self, got, want):
        got, want = flat(got), flat(want)
        assert len(got) == len(want), (len(got), len(want))
        for a, b in zip(got, want):
            if not math.isfinite(a):
                self.worst = math.inf
                return
            self.difference += (a - b) ** 2
            self.reference += b * b
            self.worst = max(self.worst, abs(a - b) / (self.absolute + self.relative * abs(b)))

    @property
    def norm(self):
        return math.sqrt(self.difference / self.reference) if self.reference else self.difference

    def good(self, norm_limit=2.2e-3):
        return self.worst <= 1 and self.norm <= norm_limit

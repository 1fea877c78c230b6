# SPDX-License-Identifier: Apache-2.0
"""Fused decode against the same operation as separate kernels, on a GPU with torch, Triton and flash-linear-attention.

    python3 tools/bench_pipeline.py [--bundle FILE] [--heads 8,24] [--rows 1,32] [--state bf16] [--gate lower_bound]
                                    [--tsv FILE] [--seconds N]

Contenders, one layer's decode step of R rows over paged caches, in place:
  ours       one launch of kda.fused_kda_decode
  indexed    three launches: a Triton convolution step that reads and writes the window by slot (below), the recurrent
             KDA kernel of flash-linear-attention, which takes slots too, and its gated RMS norm
  gathered   the same with flash-linear-attention's own causal_conv1d_update, which knows no slots: the windows are
             gathered, updated and scattered back by PyTorch

First each contender must agree with a float64 model of the operation: outputs and states within LIMIT of it, relative
to its norm, windows to the bit. LIMIT is some rounding errors of bf16, which alone give 1.7e-3. A contender that does
not agree is named, not timed, and makes the exit status 1.

Then times, in us. graph: the median of 7 replays of a CUDA graph of 48 or more launches over the launches. eager: the
same launches one by one from Python, until the device is done. Every launch of a graph has slots and inputs of its own,
in random order, and between two replays 400 MB go through the L2: no launch finds its state there. `x` is the faster of
the other two over ours. Shapes that do not fit the memory or the time (--seconds) are left out, and said so.

Exit status: 0 done, 1 a contender disagrees or failed, 2 wrong usage, 77 no device or a package is missing.
"""
import argparse
import statistics
import sys
import time
import traceback

try:
    import fla
    import kda
    import torch
    import triton
    import triton.language as tl
    from fla.modules.convolution import causal_conv1d_update
    from fla.modules.fused_norm_gate import rms_norm_gated
    from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd
except ImportError as error:
    print(f'bench_pipeline: {error}', file=sys.stderr)
    sys.exit(77)

D, TAPS = 128, 4
EPS, SCALE, LOWER_BOUND = 1e-5, 128.0 ** -0.5, -5.0
LIMIT = 4e-3
LAUNCHES, MOST_LAUNCHES, LARGE = 48, 96, 32e6  # of a graph; more where a launch moves less than LARGE bytes
REPLAYS = 7
FLUSHED = 400 << 20
TYPES = {'bf16': torch.bfloat16, 'f32': torch.float32}


# ---------------------------------------------------------------------------------------------------- the operation

class Layer:
    """What all rows of a call share."""

    def __init__(self, heads, gate, device):
        self.heads, self.width = heads, heads * D
        self.lower_bound = LOWER_BOUND if gate == 'lower_bound' else None
        self.weight = torch.randn(3, TAPS, self.width, device=device) * 0.5
        self.A_log = torch.rand(heads, device=device).mul_(15).add_(1).log_()
        self.dt_bias = torch.randn(self.width, device=device) - 2
        self.norm_weight = torch.rand(D, device=device) + 0.5
        # As flash-linear-attention's convolution has it: a channel's taps together.
        self.channel_weight = self.weight.transpose(1, 2).reshape(3 * self.width, TAPS).contiguous()


class Caches:
    """Pages of the slots: convolution windows, and states."""

    def __init__(self, heads, slots, dtype, device):
        self.slots, self.width = slots, heads * D
        self.windows = torch.randn(slots, TAPS - 1, 3 * self.width, device=device).to(torch.bfloat16)
        self.state = torch.randn(slots, heads, D, D, device=device, dtype=dtype)

    def clone(self):
        other = object.__new__(Caches)
        other.slots, other.width = self.slots, self.width
        other.windows, other.state = self.windows.clone(), self.state.clone()
        return other


class Step:
    """The inputs and the output of one call."""

    def __init__(self, layer, slots, device):
        rows, heads, width = len(slots), layer.heads, layer.width

        def normal(*shape):
            return torch.randn(*shape, device=device).to(torch.bfloat16)
        self.rows = rows
        self.slots = torch.tensor(slots, dtype=torch.int32, device=device)
        self.long_slots = self.slots.long()
        self.x = normal(rows, 3 * width)
        self.raw_gate, self.raw_beta = normal(1, rows, heads, D), normal(1, rows, heads)
        self.output_gate = normal(rows, heads, D)
        self.output = torch.empty(1, rows, heads, D, dtype=torch.bfloat16, device=device)
        self.convolved = torch.empty(3, rows, width, dtype=torch.bfloat16, device=device)
        self.read = torch.empty(rows, 1, heads, D, dtype=torch.bfloat16, device=device)


def model(layer, caches, step):
    """The outputs, states and windows that the rows must get, in float64."""
    rows, heads = step.rows, layer.heads
    window = torch.cat([caches.windows[step.long_slots], step.x[:, None]], 1)  # [rows, 4, 3*width]
    weight = layer.weight.transpose(0, 1).reshape(TAPS, -1).double()
    acc = (window.double() * weight).sum(1)
    m = (acc * torch.sigmoid(acc)).to(torch.bfloat16).double()
    q, k, v = m.view(rows, 3, heads, D).unbind(1)

    def unit(a):
        return a * torch.rsqrt((a * a).sum(-1, keepdim=True) + 1e-6)
    q, k = unit(q) * SCALE, unit(k)
    rate = layer.A_log.double().exp()[:, None]
    raw = step.raw_gate[0].double() + layer.dt_bias.double().view(heads, D)
    if layer.lower_bound is None:
        log_decay = -rate * torch.nn.functional.softplus(raw)
    else:
        log_decay = layer.lower_bound * torch.sigmoid(rate * raw)
    beta = torch.sigmoid(step.raw_beta[0].double())
    state = caches.state[step.long_slots].double() * log_decay.exp()[:, :, None]
    correction = beta[..., None] * (v - (state @ k[..., None])[..., 0])
    state += correction[..., None] * k[:, :, None]
    o = (state @ q[..., None])[..., 0].to(torch.bfloat16).double()
    o = o * torch.rsqrt((o * o).mean(-1, keepdim=True) + EPS) * layer.norm_weight.double()
    return o * torch.sigmoid(step.output_gate.double()), state, window[:, 1:]


# ---------------------------------------------------------------------------------------------------- contenders

def ours(layer, caches, step):
    kda.fused_kda_decode(step.x, layer.weight, caches.windows.transpose(1, 2), step.raw_gate, step.raw_beta,
                         layer.A_log, layer.dt_bias, step.slots, caches.state, step.output_gate, layer.norm_weight,
                         lower_bound=layer.lower_bound, norm_eps=EPS, output=step.output,
                         state_indices_mode='unique_or_null')
    return step.output[0]


@triton.jit
def convolution_step(x, weight, windows, slots, out, rows, width, BLOCK: tl.constexpr):
    row, part = tl.program_id(1), tl.program_id(2)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + row).to(tl.int64)
    window = windows + slot * 9 * width + part * width + channel
    weight += part * 4 * width + channel
    a = tl.load(window)
    b = tl.load(window + 3 * width)
    c = tl.load(window + 6 * width)
    d = tl.load(x + row * 3 * width + part * width + channel)
    acc = a.to(tl.float32) * tl.load(weight) + b.to(tl.float32) * tl.load(weight + width)
    acc += c.to(tl.float32) * tl.load(weight + 2 * width) + d.to(tl.float32) * tl.load(weight + 3 * width)
    tl.store(window, b)
    tl.store(window + 3 * width, c)
    tl.store(window + 6 * width, d)
    tl.store(out + (part * rows + row) * width + channel, (acc * tl.sigmoid(acc)).to(tl.bfloat16))


def recurrent_and_norm(layer, caches, step, convolved):
    """convolved: [3, rows, width]."""
    shape = (step.rows, 1, layer.heads, D)
    q, k, v = (part.view(shape) for part in convolved)
    fused_recurrent_kda_fwd(
        q, k, v, step.raw_gate.view(shape), step.raw_beta.view(shape[:3]), A_log=layer.A_log, dt_bias=layer.dt_bias,
        initial_state=caches.state, scale=SCALE, output_final_state=True, inplace_final_state=True, state_v_first=True,
        ssm_state_indices=step.slots, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True, lower_bound=layer.lower_bound, out=step.read)
    return rms_norm_gated(step.read.view(step.rows, layer.heads, D), step.output_gate, layer.norm_weight, None,
                          activation='sigmoid', eps=EPS)


def indexed(layer, caches, step):
    block = 256 if layer.width % 256 == 0 else 128
    convolution_step[(layer.width // block, step.rows, 3)](step.x, layer.weight, caches.windows, step.slots,
                                                           step.convolved, step.rows, layer.width, BLOCK=block)
    return recurrent_and_norm(layer, caches, step, step.convolved)


def gathered(layer, caches, step):
    # Its cache has one more column, the oldest, which the update drops.
    cache = torch.empty(step.rows, 3 * layer.width, TAPS, dtype=torch.bfloat16, device=step.x.device)
    cache[:, :, 1:] = caches.windows[step.long_slots].transpose(1, 2)
    y = causal_conv1d_update(step.x, cache, weight=layer.channel_weight, activation='silu')
    y = y[0] if isinstance(y, tuple) else y
    caches.windows[step.long_slots] = cache[:, :, 1:].transpose(1, 2)
    return recurrent_and_norm(layer, caches, step, y.view(step.rows, 3, layer.width).transpose(0, 1).contiguous())


CONTENDERS = (ours, indexed, gathered)


def disagreement(contender, layer, caches, step):
    """None, or what of the contender's result is not the model's."""
    before, caches = caches, caches.clone()
    output, state, windows = model(layer, caches, step)
    found = contender(layer, caches, step)

    def distance(a, b):
        return ((a.double() - b).norm() / b.norm()).item()
    errors = {'output': distance(found.reshape(output.shape), output),
              'state': distance(caches.state[step.long_slots], state)}
    print(f'  {contender.__name__:9} ' + ', '.join(f'{name} {error:.2e}' for name, error in errors.items()), flush=True)
    for name, error in errors.items():
        if not error <= LIMIT:
            return f'{name}: {error:.3g} from the model, more than {LIMIT:g}'
    if not torch.equal(caches.windows[step.long_slots].view(torch.int16), windows.contiguous().view(torch.int16)):
        return 'window: other bits than the model'
    others = torch.ones(caches.slots, dtype=torch.bool, device=step.slots.device)
    others[step.long_slots] = False
    if not (torch.equal(caches.windows[others], before.windows[others]) and
            torch.equal(caches.state[others], before.state[others])):
        return 'a slot of no row was written'
    return None


# ---------------------------------------------------------------------------------------------------- time

def moved(heads, rows, dtype):
    return 2 * rows * heads * D * D * dtype.itemsize


class Clock:
    def __init__(self):
        self.source = torch.ones(FLUSHED // 2, dtype=torch.uint8, device='cuda')
        self.sink = torch.empty_like(self.source)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def graph(self, launch, steps):
        """Microseconds of a launch, replayed."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for step in steps[:3]:
                launch(step)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for step in steps:
                launch(step)
        graph.replay()
        times = []
        for _ in range(REPLAYS):
            self.sink.copy_(self.source)
            self.events[0].record()
            graph.replay()
            self.events[1].record()
            torch.cuda.synchronize()
            times.append(self.events[0].elapsed_time(self.events[1]))
        return statistics.median(times) * 1e3 / len(steps)

    def eager(self, launch, steps):
        """Microseconds of a launch, called from Python."""
        times = []
        for _ in range(REPLAYS):
            self.sink.copy_(self.source)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for step in steps:
                launch(step)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return statistics.median(times) * 1e6 / len(steps)


def time_shape(clock, contenders, layer, rows, dtype):
    """{name: (graph, eager)}; raises torch.cuda.OutOfMemoryError."""
    launches = MOST_LAUNCHES if moved(layer.heads, rows, dtype) < LARGE else LAUNCHES
    caches = Caches(layer.heads, 1 + rows * launches, dtype, 'cuda')
    order = (torch.randperm(rows * launches) + 1).tolist()
    steps = [Step(layer, order[i * rows:][:rows], 'cuda') for i in range(launches)]
    times = {}
    for contender in contenders:
        def launch(step, contender=contender):
            return contender(layer, caches, step)
        times[contender.__name__] = clock.graph(launch, steps), clock.eager(launch, steps)
    return times


HEADER = ('gate', 'state', 'heads', 'rows',
          *(f'{c.__name__}_{kind}' for kind in ('graph', 'eager') for c in CONTENDERS), 'x_graph', 'x_eager')


def row_of(key, times):
    names = [contender.__name__ for contender in CONTENDERS]
    row = [*key]
    ratios = []
    for kind in range(2):
        column = [times[name][kind] if name in times else None for name in names]
        row += ['-' if t is None else f'{t:.2f}' for t in column]
        others = [t for t in column[1:] if t is not None]
        ratios.append(f'{min(others) / column[0]:.2f}' if column[0] and others else '-')
    return row + ratios


def numbers(text):
    return [int(word) for word in text.split(',')]


def words(text):
    return text.split(',')


def main():
    parser = argparse.ArgumentParser(prog='bench_pipeline.py', description='Fused decode against separate kernels.')
    parser.add_argument('--bundle', help='images to use; default: those in the package')
    parser.add_argument('--heads', type=numbers, default=[8, 24, 32, 96])
    parser.add_argument('--rows', type=numbers, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument('--state', type=words, default=['bf16', 'f32'])
    parser.add_argument('--gate', type=words, default=['lower_bound', 'softplus'])
    parser.add_argument('--tsv', help='write the table there too, a line as soon as it is known')
    parser.add_argument('--seconds', type=float, default=3600, help='begin no shape after that')
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print('bench_pipeline: no device', file=sys.stderr)
        return 77
    begin = time.monotonic()
    if options.bundle:
        kda.use_bundle(options.bundle)
    kda.prepare()
    torch.manual_seed(1)
    clock = Clock()
    status = 0
    table = open(options.tsv, 'w', encoding='utf-8') if options.tsv else None

    def put(row):
        print(' '.join(f'{word!s:>14}' for word in row), flush=True)
        if table:
            print('\t'.join(map(str, row)), file=table, flush=True)

    print(f'{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}, '
          f'flash-linear-attention {fla.__version__}, Python {sys.version.split()[0]}')
    put(HEADER)
    for gate in options.gate:
        for heads in options.heads:
            layer = Layer(heads, gate, 'cuda')
            for state in options.state:
                print(f'{gate} {state} H = {heads}: distance from the model')
                contenders = []
                for contender in CONTENDERS:
                    try:
                        caches = Caches(heads, 40, TYPES[state], 'cuda')
                        why = disagreement(contender, layer, caches, Step(layer, list(range(37, 5, -1)), 'cuda'))
                    except Exception:
                        why = traceback.format_exc()
                    if why:
                        print(f'bench_pipeline: {contender.__name__}, {gate}, {state}, H = {heads}: {why}',
                              file=sys.stderr, flush=True)
                        status = 1
                    else:
                        contenders.append(contender)
                for rows in options.rows:
                    key = gate, state, heads, rows
                    if time.monotonic() - begin > options.seconds:
                        print(f'{key}: left out, {options.seconds:g} s are over')
                        continue
                    try:
                        put(row_of(key, time_shape(clock, contenders, layer, rows, TYPES[state])))
                    except torch.cuda.OutOfMemoryError:
                        print(f'{key}: left out, the memory does not suffice')
                    except Exception:
                        print(f'bench_pipeline: {key}: {traceback.format_exc()}', file=sys.stderr, flush=True)
                        status = 1
    return status


if __name__ == '__main__':
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""A serving loop in Python with torch: continuous batching over a pool of slots, padding rows, kernels loaded at start,
one captured graph per batch size, then speculative windows of verify and commit.

    python3 serve.py [BUNDLE]

Requests come and go; every step decodes one token of each that is active, in the smallest batch that holds them. At the
end each request is decoded alone and eagerly, and must have the same bits in every output and in its state; and the
accepted tokens of the windows must have, within the limits of decode, the outputs and the state of decoding them one by
one.
"""
import sys

try:
    import torch
except ImportError:
    print('skipped: no torch')
    sys.exit(77)
if not torch.cuda.is_available():
    print('skipped: torch finds no GPU')
    sys.exit(77)
import kda

H, HV, D = 8, 16, 128
SLOTS, REQUESTS, LONGEST, BATCHES, WINDOW = 12, 21, 24, (1, 2, 4, 8), 4
BATCH = BATCHES[-1]
BF16 = {'dtype': torch.bfloat16, 'device': 'cuda'}
I32 = {'dtype': torch.int32, 'device': 'cuda'}


class Inputs:
    """The tensors of a batch, at fixed addresses, so that a graph can hold them."""

    def __init__(self, rows, tokens=1):
        self.tensors = {'q': torch.zeros(rows, tokens, H, D, **BF16), 'k': torch.zeros(rows, tokens, H, D, **BF16),
                        'v': torch.zeros(rows, tokens, HV, D, **BF16), 'g': torch.zeros(rows, tokens, HV, D, **BF16),
                        'beta': torch.zeros(rows, tokens, HV, **BF16)}
        self.slots = torch.full((rows,), -1, **I32)
        self.output = torch.zeros(rows, tokens, HV, D, **BF16)

    def write(self, row, t, token):
        for name, tensor in self.tensors.items():
            tensor[row, t] = token[name]


def make_tokens():
    """Token [request][position]. A model would have computed them."""
    generator = torch.Generator('cuda').manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device='cuda')

    def token():
        return {'q': 0.5 * normal(H, D), 'k': 0.5 * normal(H, D), 'v': 0.5 * normal(HV, D),
                'g': torch.nn.functional.logsigmoid(normal(HV, D) + 2), 'beta': torch.sigmoid(normal(HV))}
    return [[token() for _ in range(LONGEST + WINDOW)] for _ in range(REQUESTS)]


class Server:
    def __init__(self):
        kda.prepare()
        self.tokens = make_tokens()
        self.pool = torch.zeros(SLOTS, HV, D, D, **BF16)
        self.free = list(range(SLOTS))
        self.batches, self.graphs = {}, {}
        for size in BATCHES:
            batch = self.batches[size] = Inputs(size)
            graph = self.graphs[size] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.decode(batch)

    def decode(self, batch):
        kda.recurrent_kda(**batch.tensors, initial_state=self.pool, ssm_state_indices=batch.slots, output=batch.output)

    def take_slot(self):
        slot = self.free.pop()
        self.pool[slot] = 0
        return slot

    def serve(self):
        """{request: (outputs, final state)}"""
        lengths = [3 + 5 * r % (LONGEST - 2) for r in range(REQUESTS)]
        waiting, active, results, outputs = list(range(REQUESTS)), {}, {}, {r: [] for r in range(REQUESTS)}
        steps, used = 0, set()
        while waiting or active:
            if steps % 2 == 0 and waiting and len(active) < BATCH:
                active[waiting.pop(0)] = self.take_slot()
            steps += 1
            if not active:
                continue
            size = next(size for size in BATCHES if size >= len(active))
            batch = self.batches[size]
            used.add(size)
            batch.slots.fill_(-1)  # padding rows are null
            for row, (r, slot) in enumerate(active.items()):
                batch.slots[row] = slot
                batch.write(row, 0, self.tokens[r][len(outputs[r])])
            self.graphs[size].replay()
            for row, (r, slot) in enumerate(list(active.items())):
                outputs[r].append(batch.output[row, 0].clone())
                if len(outputs[r]) == lengths[r]:
                    results[r] = torch.stack(outputs[r]), self.pool[slot].clone()
                    self.free.append(active.pop(r))
        print(f'served  {REQUESTS} requests in {steps} steps, batches of {sorted(used)}')
        return results

    def alone(self, r, length):
        """Outputs and state of the first tokens of a request in a slot of its own, eagerly."""
        slot, batch, outputs = self.take_slot(), Inputs(1), []
        batch.slots.fill_(slot)
        for t in range(length):
            batch.write(0, 0, self.tokens[r][t])
            self.decode(batch)
            outputs.append(batch.output[0, 0].clone())
        state = self.pool[slot].clone()
        self.free.append(slot)
        return (torch.stack(outputs) if outputs else None), state

    def speculate(self, windows=4):
        """Windows of drafts from the zero state; some are accepted, the next window starts behind them."""
        slots, done = [self.take_slot() for _ in range(BATCH)], [0] * BATCH
        batch, accepted = Inputs(BATCH, WINDOW), torch.zeros(BATCH, **I32)
        batch.slots.copy_(torch.tensor(slots, **I32))
        correction = torch.zeros(SLOTS, HV, WINDOW, D, dtype=torch.float32, device='cuda')
        kg = torch.zeros(SLOTS, HV, WINDOW, 2 * D, **BF16)
        verify, commit = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(verify):
            kda.recurrent_kda(**batch.tensors, initial_state=self.pool, ssm_state_indices=batch.slots,
                              output=batch.output, disable_state_update=True, correction_cache=correction, kg_cache=kg)
        with torch.cuda.graph(commit):
            kda.commit_kda(self.pool, correction, kg, accepted, H, ssm_state_indices=batch.slots)
        worst = 0.0
        for window in range(windows):
            for n in range(BATCH):
                for t in range(WINDOW):
                    batch.write(n, t, self.tokens[n][done[n] + t])
            verify.replay()
            chosen = [(n + window) % (WINDOW + 1) for n in range(BATCH)]  # the sampler's choice
            accepted.copy_(torch.tensor(chosen, **I32))
            commit.replay()
            for n in range(BATCH):
                outputs, _ = self.alone(n, done[n] + WINDOW)
                worst = max(worst, distance(batch.output[n], outputs[done[n]:]))
                done[n] += chosen[n]
                worst = max(worst, distance(self.pool[slots[n]], self.alone(n, done[n])[1]))
        print(f'verify  {windows} windows of {WINDOW}: worst element at {worst:.2g} of its tolerance')
        return worst <= 1


def distance(got, want):
    got, want = got.double(), want.double()
    return float(((got - want).abs() / (1e-2 + 1e-2 * want.abs())).max().nan_to_num(nan=float('inf')))


def same(a, b):
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def main():
    if len(sys.argv) > 1:
        kda.use_bundle(sys.argv[1])
    server = Server()
    good = True
    for r, (outputs, state) in server.serve().items():
        alone, alone_state = server.alone(r, len(outputs))
        good &= same(outputs, alone) and same(state, alone_state)
    print('alone   the same bits' if good else 'alone   other bits')
    good &= server.speculate()
    print('ok' if good else 'FAILED')
    return 0 if good else 1


if __name__ == '__main__':
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The Python package with torch on a GPU: each operation eager and compiled, graphs, streams, other frameworks.

    python3 test_torch.py [BUNDLE]
Skipped, with the reason, where there is no torch or no GPU that the bundle serves.
"""
import math
import sys
import threading
import types
import unittest

try:
    import torch
except ImportError:
    print('skipped: no torch')
    sys.exit(77)
if not torch.cuda.is_available():
    print('skipped: torch finds no GPU')
    sys.exit(77)

import cases
import kda
import oracle

DTYPES = {'bf16': torch.bfloat16, 'f32': torch.float32, 'i32': torch.int32}


class Torch:
    def __init__(self, device='cuda'):
        self.device = device

    def tensor(self, values, shape, dtype='bf16', strides=None):
        flat = torch.tensor(values, dtype=DTYPES[dtype], device=self.device)
        return flat.reshape(shape) if strides is None else flat.as_strided(shape, strides)

    def read(self, tensor):
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor.as_strided((count,), (1,), 0).to(torch.float64).tolist()


class Mixed(Torch):
    """Tensors of types that CuPy has come from CuPy."""

    def tensor(self, values, shape, dtype='bf16', strides=None):
        import cupy
        if dtype == 'bf16' or strides:
            return super().tensor(values, shape, dtype, strides)
        return cupy.asarray(values, dtype={'f32': 'float32', 'i32': 'int32'}[dtype]).reshape(shape)

    def read(self, tensor):
        return super().read(tensor if isinstance(tensor, torch.Tensor) else torch.from_dlpack(tensor))


class Jax(Torch):
    """All tensors are JAX's; outputs are torch views of what the package allocates."""

    def tensor(self, values, shape, dtype='bf16', strides=None):
        import jax.numpy as jnp
        made = jnp.array(values, {'bf16': jnp.bfloat16, 'f32': jnp.float32, 'i32': jnp.int32}[dtype]).reshape(shape)
        return made.block_until_ready()

    def read(self, tensor):
        return super().read(torch.from_dlpack(tensor))


def inputs(rows=4, heads=2, value_heads=4, tokens=1, seed=0):
    generator = torch.Generator('cuda').manual_seed(seed)

    def normal(*shape, size=0.5):
        return (size * torch.randn(*shape, generator=generator, device='cuda')).to(torch.bfloat16)
    return {'q': normal(rows, tokens, heads, 128), 'k': normal(rows, tokens, heads, 128),
            'v': normal(rows, tokens, value_heads, 128),
            'g': torch.nn.functional.logsigmoid(normal(rows, tokens, value_heads, 128) + 2),
            'beta': torch.sigmoid(normal(rows, tokens, value_heads, size=1.0)),
            'initial_state': normal(rows * tokens, value_heads, 128, 128, size=0.05)}


def bits(tensor):
    return tensor.contiguous().view(torch.int16)


class Eager(unittest.TestCase):
    pass


class Compiled(unittest.TestCase):
    """Inside torch.compile, in one graph, through the custom operators."""


class CuPy(unittest.TestCase):
    pass


def _add(name, case):
    compiled = types.SimpleNamespace(**{
        function: torch.compile(getattr(kda, function), fullgraph=True)
        for function in ('recurrent_kda', 'packed_kda_decode', 'fused_kda_decode', 'commit_kda')})
    setattr(Eager, f'test_{name}', lambda self: case(kda, Torch()))
    setattr(Compiled, f'test_{name}', lambda self: case(compiled, Torch()))

    def mixed(self):
        try:
            import cupy  # noqa: F401
        except ImportError as error:
            self.skipTest(f'no CuPy: {error}')
        case(kda, Mixed())
    setattr(CuPy, f'test_{name}', mixed)


for _name, _case in cases.ALL.items():
    _add(_name, _case)


class Frameworks(unittest.TestCase):
    def test_jax(self):
        try:
            import jax
            jax.devices('gpu')
        except (ImportError, RuntimeError) as error:
            self.skipTest(f'no JAX on a GPU: {error}')
        for name in ('recurrent', 'softplus'):
            cases.ALL[name](kda, Jax())

    def test_flash_linear_attention(self):
        """The same tensors, within what two roundings of bf16 allow."""
        try:
            from fla.ops.kda import fused_recurrent_kda
        except ImportError as error:
            self.skipTest(f'no flash-linear-attention: {error}')
        for rows, heads, value_heads in ((1, 16, 32), (8, 16, 16), (33, 4, 8)):
            made = inputs(rows, heads, value_heads)
            pool = made.pop('initial_state')
            theirs, their_state = fused_recurrent_kda(**made, initial_state=pool.float(), output_final_state=True,
                                                      use_qk_l2norm_in_kernel=True, state_v_first=True)
            ours, state = kda.recurrent_kda(**made, initial_state=pool, output_final_state=True)
            for got, want in ((ours, theirs), (state, their_state)):
                got, want = got.double(), want.double()
                self.assertLess(float((got - want).norm() / want.norm()), 4e-3)
                self.assertLess(float(((got - want).abs() / (1e-2 + 1e-2 * want.abs())).max()), 1)


class Graphs(unittest.TestCase):
    def test_capture(self):
        """A replay is the eager call, on what the tensors hold by then."""
        kda.prepare()
        made, next_made = inputs(seed=1), inputs(seed=2)
        output = torch.empty_like(made['v'])
        start = made['initial_state'].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kda.recurrent_kda(**made, output=output)
        self.assertTrue(torch.equal(bits(made['initial_state']), bits(start)), 'a capture ran')
        pool = start.clone()
        for step in (made, next_made):
            for name in ('q', 'k', 'v', 'g', 'beta'):
                made[name].copy_(step[name])
            output.fill_(math.nan)
            graph.replay()
            want, _ = kda.recurrent_kda(**{**made, 'initial_state': pool})
            self.assertTrue(torch.equal(bits(output), bits(want)))
            self.assertTrue(torch.equal(bits(made['initial_state']), bits(pool)))

    def test_cold(self):
        """A kernel that was never loaded is refused during a capture, which goes on."""
        made, output = inputs(), torch.empty_like(inputs()['v'])
        with kda.use_bundle(sys.argv[1] if len(sys.argv) > 1 else None) as bundle:
            bundle.context(0)
            graph, counter = torch.cuda.CUDAGraph(), torch.zeros(1, device='cuda')
            with torch.cuda.graph(graph):
                counter += 1
                with self.assertRaises(kda.DeviceError) as caught:
                    kda.recurrent_kda(**made, output=output)
            self.assertEqual(caught.exception.status, kda.Status.NOT_PREPARED)
            graph.replay()
            self.assertEqual(float(counter), 1)

    def test_compiled_graph(self):
        """torch.compile over graph trees."""
        kda.prepare()
        made = inputs(seed=3)
        pool = made['initial_state'].clone()
        torch._dynamo.mark_static_address(made['initial_state'])  # else its update keeps graphs out
        step = torch.compile(lambda q, **rest: kda.recurrent_kda(q * 1.0, **rest)[0] + 0.0, mode='reduce-overhead',
                             fullgraph=True)
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            got = step(**made).clone()
            want, _ = kda.recurrent_kda(**{**made, 'initial_state': pool})
            self.assertTrue(torch.equal(bits(got), bits(want)))
            self.assertTrue(torch.equal(bits(made['initial_state']), bits(pool)))

    def test_operators(self):
        """What torch holds a custom operator to: schema, fake implementation, mutation."""
        made = inputs(seed=4)
        output = torch.empty_like(made['v'])
        args = (made['q'], made['k'], made['v'], made['g'], made['beta'], None, None, made['initial_state'], output, None,
                None, None, None, 0, 0, 0, 128.0 ** -0.5, 0.0, 0, None)
        torch.library.opcheck(torch.ops.kda.recurrent.default, args,
                              test_utils=('test_schema', 'test_faketensor', 'test_aot_dispatch_dynamic'))


class Streams(unittest.TestCase):
    def test_current_stream(self):
        """The call is on torch's current stream: it sees what was queued there before it, however late that is."""
        kda.prepare()
        made = [inputs(seed=seed) for seed in (5, 6)]
        wants = [kda.recurrent_kda(**{**each, 'initial_state': each['initial_state'].clone()})[0] for each in made]
        late = [each['q'].clone() for each in made]
        streams = [torch.cuda.Stream() for _ in made]
        for each in made:
            each['q'].zero_()
        torch.cuda.synchronize()
        outputs = []
        for stream, each, q in zip(streams, made, late):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                each['q'].copy_(q)
                outputs.append(kda.recurrent_kda(**each)[0])
        torch.cuda.synchronize()
        for got, want in zip(outputs, wants):
            self.assertTrue(torch.equal(bits(got), bits(want)))

    def test_given_stream(self):
        """So is a call whose stream is given."""
        made, stream = inputs(seed=7), torch.cuda.Stream()
        want = kda.recurrent_kda(**{**made, 'initial_state': made['initial_state'].clone()})[0]
        q, output = made['q'].clone(), torch.empty_like(made['v'])
        made['q'].zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            made['q'].copy_(q)
        kda.recurrent_kda(**made, output=output, stream=stream.cuda_stream)
        stream.synchronize()
        self.assertTrue(torch.equal(bits(output), bits(want)))

    def test_fresh_thread(self):
        """A thread in which no context is current yet."""
        made, results = inputs(seed=8), []
        thread = threading.Thread(target=lambda: results.append(kda.recurrent_kda(**made)[0]))
        thread.start()
        thread.join()
        self.assertEqual(len(results), 1)

    def test_devices(self):
        """One context per device, whichever is current."""
        if torch.cuda.device_count() < 2:
            self.skipTest('one GPU')
        for device in (1, 0):
            cases.recurrent(kda, Torch(f'cuda:{device}'))
        self.assertEqual(sorted(kda._library.bundle.contexts), [0, 1])


class Refusals(unittest.TestCase):
    def refused(self, kind, status, words, **change):
        with self.assertRaises(kind) as caught:
            kda.recurrent_kda(**{**inputs(2, 1, 2), **change})
        self.assertEqual(caught.exception.status, status)
        self.assertIn(words, str(caught.exception))

    def test_tensors(self):
        wide = torch.zeros(2, 1, 258, dtype=torch.bfloat16, device='cuda')[:, :, :256].unflatten(2, (2, 128))
        self.refused(ValueError, kda.Status.STRIDE,
                     'recurrent: g stride[0] is 258, must be at least 256 and a multiple of 4', g=wide)
        self.refused(ValueError, kda.Status.ARGUMENT, 'q is on DLPack device (1, 0)', q=inputs(2, 1, 2)['q'].cpu())
        self.refused(TypeError, kda.Status.TYPE, 'k has DLPack type code 2 of 64 bits', k=inputs(2, 1, 2)['k'].double())
        self.refused(TypeError, kda.Status.TYPE, 'v has type f16 (4), must be bf16', v=inputs(2, 1, 2)['v'].half())
        self.refused(ValueError, kda.Status.ARGUMENT, 'q has rank 0', q=torch.zeros((), device='cuda').bfloat16())
        self.refused(TypeError, kda.Status.TYPE, 'v is a list', v=[1.0], output=inputs(2, 1, 2)['v'])
        expanded = torch.zeros(1, 1, 2, 128, dtype=torch.bfloat16, device='cuda').expand(2, 1, 2, 128)
        self.refused(ValueError, kda.Status.STRIDE, 'g stride[0] is 0', g=expanded)


if __name__ == '__main__':
    if len(sys.argv) > 1:
        kda.use_bundle(sys.argv[1])
    try:
        kda.prepare()
    except kda.DeviceError as error:
        print(f'skipped: {error}')
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)

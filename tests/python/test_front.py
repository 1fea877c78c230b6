# SPDX-License-Identifier: Apache-2.0
"""The Python package without torch: every operation against the float64 oracle, refusals, bundles, the command line.

    python3 test_front.py ROOT [BUNDLE]
Runs on whatever device 0 is; without BUNDLE with the bundle inside the library.
"""
import ast
import ctypes
import fractions
import gc
import inspect
import os
import pathlib
import pickle
import random
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

import cases
import kda
from kda import _abi, _call, _memory

ROOT = pathlib.Path(sys.argv[1])


class Cases(unittest.TestCase):
    """Each operation, judged."""


def _add(name, case, **more):
    def test(self):
        case(kda, cases.Bare(kda), **more)
    setattr(Cases, f'test_{name}', test)


for _name, _case in cases.ALL.items():
    _add(_name, _case)
    _add(f'{_name}_pdl', _case, enable_pdl=True)


def valid(rows=2, heads=1, value_heads=2, slots=3):
    """A dense call of zeros."""
    def zeros(*shape, dtype='bf16', strides=None):
        made = kda.DeviceTensor(shape, dtype, strides=strides)
        return made.write(bytes(made.nbytes))
    return {'q': zeros(rows, 1, heads, 128), 'k': zeros(rows, 1, heads, 128), 'v': zeros(rows, 1, value_heads, 128),
            'g': zeros(rows, 1, value_heads, 128), 'beta': zeros(rows, 1, value_heads),
            'initial_state': zeros(slots, value_heads, 128, 128), 'output': zeros(rows, 1, value_heads, 128)}


class Refusals(unittest.TestCase):
    def refused(self, kind, status, words, **change):
        args = {**valid(), **change}
        before = args['output'] and args['output'].read()
        with self.assertRaises(kind) as caught:
            kda.recurrent_kda(**args)
        self.assertIsInstance(caught.exception, kda.Error)
        self.assertEqual(caught.exception.status, status)
        self.assertIn(words, str(caught.exception))
        self.assertNotIn('\n', str(caught.exception))
        if before:
            self.assertEqual(args['output'].read(), before)
        return caught.exception

    def test_library(self):
        """What the library refuses keeps its status and text."""
        text = 'recurrent: g stride[0] is 258, must be at least 256 and a multiple of 4'
        error = self.refused(kda.ArgumentError, kda.Status.STRIDE, text,
                             g=kda.DeviceTensor((2, 1, 2, 128), strides=(258, 258, 128, 1)))
        self.assertEqual(str(error), text)
        self.refused(ValueError, kda.Status.SHAPE, 'q shape[1] is 1, must equal 1+num_spec_tokens = 3', num_spec_tokens=2)
        self.refused(TypeError, kda.Status.TYPE, 'state has type f32 (2), must be bf16',
                     initial_state=kda.DeviceTensor((3, 2, 128, 128), 'f32'))
        self.refused(ValueError, kda.Status.ARGUMENT, 'A_log is extra', A_log=kda.DeviceTensor((1,), 'f32'))
        self.refused(ValueError, kda.Status.ARGUMENT, 'A_log is missing', use_gate_in_kernel=True, lower_bound=-5.0)
        self.refused(ValueError, kda.Status.ARGUMENT, 'lower_bound -5 is extra', lower_bound=-5.0)
        self.refused(ValueError, kda.Status.ARGUMENT, 'num_spec_tokens is 0', num_spec_tokens=0)
        self.refused(ValueError, kda.Status.ARGUMENT, 'beta_is_logit is 2', beta_is_logit=2)
        self.refused(ValueError, kda.Status.UNSUPPORTED, 'does not support a separate initial_state',
                     initial_state_source=kda.DeviceTensor((3, 2, 128, 128)))

    def test_front(self):
        """What only the front has an argument for."""
        index = kda.DeviceTensor((2,), 'i32')
        self.refused(ValueError, kda.Status.ARGUMENT, "must be 'cake' or 'auto'", backend='cute-dsl')
        self.refused(ValueError, kda.Status.ARGUMENT, 'backend', backend=None)
        self.refused(ValueError, kda.Status.UNSUPPORTED, 'use_qk_l2norm_in_kernel', use_qk_l2norm_in_kernel=False)
        self.refused(ValueError, kda.Status.ARGUMENT, 'use_qk_l2norm_in_kernel', use_qk_l2norm_in_kernel=False,
                     disable_state_update=True)
        self.refused(ValueError, kda.Status.ARGUMENT, 'output_final_state', output_final_state=True,
                     disable_state_update=True)
        self.refused(ValueError, kda.Status.ARGUMENT, 'correction_cache is given', correction_cache=index)
        self.refused(ValueError, kda.Status.ARGUMENT, 'kg_cache is given', kg_cache=index)
        self.refused(ValueError, kda.Status.UNSUPPORTED, 'initial_state_indices', initial_state_indices=index,
                     ssm_state_indices=index)

    def test_scalars(self):
        self.refused(ValueError, kda.Status.ARGUMENT, 'scale is inf', scale=1e40)
        self.refused(ValueError, kda.Status.ARGUMENT, 'scale is -inf', scale=-1e40)
        self.refused(ValueError, kda.Status.ARGUMENT, 'num_spec_tokens is 4294967296', num_spec_tokens=1 << 32)
        self.refused(TypeError, kda.Status.TYPE, "scale is 'much'", scale='much')
        self.refused(ValueError, kda.Status.ARGUMENT, 'scale is inf', scale=10 ** 400)
        self.refused(ValueError, kda.Status.ARGUMENT, 'num_spec_tokens is -1', num_spec_tokens=-1)

    def test_kinds(self):
        """A number of the wrong kind, in each operation."""
        index = kda.DeviceTensor((2,), 'i32')
        tensors = [index] * 11
        numbers = ('2', b'2', 2j, [2], object(), True, 'a\nb', 'x' * 1000)
        for value in numbers + (2.0, 2.5, float('nan')):
            self.refused(TypeError, kda.Status.TYPE, 'num_spec_tokens is ', num_spec_tokens=value)
            self.refused(TypeError, kda.Status.TYPE, 'num_spec_tokens is ', num_spec_tokens=value,
                         disable_state_update=True)
            if value is not True:
                self.refused(TypeError, kda.Status.TYPE, 'beta_is_logit is ', beta_is_logit=value)
            self.refused_by(TypeError, 'commit: heads is ', kda.commit_kda, *tensors[:4], value)
        self.refused_by(TypeError, 'commit: heads is None, must be an integer of 32 bits', kda.commit_kda, *tensors[:4], None)
        self.refused(TypeError, kda.Status.TYPE, 'num_spec_tokens is 0.0, must be an integer', num_spec_tokens=0.0)
        for value in (2 ** 31, -2 ** 31 - 1, 2 ** 70, -2 ** 70, 10 ** 5000):
            self.refused(ValueError, kda.Status.ARGUMENT, 'must be an integer of 32 bits', num_spec_tokens=value)
            self.refused_by(ValueError, 'commit: heads is ', kda.commit_kda, *tensors[:4], value)
        for value in numbers:
            self.refused(TypeError, kda.Status.TYPE, 'scale is ', scale=value)
            self.refused(TypeError, kda.Status.TYPE, 'lower_bound is ', lower_bound=value, use_gate_in_kernel=True)
            self.refused_by(TypeError, 'commit: lower_bound is ', kda.commit_kda, *tensors[:4], 1, lower_bound=value)
            self.refused_by(TypeError, 'fused: lower_bound is ', kda.fused_kda_decode, *tensors, value, output=index)
            self.refused_by(TypeError, 'fused: norm_eps is ', kda.fused_kda_decode, *tensors, norm_eps=value,
                            output=index)
        self.refused_by(TypeError, 'fused: norm_eps is None, must be a real number', kda.fused_kda_decode, *tensors,
                        norm_eps=None, output=index)
        for value in ([], 3, 'unique'):
            self.refused_by(ValueError, 'fused: state_indices_mode is ', kda.fused_kda_decode, *tensors,
                            state_indices_mode=value)

    def test_numbers(self):
        """What is a number by Python's protocols is taken for one."""
        class Two:
            def __index__(self):
                return 2
        self.refused(ValueError, kda.Status.SHAPE, 'must equal 1+num_spec_tokens = 3', num_spec_tokens=Two())
        kda.recurrent_kda(**valid(), scale=Two(), stream=kda.Status.OK)
        kda.recurrent_kda(**valid(), scale=fractions.Fraction(1, 2))

    def refused_by(self, kind, words, function, *args, **named):
        with self.assertRaises(kind) as caught:
            function(*args, **named)
        self.assertIsInstance(caught.exception, kda.Error)
        self.assertIn(words, str(caught.exception))
        self.assertNotIn('\n', str(caught.exception))
        self.assertLess(len(str(caught.exception)), 240)
        return caught.exception

    def test_stream(self):
        """Only a number is handed to the driver for a stream."""
        index = kda.DeviceTensor((2,), 'i32')
        operations = {'recurrent': lambda stream: kda.recurrent_kda(**valid(), stream=stream),
                      'verify': lambda stream: kda.recurrent_kda(**valid(), disable_state_update=True, stream=stream),
                      'packed': lambda stream: kda.packed_kda_decode(*[index] * 8, stream=stream),
                      'fused': lambda stream: kda.fused_kda_decode(*[index] * 11, output=index, stream=stream),
                      'commit': lambda stream: kda.commit_kda(*[index] * 4, 1, stream=stream)}
        self.assertEqual(sorted(operations), sorted(_abi.OPERATIONS))
        wanted = 'must be None, or a CUstream handle: an integer of 0 to 2**64 - 1'
        for value, kind in (('default', TypeError), (b'abc', TypeError), (2.5, TypeError), (True, TypeError),
                            (False, TypeError), (ctypes.c_void_p(1), TypeError), (object(), TypeError),
                            (-1, ValueError), (2 ** 64, ValueError)):
            for name, operation in operations.items():
                error = self.refused_by(kind, wanted, operation, value)
                self.assertEqual(str(error), f'{name}: stream is {value!r}, {wanted}')

    def test_pdl(self):
        """A bool, which becomes a flag beside the others."""
        index = kda.DeviceTensor((2,), 'i32')
        operations = {
            'recurrent': lambda **more: kda.recurrent_kda(**valid(), **more),
            'verify': lambda **more: kda.recurrent_kda(**valid(), disable_state_update=True, **more),
            'packed': lambda **more: kda.packed_kda_decode(*[index] * 8, **more),
            'fused': lambda **more: kda.fused_kda_decode(*[index] * 11, output=index, **more),
            'commit': lambda **more: kda.commit_kda(*[index] * 4, 1, **more)}
        self.assertEqual(sorted(operations), sorted(_abi.OPERATIONS))
        for name, operation in operations.items():
            for value in (1, 0, 'yes', 2.0, []):
                error = self.refused_by(TypeError, 'enable_pdl', operation, enable_pdl=value)
                self.assertEqual(str(error), f'{name}: enable_pdl is {value!r}, must be False, True or None')
            with unittest.mock.patch.object(kda._operations, 'call') as made:
                operation()
                operation(enable_pdl=None)
                operation(enable_pdl=True)
                if name in ('recurrent', 'verify'):
                    operation(num_spec_tokens=0, enable_pdl=True)
            place = _abi.OPERATIONS[name][2].index('flags')
            flags = [scalars[place] for _, _, scalars, _ in (call.args for call in made.call_args_list)]
            pdl, speculative = _abi.KDA_FLAG_PDL, _abi.KDA_FLAG_SPECULATIVE
            self.assertEqual(flags, [0, 0, pdl] + [pdl | speculative] * (name in ('recurrent', 'verify')))

    def test_names(self):
        """Arguments are named as Python's, not as the fields behind them."""
        gate = {'use_gate_in_kernel': True, 'lower_bound': -5.0}
        for change, words in (({'A_log': 2.0, **gate}, 'recurrent: A_log is a float'),
                              ({'output': 2.0}, 'recurrent: output is a float'),
                              ({'initial_state': 2.0}, 'recurrent: initial_state (or initial_state_source) is a float'),
                              ({'ssm_state_indices': 2.0},
                               'recurrent: ssm_state_indices (or initial_state_indices) is a float'),
                              ({'v': 2.0, 'output': None}, 'recurrent: v is a float')):
            self.refused_by(TypeError, words, kda.recurrent_kda, **{**valid(), **change})
        for change, words in (({'initial_state': None}, 'recurrent: initial_state (or initial_state_source) is None'),
                              ({'initial_state': None, 'disable_state_update': True}, 'verify: initial_state (or'),
                              ({'v': None, 'output': None}, 'recurrent: v is None, it is mandatory')):
            self.refused(ValueError, kda.Status.ARGUMENT, words, **change)
        index = kda.DeviceTensor((2,), 'i32')
        self.refused_by(TypeError, 'packed: A_log is a float', kda.packed_kda_decode, index, index, index, 2.0, index,
                        index, index, index)
        self.refused_by(ValueError, 'packed: mixed_qkv is None', kda.packed_kda_decode, *[None] * 7)
        self.refused_by(TypeError, 'packed: state is a float', kda.packed_kda_decode, *[index] * 5, 2.0, index)
        self.refused_by(TypeError, 'fused: raw_gate is a float', kda.fused_kda_decode, *[index] * 3, 2.0, *[index] * 7)
        self.refused_by(TypeError, 'commit: dt_bias is a float', kda.commit_kda, *[index] * 4, 1, dt_bias=2.0)

    def test_device(self):
        self.refused_by(TypeError, "prepare: device is 'x', must be the number of a device", kda.prepare, 'x')
        self.refused_by(TypeError, 'prepare: device is [], must be', kda.prepare, [])
        self.refused_by(TypeError, 'prepare: device is True, must be', kda.prepare, True)
        self.refused_by(ValueError, 'prepare: device is -1, must be', kda.prepare, -1)
        self.refused_by(ValueError, 'prepare: device is 4294967296, must be', kda.prepare, 1 << 32)
        count = ctypes.c_int()
        kda._library.driver.call('cuDeviceGetCount', ctypes.byref(count))
        for device in (count.value, 2 ** 31 - 1):
            words = f'device is {device}, must be below {count.value}, the number of devices'
            error = self.refused_by(kda.DeviceError, f'prepare: {words}', kda.prepare, device)
            self.assertEqual((error.status, error.cuda), (kda.Status.DRIVER, 101))
            self.refused_by(kda.DeviceError, f'DeviceTensor: {words}', kda.DeviceTensor, (2,), device=device)

    def test_objects(self):
        class OnHost:
            """Host memory by DLPack."""
            def __init__(self, tensor):
                self.tensor = tensor

            def __dlpack_device__(self):
                return 1, 0

            def __dlpack__(self):
                capsule = self.tensor.__dlpack__()
                _abi.kda_dl_tensor.from_address(_memory.capsule_pointer(capsule, b'dltensor')).device_type = 1
                return capsule
        self.refused(TypeError, kda.Status.TYPE, 'k is a list', k=[1.0])
        self.refused(ValueError, kda.Status.ARGUMENT, 'v is on DLPack device (1, 0)', v=OnHost(valid()['v']))

    def test_window(self):
        """Accepted counts are not for a verify; its text is the library's."""
        self.refused(ValueError, kda.Status.ARGUMENT, 'num_accepted_tokens', disable_state_update=True,
                     num_accepted_tokens=kda.DeviceTensor((2,), 'i32'))

    def test_fused_mode(self):
        for mode, words in ((None, 'requires the host-known state_indices_mode'),
                            ('unique', 'positive_unique, unique_or_null, repeated_positive')):
            with self.assertRaises(ValueError) as caught:
                cases.fused(kda, cases.Bare(kda), mode=mode)
            self.assertIn(words, str(caught.exception))

    def test_errors_travel(self):
        error = self.refused(ValueError, kda.Status.ARGUMENT, 'scale', scale=float('nan'))
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(again), again.status, str(again)), (type(error), error.status, str(error)))


class Memory(unittest.TestCase):
    def test_capsules_end(self):
        """A call leaves no capsule, and a capsule keeps its tensor."""
        args = valid()
        gc.collect()
        _memory.sweep()
        kda.recurrent_kda(**args)
        gc.collect()
        self.assertEqual(_memory._Export.alive, {})
        tensor = kda.DeviceTensor((2, 3), 'f32')
        capsule = tensor.__dlpack__()
        self.assertEqual(len(_memory._Export.alive), 1)
        view = _abi.kda_dl_tensor.from_address(_memory.capsule_pointer(capsule, b'dltensor'))
        self.assertEqual((view.data, view.ndim, view.code, view.bits), (tensor.address, 2, 2, 32))
        del capsule
        _memory.sweep()
        self.assertEqual(_memory._Export.alive, {})

    def test_consumed(self):
        """A consumer renames the capsule and calls the deleter."""
        capsule = kda.DeviceTensor((4,), 'i32').__dlpack__()
        address = _memory.capsule_pointer(capsule, b'dltensor')
        ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), b'used_dltensor')
        del capsule
        _memory.sweep()
        self.assertEqual(len(_memory._Export.alive), 1)
        deleter = _memory._Managed.from_address(address).deleter
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(address)
        self.assertEqual(_memory._Export.alive, {})

    def test_round_trip(self):
        data = struct.pack('<6f', *range(6))
        self.assertEqual(kda.DeviceTensor((2, 3), 'f32').write(data).read(), data)
        with self.assertRaises(kda.ArgumentError) as caught:
            kda.DeviceTensor((2, 3), 'f32').write(data[1:])
        self.assertEqual(str(caught.exception), 'write: data has 23 bytes, must have 24')
        with self.assertRaises(kda.DtypeError):
            kda.DeviceTensor((2, 3), 'f32').write(24)

    def test_refused(self):
        status = kda.Status
        for args, kind, code, words in (
                (((2,), 'i64'), TypeError, status.TYPE, "dtype is 'i64', must be one of bf16, f32, i32"),
                (((2,), []), TypeError, status.TYPE, 'dtype is [], must be'),
                (((-2,),), ValueError, status.SHAPE, 'shape[0] is -2, must be an integer of 0 to 2**63 - 1'),
                (((2, 2 ** 63),), ValueError, status.SHAPE, 'shape[1] is 9223372036854775808, must be'),
                (((2.0,),), TypeError, status.TYPE, 'shape[0] is 2.0, must be'),
                (((True,),), TypeError, status.TYPE, 'shape[0] is True, must be'),
                ((2,), TypeError, status.TYPE, 'shape is 2, must be a tuple of integers'),
                (('22',), TypeError, status.TYPE, "shape[0] is '2', must be"),
                (((2 ** 62, 4),), ValueError, status.LIMIT, 'shape asks for 36893488147419103232 bytes, must be at most'),
                (((2,), 'f32', 'x'), TypeError, status.TYPE, "device is 'x', must be the number of a device"),
                (((2,), 'f32', -1), ValueError, status.ARGUMENT, 'device is -1, must be'),
                (((2, 2), 'f32', 0, (1,)), ValueError, status.STRIDE, 'strides has 1 numbers, must have 2, one per extent'),
                (((2, 2), 'f32', 0, (1, -1)), ValueError, status.STRIDE, 'strides[1] is -1, must be'),
                (((2, 2), 'f32', 0, 5), TypeError, status.TYPE, 'strides is 5, must be a tuple of integers')):
            with self.assertRaises(kind) as caught:
                kda.DeviceTensor(*args)
            self.assertIsInstance(caught.exception, kda.Error)
            self.assertEqual(caught.exception.status, code)
            self.assertIn(f'DeviceTensor: {words}', str(caught.exception))


class Exchange(unittest.TestCase):
    """A framework with DLPack's exchange API: its objects go to the library as they are."""

    def setUp(self):
        test = self
        self.reads, self.alive = [], []

        @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
        def read(thing, out):
            test.reads.append(thing)
            capsule = thing.tensor.__dlpack__()
            ctypes.memmove(out, _memory.capsule_pointer(capsule, b'dltensor'), ctypes.sizeof(_abi.kda_dl_tensor))
            thing.capsule = capsule
            return 0
        self.read = read
        self.api = _call._ExchangeAPI(1, 3, read=ctypes.cast(read, ctypes.c_void_p).value)
        self.name = b'dlpack_exchange_api'

        def made(api):
            self.alive.append(api)

            class Thing:
                __dlpack_c_exchange_api__ = _memory._new(ctypes.addressof(api), self.name, None)

                def __init__(self, tensor):
                    self.tensor = tensor

                def __dlpack_device__(self):
                    return self.tensor.__dlpack_device__()

                def __dlpack__(self, **options):
                    return self.tensor.__dlpack__(**options)
            return Thing
        self.made = made

    def run_with(self, kind, **odd):
        args = valid()
        kda.recurrent_kda(**{**{name: kind(tensor) for name, tensor in args.items()}, **odd})
        return args

    def test_reader(self):
        self.run_with(self.made(self.api))
        self.assertEqual(len(self.reads), 7)
        with self.assertRaises(kda.ArgumentError) as caught:
            kind = self.made(self.api)
            self.run_with(kind, g=kind(kda.DeviceTensor((2, 1, 2, 128), strides=(258, 258, 128, 1))))
        self.assertEqual(str(caught.exception),
                         'recurrent: g stride[0] is 258, must be at least 256 and a multiple of 4')

    def test_work_stream(self):
        """The call is on the stream that the framework names, unless one is given."""
        stream, asked = ctypes.c_void_p(), []
        with _memory.current_context(kda._library.bundle.context(0).cuda):
            kda._library.driver.call('cuStreamCreate', ctypes.byref(stream), 0)

        @_call._WorkStream
        def work_stream(kind, device, out):
            asked.append((kind, device))
            out[0] = stream.value
            return 0
        self.api.work_stream = ctypes.cast(work_stream, ctypes.c_void_p).value
        launches = []
        operation = _call._operations['recurrent']
        function = operation.function
        operation.function = lambda *args: launches.append(args[2]) or function(*args)
        try:
            kind = self.made(self.api)
            self.run_with(kind)
            self.run_with(kind, stream=0)
        finally:
            operation.function = function
        self.assertEqual((asked, launches), ([(2, 0)], [stream.value, None]))

    def test_two_frameworks(self):
        """Then all go through capsules."""
        self.run_with(self.made(self.api), g=valid()['g'])
        self.assertEqual(self.reads, [])

    def test_versions(self):
        """A later major version is left alone, and the older one behind it is taken."""
        later = _call._ExchangeAPI(2, 0, read=1)
        self.run_with(self.made(later))
        self.assertEqual(self.reads, [])
        later.previous = ctypes.addressof(self.api)
        self.run_with(self.made(later))
        self.assertEqual(len(self.reads), 7)
        self.run_with(self.made(_call._ExchangeAPI(1, 3)))
        self.assertEqual(len(self.reads), 7)

    def test_unreadable(self):
        @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
        def refuse(thing, out):
            return -1
        api = _call._ExchangeAPI(1, 3, read=ctypes.cast(refuse, ctypes.c_void_p).value)
        with self.assertRaises(ValueError) as caught:
            self.run_with(self.made(api))
        self.assertIn('q cannot be read by its framework', str(caught.exception))


class Bundles(unittest.TestCase):
    def test_use(self):
        before = kda._library.bundle
        with kda.use_bundle(sys.argv[2] if len(sys.argv) > 2 else None) as bundle:
            self.assertIs(kda._library.bundle, bundle)
            self.assertIsNot(bundle, before)
            bundle.verify()
            kda.prepare()
            kda.recurrent_kda(**valid())
            self.assertEqual(list(bundle.contexts), [0])
        self.assertIs(kda._library.bundle, before)
        self.assertEqual(len(before.id), 64)

    def test_no_bundle(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b'no bundle' * 100)
            file.flush()
            before = kda._library.bundle
            with self.assertRaises(RuntimeError) as caught:
                kda.use_bundle(file.name)
            self.assertEqual(caught.exception.status, kda.Status.FORMAT)
            self.assertIs(kda._library.bundle, before)
        with self.assertRaises(kda.DeviceError) as caught:
            kda.use_bundle(file.name)
        self.assertEqual(caught.exception.status, kda.Status.IO)
        for path, kind in ((5, kda.DtypeError), ([], kda.DtypeError), ('a\0b', kda.ArgumentError),
                           ('\ud800', kda.ArgumentError)):
            with self.assertRaises(kind) as caught:
                kda.use_bundle(path)
            self.assertIn(f'use_bundle: path is {path!r}, must be None or the path of a file', str(caught.exception))
        self.assertIs(kda._library.bundle, before)

    def test_threads(self):
        """Errors are a thread's own."""
        failures = []

        def run(seed):
            rng = random.Random(seed)
            for _ in range(20):
                scale, spec = (float('nan'), None) if rng.random() < 0.5 else (None, 2)
                try:
                    kda.recurrent_kda(**valid(), scale=scale, num_spec_tokens=spec)
                    failures.append('accepted')
                except kda.ArgumentError as error:
                    words = 'scale' if spec is None else '1+num_spec_tokens'
                    if words not in str(error):
                        failures.append(str(error))
        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])


class Form(unittest.TestCase):
    def test_stubs(self):
        """The stub file declares what the package has, with the same arguments and defaults."""
        tree = ast.parse((pathlib.Path(kda.__file__).parent / '__init__.pyi').read_text())
        declared = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        self.assertEqual(sorted(declared), sorted(kda.__all__))

        def compare(function, node, bound):
            wanted = [(p.name, p.kind is p.KEYWORD_ONLY, p.default) for p in inspect.signature(function).parameters.values()
                      if p.kind is not p.VAR_KEYWORD]
            plain, only = node.args.args, node.args.kwonlyargs
            defaults = [inspect.Parameter.empty] * (len(plain) - len(node.args.defaults))
            defaults += [ast.literal_eval(default) for default in node.args.defaults]
            found = [(a.arg, False, d) for a, d in zip(plain, defaults)]
            found += [(a.arg, True, ast.literal_eval(d) if d else inspect.Parameter.empty)
                      for a, d in zip(only, node.args.kw_defaults)]
            self.assertEqual(found[bound:], wanted[bound:], function.__qualname__)
        for name, node in declared.items():
            self.assertTrue(getattr(kda, name).__doc__, name)
            if isinstance(node, ast.FunctionDef):
                compare(getattr(kda, name), node, 0)
                continue
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and not member.decorator_list and member.name != '__exit__':
                    compare(getattr(getattr(kda, name), member.name), member, 1)

    def test_layout(self):
        """The argument structs as Python packs them are those of the C compiler."""
        lines = ['#include "loader/kda_dlpack.h"']
        for name, (tensors, layout, scalars) in _abi.OPERATIONS.items():
            first = len(tensors) * 80
            size = first + struct.calcsize(layout)
            lines.append(f'_Static_assert(sizeof(kda_{name}_args) == {size}, "{name}");')
            lines += [f'_Static_assert(offsetof(kda_{name}_args, {field}) == {i * 80}, "{name}.{field}");'
                      for i, field in enumerate(tensors)]
            lines += [f'_Static_assert(offsetof(kda_{name}_args, {field}) == {first + 4 * i}, "{name}.{field}");'
                      for i, field in enumerate(scalars)]
            lines.append(f'_Static_assert(offsetof(kda_{name}_dlpack_args, plain) == {len(tensors) * 8 + 8}, "{name}");')
        for name, struct_type in vars(_abi).items():
            if isinstance(struct_type, type) and issubclass(struct_type, ctypes.Structure) and name != 'Structure':
                lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(struct_type)}, "{name}");')
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / 'layout.c'
            source.write_text('\n'.join(lines) + '\n')
            subprocess.run(['cc', '-std=c11', '-fsyntax-only', '-I', str(ROOT), str(source)], check=True)

    def test_defaults(self):
        """The signatures that serving engines call."""
        want = ('(q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None, output_final_state=False, '
                'use_qk_l2norm_in_kernel=True, use_gate_in_kernel=False, lower_bound=None, cu_seqlens=None, '
                'ssm_state_indices=None, num_spec_tokens=None, num_accepted_tokens=None, output=None, '
                'initial_state_source=None, initial_state_indices=None, beta_is_logit=False, *, '
                "disable_state_update=False, correction_cache=None, kg_cache=None, backend='cake', enable_pdl=False, "
                'stream=None)')
        self.assertEqual(str(inspect.signature(kda.recurrent_kda)), want)
        want = ('(mixed_qkv, raw_gate, raw_beta, A_log, dt_bias, state, state_indices, output=None, *, '
                'enable_pdl=False, stream=None)')
        self.assertEqual(str(inspect.signature(kda.packed_kda_decode)), want)
        want = ('(x, weight, conv_state, raw_gate, raw_beta, A_log, dt_bias, state_indices, state, output_gate, '
                "norm_weight, lower_bound=-5.0, norm_eps=1e-05, output=None, *, backend='cake', state_indices_mode=None, "
                'enable_pdl=False, stream=None)')
        self.assertEqual(str(inspect.signature(kda.fused_kda_decode)), want)


class CommandLine(unittest.TestCase):
    """python -m kda over a bundle; kda-dump is on the PATH or in the package."""

    def run_kda(self, *args):
        where = ['--bundle', os.environ['KDA_TEST_BUNDLE']] if 'KDA_TEST_BUNDLE' in os.environ else []
        return subprocess.run([sys.executable, '-m', 'kda', *where, *args], capture_output=True, text=True)

    def test_verbs(self):
        chip = '9.0' if 'sm90a' in os.environ.get('KDA_TEST_BUNDLE', '') else '10.3'
        for args, words in ((['dump'], 'd128_t1_precomputed_split1'), (['env'], 'devices'),
                            (['route', '--op', 'recurrent', '--cc', chip, '--cuda', '13.0', '--sms', '152', '--n',
                              '16', '--h', '16', '--hv', '32'], 'd128_t1_precomputed_direct')):
            done = self.run_kda(*args)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(words, done.stdout)

    def test_wrong(self):
        self.assertEqual(self.run_kda('no-such-verb').returncode, 2)
        self.assertEqual(subprocess.run([sys.executable, '-m', 'kda'], capture_output=True).returncode, 2)


if __name__ == '__main__':
    if len(sys.argv) > 2:
        kda.use_bundle(sys.argv[2])
    unittest.main(argv=sys.argv[:1])

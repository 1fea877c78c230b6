# SPDX-License-Identifier: Apache-2.0
"""The operations as torch custom operators, which is how torch.compile sees them: kda::recurrent and so on.

An operator takes what the C call takes, tensors first; it returns nothing and says which tensors it writes.
"""
from . import _abi
from ._call import call, torch

_WRITTEN = {'recurrent': ('state', 'out'), 'packed': ('state', 'out'), 'fused': ('conv_state', 'state', 'out'),
            'verify': ('out', 'correction_cache', 'kg_cache'), 'commit': ('state',)}


def _schema(name):
    tensors, layout, scalars = _abi.OPERATIONS[name]
    alias = iter('abcdef')
    types = [f'Tensor({next(alias)}!)?' if field in _WRITTEN[name] else 'Tensor?' for field in tensors]
    types += ['float' if code == 'f' else 'int' for code in layout[:len(scalars)]]
    # torch has a `mode` of its own.
    names = ['state_indices_mode' if field == 'mode' else field for field in tensors + scalars]
    fields = (f'{kind} {field}' for kind, field in zip(types, names))
    return f'{name}({", ".join(fields)}, int? stream) -> ()'


def _implementation(name):
    count = len(_abi.OPERATIONS[name][0])

    def run_now(*args):
        call(name, args[:count], args[count:-1], args[-1])
    return run_now


def run(name, tensors, scalars, stream):
    numbers = [int(x) if isinstance(x, bool) else x for x in scalars]
    getattr(torch.ops.kda, name)(*tensors, *numbers, stream)


if torch is not None:
    _operators = torch.library.Library('kda', 'DEF')
    for _name in _abi.OPERATIONS:
        _operators.define(_schema(_name))
        _operators.impl(_name, _implementation(_name), 'CUDA')
        torch.library.register_fake(f'kda::{_name}', lambda *_: None, lib=_operators)

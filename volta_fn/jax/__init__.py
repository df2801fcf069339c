"""JAX's name space: what is written for JAX runs on volta_fn unchanged.

`python -m volta_fn.jax train.py` (or `-m module`) runs a program, and `install` does the same inside of one: after it `import jax`,
`jax.numpy`, `jax.scipy`, … are volta_fn. Without it, `volta_fn.jax` has all of these names, too:

>>> import volta_fn.jax as jax
>>> jax.scipy.special.expit(0.0)
Array(0.5, dtype=float32, weak_type=True)

`namespace` reads the table, makes modules of it and answers imports of `jax`; `__main__` is the command.

This package holds names only (`names.txt`): what they mean lives in volta_fn.
"""

import sys as _sys
from typing import Any as _Any

from volta_fn.jax.namespace import OWN as _OWN
from volta_fn.jax.namespace import Namespace as _Namespace
from volta_fn.jax.namespace import install as install
from volta_fn.jax.namespace import read_table as _read_table

_NAMES = _Namespace(__name__, __name__, "jax", _read_table()["jax"])

if _OWN not in _sys.meta_path:
    _sys.meta_path.insert(0, _OWN)


def __getattr__(name: str) -> _Any:
    return getattr(_NAMES, name)


def __dir__() -> list[str]:
    return sorted({*dir(_NAMES), "install"})

"""Immutable arrays, pure functions and their transforms: `grad`, `jit`, `vmap`, ….

`__init__.pyi` lists all names, which are loaded on first use. The examples of functions and classes use `import volta_fn as vf`.

>>> import volta_fn as vf
>>> loss = lambda w, x: vf.numpy.sum((x * w) ** 2)
>>> vf.jit(vf.grad(loss))(2.0, vf.numpy.arange(3.0))
Array(20., dtype=float32, weak_type=True)
"""

from volta_fn import lazy_imports as _lazy_imports
from volta_fn import numpy as numpy  # attaches the methods of arrays
from volta_fn import tracebacks as _tracebacks
from volta_fn.jit import jit as jit  # not on first use: importing the package `volta_fn.jit` would set the name
from volta_fn.primitives.array_operations import array_updates as _array_updates  # noqa: F401  # attaches x[…], x.at and the parts of references
from volta_fn.primitives.array_operations import operators as _operators  # noqa: F401  # attaches the operators

__getattr__, __dir__ = _lazy_imports.attach(__name__)

_tracebacks.install()

__version__ = "0.1.0"

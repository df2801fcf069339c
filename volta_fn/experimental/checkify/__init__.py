"""Checks in traced functions: errors as values, with JAX's names.

>>> import volta_fn as vf
>>> from volta_fn.experimental import checkify
>>> def root(x):
...     checkify.check(x >= 0, "x must not be negative, got {x}", x=x)
...     return vf.numpy.sqrt(x)
>>> error, value = vf.jit(checkify.checkify(root))(-4.0)
>>> print(error.get())
x must not be negative, got -4.0 (`check` failed)
  in check at ...
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)

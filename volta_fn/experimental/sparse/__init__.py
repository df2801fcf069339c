"""Sparse arrays, with the names of `jax.experimental.sparse`.

`bcoo` has the format `BCOO`, `matrices` other formats, `shapes` and `products` operations, and `transform` what makes functions of dense
arrays functions of sparse ones: `sparsify`, operators and derivatives.

>>> import volta_fn as vf
>>> from volta_fn.experimental import sparse
>>> m = sparse.BCOO.fromdense(vf.numpy.array([[0.0, 2.0], [0.0, 3.0]]))
>>> m, m @ vf.numpy.ones(2)
(BCOO(float32[2, 2], nse=2), Array([2., 3.], dtype=float32))
"""

from volta_fn import lazy_imports as _lazy_imports
from volta_fn.experimental.sparse import transform as _transform  # noqa: F401  # attaches the operators of BCOO

__getattr__, __dir__ = _lazy_imports.attach(__name__)

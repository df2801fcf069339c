"""The array API: NumPy's names and meanings, as in `jax.numpy`.

Arrays are immutable, and functions can be traced and differentiated. `__init__.pyi` lists all names with their modules, which are loaded on
first use. `arguments` has the conversions and checks that all functions share, and `attached` gives arrays the names of their methods,
which are in `methods`. The subjects: `creation`, `grids`; `arithmetic`, `logic`, `ufuncs`, `scalar_types`; `shapes`, `joining`, `indexing`,
`sorting`, `sets`; `reductions`, `statistics`; `products`, `linalg`, `polynomials`, `fft`. Their examples use
`import volta_fn.numpy as jnp`.

>>> import volta_fn.numpy as jnp
>>> jnp.linspace(0.0, 1.0, 3) + jnp.array([1, 2, 3])
Array([1. , 2.5, 4. ], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports
from volta_fn.numpy import attached as _attached  # noqa: F401  # attaches x[i] = v, and the methods of arrays

__getattr__, __dir__ = _lazy_imports.attach(__name__)

"""The array API: `jax.numpy`'s names and meanings, which are NumPy's, for immutable arrays that can be traced and differentiated.

>>> import volta_fn.numpy as jnp
>>> jnp.linspace(0.0, 1.0, 3) + jnp.array([1, 2, 3])
Array([1. , 2.5, 4. ], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports
from volta_fn.numpy import methods as _methods  # noqa: F401  # attaches the methods of arrays

__getattr__, __dir__ = _lazy_imports.attach(__name__)

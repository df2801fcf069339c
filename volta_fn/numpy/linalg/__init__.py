"""Linear algebra: `jax.numpy.linalg`'s names and meanings, on stacks of matrices.

All functions are differentiable. `decompositions` also has linear systems and inverses, `products` also norms, powers and determinants.

>>> import volta_fn.numpy as jnp
>>> jnp.linalg.solve(jnp.array([[3.0, 1.0], [1.0, 2.0]]), jnp.array([9.0, 8.0]))
Array([2., 3.], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)

"""The primitives as functions with the names of `jax.lax`.

They are strict about dtypes; `volta_fn.numpy` promotes. `lax.pyi` lists all names.
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)

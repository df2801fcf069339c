"""The primitives as functions, under the names that `jax.lax` gives them. Strict about dtypes; `volta_fn.numpy` promotes."""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)

"""The stages of a jitted function, with the names of `jax.stages`."""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)

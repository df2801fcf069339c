"""Clustering with the names of `jax.scipy.cluster`: `vq` has vector quantisation."""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)

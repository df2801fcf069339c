"""Functions of `jax.lax` that move elements, also of arrays of random keys."""

from __future__ import annotations

from typing import Any

from volta_fn import lax as _lax
from volta_fn.extend.key_arrays import of_keys as _of_keys


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return _of_keys(getattr(_lax, name))

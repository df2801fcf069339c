"""Functions of `jax.numpy` that move or compare elements, also of random keys."""

from __future__ import annotations

import operator
from typing import Any

from volta_fn import numpy as _numpy
from volta_fn.extend.key_arrays.words import of_keys as _of_keys
from volta_fn.extend.key_arrays.words import of_two_keys as _of_two_keys

_COMPARISONS = {
    "allclose": lambda x, y: (x == y).all(),
    "array_equal": lambda x, y: (x == y).all() if x.shape == y.shape else _numpy.array(False),
    "equal": operator.eq,
    "isclose": operator.eq,
    "not_equal": operator.ne,
}


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    if name in _COMPARISONS:
        return _of_two_keys(getattr(_numpy, name), _COMPARISONS[name])
    return _of_keys(getattr(_numpy, name))

"""Reductions for operands of known types: NumPy's own, without looking at the operand again on each call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES

#: Reductions that are a ufunc's, and for which that is so: for narrow floats sums are made in float32, and nothing has no largest element.
UFUNCS: dict[str, np.ufunc] = {"reduce_sum": np.add, "reduce_max": np.maximum, "reduce_min": np.minimum}


def typed_reduction(name: str) -> Callable[..., Callable[..., np.ndarray]]:
    """What makes the kernel of a reduction for an operand of a type."""

    def typed(operand: ShapedArray, *, axes: tuple[int, ...]) -> Callable[..., np.ndarray]:
        plain = operand.dtype.itemsize > 2 and operand.dtype in dtypes.INEXACT and operand.size
        if plain:
            return partial(UFUNCS[name].reduce, axis=axes)
        evaluate: Any = PRIMITIVES[name].evaluate
        return partial(evaluate, axes=axes)

    return typed

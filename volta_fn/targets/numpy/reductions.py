"""Reductions for operands of known types: NumPy's own, without looking at the operand again on each call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES, Primitive


def typed_reductions() -> dict[str, Callable[..., Callable[..., np.ndarray]]]:
    """Return what makes the kernels of reductions whose step is a ufunc that rounds nothing, or adds (which NumPy does pairwise)."""
    steps: dict[str, Any] = {
        name: PRIMITIVES[p.reduction.step].evaluate for name, p in PRIMITIVES.items() if p.reduction and not p.reduction.index_of
    }
    return {name: partial(_typed, PRIMITIVES[name], step) for name, step in steps.items() if step in (np.add, np.maximum, np.minimum)}


def _typed(primitive: Primitive, step: np.ufunc, operand: ShapedArray, *, axes: tuple[int, ...]) -> Callable[..., np.ndarray]:
    if operand.dtype.itemsize > 2 and operand.dtype in dtypes.INEXACT and operand.size:
        return partial(step.reduce, axis=axes)
    evaluate: Any = primitive.evaluate
    return partial(evaluate, axes=axes)

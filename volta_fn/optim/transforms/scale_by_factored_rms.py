"""Adafactor's second moments (Shazeer and Stern, 2018).

Large matrices keep only the means of rows and of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import Shape
from volta_fn.optim.base import Counter, GradientTransformation, GradientTransformationExtraArgs, Updates, require_params
from volta_fn.optim.numerics import abs_sq, decayed, safe_increment
from volta_fn.optim.tree_rules import count_zero, map_with_state

__all__ = ["FactoredState", "scale_by_factored_rms"]


class FactoredState(NamedTuple):
    """The number of steps (int32), mean squares of rows, of columns, of elements (v).

    Means that a leaf does not have are arrays of one element.
    """

    count: Counter
    v_row: Updates
    v_col: Updates
    v: Updates


def _factored_axes(shape: Shape, factored: bool, smallest: int) -> tuple[int, int] | None:
    """Return the second largest and the largest axis of a factored array, else None."""
    if not factored or len(shape) < 2:
        return None
    *_, second, first = np.argsort(shape, kind="stable").tolist()
    return (second, first) if shape[second] >= smallest else None


def _decay_rate_pow(step: Array, exponent: Any) -> Array:
    return 1 - (step + 1) ** (-exponent)


def scale_by_factored_rms(
    factored: bool = True,
    decay_rate: Any = 0.8,
    step_offset: Any = 0,
    min_dim_size_to_factor: int = 128,
    epsilon: Any = 1e-30,
    decay_rate_fn: Callable[[Array, Any], Any] = _decay_rate_pow,
) -> GradientTransformation:
    """Divide updates by roots of factored moving averages of their squares.

    The averages of a large matrix are products of the means of its rows and columns. Needs the parameters.

    Args:
        factored: whether to factor at all.
        decay_rate: the averages decay by ``decay_rate_fn(step - step_offset, decay_rate)``; 1 - t**-decay_rate by default, t = 1, 2, …
        step_offset: subtracted from the number of steps.
        min_dim_size_to_factor: arrays are factored if their two largest axes have at least that size.
        epsilon: added to squares.
        decay_rate_fn: the decay of the averages, see `decay_rate`.
    """

    def state_of(param: Any) -> tuple[Array, Array, Array]:
        p = as_value(param)
        axes = _factored_axes(p.shape, factored, min_dim_size_to_factor)
        dtype = dtypes.real_dtype(dtypes.accumulator(p.dtype))
        none = vnp.zeros(1, dtype)
        if axes is None:
            return none, none, vnp.zeros(p.shape, dtype)
        row, col = (vnp.zeros(tuple(np.delete(p.shape, axis).tolist()), dtype) for axis in reversed(axes))
        return row, col, none

    def init(params: Any) -> FactoredState:
        leaves, treedef = tree.flatten(params)
        states = [state_of(p) for p in leaves]
        return FactoredState(count_zero(), *(treedef.unflatten([state[i] for state in states]) for i in range(3)))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        params = require_params("scale_by_factored_rms", params)

        def rule(g: Array, v_row: Array, v_col: Array, v: Array, p: Array) -> tuple[Array, ...]:
            square = abs_sq(g) + epsilon
            decay = decay_rate_fn((state.count - step_offset).astype(square.dtype), decay_rate)
            axes = _factored_axes(g.shape, factored, min_dim_size_to_factor)
            if axes is None:
                v = decayed(decay, square, v)
                return g / vnp.sqrt(v), v_row, v_col, v
            second, first = axes
            v_row = decayed(decay, vnp.mean(square, axis=first), v_row)
            v_col = decayed(decay, vnp.mean(square, axis=second), v_col)
            rows = v_row / vnp.mean(v_row, axis=second - (second > first), keepdims=True)
            root = vnp.sqrt(vnp.expand_dims(rows, first)) * vnp.sqrt(vnp.expand_dims(v_col, second))
            return g / root, v_row, v_col, v

        updates, *new = map_with_state(rule, updates, *state[1:], given=(params,), same_shapes=False)
        return updates, FactoredState(safe_increment(state.count), *new)

    return GradientTransformationExtraArgs(init, update)

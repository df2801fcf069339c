"""Learning rates that shrink when the loss stops improving."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import Counter, GradientTransformationExtraArgs
from volta_fn.optim.tree_rules import count_zero, scaled_by, where, widest_real

__all__ = ["ReduceLROnPlateauState", "reduce_on_plateau"]


class ReduceLROnPlateauState(NamedTuple):
    """The factor of the updates, the best loss, and counters (int32).

    `plateau_count` is the number of consecutive losses without improvement, `cooldown_count` the number of losses still to be ignored,
    `avg_value` the mean of the `count` losses accumulated so far.
    """

    scale: Array
    best_value: Array
    plateau_count: Array
    cooldown_count: Array
    count: Counter
    avg_value: Array


def reduce_on_plateau(
    factor: float = 0.1,
    patience: int = 10,
    rtol: float = 1e-4,
    atol: float = 0.0,
    cooldown: int = 0,
    accumulation_size: int = 1,
    min_scale: float = 0.0,
) -> GradientTransformationExtraArgs:
    """Shrink updates by `factor` whenever the loss stops improving.

    The loss is passed as ``update(..., value=loss)``.

    Args:
        factor: multiplies the scale; between 0 and 1.
        patience: how many consecutive losses may be no better than the best so far.
        rtol, atol: a loss is better if it is less than ``(1 - rtol) * best - atol``.
        cooldown: how many losses after a reduction are ignored.
        accumulation_size: how many losses are averaged into one.
        min_scale: the least scale.

    >>> optimizer = optim.chain(optim.sgd(1.0), optim.reduce_on_plateau(factor=0.5, patience=1))
    >>> params = vf.numpy.zeros(1)
    >>> state = optimizer.init(params)
    >>> for loss in (3.0, 3.0, 3.0):
    ...     updates, state = optimizer.update(vf.numpy.ones(1), state, params, value=loss)
    >>> updates
    Array([-0.25], dtype=float32)

    Raises `ArgumentError` for a factor or tolerances out of range.
    """
    if not 0 < factor < 1:
        raise ArgumentError(f"reduce_on_plateau: factor must be between 0 and 1, got {factor}")
    if not (0 <= rtol <= 1 and atol >= 0 and rtol + atol > 0):
        raise ArgumentError(f"reduce_on_plateau: rtol in [0, 1] and atol >= 0, not both 0, are needed, got {rtol=}, {atol=}")

    def init(params: Any) -> ReduceLROnPlateauState:
        dtype = widest_real(params)
        zero = count_zero()
        return ReduceLROnPlateauState(vnp.ones((), dtype), vnp.asarray(np.inf, dtype), zero, zero, zero, vnp.zeros((), dtype))

    def next_scale(state: ReduceLROnPlateauState) -> ReduceLROnPlateauState:
        """Return the state after enough losses: compare their mean with the best."""
        improved = state.avg_value < (1 - rtol) * state.best_value - atol
        cooling = state.cooldown_count > 0
        plateau = vnp.where(improved | cooling, 0, state.plateau_count + 1)
        reduce = (plateau >= patience) & ~cooling & ~improved
        return ReduceLROnPlateauState(
            scale=vnp.where(reduce, vnp.maximum(state.scale * factor, min_scale), state.scale),
            best_value=vnp.where(improved, state.avg_value, state.best_value),
            plateau_count=vnp.where(reduce, 0, plateau),
            cooldown_count=vnp.where(cooling, state.cooldown_count - 1, vnp.where(reduce, cooldown, 0)),
            count=vnp.zeros_like(state.count),
            avg_value=vnp.zeros_like(state.avg_value),
        )

    def update(updates: Any, state: Any, params: Any = None, *, value: Any, **extra_args: Any) -> tuple[Any, Any]:
        count = state.count + 1
        loss = vnp.asarray(value, state.avg_value.dtype)
        mean = state.avg_value + (loss - state.avg_value) / lax.convert_element_type(count, loss.dtype)
        accumulated = state._replace(count=count, avg_value=mean)
        state = where(count == accumulation_size, next_scale(accumulated), accumulated)
        return scaled_by(state.scale, updates), state

    return GradientTransformationExtraArgs(init, update)

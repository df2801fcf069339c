"""MADGRAD: momentumised, adaptive, dual averaged gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    Params,
    ScalarOrSchedule,
    Updates,
    require_params,
)
from volta_fn.optim.contrib.common import copied, rate_at
from volta_fn.optim.numerics import abs_sq, safe_increment
from volta_fn.optim.transforms.weight_decay_and_noise import add_decayed_weights
from volta_fn.optim.tree_rules import count_zero, factor, magnitudes, map_with_state, zeros_like
from volta_fn.optim.wrappers.chain import chain

__all__ = ["MadgradState", "madgrad", "scale_by_madgrad"]


class MadgradState(NamedTuple):
    """The step (int32), sums of squares and of gradients, initial parameters."""

    count: Counter
    grad_sum_sq: Updates
    s: Updates
    x0: Params


def scale_by_madgrad(learning_rate: ScalarOrSchedule, momentum: Any = 0.9, eps: Any = 1e-6) -> GradientTransformation:
    """Replace gradients by the updates of `madgrad`, without weight decay."""

    def init(params: Any) -> MadgradState:
        return MadgradState(count_zero(), magnitudes(params), zeros_like(params), copied(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        count = safe_increment(state.count)
        rate = rate_at(learning_rate, state.count, updates) + eps

        def rule(g: Array, squares: Array, total: Array, p: Array, start: Array) -> tuple[Array, ...]:
            weight = factor(rate, g) * vnp.sqrt(count.astype(squares.dtype))
            squares, total = squares + weight * abs_sq(g), total + weight * g
            target = start - total / (vnp.cbrt(squares) + eps)
            return (1 - momentum) * (target - p), squares, total

        given = (require_params("madgrad", params), state.x0)
        updates, squares, total = map_with_state(rule, updates, state.grad_sum_sq, state.s, given=given)
        return updates, MadgradState(count, squares, total, state.x0)

    return GradientTransformationExtraArgs(init, update)


def madgrad(learning_rate: ScalarOrSchedule, momentum: Any = 0.9, weight_decay: Any = 0.0, eps: Any = 1e-6) -> GradientTransformation:
    """Create MADGRAD (Defazio and Jelassi, 2022).

    Parameters move the fraction 1 - `momentum` of the way to initial parameters minus the weighted sum of gradients over the cube root
    of that of their squares.

    Args:
        learning_rate: a number, a scalar array or a schedule.
        momentum: how much parameters stay where they are.
        weight_decay: added to gradients, times the parameters.
        eps: added to the learning rate and to the divisor.

    >>> optimizer = optim.contrib.madgrad(0.001)
    >>> w = vnp.ones(2)
    >>> optimizer.update(vnp.array([0.5, -2.0]), optimizer.init(w), w)[0].round(4)
    Array([-0.0008,  0.0013], dtype=float32)
    """
    return chain(add_decayed_weights(weight_decay), scale_by_madgrad(learning_rate, momentum, eps))

"""Transformations by the signs of gradients: plain signs, Lion, Rprop."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import Counter, GradientTransformation, Updates, counting_rule, leaf_rule, stateful_rule
from volta_fn.optim.numerics import decayed
from volta_fn.optim.tree_rules import full_like, zeros_like

__all__ = ["ScaleByLionState", "ScaleByRpropState", "scale_by_lion", "scale_by_rprop", "scale_by_sign"]


def scale_by_sign() -> GradientTransformation:
    """Replace updates by their signs."""
    return leaf_rule(vnp.sign)


class ScaleByRpropState(NamedTuple):
    """The step size of every element and the last updates."""

    step_sizes: Updates
    prev_updates: Updates


def scale_by_rprop(
    learning_rate: Any, eta_minus: Any = 0.5, eta_plus: Any = 1.2, min_step_size: Any = 1e-6, max_step_size: Any = 50.0
) -> GradientTransformation:
    """Replace gradients by signs times a step size for each element.

    See Riedmiller and Braun (1993). A step size starts at `learning_rate`, grows by `eta_plus` while the sign of its gradient stays, and
    shrinks by `eta_minus` where the sign changes; that step is skipped.
    """

    def rule(g: Array, size: Array, last: Array) -> tuple[Array, Array, Array]:
        agreement = g * last
        resized = vnp.clip(vnp.where(agreement > 0, eta_plus * size, eta_minus * size), min_step_size, max_step_size)
        size = vnp.where(agreement == 0, size, resized)
        step = vnp.where(agreement < 0, 0, size * vnp.sign(g))
        return step, size, step

    return stateful_rule(ScaleByRpropState, lambda params: (full_like(params, learning_rate), zeros_like(params)), rule)


class ScaleByLionState(NamedTuple):
    """The number of steps (int32) and moving averages of gradients."""

    count: Counter
    mu: Updates


def scale_by_lion(
    b1: Any = 0.9, b2: Any = 0.99, mu_dtype: Any = None, *, mode: Literal["hard", "smooth", "refined"] = "hard", smooth_beta: Any = 1.0
) -> GradientTransformation:
    """Scale updates as `lion` does, to the sign of a moving average.

    See Chen et al. (2023). Mode "smooth" uses ``tanh(smooth_beta * average)`` instead of the sign, "refined" the average clipped to [-1,
    1].
    """
    squash = {
        "hard": vnp.sign,
        "smooth": lambda x: vnp.tanh(smooth_beta * x),
        "refined": lambda x: vnp.where(vnp.abs(x) < 1, x, vnp.sign(x)),
    }.get(mode)
    if squash is None:
        raise ArgumentError(f"scale_by_lion: mode must be 'hard', 'smooth' or 'refined', got {mode!r}")

    def rule(g: Array, m: Array) -> tuple[Array, Array]:
        return squash(decayed(b1, g, m)), decayed(b2, g, m)

    return counting_rule(ScaleByLionState, lambda params: (zeros_like(params, mu_dtype),), lambda count: rule)

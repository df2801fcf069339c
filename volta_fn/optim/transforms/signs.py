"""Updates that look back at the last gradient: resilient propagation and optimistic gradients."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import Counter, GradientTransformation, GradientTransformationExtraArgs, OptState, Params, Updates, leaf_rule
from volta_fn.optim.numerics import decayed, safe_increment
from volta_fn.optim.tree_rules import count_zero, full_like, map_with_state, zeros_like

__all__ = ["ScaleByLionState", "ScaleByRpropState", "scale_by_lion", "scale_by_rprop", "scale_by_sign"]


class ScaleByRpropState(NamedTuple):
    """The step size of every element and the last updates."""

    step_sizes: Updates
    prev_updates: Updates


def scale_by_rprop(
    learning_rate: Any, eta_minus: Any = 0.5, eta_plus: Any = 1.2, min_step_size: Any = 1e-6, max_step_size: Any = 50.0
) -> GradientTransformation:
    """Steps of the gradients' signs, each element's size growing while its sign stays (Riedmiller and Braun, 1993).

    Where the sign changes, the size shrinks and no step is taken.
    """

    def rule(g: Array, size: Array, last: Array) -> tuple[Array, Array, Array]:
        agreement = g * last
        resized = vnp.clip(vnp.where(agreement > 0, eta_plus * size, eta_minus * size), min_step_size, max_step_size)
        size = vnp.where(agreement == 0, size, resized)
        turned = agreement < 0
        step = vnp.where(turned, 0, size * vnp.sign(g))
        return step, size, step

    def init(params: Params) -> ScaleByRpropState:
        return ScaleByRpropState(full_like(params, learning_rate), zeros_like(params))

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        updates, sizes, last = map_with_state(rule, updates, state.step_sizes, state.prev_updates)
        return updates, ScaleByRpropState(sizes, last)

    return GradientTransformationExtraArgs(init, update)


class ScaleByLionState(NamedTuple):
    """The number of steps (int32) and moving averages of gradients."""

    count: Counter
    mu: Updates


def scale_by_lion(
    b1: Any = 0.9,
    b2: Any = 0.99,
    mu_dtype: Any = None,
    *,
    mode: Literal["hard", "smooth", "refined"] = "hard",
    smooth_beta: Any = 1.0,
) -> GradientTransformation:
    """The update of `lion`, without the learning rate: the sign of a moving average (Chen et al., 2023).

    Mode "smooth" takes ``tanh(smooth_beta * average)`` in the sign's place, "refined" the average clipped to [-1, 1].
    """
    squash = {
        "hard": vnp.sign,
        "smooth": lambda x: vnp.tanh(smooth_beta * x),
        "refined": lambda x: vnp.where(vnp.abs(x) < 1, x, vnp.sign(x)),
    }.get(mode)
    if squash is None:
        raise ArgumentError(f"scale_by_lion: mode must be 'hard', 'smooth' or 'refined', got {mode!r}")

    def init(params: Params) -> ScaleByLionState:
        return ScaleByLionState(count_zero(), zeros_like(params, mu_dtype))

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        updates, mu = map_with_state(lambda g, m: (squash(decayed(b1, g, m)), decayed(b2, g, m)), updates, state.mu)
        return updates, ScaleByLionState(safe_increment(state.count), mu)

    return GradientTransformationExtraArgs(init, update)


def scale_by_sign() -> GradientTransformation:
    """The signs of the updates."""
    return leaf_rule(vnp.sign)

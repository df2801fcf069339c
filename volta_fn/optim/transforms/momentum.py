"""Momentum: decaying sums, moving averages, sums over steps, optimistic gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import Counter, GradientTransformation, GradientTransformationExtraArgs, Updates, counting_rule, stateful_rule
from volta_fn.optim.numerics import debiaser, decayed
from volta_fn.optim.tree_rules import Rule, count_zero, map_with_state, zeros_like

__all__ = ["ApplyEvery", "EmaState", "ScaleByOptimisticGradientState", "TraceState", "apply_every", "ema", "scale_by_optimistic_gradient"]
__all__ += ["trace"]


class TraceState(NamedTuple):
    """Decaying sums of updates."""

    trace: Updates


def trace(decay: Any, nesterov: bool = False, accumulator_dtype: Any = None) -> GradientTransformation:
    """Replace updates by their decaying sum ``t = update + decay * t``: momentum.

    With `nesterov` the result is ``update + decay * t``, with the new t. The sum is kept in `accumulator_dtype`, by default the dtype of
    the parameters.
    """

    def rule(g: Array, t: Array) -> tuple[Array, Array]:
        t = g + decay * t
        return (g + decay * t if nesterov else t), t

    return stateful_rule(TraceState, lambda params: (zeros_like(params, accumulator_dtype),), rule)


class EmaState(NamedTuple):
    """The number of steps (int32) and moving averages."""

    count: Counter
    ema: Updates


def ema(decay: Any, debias: bool = True, accumulator_dtype: Any = None) -> GradientTransformation:
    """Replace updates by their exponential moving average.

    It starts at zero, which `debias` corrects. For an average of parameters, call ``update(params, state)``; see also `incremental_update`.

    >>> average = vf.optim.ema(0.9)
    >>> params = vf.numpy.array([2.0])
    >>> average.update(params, average.init(params))[0]
    Array([2.], dtype=float32)
    """

    def rule_at(count: Array) -> Rule:
        corrected = debiaser(decay, count) if debias else (lambda m: m)

        def rule(g: Array, m: Array) -> tuple[Array, Array]:
            m = decayed(decay, g, m)
            return corrected(m), m

        return rule

    return counting_rule(EmaState, lambda params: (zeros_like(params, accumulator_dtype),), rule_at)


class ApplyEvery(NamedTuple):
    """The number of steps since the last emission (int32) and their sum of updates."""

    count: Counter
    grad_acc: Updates


def apply_every(k: int = 1) -> GradientTransformation:
    """Emit the sum of the last k updates every k steps, and zeros in between.

    `MultiSteps` accumulates before an optimizer instead of after it.
    """
    if isinstance(k, int) and k < 1:
        raise ArgumentError(f"apply_every: k must be at least 1, got {k}")

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        first, last = state.count == 0, state.count == k - 1

        def rule(g: Array, total: Array) -> tuple[Array, Array]:
            total = vnp.where(first, g, total + g)
            return vnp.where(last, total, vnp.zeros_like(total)), total

        updates, total = map_with_state(rule, updates, state.grad_acc)
        return updates, ApplyEvery((state.count + 1) % k, total)

    return GradientTransformationExtraArgs(lambda params: ApplyEvery(count_zero(), zeros_like(params)), update)


class ScaleByOptimisticGradientState(NamedTuple):
    """A boolean, true before the first step, and the last gradient."""

    is_initial_step: Array
    previous_gradient: Updates


def scale_by_optimistic_gradient(alpha: Any = 1.0, beta: Any = 1.0) -> GradientTransformation:
    """Extrapolate by ``(alpha + beta) * gradient - beta * last gradient``."""

    def init(params: Any) -> ScaleByOptimisticGradientState:
        return ScaleByOptimisticGradientState(vnp.array(True), zeros_like(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        def rule(g: Array, last: Array) -> tuple[Array, Array]:
            return (alpha + beta) * g - beta * vnp.where(state.is_initial_step, g, last), g

        updates, last = map_with_state(rule, updates, state.previous_gradient)
        return updates, ScaleByOptimisticGradientState(vnp.array(False), last)

    return GradientTransformationExtraArgs(init, update)

"""Transformations that gather updates over steps: momentum, moving averages, and sums that are applied every few steps."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import Counter, GradientTransformation, GradientTransformationExtraArgs, OptState, Params, Updates
from volta_fn.optim.numerics import debiaser, decayed, safe_increment
from volta_fn.optim.tree_rules import count_zero, map_with_state, zeros_like

__all__ = ["ApplyEvery", "EmaState", "ScaleByOptimisticGradientState", "TraceState", "apply_every", "ema"]
__all__ += ["scale_by_optimistic_gradient", "trace"]


class TraceState(NamedTuple):
    """The decaying sums of updates."""

    trace: Updates


def trace(decay: Any, nesterov: bool = False, accumulator_dtype: Any = None) -> GradientTransformation:
    """Momentum: the decaying sum ``t = update + decay * t``, or with `nesterov` ``update + decay * t`` once more.

    The sum is kept in `accumulator_dtype`, or the parameters' own.
    """

    def rule(g: Array, t: Array) -> tuple[Array, Array]:
        t = g + decay * t
        return (g + decay * t if nesterov else t), t

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        updates, total = map_with_state(rule, updates, state.trace)
        return updates, TraceState(total)

    return GradientTransformationExtraArgs(lambda params: TraceState(zeros_like(params, accumulator_dtype)), update)


class EmaState(NamedTuple):
    """The number of steps (int32) and the moving averages."""

    count: Counter
    ema: Updates


def ema(decay: Any, debias: bool = True, accumulator_dtype: Any = None) -> GradientTransformation:
    """The exponential moving average of the updates, which begins at zero and is corrected for that if `debias`.

    For an average of parameters, call ``update(params, state)``; see `incremental_update`, too.

    >>> import volta_fn as vf
    >>> average = vf.optim.ema(0.9)
    >>> params = vf.numpy.array([2.0])
    >>> average.update(params, average.init(params))[0]
    Array([2.], dtype=float32)
    """

    def init(params: Params) -> EmaState:
        return EmaState(count_zero(), zeros_like(params, accumulator_dtype))

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        count = safe_increment(state.count)
        corrected = debiaser(decay, count) if debias else (lambda m: m)

        def rule(g: Array, m: Array) -> tuple[Array, Array]:
            m = decayed(decay, g, m)
            return corrected(m), m

        updates, average = map_with_state(rule, updates, state.ema)
        return updates, EmaState(count, average)

    return GradientTransformationExtraArgs(init, update)


class ApplyEvery(NamedTuple):
    """The number of steps since the last emission (int32) and the sum of updates since then."""

    count: Counter
    grad_acc: Updates


def apply_every(k: int = 1) -> GradientTransformation:
    """Every k-th time the sum of the last k updates, in between zeros. `MultiSteps` does so before an optimizer instead of after it."""
    if isinstance(k, int) and k < 1:
        raise ArgumentError(f"apply_every: k must be at least 1, got {k}")

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        first, last = state.count == 0, state.count == k - 1

        def rule(g: Array, total: Array) -> tuple[Array, Array]:
            total = vnp.where(first, g, total + g)
            return vnp.where(last, total, vnp.zeros_like(total)), total

        updates, total = map_with_state(rule, updates, state.grad_acc)
        return updates, ApplyEvery((state.count + 1) % k, total)

    return GradientTransformationExtraArgs(lambda params: ApplyEvery(count_zero(), zeros_like(params)), update)


class ScaleByOptimisticGradientState(NamedTuple):
    """Whether no step has been taken yet, and the last gradient."""

    is_initial_step: Array
    previous_gradient: Updates


def scale_by_optimistic_gradient(alpha: Any = 1.0, beta: Any = 1.0) -> GradientTransformation:
    """``(alpha + beta) * gradient - beta * last gradient`` (Mokhtari et al., 2019)."""

    def init(params: Params) -> ScaleByOptimisticGradientState:
        return ScaleByOptimisticGradientState(vnp.array(True), zeros_like(params))

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        def rule(g: Array, last: Array) -> tuple[Array, Array]:
            return (alpha + beta) * g - beta * vnp.where(state.is_initial_step, g, last), g

        updates, last = map_with_state(rule, updates, state.previous_gradient)
        return updates, ScaleByOptimisticGradientState(vnp.array(False), last)

    return GradientTransformationExtraArgs(init, update)

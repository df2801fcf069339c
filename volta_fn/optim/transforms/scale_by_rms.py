"""Adagrad, RMSProp, Adadelta, SM3 and Adafactor: roots of second moments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import Shape
from volta_fn.errors import DTypeError
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    Params,
    Updates,
    counting_rule,
    require_params,
    stateful_rule,
)
from volta_fn.optim.numerics import (
    Rule,
    abs_sq,
    cast_like,
    count_zero,
    debiaser,
    decayed,
    magnitudes,
    map_with_state,
    safe_increment,
    widened,
    zeros_like,
)

__all__ = [
    "FactoredState", "ScaleByAdaDeltaState", "ScaleByRStdDevState", "ScaleByRStdDevWithCountState", "ScaleByRmsState",
    "ScaleByRmsWithCountState", "ScaleByRssState", "ScaleBySM3State", "scale_by_adadelta", "scale_by_factored_rms", "scale_by_rms",
    "scale_by_rss", "scale_by_sm3", "scale_by_stddev",
]  # fmt: skip


# Adagrad, RMSProp, Adadelta and SM3.
#
# All divide updates by roots of sums or moving averages of their squares, kept in float32 at least.


class ScaleByRssState(NamedTuple):
    """Sums of the squared magnitudes of all gradients so far."""

    sum_of_squares: Updates


def scale_by_rss(initial_accumulator_value: Any = 0.1, eps: Any = 1e-7) -> GradientTransformation:
    """Divide updates by roots of sums of all squares, and return 0 for 0."""

    def rule(g: Array, total: Array) -> tuple[Array, Array]:
        total = total + abs_sq(g)
        return vnp.where(total > 0, g / vnp.sqrt(total + eps), vnp.zeros_like(g)), total

    return stateful_rule(ScaleByRssState, lambda params: (magnitudes(params, initial_accumulator_value),), rule)


class ScaleByRmsState(NamedTuple):
    """Moving averages of squared magnitudes."""

    nu: Updates


class ScaleByRmsWithCountState(NamedTuple):
    """The number of steps (int32) and moving averages of squared magnitudes."""

    count: Counter
    nu: Updates


def scale_by_rms(
    decay: Any = 0.9, eps: Any = 1e-8, initial_scale: Any = 0.0, eps_in_sqrt: bool = True, bias_correction: bool = False
) -> GradientTransformation:
    """Divide updates by roots of moving averages of their squares, as `rmsprop` does."""

    def rule(g: Array, v: Array, debias: Callable[[Array], Array]) -> tuple[Array, Array]:
        v = decayed(decay, abs_sq(g), v)
        return _over_root(g, debias(v), eps, eps_in_sqrt), v

    types = (ScaleByRmsWithCountState, ScaleByRmsState)
    return _debiased(types, lambda params: (magnitudes(params, initial_scale),), rule, decay, bias_correction)


class ScaleByRStdDevState(NamedTuple):
    """Moving averages of gradients and of squared magnitudes."""

    mu: Updates
    nu: Updates


class ScaleByRStdDevWithCountState(NamedTuple):
    """The number of steps (int32), moving averages of gradients and of their squares."""

    count: Counter
    mu: Updates
    nu: Updates


def scale_by_stddev(
    decay: Any = 0.9, eps: Any = 1e-8, initial_scale: Any = 0.0, eps_in_sqrt: bool = True, bias_correction: bool = False
) -> GradientTransformation:
    """Divide updates by their moving standard deviation, as centred `rmsprop` does."""

    def rule(g: Array, m: Array, v: Array, debias: Callable[[Array], Array]) -> tuple[Array, Array, Array]:
        m, v = decayed(decay, g, m), decayed(decay, abs_sq(g), v)
        variance = vnp.maximum(debias(v) - abs_sq(debias(m)), 0)  # rounding may make it negative
        return _over_root(g, variance, eps, eps_in_sqrt), m, v

    types = (ScaleByRStdDevWithCountState, ScaleByRStdDevState)
    return _debiased(types, lambda params: (zeros_like(params), magnitudes(params, initial_scale)), rule, decay, bias_correction)


def _over_root(g: Array, v: Array, eps: Any, eps_in_sqrt: bool) -> Array:
    return g / vnp.sqrt(v + eps) if eps_in_sqrt else g / (vnp.sqrt(v) + eps)


def _debiased(
    state_types: tuple[Any, Any], init: Callable[[Params], tuple[Any, ...]], rule: Rule, decay: Any, bias_correction: bool
) -> GradientTransformation:
    """Return the transformation by ``rule(…, debias=…)``, with a count if needed."""
    counting, plain = state_types
    if bias_correction:
        return counting_rule(counting, init, lambda count: functools.partial(rule, debias=debiaser(decay, count)))
    return stateful_rule(plain, init, functools.partial(rule, debias=lambda average: average))


class ScaleByAdaDeltaState(NamedTuple):
    """Moving averages of squares of gradients (e_g) and of updates (e_x)."""

    e_g: Updates
    e_x: Updates


def scale_by_adadelta(rho: Any = 0.9, eps: Any = 1e-6) -> GradientTransformation:
    """Scale updates to the root mean square of the previous ones (Zeiler, 2012)."""

    def rule(g: Array, e_g: Array, e_x: Array) -> tuple[Array, Array, Array]:
        e_g = decayed(rho, abs_sq(g), e_g)
        step = vnp.sqrt((e_x + eps) / (e_g + eps)) * g
        return step, e_g, decayed(rho, abs_sq(step), e_x)

    return stateful_rule(ScaleByAdaDeltaState, lambda params: (magnitudes(params), magnitudes(params)), rule)


class ScaleBySM3State(NamedTuple):
    """For each leaf, maxima of squares along each of its axes (mu), and momenta (nu)."""

    mu: Updates
    nu: Updates


def scale_by_sm3(b1: Any = 0.9, b2: Any = 1.0, eps: Any = 1e-8) -> GradientTransformation:
    """Scale real updates as `sm3` does: Adagrad with sums bounded by maxima."""

    def init(params: Any) -> ScaleBySM3State:
        return ScaleBySM3State(tree.map(_zero_maxima, params), zeros_like(params))

    def rule(g: Array, momentum: Array, maxima: list[Array]) -> tuple[Array, Array, list[Array]]:
        others = [tuple(i for i in range(g.ndim) if i != axis) for axis in range(len(maxima))]
        bound = functools.reduce(vnp.minimum, [vnp.expand_dims(m, axes) for m, axes in zip(maxima, others, strict=True)])
        weight = 1.0 if isinstance(b2, (int, float)) and b2 == 1 else 1.0 - b2
        total = weight * g * g + b2 * bound
        step = g * vnp.where(total > 0, 1 / vnp.sqrt(total + eps), 0)
        momentum = decayed(b1, step, momentum)
        return momentum, momentum, [vnp.max(total, axis=axes, initial=0) for axes in others]

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        leaves, treedef = tree.flatten(updates)
        momenta = tree.flatten_up_to(treedef, state.nu, "the state of sm3")
        maxima = tree.flatten_up_to(treedef, state.mu, "the state of sm3")
        rows = [rule(widened(as_value(g)), widened(m), mu) for g, m, mu in zip(leaves, momenta, maxima, strict=True)]
        steps = [cast_like(step, as_value(g)) for (step, _, _), g in zip(rows, leaves, strict=True)]
        nu = [cast_like(momentum, old) for (_, momentum, _), old in zip(rows, momenta, strict=True)]
        mu = [new for _, _, new in rows]
        return treedef.unflatten(steps), ScaleBySM3State(treedef.unflatten(mu), treedef.unflatten(nu))

    return GradientTransformationExtraArgs(init, update)


def _zero_maxima(param: Any) -> list[Array]:
    p = as_value(param)
    if p.dtype not in dtypes.FLOATS:
        raise DTypeError(f"sm3: parameters must be real floating-point numbers, got dtype {p.dtype.name}")
    return [vnp.zeros(size, dtypes.accumulator(p.dtype)) for size in p.shape or ((),)]


# Adafactor's second moments (Shazeer and Stern, 2018).
#
# Large matrices keep only the means of rows and of columns.


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

        updates, *new = map_with_state(rule, updates, *state[1:], operands=(params,), same_shapes=False)
        return updates, FactoredState(safe_increment(state.count), *new)

    return GradientTransformationExtraArgs(init, update)

"""Adam, RMSProp and their kinds: updates divided by roots of second moments."""

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
    full_like,
    log_of,
    magnitudes,
    map_with_state,
    safe_increment,
    widened,
    zeros_like,
)

__all__ = [
    "FactoredState", "ScaleByAdaDeltaState", "ScaleByAdamState", "ScaleByAdanState", "ScaleByAmsgradState", "ScaleByBeliefState",
    "ScaleByNovogradState", "ScaleByRStdDevState", "ScaleByRStdDevWithCountState", "ScaleByRmsState", "ScaleByRmsWithCountState",
    "ScaleByRssState", "ScaleBySM3State", "scale_by_adadelta", "scale_by_adam", "scale_by_adamax", "scale_by_adan", "scale_by_amsgrad",
    "scale_by_belief", "scale_by_factored_rms", "scale_by_novograd", "scale_by_radam", "scale_by_rms", "scale_by_rss", "scale_by_sm3",
    "scale_by_stddev", "scale_by_yogi",
]  # fmt: skip

# Adam, AMSGrad, Adamax and RAdam.
#
# All divide updates by the roots of moving averages of their squares. `mu` are moving averages of gradients (first moments), `nu` those
# of squared magnitudes (second moments), which are real and at least float32, whatever the dtype of the parameters.


class ScaleByAdamState(NamedTuple):
    """The number of steps (int32), first moments, second moments (Adamax: maxima)."""

    count: Counter
    mu: Updates
    nu: Updates


def momentum_debiaser(decay: Any, count: Array, nesterov: bool) -> Any:
    """Return a function of (first moment, gradient) that corrects the moment's bias.

    With `nesterov` it returns the corrected moment expected one step ahead (Dozat, 2016).
    """
    debias = debiaser(decay, count)
    if not nesterov:
        return lambda m, g: debias(m)
    ahead = debiaser(decay, safe_increment(count))
    return lambda m, g: decay * ahead(m) + (1 - decay) * debias(g)


def over_root(m: Array, v: Array, eps: Any, eps_root: Any) -> Array:
    """Return ``m / (sqrt(v + eps_root) + eps)``."""
    inside = v if isinstance(eps_root, (int, float)) and eps_root == 0 else v + eps_root
    return m / (vnp.sqrt(inside) + eps)


def zero_moments(params: Params, mu_dtype: Any = None) -> tuple[Updates, Updates]:
    """Return zeros for the first and second moments."""
    return zeros_like(params, mu_dtype), magnitudes(params)


def scale_by_adam(
    b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0, mu_dtype: Any = None, *, nesterov: bool = False
) -> GradientTransformation:
    """Scale updates as `adam` does, without the learning rate (Kingma and Ba, 2015)."""

    def rule_at(count: Array) -> Rule:
        corrected, debias = momentum_debiaser(b1, count, nesterov), debiaser(b2, count)

        def rule(g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
            m, v = decayed(b1, g, m), decayed(b2, abs_sq(g), v)
            return over_root(corrected(m, g), debias(v), eps, eps_root), m, v

        return rule

    return counting_rule(ScaleByAdamState, lambda params: zero_moments(params, mu_dtype), rule_at)


class ScaleByAmsgradState(NamedTuple):
    """The number of steps (int32), first and second moments, maxima of the latter."""

    count: Counter
    mu: Updates
    nu: Updates
    nu_max: Updates


def scale_by_amsgrad(
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> GradientTransformation:
    """Scale updates as `amsgrad` does, without the learning rate (Reddi et al., 2018)."""

    def rule_at(count: Array) -> Rule:
        debias_mu, debias_nu = debiaser(b1, count), debiaser(b2, count)

        def rule(g: Array, m: Array, v: Array, v_max: Array) -> tuple[Array, ...]:
            m, v = decayed(b1, g, m), decayed(b2, abs_sq(g), v)
            v_max = vnp.maximum(v_max, debias_nu(v) if bias_correction_nu else v)
            return over_root(debias_mu(m) if bias_correction_mu else m, v_max, eps, eps_root), m, v, v_max

        return rule

    return counting_rule(ScaleByAmsgradState, lambda params: (*zero_moments(params, mu_dtype), magnitudes(params)), rule_at)


def scale_by_adamax(b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8) -> GradientTransformation:
    """Scale updates as `adamax` does, without the learning rate; `nu` are maxima."""

    def rule_at(count: Array) -> Rule:
        debias = debiaser(b1, count)

        def rule(g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
            m, v = decayed(b1, g, m), vnp.maximum(vnp.abs(g) + eps, b2 * v)
            return debias(m) / v, m, v

        return rule

    return counting_rule(ScaleByAdamState, zero_moments, rule_at)


def scale_by_radam(
    b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0, threshold: Any = 5.0, *, nesterov: bool = False
) -> GradientTransformation:
    """Scale updates as `radam` does, without the learning rate (Liu et al., 2020)."""

    def rule_at(count: Array) -> Rule:
        corrected, debias = momentum_debiaser(b1, count, nesterov), debiaser(b2, count)

        def rule(g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
            m, v = decayed(b1, g, m), decayed(b2, abs_sq(g), v)
            length = average_length(b2, count, v.dtype)
            longest = 2 / (1 - b2) - 1
            r = vnp.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
            m_hat = corrected(m, g)
            return vnp.where(length >= threshold, r * over_root(m_hat, debias(v), eps, eps_root), m_hat), m, v

        return rule

    return counting_rule(ScaleByAdamState, zero_moments, rule_at)


def average_length(decay: Any, count: Array, dtype: np.dtype) -> Array:
    """Return the number of gradients that a moving average effectively holds.

    After t steps it is ``ro_inf - 2 t b^t / (1 - b^t)``, ro_inf = 2 / (1 - b) - 1. That difference of large numbers would leave float32
    no more than two digits. With x = -log(b) and Langevin's function L(z) = coth(z) - 1/z it equals ``t + L(x/2) - t L(tx/2)``, in which
    nothing cancels.
    """
    half, t = vnp.asarray(log_of(decay), dtype) / -2, count.astype(dtype)
    return t + _langevin(half) - t * _langevin(t * half)


def _langevin(z: Array) -> Array:
    near = z < 0.1
    safe = vnp.where(near, 1, z)
    square = z * z
    series = z / 3 * (1 - square / 15 * (1 - square * 2 / 21 * (1 - square / 10)))
    return vnp.where(near, series, 1 / vnp.tanh(safe) - 1 / safe)


# Variants of Adam with other second moments: AdaBelief, Yogi, Adan, NovoGrad.


class ScaleByBeliefState(NamedTuple):
    """The number of steps (int32), first moments, variances of gradients about them."""

    count: Counter
    mu: Updates
    nu: Updates


def scale_by_belief(
    b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-16, eps_root: Any = 1e-16, *, nesterov: bool = False
) -> GradientTransformation:
    """Scale updates as `adabelief` does, without the learning rate."""

    def rule_at(count: Array) -> Rule:
        corrected, debias = momentum_debiaser(b1, count, nesterov), debiaser(b2, count)

        def rule(g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
            m = decayed(b1, g, m)
            v = decayed(b2, abs_sq(g - m), v) + eps_root
            return over_root(corrected(m, g), debias(v), eps, 0), m, v

        return rule

    return counting_rule(ScaleByBeliefState, zero_moments, rule_at)


def scale_by_yogi(
    b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-3, eps_root: Any = 0.0, initial_accumulator_value: Any = 1e-6
) -> GradientTransformation:
    """Scale updates as `yogi` does, without the learning rate."""

    def rule_at(count: Array) -> Rule:
        debias_mu, debias_nu = debiaser(b1, count), debiaser(b2, count)

        def rule(g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
            square = abs_sq(g)
            m, v = decayed(b1, g, m), v - (1 - b2) * vnp.sign(v - square) * square
            return over_root(debias_mu(m), debias_nu(v), eps, eps_root), m, v

        return rule

    first = initial_accumulator_value
    return counting_rule(ScaleByAdamState, lambda params: (full_like(params, first), magnitudes(params, first)), rule_at)


class ScaleByAdanState(NamedTuple):
    """Averages of gradients, differences and squares; last gradient and step (int32)."""

    m: Updates
    v: Updates
    n: Updates
    g: Updates
    t: Array


def scale_by_adan(b1: Any = 0.98, b2: Any = 0.92, b3: Any = 0.99, eps: Any = 1e-8, eps_root: Any = 0.0) -> GradientTransformation:
    """Scale updates as `adan` does, without the learning rate (Xie et al., 2022)."""

    def init(params: Any) -> ScaleByAdanState:
        return ScaleByAdanState(zeros_like(params), zeros_like(params), magnitudes(params), zeros_like(params), count_zero())

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        t = safe_increment(state.t)
        debias_m, debias_v, debias_n = debiaser(b1, t), debiaser(b2, t), debiaser(b3, t)

        def rule(g: Array, m: Array, v: Array, n: Array, last: Array) -> tuple[Array, ...]:
            change = vnp.where(state.t == 0, vnp.zeros_like(g), g - last)
            m, v = decayed(b1, g, m), decayed(b2, change, v)
            n = decayed(b3, abs_sq(g + (1 - b2) * change), n)
            return over_root(debias_m(m) + (1 - b2) * debias_v(v), debias_n(n), eps, eps_root), m, v, n, g

        updates, m, v, n, g = map_with_state(rule, updates, *state[:4])
        return updates, ScaleByAdanState(m, v, n, g, t)

    return GradientTransformationExtraArgs(init, update)


class ScaleByNovogradState(NamedTuple):
    """The number of steps (int32), momenta, and one second moment for each leaf."""

    count: Counter
    mu: Updates
    nu: Updates


def scale_by_novograd(
    b1: Any = 0.9, b2: Any = 0.25, eps: Any = 1e-8, eps_root: Any = 0.0, weight_decay: Any = 0.0, mu_dtype: Any = None
) -> GradientTransformation:
    """Scale updates as `novograd` does, without the learning rate."""

    def init(params: Any) -> ScaleByNovogradState:
        nu = tree.map(lambda p: vnp.zeros((), dtypes.real_dtype(dtypes.accumulator(as_value(p).dtype))), params)
        return ScaleByNovogradState(count_zero(), zeros_like(params, mu_dtype), nu)

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        params = require_params("novograd", params)
        first = state.count == 0

        def rule(g: Array, m: Array, v: Array, p: Array) -> tuple[Array, Array, Array]:
            square = vnp.sum(abs_sq(g))
            v = vnp.where(first, square, decayed(b2, square, v))
            step = over_root(g, v, eps, eps_root) + weight_decay * p
            m = vnp.where(first, step, b1 * m + step)
            return m, m, v

        updates, mu, nu = map_with_state(rule, updates, state.mu, state.nu, operands=(params,), same_shapes=False)
        return updates, ScaleByNovogradState(safe_increment(state.count), mu, nu)

    return GradientTransformationExtraArgs(init, update)


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

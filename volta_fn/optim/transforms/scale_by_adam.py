"""Adam and its variants with other second moments."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    Params,
    Updates,
    counting_rule,
    require_params,
)
from volta_fn.optim.numerics import (
    Rule,
    abs_sq,
    count_zero,
    debiaser,
    decayed,
    full_like,
    log_of,
    magnitudes,
    map_with_state,
    safe_increment,
    zeros_like,
)

__all__ = [
    "ScaleByAdamState", "ScaleByAdanState", "ScaleByAmsgradState", "ScaleByBeliefState", "ScaleByNovogradState", "scale_by_adam",
    "scale_by_adamax", "scale_by_adan", "scale_by_amsgrad", "scale_by_belief", "scale_by_novograd", "scale_by_radam", "scale_by_yogi",
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

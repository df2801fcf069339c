"""Variants of Adam with other second moments: AdaBelief, Yogi, Adan, NovoGrad."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import dtypes, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.optim.base import Counter, GradientTransformation, GradientTransformationExtraArgs, Updates, counting_rule, require_params
from volta_fn.optim.numerics import abs_sq, debiaser, decayed, safe_increment
from volta_fn.optim.transforms.scale_by_adam import ScaleByAdamState, momentum_debiaser, over_root, zero_moments
from volta_fn.optim.tree_rules import Rule, count_zero, full_like, magnitudes, map_with_state, zeros_like

__all__ = ["ScaleByAdanState", "ScaleByBeliefState", "ScaleByNovogradState", "scale_by_adan", "scale_by_belief", "scale_by_novograd"]
__all__ += ["scale_by_yogi"]


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

        updates, mu, nu = map_with_state(rule, updates, state.mu, state.nu, given=(params,), same_shapes=False)
        return updates, ScaleByNovogradState(safe_increment(state.count), mu, nu)

    return GradientTransformationExtraArgs(init, update)

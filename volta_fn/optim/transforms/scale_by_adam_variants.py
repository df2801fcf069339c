"""Relatives of Adam that measure something else than squares of gradients, or only signs: belief, Yogi, Adan, NovoGrad, Lion."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import dtypes, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.optim.base import Counter, GradientTransformation, GradientTransformationExtraArgs, OptState, Params, Updates, require_params
from volta_fn.optim.numerics import abs_sq, debiaser, decayed, safe_increment
from volta_fn.optim.transforms.scale_by_adam import ScaleByAdamState, init_adam_state, momentum_debiaser, over_root
from volta_fn.optim.tree_rules import count_zero, full_like, magnitudes, map_with_state, zeros_like

__all__ = ["ScaleByAdanState", "ScaleByBeliefState", "ScaleByNovogradState", "scale_by_adan", "scale_by_belief", "scale_by_novograd"]
__all__ += ["scale_by_yogi"]


class ScaleByBeliefState(NamedTuple):
    """The number of steps (int32), first moments, and second moments of the differences of gradients from them."""

    count: Counter
    mu: Updates
    nu: Updates


def scale_by_belief(
    b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-16, eps_root: Any = 1e-16, *, nesterov: bool = False
) -> GradientTransformation:
    """The update of `adabelief`, without the learning rate (Zhuang et al., 2020)."""

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        count = safe_increment(state.count)
        corrected, debias = momentum_debiaser(b1, count, nesterov), debiaser(b2, count)

        def rule(g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
            m = decayed(b1, g, m)
            v = decayed(b2, abs_sq(g - m), v) + eps_root
            return over_root(corrected(m, g), debias(v), eps, 0), m, v

        updates, mu, nu = map_with_state(rule, updates, state.mu, state.nu)
        return updates, ScaleByBeliefState(count, mu, nu)

    return GradientTransformationExtraArgs(lambda params: ScaleByBeliefState(*init_adam_state(params)), update)


def scale_by_yogi(
    b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-3, eps_root: Any = 0.0, initial_accumulator_value: Any = 1e-6
) -> GradientTransformation:
    """The update of `yogi`, without the learning rate: second moments grow and shrink by a bounded amount (Zaheer et al., 2018)."""

    def init(params: Params) -> ScaleByAdamState:
        return ScaleByAdamState(count_zero(), full_like(params, initial_accumulator_value), magnitudes(params, initial_accumulator_value))

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        count = safe_increment(state.count)
        debias_mu, debias_nu = debiaser(b1, count), debiaser(b2, count)

        def rule(g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
            square = abs_sq(g)
            m, v = decayed(b1, g, m), v - (1 - b2) * vnp.sign(v - square) * square
            return over_root(debias_mu(m), debias_nu(v), eps, eps_root), m, v

        updates, mu, nu = map_with_state(rule, updates, state.mu, state.nu)
        return updates, ScaleByAdamState(count, mu, nu)

    return GradientTransformationExtraArgs(init, update)


class ScaleByAdanState(NamedTuple):
    """Moments of gradients (m), of their differences (v) and of squares (n), the last gradient (g), the number of steps (t, int32)."""

    m: Updates
    v: Updates
    n: Updates
    g: Updates
    t: Array


def scale_by_adan(b1: Any = 0.98, b2: Any = 0.92, b3: Any = 0.99, eps: Any = 1e-8, eps_root: Any = 0.0) -> GradientTransformation:
    """The update of `adan`, without the learning rate (Xie et al., 2022)."""

    def init(params: Params) -> ScaleByAdanState:
        return ScaleByAdanState(zeros_like(params), zeros_like(params), magnitudes(params), zeros_like(params), count_zero())

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        t = safe_increment(state.t)
        debias_m, debias_v, debias_n = debiaser(b1, t), debiaser(b2, t), debiaser(b3, t)

        def rule(g: Array, m: Array, v: Array, n: Array, last: Array) -> tuple[Array, ...]:
            change = vnp.where(state.t == 0, vnp.zeros_like(g), g - last)
            m, v = decayed(b1, g, m), decayed(b2, change, v)
            n = decayed(b3, abs_sq(g + (1 - b2) * change), n)
            return over_root(debias_m(m) + (1 - b2) * debias_v(v), debias_n(n), eps, eps_root), m, v, n, g

        updates, m, v, n, g = map_with_state(rule, updates, state.m, state.v, state.n, state.g)
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
    """The update of `novograd`, without the learning rate: gradients divided by their layers' norms (Ginsburg et al., 2019).

    Needs the parameters.
    """

    def init(params: Params) -> ScaleByNovogradState:
        nu = tree.map(lambda p: vnp.zeros((), dtypes.real_dtype(dtypes.accumulator(as_value(p).dtype))), params)
        return ScaleByNovogradState(count_zero(), zeros_like(params, mu_dtype), nu)

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
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

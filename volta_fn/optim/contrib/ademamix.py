"""AdEMAMix: Adam with a second, much slower moving average of gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.optim.base import Counter, GradientTransformation, GradientTransformationExtraArgs, MaskOrFn, ScalarOrSchedule, Updates
from volta_fn.optim.contrib.common import rate_at
from volta_fn.optim.numerics import abs_sq, debiaser, decayed, safe_increment
from volta_fn.optim.transforms.scale_by_adam import over_root
from volta_fn.optim.transforms.scaling import scale_by_learning_rate
from volta_fn.optim.transforms.weight_decay_and_noise import add_decayed_weights
from volta_fn.optim.tree_rules import count_zero, magnitudes, map_with_state, zeros_like
from volta_fn.optim.wrappers.chain import chain

__all__ = ["ScaleByAdemamixState", "ScaleBySimplifiedAdEMAMixState", "ademamix", "scale_by_ademamix", "scale_by_simplified_ademamix"]
__all__ += ["simplified_ademamix"]


class ScaleByAdemamixState(NamedTuple):
    """Two step counters (int32), the fast and slow averages, and second moments."""

    count: Counter
    count_m2: Array
    m1: Updates
    m2: Updates
    nu: Updates


def scale_by_ademamix(
    b1: Any = 0.9,
    b2: Any = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 6.0,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
) -> GradientTransformation:
    """Scale updates as `ademamix` does, without the learning rate."""

    def init(params: Any) -> ScaleByAdemamixState:
        averages = zeros_like(params, mu_dtype), zeros_like(params, mu_dtype)
        return ScaleByAdemamixState(count_zero(), count_zero(), *averages, magnitudes(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        slow_decay, share = rate_at(b3, state.count_m2, updates), rate_at(alpha, state.count_m2, updates)
        count, count_m2 = safe_increment(state.count), safe_increment(state.count_m2)
        debias_m, debias_v = debiaser(b1, count), debiaser(b2, count)

        def rule(g: Array, fast: Array, slow: Array, v: Array) -> tuple[Array, ...]:
            fast, slow, v = decayed(b1, g, fast), decayed(slow_decay, g, slow), decayed(b2, abs_sq(g), v)
            return over_root(debias_m(fast) + share * slow, debias_v(v), eps, eps_root), fast, slow, v

        updates, m1, m2, nu = map_with_state(rule, updates, state.m1, state.m2, state.nu)
        return updates, ScaleByAdemamixState(count, count_m2, m1, m2, nu)

    return GradientTransformationExtraArgs(init, update)


def ademamix(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 5.0,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    weight_decay: Any = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformation:
    """Create AdEMAMix (Pagliardini et al., 2024).

    Args:
        learning_rate: a number, a scalar array or a schedule.
        b1: the decay of the fast average of gradients.
        b2: the decay of the average of squares.
        b3: the decay of the slow average, or a schedule.
        alpha: how much the slow average counts, or a schedule.
        eps, eps_root: added to the divisor, and under its root.
        mu_dtype: the dtype of the averages of gradients; by default that of the parameters.
        weight_decay, mask: as in `adamw`.

    >>> optimizer = optim.contrib.ademamix(0.1)
    >>> w = vnp.ones(2)
    >>> optimizer.update(vnp.array([0.5, -2.0]), optimizer.init(w), w)[0].round(3)
    Array([-0.1,  0.1], dtype=float32)
    """
    scaled = scale_by_ademamix(b1, b2, b3, alpha, eps, eps_root, mu_dtype)
    return chain(scaled, add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


class ScaleBySimplifiedAdEMAMixState(NamedTuple):
    """The number of steps (int32), decaying sums of gradients, averages of squares."""

    t: Array
    m: Updates
    n: Updates


def scale_by_simplified_ademamix(
    b1: Any = 0.99, b2: Any = 0.95, alpha: ScalarOrSchedule = 0.0, eps: Any = 1e-8, eps_root: Any = 0.0
) -> GradientTransformation:
    """Scale updates as `simplified_ademamix` does, without the learning rate."""

    def init(params: Any) -> ScaleBySimplifiedAdEMAMixState:
        return ScaleBySimplifiedAdEMAMixState(count_zero(), zeros_like(params), magnitudes(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        share, t = rate_at(alpha, state.t, updates), safe_increment(state.t)
        debias = debiaser(b2, t)

        def rule(g: Array, m: Array, n: Array) -> tuple[Array, ...]:
            m, n = g + b1 * m, decayed(b2, abs_sq(g), n)
            return (m + share * g) / (vnp.sqrt(debias(n) + eps_root) + eps), m, n

        updates, m, n = map_with_state(rule, updates, state.m, state.n)
        return updates, ScaleBySimplifiedAdEMAMixState(t, m, n)

    return GradientTransformationExtraArgs(init, update)


def simplified_ademamix(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.99,
    b2: Any = 0.95,
    alpha: ScalarOrSchedule = 0.0,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    weight_decay: Any = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformation:
    """Create the simplified AdEMAMix (Morwani et al., 2025).

    Gradients are summed, not averaged, so the learning rate is smaller than Adam's; `alpha` is
    what the current gradient counts in addition. Other arguments as for `ademamix`.

    >>> optimizer = optim.contrib.simplified_ademamix(0.1)
    >>> w = vnp.ones(2)
    >>> optimizer.update(vnp.array([0.5, -2.0]), optimizer.init(w), w)[0].round(3)
    Array([-0.1,  0.1], dtype=float32)
    """
    scaled = scale_by_simplified_ademamix(b1, b2, alpha, eps, eps_root)
    return chain(scaled, add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))

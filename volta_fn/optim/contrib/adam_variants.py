"""Adam with other moments: ACProp, AdEMAMix, ADOPT, MADGRAD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    Params,
    ScalarOrSchedule,
    Updates,
    counting_rule,
    require_params,
)
from volta_fn.optim.contrib.learning_rate_free import copied, rate_at
from volta_fn.optim.numerics import (
    Rule,
    abs_sq,
    count_zero,
    debiaser,
    decayed,
    factor,
    magnitudes,
    map_with_state,
    safe_increment,
    zeros_like,
)
from volta_fn.optim.transforms.momentum import add_decayed_weights
from volta_fn.optim.transforms.scale_by_adam import ScaleByAdamState, ScaleByBeliefState, over_root, zero_moments
from volta_fn.optim.transforms.scaling import scale_by_learning_rate
from volta_fn.optim.wrappers.composition import chain

__all__ = [
    "MadgradState", "ScaleByAdemamixState", "ScaleBySimplifiedAdEMAMixState", "acprop", "ademamix", "adopt", "madgrad", "scale_by_acprop",
    "scale_by_ademamix", "scale_by_adopt", "scale_by_madgrad", "scale_by_simplified_ademamix", "simplified_ademamix",
]  # fmt: skip


# ACProp: Adam's direction over the deviation known before the step.


def scale_by_acprop(b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-16, eps_root: Any = 1e-16) -> GradientTransformation:
    """Scale updates as `acprop` does, without the learning rate."""

    def rule_at(count: Array) -> Rule:
        first, debias = count == 1, debiaser(b2, vnp.maximum(count - 1, 1))

        def rule(g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
            before = vnp.where(first, 1, debias(v))
            v = decayed(b2, abs_sq(g - m), v) + eps_root
            return g / (vnp.sqrt(before) + eps), decayed(b1, g, m), v

        return rule

    return counting_rule(ScaleByBeliefState, zero_moments, rule_at)


def acprop(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-16,
    eps_root: Any = 1e-16,
    weight_decay: Any = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformation:
    """Create ACProp (Zhuang et al., 2021).

    Gradients are divided by the root of their variance about the moving average, as in `adabelief`, but by that of the previous steps.

    >>> optimizer = optim.contrib.acprop(0.5)
    >>> w = vnp.ones(2)
    >>> optimizer.update(vnp.array([0.5, -2.0]), optimizer.init(w), w)[0]
    Array([-0.25,  1.  ], dtype=float32)
    """
    return chain(scale_by_acprop(b1, b2, eps, eps_root), add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


# AdEMAMix: Adam with a second, much slower moving average of gradients.


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


# ADOPT: Adam whose second moment excludes the current gradient.


def fourth_root(count: Any) -> Any:
    """Return count^(1/4), the limit of normalised gradients after `count` steps."""
    return count**0.25


def scale_by_adopt(
    b1: Any = 0.9,
    b2: Any = 0.9999,
    eps: Any = 1e-6,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Any], Any] = fourth_root,
) -> GradientTransformation:
    """Scale updates as `adopt` does, without the learning rate."""

    def rule_at(count: Array) -> Rule:
        first = count == 1

        def rule(g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
            normal = g / vnp.maximum(vnp.sqrt(v), eps)
            if use_clipping:
                limit = clip_value_fn((count - 1).astype(v.dtype))
                normal = vnp.clip(normal, -limit, limit)
            m = vnp.where(first, m, decayed(b1, normal, m))
            step = vnp.where(first, m, decayed(b1, normal, m)) if nesterov else m
            return step, m, vnp.where(first, abs_sq(g), decayed(b2, abs_sq(g), v))

        return rule

    return counting_rule(ScaleByAdamState, lambda params: zero_moments(params, mu_dtype), rule_at)


def adopt(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.9999,
    eps: Any = 1e-6,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Any], Any] = fourth_root,
) -> GradientTransformation:
    """Create ADOPT (Taniguchi et al., 2024), which converges with any `b2`.

    Gradients are divided by the root of the second moment of previous steps, clipped, and then averaged. The first step only measures, and
    moves nothing.

    Args:
        learning_rate: a number, a scalar array or a schedule.
        b1, b2: the decays of the averages of normalised gradients and of squares.
        eps: the least divisor.
        mu_dtype: the dtype of the first; by default that of the parameters.
        nesterov: whether to look one step ahead.
        use_clipping: whether normalised gradients are clipped.
        clip_value_fn: their limit after a number of steps.

    >>> optimizer = optim.contrib.adopt(0.1)
    >>> w = vnp.ones(2)
    >>> _, state = optimizer.update(vnp.array([0.5, -2.0]), optimizer.init(w), w)
    >>> optimizer.update(vnp.array([0.5, -2.0]), state, w)[0].round(3)
    Array([-0.01,  0.01], dtype=float32)
    """
    options: dict[str, Any] = {"nesterov": nesterov, "use_clipping": use_clipping, "clip_value_fn": clip_value_fn}
    return chain(scale_by_adopt(b1, b2, eps, mu_dtype, **options), scale_by_learning_rate(learning_rate))


# MADGRAD: momentumised, adaptive, dual averaged gradients.


class MadgradState(NamedTuple):
    """The step (int32), sums of squares and of gradients, initial parameters."""

    count: Counter
    grad_sum_sq: Updates
    s: Updates
    x0: Params


def scale_by_madgrad(learning_rate: ScalarOrSchedule, momentum: Any = 0.9, eps: Any = 1e-6) -> GradientTransformation:
    """Replace gradients by the updates of `madgrad`, without weight decay."""

    def init(params: Any) -> MadgradState:
        return MadgradState(count_zero(), magnitudes(params), zeros_like(params), copied(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        count = safe_increment(state.count)
        rate = rate_at(learning_rate, state.count, updates) + eps

        def rule(g: Array, squares: Array, total: Array, p: Array, start: Array) -> tuple[Array, ...]:
            weight = factor(rate, g) * vnp.sqrt(count.astype(squares.dtype))
            squares, total = squares + weight * abs_sq(g), total + weight * g
            target = start - total / (vnp.cbrt(squares) + eps)
            return (1 - momentum) * (target - p), squares, total

        operands = (require_params("madgrad", params), state.x0)
        updates, squares, total = map_with_state(rule, updates, state.grad_sum_sq, state.s, operands=operands)
        return updates, MadgradState(count, squares, total, state.x0)

    return GradientTransformationExtraArgs(init, update)


def madgrad(learning_rate: ScalarOrSchedule, momentum: Any = 0.9, weight_decay: Any = 0.0, eps: Any = 1e-6) -> GradientTransformation:
    """Create MADGRAD (Defazio and Jelassi, 2022).

    Parameters move the fraction 1 - `momentum` of the way to initial parameters minus the weighted sum of gradients over the cube root
    of that of their squares.

    Args:
        learning_rate: a number, a scalar array or a schedule.
        momentum: how much parameters stay where they are.
        weight_decay: added to gradients, times the parameters.
        eps: added to the learning rate and to the divisor.

    >>> optimizer = optim.contrib.madgrad(0.001)
    >>> w = vnp.ones(2)
    >>> optimizer.update(vnp.array([0.5, -2.0]), optimizer.init(w), w)[0].round(4)
    Array([-0.0008,  0.0013], dtype=float32)
    """
    return chain(add_decayed_weights(weight_decay), scale_by_madgrad(learning_rate, momentum, eps))

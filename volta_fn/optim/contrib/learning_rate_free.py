"""Adam that estimates its learning rate from the distance to the solution.

The estimate of the distance only grows: it is the largest of a weighted sum of inner products over a weighted sum of gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.optim.base import (
    Counter,
    GradientTransformationExtraArgs,
    Params,
    ScalarOrSchedule,
    Updates,
    require_params,
)
from volta_fn.optim.contrib.common import copied, next_states, rate_at, scalar_for, sum_of_magnitudes
from volta_fn.optim.numerics import abs_sq, decayed, real_dot, safe_increment
from volta_fn.optim.tree_rules import count_zero, magnitudes, map_leaves, zeros_like

__all__ = ["DAdaptAdamWState", "ProdigyState", "dadapt_adamw", "prodigy"]


class DAdaptAdamWState(NamedTuple):
    """Moments, a sum of gradients, the estimated rate, its numerator, the step."""

    exp_avg: Updates
    exp_avg_sq: Updates
    grad_sum: Updates
    estim_lr: Array
    numerator_weighted: Array
    count: Counter


def _corrected(estimate: Array, rate: Any, betas: tuple[Any, Any], count: Array) -> Array:
    """Return the learning rate with Adam's bias correction."""
    steps = count.astype(estimate.dtype)
    return estimate * rate * vnp.sqrt(1 - betas[1] ** steps) / (1 - betas[0] ** steps)


def _grown(estimate: Array, numerator: Array, denominator: Array) -> Array:
    """Return the larger of an estimate and a quotient, which counts only if it exists."""
    exists = denominator > 0
    return vnp.maximum(estimate, vnp.where(exists, numerator / vnp.where(exists, denominator, 1), 0))


def dadapt_adamw(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[Any, Any] = (0.9, 0.999),
    eps: Any = 1e-8,
    estim_lr0: Any = 1e-6,
    weight_decay: Any = 0.0,
) -> GradientTransformationExtraArgs:
    """Create AdamW with D-adaptation (Defazio and Mishchenko, 2023).

    Args:
        learning_rate: a factor of the estimated rate, or a schedule; 1 is meant.
        betas: the decays of the averages of gradients and of squares.
        eps: added to the divisor.
        estim_lr0: the first estimate, smaller than the true one.
        weight_decay: the rate of decay, without a mask.

    >>> optimizer = optim.contrib.dadapt_adamw()
    >>> w = vnp.ones(2)
    >>> updates, state = optimizer.update(vnp.array([0.5, -2.0]), optimizer.init(w), w)
    >>> bool(state.estim_lr >= 1e-6)
    True
    """
    b1, b2 = betas
    root = b2**0.5

    def init(params: Any) -> DAdaptAdamWState:
        averages = zeros_like(params), magnitudes(params), zeros_like(params)
        return DAdaptAdamWState(*averages, scalar_for(params, estim_lr0), scalar_for(params), count_zero())

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        given, count = require_params("dadapt_adamw", params), safe_increment(state.count)
        rate = _corrected(state.estim_lr, rate_at(learning_rate, state.count, updates), betas, count)
        directions = map_leaves(lambda g, total, v: total / (vnp.sqrt(v) + eps), updates, state.grad_sum, state.exp_avg_sq)

        def averages(g: Array, m: Array, v: Array, total: Array) -> tuple[Array, ...]:
            return decayed(b1, rate * g, m), decayed(b2, abs_sq(g), v), decayed(root, rate * g, total)

        exp_avg, exp_avg_sq, grad_sum = next_states(averages, updates, *state[:3])
        numerator = decayed(root, rate * real_dot(updates, directions), state.numerator_weighted)
        estimate = _grown(state.estim_lr, numerator, (1 - root) * sum_of_magnitudes(grad_sum))

        def step(g: Array, m: Array, v: Array, p: Array) -> Array:
            return -weight_decay * rate * p - m / (vnp.sqrt(v) + eps)

        updates = map_leaves(step, updates, exp_avg, exp_avg_sq, given)
        return updates, DAdaptAdamWState(exp_avg, exp_avg_sq, grad_sum, estimate, numerator, count)

    return GradientTransformationExtraArgs(init, update)


class ProdigyState(NamedTuple):
    """That of D-adaptation, with the initial parameters."""

    exp_avg: Updates
    exp_avg_sq: Updates
    grad_sum: Updates
    params0: Params
    estim_lr: Array
    numerator_weighted: Array
    count: Counter


def prodigy(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[Any, Any] = (0.9, 0.999),
    beta3: Any = None,
    eps: Any = 1e-8,
    estim_lr0: Any = 1e-6,
    estim_lr_coef: Any = 1.0,
    weight_decay: Any = 0.0,
    safeguard_warmup: bool = False,
) -> GradientTransformationExtraArgs:
    """Create Prodigy (Mishchenko and Defazio, 2024), AdamW with a faster estimate.

    Args:
        learning_rate: a factor of the estimated rate, or a schedule; 1 is meant.
        betas: the decays of the averages of gradients and of squares.
        beta3: the decay of the estimate's sums; by default the root of ``betas[1]``.
        eps: added to the divisor.
        estim_lr0: the first estimate, smaller than the true one.
        estim_lr_coef: a factor of later estimates.
        weight_decay: the rate of decay, without a mask.
        safeguard_warmup: whether the denominator of the estimate ignores the learning rate, which helps with warm-up.

    >>> optimizer = optim.contrib.prodigy()
    >>> w = vnp.ones(2)
    >>> updates, state = optimizer.update(vnp.array([0.5, -2.0]), optimizer.init(w), w)
    >>> bool(state.estim_lr >= 1e-6)
    True
    """
    b1, b2 = betas
    b3 = b2**0.5 if beta3 is None else beta3

    def init(params: Any) -> ProdigyState:
        averages = zeros_like(params), magnitudes(params), zeros_like(params), copied(params)
        return ProdigyState(*averages, scalar_for(params, estim_lr0), scalar_for(params), count_zero())

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        given, count, old = require_params("prodigy", params), safe_increment(state.count), state.estim_lr
        rate = _corrected(old, rate_at(learning_rate, state.count, updates), betas, count)
        weight = (old if safeguard_warmup else rate) * old / estim_lr0

        def averages(g: Array, m: Array, v: Array, total: Array) -> tuple[Array, ...]:
            return decayed(b1, old * g, m), decayed(b2, abs_sq(old * g), v), b3 * total + weight * g

        exp_avg, exp_avg_sq, grad_sum = next_states(averages, updates, *state[:3])
        moved = map_leaves(lambda g, start, p: start - p, updates, state.params0, given)
        numerator = b3 * state.numerator_weighted + old / estim_lr0 * rate * real_dot(updates, moved)
        estimate = _grown(old, estim_lr_coef * numerator, sum_of_magnitudes(grad_sum))

        def step(g: Array, m: Array, v: Array, p: Array) -> Array:
            return -weight_decay * rate * p - rate * m / (vnp.sqrt(v) + estimate * eps)

        updates = map_leaves(step, updates, exp_avg, exp_avg_sq, given)
        return updates, ProdigyState(exp_avg, exp_avg_sq, grad_sum, state.params0, estimate, numerator, count)

    return GradientTransformationExtraArgs(init, update)

"""Momentum with step sizes from a model of the loss: MoMo and MoMo-Adam.

The loss is modelled by averages of past linearisations, cut off at a lower bound of the loss. The step goes to that model's minimum, but at
most as far as the learning rate allows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.optim.base import Counter, GradientTransformationExtraArgs, ScalarOrSchedule, Updates, require_params
from volta_fn.optim.contrib.common import next_states, rate_at, scalar_for
from volta_fn.optim.numerics import abs_sq, decayed, real_dot, safe_increment
from volta_fn.optim.tree_rules import count_zero, magnitudes, map_leaves, zeros_like

__all__ = ["MomoAdamState", "MomoState", "momo", "momo_adam"]


class MomoState(NamedTuple):
    """Averages of gradients, losses and inner products; bound; step (int32)."""

    exp_avg: Updates
    barf: Array
    gamma: Array
    lb: Array
    count: Counter


class MomoAdamState(NamedTuple):
    """That of MoMo, with second moments."""

    exp_avg: Updates
    exp_avg_sq: Updates
    barf: Array
    gamma: Array
    lb: Array
    count: Counter


class _Model(NamedTuple):
    """The model of the loss: its averages, the bias correction and the weight decay."""

    loss: Array
    gamma: Array
    inner: Array
    square: Array
    correction: Any
    decay: Any

    def step_size(self, bound: Array, largest: Any) -> Array:
        """Return the step to the model's minimum, limited."""
        gap = vnp.maximum(self.decay * (self.loss - self.correction * bound - self.gamma) + self.inner, 0)
        flat = self.square <= vnp.finfo(self.square.dtype).eps
        return vnp.minimum(largest, vnp.where(flat, 0, gap / vnp.where(flat, 1, self.square)))

    def bound_before(self, bound: Array, least: Any) -> Array:
        """Return a bound lowered to half of what the model predicts, if that is less."""
        cap = self.decay * (self.loss - self.gamma) + self.inner
        lowered = vnp.maximum(cap / (2 * self.correction * self.decay), least)
        return vnp.where(cap < self.decay * self.correction * bound, lowered, bound)

    def bound_after(self, step: Array, least: Any) -> Array:
        """Return the bound that the model predicts after the step."""
        return vnp.maximum((self.loss + self.inner - self.gamma - 0.5 * step * self.square) / self.correction, least)


def momo(
    learning_rate: ScalarOrSchedule = 1.0,
    beta: Any = 0.9,
    lower_bound: Any = 0.0,
    weight_decay: Any = 0.0,
    adapt_lower_bound: bool = False,
) -> GradientTransformationExtraArgs:
    """Create MoMo (Schaipp et al., 2023), momentum with adaptive step sizes.

    `update` needs the loss as ``value=``.

    Args:
        learning_rate: the largest step size, or a schedule of it.
        beta: the decay of averages.
        lower_bound: a number that the loss never falls below.
        weight_decay: the rate of decay, without a mask.
        adapt_lower_bound: whether to estimate a tighter bound.

    >>> optimizer = optim.contrib.momo()
    >>> w = vnp.array([3.0, 4.0])
    >>> updates, _ = optimizer.update(w, optimizer.init(w), w, value=0.5 * vnp.sum(w**2))
    >>> updates
    Array([-1.5, -2. ], dtype=float32)
    """

    def init(params: Any) -> MomoState:
        return MomoState(zeros_like(params), scalar_for(params), scalar_for(params), scalar_for(params, lower_bound), count_zero())

    def update(updates: Any, state: Any, params: Any = None, *, value: Any, **extra_args: Any) -> tuple[Any, Any]:
        given = require_params("momo", params)
        rate = rate_at(learning_rate, state.count, updates)

        def averaged(x: Array, average: Array) -> Array:
            return vnp.where(state.count == 0, x, decayed(beta, x, average))

        loss = averaged(vnp.asarray(value, state.barf.dtype), state.barf)
        gamma = averaged(real_dot(updates, given), state.gamma)
        (average,) = next_states(lambda g, m: (averaged(g, m),), updates, state.exp_avg)
        model = _Model(loss, gamma, real_dot(average, given), real_dot(average, average), 1.0, 1 + rate * weight_decay)
        bound = model.bound_before(state.lb, lower_bound) if adapt_lower_bound else state.lb
        step = model.step_size(bound, rate)
        shrink = rate * weight_decay / model.decay
        updates = map_leaves(lambda g, m, p: -shrink * p - step * m, updates, average, given)
        bound = model.bound_after(step, lower_bound) if adapt_lower_bound else state.lb
        return updates, MomoState(average, loss, gamma, bound, safe_increment(state.count))

    return GradientTransformationExtraArgs(init, update)


def momo_adam(
    learning_rate: ScalarOrSchedule = 0.01,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    lower_bound: Any = 0.0,
    weight_decay: Any = 0.0,
    adapt_lower_bound: bool = False,
) -> GradientTransformationExtraArgs:
    """Create MoMo-Adam (Schaipp et al., 2023), Adam with adaptive step sizes.

    `update` needs the loss as ``value=``. `b1`, `b2` and `eps` are those of `adam`, other arguments those of `momo`.

    >>> optimizer = optim.contrib.momo_adam(0.1)
    >>> w = vnp.array([3.0, 4.0])
    >>> updates, _ = optimizer.update(w, optimizer.init(w), w, value=0.5 * vnp.sum(w**2))
    >>> updates.round(3)
    Array([-0.1, -0.1], dtype=float32)
    """

    def init(params: Any) -> MomoAdamState:
        scalars = scalar_for(params), scalar_for(params), scalar_for(params, lower_bound)
        return MomoAdamState(zeros_like(params), magnitudes(params), *scalars, count_zero())

    def update(updates: Any, state: Any, params: Any = None, *, value: Any, **extra_args: Any) -> tuple[Any, Any]:
        given, count = require_params("momo_adam", params), safe_increment(state.count)
        rate = rate_at(learning_rate, state.count, updates)
        steps = count.astype(state.barf.dtype)
        corrections = 1 - b1**steps, 1 - b2**steps
        loss = decayed(b1, vnp.asarray(value, state.barf.dtype), state.barf)
        gamma = decayed(b1, real_dot(updates, given), state.gamma)
        average, squares = next_states(
            lambda g, m, v: (decayed(b1, g, m), decayed(b2, abs_sq(g), v)), updates, state.exp_avg, state.exp_avg_sq
        )
        direction = map_leaves(lambda g, m, v: m / (eps + vnp.sqrt(v / corrections[1])), updates, average, squares)
        square = real_dot(average, direction)
        model = _Model(loss, gamma, real_dot(average, given), square, corrections[0], 1 + rate * weight_decay)
        bound = model.bound_before(state.lb, lower_bound) if adapt_lower_bound else state.lb
        step = model.step_size(bound, rate / corrections[0])
        shrink = rate * weight_decay / model.decay
        updates = map_leaves(lambda g, d, p: -shrink * p - step * d, updates, direction, given)
        bound = model.bound_after(step, lower_bound) if adapt_lower_bound else state.lb
        return updates, MomoAdamState(average, squares, loss, gamma, bound, count)

    return GradientTransformationExtraArgs(init, update)

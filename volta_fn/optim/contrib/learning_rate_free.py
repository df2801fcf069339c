"""Optimizers that estimate their own learning rate.

These are COCOB, DoG and DoWG, D-Adaptation, Prodigy, Mechanic and MoMo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    OptState,
    Params,
    ScalarOrSchedule,
    Updates,
    identity,
    require_params,
    with_extra_args_support,
)
from volta_fn.optim.numerics import (
    abs_sq,
    cast_like,
    count_zero,
    decayed,
    full_like,
    global_norm,
    magnitudes,
    map_leaves,
    map_with_state,
    real_dot,
    safe_increment,
    scaled_by,
    steps_for,
    sum_of_squares,
    tree_cast_like,
    wide_zeros_like,
    widened,
    widest_real,
    zeros_like,
)
from volta_fn.optim.transforms.composition import chain
from volta_fn.optim.transforms.momentum import add_decayed_weights
from volta_fn.optim.transforms.scaling import scale_by_learning_rate
from volta_fn.optim.tree_utils import tree_where

__all__ = [
    "COCOBState", "DAdaptAdamWState", "DoGState", "DoWGState", "MechanicState", "MomoAdamState", "MomoState", "ProdigyState", "cocob",
    "dadapt_adamw", "dog", "dowg", "mechanize", "momo", "momo_adam", "prodigy", "scale_by_cocob",
]  # fmt: skip


# Arguments and distances that these optimizers share.


def rate_at(learning_rate: ScalarOrSchedule, count: Array, updates: Updates) -> Any:
    """Return a learning rate after `count` steps."""
    return learning_rate(steps_for(count, updates)) if callable(learning_rate) else learning_rate


def scalar_for(params: Params, value: Any = 0.0) -> Array:
    """Return a number as a scalar of the widest real dtype of the parameters."""
    return vnp.asarray(value, widest_real(params))


def copied(params: Params) -> Params:
    """Return the parameters as arrays, to be kept in a state."""
    return tree.map(as_value, params)


def starting_points(params: Params) -> Params:
    """Return the parameters, in float32 at least, as they were; see `start_after`."""
    return tree.map(lambda p: widened(as_value(p)), params)


def start_after(start: Params, params: Params, exact: Updates, updates: Updates) -> Params:
    """Return where parameters began, less what is lost as updates are rounded.

    Parameters of 16 bits may not move by a small update at all. An estimate that grows with the distance from the start would never grow:
    it is the distance that the exact updates say.
    """

    def moved(origin: Array, p: Any, step: Array, update: Array) -> Array:
        value = as_value(p)
        wide = widened(value)
        return origin if wide is value else origin + (widened(cast_like(wide + update, value)) - wide - step)

    return tree.map(moved, start, params, exact, updates)


def next_states(rule: Callable[..., tuple[Array, ...]], updates: Updates, *states: Any) -> tuple[Any, ...]:
    """Return the trees of ``rule(update, *states)``, the next states, in their dtypes."""
    return map_with_state(lambda g, *old: (g, *rule(g, *old)), updates, *states)[1:]


def sum_of_magnitudes(values: Any) -> Array:
    """Return the sum of the absolute values of all leaves, in float32 at least."""
    total = scalar_for(values)
    for x in tree.leaves(values):
        total = total + vnp.sum(vnp.abs(widened(as_value(x))))
    return total


# COCOB: learning without learning rates, by betting on coins.


class COCOBState(NamedTuple):
    """Initial parameters; sums, maxima and sums of magnitudes of gradients; gains."""

    init_particles: Updates
    cumulative_gradients: Updates
    scale: Updates
    subgradients: Updates
    reward: Updates


def scale_by_cocob(alpha: Any = 100.0, eps: Any = 1e-8) -> GradientTransformation:
    """Replace updates as `cocob` does, without weight decay."""

    def init(params: Any) -> COCOBState:
        zeros = [zeros_like(params) for _ in range(3)]
        return COCOBState(copied(params), zeros[0], full_like(params, eps), zeros[1], zeros[2])

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        def rule(g: Array, total: Array, largest: Array, size: Array, reward: Array, p: Array, start: Array) -> tuple[Array, ...]:
            largest, size = vnp.maximum(largest, vnp.abs(g)), size + vnp.abs(g)
            reward, total = vnp.maximum(reward - g * (p - start), 0), total - g
            bet = total / (largest * vnp.maximum(size + largest, alpha * largest)) * (largest + reward)
            return start + bet - p, total, largest, size, reward

        operands = (require_params("cocob", params), state.init_particles)
        updates, *states = map_with_state(rule, updates, *state[1:], operands=operands)
        return updates, COCOBState(state.init_particles, *states)

    return GradientTransformationExtraArgs(init, update)


def cocob(
    learning_rate: ScalarOrSchedule = 1.0, alpha: Any = 100.0, eps: Any = 1e-8, weight_decay: Any = 0.0, mask: MaskOrFn | None = None
) -> GradientTransformation:
    """Create COCOB-Backprop (Orabona and Tommasi, 2017), without a learning rate.

    Each parameter moves from its initial value by a fraction of the gains so far.

    Args:
        learning_rate: multiplies the gradients; 1 is meant.
        alpha: limits the fraction in the first steps.
        eps: the initial estimate of the largest gradient.
        weight_decay, mask: as in `adamw`, added to gradients.

    >>> optimizer = optim.contrib.cocob()
    >>> w = jnp.ones(2)
    >>> optimizer.update(jnp.array([0.5, -2.0]), optimizer.init(w), w)[0].round(3)
    Array([-0.01,  0.01], dtype=float32)
    """
    rate = scale_by_learning_rate(learning_rate, flip_sign=False)
    return chain(add_decayed_weights(weight_decay, mask), rate, scale_by_cocob(alpha, eps))


# Step sizes from the distance moved and the gradients seen: DoG and DoWG.

#: A kind of first step, and its size.
InitStep = tuple[Literal["distance", "learning_rate", "heuristic"], Any]


class DoGState(NamedTuple):
    """Whether no step was taken; initial parameters; the largest distance; Σ |g|²."""

    is_init_step: Array
    init_params: Params
    max_dist: Array
    sum_sq_norm_grads: Array


def _distance(params: Params, start: Params) -> Params:
    return map_leaves(lambda p, p0: p - p0, params, start)


def scale_by_dog(init_step: InitStep, eps: Any = 1e-8) -> GradientTransformation:
    """Scale updates as `dog` does, without the learning rate."""
    kind, size = init_step
    if kind not in ("distance", "learning_rate", "heuristic"):
        raise ArgumentError(f"dog: init_step is ('distance', 'learning_rate' or 'heuristic', a number), got {init_step!r}")

    def init(params: Any) -> DoGState:
        first = {"distance": size, "learning_rate": 0.0}.get(kind, size * (1 + global_norm(params)))
        return DoGState(vnp.array(True), copied(params), scalar_for(params, first), scalar_for(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        moved = _distance(require_params("dog", params), state.init_params)
        farthest = vnp.maximum(state.max_dist, global_norm(moved))
        total = state.sum_sq_norm_grads + sum_of_squares(updates)
        rate = farthest / vnp.sqrt(total + eps)
        if kind == "learning_rate":
            rate = vnp.where(state.is_init_step, size, rate)
        return scaled_by(rate, updates), DoGState(vnp.array(False), state.init_params, farthest, total)

    return GradientTransformationExtraArgs(init, update)


def _decayed(weight_decay: Any, mask: MaskOrFn | None) -> GradientTransformation:
    return identity() if weight_decay is None else add_decayed_weights(weight_decay, mask)


def dog(
    learning_rate: ScalarOrSchedule = 1.0,
    init_step: InitStep = ("heuristic", 1e-6),
    eps: Any = 1e-8,
    weight_decay: Any = None,
    mask: MaskOrFn | None = None,
) -> GradientTransformation:
    """Create DoG, distance over gradients (Ivgi et al., 2023).

    The step size is the largest distance from the initial parameters so far over the root of the sum of squared gradients. The parameters
    to use are a moving average, see `incremental_update`. Parameters of 16 bits do not move by a millionth of their size: there the first
    step needs a greater distance, such as ``("heuristic", 1e-2)``.

    Args:
        learning_rate: a factor; 1 is meant.
        init_step: ("distance", d): the first step assumes a distance of d; ("heuristic", a): of a (1 + |params|); ("learning_rate", r): it
            has the step size r.
        eps: added to the sum of squares.
        weight_decay, mask: as in `adamw`, added to gradients; None for none.

    >>> optimizer = optim.contrib.dog(init_step=("distance", 0.1))
    >>> w = jnp.zeros(2)
    >>> optimizer.update(jnp.array([3.0, 4.0]), optimizer.init(w), w)[0].round(3)
    Array([-0.06, -0.08], dtype=float32)

    Raises `ArgumentError` for another kind of first step.
    """
    return chain(_decayed(weight_decay, mask), scale_by_dog(init_step, eps), scale_by_learning_rate(learning_rate))


class DoWGState(NamedTuple):
    """Initial parameters, the weighted sum of |g|², and the largest squared distance."""

    init_params: Params
    weighted_sq_norm_grads: Array
    estim_sq_dist: Array


def scale_by_dowg(init_estim_sq_dist: Any = None, eps: Any = 1e-4) -> GradientTransformation:
    """Scale updates as `dowg` does, without the learning rate."""
    first = eps if init_estim_sq_dist is None else init_estim_sq_dist

    def init(params: Any) -> DoWGState:
        return DoWGState(copied(params), scalar_for(params), scalar_for(params, first))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        moved = _distance(require_params("dowg", params), state.init_params)
        square = vnp.maximum(state.estim_sq_dist, sum_of_squares(moved))
        total = state.weighted_sq_norm_grads + square * sum_of_squares(updates)
        return scaled_by(square / (vnp.sqrt(total) + eps), updates), DoWGState(state.init_params, total, square)

    return GradientTransformationExtraArgs(init, update)


def dowg(
    learning_rate: ScalarOrSchedule = 1.0,
    init_estim_sq_dist: Any = None,
    eps: Any = 1e-4,
    weight_decay: Any = None,
    mask: MaskOrFn | None = None,
) -> GradientTransformation:
    """Create DoWG, distance over weighted gradients (Khaled et al., 2023).

    It is `dog` with squared gradients weighted by the squared distances, and needs a greater distance for parameters of 16 bits as well.

    Args:
        learning_rate: a factor; 1 is meant.
        init_estim_sq_dist: the squared distance that the first step assumes; by default `eps`.
        eps: added to the divisor.
        weight_decay, mask: as in `adamw`, added to gradients; None for none.

    >>> optimizer = optim.contrib.dowg()
    >>> w = jnp.zeros(2)
    >>> optimizer.update(jnp.array([3.0, 4.0]), optimizer.init(w), w)[0].round(4)
    Array([-0.006, -0.008], dtype=float32)
    """
    return chain(_decayed(weight_decay, mask), scale_by_dowg(init_estim_sq_dist, eps), scale_by_learning_rate(learning_rate))


# Adam that estimates its learning rate from the distance to the solution.
#
# The estimate of the distance only grows: it is the largest of a weighted sum of inner products over a weighted sum of gradients.


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


def _max_with_quotient(estimate: Array, numerator: Array, denominator: Array) -> Array:
    """Return the maximum of an estimate and a quotient of positive denominator."""
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
    >>> w = jnp.ones(2)
    >>> updates, state = optimizer.update(jnp.array([0.5, -2.0]), optimizer.init(w), w)
    >>> bool(state.estim_lr >= 1e-6)
    True
    """
    b1, b2 = betas
    root = b2**0.5

    def init(params: Any) -> DAdaptAdamWState:
        averages = wide_zeros_like(params), magnitudes(params), wide_zeros_like(params)
        return DAdaptAdamWState(*averages, scalar_for(params, estim_lr0), scalar_for(params), count_zero())

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        params, count = require_params("dadapt_adamw", params), safe_increment(state.count)
        rate = _corrected(state.estim_lr, rate_at(learning_rate, state.count, updates), betas, count)
        directions = map_leaves(lambda total, v: total / (vnp.sqrt(v) + eps), state.grad_sum, state.exp_avg_sq)

        def averages(g: Array, m: Array, v: Array, total: Array) -> tuple[Array, ...]:
            return decayed(b1, rate * g, m), decayed(b2, abs_sq(g), v), decayed(root, rate * g, total)

        exp_avg, exp_avg_sq, grad_sum = next_states(averages, updates, *state[:3])
        numerator = decayed(root, rate * real_dot(updates, directions), state.numerator_weighted)
        estimate = _max_with_quotient(state.estim_lr, numerator, (1 - root) * sum_of_magnitudes(grad_sum))

        def step(g: Array, m: Array, v: Array, p: Array) -> Array:
            return -weight_decay * rate * p - m / (vnp.sqrt(v) + eps)

        updates = map_leaves(step, updates, exp_avg, exp_avg_sq, params)
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

    The estimate grows as parameters move, or would if they had more than 16 bits.

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
    >>> w = jnp.ones(2)
    >>> updates, state = optimizer.update(jnp.array([0.5, -2.0]), optimizer.init(w), w)
    >>> bool(state.estim_lr >= 1e-6)
    True
    """
    b1, b2 = betas
    b3 = b2**0.5 if beta3 is None else beta3

    def init(params: Any) -> ProdigyState:
        averages = wide_zeros_like(params), magnitudes(params), wide_zeros_like(params), starting_points(params)
        return ProdigyState(*averages, scalar_for(params, estim_lr0), scalar_for(params), count_zero())

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        params, count, old = require_params("prodigy", params), safe_increment(state.count), state.estim_lr
        rate = _corrected(old, rate_at(learning_rate, state.count, updates), betas, count)
        weight = (old if safeguard_warmup else rate) * old / estim_lr0

        def averages(g: Array, m: Array, v: Array, total: Array) -> tuple[Array, ...]:
            return decayed(b1, old * g, m), decayed(b2, abs_sq(old * g), v), b3 * total + weight * g

        exp_avg, exp_avg_sq, grad_sum = next_states(averages, updates, *state[:3])
        moved = map_leaves(lambda start, p: start - p, state.params0, params)
        numerator = b3 * state.numerator_weighted + old / estim_lr0 * rate * real_dot(updates, moved)
        estimate = _max_with_quotient(old, estim_lr_coef * numerator, sum_of_magnitudes(grad_sum))

        def step(g: Array, m: Array, v: Array, p: Array) -> Array:
            return -weight_decay * rate * p - rate * m / (vnp.sqrt(v) + estimate * eps)

        exact = map_leaves(step, starting_points(updates), exp_avg, exp_avg_sq, params)
        updates = tree_cast_like(exact, updates)
        start = start_after(state.params0, params, exact, updates)
        return updates, ProdigyState(exp_avg, exp_avg_sq, grad_sum, start, estimate, numerator, count)

    return GradientTransformationExtraArgs(init, update)


# Mechanic: a wrapper that tunes the learning rate of any optimizer.


class MechanicState(NamedTuple):
    """The inner state, the step (int32), what the tuners keep, and initial parameters."""

    base_optimizer_state: OptState
    count: Counter
    r: Array
    m: Array
    v: Array
    s: Array
    x0: Params


def mechanize(
    base_optimizer: GradientTransformation, weight_decay: Any = 0.01, eps: Any = 1e-8, s_init: Any = 1e-6, num_betas: int = 6
) -> GradientTransformationExtraArgs:
    """Scale an optimizer's updates by a learned factor (Cutkosky et al., 2023).

    Args:
        base_optimizer: its learning rate sets a schedule, and its scale hardly matters.
        weight_decay: relative to the norms of gradients and parameters.
        eps: keeps divisors from 0.
        s_init: the first factor, smaller than the true one.
        num_betas: the number of tuners, whose decays are 0.9, 0.99, …, and whose factors are added.

    >>> optimizer = optim.contrib.mechanize(optim.sgd(1.0))
    >>> w = jnp.ones(2)
    >>> state = optimizer.init(w)
    >>> for _ in range(30):
    ...     updates, state = optimizer.update(2 * w, state, w)
    ...     w = optim.apply_updates(w, updates)
    >>> bool(jnp.sum(state.s) > 1e-5)
    True
    """
    base = with_extra_args_support(base_optimizer)

    def init(params: Any) -> MechanicState:
        zeros = vnp.zeros(num_betas, widest_real(params))
        return MechanicState(base.init(params), count_zero(), zeros, zeros, zeros, zeros + s_init, starting_points(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        params = require_params("mechanize", params)
        base_updates, base_state = base.update(updates, state.base_optimizer_state, params, **extra_args)
        start = tree_where(state.count == 0, starting_points(params), state.x0)
        factor = vnp.sum(state.s)
        moved = map_leaves(lambda p0, p: (p0 - p) / (factor + eps), start, params)
        decay = weight_decay * factor * global_norm(updates) / (global_norm(params) + eps)
        slope = real_dot(map_leaves(lambda g, p: g + decay * p, updates, params), moved)
        count = state.s.size
        betas = vnp.asarray([1 - 0.1**i for i in range(1, count + 1)], state.s.dtype)
        limited = vnp.clip(slope, -state.m, state.m)
        m = vnp.maximum(betas * state.m, vnp.abs(slope) + eps)
        v = betas**2 * state.v + slope**2
        r = betas * state.r + limited * state.s
        wealth = s_init / count * m + vnp.maximum(r, 0)
        s = wealth / (vnp.sqrt(v) + eps)
        total = vnp.sum(s)
        exact = map_leaves(lambda d, u, p, p0: p0 - total * (d - u) - p, moved, base_updates, params, start)
        updates = tree_cast_like(exact, base_updates)
        start = start_after(start, params, exact, updates)
        return updates, MechanicState(base_state, safe_increment(state.count), r, m, v, s, start)

    return GradientTransformationExtraArgs(init, update)


# Momentum with step sizes from a model of the loss: MoMo and MoMo-Adam.
#
# The loss is modelled by averages of past linearisations, cut off at a lower bound of the loss. The step goes to that model's minimum,
# but at most as far as the learning rate allows.


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
    learning_rate: ScalarOrSchedule = 1.0, beta: Any = 0.9, lower_bound: Any = 0.0, weight_decay: Any = 0.0, adapt_lower_bound: bool = False
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
    >>> w = jnp.array([3.0, 4.0])
    >>> updates, _ = optimizer.update(w, optimizer.init(w), w, value=0.5 * jnp.sum(w**2))
    >>> updates
    Array([-1.5, -2. ], dtype=float32)
    """

    def init(params: Any) -> MomoState:
        return MomoState(zeros_like(params), scalar_for(params), scalar_for(params), scalar_for(params, lower_bound), count_zero())

    def update(updates: Any, state: Any, params: Any = None, *, value: Any, **extra_args: Any) -> tuple[Any, Any]:
        params = require_params("momo", params)
        rate = rate_at(learning_rate, state.count, updates)

        def averaged(x: Array, average: Array) -> Array:
            return vnp.where(state.count == 0, x, decayed(beta, x, average))

        loss = averaged(vnp.asarray(value, state.barf.dtype), state.barf)
        gamma = averaged(real_dot(updates, params), state.gamma)
        (average,) = next_states(lambda g, m: (averaged(g, m),), updates, state.exp_avg)
        model = _Model(loss, gamma, real_dot(average, params), real_dot(average, average), 1.0, 1 + rate * weight_decay)
        bound = model.bound_before(state.lb, lower_bound) if adapt_lower_bound else state.lb
        step = model.step_size(bound, rate)
        shrink = rate * weight_decay / model.decay
        updates = map_leaves(lambda g, m, p: -shrink * p - step * m, updates, average, params)
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
    >>> w = jnp.array([3.0, 4.0])
    >>> updates, _ = optimizer.update(w, optimizer.init(w), w, value=0.5 * jnp.sum(w**2))
    >>> updates.round(3)
    Array([-0.1, -0.1], dtype=float32)
    """

    def init(params: Any) -> MomoAdamState:
        scalars = scalar_for(params), scalar_for(params), scalar_for(params, lower_bound)
        return MomoAdamState(zeros_like(params), magnitudes(params), *scalars, count_zero())

    def update(updates: Any, state: Any, params: Any = None, *, value: Any, **extra_args: Any) -> tuple[Any, Any]:
        params, count = require_params("momo_adam", params), safe_increment(state.count)
        rate = rate_at(learning_rate, state.count, updates)
        steps = count.astype(state.barf.dtype)
        corrections = 1 - b1**steps, 1 - b2**steps
        loss = decayed(b1, vnp.asarray(value, state.barf.dtype), state.barf)
        gamma = decayed(b1, real_dot(updates, params), state.gamma)
        average, squares = next_states(
            lambda g, m, v: (decayed(b1, g, m), decayed(b2, abs_sq(g), v)), updates, state.exp_avg, state.exp_avg_sq
        )
        direction = map_leaves(lambda g, m, v: m / (eps + vnp.sqrt(v / corrections[1])), updates, average, squares)
        square = real_dot(average, direction)
        model = _Model(loss, gamma, real_dot(average, params), square, corrections[0], 1 + rate * weight_decay)
        bound = model.bound_before(state.lb, lower_bound) if adapt_lower_bound else state.lb
        step = model.step_size(bound, rate / corrections[0])
        shrink = rate * weight_decay / model.decay
        updates = map_leaves(lambda g, d, p: -shrink * p - step * d, updates, direction, params)
        bound = model.bound_after(step, lower_bound) if adapt_lower_bound else state.lb
        return updates, MomoAdamState(average, squares, loss, gamma, bound, count)

    return GradientTransformationExtraArgs(init, update)

"""Wrappers from the literature: SAM, schedule-free averages, complex parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import (
    EmptyState,
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    ScalarOrSchedule,
    Updates,
    apply_updates,
    require_params,
    stateless,
    with_extra_args_support,
)
from volta_fn.optim.contrib.learning_rate_free import copied, rate_at, scalar_for
from volta_fn.optim.numerics import count_zero, map_leaves, normalized, safe_increment, scaled_by
from volta_fn.optim.optimizers import sgd
from volta_fn.optim.schedules import warmup_constant_schedule
from volta_fn.optim.transforms.composition import chain
from volta_fn.optim.transforms.momentum import add_decayed_weights
from volta_fn.optim.transforms.scaling import scale_by_learning_rate
from volta_fn.optim.transforms.second_moments import scale_by_rms
from volta_fn.optim.tree_utils import tree_cast, tree_where

__all__ = [
    "NormalizeState", "SAMState", "ScheduleFreeState", "SplitRealAndImaginaryState", "normalize", "sam", "schedule_free",
    "schedule_free_adamw", "schedule_free_eval_params", "schedule_free_sgd", "split_real_and_imaginary",
]  # fmt: skip


# Complex parameters as pairs of real ones.


class SplitRealAndImaginaryArrays(NamedTuple):
    """The real and imaginary numbers of a complex array."""

    real: Array
    imaginary: Array


class SplitRealAndImaginaryState(NamedTuple):
    """The state of the inner transformation, of real arrays."""

    inner_state: OptState


def split_real_and_imaginary(inner: GradientTransformation) -> GradientTransformationExtraArgs:
    """Apply `inner` to the real and imaginary numbers of complex leaves separately.

    So Adam, for one, adapts to the two instead of to the magnitude.

    >>> optimizer = optim.contrib.split_real_and_imaginary(optim.adam(0.1))
    >>> w = vf.numpy.array([1 + 2j])
    >>> optimizer.update(vf.numpy.array([3 - 4j]), optimizer.init(w), w)[0].round(3)
    Array([-0.1+0.1j], dtype=complex64)
    """
    inner = with_extra_args_support(inner)

    def split(values: Any) -> Any:
        return tree.map(_pair, values)

    def init(params: Any) -> SplitRealAndImaginaryState:
        return SplitRealAndImaginaryState(inner.init(split(params)))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        pairs, inner_state = inner.update(split(updates), state.inner_state, split(params), **extra_args)
        joined = tree.map(_joined, pairs, is_leaf=lambda node: isinstance(node, SplitRealAndImaginaryArrays))
        return joined, SplitRealAndImaginaryState(inner_state)

    return GradientTransformationExtraArgs(init, update)


def _pair(x: Any) -> Any:
    value = as_value(x)
    return SplitRealAndImaginaryArrays(lax.real(value), lax.imag(value)) if value.dtype in dtypes.COMPLEX else value


def _joined(node: Any) -> Any:
    return lax.complex(*node) if isinstance(node, SplitRealAndImaginaryArrays) else node


# SAM: sharpness-aware minimisation, by gradients at adversarial parameters.

#: The state of `normalize`, which has none.
NormalizeState = EmptyState


def normalize() -> GradientTransformation:
    """Divide updates by their global norm; zeros stay zeros.

    >>> tx = optim.contrib.normalize()
    >>> tx.update(vf.numpy.array([3.0, 4.0]), tx.init(None))[0]
    Array([0.6, 0.8], dtype=float32)
    """
    return stateless(lambda updates, params: normalized(updates))


class SAMState(NamedTuple):
    """Steps since the outer optimizer's (int32), both states, its parameters."""

    steps_since_sync: Array
    opt_state: OptState
    adv_state: OptState
    cache: Params | None


def sam(
    optimizer: GradientTransformation,
    adv_optimizer: GradientTransformation,
    sync_period: int = 2,
    reset_state: bool = True,
    opaque_mode: bool = False,
    batch_axis_name: str | None = None,
) -> GradientTransformationExtraArgs:
    """Take gradients where the loss is higher (Foret et al., 2021).

    Args:
        optimizer: takes the steps.
        adv_optimizer: climbs before each, usually ``chain(normalize(), sgd(rho))``.
        sync_period: one step in so many is the optimizer's; those before climb.
        reset_state: whether the climbing optimizer starts anew each time.
        opaque_mode: whether one call of `update` does it all. It then needs ``grad_fn=``, a function of parameters and the number of the
            step to a gradient; otherwise each call takes one step, climbing or not.
        batch_axis_name: in opaque mode, the axis of `vmap` over which gradients are averaged.

    >>> optimizer = optim.contrib.sam(optim.sgd(0.1), optim.chain(optim.contrib.normalize(), optim.sgd(0.05)), opaque_mode=True)
    >>> w = vf.numpy.array([3.0, 4.0])
    >>> updates, _ = optimizer.update(w, optimizer.init(w), w, grad_fn=lambda params, step: params)
    >>> updates.round(4)
    Array([-0.303, -0.404], dtype=float32)

    Raises `ArgumentError` if `sync_period` is less than 1, or for opaque mode without `grad_fn`.
    """
    if sync_period < 1:
        raise ArgumentError(f"sam: sync_period must be at least 1, got {sync_period}")

    def init(params: Any) -> SAMState:
        return SAMState(count_zero(), optimizer.init(params), adv_optimizer.init(params), None if opaque_mode else copied(params))

    def climb(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        updates, state = adv_optimizer.update(updates, state, params)
        return scaled_by(-1, updates), state

    def update(updates: Any, state: Any, params: Any = None, *, grad_fn: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        params = require_params("sam", params)
        first, last = state.steps_since_sync == 0, state.steps_since_sync == sync_period - 1
        climbing, adv_state = climb(updates, state.adv_state, params)
        cache = tree_where(first, tree.map(as_value, params), state.cache)
        step, opt_state = optimizer.update(updates, state.opt_state, cache)
        step = map_leaves(lambda u, p, start: start - p + u, step, params, cache)
        adv_state = tree_where(last, adv_optimizer.init(params) if reset_state else state.adv_state, adv_state)
        opt_state = tree_where(last, opt_state, state.opt_state)
        return tree_where(last, step, climbing), SAMState((state.steps_since_sync + 1) % sync_period, opt_state, adv_state, cache)

    def opaque_update(updates: Any, state: Any, params: Any = None, *, grad_fn: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        params = require_params("sam", params)
        if grad_fn is None:
            raise ArgumentError("sam: opaque_mode needs update(updates, state, params, grad_fn=...), a function of parameters and a number")
        around, adv_state = params, state.adv_state
        for i in range(sync_period - 1):
            climbing, adv_state = climb(updates, adv_state, around)
            around = apply_updates(around, climbing)
            updates = grad_fn(around, i)
            if batch_axis_name is not None:
                updates = lax.pmean(updates, batch_axis_name)
        adv_state = adv_optimizer.init(params) if reset_state else adv_state
        updates, opt_state = optimizer.update(updates, state.opt_state, params)
        return updates, SAMState(count_zero(), opt_state, adv_state, None)

    return GradientTransformationExtraArgs(init, opaque_update if opaque_mode else update)


# Schedule-free optimisation: averages of parameters instead of schedules.
#
# The parameters y are a mixture of x, an average to be evaluated, and z, which the optimizer moves.


class ScheduleFreeState(NamedTuple):
    """The mixture's share, sum of weights, next step (int32), largest rate, state, z."""

    b1: Array
    weight_sum: Array
    step_count: Array
    max_lr: Array
    base_optimizer_state: OptState
    z: Params


def schedule_free_eval_params(state: Any, params: Params) -> Params:
    """Return the parameters to evaluate: the average, not those that are trained.

    >>> optimizer = optim.contrib.schedule_free_sgd(0.5)
    >>> w = jnp.array([1.0])
    >>> updates, state = optimizer.update(w, optimizer.init(w), w)
    >>> optim.contrib.schedule_free_eval_params(state, optim.apply_updates(w, updates)).round(4)
    Array([0.5], dtype=float32)
    """
    return map_leaves(lambda y, z: (y - (1 - state.b1) * z) / state.b1, params, state.z)


def schedule_free(
    base_optimizer: GradientTransformation,
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    weight_lr_power: Any = 2.0,
    state_dtype: Any = None,
) -> GradientTransformationExtraArgs:
    """Make an optimizer schedule-free (Defazio et al., 2024).

    Args:
        base_optimizer: without momentum, which `b1` replaces.
        learning_rate: that of the optimizer, by which averages are weighted.
        b1: the share of the average in the parameters that are trained, more than 0.
        weight_lr_power: the power of the learning rate that is the weight.
        state_dtype: the dtype of z; by default that of the parameters.

    Evaluate `schedule_free_eval_params`.

    >>> optimizer = optim.contrib.schedule_free(optim.sgd(0.5), learning_rate=0.5)
    >>> w = jnp.array([1.0])
    >>> optimizer.update(w, optimizer.init(w), w)[0]
    Array([-0.5], dtype=float32)
    """
    base = with_extra_args_support(base_optimizer)

    def init(params: Any) -> ScheduleFreeState:
        scalars = scalar_for(params, b1), scalar_for(params), vnp.ones((), np.int32), scalar_for(params)
        return ScheduleFreeState(*scalars, base.init(params), tree_cast(copied(params), state_dtype))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        params = require_params("schedule_free", params)
        rate = vnp.asarray(rate_at(learning_rate, state.step_count, updates), state.max_lr.dtype)
        max_lr = vnp.maximum(state.max_lr, rate)
        weight = max_lr**weight_lr_power
        total = state.weight_sum + weight
        share = vnp.where(total == 0, 0, weight / vnp.where(total == 0, 1, total))
        base_updates, base_state = base.update(updates, state.base_optimizer_state, params, **extra_args)
        z = apply_updates(state.z, base_updates)

        def step(y: Array, old: Array, new: Array) -> Array:
            average = (y - (1 - b1) * old) / b1
            return b1 * ((1 - share) * average + share * new) + (1 - b1) * new - y

        updates = map_leaves(step, params, state.z, z)
        return updates, ScheduleFreeState(state.b1, total, safe_increment(state.step_count), max_lr, base_state, z)

    return GradientTransformationExtraArgs(init, update)


def _with_warmup(learning_rate: Any, warmup_steps: int | None) -> ScalarOrSchedule:
    return learning_rate if warmup_steps is None else warmup_constant_schedule(0, learning_rate, warmup_steps)


def schedule_free_sgd(
    learning_rate: Any = 1.0,
    warmup_steps: int | None = None,
    b1: Any = 0.9,
    weight_decay: Any = None,
    weight_lr_power: Any = 2.0,
    state_dtype: Any = None,
) -> GradientTransformationExtraArgs:
    """Create schedule-free gradient descent; other arguments as for `schedule_free`.

    Args:
        learning_rate: a number.
        warmup_steps: how many steps the learning rate grows from 0.
        b1, weight_lr_power, state_dtype: those of `schedule_free`.
        weight_decay: the rate of decay, None for none.

    >>> optimizer = optim.contrib.schedule_free_sgd(0.5)
    >>> w = jnp.array([1.0])
    >>> optimizer.update(w, optimizer.init(w), w)[0]
    Array([-0.5], dtype=float32)
    """
    rate = _with_warmup(learning_rate, warmup_steps)
    optimizer = sgd(rate) if weight_decay is None else chain(add_decayed_weights(weight_decay), sgd(rate))
    return schedule_free(optimizer, rate, b1, weight_lr_power, state_dtype)


def schedule_free_adamw(
    learning_rate: Any = 0.0025,
    warmup_steps: int | None = None,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    weight_decay: Any = 0.0,
    weight_lr_power: Any = 2.0,
    state_dtype: Any = None,
) -> GradientTransformationExtraArgs:
    """Create schedule-free AdamW.

    `b2` and `eps` are those of `adam`, other arguments those of `schedule_free_sgd`.

    >>> optimizer = optim.contrib.schedule_free_adamw(0.5)
    >>> w = jnp.array([1.0])
    >>> optimizer.update(w, optimizer.init(w), w)[0].round(4)
    Array([-0.5], dtype=float32)
    """
    rate = _with_warmup(learning_rate, warmup_steps)
    scaled = scale_by_rms(decay=b2, eps=eps, eps_in_sqrt=False, bias_correction=True)
    optimizer = chain(scaled, add_decayed_weights(weight_decay), scale_by_learning_rate(rate))
    return schedule_free(optimizer, rate, b1, weight_lr_power, state_dtype)

"""Schedule-free optimisation: averages of parameters instead of schedules.

The parameters y are a mixture of x, an average to be evaluated, and z, which the optimizer moves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    ScalarOrSchedule,
    require_params,
    with_extra_args_support,
)
from volta_fn.optim.contrib.common import copied, rate_at, scalar_for
from volta_fn.optim.numerics import safe_increment
from volta_fn.optim.optimizers.sgd import sgd
from volta_fn.optim.schedules.warmup import warmup_constant_schedule
from volta_fn.optim.transforms.scale_by_rms import scale_by_rms
from volta_fn.optim.transforms.scaling import scale_by_learning_rate
from volta_fn.optim.transforms.weight_decay_and_noise import add_decayed_weights
from volta_fn.optim.tree_rules import map_leaves
from volta_fn.optim.tree_utils.arrays import tree_cast
from volta_fn.optim.updates import apply_updates
from volta_fn.optim.wrappers.chain import chain

__all__ = ["ScheduleFreeState", "schedule_free", "schedule_free_adamw", "schedule_free_eval_params", "schedule_free_sgd"]


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
    >>> w = vnp.array([1.0])
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
    >>> w = vnp.array([1.0])
    >>> optimizer.update(w, optimizer.init(w), w)[0]
    Array([-0.5], dtype=float32)
    """
    base = with_extra_args_support(base_optimizer)

    def init(params: Any) -> ScheduleFreeState:
        scalars = scalar_for(params, b1), scalar_for(params), vnp.ones((), np.int32), scalar_for(params)
        return ScheduleFreeState(*scalars, base.init(params), tree_cast(copied(params), state_dtype))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        given = require_params("schedule_free", params)
        rate = vnp.asarray(rate_at(learning_rate, state.step_count, updates), state.max_lr.dtype)
        max_lr = vnp.maximum(state.max_lr, rate)
        weight = max_lr**weight_lr_power
        total = state.weight_sum + weight
        share = vnp.where(total == 0, 0, weight / vnp.where(total == 0, 1, total))
        base_updates, base_state = base.update(updates, state.base_optimizer_state, given, **extra_args)
        z = apply_updates(state.z, base_updates)

        def step(y: Array, old: Array, new: Array) -> Array:
            average = (y - (1 - b1) * old) / b1
            return b1 * ((1 - share) * average + share * new) + (1 - b1) * new - y

        updates = map_leaves(step, given, state.z, z)
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
    >>> w = vnp.array([1.0])
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
    >>> w = vnp.array([1.0])
    >>> optimizer.update(w, optimizer.init(w), w)[0].round(4)
    Array([-0.5], dtype=float32)
    """
    rate = _with_warmup(learning_rate, warmup_steps)
    scaled = scale_by_rms(decay=b2, eps=eps, eps_in_sqrt=False, bias_correction=True)
    optimizer = chain(scaled, add_decayed_weights(weight_decay), scale_by_learning_rate(rate))
    return schedule_free(optimizer, rate, b1, weight_lr_power, state_dtype)

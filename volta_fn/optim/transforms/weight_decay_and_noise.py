"""Transformations that add to updates: weight decay and noise."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn import random, tree
from volta_fn.core.array import as_value
from volta_fn.optim.base import (
    Counter,
    EmptyState,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    OptState,
    ScalarOrSchedule,
    require_params,
)
from volta_fn.optim.numerics import safe_increment
from volta_fn.optim.tree_rules import count_zero, factor, map_leaves, steps_for
from volta_fn.optim.wrappers.masking import masked

__all__ = ["AddNoiseState", "WeightDecaySchedule", "add_decayed_weights", "add_noise"]


class WeightDecaySchedule(NamedTuple):
    """The number of steps (int32), for a weight decay that is a schedule."""

    count: Counter


def add_decayed_weights(weight_decay: ScalarOrSchedule = 0.0, mask: MaskOrFn | None = None) -> GradientTransformation:
    """Add `weight_decay` times the parameters, which are needed.

    `weight_decay` is a number, a scalar array or a schedule; `mask` (see `masked`) selects the parameters that decay.

    >>> tx = vf.optim.add_decayed_weights(0.1, mask=lambda params: vf.tree.map(lambda p: p.ndim > 1, params))
    >>> params = {"w": vf.numpy.ones((1, 2)), "b": vf.numpy.ones(2)}
    >>> tx.update(vf.tree.map(vf.numpy.zeros_like, params), tx.init(params), params)[0]
    {'w': Array([[0.1, 0.1]], dtype=float32), 'b': Array([0., 0.], dtype=float32)}
    """
    scheduled = callable(weight_decay)

    def init(params: Any) -> OptState:
        return WeightDecaySchedule(count_zero()) if scheduled else EmptyState()

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        params = require_params("add_decayed_weights", params)
        rate = weight_decay(steps_for(state.count, updates)) if scheduled else weight_decay
        state = WeightDecaySchedule(safe_increment(state.count)) if scheduled else state
        if isinstance(rate, (int, float)) and rate == 0:
            return updates, state
        return map_leaves(lambda u, p: u + factor(rate, p) * p, updates, params), state

    tx = GradientTransformationExtraArgs(init, update)
    return tx if mask is None else masked(tx, mask)


class AddNoiseState(NamedTuple):
    """The number of steps (int32) and the key of the next noise."""

    count: Counter
    rng_key: Any


def as_key(key: Any) -> Any:
    """Return a random key, given a key or an integer seed."""
    return random.key(key) if isinstance(key, int) else key


def add_noise(eta: Any, gamma: Any, key: Any) -> GradientTransformation:
    """Add noise of variance ``eta / t**gamma`` in step t (Neelakantan et al., 2015)."""

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        count = safe_increment(state.count)
        deviation = vnp.sqrt(eta / count.astype("float32") ** gamma)
        next_key, sample_key = random.split(state.rng_key)
        leaves, treedef = tree.flatten(updates)
        keys = random.split(sample_key, len(leaves))
        noise = treedef.unflatten([random.normal(k, as_value(x).shape, as_value(x).dtype) for k, x in zip(keys, leaves, strict=True)])
        return map_leaves(lambda u, n: u + factor(deviation, u) * n, updates, noise), AddNoiseState(count, next_key)

    return GradientTransformationExtraArgs(lambda params: AddNoiseState(count_zero(), as_key(key)), update)

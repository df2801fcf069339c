"""Lookahead: slow parameters that follow fast ones (Zhang et al., 2019)."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    require_params,
    with_extra_args_support,
)
from volta_fn.optim.tree_rules import count_zero, factor, map_leaves, where

__all__ = ["LookaheadParams", "LookaheadState", "lookahead"]


class LookaheadParams(NamedTuple):
    """Fast parameters, which change in every step; slow ones follow as the result."""

    fast: Params
    slow: Params

    @classmethod
    def init_synced(cls, params: Params) -> Self:
        """Return the same parameters as fast and slow ones."""
        return cls(params, params)


class LookaheadState(NamedTuple):
    """The fast optimizer's state and the number of steps since the last sync (int32)."""

    fast_state: OptState
    steps_since_sync: Array


def lookahead(
    fast_optimizer: GradientTransformation, sync_period: int, slow_step_size: Any, reset_state: bool = False
) -> GradientTransformation:
    """Synchronise slow with fast parameters every `sync_period` steps.

    Then the slow parameters move the fraction `slow_step_size` of the way to the fast ones, and these are set to the result; with
    `reset_state` the state of the fast optimizer starts anew. Parameters are `LookaheadParams`, gradients those of the fast parameters.

    >>> params = optim.LookaheadParams.init_synced(vf.numpy.array([1.0]))
    >>> optimizer = optim.lookahead(optim.sgd(1.0), sync_period=1, slow_step_size=0.5)
    >>> updates, state = optimizer.update(vf.numpy.array([1.0]), optimizer.init(params), params)
    >>> optim.apply_updates(params, updates)
    LookaheadParams(fast=Array([0.5], dtype=float32), slow=Array([0.5], dtype=float32))

    Raises:
        ArgumentError: `sync_period` is less than 1.
        ArgumentTypeError: the parameters are not `LookaheadParams`.
    """
    if sync_period < 1:
        raise ArgumentError(f"lookahead: sync_period must be at least 1, got {sync_period}")
    fast_optimizer = with_extra_args_support(fast_optimizer)

    def init(params: Any) -> LookaheadState:
        return LookaheadState(fast_optimizer.init(_pair(params).fast), count_zero())

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        pair = _pair(require_params("lookahead", params))
        updates, fast_state = fast_optimizer.update(updates, state.fast_state, pair.fast, **extra_args)
        sync = state.steps_since_sync == sync_period - 1
        if reset_state:
            fast_state = where(sync, fast_optimizer.init(pair.fast), fast_state)

        def slow_rule(update: Array, fast: Array, slow: Array) -> Array:
            return vnp.where(sync, factor(slow_step_size, slow) * (fast + update - slow), vnp.zeros_like(slow))

        def fast_rule(update: Array, fast: Array, slow: Array) -> Array:
            return vnp.where(sync, update - (1 - factor(slow_step_size, slow)) * (fast + update - slow), update)

        changed = LookaheadParams(*(map_leaves(rule, updates, pair.fast, pair.slow) for rule in (fast_rule, slow_rule)))
        return changed, LookaheadState(fast_state, (state.steps_since_sync + 1) % sync_period)

    return GradientTransformationExtraArgs(init, update)


def _pair(params: Params) -> LookaheadParams:
    if not isinstance(params, LookaheadParams):
        raise ArgumentTypeError(
            f"lookahead: parameters must be LookaheadParams, got {type(params).__name__}; wrap them in LookaheadParams.init_synced"
        )
    return params

"""SAM: sharpness-aware minimisation, by gradients at adversarial parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from volta_fn import lax, tree
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import (
    EmptyState,
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    Updates,
    require_params,
    stateless,
)
from volta_fn.optim.contrib.common import copied
from volta_fn.optim.numerics import normalized
from volta_fn.optim.tree_rules import count_zero, map_leaves, scaled_by, where
from volta_fn.optim.updates import apply_updates

__all__ = ["NormalizeState", "SAMState", "normalize", "sam"]

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
        given = require_params("sam", params)
        first, last = state.steps_since_sync == 0, state.steps_since_sync == sync_period - 1
        climbing, adv_state = climb(updates, state.adv_state, given)
        step, opt_state = optimizer.update(updates, state.opt_state, state.cache)
        step = map_leaves(lambda u, p, start: start - p + u, step, given, state.cache)
        cache = where(first, tree.map(as_value, given), state.cache)
        adv_state = where(last, adv_optimizer.init(given) if reset_state else state.adv_state, adv_state)
        opt_state = where(last, opt_state, state.opt_state)
        return where(last, step, climbing), SAMState((state.steps_since_sync + 1) % sync_period, opt_state, adv_state, cache)

    def opaque_update(updates: Any, state: Any, params: Any = None, *, grad_fn: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        given = require_params("sam", params)
        gradient_at = _checked(grad_fn)
        around, adv_state = given, state.adv_state
        for i in range(sync_period - 1):
            climbing, adv_state = climb(updates, adv_state, around)
            around = apply_updates(around, climbing)
            updates = gradient_at(around, i)
            if batch_axis_name is not None:
                updates = lax.pmean(updates, batch_axis_name)
        adv_state = adv_optimizer.init(given) if reset_state else adv_state
        updates, opt_state = optimizer.update(updates, state.opt_state, given)
        return updates, SAMState(count_zero(), opt_state, adv_state, None)

    return GradientTransformationExtraArgs(init, opaque_update if opaque_mode else update)


def _checked(grad_fn: Callable[..., Any] | None) -> Callable[..., Any]:
    if grad_fn is None:
        raise ArgumentError("sam: opaque_mode needs update(updates, state, params, grad_fn=...), a function of parameters and a number")
    return grad_fn

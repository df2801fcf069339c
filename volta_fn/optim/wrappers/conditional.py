"""Transformations applied only in some steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.optim.base import GradientTransformation, GradientTransformationExtraArgs, OptState, Updates, with_extra_args_support
from volta_fn.optim.numerics import all_finite, safe_increment
from volta_fn.optim.tree_rules import branch, count_zero

__all__ = ["ApplyIfFiniteState", "ConditionallyMaskState", "ConditionallyTransformState", "apply_if_finite", "conditionally_mask"]
__all__ += ["ConditionFn", "conditionally_transform"]

#: Tells from the number of steps, and maybe the extra arguments of `update`, whether to apply a transformation.
ConditionFn: TypeAlias = Callable[..., Any]


class ApplyIfFiniteState(NamedTuple):
    """Failures in a row, whether the last was finite, all failures, the inner state."""

    notfinite_count: Array
    last_finite: Array
    total_notfinite: Array
    inner_state: OptState


def apply_if_finite(inner: GradientTransformation, max_consecutive_errors: int) -> GradientTransformationExtraArgs:
    """Apply `inner` only to updates without infinities and NaN.

    Otherwise the updates become zeros and the state stays unchanged. After `max_consecutive_errors` such updates in a row they are let
    through, so that a broken run becomes visible.

    >>> optimizer = optim.apply_if_finite(optim.sgd(1.0), max_consecutive_errors=5)
    >>> updates, state = optimizer.update(vf.numpy.array([float("inf")]), optimizer.init(vf.numpy.zeros(1)))
    >>> updates, state.total_notfinite
    (Array([0.], dtype=float32), Array(1, dtype=int32))
    """
    inner = with_extra_args_support(inner)

    def init(params: Any) -> ApplyIfFiniteState:
        return ApplyIfFiniteState(count_zero(), vnp.array(True), count_zero(), inner.init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        finite = all_finite(updates)
        in_a_row = vnp.where(finite, 0, safe_increment(state.notfinite_count))
        new_updates, inner_state = branch(
            finite | (in_a_row > max_consecutive_errors),
            lambda: inner.update(updates, state.inner_state, params, **extra_args),
            lambda: (tree.map(vnp.zeros_like, updates), state.inner_state),
        )
        total = vnp.where(finite, state.total_notfinite, safe_increment(state.total_notfinite))
        return new_updates, ApplyIfFiniteState(in_a_row, finite, total, inner_state)

    return GradientTransformationExtraArgs(init, update)


class ConditionallyTransformState(NamedTuple):
    """The inner state and the number of steps (int32)."""

    inner_state: OptState
    step: Array


class ConditionallyMaskState(NamedTuple):
    """The number of steps (int32) and the inner state."""

    step: Array
    inner_state: OptState


def conditionally_transform(
    inner: GradientTransformation, should_transform_fn: ConditionFn, forward_extra_args: bool = False
) -> GradientTransformationExtraArgs:
    """Apply `inner` in steps for which ``should_transform_fn(step)`` is true.

    In other steps updates and state stay unchanged. With `forward_extra_args` the function also gets the extra arguments of `update`.
    """
    return _conditionally(inner, should_transform_fn, forward_extra_args, lambda updates: updates, ConditionallyTransformState)


def conditionally_mask(
    inner: GradientTransformation, should_transform_fn: ConditionFn, forward_extra_args: bool = False
) -> GradientTransformationExtraArgs:
    """Apply `inner` in steps for which ``should_transform_fn(step)`` is true.

    In other steps the updates are zeros and the state stays unchanged. With `forward_extra_args` the function also gets the extra
    arguments of `update`.

    >>> tx = optim.conditionally_mask(optim.sgd(1.0), lambda step: step % 2 == 1)
    >>> tx.update(vf.numpy.ones(1), tx.init(vf.numpy.zeros(1)))[0]
    Array([0.], dtype=float32)
    """

    def zeros(updates: Updates) -> Updates:
        return tree.map(vnp.zeros_like, updates)

    return _conditionally(inner, should_transform_fn, forward_extra_args, zeros, ConditionallyMaskState)


def _conditionally(
    inner: GradientTransformation,
    should_transform: ConditionFn,
    forward_extra_args: bool,
    otherwise: Callable[[Updates], Updates],
    state_type: Callable[..., Any],
) -> GradientTransformationExtraArgs:
    inner = with_extra_args_support(inner)

    def init(params: Any) -> OptState:
        return state_type(inner_state=inner.init(params), step=count_zero())

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        new_updates, inner_state = branch(
            as_value(should_transform(state.step, **(extra_args if forward_extra_args else {}))),
            lambda: inner.update(updates, state.inner_state, params, **extra_args),
            lambda: (otherwise(updates), state.inner_state),
        )
        return new_updates, state_type(inner_state=inner_state, step=safe_increment(state.step))

    return GradientTransformationExtraArgs(init, update)

"""Gradient accumulation, for batches too large for memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from volta_fn import dtypes, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, DTypeError
from volta_fn.optim.base import GradientTransformation, GradientTransformationExtraArgs, OptState, Params, Updates, with_extra_args_support
from volta_fn.optim.numerics import safe_increment, sum_of_squares
from volta_fn.optim.tree_rules import branch, count_zero, full_like, map_with_state, tree_cast_like, where

__all__ = ["MultiSteps", "MultiStepsState", "ShouldSkipUpdateFunction", "skip_large_updates", "skip_not_finite"]

#: (updates, gradient_step, params) -> (whether to skip these updates, a pytree that tells why)
ShouldSkipUpdateFunction: TypeAlias = Callable[[Updates, Array, Any], tuple[Array, Any]]


def skip_not_finite(updates: Updates, gradient_step: Array, params: Params | None) -> tuple[Array, dict[str, Array]]:
    """Skip updates with an infinity or NaN, in `MultiSteps`."""
    counts = [vnp.sum(~vnp.isfinite(as_value(u))) for u in tree.leaves(updates)]
    number = sum(counts, count_zero())
    return number > 0, {"should_skip": number > 0, "num_not_finite": number}


def skip_large_updates(
    updates: Updates, gradient_step: Array, params: Params | None, max_squared_norm: Any
) -> tuple[Array, dict[str, Array]]:
    """Skip updates with large norms, in `MultiSteps`; bind the limit with `partial`."""
    norm_sq = sum_of_squares(updates)
    skip = ~(norm_sq < max_squared_norm)  # true for NaN
    return skip, {"should_skip": skip, "norm_squared": norm_sq}


def _skip_none(updates: Updates, gradient_step: Array, params: Params | None) -> tuple[Array, tuple[()]]:
    return vnp.array(False), ()


class MultiStepsState(NamedTuple):
    """Counters of gradients and steps (int32), optimizer state, accumulated gradients.

    `skip_state` tells why the last gradient was skipped.
    """

    mini_step: Array
    gradient_step: Array
    inner_opt_state: OptState
    acc_grads: Updates
    skip_state: Any = ()


class MultiSteps:
    """An optimizer that steps every k gradients; in between its updates are zeros.

    >>> optimizer = optim.MultiSteps(optim.sgd(1.0), every_k_schedule=2)
    >>> params = vf.numpy.zeros(1)
    >>> state = optimizer.init(params)
    >>> for gradient in ([1.0], [3.0]):
    ...     updates, state = optimizer.update(vf.numpy.array(gradient), state, params)
    ...     print(updates, optimizer.has_updated(state))
    [0.] False
    [-2.] True

    Args:
        opt: the optimizer.
        every_k_schedule: the number of gradients per step, or a function from the number of steps to it.
        use_grad_mean: whether the optimizer gets the mean of the gradients or their sum.
        should_skip_update_fn: tells which gradients to skip, such as `skip_not_finite`.
        accumulator_dtype: the dtype of the accumulated gradients; by default the parameters' dtype, float32 at least.

    Raises:
        ArgumentError: `every_k_schedule` is less than 1.
    """

    def __init__(
        self,
        opt: GradientTransformation,
        every_k_schedule: int | Callable[[Any], Any],
        use_grad_mean: bool = True,
        should_skip_update_fn: ShouldSkipUpdateFunction | None = None,
        accumulator_dtype: Any = None,
    ) -> None:
        if isinstance(every_k_schedule, int) and every_k_schedule < 1:
            raise ArgumentError(f"MultiSteps: every_k_schedule must be at least 1, got {every_k_schedule}")
        self._opt = with_extra_args_support(opt)
        self._every_k = every_k_schedule if callable(every_k_schedule) else lambda step: every_k_schedule
        self._use_grad_mean = use_grad_mean
        self._should_skip = should_skip_update_fn or _skip_none
        self._accumulator_dtype = accumulator_dtype

    @property
    def inner_opt(self) -> GradientTransformationExtraArgs:
        """The optimizer."""
        return self._opt

    def init(self, params: Params) -> MultiStepsState:
        """Return the state without gradients, with the optimizer's initial state."""
        _, skip_state = self._should_skip(params, count_zero(), params)
        zeros = tree.map(lambda p: self._zeros(as_value(p)), params)
        return MultiStepsState(count_zero(), count_zero(), self._opt.init(params), zeros, skip_state)

    def _zeros(self, param: Array) -> Array:
        return full_like(param, 0, self._accumulator_dtype or dtypes.accumulator(param.dtype))

    def update(self, updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        """Accumulate the updates, and make a step of the optimizer if there are enough."""
        skip, skip_state = self._should_skip(updates, state.gradient_step, params)
        if as_value(skip).dtype != np.bool_ or as_value(skip).shape:
            raise DTypeError(f"MultiSteps: should_skip_update_fn must return a boolean scalar first, got {as_value(skip)!r}")
        accumulated = where(skip, state.acc_grads, self._accumulate(updates, state))
        last = state.mini_step == self._every_k(state.gradient_step) - 1
        emit = last & ~skip

        def step() -> tuple[Any, Any]:
            return self._opt.update(tree_cast_like(accumulated, updates), state.inner_opt_state, params, **extra_args)

        def wait() -> tuple[Any, Any]:
            return tree.map(vnp.zeros_like, updates), state.inner_opt_state

        new_updates, inner_state = branch(emit, step, wait)
        mini_step = vnp.where(skip, state.mini_step, vnp.where(last, 0, state.mini_step + 1))
        gradient_step = vnp.where(emit, safe_increment(state.gradient_step), state.gradient_step)
        accumulated = tree.map(lambda g: vnp.where(emit, vnp.zeros_like(g), g), accumulated)
        return new_updates, MultiStepsState(mini_step, gradient_step, inner_state, accumulated, skip_state)

    def _accumulate(self, updates: Updates, state: MultiStepsState) -> Updates:
        """Add a gradient to the sum, or to the running mean, which cannot overflow."""

        def rule(g: Array, total: Array) -> tuple[Array, Array]:
            if not self._use_grad_mean:
                return g, total + g
            return g, total + (g - total) / (state.mini_step + 1).astype(dtypes.real_dtype(g.dtype))

        return map_with_state(rule, updates, state.acc_grads)[1]

    def has_updated(self, state: MultiStepsState) -> Array:
        """Return True if the last call of `update` made a step of the optimizer."""
        return (state.mini_step == 0) & (state.gradient_step > 0)

    def gradient_transformation(self) -> GradientTransformation:
        """Return the same optimizer as a pair of functions."""
        return GradientTransformationExtraArgs(self.init, self.update)

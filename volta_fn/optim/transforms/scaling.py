"""Transformations that multiply updates by numbers, schedules and norms."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    ScalarOrSchedule,
    Schedule,
    identity,
    init_empty_state,
    leaf_rule,
    leaf_rule_with_params,
    stateless,
)
from volta_fn.optim.numerics import global_norm, safe_increment, safe_norm, safe_root_mean_squares, sum_of_squares
from volta_fn.optim.tree_rules import count_zero, factor, map_leaves, scaled_by, steps_for

__all__ = ["ScaleByScheduleState", "ZeroNansState", "centralize", "keep_params_nonnegative", "normalize_by_update_norm", "scale"]
__all__ += ["scale_by_learning_rate", "scale_by_param_block_norm", "scale_by_param_block_rms", "scale_by_polyak", "scale_by_schedule"]
__all__ += ["scale_by_trust_ratio", "zero_nans"]


def scale(step_size: Any) -> GradientTransformation:
    """Multiply updates by a number or scalar array.

    >>> tx = vf.optim.scale(-0.5)
    >>> tx.update(vf.numpy.array([2.0]), tx.init(None))[0]
    Array([-1.], dtype=float32)
    """
    return stateless(lambda updates, params: scaled_by(step_size, updates))


class ScaleByScheduleState(NamedTuple):
    """The number of steps, an int32 that saturates at its largest value."""

    count: Counter


def scale_by_schedule(step_size_fn: Schedule) -> GradientTransformation:
    """Multiply updates by ``step_size_fn(count)``, a function of the step counter.

    The count is the number of previous steps. For trees with float64 leaves the count is an int64, so that the schedule computes in
    float64.
    """

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        step_size = step_size_fn(steps_for(state.count, updates))
        return scaled_by(step_size, updates), ScaleByScheduleState(safe_increment(state.count))

    return GradientTransformationExtraArgs(lambda params: ScaleByScheduleState(count_zero()), update)


def scale_by_learning_rate(learning_rate: ScalarOrSchedule | None = None, *, flip_sign: bool = True) -> GradientTransformation:
    """Multiply updates by minus the learning rate, or plus unless `flip_sign`.

    The learning rate is a number, a scalar array or a schedule; None leaves the updates unchanged.
    """
    if learning_rate is None:
        return identity()
    sign = -1 if flip_sign else 1
    if callable(learning_rate):
        return scale_by_schedule(lambda count: sign * learning_rate(count))
    return scale(sign * learning_rate)


def scale_by_trust_ratio(min_norm: Any = 0.0, trust_coefficient: Any = 1.0, eps: Any = 0.0) -> GradientTransformation:
    """Multiply each leaf by its *trust ratio* (You et al., 2017, 2020).

    The trust ratio is ``trust_coefficient * |param| / (|update| + eps)``, with norms of at least `min_norm`; it is 1 if either norm is
    zero. Needs the parameters.
    """

    def rule(u: Array, p: Array) -> Array:
        param_norm, update_norm = safe_norm(p, min_norm), safe_norm(u, min_norm)
        ratio = trust_coefficient * param_norm / (update_norm + eps)
        return u * vnp.where((param_norm == 0) | (update_norm == 0), vnp.ones_like(ratio), ratio)

    return leaf_rule_with_params("scale_by_trust_ratio", rule)


def scale_by_param_block_norm(min_scale: Any = 1e-3) -> GradientTransformation:
    """Multiply each leaf by its parameter's norm, at least `min_scale`."""
    return leaf_rule_with_params("scale_by_param_block_norm", lambda u, p: u * safe_norm(p, min_scale))


def scale_by_param_block_rms(min_scale: Any = 1e-3) -> GradientTransformation:
    """Multiply each leaf by its parameter's root mean square, at least `min_scale`."""
    return leaf_rule_with_params("scale_by_param_block_rms", lambda u, p: u * safe_root_mean_squares(p, min_scale))


def normalize_by_update_norm(scale_factor: Any = 1.0, eps: Any = 1e-6) -> GradientTransformation:
    """Multiply updates by `scale_factor` over their global norm plus `eps`."""

    def rule(updates: Any, params: Any) -> Any:
        norm = (global_norm(updates) + eps) / scale_factor
        return map_leaves(lambda u: u / factor(norm, u), updates)

    return stateless(rule)


def centralize() -> GradientTransformation:
    """Subtract the mean over all axes but the first (Yong et al., 2020)."""
    return leaf_rule(lambda u: u if u.ndim < 2 else u - vnp.mean(u, axis=tuple(range(1, u.ndim)), keepdims=True))


def scale_by_polyak(f_min: Any = 0.0, max_learning_rate: Any = 1.0, eps: Any = 0.0, variant: str = "sps") -> GradientTransformation:
    """Multiply updates by Polyak's step ``(value - f_min) / (|updates|² + eps)``.

    It is at most `max_learning_rate`, and 0 at a stationary point. `update` needs the loss as ``value=``. Variant "sps+" replaces a
    negative gap ``value - f_min`` by zero (Loizou et al., 2021).
    """
    if variant not in ("sps", "sps+"):
        raise ArgumentError(f"scale_by_polyak: variant must be 'sps' or 'sps+', got {variant!r}")

    def update(updates: Any, state: Any, params: Any = None, *, value: Any, **extra_args: Any) -> tuple[Any, Any]:
        norm_sq = sum_of_squares(updates) + eps
        gap = vnp.asarray(value - f_min, norm_sq.dtype)
        if variant == "sps+":
            gap = vnp.maximum(gap, 0)
        stationary = norm_sq <= vnp.finfo(norm_sq.dtype).eps
        step = vnp.where(stationary, 0, vnp.minimum(gap / vnp.where(stationary, 1, norm_sq), max_learning_rate))
        return scaled_by(step, updates), state

    return GradientTransformationExtraArgs(init_empty_state, update)


class ZeroNansState(NamedTuple):
    """A boolean per leaf: True if its last update had a NaN."""

    found_nan: Any


def zero_nans() -> GradientTransformation:
    """Replace NaN by zero; the state tells which leaves had any."""

    def init(params: Any) -> ZeroNansState:
        return ZeroNansState(tree.map(lambda p: vnp.array(False), params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        found = tree.map(lambda u: vnp.any(vnp.isnan(u)), updates)
        return map_leaves(lambda u: vnp.where(vnp.isnan(u), vnp.zeros_like(u), u), updates), ZeroNansState(found)

    return GradientTransformationExtraArgs(init, update)


def keep_params_nonnegative() -> GradientTransformation:
    """Limit updates so that no element of a parameter becomes negative."""
    return leaf_rule_with_params("keep_params_nonnegative", lambda u, p: vnp.where(p + u < 0, -p, u))

"""Transformations that multiply updates: by numbers, schedules, signs and norms."""

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
    OptState,
    Params,
    ScalarOrSchedule,
    Schedule,
    Updates,
    identity,
    init_empty_state,
    leaf_rule,
    leaf_rule_with_params,
    stateless,
)
from volta_fn.optim.numerics import global_norm, safe_increment, safe_norm, safe_root_mean_squares, sum_of_squares
from volta_fn.optim.tree_rules import count_zero, factor, map_leaves, steps_for

__all__ = ["ScaleByScheduleState", "ZeroNansState", "centralize", "keep_params_nonnegative", "normalize_by_update_norm", "scale"]
__all__ += ["scale_by_learning_rate", "scale_by_param_block_norm", "scale_by_param_block_rms", "scale_by_polyak", "scale_by_schedule"]
__all__ += ["scale_by_trust_ratio", "zero_nans"]


def scale(step_size: Any) -> GradientTransformation:
    """Updates times a number or scalar array.

    >>> import volta_fn as vf
    >>> tx = vf.optim.scale(-0.5)
    >>> tx.update(vf.numpy.array([2.0]), tx.init(None))[0]
    Array([-1.], dtype=float32)
    """
    return leaf_rule(lambda u: factor(step_size, u) * u)


class ScaleByScheduleState(NamedTuple):
    """The number of steps taken, an int32 that stays at its largest value once it is there."""

    count: Counter


def scale_by_schedule(step_size_fn: Schedule) -> GradientTransformation:
    """Updates times ``step_size_fn(count)``, where count is the number of steps taken before.

    For trees with float64 leaves the count is passed as an int64, so that the schedule computes in float64.
    """

    def init(params: Params) -> ScaleByScheduleState:
        return ScaleByScheduleState(count_zero())

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        step_size = step_size_fn(steps_for(state.count, updates))
        return map_leaves(lambda u: factor(step_size, u) * u, updates), ScaleByScheduleState(safe_increment(state.count))

    return GradientTransformationExtraArgs(init, update)


def scale_by_learning_rate(learning_rate: ScalarOrSchedule | None = None, *, flip_sign: bool = True) -> GradientTransformation:
    """Updates times minus the learning rate (plus, if not `flip_sign`), which is a number, a scalar array or a schedule.

    None leaves the updates as they are.
    """
    if learning_rate is None:
        return identity()
    sign = -1 if flip_sign else 1
    if callable(learning_rate):
        return scale_by_schedule(lambda count: sign * learning_rate(count))
    return scale(sign * learning_rate)


def scale_by_trust_ratio(min_norm: Any = 0.0, trust_coefficient: Any = 1.0, eps: Any = 0.0) -> GradientTransformation:
    """Each leaf of the updates times ``trust_coefficient * |param| / (|update| + eps)``, its *trust ratio* (You et al., 2017, 2020).

    Norms are at least `min_norm`; where either is zero, the ratio is 1. Needs the parameters.
    """

    def rule(u: Array, p: Array) -> Array:
        param_norm, update_norm = safe_norm(p, min_norm), safe_norm(u, min_norm)
        ratio = trust_coefficient * param_norm / (update_norm + eps)
        return u * vnp.where((param_norm == 0) | (update_norm == 0), vnp.ones_like(ratio), ratio)

    return leaf_rule_with_params("scale_by_trust_ratio", rule)


def scale_by_param_block_norm(min_scale: Any = 1e-3) -> GradientTransformation:
    """Each leaf of the updates times the norm of its parameter, or `min_scale` if that is greater. Needs the parameters."""
    return leaf_rule_with_params("scale_by_param_block_norm", lambda u, p: u * safe_norm(p, min_scale))


def scale_by_param_block_rms(min_scale: Any = 1e-3) -> GradientTransformation:
    """Each leaf times the root mean square of its parameter, or `min_scale` if that is greater. Needs the parameters."""
    return leaf_rule_with_params("scale_by_param_block_rms", lambda u, p: u * safe_root_mean_squares(p, min_scale))


def normalize_by_update_norm(scale_factor: Any = 1.0, eps: Any = 1e-6) -> GradientTransformation:
    """Updates divided by their global norm (plus `eps`), times `scale_factor`."""

    def rule(updates: Updates, params: Params | None) -> Updates:
        norm = (global_norm(updates) + eps) / scale_factor
        return map_leaves(lambda u: u / factor(norm, u), updates)

    return stateless(rule)


def centralize() -> GradientTransformation:
    """Updates of two dimensions and more minus their means over all axes but the first (Yong et al., 2020)."""
    return leaf_rule(lambda u: u if u.ndim < 2 else u - vnp.mean(u, axis=tuple(range(1, u.ndim)), keepdims=True))


def scale_by_polyak(f_min: Any = 0.0, max_learning_rate: Any = 1.0, eps: Any = 0.0, variant: str = "sps") -> GradientTransformation:
    """Polyak's step size: updates times ``(value - f_min) / (|updates|² + eps)``, at most `max_learning_rate`; 0 at a stationary point.

    `update` needs the loss as ``value=``. Variant "sps+" takes a gap below zero as zero (Loizou et al., 2021).
    """
    if variant not in ("sps", "sps+"):
        raise ArgumentError(f"scale_by_polyak: variant must be 'sps' or 'sps+', got {variant!r}")

    def update(
        updates: Updates, state: OptState, params: Params | None = None, *, value: Any, **extra_args: Any
    ) -> tuple[Updates, OptState]:
        norm_sq = sum_of_squares(updates) + eps
        gap = vnp.asarray(value - f_min, norm_sq.dtype)
        if variant == "sps+":
            gap = vnp.maximum(gap, 0)
        stationary = norm_sq <= vnp.finfo(norm_sq.dtype).eps
        step = vnp.where(stationary, 0, vnp.minimum(gap / vnp.where(stationary, 1, norm_sq), max_learning_rate))
        return map_leaves(lambda u: factor(step, u) * u, updates), state

    return GradientTransformationExtraArgs(init_empty_state, update)


def zero_nans() -> GradientTransformation:
    """Updates with zeros in place of NaN; the state tells for each leaf whether there was any."""

    def init(params: Params) -> ZeroNansState:
        return ZeroNansState(tree.map(lambda p: vnp.array(False), params))

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        found = tree.map(lambda u: vnp.any(vnp.isnan(u)), updates)
        return map_leaves(lambda u: vnp.where(vnp.isnan(u), vnp.zeros_like(u), u), updates), ZeroNansState(found)

    return GradientTransformationExtraArgs(init, update)


class ZeroNansState(NamedTuple):
    """A boolean per leaf: whether its last update had a NaN."""

    found_nan: Any


def keep_params_nonnegative() -> GradientTransformation:
    """Updates that would make an element of a parameter negative make it zero instead. Needs the parameters."""
    return leaf_rule_with_params("keep_params_nonnegative", lambda u, p: vnp.where(p + u < 0, -p, u))

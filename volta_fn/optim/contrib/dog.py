"""Step sizes from the distance moved and the gradients seen: DoG and DoWG."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    Params,
    ScalarOrSchedule,
    identity,
    require_params,
)
from volta_fn.optim.contrib.common import copied, scalar_for
from volta_fn.optim.numerics import global_norm, sum_of_squares
from volta_fn.optim.transforms.scaling import scale_by_learning_rate
from volta_fn.optim.transforms.weight_decay_and_noise import add_decayed_weights
from volta_fn.optim.tree_rules import map_leaves, scaled_by
from volta_fn.optim.wrappers.chain import chain

__all__ = ["DoGState", "DoWGState", "dog", "dowg"]

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
    to use are a moving average, see `incremental_update`.

    Args:
        learning_rate: a factor; 1 is meant.
        init_step: ("distance", d): the first step assumes a distance of d; ("heuristic", a): of a (1 + |params|); ("learning_rate", r): it
            has the step size r.
        eps: added to the sum of squares.
        weight_decay, mask: as in `adamw`, added to gradients; None for none.

    >>> optimizer = optim.contrib.dog(init_step=("distance", 0.1))
    >>> w = vnp.zeros(2)
    >>> optimizer.update(vnp.array([3.0, 4.0]), optimizer.init(w), w)[0].round(3)
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

    It is `dog` with squared gradients weighted by the squared distances.

    Args:
        learning_rate: a factor; 1 is meant.
        init_estim_sq_dist: the squared distance that the first step assumes; by default `eps`.
        eps: added to the divisor.
        weight_decay, mask: as in `adamw`, added to gradients; None for none.

    >>> optimizer = optim.contrib.dowg()
    >>> w = vnp.zeros(2)
    >>> optimizer.update(vnp.array([3.0, 4.0]), optimizer.init(w), w)[0].round(4)
    Array([-0.006, -0.008], dtype=float32)
    """
    return chain(_decayed(weight_decay, mask), scale_by_dowg(init_estim_sq_dist, eps), scale_by_learning_rate(learning_rate))

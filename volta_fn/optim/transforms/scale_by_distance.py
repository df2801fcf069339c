"""Layer-wise DoG: step sizes from the distance moved and the gradients seen."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.optim.base import GradientTransformation, GradientTransformationExtraArgs, Params, require_params
from volta_fn.optim.numerics import abs_sq
from volta_fn.optim.tree_rules import map_with_state, widened
from volta_fn.optim.tree_utils.arrays import tree_cast

__all__ = ["ScaleByDistanceOverGradientsState", "scale_by_distance_over_gradients"]


class ScaleByDistanceOverGradientsState(NamedTuple):
    """For each leaf the largest distance and Σ |g|²; the initial parameters."""

    max_dist: Any
    grad_sum_of_squares: Any
    init_params: Params


def _norm(x: Array) -> Array:
    return vnp.sqrt(vnp.sum(abs_sq(widened(x))))


def scale_by_distance_over_gradients(
    reps_rel: Any = 1e-6, eps: Any = 1e-8, param_dtype: Any = "float32", global_scale: Any = 1.0
) -> GradientTransformation:
    """Multiply by the distance moved over the root of Σ |g|² (Ivgi et al., 2023).

    `contrib.dog` has one step size for all leaves.

    Args:
        reps_rel: the first distance, relative to 1 + the parameter's norm.
        eps: added to the sum of squares.
        param_dtype: in which initial parameters are kept.
        global_scale: a factor of all step sizes.

    >>> tx = optim.scale_by_distance_over_gradients(reps_rel=0.1)
    >>> w = vnp.zeros(2)
    >>> tx.update(vnp.array([3.0, 4.0]), tx.init(w), w)[0].round(3)
    Array([0.06, 0.08], dtype=float32)
    """

    def init(params: Any) -> ScaleByDistanceOverGradientsState:
        distances = tree.map(lambda p: reps_rel * (1 + _norm(as_value(p))), params)
        return ScaleByDistanceOverGradientsState(distances, tree.map(vnp.zeros_like, distances), tree_cast(params, param_dtype))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        def rule(g: Array, farthest: Array, squares: Array, p: Array, start: Array) -> tuple[Array, Array, Array]:
            farthest = vnp.maximum(farthest, _norm(p - start))
            squares = squares + vnp.sum(abs_sq(g))
            return global_scale * farthest / vnp.sqrt(squares + eps) * g, farthest, squares

        given = (require_params("scale_by_distance_over_gradients", params), state.init_params)
        updates, farthest, squares = map_with_state(
            rule, updates, state.max_dist, state.grad_sum_of_squares, given=given, same_shapes=False
        )
        return updates, ScaleByDistanceOverGradientsState(farthest, squares, state.init_params)

    return GradientTransformationExtraArgs(init, update)

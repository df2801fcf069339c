"""Transformations that multiply updates, or bound them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from volta_fn import lax, random, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import check_option
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    Params,
    ScalarOrSchedule,
    Schedule,
    Updates,
    counting_rule,
    identity,
    init_empty_state,
    leaf_rule,
    leaf_rule_with_params,
    require_params,
    stateful_rule,
    stateless,
)
from volta_fn.optim.numerics import (
    abs_sq,
    cast_like,
    count_zero,
    decayed,
    factor,
    full_like,
    global_norm,
    map_leaves,
    map_with_state,
    safe_increment,
    safe_norm,
    safe_root_mean_squares,
    scaled_by,
    steps_for,
    sum_of_squares,
    widened,
    widest_real,
    zeros_like,
)
from volta_fn.optim.tree_utils import tree_cast, tree_where
from volta_fn.random.keys import as_key

__all__ = [
    "DifferentiallyPrivateAggregateState", "ReduceLROnPlateauState", "ScaleByDistanceOverGradientsState", "ScaleByLionState",
    "ScaleByRpropState", "ScaleByScheduleState", "ZeroNansState", "adaptive_grad_clip", "centralize", "clip", "clip_by_block_norm",
    "clip_by_block_rms", "clip_by_global_norm", "differentially_private_aggregate", "keep_params_nonnegative", "normalize_by_update_norm",
    "per_example_global_norm_clip", "per_example_layer_norm_clip", "reduce_on_plateau", "scale", "scale_by_distance_over_gradients",
    "scale_by_learning_rate", "scale_by_lion", "scale_by_param_block_norm", "scale_by_param_block_rms", "scale_by_polyak",
    "scale_by_rprop", "scale_by_schedule", "scale_by_sign", "scale_by_trust_ratio", "unitwise_clip", "unitwise_norm", "zero_nans",
]  # fmt: skip


# Transformations that multiply updates by numbers, schedules and norms.


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
    check_option(variant, "scale_by_polyak: variant", ("sps", "sps+"))

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
        has_nan = tree.map(lambda u: vnp.any(vnp.isnan(u)), updates)
        return map_leaves(lambda u: vnp.where(vnp.isnan(u), vnp.zeros_like(u), u), updates), ZeroNansState(has_nan)

    return GradientTransformationExtraArgs(init, update)


def keep_params_nonnegative() -> GradientTransformation:
    """Limit updates so that no element of a parameter becomes negative."""
    return leaf_rule_with_params("keep_params_nonnegative", lambda u, p: vnp.where(p + u < 0, -p, u))


# Transformations by the signs of gradients: plain signs, Lion, Rprop.


def scale_by_sign() -> GradientTransformation:
    """Replace updates by their signs."""
    return leaf_rule(vnp.sign)


class ScaleByRpropState(NamedTuple):
    """The step size of every element and the last updates."""

    step_sizes: Updates
    prev_updates: Updates


def scale_by_rprop(
    learning_rate: Any, eta_minus: Any = 0.5, eta_plus: Any = 1.2, min_step_size: Any = 1e-6, max_step_size: Any = 50.0
) -> GradientTransformation:
    """Replace gradients by signs times a step size for each element.

    See Riedmiller and Braun (1993). A step size starts at `learning_rate`, grows by `eta_plus` while the sign of its gradient stays, and
    shrinks by `eta_minus` where the sign changes; that step is skipped.
    """

    def rule(g: Array, size: Array, last: Array) -> tuple[Array, Array, Array]:
        agreement = g * last
        resized = vnp.clip(vnp.where(agreement > 0, eta_plus * size, eta_minus * size), min_step_size, max_step_size)
        size = vnp.where(agreement == 0, size, resized)
        step = vnp.where(agreement < 0, 0, size * vnp.sign(g))
        return step, size, step

    return stateful_rule(ScaleByRpropState, lambda params: (full_like(params, learning_rate), zeros_like(params)), rule)


class ScaleByLionState(NamedTuple):
    """The number of steps (int32) and moving averages of gradients."""

    count: Counter
    mu: Updates


def scale_by_lion(
    b1: Any = 0.9, b2: Any = 0.99, mu_dtype: Any = None, *, mode: Literal["hard", "smooth", "refined"] = "hard", smooth_beta: Any = 1.0
) -> GradientTransformation:
    """Scale updates as `lion` does, to the sign of a moving average.

    See Chen et al. (2023). Mode "smooth" uses ``tanh(smooth_beta * average)`` instead of the sign, "refined" the average clipped to [-1,
    1].
    """
    squash = {
        "hard": vnp.sign,
        "smooth": lambda x: vnp.tanh(smooth_beta * x),
        "refined": lambda x: vnp.where(vnp.abs(x) < 1, x, vnp.sign(x)),
    }.get(mode)
    if squash is None:
        raise ArgumentError(f"scale_by_lion: mode must be 'hard', 'smooth' or 'refined', got {mode!r}")

    def rule(g: Array, m: Array) -> tuple[Array, Array]:
        return squash(decayed(b1, g, m)), decayed(b2, g, m)

    return counting_rule(ScaleByLionState, lambda params: (zeros_like(params, mu_dtype),), lambda count: rule)


# Layer-wise DoG: step sizes from the distance moved and the gradients seen.


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
    >>> w = jnp.zeros(2)
    >>> tx.update(jnp.array([3.0, 4.0]), tx.init(w), w)[0].round(3)
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

        operands = (require_params("scale_by_distance_over_gradients", params), state.init_params)
        updates, farthest, squares = map_with_state(
            rule, updates, state.max_dist, state.grad_sum_of_squares, operands=operands, same_shapes=False
        )
        return updates, ScaleByDistanceOverGradientsState(farthest, squares, state.init_params)

    return GradientTransformationExtraArgs(init, update)


# Learning rates that shrink when the loss stops improving.


class ReduceLROnPlateauState(NamedTuple):
    """The factor of the updates, the best loss, and counters (int32).

    `plateau_count` is the number of consecutive losses without improvement, `cooldown_count` the number of losses still to be ignored,
    `avg_value` the mean of the `count` losses accumulated so far.
    """

    scale: Array
    best_value: Array
    plateau_count: Array
    cooldown_count: Array
    count: Counter
    avg_value: Array


def reduce_on_plateau(
    factor: float = 0.1,
    patience: int = 10,
    rtol: float = 1e-4,
    atol: float = 0.0,
    cooldown: int = 0,
    accumulation_size: int = 1,
    min_scale: float = 0.0,
) -> GradientTransformationExtraArgs:
    """Shrink updates by `factor` whenever the loss stops improving.

    The loss is passed as ``update(..., value=loss)``.

    Args:
        factor: multiplies the scale; between 0 and 1.
        patience: how many consecutive losses may be no better than the best so far.
        rtol, atol: a loss is better if it is less than ``(1 - rtol) * best - atol``.
        cooldown: how many losses after a reduction are ignored.
        accumulation_size: how many losses are averaged into one.
        min_scale: the least scale.

    >>> optimizer = optim.chain(optim.sgd(1.0), optim.reduce_on_plateau(factor=0.5, patience=1))
    >>> params = vf.numpy.zeros(1)
    >>> state = optimizer.init(params)
    >>> for loss in (3.0, 3.0, 3.0):
    ...     updates, state = optimizer.update(vf.numpy.ones(1), state, params, value=loss)
    >>> updates
    Array([-0.25], dtype=float32)

    Raises `ArgumentError` for a factor or tolerances out of range.
    """
    if not 0 < factor < 1:
        raise ArgumentError(f"reduce_on_plateau: factor must be between 0 and 1, got {factor}")
    if not (0 <= rtol <= 1 and atol >= 0 and rtol + atol > 0):
        raise ArgumentError(f"reduce_on_plateau: rtol in [0, 1] and atol >= 0, not both 0, are needed, got {rtol=}, {atol=}")

    def init(params: Any) -> ReduceLROnPlateauState:
        dtype = widest_real(params)
        zero = count_zero()
        return ReduceLROnPlateauState(vnp.ones((), dtype), vnp.asarray(np.inf, dtype), zero, zero, zero, vnp.zeros((), dtype))

    def next_scale(state: ReduceLROnPlateauState) -> ReduceLROnPlateauState:
        """Return the state after enough losses: compare their mean with the best."""
        improved = state.avg_value < (1 - rtol) * state.best_value - atol
        cooling = state.cooldown_count > 0
        plateau = vnp.where(improved | cooling, 0, state.plateau_count + 1)
        reduce = (plateau >= patience) & ~cooling & ~improved
        return ReduceLROnPlateauState(
            scale=vnp.where(reduce, vnp.maximum(state.scale * factor, min_scale), state.scale),
            best_value=vnp.where(improved, state.avg_value, state.best_value),
            plateau_count=vnp.where(reduce, 0, plateau),
            cooldown_count=vnp.where(cooling, state.cooldown_count - 1, vnp.where(reduce, cooldown, 0)),
            count=vnp.zeros_like(state.count),
            avg_value=vnp.zeros_like(state.avg_value),
        )

    def update(updates: Any, state: Any, params: Any = None, *, value: Any, **extra_args: Any) -> tuple[Any, Any]:
        count = state.count + 1
        loss = vnp.asarray(value, state.avg_value.dtype)
        mean = state.avg_value + (loss - state.avg_value) / lax.convert_element_type(count, loss.dtype)
        accumulated = state._replace(count=count, avg_value=mean)
        state = tree_where(count == accumulation_size, next_scale(accumulated), accumulated)
        return scaled_by(state.scale, updates), state

    return GradientTransformationExtraArgs(init, update)


# Bounds on updates: on elements, and on norms of units, leaves or all leaves.


def clip(max_delta: Any) -> GradientTransformation:
    """Clip every element to [-max_delta, max_delta].

    >>> tx = vf.optim.clip(1.0)
    >>> tx.update(vf.numpy.array([-3.0, 0.5]), tx.init(None))[0]
    Array([-1. ,  0.5], dtype=float32)
    """
    return leaf_rule(lambda u: vnp.clip(u, -factor(max_delta, u), factor(max_delta, u)))


def clip_by_global_norm(max_norm: Any) -> GradientTransformation:
    """Scale updates down to a global norm of at most `max_norm`.

    See Pascanu et al. (2013).

    >>> tx = vf.optim.clip_by_global_norm(1.0)
    >>> tx.update(vf.numpy.array([3.0, 4.0]), tx.init(None))[0]
    Array([0.6, 0.8], dtype=float32)
    """
    return stateless(lambda updates, params: scaled_by(_ratio(global_norm(updates), max_norm), updates))


def clip_by_block_norm(max_norm: Any) -> GradientTransformation:
    """Scale each leaf down to a norm of at most `max_norm`."""
    return leaf_rule(lambda u: u * _ratio(vnp.sqrt(vnp.sum(abs_sq(u))), max_norm))


def clip_by_block_rms(threshold: Any) -> GradientTransformation:
    """Limit each leaf's root mean square to `threshold` (Shazeer and Stern, 2018)."""

    def rule(u: Array) -> Array:
        rms = vnp.sqrt(vnp.mean(abs_sq(u)))
        return u / vnp.where(rms <= threshold, vnp.ones_like(rms), rms / threshold)

    return leaf_rule(lambda u: rule(u) if u.size else u)


def _ratio(norm: Array, max_norm: Any) -> Array:
    """Return the factor that bounds a norm; 1 for a norm of zero, NaN for one of NaN."""
    return vnp.where(norm <= max_norm, vnp.ones_like(norm), max_norm / norm)


def unitwise_norm(x: Array, axis: int | Sequence[int] | None = None) -> Array:
    """Return the norms of a weight's units (output features), broadcast to its shape.

    `axis` lists the axes to sum over. By default vectors and scalars are one unit, and the last axis of arrays with two to five axes
    counts the units; arrays of three axes are stacks of matrices.

    Raises `ShapeError` for more axes.
    """
    return vnp.broadcast_to(vnp.sqrt(vnp.sum(abs_sq(x), axis=_unit_axes(x) if axis is None else axis, keepdims=True)), x.shape)


def _unit_axes(x: Array) -> tuple[int, ...]:
    if sum(size != 1 for size in x.shape) <= 1:
        return tuple(range(x.ndim))
    if x.ndim in (2, 3):
        return (0,)
    if x.ndim in (4, 5):
        return tuple(range(x.ndim - 1))
    raise ShapeError(f"unitwise_norm: which axes are inputs is known up to five axes, got shape {x.shape}; pass axis=")


def unitwise_clip(g_norm: Array, max_norm: Array, grad: Array, div_eps: float = 1e-6) -> Array:
    """Limit the norms of a gradient's units; all three arrays have one shape."""
    if not g_norm.shape == max_norm.shape == grad.shape:
        raise ShapeError(f"unitwise_clip: norms and gradient must have one shape, got {g_norm.shape}, {max_norm.shape} and {grad.shape}")
    return vnp.where(g_norm < max_norm, grad, grad * (max_norm / vnp.maximum(g_norm, div_eps)))


def adaptive_grad_clip(clipping: Any, eps: Any = 1e-3, axis: int | Sequence[int] | None = None) -> GradientTransformation:
    """Limit each unit's gradient to `clipping` times the norm of its weights.

    See Brock et al. (2021). Norms of weights count as at least `eps`; `axis` is that of `unitwise_norm`. Needs the parameters.
    """
    if isinstance(clipping, (int, float)) and clipping < 0:
        raise ArgumentError(f"adaptive_grad_clip: clipping must not be negative, got {clipping}")

    def rule(u: Array, p: Array) -> Array:
        return unitwise_clip(unitwise_norm(u, axis), clipping * vnp.maximum(unitwise_norm(p, axis), eps), u)

    return leaf_rule_with_params("adaptive_grad_clip", rule)


# Clipping and private aggregation of gradients of single examples.
#
# The gradients are stacked along a first axis, as ``vmap(grad(...))`` returns them.


def _examples(name: str, grads: Updates) -> int:
    """Return the number of examples, the size of the first axis of all leaves."""
    shapes = [as_value(g).shape for g in tree.leaves(grads)]
    sizes = {shape[0] if shape else None for shape in shapes}
    if len(sizes) > 1 or None in sizes:
        raise ShapeError(f"{name}: the first axis of every gradient must count the examples (use vmap(grad(loss))), got shapes {shapes}")
    return sizes.pop() or 0 if sizes else 0


def _clipped_sum(grads: list[Array], limit: Any) -> tuple[list[Array], Array]:
    """Sum leaves over examples with norms clipped to `limit`, and count the clipped."""
    wide = [widened(g) for g in grads]
    squares = [vnp.sum(abs_sq(g), axis=tuple(range(1, g.ndim))) for g in wide]
    norms = vnp.sqrt(sum(squares[1:], squares[0]))
    ratios = vnp.where(norms > limit, limit / norms, vnp.ones_like(norms))
    sums = [vnp.tensordot(ratios.astype(g.dtype), g, axes=1) for g in wide]
    return [cast_like(total, g) for total, g in zip(sums, grads, strict=True)], vnp.sum(ratios < 1)


def per_example_global_norm_clip(grads: Updates, l2_norm_clip: Any) -> tuple[Updates, Array]:
    """Sum the examples' gradients, each clipped to the global norm `l2_norm_clip`.

    Returns the sum and the number of examples that were scaled.

    >>> vf.optim.per_example_global_norm_clip([vf.numpy.array([[3.0, 4.0], [0.0, 0.5]])], 1.0)
    ([Array([0.6, 1.3], dtype=float32)], Array(1, dtype=int32))

    Raises `ShapeError` unless the first axes of all leaves have one size.
    """
    _examples("per_example_global_norm_clip", grads)
    leaves, treedef = tree.flatten(grads)
    if not leaves:
        return grads, vnp.zeros((), "int32")
    sums, clipped = _clipped_sum([as_value(g) for g in leaves], l2_norm_clip)
    return treedef.unflatten(sums), clipped


def per_example_layer_norm_clip(grads: Updates, global_l2_norm_clip: Any, uniform: bool = True) -> tuple[Updates, Updates]:
    """Sum the examples' gradients, each leaf scaled down to its own limit.

    See McMahan et al. (2018). The limits of the leaves combine to `global_l2_norm_clip`. They are equal if `uniform`, else they grow with
    the roots of the leaves' sizes. Returns the sums and, for each leaf, the number of examples that were scaled.
    """
    _examples("per_example_layer_norm_clip", grads)
    leaves, treedef = tree.flatten(grads)
    arrays = [as_value(g) for g in leaves]
    sizes = [1 if uniform else g[0].size for g in arrays]
    limits = [global_l2_norm_clip * (size / sum(sizes)) ** 0.5 for size in sizes]
    results = [_clipped_sum([g], limit) for g, limit in zip(arrays, limits, strict=True)]
    return treedef.unflatten([total for (total,), _ in results]), treedef.unflatten([clipped for _, clipped in results])


class DifferentiallyPrivateAggregateState(NamedTuple):
    """The key of the next noise."""

    rng_key: Any


def differentially_private_aggregate(l2_norm_clip: Any, noise_multiplier: Any, key: Any) -> GradientTransformation:
    """Average the examples' gradients with differential privacy (Abadi et al., 2016).

    Each is clipped to a norm of `l2_norm_clip`, and normal noise of standard deviation ``l2_norm_clip * noise_multiplier`` is added to
    the sum. Updates have a first axis of examples, which the result has not; so this transformation comes first in a chain. `key` is a
    random key or an integer seed.

    >>> loss = lambda w, x: w @ x
    >>> optimizer = optim.chain(optim.differentially_private_aggregate(1.0, 1.1, key=0), optim.sgd(0.1))
    >>> w, batch = vf.numpy.zeros(3), vf.numpy.ones((8, 3))
    >>> per_example = vf.vmap(vf.grad(loss), in_axes=(None, 0))(w, batch)
    >>> updates, state = optimizer.update(per_example, optimizer.init(w), w)
    >>> updates.shape
    (3,)

    Raises `ShapeError` unless the first axes of all leaves have one size.
    """
    deviation = l2_norm_clip * noise_multiplier

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        examples = _examples("differentially_private_aggregate", updates)
        sums, _ = per_example_global_norm_clip(updates, l2_norm_clip)
        leaves, treedef = tree.flatten(sums)
        next_key, *keys = random.split(state.rng_key, len(leaves) + 1)
        noisy = [(g + deviation * random.normal(k, g.shape, g.dtype)) / examples for g, k in zip(leaves, keys, strict=True)]
        return treedef.unflatten(noisy), DifferentiallyPrivateAggregateState(next_key)

    return GradientTransformationExtraArgs(lambda params: DifferentiallyPrivateAggregateState(as_key(key)), update)

"""Bounds on updates, and private aggregation of the gradients of single examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn import random, tree
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    Updates,
    leaf_rule,
    leaf_rule_with_params,
    stateless,
)
from volta_fn.optim.numerics import abs_sq, cast_like, factor, global_norm, scaled_by, widened
from volta_fn.optim.transforms.momentum import as_key

__all__ = [
    "DifferentiallyPrivateAggregateState", "adaptive_grad_clip", "clip", "clip_by_block_norm", "clip_by_block_rms", "clip_by_global_norm",
    "differentially_private_aggregate", "per_example_global_norm_clip", "per_example_layer_norm_clip", "unitwise_clip", "unitwise_norm",
]  # fmt: skip


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

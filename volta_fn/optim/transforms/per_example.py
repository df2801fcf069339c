"""Clipping and private aggregation of gradients of single examples.

The gradients are stacked along a first axis, as ``vmap(grad(...))`` returns them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn import random, tree
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ShapeError
from volta_fn.optim.base import GradientTransformation, GradientTransformationExtraArgs, Updates
from volta_fn.optim.numerics import abs_sq
from volta_fn.optim.transforms.weight_decay_and_noise import as_key
from volta_fn.optim.tree_rules import cast_like, widened

__all__ = ["DifferentiallyPrivateAggregateState", "differentially_private_aggregate", "per_example_global_norm_clip"]
__all__ += ["per_example_layer_norm_clip"]


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

"""Similarities and distances of vectors, and losses of pairs and triplets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ShapeError
from volta_fn.nn.activations import relu
from volta_fn.nn.losses.common import Reduction, check_broadcasts, real_operands, reduced

__all__ = ["cosine_embedding_loss", "cosine_similarity", "pairwise_distance", "pdist", "triplet_margin_loss"]
__all__ += ["triplet_margin_with_distance_loss"]


def cosine_similarity(first: Any, second: Any, *, axis: int = -1, eps: float = 1e-8) -> Array:
    """Return the cosine of the angle between vectors along `axis`.

    Their lengths count as at least `eps`. The other dimensions broadcast. For zero vectors the cosine is 0, with a gradient of 0
    through their length.

    >>> vf.nn.cosine_similarity(vf.numpy.array([[3.0, 4.0], [0.0, 0.0]]), vf.numpy.array([1.0, 0.0])).round(4)
    Array([0.6, 0. ], dtype=float32)
    """
    dtype, (x, y) = real_operands("cosine_similarity", first, second)
    x, y = vnp.broadcast_arrays(x, y)
    lengths = [vnp.maximum(vnp.linalg.norm(v, axis=axis, keepdims=True), eps) for v in (x, y)]
    return vnp.sum((x / lengths[0]) * (y / lengths[1]), axis).astype(dtype)


def pairwise_distance(first: Any, second: Any, *, p: float = 2.0, eps: float = 1e-6) -> Array:
    """Return the p-norm of first - second + eps along the last axis.

    The other dimensions broadcast. `eps` keeps the derivative of equal vectors' distance finite, as in PyTorch.

    >>> vf.nn.pairwise_distance(vf.numpy.array([[3.0, 4.0]]), vf.numpy.array([0.0, 0.0])).round(4)
    Array([5.], dtype=float32)
    """
    dtype, (x, y) = real_operands("pairwise_distance", first, second)
    return _distance(x, y, p, eps).astype(dtype)


def _distance(x: Array, y: Array, p: float, eps: float) -> Array:
    return vnp.linalg.norm(x - y + eps, p, axis=-1)


def cosine_embedding_loss(first: Any, second: Any, targets: Any, *, margin: float = 0.0, reduction: Reduction = "mean") -> Array:
    """Return 1 - cosine for target 1, and max(0, cosine - margin) for target -1.

    Other targets give 0.

    Args:
        first: vectors of shape (N, D) or (D,).
        second: vectors of the same shape.
        targets: 1 or -1, of shape (N,) or ().
        margin: the cosine up to which a pair counts as different.
        reduction: "mean" over the pairs (NaN of none), "sum", or "none" for each by itself.

    Raises:
        ShapeError: the shapes do not fit. DTypeError: complex numbers. ArgumentError: another reduction.

    >>> x, y = vf.numpy.array([[1.0, 0.0], [1.0, 0.0]]), vf.numpy.array([[0.0, 1.0], [2.0, 0.0]])
    >>> vf.nn.cosine_embedding_loss(x, y, vf.numpy.array([1, -1]), reduction="none").round(4)
    Array([1., 1.], dtype=float32)
    """
    dtype, (x1, x2, y) = real_operands("cosine_embedding_loss", first, second, targets)
    _check_vectors("cosine_embedding_loss", x1, x2)
    check_broadcasts("cosine_embedding_loss", "targets", y, x1.shape[:-1])
    squares = [vnp.sum(vnp.square(v), -1) + 1e-12 for v in (x1, x2)]  # PyTorch's guard of zero vectors
    cosine = vnp.sum(x1 * x2, -1) / vnp.sqrt(squares[0] * squares[1])
    values = vnp.where(y == 1, 1 - cosine, vnp.where(y == -1, relu(cosine - margin), vnp.where(vnp.isnan(y), y, 0.0)))
    return reduced("cosine_embedding_loss", values, reduction, dtype)


def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: Reduction = "mean",
) -> Array:
    """Return max(0, d(anchor, positive) - d(anchor, negative) + margin).

    d is `pairwise_distance` (Schroff et al. 2015).

    Args:
        anchor: vectors along the last axis.
        positive: of the same shape, which should be close to the anchor.
        negative: of the same shape, which should be further away by `margin`.
        margin: how much further.
        p: which norm.
        eps: added to differences.
        swap: whether d(anchor, negative) is replaced by d(positive, negative) where that is smaller (Balntas et al. 2016).
        reduction: "mean" over the triplets (NaN of none), "sum", or "none" for each by itself.

    Raises:
        ShapeError: the shapes differ. DTypeError: complex numbers. ArgumentError: another reduction.

    >>> a, p, n = (vf.numpy.array([[value, 0.0]]) for value in (0.0, 1.0, 1.5))
    >>> vf.nn.triplet_margin_loss(a, p, n).round(4)
    Array(0.5, dtype=float32)
    """
    dtype, (a, near, far) = real_operands("triplet_margin_loss", anchor, positive, negative)
    _check_vectors("triplet_margin_loss", a, near)
    _check_vectors("triplet_margin_loss", a, far)
    far_distance = _distance(a, far, p, eps)
    if swap:
        far_distance = vnp.minimum(far_distance, _distance(near, far, p, eps))
    return reduced("triplet_margin_loss", relu(_distance(a, near, p, eps) - far_distance + margin), reduction, dtype)


def triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Callable[[Any, Any], Any] = pairwise_distance,
    margin: float = 1.0,
    swap: bool = False,
    reduction: Reduction = "mean",
) -> Array:
    """Return `triplet_margin_loss` with another distance.

    `distance_function` takes two arrays of vectors; other arguments and errors are those of `triplet_margin_loss`.

    >>> a, p, n = (vf.numpy.array([[value, 0.0]]) for value in (0.0, 1.0, 1.5))
    >>> vf.nn.triplet_margin_with_distance_loss(a, p, n, distance_function=lambda x, y: vf.numpy.sum(vf.numpy.abs(x - y), -1))
    Array(0.5, dtype=float32)
    """
    dtype, (a, near, far) = real_operands("triplet_margin_with_distance_loss", anchor, positive, negative)
    _check_vectors("triplet_margin_with_distance_loss", a, near)
    _check_vectors("triplet_margin_with_distance_loss", a, far)
    far_distance = distance_function(a, far)
    if swap:
        far_distance = vnp.minimum(far_distance, distance_function(near, far))
    return reduced("triplet_margin_with_distance_loss", relu(distance_function(a, near) - far_distance + margin), reduction, dtype)


def pdist(x: Any, p: float = 2.0) -> Array:
    """Return the p-norms of the differences of all pairs of rows.

    For rows of shape (N, D) they have shape (N (N - 1) / 2,), in the order (0, 1), (0, 2), …, (1, 2), …. Raises `ShapeError` for other
    shapes.

    >>> vf.nn.pdist(vf.numpy.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])).round(4)
    Array([5.    , 1.    , 4.2426], dtype=float32)
    """
    dtype, (rows,) = real_operands("pdist", x)
    if rows.ndim != 2:
        raise ShapeError(f"pdist: vectors of shape (N, D) are needed, got {rows.shape}")
    first, second = np.triu_indices(rows.shape[0], 1)
    return vnp.linalg.norm(rows[first] - rows[second], p, axis=-1).astype(dtype)


def _check_vectors(loss: str, first: Array, second: Array) -> None:
    if first.shape != second.shape or first.ndim == 0:
        raise ShapeError(f"{loss}: vectors of one shape are needed, got {first.shape} and {second.shape}")

"""Losses of regression, margins and similarity."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.activations import relu, softplus
from volta_fn.nn.classification_losses import (
    Reduction,
    check_broadcasts,
    check_classes,
    check_pair,
    class_axis,
    class_labels,
    pick,
    real_operands,
    reduced,
)
from volta_fn.primitives.call import stop_gradient
from volta_fn.scipy.special import xlogy

__all__ = [
    "cosine_embedding_loss", "cosine_similarity", "gaussian_nll_loss", "hinge_embedding_loss", "hinge_loss", "huber_loss", "l1_loss",
    "mae_loss", "margin_ranking_loss", "mse_loss", "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss",
    "pairwise_distance", "pdist", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]  # fmt: skip


# Regression losses: squared, absolute and Huber errors, and likelihoods.


def mse_loss(predictions: Any, targets: Any, *, reduction: Reduction = "mean") -> Array:
    """Return the squared error (prediction - target)².

    Args:
        predictions: real numbers.
        targets: of the same shape, or one number for all.
        reduction: "mean" over all elements (NaN of none), "sum", or "none" for each by itself.

    Raises:
        ShapeError: the shapes differ. DTypeError: complex numbers. ArgumentError: another reduction.

    >>> vf.nn.mse_loss(vf.numpy.array([1.0, 2.0]), vf.numpy.array([1.0, 4.0]))
    Array(2., dtype=float32)
    """
    dtype, (x, y) = real_operands("mse_loss", predictions, targets)
    check_pair("mse_loss", x, y)
    return reduced("mse_loss", vnp.square(x - y), reduction, dtype)


def mae_loss(predictions: Any, targets: Any, *, reduction: Reduction = "mean") -> Array:
    """Return the absolute error |prediction - target|; also named `l1_loss`.

    Arguments and errors are those of `mse_loss`.

    >>> vf.nn.mae_loss(vf.numpy.array([1.0, 2.0]), vf.numpy.array([1.0, 4.0]))
    Array(1., dtype=float32)
    """
    dtype, (x, y) = real_operands("mae_loss", predictions, targets)
    check_pair("mae_loss", x, y)
    return reduced("mae_loss", vnp.abs(x - y), reduction, dtype)


l1_loss = mae_loss


def huber_loss(predictions: Any, targets: Any, *, delta: float = 1.0, reduction: Reduction = "mean") -> Array:
    """Return half the squared error, linear from an error of `delta` on (Huber 1964).

    Other arguments and errors as for `mse_loss`; `delta` must be positive (`ArgumentError`).

    >>> vf.nn.huber_loss(vf.numpy.array([0.5, 3.0]), 0.0, reduction="none")
    Array([0.125, 2.5  ], dtype=float32)
    """
    if not delta > 0:
        raise ArgumentError(f"huber_loss: delta is a positive number, got {delta!r}")
    dtype, (x, y) = real_operands("huber_loss", predictions, targets)
    check_pair("huber_loss", x, y)
    return reduced("huber_loss", _huber(x - y, delta), reduction, dtype)


def _huber(error: Array, delta: float) -> Array:
    """Return c (e - c/2) for the clipped error c, whose two derivatives are right."""
    limited = vnp.where(error > delta, delta, vnp.where(error < -delta, -delta, error))
    return limited * (error - 0.5 * limited)


def smooth_l1_loss(predictions: Any, targets: Any, *, beta: float = 1.0, reduction: Reduction = "mean") -> Array:
    """Return `huber_loss` with delta = `beta`, divided by `beta` (Girshick 2015).

    It has slope 1 far from zero; for beta = 0 it is `mae_loss`. Other arguments and errors as for `mse_loss`; `beta` must not be negative
    (`ArgumentError`).

    >>> vf.nn.smooth_l1_loss(vf.numpy.array([1.0, 3.0]), 0.0, beta=2.0, reduction="none")
    Array([0.25, 2.  ], dtype=float32)
    """
    if not beta >= 0:
        raise ArgumentError(f"smooth_l1_loss: beta is 0 or a positive number, got {beta!r}")
    dtype, (x, y) = real_operands("smooth_l1_loss", predictions, targets)
    check_pair("smooth_l1_loss", x, y)
    return reduced("smooth_l1_loss", _huber(x - y, beta) / beta if beta else vnp.abs(x - y), reduction, dtype)


def gaussian_nll_loss(
    means: Any, targets: Any, variances: Any, *, full: bool = False, eps: float = 1e-6, reduction: Reduction = "mean"
) -> Array:
    """Return minus the log-likelihood of targets under normal distributions.

    See Nix and Weigend (1994).

    Args:
        means: of the distributions.
        targets: of the same shape, or one number for all.
        variances: one for each row if they have the means' shape without the last axis, as in PyTorch; others are broadcast to the
            shape of the means. Those below `eps` count as `eps`, with gradients as if they were not; a negative one gives NaN.
        full: whether to add the constant log(2π)/2.
        eps: the least variance.
        reduction: as for `mse_loss`.

    >>> vf.nn.gaussian_nll_loss(vf.numpy.array([0.0, 0.0]), vf.numpy.array([0.0, 2.0]), 1.0, reduction="none")
    Array([0., 2.], dtype=float32)
    """
    dtype, (x, y, variance) = real_operands("gaussian_nll_loss", means, targets, variances)
    check_pair("gaussian_nll_loss", x, y)
    if variance.shape == x.shape[:-1] and x.ndim > 1:
        variance = vnp.expand_dims(variance, -1)
    check_broadcasts("gaussian_nll_loss", "variances", variance, x.shape)
    least = variance + stop_gradient(vnp.maximum(variance, eps) - variance)
    spread = vnp.where(variance < 0, math.nan, least)
    values = 0.5 * (vnp.log(spread) + vnp.square(x - y) / spread + (math.log(2 * math.pi) if full else 0.0))
    return reduced("gaussian_nll_loss", values, reduction, dtype)


def poisson_nll_loss(
    predictions: Any, targets: Any, *, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: Reduction = "mean"
) -> Array:
    """Return minus the log-likelihood of counts under Poisson distributions.

    The term log(target!) is omitted unless `full`.

    Args:
        predictions: logarithms of the rates, or the rates if not `log_input`.
        targets: counts, of the same shape, or one number for all.
        log_input: whether predictions are logarithms.
        full: whether to add Stirling's approximation of log(target!) for targets above 1.
        eps: added to rates before their logarithm is taken.
        reduction: as for `mse_loss`.

    >>> vf.nn.poisson_nll_loss(vf.numpy.array([2.0]), vf.numpy.array([3]), log_input=False).round(3)
    Array(-0.079, dtype=float32)
    """
    dtype, (x, y) = real_operands("poisson_nll_loss", predictions, targets)
    check_pair("poisson_nll_loss", x, y)
    values = vnp.exp(x) - y * x if log_input else x - y * vnp.log(x + eps)
    if full:
        safe = vnp.where(y > 1, y, 1.0)
        values = values + vnp.where(y > 1, xlogy(y, safe) - y + 0.5 * vnp.log(2 * math.pi * safe), 0.0)
    return reduced("poisson_nll_loss", values, reduction, dtype)


# Margin losses: hinge losses and ranking.


def hinge_loss(predictions: Any, targets: Any, *, margin: float = 1.0, reduction: Reduction = "mean") -> Array:
    """Return max(0, margin - target · prediction) (Cortes and Vapnik 1995).

    Args:
        predictions: real numbers.
        targets: -1 or 1, of the same shape, or one number for all.
        margin: beyond which a prediction costs nothing.
        reduction: "mean" over all elements (NaN of none), "sum", or "none" for each by itself.

    Raises:
        ShapeError: the shapes differ. DTypeError: complex numbers. ArgumentError: another reduction.

    >>> vf.nn.hinge_loss(vf.numpy.array([2.0, 0.5, -3.0]), vf.numpy.array([1, -1, 1]), reduction="none")
    Array([0. , 1.5, 4. ], dtype=float32)
    """
    dtype, (x, y) = real_operands("hinge_loss", predictions, targets)
    check_pair("hinge_loss", x, y)
    return reduced("hinge_loss", relu(margin - x * y), reduction, dtype)


def _positive(x: Array) -> Array:
    """Return max(0, x) with the derivative 1 at 0, so that ties are pushed apart."""
    return vnp.where(x < 0, 0.0, x)


def multi_margin_loss(
    scores: Any, labels: Any, weight: Any = None, *, p: float = 1, margin: float = 1.0, reduction: Reduction = "mean"
) -> Array:
    """Return the hinge loss of many classes.

    It is the sum of max(0, margin - score[label] + score)^p over the other classes, divided by the number C of classes.

    Args:
        scores: of shape (N, C) or (C,).
        labels: class numbers of shape (N,) or (). A number that is no class gives NaN, since compiled programs cannot raise.
        weight: one factor for each class, shape (C,), applied by label.
        p: the power.
        margin: by how much the label's score should exceed the others.
        reduction: as for `hinge_loss`; the mean is over the N examples.

    Raises:
        ShapeError: the shapes do not fit. DTypeError: labels that are not integers. ArgumentError: another reduction.

    >>> vf.nn.multi_margin_loss(vf.numpy.array([[0.0, 0.5, 3.0]]), vf.numpy.array([1])).round(4)
    Array(1.3333, dtype=float32)
    """
    dtype, (x,) = real_operands("multi_margin_loss", scores)
    if x.ndim not in (1, 2):
        raise ShapeError(f"multi_margin_loss: scores have shape (N, C) or (C,), got {x.shape}")
    dim = class_axis("multi_margin_loss", x, -1)
    numbers = class_labels("multi_margin_loss", labels, x.shape, dim)
    check_classes("multi_margin_loss", numbers, x.shape[dim])
    score, share = pick(x, numbers, dim)
    if weight is not None:
        factors = as_value(weight).astype(x.dtype)
        if factors.shape != (x.shape[dim],):
            raise ShapeError(f"multi_margin_loss: a weight of shape ({x.shape[dim]},) is needed, got {factors.shape}")
        share = share * vnp.take(factors, numbers, mode="clip")
    others = vnp.arange(x.shape[dim]) != numbers[..., None]
    terms = vnp.where(others, relu(margin - score[..., None] + x) ** p, 0.0)
    return reduced("multi_margin_loss", share * vnp.mean(terms, dim), reduction, dtype)


def margin_ranking_loss(first: Any, second: Any, targets: Any, *, margin: float = 0.0, reduction: Reduction = "mean") -> Array:
    """Return max(0, margin - target · (first - second)).

    The target is 1 where `first` should be greater by `margin`, -1 where `second` should. All arguments have one shape; `second` and
    `targets` may also be one number for all. Reduction and errors as for `hinge_loss`.

    >>> vf.nn.margin_ranking_loss(vf.numpy.array([1.0, 1.0]), vf.numpy.array([3.0, 0.0]), 1, reduction="none")
    Array([2., 0.], dtype=float32)
    """
    dtype, (x1, x2, y) = real_operands("margin_ranking_loss", first, second, targets)
    check_pair("margin_ranking_loss", x1, x2)
    check_pair("margin_ranking_loss", x1, y)
    return reduced("margin_ranking_loss", _positive(margin - y * (x1 - x2)), reduction, dtype)


def hinge_embedding_loss(distances: Any, targets: Any, *, margin: float = 1.0, reduction: Reduction = "mean") -> Array:
    """Return the distance for target 1, and max(0, margin - distance) for target -1.

    Other targets give the sum of both, as in PyTorch. Arguments and errors are those of `hinge_loss`.

    >>> vf.nn.hinge_embedding_loss(vf.numpy.array([0.2, 0.2]), vf.numpy.array([1, -1]), reduction="none").round(4)
    Array([0.2, 0.8], dtype=float32)
    """
    dtype, (x, y) = real_operands("hinge_embedding_loss", distances, targets)
    check_pair("hinge_embedding_loss", x, y)
    values = vnp.where(y == -1, 0.0, x) + vnp.where(y == 1, 0.0, _positive(margin - x))
    return reduced("hinge_embedding_loss", values, reduction, dtype)


def soft_margin_loss(predictions: Any, targets: Any, *, reduction: Reduction = "mean") -> Array:
    """Return log(1 + exp(-target · prediction)) for targets -1 or 1.

    Arguments and errors are those of `hinge_loss`.

    >>> vf.nn.soft_margin_loss(vf.numpy.array([0.0, 100.0]), vf.numpy.array([1, -1]), reduction="none").round(4)
    Array([  0.6931, 100.    ], dtype=float32)
    """
    dtype, (x, y) = real_operands("soft_margin_loss", predictions, targets)
    check_pair("soft_margin_loss", x, y)
    return reduced("soft_margin_loss", softplus(-x * y), reduction, dtype)


def multilabel_soft_margin_loss(scores: Any, targets: Any, weight: Any = None, *, reduction: Reduction = "mean") -> Array:
    """Return the mean over classes of binary cross entropy with logits.

    Args:
        scores: of shape (…, C).
        targets: 0 or 1 for each class, of the same shape.
        weight: a factor for each class, broadcast to the shape.
        reduction: "mean" over the examples (NaN of none), "sum", or "none" for each by itself.

    Raises as `hinge_loss` does.

    >>> vf.nn.multilabel_soft_margin_loss(vf.numpy.array([[0.0, 100.0]]), vf.numpy.array([[1, 1]])).round(4)
    Array(0.3466, dtype=float32)
    """
    name = "multilabel_soft_margin_loss"
    dtype, (x, y, w) = real_operands(name, scores, targets, 1.0 if weight is None else weight)
    dim = class_axis(name, x, -1)
    check_pair(name, x, y)
    check_broadcasts(name, "weight", w, x.shape)
    return reduced(name, vnp.mean(w * (y * softplus(-x) + (1 - y) * softplus(x)), dim), reduction, dtype)


def multilabel_margin_loss(scores: Any, labels: Any, *, reduction: Reduction = "mean") -> Array:
    """Return the hinge loss between the classes that apply and all others.

    It is the sum of max(0, 1 - score[label] + score[other]) over all pairs, divided by the number C of classes.

    Args:
        scores: of shape (N, C) or (C,).
        labels: the numbers of the classes that apply, of the same shape; those from the first negative number on do not count. A number
            of C or more gives NaN, since compiled programs cannot raise.
        reduction: as for `hinge_loss`; the mean is over the N examples.

    Raises `ShapeError` if the shapes do not fit, `DTypeError` for labels that are not integers.

    >>> vf.nn.multilabel_margin_loss(vf.numpy.array([0.1, 0.2, 0.4, 0.8]), vf.numpy.array([3, 0, -1, 1])).round(4)
    Array(0.85, dtype=float32)
    """
    name = "multilabel_margin_loss"
    dtype, (x,) = real_operands(name, scores)
    dim = class_axis(name, x, -1)
    if x.ndim not in (1, 2) or as_value(labels).shape != x.shape:
        raise ShapeError(f"{name}: scores and labels have one shape, (N, C) or (C,), got {x.shape} and {as_value(labels).shape}")
    count = x.shape[dim]
    numbers = class_labels(name, labels, (*x.shape, count), x.ndim)
    applies = vnp.cumsum((numbers < 0).astype("int32"), dim) == 0
    marked = applies[..., None] & (numbers[..., None] == vnp.arange(count))
    target_scores = vnp.take_along_axis(x, vnp.clip(numbers, 0, count - 1), dim)
    terms = relu(1 - target_scores[..., None] + x[..., None, :])
    others = ~vnp.any(marked, -2)
    total = vnp.sum(vnp.where(applies[..., None] & others[..., None, :], terms, 0.0), (-2, -1)) / count
    return reduced(name, vnp.where(vnp.any(applies & (numbers >= count), dim), vnp.nan, total), reduction, dtype)


# Similarities and distances of vectors, and losses of pairs and triplets.


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
    values = vnp.where(y == 1, 1 - cosine, vnp.where(y == -1, _positive(cosine - margin), vnp.where(vnp.isnan(y), y, 0.0)))
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
    return _triplets("triplet_margin_loss", (anchor, positive, negative), lambda x, y: _distance(x, y, p, eps), margin, swap, reduction)


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
    return _triplets("triplet_margin_with_distance_loss", (anchor, positive, negative), distance_function, margin, swap, reduction)


def _triplets(
    loss: str, triplet: tuple[Any, Any, Any], distance: Callable[[Any, Any], Any], margin: float, swap: bool, reduction: str
) -> Array:
    dtype, (anchor, near, far) = real_operands(loss, *triplet)
    for other in (near, far):
        _check_vectors(loss, anchor, other)
    far_distance = distance(anchor, far)
    if swap:
        far_distance = vnp.minimum(far_distance, distance(near, far))
    return reduced(loss, _positive(distance(anchor, near) - far_distance + margin), reduction, dtype)


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

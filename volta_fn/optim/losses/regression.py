"""Errors of regression, divergences, overlaps, and losses of embeddings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.nn import losses
from volta_fn.nn.activations import relu, sigmoid
from volta_fn.nn.losses.classification import check_reduction, kl_div, real_operands
from volta_fn.primitives.data_movement.movement import canonical_axis
from volta_fn.scipy.special.exponential import logsumexp, softmax

__all__ = [
    "binary_dice_loss", "convex_kl_divergence", "cosine_distance", "cosine_similarity", "dice_loss", "generalized_kl_divergence",
    "huber_loss", "kl_divergence", "kl_divergence_with_log_targets", "l2_loss", "log_cosh", "multiclass_generalized_dice_loss", "ntxent",
    "squared_error", "triplet_margin_loss",
]  # fmt: skip


# Argument checks and axes of losses with Optax's signatures.

#: One axis, several, or None for all.
Axes = int | tuple[int, ...] | None


def same_shapes(loss: str, first: Any, second: Any) -> tuple[np.dtype, list[Array]]:
    """Return the dtype of the result and the operands; `ShapeError` if shapes differ."""
    dtype, (x, y) = real_operands(loss, first, second)
    if x.shape != y.shape:
        raise ShapeError(f"{loss}: the arguments need one shape, got {x.shape} and {y.shape}; reshape or broadcast one of them")
    return dtype, [x, y]


def broadcast(loss: str, first: Any, second: Any) -> tuple[np.dtype, list[Array]]:
    """Return the dtype of the result and the operands, broadcast to one shape."""
    dtype, arrays = real_operands(loss, first, second)
    return dtype, list(vnp.broadcast_arrays(*arrays))


def errors_of(loss: str, predictions: Any, targets: Any) -> tuple[np.dtype, Array]:
    """Return the dtype of the result and predictions - targets (None: predictions)."""
    dtype, (x, y) = real_operands(loss, predictions, 0.0 if targets is None else targets)
    return dtype, x - y


def with_last_axis(loss: str, x: Array, axis: Axes) -> Array:
    """Return `x` with the given axes flattened to one, the last."""
    if not x.ndim:
        raise ShapeError(f"{loss}: an axis of classes is needed, got a 0-d array")
    axes = range(x.ndim) if axis is None else [canonical_axis(a, x.ndim) for a in ((axis,) if isinstance(axis, int) else axis)]
    batch = [a for a in range(x.ndim) if a not in axes]
    moved = x.transpose(*batch, *axes)
    return moved.reshape(*[x.shape[a] for a in batch], -1)


# Kullback-Leibler divergences with Optax's signatures.


@fused
def kl_divergence(log_predictions: Any, targets: Any, axis: Axes = -1, where: Any = None) -> Array:
    """Return the sum of target · (log(target) - log_prediction).

    Args:
        log_predictions: logarithms of probabilities.
        targets: probabilities; a target of 0 contributes 0.
        axis: the axis of classes, or several, which the result lacks; None for all.
        where: True for the classes that count.

    Raises `DTypeError` for complex numbers.

    >>> optim.losses.kl_divergence(vnp.log(vnp.array([0.5, 0.5])), vnp.array([1.0, 0.0])).round(4)
    Array(0.6931, dtype=float32)
    """
    dtype, (x, y) = broadcast("kl_divergence", log_predictions, targets)
    return vnp.sum(kl_div(x, y, reduction="none"), axis, where=where).astype(dtype)


@fused
def kl_divergence_with_log_targets(log_predictions: Any, log_targets: Any, axis: Axes = -1, where: Any = None) -> Array:
    """Return `kl_divergence` of targets that are given as logarithms.

    >>> even, sure = vnp.log(vnp.array([0.5, 0.5])), vnp.array([0.0, -vnp.inf])
    >>> optim.losses.kl_divergence_with_log_targets(even, sure).round(4)
    Array(0.6931, dtype=float32)
    """
    dtype, (x, y) = broadcast("kl_divergence_with_log_targets", log_predictions, log_targets)
    return vnp.sum(kl_div(x, y, log_target=True, reduction="none"), axis, where=where).astype(dtype)


@fused
def generalized_kl_divergence(log_predictions: Any, targets: Any, axis: Axes = -1, where: Any = None) -> Array:
    """Return `kl_divergence` plus the sum of exp(log_prediction) - target.

    It is not negative for any positive numbers, and equals the divergence of probabilities.

    >>> optim.losses.generalized_kl_divergence(vnp.log(vnp.array([2.0])), vnp.array([1.0])).round(4)
    Array(0.3069, dtype=float32)
    """
    dtype, (x, y) = broadcast("generalized_kl_divergence", log_predictions, targets)
    return (kl_divergence(x, y, axis, where) + vnp.sum(vnp.exp(x) - y, axis, where=where)).astype(dtype)


convex_kl_divergence = generalized_kl_divergence


# Errors of regression and similarity of vectors, with Optax's signatures.


@fused
def squared_error(predictions: Any, targets: Any = None) -> Array:
    """Return (prediction - target)², with targets 0 unless given.

    Raises `ShapeError` if the shapes differ, `DTypeError` for complex numbers.

    >>> optim.losses.squared_error(vnp.array([1.0, 2.0]), vnp.array([1.0, 4.0]))
    Array([0., 4.], dtype=float32)
    """
    if targets is None:
        dtype, (x,) = real_operands("squared_error", predictions)
        return vnp.square(x).astype(dtype)
    dtype, (x, y) = same_shapes("squared_error", predictions, targets)
    return losses.mse_loss(x, y, reduction="none").astype(dtype)


@fused
def l2_loss(predictions: Any, targets: Any = None) -> Array:
    """Return half the `squared_error`.

    >>> optim.losses.l2_loss(vnp.array([1.0, 2.0]), vnp.array([1.0, 4.0]))
    Array([0., 2.], dtype=float32)
    """
    return 0.5 * squared_error(predictions, targets)


@fused
def huber_loss(predictions: Any, targets: Any = None, *, delta: float = 1.0) -> Array:
    """Return half the squared error, linear from an error of `delta` on (Huber 1964).

    Targets, 0 unless given, broadcast with the predictions. Raises `ArgumentError` unless `delta` is positive.

    >>> optim.losses.huber_loss(vnp.array([0.5, 3.0]))
    Array([0.125, 2.5  ], dtype=float32)
    """
    dtype, errors = errors_of("huber_loss", predictions, targets)
    return losses.huber_loss(errors, 0.0, delta=delta, reduction="none").astype(dtype)


@fused
def log_cosh(predictions: Any, targets: Any = None) -> Array:
    """Return log(cosh(prediction - target)), a smooth absolute error.

    Targets are 0 unless given. Small errors are as precise as large ones.

    >>> optim.losses.log_cosh(vnp.array([0.0, 1.0, 100.0])).round(4)
    Array([ 0.    ,  0.4338, 99.3069], dtype=float32)
    """
    dtype, x = errors_of("log_cosh", predictions, targets)
    small = vnp.abs(x) < 1
    near = vnp.where(small, x, 0.0)
    size = vnp.abs(vnp.where(small, 1.0, x))
    series = vnp.log1p(2 * vnp.square(vnp.sinh(near / 2)))
    return vnp.where(small, series, size + vnp.log1p(vnp.exp(-2 * size)) - math.log(2)).astype(dtype)


@fused
def cosine_similarity(predictions: Any, targets: Any, *, epsilon: float = 0.0, axis: Axes = -1, where: Any = None) -> Array:
    """Return the cosine of the angle between vectors.

    Args:
        predictions: vectors.
        targets: vectors, which broadcast with the predictions.
        epsilon: the least square of a vector's length that is divided by. With 0, zero vectors give NaN.
        axis: the vectors' axis, or several; None for all.
        where: True for the elements that count.

    Raises `DTypeError` for complex numbers.

    >>> optim.losses.cosine_similarity(vnp.array([[3.0, 4.0]]), vnp.array([[1.0, 0.0]])).round(4)
    Array([0.6], dtype=float32)
    """
    dtype, vectors = broadcast("cosine_similarity", predictions, targets)
    if where is not None:
        vectors = [vnp.where(where, v, 0.0) for v in vectors]
    x, y = (with_last_axis("cosine_similarity", v, axis) for v in vectors)
    return losses.cosine_similarity(x, y, eps=math.sqrt(epsilon)).astype(dtype)


@fused
def cosine_distance(predictions: Any, targets: Any, *, epsilon: float = 0.0, axis: Axes = -1, where: Any = None) -> Array:
    """Return 1 - `cosine_similarity`, whose arguments it has.

    >>> optim.losses.cosine_distance(vnp.array([[3.0, 4.0]]), vnp.array([[1.0, 0.0]])).round(4)
    Array([0.4], dtype=float32)
    """
    return 1.0 - cosine_similarity(predictions, targets, epsilon=epsilon, axis=axis, where=where)


# Losses of segmentation by overlap: Dice and Tversky.


def dice_loss(
    predictions: Any,
    targets: Any,
    *,
    class_weights: Any = None,
    smooth: Any = 1.0,
    alpha: Any = 0.5,
    beta: Any = 0.5,
    apply_softmax: bool = True,
    reduction: str = "mean",
    ignore_background: bool = False,
    axis: int | tuple[int, ...] | None = None,
) -> Array:
    """Return 1 - overlap of predicted and true segments (Milletari et al. 2016).

    The overlap of each class is (common + smooth) / (common + alpha · false positives + beta · false negatives + smooth): Dice's
    coefficient, or Tversky's with other weights (Salehi et al. 2017).

    Args:
        predictions: logits of shape (N, …, C), or (N, …) for one class.
        targets: probabilities of the same shape, usually one-hot.
        class_weights: a factor of each class's loss, shape (C,).
        smooth: keeps the overlap of empty segments finite.
        alpha: the weight of false positives.
        beta: the weight of false negatives.
        apply_softmax: whether predictions are logits, of which softmax (sigmoid if there is one class) makes probabilities.
        reduction: "mean", "sum" or "none" over the classes.
        ignore_background: whether class 0 does not count, if there are several.
        axis: the axes of pixels, by default all but the first and the last.

    Returns the loss of each example. Raises `ShapeError` if the shapes do not fit, `ArgumentError` for another reduction, or for
    probabilities that do not add up to 1 (unless they are traced).

    >>> targets = nn.one_hot(vnp.array([[0, 1, 1]]), 2)
    >>> optim.losses.dice_loss(100 * targets, targets)
    Array([0.], dtype=float32)
    """
    dtype, (x, y) = real_operands("dice_loss", predictions, targets)
    x = x[..., None] if x.ndim == y.ndim - 1 else x
    y = y[..., None] if y.ndim == x.ndim - 1 else y
    if x.shape != y.shape or not x.ndim:
        raise ShapeError(f"dice_loss: predictions and targets need one shape, got {x.shape} and {y.shape}")
    probabilities = _probabilities(x, apply_softmax)
    pixels = tuple(range(1, x.ndim - 1)) if axis is None else axis
    common, predicted, true = (vnp.sum(v, pixels) for v in (probabilities * y, probabilities, y))
    values = 1.0 - (common + smooth) / (common + alpha * (predicted - common) + beta * (true - common) + smooth)
    if class_weights is not None:
        classes = x.shape[-1]
        weights = as_value(class_weights)
        if weights.shape != (classes,):
            raise ShapeError(f"dice_loss: {classes} classes need class_weights of shape ({classes},), got {weights.shape}")
        values = values * weights.astype(values.dtype)
    if ignore_background and x.shape[-1] > 1:
        values = values[..., 1:]
    return _over_classes(values, reduction).astype(dtype)


def _probabilities(x: Array, apply_softmax: bool) -> Array:
    if apply_softmax:
        return sigmoid(x) if x.shape[-1] == 1 else softmax(x)
    if x.shape[-1] > 1 and isinstance(x, ConcreteArray) and not bool(vnp.allclose(vnp.sum(x, -1), 1.0, rtol=1e-5)):
        raise ArgumentError("dice_loss: probabilities must add up to 1 along the last axis; for logits use apply_softmax=True")
    return x


def _over_classes(values: Array, reduction: str) -> Array:
    check_reduction("dice_loss", reduction)
    if reduction == "none":
        return values
    return vnp.mean(values, -1) if reduction == "mean" else vnp.sum(values, -1)


def multiclass_generalized_dice_loss(
    predictions: Any, targets: Any, *, smooth: Any = 1.0, apply_softmax: bool = True, ignore_background: bool = False
) -> Array:
    """Return the mean `dice_loss`, weighted by the inverse squares of class sizes.

    See Sudre et al. (2017). Arguments are those of `dice_loss`; the result is a scalar.

    >>> targets = nn.one_hot(vnp.array([[0, 1, 1]]), 2)
    >>> optim.losses.multiclass_generalized_dice_loss(vnp.zeros((1, 3, 2)), targets).round(4)
    Array(0.3212, dtype=float32)
    """
    dtype, (x, y) = real_operands("multiclass_generalized_dice_loss", predictions, targets)
    if x.shape != y.shape:
        raise ShapeError(f"multiclass_generalized_dice_loss: predictions and targets need one shape, got {x.shape} and {y.shape}")
    weights = 1.0 / (vnp.square(vnp.sum(y, tuple(range(y.ndim - 1)))) + 1e-7)
    weights = weights / vnp.sum(weights) * weights.size
    options: dict[str, Any] = {"apply_softmax": apply_softmax, "ignore_background": ignore_background}
    return vnp.mean(dice_loss(x, y, class_weights=weights, smooth=smooth, reduction="none", **options)).astype(dtype)


def binary_dice_loss(predictions: Any, targets: Any, *, smooth: Any = 1.0, apply_sigmoid: bool = True) -> Array:
    """Return the `dice_loss` of one class, of arrays (N, …) or (N, …, 1).

    >>> optim.losses.binary_dice_loss(vnp.array([[100.0, -100.0]]), vnp.array([[1.0, 0.0]]))
    Array([0.], dtype=float32)
    """
    dtype, (x, y) = real_operands("binary_dice_loss", predictions, targets)
    if x.ndim == y.ndim and x.ndim and x.shape[-1] != 1:
        x, y = x[..., None], y[..., None]
    return dice_loss(x, y, smooth=smooth, apply_softmax=apply_sigmoid).astype(dtype)


# Losses of embeddings: contrastive and triplets.


@fused
def ntxent(embeddings: Any, labels: Any, temperature: Any = 0.07) -> Array:
    """Return the normalised, temperature-scaled cross entropy (Chen et al. 2020).

    Each pair of embeddings with equal labels is a positive one, contrasted with all embeddings of other labels.

    Args:
        embeddings: vectors of shape (N, D).
        labels: numbers of shape (N,).
        temperature: divides the cosine similarities.

    Returns the mean over positive pairs (NaN if there are none). Raises `ShapeError` if the shapes do not fit.

    >>> embeddings = vnp.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> optim.losses.ntxent(embeddings, vnp.array([0, 0, 1, 1]), temperature=0.5).round(4)
    Array(0.2899, dtype=float32)
    """
    dtype, (x,) = real_operands("ntxent", embeddings)
    names = as_value(labels)
    if x.ndim != 2 or names.shape != x.shape[:1]:
        raise ShapeError(f"ntxent: embeddings have shape (N, D) and labels (N,), got {x.shape} and {names.shape}")
    scores = cosine_similarity(x[None], x[:, None], epsilon=float(vnp.finfo(x.dtype).eps)) / temperature
    equal = names[:, None] == names[None]
    others = logsumexp(vnp.where(equal, -math.inf, scores), 1, keepdims=True)
    positive = equal & ~vnp.eye(x.shape[0], dtype=bool)
    terms = vnp.logaddexp(others, scores) - scores
    return (vnp.sum(vnp.where(positive, terms, 0.0)) / vnp.sum(positive)).astype(dtype)


@fused
def triplet_margin_loss(
    anchors: Any, positives: Any, negatives: Any, axis: int = -1, norm_degree: float = 2, margin: Any = 1.0, eps: Any = 1e-6
) -> Array:
    """Return max(0, d(anchor, positive) - d(anchor, negative) + margin).

    d is the norm (Σ|x - y|ᵖ + eps)^(1/p). (`nn.triplet_margin_loss` adds eps to the differences instead, as PyTorch does.)

    Args:
        anchors: vectors.
        positives: vectors that should be close to the anchors.
        negatives: vectors that should be further away.
        axis: the vectors' axis.
        norm_degree: p.
        margin: how much further.
        eps: keeps the derivative of a distance of 0 finite.

    >>> a, p, n = (vnp.array([[value, 0.0]]) for value in (0.0, 1.0, 1.5))
    >>> optim.losses.triplet_margin_loss(a, p, n).round(4)
    Array([0.5], dtype=float32)
    """
    dtype, (a, near, far) = real_operands("triplet_margin_loss", anchors, positives, negatives)

    def distance(other: Array) -> Array:
        powers = vnp.abs(a - other) ** norm_degree
        return (vnp.sum(powers, axis) + eps) ** (1 / norm_degree)

    return relu(distance(near) - distance(far) + margin).astype(dtype)

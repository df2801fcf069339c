"""Losses with Optax's names and signatures, one value for each example.

These are errors of regression, divergences, overlaps and losses of embeddings, then losses of classes, rankings and label sequences.

They do not reduce over the batch: ``jnp.mean(optim.losses.softmax_cross_entropy(logits, labels))`` is the usual loss. Those that
`volta_fn.nn.losses` has under PyTorch's signature are computed there. float16 and bfloat16 are computed in float32; results have the dtype
in which the arguments combine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.nn import losses
from volta_fn.nn.activations import one_hot, relu, sigmoid, sparse_plus
from volta_fn.nn.classification_losses import check_reduction, class_labels, forward_probabilities, kl_div, pick, real_operands
from volta_fn.optim.projections import simplex_rows
from volta_fn.primitives.call import stop_gradient
from volta_fn.primitives.data_movement.movement import canonical_axis
from volta_fn.scipy.special.exponential import log_softmax, logsumexp, softmax

__all__ = [
    "binary_dice_loss", "convex_kl_divergence", "cosine_distance", "cosine_similarity", "ctc_loss", "ctc_loss_with_forward_probs",
    "dice_loss", "generalized_kl_divergence", "hinge_loss", "huber_loss", "kl_divergence", "kl_divergence_with_log_targets", "l2_loss",
    "log_cosh", "make_fenchel_young_loss", "multiclass_generalized_dice_loss", "multiclass_hinge_loss", "multiclass_perceptron_loss",
    "multiclass_sparsemax_loss", "ntxent", "perceptron_loss", "poly_loss_cross_entropy", "ranking_softmax_loss",
    "safe_softmax_cross_entropy", "sigmoid_binary_cross_entropy", "sigmoid_focal_loss", "smooth_labels", "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels", "sparsemax_loss", "squared_error", "triplet_margin_loss",
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

    >>> optim.losses.kl_divergence(jnp.log(jnp.array([0.5, 0.5])), jnp.array([1.0, 0.0])).round(4)
    Array(0.6931, dtype=float32)
    """
    dtype, (x, y) = broadcast("kl_divergence", log_predictions, targets)
    return vnp.sum(kl_div(x, y, reduction="none"), axis, where=where).astype(dtype)


@fused
def kl_divergence_with_log_targets(log_predictions: Any, log_targets: Any, axis: Axes = -1, where: Any = None) -> Array:
    """Return `kl_divergence` of targets that are given as logarithms.

    >>> even, sure = jnp.log(jnp.array([0.5, 0.5])), jnp.array([0.0, -jnp.inf])
    >>> optim.losses.kl_divergence_with_log_targets(even, sure).round(4)
    Array(0.6931, dtype=float32)
    """
    dtype, (x, y) = broadcast("kl_divergence_with_log_targets", log_predictions, log_targets)
    return vnp.sum(kl_div(x, y, log_target=True, reduction="none"), axis, where=where).astype(dtype)


@fused
def generalized_kl_divergence(log_predictions: Any, targets: Any, axis: Axes = -1, where: Any = None) -> Array:
    """Return `kl_divergence` plus the sum of exp(log_prediction) - target.

    It is not negative for any positive numbers, and equals the divergence of probabilities.

    >>> optim.losses.generalized_kl_divergence(jnp.log(jnp.array([2.0])), jnp.array([1.0])).round(4)
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

    >>> optim.losses.squared_error(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0]))
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

    >>> optim.losses.l2_loss(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0]))
    Array([0., 2.], dtype=float32)
    """
    return 0.5 * squared_error(predictions, targets)


@fused
def huber_loss(predictions: Any, targets: Any = None, *, delta: float = 1.0) -> Array:
    """Return half the squared error, linear from an error of `delta` on (Huber 1964).

    Targets, 0 unless given, broadcast with the predictions. Raises `ArgumentError` unless `delta` is positive.

    >>> optim.losses.huber_loss(jnp.array([0.5, 3.0]))
    Array([0.125, 2.5  ], dtype=float32)
    """
    dtype, errors = errors_of("huber_loss", predictions, targets)
    return losses.huber_loss(errors, 0.0, delta=delta, reduction="none").astype(dtype)


@fused
def log_cosh(predictions: Any, targets: Any = None) -> Array:
    """Return log(cosh(prediction - target)), a smooth absolute error.

    Targets are 0 unless given. Small errors are as precise as large ones.

    >>> optim.losses.log_cosh(jnp.array([0.0, 1.0, 100.0])).round(4)
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

    >>> optim.losses.cosine_similarity(jnp.array([[3.0, 4.0]]), jnp.array([[1.0, 0.0]])).round(4)
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

    >>> optim.losses.cosine_distance(jnp.array([[3.0, 4.0]]), jnp.array([[1.0, 0.0]])).round(4)
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

    >>> targets = nn.one_hot(jnp.array([[0, 1, 1]]), 2)
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

    >>> targets = nn.one_hot(jnp.array([[0, 1, 1]]), 2)
    >>> optim.losses.multiclass_generalized_dice_loss(jnp.zeros((1, 3, 2)), targets).round(4)
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

    >>> optim.losses.binary_dice_loss(jnp.array([[100.0, -100.0]]), jnp.array([[1.0, 0.0]]))
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

    >>> embeddings = jnp.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> optim.losses.ntxent(embeddings, jnp.array([0, 0, 1, 1]), temperature=0.5).round(4)
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

    >>> a, p, n = (jnp.array([[value, 0.0]]) for value in (0.0, 1.0, 1.5))
    >>> optim.losses.triplet_margin_loss(a, p, n).round(4)
    Array([0.5], dtype=float32)
    """
    dtype, (a, near, far) = real_operands("triplet_margin_loss", anchors, positives, negatives)

    def distance(other: Array) -> Array:
        powers = vnp.abs(a - other) ** norm_degree
        return (vnp.sum(powers, axis) + eps) ** (1 / norm_degree)

    return relu(distance(near) - distance(far) + margin).astype(dtype)


# Cross entropies and margin losses of binary and multiclass predictions.


@fused
def sigmoid_binary_cross_entropy(logits: Any, labels: Any) -> Array:
    """Return -label log(p) - (1 - label) log(1 - p) with p = sigmoid(logit).

    Args:
        logits: any real numbers.
        labels: probabilities, usually 0 or 1, that broadcast with the logits.

    Returns the loss of each element. Raises `DTypeError` for complex numbers.

    >>> optim.losses.sigmoid_binary_cross_entropy(jnp.array([0.0, 4.0]), jnp.array([1.0, 0.0])).round(4)
    Array([0.6931, 4.0182], dtype=float32)
    """
    dtype, (x, y) = broadcast("sigmoid_binary_cross_entropy", logits, labels)
    return losses.binary_cross_entropy_with_logits(x, y, reduction="none").astype(dtype)


@fused
def sigmoid_focal_loss(logits: Any, labels: Any, *, alpha: float | None = None, gamma: float = 2.0) -> Array:
    """Return binary cross entropy times (1 - p)^gamma (Lin et al. 2017).

    p is the probability predicted for the label; `alpha`, if given, weighs positive labels, and 1 - alpha negative ones. Raises
    `ArgumentError` for a negative gamma, `DTypeError` for complex numbers.

    >>> optim.losses.sigmoid_focal_loss(jnp.array([0.0, 4.0]), jnp.array([1.0, 1.0])).round(6)
    Array([1.73287e-01, 6.00000e-06], dtype=float32)
    """
    dtype, (x, y) = broadcast("sigmoid_focal_loss", logits, labels)
    return losses.sigmoid_focal_loss(x, y, alpha=alpha, gamma=gamma, reduction="none").astype(dtype)


@fused
def hinge_loss(predictor_outputs: Any, targets: Any) -> Array:
    """Return max(0, 1 - target · prediction) for targets -1 or 1.

    >>> optim.losses.hinge_loss(jnp.array([2.0, 0.5]), jnp.array([1, -1]))
    Array([0. , 1.5], dtype=float32)
    """
    dtype, (x, y) = broadcast("hinge_loss", predictor_outputs, targets)
    return losses.hinge_loss(x, y, reduction="none").astype(dtype)


@fused
def perceptron_loss(predictor_outputs: Any, targets: Any) -> Array:
    """Return max(0, -target · prediction) for targets -1 or 1 (Rosenblatt 1958).

    Raises `ShapeError` if the shapes differ.

    >>> optim.losses.perceptron_loss(jnp.array([2.0, 0.5]), jnp.array([1, -1]))
    Array([0. , 0.5], dtype=float32)
    """
    dtype, (x, y) = same_shapes("perceptron_loss", predictor_outputs, targets)
    return losses.hinge_loss(x, y, margin=0.0, reduction="none").astype(dtype)


def sparsemax_loss(logits: Any, labels: Any) -> Array:
    """Return the binary loss of sparsemax, ``sparse_plus(±logit)``.

    The logit is negated where the label is true. The loss is 0 beyond a margin of 1, and linear for large errors (Martins and Astudillo,
    2016).

    >>> optim.losses.sparsemax_loss(jnp.array([-1.0, 0.0, 2.0]), jnp.array([0, 0, 0]))
    Array([0.  , 0.25, 2.  ], dtype=float32)
    """
    dtype, (x,) = real_operands("sparsemax_loss", logits)
    return sparse_plus(vnp.where(as_value(labels) != 0, -x, x)).astype(dtype)


@fused
def softmax_cross_entropy(logits: Any, labels: Any, axis: Axes = -1, where: Any = None) -> Array:
    """Return minus the sum of label · log(softmax(logits)).

    Args:
        logits: any real numbers.
        labels: probabilities of the classes, usually one-hot, that broadcast with the logits. A label of 0 contributes 0, even where
            the logit is -inf.
        axis: the axis of classes, or several, which the result lacks; None for all.
        where: True for the classes that count, or for the examples if it lacks the axis of classes; those that do not have a loss of 0.

    Raises `DTypeError` for complex numbers.

    >>> logits = jnp.array([[2.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
    >>> optim.losses.softmax_cross_entropy(logits, nn.one_hot(jnp.array([0, 1]), 3)).round(4)
    Array([0.2395, 0.0134], dtype=float32)
    """
    dtype, (x, y) = real_operands("softmax_cross_entropy", logits, labels)
    mask = _class_mask(where, x, axis)
    scores = log_softmax(x, axis, mask)
    terms = y * vnp.where(y == 0, 0.0, scores)
    return (-vnp.sum(terms, axis, where=mask)).astype(dtype)


@fused
def safe_softmax_cross_entropy(logits: Any, labels: Any) -> Array:
    """Return `softmax_cross_entropy` over the last axis.

    In Optax only this function takes logits of -inf; here both do.

    >>> optim.losses.safe_softmax_cross_entropy(jnp.array([0.0, 0.0, -jnp.inf]), jnp.array([1.0, 0.0, 0.0])).round(4)
    Array(0.6931, dtype=float32)
    """
    return softmax_cross_entropy(logits, labels)


def _class_mask(where: Any, x: Array, axis: Axes) -> Array | None:
    """Return `where` with the axes of the logits."""
    if where is None:
        return None
    mask = as_value(where)
    return mask if mask.ndim == x.ndim or axis is None else vnp.expand_dims(mask, axis)


@fused
def softmax_cross_entropy_with_integer_labels(logits: Any, labels: Any, axis: int | tuple[int, ...] = -1, where: Any = None) -> Array:
    """Return log(sum(exp(logits))) - logits[label].

    Args:
        logits: any real numbers.
        labels: class numbers, of the shape of the logits without the axis of classes. A number that is no class gives NaN, since
            compiled programs cannot raise.
        axis: the axis of classes, or several, whose classes are numbered in C order.
        where: True for the classes that count; a loss without any is 0.

    Raises `ShapeError` if labels do not fit the logits, `DTypeError` for labels that are not integers.

    >>> logits = jnp.array([[2.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
    >>> optim.losses.softmax_cross_entropy_with_integer_labels(logits, jnp.array([0, 1])).round(4)
    Array([0.2395, 0.0134], dtype=float32)
    """
    name = "softmax_cross_entropy_with_integer_labels"
    dtype, (scores,) = real_operands(name, logits)
    mask = _class_mask(where, scores, axis)
    x = with_last_axis(name, scores, axis)
    if not x.shape[-1]:
        raise ShapeError(f"{name}: there are no classes along axis {axis} of shape {scores.shape}")
    numbers = class_labels(name, labels, x.shape, x.ndim - 1)
    x = x - stop_gradient(vnp.max(x, -1, keepdims=True))  # so that the difference below is of small numbers
    score, share = pick(x, numbers, x.ndim - 1)
    if mask is None:
        return (share * (logsumexp(x, -1) - score)).astype(dtype)
    selected = with_last_axis(name, vnp.broadcast_to(mask, scores.shape), axis)
    values = share * (logsumexp(x, -1, where=selected) - score)
    return vnp.where(vnp.any(selected, -1), values, 0.0).astype(dtype)


@fused
def poly_loss_cross_entropy(logits: Any, labels: Any, *, epsilon: Any = 2.0, axis: Axes = -1, where: Any = None) -> Array:
    """Return cross entropy plus epsilon times 1 - p of the label (Leng et al. 2022).

    Arguments are those of `softmax_cross_entropy`; `epsilon` is the coefficient of the first polynomial.

    >>> optim.losses.poly_loss_cross_entropy(jnp.array([2.0, 0.0]), jnp.array([1.0, 0.0])).round(4)
    Array(0.3653, dtype=float32)
    """
    dtype, (x, y) = real_operands("poly_loss_cross_entropy", logits, labels)
    mask = _class_mask(where, x, axis)
    missed = vnp.sum(y * (1 - softmax(x, axis, mask)), axis, where=mask)
    return (softmax_cross_entropy(x, y, axis, mask) + epsilon * missed).astype(dtype)


@fused
def smooth_labels(labels: Any, alpha: Any, *, axis: Axes = -1, where: Any = None) -> Array:
    """Return ``(1 - alpha) * labels + alpha / classes`` (Müller et al. 2019).

    Args:
        labels: one-hot labels or other probabilities.
        alpha: the fraction of probability that is spread evenly.
        axis: the axis of classes, or several; None for all.
        where: True for the classes that are counted.

    >>> optim.losses.smooth_labels(jnp.array([1.0, 0.0]), 0.1)
    Array([0.95, 0.05], dtype=float32)
    """
    dtype, (y,) = real_operands("smooth_labels", labels)
    classes = vnp.size(y, axis) if where is None else vnp.sum(as_value(where), axis, keepdims=True)
    return ((1.0 - alpha) * y + alpha / classes).astype(dtype)


# Connectionist temporal classification, with Optax's signature.


@fused
def ctc_loss(logits: Any, logit_paddings: Any, labels: Any, label_paddings: Any, *, blank_id: int = 0, log_epsilon: Any = -1e5) -> Array:
    """Return minus the log-probability of the labels, over all alignments.

    `nn.ctc_loss` has PyTorch's arguments.

    Args:
        logits: scores of shape (B, T, C): sequences, frames, classes.
        logit_paddings: 1 for frames past the end of a sequence, else 0; shape (B, T).
        labels: class numbers without blanks, shape (B, N).
        label_paddings: 1 for labels past the end, else 0; shape (B, N).
        blank_id: the class number of blanks.
        log_epsilon: what counts as the logarithm of 0, of labels that no alignment spells.

    Returns the loss of each sequence, shape (B,). Raises `ShapeError` if the shapes do not fit, `DTypeError` for labels that are not
    integers, `ArgumentError` for a blank that is no class.

    >>> optim.losses.ctc_loss(jnp.zeros((1, 3, 2)), jnp.zeros((1, 3)), jnp.array([[1]]), jnp.zeros((1, 1))).round(4)
    Array([0.2877], dtype=float32)
    """
    arguments = (logits, logit_paddings, labels, label_paddings)
    return ctc_loss_with_forward_probs(*arguments, blank_id=blank_id, log_epsilon=log_epsilon)[0]


@fused
def ctc_loss_with_forward_probs(
    logits: Any, logit_paddings: Any, labels: Any, label_paddings: Any, *, blank_id: int = 0, log_epsilon: Any = -1e5
) -> tuple[Array, Array, Array]:
    """Return `ctc_loss`, and the log-probabilities of having spelt the first labels.

    Returns:
        The losses, of shape (B,); after each frame, the log-probability of having spelt the first n labels and ended with a blank, shape
        (T, B, N + 1); and ended with the label n + 1, shape (T, B, N). The last frame's blanks include endings without a blank.

    >>> given = jnp.zeros((1, 3, 2)), jnp.zeros((1, 3)), jnp.array([[1]]), jnp.zeros((1, 1))
    >>> [x.shape for x in optim.losses.ctc_loss_with_forward_probs(*given)]
    [(1,), (3, 1, 2), (3, 1, 1)]
    """
    dtype, (x,) = real_operands("ctc_loss", logits)
    frame_pads, label_pads, numbers = as_value(logit_paddings), as_value(label_paddings), as_value(labels)
    if x.ndim != 3 or frame_pads.shape != x.shape[:2] or label_pads.shape != numbers.shape:
        raise ShapeError(
            "ctc_loss: logits have shape (B, T, C), logit_paddings (B, T), labels and label_paddings (B, N), got "
            f"{x.shape}, {frame_pads.shape}, {numbers.shape} and {label_pads.shape}"
        )
    scores = log_softmax(x).swapaxes(0, 1)
    frames, lengths = (vnp.sum(pads == 0, 1).astype("int32") for pads in (frame_pads, label_pads))
    values, states = forward_probabilities(scores, numbers, frames, lengths, blank_id)
    blanks, emitted = (vnp.maximum(state, log_epsilon) for state in (states[..., ::2], states[..., 1::2]))
    if x.shape[1]:
        blanks = blanks.at[-1, :, 1:].set(vnp.logaddexp(blanks[-1, :, 1:], emitted[-1]))
    return vnp.minimum(values, -log_epsilon).astype(dtype), blanks.astype(dtype), emitted.astype(dtype)


# Losses of several classes: hinge, perceptron, sparsemax, Fenchel-Young.


def multiclass_hinge_loss(scores: Any, labels: Any) -> Array:
    """Return by how much a class beats the label's score minus 1, at least 0.

    It is the largest of the label's score and the others plus 1, minus the label's (Crammer and Singer 2001).

    Args:
        scores: real numbers, with classes along the last axis.
        labels: class numbers, of the other axes' shape. A number that is no class gives NaN, since compiled programs cannot raise.

    Raises `ShapeError` if the shapes do not fit, `DTypeError` for labels that are not integers.

    >>> optim.losses.multiclass_hinge_loss(jnp.array([[3.0, 2.5, 0.0]]), jnp.array([0]))
    Array([0.5], dtype=float32)
    """
    return _margin_to_worst("multiclass_hinge_loss", scores, labels, 1.0)


def multiclass_perceptron_loss(scores: Any, labels: Any) -> Array:
    """Return the largest score minus the label's.

    Arguments and errors are those of `multiclass_hinge_loss`.

    >>> optim.losses.multiclass_perceptron_loss(jnp.array([[3.0, 2.5, 0.0]]), jnp.array([1]))
    Array([0.5], dtype=float32)
    """
    return _margin_to_worst("multiclass_perceptron_loss", scores, labels, 0.0)


def _operands(loss: str, scores: Any, labels: Any) -> tuple[Any, Array, Array]:
    dtype, (x,) = real_operands(loss, scores)
    if not x.ndim or not x.shape[-1]:
        raise ShapeError(f"{loss}: scores have classes along the last axis, got shape {x.shape}")
    return dtype, x, class_labels(loss, labels, x.shape, x.ndim - 1)


def _margin_to_worst(loss: str, scores: Any, labels: Any, margin: float) -> Array:
    dtype, x, numbers = _operands(loss, scores, labels)
    label_score, share = pick(x, numbers, x.ndim - 1)
    worst = vnp.max(x + margin * (1 - one_hot(numbers, x.shape[-1], dtype=x.dtype)), -1)
    return (share * (worst - label_score)).astype(dtype)


def multiclass_sparsemax_loss(scores: Any, labels: Any) -> Array:
    """Return the loss whose gradient is sparsemax(scores) minus the one-hot label.

    See Martins and Astudillo (2016). Arguments are those of `multiclass_hinge_loss`. The loss is 0 if the label's score exceeds the others
    by 1.

    >>> optim.losses.multiclass_sparsemax_loss(jnp.array([[2.0, 0.0], [0.0, 0.0]]), jnp.array([0, 0]))
    Array([0.  , 0.25], dtype=float32)
    """
    dtype, x, numbers = _operands("multiclass_sparsemax_loss", scores, labels)
    label_score, share = pick(x, numbers, x.ndim - 1)
    probabilities = simplex_rows(x)
    ahead = vnp.where(probabilities > 0, x - label_score[..., None], 0.0)
    rest = 0.5 * (1.0 - vnp.sum(probabilities * probabilities, -1))
    return (share * (vnp.sum(probabilities * ahead, -1) + rest)).astype(dtype)


def make_fenchel_young_loss(max_fun: Callable[..., Any]) -> Callable[..., Array]:
    """Return the Fenchel-Young loss ``max_fun(scores) - <targets, scores>``.

    See Blondel, Martins and Niculae (2020).

    Args:
        max_fun: a function of a vector of scores to a scalar, such as `logsumexp`: the conjugate of a regulariser.

    Returns a function of scores and targets, which are vectors along the last axis, and of further arguments of `max_fun`, which are
    vectors, too.

    >>> loss = optim.losses.make_fenchel_young_loss(nn.logsumexp)
    >>> loss(jnp.array([[2.0, 0.0, 0.0]]), jnp.array([[1.0, 0.0, 0.0]])).round(4)
    Array([0.2395], dtype=float32)
    """

    def loss(scores: Any, targets: Any, *args: Any, **kwargs: Any) -> Array:
        dtype, (x, y) = real_operands("Fenchel-Young loss", scores, targets)
        values = vnp.vectorize(max_fun, signature="(n)->()")(x, *args, **kwargs)
        return (values - vnp.sum(x * y, -1)).astype(dtype)

    return loss


# Losses of rankings.


@fused
def ranking_softmax_loss(
    logits: Any, labels: Any, *, where: Any = None, weights: Any = None, reduce_fn: Callable[..., Any] | None = vnp.mean
) -> Array:
    """Return minus the sum of label · log(softmax(logits)) over lists of items.

    It is the loss of ListNet (Cao et al. 2007), for relevances instead of probabilities.

    Args:
        logits: scores of shape (…, items).
        labels: relevances of the same shape.
        where: True for the items that exist; of the same shape.
        weights: factors of the labels.
        reduce_fn: reduces the lists' losses, with an argument `where` for the lists that have items; None for no reduction. The mean of
            no lists is 0.

    >>> optim.losses.ranking_softmax_loss(jnp.array([2.0, 1.0, 0.0]), jnp.array([1.0, 0.0, 0.0])).round(4)
    Array(0.4076, dtype=float32)
    """
    dtype, (x, y) = real_operands("ranking_softmax_loss", logits, labels)
    mask = None if where is None else as_value(where)
    if mask is not None:
        x, y = vnp.where(mask, x, -math.inf), vnp.where(mask, y, 0.0)
    if weights is not None:
        y = y * weights
    values = -vnp.sum(y * log_softmax(x), -1, where=mask)
    lists = None if mask is None else vnp.any(mask, -1)
    return _reduced(values, lists, reduce_fn).astype(dtype)


def _reduced(values: Array, lists: Array | None, reduce_fn: Callable[..., Any] | None) -> Array:
    if reduce_fn is None:
        return values if lists is None else vnp.where(lists, values, 0.0)
    result = reduce_fn(values, where=lists)
    if reduce_fn is not vnp.mean:
        return result
    none = values.size == 0 if lists is None else ~vnp.any(lists)
    return vnp.where(none, 0.0, result)

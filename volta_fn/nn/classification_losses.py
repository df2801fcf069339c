"""Losses of classification: cross entropies, focal losses, divergences, CTC."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import broadcasts_to, check_option
from volta_fn.dtypes import BOOL, FLOATS, INTEGERS, accumulator
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.activations import sigmoid, softplus
from volta_fn.numpy.arguments import as_signed, promote_inexact
from volta_fn.primitives.array_operations.array_indexing import check_indices
from volta_fn.primitives.data_movement.movement import canonical_axis
from volta_fn.scipy.special import xlogy
from volta_fn.scipy.special.exponential import log_softmax
from volta_fn.transforms.custom_derivatives import custom_jvp, custom_vjp

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "ctc_loss",
    "kl_div",
    "kl_divergence_gaussian",
    "linear_cross_entropy",
    "nll_loss",
    "sigmoid_focal_loss",
]

# Argument checks, picking of the labels' scores, and reductions of losses.

Reduction = Literal["mean", "sum", "none"]


def real_operands(loss: str, *values: Any) -> tuple[np.dtype, list[Array]]:
    """Return the dtype of the result, and the arguments widened to compute in.

    Integers and booleans become floats. Raises `DTypeError` for complex numbers, which have no order.
    """
    arrays = promote_inexact(loss, *values)
    dtype = arrays[0].dtype
    if dtype not in FLOATS:
        raise DTypeError(f"{loss}: real numbers are needed, got {dtype.name}; take the real and imaginary parts, or the absolute values")
    wide = accumulator(dtype)
    return dtype, arrays if wide == dtype else [a.astype(wide) for a in arrays]


def check_pair(loss: str, first: Array, second: Array) -> None:
    """Check that two arrays have one shape, or that the second is 0-d."""
    if second.ndim and first.shape != second.shape:
        raise ShapeError(f"{loss}: predictions and targets need the same shape, got {first.shape} and {second.shape}; reshape one of them")


def check_broadcasts(loss: str, name: str, value: Array, shape: tuple[int, ...]) -> None:
    """Check that an argument broadcasts to a shape."""
    if not broadcasts_to(value.shape, shape):
        raise ShapeError(f"{loss}: {name} of shape {value.shape} does not broadcast to {shape}")


def reduced(loss: str, values: Array, reduction: str, dtype: np.dtype) -> Array:
    """Reduce values to their mean (NaN of none) or sum, or keep them."""
    if reduction == "mean":
        return vnp.mean(values).astype(dtype)
    if reduction == "sum":
        return vnp.sum(values).astype(dtype)
    check_reduction(loss, reduction)
    return values.astype(dtype)


def check_reduction(loss: str, reduction: str, also: tuple[str, ...] = ()) -> None:
    """Check the name of a reduction."""
    check_option(reduction, f"{loss}: reduction", ("mean", "sum", "none", *also))


def class_axis(loss: str, scores: Array, axis: int | None) -> int:
    """Return the axis of classes, by default PyTorch's: 1, or 0 if there is no other."""
    if scores.ndim == 0:
        raise ShapeError(f"{loss}: an axis of classes is needed, got a 0-d array")
    dim = canonical_axis(min(1, scores.ndim - 1) if axis is None else axis, scores.ndim)
    if scores.shape[dim] == 0:
        raise ShapeError(f"{loss}: there are no classes along axis {dim} of shape {scores.shape}")
    return dim


def class_labels(loss: str, labels: Any, shape: tuple[int, ...], dim: int) -> Array:
    """Return class numbers as signed integers, after a check of their shape."""
    numbers = as_value(labels)
    expected = (*shape[:dim], *shape[dim + 1 :])
    if numbers.dtype not in INTEGERS:
        raise DTypeError(f"{loss}: class numbers are integers, got {numbers.aval}; convert them with labels.astype('int32')")
    if numbers.shape != expected:
        fitting = [axis for axis in range(len(shape)) if numbers.shape == (*shape[:axis], *shape[axis + 1 :])]
        remedy = f"; if classes are along axis {fitting[-1]}, say axis={fitting[-1] - len(shape)}" if fitting else ""
        raise ShapeError(
            f"{loss}: scores of shape {shape} with classes along axis {dim} need labels of shape {expected}, got {numbers.shape}{remedy}"
        )
    return as_signed(numbers)


def check_classes(loss: str, labels: Array, classes: int, ignored: int | None = None) -> None:
    """Raise `OutOfBoundsError` for a known label that is no class, and not `ignored`."""
    check_indices(labels, 0, classes, f"{loss}: the label {{}} is none of the {classes} classes 0 to {classes - 1}", ignored)


def pick(scores: Array, labels: Array, dim: int) -> tuple[Array, Array]:
    """Return each label's score and a factor of 1.

    For a label that is no class, the score is that of class 0 and the factor NaN.
    """
    is_class = (labels >= 0) & (labels < scores.shape[dim])
    index = vnp.expand_dims(vnp.where(is_class, labels, 0), dim)
    chosen = vnp.squeeze(vnp.take_along_axis(scores, index, dim), dim)
    return chosen, vnp.where(is_class, vnp.ones((), scores.dtype), np.nan)


# Kullback-Leibler divergences.


def kl_div(
    log_predictions: Any, targets: Any, *, log_target: bool = False, reduction: Literal["mean", "sum", "none", "batchmean"] = "mean"
) -> Array:
    """Return target (log(target) - log_prediction), the summands of the divergence.

    Args:
        log_predictions: logarithms of probabilities.
        targets: probabilities of the same shape, or one number for all. A target of 0 gives 0, whatever the prediction.
        log_target: whether the targets are logarithms of probabilities, too.
        reduction: "batchmean" for the sum divided by the size of the first axis, which is the divergence; "mean" over all elements, as
            in PyTorch; "sum"; or "none".

    Raises:
        ShapeError: the shapes differ. DTypeError: complex numbers. ArgumentError: another reduction.

    >>> half = vf.numpy.log(vf.numpy.array([[0.5, 0.5]]))
    >>> vf.nn.kl_div(half, vf.numpy.array([[1.0, 0.0]]), reduction="batchmean").round(4)
    Array(0.6931, dtype=float32)
    """
    check_reduction("kl_div", reduction, ("batchmean",))
    dtype, (x, y) = real_operands("kl_div", log_predictions, targets)
    check_pair("kl_div", x, y)
    if log_target:
        values = vnp.exp(y) * vnp.where(y == -math.inf, 0.0, y - x)
    else:
        values = xlogy(y, y) - y * vnp.where((y == 0) & (x == -math.inf), 0.0, x)
    if reduction == "batchmean":
        return (vnp.sum(values) / (x.shape[0] if x.ndim else 1)).astype(dtype)
    return reduced("kl_div", values, reduction, dtype)


def kl_divergence_gaussian(mu: Any, logvar: Any, *, reduction: Reduction = "sum") -> Array:
    """Return (mu² + exp(logvar) - 1 - logvar) / 2.

    This is the divergence of normal distributions from the standard normal one. It is the regularising term of variational autoencoders
    (Kingma and Welling 2014), summed by default.

    Args:
        mu: means.
        logvar: logarithms of the variances, of the same shape, or one number for all.
        reduction: "sum", "mean" over all elements (NaN of none), or "none" for each by itself.

    Raises:
        ShapeError: the shapes differ. DTypeError: complex numbers. ArgumentError: another reduction.

    >>> vf.nn.kl_divergence_gaussian(vf.numpy.array([0.0, 1.0]), vf.numpy.array([0.0, 0.0]))
    Array(0.5, dtype=float32)
    """
    dtype, (x, y) = real_operands("kl_divergence_gaussian", mu, logvar)
    check_pair("kl_divergence_gaussian", x, y)
    return reduced("kl_divergence_gaussian", 0.5 * (vnp.square(x) + (vnp.expm1(y) - y)), reduction, dtype)


# Losses of binary classification: cross entropy and focal loss.
#
# A *logit* is log(p / (1 - p)) of a probability p: any real number, which a sigmoid maps to p.


def binary_cross_entropy(probabilities: Any, targets: Any, weight: Any = None, *, reduction: Reduction = "mean") -> Array:
    """Return -target log(p) - (1 - target) log(1 - p).

    Logarithms are at least -100, and gradients at most 10¹² times the error. `binary_cross_entropy_with_logits` is more precise where p is
    close to 0 or 1.

    Args:
        probabilities: between 0 and 1; others give NaN.
        targets: probabilities of the same shape, or one number for all.
        weight: a factor for each element, broadcast to the shape.
        reduction: "mean" over all elements (NaN of none), "sum", or "none" for each by itself.

    Raises:
        ShapeError: the shapes do not fit. DTypeError: complex numbers. ArgumentError: another reduction.

    >>> vf.nn.binary_cross_entropy(vf.numpy.array([0.5, 0.0]), vf.numpy.array([1.0, 1.0]), reduction="none").round(4)
    Array([  0.6931, 100.    ], dtype=float32)
    """
    dtype, (p, y, w) = real_operands("binary_cross_entropy", probabilities, targets, 1.0 if weight is None else weight)
    check_pair("binary_cross_entropy", p, y)
    check_broadcasts("binary_cross_entropy", "weight", w, p.shape)
    return reduced("binary_cross_entropy", w * _cross_entropy(p, vnp.broadcast_to(y, p.shape)), reduction, dtype)


@custom_jvp
def _cross_entropy(p: Array, y: Array) -> Array:
    return -y * _log(p) - (1 - y) * _log1m(p)


_cross_entropy.defjvps(lambda g, out, p, y: g * (p - y) / vnp.maximum(p * (1 - p), 1e-12), lambda g, out, p, y: g * (_log1m(p) - _log(p)))


def _log(p: Array) -> Array:
    return vnp.maximum(vnp.log(p), -100.0)


def _log1m(p: Array) -> Array:
    return vnp.maximum(vnp.log1p(-p), -100.0)


def binary_cross_entropy_with_logits(
    logits: Any, targets: Any, weight: Any = None, *, pos_weight: Any = None, reduction: Reduction = "mean"
) -> Array:
    """Return `binary_cross_entropy` of sigmoid(logits), to full precision.

    Args:
        logits: any numbers.
        targets: probabilities of the same shape, or one number for all.
        weight: a factor for each element, broadcast to the shape.
        pos_weight: a factor of the loss of positive targets: above 1 it favours recall.
        reduction: as for `binary_cross_entropy`.

    >>> vf.nn.binary_cross_entropy_with_logits(vf.numpy.array([0.0, -1e4, 1e4]), 1.0, reduction="none").round(4)
    Array([6.931e-01, 1.000e+04, 0.000e+00], dtype=float32)
    """
    name = "binary_cross_entropy_with_logits"
    factors = [1.0 if w is None else w for w in (weight, pos_weight)]
    dtype, (x, y, w, positive) = real_operands(name, logits, targets, *factors)
    check_pair(name, x, y)
    check_broadcasts(name, "weight", w, x.shape)
    check_broadcasts(name, "pos_weight", positive, x.shape)
    return reduced(name, w * _of_logits(x, y, positive), reduction, dtype)


def _of_logits(x: Array, y: Array, positive: Any = 1.0) -> Array:
    """Return the loss as two terms that do not cancel: small losses stay precise."""
    return positive * y * softplus(-x) + (1 - y) * softplus(x)


def sigmoid_focal_loss(
    logits: Any, targets: Any, *, alpha: float | None = 0.25, gamma: float = 2.0, reduction: Reduction = "mean"
) -> Array:
    """Return binary cross entropy times (1 - p)^gamma (Lin et al. 2017).

    p is the probability predicted for the truth, so easy examples count less.

    Args:
        logits: any numbers.
        targets: probabilities (usually 0 or 1) of the same shape, or one number for all.
        alpha: the weight of positive targets, 1 - alpha being that of negative ones; None for no weights.
        gamma: how much less easy examples count; 0 weights all equally.
        reduction: as for `binary_cross_entropy`.

    >>> vf.nn.sigmoid_focal_loss(vf.numpy.array([0.0, 4.0]), 1.0, alpha=None, reduction="none").round(6)
    Array([1.73287e-01, 6.00000e-06], dtype=float32)
    """
    if not gamma >= 0:
        raise ArgumentError(f"sigmoid_focal_loss: gamma is 0 or a positive number, got {gamma!r}")
    dtype, (x, y) = real_operands("sigmoid_focal_loss", logits, targets)
    check_pair("sigmoid_focal_loss", x, y)
    # At 0 a power below 1 would have an infinite derivative.
    missed = vnp.maximum(y * sigmoid(-x) + (1 - y) * sigmoid(x), np.finfo(x.dtype).tiny)
    values = _of_logits(x, y) * missed**gamma
    if alpha is not None:
        values = values * (alpha * y + (1 - alpha) * (1 - y))
    return reduced("sigmoid_focal_loss", values, reduction, dtype)


# Losses of classification: cross entropy and the negative log-likelihood.
#
# The *labels* are class numbers, of the scores' shape without the axis of classes, or probabilities of the scores' shape.


def cross_entropy(
    logits: Any,
    labels: Any,
    weight: Any = None,
    *,
    ignore_index: int | None = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    axis: int | None = None,
) -> Array:
    """Return minus the logarithm of the probability softmax(logits) of the labels.

    Args:
        logits: scores; by default classes lie along axis 1 as in PyTorch, shape (N, C, …), or along the only one, shape (C,).
        labels: class numbers of shape (N, …), or probabilities (one-hot rows, say) of the shape of the logits. A number that is no
            class raises; in a compiled program it gives NaN, or with VOLTA_CHECK_INDICES=1 raises, too.
        weight: one factor for each class, shape (C,).
        ignore_index: labels of this number do not count; None for no such number. It does not apply to probabilities.
        label_smoothing: the fraction of each label's probability that is spread evenly over all classes (Szegedy et al. 2016).
        reduction: "mean" weighs each example by its label's weight and leaves out ignored ones (with probabilities: the plain mean
            over examples); "sum"; "none" for one loss an example, 0 for ignored ones. The mean of no examples is NaN.
        axis: the axis of classes: -1 for scores (batch, time, classes), as those of language models.

    Raises:
        ShapeError: labels or weight do not fit the logits.
        DTypeError: class numbers that are not integers, or in the place of the logits.
        OutOfBoundsError: a known class number is no class.
        ArgumentError: another reduction, smoothing outside [0, 1], or an `ignore_index` given with probabilities.

    >>> logits = vf.numpy.array([[2.0, 0.0, 0.0], [0.0, 1000.0, 0.0]])
    >>> vf.nn.cross_entropy(logits, vf.numpy.array([0, 2]), reduction="none").round(4)
    Array([2.395e-01, 1.000e+03], dtype=float32)
    >>> vf.nn.cross_entropy(logits, vf.nn.one_hot(vf.numpy.array([0, 1]), 3), label_smoothing=0.3).round(3)
    Array(100.32, dtype=float32)
    """
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"cross_entropy: label_smoothing is between 0 and 1, got {label_smoothing!r}")
    _check_scores("cross_entropy", logits, labels)
    dtype, (x,) = real_operands("cross_entropy", logits)
    dim = class_axis("cross_entropy", x, axis)
    scores = log_softmax(x, dim)
    return _likelihood("cross_entropy", scores, labels, weight, ignore_index, label_smoothing, reduction, dim, dtype)


def nll_loss(
    log_probabilities: Any,
    labels: Any,
    weight: Any = None,
    *,
    ignore_index: int | None = -100,
    reduction: Reduction = "mean",
    axis: int | None = None,
) -> Array:
    """Return minus the log-probabilities of the labels.

    Applied to `log_softmax` of logits, it is `cross_entropy`, whose arguments it has.

    >>> vf.nn.nll_loss(vf.numpy.log(vf.numpy.array([[0.5, 0.5], [0.25, 0.75]])), vf.numpy.array([0, 0])).round(4)
    Array(1.0397, dtype=float32)
    """
    _check_scores("nll_loss", log_probabilities, labels)
    dtype, (scores,) = real_operands("nll_loss", log_probabilities)
    dim = class_axis("nll_loss", scores, axis)
    return _likelihood("nll_loss", scores, labels, weight, ignore_index, 0.0, reduction, dim, dtype)


def _check_scores(loss: str, scores: Any, labels: Any) -> None:
    """Raise `DTypeError` for class numbers in the place of scores."""
    if all(getattr(x, "dtype", None) in INTEGERS for x in (scores, labels)) and np.ndim(scores) == np.ndim(labels):
        shape, dtype = np.shape(scores), np.dtype(scores.dtype).name
        raise DTypeError(f"{loss}: scores and labels are both integers of shape {shape} ({dtype}): pass the scores, not their argmax")


def _likelihood(
    loss: str,
    scores: Array,
    labels: Any,
    weight: Any,
    ignore_index: int | None,
    smoothing: float,
    reduction: str,
    dim: int,
    dtype: np.dtype,
) -> Array:
    factors = _class_weights(loss, weight, scores, dim)
    if as_value(labels).ndim < scores.ndim:
        numbers = class_labels(loss, labels, scores.shape, dim)
        return _of_numbers(loss, scores, numbers, factors, ignore_index, smoothing, reduction, dim).astype(dtype)
    if ignore_index not in (-100, None):
        raise ArgumentError(f"{loss}: ignore_index={ignore_index} needs class numbers, but the labels are probabilities")
    values = _of_probabilities(loss, scores, labels, factors, smoothing, dim)
    return reduced(loss, values, reduction, dtype)


def _class_weights(loss: str, weight: Any, scores: Array, dim: int) -> Array | None:
    if weight is None:
        return None
    factors, classes = as_value(weight), scores.shape[dim]
    if factors.shape != (classes,):
        raise ShapeError(f"{loss}: {classes} classes need a weight of shape ({classes},), got {factors.shape}")
    return real_operands(loss, factors)[1][0].astype(scores.dtype)


def _weighted(scores: Array, factors: Array | None, dim: int) -> Array:
    return scores if factors is None else scores * factors.reshape((-1,) + (1,) * (scores.ndim - 1 - dim))


def _of_numbers(
    loss: str, scores: Array, labels: Array, factors: Array | None, ignore_index: int | None, smoothing: float, reduction: str, dim: int
) -> Array:
    check_reduction(loss, reduction)
    check_classes(loss, labels, scores.shape[dim], ignore_index)
    counted = None if ignore_index is None else labels != ignore_index
    if counted is not None:
        labels = vnp.where(counted, labels, 0)  # a class, so that no NaN gets into gradients
    score, share = pick(scores, labels, dim)
    if factors is not None:
        share = share * vnp.take(factors, labels, mode="clip")
    values = -share * score
    if smoothing:
        spread = vnp.where(vnp.isnan(share), math.nan, -vnp.mean(_weighted(scores, factors, dim), dim))
        values = (1 - smoothing) * values + smoothing * spread
    if counted is not None:
        values, share = vnp.where(counted, values, 0.0), vnp.where(counted, share, 0.0)
    if reduction == "none":
        return values
    return vnp.sum(values) / vnp.sum(share) if reduction == "mean" else vnp.sum(values)


def _of_probabilities(loss: str, scores: Array, labels: Any, factors: Array | None, smoothing: float, dim: int) -> Array:
    _, (targets,) = real_operands(loss, labels)
    targets = targets.astype(scores.dtype)
    if targets.shape != scores.shape:
        numbers = scores.shape[:dim] + scores.shape[dim + 1 :]
        raise ShapeError(
            f"{loss}: scores of shape {scores.shape} with classes along axis {dim} need class numbers of shape {numbers}, or probabilities "
            f"of the shape of the scores, got {targets.shape}; for classes along another axis, say axis=-1"
        )
    if smoothing:
        targets = (1 - smoothing) * targets + smoothing / scores.shape[dim]
    # A class with score -inf and target 0 contributes 0, although 0 times -inf is NaN.
    sure = vnp.where((targets == 0) & (scores == -math.inf), 0.0, scores)
    return -vnp.sum(_weighted(targets * sure, factors, dim), dim)


# Connectionist temporal classification, a loss for unaligned label sequences.
#
# A *path* assigns a class to every frame. Merging its repeated classes and dropping *blanks* gives the labels that it spells. The loss is
# minus the logarithm of the total probability of all paths that spell the target (Graves et al. 2006). Dynamic programming over the
# *extended target* computes it: a blank before, after and between the labels, so that element 2i + 1 is label i.


def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    *,
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
) -> Array:
    """Return minus the log-probability of the targets, over all alignments.

    The gradient is with respect to the log-probabilities. (PyTorch's assumes that they come from log_softmax; through log_softmax both
    are equal.) Targets that no path can spell have infinite loss and zero gradient.

    Args:
        log_probs: log_softmax of scores, shape (T, N, C): frames, sequences, classes; or (T, C) for one sequence.
        targets: class numbers without blanks, shape (N, S), or (S,) for one sequence; values past a target's length do not matter.
        input_lengths: how many of the T frames are the sequence's own, shape (N,) or ().
        target_lengths: how many of the S labels are, likewise.
        blank: the class number of blanks.
        reduction: "mean" divides each loss by its target's length (at least 1) and averages over the batch (NaN of none); "sum";
            "none" for each sequence by itself.
        zero_infinity: whether infinite losses, of targets too long for their frames, become 0.

    A label that is no class, or a length that is negative or beyond T or S, gives NaN, since compiled programs cannot raise.

    Raises:
        ShapeError: the shapes do not fit. DTypeError: labels or lengths that are not integers.
        ArgumentError: another reduction, or a blank that is no class.

    >>> even = vf.numpy.log(vf.numpy.full((3, 1, 2), 0.5))
    >>> loss = vf.nn.ctc_loss(even, vf.numpy.array([[1]]), vf.numpy.array([3]), vf.numpy.array([1]))
    >>> vf.numpy.exp(-loss)  # 6 of the 8 paths of three frames spell "1": 100 010 001 110 011 111
    Array(0.75, dtype=float32)
    """
    check_reduction("ctc_loss", reduction)
    dtype, (scores,) = real_operands("ctc_loss", log_probs)
    numbers = [
        _integers(name, v) for name, v in (("targets", targets), ("input_lengths", input_lengths), ("target_lengths", target_lengths))
    ]
    labels, frames, lengths = numbers
    _check_shapes(scores, labels, frames, lengths, blank)
    single = scores.ndim == 2
    if single:
        scores, labels, frames, lengths = scores[:, None], labels[None], frames[None], lengths[None]
    losses, _ = _losses(scores, labels, frames, lengths, blank)
    if zero_infinity:
        losses = vnp.where(losses == math.inf, 0.0, losses)
    if reduction == "mean":
        losses = losses / vnp.maximum(lengths, 1)
    return reduced("ctc_loss", losses[0] if single else losses, reduction, dtype)


def forward_probabilities(scores: Array, labels: Array, frames: Array, lengths: Array, blank: int) -> tuple[Array, Array]:
    """Return each sequence's loss, and the log-probabilities after each frame.

    Log-probabilities of classes have shape (T, N, C), the result (T, N, 2S + 1): of having spelt the extended target up to each element.
    """
    labels = _integers("labels", labels)
    _check_shapes(scores, labels, frames, lengths, blank)
    return _losses(scores, labels, frames, lengths, blank, keep=True)


def _integers(name: str, values: Any) -> Array:
    array = as_value(values)
    if array.dtype not in INTEGERS:
        raise DTypeError(f"ctc_loss: {name} are integers, got {array.aval}")
    if array.dtype.itemsize == 8 or array.dtype == np.uint32:  # numbers beyond int32 must stay out of range
        array = vnp.clip(array, max(np.iinfo(array.dtype).min, -(2**31)), 2**31 - 1)
    return array.astype("int32")


def _check_shapes(scores: Array, labels: Array, frames: Array, lengths: Array, blank: int) -> None:
    if scores.ndim not in (2, 3):
        raise ShapeError(f"ctc_loss: log_probs have shape (T, N, C) or (T, C), got {scores.shape}")
    batch, classes = scores.shape[1:-1], scores.shape[-1]
    if labels.ndim != scores.ndim - 1 or labels.shape[:-1] != batch:
        expected = ", ".join([*map(str, batch), "S"]) + "," * (not batch)
        raise ShapeError(f"ctc_loss: log_probs {scores.shape} need targets of shape ({expected}), got {labels.shape}")
    if not frames.shape == lengths.shape == batch:
        raise ShapeError(f"ctc_loss: log_probs {scores.shape} need lengths of shape {batch}, got {frames.shape} and {lengths.shape}")
    if not 0 <= blank < classes:
        raise ArgumentError(f"ctc_loss: blank={blank} is none of {classes} classes")


def _losses(scores: Array, labels: Array, frames: Array, lengths: Array, blank: int, keep: bool = False) -> tuple[Array, Any]:
    """Return the loss of each sequence, and all states of the scan if `keep`.

    The state of the scan is the log-probability of having spelt the extended target up to each element. Before the first frame
    all weight is on the first blank, from which the first frame may continue to the first label.
    """
    steps, count, classes = scores.shape
    size = labels.shape[1]
    used = vnp.arange(size) < lengths[:, None]
    valid_labels = vnp.all(~used | ((labels >= 0) & (labels < classes)), 1)
    legal = valid_labels & (frames >= 0) & (frames <= steps) & (lengths >= 0) & (lengths <= size)
    safe = vnp.where(used & valid_labels[:, None], labels, blank)
    extended = vnp.full((count, 2 * size + 1), blank, "int32").at[:, 1::2].set(safe)
    # A blank between two labels may be left out, unless they are equal: they would merge.
    skips = (extended != _shifted(extended, 2, blank)) & (extended != blank)

    def step(state: Array, frame: tuple[Array, Array]) -> tuple[Array, Any]:
        row, index = frame
        skipped = vnp.where(skips, _shifted(state, 2, -math.inf), -math.inf)
        reached = _log_sum(vnp.stack([state, _shifted(state, 1, -math.inf), skipped]))
        spelt = reached + vnp.take_along_axis(row, extended, 1)
        state = vnp.where((index < frames)[:, None], spelt, state)
        return state, state if keep else None

    start = vnp.full((count, 2 * size + 1), -math.inf, scores.dtype).at[:, 0].set(0.0)
    final, states = lax.scan(step, start, (scores, vnp.arange(steps)))
    # A path ends at the last label or at the blank after it.
    last = vnp.take_along_axis(final, vnp.clip(2 * lengths, 0, 2 * size)[:, None], 1)
    label = vnp.take_along_axis(final, vnp.clip(2 * lengths - 1, 0, 2 * size)[:, None], 1)
    ends = vnp.stack([last, vnp.where(lengths[:, None] > 0, label, -math.inf)])
    return vnp.where(legal, -_log_sum(ends)[:, 0], math.nan), states


def _shifted(x: Array, by: int, fill: float) -> Array:
    """Shift rows to the right, and fill on the left."""
    return vnp.pad(x, ((0, 0), (by, 0)), constant_values=fill)[:, :-by]


@custom_jvp
def _log_sum(x: Array) -> Array:
    """Return log(sum(exp(x))) over the first axis; the gradient of -inf is 0."""
    top = vnp.max(x, 0)
    top = vnp.where(top == -math.inf, 0.0, top)
    return top + vnp.log(vnp.sum(vnp.exp(x - top), 0))


@_log_sum.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    out = _log_sum(x)
    weights = vnp.exp(x - vnp.where(out == -math.inf, 0.0, out))
    return out, vnp.sum(weights * tangent, 0)


# The cross entropy of a linear layer's results, without storing them all.
#
# The logits of a language model are its largest array: one number for each token and each word of the vocabulary. The loss depends on three
# numbers of a row of logits: their logsumexp, the label's logit, and (for smoothed labels) their mean. They are computed chunk by chunk of
# the classes with a running logsumexp, and gradients compute each chunk's logits again, as in Cut Cross-Entropy (Wijmans et al. 2024) and
# Liger Kernel (Hsu et al. 2024).


#: Logits of a chunk, at least and at most where rows are few enough, and classes of a chunk of many rows.
_ALL_AT_ONCE, _CHUNK, _FEWEST_CLASSES = 1 << 20, 1 << 22, 512


def linear_cross_entropy(
    x: Any,
    weight: Any,
    labels: Any,
    bias: Any = None,
    *,
    axis: int = 1,
    ignore_index: int | None = -100,
    where: Any = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    logits_soft_cap: float | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Return the cross entropy of the logits ``x @ weight + bias`` and labels.

    It is ``cross_entropy(x @ weight + bias, labels, axis=-1)`` in the memory of some chunks of logits. Gradients compute these again, which
    takes the time of one more product. There is no forward-mode derivative. float16 and bfloat16 have logits in float32.

    Args:
        x: floats of shape (…, features).
        weight: of the dtype of `x` and shape (features, classes), as `nn.Linear` has it.
        labels: class numbers, of shape (…). Known numbers that are no class raise; in a compiled program they give NaN.
        bias: of shape (classes,), or None.
        axis: the axis of classes in `weight`: 0 for (classes, features), the layout of embeddings and of PyTorch.
        ignore_index: labels of this number do not count; None for no such number.
        where: bool, of the shape of the labels; False: an example does not count.
        label_smoothing: the fraction of each label's probability that is spread evenly over all classes (Szegedy et al. 2016).
        z_loss: the factor of the squared logsumexp, which is added to each loss (Chowdhery et al. 2022, 5).
        logits_soft_cap: bounds logits smoothly: x becomes ``cap tanh(x / cap)`` (Gemma 2, 2024).
        reduction: "mean" over the examples that count (NaN of none); "sum"; "none" for one loss an example, 0 for others.

    Returns the loss in the dtype of `x`.

    Raises:
        ShapeError: the shapes do not fit.
        DTypeError: `x` and `weight` are not floats of one dtype, labels are not integers, or `where` is not bool.
        OutOfBoundsError: a known class number is no class.
        ArgumentError: another reduction or axis, smoothing outside [0, 1], or a bound that is not positive.

    >>> x, weight = vf.numpy.array([[1.0, 0.0], [0.0, 2.0]]), vf.numpy.array([[2.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> vf.nn.linear_cross_entropy(x, weight, vf.numpy.array([0, 1]), reduction="none").round(4)
    Array([0.2395, 2.2395], dtype=float32)
    """
    check_reduction("linear_cross_entropy", reduction)
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"linear_cross_entropy: label_smoothing is between 0 and 1, got {label_smoothing!r}")
    if axis not in (0, 1):
        raise ArgumentError(f"linear_cross_entropy: the classes are axis 0 or 1 of weight, got axis={axis!r}")
    if logits_soft_cap is not None and not logits_soft_cap > 0:
        raise ArgumentError(f"linear_cross_entropy: logits_soft_cap is None or a positive number, got {logits_soft_cap!r}")
    rows, matrix, offset = as_value(x), as_value(weight), None if bias is None else as_value(bias)
    _check(rows, matrix, offset, axis)
    classes = matrix.shape[axis]
    numbers = class_labels("linear_cross_entropy", labels, (*rows.shape[:-1], classes), rows.ndim - 1)
    counted = _counted(numbers, ignore_index, where)
    check_classes("linear_cross_entropy", numbers, classes, ignore_index)
    flat = rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1])
    head = _Head(axis, _chunk_size(flat.shape[0], classes), float(logits_soft_cap or 0.0), label_smoothing > 0)
    logsumexp, score, mean = _statistics(head, flat, matrix, offset, numbers.reshape(-1))
    values = logsumexp - (1 - label_smoothing) * score
    if label_smoothing:
        values = values - label_smoothing * mean
    if z_loss:
        values = values + z_loss * logsumexp * logsumexp
    values = values.reshape(numbers.shape)
    if counted is not None:
        values = vnp.where(counted, values, 0.0)
    if reduction == "mean":
        values = values.sum() / (numbers.size if counted is None else counted.sum())
    elif reduction == "sum":
        values = values.sum()
    return values.astype(rows.dtype)


def _counted(labels: Array, ignore_index: int | None, where: Any) -> Array | None:
    """Return which examples count; None for all."""
    counted = None if ignore_index is None else labels != ignore_index
    if where is None:
        return counted
    chosen = as_value(where)
    if chosen.dtype not in BOOL:
        raise DTypeError(f"linear_cross_entropy: where is bool, got {chosen.aval}")
    if chosen.shape != labels.shape:
        raise ShapeError(f"linear_cross_entropy: where has the shape of the labels, {labels.shape}, got {chosen.shape}")
    return chosen if counted is None else counted & chosen


def _check(x: Array, weight: Array, bias: Array | None, axis: int) -> None:
    if x.dtype not in FLOATS or weight.dtype != x.dtype:
        raise DTypeError(f"linear_cross_entropy: x and weight are floats of one dtype, got {x.dtype.name} and {weight.dtype.name}")
    if weight.ndim != 2 or not x.ndim or x.shape[-1] != weight.shape[1 - axis]:
        layout, other = ("(features, classes)", 0) if axis else ("(classes, features)", 1)
        raise ShapeError(
            f"linear_cross_entropy: x (…, features) and weight {layout} are needed, got {x.shape} and {weight.shape}; for the other "
            f"layout, say axis={other}"
        )
    if bias is not None and bias.shape != (weight.shape[axis],):
        raise ShapeError(f"linear_cross_entropy: {weight.shape[axis]} classes need a bias of that shape, got {bias.shape}")


def _chunk_size(rows: int, classes: int) -> int:
    """Return how many classes a chunk has."""
    if rows * classes <= _ALL_AT_ONCE:
        return classes
    return min(classes, max(_FEWEST_CLASSES, _CHUNK // rows))


# The statistics of rows of logits, and their derivatives.


class _Head(NamedTuple):
    """How logits follow from rows, and are divided.

    Attributes:
        axis: the axis of classes in the weight.
        chunk: the classes of a chunk; the last one repeats some of those before it if it would be shorter.
        softcap: the bound of logits; 0: none.
        has_mean: whether the mean of logits is asked for.
    """

    axis: int
    chunk: int
    softcap: float
    has_mean: bool


class _Chunk(NamedTuple):
    """A chunk of classes.

    Attributes:
        start: the first one.
        is_new: which of them no chunk before has.
        weight: their part of the weight.
        logits: of all rows.
    """

    start: Array
    is_new: Array
    weight: Array
    logits: Array


def _over_chunks(head: _Head, classes: int, step: Callable[[Any, Any], Any], carry: Any) -> Any:
    """Return ``carry = step(carry, number)`` after all chunks."""
    count = -(-classes // max(head.chunk, 1))
    if count <= 1:
        return step(carry, 0) if count else carry
    return lax.fori_loop(0, count, lambda number, carried: step(carried, number), carry)


def _chunk_of(head: _Head, x: Array, weight: Array, bias: Array | None, number: Any) -> _Chunk:
    classes = weight.shape[head.axis]
    first = vnp.asarray(number, "int32") * head.chunk
    start = vnp.minimum(first, classes - head.chunk)
    part = lax.dynamic_slice_in_dim(weight, start, head.chunk, head.axis)
    wide = accumulator(x.dtype)
    logits = lax.dot_general(x, part, (((1,), (1 - head.axis,)), ((), ())), preferred_element_type=wide)
    if bias is not None:
        logits = logits + lax.dynamic_slice_in_dim(bias, start, head.chunk, 0).astype(wide)
    return _Chunk(start, start + vnp.arange(head.chunk, dtype="int32") >= first, part, _bounded(head, logits))


def _bounded(head: _Head, logits: Array) -> Array:
    return vnp.tanh(logits / head.softcap) * head.softcap if head.softcap else logits


def _forward(head: _Head, x: Array, weight: Array, bias: Array | None, labels: Array) -> tuple[Array, Array, Array]:
    classes, wide = weight.shape[head.axis], accumulator(x.dtype)
    zeros = vnp.zeros(x.shape[:1], wide)

    def step(carry: tuple[Array, Array, Array], number: Any) -> tuple[Array, Array, Array]:
        top, total, summed = carry
        chunk = _chunk_of(head, x, weight, bias, number)
        new = vnp.maximum(top, chunk.logits.max(-1))
        terms = vnp.where(chunk.is_new, vnp.exp(chunk.logits - new[:, None]), 0.0).sum(-1)
        if head.has_mean:
            summed = summed + vnp.where(chunk.is_new, chunk.logits, 0.0).sum(-1)
        return new, total * vnp.exp(top - new) + terms, summed

    least = vnp.full(x.shape[:1], -float(np.finfo(wide).max), wide)  # from which a logit of -inf still differs by -inf
    top, total, summed = _over_chunks(head, classes, step, (least, zeros, zeros))
    return top + vnp.log(total), _score(head, x, weight, bias, labels), summed / max(classes, 1)


def _score(head: _Head, x: Array, weight: Array, bias: Array | None, labels: Array) -> Array:
    """Return the logits of the labels; NaN for numbers that are no class."""
    classes, wide = weight.shape[head.axis], accumulator(x.dtype)
    if not classes:
        return vnp.full(x.shape[:1], math.nan, wide)
    numbers = vnp.clip(labels, 0, classes - 1)
    columns = vnp.take(weight, numbers, axis=head.axis)
    score = (x.astype(wide) * (columns.T if head.axis else columns).astype(wide)).sum(-1)
    if bias is not None:
        score = score + vnp.take(bias, numbers).astype(wide)
    return vnp.where(numbers == labels, _bounded(head, score), math.nan)


def _residuals(head: _Head, x: Array, weight: Array, bias: Array | None, labels: Array) -> Any:
    results = _forward(head, x, weight, bias, labels)
    return results, (x, weight, bias, labels, results[0])


def _backward(head: _Head, residuals: Any, cotangents: Any) -> tuple[Any, ...]:
    x, weight, bias, labels, logsumexp = residuals
    to_logsumexp, to_score, to_mean = (c[:, None] for c in cotangents)
    classes, axis = weight.shape[head.axis], head.axis

    def step(carry: tuple[Array, Array, Array | None], number: Any) -> tuple[Array, Array, Array | None]:
        to_x, to_weight, to_bias = carry
        chunk = _chunk_of(head, x, weight, bias, number)
        slopes = vnp.exp(chunk.logits - logsumexp[:, None]) * to_logsumexp
        slopes = slopes + vnp.where(chunk.start + vnp.arange(head.chunk, dtype="int32") == labels[:, None], to_score, 0.0)
        if head.has_mean:
            slopes = slopes + to_mean / classes
        if head.softcap:
            slopes = slopes * (1 - (chunk.logits / head.softcap) ** 2)
        if to_bias is not None:
            to_bias = lax.dynamic_update_slice_in_dim(to_bias, slopes.sum(0).astype(to_bias.dtype), chunk.start, 0)
        slopes = slopes.astype(x.dtype)
        factors = (x, slopes) if axis else (slopes, x)
        part = lax.dot_general(*factors, (((0,), (0,)), ((), ())), preferred_element_type=accumulator(x.dtype))
        to_weight = lax.dynamic_update_slice_in_dim(to_weight, part.astype(weight.dtype), chunk.start, axis)
        new = vnp.where(chunk.is_new if axis else chunk.is_new[:, None], chunk.weight, 0)
        to_x = to_x + lax.dot_general(slopes, new, (((1,), (axis,)), ((), ())), preferred_element_type=accumulator(x.dtype))
        return to_x, to_weight, to_bias

    carry = vnp.zeros(x.shape, accumulator(x.dtype)), vnp.zeros_like(weight), None if bias is None else vnp.zeros_like(bias)
    to_x, to_weight, to_bias = _over_chunks(head, classes, step, carry)
    return to_x.astype(x.dtype), to_weight, to_bias, None


_statistics: Any = custom_vjp(_forward, nondiff_argnums=(0,))
_statistics.defvjp(_residuals, _backward)

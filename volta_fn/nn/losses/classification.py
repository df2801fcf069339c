"""Losses of classification: cross entropy and the negative log-likelihood.

The *labels* are class numbers, of the scores' shape without the axis of classes, or probabilities of the scores' shape.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.losses.common import (
    Reduction,
    check_classes,
    check_reduction,
    class_axis,
    class_labels,
    pick,
    real_operands,
    reduced,
)
from volta_fn.scipy.special.exponential import log_softmax

__all__ = ["cross_entropy", "nll_loss"]


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
        ShapeError: labels or weight do not fit the logits. DTypeError: class numbers that are not integers.
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
    dtype, (scores,) = real_operands("nll_loss", log_probabilities)
    dim = class_axis("nll_loss", scores, axis)
    return _likelihood("nll_loss", scores, labels, weight, ignore_index, 0.0, reduction, dim, dtype)


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
    score, share = pick(scores, labels, dim)
    if factors is not None:
        share = share * vnp.take(factors, labels, mode="clip")
    values = -share * score
    if smoothing:
        spread = vnp.where(vnp.isnan(share), math.nan, -vnp.mean(_weighted(scores, factors, dim), dim))
        values = (1 - smoothing) * values + smoothing * spread
    if ignore_index is not None:
        kept = labels != ignore_index
        values, share = vnp.where(kept, values, 0.0), vnp.where(kept, share, 0.0)
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

"""Accuracy, top-k accuracy, perplexity, and the area under the ROC curve."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import BOOL, INTEGERS
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.losses.classification import cross_entropy
from volta_fn.nn.losses.common import class_axis, class_labels, real_operands

__all__ = ["accuracy", "perplexity", "roc_auc", "top_k_accuracy"]


def accuracy(predictions: Any, labels: Any, *, weight: Any = None, axis: int | None = None) -> Array:
    """Return the fraction of right predictions; NaN of no examples.

    Args:
        predictions: class numbers, or scores with an axis of classes.
        labels: the true class numbers.
        weight: how much each example counts; a boolean mask leaves some out.
        axis: the axis of classes of scores.

    Raises:
        ShapeError: the shapes do not fit. DTypeError: class numbers that are not integers.

    >>> vf.nn.metrics.accuracy(vf.numpy.array([[0.1, 0.9], [0.8, 0.2]]), vf.numpy.array([1, 1]))
    Array(0.5, dtype=float32)
    """
    guess, truth = predicted_classes("accuracy", predictions, labels, axis)
    return weighted_share(guess == truth, weight, "accuracy")


def top_k_accuracy(scores: Any, labels: Any, k: int = 5, *, weight: Any = None, axis: int | None = None) -> Array:
    """Return the fraction of examples whose label has one of the `k` highest scores.

    Of equal scores, the lower classes come first. Arguments and errors as for `accuracy`; `ArgumentError` for a k that is not from 1 to the
    number of classes.

    >>> scores = vf.numpy.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    >>> vf.nn.metrics.top_k_accuracy(scores, vf.numpy.array([1, 0]), k=2)
    Array(0.5, dtype=float32)
    """
    _, (values,) = real_operands("top_k_accuracy", scores)
    dim = class_axis("top_k_accuracy", values, axis)
    truth = class_labels("top_k_accuracy", labels, values.shape, dim)
    if not 1 <= k <= values.shape[dim]:
        raise ArgumentError(f"top_k_accuracy: k is from 1 to {values.shape[dim]}, the number of classes, got {k!r}")
    rows = vnp.moveaxis(values, dim, -1)
    _, best = lax.top_k(rows, k)
    hits = vnp.any(best == truth[..., None], -1) & ~vnp.any(vnp.isnan(rows), -1)
    return weighted_share(hits, weight, "top_k_accuracy")


def perplexity(logits: Any, labels: Any, weight: Any = None, *, ignore_index: int | None = -100, axis: int | None = None) -> Array:
    """Return exp of the mean `cross_entropy`, whose arguments it has.

    It is the number of equally likely classes that would be as hard to predict.

    >>> vf.nn.metrics.perplexity(vf.numpy.zeros((3, 7)), vf.numpy.array([0, 3, 6])).round(4)
    Array(7., dtype=float32)
    """
    return vnp.exp(cross_entropy(logits, labels, weight, ignore_index=ignore_index, axis=axis))


def roc_auc(scores: Any, labels: Any) -> Array:
    """Return the area under the receiver operating characteristic.

    It is the probability that a positive example scores above a negative one. Equal scores count half (Mann and Whitney 1947). NaN if a
    score is NaN, or if there are no positive or no negative examples.

    Args:
        scores: numbers of shape (N,), larger for what seems positive.
        labels: of the same shape: true, or not 0, for positive examples.

    Raises:
        ShapeError: other shapes. DTypeError: complex scores.

    >>> vf.nn.metrics.roc_auc(vf.numpy.array([0.1, 0.4, 0.35, 0.8]), vf.numpy.array([0, 0, 1, 1]))
    Array(0.75, dtype=float32)
    """
    _, (values,) = real_operands("roc_auc", scores)
    positive = as_value(labels) != 0
    if values.ndim != 1 or positive.shape != values.shape:
        raise ShapeError(f"roc_auc: scores and labels of one shape (N,) are needed, got {values.shape} and {positive.shape}")
    order = vnp.argsort(values)
    ranked, hit = values[order], positive[order]
    below = vnp.concatenate([vnp.zeros(1, "int32"), vnp.cumsum(~hit, dtype="int32")])
    # Of each example: the negative ones that score less, and those that score no more.
    less = below[vnp.searchsorted(ranked, ranked, side="left")]
    no_more = below[vnp.searchsorted(ranked, ranked, side="right")]
    won = (less + no_more) / (2 * below[-1])
    area = vnp.sum(vnp.where(hit, won, 0.0)) / vnp.sum(hit)
    return vnp.where(vnp.any(vnp.isnan(values)), vnp.nan, area)


#: The prediction from scores that hold NaN.
_NONE = np.iinfo(np.int32).min


def predicted_classes(metric: str, predictions: Any, labels: Any, axis: int | None) -> tuple[Array, Array]:
    """Return predicted class numbers (an invalid one for NaN scores) and the labels."""
    given, wanted = as_value(predictions), as_value(labels)
    if given.ndim == wanted.ndim + 1:
        _, (scores,) = real_operands(metric, given)
        dim = class_axis(metric, scores, axis)
        wanted = class_labels(metric, wanted, scores.shape, dim)
        spoilt = vnp.any(vnp.isnan(scores), dim)
        return vnp.where(spoilt, _NONE, vnp.argmax(scores, dim)), wanted
    for array in (given, wanted):
        if array.dtype not in INTEGERS | BOOL:
            raise DTypeError(f"{metric}: class numbers are integers, got {array.aval}; scores need one axis more than the labels")
    if given.shape != wanted.shape:
        raise ShapeError(f"{metric}: predictions and labels need the same shape, got {given.shape} and {wanted.shape}")
    return given, wanted


def weighted_share(hits: Array, weight: Any, metric: str) -> Array:
    """Return the weighted mean of booleans, NaN of none."""
    if weight is None:
        return vnp.mean(hits.astype("float32"))
    (factors,) = real_operands(metric, weight)[1]
    if factors.shape != hits.shape:
        raise ShapeError(f"{metric}: {hits.shape} examples need a weight of that shape, got {factors.shape}")
    return vnp.sum(vnp.where(hits, factors, 0.0)) / vnp.sum(factors)

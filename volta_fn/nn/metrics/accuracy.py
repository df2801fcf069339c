"""How often predictions are right: accuracy, top-k accuracy, and perplexity."""

from __future__ import annotations

from typing import Any

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.nn.losses.classification import cross_entropy
from volta_fn.nn.losses.common import class_axis, class_labels, real_operands
from volta_fn.nn.metrics.common import predicted_classes, weighted_share


def accuracy(predictions: Any, labels: Any, *, weight: Any = None, axis: int | None = None) -> Array:
    """The share of right predictions; NaN of no examples.

    Args:
        predictions: class numbers, or scores with an axis of classes.
        labels: the true class numbers.
        weight: how much each example counts; a boolean mask leaves some out.
        axis: the axis of classes of scores.

    Raises:
        ShapeError: the shapes do not fit. DTypeError: class numbers that are not integers.

    >>> import volta_fn as vf
    >>> vf.nn.metrics.accuracy(vf.numpy.array([[0.1, 0.9], [0.8, 0.2]]), vf.numpy.array([1, 1]))
    Array(0.5, dtype=float32)
    """
    guess, truth = predicted_classes("accuracy", predictions, labels, axis)
    return weighted_share(guess == truth, weight, "accuracy")


def top_k_accuracy(scores: Any, labels: Any, k: int = 5, *, weight: Any = None, axis: int | None = None) -> Array:
    """The share of examples whose label is among the `k` classes of the highest scores; of equal scores, the lower classes come first.

    Arguments and errors as for `accuracy`; `ArgumentError` for a k that is not from 1 to the number of classes.

    >>> import volta_fn as vf
    >>> scores = vf.numpy.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    >>> vf.nn.metrics.top_k_accuracy(scores, vf.numpy.array([1, 0]), k=2)
    Array(0.5, dtype=float32)
    """
    _, (values,) = real_operands("top_k_accuracy", scores)
    place = class_axis("top_k_accuracy", values, axis)
    truth = class_labels("top_k_accuracy", labels, values.shape, place)
    if not 1 <= k <= values.shape[place]:
        raise ArgumentError(f"top_k_accuracy: k is from 1 to {values.shape[place]}, the number of classes, got {k!r}")
    rows = vnp.moveaxis(values, place, -1)
    _, best = lax.top_k(rows, k)
    hits = vnp.any(best == truth[..., None], -1) & ~vnp.any(vnp.isnan(rows), -1)
    return weighted_share(hits, weight, "top_k_accuracy")


def perplexity(logits: Any, labels: Any, weight: Any = None, *, ignore_index: int | None = -100, axis: int | None = None) -> Array:
    """exp of the mean `cross_entropy`: how many equally likely classes would be as hard to guess. Arguments as there.

    >>> import volta_fn as vf
    >>> vf.nn.metrics.perplexity(vf.numpy.zeros((3, 7)), vf.numpy.array([0, 3, 6])).round(4)
    Array(7., dtype=float32)
    """
    return vnp.exp(cross_entropy(logits, labels, weight, ignore_index=ignore_index, axis=axis))

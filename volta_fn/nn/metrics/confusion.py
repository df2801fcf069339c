"""The confusion matrix, and precision, recall and F1 from it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.losses.common import real_operands
from volta_fn.nn.metrics.classification import predicted_classes

__all__ = ["ClassificationScores", "classification_scores", "confusion_matrix", "f1_score", "precision", "recall"]


Average = Literal["binary", "micro", "macro", "weighted"] | None


def confusion_matrix(predictions: Any, labels: Any, num_classes: int, *, weight: Any = None, axis: int | None = None) -> Array:
    """Count how often each class (row) was predicted as each class (column).

    The result is an int32 array of shape (num_classes, num_classes). Matrices of batches may be added up. Pairs with a number that is no
    class, such as padding, are not counted. With a `weight` for each example, the counts are sums of weights. Other arguments and errors as
    for `accuracy`.

    >>> vf.nn.metrics.confusion_matrix(vf.numpy.array([0, 1, 1]), vf.numpy.array([0, 0, 1]), 2)
    Array([[1, 1],
           [0, 1]], dtype=int32)
    """
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 1:
        raise ArgumentError(f"confusion_matrix: num_classes is a positive integer, got {num_classes!r}")
    guess, truth = predicted_classes("confusion_matrix", predictions, labels, axis)
    counts = vnp.ones(truth.shape, "int32") if weight is None else real_operands("confusion_matrix", weight)[1][0]
    if counts.shape != truth.shape:
        raise ShapeError(f"confusion_matrix: {truth.shape} examples need a weight of that shape, got {counts.shape}")
    known = (guess >= 0) & (guess < num_classes) & (truth >= 0) & (truth < num_classes)
    row, column = (vnp.where(known, numbers, 0).astype("int32") for numbers in (truth, guess))
    empty = vnp.zeros((num_classes, num_classes), counts.dtype)
    return empty.at[row, column].add(vnp.where(known, counts, 0))


class ClassificationScores(NamedTuple):
    """Precision, recall, F1 and number of examples, of each class or on average."""

    precision: Array
    recall: Array
    f1: Array
    support: Array


def classification_scores(matrix: Any, average: Average = "macro", *, zero_division: float = 0.0) -> ClassificationScores:
    """Return precision, recall and F1 from a `confusion_matrix`.

    The matrix may be the sum of those of many batches.

    Args:
        matrix: counts, true classes in rows.
        average: None for one number a class; "macro" for their mean; "weighted" for their mean weighted by numbers of examples; "micro" for
            the result of all classes' counts together; "binary" for class 1 of two.
        zero_division: the value of 0 / 0, such as the precision of a class never predicted; NaN to see it.

    Raises:
        ShapeError: the matrix is not square, or not 2 by 2 for "binary". ArgumentError: another average.

    >>> vf.nn.metrics.classification_scores(vf.numpy.array([[3, 1], [2, 4]]), "binary").recall.round(4)
    Array(0.6667, dtype=float32)
    """
    counts = as_value(matrix)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1]:
        raise ShapeError(f"classification_scores: a square matrix is needed, got shape {counts.shape}")
    right, said, true = vnp.diagonal(counts), vnp.sum(counts, 0), vnp.sum(counts, 1)
    if average == "binary":
        if counts.shape != (2, 2):
            raise ShapeError(f'classification_scores: "binary" is of two classes, got {counts.shape[0]}; choose "macro", say')
        right, said, true = right[1], said[1], true[1]
    elif average == "micro":
        right, said, true = vnp.sum(right), vnp.sum(said), vnp.sum(true)
    elif average not in ("macro", "weighted", None):
        raise ArgumentError(f"classification_scores: average is binary, micro, macro, weighted or None, got {average!r}")
    rates = [_ratio(top, bottom, zero_division) for top, bottom in ((right, said), (right, true), (2 * right, said + true))]
    support = true if average is None else vnp.sum(true)
    if average == "macro":
        rates = [vnp.mean(r) for r in rates]
    elif average == "weighted":
        rates = [_ratio(vnp.sum(r * true), support, zero_division) for r in rates]
    return ClassificationScores(rates[0], rates[1], rates[2], support)


def _ratio(top: Array, bottom: Array, zero_division: float) -> Array:
    return vnp.where(bottom == 0, zero_division, vnp.true_divide(top, vnp.where(bottom == 0, 1, bottom)))


def precision(
    predictions: Any, labels: Any, num_classes: int = 2, average: Average = "binary", *, zero_division: float = 0.0, axis: int | None = None
) -> Array:
    """Return the fraction of predictions of a class that are right.

    Arguments are those of `confusion_matrix` and `classification_scores`.

    >>> vf.nn.metrics.precision(vf.numpy.array([1, 1, 0, 1]), vf.numpy.array([1, 0, 1, 1])).round(4)
    Array(0.6667, dtype=float32)
    """
    return classification_scores(
        confusion_matrix(predictions, labels, num_classes, axis=axis), average, zero_division=zero_division
    ).precision


def recall(
    predictions: Any, labels: Any, num_classes: int = 2, average: Average = "binary", *, zero_division: float = 0.0, axis: int | None = None
) -> Array:
    """Return the fraction of a class's examples that are predicted.

    Arguments are those of `confusion_matrix` and `classification_scores`.

    >>> vf.nn.metrics.recall(vf.numpy.array([1, 0, 0, 1]), vf.numpy.array([1, 0, 1, 1])).round(4)
    Array(0.6667, dtype=float32)
    """
    return classification_scores(confusion_matrix(predictions, labels, num_classes, axis=axis), average, zero_division=zero_division).recall


def f1_score(
    predictions: Any, labels: Any, num_classes: int = 2, average: Average = "binary", *, zero_division: float = 0.0, axis: int | None = None
) -> Array:
    """Return the harmonic mean of precision and recall.

    Arguments are those of `confusion_matrix` and `classification_scores`.

    >>> vf.nn.metrics.f1_score(vf.numpy.array([1, 0, 0, 1]), vf.numpy.array([1, 0, 1, 1])).round(4)
    Array(0.8, dtype=float32)
    """
    return classification_scores(confusion_matrix(predictions, labels, num_classes, axis=axis), average, zero_division=zero_division).f1

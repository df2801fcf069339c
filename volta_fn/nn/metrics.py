"""Metrics of predictions: classification, regression, means over batches."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import check_option
from volta_fn.dtypes import BOOL, INTEGERS, accumulator
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.classification_losses import class_axis, class_labels, cross_entropy, real_operands

__all__ = [
    "ClassificationScores", "Mean", "PrecisionRecallCurve", "RocCurve", "accuracy", "average_precision", "balanced_accuracy",
    "brier_score", "classification_scores", "cohen_kappa", "confusion_matrix", "explained_variance_score", "f1_score",
    "jaccard_score", "log_loss", "matthews_corrcoef", "max_error", "mean_absolute_error", "mean_absolute_percentage_error",
    "mean_squared_error", "median_absolute_error", "perplexity", "precision", "precision_recall_curve", "r2_score", "recall",
    "roc_auc", "roc_curve", "root_mean_squared_error", "top_k_accuracy",
]  # fmt: skip


class Mean(NamedTuple):
    """A running weighted mean over batches, a pytree for `jit` and `scan`.

    Means of separate data may be merged. Sums are kept in the dtype given to `init`. Float32 counts single examples exactly up to 2²⁴.

    >>> mean = vf.nn.metrics.Mean.init()
    >>> for batch in (vf.numpy.array([1.0, 2.0]), vf.numpy.array([6.0])):
    ...     mean = mean.update(batch)
    >>> mean.value
    Array(3., dtype=float32)
    """

    total: Array
    weight: Array

    @classmethod
    def init(cls, shape: tuple[int, ...] = (), dtype: Any = "float32") -> Mean:
        """Return the mean of no values, NaN; `shape` is that of single values."""
        return cls(vnp.zeros(shape, dtype), vnp.zeros((), dtype))

    def update(self, values: Any, weight: Any = None) -> Mean:
        """Add values along leading dimensions.

        `weight`, of the shape of those leading dimensions or 0-d, is the weight of each value: 0 to skip it, the size of the batch for the
        mean of a batch. Raises `ShapeError` for values or weights of other shapes.
        """
        _, (new,) = real_operands("Mean.update", values)
        lead = new.ndim - self.total.ndim
        if lead < 0 or new.shape[lead:] != self.total.shape:
            raise ShapeError(f"Mean.update: values end in the shape {self.total.shape}, got {new.shape}")
        new = new.astype(vnp.promote_types(accumulator(new.dtype), self.total.dtype))
        (factors,) = real_operands("Mean.update", 1.0 if weight is None else weight)[1]
        if factors.shape not in ((), new.shape[:lead]):
            raise ShapeError(
                f"Mean.update: values of shape {new.shape} need weights of shape {new.shape[:lead]} or (), got {factors.shape}"
            )
        factors = vnp.broadcast_to(factors, new.shape[:lead]).astype(new.dtype)
        shares = factors.reshape(factors.shape + (1,) * self.total.ndim)
        weighted = vnp.sum(vnp.where(shares == 0, 0.0, new * shares), tuple(range(lead)))
        return Mean((self.total + weighted).astype(self.total.dtype), (self.weight + vnp.sum(factors)).astype(self.weight.dtype))

    def merge(self, other: Mean) -> Mean:
        """Return the mean of the values of both."""
        return Mean(self.total + other.total, self.weight + other.weight)

    @property
    def value(self) -> Array:
        """The mean; NaN of nothing."""
        return self.total / self.weight


# The confusion matrix, and precision, recall and F1 from it.

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
    valid = (guess >= 0) & (guess < num_classes) & (truth >= 0) & (truth < num_classes)
    row, column = (vnp.where(valid, numbers, 0).astype("int32") for numbers in (truth, guess))
    empty = vnp.zeros((num_classes, num_classes), counts.dtype)
    return empty.at[row, column].add(vnp.where(valid, counts, 0))


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


# Accuracy, top-k accuracy, perplexity, and the area under the ROC curve.


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


# Curves of scores of two classes: average precision, ROC, precision and recall.


def _ranking(metric: str, scores: Any, labels: Any) -> tuple[Array, Array, Array, Array]:
    """Rank scores from the highest.

    Returns them, for each the number of examples and of positive ones that score no less, and the number of all positive ones.
    """
    _, (values,) = real_operands(metric, scores)
    positive = as_value(labels) != 0
    if values.ndim != 1 or positive.shape != values.shape:
        raise ShapeError(f"{metric}: scores and labels of one shape (N,) are needed, got {values.shape} and {positive.shape}")
    order = vnp.argsort(-values)
    ranked, hit = values[order], positive[order]
    hits = vnp.concatenate([vnp.zeros(1, "int32"), vnp.cumsum(hit, dtype="int32")])
    count = vnp.searchsorted(-ranked, -ranked, side="right")
    return ranked, count, hits[count], hits[-1]


def average_precision(scores: Any, labels: Any) -> Array:
    """Return the average precision, the area under the steps of precision and recall.

    It is the mean, over the positive examples, of the precision among the examples that score no less. NaN if there are none. Arguments and
    errors are those of `roc_auc`.

    >>> vf.nn.metrics.average_precision(vf.numpy.array([0.1, 0.4, 0.35, 0.8]), vf.numpy.array([0, 0, 1, 1])).round(4)
    Array(0.8333, dtype=float32)
    """
    values, count, hits, total = _ranking("average_precision", scores, labels)
    before = vnp.concatenate([vnp.zeros(1, hits.dtype), hits[:-1]])
    area = vnp.sum((hits - before) * (hits / count)) / total
    return vnp.where(vnp.any(vnp.isnan(values)), vnp.nan, area)


class RocCurve(NamedTuple):
    """Rates of false and of true positives by threshold."""

    false_positive_rate: Array
    true_positive_rate: Array
    thresholds: Array


def roc_curve(scores: Any, labels: Any) -> RocCurve:
    """Return the receiver operating characteristic, a point for each example.

    The first point is (0, 0), at an infinite threshold; equal scores repeat a point. Rates of no examples are NaN. Arguments and errors are
    those of `roc_auc`, the area below it.

    >>> curve = vf.nn.metrics.roc_curve(vf.numpy.array([0.1, 0.4, 0.35, 0.8]), vf.numpy.array([0, 0, 1, 1]))
    >>> curve.false_positive_rate, curve.true_positive_rate
    (Array([0. , 0. , 0.5, 0.5, 1. ], dtype=float32), Array([0. , 0.5, 0.5, 1. , 1. ], dtype=float32))
    """
    values, count, hits, total = _ranking("roc_curve", scores, labels)
    start = vnp.zeros(1, values.dtype)
    false, true = (count - hits) / (len(values) - total), hits / total
    rates = [vnp.concatenate([start, rate.astype(values.dtype)]) for rate in (false, true)]
    return RocCurve(rates[0], rates[1], vnp.concatenate([start + vnp.inf, values]))


class PrecisionRecallCurve(NamedTuple):
    """Precision and recall by threshold."""

    precision: Array
    recall: Array
    thresholds: Array


def precision_recall_curve(scores: Any, labels: Any) -> PrecisionRecallCurve:
    """Return precision and recall at the score of each example, from the highest.

    The first point, at an infinite threshold, has precision 1 and recall 0; equal scores repeat a point. Arguments and errors are those of
    `roc_auc`.

    >>> curve = vf.nn.metrics.precision_recall_curve(vf.numpy.array([0.1, 0.4, 0.8]), vf.numpy.array([0, 1, 1]))
    >>> curve.precision.round(2), curve.recall
    (Array([1.  , 1.  , 1.  , 0.67], dtype=float32), Array([0. , 0.5, 1. , 1. ], dtype=float32))
    """
    values, count, hits, total = _ranking("precision_recall_curve", scores, labels)
    first = vnp.ones(1, values.dtype)
    rates = [vnp.concatenate([start, rate.astype(values.dtype)]) for start, rate in ((first, hits / count), (0 * first, hits / total))]
    return PrecisionRecallCurve(rates[0], rates[1], vnp.concatenate([first * vnp.inf, values]))


# Probabilities: log loss and Brier's score.


def log_loss(probabilities: Any, labels: Any, *, weight: Any = None) -> Array:
    """Return the mean negative logarithm of the probability of the true class.

    Args:
        probabilities: of shape (N, C), one for each class; or (N,), those of class 1 of two. They are limited to [eps, 1 - eps] of their
            dtype, so that no term is infinite. For logits, use `cross_entropy`.
        labels: the true class numbers, of shape (N,).
        weight: how much each example counts.

    Raises:
        ShapeError: other shapes. DTypeError: class numbers that are not integers or booleans.

    >>> vf.nn.metrics.log_loss(vf.numpy.array([0.9, 0.2]), vf.numpy.array([1, 0])).round(4)
    Array(0.1643, dtype=float32)
    """
    _, (values,) = real_operands("log_loss", probabilities)
    if values.ndim == 1:
        values = vnp.stack([1 - values, values], -1)
    truth = as_value(labels)
    truth = truth.astype("int32") if truth.dtype in BOOL else truth
    truth = class_labels("log_loss", truth, values.shape, class_axis("log_loss", values, -1))
    eps = float(np.finfo(values.dtype).eps)
    terms = -vnp.log(vnp.clip(vnp.take_along_axis(values, truth[..., None], -1)[..., 0], eps, 1 - eps))
    return _weighted_mean("log_loss", terms, weight)


def brier_score(probabilities: Any, labels: Any, *, weight: Any = None) -> Array:
    """Return the mean squared difference of probabilities from labels (Brier 1950).

    Args:
        probabilities: those of class 1 of two, of shape (N,).
        labels: of the same shape: true, or not 0, for class 1.
        weight: how much each example counts.

    >>> vf.nn.metrics.brier_score(vf.numpy.array([0.9, 0.2]), vf.numpy.array([1, 0])).round(4)
    Array(0.025, dtype=float32)
    """
    truth = (as_value(labels) != 0).astype("float32")
    return mean_squared_error(probabilities, truth, weight=weight)


# More from the confusion matrix.


def balanced_accuracy(predictions: Any, labels: Any, num_classes: int, *, axis: int | None = None) -> Array:
    """Return the mean of the recalls of the classes that have examples.

    Arguments are those of `confusion_matrix`.

    >>> vf.nn.metrics.balanced_accuracy(vf.numpy.array([0, 1, 0, 0]), vf.numpy.array([0, 1, 1, 0]), 2)
    Array(0.75, dtype=float32)
    """
    counts = confusion_matrix(predictions, labels, num_classes, axis=axis)
    support = vnp.sum(counts, 1)
    recalls = _ratio(vnp.diagonal(counts), support, 0.0)
    return vnp.sum(recalls) / vnp.sum(support > 0)


def matthews_corrcoef(predictions: Any, labels: Any, num_classes: int = 2, *, axis: int | None = None) -> Array:
    """Return Matthews' correlation of predictions and labels, 0 where it is undefined.

    It is from -1 to 1, for any number of classes (Gorodkin 2004). Arguments are those of `confusion_matrix`.

    >>> vf.nn.metrics.matthews_corrcoef(vf.numpy.array([1, 1, 0, 1]), vf.numpy.array([1, 0, 0, 1])).round(4)
    Array(0.5774, dtype=float32)
    """
    counts = confusion_matrix(predictions, labels, num_classes, axis=axis)
    total = vnp.maximum(vnp.sum(counts), 1)
    shares = counts / total  # the squares of large counts would lose digits
    said, true = vnp.sum(shares, 0), vnp.sum(shares, 1)
    covariance = vnp.trace(shares) - vnp.sum(said * true)
    spread = (1 - vnp.sum(said * said)) * (1 - vnp.sum(true * true))
    # Of one class alone it is undefined, where sums of shares differ from 1 by rounding.
    defined = (vnp.max(vnp.sum(counts, 0)) < total) & (vnp.max(vnp.sum(counts, 1)) < total) & (spread > 0)
    return vnp.where(defined, covariance / vnp.sqrt(vnp.where(defined, spread, 1)), 0.0)


def cohen_kappa(predictions: Any, labels: Any, num_classes: int, *, axis: int | None = None) -> Array:
    """Return the agreement beyond chance of predictions and labels (Cohen 1960).

    Arguments are those of `confusion_matrix`.

    >>> vf.nn.metrics.cohen_kappa(vf.numpy.array([1, 1, 0, 1]), vf.numpy.array([1, 0, 0, 1]), 2)
    Array(0.5, dtype=float32)
    """
    counts = confusion_matrix(predictions, labels, num_classes, axis=axis).astype("float32")
    shares = counts / vnp.sum(counts)
    chance = vnp.sum(vnp.sum(shares, 0) * vnp.sum(shares, 1))
    return (vnp.trace(shares) - chance) / (1 - chance)


def jaccard_score(
    predictions: Any, labels: Any, num_classes: int = 2, average: Average = "binary", *, zero_division: float = 0.0, axis: int | None = None
) -> Array:
    """Return the intersection over the union of predictions and labels of a class.

    Arguments are those of `precision`.

    >>> vf.nn.metrics.jaccard_score(vf.numpy.array([1, 1, 0, 1]), vf.numpy.array([1, 0, 1, 1])).round(4)
    Array(0.5, dtype=float32)
    """
    counts = confusion_matrix(predictions, labels, num_classes, axis=axis)
    of_classes = None if average in ("macro", "weighted") else average
    f1 = classification_scores(counts, of_classes, zero_division=vnp.nan).f1
    each, support = vnp.where(vnp.isnan(f1), zero_division, f1 / (2 - f1)), vnp.sum(counts, 1)
    if of_classes == average:
        return each
    return vnp.mean(each) if average == "macro" else _ratio(vnp.sum(each * support), vnp.sum(support), zero_division)


# Regression, with scikit-learn's names. As everywhere in this package, predictions come first.

Outputs = Literal["uniform_average", "raw_values"]


def _errors(metric: str, predictions: Any, targets: Any) -> tuple[Array, Array]:
    """Return predictions and targets of one shape in the dtype to compute in."""
    _, (guess, truth) = real_operands(metric, predictions, targets)
    if guess.shape != truth.shape:
        raise ShapeError(f"{metric}: predictions and targets need the same shape, got {guess.shape} and {truth.shape}; reshape one of them")
    if not guess.ndim:
        raise ShapeError(f"{metric}: predictions of shape (N,) or (N, outputs) are needed, got a scalar")
    return guess, truth


def _weighted_mean(metric: str, values: Array, weight: Any) -> Array:
    """Return the mean along the first axis."""
    if weight is None:
        return vnp.mean(values, 0)
    (factors,) = real_operands(metric, weight)[1]
    if factors.shape != values.shape[:1]:
        raise ShapeError(f"{metric}: {values.shape[0]} examples need a weight of shape ({values.shape[0]},), got {factors.shape}")
    columns = factors.reshape(factors.shape + (1,) * (values.ndim - 1)).astype(values.dtype)
    return vnp.sum(vnp.where(columns == 0, 0.0, columns * values), 0) / vnp.sum(columns)


def _over_outputs(metric: str, values: Array, multioutput: str) -> Array:
    check_option(multioutput, f"{metric}: multioutput", ("uniform_average", "raw_values"))
    return values if multioutput == "raw_values" else vnp.mean(values)


def mean_squared_error(predictions: Any, targets: Any, *, weight: Any = None, multioutput: Outputs = "uniform_average") -> Array:
    """Return the mean squared error; NaN of no examples.

    Args:
        predictions: numbers of shape (N,), or (N, …) for several outputs.
        targets: the true numbers, of the same shape.
        weight: how much each example counts, of shape (N,).
        multioutput: "uniform_average" for the mean over the outputs, "raw_values" for one number each.

    Raises:
        ShapeError: the shapes differ. DTypeError: complex numbers. ArgumentError: another `multioutput`.

    >>> vf.nn.metrics.mean_squared_error(vf.numpy.array([2.0, 4.0]), vf.numpy.array([1.0, 4.0]))
    Array(0.5, dtype=float32)
    """
    guess, truth = _errors("mean_squared_error", predictions, targets)
    return _over_outputs("mean_squared_error", _weighted_mean("mean_squared_error", (guess - truth) ** 2, weight), multioutput)


def root_mean_squared_error(predictions: Any, targets: Any, *, weight: Any = None, multioutput: Outputs = "uniform_average") -> Array:
    """Return the root of the mean squared error.

    Of several outputs, it is the mean of the roots.

    Arguments and errors are those of `mean_squared_error`.

    >>> vf.nn.metrics.root_mean_squared_error(vf.numpy.array([2.0, 4.0]), vf.numpy.array([1.0, 3.0]))
    Array(1., dtype=float32)
    """
    roots = vnp.sqrt(mean_squared_error(predictions, targets, weight=weight, multioutput="raw_values"))
    return _over_outputs("root_mean_squared_error", roots, multioutput)


def mean_absolute_error(predictions: Any, targets: Any, *, weight: Any = None, multioutput: Outputs = "uniform_average") -> Array:
    """Return the mean absolute error.

    Arguments and errors are those of `mean_squared_error`.

    >>> vf.nn.metrics.mean_absolute_error(vf.numpy.array([2.0, 4.0]), vf.numpy.array([1.0, 4.0]))
    Array(0.5, dtype=float32)
    """
    guess, truth = _errors("mean_absolute_error", predictions, targets)
    return _over_outputs("mean_absolute_error", _weighted_mean("mean_absolute_error", abs(guess - truth), weight), multioutput)


def mean_absolute_percentage_error(
    predictions: Any, targets: Any, *, weight: Any = None, multioutput: Outputs = "uniform_average"
) -> Array:
    """Return the mean of the errors relative to the targets, not in per cent.

    Targets nearer to zero than eps of the dtype count as eps. Arguments and errors are those of `mean_squared_error`.

    >>> vf.nn.metrics.mean_absolute_percentage_error(vf.numpy.array([2.0, 4.0]), vf.numpy.array([1.0, 4.0]))
    Array(0.5, dtype=float32)
    """
    guess, truth = _errors("mean_absolute_percentage_error", predictions, targets)
    shares = abs(guess - truth) / vnp.maximum(abs(truth), np.finfo(truth.dtype).eps)
    return _over_outputs("mean_absolute_percentage_error", _weighted_mean("mean_absolute_percentage_error", shares, weight), multioutput)


def median_absolute_error(predictions: Any, targets: Any, *, multioutput: Outputs = "uniform_average") -> Array:
    """Return the median of the absolute errors, which outliers hardly change.

    Arguments and errors are those of `mean_squared_error`.

    >>> vf.nn.metrics.median_absolute_error(vf.numpy.array([2.0, 4.0, 90.0]), vf.numpy.array([1.0, 4.0, 5.0]))
    Array(1., dtype=float32)
    """
    guess, truth = _errors("median_absolute_error", predictions, targets)
    return _over_outputs("median_absolute_error", vnp.median(abs(guess - truth), 0), multioutput)


def max_error(predictions: Any, targets: Any) -> Array:
    """Return the greatest absolute error.

    Arguments and errors are those of `mean_squared_error`.

    >>> vf.nn.metrics.max_error(vf.numpy.array([2.0, 4.0]), vf.numpy.array([1.0, 4.0]))
    Array(1., dtype=float32)
    """
    guess, truth = _errors("max_error", predictions, targets)
    return vnp.max(abs(guess - truth))


def r2_score(predictions: Any, targets: Any, *, weight: Any = None, multioutput: Outputs = "uniform_average") -> Array:
    """Return the coefficient of determination, 1 for exact predictions.

    That is 1 - Σ(y - ŷ)² / Σ(y - ȳ)²: 0 for predictions as good as the mean of the targets, negative for worse ones. Of equal targets it is
    1 if the predictions are exact, else 0. NaN of fewer than two examples. **The predictions come first**, as everywhere in this package,
    and not the targets, as in scikit-learn: the score is not symmetric. Arguments and errors are those of `mean_squared_error`.

    >>> predictions, targets = vf.numpy.array([1.0, 2.0, 2.0]), vf.numpy.array([1.0, 2.0, 3.0])
    >>> vf.nn.metrics.r2_score(predictions, targets)
    Array(0.5, dtype=float32)
    """
    return _explained("r2_score", predictions, targets, weight, multioutput, centred=False)


def explained_variance_score(predictions: Any, targets: Any, *, weight: Any = None, multioutput: Outputs = "uniform_average") -> Array:
    """Return the share of the targets' variance that the predictions explain.

    It is `r2_score` of predictions without bias: a constant error does not count.

    >>> vf.nn.metrics.explained_variance_score(vf.numpy.array([2.0, 3.0, 4.0]), vf.numpy.array([1.0, 2.0, 3.0]))
    Array(1., dtype=float32)
    """
    return _explained("explained_variance_score", predictions, targets, weight, multioutput, centred=True)


def _explained(metric: str, predictions: Any, targets: Any, weight: Any, multioutput: str, centred: bool) -> Array:
    guess, truth = _errors(metric, predictions, targets)
    error = truth - guess
    rest = error - _weighted_mean(metric, error, weight) if centred else error
    unexplained = _weighted_mean(metric, rest**2, weight)
    total = _weighted_mean(metric, (truth - _weighted_mean(metric, truth, weight)) ** 2, weight)
    share = vnp.where(total == 0, vnp.where(unexplained == 0, 1.0, 0.0), 1 - unexplained / vnp.where(total == 0, 1, total))
    return _over_outputs(metric, share if len(truth) > 1 else share * vnp.nan, multioutput)


#: The prediction from scores that hold NaN.
_NONE = np.iinfo(np.int32).min


def predicted_classes(metric: str, predictions: Any, labels: Any, axis: int | None) -> tuple[Array, Array]:
    """Return predicted class numbers (an invalid one for NaN scores) and the labels."""
    guesses, targets = as_value(predictions), as_value(labels)
    if guesses.ndim == targets.ndim + 1:
        _, (scores,) = real_operands(metric, guesses)
        dim = class_axis(metric, scores, axis)
        targets = class_labels(metric, targets, scores.shape, dim)
        spoilt = vnp.any(vnp.isnan(scores), dim)
        return vnp.where(spoilt, _NONE, vnp.argmax(scores, dim)), targets
    for array in (guesses, targets):
        if array.dtype not in INTEGERS | BOOL:
            raise DTypeError(f"{metric}: class numbers are integers, got {array.aval}; scores need one axis more than the labels")
    if guesses.shape != targets.shape:
        raise ShapeError(f"{metric}: predictions and labels need the same shape, got {guesses.shape} and {targets.shape}")
    return guesses, targets


def weighted_share(hits: Array, weight: Any, metric: str) -> Array:
    """Return the weighted mean of booleans, NaN of none."""
    if weight is None:
        return vnp.mean(hits.astype("float32"))
    (factors,) = real_operands(metric, weight)[1]
    if factors.shape != hits.shape:
        raise ShapeError(f"{metric}: {hits.shape} examples need a weight of that shape, got {factors.shape}")
    return vnp.sum(vnp.where(hits, factors, 0.0)) / vnp.sum(factors)

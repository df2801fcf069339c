"""Cross entropies and margin losses of binary and multiclass predictions."""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ShapeError
from volta_fn.nn import losses
from volta_fn.nn.activations import sparse_plus
from volta_fn.nn.losses.common import class_labels, pick, real_operands
from volta_fn.optim.losses.common import Axes, broadcast, same_shapes, with_last_axis
from volta_fn.primitives.barriers import stop_gradient
from volta_fn.scipy.special.exponential import log_softmax, logsumexp, softmax

__all__ = ["hinge_loss", "perceptron_loss", "poly_loss_cross_entropy", "safe_softmax_cross_entropy", "sigmoid_binary_cross_entropy"]
__all__ += ["sigmoid_focal_loss", "smooth_labels", "softmax_cross_entropy", "softmax_cross_entropy_with_integer_labels", "sparsemax_loss"]


def sigmoid_binary_cross_entropy(logits: Any, labels: Any) -> Array:
    """Return -label log(p) - (1 - label) log(1 - p) with p = sigmoid(logit).

    Args:
        logits: any real numbers.
        labels: probabilities, usually 0 or 1, that broadcast with the logits.

    Returns the loss of each element. Raises `DTypeError` for complex numbers.

    >>> optim.losses.sigmoid_binary_cross_entropy(vnp.array([0.0, 4.0]), vnp.array([1.0, 0.0])).round(4)
    Array([0.6931, 4.0182], dtype=float32)
    """
    dtype, (x, y) = broadcast("sigmoid_binary_cross_entropy", logits, labels)
    return losses.binary_cross_entropy_with_logits(x, y, reduction="none").astype(dtype)


def sigmoid_focal_loss(logits: Any, labels: Any, *, alpha: float | None = None, gamma: float = 2.0) -> Array:
    """Return binary cross entropy times (1 - p)^gamma (Lin et al. 2017).

    p is the probability predicted for the label; `alpha`, if given, weighs positive labels, and 1 - alpha negative ones. Raises
    `ArgumentError` for a negative gamma, `DTypeError` for complex numbers.

    >>> optim.losses.sigmoid_focal_loss(vnp.array([0.0, 4.0]), vnp.array([1.0, 1.0])).round(6)
    Array([1.73287e-01, 6.00000e-06], dtype=float32)
    """
    dtype, (x, y) = broadcast("sigmoid_focal_loss", logits, labels)
    return losses.sigmoid_focal_loss(x, y, alpha=alpha, gamma=gamma, reduction="none").astype(dtype)


def hinge_loss(predictor_outputs: Any, targets: Any) -> Array:
    """Return max(0, 1 - target · prediction) for targets -1 or 1.

    >>> optim.losses.hinge_loss(vnp.array([2.0, 0.5]), vnp.array([1, -1]))
    Array([0. , 1.5], dtype=float32)
    """
    dtype, (x, y) = broadcast("hinge_loss", predictor_outputs, targets)
    return losses.hinge_loss(x, y, reduction="none").astype(dtype)


def perceptron_loss(predictor_outputs: Any, targets: Any) -> Array:
    """Return max(0, -target · prediction) for targets -1 or 1 (Rosenblatt 1958).

    Raises `ShapeError` if the shapes differ.

    >>> optim.losses.perceptron_loss(vnp.array([2.0, 0.5]), vnp.array([1, -1]))
    Array([0. , 0.5], dtype=float32)
    """
    dtype, (x, y) = same_shapes("perceptron_loss", predictor_outputs, targets)
    return losses.hinge_loss(x, y, margin=0.0, reduction="none").astype(dtype)


def sparsemax_loss(logits: Any, labels: Any) -> Array:
    """Return the binary loss of sparsemax, ``sparse_plus(±logit)``.

    The logit is negated where the label is true. The loss is 0 beyond a margin of 1, and linear for large errors (Martins and Astudillo,
    2016).

    >>> optim.losses.sparsemax_loss(vnp.array([-1.0, 0.0, 2.0]), vnp.array([0, 0, 0]))
    Array([0.  , 0.25, 2.  ], dtype=float32)
    """
    dtype, (x,) = real_operands("sparsemax_loss", logits)
    return sparse_plus(vnp.where(as_value(labels) != 0, -x, x)).astype(dtype)


def softmax_cross_entropy(logits: Any, labels: Any, axis: Axes = -1, where: Any = None) -> Array:
    """Return minus the sum of label · log(softmax(logits)).

    Args:
        logits: any real numbers.
        labels: probabilities of the classes, usually one-hot, that broadcast with the logits. A label of 0 contributes 0, even where
            the logit is -inf.
        axis: the axis of classes, or several, which the result lacks; None for all.
        where: True for the classes that count, or for the examples if it lacks the axis of classes; those that do not have a loss of 0.

    Raises `DTypeError` for complex numbers.

    >>> logits = vnp.array([[2.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
    >>> optim.losses.softmax_cross_entropy(logits, nn.one_hot(vnp.array([0, 1]), 3)).round(4)
    Array([0.2395, 0.0134], dtype=float32)
    """
    dtype, (x, y) = real_operands("softmax_cross_entropy", logits, labels)
    mask = _class_mask(where, x, axis)
    scores = log_softmax(x, axis, mask)
    terms = y * vnp.where(y == 0, 0.0, scores)
    return (-vnp.sum(terms, axis, where=mask)).astype(dtype)


def safe_softmax_cross_entropy(logits: Any, labels: Any) -> Array:
    """Return `softmax_cross_entropy` over the last axis.

    In Optax only this function takes logits of -inf; here both do.

    >>> optim.losses.safe_softmax_cross_entropy(vnp.array([0.0, 0.0, -vnp.inf]), vnp.array([1.0, 0.0, 0.0])).round(4)
    Array(0.6931, dtype=float32)
    """
    return softmax_cross_entropy(logits, labels)


def _class_mask(where: Any, x: Array, axis: Axes) -> Array | None:
    """Return `where` with the axes of the logits."""
    if where is None:
        return None
    mask = as_value(where)
    return mask if mask.ndim == x.ndim or axis is None else vnp.expand_dims(mask, axis)


def softmax_cross_entropy_with_integer_labels(logits: Any, labels: Any, axis: int | tuple[int, ...] = -1, where: Any = None) -> Array:
    """Return log(sum(exp(logits))) - logits[label].

    Args:
        logits: any real numbers.
        labels: class numbers, of the shape of the logits without the axis of classes. A number that is no class gives NaN, since
            compiled programs cannot raise.
        axis: the axis of classes, or several, whose classes are numbered in C order.
        where: True for the classes that count; a loss without any is 0.

    Raises `ShapeError` if labels do not fit the logits, `DTypeError` for labels that are not integers.

    >>> logits = vnp.array([[2.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
    >>> optim.losses.softmax_cross_entropy_with_integer_labels(logits, vnp.array([0, 1])).round(4)
    Array([0.2395, 0.0134], dtype=float32)
    """
    name = "softmax_cross_entropy_with_integer_labels"
    dtype, (given,) = real_operands(name, logits)
    mask = _class_mask(where, given, axis)
    x = with_last_axis(name, given, axis)
    if not x.shape[-1]:
        raise ShapeError(f"{name}: there are no classes along axis {axis} of shape {given.shape}")
    numbers = class_labels(name, labels, x.shape, x.ndim - 1)
    x = x - stop_gradient(vnp.max(x, -1, keepdims=True))  # so that the difference below is of small numbers
    score, share = pick(x, numbers, x.ndim - 1)
    if mask is None:
        return (share * (logsumexp(x, -1) - score)).astype(dtype)
    kept = with_last_axis(name, vnp.broadcast_to(mask, given.shape), axis)
    values = share * (logsumexp(x, -1, where=kept) - score)
    return vnp.where(vnp.any(kept, -1), values, 0.0).astype(dtype)


def poly_loss_cross_entropy(logits: Any, labels: Any, *, epsilon: Any = 2.0, axis: Axes = -1, where: Any = None) -> Array:
    """Return cross entropy plus epsilon times 1 - p of the label (Leng et al. 2022).

    Arguments are those of `softmax_cross_entropy`; `epsilon` is the coefficient of the first polynomial.

    >>> optim.losses.poly_loss_cross_entropy(vnp.array([2.0, 0.0]), vnp.array([1.0, 0.0])).round(4)
    Array(0.3653, dtype=float32)
    """
    dtype, (x, y) = real_operands("poly_loss_cross_entropy", logits, labels)
    mask = _class_mask(where, x, axis)
    missed = vnp.sum(y * (1 - softmax(x, axis, mask)), axis, where=mask)
    return (softmax_cross_entropy(x, y, axis, mask) + epsilon * missed).astype(dtype)


def smooth_labels(labels: Any, alpha: Any, *, axis: Axes = -1, where: Any = None) -> Array:
    """Return ``(1 - alpha) * labels + alpha / classes`` (Müller et al. 2019).

    Args:
        labels: one-hot labels or other probabilities.
        alpha: the fraction of probability that is spread evenly.
        axis: the axis of classes, or several; None for all.
        where: True for the classes that are counted.

    >>> optim.losses.smooth_labels(vnp.array([1.0, 0.0]), 0.1)
    Array([0.95, 0.05], dtype=float32)
    """
    dtype, (y,) = real_operands("smooth_labels", labels)
    classes = vnp.size(y, axis) if where is None else vnp.sum(as_value(where), axis, keepdims=True)
    return ((1.0 - alpha) * y + alpha / classes).astype(dtype)

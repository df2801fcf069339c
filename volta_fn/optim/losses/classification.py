"""Losses of classes, rankings and label sequences, with Optax's signatures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ShapeError
from volta_fn.jit.fused import fused
from volta_fn.nn import losses
from volta_fn.nn.activations import one_hot, sparse_plus
from volta_fn.nn.losses.classification import class_labels, forward_probabilities, pick, real_operands
from volta_fn.optim.losses.regression import Axes, broadcast, same_shapes, with_last_axis
from volta_fn.optim.projections import simplex_rows
from volta_fn.primitives.call import stop_gradient
from volta_fn.scipy.special.exponential import log_softmax, logsumexp, softmax

__all__ = [
    "ctc_loss", "ctc_loss_with_forward_probs", "hinge_loss", "make_fenchel_young_loss", "multiclass_hinge_loss",
    "multiclass_perceptron_loss", "multiclass_sparsemax_loss", "perceptron_loss", "poly_loss_cross_entropy", "ranking_softmax_loss",
    "safe_softmax_cross_entropy", "sigmoid_binary_cross_entropy", "sigmoid_focal_loss", "smooth_labels", "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels", "sparsemax_loss",
]  # fmt: skip


# Cross entropies and margin losses of binary and multiclass predictions.


@fused
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


@fused
def sigmoid_focal_loss(logits: Any, labels: Any, *, alpha: float | None = None, gamma: float = 2.0) -> Array:
    """Return binary cross entropy times (1 - p)^gamma (Lin et al. 2017).

    p is the probability predicted for the label; `alpha`, if given, weighs positive labels, and 1 - alpha negative ones. Raises
    `ArgumentError` for a negative gamma, `DTypeError` for complex numbers.

    >>> optim.losses.sigmoid_focal_loss(vnp.array([0.0, 4.0]), vnp.array([1.0, 1.0])).round(6)
    Array([1.73287e-01, 6.00000e-06], dtype=float32)
    """
    dtype, (x, y) = broadcast("sigmoid_focal_loss", logits, labels)
    return losses.sigmoid_focal_loss(x, y, alpha=alpha, gamma=gamma, reduction="none").astype(dtype)


@fused
def hinge_loss(predictor_outputs: Any, targets: Any) -> Array:
    """Return max(0, 1 - target · prediction) for targets -1 or 1.

    >>> optim.losses.hinge_loss(vnp.array([2.0, 0.5]), vnp.array([1, -1]))
    Array([0. , 1.5], dtype=float32)
    """
    dtype, (x, y) = broadcast("hinge_loss", predictor_outputs, targets)
    return losses.hinge_loss(x, y, reduction="none").astype(dtype)


@fused
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

    >>> logits = vnp.array([[2.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
    >>> optim.losses.softmax_cross_entropy(logits, nn.one_hot(vnp.array([0, 1]), 3)).round(4)
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

    >>> logits = vnp.array([[2.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
    >>> optim.losses.softmax_cross_entropy_with_integer_labels(logits, vnp.array([0, 1])).round(4)
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

    >>> optim.losses.poly_loss_cross_entropy(vnp.array([2.0, 0.0]), vnp.array([1.0, 0.0])).round(4)
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

    >>> optim.losses.smooth_labels(vnp.array([1.0, 0.0]), 0.1)
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

    >>> optim.losses.ctc_loss(vnp.zeros((1, 3, 2)), vnp.zeros((1, 3)), vnp.array([[1]]), vnp.zeros((1, 1))).round(4)
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

    >>> given = vnp.zeros((1, 3, 2)), vnp.zeros((1, 3)), vnp.array([[1]]), vnp.zeros((1, 1))
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

    >>> optim.losses.multiclass_hinge_loss(vnp.array([[3.0, 2.5, 0.0]]), vnp.array([0]))
    Array([0.5], dtype=float32)
    """
    return _margin_to_worst("multiclass_hinge_loss", scores, labels, 1.0)


def multiclass_perceptron_loss(scores: Any, labels: Any) -> Array:
    """Return the largest score minus the label's.

    Arguments and errors are those of `multiclass_hinge_loss`.

    >>> optim.losses.multiclass_perceptron_loss(vnp.array([[3.0, 2.5, 0.0]]), vnp.array([1]))
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

    >>> optim.losses.multiclass_sparsemax_loss(vnp.array([[2.0, 0.0], [0.0, 0.0]]), vnp.array([0, 0]))
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
    >>> loss(vnp.array([[2.0, 0.0, 0.0]]), vnp.array([[1.0, 0.0, 0.0]])).round(4)
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

    >>> optim.losses.ranking_softmax_loss(vnp.array([2.0, 1.0, 0.0]), vnp.array([1.0, 0.0, 0.0])).round(4)
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

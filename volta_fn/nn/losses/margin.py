"""Margin losses: hinge losses and ranking."""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ShapeError
from volta_fn.nn.activations import relu, softplus
from volta_fn.nn.losses.common import (
    Reduction,
    check_broadcasts,
    check_classes,
    check_pair,
    class_axis,
    class_labels,
    pick,
    real_operands,
    reduced,
)

__all__ = ["hinge_embedding_loss", "hinge_loss", "margin_ranking_loss", "multi_margin_loss", "multilabel_margin_loss"]
__all__ += ["multilabel_soft_margin_loss", "soft_margin_loss"]


def hinge_loss(predictions: Any, targets: Any, *, margin: float = 1.0, reduction: Reduction = "mean") -> Array:
    """Return max(0, margin - target · prediction) (Cortes and Vapnik 1995).

    Args:
        predictions: real numbers.
        targets: -1 or 1, of the same shape, or one number for all.
        margin: beyond which a prediction costs nothing.
        reduction: "mean" over all elements (NaN of none), "sum", or "none" for each by itself.

    Raises:
        ShapeError: the shapes differ. DTypeError: complex numbers. ArgumentError: another reduction.

    >>> vf.nn.hinge_loss(vf.numpy.array([2.0, 0.5, -3.0]), vf.numpy.array([1, -1, 1]), reduction="none")
    Array([0. , 1.5, 4. ], dtype=float32)
    """
    dtype, (x, y) = real_operands("hinge_loss", predictions, targets)
    check_pair("hinge_loss", x, y)
    return reduced("hinge_loss", relu(margin - x * y), reduction, dtype)


def multi_margin_loss(
    scores: Any, labels: Any, weight: Any = None, *, p: float = 1, margin: float = 1.0, reduction: Reduction = "mean"
) -> Array:
    """Return the hinge loss of many classes.

    It is the sum of max(0, margin - score[label] + score)^p over the other classes, divided by the number C of classes.

    Args:
        scores: of shape (N, C) or (C,).
        labels: class numbers of shape (N,) or (). A number that is no class gives NaN, since compiled programs cannot raise.
        weight: one factor for each class, shape (C,), applied by label.
        p: the power.
        margin: by how much the label's score should exceed the others.
        reduction: as for `hinge_loss`; the mean is over the N examples.

    Raises:
        ShapeError: the shapes do not fit. DTypeError: labels that are not integers. ArgumentError: another reduction.

    >>> vf.nn.multi_margin_loss(vf.numpy.array([[0.0, 0.5, 3.0]]), vf.numpy.array([1])).round(4)
    Array(1.3333, dtype=float32)
    """
    dtype, (x,) = real_operands("multi_margin_loss", scores)
    if x.ndim not in (1, 2):
        raise ShapeError(f"multi_margin_loss: scores have shape (N, C) or (C,), got {x.shape}")
    dim = class_axis("multi_margin_loss", x, -1)
    numbers = class_labels("multi_margin_loss", labels, x.shape, dim)
    check_classes("multi_margin_loss", numbers, x.shape[dim])
    score, share = pick(x, numbers, dim)
    if weight is not None:
        factors = as_value(weight).astype(x.dtype)
        if factors.shape != (x.shape[dim],):
            raise ShapeError(f"multi_margin_loss: a weight of shape ({x.shape[dim]},) is needed, got {factors.shape}")
        share = share * vnp.take(factors, numbers, mode="clip")
    others = vnp.arange(x.shape[dim]) != numbers[..., None]
    terms = vnp.where(others, relu(margin - score[..., None] + x) ** p, 0.0)
    return reduced("multi_margin_loss", share * vnp.mean(terms, dim), reduction, dtype)


def margin_ranking_loss(first: Any, second: Any, targets: Any, *, margin: float = 0.0, reduction: Reduction = "mean") -> Array:
    """Return max(0, margin - target · (first - second)).

    The target is 1 where `first` should be greater by `margin`, -1 where `second` should. All arguments have one shape; `second` and
    `targets` may also be one number for all. Reduction and errors as for `hinge_loss`.

    >>> vf.nn.margin_ranking_loss(vf.numpy.array([1.0, 1.0]), vf.numpy.array([3.0, 0.0]), 1, reduction="none")
    Array([2., 0.], dtype=float32)
    """
    dtype, (x1, x2, y) = real_operands("margin_ranking_loss", first, second, targets)
    check_pair("margin_ranking_loss", x1, x2)
    check_pair("margin_ranking_loss", x1, y)
    return reduced("margin_ranking_loss", relu(margin - y * (x1 - x2)), reduction, dtype)


def hinge_embedding_loss(distances: Any, targets: Any, *, margin: float = 1.0, reduction: Reduction = "mean") -> Array:
    """Return the distance for target 1, and max(0, margin - distance) for target -1.

    Other targets give the sum of both, as in PyTorch. Arguments and errors are those of `hinge_loss`.

    >>> vf.nn.hinge_embedding_loss(vf.numpy.array([0.2, 0.2]), vf.numpy.array([1, -1]), reduction="none").round(4)
    Array([0.2, 0.8], dtype=float32)
    """
    dtype, (x, y) = real_operands("hinge_embedding_loss", distances, targets)
    check_pair("hinge_embedding_loss", x, y)
    values = vnp.where(y == -1, 0.0, x) + vnp.where(y == 1, 0.0, relu(margin - x))
    return reduced("hinge_embedding_loss", values, reduction, dtype)


def soft_margin_loss(predictions: Any, targets: Any, *, reduction: Reduction = "mean") -> Array:
    """Return log(1 + exp(-target · prediction)) for targets -1 or 1.

    Arguments and errors are those of `hinge_loss`.

    >>> vf.nn.soft_margin_loss(vf.numpy.array([0.0, 100.0]), vf.numpy.array([1, -1]), reduction="none").round(4)
    Array([  0.6931, 100.    ], dtype=float32)
    """
    dtype, (x, y) = real_operands("soft_margin_loss", predictions, targets)
    check_pair("soft_margin_loss", x, y)
    return reduced("soft_margin_loss", softplus(-x * y), reduction, dtype)


def multilabel_soft_margin_loss(scores: Any, targets: Any, weight: Any = None, *, reduction: Reduction = "mean") -> Array:
    """Return the mean over classes of binary cross entropy with logits.

    Args:
        scores: of shape (…, C).
        targets: 0 or 1 for each class, of the same shape.
        weight: a factor for each class, broadcast to the shape.
        reduction: "mean" over the examples (NaN of none), "sum", or "none" for each by itself.

    Raises as `hinge_loss` does.

    >>> vf.nn.multilabel_soft_margin_loss(vf.numpy.array([[0.0, 100.0]]), vf.numpy.array([[1, 1]])).round(4)
    Array(0.3466, dtype=float32)
    """
    name = "multilabel_soft_margin_loss"
    dtype, (x, y, w) = real_operands(name, scores, targets, 1.0 if weight is None else weight)
    dim = class_axis(name, x, -1)
    check_pair(name, x, y)
    check_broadcasts(name, "weight", w, x.shape)
    return reduced(name, vnp.mean(w * (y * softplus(-x) + (1 - y) * softplus(x)), dim), reduction, dtype)


def multilabel_margin_loss(scores: Any, labels: Any, *, reduction: Reduction = "mean") -> Array:
    """Return the hinge loss between the classes that apply and all others.

    It is the sum of max(0, 1 - score[label] + score[other]) over all pairs, divided by the number C of classes.

    Args:
        scores: of shape (N, C) or (C,).
        labels: the numbers of the classes that apply, of the same shape; those from the first negative number on do not count. A number
            of C or more gives NaN, since compiled programs cannot raise.
        reduction: as for `hinge_loss`; the mean is over the N examples.

    Raises `ShapeError` if the shapes do not fit, `DTypeError` for labels that are not integers.

    >>> vf.nn.multilabel_margin_loss(vf.numpy.array([0.1, 0.2, 0.4, 0.8]), vf.numpy.array([3, 0, -1, 1])).round(4)
    Array(0.85, dtype=float32)
    """
    name = "multilabel_margin_loss"
    dtype, (x,) = real_operands(name, scores)
    dim = class_axis(name, x, -1)
    if x.ndim not in (1, 2) or as_value(labels).shape != x.shape:
        raise ShapeError(f"{name}: scores and labels have one shape, (N, C) or (C,), got {x.shape} and {as_value(labels).shape}")
    count = x.shape[dim]
    numbers = class_labels(name, labels, (*x.shape, count), x.ndim)
    applies = vnp.cumsum((numbers < 0).astype("int32"), dim) == 0
    marked = applies[..., None] & (numbers[..., None] == vnp.arange(count))
    own = vnp.take_along_axis(x, vnp.clip(numbers, 0, count - 1), dim)
    terms = relu(1 - own[..., None] + x[..., None, :])
    others = ~vnp.any(marked, -2)
    total = vnp.sum(vnp.where(applies[..., None] & others[..., None, :], terms, 0.0), (-2, -1)) / count
    return reduced(name, vnp.where(vnp.any(applies & (numbers >= count), dim), vnp.nan, total), reduction, dtype)

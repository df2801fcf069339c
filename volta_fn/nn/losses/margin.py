"""Margin losses: hinge losses and ranking."""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ShapeError
from volta_fn.nn.activations import relu
from volta_fn.nn.losses.common import Reduction, check_pair, class_axis, class_labels, pick, real_operands, reduced

__all__ = ["hinge_loss", "margin_ranking_loss", "multi_margin_loss"]


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

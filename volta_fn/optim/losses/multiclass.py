"""Losses of several classes: hinge, perceptron, sparsemax, Fenchel-Young."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ShapeError
from volta_fn.nn.functional import one_hot
from volta_fn.nn.losses.common import class_labels, pick, real_operands
from volta_fn.optim.projections import simplex_rows

__all__ = ["make_fenchel_young_loss", "multiclass_hinge_loss", "multiclass_perceptron_loss", "multiclass_sparsemax_loss"]


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
    return _worst_minus_own("multiclass_hinge_loss", scores, labels, 1.0)


def multiclass_perceptron_loss(scores: Any, labels: Any) -> Array:
    """Return the largest score minus the label's.

    Arguments and errors are those of `multiclass_hinge_loss`.

    >>> optim.losses.multiclass_perceptron_loss(vnp.array([[3.0, 2.5, 0.0]]), vnp.array([1]))
    Array([0.5], dtype=float32)
    """
    return _worst_minus_own("multiclass_perceptron_loss", scores, labels, 0.0)


def _operands(loss: str, scores: Any, labels: Any) -> tuple[Any, Array, Array]:
    dtype, (x,) = real_operands(loss, scores)
    if not x.ndim or not x.shape[-1]:
        raise ShapeError(f"{loss}: scores have classes along the last axis, got shape {x.shape}")
    return dtype, x, class_labels(loss, labels, x.shape, x.ndim - 1)


def _worst_minus_own(loss: str, scores: Any, labels: Any, margin: float) -> Array:
    dtype, x, numbers = _operands(loss, scores, labels)
    own, share = pick(x, numbers, x.ndim - 1)
    worst = vnp.max(x + margin * (1 - one_hot(numbers, x.shape[-1], dtype=x.dtype)), -1)
    return (share * (worst - own)).astype(dtype)


def multiclass_sparsemax_loss(scores: Any, labels: Any) -> Array:
    """Return the loss whose gradient is sparsemax(scores) minus the one-hot label.

    See Martins and Astudillo (2016). Arguments are those of `multiclass_hinge_loss`. The loss is 0 if the label's score exceeds the others
    by 1.

    >>> optim.losses.multiclass_sparsemax_loss(vnp.array([[2.0, 0.0], [0.0, 0.0]]), vnp.array([0, 0]))
    Array([0.  , 0.25], dtype=float32)
    """
    dtype, x, numbers = _operands("multiclass_sparsemax_loss", scores, labels)
    own, share = pick(x, numbers, x.ndim - 1)
    probabilities = simplex_rows(x)
    ahead = vnp.where(probabilities > 0, x - own[..., None], 0.0)
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

"""Errors of regression and similarity of vectors, with Optax's signatures."""

from __future__ import annotations

import math
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.nn import losses
from volta_fn.nn.losses.common import real_operands
from volta_fn.optim.losses.common import Axes, broadcast, errors_of, same_shapes, with_last_axis

__all__ = ["cosine_distance", "cosine_similarity", "huber_loss", "l2_loss", "log_cosh", "squared_error"]


def squared_error(predictions: Any, targets: Any = None) -> Array:
    """Return (prediction - target)², with targets 0 unless given.

    Raises `ShapeError` if the shapes differ, `DTypeError` for complex numbers.

    >>> optim.losses.squared_error(vnp.array([1.0, 2.0]), vnp.array([1.0, 4.0]))
    Array([0., 4.], dtype=float32)
    """
    if targets is None:
        dtype, (x,) = real_operands("squared_error", predictions)
        return vnp.square(x).astype(dtype)
    dtype, (x, y) = same_shapes("squared_error", predictions, targets)
    return losses.mse_loss(x, y, reduction="none").astype(dtype)


def l2_loss(predictions: Any, targets: Any = None) -> Array:
    """Return half the `squared_error`.

    >>> optim.losses.l2_loss(vnp.array([1.0, 2.0]), vnp.array([1.0, 4.0]))
    Array([0., 2.], dtype=float32)
    """
    return 0.5 * squared_error(predictions, targets)


def huber_loss(predictions: Any, targets: Any = None, *, delta: float = 1.0) -> Array:
    """Return half the squared error, linear from an error of `delta` on (Huber 1964).

    Targets, 0 unless given, broadcast with the predictions. Raises `ArgumentError` unless `delta` is positive.

    >>> optim.losses.huber_loss(vnp.array([0.5, 3.0]))
    Array([0.125, 2.5  ], dtype=float32)
    """
    dtype, errors = errors_of("huber_loss", predictions, targets)
    return losses.huber_loss(errors, 0.0, delta=delta, reduction="none").astype(dtype)


def log_cosh(predictions: Any, targets: Any = None) -> Array:
    """Return log(cosh(prediction - target)), a smooth absolute error.

    Targets are 0 unless given. Small errors are as precise as large ones.

    >>> optim.losses.log_cosh(vnp.array([0.0, 1.0, 100.0])).round(4)
    Array([ 0.    ,  0.4338, 99.3069], dtype=float32)
    """
    dtype, x = errors_of("log_cosh", predictions, targets)
    small = vnp.abs(x) < 1
    near = vnp.where(small, x, 0.0)
    size = vnp.abs(vnp.where(small, 1.0, x))
    series = vnp.log1p(2 * vnp.square(vnp.sinh(near / 2)))
    return vnp.where(small, series, size + vnp.log1p(vnp.exp(-2 * size)) - math.log(2)).astype(dtype)


def cosine_similarity(predictions: Any, targets: Any, *, epsilon: float = 0.0, axis: Axes = -1, where: Any = None) -> Array:
    """Return the cosine of the angle between vectors.

    Args:
        predictions: vectors.
        targets: vectors, which broadcast with the predictions.
        epsilon: the least square of a vector's length that is divided by. With 0, zero vectors give NaN.
        axis: the vectors' axis, or several; None for all.
        where: True for the elements that count.

    Raises `DTypeError` for complex numbers.

    >>> optim.losses.cosine_similarity(vnp.array([[3.0, 4.0]]), vnp.array([[1.0, 0.0]])).round(4)
    Array([0.6], dtype=float32)
    """
    dtype, vectors = broadcast("cosine_similarity", predictions, targets)
    if where is not None:
        vectors = [vnp.where(where, v, 0.0) for v in vectors]
    x, y = (with_last_axis("cosine_similarity", v, axis) for v in vectors)
    return losses.cosine_similarity(x, y, eps=math.sqrt(epsilon)).astype(dtype)


def cosine_distance(predictions: Any, targets: Any, *, epsilon: float = 0.0, axis: Axes = -1, where: Any = None) -> Array:
    """Return 1 - `cosine_similarity`, whose arguments it has.

    >>> optim.losses.cosine_distance(vnp.array([[3.0, 4.0]]), vnp.array([[1.0, 0.0]])).round(4)
    Array([0.4], dtype=float32)
    """
    return 1.0 - cosine_similarity(predictions, targets, epsilon=epsilon, axis=axis, where=where)

"""Losses of binary classification: cross entropy and focal loss.

A *logit* is log(p / (1 - p)) of a probability p: any real number, which a sigmoid maps to p.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.nn.activations import sigmoid, softplus
from volta_fn.nn.losses.common import Reduction, check_broadcasts, check_pair, real_operands, reduced
from volta_fn.transforms.custom.custom_jvp import custom_jvp

__all__ = ["binary_cross_entropy", "binary_cross_entropy_with_logits", "sigmoid_focal_loss"]


def binary_cross_entropy(probabilities: Any, targets: Any, weight: Any = None, *, reduction: Reduction = "mean") -> Array:
    """Return -target log(p) - (1 - target) log(1 - p).

    Logarithms are at least -100, and gradients at most 10¹² times the error. `binary_cross_entropy_with_logits` is more precise where p is
    close to 0 or 1.

    Args:
        probabilities: between 0 and 1; others give NaN.
        targets: probabilities of the same shape, or one number for all.
        weight: a factor for each element, broadcast to the shape.
        reduction: "mean" over all elements (NaN of none), "sum", or "none" for each by itself.

    Raises:
        ShapeError: the shapes do not fit. DTypeError: complex numbers. ArgumentError: another reduction.

    >>> vf.nn.binary_cross_entropy(vf.numpy.array([0.5, 0.0]), vf.numpy.array([1.0, 1.0]), reduction="none").round(4)
    Array([  0.6931, 100.    ], dtype=float32)
    """
    dtype, (p, y, w) = real_operands("binary_cross_entropy", probabilities, targets, 1.0 if weight is None else weight)
    check_pair("binary_cross_entropy", p, y)
    check_broadcasts("binary_cross_entropy", "weight", w, p.shape)
    return reduced("binary_cross_entropy", w * _cross_entropy(p, vnp.broadcast_to(y, p.shape)), reduction, dtype)


@custom_jvp
def _cross_entropy(p: Array, y: Array) -> Array:
    return -y * _log(p) - (1 - y) * _log1m(p)


_cross_entropy.defjvps(lambda g, out, p, y: g * (p - y) / vnp.maximum(p * (1 - p), 1e-12), lambda g, out, p, y: g * (_log1m(p) - _log(p)))


def _log(p: Array) -> Array:
    return vnp.maximum(vnp.log(p), -100.0)


def _log1m(p: Array) -> Array:
    return vnp.maximum(vnp.log1p(-p), -100.0)


def binary_cross_entropy_with_logits(
    logits: Any, targets: Any, weight: Any = None, *, pos_weight: Any = None, reduction: Reduction = "mean"
) -> Array:
    """Return `binary_cross_entropy` of sigmoid(logits), to full precision.

    Args:
        logits: any numbers.
        targets: probabilities of the same shape, or one number for all.
        weight: a factor for each element, broadcast to the shape.
        pos_weight: a factor of the loss of positive targets: above 1 it favours recall.
        reduction: as for `binary_cross_entropy`.

    >>> vf.nn.binary_cross_entropy_with_logits(vf.numpy.array([0.0, -1e4, 1e4]), 1.0, reduction="none").round(4)
    Array([6.931e-01, 1.000e+04, 0.000e+00], dtype=float32)
    """
    name = "binary_cross_entropy_with_logits"
    factors = [1.0 if w is None else w for w in (weight, pos_weight)]
    dtype, (x, y, w, positive) = real_operands(name, logits, targets, *factors)
    check_pair(name, x, y)
    check_broadcasts(name, "weight", w, x.shape)
    check_broadcasts(name, "pos_weight", positive, x.shape)
    return reduced(name, w * _of_logits(x, y, positive), reduction, dtype)


def _of_logits(x: Array, y: Array, positive: Any = 1.0) -> Array:
    """Return the loss as two terms that do not cancel: small losses stay precise."""
    return positive * y * softplus(-x) + (1 - y) * softplus(x)


def sigmoid_focal_loss(
    logits: Any, targets: Any, *, alpha: float | None = 0.25, gamma: float = 2.0, reduction: Reduction = "mean"
) -> Array:
    """Return binary cross entropy times (1 - p)^gamma (Lin et al. 2017).

    p is the probability predicted for the truth, so easy examples count less.

    Args:
        logits: any numbers.
        targets: probabilities (usually 0 or 1) of the same shape, or one number for all.
        alpha: the weight of positive targets, 1 - alpha being that of negative ones; None for no weights.
        gamma: how much less easy examples count; 0 weights all equally.
        reduction: as for `binary_cross_entropy`.

    >>> vf.nn.sigmoid_focal_loss(vf.numpy.array([0.0, 4.0]), 1.0, alpha=None, reduction="none").round(6)
    Array([1.73287e-01, 6.00000e-06], dtype=float32)
    """
    if not gamma >= 0:
        raise ArgumentError(f"sigmoid_focal_loss: gamma is 0 or a positive number, got {gamma!r}")
    dtype, (x, y) = real_operands("sigmoid_focal_loss", logits, targets)
    check_pair("sigmoid_focal_loss", x, y)
    # At 0 a power below 1 would have an infinite derivative.
    missed = vnp.maximum(y * sigmoid(-x) + (1 - y) * sigmoid(x), np.finfo(x.dtype).tiny)
    values = _of_logits(x, y) * missed**gamma
    if alpha is not None:
        values = values * (alpha * y + (1 - alpha) * (1 - y))
    return reduced("sigmoid_focal_loss", values, reduction, dtype)

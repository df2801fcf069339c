"""Kullback-Leibler divergences."""

from __future__ import annotations

import math
from typing import Any, Literal

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.nn.losses.common import Reduction, check_pair, check_reduction, real_operands, reduced
from volta_fn.scipy.special import xlogy

__all__ = ["kl_div", "kl_divergence_gaussian"]


def kl_div(
    log_predictions: Any, targets: Any, *, log_target: bool = False, reduction: Literal["mean", "sum", "none", "batchmean"] = "mean"
) -> Array:
    """Return target (log(target) - log_prediction), the summands of the divergence.

    Args:
        log_predictions: logarithms of probabilities.
        targets: probabilities of the same shape, or one number for all. A target of 0 gives 0, whatever the prediction.
        log_target: whether the targets are logarithms of probabilities, too.
        reduction: "batchmean" for the sum divided by the size of the first axis, which is the divergence; "mean" over all elements, as
            in PyTorch; "sum"; or "none".

    Raises:
        ShapeError: the shapes differ. DTypeError: complex numbers. ArgumentError: another reduction.

    >>> half = vf.numpy.log(vf.numpy.array([[0.5, 0.5]]))
    >>> vf.nn.kl_div(half, vf.numpy.array([[1.0, 0.0]]), reduction="batchmean").round(4)
    Array(0.6931, dtype=float32)
    """
    check_reduction("kl_div", reduction, ("batchmean",))
    dtype, (x, y) = real_operands("kl_div", log_predictions, targets)
    check_pair("kl_div", x, y)
    if log_target:
        values = vnp.exp(y) * vnp.where(y == -math.inf, 0.0, y - x)
    else:
        values = xlogy(y, y) - y * vnp.where((y == 0) & (x == -math.inf), 0.0, x)
    if reduction == "batchmean":
        return (vnp.sum(values) / (x.shape[0] if x.ndim else 1)).astype(dtype)
    return reduced("kl_div", values, reduction, dtype)


def kl_divergence_gaussian(mu: Any, logvar: Any, *, reduction: Reduction = "sum") -> Array:
    """Return (mu² + exp(logvar) - 1 - logvar) / 2.

    This is the divergence of normal distributions from the standard normal one. It is the regularising term of variational autoencoders
    (Kingma and Welling 2014), summed by default.

    Args:
        mu: means.
        logvar: logarithms of the variances, of the same shape, or one number for all.
        reduction: "sum", "mean" over all elements (NaN of none), or "none" for each by itself.

    Raises:
        ShapeError: the shapes differ. DTypeError: complex numbers. ArgumentError: another reduction.

    >>> vf.nn.kl_divergence_gaussian(vf.numpy.array([0.0, 1.0]), vf.numpy.array([0.0, 0.0]))
    Array(0.5, dtype=float32)
    """
    dtype, (x, y) = real_operands("kl_divergence_gaussian", mu, logvar)
    check_pair("kl_divergence_gaussian", x, y)
    return reduced("kl_divergence_gaussian", 0.5 * (vnp.square(x) + (vnp.expm1(y) - y)), reduction, dtype)

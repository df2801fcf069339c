"""Regression losses: squared, absolute and Huber errors, and likelihoods."""

from __future__ import annotations

import math
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.nn.losses.common import Reduction, check_broadcasts, check_pair, real_operands, reduced
from volta_fn.primitives.barriers import stop_gradient
from volta_fn.scipy.special import xlogy

__all__ = ["gaussian_nll_loss", "huber_loss", "l1_loss", "mae_loss", "mse_loss", "poisson_nll_loss", "smooth_l1_loss"]


def mse_loss(predictions: Any, targets: Any, *, reduction: Reduction = "mean") -> Array:
    """Return the squared error (prediction - target)².

    Args:
        predictions: real numbers.
        targets: of the same shape, or one number for all.
        reduction: "mean" over all elements (NaN of none), "sum", or "none" for each by itself.

    Raises:
        ShapeError: the shapes differ. DTypeError: complex numbers. ArgumentError: another reduction.

    >>> vf.nn.mse_loss(vf.numpy.array([1.0, 2.0]), vf.numpy.array([1.0, 4.0]))
    Array(2., dtype=float32)
    """
    dtype, (x, y) = real_operands("mse_loss", predictions, targets)
    check_pair("mse_loss", x, y)
    return reduced("mse_loss", vnp.square(x - y), reduction, dtype)


def mae_loss(predictions: Any, targets: Any, *, reduction: Reduction = "mean") -> Array:
    """Return the absolute error |prediction - target|; also named `l1_loss`.

    Arguments and errors are those of `mse_loss`.

    >>> vf.nn.mae_loss(vf.numpy.array([1.0, 2.0]), vf.numpy.array([1.0, 4.0]))
    Array(1., dtype=float32)
    """
    dtype, (x, y) = real_operands("mae_loss", predictions, targets)
    check_pair("mae_loss", x, y)
    return reduced("mae_loss", vnp.abs(x - y), reduction, dtype)


l1_loss = mae_loss


def huber_loss(predictions: Any, targets: Any, *, delta: float = 1.0, reduction: Reduction = "mean") -> Array:
    """Return half the squared error, linear from an error of `delta` on (Huber 1964).

    Other arguments and errors as for `mse_loss`; `delta` must be positive (`ArgumentError`).

    >>> vf.nn.huber_loss(vf.numpy.array([0.5, 3.0]), 0.0, reduction="none")
    Array([0.125, 2.5  ], dtype=float32)
    """
    if not delta > 0:
        raise ArgumentError(f"huber_loss: delta is a positive number, got {delta!r}")
    dtype, (x, y) = real_operands("huber_loss", predictions, targets)
    check_pair("huber_loss", x, y)
    return reduced("huber_loss", _huber(x - y, delta), reduction, dtype)


def _huber(error: Array, delta: float) -> Array:
    """Return c (e - c/2) for the clipped error c, whose two derivatives are right."""
    limited = vnp.where(error > delta, delta, vnp.where(error < -delta, -delta, error))
    return limited * (error - 0.5 * limited)


def smooth_l1_loss(predictions: Any, targets: Any, *, beta: float = 1.0, reduction: Reduction = "mean") -> Array:
    """Return `huber_loss` with delta = `beta`, divided by `beta` (Girshick 2015).

    It has slope 1 far from zero; for beta = 0 it is `mae_loss`. Other arguments and errors as for `mse_loss`; `beta` must not be negative
    (`ArgumentError`).

    >>> vf.nn.smooth_l1_loss(vf.numpy.array([1.0, 3.0]), 0.0, beta=2.0, reduction="none")
    Array([0.25, 2.  ], dtype=float32)
    """
    if not beta >= 0:
        raise ArgumentError(f"smooth_l1_loss: beta is 0 or a positive number, got {beta!r}")
    dtype, (x, y) = real_operands("smooth_l1_loss", predictions, targets)
    check_pair("smooth_l1_loss", x, y)
    return reduced("smooth_l1_loss", _huber(x - y, beta) / beta if beta else vnp.abs(x - y), reduction, dtype)


def gaussian_nll_loss(
    means: Any, targets: Any, variances: Any, *, full: bool = False, eps: float = 1e-6, reduction: Reduction = "mean"
) -> Array:
    """Return minus the log-likelihood of targets under normal distributions.

    See Nix and Weigend (1994).

    Args:
        means: of the distributions.
        targets: of the same shape, or one number for all.
        variances: broadcast to the shape of the means. Those below `eps` count as `eps`, with gradients as if they were not; a
            negative one gives NaN.
        full: whether to add the constant log(2π)/2.
        eps: the least variance.
        reduction: as for `mse_loss`.

    >>> vf.nn.gaussian_nll_loss(vf.numpy.array([0.0, 0.0]), vf.numpy.array([0.0, 2.0]), 1.0, reduction="none")
    Array([0., 2.], dtype=float32)
    """
    dtype, (x, y, variance) = real_operands("gaussian_nll_loss", means, targets, variances)
    check_pair("gaussian_nll_loss", x, y)
    check_broadcasts("gaussian_nll_loss", "variances", variance, x.shape)
    least = variance + stop_gradient(vnp.maximum(variance, eps) - variance)
    spread = vnp.where(variance < 0, math.nan, least)
    values = 0.5 * (vnp.log(spread) + vnp.square(x - y) / spread + (math.log(2 * math.pi) if full else 0.0))
    return reduced("gaussian_nll_loss", values, reduction, dtype)


def poisson_nll_loss(
    predictions: Any, targets: Any, *, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: Reduction = "mean"
) -> Array:
    """Return minus the log-likelihood of counts under Poisson distributions.

    The term log(target!) is omitted unless `full`.

    Args:
        predictions: logarithms of the rates, or the rates if not `log_input`.
        targets: counts, of the same shape, or one number for all.
        log_input: whether predictions are logarithms.
        full: whether to add Stirling's approximation of log(target!) for targets above 1.
        eps: added to rates before their logarithm is taken.
        reduction: as for `mse_loss`.

    >>> vf.nn.poisson_nll_loss(vf.numpy.array([2.0]), vf.numpy.array([3]), log_input=False).round(3)
    Array(-0.079, dtype=float32)
    """
    dtype, (x, y) = real_operands("poisson_nll_loss", predictions, targets)
    check_pair("poisson_nll_loss", x, y)
    values = vnp.exp(x) - y * x if log_input else x - y * vnp.log(x + eps)
    if full:
        safe = vnp.where(y > 1, y, 1.0)
        values = values + vnp.where(y > 1, xlogy(y, safe) - y + 0.5 * vnp.log(2 * math.pi * safe), 0.0)
    return reduced("poisson_nll_loss", values, reduction, dtype)

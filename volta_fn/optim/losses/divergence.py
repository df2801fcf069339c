"""Kullback-Leibler divergences with Optax's signatures."""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.nn.losses.divergence import kl_div
from volta_fn.optim.losses.common import Axes, broadcast

__all__ = ["convex_kl_divergence", "generalized_kl_divergence", "kl_divergence", "kl_divergence_with_log_targets"]


def kl_divergence(log_predictions: Any, targets: Any, axis: Axes = -1, where: Any = None) -> Array:
    """Return the sum of target · (log(target) - log_prediction).

    Args:
        log_predictions: logarithms of probabilities.
        targets: probabilities; a target of 0 contributes 0.
        axis: the axis of classes, or several, which the result lacks; None for all.
        where: True for the classes that count.

    Raises `DTypeError` for complex numbers.

    >>> optim.losses.kl_divergence(vnp.log(vnp.array([0.5, 0.5])), vnp.array([1.0, 0.0])).round(4)
    Array(0.6931, dtype=float32)
    """
    dtype, (x, y) = broadcast("kl_divergence", log_predictions, targets)
    return vnp.sum(kl_div(x, y, reduction="none"), axis, where=where).astype(dtype)


def kl_divergence_with_log_targets(log_predictions: Any, log_targets: Any, axis: Axes = -1, where: Any = None) -> Array:
    """Return `kl_divergence` of targets that are given as logarithms.

    >>> even, sure = vnp.log(vnp.array([0.5, 0.5])), vnp.array([0.0, -vnp.inf])
    >>> optim.losses.kl_divergence_with_log_targets(even, sure).round(4)
    Array(0.6931, dtype=float32)
    """
    dtype, (x, y) = broadcast("kl_divergence_with_log_targets", log_predictions, log_targets)
    return vnp.sum(kl_div(x, y, log_target=True, reduction="none"), axis, where=where).astype(dtype)


def generalized_kl_divergence(log_predictions: Any, targets: Any, axis: Axes = -1, where: Any = None) -> Array:
    """Return `kl_divergence` plus the sum of exp(log_prediction) - target.

    It is not negative for any positive numbers, and equals the divergence of probabilities.

    >>> optim.losses.generalized_kl_divergence(vnp.log(vnp.array([2.0])), vnp.array([1.0])).round(4)
    Array(0.3069, dtype=float32)
    """
    dtype, (x, y) = broadcast("generalized_kl_divergence", log_predictions, targets)
    return (kl_divergence(x, y, axis, where) + vnp.sum(vnp.exp(x) - y, axis, where=where)).astype(dtype)


convex_kl_divergence = generalized_kl_divergence

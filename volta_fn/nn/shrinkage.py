"""Functions of PyTorch that `jax.nn` lacks: shrinkage, thresholds, samples."""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn import random
from volta_fn.core.array import Array, as_value
from volta_fn.nn.functional import one_hot
from volta_fn.numpy.arguments import narrowed, promote_inexact, wide
from volta_fn.primitives.barriers import stop_gradient
from volta_fn.scipy.special.exponential import softmax

__all__ = ["gumbel_softmax", "hardshrink", "normalize", "softmin", "softshrink", "tanhshrink", "threshold"]


def hardshrink(x: Any, lambd: Any = 0.5) -> Array:
    """Return x, but 0 between -lambd and lambd.

    >>> vf.nn.hardshrink(vf.numpy.array([-1.0, 0.3, 0.6]))
    Array([-1. ,  0. ,  0.6], dtype=float32)
    """
    value = as_value(x)
    return vnp.where(vnp.abs(value) <= lambd, vnp.zeros_like(value), value)


def softshrink(x: Any, lambd: Any = 0.5) -> Array:
    """Return x moved towards 0 by lambd, but not beyond.

    >>> vf.nn.softshrink(vf.numpy.array([-1.0, 0.3, 0.75]))
    Array([-0.5 ,  0.  ,  0.25], dtype=float32)
    """
    value = as_value(x)
    return vnp.where(value > lambd, value - lambd, vnp.where(value < -lambd, value + lambd, 0 * value))


def tanhshrink(x: Any) -> Array:
    """Return x - tanh(x).

    >>> vf.nn.tanhshrink(vf.numpy.array([0.0, 2.0])).round(4)
    Array([0.   , 1.036], dtype=float32)
    """
    (value,) = promote_inexact("tanhshrink", x)
    return value - vnp.tanh(value)


def threshold(x: Any, threshold: Any, value: Any) -> Array:
    """Return x where it exceeds the threshold, else a number.

    >>> vf.nn.threshold(vf.numpy.array([0.5, 2.0]), 1.0, -1.0)
    Array([-1.,  2.], dtype=float32)
    """
    given = as_value(x)
    return vnp.where(given <= threshold, value, given)


def softmin(x: Any, axis: Any = -1) -> Array:
    """Return softmax(-x).

    >>> vf.nn.softmin(vf.numpy.array([0.0, 0.0]))
    Array([0.5, 0.5], dtype=float32)
    """
    return softmax(-as_value(x), axis)


def normalize(x: Any, p: float = 2.0, axis: Any = 1, eps: float = 1e-12) -> Array:
    """Return vectors along `axis` divided by their p-norm, at least by `eps`.

    >>> vf.nn.normalize(vf.numpy.array([[3.0, 4.0]]))
    Array([[0.6, 0.8]], dtype=float32)
    """
    (value,) = promote_inexact("normalize", x)
    full = wide(value)
    return narrowed(full / vnp.maximum(vnp.linalg.norm(full, p, axis=axis, keepdims=True), eps), value)


def gumbel_softmax(key: Any, logits: Any, tau: float = 1.0, hard: bool = False, axis: int = -1) -> Array:
    """Return a relaxed sample of the categorical distribution (Jang et al. 2017).

    Args:
        key: a random key.
        logits: log-probabilities, up to a constant.
        tau: the temperature; the lower, the closer to one-hot.
        hard: whether to return one-hot vectors, with the derivatives of the relaxed ones.
        axis: the axis of classes.

    >>> vf.nn.gumbel_softmax(vf.random.key(0), vf.numpy.zeros(3), hard=True)
    Array([0., 1., 0.], dtype=float32)
    """
    (value,) = promote_inexact("gumbel_softmax", logits)
    relaxed = softmax((value + random.gumbel(key, value.shape, value.dtype)) / tau, axis)
    if not hard:
        return relaxed
    sample = one_hot(vnp.argmax(relaxed, axis), value.shape[axis], dtype=value.dtype, axis=axis)
    return sample + (relaxed - stop_gradient(relaxed))

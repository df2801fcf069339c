"""Softmax as in `jax.scipy.special`: over all elements by default.

(`nn.softmax` is along the last axis.)
"""

from __future__ import annotations

from typing import Any

from volta_fn.core.arrays.array import Array
from volta_fn.scipy.special import exponential
from volta_fn.scipy.special.exponential import Axis


def softmax(x: Any, /, *, axis: Axis = None) -> Array:
    """Return exp(x) over its sum along some axes (default: over all elements).

    >>> vf.scipy.special.softmax(vf.numpy.zeros((2, 2)))
    Array([[0.25, 0.25],
           [0.25, 0.25]], dtype=float32)
    """
    return exponential.softmax(x, axis)


def log_softmax(x: Any, /, *, axis: Axis = None) -> Array:
    """Return log(softmax(x)), to full precision where the softmax is small.

    >>> vf.scipy.special.log_softmax(vf.numpy.array([0.0, 1000.0]))
    Array([-1000.,     0.], dtype=float32)
    """
    return exponential.log_softmax(x, axis)

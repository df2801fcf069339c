"""Convolution and correlation of vectors, and window functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import BOOL, INDEX, promote, promote_inexact
from volta_fn.numpy.creation import array, ones
from volta_fn.numpy.elementwise.transcendental import i0
from volta_fn.primitives.declare import to_dtype
from volta_fn.settings import current as settings


@fused
def convolve(a: Any, v: Any, mode: str = "full", *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """Convolve two vectors.

    The result is the "full" convolution, its middle as long as the longer vector ("same"), or where they overlap completely ("valid").

    >>> jnp.convolve(jnp.array([1, 2, 3]), jnp.array([0, 1]))
    Array([0, 1, 2, 3], dtype=int32)
    """
    return _convolved("convolve", a, v, mode, preferred_element_type)


@fused
def correlate(a: Any, v: Any, mode: str = "valid", *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """Return the cross-correlation of two vectors: sums of a[n + k] * conj(v[n]).

    >>> jnp.correlate(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 1.0]))
    Array([2., 3.], dtype=float32)
    """
    x, y = promote("correlate", a, v)
    _check_vectors("correlate", x, y)
    return _convolved("correlate", x, lax.rev(lax.conj(y), (0,)), mode, preferred_element_type, late_middle=x.size < y.size)


def _check_vectors(function: str, x: Array, y: Array) -> None:
    if x.ndim != 1 or y.ndim != 1 or not x.size or not y.size:
        raise ShapeError(f"{function}: a and v must be vectors of at least one element, got shapes {x.shape} and {y.shape}")


def _operands(function: str, a: Any, v: Any, preferred_element_type: Any) -> list[Array]:
    """Promote two vectors; JAX convolves integers as floats, unless told otherwise."""
    if settings.permissive and preferred_element_type is None:
        return promote_inexact(function, a, v)
    return promote(function, a, v)


def _convolved(function: str, a: Any, v: Any, mode: str, preferred_element_type: Any, late_middle: bool = False) -> Array:
    """Return the convolution.

    An even length has two middles, of which "same" takes the first, or the second with `late_middle`.
    """
    x, y = _operands(function, a, v, preferred_element_type)
    _check_vectors(function, x, y)
    if x.dtype == BOOL:
        x, y = to_dtype(x, INDEX), to_dtype(y, INDEX)
    if x.size < y.size:
        x, y = y, x
    long, short = x.size, y.size
    first = (short - 1) // 2 if late_middle else short // 2
    sides = {"full": (short - 1, short - 1), "same": (first, short - 1 - first), "valid": (0, 0)}
    if mode not in sides:
        raise ArgumentError(f"{function}: mode must be 'full', 'same' or 'valid', got {mode!r}")
    kernel = lax.rev(y, (0,))
    out = lax.conv_general_dilated(
        lax.reshape(x, (1, 1, long)), lax.reshape(kernel, (1, 1, short)), (1,), [sides[mode]], preferred_element_type=preferred_element_type
    )
    return lax.reshape(out, (out.size,))


def hanning(M: int) -> Array:
    """Return the Hann window of M points.

    >>> jnp.hanning(3).round(6)
    Array([0., 1., 0.], dtype=float32)
    """
    return array(np.hanning(M).astype(np.float32))


def hamming(M: int) -> Array:
    """Return the Hamming window of M points.

    >>> jnp.hamming(3).round(2)
    Array([0.08, 1.  , 0.08], dtype=float32)
    """
    return array(np.hamming(M).astype(np.float32))


def blackman(M: int) -> Array:
    """Return the Blackman window of M points."""
    return array(np.blackman(M).astype(np.float32))


def bartlett(M: int) -> Array:
    """Return the triangular window of M points.

    >>> jnp.bartlett(3)
    Array([0., 1., 0.], dtype=float32)
    """
    return array(np.bartlett(M).astype(np.float32))


def kaiser(M: int, beta: Any) -> Array:
    """Return the Kaiser window of M points with shape parameter `beta`.

    >>> jnp.kaiser(3, 0.0)
    Array([1., 1., 1.], dtype=float32)
    """
    if M <= 1:
        return ones(max(M, 0))
    points = np.linspace(-1.0, 1.0, M)
    shape = to_dtype(beta, np.dtype(np.float32))
    inside = array(np.sqrt(1.0 - points * points).astype(np.float32))
    return lax.div(i0(lax.mul(shape, inside)), i0(shape))

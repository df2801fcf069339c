"""Frequencies of a spectrum's elements, and spectra centred at frequency 0."""

from __future__ import annotations

from typing import Any

from volta_fn import lax
from volta_fn.core.array import Array
from volta_fn.dtypes import COMPLEX, as_dtype, real_dtype
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import Axis, axes_of, full_like_scalar, operand, promote_inexact
from volta_fn.numpy.creation import arange
from volta_fn.numpy.fft.transforms import count_of
from volta_fn.numpy.shapes import roll


def fftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return the frequencies of a spectrum (`fft`) of n samples at distance `d`.

    They are 0, 1, …, then the negative ones, over n d; float32 unless `dtype` says otherwise. Raises `ArgumentError` if n is not positive.

    >>> jnp.fft.fftfreq(4, 0.5)
    Array([ 0. ,  0.5, -1. , -0.5], dtype=float32)
    """
    count = count_of("fftfreq", n)
    half = (count + 1) // 2
    wanted = as_dtype(dtype or "float32")
    steps = arange(count, dtype=real_dtype(wanted) if wanted in COMPLEX else wanted, device=device)
    steps = lax.select(lax.ge(steps, full_like_scalar(steps, half)), lax.sub(steps, full_like_scalar(steps, count)), steps)
    return lax.convert_element_type(_over(steps, count, d), wanted)


def rfftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return the n // 2 + 1 frequencies of a spectrum of real samples at distance `d`.

    Float32 unless `dtype` says otherwise. Raises `ArgumentError` if n is not positive.

    >>> jnp.fft.rfftfreq(4, 0.5)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    count = count_of("rfftfreq", n)
    return _over(arange(count // 2 + 1, dtype=dtype or "float32", device=device), count, d)


@fused
def fftshift(x: Any, axes: Axis = None) -> Array:
    """Move frequency 0 to the middle of each of the `axes` (None: all).

    >>> jnp.fft.fftshift(jnp.array([0, 1, 2, -2, -1]))
    Array([-2, -1,  0,  1,  2], dtype=int32)
    """
    value = operand("fftshift", "x", x)
    dims = axes_of("fftshift", axes, value.ndim)
    return roll(value, [value.shape[i] // 2 for i in dims], dims)


@fused
def ifftshift(x: Any, axes: Axis = None) -> Array:
    """Invert `fftshift`.

    >>> jnp.fft.ifftshift(jnp.array([-2, -1, 0, 1, 2]))
    Array([ 0,  1,  2, -2, -1], dtype=int32)
    """
    value = operand("ifftshift", "x", x)
    dims = axes_of("ifftshift", axes, value.ndim)
    return roll(value, [-(value.shape[i] // 2) for i in dims], dims)


def _over(steps: Array, count: int, d: Any) -> Array:
    value, spacing = promote_inexact("fftfreq", steps, d)
    return lax.div(value, lax.mul(spacing, full_like_scalar(spacing, count)))

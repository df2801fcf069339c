"""Discrete Fourier transforms with `jax.numpy.fft`'s names and meanings.

The transforms call the primitive (`primitives.fourier`); the last functions give the frequencies of a spectrum's elements.

Of infinite elements, a component of a result may be NaN on one target and a number on another: algorithms multiply them by zeros or not.

>>> import volta_fn.numpy as jnp
>>> jnp.fft.fft(jnp.array([1.0, 2.0, 3.0, 4.0])).round(4)
Array([10.+0.j, -2.+2.j, -2.+0.j, -2.-2.j], dtype=complex64)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import as_integer
from volta_fn.dtypes import COMPLEX, as_dtype, real_dtype
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import Axis, axes_of, axis_of, full_like_scalar, is_complex, operand, promote_inexact
from volta_fn.numpy.creation import arange
from volta_fn.numpy.shapes import roll
from volta_fn.primitives.elementwise.selection import conj
from volta_fn.primitives.fourier import transform_axis
from volta_fn.settings import current as settings

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft", "irfft2", "irfftn",
    "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip


# Fourier transforms along one or several axes: of complex and of real numbers.

#: The norm of the inverse transform.
OPPOSITE_NORMS = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


@fused
def fft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Return the spectrum along an axis: Σ_j a[j] exp(-2πi j k / n) for k = 0 … n - 1.

    Args:
        a: numbers; real ones count as complex.
        n: the number of elements: surplus ones are cut off, missing ones are zeros. None: the axis' length.
        axis: the axis that is transformed.
        norm: "backward" (None) divides the inverse's sums by n, "forward" the transform's, "ortho" both by √n.

    The result has `a`'s shape, with n elements along `axis`, in complex64, or complex128 for 64-bit numbers. Raises `ArgumentError` for
    an unknown `norm` and if n is not positive, `ShapeError` for no elements or if there is no such axis.

    >>> jnp.fft.fft(jnp.array([0.0, 1.0, 0.0, -1.0])).round(4)
    Array([0.+0.j, 0.-2.j, 0.+0.j, 0.+2.j], dtype=complex64)
    """
    return spectrum("fft", as_complex("fft", a), n, axis, norm)


@fused
def ifft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Invert `fft`, with the same arguments: Σ_k a[k] exp(2πi j k / n) / n for each j.

    >>> jnp.fft.ifft(jnp.array([4.0, 0.0, 0.0, 0.0]))
    Array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    return spectrum("ifft", as_complex("ifft", a), n, axis, norm, inverse=True)


@fused
def rfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Return the first n // 2 + 1 elements of `fft` of real numbers.

    Element n - k is the conjugate of element k. Raises `ArgumentTypeError` for complex numbers, and what `fft` raises.

    >>> jnp.fft.rfft(jnp.array([0.0, 1.0, 0.0, -1.0])).round(4)
    Array([0.+0.j, 0.-2.j, 0.+0.j], dtype=complex64)
    """
    return _half("rfft", a, n, axis, norm)


@fused
def irfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Invert `rfft`: n real numbers from the first half of their spectrum.

    By default n is even, 2 (m - 1) for m elements. The imaginary parts of element 0 and, for even n, n / 2 are ignored.

    >>> jnp.fft.irfft(jnp.array([0, -2j, 0])).round(4)
    Array([ 0.,  1.,  0., -1.], dtype=float32)
    """
    return _from_half("irfft", a, n, axis, norm)


@fused
def hfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Return the real spectrum of a Hermitian signal's first half `a`; see `irfft`.

    >>> jnp.fft.hfft(jnp.array([1.0, 2.0, 3.0])).round(4)
    Array([ 8., -2.,  0., -2.], dtype=float32)
    """
    return _from_half("hfft", conj(as_complex("hfft", a)), n, axis, OPPOSITE_NORMS[norm_of("hfft", norm)])


@fused
def ihfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Invert `hfft`: return the first half of the signal with a real spectrum.

    >>> jnp.fft.ihfft(jnp.array([8.0, -2.0, 0.0, -2.0])).real.round(4)
    Array([1., 2., 3.], dtype=float32)
    """
    return conj(_half("ihfft", a, n, axis, OPPOSITE_NORMS[norm_of("ihfft", norm)]))


def as_complex(function: str, a: Any) -> Array:
    """Return `a` as complex numbers."""
    (value,) = promote_inexact(function, a)
    return lax.convert_element_type(value, dtypes.complex_dtype(value.dtype))


def spectrum(function: str, value: Array, n: int | None, axis: int, norm: str | None, inverse: bool = False) -> Array:
    """Return `fft` of complex numbers, or its inverse."""
    return _transformed(function, value, "IFFT" if inverse else "FFT", n, axis, norm)


def _transformed(function: str, value: Array, kind: str, n: int | None, axis: int, norm: str | None) -> Array:
    """Transform the first n elements, zeros included; for IRFFT, n // 2 + 1."""
    scale = norm_of(function, norm)
    dim = axis_of(function, axis, value.ndim)
    if n is None and not value.shape[dim]:
        if settings.permissive:  # as in JAX
            return value
        raise ShapeError(f"{function} of no elements: an axis of length 0 has no spectrum unless n is given")
    count = value.shape[dim] if n is None else count_of(function, n)
    result = transform_axis(resized(value, dim, count // 2 + 1 if kind == "IRFFT" else count), kind, count, dim)
    inverse = kind in ("IFFT", "IRFFT")
    if scale == "ortho":
        return lax.mul(result, full_like_scalar(result, np.sqrt(count) if inverse else 1 / np.sqrt(count)))
    if scale == "forward":
        return lax.mul(result, full_like_scalar(result, count if inverse else 1 / count))
    return result


def norm_of(function: str, norm: str | None) -> str:
    """Return a norm, "backward" for None; raise `ArgumentError` if it is unknown."""
    kind = "backward" if norm is None else norm
    if kind not in OPPOSITE_NORMS:
        raise ArgumentError(f"{function}: norm must be None, 'backward', 'ortho' or 'forward', got {norm!r}")
    return kind


def count_of(function: str, n: Any) -> int:
    """Return a number of elements; raise `ArgumentError` unless it is positive."""
    count = as_integer(n, f"{function}: n")
    if count < 1:
        raise ArgumentError(f"{function}: n must be positive, got {n}")
    return count


def resized(value: Array, axis: int, length: int) -> Array:
    """Cut an axis to a number of elements, or add zeros at its end."""
    size = value.shape[axis]
    if length == size:
        return value
    if length < size:
        return lax.slice_in_dim(value, 0, length, axis=axis)
    return lax.pad(value, np.zeros((), value.dtype), [(0, (length - size) * (i == axis), 0) for i in range(value.ndim)])


def _half(function: str, a: Any, n: int | None, axis: int, norm: str | None) -> Array:
    (value,) = promote_inexact(function, a)
    if is_complex(value):
        raise ArgumentTypeError(f"{function} takes real numbers, got {value.dtype.name}; use fft")
    wide_enough = lax.convert_element_type(value, dtypes.real_dtype(dtypes.complex_dtype(value.dtype)))
    return _transformed(function, wide_enough, "RFFT", n, axis, norm)


def _from_half(function: str, a: Any, n: int | None, axis: int, norm: str | None) -> Array:
    value = as_complex(function, a)
    size = value.shape[axis_of(function, axis, value.ndim)]
    if n is None and size < 2:
        raise ShapeError(f"{function}: {size} elements are no half spectrum; give n")
    return _transformed(function, value, "IRFFT", 2 * (size - 1) if n is None else n, axis, norm)


Sizes = Sequence[int] | None


@fused
def fftn(a: Any, s: Sizes = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Array:
    """Apply `fft` along several axes.

    Args:
        a: numbers; real ones count as complex.
        s: the number of elements along each axis: surplus ones are cut off, missing ones are zeros. None: the axes' lengths.
        axes: the axes, each at most once. None: the last `len(s)`, or all.
        norm: as for `fft`, for each axis.

    Raises `ArgumentError` if `s` and `axes` differ in length, `ShapeError` if there is no such axis or one is named twice, and what `fft`
    raises.

    >>> jnp.fft.fftn(jnp.ones((2, 2)))
    Array([[4.+0.j, 0.+0.j],
           [0.+0.j, 0.+0.j]], dtype=complex64)
    """
    return _along_all("fftn", a, s, axes, norm)


@fused
def ifftn(a: Any, s: Sizes = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Array:
    """Invert `fftn`, with the same arguments.

    >>> jnp.fft.ifftn(jnp.fft.fftn(jnp.ones((2, 2)))).real
    Array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    return _along_all("ifftn", a, s, axes, norm, inverse=True)


@fused
def rfftn(a: Any, s: Sizes = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Array:
    """Apply `rfft` along the last axis and `fft` along the others; see `fftn`.

    >>> jnp.fft.rfftn(jnp.ones((2, 4))).shape
    (2, 3)
    """
    dims, sizes = _axes_and_sizes("rfftn", a, s, axes, least=1)
    half = rfft(a, sizes[-1], dims[-1], norm)
    return _along("rfftn", half, dims[:-1], sizes[:-1], norm, inverse=False)


@fused
def irfftn(a: Any, s: Sizes = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Array:
    """Invert `rfftn`: `ifft` along all axes but the last, then `irfft`; see `fftn`.

    >>> jnp.fft.irfftn(jnp.fft.rfftn(jnp.ones((2, 4)))).shape
    (2, 4)
    """
    value = as_complex("irfftn", a)
    dims, sizes = _axes_and_sizes("irfftn", value, s, axes, least=1)
    half = _along("irfftn", value, dims[:-1], sizes[:-1], norm, inverse=True)
    return irfft(half, sizes[-1], dims[-1], norm)


@fused
def fft2(a: Any, s: Sizes = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Array:
    """Apply `fftn` along two axes, by default the last two.

    >>> jnp.fft.fft2(jnp.ones((2, 2)))[0, 0]
    Array(4.+0.j, dtype=complex64)
    """
    return fftn(a, s, _checked_pair("fft2", axes), norm)


@fused
def ifft2(a: Any, s: Sizes = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Array:
    """Invert `fft2`.

    >>> jnp.fft.ifft2(jnp.array([[4.0, 0.0], [0.0, 0.0]])).real
    Array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    return ifftn(a, s, _checked_pair("ifft2", axes), norm)


@fused
def rfft2(a: Any, s: Sizes = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Array:
    """Apply `rfftn` along two axes, by default the last two.

    >>> jnp.fft.rfft2(jnp.ones((3, 4, 4))).shape
    (3, 4, 3)
    """
    return rfftn(a, s, _checked_pair("rfft2", axes), norm)


@fused
def irfft2(a: Any, s: Sizes = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Array:
    """Invert `rfft2`.

    >>> jnp.fft.irfft2(jnp.fft.rfft2(jnp.ones((3, 4, 4)))).shape
    (3, 4, 4)
    """
    return irfftn(a, s, _checked_pair("irfft2", axes), norm)


def _checked_pair(function: str, axes: Sequence[int]) -> Sequence[int]:
    if np.ndim(axes) != 1 or len(axes) != 2:
        raise ArgumentError(f"{function}: axes must be two, got {axes}; {function.removesuffix('2')}n takes any number of them")
    return axes


def _along_all(function: str, a: Any, s: Sizes, axes: Sequence[int] | None, norm: str | None, inverse: bool = False) -> Array:
    value = as_complex(function, a)
    return _along(function, value, *_axes_and_sizes(function, value, s, axes), norm, inverse)


def _along(function: str, value: Array, axes: Sequence[int], sizes: Sequence[int | None], norm: str | None, inverse: bool) -> Array:
    for axis, size in zip(axes, sizes, strict=True):
        value = spectrum(function, value, size, axis, norm, inverse)
    return value


def _axes_and_sizes(
    function: str, a: Any, s: Sizes, axes: Sequence[int] | None, least: int = 0
) -> tuple[tuple[int, ...], Sequence[int | None]]:
    """Return the axes, counted from the front, and the number of elements along each."""
    named = tuple(axes) if axes is not None else None if s is None else tuple(range(-len(s), 0))
    dims = axes_of(function, named, as_complex(function, a).ndim)
    if len(dims) < least:
        raise ArgumentError(f"{function}: at least one axis must be transformed")
    if s is not None and len(s) != len(dims):
        raise ArgumentError(f"{function}: s and axes must have the same length, got s {tuple(s)} for axes {named}")
    return dims, [None] * len(dims) if s is None else s


# Frequencies of a spectrum's elements, and spectra centred at frequency 0.


def fftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return the frequencies of a spectrum (`fft`) of n samples at distance `d`.

    They are 0, 1, …, then the negative ones, over n d, in the default floating dtype unless `dtype` says otherwise. Raises `ArgumentError`
    if n is not positive.

    >>> jnp.fft.fftfreq(4, 0.5)
    Array([ 0. ,  0.5, -1. , -0.5], dtype=float32)
    """
    count = count_of("fftfreq", n)
    half = (count + 1) // 2
    result_dtype = as_dtype(dtype or float)
    steps = arange(count, dtype=real_dtype(result_dtype) if result_dtype in COMPLEX else result_dtype, device=device)
    steps = lax.select(lax.ge(steps, full_like_scalar(steps, half)), lax.sub(steps, full_like_scalar(steps, count)), steps)
    return lax.convert_element_type(_over(steps, count, d), result_dtype)


def rfftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return the n // 2 + 1 frequencies of a spectrum of real samples at distance `d`.

    They have the default floating dtype unless `dtype` says otherwise. Raises `ArgumentError` if n is not positive.

    >>> jnp.fft.rfftfreq(4, 0.5)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    count = count_of("rfftfreq", n)
    return _over(arange(count // 2 + 1, dtype=dtype or float, device=device), count, d)


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

"""Discrete cosine transforms: names of `scipy.fft`; others are in `numpy.fft`.

>>> import volta_fn as vf
>>> vf.scipy.fft.dct(vf.numpy.array([1.0, 1.0])).round(4)
Array([4., 0.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import check_option
from volta_fn.dtypes import complex_dtype
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.arguments import axes_of, axis_of, is_complex, promote_inexact
from volta_fn.numpy.fft import OPPOSITE_NORMS, count_of, norm_of, resized

__all__ = ["dct", "dctn", "idct", "idctn"]


# Discrete cosine transforms of types 1 to 4, by Fourier transforms.
#
# Types 2 and 3 take the elements of even index, then those of odd index in reverse (Makhoul, 1980).

#: The type of the inverse transform.
_INVERSE = {1: 1, 2: 3, 3: 2, 4: 4}


def dct(x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Return the discrete cosine transform along an axis.

    Args:
        x: numbers; integers become floats, and of complex numbers both components are transformed.
        type: 1, 2, 3 or 4; see `scipy.fft.dct` for the formulas. Type 2 is 2 Σ_j x[j] cos(π k (2 j + 1) / 2 n) for k = 0 … n - 1.
        n: the number of elements: surplus ones are cut off, missing ones are zeros. None: the axis' length.
        axis: the axis that is transformed.
        norm: "backward" (None) divides the inverse, "forward" the transform, "ortho" makes the transform's matrix orthogonal.

    The result has `x`'s shape, with n elements along `axis`, in float32 or wider. Raises `ArgumentError` for an unknown type or norm and
    unless n is positive, `ShapeError` for no elements, for one element in type 1, and if there is no such axis.

    >>> vf.scipy.fft.dct(jnp.array([1.0, 2.0, 4.0])).round(3)
    Array([14.   , -5.196,  1.   ], dtype=float32)
    """
    return _transformed("dct", x, type, n, axis, norm, inverse=False)


def idct(x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Invert `dct`, with the same arguments.

    >>> vf.scipy.fft.idct(vf.scipy.fft.dct(jnp.array([1.0, 2.0, 3.0]))).round(4)
    Array([1., 2., 3.], dtype=float32)
    """
    return _transformed("idct", x, type, n, axis, norm, inverse=True)


def dctn(
    x: Any, type: int = 2, s: int | Sequence[int] | None = None, axes: int | Sequence[int] | None = None, norm: str | None = None
) -> Array:
    """Return the discrete cosine transform along several axes.

    `s` has the number of elements for each of the `axes`: by default for the last ones, and without `s` for all. For the others see `dct`.

    >>> vf.scipy.fft.dctn(jnp.ones((2, 2))).round(4)
    Array([[16.,  0.],
           [ 0.,  0.]], dtype=float32)
    """
    return _along_axes("dctn", x, type, s, axes, norm, inverse=False)


def idctn(
    x: Any, type: int = 2, s: int | Sequence[int] | None = None, axes: int | Sequence[int] | None = None, norm: str | None = None
) -> Array:
    """Invert `dctn`, with the same arguments.

    >>> vf.scipy.fft.idctn(jnp.array([[16.0, 0.0], [0.0, 0.0]])).round(4)
    Array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    return _along_axes("idctn", x, type, s, axes, norm, inverse=True)


def _along_axes(function: str, x: Any, type: int, s: Any, axes: Any, norm: str | None, inverse: bool) -> Array:
    (value,) = promote_inexact(function, x)
    counts = None if s is None else [count_of(function, n) for n in ([s] if np.ndim(s) == 0 else s)]
    if counts is not None and len(counts) > value.ndim:
        raise ShapeError(f"{function}: s has {len(counts)} numbers for {value.ndim} axes")
    chosen = axes
    if axes is None and counts is not None:
        chosen = range(value.ndim - len(counts), value.ndim)
    dims = axes_of(function, chosen if chosen is None or np.ndim(chosen) == 0 else tuple(chosen), value.ndim)
    if counts is not None and len(counts) != len(dims):
        raise ArgumentError(f"{function}: s has {len(counts)} numbers for {len(dims)} axes")
    for i, d in enumerate(dims):
        value = _transformed(function, value, type, None if counts is None else counts[i], d, norm, inverse)
    return value


def _transformed(function: str, x: Any, type: int, n: int | None, axis: int, norm: str | None, inverse: bool) -> Array:
    (value,) = promote_inexact(function, x)
    check_option(type, f"{function}: type", _INVERSE)
    dim, kind, scale = axis_of(function, axis, value.ndim), type, norm_of(function, norm)
    if inverse:
        kind, scale = _INVERSE[kind], OPPOSITE_NORMS[scale]
    count = value.shape[dim] if n is None else count_of(function, n)
    if count < 1 + (kind == 1):
        raise ShapeError(f"{function} of type {type} needs {1 + (kind == 1)} elements or more along the axis, got {count}")
    last = vnp.moveaxis(resized(value, dim, count), dim, -1)
    components = [last.real, last.imag] if is_complex(last) else [last]
    transformed = [_scaled(c.astype(_wide_enough(c)), kind, scale) for c in components]
    return vnp.moveaxis(lax.complex(*transformed) if len(transformed) == 2 else transformed[0], -1, dim)


def _wide_enough(x: Array) -> np.dtype:
    return np.dtype(np.float64 if complex_dtype(x.dtype) == np.complex128 else np.float32)


def _scaled(x: Array, kind: int, norm: str) -> Array:
    """Transform the last axis, with a norm."""
    # An orthogonal matrix has a common factor and others in the first (and for type 1 the last) row or column.
    n = x.shape[-1]
    period = 2 * (n - 1) if kind == 1 else 2 * n
    if norm != "ortho":
        return _COSINE[kind](x) / (period if norm == "forward" else 1)
    ends = [0, n - 1] if kind == 1 else [0]
    factors = np.ones(n, x.dtype)
    factors[ends] = np.sqrt(2)
    scaled = _COSINE[kind](x * factors if kind in (1, 3) else x) / x.dtype.type(np.sqrt(period))
    return scaled / factors if kind in (1, 2) else scaled


def _unit_numbers(angles: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return exp(i angle) for each angle, in the complex dtype of a real one."""
    return np.exp(1j * angles).astype(complex_dtype(dtype))


def _type_1(x: Array) -> Array:
    mirrored = vnp.concatenate([x, x[..., -2:0:-1]], -1)
    return vnp.fft.rfft(mirrored).real


def _type_2(x: Array) -> Array:
    n = x.shape[-1]
    reordered = vnp.concatenate([x[..., ::2], x[..., 1::2][..., ::-1]], -1)
    return 2 * (vnp.fft.fft(reordered) * _unit_numbers(-np.pi * np.arange(n) / (2 * n), x.dtype)).real


def _type_3(x: Array) -> Array:
    n = x.shape[-1]
    half = n // 2 + 1
    reverse = vnp.concatenate([vnp.zeros_like(x[..., :1]), x[..., :0:-1]], -1)
    spectrum = lax.complex(x, -reverse)[..., :half] * _unit_numbers(np.pi * np.arange(half) / (2 * n), x.dtype)
    reordered = vnp.fft.irfft(spectrum, n, norm="forward")
    order = np.argsort(np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)[::-1]]))
    return vnp.take(reordered, order.astype(np.int32), -1)


def _type_4(x: Array) -> Array:
    n = x.shape[-1]
    turned = x * _unit_numbers(-np.pi * np.arange(n) / (2 * n), x.dtype)
    spectrum = vnp.fft.fft(turned, 2 * n)[..., :n]
    return 2 * (spectrum * _unit_numbers(-np.pi * (2 * np.arange(n) + 1) / (4 * n), x.dtype)).real


#: The transforms of the last axis, by type, without factors.
_COSINE = {1: _type_1, 2: _type_2, 3: _type_3, 4: _type_4}

"""Convolution and correlation of arrays, directly or by Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.core.aval import Shape
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.arguments import axes_of, converted, is_complex, promote_inexact, promote_numeric

_MODES = ("full", "same", "valid")
#: By boundary of SciPy, the mode of `numpy.pad`.
_BOUNDARIES = {"fill": "constant", "wrap": "wrap", "symm": "symmetric"}


def convolve(in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: Any = None) -> Array:
    """Convolve two arrays of any number of dimensions.

    Args:
        in1, in2: arrays of as many dimensions each.
        mode: "full" for all sums with one product or more, "same" for the middle of these, of the shape of `in1`, "valid" for those
            where the smaller array lies inside of the larger one.
        method: "direct" adds products, "fft" multiplies spectra (`fftconvolve`), which rounds more and is faster for long arrays. "auto"
            is "direct", as in JAX.
        precision: as in `lax.dot_general`.

    Integers stay integers where the method is direct; booleans become int32. Raises `ShapeError` for arrays of several ranks, without
    elements, or of which neither contains the other in the mode "valid", `ArgumentError` for another mode or method.

    >>> vf.scipy.signal.convolve(jnp.array([1, 2, 3]), jnp.array([0, 1, 1]), mode="same")
    Array([1, 3, 5], dtype=int32)
    """
    return _convolved("convolve", in1, in2, mode, method, precision)


def correlate(in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: Any = None) -> Array:
    """Return the cross-correlation: sums of in1[k + i] · conj(in2[i]).

    Arguments and errors are those of `convolve`; element ``in2.shape - 1`` of the full result is that of k = 0.

    >>> vf.scipy.signal.correlate(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 1.0]))
    Array([1., 2., 3., 0.], dtype=float32)
    """
    first, second = promote_numeric("correlate", in1, in2)
    return _convolved("correlate", first, _reversed(second), mode, method, precision)


def convolve2d(in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: Any = 0, precision: Any = None) -> Array:
    """Convolve two matrices.

    Args:
        in1, in2: matrices.
        mode, precision: as in `convolve`.
        boundary: what is around `in1`: "fill" is `fillvalue`, "wrap" the matrix again, "symm" its mirror image.
        fillvalue: a number.

    Raises what `convolve` does, `ShapeError` unless both are matrices, and `ArgumentError` for another boundary.

    >>> vf.scipy.signal.convolve2d(jnp.ones((2, 2)), jnp.ones((1, 2)), boundary="wrap")
    Array([[2., 2., 2.],
           [2., 2., 2.]], dtype=float32)
    """
    first, second = _matrices("convolve2d", in1, in2)
    return _convolved_2d("convolve2d", first, second, mode, boundary, fillvalue, precision)


def correlate2d(in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: Any = 0, precision: Any = None) -> Array:
    """Return the cross-correlation of two matrices, as `correlate` does for arrays.

    Arguments and errors are those of `convolve2d`. The mode "same" begins, as in SciPy, at the element of k = 0 for matrices of odd size,
    else one before the middle.

    >>> vf.scipy.signal.correlate2d(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[1.0, 1.0]]), mode="valid")
    Array([[3.],
           [7.]], dtype=float32)
    """
    first, second = _matrices("correlate2d", in1, in2)
    if mode == "same":
        mirrored = _convolved_2d("correlate2d", vnp.flip(first), second.conj(), mode, boundary, fillvalue, precision)
        return vnp.flip(mirrored)
    return _convolved_2d("correlate2d", first, _reversed(second), mode, boundary, fillvalue, precision)


def fftconvolve(in1: Any, in2: Any, mode: str = "full", axes: int | Sequence[int] | None = None) -> Array:
    """Convolve two arrays by the product of their Fourier transforms.

    Args:
        in1, in2: arrays of as many dimensions each; integers become floats.
        mode: as in `convolve`.
        axes: the axes to convolve along (default: all); the others broadcast.

    Raises what `convolve` does.

    >>> vf.scipy.signal.fftconvolve(jnp.array([1.0, 2.0]), jnp.array([1.0, 1.0])).round(4)
    Array([1., 3., 2.], dtype=float32)
    """
    first, second = promote_inexact("fftconvolve", in1, in2)
    _check("fftconvolve", first, second, mode)
    dims = axes_of("fftconvolve", axes if axes is None or isinstance(axes, int) else tuple(axes), first.ndim)
    shapes = [tuple([x.shape[d] for d in dims]) for x in (first, second)]
    if mode == "valid":
        _contains("fftconvolve", *shapes)
    sizes = [_fast_size(m + n - 1) for m, n in zip(*shapes, strict=True)]
    if not dims:
        return first * second
    if is_complex(first):
        product = vnp.fft.fftn(first, sizes, dims) * vnp.fft.fftn(second, sizes, dims)
        full = vnp.fft.ifftn(product, sizes, dims)
    else:
        product = vnp.fft.rfftn(first, sizes, dims) * vnp.fft.rfftn(second, sizes, dims)
        full = vnp.fft.irfftn(product, sizes, dims)
    for d, m, n in zip(dims, *shapes, strict=True):
        start, size = _range(mode, m, n)
        full = lax.slice_in_dim(full, start, start + size, axis=d)
    return full.astype(first.dtype)


def _fast_size(least: int) -> int:
    """Return the next number without prime factors above 5: transforms are fast."""
    powers = (3**i * 5**j for i in range(least.bit_length()) for j in range(least.bit_length()))
    return min(power << max(-(-least // power) - 1, 0).bit_length() for power in powers if power < 2 * least)


def _range(mode: str, m: int, n: int) -> tuple[int, int]:
    """Return the first element, and the number of them, of the full convolution."""
    if mode == "full":
        return 0, m + n - 1
    return ((n - 1) // 2, m) if mode == "same" else (min(m, n) - 1, abs(m - n) + 1)


def _reversed(x: Array) -> Array:
    return vnp.flip(x).conj()


def _check(function: str, first: Array, second: Array, mode: str) -> None:
    if mode not in _MODES:
        raise ArgumentError(f"{function}: mode must be 'full', 'same' or 'valid', got {mode!r}")
    if first.ndim != second.ndim:
        raise ShapeError(f"{function}: in1 and in2 must have as many dimensions each, got shapes {first.shape} and {second.shape}")
    if not first.size or not second.size:
        raise ShapeError(f"{function}: in1 and in2 must have elements, got shapes {first.shape} and {second.shape}")


def _contains(function: str, first: Shape, second: Shape) -> bool:
    """Return whether the first array contains the second, or raise if neither does."""
    if all(m >= n for m, n in zip(first, second, strict=True)):
        return True
    if all(m <= n for m, n in zip(first, second, strict=True)):
        return False
    raise ShapeError(f"{function}: in the mode 'valid' one array must contain the other, got shapes {first} and {second}")


def _convolved(function: str, in1: Any, in2: Any, mode: str, method: str, precision: Any) -> Array:
    if method not in ("auto", "direct", "fft"):
        raise ArgumentError(f"{function}: method must be 'auto', 'direct' or 'fft', got {method!r}")
    if method == "fft":
        return fftconvolve(in1, in2, mode)
    first, second = promote_numeric(function, in1, in2)
    _check(function, first, second, mode)
    if mode == "valid" and not _contains(function, first.shape, second.shape):
        first, second = second, first
    return _direct(first, second, [_range(mode, m, n) for m, n in zip(first.shape, second.shape, strict=True)], precision)


def _direct(first: Array, second: Array, ranges: Sequence[tuple[int, int]], precision: Any) -> Array:
    """Return a range of the full convolution along each axis."""
    if not first.ndim:
        return first * second
    padding = []
    for (start, size), m, n in zip(ranges, first.shape, second.shape, strict=True):
        low = n - 1 - start
        padding.append((low, size + n - 1 - m - low))
    ones = (1,) * first.ndim
    out = lax.conv_general_dilated(first[None, None], vnp.flip(second)[None, None], ones, padding, precision=precision)
    return lax.squeeze(out, (0, 1))


def _matrices(function: str, in1: Any, in2: Any) -> list[Array]:
    both = promote_numeric(function, in1, in2)
    if any(x.ndim != 2 for x in both):
        raise ShapeError(f"{function}: in1 and in2 must be matrices, got shapes {both[0].shape} and {both[1].shape}")
    return both


def _convolved_2d(function: str, first: Array, second: Array, mode: str, boundary: str, fillvalue: Any, precision: Any) -> Array:
    if boundary not in _BOUNDARIES:
        raise ArgumentError(f"{function}: boundary must be 'fill', 'wrap' or 'symm', got {boundary!r}")
    if mode == "valid" or (boundary == "fill" and isinstance(fillvalue, (int, float)) and not fillvalue):
        return _convolved(function, first, second, mode, "direct", precision)
    _check(function, first, second, mode)
    widths = [(n - 1, n - 1) for n in second.shape]
    pad: Callable[..., Array] = vnp.pad
    options = {"constant_values": converted(function, fillvalue, first.dtype)} if boundary == "fill" else {}
    around = pad(first, widths, _BOUNDARIES[boundary], **options)
    ranges = [_range(mode, m, n) for m, n in zip(first.shape, second.shape, strict=True)]
    return _direct(around, second, [(start + n - 1, size) for (start, size), n in zip(ranges, second.shape, strict=True)], precision)

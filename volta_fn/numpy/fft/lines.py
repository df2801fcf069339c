"""Fourier transforms along one axis: of complex numbers, of real ones (`rfft`), and of those whose spectrum is real (`hfft`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.core.aval import whole_number
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.numpy.common import axis_of, full_like_scalar, is_complex, promote_inexact
from volta_fn.numpy.fft.discrete import transform
from volta_fn.numpy.shapes import moveaxis
from volta_fn.primitives.complex_parts import conj

#: What a norm is for the inverse of a transform that has it.
_OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def fft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The spectrum along an axis: Σ_j a[j] exp(-2πi j k / n) for every frequency k from 0 to n - 1.

    Args:
        a: numbers; real ones count as complex.
        n: how many elements count: more are cut off, missing ones are zeros. None: all there are.
        axis: the axis that is transformed.
        norm: "backward" (None) leaves sums as they are and divides those of the inverse by n, "forward" does the opposite, "ortho"
            divides both by √n.

    The result has `a`'s shape but for n elements along `axis`, in complex64, or complex128 for 64-bit numbers. Raises `ArgumentError` for
    an unknown `norm` and if n is not positive, `ShapeError` for no elements or if there is no such axis.

    >>> import volta_fn.numpy as jnp
    >>> jnp.fft.fft(jnp.array([0.0, 1.0, 0.0, -1.0])).round(4)
    Array([0.+0.j, 0.-2.j, 0.+0.j, 0.+2.j], dtype=complex64)
    """
    return spectrum("fft", as_complex("fft", a), n, axis, norm)


def ifft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of `fft`, with the same arguments: Σ_k a[k] exp(2πi j k / n) / n for every j.

    >>> import volta_fn.numpy as jnp
    >>> jnp.fft.ifft(jnp.array([4.0, 0.0, 0.0, 0.0]))
    Array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    return spectrum("ifft", as_complex("ifft", a), n, axis, norm, inverse=True)


def rfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The first n // 2 + 1 elements of `fft` of real numbers, which determine the others: element n - k is the conjugate of element k.

    Raises `ArgumentTypeError` for complex numbers, and what `fft` raises.

    >>> import volta_fn.numpy as jnp
    >>> jnp.fft.rfft(jnp.array([0.0, 1.0, 0.0, -1.0])).round(4)
    Array([0.+0.j, 0.-2.j, 0.+0.j], dtype=complex64)
    """
    return _half("rfft", a, n, axis, norm)


def irfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of `rfft`: n real numbers (an even number unless given, 2 (m - 1) of m elements) from the first half of their spectrum.

    The imaginary parts of element 0 and, for even n, n / 2 do not count.

    >>> import volta_fn.numpy as jnp
    >>> jnp.fft.irfft(jnp.array([0, -2j, 0])).round(4)
    Array([ 0.,  1.,  0., -1.], dtype=float32)
    """
    return _from_half("irfft", a, n, axis, norm)


def hfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The spectrum, of n real numbers, of a signal that is its own mirrored conjugate, of which `a` is the first half. See `irfft`.

    >>> import volta_fn.numpy as jnp
    >>> jnp.fft.hfft(jnp.array([1.0, 2.0, 3.0])).round(4)
    Array([ 8., -2.,  0., -2.], dtype=float32)
    """
    return _from_half("hfft", conj(as_complex("hfft", a)), n, axis, _OPPOSITE[_norm("hfft", norm)])


def ihfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of `hfft`: the first half of the signal that has a spectrum of real numbers.

    >>> import volta_fn.numpy as jnp
    >>> jnp.fft.ihfft(jnp.array([8.0, -2.0, 0.0, -2.0])).real.round(4)
    Array([1., 2., 3.], dtype=float32)
    """
    return conj(_half("ihfft", a, n, axis, _OPPOSITE[_norm("ihfft", norm)]))


def as_complex(function: str, a: Any) -> Array:
    """`a` as complex numbers."""
    (value,) = promote_inexact(function, a)
    return lax.convert_element_type(value, dtypes.complex_dtype(value.dtype))


def spectrum(function: str, value: Array, n: int | None, axis: int, norm: str | None, inverse: bool = False) -> Array:
    """`fft` of complex numbers, or its inverse."""
    kind = _norm(function, norm)
    place = axis_of(function, axis, value.ndim)
    line = _resized(function, moveaxis(value, place, -1), n)
    count = line.shape[-1]
    result = transform(line, 1 if inverse else -1)
    if kind == "ortho" or (kind == "backward") == inverse:
        result = lax.mul(result, full_like_scalar(result, 1 / (np.sqrt(count) if kind == "ortho" else count)))
    return moveaxis(result, -1, place)


def _norm(function: str, norm: str | None) -> str:
    kind = "backward" if norm is None else norm
    if kind not in _OPPOSITE:
        raise ArgumentError(f"{function}: norm must be None, 'backward', 'ortho' or 'forward', got {norm!r}")
    return kind


def count_of(function: str, n: Any) -> int:
    """A number of elements; `ArgumentError` unless it is positive."""
    count = whole_number(n, f"{function}: n")
    if count < 1:
        raise ArgumentError(f"{function}: n must be positive, got {n}")
    return count


def _resized(function: str, value: Array, n: int | None) -> Array:
    """`value` with n elements along its last axis: the first ones, or all of them and zeros."""
    size = value.shape[-1]
    if n is None and not size:
        raise ShapeError(f"{function} of no elements: an axis of length 0 has no spectrum unless n is given")
    wanted = size if n is None else count_of(function, n)
    if wanted <= size:
        return lax.slice_in_dim(value, 0, wanted, axis=value.ndim - 1)
    return lax.pad(value, np.zeros((), value.dtype), [(0, 0, 0)] * (value.ndim - 1) + [(0, wanted - size, 0)])


def _half(function: str, a: Any, n: int | None, axis: int, norm: str | None) -> Array:
    (value,) = promote_inexact(function, a)
    if is_complex(value):
        raise ArgumentTypeError(f"{function} takes real numbers, got {value.dtype.name}; use fft")
    whole = spectrum(function, as_complex(function, value), n, axis, norm)
    place = axis_of(function, axis, whole.ndim)
    return lax.slice_in_dim(whole, 0, whole.shape[place] // 2 + 1, axis=place)


def _from_half(function: str, a: Any, n: int | None, axis: int, norm: str | None) -> Array:
    value = as_complex(function, a)
    place = axis_of(function, axis, value.ndim)
    if n is None and value.shape[place] < 2:
        raise ShapeError(f"{function}: {value.shape[place]} elements are half a spectrum of none; give n")
    count = 2 * (value.shape[place] - 1) if n is None else count_of(function, n)
    half = _resized(function, moveaxis(value, place, -1), count // 2 + 1)
    mirrored = conj(lax.rev(lax.slice_in_dim(half, 1, (count + 1) // 2, axis=half.ndim - 1), (half.ndim - 1,)))
    whole = lax.concatenate([half, mirrored], half.ndim - 1)
    return moveaxis(lax.real(spectrum(function, whole, None, -1, norm, inverse=True)), -1, place)

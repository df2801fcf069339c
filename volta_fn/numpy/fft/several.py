"""Fourier transforms along several axes, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.numpy.common import axes_of
from volta_fn.numpy.fft.lines import as_complex, irfft, rfft, spectrum

Sizes = Sequence[int] | None


def fftn(a: Any, s: Sizes = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Array:
    """`fft` along several axes.

    Args:
        a: numbers; real ones count as complex.
        s: how many elements count along each axis: more are cut off, missing ones are zeros. None: all there are.
        axes: the axes, each at most once. None: the last `len(s)`, or all.
        norm: see `fft`; it holds for each axis.

    Raises `ArgumentError` if `s` and `axes` have two lengths, `ShapeError` if there is no such axis or one is named twice, and what `fft`
    raises.

    >>> import volta_fn.numpy as jnp
    >>> jnp.fft.fftn(jnp.ones((2, 2)))
    Array([[4.+0.j, 0.+0.j],
           [0.+0.j, 0.+0.j]], dtype=complex64)
    """
    return _along_all("fftn", a, s, axes, norm)


def ifftn(a: Any, s: Sizes = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Array:
    """The inverse of `fftn`, with the same arguments.

    >>> import volta_fn.numpy as jnp
    >>> jnp.fft.ifftn(jnp.fft.fftn(jnp.ones((2, 2)))).real
    Array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    return _along_all("ifftn", a, s, axes, norm, inverse=True)


def rfftn(a: Any, s: Sizes = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Array:
    """`rfft` of real numbers along the last of several axes, and `fft` along the others; the arguments are those of `fftn`.

    >>> import volta_fn.numpy as jnp
    >>> jnp.fft.rfftn(jnp.ones((2, 4))).shape
    (2, 3)
    """
    places, sizes = _axes_and_sizes("rfftn", a, s, axes)
    if not places:
        raise ArgumentError("rfftn: at least one axis must be transformed")
    half = rfft(a, sizes[-1], places[-1], norm)
    return _along("rfftn", half, places[:-1], sizes[:-1], norm, inverse=False)


def irfftn(a: Any, s: Sizes = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Array:
    """The inverse of `rfftn`: `ifft` along all axes but the last, and then `irfft`; the arguments are those of `fftn`.

    >>> import volta_fn.numpy as jnp
    >>> jnp.fft.irfftn(jnp.fft.rfftn(jnp.ones((2, 4)))).shape
    (2, 4)
    """
    value = as_complex("irfftn", a)
    places, sizes = _axes_and_sizes("irfftn", value, s, axes)
    if not places:
        raise ArgumentError("irfftn: at least one axis must be transformed")
    half = _along("irfftn", value, places[:-1], sizes[:-1], norm, inverse=True)
    return irfft(half, sizes[-1], places[-1], norm)


def fft2(a: Any, s: Sizes = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Array:
    """`fftn` along two axes, the last ones unless given.

    >>> import volta_fn.numpy as jnp
    >>> jnp.fft.fft2(jnp.ones((2, 2)))[0, 0]
    Array(4.+0.j, dtype=complex64)
    """
    return fftn(a, s, _two("fft2", axes), norm)


def ifft2(a: Any, s: Sizes = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Array:
    """The inverse of `fft2`.

    >>> import volta_fn.numpy as jnp
    >>> jnp.fft.ifft2(jnp.array([[4.0, 0.0], [0.0, 0.0]])).real
    Array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    return ifftn(a, s, _two("ifft2", axes), norm)


def rfft2(a: Any, s: Sizes = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Array:
    """`rfftn` along two axes, the last ones unless given.

    >>> import volta_fn.numpy as jnp
    >>> jnp.fft.rfft2(jnp.ones((3, 4, 4))).shape
    (3, 4, 3)
    """
    return rfftn(a, s, _two("rfft2", axes), norm)


def irfft2(a: Any, s: Sizes = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Array:
    """The inverse of `rfft2`.

    >>> import volta_fn.numpy as jnp
    >>> jnp.fft.irfft2(jnp.fft.rfft2(jnp.ones((3, 4, 4)))).shape
    (3, 4, 4)
    """
    return irfftn(a, s, _two("irfft2", axes), norm)


def _two(function: str, axes: Sequence[int]) -> Sequence[int]:
    if len(axes) != 2:
        raise ArgumentError(f"{function}: axes must be two, got {tuple(axes)}")
    return axes


def _along_all(function: str, a: Any, s: Sizes, axes: Sequence[int] | None, norm: str | None, inverse: bool = False) -> Array:
    value = as_complex(function, a)
    return _along(function, value, *_axes_and_sizes(function, value, s, axes), norm, inverse)


def _along(function: str, value: Array, axes: Sequence[int], sizes: Sequence[int | None], norm: str | None, inverse: bool) -> Array:
    for axis, size in zip(axes, sizes, strict=True):
        value = spectrum(function, value, size, axis, norm, inverse)
    return value


def _axes_and_sizes(function: str, a: Any, s: Sizes, axes: Sequence[int] | None) -> tuple[tuple[int, ...], Sequence[int | None]]:
    """The axes, counted from the front, and how many elements count along each."""
    rank = as_complex(function, a).ndim
    named = tuple(axes) if axes is not None else None if s is None else tuple(range(-len(s), 0))
    places = axes_of(function, named, rank)
    if s is not None and len(s) != len(places):
        raise ArgumentError(f"{function}: s and axes must have one length, got s {tuple(s)} for axes {named}")
    return places, [None] * len(places) if s is None else s

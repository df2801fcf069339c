"""The discrete Fourier transform along one axis, complex or real.

The spectrum of real numbers is half as long. There are four kinds, all linear. With F the matrix of the transform, which is symmetric,
"FFT" is F x and "IFFT" F⁻¹ x; each is its own transpose. "RFFT" is the first half of F x for n real numbers x, up to element n // 2, and
"IRFFT" its inverse. As the other half mirrors the first, most elements of a half count twice in what is made of it; by that, and by a
conjugate, each is the other's transpose.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray, as_integer
from volta_fn.core.primitive import AxisData, Primitive
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.primitives.data_movement.movement import linear_primitive
from volta_fn.primitives.elementwise.arithmetic import div, mul
from volta_fn.primitives.elementwise.selection import conj


class FftType(enum.IntEnum):
    """The kinds of transforms, as `jax.lax.FftType` has them."""

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3


_REAL: frozenset[np.dtype] = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


def _abstract(operand: ShapedArray, *, kind: str, length: int, axis: int) -> ShapedArray:
    dtypes_in = _REAL if kind == "RFFT" else dtypes.COMPLEX
    if operand.dtype not in dtypes_in:
        listed = ", ".join(sorted(d.name for d in dtypes_in))
        raise DTypeError(f"fft: {kind} is of {listed}, got {operand.dtype.name}; convert with lax.convert_element_type")
    half = length // 2 + 1
    expected, size = (half if kind == "IRFFT" else length), operand.shape[axis]
    if size != expected:
        raise ShapeError(
            f"fft: {kind} of length {length} needs {expected} elements along axis {axis}, got an array of shape {operand.shape}"
        )
    shape = (*operand.shape[:axis], half if kind == "RFFT" else length, *operand.shape[axis + 1 :])
    if kind == "RFFT":
        return ShapedArray(shape, dtypes.complex_dtype(operand.dtype))
    return ShapedArray(shape, dtypes.real_dtype(operand.dtype) if kind == "IRFFT" else operand.dtype)


def _batch(data: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, kind: str, length: int, axis: int) -> tuple[Array, int]:
    dim = dims[0] or 0
    return transform_axis(args[0], kind, length, axis + (axis >= dim)), dim


def _transpose(ct: Array, operand: Any, *, kind: str, length: int, axis: int) -> list[Array]:
    if kind == "RFFT":  # Re Σ_k ct[k] exp(-2πi j k / n) over the half alone, which IRFFT adds up with mirror images, and divides by n
        return [transform_axis(mul(conj(ct), div(_scalar(length, ct), _counts(ct, length, axis))), "IRFFT", length, axis)]
    if kind == "IRFFT":
        half = conj(transform_axis(ct, "RFFT", length, axis))
        return [mul(half, div(_counts(half, length, axis), _scalar(length, half)))]
    return [transform_axis(ct, kind, length, axis)]


def _scalar(value: int, like: Array) -> Array:
    return as_value(np.asarray(value, like.dtype))


def _counts(half: Array, length: int, axis: int) -> Array:
    """Return the multiplicity in the full spectrum of each element of half of it.

    It is 1 for an element that is its own mirror image, else 2.
    """
    counts = np.full(half.shape[axis], 2, half.dtype)
    counts[0] = 1
    if length % 2 == 0:
        counts[-1] = 1
    return as_value(counts.reshape([-1 if i == axis else 1 for i in range(half.ndim)]))


#: Parameters: the name of an `FftType`, how many elements a full row has, and along which axis rows are.
fft_p: Primitive = linear_primitive("fft", _abstract, None, _batch, _transpose, views=False)


def transform_axis(x: Array, kind: str, length: int, axis: int) -> Array:
    """Transform along one axis, counted from the front."""
    return bind(fft_p, x, kind=kind, length=length, axis=axis)


def fft(x: Any, fft_type: FftType | str, fft_lengths: Sequence[int]) -> Array:
    """Return the discrete Fourier transform along the last axes.

    The arguments are those of `jax.lax.fft`; `volta_fn.numpy.fft` says the same more simply.

    Args:
        x: complex numbers, or for RFFT real ones: float32, float64, complex64 or complex128.
        fft_type: an `FftType` or its name. IFFT and IRFFT divide by how many elements there are.
        fft_lengths: for each of the last axes how many elements a row has: as many as in `x`, except along the last axis of IRFFT, where
            `x` has half a spectrum of those.

    Raises `ArgumentError` for an unknown kind or no lengths, `DTypeError` for another dtype, `ShapeError` if `x` has other lengths.

    >>> vf.lax.fft(vf.numpy.array([0.0, 1.0, 0.0, -1.0]), "RFFT", (4,))
    Array([0.+0.j, 0.-2.j, 0.+0.j], dtype=complex64)
    """
    value = as_value(x)
    kind = _name(fft_type)
    lengths = [as_integer(n, "fft: fft_lengths") for n in fft_lengths]
    if not lengths or min(lengths) < 1:
        raise ArgumentError(f"fft: fft_lengths must be positive numbers, one or more, got {tuple(fft_lengths)}")
    if len(lengths) > value.ndim:
        raise ShapeError(f"fft: {len(lengths)} lengths for an array of shape {value.shape}")
    last = value.ndim - 1
    others = [(n, last - i) for i, n in enumerate(reversed(lengths[:-1]), 1)]
    complex_kind = "IFFT" if kind in ("IFFT", "IRFFT") else "FFT"
    if kind != "IRFFT":
        value = transform_axis(value, kind, lengths[-1], last)
    for n, axis in others:
        value = transform_axis(value, complex_kind, n, axis)
    return transform_axis(value, kind, lengths[-1], last) if kind == "IRFFT" else value


def _name(fft_type: FftType | str) -> str:
    name = fft_type.name if isinstance(fft_type, FftType) else str(fft_type).upper()
    if name not in FftType.__members__:
        raise ArgumentError(f"fft: fft_type must be one of {', '.join(FftType.__members__)}, got {fft_type!r}")
    return name

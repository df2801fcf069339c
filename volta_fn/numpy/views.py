"""Arrays whose bits are read as another dtype, as NumPy's views are."""

from __future__ import annotations

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array, as_value
from volta_fn.errors import DTypeError, ShapeError

_BYTE = np.dtype(np.uint8)


def viewed(x: Array, dtype: np.dtype) -> Array:
    """Return the bits of `x` as numbers of another dtype.

    Of a narrower dtype the last dimension has more, of a wider one fewer elements. Integers of 2 and 4 bits are packed, the first in the
    lowest bits; booleans are bytes. Raises `ShapeError` where the bits of the last dimension are no whole number of elements.

    >>> viewed(jnp.array([1.0, 2.0]), jnp.dtype("uint16"))
    Array([    0, 16256,     0, 16384], dtype=uint16)
    """
    old, new = _bits(x.dtype), _bits(dtype)
    if old == new and not x.ndim:
        return lax.reshape(viewed(lax.reshape(x, (1,)), dtype), ())
    if not x.ndim:
        raise ShapeError(f"view: a scalar of {x.dtype.name} cannot become {dtype.name}, which has another size; add a dimension: x[None]")
    if x.shape[-1] * old % new:
        raise ShapeError(f"view: the last dimension of {x.aval} is no whole number of elements of {dtype.name}")
    if not x.size:
        return lax.full((*x.shape[:-1], x.shape[-1] * old // new), 0, dtype)
    words = _words(x)
    if dtype in dtypes.STORAGE_INTEGERS:
        return _unpacked(_recast(words, _BYTE), dtype)
    if dtype in dtypes.BOOL:
        return lax.ne(_recast(words, _BYTE), _byte(0))
    numbers = _recast(words, _component(dtype))
    if dtype not in dtypes.COMPLEX:
        return numbers
    pairs = lax.reshape(numbers, (*numbers.shape[:-1], numbers.shape[-1] // 2, 2))
    return lax.complex(*[lax.index_in_dim(pairs, i, -1, keepdims=False) for i in (0, 1)])


def _bits(dtype: np.dtype) -> int:
    return dtypes.iinfo(dtype).bits if dtype in dtypes.STORAGE_INTEGERS else dtype.itemsize * 8


def _component(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype in dtypes.COMPLEX else dtype


def _words(x: Array) -> Array:
    """Return the elements as numbers that can be cast bit by bit."""
    if x.dtype in dtypes.COMPLEX:
        pairs = lax.concatenate([lax.expand_dims(component, (x.ndim,)) for component in (lax.real(x), lax.imag(x))], x.ndim)
        return lax.reshape(pairs, (*x.shape[:-1], 2 * x.shape[-1]))
    if x.dtype in dtypes.STORAGE_INTEGERS:
        return _packed(x)
    return lax.convert_element_type(x, _BYTE) if x.dtype in dtypes.BOOL else x


def _recast(words: Array, dtype: np.dtype) -> Array:
    """Cast numbers bit by bit, along the last dimension."""
    old, new = words.dtype.itemsize, dtype.itemsize
    if old < new:
        words = lax.reshape(words, (*words.shape[:-1], words.shape[-1] * old // new, new // old))
    cast = words if words.dtype == dtype else lax.bitcast_convert_type(words, dtype)
    return lax.reshape(cast, (*cast.shape[:-2], cast.shape[-2] * cast.shape[-1])) if old > new else cast


def _packed(x: Array) -> Array:
    """Return the bytes that integers of a few bits fill.

    The first of each byte is in its lowest bits.
    """
    bits = _bits(x.dtype)
    small = lax.bitwise_and(lax.convert_element_type(lax.convert_element_type(x, np.int8), _BYTE), _byte((1 << bits) - 1))
    grouped = lax.reshape(small, (*x.shape[:-1], x.shape[-1] * bits // 8, 8 // bits))
    shifts = as_value(np.arange(0, 8, bits, dtype=np.uint8))
    return lax.reduce_sum(lax.shift_left(grouped, lax.broadcast(shifts, grouped.shape[:-1])), (grouped.ndim - 1,))


def _unpacked(words: Array, dtype: np.dtype) -> Array:
    bits = _bits(dtype)
    shifts = as_value(np.arange(0, 8, bits, dtype=np.uint8))
    shape = (*words.shape, 8 // bits)
    shifted = lax.shift_right_logical(lax.broadcast_in_dim(words, shape, range(words.ndim)), lax.broadcast(shifts, words.shape))
    small = lax.bitwise_and(shifted, _byte((1 << bits) - 1))
    if dtype in dtypes.STORAGE_SIGNED:  # the highest bit is the sign
        sign = _byte(1 << (bits - 1))
        small = lax.sub(lax.bitwise_xor(small, sign), sign)
    signed = lax.convert_element_type(small, np.int8)
    return lax.reshape(lax.convert_element_type(signed, dtype), (*words.shape[:-1], words.shape[-1] * 8 // bits))


def _byte(number: int) -> Array:
    return as_value(np.asarray(number, _BYTE))


def byteswapped(x: Array) -> Array:
    """Return the numbers whose bytes stand in the opposite order.

    >>> byteswapped(jnp.array([1, 256], "int16"))
    Array([256,   1], dtype=int16)
    """
    if x.dtype in dtypes.STORAGE_INTEGERS:
        raise DTypeError(f"byteswap: {x.dtype.name} has no whole bytes")
    size = _component(x.dtype).itemsize
    if size == 1 or not x.size:
        return x
    column = lax.reshape(x, (*x.shape, 1))
    words = viewed(column, _BYTE)
    turned = lax.rev(lax.reshape(words, (*x.shape, x.dtype.itemsize // size, size)), (x.ndim + 1,))
    return lax.reshape(viewed(lax.reshape(turned, words.shape), x.dtype), x.shape)

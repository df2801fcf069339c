"""Methods of arrays, and their bits read as another dtype."""

from __future__ import annotations

from typing import Any, Never

import numpy as np

from volta_fn import advice, dtypes, lax
from volta_fn.core.arrays.array import Array, as_value, attach
from volta_fn.core.arrays.memory import device_put
from volta_fn.core.devices import placement
from volta_fn.core.devices.device import Device
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, UnsupportedError
from volta_fn.lazy_imports import load
from volta_fn.numpy import arithmetic, creation, indexing, scalar_types, shapes

# Arrays whose bits are read as another dtype, as NumPy's views are.

_BYTE = np.dtype(np.uint8)


def viewed(x: Array, dtype: np.dtype) -> Array:
    """Return the bits of `x` as numbers of another dtype.

    Of a narrower dtype the last dimension has more, of a wider one fewer elements. Integers of 2 and 4 bits are packed, the first in the
    lowest bits; booleans are bytes. Raises `ShapeError` where the bits of the last dimension are no whole number of elements.

    >>> viewed(jnp.array([1.0, 2.0]), jnp.dtype("uint16"))
    Array([    0, 16256,     0, 16384], dtype=uint16)
    """
    old, new = dtypes.bits(x.dtype), dtypes.bits(dtype)
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
        words = _recast(words, _BYTE)
        bits = dtypes.bits(dtype)
        shifts = as_value(np.arange(0, 8, bits, dtype=np.uint8))
        shape = (*words.shape, 8 // bits)
        shifted = lax.shift_right_logical(lax.broadcast_in_dim(words, shape, range(words.ndim)), lax.broadcast(shifts, words.shape))
        small = lax.bitwise_and(shifted, _byte((1 << bits) - 1))
        if dtype in dtypes.STORAGE_SIGNED:  # the highest bit is the sign
            sign = _byte(1 << (bits - 1))
            small = lax.sub(lax.bitwise_xor(small, sign), sign)
        signed = lax.convert_element_type(small, np.int8)
        return lax.reshape(lax.convert_element_type(signed, dtype), (*words.shape[:-1], words.shape[-1] * 8 // bits))
    if dtype in dtypes.BOOL:
        return lax.ne(_recast(words, _BYTE), _byte(0))
    numbers = _recast(words, _component(dtype))
    if dtype not in dtypes.COMPLEX:
        return numbers
    pairs = lax.reshape(numbers, (*numbers.shape[:-1], numbers.shape[-1] // 2, 2))
    return lax.complex(*[lax.index_in_dim(pairs, i, -1, keepdims=False) for i in (0, 1)])


def _component(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype in dtypes.COMPLEX else dtype


def _words(x: Array) -> Array:
    """Return the elements as numbers that can be cast bit by bit."""
    if x.dtype in dtypes.COMPLEX:
        pairs = lax.concatenate([lax.expand_dims(component, (x.ndim,)) for component in (lax.real(x), lax.imag(x))], x.ndim)
        return lax.reshape(pairs, (*x.shape[:-1], 2 * x.shape[-1]))
    if x.dtype in dtypes.STORAGE_INTEGERS:
        # The first of each byte is in its lowest bits.
        bits = dtypes.bits(x.dtype)
        small = lax.bitwise_and(lax.convert_element_type(lax.convert_element_type(x, np.int8), _BYTE), _byte((1 << bits) - 1))
        grouped = lax.reshape(small, (*x.shape[:-1], x.shape[-1] * bits // 8, 8 // bits))
        shifts = as_value(np.arange(0, 8, bits, dtype=np.uint8))
        return lax.reduce_sum(lax.shift_left(grouped, lax.broadcast(shifts, grouped.shape[:-1])), (grouped.ndim - 1,))
    return lax.convert_element_type(x, _BYTE) if x.dtype in dtypes.BOOL else x


def _recast(words: Array, dtype: np.dtype) -> Array:
    """Cast numbers bit by bit, along the last dimension."""
    old, new = words.dtype.itemsize, dtype.itemsize
    if old < new:
        words = lax.reshape(words, (*words.shape[:-1], words.shape[-1] * old // new, new // old))
    cast = words if words.dtype == dtype else lax.bitcast_convert_type(words, dtype)
    return lax.reshape(cast, (*cast.shape[:-2], cast.shape[-2] * cast.shape[-1])) if old > new else cast


def _byte(number: int) -> Array:
    return as_value(np.asarray(number, _BYTE))


def byteswapped(x: Array) -> Array:
    """Return the numbers with their bytes reversed.

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


# Methods of arrays that are not a function of this package without change (`attached.FUNCTIONS`).


def _reshape(self: Array, *shape: Any, order: str = "C", out_sharding: Any = None) -> Array:
    """Reshape; the sizes come as one tuple or as several integers, one may be -1."""
    return shapes.reshape(self, shape[0] if len(shape) == 1 else shape, order, out_sharding=out_sharding)


def _transpose(self: Array, *axes: Any) -> Array:
    """Permute the dimensions, given as one tuple or several integers, or reverse them."""
    return shapes.transpose(self, axes[0] if len(axes) == 1 else axes or None)


def _flatten(self: Array, order: str = "C", *, out_sharding: Any = None) -> Array:
    return shapes.ravel(self, order, out_sharding=out_sharding)


def _compress(
    self: Array, condition: Any, axis: int | None = None, *, out: None = None, size: int | None = None, fill_value: Any = 0
) -> Array:
    return indexing.compress(condition, self, axis, size=size, fill_value=fill_value, out=out)


def _astype(self: Array, dtype: Any, copy: bool = False, device: Any = None) -> Array:
    """Convert to a dtype; see `numpy.astype`."""
    return creation.astype(self, dtype, copy=copy, device=device)


def _view(self: Array, dtype: Any = None, *sizes: Never, type: None = None) -> Array:
    """Reinterpret the bits as another dtype, as NumPy does.

    The last dimension grows or shrinks.
    """
    if type is not None:
        raise ArgumentError(f"view: arrays have one class, so type must be None, got {type!r:.80}")
    if sizes or isinstance(dtype, (int, tuple)):
        raise ArgumentTypeError("view reinterprets bits as another dtype; a new shape is x.reshape(3, -1), or x[:, None] for a new axis")
    new_dtype = self.dtype if dtype is None else dtypes.as_dtype(dtype)
    return self if new_dtype == self.dtype else viewed(self, new_dtype)


def _byteswap(self: Array, inplace: bool = False) -> Array:
    """Return the numbers with their bytes reversed."""
    if inplace:
        raise ArgumentError("byteswap: arrays are immutable, so inplace must be False; x = x.byteswap()")
    return byteswapped(self)


def _tobytes(self: Array, order: str = "C") -> bytes:
    """Return the bytes of the elements, as NumPy does."""
    return np.asarray(self).tobytes(order)  # type: ignore[arg-type]  # NumPy checks it


def _address(self: Array) -> int:
    """Return the address of an array on the CPU, valid as long as the array exists."""
    if self.device.platform != "cpu":
        raise UnsupportedError(f"unsafe_buffer_pointer: memory of {self.device} has no address for the host; copy the array to the CPU")
    return int(np.asarray(self).ctypes.data)


def _namespace(self: Array, *, api_version: str | None = None) -> Any:
    """Return the module of the Array API's functions for this array.

    Raises `ArgumentError` for a version of the standard that it does not implement.
    """
    if api_version not in (None, *scalar_types.VERSIONS):
        raise ArgumentError(f"__array_namespace__: api_version must be one of {', '.join(scalar_types.VERSIONS)}, got {api_version!r}")
    return load("volta_fn.numpy")


def _to_device(self: Array, device: str | Device, *, stream: None = None) -> Array:
    """Return the array on a device, as `device_put` does."""
    if stream is not None:
        raise ArgumentError(f"to_device: devices here have no streams, got stream={stream!r}; pass None")
    return device_put(self, device)


def _sharding(self: Array) -> Any:
    return placement.sharding_of(self)


def _shards(self: Array) -> Any:
    return placement.shards_of(self)  # type: ignore[arg-type]  # asked of arrays with values


def _shard_data(self: Array, index: int) -> Array:
    """Return the elements of one of the array's shards."""
    data: Array = _shards(self)[index].data
    return data


for _function in (_reshape, _transpose, _flatten, _compress, _view, _byteswap, _tobytes, _to_device):
    attach(_function.__name__[1:], _function)
for _name, _answer in advice.ARRAYS.items():
    attach(_name, advice.habit("Array", _name, _answer))
attach("astype", _astype)
attach("__round__", lambda self, ndigits=0: arithmetic.round(self, ndigits))
attach("__array_namespace__", _namespace)
attach("T", property(shapes.reversed_dims, doc="The dimensions in reverse order."))
attach("mT", property(shapes.matrix_transpose, doc="The last two dimensions exchanged."))
attach("real", property(arithmetic.real, doc="The real part."))
attach("imag", property(arithmetic.imag, doc="The imaginary part."))
attach("flat", property(lambda self: self.ravel(), doc="The elements in one dimension, in the order of rows."))
attach("sharding", property(_sharding, doc="How the array lies on devices."))
attach("addressable_shards", property(_shards, doc="The array's shards, one for each device."))
attach("global_shards", property(_shards, doc="The array's shards, one for each device."))
for _name in ("committed", "is_fully_addressable"):
    attach(_name, property(lambda self: True, doc="True: an array lies on devices of this process."))
attach("is_fully_replicated", property(lambda self: _sharding(self).is_fully_replicated, doc="Whether every device holds all elements."))
attach("addressable_data", _shard_data)
attach("unsafe_buffer_pointer", _address)
attach("copy_to_host_async", lambda self: None)

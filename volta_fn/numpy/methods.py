"""Methods of arrays: functions of this package with the array as first argument."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Never

import numpy as np

from volta_fn import advice, dtypes
from volta_fn.core.array import Array, attach
from volta_fn.core.device import Device
from volta_fn.core.memory.transfer import device_put
from volta_fn.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from volta_fn.lazy_imports import load
from volta_fn.numpy import creation, diagonals, indexing, inspection, products, shapes, sorting
from volta_fn.numpy.elementwise import arithmetic
from volta_fn.numpy.statistics import cumulative, reductions

#: Functions that are methods without change.
_METHODS: dict[ModuleType, str] = {
    arithmetic: "clip conjugate round",
    creation: "copy",
    cumulative: "cumprod cumsum",
    diagonals: "diagonal trace",
    indexing: "choose nonzero take",
    products: "dot",
    reductions: "all any argmax argmin max mean min prod ptp std sum var",
    shapes: "ravel repeat squeeze swapaxes",
    sorting: "argpartition argsort searchsorted sort",
}


def _reshape(self: Array, *shape: Any, order: str = "C") -> Array:
    """Reshape; the sizes come as one tuple or as several integers, one may be -1."""
    return shapes.reshape(self, shape[0] if len(shape) == 1 else shape, order)


def _transpose(self: Array, *axes: Any) -> Array:
    """Permute the dimensions, given as one tuple or several integers, or reverse them."""
    return shapes.transpose(self, axes[0] if len(axes) == 1 else axes or None)


def _flatten(self: Array, order: str = "C") -> Array:
    return shapes.ravel(self, order)


def _compress(self: Array, condition: Any, axis: int | None = None) -> Array:
    return indexing.compress(condition, self, axis)


def _astype(self: Array, dtype: Any, copy: bool = False, device: Any = None) -> Array:
    """Convert to a dtype; see `numpy.astype`."""
    return creation.astype(self, dtype, copy=copy, device=device)


def _views() -> Any:
    return load("volta_fn.numpy.views")  # few programs need it


def _view(self: Array, dtype: Any = None, *sizes: Never) -> Array:
    """Reinterpret the bits as another dtype, as NumPy does.

    The last dimension grows or shrinks.
    """
    if sizes or isinstance(dtype, (int, tuple)):
        raise ArgumentTypeError("view reinterprets bits as another dtype; a new shape is x.reshape(3, -1), or x[:, None] for a new axis")
    wanted = self.dtype if dtype is None else dtypes.as_dtype(dtype)
    return self if wanted == self.dtype else _views().viewed(self, wanted)


def _byteswap(self: Array, inplace: bool = False) -> Array:
    """Return the numbers whose bytes stand in the opposite order."""
    if inplace:
        raise ArgumentError("byteswap: arrays are immutable, so inplace must be False; x = x.byteswap()")
    found: Array = _views().byteswapped(self)
    return found


def _tobytes(self: Array, order: str = "C") -> bytes:
    """Return the bytes of the elements, as NumPy does."""
    return np.asarray(self).tobytes(order)  # type: ignore[arg-type]  # NumPy checks it


def _address(self: Array) -> int:
    """Return where the elements of an array on the CPU lie in memory, while it exists."""
    if self.device.platform != "cpu":
        raise UnsupportedError(f"unsafe_buffer_pointer: memory of {self.device} has no address for the host; copy the array to the CPU")
    return int(np.asarray(self).ctypes.data)


def _namespace(self: Array, *, api_version: str | None = None) -> Any:
    """Return the module of the Array API's functions for this array.

    Raises `ArgumentError` for a version of the standard that it does not implement.
    """
    if api_version not in (None, *inspection.VERSIONS):
        raise ArgumentError(f"__array_namespace__: api_version must be one of {', '.join(inspection.VERSIONS)}, got {api_version!r}")
    return load("volta_fn.numpy")


def _to_device(self: Array, device: str | Device, /, *, stream: None = None) -> Array:
    """Return the array on a device, as `device_put` does."""
    if stream is not None:
        raise ArgumentError(f"to_device: devices here have no streams, got stream={stream!r}; pass None")
    return device_put(self, device)


def _matmul(self: Array, other: Any) -> Any:
    run = products.plain_kernel(self, other)
    if run is not None:
        return run(self, other)
    return products.matmul(self, other) if isinstance(other, (Array, np.ndarray)) else NotImplemented


def _rmatmul(self: Array, other: Any) -> Any:
    return products.matmul(other, self) if isinstance(other, (Array, np.ndarray)) else NotImplemented


def _sharding(self: Array) -> Any:
    return load("volta_fn.core.distribution.placement").sharding_of(self)


def _shards(self: Array) -> Any:
    return load("volta_fn.core.distribution.placement").shards_of(self)


def _shard_data(self: Array, index: int) -> Array:
    """Return the elements of one of the array's shards."""
    found: Array = _shards(self)[index].data
    return found


for _module, _names in _METHODS.items():
    for _name in _names.split():
        attach(_name, getattr(_module, _name))
for _function in (_reshape, _transpose, _flatten, _compress, _view, _byteswap, _tobytes, _to_device):
    attach(_function.__name__[1:], _function)
for _name, _answer in advice.ARRAYS.items():
    attach(_name, advice.habit("Array", _name, _answer))
attach("conj", arithmetic.conjugate)
attach("astype", _astype)
attach("__matmul__", _matmul)
attach("__rmatmul__", _rmatmul)
attach("__round__", lambda self, ndigits=0: arithmetic.round(self, ndigits))
attach("__array_namespace__", _namespace)
attach("T", property(shapes.reversed_dims, doc="The dimensions in reverse order."))
attach("mT", property(shapes.matrix_transpose, doc="The last two dimensions exchanged."))
attach("real", property(arithmetic.real, doc="The real part."))
attach("imag", property(arithmetic.imag, doc="The imaginary part."))
attach("sharding", property(_sharding, doc="How the array lies on devices."))
attach("addressable_shards", property(_shards, doc="The array's shards, one for each device."))
attach("global_shards", property(_shards, doc="The array's shards, one for each device."))
for _name in ("committed", "is_fully_addressable"):
    attach(_name, property(lambda self: True, doc="True: an array lies on devices of this process."))
attach("is_fully_replicated", property(lambda self: _sharding(self).is_fully_replicated, doc="Whether every device holds all elements."))
attach("addressable_data", _shard_data)
attach("unsafe_buffer_pointer", _address)
attach("copy_to_host_async", lambda self: None)

"""Sharing arrays' memory with other libraries, by the names of `jax.dlpack`."""

from __future__ import annotations

from typing import Any

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array
from volta_fn.errors import DTypeError
from volta_fn.numpy import from_dlpack as _from_dlpack


def from_dlpack(external_array: Any, device: Any = None, copy: bool | None = None) -> Array:
    """Return an array in the memory of another library's array.

    See `volta_fn.numpy.from_dlpack`.

    >>> import numpy as np
    >>> from_dlpack(np.arange(2, dtype=np.int32))
    Array([0, 1], dtype=int32)
    """
    return _from_dlpack(external_array, device=device, copy=copy)


def to_dlpack(x: Array, **options: Any) -> Any:
    """Return a DLPack capsule of an array's memory."""
    return x.__dlpack__(**options)


def is_supported_dtype(dtype: Any) -> bool:
    """Return True if arrays of a dtype can be shared.

    >>> is_supported_dtype("float32"), is_supported_dtype("int4")
    (True, False)
    """
    try:
        return dtypes.as_dtype(dtype) in dtypes.ALL
    except DTypeError:
        return False

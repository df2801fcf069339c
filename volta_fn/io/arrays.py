"""The values of state dicts: arrays, or NumPy arrays of other dtypes (float8)."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, ConcreteArray, array_spec, from_host, wrap
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.device import current_default_device
from volta_fn.errors import ArgumentTypeError

_RANKS = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}  # kinds of dtypes; those of ml_dtypes may be "V"


def as_state_value(name: str, leaf: Any) -> Any:
    """Convert a leaf to a state dict's value; raise `ArgumentTypeError` if it is none."""
    if isinstance(leaf, Array):
        return leaf
    if isinstance(leaf, (np.ndarray, np.generic)):
        values = np.asarray(leaf)
        return values if is_foreign(values.dtype) else from_host(values)
    raise ArgumentTypeError(
        f"state dict: {name!r} is not an array but {type(leaf).__name__} {leaf!r:.60}; convert a number with numpy.array, or save "
        "training states with io.Checkpointer"
    )


def is_array(value: Any) -> bool:
    """Return True if a value may be in a state dict."""
    return isinstance(value, (Array, np.ndarray, np.generic))


def is_foreign(dtype: np.dtype) -> bool:
    """Return True for dtypes that only store numbers: files of them give NumPy arrays."""
    return dtype in dtypes.STORAGE


def on_host(value: Any) -> np.ndarray:
    """Return the elements of an array as a NumPy array in C order."""
    return np.asarray(value.host() if isinstance(value, ConcreteArray) else value, order="C")


def sharing(values: np.ndarray) -> Any:
    """Return an array on the default device; the CPU shares the memory of `values`.

    `values` must not be written to afterwards.
    """
    if is_foreign(values.dtype):
        return values
    device = current_default_device()
    return wrap(device.backend.put(values), array_spec(ShapedArray(values.shape, values.dtype), device))


def type_of(name: str, leaf: Any) -> ShapedArray:
    """Return an array's or stand-in's shape and dtype, or raise `ArgumentTypeError`."""
    if not is_array(leaf) and not isinstance(leaf, ShapeDtypeStruct):
        raise ArgumentTypeError(f"{name!r} is neither an array nor a ShapeDtypeStruct but {type(leaf).__name__} {leaf!r:.60}")
    return ShapedArray(tuple(leaf.shape), np.dtype(leaf.dtype), bool(getattr(leaf, "weak_type", False)))


def castable(value: Any, dtype: np.dtype) -> bool:
    """Return True if a cast loses no imaginary part, fraction or large integer."""
    given = np.dtype(value.dtype)
    if _RANKS[given.kind] > _RANKS[dtype.kind]:
        return False
    if given.kind not in "iu" or dtype.kind not in "iu" or not value.size:
        return True
    values, bounds = on_host(value), np.iinfo(dtype)
    return bounds.min <= int(values.min()) and int(values.max()) <= bounds.max


def like(leaf: Any, value: Any, wanted: ShapedArray) -> Any:
    """Convert `value` to the dtype and the device of a template's leaf, if necessary."""
    device = leaf.device if isinstance(leaf, ConcreteArray) else None
    if isinstance(value, ConcreteArray) and value.aval == wanted and device in (None, value.device):
        return value
    values = on_host(value).astype(wanted.dtype, copy=False)
    return values if is_foreign(wanted.dtype) else from_host(values, wanted.weak_type, device)

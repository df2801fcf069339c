"""Tensors and dtypes of ONNX as NumPy's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.errors import CorruptFileError, DTypeError, MissingDependencyError
from volta_fn.lazy_imports import is_installed, load

#: The numbers of ONNX's dtypes that arrays have.
_NUMBERS = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64",
    12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
}  # fmt: skip
_OTHERS = {8: "string", 17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4"}


def library() -> Any:
    """Return the package `onnx`; raise `MissingDependencyError` without it."""
    if not is_installed("onnx"):
        raise MissingDependencyError("volta_fn.onnx needs the package onnx; install it by: pip install 'volta-fn[onnx]'")
    load("onnx.numpy_helper")
    load("onnx.helper")
    return load("onnx")


def dtype_of(number: int) -> np.dtype:
    """Return the dtype of a number in a file.

    Raises `DTypeError` for dtypes that arrays do not have.

    >>> dtype_of(1)
    dtype('float32')
    """
    if number not in _NUMBERS:
        raise DTypeError(f"arrays have no dtype {_OTHERS.get(number, f'number {number}')} of ONNX; convert the model to a wider one")
    return dtypes.as_dtype(_NUMBERS[number])


def number_of(dtype: np.dtype) -> int:
    """Return the number of a dtype in files.

    >>> number_of(np.dtype("bool"))
    9
    """
    return {name: number for number, name in _NUMBERS.items()}[dtype.name]


def from_tensor(tensor: Any, folder: Path) -> np.ndarray:
    """Return a tensor of a model whose external data are in a folder.

    Raises `CorruptFileError` if its data do not fit its shape, or are missing, and `DTypeError` for dtypes that arrays do not have.
    """
    dtype_of(tensor.data_type)
    if any(size < 0 for size in tensor.dims):
        raise CorruptFileError(f"the tensor {tensor.name!r} has a negative dimension: {list(tensor.dims)}")
    try:
        values: np.ndarray = library().numpy_helper.to_array(tensor, str(folder))
    except (ValueError, OSError, TypeError, MemoryError, library().checker.ValidationError) as error:
        raise CorruptFileError(f"the tensor {tensor.name!r} cannot be read: {error}") from error
    return values.astype(dtype_of(tensor.data_type), copy=False)

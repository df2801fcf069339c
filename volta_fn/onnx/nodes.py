"""Nodes of ONNX, declarations of their operators, tensors and dtypes.

An operator is a function ``(node, *inputs) -> output or tuple of outputs``. An input is an `Array`, or a NumPy array if it is known on the
host: a small constant, the shape of something, or an integer that the caller gave as a NumPy array. From such inputs alone `node.xp`
computes NumPy arrays, so that shapes stay on the host under `jit`. Inputs that are left out are None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.trace import Tracer
from volta_fn.errors import CorruptFileError, DTypeError, MissingDependencyError, OnnxError
from volta_fn.lazy_imports import is_installed, load

# Tensors and dtypes as NumPy's.

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


# Operators.

Operator = Callable[..., Any]

#: Operators by name, those of other domains as "domain.name".
OPERATORS: dict[str, Operator] = {}


class Node(NamedTuple):
    """A call of an operator: its name, attributes and context."""

    op: str
    name: str
    attributes: Mapping[str, Any]
    #: NumPy if all inputs are on the host, else `volta_fn.numpy`.
    xp: Any
    #: The number of outputs.
    outputs: int
    #: The version of the operators.
    opset: int
    #: Run a graph that is an attribute: ``run(graph, *inputs) -> outputs``.
    run: Callable[..., list[Any]]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default."""
        return self.attributes.get(name, default)

    def ints(self, value: Any, name: str) -> list[int]:
        """Return an input that decides a shape as integers.

        Raises `OnnxError` if it is not known on the host.
        """
        return [int(v) for v in self.host(value, name).reshape(-1)]

    def host(self, value: Any, name: str) -> np.ndarray:
        """Return an input that has to be known on the host."""
        if isinstance(value, Tracer):
            raise OnnxError(
                f"{self}: its input {name!r} decides a shape, so it must be known, but it is traced; pass the model's input that it "
                "depends on as a NumPy array that the jitted function closes over, or by static_argnums"
            )
        return np.asarray(value)

    def axes(self, value: Any) -> list[int] | None:
        """Return axes from an input or, of older versions, from the attribute."""
        attribute = self.get("axes")
        return attribute if value is None else self.ints(value, "axes")

    def __str__(self) -> str:
        return f"{self.op} ({self.name})" if self.name else self.op


def operator(*names: str) -> Callable[[Operator], Operator]:
    """Declare a function to be the operators of these names (decorator)."""

    def declare(function: Operator) -> Operator:
        for name in names:
            OPERATORS[name] = function
        return function

    return declare


def as_array(value: Any) -> Any:
    """Return an input as an `Array`."""
    return vnp.asarray(value) if isinstance(value, np.ndarray | np.generic) else value


def along(values: Any, axis: int, ndim: int) -> Any:
    """Reshape a vector such that it lies along one of `ndim` axes."""
    return values.reshape([-1 if i == axis % ndim else 1 for i in range(ndim)])


def per_channel(values: Any, ndim: int) -> Any:
    """Reshape a vector such that it lies along axis 1."""
    return along(as_array(values), 1, ndim)


def is_float(value: Any) -> bool:
    """Return True for real floating dtypes, also 16-bit ones."""
    return bool(vnp.issubdtype(value.dtype, np.floating))


def wrapped(indices: Any, size: int) -> Any:
    """Count negative indices from the end."""
    return as_array(indices + (indices < 0) * np.asarray(size, indices.dtype))


def only(values: Sequence[Any]) -> Any:
    """Return the single element of a sequence."""
    (value,) = values
    return value

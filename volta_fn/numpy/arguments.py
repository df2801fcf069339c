"""What the functions of this package share: taking arguments as arrays, promoting them, reading axes, naming faults.

A function here accepts arrays, tracers, NumPy arrays and scalars. Lists and tuples are refused as in JAX, because converting one
element by element is slow and hides mistakes; `asarray` converts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array, as_value, from_host
from volta_fn.core.trace import Tracer, concrete_or_raise
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.primitives.movement import broadcast_to, canonical_axes

Axis = int | Sequence[int] | None

#: The dtype of indices and counts.
INDEX = np.dtype(np.int32)
BOOL = np.dtype(np.bool_)


def operand(function: str, argument: str, value: Any) -> Array:
    """`value` as an array; an `ArgumentTypeError` that names the function and the argument if it is none."""
    if isinstance(value, Array):
        return value
    try:
        return as_value(value)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{function}: argument {argument}: {error.message}") from None


def operands(function: str, **values: Any) -> list[Array]:
    """Each named argument as an array."""
    return [operand(function, name, value) for name, value in values.items()]


def narrow(value: Any) -> Any:
    """Integers of a NumPy array as int32 if they fit, for places and counts: a device may have no wider ones. Other values as they are."""
    if not isinstance(value, np.ndarray) or value.dtype not in (np.int64, np.uint64):
        return value
    info = np.iinfo(INDEX)
    return value.astype(INDEX) if not value.size or (value.min() >= info.min and value.max() <= info.max) else value


def promote(function: str, *values: Any) -> list[Array]:
    """The arguments as arrays of the dtype in which they combine."""
    return _promoted(function, values, lambda dtype: dtype)


def promote_inexact(function: str, *values: Any) -> list[Array]:
    """The arguments as arrays of the floating or complex dtype in which they combine."""
    return _promoted(function, values, dtypes.to_inexact)


def promote_numeric(function: str, *values: Any) -> list[Array]:
    """Like `promote`, with booleans counted as int32."""
    return _promoted(function, values, lambda dtype: INDEX if dtype == BOOL else dtype)


def _promoted(function: str, values: Sequence[Any], adjust: Callable[[np.dtype], np.dtype]) -> list[Array]:
    items = [v if is_python_scalar(v) else operand(function, str(i), v) for i, v in enumerate(values, 1)]
    dtype, weak = dtypes.promote(*[dtypes.dtype_and_weak_type(v) for v in items])
    return [converted(function, v, adjust(dtype), weak) for v in items]


def is_python_scalar(value: Any) -> bool:
    """Whether a value is a number of Python's own, whose type is weak."""
    return isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)


def converted(function: str, value: Any, dtype: np.dtype, weak: bool = False) -> Array:
    """`value` in another dtype. A Python integer that it cannot hold is an `ArgumentError`, not a wrapped number."""
    if not is_python_scalar(value):
        return lax.convert_element_type(operand(function, "value", value), dtype, weak)
    try:
        return from_host(np.asarray(value, dtype), weak)
    except OverflowError:
        raise ArgumentError(f"{function}: the integer {value} does not fit {dtype.name}, the dtype of the other arguments") from None


def no_out(function: str, out: None) -> None:
    """Refuse NumPy's `out`, which nothing here can write to."""
    if out is not None:
        raise ArgumentError(f"{function}: arrays are immutable, so out= is not supported; use the returned array")


def dtype_or(dtype: Any, default: np.dtype) -> np.dtype:
    """The dtype asked for, or the default where none was."""
    return default if dtype is None else dtypes.as_dtype(dtype)


def axes_of(function: str, axis: Axis, ndim: int) -> tuple[int, ...]:
    """The dimensions that an `axis` argument names, counted from the front; None names all."""
    try:
        return canonical_axes(axis, ndim, "axis")
    except ShapeError as error:
        raise ShapeError(f"{function}: {error.message}") from None
    except (AttributeError, TypeError):
        raise ArgumentTypeError(f"{function}: axis must be an integer, a tuple of integers or None, got {axis!r}") from None


def axis_of(function: str, axis: int, ndim: int) -> int:
    """The one dimension that an `axis` argument names, counted from the front."""
    if isinstance(axis, (tuple, list)) or axis is None:
        raise ArgumentTypeError(f"{function}: axis must be one integer, got {axis!r}")
    return axes_of(function, axis, ndim)[0]


def flat_or_axis(function: str, a: Array, axis: int | None) -> tuple[Array, int]:
    """NumPy's convention that no axis means the flattened array: the array to work on, and the axis to work along."""
    if axis is None:
        return lax.reshape(a, (a.size,)), 0
    return a, axis_of(function, axis, a.ndim)


def concrete(function: str, argument: str, value: Any, remedy: str) -> np.ndarray:
    """The numbers of an argument that must be known while tracing, on the host."""
    return np.asarray(concrete_or_raise(value, f"argument {argument} of {function}", remedy))


def is_traced(value: Any) -> bool:
    """Whether a value has no numbers yet."""
    return isinstance(value, Tracer)


def full_like_scalar(a: Array, value: Any) -> Array:
    """A constant to combine with `a`: zero-dimensional, of its dtype, and weak, so that the result is as weak as `a` is."""
    return from_host(np.asarray(value, a.dtype), a.dtype != BOOL)


def broadcast_together(*arrays: Array) -> list[Array]:
    """The arrays, all broadcast to one shape."""
    shape = lax.broadcast_shapes(*[a.shape for a in arrays])
    return [broadcast_to(a, shape) for a in arrays]


def is_float(a: Array) -> bool:
    """Whether the elements are real floating-point numbers."""
    return a.dtype in dtypes.FLOATS


def is_complex(a: Array) -> bool:
    """Whether the elements are complex."""
    return a.dtype in dtypes.COMPLEX


def is_inexact(a: Array) -> bool:
    """Whether the elements are floating-point or complex numbers."""
    return a.dtype in dtypes.INEXACT

"""Arguments of functions: their types, conversion to arrays, promotion, axes.

Arrays, tracers, NumPy arrays and scalars are accepted. Lists and tuples are refused as in JAX, because converting one element by
element is slow and hides mistakes; `asarray` converts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, Union, runtime_checkable

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array, as_value, from_number
from volta_fn.core.aval import check_promotion
from volta_fn.core.dimension import is_symbolic_dim
from volta_fn.core.trace import concrete_or_raise
from volta_fn.errors import ArgumentError, ArgumentTypeError, IntegerOverflowError, ShapeError
from volta_fn.lax import Precision
from volta_fn.primitives.data_movement.movement import broadcast_to, canonical_axes
from volta_fn.primitives.declare import check_narrowing

Axis = int | str | Sequence[int | str] | None

#: The dtype of indices and counts.
INDEX = np.dtype(np.int32)
BOOL = np.dtype(np.bool_)


def operand(function: str, argument: str, value: Any) -> Array:
    """Return `value` as an array; an `ArgumentTypeError` names the argument."""
    if isinstance(value, Array):
        return value
    try:
        return as_value(value)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{function}: argument {argument}: {error.message}") from None


def operands(function: str, **values: Any) -> list[Array]:
    """Return each named argument as an array."""
    return [operand(function, name, value) for name, value in values.items()]


def narrow(value: Any) -> Any:
    """Return int64 indices of the host as int32 if they fit: devices may lack int64."""
    if not isinstance(value, np.ndarray) or value.dtype not in (np.int64, np.uint64):
        return value
    info = np.iinfo(INDEX)
    return value.astype(INDEX) if not value.size or (value.min() >= info.min and value.max() <= info.max) else value


def promote(function: str, *values: Any) -> list[Array]:
    """Return the arguments as arrays of their common dtype."""
    return _promoted(function, values, lambda dtype: dtype)


def promote_inexact(function: str, *values: Any) -> list[Array]:
    """Return the arguments as arrays of their common floating or complex dtype."""
    return _promoted(function, values, dtypes.to_inexact)


def promote_default(function: str, *values: Any) -> list[Array]:
    """Promote like `promote_inexact`, but integers to the default dtype of floats.

    That is float64 where `jax_enable_x64` is set. Booleans count as integers.
    """
    return _promoted(function, values, lambda dtype: dtype if dtype in dtypes.INEXACT else dtypes.default(dtypes.to_inexact(dtype)))


def promote_numeric(function: str, *values: Any) -> list[Array]:
    """Promote like `promote`, with booleans as int32."""
    return _promoted(function, values, lambda dtype: INDEX if dtype == BOOL else dtype)


def _promoted(function: str, values: Sequence[Any], adjust: Callable[[np.dtype], np.dtype]) -> list[Array]:
    items = [v if is_python_scalar(v) else operand(function, str(i), v) for i, v in enumerate(values, 1)]
    dtype, weak = dtypes.promote(*[dtypes.dtype_and_weak_type(v) for v in items])
    check_promotion(function, items, dtype)
    return [converted(function, v, adjust(dtype), weak) for v in items]


def is_python_scalar(value: Any) -> bool:
    """Return True for Python's own numbers, which have a weak type."""
    return isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)


def converted(function: str, value: Any, dtype: np.dtype, weak: bool = False) -> Array:
    """Convert `value` to a dtype; raise `IntegerOverflowError` if it does not fit."""
    if not is_python_scalar(value):
        return lax.convert_element_type(check_narrowing(operand(function, "value", value), dtype), dtype, weak)
    try:
        return from_number(value, dtype, weak)
    except OverflowError:
        message = f"{function}: the integer {value} does not fit {dtype.name}, the dtype of the other arguments"
        raise IntegerOverflowError(message) from None


def strong_array(x: Array) -> Array:
    """Return the result of a composition, strongly typed unless it is a scalar.

    JAX's compositions do so by their constants: `hypot` of an array of integers and 0.5 is strong, where `arctan2` is weak.
    """
    return lax.convert_element_type(x, x.dtype) if x.ndim else x


def wide(x: Array) -> Array:
    """Return float16 and bfloat16 as float32, for values that may exceed their range.

    Other arrays are returned as they are, also of floats that are only stored: arithmetic refuses them.
    """
    dtype = dtypes.accumulator(x.dtype)
    return x if dtype == x.dtype or x.dtype in dtypes.STORAGE else lax.convert_element_type(x, dtype, x.weak_type)


def narrowed(x: Array, like: Array) -> Array:
    """Return what was computed of `wide(like)` in the precision of `like`."""
    return x if dtypes.accumulator(like.dtype) == like.dtype else lax.convert_element_type(x, like.dtype, x.weak_type)


def no_out(function: str, out: None) -> None:
    """Raise `ArgumentError` if NumPy's `out` is given: arrays are immutable."""
    if out is not None:
        raise ArgumentError(f"{function}: arrays are immutable, so out= is not supported; use the returned array")


def dtype_or(dtype: Any, default: np.dtype) -> np.dtype:
    """Return the requested dtype, or the default."""
    return default if dtype is None else dtypes.as_dtype(dtype)


def as_index(value: Array) -> Array:
    """Return indices or counts in the dtype that results have.

    That is the default integers, or int64 if they have been computed in it.
    """
    return lax.convert_element_type(value, dtypes.promote_types(value.dtype, dtypes.default(INDEX)))


def wide_index(index: Array, length: int) -> Array:
    """Return indices in a dtype that holds the length of their axis, too."""
    least = dtypes.index_dtype(length)
    if index.dtype in dtypes.INTEGERS:
        is_narrow = index.dtype.itemsize < least.itemsize
        if not is_narrow or (not is_symbolic_dim(length) and length <= dtypes.iinfo(index.dtype).max):
            return index
    return lax.convert_element_type(index, dtypes.promote_types(index.dtype, least))


def as_signed(numbers: Array) -> Array:
    """Return integers as int32 or int64; those beyond as the greatest number."""
    signed = np.dtype(np.int64 if numbers.dtype.itemsize == 8 else np.int32)
    if numbers.dtype in dtypes.UNSIGNED and numbers.dtype.itemsize >= signed.itemsize:
        numbers = lax.min(numbers.dtype.type(dtypes.iinfo(signed).max), numbers)
    return numbers.astype(signed)


def axes_of(function: str, axis: Axis, ndim: int) -> tuple[int, ...]:
    """Return the dimensions that `axis` names, counted from the front; None names all."""
    try:
        return canonical_axes(axis.tolist() if isinstance(axis, np.ndarray) else axis, ndim, "axis")  # type: ignore[arg-type]  # names raise TypeError
    except ShapeError as error:
        raise type(error)(f"{function}: {error.message}") from None
    except (AttributeError, TypeError):
        raise ArgumentTypeError(f"{function}: axis must be an integer, a tuple of integers or None, got {axis!r}") from None


def split_axes(function: str, axis: Axis, ndim: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the dimensions that `axis` names, and the names of mapped axes in it."""
    entries = axis if isinstance(axis, (tuple, list)) else (axis,)
    names = tuple([e for e in entries if isinstance(e, str)])
    if not names:
        return axes_of(function, axis, ndim), ()
    return axes_of(function, [e for e in entries if not isinstance(e, str)], ndim), names


def axis_of(function: str, axis: int, ndim: int) -> int:
    """Return the single dimension that `axis` names, counted from the front."""
    if isinstance(axis, (tuple, list)) or axis is None:
        raise ArgumentTypeError(f"{function}: axis must be one integer, got {axis!r}")
    return axes_of(function, axis, ndim)[0]


def flat_or_axis(function: str, a: Array, axis: int | None) -> tuple[Array, int]:
    """Return the array and the axis to work along: flattened and 0 if `axis` is None."""
    if axis is None:
        return lax.reshape(a, (a.size,)), 0
    return a, axis_of(function, axis, a.ndim)


def concrete(function: str, argument: str, value: Any, remedy: str) -> np.ndarray:
    """Return the values of an argument that must be known while tracing."""
    return np.asarray(concrete_or_raise(value, f"argument {argument} of {function}", remedy))


def full_like_scalar(a: Array, value: Any) -> Array:
    """Return a scalar of `a`'s dtype, weak so that `a` combined with it stays as weak."""
    if is_symbolic_dim(value):
        return lax.convert_element_type(value, a.dtype, weak_type=True)
    return from_number(value, a.dtype, a.dtype != BOOL)


def broadcast_together(*arrays: Array) -> list[Array]:
    """Broadcast the arrays to one shape."""
    shape = lax.broadcast_shapes(*[a.shape for a in arrays])
    return [broadcast_to(a, shape) for a in arrays]


def is_complex(a: Array) -> bool:
    """Return True if the elements are complex."""
    return a.dtype in dtypes.COMPLEX


def is_inexact(a: Array) -> bool:
    """Return True if the elements are floating-point or complex, stored ones too."""
    return a.dtype in dtypes.INEXACT or a.dtype in dtypes.STORAGE_FLOATS


# Types for annotations, by the names of `jax.typing`.


@runtime_checkable  # libraries check annotations when their functions are called
class SupportsDType(Protocol):
    """An object with a dtype."""

    @property
    def dtype(self) -> np.dtype:
        """The dtype."""


#: Values that functions accept as arrays: arrays, NumPy's arrays and scalars, Python's numbers.
ArrayLike: TypeAlias = Union[Array, np.ndarray, np.bool_, np.number, bool, int, float, complex]  # noqa: UP007  # read by isinstance, too

#: Specifications of a dtype: its name, a scalar type, a dtype, or an object that has one.
DTypeLike: TypeAlias = Union[str, type[Any], np.dtype, SupportsDType]  # noqa: UP007

#: Specifications of the precision of products.
PrecisionLike: TypeAlias = Union[str, Precision, tuple[str, str], tuple[Precision, Precision], None]  # noqa: UP007

"""Python's operators on arrays, and compositions of primitives by JAX's names."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value, attach
from volta_fn.core.arrays.memory import beside, constrained, split_like
from volta_fn.core.aval import canonical_shape
from volta_fn.core.devices.device import default_backend
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.primitives.data_movement.movement import broadcast, broadcast_in_dim, broadcast_to, canonical_axis, expand_dims, reshape
from volta_fn.primitives.data_movement.slicing import concatenate, index_in_dim, slice_in_dim
from volta_fn.primitives.declare import Elementwise, array_of_number, promote_args, promote_numbers, promoted, to_dtype, weakly_promoted
from volta_fn.primitives.elementwise import arithmetic, selection
from volta_fn.primitives.elementwise.cast import convert_element_type, in_wider_dtype
from volta_fn.primitives.elementwise.selection import select
from volta_fn.settings import current as settings

_OPERANDS = (Array, np.ndarray, np.generic, bool, int, float, complex)


def true_divide(x: Any, y: Any) -> Array:
    """Return x / y as floating-point numbers, integers included."""
    return arithmetic.div(*promote_args("true_divide", (x, y), dtypes.INEXACT))


def floor_divide(x: Any, y: Any) -> Array:
    """Return floor(x / y), in the operands' dtype.

    Where a float is infinite or zero it is floor(x / y), as the Array API standard prefers.
    """
    a, b = promote_numbers("floor_divide", (x, y), dtypes.REALS)
    if settings.permissive and a.dtype in dtypes.STORAGE:
        return in_wider_dtype("floor_divide", floor_divide, [a, b])
    if a.dtype in dtypes.FLOATS:
        return _floor_quotient(a, b)
    quotient = arithmetic.div(a, b)
    if a.dtype in dtypes.UNSIGNED:
        return quotient
    inexact = selection.ne(arithmetic.rem(a, b), 0)
    opposite = selection.ne(arithmetic.sign(a), arithmetic.sign(b))
    return select(selection.bitwise_and(inexact, opposite), arithmetic.sub(quotient, 1), quotient)


def _floor_quotient(a: Array, b: Array) -> Array:
    """Return the floored quotient of floats from (x - x rem y) / y.

    That is an integer up to rounding, or one more than the result. Where x is zero, y infinite, or the quotient infinite, it is
    floor(x / y), with the signs of zero and infinity.
    """
    rest = arithmetic.rem(a, b)
    zero, infinity = (to_dtype(v, a.dtype) for v in (0.0, np.inf))
    quotient = arithmetic.round(arithmetic.div(arithmetic.sub(a, rest), b), arithmetic.RoundingMethod.TO_NEAREST_EVEN)
    below = selection.bitwise_and(selection.ne(rest, zero), selection.ne(selection.lt(rest, zero), selection.lt(b, zero)))
    quotient = select(below, arithmetic.sub(quotient, 1), select(selection.eq(quotient, zero), zero, quotient))
    ratio = arithmetic.div(a, b)
    unbounded = [selection.eq(arithmetic.abs(v), infinity) for v in (ratio, b)]
    limiting = selection.bitwise_or(selection.eq(a, zero), selection.bitwise_or(*unbounded))
    return select(limiting, arithmetic.floor(ratio), quotient)


def fmod(x: Any, y: Any) -> Array:
    """Return the remainder with the sign of x.

    Of integers by zero it is 0, as NumPy's, where `rem` leaves x.
    """
    a, b = promote_numbers("fmod", (x, y), dtypes.REALS)
    rest = arithmetic.rem(a, b)
    if a.dtype in dtypes.FLOATS or (type(y) is int and y):
        return rest
    zero = to_dtype(0, a.dtype)
    return select(selection.eq(b, zero), zero, rest)


def remainder(x: Any, y: Any) -> Array:
    """Return x - floor(x / y) * y.

    It has the sign of y, zeros too; of integers by zero it is 0.
    """
    a, b = promote_numbers("remainder", (x, y), dtypes.REALS)
    rest = fmod(a, y if type(y) is int else b)
    if a.dtype in dtypes.UNSIGNED:
        return rest
    zero = to_dtype(0, a.dtype)
    wrong_side = selection.ne(selection.lt(rest, zero), selection.lt(b, zero))
    result = select(selection.bitwise_and(wrong_side, selection.ne(rest, zero)), arithmetic.add(rest, b), rest)
    if a.dtype not in dtypes.FLOATS:
        return result
    # These change nothing but the signs of zeros, and have the derivative 1. The zero is a difference, so that programs of libraries that
    # compute with units add like to like.
    nothing = arithmetic.sub(rest, rest)
    return select(selection.lt(b, zero), arithmetic.neg(arithmetic.sub(nothing, result)), arithmetic.add(result, nothing))


def divmod(x: Any, y: Any) -> tuple[Array, Array]:
    """Return (x // y, x % y)."""
    return floor_divide(x, y), remainder(x, y)


def power(x: Any, y: Any) -> Array:
    """Return x to the power y, by multiplication if y is a Python int."""
    if type(y) is int and isinstance(x, (Array, np.ndarray, np.generic)):
        base = as_value(x)
        if base.dtype not in dtypes.BOOL:  # of integers, negative powers raise
            return arithmetic.integer_pow(base, y)
    base, exponent = promote_numbers("power", (x, y), dtypes.NUMBERS)
    return power_of_promoted(base, exponent, y)


def power_of_promoted(base: Array, exponent: Array, y: Any) -> Array:
    """Return base to the power exponent, to whose dtype `y` was converted.

    The result is strongly typed for integers, and where `y` is an array of integers: 2.0 ** x, too, as in JAX.
    """
    result = arithmetic.pow(base, exponent)
    dtype, weak = dtypes.dtype_and_weak_type(y)
    if base.dtype in dtypes.INTEGERS or (dtype in dtypes.INTEGERS and not weak):
        return convert_element_type(result, result.dtype)
    return result


def _of_object(apply: Callable[[Any], Any], other: Any, raising: bool) -> Any:
    """Apply an operator to an object that converts to an array.

    It is left to other objects, unless their type has none for arrays. Some have `__jax_array__` as they have every name, and return
    NotImplemented.
    """
    if hasattr(other, "__jax_array__"):
        value = other.__jax_array__()
        return apply(value) if isinstance(value, _OPERANDS) else NotImplemented
    return refused_operand(other) if raising or type(other) is dict else NotImplemented


#: Types without operators, whatever the other operand is.
_REFUSED = (dict, type(None))


def refused_operand(other: Any) -> Any:
    """Raise `ArgumentTypeError` for operands whose types have no operators for arrays.

    Other objects are left to their own methods, and NotImplemented is returned.
    """
    if type(other) in (*_REFUSED, list, tuple, str) or type(other).__module__ == "torch":
        as_value(other)
    return NotImplemented


def _binary(function: Callable[..., Any], raising: bool = True) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the methods x.__op__(y) and y.__rop__(x) of a binary function."""

    def method(self: Any, other: Any) -> Any:
        return function(self, other) if isinstance(other, _OPERANDS) else _of_object(lambda y: function(self, y), other, raising)

    def reflected(self: Any, other: Any) -> Any:
        return function(other, self) if isinstance(other, _OPERANDS) else _of_object(lambda x: function(x, self), other, raising)

    return method, reflected


def left_shift(x: Any, y: Any) -> Array:
    """Return x << y; the bits of booleans are those of int32."""
    return selection.shift_left(*promote_numbers("left_shift", (x, y), dtypes.INTEGERS))


_ORDERS = (selection.lt, selection.le, selection.gt, selection.ge)


def compare_integers(compare: Elementwise) -> Callable[[Array, Array], Array]:
    """Return a comparison of uint64 with a signed integer by their values."""

    def compare_mixed(x: Array, y: Array) -> Array:
        signed, pair = (x, (0, 1)) if y.dtype == np.uint64 else (y, (1, 0))
        negative = selection.lt(signed, np.zeros((), signed.dtype))
        of_negative = compare(*map(np.int32, pair))  # a negative number is less than any unsigned one, as 0 is less than 1
        of_others = compare(convert_element_type(x, np.uint64), convert_element_type(y, np.uint64))
        negatives = selection.bitwise_and(negative, of_negative)
        return selection.bitwise_or(negatives, selection.bitwise_and(selection.bitwise_not(negative), of_others))

    return compare_mixed


def _compare_float0(method: Callable[..., Any], is_equal: bool) -> Callable[..., Any]:
    """Let a comparison take derivatives by integers, which have one value."""

    @functools.wraps(method)
    def compare(self: Any, other: Any) -> Any:
        if self.dtype == dtypes.float0 and getattr(other, "dtype", None) == dtypes.float0:
            return broadcast_to(as_value(is_equal), np.broadcast_shapes(self.shape, other.shape))
        return method(self, other)

    return compare


def _fast_binary(operation: Elementwise) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `_binary`'s methods with a fast path for known eager kernels."""
    promoting: Callable[..., Any] = left_shift
    if operation is not selection.shift_left:
        by_parts = selection.lexicographic(operation) if operation in _ORDERS else None
        mixed = compare_integers(operation) if operation in (*_ORDERS, selection.eq, selection.ne) else None
        promoting = promoted(operation, fallback=by_parts, mixed=mixed)
    raising = operation not in (selection.eq, selection.ne, arithmetic.mul)  # the last of which repeats lists and strings
    fallback, reflected = _binary(promoting, raising)
    if operation in (selection.eq, selection.ne):
        fallback = _compare_float0(fallback, operation is selection.eq)
    eager = operation.primitive.eager_kernels

    def method(self: Any, other: Any) -> Any:
        if type(self) is ConcreteArray and current_trace() is EVAL:
            operand = other if type(other) is ConcreteArray else array_of_number(self, other)
            if operand is not None:
                run = eager.get((self._spec, operand._spec))
                if run is not None:
                    return run(self, operand)
        return fallback(self, other)  # which looks up the kernel again, after it converted the operands

    return method, reflected


for _name, _operation in (
    ("add", arithmetic.add), ("sub", arithmetic.sub), ("mul", arithmetic.mul),
    ("and", selection.bitwise_and), ("or", selection.bitwise_or), ("xor", selection.bitwise_xor),
    ("lshift", selection.shift_left), ("eq", selection.eq), ("ne", selection.ne), ("lt", selection.lt), ("le", selection.le),
    ("gt", selection.gt), ("ge", selection.ge),
):  # fmt: skip
    _method, _reflected = _fast_binary(_operation)
    attach(f"__{_name}__", _method)
    if _name not in ("eq", "ne", "lt", "le", "gt", "ge"):
        attach(f"__r{_name}__", _reflected)


def right_shift(x: Any, y: Any) -> Array:
    """Return x >> y: the sign bit fills signed integers, zeros unsigned ones."""
    a, b = promote_numbers("right_shift", (x, y), dtypes.INTEGERS)
    shift = selection.shift_right_logical if a.dtype in dtypes.UNSIGNED else selection.shift_right_arithmetic
    return shift(a, b)


for _name, _function in (
    ("truediv", true_divide), ("floordiv", floor_divide), ("mod", remainder), ("divmod", divmod), ("pow", power),
    ("rshift", right_shift),
):  # fmt: skip
    _method, _reflected = _binary(_function)
    attach(f"__{_name}__", _method)
    attach(f"__r{_name}__", _reflected)

attach("__neg__", promoted(arithmetic.neg))
attach("__pos__", lambda self: self)
_absolute = promoted(arithmetic.abs)
attach("__abs__", lambda self: self if self.dtype in dtypes.BOOL else _absolute(self))
attach("__invert__", promoted(selection.bitwise_not))


# Functions of `jax.lax` that are compositions of primitives.


def full(shape: Sequence[int] | int, fill_value: Any, dtype: Any = None, *, sharding: Any = None) -> Array:
    """Return an array of `shape` with every element equal to `fill_value`.

    >>> vf.lax.full((2,), 7, "float32")
    Array([7., 7.], dtype=float32)
    """
    value = convert_element_type(fill_value, as_value(fill_value).dtype) if dtype is None else convert_element_type(fill_value, dtype)
    if value.shape:
        raise ShapeError(f"full: the fill value must be a scalar, got an array of shape {value.shape}")
    return constrained(broadcast(value, canonical_shape(shape)), sharding)


def full_like(x: Any, fill_value: Any, dtype: Any = None, shape: Sequence[int] | None = None, sharding: Any = None) -> Array:
    """Return an array like `x` with every element equal to `fill_value`.

    Shape and dtype are those of `x` unless given, and so is the device.

    >>> vf.lax.full_like(vf.numpy.zeros(2), 3)
    Array([3., 3.], dtype=float32)
    """
    value = as_value(x)
    number = full((), fill_value, value.dtype if dtype is None else dtype)
    filled = full(value.shape if shape is None else shape, beside(number, value) if sharding is None else number)
    return split_like(filled, value) if sharding is None and filled.shape == value.shape else constrained(filled, sharding)


def empty(shape: Sequence[int] | int, dtype: Any = "float32", *, out_sharding: Any = None) -> Array:
    """Return an array of zeros.

    Immutable arrays have no use for uninitialized memory.

    >>> vf.lax.empty((2,), "int32")
    Array([0, 0], dtype=int32)
    """
    return constrained(full(shape, 0, dtype), out_sharding)


def square(x: Any) -> Array:
    """Return x * x, element by element.

    >>> vf.lax.square(vf.numpy.array([2.0, -3.0]))
    Array([4., 9.], dtype=float32)
    """
    value = as_value(x)
    return arithmetic.integer_pow(value, 2) if value.dtype in dtypes.COMPLEX else arithmetic.mul(value, value)


def reciprocal(x: Any) -> Array:
    """Return 1 / x, element by element.

    >>> vf.lax.reciprocal(vf.numpy.array([2.0, 4.0]))
    Array([0.5 , 0.25], dtype=float32)
    """
    return arithmetic.integer_pow(x, -1)


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Array:
    """Merge the dimensions from `start_dimension` up to `stop_dimension`.

    The latter is not included.

    >>> vf.lax.collapse(vf.numpy.zeros((2, 3, 4)), 1).shape
    (2, 12)
    """
    value = as_value(operand)
    start, stop, _ = slice(start_dimension, stop_dimension).indices(value.ndim)
    if stop < start:
        raise ShapeError(f"collapse: dimensions {start_dimension} to {stop_dimension} of an array of shape {value.shape} are in no order")
    merged = math.prod(value.shape[start:stop])
    return reshape(value, (*value.shape[:start], merged, *value.shape[stop:]))


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Array]:
    """Split into slices of the given sizes along `axis`.

    The sizes add up to the dimension's.

    >>> vf.lax.split(vf.numpy.arange(5), (2, 3))
    [Array([0, 1], dtype=int32), Array([2, 3, 4], dtype=int32)]
    """
    value = as_value(operand)
    dim = canonical_axis(axis, value.ndim)
    lengths = canonical_shape(sizes, "sizes")
    if sum(lengths) != value.shape[dim]:
        raise ShapeError(f"split: sizes {lengths} do not add up to dimension {dim} of shape {value.shape}")
    ends = np.cumsum(lengths)
    return [slice_in_dim(value, int(end - length), int(end), 1, dim) for end, length in zip(ends, lengths, strict=True)]


def stack(operands: Sequence[Any], axis: int = 0) -> Array:
    """Stack arrays of one shape and dtype along a new dimension.

    >>> vf.lax.stack([vf.numpy.array([1, 2]), vf.numpy.array([3, 4])], axis=1)
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    values = [as_value(o) for o in operands]
    if not values:
        raise ShapeError("stack needs at least one array")
    dim = canonical_axis(axis, values[0].ndim + 1)
    return concatenate([expand_dims(v, (dim,)) for v in values], dim)


def unstack(x: Any, axis: int = 0) -> list[Array]:
    """Return the slices along a dimension, without that dimension.

    >>> vf.lax.unstack(vf.numpy.array([[1, 2], [3, 4]]))
    [Array([1, 2], dtype=int32), Array([3, 4], dtype=int32)]
    """
    value = as_value(x)
    dim = canonical_axis(axis, value.ndim)
    return [index_in_dim(value, i, dim, keepdims=False) for i in range(value.shape[dim])]


def tile(operand: Any, reps: Sequence[int]) -> Array:
    """Repeat `operand` ``reps[i]`` times along dimension i.

    >>> vf.lax.tile(vf.numpy.array([1, 2]), (2,))
    Array([1, 2, 1, 2], dtype=int32)
    """
    value = as_value(operand)
    counts = canonical_shape(reps, "reps")
    if len(counts) != value.ndim:
        raise ShapeError(f"tile: reps {counts} needs one entry per dimension of shape {value.shape}")
    shape = [n for pair in zip(counts, value.shape, strict=True) for n in pair]
    repeated = broadcast_in_dim(value, shape, range(1, 2 * value.ndim, 2))
    return reshape(repeated, [c * n for c, n in zip(counts, value.shape, strict=True)])


def broadcast_to_rank(x: Any, rank: int) -> Array:
    """Add leading dimensions of size 1 to `x`, up to `rank` dimensions.

    >>> vf.lax.broadcast_to_rank(vf.numpy.ones(2), 3).shape
    (1, 1, 2)
    """
    value = as_value(x)
    if rank < value.ndim:
        raise ShapeError(f"broadcast_to_rank: an array of shape {value.shape} has more than {rank} dimensions")
    return reshape(value, ((1,) * (rank - value.ndim)) + value.shape)


def broadcast_like(arr: Any, like_arr: Any) -> Array:
    """Broadcast `arr` to the shape of `like_arr`.

    >>> vf.lax.broadcast_like(vf.numpy.array([1, 2]), vf.numpy.zeros((2, 2)))
    Array([[1, 2],
           [1, 2]], dtype=int32)
    """
    return broadcast_to(as_value(arr), as_value(like_arr).shape)


def mulhi(x: Any, y: Any) -> Array:
    """Return the upper half of the bits of x * y, for integers of one dtype.

    Products of half words make it (Warren, Hacker's Delight, section 8-2). Raises `DTypeError` for other dtypes.

    >>> vf.lax.mulhi(vf.numpy.int32(2**20), vf.numpy.int32(2**20))
    Array(256, dtype=int32)
    """
    a, b = weakly_promoted("mulhi", (x, y))
    if a.dtype not in dtypes.INTEGERS:
        raise DTypeError(f"mulhi is not defined for {a.dtype.name}; it takes integers")
    half = a.dtype.itemsize * 4
    low = (1 << half) - 1
    a_high, b_high, a_low, b_low = a >> half, b >> half, a & low, b & low
    middle = a_high * b_low + selection.shift_right_logical(a_low * b_low, full_like(a_low * b_low, half))
    lower = (middle & low) + a_low * b_high
    return a_high * b_high + (middle >> half) + (lower >> half)


def platform_dependent(*args: Any, default: Callable[..., Any] | None = None, **per_platform: Callable[..., Any]) -> Any:
    """Call the function given for the platform of the default device.

    The platforms are "cpu" and "gpu". Raises `ArgumentError` if there is neither a function for it nor a default.

    >>> vf.lax.platform_dependent(3, tpu=lambda x: x, default=lambda x: x + 1)
    4
    """
    platform = default_backend()
    function = per_platform.get(platform, default)
    if function is None:
        raise ArgumentError(f"platform_dependent: no function for {platform!r} among {sorted(per_platform)}, and no default")
    return function(*args)


def composite(decomposition: Callable[..., Any], name: str, version: int = 0) -> Callable[..., Any]:
    """Name a function of primitives, for targets with one operation for it.

    No target here has operations beyond the primitives, so calls run the decomposition, on arrays as positional arguments and attributes as
    keywords.

    >>> vf.lax.composite(lambda x: vf.lax.tan(x), name="my.tangent")(0.0)
    Array(0., dtype=float32, weak_type=True)
    """
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"composite: name is a string that is not empty, got {name!r}")

    @functools.wraps(decomposition)
    def decomposed(*args: Any, **attributes: Any) -> Any:
        return decomposition(*args, **attributes)

    return decomposed


def dtype(x: Any) -> np.dtype:
    """Return the dtype of an array or a scalar, or the one that a scalar type names.

    >>> vf.lax.dtype(1.0), vf.lax.dtype(bool)
    (dtype('float32'), dtype('bool'))
    """
    return dtypes.as_dtype(x) if isinstance(x, (type, np.dtype)) else as_value(x).dtype

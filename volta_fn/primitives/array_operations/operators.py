"""Python's operators on arrays and tracers, and `//`, `%`, `divmod` and `**`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, ConcreteArray, as_value, attach
from volta_fn.core.dispatch import BuiltIns, Finder, when_available
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.primitives.declare import Elementwise, promote_args, promoted
from volta_fn.primitives.elementwise import arithmetic, comparison
from volta_fn.primitives.elementwise.selection import select

_OPERANDS = (Array, np.ndarray, np.generic, bool, int, float, complex)


def true_divide(x: Any, y: Any) -> Array:
    """Return x / y as floating-point numbers, integers included."""
    return arithmetic.div(*promote_args("true_divide", (x, y), dtypes.INEXACT))


def floor_divide(x: Any, y: Any) -> Array:
    """Return the largest integer not above x / y, in the operands' dtype.

    Where a float is infinite or zero it is floor(x / y), as the Array API standard prefers.
    """
    a, b = promote_args("floor_divide", (x, y), dtypes.REALS)
    if a.dtype in dtypes.FLOATS:
        return _floor_quotient(a, b)
    quotient = arithmetic.div(a, b)
    if a.dtype in dtypes.UNSIGNED:
        return quotient
    inexact = comparison.ne(arithmetic.rem(a, b), 0)
    opposite = comparison.ne(arithmetic.sign(a), arithmetic.sign(b))
    return select(comparison.bitwise_and(inexact, opposite), arithmetic.sub(quotient, 1), quotient)


def _floor_quotient(a: Array, b: Array) -> Array:
    """Return the floored quotient of floats from (x - x rem y) / y.

    That is an integer up to rounding, or one more than the result. Where x is zero, y infinite, or the quotient infinite, it is
    floor(x / y), with the signs of zero and infinity.
    """
    rest = arithmetic.rem(a, b)
    zero, infinity = (as_value(np.asarray(v, a.dtype)) for v in (0.0, np.inf))
    quotient = arithmetic.round(arithmetic.div(arithmetic.sub(a, rest), b), arithmetic.RoundingMethod.TO_NEAREST_EVEN)
    below = comparison.bitwise_and(comparison.ne(rest, zero), comparison.ne(comparison.lt(rest, zero), comparison.lt(b, zero)))
    quotient = select(below, arithmetic.sub(quotient, 1), select(comparison.eq(quotient, zero), zero, quotient))
    ratio = arithmetic.div(a, b)
    unbounded = [comparison.eq(arithmetic.abs(v), infinity) for v in (ratio, b)]
    limiting = comparison.bitwise_or(comparison.eq(a, zero), comparison.bitwise_or(*unbounded))
    return select(limiting, arithmetic.floor(ratio), quotient)


def fmod(x: Any, y: Any) -> Array:
    """Return the remainder with the sign of x.

    Of integers by zero it is 0, as NumPy's, where `rem` leaves x.
    """
    a, b = promote_args("fmod", (x, y), dtypes.REALS)
    rest = arithmetic.rem(a, b)
    if a.dtype in dtypes.FLOATS or (type(y) is int and y):
        return rest
    zero = as_value(np.zeros((), a.dtype))
    return select(comparison.eq(b, zero), zero, rest)


def remainder(x: Any, y: Any) -> Array:
    """Return x - floor(x / y) * y.

    It has the sign of y, zeros too; of integers by zero it is 0.
    """
    a, b = promote_args("remainder", (x, y), dtypes.REALS)
    rest = fmod(a, y if type(y) is int else b)
    if a.dtype in dtypes.UNSIGNED:
        return rest
    zero = as_value(np.zeros((), a.dtype))
    wrong_side = comparison.ne(comparison.lt(rest, zero), comparison.lt(b, zero))
    result = select(comparison.bitwise_and(wrong_side, comparison.ne(rest, zero)), arithmetic.add(rest, b), rest)
    if a.dtype not in dtypes.FLOATS:
        return result
    # These change nothing but the signs of zeros, and have the derivative 1.
    return select(comparison.lt(b, zero), arithmetic.neg(arithmetic.sub(zero, result)), arithmetic.add(result, zero))


def divmod(x: Any, y: Any) -> tuple[Array, Array]:
    """Return (x // y, x % y)."""
    return floor_divide(x, y), remainder(x, y)


def power(x: Any, y: Any) -> Array:
    """Return x to the power y, by multiplication if y is a Python int."""
    if type(y) is int and isinstance(x, (Array, np.ndarray, np.generic)):
        base = as_value(x)
        if base.dtype not in dtypes.BOOL and (y >= 0 or base.dtype in dtypes.INEXACT):
            return arithmetic.integer_pow(base, y)
    return arithmetic.pow(*promote_args("power", (x, y), dtypes.NUMBERS))


def _of_object(apply: Callable[[Any], Any], other: Any, raising: bool) -> Any:
    """Apply an operator to an object that gives an array.

    It is left to other objects, unless their type has none for arrays.
    """
    if hasattr(other, "__jax_array__"):
        return apply(as_value(other))
    if raising and type(other) in (list, tuple, dict, str, type(None)):
        as_value(other)
    return NotImplemented


def _binary(function: Callable[..., Any], raising: bool = True) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the methods x.__op__(y) and y.__rop__(x) of a binary function."""

    def method(self: Any, other: Any) -> Any:
        return function(self, other) if isinstance(other, _OPERANDS) else _of_object(lambda y: function(self, y), other, raising)

    def reflected(self: Any, other: Any) -> Any:
        return function(other, self) if isinstance(other, _OPERANDS) else _of_object(lambda x: function(x, self), other, raising)

    return method, reflected


_ORDERS = (comparison.lt, comparison.le, comparison.gt, comparison.ge)


def _fast_binary(operation: Elementwise) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `_binary`'s methods with a fast path for known eager kernels."""
    promoting = promoted(operation, otherwise=comparison.lexicographic(operation) if operation in _ORDERS else None)
    raising = operation not in (comparison.eq, comparison.ne, arithmetic.mul)  # the last of which repeats lists and strings
    unknown, reflected = _binary(promoting, raising)
    eager = operation.primitive.eager
    find: Finder | None = None

    def method(self: Any, other: Any) -> Any:
        if find is not None:
            return find(self, other)
        if type(self) is ConcreteArray and type(other) is ConcreteArray and current_trace() is EVAL:
            run = eager.get((self._spec, other._spec))
            if run is not None:
                return run(self, other)
        return unknown(self, other)

    def install(built_ins: BuiltIns) -> None:
        nonlocal find
        find = built_ins.finder(eager, unknown)

    when_available(install)
    return method, reflected


for _name, _operation in (
    ("add", arithmetic.add), ("sub", arithmetic.sub), ("mul", arithmetic.mul),
    ("and", comparison.bitwise_and), ("or", comparison.bitwise_or), ("xor", comparison.bitwise_xor),
    ("lshift", comparison.shift_left), ("eq", comparison.eq), ("ne", comparison.ne), ("lt", comparison.lt), ("le", comparison.le),
    ("gt", comparison.gt), ("ge", comparison.ge),
):  # fmt: skip
    _method, _reflected = _fast_binary(_operation)
    attach(f"__{_name}__", _method)
    if _name not in ("eq", "ne", "lt", "le", "gt", "ge"):
        attach(f"__r{_name}__", _reflected)


def right_shift(x: Any, y: Any) -> Array:
    """Return x >> y: the sign bit fills signed integers, zeros unsigned ones."""
    a, b = promote_args("right_shift", (x, y), dtypes.INTEGERS)
    shift = comparison.shift_right_logical if a.dtype in dtypes.UNSIGNED else comparison.shift_right_arithmetic
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
attach("__abs__", promoted(arithmetic.abs))
attach("__invert__", promoted(comparison.bitwise_not))

"""Comparisons, truth values, tests of elements, and functions of bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import check_option
from volta_fn.errors import ArgumentTypeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import (
    BOOL,
    axis_of,
    broadcast_together,
    flat_or_axis,
    full_like_scalar,
    is_complex,
    is_inexact,
    no_out,
    operand,
    promote,
    promote_inexact,
    promote_numeric,
)
from volta_fn.numpy.arithmetic import imag, is_infinite
from volta_fn.numpy.creation import asarray
from volta_fn.primitives.array_operations import operators
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.declare import promoted
from volta_fn.primitives.elementwise.selection import lexicographic

# Elementwise functions of integers and their bits.

bitwise_and: Callable[..., Array] = promoted(lax.bitwise_and, "bitwise_and", "Return the bits set in both x and y.")
bitwise_or: Callable[..., Array] = promoted(lax.bitwise_or, "bitwise_or", "Return the bits set in x or y.")
bitwise_xor: Callable[..., Array] = promoted(lax.bitwise_xor, "bitwise_xor", "Return the bits set in exactly one of x and y.")
bitwise_not = promoted(lax.bitwise_not, "bitwise_not", "Return the bits not set in x.")


@fused
def left_shift(x: Any, y: Any, /) -> Array:
    """Shift the bits of x left by y.

    >>> jnp.left_shift(jnp.array([1, 3]), 2)
    Array([ 4, 12], dtype=int32)
    """
    return operators.left_shift(*promote_numeric("left_shift", x, y))


@fused
def right_shift(x: Any, y: Any, /) -> Array:
    """Shift bits right by y; the sign bit fills signed integers, zeros unsigned.

    >>> jnp.right_shift(jnp.array([16, -16]), 2)
    Array([ 4, -4], dtype=int32)
    """
    return operators.right_shift(*promote_numeric("right_shift", x, y))


@fused
def bitwise_count(x: Any, /) -> Array:
    """Count the bits that are set in |x|, as uint8.

    >>> jnp.bitwise_count(jnp.array([7, -1, 0]))
    Array([3, 1, 0], dtype=uint8)
    """
    (value,) = promote_numeric("bitwise_count", x)
    return lax.convert_element_type(lax.population_count(_magnitude(value)), np.uint8)


@fused
def gcd(x1: Any, x2: Any) -> Array:
    """Return the greatest common divisor of integers, by Euclid's algorithm.

    >>> jnp.gcd(jnp.array([12, -18, 0]), 8)
    Array([4, 2, 8], dtype=int32)
    """
    a, b = broadcast_together(*_integers("gcd", x1, x2))
    zero = full_like_scalar(a, 0)

    def unfinished(pair: Any) -> Array:
        nonzero = lax.ne(pair[1], zero)
        return lax.reduce_or(nonzero, range(nonzero.ndim))

    def step(pair: Any) -> Any:
        large, small = pair
        done = lax.eq(small, zero)
        rest = lax.rem(large, lax.select(done, full_like_scalar(small, 1), small))
        return lax.select(done, large, small), lax.select(done, zero, rest)

    result, _ = lax.while_loop(unfinished, step, (_magnitude(a), _magnitude(b)))
    return _magnitude(result)  # the least integer has no magnitude, and its remainders are negative


@fused
def lcm(x1: Any, x2: Any) -> Array:
    """Return the least common multiple of integers; 0 if either is 0.

    >>> jnp.lcm(4, 6)
    Array(12, dtype=int32, weak_type=True)
    """
    a, b = _integers("lcm", x1, x2)
    divisor = gcd(a, b)
    one = full_like_scalar(divisor, 1)
    quotient = lax.div(a, lax.select(lax.eq(divisor, full_like_scalar(divisor, 0)), one, divisor))
    return _magnitude(lax.mul(quotient, b))


def _integers(function: str, x1: Any, x2: Any) -> list[Array]:
    values = promote(function, x1, x2)
    if values[0].dtype not in dtypes.INTEGERS:
        raise ArgumentTypeError(f"{function}: the arguments must be integers, got {values[0].dtype.name}")
    return values


def _magnitude(x: Array) -> Array:
    return lax.abs(x) if x.dtype in dtypes.SIGNED else x


def packbits(a: Any, axis: int | None = None, bitorder: str = "big") -> Array:
    """Pack groups of eight elements (is it nonzero?) into uint8, padded with zeros.

    >>> jnp.packbits(jnp.array([1, 0, 0, 0, 0, 0, 1, 1]))
    Array([131], dtype=uint8)
    """
    value = operand("packbits", "a", a)
    if value.dtype not in dtypes.INTEGERS | dtypes.BOOL:
        raise ArgumentTypeError(f"packbits: a must be integers or booleans, got {value.dtype.name}")
    value, dim = flat_or_axis("packbits", value, axis)
    config = [(0, -value.shape[i] % 8 if i == dim else 0, 0) for i in range(value.ndim)]
    bits = lax.pad(lax.convert_element_type(lax.ne(value, full_like_scalar(value, 0)), np.uint8), np.uint8(0), config)
    groups = lax.reshape(bits, (*bits.shape[:dim], bits.shape[dim] // 8, 8, *bits.shape[dim + 1 :]))
    weights = lax.reshape(_bit_weights(bitorder), (8, *(1,) * (value.ndim - dim - 1)))
    return lax.reduce_sum(lax.mul(groups, weights), (dim + 1,))


def unpackbits(a: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Array:
    """Unpack the bits of uint8 along an axis, which is cut or padded to `count`.

    >>> jnp.unpackbits(jnp.array([131], dtype="uint8"))
    Array([1, 0, 0, 0, 0, 0, 1, 1], dtype=uint8)
    """
    value = operand("unpackbits", "a", a)
    if value.dtype != np.uint8:
        raise ArgumentTypeError(f"unpackbits: a must be uint8, got {value.dtype.name}")
    value, dim = flat_or_axis("unpackbits", value, axis)
    weights = lax.reshape(_bit_weights(bitorder), (8, *(1,) * (value.ndim - dim - 1)))
    chosen = lax.bitwise_and(lax.expand_dims(value, (dim + 1,)), weights)
    bits = lax.convert_element_type(lax.ne(chosen, np.uint8(0)), np.uint8)
    result = lax.reshape(bits, (*value.shape[:dim], value.shape[dim] * 8, *value.shape[dim + 1 :]))
    if count is None:
        return result
    length = result.shape[dim]
    size = count if count >= 0 else max(length + count, 0)
    config = [(0, size - length if i == axis_of("unpackbits", dim, value.ndim) else 0, 0) for i in range(value.ndim)]
    return lax.pad(result, np.uint8(0), config)


def _bit_weights(bitorder: str) -> np.ndarray:
    check_option(bitorder, "bitorder", ("big", "little"))
    weights = np.uint8(1) << np.arange(8, dtype=np.uint8)
    return weights[::-1] if bitorder == "big" else weights


# Aliases.
bitwise_invert = bitwise_not
invert = bitwise_not
bitwise_left_shift = left_shift
bitwise_right_shift = right_shift


# Comparisons, truth values and tests of elements, all with boolean results.


def _comparison(compare: Any, name: str, doc: str, complex_order: bool = True) -> Callable[..., Array]:
    return promoted(compare, name, doc, lexicographic(compare) if complex_order else None, operators.compare_integers(compare))


equal = _comparison(lax.eq, "equal", "Return True where x == y.", complex_order=False)
not_equal = _comparison(lax.ne, "not_equal", "Return True where x != y.", complex_order=False)
less = _comparison(lax.lt, "less", "Return True where x < y; complex numbers compare by real part first.")
less_equal = _comparison(lax.le, "less_equal", "Return True where x <= y, like `less`.")
greater = _comparison(lax.gt, "greater", "Return True where x > y, like `less`.")
greater_equal = _comparison(lax.ge, "greater_equal", "Return True where x >= y, like `less`.")


def truth(function: str, x: Any) -> Array:
    """Return True where elements are nonzero."""
    value = operand(function, "x", x)
    return lax.convert_element_type(value if value.dtype == BOOL else lax.ne(value, full_like_scalar(value, 0)), BOOL)


@fused
def logical_and(x: Any, y: Any, /) -> Array:
    """Return True where both elements are nonzero.

    >>> jnp.logical_and(jnp.array([0, 1, 2]), True)
    Array([False,  True,  True], dtype=bool)
    """
    return lax.bitwise_and(truth("logical_and", x), truth("logical_and", y))


@fused
def logical_or(x: Any, y: Any, /) -> Array:
    """Return True where either element is nonzero."""
    return lax.bitwise_or(truth("logical_or", x), truth("logical_or", y))


@fused
def logical_xor(x: Any, y: Any, /) -> Array:
    """Return True where exactly one of the elements is nonzero."""
    return lax.bitwise_xor(truth("logical_xor", x), truth("logical_xor", y))


@fused
def logical_not(x: Any, /) -> Array:
    """Return True where the element is zero."""
    return lax.bitwise_not(truth("logical_not", x))


def _constant_like(value: Array, answer: bool) -> Array:
    return broadcast_to(asarray(np.bool_(answer)), value.shape)


@fused
def isnan(x: Any, /) -> Array:
    """Return True where elements are NaN.

    >>> jnp.isnan(jnp.array([1.0, jnp.nan]))
    Array([False,  True], dtype=bool)
    """
    value = operand("isnan", "x", x)
    return lax.ne(value, value) if is_inexact(value) else _constant_like(value, False)


@fused
def isfinite(x: Any, /) -> Array:
    """Return True where elements are neither infinite nor NaN."""
    value = operand("isfinite", "x", x)
    if is_complex(value):
        return lax.bitwise_and(lax.is_finite(lax.real(value)), lax.is_finite(lax.imag(value)))
    return lax.is_finite(value) if is_inexact(value) else _constant_like(value, True)


@fused
def isinf(x: Any, /) -> Array:
    """Return True where elements are infinite."""
    value = operand("isinf", "x", x)
    if is_complex(value):
        return lax.bitwise_or(is_infinite(lax.real(value)), is_infinite(lax.imag(value)))
    return is_infinite(value) if is_inexact(value) else _constant_like(value, False)


@fused
def isposinf(x: Any, /, out: None = None) -> Array:
    """Return True where elements are positive infinity."""
    no_out("isposinf", out)
    return _is_signed_infinity("isposinf", x, math.inf)


@fused
def isneginf(x: Any, /, out: None = None) -> Array:
    """Return True where elements are negative infinity."""
    no_out("isneginf", out)
    return _is_signed_infinity("isneginf", x, -math.inf)


def _is_signed_infinity(function: str, x: Any, infinity: float) -> Array:
    value = operand(function, "x", x)
    if is_complex(value):
        raise ArgumentTypeError(f"{function}: x is complex, and complex infinities have no sign")
    return lax.eq(value, full_like_scalar(value, infinity)) if is_inexact(value) else _constant_like(value, False)


@fused
def isreal(x: Any) -> Array:
    """Return True where elements have no imaginary part."""
    imaginary = imag(operand("isreal", "x", x))
    return lax.eq(imaginary, full_like_scalar(imaginary, 0))


@fused
def iscomplex(x: Any) -> Array:
    """Return True where elements have an imaginary part."""
    return lax.bitwise_not(isreal(x))


def isrealobj(x: Any) -> bool:
    """Return True if the dtype is not complex."""
    return not iscomplexobj(x)


def iscomplexobj(x: Any) -> bool:
    """Return True if the dtype is complex."""
    return x is not None and (x if hasattr(x, "dtype") else asarray(x)).dtype in dtypes.COMPLEX


def isscalar(element: Any) -> bool:
    """Return True for a number or an array without dimensions.

    >>> jnp.isscalar(3.0), jnp.isscalar(jnp.ones(1))
    (True, False)
    """
    if isinstance(element, Array):
        return element.ndim == 0
    return bool(np.isscalar(element)) or (isinstance(element, np.ndarray) and element.ndim == 0)


@fused
def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Array:
    """Return True where |a - b| <= atol + rtol * |b|.

    Infinities are close to themselves, NaN is close to NaN only if `equal_nan`.

    >>> jnp.isclose(jnp.array([1.0, 2.0]), jnp.array([1.0 + 1e-6, 2.1]))
    Array([ True, False], dtype=bool)
    """
    x, y = promote_inexact("isclose", a, b)
    absolute, relative = (lax.convert_element_type(v, dtypes.real_dtype(x.dtype)) for v in (atol, rtol))
    near = lax.le(lax.abs(lax.sub(x, y)), lax.add(absolute, lax.mul(relative, lax.abs(y))))
    result = lax.eq(x, y) | (isfinite(x) & isfinite(y) & near)
    return result | (isnan(x) & isnan(y)) if equal_nan else result


@fused
def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Array:
    """Return True if all elements are close in the sense of `isclose`.

    >>> jnp.allclose(jnp.array([1.0, 2.0]), jnp.array([1.0, 2.0 + 1e-7]))
    Array(True, dtype=bool)
    """
    close = isclose(a, b, rtol, atol, equal_nan)
    return lax.reduce_and(close, range(close.ndim))


@fused
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Array:
    """Return True if two arrays have the same shape and elements.

    >>> bool(jnp.array_equal(jnp.arange(3), [0, 1, 2]))
    True
    """
    x, y = asarray(a1), asarray(a2)
    if x.shape != y.shape:
        return asarray(np.bool_(False))
    return _are_equal(x, y, equal_nan)


def array_equiv(a1: Any, a2: Any) -> Array:
    """Return True if two arrays are equal after one broadcasts to the other's shape.

    >>> jnp.array_equiv(jnp.array([1, 2]), jnp.array([[1, 2], [1, 2]]))
    Array(True, dtype=bool)
    """
    x, y = asarray(a1), asarray(a2)
    try:
        lax.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return asarray(np.bool_(False))
    return _are_equal(x, y, False)


def _are_equal(x: Array, y: Array, equal_nan: bool) -> Array:
    same = equal(x, y)
    if equal_nan:
        same = lax.bitwise_or(same, lax.bitwise_and(isnan(x), isnan(y)))
    return lax.reduce_and(same, range(same.ndim))

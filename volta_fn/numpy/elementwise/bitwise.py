"""Elementwise functions of integers and their bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import axis_of, broadcast_together, flat_or_axis, full_like_scalar, operand, promote
from volta_fn.primitives.array_operations import operators
from volta_fn.primitives.declare import promoted

bitwise_and = promoted(lax.bitwise_and, "bitwise_and", "Return the bits set in both x and y.")
bitwise_or = promoted(lax.bitwise_or, "bitwise_or", "Return the bits set in x or y.")
bitwise_xor = promoted(lax.bitwise_xor, "bitwise_xor", "Return the bits set in exactly one of x and y.")
bitwise_not = promoted(lax.bitwise_not, "bitwise_not", "Return the bits not set in x.")
left_shift = promoted(lax.shift_left, "left_shift", "Shift the bits of x left by y.")


@fused
def right_shift(x: Any, y: Any, /) -> Array:
    """Shift bits right by y; the sign bit fills signed integers, zeros unsigned.

    >>> jnp.right_shift(jnp.array([16, -16]), 2)
    Array([ 4, -4], dtype=int32)
    """
    return operators.right_shift(*promote("right_shift", x, y))


@fused
def bitwise_count(x: Any, /) -> Array:
    """Count the bits that are set in |x|, as uint8.

    >>> jnp.bitwise_count(jnp.array([7, -1, 0]))
    Array([3, 1, 0], dtype=uint8)
    """
    value = operand("bitwise_count", "x", x)
    return lax.convert_element_type(lax.population_count(_magnitude(value)), np.uint8)


@fused
def gcd(x1: Any, x2: Any, /) -> Array:
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
def lcm(x1: Any, x2: Any, /) -> Array:
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
    value, dim = flat_or_axis("packbits", _bit_array("packbits", a), axis)
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
    wanted = count if count >= 0 else max(length + count, 0)
    config = [(0, wanted - length if i == axis_of("unpackbits", dim, value.ndim) else 0, 0) for i in range(value.ndim)]
    return lax.pad(result, np.uint8(0), config)


def _bit_array(function: str, a: Any) -> Array:
    value = operand(function, "a", a)
    if value.dtype not in dtypes.INTEGERS | dtypes.BOOL:
        raise ArgumentTypeError(f"{function}: a must be integers or booleans, got {value.dtype.name}")
    return value


def _bit_weights(bitorder: str) -> np.ndarray:
    if bitorder not in ("big", "little"):
        raise ArgumentError(f"bitorder must be 'big' or 'little', got {bitorder!r}")
    weights = np.uint8(1) << np.arange(8, dtype=np.uint8)
    return weights[::-1] if bitorder == "big" else weights


# Aliases.
bitwise_invert = bitwise_not
invert = bitwise_not
bitwise_left_shift = left_shift
bitwise_right_shift = right_shift

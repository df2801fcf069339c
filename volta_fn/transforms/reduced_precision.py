"""Floats rounded to fewer bits of exponent and mantissa."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, DTypeError
from volta_fn.primitives.array_operations.operators import full_like
from volta_fn.primitives.elementwise.arithmetic import abs as absolute
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.primitives.elementwise.cast import bitcast_convert_type
from volta_fn.primitives.elementwise.selection import bitwise_and, bitwise_or, gt, lt, ne, select, shift_left, shift_right_logical
from volta_fn.transforms.custom_derivatives import custom_jvp
from volta_fn.transforms.implicit import linear_call


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Array:
    """Round floats to those of a format with fewer bits, halves to even.

    The dtype stays. Overflow gives infinity, numbers below the format's smallest normal one give zero. Derivatives are
    rounded in the same way.

    Args:
        operand: floats of any shape.
        exponent_bits: bits of the format's exponent, at least 1.
        mantissa_bits: bits of its mantissa, without the implicit one.

    Raises:
        ArgumentError: negative numbers of bits, or no exponent.
        DTypeError: `operand` is not of real floats.

    >>> vf.lax.reduce_precision(jnp.array([1.0, 1.1, 3e38]), exponent_bits=5, mantissa_bits=2)
    Array([ 1.,  1., inf], dtype=float32)
    """
    x = as_value(operand)
    if x.dtype not in dtypes.FLOATS:
        raise DTypeError(f"reduce_precision is not defined for {x.dtype.name}; it takes real floats")
    if exponent_bits < 1 or mantissa_bits < 0:
        raise ArgumentError(
            f"reduce_precision: a format needs 1 or more exponent bits and 0 or more mantissa bits, got {exponent_bits} and {mantissa_bits}"
        )
    return _rounded(int(exponent_bits), int(mantissa_bits), x)


def _rounded_bits(exponent_bits: int, mantissa_bits: int, x: Array) -> Array:
    info, bits = dtypes.finfo(x.dtype), np.dtype(f"u{x.dtype.itemsize}")
    words = bitcast_convert_type(x, bits)
    if (excess := info.nmant - mantissa_bits) > 0:
        last = bitwise_and(shift_right_logical(words, full_like(words, excess)), full_like(words, 1))
        words = add(add(words, full_like(words, (1 << (excess - 1)) - 1)), last)
        words = shift_left(shift_right_logical(words, full_like(words, excess)), full_like(words, excess))
    rounded = bitcast_convert_type(words, x.dtype)
    if exponent_bits < info.bits - 1 - info.nmant:
        rounded = _in_range(rounded, exponent_bits, min(mantissa_bits, info.nmant))
    return select(ne(x, x), x, rounded)


def _in_range(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """Replace overflows by infinities, and underflows by zeros of the same sign."""
    bias = 2 ** (exponent_bits - 1) - 1
    bits = np.dtype(f"u{x.dtype.itemsize}")
    sign = bitwise_and(bitcast_convert_type(x, bits), full_like(bitcast_convert_type(x, bits), 1 << (x.dtype.itemsize * 8 - 1)))
    infinite = bitwise_or(sign, bitcast_convert_type(full_like(x, np.inf), bits))
    largest, smallest = (2.0 - 2.0**-mantissa_bits) * 2.0**bias, 2.0 ** (1 - bias)
    magnitude = absolute(x)
    x = select(gt(magnitude, full_like(x, largest)), bitcast_convert_type(infinite, x.dtype), x)
    return select(lt(magnitude, full_like(x, smallest)), bitcast_convert_type(sign, x.dtype), x)


_rounded: Any = custom_jvp(_rounded_bits, nondiff_argnums=(0, 1))


@_rounded.defjvp
def _rounded_jvp(exponent_bits: int, mantissa_bits: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    rounded = partial(_rounded, exponent_bits, mantissa_bits)
    return rounded(*primals), linear_call(lambda _, t: rounded(t), lambda _, ct: rounded(ct), (), *tangents)

"""Integers and bool: what each elementwise operation is for them.

An operation takes the dtype and `Lanes`. Integers of 8 and 16 bits are computed with in 32 bits, and `narrowed` afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from volta_fn.primitives.formulas.philox import philox4x32_word
from volta_fn.primitives.formulas.powers import integer_pow
from volta_fn.primitives.formulas.threefry import threefry2x32_word
from volta_fn.targets.wgsl.scalars.values import Lanes, outlined

Operation = Callable[..., Lanes]

_POWER = """fn power_{0}(x: {0}, y: {0}) -> {0} {{
  var result = {0}(1);
  var square = x;
  var left = y;
  for (var i = 0u; i < {1}u; i++) {{
    if ((left & {0}(1)) != {0}(0)) {{ result *= square; }}
    square *= square;
    left = left >> 1u;
  }}
  return result;
}}"""


def narrowed(x: Lanes, dtype: np.dtype) -> Lanes:
    """Return an integer modulo a power of two, as the dtype has it."""
    width = 8 * dtype.itemsize
    if width >= x.bits:
        return x
    if dtype.kind == "u":
        return x & ((1 << width) - 1)
    return (x << (x.bits - width)).shift_right(x.bits - width, signed=True)


def _wrapping(op: Operation) -> Operation:
    return lambda dtype, *xs: narrowed(op(*xs), dtype)


def _plain(op: Operation) -> Operation:
    return lambda dtype, *xs: op(*xs)


def _unsigned(x: Lanes, dtype: np.dtype) -> Lanes:
    """Return the bits of a number of the dtype, with zeros above."""
    bits = x.as_type(f"u{x.bits}")
    return bits & ((1 << (8 * dtype.itemsize)) - 1) if 8 * dtype.itemsize < x.bits and dtype.kind == "i" else bits


def _within(dtype: np.dtype, count: Lanes) -> Lanes:
    """Return whether a count is in 0, …, width - 1."""
    return count.compare("ult", 8 * dtype.itemsize)


def _shift_left(dtype: np.dtype, x: Lanes, count: Lanes) -> Lanes:
    return narrowed(_within(dtype, count).select(x << count, 0), dtype)


def _shift_right_logical(dtype: np.dtype, x: Lanes, count: Lanes) -> Lanes:
    moved = _within(dtype, count).select(_unsigned(x, dtype).shift_right(count), 0)
    return narrowed(moved.as_type(x.type), dtype)


def _shift_right_arithmetic(dtype: np.dtype, x: Lanes, count: Lanes) -> Lanes:
    """Shift right; copies of the highest bit move in, even of unsigned integers."""
    signed = narrowed(x.as_type(f"i{x.bits}"), np.dtype(f"i{dtype.itemsize}"))
    most = _within(dtype, count).select(count, 8 * dtype.itemsize - 1)
    return narrowed(signed.shift_right(most, signed=True).as_type(x.type), dtype)


def _nonzero(y: Lanes) -> tuple[Lanes, Lanes]:
    """Return whether y is 0, and y or else 1."""
    is_zero = y.equals(0)
    return is_zero, is_zero.select(1, y)


def _div(dtype: np.dtype, x: Lanes, y: Lanes) -> Lanes:
    is_zero, safe = _nonzero(y)
    return narrowed(is_zero.select(-1, x / safe), dtype)


def _rem(dtype: np.dtype, x: Lanes, y: Lanes) -> Lanes:
    """Return the remainder by the quotient.

    What % means for negative numbers is left to devices.
    """
    is_zero, safe = _nonzero(y)
    return is_zero.select(x, x - (x / safe) * safe)


def _sign(dtype: np.dtype, x: Lanes) -> Lanes:
    return x.above(0).select(1, x.below(0).select(-1, x.like(0)))


def _pow_unsigned(dtype: np.dtype, x: Lanes, y: Lanes) -> Lanes:
    name = x.f.helper(f"power_{x.type}", _POWER.format(x.type, x.bits))
    return narrowed(x.call(name, y), dtype)


def _pow_signed(dtype: np.dtype, x: Lanes, y: Lanes) -> Lanes:
    """Return a power; a negative one is exact, rounded toward zero."""
    unit = (y & 1).equals(1).select(x, 1)
    inverse = (x.equals(1) | x.equals(-1)).select(unit, 0)
    return y.below(0).select(inverse, _pow_unsigned(dtype, x, y.at_least(0)))


def _integer_pow(dtype: np.dtype, x: Lanes, *, y: int) -> Lanes:
    return narrowed(integer_pow(x, y=y), dtype)


def _population_count(dtype: np.dtype, x: Lanes) -> Lanes:
    return _unsigned(x, dtype).call("countOneBits").as_type(x.type)


def _clz(dtype: np.dtype, x: Lanes) -> Lanes:
    """Count the leading zeros; naga has no function for 64 bits."""
    bits = _unsigned(x, dtype)
    if x.bits == 64:
        high, low = bits.shift_right(32).converted("u32"), bits.converted("u32")
        zeros = high.equals(0).select(low.call("countLeadingZeros") + 32, high.call("countLeadingZeros"))
        return zeros.converted(x.type)
    return bits.call("countLeadingZeros").as_type(x.type) - (32 - 8 * dtype.itemsize)


def _threefry2x32_word(dtype: np.dtype, *words: Lanes, word: str) -> Lanes:
    return outlined(f"threefry2x32_{word}", partial(threefry2x32_word, word=word), *words)


def _philox4x32_word(dtype: np.dtype, *words: Lanes, word: int) -> Lanes:
    return outlined(f"philox4x32_{word}", partial(philox4x32_word, word=word), *words)


def _compare(op: str) -> Operation:
    return lambda dtype, x, y: x.let(f"{x.text} {op} {y.text}", "bool")


def _clamp(dtype: np.dtype, low: Lanes, x: Lanes, high: Lanes) -> Lanes:
    return _lesser(_greater(x, low), high)


def _greater(x: Lanes, y: Lanes) -> Lanes:
    return x.above(y).select(x, y)


def _lesser(x: Lanes, y: Lanes) -> Lanes:
    """Return the lesser number.

    WGSL's `min` is not used: NVIDIA's compiler, for Hopper, takes the least of three negated numbers for another one.
    """
    return x.below(y).select(x, y)


BOOL: dict[str, Operation] = {
    "eq": _compare("=="),
    "ne": _compare("!="),
    "lt": lambda dtype, x, y: ~x & y,
    "le": lambda dtype, x, y: ~x | y,
    "gt": lambda dtype, x, y: x & ~y,
    "ge": lambda dtype, x, y: x | ~y,
    **dict.fromkeys(("or", "add", "max"), lambda dtype, x, y: x | y),
    **dict.fromkeys(("and", "mul", "min"), lambda dtype, x, y: x & y),
    "xor": lambda dtype, x, y: x ^ y,
    "not": lambda dtype, x: ~x,
    "clamp": lambda dtype, low, x, high: (x | low) & high,
}

_EITHER: dict[str, Operation] = {
    "eq": _compare("=="),
    "ne": _compare("!="),
    "lt": _compare("<"),
    "le": _compare("<="),
    "gt": _compare(">"),
    "ge": _compare(">="),
    "max": _plain(_greater),
    "min": _plain(_lesser),
    "clamp": _clamp,
    "and": _plain(lambda x, y: x & y),
    "or": _plain(lambda x, y: x | y),
    "xor": _plain(lambda x, y: x ^ y),
    "not": _wrapping(lambda x: ~x),
    "add": _wrapping(lambda x, y: x + y),
    "sub": _wrapping(lambda x, y: x - y),
    "mul": _wrapping(lambda x, y: x * y),
    "neg": _wrapping(lambda x: -x),
    "div": _div,
    "rem": _rem,
    "shift_left": _shift_left,
    "shift_right_logical": _shift_right_logical,
    "shift_right_arithmetic": _shift_right_arithmetic,
    "population_count": _population_count,
    "clz": _clz,
    "integer_pow": _integer_pow,
}

UINT: dict[str, Operation] = {
    **_EITHER,
    "threefry2x32_word": _threefry2x32_word,
    "philox4x32_word": _philox4x32_word,
    "abs": _plain(lambda x: x),
    "sign": lambda dtype, x: x.equals(0).select(0, x.like(1)),
    "pow": _pow_unsigned,
}

INT: dict[str, Operation] = {**_EITHER, "abs": _wrapping(lambda x: x.below(0).select(-x, x)), "sign": _sign, "pow": _pow_signed}

"""Integers and bool: what each elementwise operation is for them.

A function takes `Lanes`; whether integers are signed is known where the functions are listed (`INT`, `UINT`, `BOOL`).
"""

from __future__ import annotations

from collections.abc import Callable

from volta_fn.primitives.formulas.philox import philox4x32_word
from volta_fn.primitives.formulas.powers import integer_pow
from volta_fn.primitives.formulas.threefry import threefry2x32_word
from volta_fn.runtime.llvm.text import Value, element_of, i64
from volta_fn.targets.cpu.scalars.values import Lanes, overload

Operation = Callable[..., Lanes]


def _compare(predicate: str) -> Operation:
    return lambda x, y: x.compare(predicate, y)


def _shift_left(x: Lanes, count: Lanes) -> Lanes:
    return _within(x, count).select(x << count, 0)


def _shift_right_logical(x: Lanes, count: Lanes) -> Lanes:
    return _within(x, count).select(x.shift_right(count), 0)


def _shift_right_arithmetic(x: Lanes, count: Lanes) -> Lanes:
    most = _within(x, count).select(count, x.bits - 1)
    return x.shift_right(most, signed=True)


def _within(x: Lanes, count: Lanes) -> Lanes:
    """Return whether the count is in 0, …, width - 1, as instructions demand."""
    return count.compare("ult", x.bits)


def _divided(x: Lanes, y: Lanes, signed: bool) -> Lanes:
    """Return x / y rounded toward zero.

    It is anything for y = 0, and x for the one quotient that overflows.
    """
    safe = y.equals(0).select(1, y)
    if signed:
        least = 1 << (x.bits - 1)
        safe = (x.equals(least) & y.equals(-1)).select(1, safe)
    if x.bits == 64:
        return x.new(x.f.binary("sdiv" if signed else "udiv", x.value, safe.value))
    # The float quotient, rounded, never reaches the next whole number: numerators have fewer bits than the float by far.
    kind, element = "s" if signed else "u", "double" if x.bits == 32 else "float"
    wide = x.cast(f"{kind}itofp", element) / safe.cast(f"{kind}itofp", element)
    return wide.cast(f"fpto{kind}i", f"i{x.bits}")


def _div(signed: bool) -> Operation:
    return lambda x, y: y.equals(0).select(-1, _divided(x, y, signed))


def _rem(signed: bool) -> Operation:
    return lambda x, y: y.equals(0).select(x, x - y * _divided(x, y, signed))


def _extremum(predicate: str) -> Operation:
    return lambda x, y: x.compare(predicate, y).select(x, y)


def _clamp(below: str, above: str) -> Operation:
    lower, upper = _extremum(below), _extremum(above)
    return lambda low, x, high: lower(upper(x, low), high)


def _sign(x: Lanes) -> Lanes:
    return x.above(0).select(1, x.shift_right(x.bits - 1, signed=True))


def _pow_unsigned(x: Lanes, y: Lanes) -> Lanes:
    """Square again and again, up to the highest bit of any lane's exponent."""

    def body(_: Value, carried: list[Value]) -> list[Value]:
        result, square, left = [x.new(v) for v in carried]
        odd = (left & 1).compare("ne", 0)
        return [odd.select(result * square, result).value, (square * square).value, left.shift_right(1).value]

    from_one = [x.like(1).value, x.value, y.value]
    return x.new(x.f.loop(i64(0), _bit_length(y), 1, from_one, body)[0])


def _bit_length(x: Lanes) -> Value:
    """Return how many bits the largest lane has, as unsigned numbers."""
    largest = x if x.lanes == 1 else x.new(x.f.intrinsic(f"llvm.vector.reduce.umax.{overload(x.type)}", element_of(x.type), x.value))
    length = largest.like(x.bits) - _leading_zeros(largest)
    return x.f.cast("zext", length.value, "i64")


def _pow_signed(x: Lanes, y: Lanes) -> Lanes:
    """Return a power; a negative one is exact, rounded toward zero."""
    unit = (y & 1).equals(1).select(x, 1)
    inverse = (x.equals(1) | x.equals(-1)).select(unit, 0)
    negative = y.below(0)
    return negative.select(inverse, _pow_unsigned(x, negative.select(0, y)))


def _leading_zeros(x: Lanes) -> Lanes:
    return x.new(x.f.intrinsic(f"llvm.ctlz.{overload(x.type)}", x.type, x.value, Value("i1", "false")))


_BITWISE: dict[str, Operation] = {
    "eq": _compare("eq"),
    "ne": _compare("ne"),
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "not": lambda x: ~x,
}

_UNSIGNED_ORDER: dict[str, Operation] = {
    "lt": _compare("ult"),
    "le": _compare("ule"),
    "gt": _compare("ugt"),
    "ge": _compare("uge"),
    "max": _extremum("ugt"),
    "min": _extremum("ult"),
    "clamp": _clamp("ult", "ugt"),
}

#: Adding and multiplying bool is `or` and `and`.
BOOL: dict[str, Operation] = {**_BITWISE, **_UNSIGNED_ORDER, "add": lambda x, y: x | y, "mul": lambda x, y: x & y}

_EITHER: dict[str, Operation] = {
    **_BITWISE,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "neg": lambda x: -x,
    "shift_left": _shift_left,
    "shift_right_logical": _shift_right_logical,
    "shift_right_arithmetic": _shift_right_arithmetic,
    "population_count": lambda x: x.intrinsic("ctpop"),
    "clz": _leading_zeros,
    "integer_pow": integer_pow,
}

UINT: dict[str, Operation] = {
    **_EITHER,
    "threefry2x32_word": threefry2x32_word,
    "philox4x32_word": philox4x32_word,
    **_UNSIGNED_ORDER,
    "div": _div(signed=False),
    "rem": _rem(signed=False),
    "abs": lambda x: x,
    "sign": lambda x: x.equals(0).select(0, x.like(1)),
    "pow": _pow_unsigned,
}

INT: dict[str, Operation] = {
    **_EITHER,
    "lt": _compare("slt"),
    "le": _compare("sle"),
    "gt": _compare("sgt"),
    "ge": _compare("sge"),
    "max": _extremum("sgt"),
    "min": _extremum("slt"),
    "clamp": _clamp("slt", "sgt"),
    "div": _div(signed=True),
    "rem": _rem(signed=True),
    "abs": lambda x: x.below(0).select(-x, x),
    "sign": _sign,
    "pow": _pow_signed,
}

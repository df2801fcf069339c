"""The remainder of floats, which is exact."""

from __future__ import annotations

import math

from volta_fn.backends.native.llvm.text import Value, i64
from volta_fn.backends.native.scalars.functions.exponential import BIAS, SIGNIFICAND
from volta_fn.backends.native.scalars.lanes import Lanes, outlined


def rem(x: Lanes, y: Lanes) -> Lanes:
    """What is left of x after division by y toward zero, with x's sign; NaN if y is 0 or x infinite."""
    size, divisor = x.abs(), y.abs()
    limit = divisor * 2.0 ** (SIGNIFICAND[x.bits] - 1)
    hard = size.above(limit) & size.below(math.inf) & divisor.above(0.0)
    easy = _step(size, divisor)

    def reduced() -> list[Value]:
        return [hard.select(outlined("rem.hard", _hard, size, divisor), easy).value]

    rest = x.new(x.f.branch(hard.any(), reduced, lambda: [easy.value])[0])
    whole = divisor.equals(math.inf) & size.below(math.inf)
    return whole.select(size, rest).signed(x)


def _step(x: Lanes, y: Lanes) -> Lanes:
    """The remainder where the quotient is small: rounded it may only be one too large."""
    rest = (x / y).trunc().fma(-y, x)
    return rest.below(0.0).select(rest + y, rest)


def _hard(x: Lanes, y: Lanes) -> Lanes:
    """Remainders by multiples 2^k y of the divisor, as large as quotients allow, until the divisor itself is one."""
    digits, bias = SIGNIFICAND[x.bits] - 2, BIAS[x.bits]
    turns = (2 * bias + SIGNIFICAND[x.bits]) // digits + 1

    def turn(_: Value, carried: list[Value]) -> list[Value]:
        rest = x.new(carried[0])
        return [_step(rest, _multiple(rest, y, digits)).value]

    return x.new(x.f.loop(i64(0), i64(turns), 1, [x.value], turn, once=True)[0])


def _multiple(x: Lanes, y: Lanes, digits: int) -> Lanes:
    """y 2^k, k >= 0, where the quotient by it has so many digits, or k is 0."""
    apart = _exponent(x) - _exponent(y) - digits
    k = apart.below(0).select(0, apart)
    half = k.shift_right(1)
    for power in (half, k - half):  # 2^k itself may be out of range
        quarter = power.shift_right(1)
        y = y * _power_of_two(quarter) * _power_of_two(power - quarter)
    return y


def _power_of_two(n: Lanes) -> Lanes:
    return ((n + BIAS[n.bits]) << SIGNIFICAND[n.bits]).as_float()


def _exponent(x: Lanes) -> Lanes:
    """The place of the highest digit of x > 0."""
    place = SIGNIFICAND[x.bits]
    tiny = x.below(2.0 ** (1 - BIAS[x.bits]))
    found = tiny.select(x * 2.0**place, x).as_bits().shift_right(place)
    return tiny.select(found - place, found)

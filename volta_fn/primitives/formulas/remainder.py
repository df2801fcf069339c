"""The remainder of floats, which is exact."""

from __future__ import annotations

import math

from volta_fn.primitives.formulas.values import BIAS, SIGNIFICAND, Values


def rem(x: Values, y: Values) -> Values:
    """Return the remainder of x / y rounded toward zero, with x's sign.

    It is NaN if y is 0 or x infinite.
    """
    size, divisor = x.abs(), y.abs()
    limit = divisor * 2.0 ** (SIGNIFICAND[x.bits] - 1)
    hard = size.above(limit) & size.below(math.inf) & divisor.above(0.0)
    rest = hard.rarely("rem.hard", _hard, [size, divisor], _step(size, divisor))
    exact = divisor.equals(math.inf) & size.below(math.inf)
    return exact.select(size, rest).signed(x)


def _step(x: Values, y: Values) -> Values:
    """Return the remainder where the quotient is small.

    A rounded quotient may be one too large. Small divisors are scaled, for devices that flush subnormal numbers to zero.
    """
    small = y.below(2.0 ** -(BIAS[y.bits] * 3 // 4))
    digits = 2 * SIGNIFICAND[y.bits]
    up, down = small.select(2.0**digits, x.like(1.0)), small.select(2.0**-digits, x.like(1.0))
    dividend, divisor = x * up, y * up
    rest = (dividend / divisor).trunc().fma(-divisor, dividend)
    return rest.below(0.0).select(rest + divisor, rest) * down


def _hard(x: Values, y: Values) -> Values:
    """Take remainders by multiples 2^k y of the divisor.

    They are as large as quotients allow, until the divisor itself is one.
    """
    digits, bias = SIGNIFICAND[x.bits] - 2, BIAS[x.bits]
    count = (2 * bias + SIGNIFICAND[x.bits]) // digits + 1
    (rest,) = x.iterated(count, lambda _, rest: [_step(rest, _multiple(rest, y, digits))], x)
    return rest


def _multiple(x: Values, y: Values, digits: int) -> Values:
    """Return y 2^k with the least k >= 0 that leaves a quotient of `digits` digits."""
    gap = _exponent(x) - _exponent(y) - digits
    k = gap.below(0).select(0, gap)
    half = k.shift_right(1)
    for power in (half, k - half):  # 2^k itself may be out of range
        quarter = power.shift_right(1)
        y = y * _power_of_two(quarter) * _power_of_two(power - quarter)
    return y


def _power_of_two(n: Values) -> Values:
    return ((n + BIAS[n.bits]) << SIGNIFICAND[n.bits]).as_float()


def _exponent(x: Values) -> Values:
    """Return the exponent of the highest digit of x > 0."""
    digits = SIGNIFICAND[x.bits]
    tiny = x.below(2.0 ** (1 - BIAS[x.bits]))
    found = tiny.select(x * 2.0**digits, x).as_bits().shift_right(digits)
    return tiny.select(found - digits, found)

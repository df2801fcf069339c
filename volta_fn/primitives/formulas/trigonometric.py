"""sin, cos, tan and their inverses, with the reduction of large angles."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from volta_fn.primitives.formulas.values import BIAS, SIGNIFICAND, V, Values, exact_product, exact_sum, exact_sum_ordered, of_numpy

# Reduction of large angles by the method of Payne and Hanek (1983).
#
# |x| = m 2^e with an integer m of 53 bits, and of 2^e 2/pi only some bits matter: those worth 4 or more give full periods, and those far
# below add nothing. They are cut out of the digits of 2/pi, which are in memory, 53 at a time, and multiplied by m.

#: The first 1184 bits of 2/pi.
TWO_OVER_PI_BITS = 1184
TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe1d"
    "eb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b"
    "5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046",
    16,
)
#: Zeros in front of them, in bytes.
_PADDING = 16
#: The last one is number 0.
_DIGITS = TWO_OVER_PI.to_bytes(TWO_OVER_PI_BITS // 8 + _PADDING, "little")
_WINDOW = 53
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)


def reduced_large(x: V) -> tuple[V, V, V]:
    """Reduce large arguments as `Values.quarter_periods` does, in float64."""
    bits = x.as_bits()
    exponent = (bits.shift_right(52) & 0x7FF) - 1075
    integral = ((bits & ((1 << 52) - 1)) | (1075 << 52)).as_float()
    first, second, third = [_window(exponent, k) * 2.0 ** (2 - _WINDOW * (k + 1)) for k in range(3)]
    k1, rest1, error1 = _integer_and_rest(*exact_product(integral, first))
    high, error2 = exact_product(integral, second)
    near, error3 = exact_sum(rest1, high)
    k2 = near.nearest()
    low = (error3 + error2) + integral * third
    fraction, more = exact_sum(near - k2, low + (x - x))
    r, rest = exact_product(fraction, _HALF_PI[0])
    rest = rest + fraction.fma(_HALF_PI[1], more * _HALF_PI[0])
    quarters = (k1.as_integer() + error1.as_integer()) + k2.as_integer()
    negative = bits.below(0)
    return negative.select(-quarters, quarters), negative.select(-r, r), negative.select(-rest, rest)


def _integer_and_rest(high: V, low: V) -> tuple[V, V, V]:
    """Return (k, rest, more) with high + low = k + more + rest, k and more integers."""
    k, more = high.nearest(), low.nearest()
    return k, (high - k) + (low - more), more


def _window(exponent: V, number: int) -> V:
    """Return 53 bits of 2^exponent 2/pi as an integer.

    The first of them (of window 0) is worth 2.
    """
    most = exponent.above(971).select(971, exponent)
    bounded = most.below(-60).select(-60, most)
    lowest = (TWO_OVER_PI_BITS + 2 - _WINDOW * (number + 1)) - bounded
    words = lowest.shift_right(3).bits_of_table("digits_of_two_over_pi", _DIGITS)
    return (words.shift_right(lowest & 7) & ((1 << _WINDOW) - 1)).to_float()


# The remainder of floats, which is exact.


def rem(x: Values, y: Values) -> Values:
    """Return the remainder of x / y rounded toward zero, with x's sign.

    It is NaN if y is 0 or x infinite.
    """
    size, divisor = x.abs(), y.abs()
    limit = divisor * 2.0 ** (SIGNIFICAND[x.bits] - 1)
    hard = size.above(limit) & size.below(math.inf) & divisor.above(0.0)
    rest = hard.if_any("rem.hard", _hard, [size, divisor], _step(size, divisor))
    exact = divisor.equals(math.inf) & size.below(math.inf)
    return exact.select(size, rest).copysign(x)


def _step(x: Values, y: Values) -> Values:
    """Return the remainder where the quotient is small."""
    # A rounded quotient may be one too large. Small divisors are scaled, for devices that flush subnormal numbers to zero.
    small = y.below(2.0 ** -(BIAS[y.bits] * 3 // 4))
    digits = 2 * SIGNIFICAND[y.bits]
    up, down = small.select(2.0**digits, x.like(1.0)), small.select(2.0**-digits, x.like(1.0))
    dividend, divisor = x * up, y * up
    rest = (dividend / divisor).trunc().fma(-divisor, dividend)
    return rest.below(0.0).select(rest + divisor, rest) * down


def _hard(x: Values, y: Values) -> Values:
    """Take remainders by multiples 2^k y of the divisor."""
    # They are as large as quotients allow, until the divisor itself is one.
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
    exponent = tiny.select(x * 2.0**digits, x).as_bits().shift_right(digits)
    return tiny.select(exponent - digits, exponent)


# sin, cos, tan and their inverses.
#
# The argument is brought into one half period with pi as a sum of three floats (Cody and Waite), each subtraction a fused multiply-add.
# Where that is not enough, which is rare, a branch leads to `Values.quarter_periods`.

#: pi as a sum of three floats.
_PI = {
    32: (3.1415927410125732421875, -8.7422776573475857731e-8, -3.4302490200117637e-15),
    64: (3.1415926535897931, 1.2246467991473532e-16, -2.994769809718339e-33),
}

#: (sin(x) - x) / x^3 in powers of x^2, for |x| <= pi/2.
_SIN: dict[int, tuple[float, ...]] = {
    32: (2.6048408e-06, -0.00019809381, 0.00833306648, -0.166666597),
    64: (
        -8.0039465724909745e-18, 2.8104490311164389e-15, -7.6471383792420479e-13, 1.6059043464945713e-10, -2.5052108382236088e-08,
        2.7557319223970362e-06, -0.00019841269841269803, 0.0083333333333333332, -0.16666666666666666,
    ),
}  # fmt: skip

#: (tan(x) - x) / x^3 in powers of x^2, for |x| <= pi/4.
_TAN: dict[int, tuple[float, ...]] = {
    32: (0.00446248427, -8.55729668e-05, 0.0109741567, 0.0212288201, 0.0540702045, 0.133325741, 0.333333522),
    64: (
        8.6832570528520804e-06, -1.9149667768532336e-05, 3.8068246726025016e-05, -1.2710750935691415e-05, 5.679905346903631e-05,
        8.9392874549310602e-05, 0.00024142912850872629, 0.00058952683496082535, 0.0014559108900535028, 0.0035921200588416337,
        0.0088632360707747663, 0.021869488514143123, 0.053968253968721805, 0.13333333333332942, 0.33333333333333331,
    ),
}  # fmt: skip

#: (asin(x) - x) / x^3 in powers of x^2, for |x| <= 1/2.
_ASIN: dict[int, tuple[float, ...]] = {
    32: (0.0422118157, 0.0241520889, 0.0454760417, 0.0749525204, 0.166667536),
    64: (
        0.028169218060881414, -0.010749050339697808, 0.016035514349148822, 0.0078029494773533175, 0.011875494382636922,
        0.013929652902326633, 0.017355259955786323, 0.02237204763174451, 0.03038194736709848, 0.044642857103423646,
        0.075000000000207637, 0.16666666666666649,
    ),
}  # fmt: skip

#: (atan(x) - x) / x^3 in powers of x^2, for |x| <= 1.
_ATAN: dict[int, tuple[float, ...]] = {
    32: (0.00297553698, -0.0165850837, 0.0435600914, -0.0758115426, 0.106792226, -0.142142847, 0.199941471, -0.333331674),
    64: (
        1.8061954618612151e-05, -0.00019996189377901382, 0.0010496035084968515, -0.0034958859739163094, 0.0083689311784501622,
        -0.015535152475414177, 0.023696731580048622, -0.031277189066996385, 0.037494868125352472, -0.042603566326016522,
        0.047377495795277787, -0.052579733342841106, 0.058815068777936561, -0.066665646992891042, 0.076922989710332165,
        -0.090909085908919343, 0.11111111093490827, -0.14285714285384132, 0.19999999999997531, -0.33333333333333331,
    ),
}  # fmt: skip

#: Up to here three terms of pi do.
_LARGE = {32: 1e5, 64: 1e9}
#: The same for pairs of float32, of which pi's terms have 48 bits.
_LARGE_PAIR = 30.0


def _sine(r: Values, periods: Values, rest: Values | None = None) -> Values:
    """Return sin(r + rest), negated where the last bit of `periods` is set."""
    square = r * r
    series = square.polynomial(_SIN[r.bits])
    sine = (square * r).fma(series, r) if rest is None else (square * r).fma(series, rest) + r
    if r.is_pair:
        return (periods & 1).compare("ne", 0).select(-sine, sine)
    return (sine.as_bits() ^ (periods << (r.bits - 1))).as_float()


def _reduced(x: Values, periods: Values, scale: float) -> Values:
    """Return x - periods pi scale."""
    for pi_term in _PI[x.bits]:
        x = periods.fma(-pi_term * scale, x)
    return x


def _with_large(name: str, ordinary: Callable[[Values], Values], large: Callable[[Values], Values], x: Values) -> Values:
    """Select `large` where the argument is large or infinite, else `ordinary`."""
    usual = ordinary(x)
    most = _LARGE_PAIR if x.is_pair else _LARGE[x.bits]
    return x.abs().compare("oge", most).if_any(name, large, [x], usual)


@of_numpy(np.sin)
def sin(x: Values) -> Values:
    """Return the sine."""
    return _with_large("sin.large", _sin_ordinary, _sin_large, x)


def _sin_ordinary(x: Values) -> Values:
    periods, count = x.round_scaled(1 / math.pi)
    sine = _sine(_reduced(x, periods, 1.0), count)
    return x.equals(0.0).select(x, sine)


def _sin_large(x: Values) -> Values:
    """Reduce to quarter periods: an odd number of them makes the sine a cosine."""
    return _of_quarters(*x.quarter_periods())


@of_numpy(np.cos)
def cos(x: Values) -> Values:
    """Return the cosine."""
    return _with_large("cos.large", _cos_ordinary, _cos_large, x)


def _cos_ordinary(x: Values) -> Values:
    """Reduce by multiples of pi: the zeros of the cosine are at (n + 1/2) pi."""
    periods, count = x.abs().round_scaled(1 / math.pi, -0.5)
    halves = periods.fma(2.0, 1.0)
    return _sine(_reduced(x.abs(), halves, 0.5), count + 1)


def _cos_large(x: Values) -> Values:
    quarters, r, rest = x.quarter_periods()
    return _of_quarters(quarters + 1, r, rest)


def _of_quarters(quarters: Values, r: Values, rest: Values) -> Values:
    """Return sin(r + rest + quarters pi/2), |r| <= pi/4; cos(r) is sin(pi/2 - |r|)."""
    odd = (quarters & 1).compare("ne", 0)
    high, low, _ = _PI[r.bits]
    complement, error = exact_sum_ordered(r.like(high / 2), -r.abs())
    outward = r.below(0.0).select(-rest, rest)
    angle = odd.select(complement + ((error - outward) + low / 2), r)
    return _sine(angle, quarters.shift_right(1), odd.select(0.0, rest))


@of_numpy(np.tan)
def tan(x: Values) -> Values:
    """Return the tangent."""
    return _with_large("tan.large", _tan_ordinary, _tan_large, x)


def _tan_ordinary(x: Values) -> Values:
    """Return the tangent of r + rest, the reduced argument with r's error."""
    periods, count = x.round_scaled(2 / math.pi)
    first, second, third = [-pi_term * 0.5 for pi_term in _PI[x.bits]]
    product, error = exact_product(periods, second)
    r, rest = exact_sum(periods.fma(first, x), product)
    rest = periods.fma(third, rest + error)
    return x.equals(0.0).select(x, _tangent(r, rest, count))


def _tan_large(x: Values) -> Values:
    quarters, r, rest = x.quarter_periods()
    return _tangent(r, rest, quarters)


def _tangent(r: Values, rest: Values, quarters: Values) -> Values:
    """Return tan(r + rest + quarters pi/2); for odd quarters it is -1 / tan(r)."""
    square = r * r
    tangent = (square * r).fma(square.polynomial(_TAN[r.bits]), rest) + r
    return (quarters & 1).compare("ne", 0).select(-1.0 / tangent, tangent)


def _asin_as_sum(x: Values) -> tuple[Values, Values, Values]:
    """Return whether |x| > 1/2, and the arc sine as a sum of two floats.

    It is that of |x| or, if so, of sqrt((1 - |x|) / 2).
    """
    size = x.abs()
    big = size.above(0.5)
    square = big.select(size.fma(-0.5, 0.5), size * size)
    root = big.select(square.sqrt(), size)
    return big, root, (root * square) * square.polynomial(_ASIN[x.bits])


def asin(x: Values) -> Values:
    """Return the arc sine: asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2))."""
    big, root, rest = _asin_as_sum(x)
    high, low, _ = _PI[x.bits]
    return big.select(root.fma(-2.0, high / 2) + rest.fma(-2.0, low / 2), root + rest).copysign(x)


def acos(x: Values) -> Values:
    """Return the arc cosine."""
    # acos(x) = 2 asin(sqrt((1 - x) / 2)) = pi - 2 asin(sqrt((1 + x) / 2)) = pi/2 - asin(x).
    big, root, rest = _asin_as_sum(x)
    high, low, _ = _PI[x.bits]
    angle = root + rest
    outer = x.below(0.0).select(root.fma(-2.0, high) + rest.fma(-2.0, low), angle * 2.0)
    return big.select(outer, (x.like(low / 2) - angle.copysign(x)) + high / 2)


def _arc(square: Values, ratio: Values) -> Values:
    return (ratio * square).fma(square.polynomial(_ATAN[ratio.bits]), ratio)


def atan(x: Values) -> Values:
    """Return the arc tangent; beyond 1 it is pi/2 - atan(1 / x)."""
    size = x.abs()
    big = size.above(1.0)
    ratio = big.select(1.0 / size, size)
    angle = _arc(ratio * ratio, ratio)
    high, low, _ = _PI[x.bits]
    return big.select((x.like(low / 2) - angle) + high / 2, angle).copysign(x)


def atan2(y: Values, x: Values) -> Values:
    """Return the angle of the point (x, y)."""
    # It is that of the smaller coordinate over the larger one, moved to its octant.
    high, low, _ = _PI[x.bits]
    rise, run = y.abs(), x.abs()
    steep = rise.above(run)
    ratio = steep.select(run, rise) / steep.select(rise, run)
    both_infinite = rise.equals(math.inf) & run.equals(math.inf)
    both_zero = rise.equals(0.0) & run.equals(0.0)
    ratio = both_zero.select(0.0, both_infinite.select(1.0, ratio))
    angle = _arc(ratio * ratio, ratio)
    angle = steep.select((x.like(low / 2) - angle) + high / 2, angle)
    left = x.as_bits().below(0)
    reflected = left.select((x.like(low) - angle) + high, angle)
    return x.compare("uno", y).select(x + y, reflected.copysign(y))

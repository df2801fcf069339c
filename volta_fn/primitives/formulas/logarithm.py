"""Logarithms (log, log2, log1p), and functions made of them: asinh, acosh, atanh.

x = 2^k (1 + f) with 3/4 <= 1 + f < 3/2, so that k = 0 around 1 and log(1 + f) = f - t is precise there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from volta_fn.primitives.formulas.exponential import LN2, LOG2_E, exp
from volta_fn.primitives.formulas.numpy_values import of_numpy
from volta_fn.primitives.formulas.precision import exact_product, exact_sum_ordered, in_float64
from volta_fn.primitives.formulas.values import BIAS, SIGNIFICAND, Values

#: (log(1 + f) - f + f^2 / 2) / f^3 for -1/4 <= f <= 1/2: with an error of 2^-27 log(1 + f).
_LOG_32 = (-0.0451522246, 0.104725547, -0.131639421, 0.144776314, -0.166468784, 0.19990848, -0.250001103, 0.333334506)

#: (2 atanh(s) - 2 s) / s^3 in powers of s^2, for |s| <= 1/5: with an error of 2^-59 s.
_LOG_64 = (
    0.13612072300800057, 0.13209311771359084, 0.15388887982938487, 0.18181737120722347, 0.22222223054799634, 0.28571428567237178,
    0.40000000000008029, 0.66666666666666663,
)  # fmt: skip

#: ln 2 as a sum of two positive floats: where k is infinite, k ln 2 is so in both.
_LN2 = {32: (0.6931471228599548, 5.7699990475432854e-08), 64: LN2[64]}

#: The series of 2 atanh(s) = 2 s + 2/3 s^3 + s^5 (…), and what rounding takes from 2/3 and log2(e).
_ATANH_REST: dict[int, tuple[float, ...]] = {
    32: (2 / 15, 2 / 13, 2 / 11, 2 / 9, 2 / 7, 2 / 5),
    64: (
    0.11259879534127329, 0.10391355628363148, 0.11770271925847203, 0.13333200421271557, 0.15384617242704815, 0.18181818167256186,
    0.22222222222279311, 0.28571428571428487, 0.40000000000000002,
    ),
}  # fmt: skip
_TWO_THIRDS_REST = {32: 2 / 3 - float(np.float32(2 / 3)), 64: 3.700743415417188e-17}
_LOG2_E_REST = {32: LOG2_E - float(np.float32(LOG2_E)), 64: 2.0355273740931033e-17}

#: The bits of 3/4.
_THREE_QUARTERS = {32: 0x3F400000, 64: 0x3FE8000000000000}


class _Split(NamedTuple):
    """x = 2^k (1 + f).

    `shift` is k as an integer in the bits of the exponent.
    """

    k: Values
    f: Values
    shift: Values


def _split(x: Values) -> _Split:
    """Split a positive finite normal x."""
    bits = x.as_bits() - _THREE_QUARTERS[x.bits]
    significand = (1 << SIGNIFICAND[x.bits]) - 1
    f = ((bits & significand) + _THREE_QUARTERS[x.bits]).as_float() - 1.0
    k = bits.shift_right(SIGNIFICAND[x.bits], signed=True).small_float()
    return _Split(k, f, bits & ~significand)


def _split_any(x: Values) -> _Split:
    """Split a positive finite x; subnormal numbers are made normal first."""
    digits = SIGNIFICAND[x.bits] + 1
    tiny = x.below(2.0 ** (1 - BIAS[x.bits]))
    k, f, shift = _split(tiny.select(x * 2.0**digits, x))
    return _Split(tiny.select(k - float(digits), k), f, shift)


def _less(f: Values, k: Values | None = None) -> Values:
    """Return t, where log(1 + f) = f - t; with k, less the small part of k ln 2."""
    rest = None if k is None else k * -_LN2[f.bits][1]
    if f.bits == 32:
        square = f * f
        inner = (-f).fma(f.polynomial(_LOG_32, square), 0.5)
    else:
        square = f / (f + 2.0)
        z = square * square
        inner = (-z).fma(z.polynomial(_LOG_64), f)
    return square * inner if rest is None else square.fma(inner, rest)


def _finished(result: Values, x: Values) -> Values:
    """Replace the logarithm of 0, negative numbers, infinity and NaN."""
    outside = x.equals(0.0).select(-math.inf, x.like(math.nan))
    return x.above(0.0).select(x.below(math.inf).select(result, x), outside)


def _logarithm(x: Values, combine: Callable[[Values, Values], Values]) -> Values:
    """Return the logarithm of any x from that of k and f.

    Instructions, if there are any, split special x such that its formula is right.
    """
    if (by_instructions := x.exponent_and_significand()) is not None:
        k, significand = by_instructions
        return combine(significand.below(1.0).select(k + 1.0, k), significand - 1.0)
    split = _split_any(x)
    return _finished(combine(split.k, split.f), x)


def _natural(k: Values, f: Values) -> Values:
    return k.fma(_LN2[f.bits][0], f - _less(f, k))


@of_numpy(np.log)
def log(x: Values) -> Values:
    """Return the natural logarithm."""
    return _logarithm(x, _natural)


@of_numpy(np.log2)
def log2(x: Values) -> Values:
    """Return the logarithm to base 2, exact for powers of 2."""
    return _logarithm(x, lambda k, f: (f - _less(f)).fma(LOG2_E, k))


def log2_as_sum(x: Values) -> tuple[Values, Values]:
    """Return the logarithm to base 2 as a sum of two floats.

    It has a dozen digits more than one float.

    With s = f / (2 + f), log(1 + f) = 2 s + 2/3 s^3 + …; the first two terms are kept as sums of two floats. For x = 0,
    infinity, NaN the first one is all.
    """
    k, f, _ = _split_any(x)
    below, below_error = exact_sum_ordered(2.0, f)
    high = f / below
    low = ((-high).fma(below, f) - high * below_error) / below
    square, square_error = exact_product(high, high)
    square_error = square_error + high * low * 2.0
    cubic, cubic_error = exact_product(square, high)
    cubic_error = cubic_error + square_error * high + square * low
    third, third_error = exact_product(cubic, 2.0 / 3.0)
    third_error = (
        third_error + cubic_error * (2.0 / 3.0) + cubic * _TWO_THIRDS_REST[x.bits] + cubic * square * square.polynomial(_ATANH_REST[x.bits])
    )
    total, error = exact_sum_ordered(high * 2.0, third)
    error = error + third_error + low * 2.0
    scaled, scaled_error = exact_product(total, LOG2_E)
    scaled_error = scaled_error + total * _LOG2_E_REST[x.bits] + error * LOG2_E
    first, rest = exact_sum_ordered(k, scaled)
    rest = rest + scaled_error
    result, result_rest = exact_sum_ordered(first, rest)
    ordinary = x.above(0.0) & x.below(math.inf)
    return _finished(result, x), ordinary.select(result_rest, 0.0)


@of_numpy(np.log1p)
def log1p(x: Values) -> Values:
    """Return log(1 + x).

    The exponent is that of 1 + x rounded, but f = 2^-k x + (2^-k - 1) is made of x itself.
    """
    total = x + 1.0
    k, _, shift = _split(total)
    one = x.like(1.0).as_bits()
    most = shift.above(one - (1 << SIGNIFICAND[x.bits])).select(one - (1 << SIGNIFICAND[x.bits]), shift)
    f = (x.as_bits() - shift).as_float() + ((one - most).as_float() - 1.0)
    return _finished(_natural(k, f), total).signed(x)


def logaddexp(x: Values, y: Values) -> Values:
    """Return log(e^x + e^y) = max + log1p(e^-|x - y|).

    Equal infinities, whose difference is NaN, add log 2 to themselves.
    """
    distance = x.equals(y).select(0.0, (x - y).abs())
    largest = (x.is_nan() | y.is_nan()).select(x + y, x.at_least(y))
    return largest + log1p(exp(-distance))


#: From here on x^2 + 1 is x^2.
_LARGE = {32: 2.0**13, 64: 2.0**28}


@in_float64
def asinh(x: Values) -> Values:
    """Return log(|x| + sqrt(x^2 + 1)).

    Near 1 it is a log1p; where x^2 might overflow, the argument is 2|x|.
    """
    size = x.abs()
    square = size * size
    near = log1p(size + square / ((square + 1.0).sqrt() + 1.0))
    return size.below(_LARGE[x.bits]).select(near, log(size) + math.log(2.0)).signed(x)


@in_float64
def acosh(x: Values) -> Values:
    """Return log(x + sqrt(x^2 - 1)); NaN below 1.

    With t = x - 1 it is log1p(t + sqrt(2 t + t^2)).
    """
    t = x - 1.0
    near = log1p(t + t.fma(t, t + t).sqrt())
    return x.below(1.0).select(math.nan, x.below(_LARGE[x.bits]).select(near, log(x) + math.log(2.0)))


@in_float64
def atanh(x: Values) -> Values:
    """Return log((1 + x) / (1 - x)) / 2, as log1p of 2 x / (1 - x)."""
    size = x.abs()
    return (log1p((size + size) / (1.0 - size)) * 0.5).signed(x)

"""Exponentials and hyperbolic functions.

All of them take a power of two out of the argument, x = n ln 2 + r with |r| <= ln(2) / 2, and have a polynomial for exp(r) - 1. ln 2 is
subtracted as two floats with fused multiply-adds, so that r is as good as exact.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from volta_fn.primitives.formulas.numpy_values import of_numpy
from volta_fn.primitives.formulas.values import BIAS, SIGNIFICAND, Values

#: (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2, by width: with errors of 2^-26 r and 2^-60 r.
_EXPM1: dict[int, tuple[float, ...]] = {
    32: (0.00139406556, 0.00836640596, 0.0416664034, 0.16666545, 0.5),
    64: (
        2.0914717357800723e-09, 2.5105259538448494e-08, 2.7557273570048957e-07, 2.7557255297969643e-06, 2.4801587325605388e-05,
        0.00019841269874901259, 0.0013888888888883731, 0.0083333333333261116, 0.041666666666666671, 0.16666666666666671, 0.5,
    ),
}  # fmt: skip

#: 2^r for |r| <= 1/2: with errors of 2^-28 and 2^-56.
_EXP2: dict[int, tuple[float, ...]] = {
    32: (0.000154628797, 0.00133910007, 0.00961806253, 0.0555035956, 0.240226507, 0.693147182, 1.0),
    64: (
        2.57293853189062e-11, 4.4558302608529773e-10, 7.0548972697432176e-09, 1.0178057018210436e-07, 1.3215486808772514e-06,
        1.5252733841692036e-05, 0.0001540353039337068, 0.0013333558146416, 0.0096181291076284803, 0.055504108664821625,
        0.24022650695910072, 0.69314718055994529, 1.0,
    ),
}  # fmt: skip

#: (sinh(x) - x) / x^3 in powers of x^2, for |x| <= 1.
_SINH: dict[int, tuple[float, ...]] = {
    32: (0.000203766336, 0.00833022315, 0.166667178),
    64: (
        7.7461785930188273e-13, 1.6057679623801638e-10, 2.5052117695907823e-08, 2.7557319191381816e-06, 0.00019841269841324198,
        0.0083333333333332985, 0.16666666666666666,
    ),
}  # fmt: skip

LOG2_E = 1.4426950408889634
LN2 = {32: (0.693147182464599609375, -1.904654299957767878541e-9), 64: (0.69314718055994529, 2.3190468138462996e-17)}
#: The same with so few bits in the first term that its product with n is exact.
LN2_SHORT = 0.693145751953125, 1.428606820309417e-06
#: exp of them is 0, infinite, and twice infinite.
_LOW, _HIGH = {32: -104.0, 64: -746.0}, {32: 89.0, 64: 710.0}
#: Between them exp in float32 is a normal number.
_NORMAL = -87.33654, 88.72283


class _Reduced(NamedTuple):
    """x = n ln 2 + r.

    `exponent` is n + plus + the bias of exponents, as an integer modulo some power of two.
    """

    n: Values
    r: Values
    exponent: Values

    @property
    def power(self) -> Values:
        """2^(n + plus), if that is a normal number."""
        return (self.exponent << SIGNIFICAND[self.r.bits]).as_float()


def _reduced(x: Values, plus: int = 0, factor: int = 1) -> _Reduced:
    """Reduce `factor` x, a power of 2; r is to be multiplied by it, too."""
    high, low = LN2[x.bits]
    n, exponent = x.counted(LOG2_E * factor, offset=BIAS[x.bits] + plus)
    return _Reduced(n, n.fma(-low / factor, n.fma(-high / factor, x)), exponent)


def _expm1_reduced(r: Values) -> Values:
    square = r * r
    return square.fma(r.polynomial(_EXPM1[r.bits], square), r)


@of_numpy(np.exp)
def exp(x: Values) -> Values:
    """Return e^x."""
    return _halved_exp(x, 0)


def _halved_exp(x: Values, halvings: int) -> Values:
    """Return e^x 2^-halvings."""
    normal = x.flushes and not halvings

    def inside(x: Values) -> Values:
        n, r, exponent = _reduced(x, -BIAS[x.bits])
        power = r.polynomial((*_EXPM1[x.bits], 1.0, 1.0))
        return power.raised(exponent) if normal else power.scaled(n - float(halvings) if halvings else n)

    low, high = _NORMAL if normal else (_LOW[x.bits], _HIGH[x.bits] + halvings)
    return x.bounded(low, high, inside, 0.0, math.inf)


@of_numpy(np.exp2)
def exp2(x: Values) -> Values:
    """Return 2^x."""
    n, power = _exp2_reduced(x)
    return power.scaled(n)


def exp2_of_sum(x: Values, rest: Values) -> Values:
    """Return 2^(x + rest), where |rest| is a small fraction of |x|."""
    n, power = _exp2_reduced(x)
    most = {32: 1e-4, 64: 1e-9}[x.bits]
    return (power * LN2[x.bits][0]).fma(rest.clamped(-most, most), power).scaled(n)


def _exp2_reduced(x: Values) -> tuple[Values, Values]:
    """Return n and 2^r with x = n + r."""
    bounded = x.clamped(1.45 * _LOW[x.bits], 1.45 * _HIGH[x.bits])
    n = bounded.small_integer()
    return n, (bounded - n).polynomial(_EXP2[x.bits])


@of_numpy(np.expm1)
def expm1(x: Values) -> Values:
    """Return e^x - 1, at half the size, since 2^n may overflow alone.

    Half of a subnormal number is none; of small numbers e^x - 1 is x.
    """
    doubled = (_half_expm1(x.clamped(-0.75 * x.bits, _HIGH[x.bits])) * 2.0).signed(x)
    return x.abs().below(1e-30).select(x, doubled)


def _half_expm1(x: Values) -> Values:
    """Return (e^x - 1) / 2, where 2^(n - 1) is a normal number.

    It is 2^(n - 1) (e^r - 1) + (2^(n - 1) - 1/2).
    """
    reduced = _reduced(x, -1)
    half = reduced.power
    return half.fma(_expm1_reduced(reduced.r), half - 0.5)


def _half_expm1_of_double(x: Values) -> Values:
    """Return (e^(2 x) - 1) / 2, where 2^n is a normal number.

    The factors of 2 are in the constants.
    """
    reduced = _reduced(x, factor=2)
    r, power = reduced.r, reduced.power
    square, series = r * r, _EXPM1[x.bits]
    doubled = [c * 2.0 ** (len(series) - k) for k, c in enumerate(series)]
    return power.fma(square.fma(r.polynomial(doubled, square), r), power.fma(0.5, -0.5))


def expm1_and_power(x: Values, rest: Values, plus: int) -> tuple[Values, Values]:
    """Return m and p with e^(x + rest) = (1 + m) p 2^-plus, in float32.

    The rest is small; p is a power of two, and a normal number.
    """
    reduced = _reduced(x, plus)
    high, low = LN2_SHORT
    return _expm1_reduced(reduced.n.fma(-high, x) + reduced.n.fma(-low, rest)), reduced.power


@of_numpy(lambda x: -np.expm1(x))
def one_less_exp(x: Values) -> Values:
    """Return 1 - e^x, where 2^n is a normal number."""
    reduced = _reduced(x)
    power = reduced.power
    return (-power).fma(_expm1_reduced(reduced.r), 1.0 - power)


def tanh(x: Values) -> Values:
    """Return h / (h + 1) with h = (e^(2|x|) - 1) / 2.

    For small h the division gives only the small difference from h.

    From some point on it is 1, so x may be bounded, and no power overflows.
    """
    half = _half_expm1_of_double(x.abs().capped(10.0 * x.bits / 32))
    ratio = half.over(half + 1.0)
    return half.below(0.5).select((-half).fma(ratio, half), ratio).signed(x)


def logistic(x: Values) -> Values:
    """Return 1 / (1 + e^-x) without overflow.

    On the left it is e^x / (1 + e^x), and far on the left e^x less that times e^x.
    """
    power = exp(-x.abs())
    ratio = x.below(0.0).select(power, 1.0).over(power + 1.0)
    return x.below(-1.0).select((-power).fma(ratio, power), ratio)


def sinh(x: Values) -> Values:
    """Return a polynomial up to 1, and beyond (e^|x| - e^-|x|) / 2."""
    size, square = x.abs(), x * x
    half = _halved_exp(size, 1)
    near = (size * square).fma(square.polynomial(_SINH[x.bits]), size)
    return size.below(1.0).select(near, half - 0.25 / half).signed(x)


def cosh(x: Values) -> Values:
    """Return (e^|x| + e^-|x|) / 2."""
    half = _halved_exp(x.abs(), 1)
    return half + 0.25 / half

"""The gamma function's family: log-gamma, digamma, Hurwitz zeta, polygamma.

All work in float64 where that is at hand, which spares a set of coefficients per dtype. On [1, 2] a polynomial holds (Chebyshev
interpolation of the function divided by its zeros, so that relative precision is kept around them); from 8 on the asymptotic series does;
recurrences lead from elsewhere to those, and reflection formulas from the negative axis to the positive one.
"""

from __future__ import annotations

import math

import numpy as np

from volta_fn.primitives.formulas.exponential import exp
from volta_fn.primitives.formulas.logarithm import log
from volta_fn.primitives.formulas.powers import pow
from volta_fn.primitives.formulas.precision import in_float64
from volta_fn.primitives.formulas.trigonometric import sin, tan
from volta_fn.primitives.formulas.values import Values

#: Where the asymptotic series take over: 8 is far enough for float64 with ten terms.
FAR = 8.0

#: The Bernoulli numbers B_2, B_4, …, B_24.
BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330, 854513 / 138, -236364091 / 2730,
)  # fmt: skip

#: lgamma(x) / ((x - 1)(x - 2)) on [1, 2], in powers of 2x - 3.
LGAMMA = (
    -3.7005711329047426e-12, 1.1577613910649688e-11, -1.5936042537298723e-11, 5.0300670906054817e-11, -2.075322954216366e-10,
    6.5655031582107999e-10, -2.0184741279133344e-9, 6.4303665062167918e-9, -2.0619851263731667e-8, 6.6238705716423163e-8,
    -2.1386380605280233e-7, 6.9484283937040619e-7, -2.2742472358027586e-6, 7.5113918468379533e-6, -2.5094328700900634e-5,
    8.510090373634476e-5, -2.9455070151643118e-4, 1.049818664454635e-3, -3.913560937626331e-3, 1.5727850268641098e-2,
    -7.2979947957153041e-2, 4.8312895054098089e-1,
)  # fmt: skip

#: Stirling's series: lgamma(x) - ((x - 1/2) log x - x + log(2 pi)/2) in powers of 1/x^2, divided by x.
STIRLING = tuple(b / (2 * k * (2 * k - 1)) for k, b in reversed([*enumerate(BERNOULLI[:10], 1)]))

HALF_LOG_TWO_PI_LESS_HALF = 0.5 * math.log(2 * math.pi) - 0.5

#: digamma's positive zero, as a sum of two floats.
DIGAMMA_ZERO, DIGAMMA_ZERO_REST = 1.4616321449683622, 9.5499954299656977e-17

#: digamma(x) / (x - zero) on [1, 2], in powers of 2x - 3.
DIGAMMA = (
    -9.7203004042022443e-12, 2.9160936010853641e-11, -2.9161179626023812e-11, 8.7484200374362866e-11, -4.1555064115551964e-10,
    1.246669023186403e-9, -3.5092354924107181e-9, 1.0528133851878113e-8, -3.1807298477301726e-8, 9.5432615707604287e-8,
    -2.8621216825577647e-7, 8.589062683365892e-7, -2.5781337016107129e-6, 7.7412344413683949e-6, -2.3258232758953131e-5,
    6.9950188265504409e-5, -2.1074841284590126e-4, 6.3688803038479007e-4, -1.9350666647392833e-3, 5.9367952783018757e-3,
    -1.8550615381739702e-2, 6.013562106019684e-2, -2.1181371064073025e-1, 9.5105587603183288e-1,
)  # fmt: skip

#: log x - 1/(2x) - digamma(x), in powers of 1/x^2, times x^2.
DIGAMMA_FAR = tuple(b / (2 * k) for k, b in reversed([*enumerate(BERNOULLI[:10], 1)]))

#: Terms summed one by one before the Euler-Maclaurin formula gives the rest.
DIRECT_TERMS = 10

_NEAR = float(np.float32(DIGAMMA_ZERO))
#: digamma's positive zero as a sum of two floats, by width.
_DIGAMMA_ZERO = {32: (_NEAR, DIGAMMA_ZERO - _NEAR), 64: (DIGAMMA_ZERO, DIGAMMA_ZERO_REST)}


def _fraction_from_integer(x: Values) -> Values:
    return x - x.nearest()


def _unit_base(x: Values) -> Values:
    """Return the number in [1, 2] that differs from x >= 1 by an integer."""
    return x - (x.ceil() - 2.0).floored(0.0)


@in_float64
def lgamma(x: Values) -> Values:
    """Return log |gamma(x)|.

    It is infinite at zero, the negative integers and both infinities.
    """
    negative = x.below(0.0)
    mirrored = _lgamma_positive(negative.select(1.0 - x, x))
    infinite = x.abs().equals(math.inf) | (negative & x.floor().equals(x))
    return infinite.select(math.inf, negative.choose(_lgamma_reflected, lambda x, mirrored: mirrored, x, mirrored))


def _lgamma_reflected(x: Values, mirrored: Values) -> Values:
    """Return gamma(x) gamma(1 - x) = pi / sin(pi x); `mirrored` is lgamma(1 - x)."""
    fraction = _fraction_from_integer(x)
    sine = sin(fraction * math.pi).abs() * (1.0 / math.pi)
    size = fraction.abs()
    return -log(size.below(1e-20).select(size, sine)) - mirrored  # pi x may be subnormal


def _lgamma_positive(x: Values) -> Values:
    """Return lgamma for x >= 0.

    One logarithm serves all ranges: of x, or between 1 and 8 of the factors by which it is above [1, 2].
    """
    near, is_small = x.below(FAR), x.below(1.0)
    logarithm = log((near & ~is_small).select(_factors_above_two(x), x))
    return near.choose(_lgamma_near, _lgamma_far, x, logarithm)


def _factors_above_two(x: Values) -> Values:
    """Return gamma(x) / gamma(t) for x >= 1 and t = x - n in [1, 2], n an integer."""
    product = x.like(1.0)
    for k in range(1, int(FAR) - 1):
        product = product * (x - float(k)).floored(1.0)
    return product


def _lgamma_near(x: Values, logarithm: Values) -> Values:
    return lgamma_unit(x) + x.below(1.0).select(-logarithm, logarithm)


def lgamma_unit(x: Values) -> Values:
    """Return lgamma of the number in [1, 2] that differs from x by an integer.

    For x < 1 that is 1 + x, with full precision near its zeros.
    """
    t = x.below(1.0).select(x, _unit_base(x) - 1.0)
    return t * (t - 1.0) * t.mad(2.0, -1.0).polynomial(LGAMMA)


def _lgamma_far(x: Values, logarithm: Values) -> Values:
    return (x - 0.5) * (logarithm - 1.0) + HALF_LOG_TWO_PI_LESS_HALF + _stirling(x)


def _stirling(x: Values) -> Values:
    inverse = 1.0 / x
    return inverse * (inverse * inverse).polynomial(STIRLING)


@in_float64
def digamma(x: Values) -> Values:
    """Return the derivative of lgamma.

    It is NaN at zero, at the negative integers and at -infinity.
    """
    negative = x.below(0.0)
    mirrored = _digamma_positive(negative.select(1.0 - x, x))
    pole = x.compare("ole", 0.0) & x.floor().equals(x)
    return pole.select(math.nan, negative.choose(_digamma_reflected, lambda x, mirrored: mirrored, x, mirrored))


def _digamma_reflected(x: Values, mirrored: Values) -> Values:
    """Return digamma(x) = digamma(1 - x) - pi cot(pi x)."""
    return mirrored - math.pi * _cotangent_of_period(_fraction_from_integer(x))


def _cotangent_of_period(fraction: Values) -> Values:
    """Return cot(pi t) for |t| <= 1/2, beyond 1/4 as a tangent.

    It is 0 at 1/2, and pi / 2 is not a float.
    """
    size = fraction.abs()
    far = size.above(0.25)
    tangent = tan(far.select(0.5 - size, size) * math.pi)
    return far.select(tangent, 1.0 / tangent).signed(fraction)


def _digamma_positive(x: Values) -> Values:
    return x.below(FAR).choose(_digamma_near, _digamma_far, x, 1.0 / x)


def _digamma_near(x: Values, inverse: Values) -> Values:
    """Return 1/(x - 1) + … + 1/(x - n) + digamma(x - n), x - n in [1, 2]."""
    is_small = x.below(1.0)
    total = is_small.select(-inverse, 0.0)
    for k in range(1, int(FAR) - 1):
        total = total + x.above(k + 1.0).select(1.0 / (x - float(k)).floored(1.0), 0.0)
    base = is_small.select(x + 1.0, _unit_base(x))
    zero, rest = _DIGAMMA_ZERO[x.bits]
    return total + ((base - zero).held() - rest) * base.mad(2.0, -3.0).polynomial(DIGAMMA)


def _digamma_far(x: Values, inverse: Values) -> Values:
    square = inverse * inverse
    return log(x) - inverse * 0.5 - square * square.polynomial(DIGAMMA_FAR)


#: There gamma is infinite, and its root is not, by width.
_GAMMA_LIMITS = {32: 40.0, 64: 180.0}

#: Below this, gamma(x) is 1 / x to double precision; exp(lgamma(x)) would lose as many digits as log(x) has before the point.
_TINY = 2.0**-56


@in_float64
def gamma(x: Values) -> Values:
    """Return the gamma function; NaN at the negative integers and at -infinity.

    For x < 0 it is -pi / (x sin(pi x) gamma(-x)).
    """
    negative = x.below(0.0)
    size = x.abs()
    root, rest = gamma_factors(size)
    sine = sin(_fraction_from_integer(size) * math.pi).abs()
    reflected = gamma_sign(x) * (math.pi / (size * negative.select(sine, 1.0))) / rest / root / root
    value = negative.select(reflected, root * rest * root)
    return (negative & x.floor().equals(x)).select(math.nan, size.below(_TINY).select(1.0 / x, value))


def gamma_positive(x: Values) -> Values:
    """Return gamma of positive numbers; from some number on it is infinite."""
    root, rest = gamma_factors(x)
    return root * rest * root


def gamma_one_more(x: Values) -> Values:
    """Return gamma(x + 1) for x > -1.

    For x > 1 the sum, which may be rounded, is not computed.
    """
    large = x.above(1.0)
    return large.select(x, 1.0) * large.select(x, x + 1.0).called("gamma_positive", gamma_positive)


def gamma_factors(x: Values) -> tuple[Values, Values]:
    """Return r and s, r s r being gamma(x) for x > 0.

    It may overflow, but not r.
    """
    near, bounded = x.below(FAR), x.capped(_GAMMA_LIMITS[x.bits])
    return near.choose(lambda x: x.like(1.0), _gamma_root, bounded), near.choose(_gamma_near, _gamma_rest, bounded)


def _gamma_near(x: Values) -> Values:
    unit = exp(lgamma_unit(x))
    return x.below(1.0).select(unit / x, unit * _factors_above_two(x))


def _gamma_root(x: Values) -> Values:
    """Return the root of x^(x - 1/2), to x = 8 and beyond."""
    return x.called("pow", pow, (x - 0.5) * 0.5)


def _gamma_rest(x: Values) -> Values:
    """Return sqrt(2 pi) e^-x times Stirling's series."""
    return exp(-x) * (exp(_stirling(x)) * math.sqrt(2.0 * math.pi))


def gamma_sign(x: Values) -> Values:
    """Return the sign of gamma(x), at 0, -1, -2, … that of either side."""
    half = x.floor() * 0.5
    return (x.below(0.0) & half.floor().compare("one", half)).select(-1.0, x.like(1.0))


# zeta and polygamma


@in_float64
def zeta(s: Values, q: Values) -> Values:
    """Return Hurwitz's zeta function, the sum of (q + k)^-s over k >= 0, for s > 1.

    It is infinite at s = 1 and at q = 0, -1, -2, …, NaN for s < 1.

    For q < 0 the terms with q + k < 0 are, up to sign, those of f + j for j = 0, …, -q - f, where f is the least such |q + k|: the
    difference of two sums, to which the sum from 1 - f is added. Such powers are real only for integers s.
    """
    left = q.below(0.0)
    least = q.floor() + 1.0 - q
    half = s * 0.5
    sign = half.floor().compare("one", half).select(-1.0, s.like(1.0))

    def add(k: Values, total: Values) -> list[Values]:  # one call in a loop: GPUs' compilers write out each call
        first, second = k.equals(0.0), k.equals(1.0)
        start = left.select(first.select(least, second.select(1.0 - q, 1.0 - least)), q.above(0.0).select(q, 1.0))
        weight = left.select(first.select(sign, second.select(-sign, 1.0)), first.select(1.0, s.like(0.0)))
        value = s.called("zeta_positive", _zeta_positive, start)
        return [total + weight.equals(0.0).select(0.0, weight * value)]  # the value may be infinite

    (total,) = s.iterated(left.select(3.0, s.like(1.0)), add, s.like(0.0))
    out = (left & s.floor().compare("one", s)).select(math.nan, total)
    pole = s.equals(1.0) | (q.compare("ole", 0.0) & q.floor().equals(q))
    return (s.below(1.0) | s.is_nan() | q.is_nan()).select(math.nan, pole.select(math.inf, out))


#: From here on a factorial is infinite in float32; not so its product with zeta.
_MOST_FACTORS = 33.0
#: Of x^n with a larger logarithm the inverse is small in float32; not so its product with n!.
_SMALLEST_LOG = 60.0


def _zeta_positive(s: Values, q: Values, log_factor: Values | None = None) -> Values:
    """Return zeta for q > 0 (Abramowitz & Stegun 23.1.30).

    Given the logarithm of a factor, it is the product.

    Terms are added one by one, and the Euler-Maclaurin formula, which begins with the last of them, gives the rest.
    """

    def add(k: Values, total: Values, power: Values) -> list[Values]:
        following = (q + k).called("pow", pow, -s) if log_factor is None else exp(log_factor - s * log(q + k))
        return [total + power, following]

    total, last = s.iterated(DIRECT_TERMS + 1, add, s.like(0.0), s.like(0.0))
    start = q + float(DIRECT_TERMS)
    if log_factor is not None:
        head = exp(log_factor - (s - 1.0) * log(start))  # the last term may be subnormal
    else:
        head = last * start if s.bits == 64 else start.called("pow", pow, 1.0 - s)
    rest, factor, square = s.like(0.5), s / start, start * start
    for number, bernoulli in enumerate(BERNOULLI, 1):
        rest = factor.mad(bernoulli / math.factorial(2 * number), rest)
        factor = factor * ((s + (2.0 * number - 1.0)) * (s + 2.0 * number)) / square
    at_end = last.equals(0.0) | last.equals(math.inf)
    out = total + (head / (s - 1.0) + at_end.select(last, last * rest))
    return total.equals(math.inf).select(total, out)


@in_float64
def polygamma(n: Values, x: Values) -> Values:
    """Return the n-th derivative of digamma, for integers n >= 0; else NaN.

    For n >= 1 it is (-1)^(n + 1) n! zeta(n + 1, x) (Abramowitz & Stegun 6.4.10).
    """
    is_integer = n.compare("oge", 0.0) & n.below(math.inf) & n.floor().equals(n)
    order = (is_integer & n.above(0.0)).select(n, 1.0)
    size = order.called("factorial", _factorial) * (order + 1.0).called("zeta", zeta, x)
    if n.bits == 32:
        large = x.above(0.0) & (order.above(_MOST_FACTORS) | (order * log(x)).above(_SMALLEST_LOG))
        s, start = large.select(order + 1.0, 2.0), large.select(x, 1.0)
        size = large.select(_zeta_positive(s, start, s.called("lgamma", lgamma)), size)
    half = order * 0.5
    out = half.floor().equals(half).select(-size, size)
    out = n.equals(0.0).rarely("digamma", digamma, [x], out)
    return is_integer.select(out, math.nan)


def _factorial(n: Values) -> Values:
    """Return n! of an integer, as long as it is finite."""
    most = {32: 35.0, 64: 171.0}[n.bits]

    def multiply(k: Values, product: Values) -> list[Values]:
        return [product * k.above(n).select(1.0, k.at_least(1.0))]

    (product,) = n.iterated(n.capped(most) + 1.0, multiply, n.like(1.0))
    return product

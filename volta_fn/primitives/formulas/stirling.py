"""Densities and quotients of gamma functions, without large terms that cancel.

lgamma(x) is (x - 1/2) log x - x + log(2 pi)/2 plus a small remainder, for which Stirling has a series.
"""

from __future__ import annotations

import math

from volta_fn.primitives.formulas.exponential import LOG2_E, exp, exp2_of_sum
from volta_fn.primitives.formulas.gamma import gamma_one_more
from volta_fn.primitives.formulas.logarithm import log, log1p, log2_as_sum
from volta_fn.primitives.formulas.powers import pow
from volta_fn.primitives.formulas.precision import exact_product, exact_sum, in_float64, in_float64_unless_fused
from volta_fn.primitives.formulas.values import Values

#: From here on the remainder's series is exact to the last bit of float64.
LEAST = 10.0

#: Bernoulli's numbers B_2k / (2k (2k - 1)), k = 7, …, 1 (Abramowitz & Stegun 6.1.41).
_SERIES = (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)

#: Where e^-x x^10 is 0, and e^(-x/2) a normal number, by width.
_ZERO_FROM = {32: 150.0, 64: 1400.0}

#: From here on exp(-z) over any scale is 0, in every width.
_END = 1e4

#: Up to here a power over a gamma function has an exponent as a sum of two floats, of which float32 has enough digits.
_POWERS = 1e6
#: Of at most this x / a, powers of ten and more are 0.
_NO_RATIO = 1e-20
#: What rounding to float32 takes from log2(e).
_LOG2_E_REST = LOG2_E - 1.44269502162933349609375

#: Terms of (atanh(s) - s) / s^3 for |s| <= 1/4, by width.
_ATANH_TERMS = {32: 5, 64: 13}


def remainder(x: Values) -> Values:
    """Return lgamma(x) minus its three large terms, for x >= LEAST."""
    inverse = 1.0 / x
    return inverse * (inverse * inverse).polynomial(_SERIES)


def excess(u: Values, ratio: Values) -> Values:
    """Return u - log(1 + u), where 1 + u = `ratio` > 0, to full precision.

    With s = u / (2 + u) the logarithm is 2 atanh(s), and u - 2 s = u s.
    """
    close = u.abs().below(0.4)
    near = close.select(u, 0.0)
    s = near / (near + 2.0)
    square = s * s
    series = square.polynomial([2.0 / (2 * k + 3) for k in reversed(range(_ATANH_TERMS[u.bits]))])
    return close.select(s * (near - square * series), u - log(close.select(1.0, ratio)))


def power_over_gamma(a: Values, x: Values) -> Values:
    """Return x^a e^-x / gamma(a + 1) for finite a >= 0, x > 0."""
    far = a.compare("oge", LEAST)
    base, argument = far.select(a, LEAST), far.select(x, LEAST)
    mu = (argument - base) / base
    by_series = exp(-(base * excess(mu, argument / base) + remainder(base))) / (base.sqrt() * math.sqrt(2.0 * math.pi))
    if x.bits == 32:
        moderate = base.below(_POWERS) & argument.below(_POWERS)
        by_series = moderate.select(_power_by_sums(moderate.select(base, LEAST), moderate.select(argument, LEAST)), by_series)
    shape, point = far.select(1.0, a), far.select(1.0, x.capped(_ZERO_FROM[x.bits]))
    root = exp(point * -0.5)
    direct = point.called("pow", pow, shape) * root / gamma_one_more(shape) * root
    return far.select(by_series, direct)


def _power_by_sums(a: Values, x: Values) -> Values:
    """Return x^a e^-x / gamma(a + 1) for a >= LEAST in float32.

    It is 2^(a log2(x / a) + (a - x) log2(e)) / sqrt(2 pi a) and Stirling's series, where both terms of the exponent are sums of two floats.
    """
    ratio = (x / a).floored(_NO_RATIO)
    high, low = log2_as_sum(ratio)
    low = low + (-ratio).fma(a, x) / x * LOG2_E
    first, first_error = exact_product(high, a)
    distance, lost = exact_sum(a, -x)
    second, second_error = exact_product(distance, LOG2_E)
    total, error = exact_sum(first, second)
    rest = error + first_error + second_error + (a * low + distance * _LOG2_E_REST + lost * LOG2_E) - remainder(a) * LOG2_E
    large, small = exact_sum(total, rest)
    return exp2_of_sum(large, small) / (a.sqrt() * math.sqrt(2.0 * math.pi))


def log_rise(a: Values, b: Values) -> Values:
    """Return log(gamma(a + b) / gamma(a)) for a and a + b >= LEAST.

    It has full precision for small b.
    """
    total = a + b
    u, v = 1.0 / a, 1.0 / total
    return (a - 0.5) * log1p(b * u) + b * (log(total) - 1.0) - b * u * v * _remainder_quotient(u, v)


def _remainder_quotient(u: Values, v: Values) -> Values:
    """Return the divided difference of `remainder` as a function of 1 / x at u and v."""
    first, second = u * u, v * v
    total, quotient = u.like(_SERIES[0]), u.like(0.0)
    for coefficient in _SERIES[1:]:
        quotient = quotient.mad(first, total)
        total = total.mad(second, coefficient)
    return total + u * (u + v) * quotient


def log_rise_of_less_than_one(a: Values, b: Values) -> Values:
    """Return log(gamma(a + b) / gamma(a)) for a > 0 and 0 <= b < 1, relative to b.

    Where a < LEAST it is that of a + LEAST, less log of the product of (1 + b / (a + k)), k = 0, 1, …
    """
    far = a.compare("oge", LEAST)
    near = far.select(LEAST, a)
    product = b.like(0.0)  # less 1
    for k in range(int(LEAST)):
        term = b / (near + float(k))
        product = product + term + product * term
    by_series = log_rise(far.select(a, a + LEAST), b)
    return far.select(by_series, by_series - log1p(product))


def beta_quotient(p: Values, q: Values) -> Values:
    """Return gamma(p + q) / (gamma(p + 1) gamma(q)) for p, q > 0 of at most some ten."""
    top, below, after = (gamma_one_more(v) for v in (p + q, p, q))
    return top / below / after * (q / (p + q))


# densities of x, a location and a scale: an exponential of the rounded (x - loc) / scale is off by as many units as its exponent is large


def _standardized(x: Values, loc: Values, scale: Values) -> tuple[Values, Values]:
    """Return |x - loc| / scale, at most `_END`, and its rounding error."""
    difference, lost = exact_sum(x, -loc)
    z = difference / scale
    rest = ((-z).fma(scale, difference) + lost) / scale
    return z.abs().capped(_END), z.abs().below(_END).select(z.below(0.0).select(-rest, rest), 0.0)


@in_float64_unless_fused
def normal_pdf(x: Values, loc: Values, scale: Values) -> Values:
    """Return the density of the normal distribution.

    The root of the exponential is a normal number wherever the density is.
    """
    z, rest = _standardized(x, loc, scale)
    square, lost = exact_product(z, z)
    root = exp(square * -0.25)
    return root * ((1.0 / math.sqrt(2.0 * math.pi)) / scale) * (root - root * z.mad(rest, lost * 0.5))


@in_float64_unless_fused
def exponential_pdf(x: Values, loc: Values, scale: Values) -> Values:
    """Return exp(-|x - loc| / scale) / scale, by the root of the exponential as well."""
    z, rest = _standardized(x, loc, scale)
    root = exp(z * -0.5)
    return root / scale * (root - root * rest)


@in_float64
def logistic_pdf(x: Values, loc: Values, scale: Values) -> Values:
    """Return the density of the logistic distribution, e^-z / (1 + e^-z)^2 / scale."""
    power = exp(-((x - loc) / scale).abs())
    return exponential_pdf(x, loc, scale) / (1.0 + power) / (1.0 + power)


@in_float64
def cauchy_pdf(x: Values, loc: Values, scale: Values) -> Values:
    """Return the density of Cauchy's distribution, 1 / (pi scale (1 + z^2)).

    The square does not overflow.
    """
    size = ((x - loc) / scale).abs()
    large = size.above(1.0)
    ratio = large.select(1.0 / large.select(size, 1.0), size)
    return large.select(ratio * ratio, 1.0) / (ratio * ratio + 1.0) * (1.0 / math.pi) / scale


@in_float64
def t_pdf(x: Values, df: Values, loc: Values, scale: Values) -> Values:
    """Return the density of Student's t distribution.

    For infinite `df` it is the normal one.
    """
    infinite = df.equals(math.inf)
    degrees = infinite.select(1.0, df)
    size = ((x - loc) / scale / degrees.sqrt()).abs()
    large = size.above(1.0)
    near = large.select(1.0 / large.select(size, 1.0), size)
    growth = log1p(near * near) + large.select(2.0 * log(large.select(size, 1.0)), 0.0)
    rise = log_rise_of_less_than_one(degrees * 0.5, x.like(0.5))
    student = exp(rise - 0.5 * (log(degrees) + math.log(math.pi)) - (degrees + 1.0) * 0.5 * growth) / scale
    return infinite.select(normal_pdf(x, loc, scale), student)

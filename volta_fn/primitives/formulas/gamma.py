"""The gamma function's family, and quotients of gamma functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from volta_fn.primitives.formulas.exponential import exp, log, log1p, pow
from volta_fn.primitives.formulas.trigonometric import sin, tan
from volta_fn.primitives.formulas.values import Values, exact_product, exact_sum, in_float64, in_float64_or_pairs, in_float64_unless_fused

# Densities and quotients of gamma functions, without large terms that cancel.
#
# lgamma(x) is (x - 1/2) log x - x + log(2 pi)/2 plus a small remainder, for which Stirling has a series.

#: From here on the remainder's series is exact to the last bit of float64.
LEAST = 10.0

#: Bernoulli's numbers B_2k / (2k (2k - 1)), k = 7, …, 1 (Abramowitz & Stegun 6.1.41).
_SERIES = (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)

#: Where e^-x x^10 is 0, and e^(-x/2) a normal number, by width.
_ZERO_FROM = {32: 150.0, 64: 1400.0}

#: From here on exp(-z) over any scale is 0, in every width.
_END = 1e4

#: Below it log(1 + z^2) is z^2, which may be subnormal.
_NO_SQUARE = 2.0**-30
#: Terms of (atanh(s) - s) / s^3 for |s| <= 1/4, by width.
_ATANH_TERMS = {32: 5, 64: 13}


def remainder(x: Values) -> Values:
    """Return lgamma(x) minus its three large terms, for x >= LEAST."""
    inverse = 1.0 / x
    return inverse * (inverse * inverse).polynomial(_SERIES)


def excess(u: Values, ratio: Values) -> Values:
    """Return u - log(1 + u), where 1 + u = `ratio` > 0, to full precision."""
    # With s = u / (2 + u) the logarithm is 2 atanh(s), and u - 2 s = u s.
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
    exponent = -(base * excess(mu, argument / base) + remainder(base))
    scale = 1.0 / (base.sqrt() * math.sqrt(2.0 * math.pi))
    shape, point = far.select(1.0, a), far.select(1.0, x.min_keep_nan(_ZERO_FROM[x.range]))
    if x.is_pair:
        return exp(far.select(exponent, shape * log(point) - point - _lgamma_positive(shape + 1.0))) * far.select(scale, 1.0)
    root = exp(point * -0.5)
    direct = point.outline("pow", pow, shape) * root / gamma_one_more(shape) * root
    return far.select(exp(exponent) * scale, direct)


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
    """Return log(gamma(a + b) / gamma(a)) for a > 0 and 0 <= b < 1, relative to b."""
    # Where a < LEAST it is that of a + LEAST, less log of the product of (1 + b / (a + k)), k = 0, 1, …
    far = a.compare("oge", LEAST)
    near = far.select(LEAST, a)

    def multiply(k: Values, product: Values) -> Sequence[Values]:
        term = b / (near + k)
        return [product + term + product * term]

    (product,) = b.repeated([range(int(LEAST))], multiply, b.like(0.0))  # less 1
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
    return z.abs().min_keep_nan(_END), z.abs().below(_END).select(z.below(0.0).select(-rest, rest), 0.0)


@in_float64_unless_fused
def normal_pdf(x: Values, loc: Values, scale: Values) -> Values:
    """Return the density of the normal distribution."""
    # The root of the exponential is a normal number wherever the density is.
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
    """Return the density of Cauchy's distribution, 1 / (pi scale (1 + z^2))."""
    # The square does not overflow.
    size = ((x - loc) / scale).abs()
    large = size.above(1.0)
    ratio = large.select(1.0 / large.select(size, 1.0), size)
    return large.select(ratio * ratio, 1.0) / (ratio * ratio + 1.0) * (1.0 / math.pi) / scale


@in_float64_or_pairs
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
    half = (degrees + 1.0) * 0.5
    loss = (size.below(_NO_SQUARE)).select(half * near * near, half * growth)
    student = exp(rise - 0.5 * (log(degrees) + math.log(math.pi)) - loss) / scale
    return infinite.select(normal_pdf(x, loc, scale), student)


# Quotients of gamma functions: beta, binomial coefficients, rising factorials.
#
# With large positive arguments the large terms of logarithms cancel by Stirling's series; poles and zeros are decided by the arguments.

#: Positive numbers below it have gamma functions, and products of them, that do not overflow.
_MODERATE = 14.0

#: Rising factorials of fewer factors are products.
_SHORT = 200.0


def _is_integer(x: Values) -> Values:
    return x.floor().equals(x)


def _is_pole(x: Values) -> Values:
    return x.compare("ole", 0.0) & _is_integer(x)


def _sign_of_power(n: Values) -> Values:
    """Return (-1)^n of an integer."""
    half = n * 0.5
    return half.floor().compare("one", half).select(-1.0, n.like(1.0))


def _log_gammas(*numbers: Values) -> Sequence[Values]:
    return numbers[0].outline_each("lgamma", lgamma, [(x,) for x in numbers])


def _log_rise_positive(a: Values, b: Values, other: Values) -> Sequence[Values]:
    """Return log(gamma(a + b) / gamma(a)) and lgamma(other).

    a and a + b are positive.
    """
    far = a.compare("oge", LEAST) & (a + b).compare("oge", LEAST)
    end, start, logarithm = _log_gammas(far.select(1.0, a + b), far.select(1.0, a), other)
    return far.select(log_rise(far.select(a, LEAST), far.select(b, 1.0)), end - start), logarithm


def log_beta_and_sign(a: Values, b: Values) -> tuple[Values, Values]:
    """Return log |B(a, b)| and B's sign.

    At a pole of gamma(a), an integer, B is infinite, unless b is an integer that makes a + b another one: then it is ±B(1 - a - b, b).
    """
    least, most = a.at_most(b), a.at_least(b)
    sign = a.like(1.0)
    pole = _is_pole(least)
    other = 1.0 - least - most
    finite = pole & _is_integer(most) & other.above(0.0) & most.above(0.0)
    sign = finite.select(_sign_of_power(most), sign)
    x, y = finite.select(other.at_most(most), least), finite.select(other.at_least(most), most)
    total = x + y
    far = y.compare("oge", LEAST) & total.compare("oge", LEAST) & ~_is_pole(x)
    of_x, of_y, of_total = _log_gammas(x, far.select(1.0, y), far.select(1.0, total))
    rise = far.select(log_rise(far.select(y, LEAST), far.select(x, 1.0)), of_total - of_y)
    positive = x.above(0.0) | far
    zero = ~positive & _is_pole(total) & ~_is_pole(x) & ~_is_pole(y)
    infinite = ~positive & (_is_pole(x) | _is_pole(y))
    signs = gamma_sign(x) * gamma_sign(y) * gamma_sign(total)
    logarithm = infinite.select(float("inf"), zero.select(float("-inf"), of_x - rise))
    sign = sign * x.above(0.0).select(1.0, infinite.select(1.0, far.select(gamma_sign(x), signs)))
    return (a.is_nan() | b.is_nan()).select(float("nan"), logarithm), sign


@in_float64_or_pairs
def betaln(a: Values, b: Values) -> Values:
    """Return log |B(a, b)|."""
    return log_beta_and_sign(a, b)[0]


@in_float64_or_pairs
def beta(a: Values, b: Values) -> Values:
    """Return B(a, b) = gamma(a) gamma(b) / gamma(a + b)."""
    logarithm, sign = log_beta_and_sign(a, b)
    by_logarithm = sign * exp(logarithm)
    if a.is_pair:
        return by_logarithm
    direct = a.above(0.0) & b.above(0.0) & a.below(_MODERATE) & b.below(_MODERATE)
    p, q = direct.select(a, 1.0), direct.select(b, 1.0)
    least, most = p.at_most(q), p.at_least(q)
    plain = gamma_one_more(p) / gamma_one_more(p + q) * gamma_one_more(q) * (1.0 + least / most) / least
    return direct.select(plain, by_logarithm)


@in_float64_or_pairs
def comb(n: Values, k: Values) -> Values:
    """Return gamma(n + 1) / (gamma(k + 1) gamma(n - k + 1)) for 0 <= k <= n, else 0."""
    possible = k.compare("ole", n) & k.compare("oge", 0.0)
    things, chosen = possible.select(n, 1.0), possible.select(k, 0.0)
    rest = things - chosen
    fewer = chosen.at_most(rest)
    rise, log_factorial = _log_rise_positive(things - fewer + 1.0, fewer, fewer + 1.0)
    out = exp(rise - log_factorial)
    if not n.is_pair:
        direct = things.below(2.0 * _MODERATE)
        total, first = direct.select(things, 0.0), direct.select(chosen, 0.0)
        out = direct.select(gamma_one_more(total) / gamma_one_more(first) / gamma_one_more(total - first), out)
    return (n.is_nan() | k.is_nan()).select(float("nan"), possible.select(out, 0.0))


@in_float64_or_pairs
def poch(z: Values, m: Values) -> Values:
    """Return gamma(z + m) / gamma(z).

    Where both are poles it is (-1)^m gamma(1 - z) / gamma(1 - z - m); 0 where only the lower one is. For small integers m it is a product.
    """
    pole, integral = _is_pole(z), _is_integer(m)
    end = z + m
    mirrored = pole & integral & end.compare("ole", 0.0)
    start, stop = mirrored.select(1.0 - end, z), mirrored.select(1.0 - z, end)
    positive = start.above(0.0) & stop.above(0.0)
    up = m.compare("oge", 0.0)
    low, high = positive.select(start.at_most(stop), 1.0), positive.select(start.at_least(stop), 1.0)
    step = positive.select(m.abs(), 0.0)
    far = positive & low.compare("oge", LEAST)
    x, y = positive.select(far.select(1.0, low), z), positive.select(far.select(1.0, high), end)
    of_x, of_y = _log_gammas(x, y)
    growth = exp(far.select(log_rise(far.select(low, LEAST), far.select(step, 1.0)), of_y - of_x))
    rise = growth
    if not z.is_pair:
        direct = positive & high.below(2.0 * _MODERATE)
        p, q = direct.select(low, 1.0), direct.select(high, 1.0)
        rise = direct.select(gamma_one_more(q) / gamma_one_more(p) * (p / q), growth)
    ratio = up.select(rise, 1.0 / rise) * mirrored.select(_sign_of_power(m), m.like(1.0))
    reflected = gamma_sign(x) * gamma_sign(y) * growth
    zero = pole & ~mirrored
    out = zero.select(0.0, positive.select(ratio, _is_pole(end).select(float("inf"), reflected)))
    short = integral & m.abs().below(_SHORT)
    out = short.select(_product(short.select(z, 1.0), short.select(m, 0.0)), out)
    return (z.is_nan() | m.is_nan()).select(float("nan"), m.equals(0.0).select(1.0, out))


def _product(z: Values, m: Values) -> Values:
    """Return z (z + 1) … (z + m - 1), for m < 0 one over (z - 1) (z - 2) … (z + m)."""
    up = m.compare("oge", 0.0)

    def multiply(k: Values, product: Values) -> Sequence[Values]:
        return [k.below(m.abs()).select(product * up.select(z + k, z - (k + 1.0)), product)]

    (product,) = z.iterated(m.abs(), multiply, z.like(1.0))
    return up.select(product, 1.0 / product)


@in_float64_or_pairs
def digamma_rise(a: Values, b: Values) -> Values:
    """Return digamma(a + b) - digamma(a)."""
    end, start = a.outline_each("digamma", digamma, [(a + b,), (a,)])
    return end - start


@in_float64
def factorial(n: Values) -> Values:
    """Return gamma(n + 1) for n >= 0, else 0."""
    negative = n.below(0.0)
    return negative.select(0.0, gamma_one_more(negative.select(0.0, n)))


# The gamma function's family: log-gamma, digamma, Hurwitz zeta, polygamma.
#
# All compute in float64 where the target has it, which spares a set of coefficients per dtype. On [1, 2] a polynomial holds (Chebyshev
# interpolation of the function divided by its zeros, so that relative precision is kept around them); from 8 on the asymptotic series
# does; recurrences lead from elsewhere to those, and reflection formulas from the negative axis to the positive one.

#: The threshold of the asymptotic series: from 8 on, ten terms suffice for float64.
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

#: The coefficients of the Euler-Maclaurin formula.
EULER_MACLAURIN = tuple(b / math.factorial(2 * k) for k, b in enumerate(BERNOULLI, 1))

#: Terms summed one by one before the Euler-Maclaurin formula gives the rest.
DIRECT_TERMS = 10


def _fraction_from_integer(x: Values) -> Values:
    return x - x.nearest()


def _unit_base(x: Values) -> Values:
    """Return the number in [1, 2] that differs from x >= 1 by an integer."""
    return x - (x.ceil() - 2.0).max_keep_nan(0.0)


@in_float64_or_pairs
def lgamma(x: Values) -> Values:
    """Return log |gamma(x)|, infinite at zero, negative integers and both infinities."""
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
    # One logarithm serves all ranges: of x, or between 1 and 8 of the factors by which it is above [1, 2].
    near, is_small = x.below(FAR), x.below(1.0)
    logarithm = log((near & ~is_small).select(_factors_above_two(x), x))
    return near.choose(_lgamma_near, _lgamma_far, x, logarithm)


def _factors_above_two(x: Values) -> Values:
    """Return gamma(x) / gamma(t) for x >= 1 and t = x - n in [1, 2], n an integer."""

    def multiply(k: Values, product: Values) -> Sequence[Values]:
        return [product * (x - k).max_keep_nan(1.0)]

    return x.repeated([range(1, int(FAR) - 1)], multiply, x.like(1.0))[0]


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


@in_float64_or_pairs
def digamma(x: Values) -> Values:
    """Return the derivative of lgamma; NaN at zero, negative integers and -infinity."""
    negative = x.below(0.0)
    mirrored = _digamma_positive(negative.select(1.0 - x, x))
    pole = x.compare("ole", 0.0) & x.floor().equals(x)
    return pole.select(math.nan, negative.choose(_digamma_reflected, lambda x, mirrored: mirrored, x, mirrored))


def _digamma_reflected(x: Values, mirrored: Values) -> Values:
    """Return digamma(x) = digamma(1 - x) - pi cot(pi x)."""
    return mirrored - math.pi * _cotangent_of_period(_fraction_from_integer(x))


def _cotangent_of_period(fraction: Values) -> Values:
    """Return cot(pi t) for |t| <= 1/2, beyond 1/4 as a tangent."""
    # It is 0 at 1/2, and pi / 2 is not a float.
    size = fraction.abs()
    far = size.above(0.25)
    tangent = tan(far.select(0.5 - size, size) * math.pi)
    return far.select(tangent, 1.0 / tangent).copysign(fraction)


def _digamma_positive(x: Values) -> Values:
    return x.below(FAR).choose(_digamma_near, _digamma_far, x, 1.0 / x)


def _digamma_near(x: Values, inverse: Values) -> Values:
    """Return 1/(x - 1) + … + 1/(x - n) + digamma(x - n), x - n in [1, 2]."""
    is_small = x.below(1.0)

    def add(k: Values, total: Values) -> Sequence[Values]:
        return [total + x.above(k + 1.0).select(1.0 / (x - k).max_keep_nan(1.0), 0.0)]

    (total,) = x.repeated([range(1, int(FAR) - 1)], add, is_small.select(-inverse, 0.0))
    base = is_small.select(x + 1.0, _unit_base(x))
    return total + ((base - DIGAMMA_ZERO) - DIGAMMA_ZERO_REST) * base.mad(2.0, -3.0).polynomial(DIGAMMA)


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
    """Return gamma(x + 1) for x > -1."""
    # For x > 1 the sum, which may be rounded, is not computed.
    large = x.above(1.0)
    return large.select(x, 1.0) * large.select(x, x + 1.0).outline("gamma_positive", gamma_positive)


def gamma_factors(x: Values) -> tuple[Values, Values]:
    """Return r and s, r s r being gamma(x) for x > 0.

    It may overflow, but not r.
    """
    near, bounded = x.below(FAR), x.min_keep_nan(_GAMMA_LIMITS[x.range])
    return near.choose(lambda x: x.like(1.0), _gamma_root, bounded), near.choose(_gamma_near, _gamma_rest, bounded)


def _gamma_near(x: Values) -> Values:
    unit = exp(lgamma_unit(x))
    return x.below(1.0).select(unit / x, unit * _factors_above_two(x))


def _gamma_root(x: Values) -> Values:
    """Return the root of x^(x - 1/2), to x = 8 and beyond."""
    return x.outline("pow", pow, (x - 0.5) * 0.5)


def _gamma_rest(x: Values) -> Values:
    """Return sqrt(2 pi) e^-x times Stirling's series."""
    return exp(-x) * (exp(_stirling(x)) * math.sqrt(2.0 * math.pi))


def gamma_sign(x: Values) -> Values:
    """Return the sign of gamma(x), at 0, -1, -2, … that of either side."""
    half = x.floor() * 0.5
    return (x.below(0.0) & half.floor().compare("one", half)).select(-1.0, x.like(1.0))


# zeta and polygamma


@in_float64_or_pairs
def zeta(s: Values, q: Values) -> Values:
    """Return Hurwitz's zeta function, the sum of (q + k)^-s over k >= 0, for s > 1.

    It is infinite at s = 1 and at q = 0, -1, -2, …, NaN for s < 1. For q < 0 the terms with q + k < 0 are, up to sign, those of f + j for j
    = 0, …, -q - f, where f is the least such |q + k|: the difference of two sums, to which the sum from 1 - f is added. Such powers are
    real only for integers s.
    """
    left = q.below(0.0)
    least = q.floor() + 1.0 - q
    half = s * 0.5
    sign = half.floor().compare("one", half).select(-1.0, s.like(1.0))

    def add(k: Values, total: Values) -> list[Values]:  # one call in a loop: GPUs' compilers write out each call
        first, second = k.equals(0.0), k.equals(1.0)
        start = left.select(first.select(least, second.select(1.0 - q, 1.0 - least)), q.above(0.0).select(q, 1.0))
        weight = left.select(first.select(sign, second.select(-sign, 1.0)), first.select(1.0, s.like(0.0)))
        value = s.outline("zeta_positive", _zeta_positive, start)
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

    Given the logarithm of a factor, it is the product. Terms are added one by one, and the Euler-Maclaurin formula, which begins with the
    last of them, gives the rest.
    """

    def add(k: Values, total: Values, power: Values) -> list[Values]:
        following = (q + k).outline("pow", pow, -s) if log_factor is None else exp(log_factor - s * log(q + k))
        return [total + power, following]

    total, last = s.iterated(DIRECT_TERMS + 1, add, s.like(0.0), s.like(0.0))
    start = q + float(DIRECT_TERMS)
    if log_factor is not None:
        head = exp(log_factor - (s - 1.0) * log(start))  # the last term may be subnormal
    else:
        head = last * start if s.range == 64 else start.outline("pow", pow, 1.0 - s)
    square = start * start

    def correct(coefficient: Values, twice: Values, rest: Values, factor: Values) -> Sequence[Values]:
        return [factor.mad(coefficient, rest), factor * ((s + (twice - 1.0)) * (s + twice)) / square]

    rest, _ = s.repeated([EULER_MACLAURIN, range(2, 2 * len(BERNOULLI) + 2, 2)], correct, s.like(0.5), s / start)
    at_end = last.equals(0.0) | last.equals(math.inf)
    out = total + (head / (s - 1.0) + at_end.select(last, last * rest))
    return total.equals(math.inf).select(total, out)


@in_float64_or_pairs
def polygamma(n: Values, x: Values) -> Values:
    """Return the n-th derivative of digamma, for integers n >= 0; else NaN.

    For n >= 1 it is (-1)^(n + 1) n! zeta(n + 1, x) (Abramowitz & Stegun 6.4.10).
    """
    is_integer = n.compare("oge", 0.0) & n.below(math.inf) & n.floor().equals(n)
    order = (is_integer & n.above(0.0)).select(n, 1.0)
    size = order.outline("factorial", _factorial) * (order + 1.0).outline("zeta", zeta, x)
    if n.is_pair:
        large = x.above(0.0) & (order.above(_MOST_FACTORS) | (order * log(x)).above(_SMALLEST_LOG))
        s, start = large.select(order + 1.0, 2.0), large.select(x, 1.0)
        size = large.select(_zeta_positive(s, start, lgamma(s)), size)
    half = order * 0.5
    out = half.floor().equals(half).select(-size, size)
    out = n.equals(0.0).if_any("digamma", digamma, [x], out)
    return is_integer.select(out, math.nan)


def _factorial(n: Values) -> Values:
    """Return n! of an integer, as long as it is finite."""
    most = {32: 35.0, 64: 171.0}[n.range]

    def multiply(k: Values, product: Values) -> list[Values]:
        return [product * k.above(n).select(1.0, k.at_least(1.0))]

    (product,) = n.iterated(n.min_keep_nan(most) + 1.0, multiply, n.like(1.0))
    return product

"""Hypergeometric functions, exponential integrals, and power transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from volta_fn.primitives.formulas.error import ERFC_LIMITS, erfc_scaled
from volta_fn.primitives.formulas.exponential import exp, expm1, log, log1p, pow
from volta_fn.primitives.formulas.gamma import digamma, gamma_sign, lgamma
from volta_fn.primitives.formulas.values import Values, exact_sum, in_float64, in_float64_or_pairs

# The confluent and Gauss's hypergeometric function of real arguments.
#
# The methods are those that J. W. Pearson compares ("Computation of hypergeometric functions", 2009): Taylor series after a
# transformation to positive terms, asymptotic series, and the connection with 1 - x.

#: From which |x| on the confluent function is an asymptotic series, and how many terms that has.
_FAR, _FAR_TERMS = 100.0, 40
#: Beyond it Gauss's function is connected with 1 - x, and how far c - a - b must be from an integer for that.
_NEAR_ONE, _GAP = 0.75, 0.05
#: At most so many terms of a Taylor series.
_MOST = 20000.0
#: Euler's constant, -digamma(1).
_EULER = 0.5772156649015329


def _series(count: Values, factor: Callable[[Values], Values], first: Values) -> Values:
    """Return the sum of terms, each of which is factor(k) times the one before.

    It ends with a term that is zero or infinite.
    """

    def add(k: Values, term: Values, total: Values) -> Sequence[Values]:
        is_last = term.equals(0.0) | term.abs().equals(math.inf)
        following = is_last.select(0.0, term * factor(k))
        return [following, total + following]

    return first.iterated(count.is_nan().select(1.0, count.clamped(1.0, _MOST)).ceil(), add, first, first)[1]


def _ends(a: Values) -> Values:
    """Return whether (a)_k is 0 from some k on."""
    return a.compare("ole", 0.0) & a.floor().equals(a)


def _log_gamma(x: Values) -> Values:
    return x.outline("lgamma", lgamma)


@in_float64
def hyp1f1(a: Values, b: Values, x: Values) -> Values:
    """Return Kummer's function, the sum of (a)_k / (b)_k x^k / k!.

    It is infinite at its poles b = 0, -1, …, unless the sum ends before.
    """
    # For x < 0 it is e^x M(b - a, b, -x), unless the sum ends.
    pole = _ends(b)
    mirrored = x.below(0.0) & ~_ends(a) & ~pole
    top, size = mirrored.select(b - a, a), mirrored.select(-x, x)
    spread = ((b - top).abs() + 1.0) * ((1.0 - top).abs() + 1.0)
    far = size.above(_FAR) & size.above(2.0 * spread) & ~_ends(top) & ~pole
    bounded = far.select(1.0, size)
    half = mirrored.select(exp(bounded * -0.5), 1.0)
    extent = bounded.abs()
    count = 50.0 + 1.5 * extent + 2.0 * (extent * top.abs()).sqrt() + b.abs()
    near = half * _series(count, lambda k: (top + k) / (b + k) * (bounded / (k + 1.0)), half)
    distant = _far_kummer(far.select(top, 1.0), far.select(b, 2.0), far.select(size, _FAR), mirrored)
    out = (b.equals(0.0) & ~a.equals(0.0)).select(math.inf, far.select(distant, near))
    out = a.equals(b).select(a.equals(0.0).select(1.0, exp(x)), out)  # also where the quotients are 0 / 0
    return (a.is_nan() | b.is_nan() | x.is_nan()).select(math.nan, out)


def _far_kummer(a: Values, b: Values, x: Values, scaled: Values) -> Values:
    """Return M(a, b, x), or e^-x times it, by Abramowitz & Stegun 13.5.1."""
    exponent = _log_gamma(b) - _log_gamma(a) + (a - b) * log(x) + scaled.select(0.0, x)
    terms = x.like(float(_FAR_TERMS))
    total = _series(terms, lambda k: (b - a + k) * (1.0 - a + k) / ((k + 1.0) * x), x.like(1.0))
    return gamma_sign(a) * gamma_sign(b) * exp(exponent) * total


@in_float64
def hyp2f1(a: Values, b: Values, c: Values, x: Values) -> Values:
    """Return Gauss's hypergeometric function, the sum of (a)_k (b)_k / (c)_k x^k / k!.

    For x < 0 it is (1 - x)^-a F(a, c - b, c, x / (x - 1)) (Pfaff). NaN for x > 1 unless the sum ends. It is infinite at its poles
    c = 0, -1, …, unless the sum ends before.
    """
    pole = _ends(c)
    last = _ends(a).select(-a, math.inf).at_most(_ends(b).select(-b, math.inf))
    infinite = pole & last.above(-c) & ~x.equals(0.0)
    left = x.below(0.0) & ~pole
    second, z = left.select(c - b, b), left.select(x / (x - 1.0), x)
    ends = _ends(a) | _ends(second)
    close = z.above(_NEAR_ONE) & z.compare("ole", 1.0) & ~ends
    inner = _near_one(a, second, c, close.select(z, 0.875), close)
    plain = _gauss_series(a, second, c, close.select(0.0, z))
    scale = pow(left.select(1.0 - x, 1.0), -a)
    out = infinite.select(math.inf, x.equals(0.0).select(1.0, close.select(inner, plain) * scale))
    outside = (z.above(1.0) & ~ends) | a.is_nan() | b.is_nan() | c.is_nan() | x.is_nan()
    return outside.select(math.nan, out)


def _gauss_series(a: Values, b: Values, c: Values, z: Values) -> Values:
    """Return the sum itself, with as many terms as |z| < 1 needs."""
    rest = (1.0 - z.abs()).at_least(40.0 / _MOST)
    count = _ends(a).select(-a, _ends(b).select(-b, 40.0 / rest)).at_most(40.0 / rest + a.abs() + b.abs()) + c.abs() + 10.0

    def factor(k: Values) -> Values:
        top = (a + k) * (b + k)
        return top.equals(0.0).select(0.0, (a + k) / (c + k) * ((b + k) / (k + 1.0)) * z)  # also where c + k is zero

    return _series(count, factor, z.like(1.0))


def _near_one(a: Values, b: Values, c: Values, z: Values, is_near_one: Values) -> Values:
    """Return it for z near 1, by z alone where c - a - b is close to an integer."""
    # Elsewhere it is a sum of two series at 1 - z, each times a quotient of gamma functions. A gamma function with a pole is left out
    # there.
    excess = c - a - b
    nearest = excess.nearest()
    integral = nearest.equals(excess)
    separate = (excess - nearest).abs().above(_GAP)
    y = 1.0 - z
    plus = _gamma_quotient(c, c - a, (integral & excess.compare("ole", 0.0)).select(1.0, excess), c - b)
    minus = _gamma_quotient(c, a, (integral & excess.compare("oge", 0.0)).select(1.0, -excess), b)
    power = pow(y, excess)
    usual = is_near_one & separate
    first, second = _connected(usual.select(a, 0.3), usual.select(b, 0.3), usual.select(c, 0.9), y)
    connected = plus * first + minus * second * power
    logarithmic = is_near_one & integral
    finite, infinite = _logarithmic(logarithmic.select(a, 1.0), logarithmic.select(b, 1.0), logarithmic.select(c, 2.0), y)
    with_logarithm = excess.below(0.0).select(minus * finite * power + plus * infinite, plus * finite + minus * infinite * power)
    slow = is_near_one & ~separate & ~integral
    by_itself = _gauss_series(slow.select(a, 1.0), slow.select(b, 1.0), c, slow.select(z, 0.0))
    out = slow.select(by_itself, integral.select(with_logarithm, connected))
    at_one = excess.above(0.0).select(plus, minus.below(0.0).select(-math.inf, y.like(math.inf)))
    return (is_near_one & y.equals(0.0)).select(at_one, out)


def _gamma_quotient(top: Values, bottom: Values, other_top: Values, other_bottom: Values) -> Values:
    """Return gamma(top) gamma(other_top) / (gamma(bottom) gamma(other_bottom)).

    The logarithms are added in a loop: some compilers of shaders copy a function to wherever it is called.
    """

    def add(k: Values, exponent: Values, sign: Values) -> Sequence[Values]:
        above, former = k.below(2.0), k.equals(0.0) | k.equals(2.0)
        x = above.select(former.select(top, other_top), former.select(bottom, other_bottom))
        logarithm = _log_gamma(x)
        return [exponent + above.select(logarithm, -logarithm), sign * gamma_sign(x)]

    exponent, sign = top.iterated(4, add, top.like(0.0), top.like(1.0))
    return (_ends(bottom) | _ends(other_bottom)).select(0.0, sign * exp(exponent))


def _connected(a: Values, b: Values, c: Values, y: Values) -> tuple[Values, Values]:
    """Return the series at 1 - y, for a + b - c that is no integer (A. & S. 15.3.6)."""
    excess = c - a - b
    return _gauss_series(a, b, 1.0 - excess, y), _gauss_series(c - a, c - b, 1.0 + excess, y)


def _logarithmic(a: Values, b: Values, c: Values, y: Values) -> tuple[Values, Values]:
    """Return the sums at 1 - y, for integers c - a - b (A. & S. 15.3.10 to 15.3.12)."""
    # Negative ones become positive by Euler's transformation.
    excess = c - a - b
    below = excess.below(0.0)
    first, second, m = below.select(c - a, a), below.select(c - b, b), excess.abs()
    half = m * 0.5
    sign = half.floor().equals(half).select(-1.0, y.like(1.0))
    finite = m.equals(0.0).select(0.0, _finite_sum(first, second, m, y))
    return finite, sign * _logarithmic_sum(first + m, second + m, m, y)


def _finite_sum(a: Values, b: Values, m: Values, y: Values) -> Values:
    """Return the sum of (a)_n (b)_n / (n! (1 - m)_n) y^n for n < m."""

    def factor(k: Values) -> Values:
        last = (m - 1.0 - k).compare("ole", 0.0)
        return last.select(0.0, (a + k) * (b + k) / ((k + 1.0) * last.select(1.0, 1.0 - m + k)) * y)

    return _series(m, factor, y.like(1.0))


def _logarithmic_sum(a: Values, b: Values, m: Values, y: Values) -> Values:
    """Return Σ (a)_n (b)_n / (n! (n + m)!) y^n times a logarithm and digammas.

    They are log y - digamma(n + 1) - digamma(n + m + 1) + digamma(a + n) + digamma(b + n), which is known from the one before.
    """

    def add_digamma(k: Values, total: Values) -> Sequence[Values]:
        value = k.equals(0.0).select(a, k.equals(1.0).select(b, m + 1.0)).outline("digamma", digamma)
        return [total + k.below(2.0).select(value, -value)]

    start = y.iterated(3, add_digamma, log(y) + _EULER)[0]
    first = exp(-_log_gamma(m + 1.0))

    def add(k: Values, term: Values, bracket: Values, total: Values) -> Sequence[Values]:
        total = total + term * bracket
        bracket = bracket + 1.0 / (a + k) + 1.0 / (b + k) - 1.0 / (k + 1.0) - 1.0 / (k + m + 1.0)
        return [term * ((a + k) / (k + 1.0)) * ((b + k) / (k + m + 1.0)) * y, bracket, total]

    count = a.abs() + b.abs() + m + 60.0
    return y.iterated(count.is_nan().select(1.0, count.clamped(1.0, _MOST)).ceil(), add, first, start, y.like(0.0))[2]


# Exponential integrals, and the scaled complementary error function.

#: From here on Ei's asymptotic series is exact to the last bit of float64; its terms by width.
_FAR_INTEGRAL = 40.0
_ASYMPTOTIC_TERMS = {32: 10, 64: 38}


#: Terms of En's power series up to 1, levels of its fraction c0 + c1 / x beyond, and terms of Ei's power series c0 + c1 x, by width.
_POWER_TERMS = {32: 12, 64: 20}
_LEVELS = {32: (4.0, 24.0), 64: (6.0, 90.0)}
_EI_TERMS = {32: (14.0, 1.9), 64: (22.0, 2.6)}


@in_float64_or_pairs
def expn(n: Values, x: Values) -> Values:
    """Return En(x), the integral of exp(-x t) / t^n from t = 1 to infinity.

    NaN unless n is an integer >= 0 and x >= 0.
    """
    valid = n.compare("oge", 0.0) & n.below(math.inf) & n.floor().equals(n) & x.compare("oge", 0.0)
    inside = valid & x.above(0.0) & x.below(math.inf)
    first = n.equals(0.0)
    order, point = (inside & ~first).select(n, 1.0), inside.select(x, 1.0)
    far = point.above(1.0)
    root = exp(point * -0.5)
    near = _power_series(far.select(1.0, order), far.select(1.0, point))
    distant = root / _fraction(far.select(order, 1.0), far.select(point, 4.0)) * root
    out = first.select(root / point * root, far.select(distant, near))
    at_zero = n.above(1.0).select(1.0 / n.above(1.0).select(n - 1.0, 1.0), math.inf)
    ends = x.equals(0.0).select(at_zero, 0.0)
    return inside.select(out, valid.select(ends, math.nan))


def _power_series(n: Values, x: Values) -> Values:
    """Return En(x) for integers n >= 1 and 0 < x <= 1 (Abramowitz & Stegun 5.1.12)."""
    # The term of power n - 1 has the logarithm.
    total, power = x.like(0.0), x.like(1.0)
    logarithm = n.outline("digamma", digamma) - log(x)
    for k in range(_POWER_TERMS[x.range]):
        single = n.equals(k + 1.0)
        total = total + power * single.select(logarithm, 1.0 / single.select(1.0, n - (k + 1.0)))
        power = power * (x * (-1.0 / (k + 1.0)))
    return total


def _fraction(n: Values, x: Values) -> Values:
    """Return x + n - n / (x + n + 2 - 2 (n + 1) / …), which divides e^-x to En(x).

    It is for x > 1 (Abramowitz & Stegun 5.1.22).
    """
    first, factor = _LEVELS[x.range]
    last = (first + factor / x).ceil()
    base = x + n

    def level(k: Values, value: Values) -> Sequence[Values]:
        m = last - k
        return [m.above(0.0).select(base + (2.0 * m - 2.0) - m * (n + (m - 1.0)) / value, value)]

    return x.iterated(last, level, base + 2.0 * last)[0]


@in_float64_or_pairs
def expi(x: Values) -> Values:
    """Return Ei(x), the principal value of the integral of exp(t) / t from -inf to x."""
    # Left of 0 it is -E1(-x).
    right = x.above(0.0)
    far = x.compare("oge", _FAR_INTEGRAL) & x.below(math.inf)
    near = right & x.below(_FAR_INTEGRAL)
    small = near.select(x, 1.0)
    positive = near.select(_EULER + log(small) + _positive_series(near, small), _asymptotic(far.select(x, _FAR_INTEGRAL)))
    negative = -expn(x.like(1.0), x.below(0.0).select(-x, 1.0))
    out = right.select(x.equals(math.inf).select(x, positive), x.below(0.0).select(negative, -math.inf))
    return x.is_nan().select(x, out)


def _positive_series(where: Values, x: Values) -> Values:
    """Return x + x^2 / (2 2!) + x^3 / (3 3!) + …."""
    first, factor = _EI_TERMS[x.range]

    def add(n: Values, power: Values, total: Values) -> Sequence[Values]:
        k = n + 2.0
        power = power * (x / k)
        return [power, total + power / k]

    return x.iterated(where.select((first + factor * x).ceil(), 1.0), add, x, x)[1]


def _asymptotic(x: Values) -> Values:
    """Return e^x / x (1 + 1/x + 2!/x^2 + …) for x >= _FAR, finite where e^x is not."""
    inverse = 1.0 / x
    total = x.like(1.0)
    for k in range(_ASYMPTOTIC_TERMS[x.range], 0, -1):
        total = total * (inverse * float(k)) + 1.0
    root = exp(0.5 * x)
    return root * (total * inverse) * root


@in_float64
def erfcx(x: Values) -> Values:
    """Return exp(x^2) erfc(x)."""
    # It is Schonfelder's interpolant (1978), far on the right the asymptotic series (Abramowitz & Stegun 7.1.23). On the left e^(x^2)
    # dominates; its exponent is split so that the larger summand is exact.
    limit, size = ERFC_LIMITS[x.bits // 8], x.abs()
    far = size.max_keep_nan(limit)
    inverse = 1.0 / far
    square = inverse * inverse * 0.5
    odd = [float((-1) ** k * math.prod(range(1, 2 * k, 2))) for k in range(8)]
    tail = inverse * square.polynomial(odd[::-1]) * (1.0 / math.sqrt(math.pi))
    right = size.above(limit).select(tail, erfc_scaled(size.min_keep_nan(limit)))
    reach = size.min_keep_nan(30.0)
    head = (reach * 8.0).nearest() * 0.125
    left = 2.0 * (exp(head * head) * exp((reach - head) * (reach + head))) - right
    return x.below(0.0).select(left, right)


# Box and Cox's power transforms (1964).

#: Below it (e^t - 1) / t is 1, by width.
_NEGLIGIBLE = {32: 2.0**-26, 64: 2.0**-55}


@in_float64
def boxcox(x: Values, power: Values) -> Values:
    """Return (x^power - 1) / power, and log(x) for the power 0."""
    return _transform(log(x), power, x, x.like(0.0))


@in_float64_or_pairs
def boxcox1p(x: Values, power: Values) -> Values:
    """Return `boxcox` of 1 + x."""
    return _transform(log1p(x), power, *exact_sum(x.like(1.0), x))


def _transform(logarithm: Values, power: Values, base: Values, rest: Values) -> Values:
    """Return (e^(power log) - 1) / power, also where that power alone overflows."""
    # The logarithm is that of base + rest. Its exponential would lose digits in float32, a power does not.
    exponent = power.equals(0.0).select(0.0, power * logarithm)
    close, large = exponent.abs().below(_NEGLIGIBLE[power.bits]), exponent.above(1.0)
    safe = close.select(1.0, power)
    if power.bits == 32:
        half, ordinary = large.select(power * 0.5, 0.0), large.select(base, 1.0)
        root = ordinary.outline("pow", pow, half)
        root = root.equals(math.inf).select(root, root * exp((half * large.select(rest / ordinary, 0.0)).clamped(-80.0, 100.0)))
    else:
        root = exp(large.select(exponent * 0.5, 0.0))
    grown = root / safe * root - 1.0 / safe
    out = large.select(grown, expm1(large.select(0.0, exponent)) / safe)
    infinite = logarithm.abs().equals(math.inf) & power.equals(0.0)
    return infinite.select(logarithm, close.select(logarithm, out))

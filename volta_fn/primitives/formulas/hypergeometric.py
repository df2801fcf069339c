"""The confluent and Gauss's hypergeometric function of real arguments.

The methods are those that J. W. Pearson compares ("Computation of hypergeometric functions", 2009): Taylor series after a transformation to
positive terms, asymptotic series, and the connection with 1 - x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from volta_fn.primitives.formulas.exponential import exp, log, pow
from volta_fn.primitives.formulas.gamma import digamma, gamma_sign, lgamma
from volta_fn.primitives.formulas.values import Values, in_float64

#: From which |x| on the confluent function is an asymptotic series, and how many terms that has.
_FAR, _FAR_TERMS = 100.0, 40
#: Beyond it Gauss's function is connected with 1 - x, and how far c - a - b must be from an integer for that.
_NEAR_ONE, _GAP = 0.75, 0.05
#: At most so many terms of a Taylor series.
_MOST = 20000.0
#: Euler's constant, -digamma(1).
_EULER = 0.5772156649015329


def _series(count: Values, factor: Callable[[Values], Values], first: Values) -> Values:
    """Return the sum of terms, each of which is factor(k) times the one before."""

    def add(k: Values, term: Values, total: Values) -> Sequence[Values]:
        following = term.equals(0.0).select(0.0, term * factor(k))
        return [following, total + following]

    return first.iterated(count.is_nan().select(1.0, count.clamped(1.0, _MOST)).ceil(), add, first, first)[1]


def _ends(a: Values) -> Values:
    """Return whether (a)_k is 0 from some k on."""
    return a.compare("ole", 0.0) & a.floor().equals(a)


def _log_gamma(x: Values) -> Values:
    return x.called("lgamma", lgamma)


@in_float64
def hyp1f1(a: Values, b: Values, x: Values) -> Values:
    """Return Kummer's function, the sum of (a)_k / (b)_k x^k / k!.

    For x < 0 it is e^x M(b - a, b, -x), unless the sum ends.
    """
    mirrored = x.below(0.0) & ~_ends(a)
    top, size = mirrored.select(b - a, a), mirrored.select(-x, x)
    spread = ((b - top).abs() + 1.0) * ((1.0 - top).abs() + 1.0)
    far = size.above(_FAR) & size.above(2.0 * spread) & ~_ends(top)
    bounded = far.select(1.0, size)
    half = mirrored.select(exp(bounded * -0.5), 1.0)
    extent = bounded.abs()
    count = 50.0 + 1.5 * extent + 2.0 * (extent * top.abs()).sqrt() + b.abs()
    near = half * _series(count, lambda k: (top + k) / (b + k) * (bounded / (k + 1.0)), half)
    distant = _far_kummer(far.select(top, 1.0), far.select(b, 2.0), far.select(size, _FAR), mirrored)
    out = far.select(distant, near)
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

    For x < 0 it is (1 - x)^-a F(a, c - b, c, x / (x - 1)) (Pfaff). NaN for x > 1 unless the sum ends.
    """
    left = x.below(0.0)
    second, z = left.select(c - b, b), left.select(x / (x - 1.0), x)
    ends = _ends(a) | _ends(second)
    close = z.above(_NEAR_ONE) & z.compare("ole", 1.0) & ~ends
    inner = _near_one(a, second, c, close.select(z, 0.875), close)
    plain = _gauss_series(a, second, c, close.select(0.0, z))
    scale = pow(left.select(1.0 - x, 1.0), -a)
    out = close.select(inner, plain) * scale
    outside = (z.above(1.0) & ~ends) | a.is_nan() | b.is_nan() | c.is_nan() | x.is_nan()
    return outside.select(math.nan, out)


def _gauss_series(a: Values, b: Values, c: Values, z: Values) -> Values:
    """Return the sum itself, with as many terms as |z| < 1 needs."""
    rest = (1.0 - z.abs()).at_least(40.0 / _MOST)
    count = _ends(a).select(-a, _ends(b).select(-b, 40.0 / rest)).at_most(40.0 / rest + a.abs() + b.abs()) + c.abs() + 10.0
    return _series(count, lambda k: (a + k) / (c + k) * ((b + k) / (k + 1.0)) * z, z.like(1.0))


def _near_one(a: Values, b: Values, c: Values, z: Values, wanted: Values) -> Values:
    """Return it for z near 1, by z alone where c - a - b is close to an integer.

    Elsewhere it is a sum of two series at 1 - z, each times a quotient of gamma functions. A gamma function with a pole is left out there.
    """
    excess = c - a - b
    nearest = excess.nearest()
    integral = nearest.equals(excess)
    separate = (excess - nearest).abs().above(_GAP)
    y = 1.0 - z
    plus = _gamma_quotient(c, c - a, (integral & excess.compare("ole", 0.0)).select(1.0, excess), c - b)
    minus = _gamma_quotient(c, a, (integral & excess.compare("oge", 0.0)).select(1.0, -excess), b)
    power = pow(y, excess)
    usual = wanted & separate
    first, second = _connected(usual.select(a, 0.3), usual.select(b, 0.3), usual.select(c, 0.9), y)
    connected = plus * first + minus * second * power
    logarithmic = wanted & integral
    finite, infinite = _logarithmic(logarithmic.select(a, 1.0), logarithmic.select(b, 1.0), logarithmic.select(c, 2.0), y)
    with_logarithm = excess.below(0.0).select(minus * finite * power + plus * infinite, plus * finite + minus * infinite * power)
    slow = wanted & ~separate & ~integral
    by_itself = _gauss_series(slow.select(a, 1.0), slow.select(b, 1.0), c, slow.select(z, 0.0))
    out = slow.select(by_itself, integral.select(with_logarithm, connected))
    at_one = excess.above(0.0).select(plus, minus.below(0.0).select(-math.inf, y.like(math.inf)))
    return (wanted & y.equals(0.0)).select(at_one, out)


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
    """Return the sums at 1 - y, for integers c - a - b (A. & S. 15.3.10 to 15.3.12).

    Negative ones become positive by Euler's transformation.
    """
    given = c - a - b
    below = given.below(0.0)
    first, second, m = below.select(c - a, a), below.select(c - b, b), given.abs()
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
        value = k.equals(0.0).select(a, k.equals(1.0).select(b, m + 1.0)).called("digamma", digamma)
        return [total + k.below(2.0).select(value, -value)]

    start = y.iterated(3, add_digamma, log(y) + _EULER)[0]
    first = exp(-_log_gamma(m + 1.0))

    def add(k: Values, term: Values, bracket: Values, total: Values) -> Sequence[Values]:
        total = total + term * bracket
        bracket = bracket + 1.0 / (a + k) + 1.0 / (b + k) - 1.0 / (k + 1.0) - 1.0 / (k + m + 1.0)
        return [term * ((a + k) / (k + 1.0)) * ((b + k) / (k + m + 1.0)) * y, bracket, total]

    count = a.abs() + b.abs() + m + 60.0
    return y.iterated(count.is_nan().select(1.0, count.clamped(1.0, _MOST)).ceil(), add, first, start, y.like(0.0))[2]

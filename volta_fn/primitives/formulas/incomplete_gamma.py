"""The incomplete gamma functions (the gamma distribution function), derivatives.

Three formulas share the quadrant of a > 0, x > 0: a power series up to x = a + 1, a continued fraction beyond, and Temme's uniform
asymptotic expansion where a is large. For a < 1 and x up to 3/2 the upper function, which may be tiny, has a series of its own (Gautschi,
"A computational procedure for incomplete gamma functions", 1979). How many terms series and fractions need is known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from volta_fn.primitives.formulas.error import erfc
from volta_fn.primitives.formulas.exponential import exp, expm1, log
from volta_fn.primitives.formulas.gamma import digamma, excess, lgamma_unit, power_over_gamma
from volta_fn.primitives.formulas.values import Values, in_float64, in_float64_or_pairs

#: From here on Temme's expansion is used.
_LARGE = 1e4
#: For a < 1, up to here the upper function has its own series, beyond it the fraction.
_SMALL = 1.5

#: Terms of the power series are c0 + c1 sqrt(x), levels of the fraction c0 + c1 sqrt(a) + c2 / x, and terms of the upper function's series
#: c0, by width: measured at the borders, where they are most, with a margin of some terms.
_SERIES_TERMS = {32: (13.0, 6.5), 64: (24.0, 9.5)}
_LEVELS = {32: (7.0, 2.0, 28.0), 64: (10.0, 2.9, 92.0)}
_UPPER_TERMS = {32: 12.0, 64: 23.0}

#: C_0, C_1, C_2 of Temme, "The asymptotic expansion of the incomplete gamma functions", 1979, in falling powers of eta.
_TEMME = (
    (
        8.296711340953086e-7, -1.85406221071516e-6, -2.1854485106799922e-6, 3.9192631785224378e-5, -0.00017875514403292181,
        0.0003527336860670194, 1 / 864, -2 / 135, 1 / 12, -1 / 3,
    ),
    (
        7.6491609160811101e-6, -1.8098550334489978e-5, -4.0187757201646091e-7, 0.00020576131687242798, -0.00099022633744855967, 1 / 378,
        -1 / 288, -1 / 540,
    ),
    (2.0093878600823045e-6, 0.00077160493827160494, -0.0026813271604938272, 0.0041335978835978836),
)  # fmt: skip
_TEMME_SLOPES = tuple(tuple(c * (len(row) - 1 - k) for k, c in enumerate(row[:-1])) for row in _TEMME)


class _Quadrant:
    """The arguments inside the quadrant, and which formula holds for them."""

    def __init__(self, a: Values, x: Values) -> None:
        inside = a.above(0.0) & a.below(math.inf) & x.above(0.0) & x.below(math.inf)
        self.inside = inside
        self.a, self.x = inside.select(a, 1.0), inside.select(x, 0.5)
        below_one = self.a.below(1.0)
        self.large = self.a.compare("oge", _LARGE)
        self.beyond = ~self.large & self.x.above(below_one.select(self.a.like(_SMALL), self.a + 1.0))
        self.before = ~self.large & ~self.beyond
        self.small = self.before & below_one

    def at_ends(self, a: Values, x: Values, value: Values, low: float, high: float) -> Values:
        """Return `value` inside the quadrant, and at its ends one of the others.

        That is `low` where all of the distribution is at most x, `high` where none is, else NaN.
        """
        infinite_a, infinite_x = a.equals(math.inf), x.equals(math.inf)
        all_below = (infinite_x & a.compare("oge", 0.0) & ~infinite_a) | (a.equals(0.0) & x.above(0.0))
        none_below = (x.equals(0.0) & a.above(0.0)) | (infinite_a & x.compare("oge", 0.0) & ~infinite_x)
        ends = all_below.select(low, none_below.select(high, value.like(math.nan)))
        return self.inside.select(value, ends)


@in_float64_or_pairs
def gammainc(a: Values, x: Values) -> Values:
    """Return the regularised lower incomplete gamma function."""
    return _value(a, x, upper=False)


@in_float64_or_pairs
def gammaincc(a: Values, x: Values) -> Values:
    """Return the regularised upper incomplete gamma function."""
    return _value(a, x, upper=True)


def _value(a: Values, x: Values, upper: bool) -> Values:
    q = _Quadrant(a, x)
    weight = power_over_gamma(q.a, q.x)
    lower = weight * _series(q)
    above = weight * q.a / _fraction(q)
    if upper:
        out = q.beyond.select(above, q.small.select(_upper_series(q), 1.0 - lower))
    else:
        out = q.beyond.select(1.0 - above, lower)
    return q.at_ends(a, x, q.large.select(_expansion(q, upper), out), *((0.0, 1.0) if upper else (1.0, 0.0)))


def _count(where: Values, count: Values) -> Values:
    return where.select(count.ceil(), 1.0)


def _series(q: _Quadrant) -> Values:
    """Return Σ_n x^n / ((a + 1) … (a + n)) (Abramowitz & Stegun 6.5.29)."""
    first, root = _SERIES_TERMS[q.x.range]
    a, x = q.a, q.before.select(q.x, 0.5)

    def add(n: Values, term: Values, total: Values) -> Sequence[Values]:
        term = term * (x / (a + (n + 1.0)))
        return [term, total + term]

    one = x.like(1.0)
    return x.iterated(_count(q.before, x.sqrt() * root + first), add, one, one)[1]


def _upper_series(q: _Quadrant) -> Values:
    """Return 1 - x^a / gamma(a + 1) (1 + a Σ_n (-x)^n / ((a + n) n!)) for a < 1."""
    a, x = q.small.select(q.a, 0.5), q.small.select(q.x, 0.5)

    def add(n: Values, power: Values, total: Values) -> Sequence[Values]:
        power = power * (-x / (n + 1.0))
        return [power, total + power / (a + (n + 1.0))]

    exponent = a * log(x) - lgamma_unit(a)
    total = x.iterated(_count(q.small, x.like(_UPPER_TERMS[x.range])), add, x.like(1.0), x.like(0.0))[1]
    less = expm1(exponent)
    return -(less + (less + 1.0) * a * total)


def _fraction(q: _Quadrant) -> Values:
    """Return x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / …)."""
    # It is evaluated from the last level on (Abramowitz & Stegun 6.5.31).
    a, x = q.beyond.select(q.a, 1.0), q.beyond.select(q.x, 4.0)
    last = _levels(q, a, x)

    def level(k: Values, value: Values) -> Sequence[Values]:
        n = (last - k).max_keep_nan(0.0)  # beyond the first level there is nothing
        return [n.above(0.0).select((x - a) + (2.0 * n - 1.0) - n * (n - a) / value, value)]

    return x.iterated(last, level, (x - a) + (2.0 * last + 1.0))[0]


def _levels(q: _Quadrant, a: Values, x: Values) -> Values:
    first, root, inverse = _LEVELS[x.range]
    return _count(q.beyond, a.sqrt() * root + first + inverse / x)


def _deviation(q: _Quadrant) -> tuple[Values, Values, Values]:
    """Return a, mu = x/a - 1 and half = mu - log(1 + mu)."""
    # Beyond 1 the density underflows, but series in eta would still grow.
    a, x = q.large.select(q.a, _LARGE), q.large.select(q.x, _LARGE)
    mu = (x - a) / a
    return a, mu, excess(mu, x / a).min_keep_nan(1.0)


def _expansion(q: _Quadrant, upper: bool) -> Values:
    """Return erfc(±eta sqrt(a/2))/2 and a correction (Temme 1979)."""
    # eta^2/2 is `half`, and eta has mu's sign.
    a, mu, half = _deviation(q)
    eta = (2.0 * half).sqrt().copysign(mu)
    c0, c1, c2 = (eta.polynomial(c) for c in _TEMME)
    correction = c0 + (c1 + c2 / a) / a
    weight = exp(-(a * half)) / (a.sqrt() * math.sqrt(2.0 * math.pi))
    root = eta * (0.5 * a).sqrt()
    if upper:
        return 0.5 * root.outline("erfc", erfc) + weight * correction
    return 0.5 * (-root).outline("erfc", erfc) - weight * correction


# derivatives by a


@in_float64
def random_gamma_grad(a: Values, x: Values) -> Values:
    """Return dx/da of a gamma number x at a fixed quantile (Figurnov et al. 2018).

    It is minus the a-derivative of the lower function over the density, a ratio that neither overflows nor underflows.
    """
    q = _Quadrant(a, x)
    return q.at_ends(a, x, _slope(q), 0.0, 0.0)


@in_float64_or_pairs
def gammainc_grad_a(a: Values, x: Values) -> Values:
    """Return the derivative of the lower incomplete gamma function by a."""
    q = _Quadrant(a, x)
    return q.at_ends(a, x, -(_slope(q) * _density(q)), 0.0, 0.0)


@in_float64_or_pairs
def gamma_density(a: Values, x: Values) -> Values:
    """Return x^(a-1) e^-x / gamma(a), the derivative of the lower function by x."""
    q = _Quadrant(a, x)
    at_zero = a.below(1.0).select(math.inf, a.above(1.0).select(0.0, x.like(1.0)))
    out = q.at_ends(a, x, _density(q), 0.0, 0.0)
    return (x.equals(0.0) & a.above(0.0) & a.below(math.inf)).select(at_zero, out)


def _density(q: _Quadrant) -> Values:
    """Return x^(a-1) e^-x / gamma(a); for a >= 1 a - 1 is exact."""
    below_one = q.a.below(1.0)
    return power_over_gamma(below_one.select(q.a, q.a - 1.0), q.x) * below_one.select(q.a / q.x, 1.0)


@in_float64_or_pairs
def gamma_pdf(x: Values, a: Values, loc: Values, scale: Values) -> Values:
    """Return the density of the gamma distribution, moved and stretched."""
    return gamma_density(a, (x - loc) / scale) / scale


def _slope(q: _Quadrant) -> Values:
    return q.large.select(_slope_by_expansion(q), q.beyond.select(_slope_by_fraction(q), _slope_by_series(q)))


def _slope_by_series(q: _Quadrant) -> Values:
    first, root = _SERIES_TERMS[q.x.range]
    a, x = q.before.select(q.a, 1.0), q.before.select(q.x, 0.5)

    def add(n: Values, term: Values, inverses: Values, total: Values, change: Values) -> Sequence[Values]:
        inverse = 1.0 / (a + (n + 1.0))
        term, inverses = term * (x * inverse), inverses + inverse
        return [term, inverses, total + term, change - term * inverses]

    one, zero = x.like(1.0), x.like(0.0)
    count = _count(q.before, x.sqrt() * root + (first + 4.0))
    _, _, total, change = x.iterated(count, add, one, zero, one, zero)
    return -(x / a) * (total * (log(x) - (a + 1.0).outline("digamma", digamma)) + change)


def _slope_by_fraction(q: _Quadrant) -> Values:
    a, x = q.beyond.select(q.a, 1.0), q.beyond.select(q.x, 4.0)
    last = _levels(q, a, x)

    def level(k: Values, value: Values, slope: Values) -> Sequence[Values]:
        n = (last - k).max_keep_nan(0.0)
        more = n.above(0.0)
        inverse = 1.0 / value
        top = n * (n - a) * inverse
        following = (x - a) + (2.0 * n - 1.0) - top
        return [more.select(following, value), more.select(n * inverse + top * (slope * inverse) - 1.0, slope)]

    value, slope = x.iterated(last, level, (x - a) + (2.0 * last + 1.0), x.like(-1.0))
    return x / value * (log(x) - a.outline("digamma", digamma) - slope / value)


def _slope_by_expansion(q: _Quadrant) -> Values:
    a, mu, half = _deviation(q)
    eta = (2.0 * half).sqrt().copysign(mu)
    c0, c1, c2 = (eta.polynomial(c) for c in _TEMME)
    d0, d1 = (eta.polynomial(c) for c in _TEMME_SLOPES[:2])
    correction = c0 + (c1 + c2 / a) / a
    centre = eta.equals(0.0)
    ratio = centre.select(1.0, mu / centre.select(1.0, eta))
    drift = correction * (mu - half - 0.5 / a) - ratio / a * (d0 + d1 / a) - (c1 + 2.0 * c2 / a) / (a * a)
    # Stirling's series converts the expansion's weight to the density.
    stirling = 1.0 + (1.0 / 12.0 + (1.0 / 288.0 - 139.0 / 51840.0 / a) / a) / a
    return (mu + 1.0) * stirling * (ratio + drift - 0.5 * eta)

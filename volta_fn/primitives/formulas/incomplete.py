"""The incomplete gamma and beta functions (distribution functions)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from volta_fn.primitives.formulas.error import erfc
from volta_fn.primitives.formulas.exponential import exp, expm1, log, log1p, pow
from volta_fn.primitives.formulas.gamma import (
    LEAST,
    beta_quotient,
    digamma,
    excess,
    gamma_one_more,
    lgamma_unit,
    log_beta_and_sign,
    log_rise,
    log_rise_of_less_than_one,
    power_over_gamma,
    remainder,
)
from volta_fn.primitives.formulas.values import Values, exact_product, exact_sum, in_float64, in_float64_or_pairs

# The incomplete gamma functions.
#
# Three formulas share the quadrant of a > 0, x > 0: a power series up to x = a + 1, a continued fraction beyond, and Temme's uniform
# asymptotic expansion where a is large. For a < 1 and x up to 3/2 the upper function, which may be tiny, has a series of its own (Gautschi,
# "A computational procedure for incomplete gamma functions", 1979). How many terms series and fractions need is known beforehand.

#: From here on Temme's expansion is used.
_GAMMA_LARGE = 1e4
#: For a < 1, up to here the upper function has its own series, beyond it the fraction.
_SMALL = 1.5

#: Terms of the power series are c0 + c1 sqrt(x), levels of the fraction c0 + c1 sqrt(a) + c2 / x, and terms of the upper function's series
#: c0, by width: measured at the borders, where they are most, with a margin of some terms.
_SERIES_TERMS = {32: (13.0, 6.5), 64: (24.0, 9.5)}
_GAMMA_LEVELS = {32: (7.0, 2.0, 28.0), 64: (10.0, 2.9, 92.0)}
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
        self.large = self.a.compare("oge", _GAMMA_LARGE)
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
    return _gamma_value(a, x, upper=False)


@in_float64_or_pairs
def gammaincc(a: Values, x: Values) -> Values:
    """Return the regularised upper incomplete gamma function."""
    return _gamma_value(a, x, upper=True)


def _gamma_value(a: Values, x: Values, upper: bool) -> Values:
    q = _Quadrant(a, x)
    weight = power_over_gamma(q.a, q.x)
    lower = weight * _series(q)
    above = weight * q.a / _gamma_fraction(q)
    if upper:
        out = q.beyond.select(above, q.small.select(_upper_series(q), 1.0 - lower))
    else:
        out = q.beyond.select(1.0 - above, lower)
    return q.at_ends(a, x, q.large.select(_gamma_expansion(q, upper), out), *((0.0, 1.0) if upper else (1.0, 0.0)))


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


def _gamma_fraction(q: _Quadrant) -> Values:
    """Return x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / …)."""
    # It is evaluated from the last level on (Abramowitz & Stegun 6.5.31).
    a, x = q.beyond.select(q.a, 1.0), q.beyond.select(q.x, 4.0)
    last = _gamma_levels(q, a, x)

    def level(k: Values, value: Values) -> Sequence[Values]:
        n = (last - k).max_keep_nan(0.0)  # beyond the first level there is nothing
        return [n.above(0.0).select((x - a) + (2.0 * n - 1.0) - n * (n - a) / value, value)]

    return x.iterated(last, level, (x - a) + (2.0 * last + 1.0))[0]


def _gamma_levels(q: _Quadrant, a: Values, x: Values) -> Values:
    first, root, inverse = _GAMMA_LEVELS[x.range]
    return _count(q.beyond, a.sqrt() * root + first + inverse / x)


def _deviation(q: _Quadrant) -> tuple[Values, Values, Values]:
    """Return a, mu = x/a - 1 and half = mu - log(1 + mu)."""
    # Beyond 1 the density underflows, but series in eta would still grow.
    a, x = q.large.select(q.a, _GAMMA_LARGE), q.large.select(q.x, _GAMMA_LARGE)
    mu = (x - a) / a
    return a, mu, excess(mu, x / a).min_keep_nan(1.0)


def _gamma_expansion(q: _Quadrant, upper: bool) -> Values:
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
    last = _gamma_levels(q, a, x)

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


# The regularised incomplete beta function (the beta distribution function).
#
# A continued fraction (Didonato and Morris, "Significant digit computation of the incomplete beta function ratios", 1992) converges fast
# for x up to the distribution's mean; beyond it that of the complement does. Where the complement leaves no digits, for b < 1, there is a
# series of the difference, and where both parameters are large, an expansion in which the complementary error function is the first term
# (Temme, "Incomplete Laplace integrals: uniform asymptotic expansion with application to the incomplete beta function", 1987). How many
# terms series and fractions need is known beforehand.

#: From here on both parameters are large, by width: the expansion's relative error is 1e-12 at 1e6, its slopes' 1e-9.
_BETA_LARGE = {32: 1e4, 64: 1e6}
#: With so large an a and moderate b the distribution is at 1; with moderate a, and b x so large, it is before x.
_ENOUGH = 1e18
#: Below, powers and gamma functions of parameters do not overflow.
_DIRECT = 14.0

#: Levels of the fraction are c0 + c1 sqrt(min(p, q)), and for p > q up to c2 more if q < LEAST, up to c3 more if q < 1; terms of the
#: complement's series c0 - c1 / log y: by width. Measured over all p, q and y, with a margin of some.
_BETA_LEVELS = {32: (10.0, 2.0, 12.0, 22.0), 64: (20.0, 2.8, 30.0, 85.0)}
_TERMS = {32: (11.0, 18.0), 64: (18.0, 39.0)}
#: From this p on there are no more levels for small q.
_MOST_LEVELS_FROM = 120.0

#: (u - log(1 + u) - u^2 / 2) / u^3 near 0: so many terms.
_CUBIC_TERMS = 17


class _Unit:
    """Arguments inside the domain, and those of the tail that is computed.

    That tail has the parameters p and q and ends at y = 1 - z.
    """

    def __init__(self, a: Values, b: Values, x: Values, upper: bool = False) -> None:
        self.inside = a.above(0.0) & a.below(math.inf) & b.above(0.0) & b.below(math.inf) & x.above(0.0) & x.below(1.0)
        a, b, x = (self.inside.select(v, default) for v, default in ((a, 1.0), (b, 1.0), (x, 0.5)))
        if a.range == 32:  # squares of parameters would overflow; the tail is 0 long before
            large = _BETA_LARGE[32]
            a, b = b.below(large).select(a.min_keep_nan(_ENOUGH), a), a.below(large).select(b.at_most(_ENOUGH / x), b)
        quarter = a * 0.25 + 0.25
        self.beyond = x.above(quarter / (quarter + b * 0.25 + 0.25))
        less, rest = exact_sum(x.like(1.0), -x)
        log_x, log_less = log(x), log1p(-x)
        self.p, self.q = self.beyond.select(b, a), self.beyond.select(a, b)
        self.y, self.z = self.beyond.select(less, x), self.beyond.select(x, less)
        self.y_rest, self.z_rest = self.beyond.select(rest, 0.0), self.beyond.select(0.0, rest)
        self.log_y, self.log_z = self.beyond.select(log_less, log_x), self.beyond.select(log_x, log_less)
        # x (a + b) - a, whose large terms cancel.
        first, first_error = exact_product(x, a)
        second, second_error = exact_product(x, b)
        total, error = exact_sum(first, second)
        distance = (total - a) + (error + first_error + second_error)
        self.distance = self.beyond.select(-distance, distance)
        self.least, self.most = a.at_most(b), a.at_least(b)
        self.large = self.least.compare("oge", _BETA_LARGE[a.range])
        self.opposite = ~self.beyond if upper else self.beyond  # 1 less the tail that is computed
        self.single = self.opposite & ~self.large & self.p.below(1.0)
        self.both = self.least.compare("oge", LEAST)

    @property
    def large_parameters(self) -> tuple[Values, Values]:
        """The parameters p and q where both are large, elsewhere the least that are."""
        least = _BETA_LARGE[self.p.range]
        return self.large.select(self.p, least), self.large.select(self.q, least)

    @cached_property
    def deviance(self) -> Values:
        """-log of (y (p + q) / p)^p (z (p + q) / q)^q, where p and q are at least LEAST."""
        p, q = self.both.select(self.p, LEAST), self.both.select(self.q, LEAST)
        y, z, distance = self.both.select(self.y, 0.5), self.both.select(self.z, 0.5), self.both.select(self.distance, 0.0)
        first, second = p.outline_each("excess", excess, [(distance / p, y + y * (q / p)), (-distance / q, z + z * (p / q))])
        return p * first + q * second


@in_float64_or_pairs
def betainc(a: Values, b: Values, x: Values) -> Values:
    """Return the regularised incomplete beta function of x."""
    return _beta_value(a, b, x, upper=False)


@in_float64_or_pairs
def betaincc(a: Values, b: Values, x: Values) -> Values:
    """Return 1 less the incomplete beta function, precise if small."""
    return _beta_value(a, b, x, upper=True)


def _beta_value(a: Values, b: Values, x: Values, upper: bool) -> Values:
    u = _Unit(a, b, x, upper)
    small = _weight(u) / _beta_fraction(u)
    value = u.single.select(_complement(u), u.opposite.select(1.0 - small, small))
    value = u.large.select(_beta_expansion(u), value)
    none, every = a.equals(0.0) | b.equals(math.inf), b.equals(0.0) | a.equals(math.inf)
    valid = a.compare("oge", 0.0) & b.compare("oge", 0.0) & x.compare("oge", 0.0) & x.compare("ole", 1.0) & ~(none & every)
    edge = (none & x.above(0.0)).select(1.0, (every & x.below(1.0)).select(0.0, x))
    edge = 1.0 - edge if upper else edge
    return u.inside.select(value, valid.select(edge, math.nan))


@in_float64_or_pairs
def beta_density(a: Values, b: Values, x: Values) -> Values:
    """Return x^(a - 1) (1 - x)^(b - 1) / B(a, b), the derivative by x.

    It is 0 where all the probability is at one point.
    """
    u = _Unit(a, b, x)
    end = a.like(0.0)
    for power, other, point in ((a, b, 0.0), (b, a, 1.0)):
        value = power.below(1.0).select(math.inf, power.above(1.0).select(0.0, other))
        end = x.equals(point).select(value, end)
    proper = a.above(0.0) & b.above(0.0) & a.below(math.inf) & b.below(math.inf)
    if a.is_pair:
        exponent, factor = _weight_as_exponent(u)
        root = exp((exponent - u.log_y - u.log_z) * 0.5)  # its square may be 0 where the density is not
        density = root * factor * u.p * root
    else:
        weight = _weight(u)
        density = weight * u.p / u.y / u.z  # p / y may overflow
    return u.inside.select(density, _outside(a, b, x, proper.select(end, 0.0)))


@in_float64_or_pairs
def beta_pdf(x: Values, a: Values, b: Values, loc: Values, scale: Values) -> Values:
    """Return the density of the beta distribution, moved and stretched."""
    return beta_density(a, b, (x - loc) / scale) / scale


@in_float64_or_pairs
def nbinom_pmf(k: Values, n: Values, p: Values) -> Values:
    """Return gamma(k + n) / (k! gamma(n)) p^n (1 - p)^k."""
    return beta_density(n, k + 1.0, p) * p / (n + k)


def _outside(a: Values, b: Values, x: Values, value: Values) -> Values:
    """Return a value at the edges of the domain, NaN beyond them."""
    valid = a.compare("oge", 0.0) & b.compare("oge", 0.0) & x.compare("oge", 0.0) & x.compare("ole", 1.0)
    return valid.select(value, math.nan)


def _weight(u: _Unit) -> Values:
    """Return y^p z^q / (p B(p, q))."""
    if u.p.is_pair:
        exponent, factor = _weight_as_exponent(u)
        root = exp(exponent * 0.5)
        return root * factor * root
    exponent, factor = _weight_by_series(u)
    by_series = exp(exponent) * factor
    direct = u.most.below(_DIRECT)
    p, q = direct.select(u.p, 1.0), direct.select(u.q, 1.0)
    plain = _power(u.y, u.y_rest, p) * _power(u.z, u.z_rest, q) * beta_quotient(p, q)
    mixed = ~(u.both | direct)
    least, most = mixed.select(u.least, 1.0), mixed.select(u.most, LEAST)
    exponent = mixed.select(u.p, 1.0) * u.log_y + mixed.select(u.q, 1.0) * u.log_z + log_rise(most, least)
    scale = u.p.above(u.q).select(least / most, 1.0) / gamma_one_more(least)
    return u.both.select(by_series, direct.select(plain, exp(exponent) * scale))


def _weight_by_series(u: _Unit) -> tuple[Values, Values]:
    """Return an exponent and a factor: the weight for p and q >= LEAST."""
    p, q = u.both.select(u.p, LEAST), u.both.select(u.q, LEAST)
    change = remainder(p) + remainder(q) - remainder(p + q)
    return -(u.deviance + change), (q / (p + q)).sqrt() / (p.sqrt() * math.sqrt(2.0 * math.pi))


def _weight_as_exponent(u: _Unit) -> tuple[Values, Values]:
    """Return the weight as an exponent and a factor."""
    exponent, factor = _weight_by_series(u)
    p, q = u.both.select(1.0, u.p), u.both.select(1.0, u.q)
    logarithm = p * u.log_y + q * u.log_z - log_beta_and_sign(p, q)[0]
    return u.both.select(exponent, logarithm), u.both.select(factor, 1.0 / p)


def _power(base: Values, rest: Values, power: Values) -> Values:
    """Return (base + rest)^power, where the rest is the base's rounding error."""
    return base.outline("pow", pow, power) * (1.0 + power * rest / base)


def _beta_levels(u: _Unit, skip_single: bool = False) -> tuple[Values, Values, Values, Values, Values]:
    """Return how many levels the fraction needs, and its arguments."""
    first, root, few, many = _BETA_LEVELS[u.p.range]
    unused = u.large | (u.single if skip_single else u.large)
    p, q, y, distance = (unused.select(default, v) for v, default in ((u.p, 1.0), (u.q, 1.0), (u.y, 0.25), (u.distance, -0.5)))
    more = q.below(1.0).select(many, q.below(LEAST).select(few, q.like(0.0))) * (p * (1.0 / _MOST_LEVELS_FROM)).min_keep_nan(1.0).sqrt()
    count = (p.at_most(q).sqrt() * root + (first + p.above(q).select(more, 0.0))).ceil()
    return count, p, q, y, distance


def _level(n: Values, p: Values, q: Values, y: Values, distance: Values) -> tuple[Values, Values]:
    """Return the n-th numerator, n >= 1, and the term before it.

    Those of n = 1 are divided by p.
    """
    first = n.equals(1.0)
    below = p + (2.0 * n - 1.0)
    top = first.select(1.0, p + (n - 1.0)) * n / (below * below) * ((p + q + (n - 1.0)) * y) * ((q - n) * y)
    k = n - 1.0
    even = k * ((q - k) * y) / first.select(1.0, below - 2.0)
    return top, k + even + first.select(1.0, p + k) * ((1.0 - distance) + k * (2.0 - y)) / below


def _beta_fraction(u: _Unit) -> Values:
    """Return b0 + a1 / (b1 + a2 / (b2 + …)), which divides y^p z^q / (p B(p, q))."""
    last, p, q, y, distance = _beta_levels(u, skip_single=True)

    def level(k: Values, value: Values) -> Sequence[Values]:
        n = last - k
        top, before = _level(n.max_keep_nan(1.0), p, q, y, distance)
        return [n.above(0.0).select(before + top / value, value)]

    return y.iterated(last, level, _level(last + 1.0, p, q, y, distance)[1])[0]


def _complement(u: _Unit) -> Values:
    """Return 1 - y^p / (p B(p, q)) (1 + p Σ_n (1 - q)_n y^n / (n! (p + n))) for p < 1."""
    p, q, y = (u.single.select(v, default) for v, default in ((u.p, 0.5), (u.q, 1.0), (u.y, 0.25)))

    def add(k: Values, power: Values, total: Values) -> Sequence[Values]:
        n = k + 1.0
        power = power * (((n - q) * y) / n)
        return [power, total + power / (p + n)]

    log_y = u.single.select(u.log_y, -1.0)
    first, factor = _TERMS[y.range]
    total = y.iterated(u.single.select((first - factor / log_y).ceil(), 1.0), add, y.like(1.0), y.like(0.0))[1]
    exponent = p * log_y - lgamma_unit(p) + log_rise_of_less_than_one(q, p)
    less = expm1(exponent)
    return -(less + (less + 1.0) * p * total)


# both parameters large


class _Deviation:
    """H with H^2/2 = the deviance, near Y, the distance over the standard deviation.

    k is 1/H - 1/Y = k0 + k1 H + k2 H^2 + …
    """

    def __init__(self, u: _Unit) -> None:
        p, q = u.large_parameters
        distance = u.large.select(u.distance, 0.0)
        self.half = u.large.select(u.deviance, 0.0)
        self.h = (2.0 * self.half).sqrt().copysign(distance)
        self.share_p, self.share_q = 1.0 / (1.0 + q / p), 1.0 / (1.0 + p / q)
        self.variance = p * self.share_q
        inverse = 1.0 / self.variance.sqrt()
        a, b = self.share_q, self.share_p
        s1 = (b * b - a * a) * inverse * (1.0 / 3.0)
        e2 = 0.5 * inverse * inverse * (a * a * a + b * b * b)
        e3 = (b * b * b * b - a * a * a * a) * (inverse * inverse * inverse) * 0.4
        s2 = 0.5 * (e2 - s1 * s1)
        s3 = 0.5 * e3 - 0.5 * s1 * e2 + 0.5 * s1 * s1 * s1
        self.k1, self.k2 = s1 * s1 - s2, 3.0 * s1 * s2 - s3 - 2.0 * s1 * s1 * s1
        # 1/H - 1/Y without cancellation: H^2 / Y^2 - 1 is small.
        steps = [(v.clamped(-0.9, 1.0),) for v in (distance / p, -distance / q)]
        first, second = p.outline_each("cubic", _cubic, steps)
        bracket = first * (a * a) - second * (b * b)
        ratio = 1.0 + 2.0 * (distance.clamped(-1e30, 1e30) * inverse * inverse) * bracket
        root = ratio.max_keep_nan(0.01).sqrt()
        self.k = -2.0 * inverse * bracket / (root * (1.0 + root))


def _cubic(u: Values) -> Values:
    """Return (u - log(1 + u) - u^2 / 2) / u^3."""
    close = u.abs().below(0.1)
    near, far = close.select(u, 0.0), close.select(1.0, u)
    terms = [(-1.0) ** (k + 1) / (k + 3) for k in range(_CUBIC_TERMS)]
    return close.select(near.polynomial(terms[::-1]), (excess(far, far + 1.0) - 0.5 * far * far) / (far * far * far))


def _beta_expansion(u: _Unit) -> Values:
    """Return erfc(-H / sqrt(2)) / 2 and a correction."""
    d = _Deviation(u)
    correction = exp(-d.half) * (d.k + 2.0 * d.k2) / (1.0 - d.k1) * (1.0 / math.sqrt(2.0 * math.pi))
    root = d.half.sqrt().copysign(d.h)
    tail = 0.5 * u.opposite.select(root, -root).outline("erfc", erfc)
    return u.opposite.select(tail - correction, tail + correction)


# derivatives by a and b


@in_float64_or_pairs
def betainc_grad_a(a: Values, b: Values, x: Values) -> Values:
    """Return the derivative of the incomplete beta function by a."""
    u = _Unit(a, b, x)
    by_p, by_q = _slopes(u)
    return u.inside.select(u.beyond.select(-by_q, by_p), _outside(a, b, x, x.like(0.0)))


@in_float64_or_pairs
def betainc_grad_b(a: Values, b: Values, x: Values) -> Values:
    """Return the derivative of the incomplete beta function by b."""
    u = _Unit(a, b, x)
    by_p, by_q = _slopes(u)
    return u.inside.select(u.beyond.select(-by_p, by_q), _outside(a, b, x, x.like(0.0)))


def _slopes(u: _Unit) -> tuple[Values, Values]:
    """Return the derivatives of the tail that is computed by p and q."""
    value, by_p, by_q = _fraction_slopes(u)
    small = _weight(u) / value
    psi, psi_p, psi_q = u.p.outline_each("digamma", digamma, [(u.p + u.q,), (u.p + 1.0,), (u.q,)])
    first, second = u.log_y + (psi - psi_p) - by_p / value, u.log_z + (psi - psi_q) - by_q / value
    far_p, far_q = _expansion_slopes(u)
    none = small.equals(0.0)
    return tuple(  # type: ignore[return-value]
        u.large.select(far, none.select(0.0, small * near)) for far, near in ((far_p, first), (far_q, second))
    )


def _fraction_slopes(u: _Unit) -> tuple[Values, Values, Values]:
    """Return the fraction and its derivatives by p and q."""
    last, p, q, y, distance = _beta_levels(u)

    def level(k: Values, value: Values, by_p: Values, by_q: Values) -> Sequence[Values]:
        steps = last - k
        n, more = steps.max_keep_nan(1.0), steps.above(0.0)
        top, before = _level(n, p, q, y, distance)
        top_p, top_q, before_p, before_q = _level_slopes(n, p, q, y, distance)
        inverse = 1.0 / value
        return [
            more.select(before + top * inverse, value),
            more.select(before_p + (top_p - top * (by_p * inverse)) * inverse, by_p),
            more.select(before_q + (top_q - top * (by_q * inverse)) * inverse, by_q),
        ]

    n = last + 1.0
    start = _level_slopes(n, p, q, y, distance)
    value, by_p, by_q = y.iterated(last, level, _level(n, p, q, y, distance)[1], start[2], start[3])
    return value, by_p, by_q


def _level_slopes(n: Values, p: Values, q: Values, y: Values, distance: Values) -> tuple[Values, Values, Values, Values]:
    """Return the derivatives of both results of `_level` by p and q.

    The distance is y (p + q) - p.
    """
    first, k = n.equals(1.0), n - 1.0
    below = 1.0 / (p + (2.0 * n - 1.0))
    head = first.select(1.0, p + k)
    left, right = (p + q + k) * y, (q - n) * y
    scale = n * below * below
    top_p = scale * right * (first.select(0.0, left) + head * (y - 2.0 * left * below))
    top_q = scale * head * y * (left + right)
    even = first.select(0.0, 1.0 / first.select(1.0, p + (2.0 * k - 1.0)))
    inner = (1.0 - distance) + k * (2.0 - y)
    before_p = -k * ((q - k) * y) * even * even + below * (first.select(0.0, inner) + head * ((1.0 - y) - inner * below))
    return top_p, top_q, before_p, k * y * even - head * y * below


def _expansion_slopes(u: _Unit) -> tuple[Values, Values]:
    """Return the derivatives of the expansion by p and q."""
    # Terms of relative size 1 / p and 1 / q are left out. That of the deviance by p is -log(1 + distance / p).
    d = _Deviation(u)
    p, q = u.large_parameters
    distance = u.large.select(u.distance, 0.0)
    density = exp(-d.half) * (1.0 / math.sqrt(2.0 * math.pi))
    deviation = d.variance.sqrt()
    total, difference = p + q, d.share_q - d.share_p
    results = []
    for sign, parameter in ((1.0, p), (-1.0, q)):
        step = (sign * distance / parameter).clamped(-0.9, 1.0)
        centre = step.equals(0.0)
        safe = centre.select(1.0, step)
        logarithm = centre.select(1.0, 1.0 - excess(safe, safe + 1.0) / safe)  # of 1 + step, over the step
        skew = sign / total + difference * (0.5 / parameter + 0.5 / total)
        results.append(-density * (sign * deviation / parameter * logarithm * (1.0 + d.k1) + skew / (3.0 * deviation)))
    return results[0], results[1]

"""Distributions of numbers: `norm`, `gamma`, `binom`, `poisson` and others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.special.exponential import erf, expit, log_ndtr, logit, ndtr, ndtri, xlog1py
from volta_fn.scipy.special.gamma_family import (
    betainc,
    betaln,
    composite,
    gammainc,
    gammaincc,
    gammaln,
    log_beta_weight,
    log_gamma_weight,
    log_rise,
    rising,
)
from volta_fn.scipy.special.polynomials import i0e
from volta_fn.scipy.stats.declarations import (
    POSITIVE,
    UNIT,
    Continuous,
    Discrete,
    Interval,
    distribution,
    exp_or_infinity,
    log1mexp,
    log1p_square,
    log_lower_beta,
    log_lower_gamma,
    log_power,
    log_upper_beta,
    log_upper_gamma,
    log_with_tail,
    nonnegative_support,
    probability_signature,
    value_signature,
    with_promotion,
)

# Continuous distributions.


@distribution
class norm:
    """The normal distribution with mean `loc` and standard deviation `scale`.

    The density is exp(-z²/2) / sqrt(2π) for z = (x - loc) / scale, divided by `scale`. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.norm.cdf(vf.numpy.array([-1.96, 0.0, 1.96])).round(4)
    Array([0.025, 0.5  , 0.975], dtype=float32)
    """

    _standard = Continuous(value_signature)
    logpdf = _standard.logpdf(lambda z: -0.5 * (z * z) - 0.5 * math.log(2.0 * math.pi))
    pdf = _standard.pdf(special.normal_pdf)
    cdf = _standard.cdf(ndtr)
    sf = _standard.sf(lambda z: ndtr(-z))
    logcdf = _standard.logcdf(log_ndtr)
    logsf = _standard.logsf(lambda z: log_ndtr(-z))
    ppf = _standard.ppf(ndtri, probability_signature)
    isf = _standard.isf(lambda q: -ndtri(q), probability_signature)


@distribution
class uniform:
    """The uniform distribution of x between loc and loc + scale.

    All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.uniform.pdf(vf.numpy.array([-1.0, 0.0, 3.0]), -0.5, 2.0)
    Array([0. , 0.5, 0. ], dtype=float32)
    """

    _standard = Continuous(value_signature, support=UNIT)
    logpdf = _standard.logpdf(vnp.zeros_like)
    pdf = _standard.pdf(lambda x, loc, scale: 1.0 / scale)
    cdf = _standard.cdf(lambda z: z)
    ppf = _standard.ppf(lambda q: q, probability_signature)


@distribution
class expon:
    """The exponential distribution of x >= loc, with mean loc + scale.

    The density is exp(-z) for z = (x - loc) / scale >= 0, divided by `scale`. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.expon.sf(vf.numpy.array([0.0, 1.0, 2.0])).round(4)
    Array([1.    , 0.3679, 0.1353], dtype=float32)
    """

    _standard = Continuous(value_signature, support=POSITIVE)
    logpdf = _standard.logpdf(lambda z: -z)
    pdf = _standard.pdf(special.exponential_pdf)
    cdf = _standard.cdf(lambda z: -vnp.expm1(-z))
    sf = _standard.sf(lambda z: vnp.exp(-z))
    logcdf = _standard.logcdf(log1mexp)
    logsf = _standard.logsf(lambda z: -z)
    ppf = _standard.ppf(lambda q: -vnp.log1p(-q), probability_signature)


def _laplace_probability(z: Array) -> Array:
    # A minimum would halve the derivative at 0.
    tail = 0.5 * vnp.exp(vnp.where(z < 0, z, -z))
    return vnp.where(z < 0, tail, 1.0 - tail)


@distribution
class laplace:
    """The Laplace distribution with mean `loc`.

    The density is exp(-|z|) / 2 for z = (x - loc) / scale, divided by `scale`. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.laplace.cdf(vf.numpy.array([-1.0, 0.0, 1.0])).round(4)
    Array([0.1839, 0.5   , 0.8161], dtype=float32)
    """

    _standard = Continuous(value_signature)
    logpdf = _standard.logpdf(lambda z: -vnp.abs(z) - math.log(2.0))
    pdf = _standard.pdf(lambda x, loc, scale: 0.5 * special.exponential_pdf(x, loc, scale))
    cdf = _standard.cdf(_laplace_probability)


def _logistic_log_density(z: Array) -> Array:
    magnitude = vnp.abs(z)
    return -magnitude - 2.0 * vnp.log1p(vnp.exp(-magnitude))


@distribution
class logistic:
    """The logistic distribution with mean `loc`.

    The distribution function is 1 / (1 + exp(-z)) for z = (x - loc) / scale. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.logistic.cdf(vf.numpy.array([-1.0, 0.0, 1.0])).round(4)
    Array([0.2689, 0.5   , 0.7311], dtype=float32)
    """

    _standard = Continuous(value_signature)
    logpdf = _standard.logpdf(_logistic_log_density)
    pdf = _standard.pdf(special.logistic_pdf)
    cdf = _standard.cdf(expit)
    sf = _standard.sf(lambda z: expit(-z))
    ppf = _standard.ppf(logit, value_signature)
    isf = _standard.isf(lambda q: -logit(q), value_signature)


def _cauchy_quantile(q: Array) -> Array:
    """Return -1 / tan(π q), from 1/2 or from the nearer end of (0, 1)."""
    middle = vnp.abs(q - 0.5) < 0.25
    near_middle = vnp.tan(math.pi * vnp.where(middle, q - 0.5, 0.0))
    from_end = vnp.where(middle, 0.25, vnp.where(q < 0.5, q, q - 1.0))
    return vnp.where(middle, near_middle, -1.0 / vnp.tan(math.pi * from_end))


@distribution
class cauchy:
    """The Cauchy distribution with median `loc`, and quartiles `scale` away from it.

    The density is 1 / (π (1 + z²)) for z = (x - loc) / scale, divided by `scale`. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.cauchy.cdf(vf.numpy.array([-1.0, 0.0, 1.0])).round(4)
    Array([0.25, 0.5 , 0.75], dtype=float32)
    """

    _standard = Continuous(value_signature)
    logpdf = _standard.logpdf(lambda z: -math.log(math.pi) - log1p_square(z))
    pdf = _standard.pdf(special.cauchy_pdf)
    cdf = _standard.cdf(lambda z: vnp.arctan2(1.0, -z) / math.pi)
    sf = _standard.sf(lambda z: vnp.arctan2(1.0, z) / math.pi)
    logcdf = _standard.logcdf()
    logsf = _standard.logsf()
    ppf = _standard.ppf(_cauchy_quantile, probability_signature)
    isf = _standard.isf(lambda q: -_cauchy_quantile(q), probability_signature)


#: Below this, log(1 - exp(-exp(z))) rounds to z.
_GUMBEL_TAIL = -38.0


def _gumbel_quantile_signature(p: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a probability."""


def _log1mexpexp(z: Array) -> Array:
    """Return log(1 - exp(-exp(z)))."""
    in_tail = z < _GUMBEL_TAIL
    return vnp.where(in_tail, z, log1mexp(exp_or_infinity(vnp.where(in_tail, _GUMBEL_TAIL, z))))


@distribution
class gumbel_l:
    """The left-skewed Gumbel distribution, of the smallest of many numbers.

    The density is exp(z - exp(z)) for z = (x - loc) / scale, divided by `scale`. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.gumbel_l.cdf(vf.numpy.array([-1.0, 0.0, 1.0])).round(4)
    Array([0.3078, 0.6321, 0.934 ], dtype=float32)
    """

    _standard = Continuous(value_signature)
    logpdf = _standard.logpdf(lambda z: z - exp_or_infinity(z))
    pdf = _standard.pdf()
    cdf = _standard.cdf(lambda z: -vnp.expm1(-exp_or_infinity(z)))
    sf = _standard.sf(lambda z: vnp.exp(-exp_or_infinity(z)))
    logcdf = _standard.logcdf(_log1mexpexp)
    logsf = _standard.logsf(lambda z: -exp_or_infinity(z))
    ppf = _standard.ppf(lambda p: vnp.log(-vnp.log1p(-p)), _gumbel_quantile_signature)


@distribution
class gumbel_r:
    """The right-skewed Gumbel distribution, of the largest of many numbers.

    The density is exp(-z - exp(-z)) for z = (x - loc) / scale, divided by `scale`. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.gumbel_r.cdf(vf.numpy.array([-1.0, 0.0, 1.0])).round(4)
    Array([0.066 , 0.3679, 0.6922], dtype=float32)
    """

    _standard = Continuous(value_signature)
    logpdf = _standard.logpdf(lambda z: -z - exp_or_infinity(-z))
    pdf = _standard.pdf()
    cdf = _standard.cdf(lambda z: vnp.exp(-exp_or_infinity(-z)))
    sf = _standard.sf(lambda z: -vnp.expm1(-exp_or_infinity(-z)))
    logcdf = _standard.logcdf(lambda z: -exp_or_infinity(-z))
    logsf = _standard.logsf(lambda z: _log1mexpexp(-z))
    ppf = _standard.ppf(lambda p: -vnp.log(-vnp.log(p)), _gumbel_quantile_signature)


def _pareto_signature(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a value and the shape."""


def _pareto_quantile_signature(q: Any, b: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a probability and the shape."""


@distribution
class pareto:
    """The Pareto distribution of x >= loc + scale, with shape `b` > 0.

    The density is b / z^(b+1) for z = (x - loc) / scale >= 1, divided by `scale`. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.pareto.sf(vf.numpy.array([1.0, 2.0, 4.0]), 2.0)
    Array([1.    , 0.25  , 0.0625], dtype=float32)
    """

    _standard = Continuous(_pareto_signature, support=Interval(1.0, np.inf, 2.0), valid=lambda b: b > 0)
    logpdf = _standard.logpdf(lambda z, b: vnp.log(b) - (b + 1.0) * vnp.log(z))
    pdf = _standard.pdf()
    cdf = _standard.cdf(lambda z, b: -vnp.expm1(-b * vnp.log(z)))
    sf = _standard.sf(lambda z, b: z**-b)
    logcdf = _standard.logcdf(lambda z, b: log1mexp(b * vnp.log(z)))
    logsf = _standard.logsf(lambda z, b: -b * vnp.log(z))
    ppf = _standard.ppf(lambda q, b: vnp.exp(-vnp.log1p(-q) / b), _pareto_quantile_signature)


def _gennorm_signature(x: Any, beta: Any) -> None:
    """Take a value and the shape."""


def _gennorm_power(x: Array, beta: Array) -> Array:
    """Return |x|^beta, with derivatives 0 at x = 0."""
    at_zero = x == 0
    return vnp.where(at_zero, 0.0, vnp.abs(vnp.where(at_zero, 1.0, x)) ** beta)


def _gennorm_probability(x: Array, beta: Array) -> Array:
    """Return the probability of at most x, near 0 by its tangent."""
    power = _gennorm_power(x, beta)
    near_zero = power < 1e-30
    tail = 0.5 * gammaincc(1.0 / beta, vnp.where(near_zero, 1.0, power))
    tangent = 0.5 + 0.5 * x * vnp.exp(-gammaln(1.0 + 1.0 / beta))
    return vnp.where(near_zero, tangent, vnp.where(x < 0, tail, 1.0 - tail))


@distribution
class gennorm:
    """The generalised normal distribution of x, with shape `beta` > 0.

    The density is beta exp(-|x|^beta) / (2 Γ(1 / beta)): that of Laplace for beta = 1, a normal one for beta = 2. All arguments broadcast;
    integers become floats.

    >>> vf.scipy.stats.gennorm.pdf(vf.numpy.array([0.0, 1.0]), 2.0).round(4)
    Array([0.5642, 0.2076], dtype=float32)
    """

    _standard = Continuous(_gennorm_signature, valid=lambda beta: beta > 0)
    logpdf = _standard.logpdf(lambda x, beta: vnp.log(0.5 * beta) - gammaln(1.0 / beta) - _gennorm_power(x, beta))
    pdf = _standard.pdf()
    cdf = _standard.cdf(_gennorm_probability)


def _gamma_signature(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a value and the shape."""


def _gamma_log_density(z: Array, a: Array) -> Array:
    """Return the log of the density in standard form, for z >= 0."""
    positive = vnp.where(z == 0, 1.0, z)
    at_zero = log_power(z, a - 1.0) - z - gammaln(a)
    return vnp.where(z == 0, at_zero, log_gamma_weight(a, positive) - vnp.log(positive))


def _gamma_log_distribution(z: Array, a: Array) -> Array:
    """Return the log of the distribution function in standard form, for z > 0."""
    return log_with_tail(gammainc(a, z), gammaincc(a, z), log_lower_gamma, (a, z), (300.0, 20.0))


def _gamma_log_survival(z: Array, a: Array) -> Array:
    """Return the log of the survival function in standard form, for z > 0."""
    return log_with_tail(gammaincc(a, z), gammainc(a, z), log_upper_gamma, (a, z), (1.0, 80.0))


@distribution
class gamma:
    """The gamma distribution of x >= loc, with shape `a` > 0.

    The density is z^(a-1) exp(-z) / Γ(a) for z = (x - loc) / scale >= 0, divided by `scale`. All arguments broadcast; integers become
    floats.

    >>> vf.scipy.stats.gamma.pdf(vf.numpy.array([0.0, 1.0, 2.0]), 2.0).round(4)
    Array([0.    , 0.3679, 0.2707], dtype=float32)
    """

    _standard = Continuous(_gamma_signature, support=POSITIVE, valid=lambda a: a > 0)
    logpdf = _standard.logpdf(_gamma_log_density)
    pdf = _standard.pdf(special.gamma_pdf)
    cdf = _standard.cdf(lambda z, a: gammainc(a, z))
    sf = _standard.sf(lambda z, a: gammaincc(a, z))
    logcdf = _standard.logcdf(_gamma_log_distribution)
    logsf = _standard.logsf(_gamma_log_survival)


#: For fewer degrees of freedom than this, the density is proportional to them.
_CHI2_TINY = 1e-30


def _df_signature(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a value and the degrees of freedom."""


def _chi2_density(x: Array, df: Array, loc: Array, scale: Array) -> Array:
    """Return the density of the gamma distribution with shape df / 2."""
    # Half of a tiny `df` may underflow, so `df` is the shape there: the density is proportional to it.
    tiny = df < _CHI2_TINY
    return vnp.where(tiny, 0.5, 1.0) * special.gamma_pdf(x, vnp.where(tiny, df, 0.5 * df), loc, 2.0 * scale)


@distribution
class chi2:
    """The chi-squared distribution of x >= loc, with `df` > 0 degrees of freedom.

    The sum of `df` squared standard normal numbers has this distribution: the gamma distribution of z / 2 with shape df / 2, for
    z = (x - loc) / scale >= 0. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.chi2.sf(vf.numpy.array([3.841, 6.635]), 1).round(3)
    Array([0.05, 0.01], dtype=float32)
    """

    _standard = Continuous(_df_signature, support=POSITIVE, valid=lambda df: df > 0)
    logpdf = _standard.logpdf(lambda z, df: _gamma_log_density(0.5 * z, 0.5 * df) - math.log(2.0))
    pdf = _standard.pdf(_chi2_density)
    cdf = _standard.cdf(lambda z, df: gammainc(0.5 * df, 0.5 * z))
    sf = _standard.sf(lambda z, df: gammaincc(0.5 * df, 0.5 * z))
    logcdf = _standard.logcdf(lambda z, df: _gamma_log_distribution(0.5 * z, 0.5 * df))
    logsf = _standard.logsf(lambda z, df: _gamma_log_survival(0.5 * z, 0.5 * df))


def _t_log_density(z: Array, df: Array) -> Array:
    finite = vnp.isfinite(df)
    degrees = vnp.where(finite, df, 1.0)
    log_constant = log_rise(0.5 * degrees, vnp.full_like(degrees, 0.5)) - 0.5 * vnp.log(math.pi * degrees)
    student = log_constant - 0.5 * (degrees + 1.0) * log1p_square(z / vnp.sqrt(degrees))
    return vnp.where(finite, student, -0.5 * (z * z) - 0.5 * math.log(2.0 * math.pi))


@distribution
class t:
    """Student's t distribution with `df` > 0 degrees of freedom.

    The density is (1 + z²/df)^(-(df+1)/2) / (sqrt(df) B(1/2, df/2)) for z = (x - loc) / scale, divided by `scale`; for infinite `df` it is
    normal. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.t.pdf(vf.numpy.array([0.0, 1.0]), 1.0).round(4)
    Array([0.3183, 0.1592], dtype=float32)
    """

    _standard = Continuous(_df_signature, valid=lambda df: df > 0)
    logpdf = _standard.logpdf(_t_log_density)
    pdf = _standard.pdf(special.t_pdf)


def _beta_signature(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a value and the shapes."""


def _beta_log_density(z: Array, a: Array, b: Array) -> Array:
    at_end = (z == 0) | (z == 1)
    inside = vnp.where(at_end, 0.5, z)
    end = log_power(z, a - 1.0) + log_power(1.0 - z, b - 1.0) - betaln(a, b)
    return vnp.where(at_end, end, log_beta_weight(a, b, inside) - vnp.log(inside) - vnp.log1p(-inside))


def _beta_survival(z: Array, a: Array, b: Array) -> Array:
    return special.regularized_incomplete_beta_complement(*vnp.broadcast_arrays(a, b, z))


def _beta_log_distribution(z: Array, a: Array, b: Array) -> Array:
    return log_with_tail(betainc(a, b, z), _beta_survival(z, a, b), log_lower_beta, (a, b, z), (300.0, 300.0, 0.1))


def _beta_log_survival(z: Array, a: Array, b: Array) -> Array:
    return log_with_tail(_beta_survival(z, a, b), betainc(a, b, z), log_upper_beta, (a, b, z), (300.0, 300.0, 0.9))


@distribution
class beta:
    """The beta distribution between loc and loc + scale, with shapes `a`, `b` > 0.

    The density is z^(a-1) (1 - z)^(b-1) / B(a, b) for z = (x - loc) / scale in [0, 1], divided by `scale`. All arguments broadcast;
    integers become floats.

    >>> vf.scipy.stats.beta.pdf(vf.numpy.array([0.0, 0.25, 0.5]), 2.0, 2.0)
    Array([0.   , 1.125, 1.5  ], dtype=float32)
    """

    _standard = Continuous(_beta_signature, support=UNIT, valid=lambda a, b: (a > 0) & (b > 0))
    logpdf = _standard.logpdf(_beta_log_density)
    pdf = _standard.pdf(special.beta_pdf)
    cdf = _standard.cdf(lambda z, a, b: betainc(a, b, z))
    sf = _standard.sf(_beta_survival)
    logcdf = _standard.logcdf(_beta_log_distribution)
    logsf = _standard.logsf(_beta_log_survival)


_TRUNCNORM_HALF_ROOT = math.sqrt(0.5)


def _truncnorm_signature(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a value and the standardised ends of the interval."""


def _truncnorm_support(a: Array, b: Array) -> Interval:
    top = vnp.where(vnp.isfinite(b), b, vnp.where(vnp.isfinite(a), a, -1.0) + 2.0)
    bottom = vnp.where(vnp.isfinite(a), a, top - 2.0)
    return Interval(a, b, 0.5 * (bottom + top))


def _truncnorm_log_mass(a: Array, b: Array) -> Array:
    """Return the log of the standard normal probability of [a, b], for a < b."""
    right = a > 0
    low, high = vnp.where(right, -b, a), vnp.where(right, -a, b)
    in_tail = high < -1
    centre = _truncnorm_log_central_mass(vnp.where(in_tail, -1.0, low), vnp.where(in_tail, 1.0, high))
    tail = _truncnorm_log_tail_mass(vnp.where(in_tail, low, -2.0), vnp.where(in_tail, high, -1.0))
    return vnp.where(in_tail, tail, centre)


def _truncnorm_log_central_mass(low: Array, high: Array) -> Array:
    """Return the log of the probability of [low, high] by differences of erf.

    They do not cancel for low <= 0 and high >= -1.
    """
    inside = 0.5 * (erf(_TRUNCNORM_HALF_ROOT * high) - erf(_TRUNCNORM_HALF_ROOT * low))
    small = inside < 0.5
    outside = vnp.where(small, 0.0, ndtr(low) + ndtr(-high))
    return vnp.where(small, vnp.log(vnp.where(small, inside, 1.0)), vnp.log1p(-outside))


def _truncnorm_log_tail_mass(low: Array, high: Array) -> Array:
    """Return the log of the probability of [low, high] for low < high < -1."""
    finite = low > -np.inf
    top = log_ndtr(high)
    gap = top - log_ndtr(vnp.where(finite, low, high - 1.0))
    return vnp.where(finite, top + log1mexp(gap), top)


def _truncnorm_log_share(mass: Array, rest: Array, total: Array) -> Array:
    """Return log(mass / total) from the logs of two masses and of their sum."""
    # A share near 1 is computed from the other one, which keeps the precision of a log near 0.
    share, other = mass - total, rest - total
    near_one = share > -0.1
    return vnp.where(near_one, vnp.log1p(-vnp.exp(vnp.where(near_one, other, -1.0))), share)


def _truncnorm_log_probability(z: Array, a: Array, b: Array) -> Array:
    return _truncnorm_log_share(_truncnorm_log_mass(a, z), _truncnorm_log_mass(z, b), _truncnorm_log_mass(a, b))


def _truncnorm_log_survival(z: Array, a: Array, b: Array) -> Array:
    return _truncnorm_log_share(_truncnorm_log_mass(z, b), _truncnorm_log_mass(a, z), _truncnorm_log_mass(a, b))


@distribution
class truncnorm:
    """The normal distribution, truncated to x between loc + a scale and loc + b scale.

    The density is that of the normal distribution for z = (x - loc) / scale in [a, b], divided by the probability of that interval; a < b.
    All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.truncnorm.cdf(vf.numpy.array([-1.0, 0.0, 2.0]), -1.0, 2.0).round(4)
    Array([0.   , 0.417, 1.   ], dtype=float32)
    """

    _standard = Continuous(_truncnorm_signature, support=_truncnorm_support, valid=lambda a, b: a < b)
    logpdf = _standard.logpdf(lambda z, a, b: -0.5 * (z * z) - 0.5 * math.log(2.0 * math.pi) - _truncnorm_log_mass(a, b))
    pdf = _standard.pdf()
    cdf = _standard.cdf(lambda z, a, b: vnp.exp(_truncnorm_log_probability(z, a, b)))
    sf = _standard.sf(lambda z, a, b: vnp.exp(_truncnorm_log_survival(z, a, b)))
    logcdf = _standard.logcdf(_truncnorm_log_probability)
    logsf = _standard.logsf(_truncnorm_log_survival)


def _vonmises_signature(x: Any, kappa: Any) -> None:
    """Take a value and the concentration."""


def _vonmises_log_density(x: Array, kappa: Array) -> Array:
    # cos(x) - 1 is -2 sin²(x/2), which does not cancel.
    return -2.0 * kappa * vnp.sin(0.5 * x) ** 2 - vnp.log(2.0 * math.pi * i0e(kappa))


@distribution
class vonmises:
    """The von Mises distribution of angles x, with concentration `kappa` >= 0.

    The density is exp(kappa cos(x)) / (2π I_0(kappa)), of period 2π, for x in radians. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.vonmises.pdf(vf.numpy.array([0.0, 1.0]), 2.0).round(4)
    Array([0.5159, 0.2057], dtype=float32)
    """

    _standard = Continuous(_vonmises_signature, valid=lambda kappa: kappa >= 0)
    logpdf = _standard.logpdf(_vonmises_log_density)
    pdf = _standard.pdf()


def _wrapcauchy_signature(x: Any, c: Any) -> None:
    """Take a value and the shape."""


def _wrapcauchy_log_density(x: Array, c: Array) -> Array:
    # 1 + c² - 2 c cos(x) is (1 - c)² + 4 c sin²(x/2), which does not cancel.
    square = (1.0 - c) ** 2 + 4.0 * c * vnp.sin(0.5 * x) ** 2
    return vnp.log1p(-c) + vnp.log1p(c) - math.log(2.0 * math.pi) - vnp.log(square)


@distribution
class wrapcauchy:
    """The wrapped Cauchy distribution of angles x in [0, 2π], with 0 < `c` < 1.

    The density is (1 - c²) / (2π (1 + c² - 2 c cos(x))), for x in radians. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.wrapcauchy.pdf(vf.numpy.array([0.0, 1.0]), 0.5).round(4)
    Array([0.4775, 0.1682], dtype=float32)
    """

    _standard = Continuous(_wrapcauchy_signature, support=Interval(0.0, 2.0 * math.pi, 1.0), valid=lambda c: (c > 0) & (c < 1))
    logpdf = _standard.logpdf(_wrapcauchy_log_density)
    pdf = _standard.pdf()


# Discrete distributions.


def _probability_signature(k: Any, p: Any, loc: Any = 0) -> None:
    """Take an integer and a probability."""


def _bernoulli_cdf_signature(k: Any, p: Any) -> None:
    """Take an integer and a probability."""


def _bernoulli_support(p: Array) -> tuple[float, float]:
    return 0.0, 1.0


def _bernoulli_is_probability(p: Array) -> Array:
    return (p >= 0) & (p <= 1)


def _bernoulli_log_mass(k: Array, p: Array) -> Array:
    """Return log(p) or log(1 - p), without the derivative of the other."""
    one = k == 1
    return vnp.where(one, vnp.log(vnp.where(one, p, 1.0)), vnp.log1p(-vnp.where(one, 0.0, p)))


def _bernoulli_quantile_formula(q: Array, p: Array) -> Array:
    value = vnp.where(q == 0, -1.0, vnp.where(q <= 1.0 - p, 0.0, 1.0))
    return vnp.where((q >= 0) & (q <= 1) & _bernoulli_is_probability(p), value, np.nan)


_bernoulli_quantile = with_promotion(_bernoulli_quantile_formula, "bernoulli.ppf")


@distribution
class bernoulli:
    """The Bernoulli distribution of 0 and 1: 1 has probability `p`.

    `k` less `loc` is 0 or 1; other integers have probability 0. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.bernoulli.pmf(vf.numpy.array([0, 1, 2]), 0.25)
    Array([0.75, 0.25, 0.  ], dtype=float32)
    """

    _standard = Discrete(_probability_signature, support=_bernoulli_support, valid=_bernoulli_is_probability)
    logpmf = _standard.logpmf(_bernoulli_log_mass)
    pmf = _standard.pmf(lambda k, p: vnp.where(k == 1, p, 1.0 - p))
    cdf = Discrete(_bernoulli_cdf_signature, support=_bernoulli_support, valid=_bernoulli_is_probability).cdf(lambda k, p: 1.0 - p)

    @staticmethod
    def ppf(q: Any, p: Any) -> Array:
        """Return the smallest k that is not exceeded with probability `q`.

        NaN unless q and p are probabilities. Both broadcast; integers become floats.

        >>> vf.scipy.stats.bernoulli.ppf(vf.numpy.array([0.2, 0.8]), 0.5)
        Array([0., 1.], dtype=float32)
        """
        return _bernoulli_quantile(q, p)


@distribution
class geom:
    """The geometric distribution of the number of trials up to the first success.

    k = 1, 2, … has probability p (1 - p)^(k-1), for `k` less `loc`, where 0 < `p` <= 1. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.geom.pmf(vf.numpy.array([0, 1, 2]), 0.5)
    Array([0.  , 0.5 , 0.25], dtype=float32)
    """

    _standard = Discrete(_probability_signature, support=lambda p: (1.0, np.inf), valid=lambda p: (p > 0) & (p <= 1))
    logpmf = _standard.logpmf(lambda k, p: xlog1py(k - 1.0, -p) + vnp.log(p))
    pmf = _standard.pmf(lambda k, p: special.beta_density(vnp.ones_like(k), k, p) * p / k)


def _binom_signature(k: Any, n: Any, p: Any, loc: Any = 0) -> None:
    """Take an integer, the number of trials and their probability."""


def _binom_log_mass(k: Array, n: Array, p: Array) -> Array:
    # The log of p^(k+1) (1 - p)^(n-k+1) / B(k + 1, n - k + 1) has no large terms that cancel.
    certain = (p == 0) | (p == 1)
    inside = vnp.where(certain, 0.5, p)
    weight = log_beta_weight(k + 1.0, n - k + 1.0, inside) - vnp.log1p(n) - vnp.log(inside) - vnp.log1p(-inside)
    return vnp.where(certain, log_power(p, k) + log_power(1.0 - p, n - k), weight)


def _binom_is_valid(n: Array, p: Array) -> Array:
    return (n >= 0) & (n == vnp.floor(n)) & (p >= 0) & (p <= 1)


@distribution
class binom:
    """The binomial distribution of the successes in `n` trials of probability `p`.

    k of n have probability n! / (k! (n - k)!) p^k (1 - p)^(n-k), for `k` less `loc`. `n` is an integer >= 0. All arguments broadcast;
    integers become floats.

    >>> vf.scipy.stats.binom.pmf(vf.numpy.arange(4), 3, 0.5).round(4)
    Array([0.125, 0.375, 0.375, 0.125], dtype=float32)
    """

    _standard = Discrete(_binom_signature, support=lambda n, p: (0.0, n), valid=_binom_is_valid)
    logpmf = _standard.logpmf(_binom_log_mass)
    pmf = _standard.pmf(lambda k, n, p: special.beta_density(k + 1.0, n - k + 1.0, p) / (n + 1.0))


def _nbinom_signature(k: Any, n: Any, p: Any, loc: Any = 0) -> None:
    """Take an integer, the number of successes and their probability."""


def _nbinom_log_mass(k: Array, n: Array, p: Array) -> Array:
    # The log of p^n (1 - p)^(k+1) / B(n, k + 1) has no large terms that cancel.
    certain = p == 1
    inside = vnp.where(certain, 0.5, p)
    weight = log_beta_weight(n, k + 1.0, inside) - vnp.log(n + k) - vnp.log1p(-inside)
    return vnp.where(certain, log_power(1.0 - p, k), weight)


@distribution
class nbinom:
    """The negative binomial distribution of failures before the n-th success.

    k = 0, 1, … has probability Γ(k + n) / (k! Γ(n)) p^n (1 - p)^k, for `k` less `loc`, where `n` > 0 and 0 < `p` <= 1. All arguments
    broadcast; integers become floats.

    >>> vf.scipy.stats.nbinom.pmf(vf.numpy.arange(3), 2, 0.5).round(4)
    Array([0.25  , 0.25  , 0.1875], dtype=float32)
    """

    _standard = Discrete(_nbinom_signature, support=nonnegative_support, valid=lambda n, p: (n > 0) & (p > 0) & (p <= 1))
    logpmf = _standard.logpmf(_nbinom_log_mass)
    pmf = _standard.pmf(special.nbinom_pmf)


def _betabinom_signature(k: Any, n: Any, a: Any, b: Any, loc: Any = 0) -> None:
    """Take an integer, the number of trials and the shapes."""


def _betabinom_is_valid(n: Array, a: Array, b: Array) -> Array:
    return (n >= 0) & (n == vnp.floor(n)) & (a > 0) & (b > 0)


@distribution
class betabinom:
    """The binomial distribution with a probability that has a beta distribution.

    k has probability n! / (k! (n - k)!) B(k + a, n - k + b) / B(a, b), for `k` less `loc`. `n`, the number of trials, is an integer >= 0;
    `a` and `b` are positive. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.betabinom.pmf(vf.numpy.arange(4), 3, 1.0, 1.0).round(4)
    Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """

    _standard = Discrete(_betabinom_signature, support=lambda n, a, b: (0.0, n), valid=_betabinom_is_valid)
    logpmf = _standard.logpmf(lambda k, n, a, b: betaln(k + a, n - k + b) - betaln(a, b) - betaln(k + 1.0, n - k + 1.0) - vnp.log1p(n))
    pmf = _standard.pmf()


def _poisson_signature(k: Any, mu: Any, loc: Any = 0) -> None:
    """Take an integer and the mean."""


def _poisson_log_mass(k: Array, mu: Array) -> Array:
    # The log of mu^k exp(-mu) / Γ(k) has no large terms that cancel.
    has_zero = (k == 0) | (mu == 0)
    count, mean = vnp.where(has_zero, 1.0, k), vnp.where(has_zero, 1.0, mu)
    return vnp.where(has_zero, log_power(mu, k) - mu, log_gamma_weight(count, mean) - vnp.log(count))


def _poisson_probability(k: Array, mu: Array) -> Array:
    """Return the probability of at most k; at mu = 0 its tangent."""
    tangent = 1.0 - vnp.where(k == 0, mu, 0.0)
    return vnp.where(mu == 0, tangent, gammaincc(k + 1.0, vnp.where(mu == 0, 1.0, mu)))


#: Means from which the entropy is computed by its asymptotic series.
_POISSON_LARGE = 50.0


#: The number of counts that are summed for smaller means; a larger count has probability 1e-22.
_POISSON_COUNTS = 150


#: The series in 1 / mu: log(2πe mu)/2 less these terms.
_POISSON_SERIES = (0.0, 1 / 12, 1 / 24, 19 / 360, 9 / 80, 863 / 2520, 1375 / 1008, 33953 / 5040, 57281 / 1440, 3250433 / 11880)


@composite
def _poisson_entropy(mu: Any, loc: Any) -> Array:
    mean, _ = vnp.broadcast_arrays(mu, loc)
    large = mean >= _POISSON_LARGE
    small_mean, large_mean = vnp.where(large, 1.0, mean)[..., None], vnp.where(large, mean, _POISSON_LARGE)
    counts = vnp.arange(_POISSON_COUNTS, dtype=mean.dtype)
    logs = _poisson_log_mass(*vnp.broadcast_arrays(counts, vnp.where(small_mean > 0, small_mean, 1.0)))
    summed = vnp.where(small_mean[..., 0] == 0, 0.0, -vnp.sum(vnp.exp(logs) * logs, -1))
    series = 0.5 * vnp.log(2.0 * math.pi * math.e * large_mean) - rising(1.0 / large_mean, _POISSON_SERIES)
    return vnp.where(mean >= 0, vnp.where(large, series, summed), np.nan)


@distribution
class poisson:
    """The Poisson distribution of counts, with mean `mu` >= 0.

    k = 0, 1, … has probability mu^k exp(-mu) / k!, for `k` less `loc`. All arguments broadcast; integers become floats.

    >>> vf.scipy.stats.poisson.pmf(vf.numpy.arange(3), 1.0).round(4)
    Array([0.3679, 0.3679, 0.1839], dtype=float32)
    """

    _standard = Discrete(_poisson_signature, support=nonnegative_support, valid=lambda mu: mu >= 0)
    logpmf = _standard.logpmf(_poisson_log_mass)
    pmf = _standard.pmf(lambda k, mu: special.gamma_density(k + 1.0, mu))
    cdf = _standard.cdf(_poisson_probability)

    @staticmethod
    def entropy(mu: Any, loc: Any = 0) -> Array:
        """Return the entropy in nats, which does not depend on `loc`.

        NaN for negative `mu`. It is summed over the counts for small means, and has an asymptotic series for large ones.

        >>> vf.scipy.stats.poisson.entropy(vf.numpy.array([0.0, 1.0, 100.0])).round(4)
        Array([0.    , 1.3048, 3.7207], dtype=float32)
        """
        return _poisson_entropy(mu, loc)

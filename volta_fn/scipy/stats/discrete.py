"""Discrete distributions: `bernoulli`, `binom`, `poisson` and others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.special.exponential import xlog1py
from volta_fn.scipy.special.gamma_family import betaln, composite, gammaincc, log_beta_weight, log_gamma_weight, rising
from volta_fn.scipy.stats.declarations import Discrete, distribution, log_power, nonnegative_support, with_promotion


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

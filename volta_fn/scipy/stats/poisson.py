"""The Poisson distribution of counts, with mean `mu` >= 0.

k = 0, 1, … has probability mu^k exp(-mu) / k!, for `k` less `loc`. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.poisson.pmf(vf.numpy.arange(3), 1.0).round(4)
Array([0.3679, 0.3679, 0.1839], dtype=float32)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.special.gamma_family import composite, gammaincc, log_gamma_weight, rising
from volta_fn.scipy.stats.declarations import Discrete, from_zero, log_power


def _parameters(k: Any, mu: Any, loc: Any = 0) -> None:
    """Take an integer and the mean."""


def _log_mass(k: Array, mu: Array) -> Array:
    """Return it by mu^k exp(-mu) / Γ(k), without large terms."""
    plain = (k == 0) | (mu == 0)
    count, mean = vnp.where(plain, 1.0, k), vnp.where(plain, 1.0, mu)
    return vnp.where(plain, log_power(mu, k) - mu, log_gamma_weight(count, mean) - vnp.log(count))


def _probability(k: Array, mu: Array) -> Array:
    """Return an incomplete gamma function; at mu = 0 its tangent, for the derivative."""
    tangent = 1.0 - vnp.where(k == 0, mu, 0.0)
    return vnp.where(mu == 0, tangent, gammaincc(k + 1.0, vnp.where(mu == 0, 1.0, mu)))


_poisson = Discrete(_parameters, support=from_zero, valid=lambda mu: mu >= 0)

logpmf = _poisson.logpmf(_log_mass)
pmf = _poisson.pmf(lambda k, mu: special.gamma_density(k + 1.0, mu))
cdf = _poisson.cdf(_probability)

#: From here on the entropy is that of its asymptotic series.
_LARGE = 50.0
#: Counts that a mean below `_LARGE` does not exceed but with probability 1e-22.
_COUNTS = 150
#: The series in 1 / mu: log(2πe mu)/2 less these terms.
_SERIES = (0.0, 1 / 12, 1 / 24, 19 / 360, 9 / 80, 863 / 2520, 1375 / 1008, 33953 / 5040, 57281 / 1440, 3250433 / 11880)


def entropy(mu: Any, loc: Any = 0) -> Array:
    """Return the entropy in nats, which does not depend on `loc`.

    NaN for negative `mu`. It is summed over the counts for small means, and has an asymptotic series for large ones.

    >>> vf.scipy.stats.poisson.entropy(vf.numpy.array([0.0, 1.0, 100.0])).round(4)
    Array([0.    , 1.3048, 3.7207], dtype=float32)
    """
    return _entropy(mu, loc)


@composite
def _entropy(mu: Any, loc: Any) -> Array:
    mean, _ = vnp.broadcast_arrays(mu, loc)
    large = mean >= _LARGE
    few, many = vnp.where(large, 1.0, mean)[..., None], vnp.where(large, mean, _LARGE)
    counts = vnp.arange(_COUNTS, dtype=mean.dtype)
    logs = _log_mass(*vnp.broadcast_arrays(counts, vnp.where(few > 0, few, 1.0)))
    summed = vnp.where(few[..., 0] == 0, 0.0, -vnp.sum(vnp.exp(logs) * logs, -1))
    series = 0.5 * vnp.log(2.0 * math.pi * math.e * many) - rising(1.0 / many, _SERIES)
    return vnp.where(mean >= 0, vnp.where(large, series, summed), np.nan)

"""The binomial distribution of the successes in `n` trials of probability `p`.

k of n have probability n! / (k! (n - k)!) p^k (1 - p)^(n-k), for `k` less `loc`. `n` is an integer >= 0. All arguments broadcast;
integers become floats.

>>> vf.scipy.stats.binom.pmf(vf.numpy.arange(4), 3, 0.5).round(4)
Array([0.125, 0.375, 0.375, 0.125], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.special.gamma_family import log_beta_weight
from volta_fn.scipy.stats.declarations import Discrete, log_power


def _parameters(k: Any, n: Any, p: Any, loc: Any = 0) -> None:
    """Take an integer, the number of trials and their probability."""


def _log_mass(k: Array, n: Array, p: Array) -> Array:
    """Return it by p^(k+1) (1 - p)^(n-k+1) / B(k + 1, n - k + 1), without large terms."""
    certain = (p == 0) | (p == 1)
    inside = vnp.where(certain, 0.5, p)
    weight = log_beta_weight(k + 1.0, n - k + 1.0, inside) - vnp.log1p(n) - vnp.log(inside) - vnp.log1p(-inside)
    return vnp.where(certain, log_power(p, k) + log_power(1.0 - p, n - k), weight)


def _is_valid(n: Array, p: Array) -> Array:
    return (n >= 0) & (n == vnp.floor(n)) & (p >= 0) & (p <= 1)


_binom = Discrete(_parameters, support=lambda n, p: (0.0, n), valid=_is_valid)

logpmf = _binom.logpmf(_log_mass)
pmf = _binom.pmf(lambda k, n, p: special.beta_density(k + 1.0, n - k + 1.0, p) / (n + 1.0))

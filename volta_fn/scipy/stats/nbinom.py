"""The negative binomial distribution of failures before the n-th success.

k = 0, 1, … has probability Γ(k + n) / (k! Γ(n)) p^n (1 - p)^k, for `k` less `loc`, where `n` > 0 and 0 < `p` <= 1. All arguments
broadcast; integers become floats.

>>> vf.scipy.stats.nbinom.pmf(vf.numpy.arange(3), 2, 0.5).round(4)
Array([0.25  , 0.25  , 0.1875], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.special.gamma_family import log_beta_weight
from volta_fn.scipy.stats.declarations import Discrete, from_zero, log_power


def _parameters(k: Any, n: Any, p: Any, loc: Any = 0) -> None:
    """Take an integer, the number of successes and their probability."""


def _log_mass(k: Array, n: Array, p: Array) -> Array:
    """Return it by p^n (1 - p)^(k+1) / B(n, k + 1), without large terms."""
    certain = p == 1
    inside = vnp.where(certain, 0.5, p)
    weight = log_beta_weight(n, k + 1.0, inside) - vnp.log(n + k) - vnp.log1p(-inside)
    return vnp.where(certain, log_power(1.0 - p, k), weight)


_nbinom = Discrete(_parameters, support=from_zero, valid=lambda n, p: (n > 0) & (p > 0) & (p <= 1))

logpmf = _nbinom.logpmf(_log_mass)
pmf = _nbinom.pmf(special.nbinom_pmf)

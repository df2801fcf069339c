"""The Bernoulli distribution of 0 and 1: 1 has probability `p`.

`k` less `loc` is 0 or 1; other integers have probability 0. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.bernoulli.pmf(vf.numpy.array([0, 1, 2]), 0.25)
Array([0.75, 0.25, 0.  ], dtype=float32)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.scipy.stats.declarations import Discrete, promoting


def _parameters(k: Any, p: Any, loc: Any = 0) -> None:
    """Take an integer and a probability."""


def _not_moved(k: Any, p: Any) -> None:
    """Take an integer and a probability."""


def _support(p: Array) -> tuple[float, float]:
    return 0.0, 1.0


def _is_probability(p: Array) -> Array:
    return (p >= 0) & (p <= 1)


def _log_mass(k: Array, p: Array) -> Array:
    """Return log(p) or log(1 - p), without the derivative of the other."""
    one = k == 1
    return vnp.where(one, vnp.log(vnp.where(one, p, 1.0)), vnp.log1p(-vnp.where(one, 0.0, p)))


_bernoulli = Discrete(_parameters, support=_support, valid=_is_probability)

logpmf = _bernoulli.logpmf(_log_mass)
pmf = _bernoulli.pmf(lambda k, p: vnp.where(k == 1, p, 1.0 - p))
cdf = Discrete(_not_moved, support=_support, valid=_is_probability).cdf(lambda k, p: 1.0 - p)


def ppf(q: Any, p: Any) -> Array:
    """Return the smallest k that is not exceeded with probability `q`.

    NaN unless q and p are probabilities. Both broadcast; integers become floats.

    >>> vf.scipy.stats.bernoulli.ppf(vf.numpy.array([0.2, 0.8]), 0.5)
    Array([0., 1.], dtype=float32)
    """
    return _quantile(q, p)


def _standard_quantile(q: Array, p: Array) -> Array:
    value = vnp.where(q == 0, -1.0, vnp.where(q <= 1.0 - p, 0.0, 1.0))
    return vnp.where((q >= 0) & (q <= 1) & _is_probability(p), value, np.nan)


_quantile = promoting(_standard_quantile, "bernoulli.ppf")

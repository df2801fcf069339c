"""The binomial distribution with a probability that has a beta distribution.

k has probability n! / (k! (n - k)!) B(k + a, n - k + b) / B(a, b), for `k` less `loc`. `n`, the number of trials, is an integer >= 0;
`a` and `b` are positive. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.betabinom.pmf(vf.numpy.arange(4), 3, 1.0, 1.0).round(4)
Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.scipy.special.gamma_family import betaln
from volta_fn.scipy.stats.declarations import Discrete


def _parameters(k: Any, n: Any, a: Any, b: Any, loc: Any = 0) -> None:
    """Take an integer, the number of trials and the shapes."""


def _log_mass(k: Array, n: Array, a: Array, b: Array) -> Array:
    return betaln(k + a, n - k + b) - betaln(a, b) - betaln(k + 1.0, n - k + 1.0) - vnp.log1p(n)


def _is_valid(n: Array, a: Array, b: Array) -> Array:
    return (n >= 0) & (n == vnp.floor(n)) & (a > 0) & (b > 0)


_betabinom = Discrete(_parameters, support=lambda n, a, b: (0.0, n), valid=_is_valid)

logpmf = _betabinom.logpmf(_log_mass)
pmf = _betabinom.pmf()

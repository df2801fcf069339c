"""The generalised normal distribution of x, with shape `beta` > 0.

The density is beta exp(-|x|^beta) / (2 Γ(1 / beta)): that of Laplace for beta = 1, a normal one for beta = 2. All arguments broadcast;
integers become floats.

>>> vf.scipy.stats.gennorm.pdf(vf.numpy.array([0.0, 1.0]), 2.0).round(4)
Array([0.5642, 0.2076], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.scipy.special.gamma_family import gammaincc, gammaln
from volta_fn.scipy.stats.declarations import Continuous


def _parameters(x: Any, beta: Any) -> None:
    """Take a value and the shape."""


def _power(x: Array, beta: Array) -> Array:
    """Return |x|^beta, with derivatives 0 at x = 0."""
    at_zero = x == 0
    return vnp.where(at_zero, 0.0, vnp.abs(vnp.where(at_zero, 1.0, x)) ** beta)


def _log_density(x: Array, beta: Array) -> Array:
    return vnp.log(0.5 * beta) - gammaln(1.0 / beta) - _power(x, beta)


def _probability(x: Array, beta: Array) -> Array:
    """Return half an incomplete gamma function, near 0 its tangent."""
    power = _power(x, beta)
    near = power < 1e-30
    tail = 0.5 * gammaincc(1.0 / beta, vnp.where(near, 1.0, power))
    tangent = 0.5 + 0.5 * x * vnp.exp(-gammaln(1.0 + 1.0 / beta))
    return vnp.where(near, tangent, vnp.where(x < 0, tail, 1.0 - tail))


_gennorm = Continuous(_parameters, valid=lambda beta: beta > 0)

logpdf = _gennorm.logpdf(_log_density)
pdf = _gennorm.pdf()
cdf = _gennorm.cdf(_probability)

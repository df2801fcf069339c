"""The gamma distribution of x >= loc, with shape `a` > 0.

The density is z^(a-1) exp(-z) / Γ(a) for z = (x - loc) / scale >= 0, divided by `scale`. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.gamma.pdf(vf.numpy.array([0.0, 1.0, 2.0]), 2.0).round(4)
Array([0.    , 0.3679, 0.2707], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.special.gamma_family import gammainc, gammaincc, gammaln, log_gamma_weight
from volta_fn.scipy.stats.declarations import POSITIVE, Continuous, log_lower_gamma, log_or_tail, log_power, log_upper_gamma


def _parameters(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a value and the shape."""


def log_density(z: Array, a: Array) -> Array:
    """Return the log of the density in standard form, for z >= 0."""
    positive = vnp.where(z == 0, 1.0, z)
    at_zero = log_power(z, a - 1.0) - z - gammaln(a)
    return vnp.where(z == 0, at_zero, log_gamma_weight(a, positive) - vnp.log(positive))


def log_distribution(z: Array, a: Array) -> Array:
    """Return the log of the distribution function in standard form, for z > 0."""
    return log_or_tail(gammainc(a, z), gammaincc(a, z), log_lower_gamma, (a, z), (300.0, 20.0))


def log_survival(z: Array, a: Array) -> Array:
    """Return the log of the survival function in standard form, for z > 0."""
    return log_or_tail(gammaincc(a, z), gammainc(a, z), log_upper_gamma, (a, z), (1.0, 80.0))


_gamma = Continuous(_parameters, support=POSITIVE, valid=lambda a: a > 0)

logpdf = _gamma.logpdf(log_density)
pdf = _gamma.pdf(special.gamma_pdf)
cdf = _gamma.cdf(lambda z, a: gammainc(a, z))
sf = _gamma.sf(lambda z, a: gammaincc(a, z))
logcdf = _gamma.logcdf(log_distribution)
logsf = _gamma.logsf(log_survival)

"""The beta distribution between loc and loc + scale, with shapes `a`, `b` > 0.

The density is z^(a-1) (1 - z)^(b-1) / B(a, b) for z = (x - loc) / scale in [0, 1], divided by `scale`. All arguments broadcast; integers
become floats.

>>> vf.scipy.stats.beta.pdf(vf.numpy.array([0.0, 0.25, 0.5]), 2.0, 2.0)
Array([0.   , 1.125, 1.5  ], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.special.gamma_family import betainc, betaln, log_beta_weight
from volta_fn.scipy.stats.declarations import UNIT, Continuous, log_lower_beta, log_or_tail, log_power, log_upper_beta


def _parameters(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a value and the shapes."""


def _log_density(z: Array, a: Array, b: Array) -> Array:
    at_end = (z == 0) | (z == 1)
    inside = vnp.where(at_end, 0.5, z)
    end = log_power(z, a - 1.0) + log_power(1.0 - z, b - 1.0) - betaln(a, b)
    return vnp.where(at_end, end, log_beta_weight(a, b, inside) - vnp.log(inside) - vnp.log1p(-inside))


def _survival(z: Array, a: Array, b: Array) -> Array:
    return special.regularized_incomplete_beta_complement(*vnp.broadcast_arrays(a, b, z))


def _log_distribution(z: Array, a: Array, b: Array) -> Array:
    return log_or_tail(betainc(a, b, z), _survival(z, a, b), log_lower_beta, (a, b, z), (300.0, 300.0, 0.1))


def _log_survival(z: Array, a: Array, b: Array) -> Array:
    return log_or_tail(_survival(z, a, b), betainc(a, b, z), log_upper_beta, (a, b, z), (300.0, 300.0, 0.9))


_beta = Continuous(_parameters, support=UNIT, valid=lambda a, b: (a > 0) & (b > 0))

logpdf = _beta.logpdf(_log_density)
pdf = _beta.pdf(special.beta_pdf)
cdf = _beta.cdf(lambda z, a, b: betainc(a, b, z))
sf = _beta.sf(_survival)
logcdf = _beta.logcdf(_log_distribution)
logsf = _beta.logsf(_log_survival)

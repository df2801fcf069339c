"""The logistic distribution with mean `loc`.

The distribution function is 1 / (1 + exp(-z)) for z = (x - loc) / scale. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.logistic.cdf(vf.numpy.array([-1.0, 0.0, 1.0])).round(4)
Array([0.2689, 0.5   , 0.7311], dtype=float32)
"""

from __future__ import annotations

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.special.exponential import expit, logit
from volta_fn.scipy.stats.declarations import Continuous, of_value


def _log_density(z: Array) -> Array:
    depth = vnp.abs(z)
    return -depth - 2.0 * vnp.log1p(vnp.exp(-depth))


_logistic = Continuous(of_value)

logpdf = _logistic.logpdf(_log_density)
pdf = _logistic.pdf(special.logistic_pdf)
cdf = _logistic.cdf(expit)
sf = _logistic.sf(lambda z: expit(-z))
ppf = _logistic.ppf(logit, of_value)
isf = _logistic.isf(lambda q: -logit(q), of_value)

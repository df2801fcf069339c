"""The normal distribution with mean `loc` and standard deviation `scale`.

The density is exp(-z²/2) / sqrt(2π) for z = (x - loc) / scale, divided by `scale`. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.norm.cdf(vf.numpy.array([-1.96, 0.0, 1.96])).round(4)
Array([0.025, 0.5  , 0.975], dtype=float32)
"""

from __future__ import annotations

import math

from volta_fn.primitives.elementwise import special
from volta_fn.scipy.special.error import log_ndtr, ndtr, ndtri
from volta_fn.scipy.stats.declarations import Continuous, of_probability, of_value

_norm = Continuous(of_value)

logpdf = _norm.logpdf(lambda z: -0.5 * (z * z) - 0.5 * math.log(2.0 * math.pi))
pdf = _norm.pdf(special.normal_pdf)
cdf = _norm.cdf(ndtr)
sf = _norm.sf(lambda z: ndtr(-z))
logcdf = _norm.logcdf(log_ndtr)
logsf = _norm.logsf(lambda z: log_ndtr(-z))
ppf = _norm.ppf(ndtri, of_probability)
isf = _norm.isf(lambda q: -ndtri(q), of_probability)

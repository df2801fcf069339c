"""The exponential distribution of x >= loc, with mean loc + scale.

The density is exp(-z) for z = (x - loc) / scale >= 0, divided by `scale`. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.expon.sf(vf.numpy.array([0.0, 1.0, 2.0])).round(4)
Array([1.    , 0.3679, 0.1353], dtype=float32)
"""

from __future__ import annotations

from volta_fn import numpy as vnp
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.stats.declarations import POSITIVE, Continuous, log1mexp, of_probability, of_value

_expon = Continuous(of_value, support=POSITIVE)

logpdf = _expon.logpdf(lambda z: -z)
pdf = _expon.pdf(special.exponential_pdf)
cdf = _expon.cdf(lambda z: -vnp.expm1(-z))
sf = _expon.sf(lambda z: vnp.exp(-z))
logcdf = _expon.logcdf(log1mexp)
logsf = _expon.logsf(lambda z: -z)
ppf = _expon.ppf(lambda q: -vnp.log1p(-q), of_probability)

"""The Cauchy distribution with median `loc`, and quartiles `scale` away from it.

The density is 1 / (π (1 + z²)) for z = (x - loc) / scale, divided by `scale`. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.cauchy.cdf(vf.numpy.array([-1.0, 0.0, 1.0])).round(4)
Array([0.25, 0.5 , 0.75], dtype=float32)
"""

from __future__ import annotations

import math

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.stats.declarations import Continuous, log1p_square, of_probability, of_value


def _quantile(q: Array) -> Array:
    """Return -1 / tan(π q), by the nearer end of (0, 1) or by the middle."""
    middle = vnp.abs(q - 0.5) < 0.25
    centred = vnp.tan(math.pi * vnp.where(middle, q - 0.5, 0.0))
    outside = vnp.where(middle, 0.25, vnp.where(q < 0.5, q, q - 1.0))
    return vnp.where(middle, centred, -1.0 / vnp.tan(math.pi * outside))


_cauchy = Continuous(of_value)

logpdf = _cauchy.logpdf(lambda z: -math.log(math.pi) - log1p_square(z))
pdf = _cauchy.pdf(special.cauchy_pdf)
cdf = _cauchy.cdf(lambda z: vnp.arctan2(1.0, -z) / math.pi)
sf = _cauchy.sf(lambda z: vnp.arctan2(1.0, z) / math.pi)
logcdf = _cauchy.logcdf()
logsf = _cauchy.logsf()
ppf = _cauchy.ppf(_quantile, of_probability)
isf = _cauchy.isf(lambda q: -_quantile(q), of_probability)

"""The Laplace distribution with mean `loc`.

The density is exp(-|z|) / 2 for z = (x - loc) / scale, divided by `scale`. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.laplace.cdf(vf.numpy.array([-1.0, 0.0, 1.0])).round(4)
Array([0.1839, 0.5   , 0.8161], dtype=float32)
"""

from __future__ import annotations

import math

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.stats.declarations import Continuous, of_value


def _probability(z: Array) -> Array:
    # A minimum would halve the derivative at 0.
    tail = 0.5 * vnp.exp(vnp.where(z < 0, z, -z))
    return vnp.where(z < 0, tail, 1.0 - tail)


_laplace = Continuous(of_value)

logpdf = _laplace.logpdf(lambda z: -vnp.abs(z) - math.log(2.0))
pdf = _laplace.pdf(lambda x, loc, scale: 0.5 * special.exponential_pdf(x, loc, scale))
cdf = _laplace.cdf(_probability)

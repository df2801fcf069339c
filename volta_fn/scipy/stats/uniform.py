"""The uniform distribution of x between loc and loc + scale.

All arguments broadcast; integers become floats.

>>> vf.scipy.stats.uniform.pdf(vf.numpy.array([-1.0, 0.0, 3.0]), -0.5, 2.0)
Array([0. , 0.5, 0. ], dtype=float32)
"""

from __future__ import annotations

from volta_fn import numpy as vnp
from volta_fn.scipy.stats.declarations import UNIT, Continuous, of_probability, of_value

_uniform = Continuous(of_value, support=UNIT)

logpdf = _uniform.logpdf(vnp.zeros_like)
pdf = _uniform.pdf()
cdf = _uniform.cdf(lambda z: z)
ppf = _uniform.ppf(lambda q: q, of_probability)

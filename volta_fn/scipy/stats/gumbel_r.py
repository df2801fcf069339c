"""The right-skewed Gumbel distribution, of the largest of many numbers.

The density is exp(-z - exp(-z)) for z = (x - loc) / scale, divided by `scale`. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.gumbel_r.cdf(vf.numpy.array([-1.0, 0.0, 1.0])).round(4)
Array([0.066 , 0.3679, 0.6922], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.scipy.stats.declarations import Continuous, exp_or_infinity, of_value
from volta_fn.scipy.stats.gumbel_l import log1mexpexp


def _of_probability(p: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a probability."""


_gumbel_r = Continuous(of_value)

logpdf = _gumbel_r.logpdf(lambda z: -z - exp_or_infinity(-z))
pdf = _gumbel_r.pdf()
cdf = _gumbel_r.cdf(lambda z: vnp.exp(-exp_or_infinity(-z)))
sf = _gumbel_r.sf(lambda z: -vnp.expm1(-exp_or_infinity(-z)))
logcdf = _gumbel_r.logcdf(lambda z: -exp_or_infinity(-z))
logsf = _gumbel_r.logsf(lambda z: log1mexpexp(-z))
ppf = _gumbel_r.ppf(lambda p: -vnp.log(-vnp.log(p)), _of_probability)

"""The left-skewed Gumbel distribution, of the smallest of many numbers.

The density is exp(z - exp(z)) for z = (x - loc) / scale, divided by `scale`. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.gumbel_l.cdf(vf.numpy.array([-1.0, 0.0, 1.0])).round(4)
Array([0.3078, 0.6321, 0.934 ], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.scipy.stats.declarations import Continuous, exp_or_infinity, log1mexp, of_value

#: Below this, log(1 - exp(-exp(z))) is z to the last bit.
_TAIL = -38.0


def _of_probability(p: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a probability."""


def log1mexpexp(z: Array) -> Array:
    """Return log(1 - exp(-exp(z)))."""
    far = z < _TAIL
    return vnp.where(far, z, log1mexp(exp_or_infinity(vnp.where(far, _TAIL, z))))


_gumbel_l = Continuous(of_value)

logpdf = _gumbel_l.logpdf(lambda z: z - exp_or_infinity(z))
pdf = _gumbel_l.pdf()
cdf = _gumbel_l.cdf(lambda z: -vnp.expm1(-exp_or_infinity(z)))
sf = _gumbel_l.sf(lambda z: vnp.exp(-exp_or_infinity(z)))
logcdf = _gumbel_l.logcdf(log1mexpexp)
logsf = _gumbel_l.logsf(lambda z: -exp_or_infinity(z))
ppf = _gumbel_l.ppf(lambda p: vnp.log(-vnp.log1p(-p)), _of_probability)

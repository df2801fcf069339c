"""The chi-squared distribution of x >= loc, with `df` > 0 degrees of freedom.

It is that of the sum of `df` squared standard normal numbers, the gamma distribution of z / 2 with shape df / 2, for
z = (x - loc) / scale >= 0. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.chi2.sf(vf.numpy.array([3.841, 6.635]), 1).round(3)
Array([0.05, 0.01], dtype=float32)
"""

from __future__ import annotations

import math
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.special.gamma_family import gammainc, gammaincc
from volta_fn.scipy.stats.declarations import POSITIVE, Continuous
from volta_fn.scipy.stats.gamma import log_density, log_distribution, log_survival

#: Of so few degrees of freedom the density is a multiple.
_TINY = 1e-30


def _parameters(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a value and the degrees of freedom."""


def _density(x: Array, df: Array, loc: Array, scale: Array) -> Array:
    """Return that of the gamma distribution.

    It is proportional to a tiny `df`, half of which may be no number.
    """
    tiny = df < _TINY
    return vnp.where(tiny, 0.5, 1.0) * special.gamma_pdf(x, vnp.where(tiny, df, 0.5 * df), loc, 2.0 * scale)


_chi2 = Continuous(_parameters, support=POSITIVE, valid=lambda df: df > 0)

logpdf = _chi2.logpdf(lambda z, df: log_density(0.5 * z, 0.5 * df) - math.log(2.0))
pdf = _chi2.pdf(_density)
cdf = _chi2.cdf(lambda z, df: gammainc(0.5 * df, 0.5 * z))
sf = _chi2.sf(lambda z, df: gammaincc(0.5 * df, 0.5 * z))
logcdf = _chi2.logcdf(lambda z, df: log_distribution(0.5 * z, 0.5 * df))
logsf = _chi2.logsf(lambda z, df: log_survival(0.5 * z, 0.5 * df))

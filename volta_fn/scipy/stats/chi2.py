"""The chi-squared distribution of x >= loc, with `df` > 0 degrees of freedom.

It is that of the sum of `df` squared standard normal numbers, the gamma distribution of z / 2 with shape df / 2, for
z = (x - loc) / scale >= 0. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.chi2.sf(vf.numpy.array([3.841, 6.635]), 1).round(3)
Array([0.05, 0.01], dtype=float32)
"""

from __future__ import annotations

import math
from typing import Any

from volta_fn.primitives.elementwise import incomplete
from volta_fn.scipy.special.incomplete_gamma import gammainc, gammaincc
from volta_fn.scipy.stats.declarations.continuous import POSITIVE, Continuous
from volta_fn.scipy.stats.gamma import log_density, log_distribution, log_survival


def _parameters(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a value and the degrees of freedom."""


_chi2 = Continuous(_parameters, support=POSITIVE, valid=lambda df: df > 0)

logpdf = _chi2.logpdf(lambda z, df: log_density(0.5 * z, 0.5 * df) - math.log(2.0))
pdf = _chi2.pdf(lambda x, df, loc, scale: incomplete.gamma_pdf(x, 0.5 * df, loc, 2.0 * scale))
cdf = _chi2.cdf(lambda z, df: gammainc(0.5 * df, 0.5 * z))
sf = _chi2.sf(lambda z, df: gammaincc(0.5 * df, 0.5 * z))
logcdf = _chi2.logcdf(lambda z, df: log_distribution(0.5 * z, 0.5 * df))
logsf = _chi2.logsf(lambda z, df: log_survival(0.5 * z, 0.5 * df))

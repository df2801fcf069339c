"""The Pareto distribution of x >= loc + scale, with shape `b` > 0.

The density is b / z^(b+1) for z = (x - loc) / scale >= 1, divided by `scale`. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.pareto.sf(vf.numpy.array([1.0, 2.0, 4.0]), 2.0)
Array([1.    , 0.25  , 0.0625], dtype=float32)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.scipy.stats.declarations import Continuous, Interval, log1mexp


def _parameters(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a value and the shape."""


def _of_probability(q: Any, b: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a probability and the shape."""


_pareto = Continuous(_parameters, support=Interval(1.0, np.inf, 2.0), valid=lambda b: b > 0)

logpdf = _pareto.logpdf(lambda z, b: vnp.log(b) - (b + 1.0) * vnp.log(z))
pdf = _pareto.pdf()
cdf = _pareto.cdf(lambda z, b: -vnp.expm1(-b * vnp.log(z)))
sf = _pareto.sf(lambda z, b: z**-b)
logcdf = _pareto.logcdf(lambda z, b: log1mexp(b * vnp.log(z)))
logsf = _pareto.logsf(lambda z, b: -b * vnp.log(z))
ppf = _pareto.ppf(lambda q, b: vnp.exp(-vnp.log1p(-q) / b), _of_probability)

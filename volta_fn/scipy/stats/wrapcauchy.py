"""The wrapped Cauchy distribution of angles x in [0, 2π], with 0 < `c` < 1.

The density is (1 - c²) / (2π (1 + c² - 2 c cos(x))), for x in radians. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.wrapcauchy.pdf(vf.numpy.array([0.0, 1.0]), 0.5).round(4)
Array([0.4775, 0.1682], dtype=float32)
"""

from __future__ import annotations

import math
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.scipy.stats.declarations import Continuous, Interval


def _parameters(x: Any, c: Any) -> None:
    """Take a value and the shape."""


def _log_density(x: Array, c: Array) -> Array:
    # 1 + c² - 2 c cos(x) is (1 - c)² + 4 c sin²(x/2), which does not cancel.
    square = (1.0 - c) ** 2 + 4.0 * c * vnp.sin(0.5 * x) ** 2
    return vnp.log1p(-c) + vnp.log1p(c) - math.log(2.0 * math.pi) - vnp.log(square)


_wrapcauchy = Continuous(_parameters, support=Interval(0.0, 2.0 * math.pi, 1.0), valid=lambda c: (c > 0) & (c < 1))

logpdf = _wrapcauchy.logpdf(_log_density)
pdf = _wrapcauchy.pdf()

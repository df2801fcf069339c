"""Student's t distribution with `df` > 0 degrees of freedom.

The density is (1 + z²/df)^(-(df+1)/2) / (sqrt(df) B(1/2, df/2)) for z = (x - loc) / scale, divided by `scale`; for infinite `df` it is
normal. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.t.pdf(vf.numpy.array([0.0, 1.0]), 1.0).round(4)
Array([0.3183, 0.1592], dtype=float32)
"""

from __future__ import annotations

import math
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.special.gamma_family import log_rise
from volta_fn.scipy.stats.declarations import Continuous, log1p_square


def _parameters(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a value and the degrees of freedom."""


def _log_density(z: Array, df: Array) -> Array:
    finite = vnp.isfinite(df)
    degrees = vnp.where(finite, df, 1.0)
    level = log_rise(0.5 * degrees, vnp.full_like(degrees, 0.5)) - 0.5 * vnp.log(math.pi * degrees)
    student = level - 0.5 * (degrees + 1.0) * log1p_square(z / vnp.sqrt(degrees))
    return vnp.where(finite, student, -0.5 * (z * z) - 0.5 * math.log(2.0 * math.pi))


_t = Continuous(_parameters, valid=lambda df: df > 0)

logpdf = _t.logpdf(_log_density)
pdf = _t.pdf(special.t_pdf)

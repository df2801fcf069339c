"""The von Mises distribution of angles x, with concentration `kappa` >= 0.

The density is exp(kappa cos(x)) / (2π I_0(kappa)), of period 2π, for x in radians. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.vonmises.pdf(vf.numpy.array([0.0, 1.0]), 2.0).round(4)
Array([0.5159, 0.2057], dtype=float32)
"""

from __future__ import annotations

import math
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.scipy.special.polynomials import i0e
from volta_fn.scipy.stats.declarations import Continuous


def _parameters(x: Any, kappa: Any) -> None:
    """Take a value and the concentration."""


def _log_density(x: Array, kappa: Array) -> Array:
    # cos(x) - 1 is -2 sin²(x/2), which does not cancel.
    return -2.0 * kappa * vnp.sin(0.5 * x) ** 2 - vnp.log(2.0 * math.pi * i0e(kappa))


_vonmises = Continuous(_parameters, valid=lambda kappa: kappa >= 0)

logpdf = _vonmises.logpdf(_log_density)
pdf = _vonmises.pdf()

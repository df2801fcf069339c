"""The normal distribution, truncated to x between loc + a scale and loc + b scale.

The density is that of the normal distribution for z = (x - loc) / scale in [a, b], divided by the probability of that interval; a < b.
All arguments broadcast; integers become floats.

>>> vf.scipy.stats.truncnorm.cdf(vf.numpy.array([-1.0, 0.0, 2.0]), -1.0, 2.0).round(4)
Array([0.   , 0.417, 1.   ], dtype=float32)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.scipy.special.error import erf, log_ndtr, ndtr
from volta_fn.scipy.stats.declarations import Continuous, Interval, log1mexp

_HALF_ROOT = math.sqrt(0.5)


def _parameters(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a value and the standardised ends of the interval."""


def _support(a: Array, b: Array) -> Interval:
    top = vnp.where(vnp.isfinite(b), b, vnp.where(vnp.isfinite(a), a, -1.0) + 2.0)
    bottom = vnp.where(vnp.isfinite(a), a, top - 2.0)
    return Interval(a, b, 0.5 * (bottom + top))


def _log_mass(a: Array, b: Array) -> Array:
    """Return the log of the standard normal probability of [a, b], for a < b."""
    right = a > 0
    low, high = vnp.where(right, -b, a), vnp.where(right, -a, b)
    in_tail = high < -1
    centre = _log_of_central_mass(vnp.where(in_tail, -1.0, low), vnp.where(in_tail, 1.0, high))
    tail = _log_of_left_mass(vnp.where(in_tail, low, -2.0), vnp.where(in_tail, high, -1.0))
    return vnp.where(in_tail, tail, centre)


def _log_of_central_mass(low: Array, high: Array) -> Array:
    """Return it for low <= 0 and high >= -1, where erf does not cancel."""
    inside = 0.5 * (erf(_HALF_ROOT * high) - erf(_HALF_ROOT * low))
    small = inside < 0.5
    outside = vnp.where(small, 0.0, ndtr(low) + ndtr(-high))
    return vnp.where(small, vnp.log(vnp.where(small, inside, 1.0)), vnp.log1p(-outside))


def _log_of_left_mass(low: Array, high: Array) -> Array:
    """Return it for low < high < -1."""
    finite = low > -np.inf
    top = log_ndtr(high)
    gap = top - log_ndtr(vnp.where(finite, low, high - 1.0))
    return vnp.where(finite, top + log1mexp(gap), top)


def _log_share(mass: Array, rest: Array, total: Array) -> Array:
    """Return log(mass / total), given logs of two masses and of their sum.

    Where it is near 0 it is computed from the rest.
    """
    share, other = mass - total, rest - total
    near = share > -0.1
    return vnp.where(near, vnp.log1p(-vnp.exp(vnp.where(near, other, -1.0))), share)


def _log_probability(z: Array, a: Array, b: Array) -> Array:
    return _log_share(_log_mass(a, z), _log_mass(z, b), _log_mass(a, b))


def _log_survival(z: Array, a: Array, b: Array) -> Array:
    return _log_share(_log_mass(z, b), _log_mass(a, z), _log_mass(a, b))


_truncnorm = Continuous(_parameters, support=_support, valid=lambda a, b: a < b)

logpdf = _truncnorm.logpdf(lambda z, a, b: -0.5 * (z * z) - 0.5 * math.log(2.0 * math.pi) - _log_mass(a, b))
pdf = _truncnorm.pdf()
cdf = _truncnorm.cdf(lambda z, a, b: vnp.exp(_log_probability(z, a, b)))
sf = _truncnorm.sf(lambda z, a, b: vnp.exp(_log_survival(z, a, b)))
logcdf = _truncnorm.logcdf(_log_probability)
logsf = _truncnorm.logsf(_log_survival)

"""The incomplete beta function (the beta distribution function)."""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.elementwise import incomplete
from volta_fn.scipy.special.arguments import composite


@composite
def betainc(a: Any, b: Any, x: Any) -> Array:
    """Return the regularised incomplete beta function of x with shape `a` and `b`.

    It is the probability that a beta random number is at most x. All arguments broadcast, and it is differentiable by each. NaN for
    negative a or b, if both are 0 or infinite, and unless 0 <= x <= 1.

    >>> vf.scipy.special.betainc(2.0, 3.0, vf.numpy.array([0.0, 0.5, 1.0])).round(4)
    Array([0.    , 0.6875, 1.    ], dtype=float32)
    """
    return incomplete.regularized_incomplete_beta(*vnp.broadcast_arrays(a, b, x))

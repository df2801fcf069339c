"""Box and Cox's power transforms."""

from __future__ import annotations

import math

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.primitives.declare import Domain, Elementwise, elementwise
from volta_fn.primitives.elementwise.comparison import eq, lt
from volta_fn.primitives.elementwise.exponential import exp, log, log1p
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.formulas import power_transforms


def _by_power(logarithm: Array, power: Array) -> Array:
    """Return the derivative by the power: log² (t e^t - e^t + 1) / t², t = power log.

    For small t the quotient is the sum of (k + 1) t^k / (k + 2)!.
    """
    t = power * logarithm
    close = lt(abs(t), 0.5)
    zero, one = (as_value(np.full((), value, t.dtype)) for value in (0, 1))
    small, large, safe = select(close, t, zero), select(close, one, t), select(close, one, power)
    series = as_value(np.full((), 14 / math.factorial(15), t.dtype))
    for k in range(12, -1, -1):
        series = series * small + (k + 1) / math.factorial(k + 2)
    slope = (large - 1.0) * exp(large) + 1.0
    return select(eq(power, 0.0) | close, logarithm * logarithm * series, slope / safe / safe)


boxcox: Elementwise = elementwise(
    "boxcox", formula=power_transforms.boxcox, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x, power: g * exp(power * log(x)) / x, lambda g, out, x, power: g * _by_power(log(x), power)],
    domain=Domain(0.2, 4.0), doc="(x^power - 1) / power, and log(x) for the power 0.",
)  # fmt: skip
boxcox1p: Elementwise = elementwise(
    "boxcox1p", formula=power_transforms.boxcox1p, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, x, power: g * exp(power * log1p(x)) / (1.0 + x),
        lambda g, out, x, power: g * _by_power(log1p(x), power),
    ],
    domain=Domain(-0.8, 3.0), doc="boxcox of 1 + x.",
)  # fmt: skip

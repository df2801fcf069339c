"""The inverses of the hyperbolic functions, as logarithms."""

from __future__ import annotations

import math

from volta_fn.primitives.formulas.logarithm import log, log1p
from volta_fn.primitives.formulas.precision import in_float64
from volta_fn.primitives.formulas.values import Values

#: From here on x^2 + 1 is x^2.
_LARGE = {32: 2.0**13, 64: 2.0**28}


@in_float64
def asinh(x: Values) -> Values:
    """Return log(|x| + sqrt(x^2 + 1)).

    Near 1 it is a log1p; where x^2 might overflow, the argument is 2|x|.
    """
    size = x.abs()
    square = size * size
    near = log1p(size + square / ((square + 1.0).sqrt() + 1.0))
    return size.below(_LARGE[x.bits]).select(near, log(size) + math.log(2.0)).signed(x)


@in_float64
def acosh(x: Values) -> Values:
    """Return log(x + sqrt(x^2 - 1)); NaN below 1.

    With t = x - 1 it is log1p(t + sqrt(2 t + t^2)).
    """
    t = x - 1.0
    near = log1p(t + t.fma(t, t + t).sqrt())
    return x.below(1.0).select(math.nan, x.below(_LARGE[x.bits]).select(near, log(x) + math.log(2.0)))


@in_float64
def atanh(x: Values) -> Values:
    """Return log((1 + x) / (1 - x)) / 2, as log1p of 2 x / (1 - x)."""
    size = x.abs()
    return (log1p((size + size) / (1.0 - size)) * 0.5).signed(x)

"""The inverses of the hyperbolic functions, as logarithms."""

from __future__ import annotations

import math

from volta_fn.codegen.scalars.functions.in_float64 import wide
from volta_fn.codegen.scalars.functions.logarithm import log, log1p
from volta_fn.codegen.scalars.values import Values

#: From here on x^2 + 1 is x^2.
_LARGE = {32: 2.0**13, 64: 2.0**28}


def _asinh(x: Values) -> Values:
    size = x.abs()
    square = size * size
    near = log1p(size + square / ((square + 1.0).sqrt() + 1.0))
    return size.below(_LARGE[x.bits]).select(near, log(size) + math.log(2.0)).signed(x)


def _acosh(x: Values) -> Values:
    t = x - 1.0
    near = log1p(t + t.fma(t, t + t).sqrt())
    return x.below(1.0).select(math.nan, x.below(_LARGE[x.bits]).select(near, log(x) + math.log(2.0)))


def _atanh(x: Values) -> Values:
    size = x.abs()
    return (log1p((size + size) / (1.0 - size)) * 0.5).signed(x)


@wide(single=_asinh)
def asinh(x: Values) -> Values:
    """log(|x| + sqrt(x^2 + 1)), as log1p where that is near 1; 2|x| where x^2 might overflow."""
    return _asinh(x)


@wide(single=_acosh)
def acosh(x: Values) -> Values:
    """log(x + sqrt(x^2 - 1)); with t = x - 1 that is log1p(t + sqrt(2 t + t^2)). NaN below 1."""
    return _acosh(x)


@wide(single=_atanh)
def atanh(x: Values) -> Values:
    """log((1 + x) / (1 - x)) / 2, as log1p of 2 x / (1 - x)."""
    return _atanh(x)

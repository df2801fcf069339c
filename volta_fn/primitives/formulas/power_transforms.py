"""Box and Cox's power transforms (1964)."""

from __future__ import annotations

import math

from volta_fn.primitives.formulas.exponential import exp, expm1, log, log1p, pow
from volta_fn.primitives.formulas.values import Values, exact_sum, in_float64

#: Below it (e^t - 1) / t is 1, by width.
_NEGLIGIBLE = {32: 2.0**-26, 64: 2.0**-55}


@in_float64
def boxcox(x: Values, power: Values) -> Values:
    """Return (x^power - 1) / power, and log(x) for the power 0."""
    return _transform(log(x), power, x, x.like(0.0))


@in_float64
def boxcox1p(x: Values, power: Values) -> Values:
    """Return `boxcox` of 1 + x."""
    return _transform(log1p(x), power, *exact_sum(x.like(1.0), x))


def _transform(logarithm: Values, power: Values, base: Values, rest: Values) -> Values:
    """Return (e^(power log) - 1) / power, also where that power alone overflows.

    The logarithm is that of base + rest. Its exponential would lose digits in float32, a power does not.
    """
    exponent = power.equals(0.0).select(0.0, power * logarithm)
    close, large = exponent.abs().below(_NEGLIGIBLE[power.bits]), exponent.above(1.0)
    safe = close.select(1.0, power)
    if power.bits == 32:
        half, ordinary = large.select(power * 0.5, 0.0), large.select(base, 1.0)
        root = ordinary.called("pow", pow, half)
        root = root.equals(math.inf).select(root, root * exp((half * large.select(rest / ordinary, 0.0)).clamped(-80.0, 100.0)))
    else:
        root = exp(large.select(exponent * 0.5, 0.0))
    grown = root / safe * root - 1.0 / safe
    out = large.select(grown, expm1(large.select(0.0, exponent)) / safe)
    infinite = logarithm.abs().equals(math.inf) & power.equals(0.0)
    return infinite.select(logarithm, close.select(logarithm, out))

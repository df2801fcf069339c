"""log-gamma and digamma, by the formulas of the evaluation rules, of which one of three holds for each argument, in float64."""

from __future__ import annotations

import math

from volta_fn.backends.native.scalars.functions.logarithm import log
from volta_fn.backends.native.scalars.functions.trigonometric import sin, tan
from volta_fn.backends.native.scalars.functions.wide import wide
from volta_fn.backends.native.scalars.lanes import Lanes
from volta_fn.primitives.scalar_functions.gamma import (
    DIGAMMA,
    DIGAMMA_FAR,
    DIGAMMA_ZERO,
    DIGAMMA_ZERO_REST,
    FAR,
    HALF_LOG_TWO_PI_LESS_HALF,
    LGAMMA,
    STIRLING,
)


def _fraction_from_integer(x: Lanes) -> Lanes:
    return x - x.nearest()


def _unit_base(x: Lanes) -> Lanes:
    """The number in [1, 2] that differs from x >= 1 by a whole number."""
    return x - (x.intrinsic("ceil") - 2.0).floored(0.0)


@wide
def lgamma(x: Lanes) -> Lanes:
    """log |gamma(x)|; infinite at zero, the negative integers and both infinities."""
    negative = x.below(0.0)
    mirrored = _lgamma_positive(negative.select(1.0 - x, x))
    sine = sin(_fraction_from_integer(x) * math.pi).abs()
    reflected = -log(sine * (1.0 / math.pi)) - mirrored
    infinite = x.abs().equals(math.inf) | (negative & x.floor().equals(x))
    return infinite.select(math.inf, negative.select(reflected, mirrored))


def _lgamma_positive(x: Lanes) -> Lanes:
    """The same logarithm serves all ranges: of x, and between 1 and 8 of the factors by which it is above [1, 2]."""
    near, is_small = x.below(FAR), x.below(1.0)
    product = x.like(1.0)
    for k in range(1, int(FAR) - 1):
        product = product * (x - float(k)).floored(1.0)
    logarithm = log((near & ~is_small).select(product, x))
    t = is_small.select(x, _unit_base(x) - 1.0)
    unit = t * (t - 1.0) * t.fma(2.0, -1.0).polynomial(LGAMMA)
    inverse = 1.0 / x
    far = (x - 0.5) * (logarithm - 1.0) + HALF_LOG_TWO_PI_LESS_HALF + inverse * (inverse * inverse).polynomial(STIRLING)
    return near.select(unit + is_small.select(-logarithm, logarithm), far)


@wide
def digamma(x: Lanes) -> Lanes:
    """The derivative of lgamma; NaN at zero, at the negative integers and at -infinity."""
    negative = x.below(0.0)
    mirrored = _digamma_positive(negative.select(1.0 - x, x))
    reflected = mirrored - math.pi / tan(_fraction_from_integer(x) * math.pi)
    pole = x.compare("ole", 0.0) & x.floor().equals(x)
    return pole.select(math.nan, negative.select(reflected, mirrored))


def _digamma_positive(x: Lanes) -> Lanes:
    near, is_small, inverse = x.below(FAR), x.below(1.0), 1.0 / x
    total = is_small.select(-inverse, 0.0)
    for k in range(1, int(FAR) - 1):
        total = total + x.above(k + 1.0).select(1.0 / (x - float(k)).floored(1.0), 0.0)
    base = is_small.select(x + 1.0, _unit_base(x))
    unit = ((base - DIGAMMA_ZERO) - DIGAMMA_ZERO_REST) * base.fma(2.0, -3.0).polynomial(DIGAMMA)
    square = inverse * inverse
    far = log(x) - inverse * 0.5 - square * square.polynomial(DIGAMMA_FAR)
    return near.select(total + unit, far)

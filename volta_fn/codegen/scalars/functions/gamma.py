"""log-gamma and digamma, by the formulas of the evaluation rules, of which one of three holds for each argument, in float64."""

from __future__ import annotations

import math

import numpy as np

from volta_fn.codegen.scalars.functions.in_float64 import wide
from volta_fn.codegen.scalars.functions.logarithm import log
from volta_fn.codegen.scalars.functions.trigonometric import sin, tan
from volta_fn.codegen.scalars.values import Values
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

_NEAR = float(np.float32(DIGAMMA_ZERO))
#: digamma's positive zero in two parts, by width.
_DIGAMMA_ZERO = {32: (_NEAR, DIGAMMA_ZERO - _NEAR), 64: (DIGAMMA_ZERO, DIGAMMA_ZERO_REST)}


def _fraction_from_integer(x: Values) -> Values:
    return x - x.nearest()


def _unit_base(x: Values) -> Values:
    """The number in [1, 2] that differs from x >= 1 by a whole number."""
    return x - (x.ceil() - 2.0).floored(0.0)


def _lgamma(x: Values) -> Values:
    negative = x.below(0.0)
    mirrored = _lgamma_positive(negative.select(1.0 - x, x))
    fraction = _fraction_from_integer(x)
    sine = sin(fraction * math.pi).abs() * (1.0 / math.pi)
    size = fraction.abs()
    reflected = -log(size.below(1e-20).select(size, sine)) - mirrored  # pi x may be subnormal
    infinite = x.abs().equals(math.inf) | (negative & x.floor().equals(x))
    return infinite.select(math.inf, negative.select(reflected, mirrored))


@wide(single=_lgamma)
def lgamma(x: Values) -> Values:
    """log |gamma(x)|; infinite at zero, the negative integers and both infinities."""
    return _lgamma(x)


def _lgamma_positive(x: Values) -> Values:
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


def _digamma(x: Values) -> Values:
    negative = x.below(0.0)
    mirrored = _digamma_positive(negative.select(1.0 - x, x))
    reflected = mirrored - math.pi * _cotangent_of_turn(_fraction_from_integer(x))
    pole = x.compare("ole", 0.0) & x.floor().equals(x)
    return pole.select(math.nan, negative.select(reflected, mirrored))


@wide(single=_digamma)
def digamma(x: Values) -> Values:
    """The derivative of lgamma; NaN at zero, at the negative integers and at -infinity."""
    return _digamma(x)


def _cotangent_of_turn(fraction: Values) -> Values:
    """cot(pi t) for |t| <= 1/2, beyond 1/4 as a tangent: it is 0 at 1/2, beside which pi / 2 is not a float."""
    size = fraction.abs()
    far = size.above(0.25)
    tangent = tan(far.select(0.5 - size, size) * math.pi)
    return far.select(tangent, 1.0 / tangent).signed(fraction)


def _digamma_positive(x: Values) -> Values:
    near, is_small, inverse = x.below(FAR), x.below(1.0), 1.0 / x
    total = is_small.select(-inverse, 0.0)
    for k in range(1, int(FAR) - 1):
        total = total + x.above(k + 1.0).select(1.0 / (x - float(k)).floored(1.0), 0.0)
    base = is_small.select(x + 1.0, _unit_base(x))
    zero, rest = _DIGAMMA_ZERO[x.bits]
    unit = ((base - zero).held() - rest) * base.fma(2.0, -3.0).polynomial(DIGAMMA)
    square = inverse * inverse
    far = log(x) - inverse * 0.5 - square * square.polynomial(DIGAMMA_FAR)
    return near.select(total + unit, far)

"""The error function, its complement and its inverse."""

from __future__ import annotations

import math

from volta_fn.codegen.scalars.functions.exponential import exp, expm1_and_power, one_less_exp
from volta_fn.codegen.scalars.functions.logarithm import log
from volta_fn.codegen.scalars.values import Values
from volta_fn.primitives.scalar_functions.error import ERF_INV_32, ERF_INV_64, ERF_TAYLOR, ERFC_COEFFICIENTS, ERFC_LIMITS, ERFC_POLE

#: (log(erfc(x)) / x + c) / x for 0 <= x <= 4, where c = 2 / sqrt(pi) is the limit at 0; it leaves an error of 2^-28 erf(x).
_LOG_ERFC = (
    -9.55540713e-07, 1.8385048e-05, -0.000152786044, 0.000703399419, -0.00174693414, 0.000211986786, 0.0191347394, -0.102774553,
    -0.636619627,
)  # fmt: skip
_SLOPE, _SLOPE_REST = -1.128379225730896, 5.863538343753305e-08


def erf(x: Values) -> Values:
    """The error function; in float32 1 - e^log(erfc(|x|)), for which one polynomial does."""
    if x.bits == 64:
        return _erf_64(x)
    size = x.abs().capped(4.0)
    return one_less_exp(size.fma(_SLOPE, size * size.polynomial((*_LOG_ERFC, _SLOPE_REST)))).signed(x)


def _erf_64(x: Values) -> Values:
    """The Taylor series up to 1, from there on the complement's complement."""
    size = x.abs()
    near = size * (size * size).polynomial(ERF_TAYLOR)
    return size.below(1.0).select(near, 1.0 - _erfc_positive(size)).signed(x)


#: e^(x^2) erfc(x) (x + pole) for 0 <= x <= limit as a polynomial of t, which is linear in 1 / (x + pole).
_POLE, _LIMIT = 1.375, 10.1
_T = (3.1243813, -1.23631728)
_ERFC_SCALED = (
    2.48837405e-05, -2.27375494e-05, -0.000142841964, 0.000336309255, 2.40912304e-05, -0.00176130107, 0.00373679795, 0.00388507405,
    -0.0346636884, 0.00886739511, 0.398755729, 0.983886302,
)  # fmt: skip
#: By what part e^(x^2) erfc(x) changes when 1 / (x + pole) changes by a small part of it: 1.1 to 1.6 times as much.
_SENSITIVITY = 1.25


def erfc(x: Values) -> Values:
    """1 - erf(x), with full precision where it is small."""
    size = x.abs()
    side = x.like(1.0).signed(x)
    return (_erfc_32(size) if x.bits == 32 else _erfc_positive(size)) * side + (1.0 - side)


def _erfc_32(x: Values) -> Values:
    """erfc(x) = e^(-x^2) P(t) / (x + pole); what is rounded off on the way is kept and put in at the end."""
    bounded = x.capped(_LIMIT)
    below = (bounded + _POLE).held()
    inverse = 1.0 / below
    missing = (-inverse).fma(bounded - (below - _POLE), (-inverse).fma(below, 1.0))
    square = bounded * bounded
    rest = missing.fma(_SENSITIVITY, (-bounded).fma(bounded, square))
    t = inverse.fma(*_T)
    slope = t.polynomial(_ERFC_SCALED[:-1])
    scaled = slope.fma(t, _ERFC_SCALED[-1])
    scaled_rest = slope.fma(t, _ERFC_SCALED[-1] - scaled)
    product = inverse * scaled
    product_rest = inverse.fma(scaled_rest, inverse.fma(scaled, -product))
    more, power = expm1_and_power(-square, rest, 64)
    return (more.fma(product, product_rest) + product) * power * 2.0**-64


def _erfc_positive(x: Values) -> Values:
    """erfc(x) by a scaled one; from some x on 0."""
    bounded = x.capped(ERFC_LIMITS[8])
    return erfc_scaled(bounded) * exp_minus_square(bounded)


def erfc_scaled(x: Values) -> Values:
    """e^(x^2) erfc(x) for 0 <= x <= the limit: P(t) / (x + 3), with a Möbius map t of x."""
    below = x + ERFC_POLE
    return (x.fma(1.0 + 2.0 * ERFC_POLE / ERFC_LIMITS[8], -ERFC_POLE) / below).polynomial(ERFC_COEFFICIENTS[8]) / below


def exp_minus_square(x: Values, factor: float = 1.0) -> Values:
    """e^(-factor x^2), with what rounding takes from x^2 as a factor; `factor` is a power of two."""
    square = x * x
    lost = x.fma(x, -square)
    power = exp(square * -factor)
    return power.fma(lost * -factor, power)


def erf_inv(x: Values) -> Values:
    """The x for which erf is the argument, by the same formulas as the evaluation rule (1 - x^2 is rounded twice)."""
    w = -log(1.0 - (x * x).held())
    result = (_inverse_32(w) if x.bits == 32 else _inverse_64(w)) * x
    return x.abs().equals(1.0).select(x * math.inf, result)


def _inverse_32(w: Values) -> Values:
    centre, tail = ERF_INV_32
    return w.compare("oge", 5.0).select((w.sqrt() - 3.0).polynomial(tail), (w - 2.5).polynomial(centre))


def _inverse_64(w: Values) -> Values:
    centre, tail, far = ERF_INV_64
    root = w.sqrt()
    beyond = w.compare("oge", 16.0).select((root - 5.0).polynomial(far), (root - 3.25).polynomial(tail))
    return w.compare("oge", 6.25).select(beyond, (w - 3.125).polynomial(centre))

"""The modified Bessel functions I0 and I1, scaled by exp(-|x|): the interpolants of the evaluation rule."""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.codegen.scalars.functions.in_float64 import wide
from volta_fn.codegen.scalars.values import Values
from volta_fn.primitives.scalar_functions.bessel import BORDER, I0_FAR, I0_NEAR, I1_FAR, I1_NEAR


def _i0e(x: Values) -> Values:
    size = x.abs()
    return _far(size, _near(size, I0_NEAR), I0_FAR)


def _i1e(x: Values) -> Values:
    size = x.abs()
    return _far(size, size * _near(size, I1_NEAR), I1_FAR).signed(x)


@wide(single=_i0e)
def bessel_i0e(x: Values) -> Values:
    """exp(-|x|) I0(x)."""
    return _i0e(x)


@wide(single=_i1e)
def bessel_i1e(x: Values) -> Values:
    """exp(-|x|) I1(x), an odd function."""
    return _i1e(x)


def _near(size: Values, coefficients: Sequence[float]) -> Values:
    """In x/4 - 1, for x up to the border."""
    return size.capped(BORDER).mad(0.25, -1.0).polynomial(coefficients)


def _far(size: Values, near: Values, coefficients: Sequence[float]) -> Values:
    """In 16/x - 1 and over the root of x, beyond the border."""
    beyond = size.above(BORDER)
    bounded = beyond.select(size, BORDER)
    return beyond.select((16.0 / bounded - 1.0).polynomial(coefficients) / bounded.sqrt(), near)

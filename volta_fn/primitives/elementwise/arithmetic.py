"""Elementwise arithmetic, absolute value, sign, extrema and rounding."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.declare import Domain, Elementwise, elementwise
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.elementwise.selection import conj, eq, real, select
from volta_fn.primitives.elementwise.transcendental import log
from volta_fn.primitives.formulas import exponential, trigonometric
from volta_fn.primitives.formulas import numpy_values as rules
from volta_fn.primitives.formulas.numpy_values import blockwise, fused_multiply_add

_AWAY_FROM_ZERO = Domain(avoid=(0.0,))

neg: Elementwise = elementwise("neg", np.negative, operands=dtypes.NUMBERS, derivatives=[lambda g, out, x: neg(g)], linear=(0,), doc="-x")

add: Elementwise = elementwise(
    "add", np.add, operands=dtypes.ALL, derivatives=[lambda g, out, x, y: g, lambda g, out, x, y: g], linear=(0, 1), doc="x + y"
)

sub: Elementwise = elementwise(
    "sub", np.subtract, operands=dtypes.NUMBERS, derivatives=[lambda g, out, x, y: g, lambda g, out, x, y: neg(g)], linear=(0, 1),
    doc="x - y",
)  # fmt: skip

mul: Elementwise = elementwise(
    "mul", np.multiply, operands=dtypes.ALL, derivatives=[lambda g, out, x, y: mul(g, y), lambda g, out, x, y: mul(g, x)], linear=(0, 1),
    doc="x * y",
)  # fmt: skip

div: Elementwise = elementwise(
    "div", rules.div, operands=dtypes.NUMBERS, derivatives=[lambda g, out, x, y: div(g, y), lambda g, out, x, y: neg(mul(g, div(out, y)))],
    linear=(0,), domain=_AWAY_FROM_ZERO, float_ufunc=np.divide, doc="x / y; for integers the quotient rounded toward zero (by zero: -1)",
)  # fmt: skip

rem: Elementwise = elementwise(
    "rem",
    rules.rem,
    formula=trigonometric.rem,
    operands=dtypes.REALS,
    derivatives=[lambda g, out, x, y: g, lambda g, out, x, y: neg(mul(g, _toward_zero(div(x, y))))],
    # The remainder jumps at multiples of y, and finite differences with it.
    domain=Domain(0.3, 0.7, operands={1: (1.0, 2.0)}),
    doc="The remainder of x / y, with the sign of x (integers by zero: x).",
)


def _toward_zero(x: Array) -> Array:
    return mul(sign(x), floor(abs(x)))


def _sign_derivative(g: Array, out: Array, x: Array) -> Array:
    """Return zero for real x; x / |x| rotates with complex x.

    Its derivative is g / |x| without the component along the sign.
    """
    if x.dtype not in dtypes.COMPLEX:
        return broadcast_to(as_value(np.zeros((), g.dtype)), g.shape)
    size = abs(x)
    along = mul(out, convert_element_type(real(mul(conj(out), g)), x.dtype))
    nonzero = select(eq(size, as_value(np.zeros((), size.dtype))), as_value(np.ones((), size.dtype)), size)
    return div(sub(g, along), convert_element_type(nonzero, x.dtype))


sign: Elementwise = elementwise(
    "sign", rules.sign, operands=dtypes.NUMBERS, derivatives=[_sign_derivative], domain=_AWAY_FROM_ZERO,
    doc="-1, 0 or 1 by the sign of x; NaN for NaN; x / |x| for complex x.",
)  # fmt: skip


def _abs_derivative(g: Array, out: Any, x: Array) -> Array:
    if x.dtype not in dtypes.COMPLEX:
        return mul(g, sign(x))
    return real(mul(g, conj(sign(x))))


abs: Elementwise = elementwise(
    "abs", np.abs, operands=dtypes.NUMBERS, derivatives=[_abs_derivative], domain=_AWAY_FROM_ZERO,
    result=lambda d: dtypes.real_dtype(d) if d in dtypes.COMPLEX else d, doc="|x|; real for complex x.",
)  # fmt: skip


def _winner(g: Array, out: Array, x: Array, y: Array) -> Array:
    """Give half of the cotangent to each of two equal operands."""
    zero, half, one = (as_value(np.asarray(v, g.dtype)) for v in (0.0, 0.5, 1.0))
    return mul(g, select(eq(x, out), select(eq(y, out), half, one), zero))


_extremum_derivatives: list[Callable[..., Any]] = [lambda g, out, x, y: _winner(g, out, x, y), lambda g, out, x, y: _winner(g, out, y, x)]
max: Elementwise = elementwise(
    "max", np.maximum, operands=dtypes.ALL, derivatives=_extremum_derivatives, doc="The larger of x and y; NaN if either is."
)
min: Elementwise = elementwise(
    "min", np.minimum, operands=dtypes.ALL, derivatives=_extremum_derivatives, doc="The smaller of x and y; NaN if either is."
)

floor: Elementwise = elementwise("floor", np.floor, operands=dtypes.FLOATS, derivatives=[None], doc="The largest whole number not above x.")
ceil: Elementwise = elementwise("ceil", np.ceil, operands=dtypes.FLOATS, derivatives=[None], doc="The smallest whole number not below x.")
round_half_away_p: Elementwise = elementwise("round", rules.round_half_away, operands=dtypes.FLOATS, derivatives=[None])
round_half_even_p: Elementwise = elementwise("round_half_even", np.rint, operands=dtypes.FLOATS, derivatives=[None])


class RoundingMethod(enum.IntEnum):
    """Where halves are rounded to."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def round(x: Any, rounding_method: int = RoundingMethod.AWAY_FROM_ZERO) -> Array:
    """Round to the nearest integer.

    Halves go away from zero, or to the even neighbor with `RoundingMethod.TO_NEAREST_EVEN` (1).

    >>> import volta_fn as vf
    >>> vf.lax.round(vf.numpy.array([0.5, 1.5, -2.5]))
    Array([ 1.,  2., -3.], dtype=float32)
    """
    if rounding_method not in tuple(RoundingMethod):
        raise ArgumentError(f"rounding_method is 0 (halves away from zero) or 1 (halves to even), got {rounding_method!r}")
    return (round_half_even_p if rounding_method else round_half_away_p)(x)


nextafter: Elementwise = elementwise(
    "nextafter", rules.nextafter, operands=dtypes.FLOATS, derivatives=[None, None], doc="The float after x in the direction of y."
)

# powers


def _pow_base(g: Array, out: Array, x: Array, y: Array) -> Array:
    """Compute d/dx x^y = y x^(y-1).

    It is exactly zero for y = 0, at x = 0 too, where 0 · x^-1 is NaN.

    Elsewhere the exponent stays y - 1 for y = 0, since this expression has derivatives of its own: by y it is x^-1 there.
    """
    zero, one = (as_value(np.asarray(v, y.dtype)) for v in (0, 1))
    less = sub(y, one)
    exponent = select(eq(y, zero), select(eq(x, zero), one, less), less)
    return mul(g, mul(y, pow(x, exponent)))


def _pow_exponent(g: Array, out: Array, x: Array, y: Array) -> Array:
    """Compute d/dy x^y = x^y log x.

    It is zero at x = 0, where the power is zero for every y > 0.
    """
    zero, one = (as_value(np.asarray(v, x.dtype)) for v in (0, 1))
    return mul(g, mul(out, log(select(eq(x, zero), one, x))))


pow: Elementwise = elementwise(
    "pow", rules.pow, formula=exponential.pow, operands=dtypes.NUMBERS, derivatives=[_pow_base, _pow_exponent], domain=Domain(0.3, 3.0),
    doc="x to the power y.",
)  # fmt: skip

_integer_pow: Elementwise = elementwise(
    "integer_pow", rules.integer_pow, operands=dtypes.NUMBERS, domain=_AWAY_FROM_ZERO,
    derivatives=[lambda g, out, x, *, y: mul(g, mul(integer_pow(x, y - 1), y))],
)  # fmt: skip


def integer_pow(x: Any, y: int) -> Array:
    """Raise `x` to an integer power known while tracing, by repeated squaring.

    Raises `ArgumentError` for a negative power of an integer array.

    >>> import volta_fn as vf
    >>> vf.lax.integer_pow(vf.numpy.array([1.0, 2.0, -3.0]), 3)
    Array([  1.,   8., -27.], dtype=float32)
    """
    value = as_value(x)
    if y == 0:
        return broadcast_to(as_value(np.ones((), value.dtype)), value.shape)
    if y == 1:
        return value
    if y < 0 and value.dtype in dtypes.INTEGERS:
        raise ArgumentError(f"integers to the negative power {y} are no integers; convert the base to a floating dtype first")
    return _integer_pow(value, y=y)


def _evaluate(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return blockwise(fused_multiply_add, x, y, z)


fma: Elementwise = elementwise(
    "fma", _evaluate, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x, y, z: mul(g, y), lambda g, out, x, y, z: mul(g, x), lambda g, out, x, y, z: g],
    doc="x * y + z, rounded once (float64: provided that x * y does not overflow).",
)  # fmt: skip

"""Elementwise arithmetic and transcendental functions."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.declare import Domain, Elementwise, elementwise
from volta_fn.primitives.elementwise import selection
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.elementwise.selection import complex, conj, eq, gt, imag, real, select
from volta_fn.primitives.formulas import exponential, trigonometric
from volta_fn.primitives.formulas import numpy_values as rules
from volta_fn.primitives.formulas.numpy_values import blockwise, fused_multiply_add

# Elementwise arithmetic, absolute value, sign, extrema and rounding.

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
    """Return zero for real x; x / |x| rotates with complex x."""
    # Its derivative is g / |x| without the component along the sign.
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


def _extremum_cotangent(g: Array, out: Array, x: Array, y: Array) -> Array:
    """Give half of the cotangent to each of two equal operands."""
    zero, half, one = (as_value(np.asarray(v, g.dtype)) for v in (0.0, 0.5, 1.0))
    return mul(g, select(eq(x, out), select(eq(y, out), half, one), zero))


_extremum_derivatives: list[Callable[..., Any]] = [
    lambda g, out, x, y: _extremum_cotangent(g, out, x, y),
    lambda g, out, x, y: _extremum_cotangent(g, out, y, x),
]
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
    """The rounding of halves."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def round(x: Any, rounding_method: int = RoundingMethod.AWAY_FROM_ZERO) -> Array:
    """Round to the nearest integer.

    Halves go away from zero, or to the even neighbor with `RoundingMethod.TO_NEAREST_EVEN` (1).

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
    """Compute d/dx x^y = y x^(y-1)."""
    # It is exactly zero for y = 0, at x = 0 too, where 0 · x^-1 is NaN. Elsewhere the exponent stays y - 1 for y = 0, since this expression
    # has derivatives of its own: by y it is x^-1 there.
    zero, one = (as_value(np.asarray(v, y.dtype)) for v in (0, 1))
    less = sub(y, one)
    exponent = select(eq(y, zero), select(eq(x, zero), one, less), less)
    return mul(g, mul(y, pow(x, exponent)))


def _pow_exponent(g: Array, out: Array, x: Array, y: Array) -> Array:
    """Compute d/dy x^y = x^y log x, zero at x = 0, where x^y is zero for every y > 0."""
    zero, one = (as_value(np.asarray(v, x.dtype)) for v in (0, 1))
    return mul(g, mul(out, log(select(eq(x, zero), one, x))))


_pow: Elementwise = elementwise(
    "pow", rules.pow, formula=exponential.pow, operands=dtypes.NUMBERS, derivatives=[_pow_base, _pow_exponent], domain=Domain(0.3, 3.0),
)  # fmt: skip
pow_p = _pow.primitive


def pow(x: Any, y: Any) -> Array:
    """Raise `x` to the power `y`, element by element.

    Both have one dtype; integer powers of floats and complex numbers are converted to theirs, which rounds powers that it does not have.

    >>> vf.lax.pow(vf.numpy.array([1.0, 2.0, -3.0]), vf.numpy.array([5, -1, 2]))
    Array([1. , 0.5, 9. ], dtype=float32)
    """
    base, power = as_value(x), as_value(y)
    if base.dtype in dtypes.INEXACT and power.dtype in dtypes.INTEGERS:
        power = convert_element_type(power, base.dtype)
    return _pow(base, power)


_integer_pow: Elementwise = elementwise(
    "integer_pow", rules.integer_pow, operands=dtypes.NUMBERS, domain=_AWAY_FROM_ZERO,
    derivatives=[lambda g, out, x, *, y: mul(g, mul(integer_pow(x, y - 1), y))],
)  # fmt: skip
integer_pow_p = _integer_pow.primitive


def integer_pow(x: Any, y: int) -> Array:
    """Raise `x` to an integer power known while tracing, by repeated squaring.

    Raises `ArgumentError` for a negative power of an integer array.

    >>> vf.lax.integer_pow(vf.numpy.array([1.0, 2.0, -3.0]), 3)
    Array([  1.,   8., -27.], dtype=float32)
    """
    value = as_value(x)
    if y == 0:
        return broadcast_to(as_value(np.ones((), value.dtype)), value.shape)
    if y == 1:
        return value
    if y < 0 and value.dtype in dtypes.INTEGERS:
        raise ArgumentError(f"Integers cannot be raised to negative powers, got {y}; convert the base to a floating dtype first")
    return _integer_pow(value, y=y)


fma: Elementwise = elementwise(
    "fma", lambda x, y, z: blockwise(fused_multiply_add, x, y, z), operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x, y, z: mul(g, y), lambda g, out, x, y, z: mul(g, x), lambda g, out, x, y, z: g],
    doc="x * y + z, rounded once (float64: provided that x * y does not overflow).",
)  # fmt: skip


# Elementwise exponentials, logarithms and roots.

_POSITIVE = Domain(0.2, 4.0)

exp: Elementwise = elementwise(
    "exp", np.exp, formula=exponential.exp, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * out], doc="e to the power x."
)
exp2: Elementwise = elementwise(
    "exp2", np.exp2, formula=exponential.exp2, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * (out * math.log(2.0))],
    doc="2 to the power x.",
)  # fmt: skip
expm1: Elementwise = elementwise(
    "expm1", rules.expm1, formula=exponential.expm1, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * exp(x)],
    float_ufunc=np.expm1, doc="exp(x) - 1, exact near zero.",
)  # fmt: skip
log: Elementwise = elementwise(
    "log", np.log, formula=exponential.log, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g / x], domain=_POSITIVE,
    doc="Natural logarithm.",
)  # fmt: skip
log2: Elementwise = elementwise(
    "log2", np.log2, formula=exponential.log2, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * (1.0 / math.log(2.0) / x)],
    domain=_POSITIVE, doc="Logarithm to base 2.",
)  # fmt: skip
log1p: Elementwise = elementwise(
    "log1p", rules.log1p, formula=exponential.log1p, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g / (x + 1.0)],
    domain=_POSITIVE, float_ufunc=np.log1p, doc="log(1 + x), exact near zero.",
)  # fmt: skip
sqrt: Elementwise = elementwise(
    "sqrt", np.sqrt, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * (0.5 / out)], domain=_POSITIVE, doc="Square root."
)
rsqrt: Elementwise = elementwise(
    "rsqrt", rules.rsqrt, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * (-0.5 * out / x)], domain=_POSITIVE,
    doc="1 / sqrt(x).",
)  # fmt: skip
cbrt: Elementwise = elementwise(
    "cbrt", np.cbrt, formula=exponential.cbrt, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g / (3.0 * out * out)],
    domain=_POSITIVE,
    doc="Cube root.",
)  # fmt: skip
logistic: Elementwise = elementwise(
    "logistic", rules.logistic, formula=exponential.logistic, operands=dtypes.INEXACT,
    derivatives=[lambda g, out, x: g * (out * (1.0 - out))], doc="1 / (1 + exp(-x)).",
)  # fmt: skip


def difference(x: Array, y: Array) -> Array:
    """Return x - y, and 0 for equal infinities, whose difference is NaN."""
    same = selection.bitwise_and(selection.eq(x, y), selection.bitwise_not(selection.is_finite(x)))
    return select(same, as_value(np.zeros((), x.dtype)), x - y)


logaddexp: Elementwise = elementwise(
    "logaddexp", np.logaddexp, formula=exponential.logaddexp, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x, y: g * logistic(difference(x, y)), lambda g, out, x, y: g * logistic(difference(y, x))],
    doc="log(exp(x) + exp(y)), without overflow.",
)  # fmt: skip


# Elementwise trigonometric and hyperbolic functions with their inverses.

_UNIT = Domain(-0.9, 0.9)


# Derivatives by 1 - x² and 1 + x². The rounding error of x² may be most of a small difference, and x² overflows where roots and reciprocals
# are ordinary numbers: complex numbers are multiplied or divided by one factor after the other, large real ones by a multiple.


def _root_of_one_less_square(x: Array) -> Array:
    """Return 1 / sqrt(1 - x²)."""
    if x.dtype in dtypes.COMPLEX:
        return rsqrt(1.0 - x) * rsqrt(1.0 + x)
    return rsqrt((1.0 - x) * (1.0 + x))


def _times_i(z: Array) -> Array:
    return complex(neg(imag(z)), real(z))


def _scaled_one_plus_square(x: Array) -> tuple[Array, Array]:
    """Return s and s² (1 + x²) of real numbers, with s = 1 / max(1, |x|)."""
    far = gt(abs(x), 1.0)
    one = as_value(np.ones((), x.dtype))
    scale, rest = 1.0 / select(far, abs(x), one), select(far, one, x)
    return scale, scale * scale + rest * rest


def reciprocal_of_one_plus_square(x: Array) -> Array:
    """Return 1 / (1 + x²) of real numbers."""
    scale, total = _scaled_one_plus_square(x)
    return scale * scale / total


def _atan_derivative(g: Array, out: Array, x: Array) -> Array:
    if x.dtype in dtypes.COMPLEX:
        return g / (1.0 - _times_i(x)) / (1.0 + _times_i(x))
    return g * reciprocal_of_one_plus_square(x)


def _asinh_derivative(g: Array, out: Array, x: Array) -> Array:
    if x.dtype in dtypes.COMPLEX:
        return g * (rsqrt(1.0 - _times_i(x)) * rsqrt(1.0 + _times_i(x)))
    scale, total = _scaled_one_plus_square(x)
    return g * (scale * rsqrt(total))


sin: Elementwise = elementwise(
    "sin", np.sin, formula=trigonometric.sin, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * cos(x)],
    doc="Sine of x in radians.",
)  # fmt: skip
cos: Elementwise = elementwise(
    "cos", np.cos, formula=trigonometric.cos, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: -(g * sin(x))],
    doc="Cosine of x in radians.",
)  # fmt: skip
tan: Elementwise = elementwise(
    "tan", rules.tan, formula=trigonometric.tan, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * (1.0 + out * out)],
    domain=Domain(-1.2, 1.2), float_ufunc=np.tan, doc="Tangent of x in radians.",
)  # fmt: skip
asin: Elementwise = elementwise(
    "asin", np.arcsin, formula=trigonometric.asin, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * _root_of_one_less_square(x)],
    domain=_UNIT, doc="The angle in [-pi/2, pi/2] whose sine is x.",
)  # fmt: skip
acos: Elementwise = elementwise(
    "acos", np.arccos, formula=trigonometric.acos, operands=dtypes.INEXACT,
    derivatives=[lambda g, out, x: -(g * _root_of_one_less_square(x))], domain=_UNIT, doc="The angle in [0, pi] whose cosine is x.",
)  # fmt: skip
atan: Elementwise = elementwise(
    "atan", np.arctan, formula=trigonometric.atan, operands=dtypes.INEXACT, derivatives=[_atan_derivative],
    doc="The angle in [-pi/2, pi/2] whose tangent is x.",
)  # fmt: skip


def _over_squares(x: Array, y: Array) -> Array:
    """Return x / (x² + y²), whose squares may be beyond the range."""
    size = max(abs(x), abs(y))
    u, v = x / size, y / size
    return u / (u * u + v * v) / size


atan2: Elementwise = elementwise(
    "atan2", np.arctan2, formula=trigonometric.atan2, operands=dtypes.FLOATS, domain=Domain(avoid=(0.0,), margin=0.3),
    derivatives=[lambda g, out, y, x: g * _over_squares(x, y), lambda g, out, y, x: -g * _over_squares(y, x)],
    doc="The angle in [-pi, pi] of the point (x, y), given as (y, x).",
)  # fmt: skip
sinh: Elementwise = elementwise(
    "sinh", np.sinh, formula=exponential.sinh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * cosh(x)], doc="Hyperbolic sine."
)
cosh: Elementwise = elementwise(
    "cosh", np.cosh, formula=exponential.cosh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * sinh(x)],
    doc="Hyperbolic cosine.",
)  # fmt: skip
tanh: Elementwise = elementwise(
    "tanh", rules.tanh, formula=exponential.tanh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * (1.0 - out * out)],
    float_ufunc=np.tanh, doc="Hyperbolic tangent.",
)  # fmt: skip
asinh: Elementwise = elementwise(
    "asinh", np.arcsinh, formula=exponential.asinh, operands=dtypes.INEXACT, derivatives=[_asinh_derivative],
    doc="The inverse of sinh.",
)  # fmt: skip
acosh: Elementwise = elementwise(
    "acosh", np.arccosh, formula=exponential.acosh, operands=dtypes.INEXACT, domain=Domain(1.2, 4.0),
    derivatives=[lambda g, out, x: g * (rsqrt(x - 1.0) * rsqrt(x + 1.0))], doc="The inverse of cosh.",
)  # fmt: skip
atanh: Elementwise = elementwise(
    "atanh", np.arctanh, formula=exponential.atanh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g / (1.0 - x) / (1.0 + x)],
    domain=_UNIT,
    doc="The inverse of tanh.",
)  # fmt: skip

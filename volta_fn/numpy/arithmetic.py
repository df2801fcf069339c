"""Elementwise arithmetic and transcendental functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array, ConcreteArray
from volta_fn.core.aval import as_integer
from volta_fn.errors import ArgumentTypeError, DTypeError
from volta_fn.jit.fused import fused
from volta_fn.lazy_imports import deferred
from volta_fn.numpy.arguments import (
    full_like_scalar,
    is_complex,
    is_inexact,
    narrowed,
    no_out,
    operand,
    promote,
    promote_default,
    promote_inexact,
    promote_numeric,
    strong_array,
    wide,
)
from volta_fn.primitives.array_operations import operators
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.declare import promoted, side_of_range, to_dtype
from volta_fn.primitives.elementwise import arithmetic
from volta_fn.primitives.elementwise import arithmetic as primitive
from volta_fn.primitives.elementwise.selection import lexicographic

# Elementwise arithmetic, rounding, extrema, signs and the bits of floats.

#: What only `frexp` needs.
_CUSTOM_JVP = deferred("volta_fn.transforms.custom_derivatives")

add = promoted(lax.add, "add", "Add: x + y; for booleans, x or y.")
subtract = promoted(lax.sub, "subtract", "Subtract: x - y.")
multiply = promoted(lax.mul, "multiply", "Multiply: x * y; for booleans, x and y.")
negative = promoted(lax.neg, "negative", "Negate: -x.")
maximum = promoted(lax.max, "maximum", "Return the larger of x and y; NaN if either is NaN.")
minimum = promoted(lax.min, "minimum", "Return the smaller of x and y; NaN if either is NaN.")
sqrt = promoted(lax.sqrt, "sqrt", "Return the square root; NaN for negative real x.")
cbrt = promoted(lax.cbrt, "cbrt", "Return the cube root, also of negative x.")
nextafter = promoted(lax.nextafter, "nextafter", "Return the floating-point number after x in the direction of y.")


@fused
def true_divide(x: Any, y: Any, /) -> Array:
    """Divide elementwise: x / y as floating-point numbers, also for integers.

    >>> jnp.divide(jnp.array([1, 2]), 4)
    Array([0.25, 0.5 ], dtype=float32)
    """
    return operators.true_divide(*promote("divide", x, y))


@fused
def floor_divide(x: Any, y: Any, /) -> Array:
    """Return the largest integers not above x / y.

    >>> jnp.floor_divide(jnp.array([7, -7]), 2)
    Array([ 3, -4], dtype=int32)
    """
    return operators.floor_divide(*promote_numeric("floor_divide", x, y))


@fused
def remainder(x: Any, y: Any, /) -> Array:
    """Return x - floor(x / y) * y, which has the sign of y; for integers, x % 0 is 0.

    >>> jnp.remainder(jnp.array([7, -7]), 3)
    Array([1, 2], dtype=int32)
    """
    return operators.remainder(*promote_numeric("remainder", x, y))


@fused
def divmod(x: Any, y: Any, /) -> tuple[Array, Array]:
    """Return the pair (x // y, x % y).

    >>> jnp.divmod(jnp.array([7, -7]), 3)
    (Array([ 2, -3], dtype=int32), Array([1, 2], dtype=int32))
    """
    return floor_divide(x, y), remainder(x, y)


@fused
def fmod(x: Any, y: Any, /) -> Array:
    """Return the remainder of x / y with the sign of x; for integers, 0 if y is 0.

    >>> jnp.fmod(jnp.array([7, -7]), 3)
    Array([ 1, -1], dtype=int32)
    """
    return operators.fmod(*promote_numeric("fmod", x, y))


@fused
def power(x: Any, y: Any, /) -> Array:
    """Raise x to the power y; a Python int as exponent multiplies repeatedly.

    >>> jnp.power(jnp.array([1.0, 2.0, 3.0]), 2)
    Array([1., 4., 9.], dtype=float32)

    Raises `ArgumentError` for an integer array to a negative power known while tracing.
    """
    if type(y) is int:
        (base,) = promote_numeric("power", x)
        return operators.power(base, y)
    base, exponent = promote_numeric("power", x, y)
    return operators.power_of_promoted(base, exponent, y)


@fused
def float_power(x: Any, y: Any, /) -> Array:
    """Raise x to the power y in floating-point numbers.

    >>> jnp.float_power(jnp.array([2, 3]), 2)
    Array([4., 9.], dtype=float32)
    """
    return lax.pow(*promote_inexact("float_power", x, y))


def positive(x: Any, /) -> Array:
    """Return x itself (+x)."""
    return operand("positive", "x", x)


@fused
def absolute(x: Any, /) -> Array:
    """Return |x|, which is real for complex x; booleans stay as they are.

    >>> jnp.abs(jnp.array([-1.5, 2.0]))
    Array([1.5, 2. ], dtype=float32)
    """
    value = operand("absolute", "x", x)
    return value if value.dtype == bool or value.dtype in dtypes.UNSIGNED else lax.abs(value)


@fused
def fabs(x: Any, /) -> Array:
    """Return |x| of real numbers as floating-point numbers."""
    (value,) = promote_inexact("fabs", x)
    if is_complex(value):
        raise ArgumentTypeError("fabs: x is complex; use abs")
    return lax.abs(value)


@fused
def sign(x: Any, /) -> Array:
    """Return -1, 0 or 1 by the sign of x; x / |x| for complex x; NaN for NaN."""
    value = operand("sign", "x", x)
    return value if value.dtype == bool else lax.sign(value)


@fused
def square(x: Any, /) -> Array:
    """Return x * x; booleans become int32.

    >>> jnp.square(jnp.array([-3, 4]))
    Array([ 9, 16], dtype=int32)
    """
    value = operand("square", "x", x)
    return lax.integer_pow(lax.convert_element_type(value, np.int32) if value.dtype == bool else value, 2)


@fused
def reciprocal(x: Any, /) -> Array:
    """Return 1 / x as floating-point numbers."""
    (value,) = promote_inexact("reciprocal", x)
    return lax.integer_pow(value, -1)


@fused
def hypot(x: Any, y: Any, /) -> Array:
    """Return sqrt(x² + y²) of real numbers without intermediate overflow.

    >>> jnp.hypot(jnp.array([3.0]), 4.0)
    Array([5.], dtype=float32)
    """
    a, b = promote_inexact("hypot", x, y)
    if is_complex(a):
        raise ArgumentTypeError("hypot: the arguments must be real, got complex ones")
    a, b = lax.abs(a), lax.abs(b)
    length = _hypotenuse()(lax.max(a, b), lax.min(a, b))
    return strong_array(lax.select(is_infinite(a) | is_infinite(b), full_like_scalar(a, math.inf), length))


@functools.cache
def _hypotenuse() -> Any:
    """Return the length by its sides, without 1 / x in its slopes."""

    def scales(large: Array, small: Array) -> tuple[Array, Array]:
        ratio = lax.div(small, lax.select(large == 0.0, full_like_scalar(large, 1.0), large))
        return ratio, lax.sqrt(1.0 + ratio * ratio)

    def jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
        ratio, root = scales(*primals)
        return primals[0] * root, lax.div(tangents[0] + tangents[1] * ratio, root)

    differentiable = _CUSTOM_JVP.custom_jvp(lambda large, small: large * scales(large, small)[1])
    differentiable.defjvp(jvp)
    return differentiable


def is_infinite(x: Array) -> Array:
    """Return True where real floating-point numbers are infinite."""
    return lax.eq(lax.abs(x), full_like_scalar(x, math.inf))


@fused
def fmax(x1: Any, x2: Any) -> Array:
    """Return the larger element; where one of the two is NaN, the other."""
    a, b = promote("fmax", x1, x2)
    first = lexicographic(lax.gt)(a, b) if is_complex(a) else lax.gt(a, b)
    return lax.select(lax.bitwise_or(first, lax.ne(b, b)), a, b)


@fused
def fmin(x1: Any, x2: Any) -> Array:
    """Return the smaller element; where one of the two is NaN, the other."""
    a, b = promote("fmin", x1, x2)
    first = lexicographic(lax.lt)(a, b) if is_complex(a) else lax.lt(a, b)
    return lax.select(lax.bitwise_or(first, lax.ne(b, b)), a, b)


@fused
def clip(arr: Any, /, min: Any = None, max: Any = None) -> Array:
    """Limit `arr` to [min, max]; None leaves a side open. Where min > max, it is max.

    A lower bound below all numbers of the dtype, and an upper one above them, leave a side open, too.

    >>> jnp.clip(jnp.array([-2.0, 0.5, 9.0]), 0, 1)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    sides = ((lax.max, min, -1), (lax.min, max, 1))
    limits = [(combine, bound) for combine, bound, side in sides if bound is not None and side_of_range(bound, arr) != side]
    value, *bounds = promote("clip", arr, *[bound for _, bound in limits])
    if is_complex(value):
        raise DTypeError("clip: complex numbers have no order; clip the real and imaginary parts")
    for (combine, _), bound in zip(limits, bounds, strict=True):
        value = combine(bound, value)  # the order in which JAX's programs have them
    return value


@fused
def copysign(x1: Any, x2: Any, /) -> Array:
    """Return |x1| with the sign of x2.

    >>> jnp.copysign(3.0, jnp.array([-0.0, 2.0]))
    Array([-3.,  3.], dtype=float32)
    """
    a, b = promote_inexact("copysign", x1, x2)
    if is_complex(a):
        raise ArgumentTypeError("copysign: the arguments must be real, got complex ones")
    magnitude = lax.abs(a)
    return lax.select(signbit(b), lax.neg(magnitude), magnitude)


@fused
def signbit(x: Any, /) -> Array:
    """Return True where the sign bit is set: for x < 0, -0.0 and negative NaN.

    >>> jnp.signbit(jnp.array([0.0, -0.0, -1.0]))
    Array([False,  True,  True], dtype=bool)
    """
    value = operand("signbit", "x", x)
    if value.dtype not in dtypes.INEXACT:
        return lax.lt(value, full_like_scalar(value, 0)) if value.dtype != bool else lax.ne(value, value)
    if is_complex(value):
        raise ArgumentTypeError("signbit: x is complex, and complex numbers have no sign")
    return lax.lt(lax.bitcast_convert_type(value, f"int{value.dtype.itemsize * 8}"), 0)


@fused
def heaviside(x1: Any, x2: Any, /) -> Array:
    """Return 0 for x1 < 0, x2 for x1 = 0, 1 for x1 > 0 and NaN for NaN.

    >>> jnp.heaviside(jnp.array([-1.0, 0.0, 2.0]), 0.5)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    a, b = promote_inexact("heaviside", x1, x2)
    zero, one = full_like_scalar(a, 0), full_like_scalar(a, 1)
    step = lax.select(lax.lt(a, zero), zero, lax.select(lax.gt(a, zero), one, b))
    return lax.select(lax.ne(a, a), a, step)


@fused
def floor(x: Any, /) -> Array:
    """Return the largest integer not above x, in x's dtype.

    >>> jnp.floor(jnp.array([1.5, -1.5]))
    Array([ 1., -2.], dtype=float32)
    """
    return _to_integer("floor", x, lax.floor)


@fused
def ceil(x: Any, /) -> Array:
    """Return the smallest integer not below x, in x's dtype."""
    return _to_integer("ceil", x, lax.ceil)


@fused
def trunc(x: Any) -> Array:
    """Round x toward zero to an integer, in x's dtype."""
    return _to_integer("trunc", x, lambda v: lax.select(lax.lt(v, 0.0), lax.ceil(v), lax.floor(v)))


@fused
def rint(x: Any, /) -> Array:
    """Round to the nearest integer, halves to even, as floating-point numbers."""
    (value,) = promote_default("rint", x)
    return _round_half_even(value)


@fused
def round(a: Any, decimals: int = 0, out: None = None) -> Array:
    """Round to `decimals` digits after (negative: before) the point, halves to even.

    >>> jnp.round(jnp.array([0.5, 1.5, 2.345]), 1)
    Array([0.5, 1.5, 2.3], dtype=float32)
    """
    no_out("round", out)
    value = operand("round", "a", a)
    digits = as_integer(decimals, "round: decimals")
    if not is_inexact(value):
        # Integers are rounded to tens, hundreds, …, halves to the even multiple.
        if digits >= 0 or value.dtype == bool:
            return value
        if 10**-digits > dtypes.iinfo(value.dtype).max:
            return lax.mul(value, full_like_scalar(value, 0))
        unit = full_like_scalar(value, 10**-digits)
        quotient = operators.floor_divide(value, unit)
        rest = lax.sub(value, lax.mul(quotient, unit))
        missing = lax.sub(unit, rest)
        odd = lax.ne(operators.remainder(quotient, full_like_scalar(value, 2)), full_like_scalar(value, 0))
        up = lax.bitwise_or(lax.gt(rest, missing), lax.bitwise_and(lax.eq(rest, missing), odd))
        return lax.mul(lax.add(quotient, lax.convert_element_type(up, value.dtype)), unit)
    if is_complex(value):
        return lax.complex(round(lax.real(value), digits), round(lax.imag(value), digits))
    if digits == 0:
        return _round_half_even(value)
    work = to_dtype(value, dtypes.accumulator(value.dtype))
    return lax.convert_element_type(_rounded_to(work, digits), value.dtype, value.weak_type)


def _rounded_to(x: Array, digits: int) -> Array:
    """Round real numbers to digits other than 0; those too large to have these stay."""
    unchanged = lax.stop_gradient(x)
    if abs(digits) > int(math.log10(dtypes.finfo(x.dtype).max)):
        return unchanged if digits > 0 else lax.select(lax.is_finite(x), lax.mul(unchanged, full_like_scalar(x, 0)), unchanged)
    factor = full_like_scalar(x, 10.0 ** abs(digits))
    if digits < 0:
        return lax.mul(_round_half_even(lax.div(x, factor)), factor)
    scaled = lax.mul(x, factor)
    return lax.select(lax.is_finite(scaled), lax.div(_round_half_even(scaled), factor), unchanged)


def _round_half_even(x: Array) -> Array:
    if is_complex(x):
        return lax.complex(_round_half_even(lax.real(x)), _round_half_even(lax.imag(x)))
    return lax.round(x, primitive.RoundingMethod.TO_NEAREST_EVEN)


def _to_integer(function: str, x: Any, rounding: Any) -> Array:
    value = operand(function, "x", x)
    if is_complex(value):
        raise ArgumentTypeError(f"{function}: x is complex, and complex numbers have no order")
    return rounding(value) if is_inexact(value) else value


@fused
def modf(x: Any, /, out: None = None) -> tuple[Array, Array]:
    """Return the pair (fractional part, integer part), both with the sign of x.

    >>> [float(component) for component in jnp.modf(-2.5)]
    [-0.5, -2.0]
    """
    no_out("modf", out)
    (value,) = promote_inexact("modf", x)
    integral = trunc(value)
    fraction = lax.select(is_infinite(value), full_like_scalar(value, 0), lax.sub(value, integral))
    return copysign(fraction, value), integral


def _frexp_layout(dtype: np.dtype) -> tuple[np.dtype, int, int]:
    """Return a float's bits dtype, its number of mantissa bits and its exponent bias."""
    info = dtypes.finfo(dtype)
    return np.dtype(f"uint{info.bits}"), info.nmant, (1 << (info.bits - info.nmant - 2)) - 1


@fused
def frexp(x: Any, /) -> tuple[Array, Array]:
    """Return (mantissa, exponent): x = mantissa * 2**exponent, 0.5 <= |mantissa| < 1.

    >>> [component.item() for component in jnp.frexp(jnp.array(6.0))]
    [0.75, 3]
    """
    (value,) = promote_inexact("frexp", x)
    if is_complex(value):
        raise ArgumentTypeError("frexp: x must be real, got complex numbers")
    bits, mantissa_bits, bias = _frexp_layout(value.dtype)
    # Work on bits, since arithmetic may flush subnormal numbers to zero.
    pattern = lax.bitcast_convert_type(value, bits)
    width = 8 * bits.itemsize
    sign = bits.type(1 << (width - 1))
    size = pattern & ~sign
    # Below the size less one are, in this order: subnormal numbers, normal ones, and infinities, NaN and zero, which stay as they are.
    rank, infinite = size - bits.type(1), ((1 << (width - mantissa_bits - 1)) - 1) << mantissa_bits
    subnormal, plain = rank < bits.type((1 << mantissa_bits) - 1), rank >= bits.type(infinite - 1)
    # Normalise subnormal numbers: shift their highest digit to the implicit one.
    zeros = lax.clz(size)
    digits = lax.shift_left(size, lax.select(subnormal, zeros - bits.type(width - 1 - mantissa_bits), bits.type(0)))
    digits = digits & bits.type((1 << mantissa_bits) - 1)
    half = lax.bitcast_convert_type(pattern & sign | bits.type((bias - 1) << mantissa_bits) | digits, value.dtype)
    raw = lax.shift_right_logical(size, bits.type(mantissa_bits)).astype(np.int32)
    below = lax.select(subnormal, np.int32(width - mantissa_bits) - zeros.astype(np.int32), np.int32(0))
    exponent = lax.select(plain, np.int32(0), raw + (below - np.int32(bias - 1)))
    return _with_slope()(value, lax.stop_gradient(lax.select(plain, value, half)), exponent), exponent


@functools.cache
def _with_slope() -> Any:
    """Return a function that returns a mantissa and gives it a derivative."""
    mantissa = _CUSTOM_JVP.custom_jvp(lambda value, mantissa, exponent: mantissa)  # whose derivative its bits do not have
    mantissa.defjvps(lambda g, out, value, mantissa, exponent: ldexp(g, -exponent), None, None)
    return mantissa


@fused
def ldexp(x1: Any, x2: Any, /) -> Array:
    """Return x1 * 2**x2 for integers x2, exact wherever the dtype can represent it.

    >>> jnp.ldexp(jnp.array([0.75]), jnp.array(3))
    Array([6.], dtype=float32)
    """
    (exponent,) = promote_numeric("ldexp", x2)
    if exponent.dtype not in dtypes.INTEGERS:
        raise ArgumentTypeError(f"ldexp: x2 must be integers, got {exponent.dtype.name}")
    (value,) = promote_inexact("ldexp", x1)
    if value.dtype == np.float16:  # whose range is less than twice its precision
        return lax.convert_element_type(_scaled(lax.convert_element_type(value, np.float32), exponent), value.dtype, value.weak_type)
    return _scaled(value, exponent)


def _scaled(value: Array, exponent: Array) -> Array:
    """Return value * 2**exponent, rounded once."""
    # That takes three steps, since the power may overflow where the product does not. The last step is as long as possible: only a product
    # that it makes zero anyway may have been rounded before. Exponents beyond the limits give zero or infinity.
    bits, mantissa_bits, bias = _frexp_layout(value.dtype)
    info, down, up = dtypes.iinfo(exponent.dtype), mantissa_bits + 1 - (bias - 1), bias
    least, greatest = (full_like_scalar(exponent, bound) for bound in (max(info.min, 3 * down), min(info.max, 3 * up)))
    rest = lax.convert_element_type(lax.clamp(least, exponent, greatest), np.int32)
    lowest, highest = (full_like_scalar(rest, bound) for bound in (down, up))
    steps = []
    for _ in range(2):
        steps.append(lax.clamp(lowest, rest, highest))
        rest = lax.sub(rest, steps[-1])
    for step in (rest, *reversed(steps)):
        power = lax.shift_left(lax.convert_element_type(step + bias, bits), bits.type(mantissa_bits))
        value = lax.mul(value, lax.bitcast_convert_type(power, value.dtype))
    return value


@fused
def spacing(x: Any, /) -> Array:
    """Return the distance from x to the next float away from zero, with x's sign."""
    (value,) = promote_inexact("spacing", x)
    if is_complex(value):
        raise ArgumentTypeError("spacing: x must be real, got complex numbers")
    away = lax.select(signbit(value), full_like_scalar(value, -math.inf), full_like_scalar(value, math.inf))
    return lax.sub(lax.nextafter(value, away), value)


def real(val: Any, /) -> Array:
    """Return the real part; real numbers stay as they are."""
    if type(val) is ConcreteArray and val._spec.aval.dtype.kind != "c":  # in no more time than NumPy
        return val
    value = operand("real", "val", val)
    return lax.real(value) if is_complex(value) else value


@fused
def imag(val: Any, /) -> Array:
    """Return the imaginary part; zeros for real numbers."""
    value = operand("imag", "val", val)
    if is_complex(value):
        return lax.imag(value)
    return broadcast_to(lax.convert_element_type(full_like_scalar(value, 0), value.dtype, value.weak_type), value.shape)


def conjugate(x: Any, /) -> Array:
    """Return the complex conjugate; real numbers stay as they are.

    >>> jnp.conj(jnp.array([1 + 2j]))
    Array([1.-2.j], dtype=complex64)
    """
    return lax.conj(operand("conjugate", "x", x))


@fused
def angle(z: Any, deg: bool = False) -> Array:
    """Return the argument of numbers (0 or π for real ones), in degrees if `deg`."""
    (value,) = promote_default("angle", z)
    result = lax.atan2(imag(value), real(value))
    return lax.mul(result, 180.0 / math.pi) if deg else result


@fused
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Array:
    """Replace NaN and infinities, the latter by default by the largest finite numbers.

    >>> jnp.nan_to_num(jnp.array([jnp.nan, 2.0]), nan=-1.0)
    Array([-1.,  2.], dtype=float32)
    """
    value = operand("nan_to_num", "x", x)
    if not is_inexact(value):
        return value
    if is_complex(value):
        return lax.complex(*[nan_to_num(component, copy, nan, posinf, neginf) for component in (lax.real(value), lax.imag(value))])
    info = dtypes.finfo(value.dtype)
    high = to_dtype(info.max if posinf is None else posinf, value.dtype)
    low = to_dtype(info.min if neginf is None else neginf, value.dtype)
    result = lax.select(lax.ne(value, value), to_dtype(nan, value.dtype), value)
    result = lax.select(lax.eq(value, full_like_scalar(value, math.inf)), high, result)
    return lax.select(lax.eq(value, full_like_scalar(value, -math.inf)), low, result)


# Elementwise exponentials, logarithms, trigonometric and hyperbolic functions.
#
# Integers become floating-point numbers.

#: What only `i0` and `logaddexp2` need.
_POLYNOMIALS = deferred("volta_fn.scipy.special.polynomials")


exp: Callable[..., Array] = promoted(lax.exp, "exp", "Return e to the power x.")
exp2 = promoted(lax.exp2, "exp2", "Return 2 to the power x.")
expm1 = promoted(lax.expm1, "expm1", "Return exp(x) - 1, exact near zero.")
log: Callable[..., Array] = promoted(lax.log, "log", "Return the natural logarithm; NaN for negative real x.")
log2 = promoted(lax.log2, "log2", "Return the logarithm to base 2.")
log1p = promoted(lax.log1p, "log1p", "Return log(1 + x), exact near zero.")

sin = promoted(lax.sin, "sin", "Return the sine of radians.")
cos = promoted(lax.cos, "cos", "Return the cosine of radians.")
tan = promoted(lax.tan, "tan", "Return the tangent of radians.")
arcsin = promoted(lax.asin, "arcsin", "Return the angle in [-π/2, π/2] whose sine is x.")
arccos = promoted(lax.acos, "arccos", "Return the angle in [0, π] whose cosine is x.")
arctan = promoted(lax.atan, "arctan", "Return the angle in [-π/2, π/2] whose tangent is x.")
arctan2 = promoted(lax.atan2, "arctan2", "Return the angle in [-π, π] of the point (y, x) = (first, second argument).")
sinh = promoted(lax.sinh, "sinh", "Return the hyperbolic sine.")
cosh = promoted(lax.cosh, "cosh", "Return the hyperbolic cosine.")
tanh = promoted(lax.tanh, "tanh", "Return the hyperbolic tangent.")
arcsinh = promoted(lax.asinh, "arcsinh", "Return the inverse of sinh.")
arccosh = promoted(lax.acosh, "arccosh", "Return the inverse of cosh on [1, ∞).")
arctanh = promoted(lax.atanh, "arctanh", "Return the inverse of tanh.")


@fused
def log10(x: Any, /) -> Array:
    """Return the logarithm to base 10.

    >>> jnp.log10(jnp.array([1.0, 100.0]))
    Array([0., 2.], dtype=float32)
    """
    (value,) = promote_inexact("log10", x)
    natural, scale = lax.log(value), 1.0 / math.log(10.0)
    if not is_complex(value):
        return lax.mul(natural, full_like_scalar(value, scale))
    re, im = lax.real(natural), lax.imag(natural)  # a complex product of infinite components would be NaN
    return lax.complex(lax.mul(re, full_like_scalar(re, scale)), lax.mul(im, full_like_scalar(im, scale)))


@fused
def deg2rad(x: Any, /) -> Array:
    """Convert degrees to radians."""
    (value,) = promote_inexact("deg2rad", x)
    return lax.mul(value, full_like_scalar(value, math.pi / 180.0))


@fused
def rad2deg(x: Any, /) -> Array:
    """Convert radians to degrees."""
    (value,) = promote_inexact("rad2deg", x)
    return lax.mul(value, full_like_scalar(value, 180.0 / math.pi))


@fused
def sinc(x: Any, /) -> Array:
    """Return sin(πx) / (πx), which is 1 (and differentiable) at 0.

    >>> jnp.sinc(jnp.array([0.0, 0.5]))
    Array([1.        , 0.63661975], dtype=float32)
    """
    (operand,) = promote_inexact("sinc", x)
    value = wide(operand)
    scaled = lax.mul(value, full_like_scalar(value, math.pi))
    # Near zero a Taylor series gives correct derivatives up to the sixth.
    near = lax.lt(lax.abs(scaled), full_like_scalar(lax.abs(scaled), _sinc_radius(lax.abs(scaled).dtype)))
    safe = lax.select(near, full_like_scalar(scaled, 1.0), scaled)
    small = lax.select(near, scaled, full_like_scalar(scaled, 0.0))  # before the square, whose derivative may overflow
    squared = lax.mul(small, small)
    series = full_like_scalar(scaled, 1.0)
    for n in (8, 6, 4, 2):
        series = lax.sub(full_like_scalar(scaled, 1.0), lax.mul(lax.div(squared, full_like_scalar(scaled, n * (n + 1))), series))
    sine = lax.sin(safe) if value.dtype in dtypes.COMPLEX else _sine_of_pi_times(value)
    return narrowed(lax.select(near, series, lax.div(sine, safe)), operand)


def _sine_of_pi_times(x: Array) -> Array:
    """Return sin(πx) of real x, to full precision around its zeros."""
    nearest = lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
    half = lax.mul(nearest, full_like_scalar(x, 0.5))
    sine = lax.sin(lax.mul(lax.sub(x, nearest), full_like_scalar(x, math.pi)))
    return lax.select(lax.ne(half, lax.floor(half)), lax.neg(sine), sine)


def _sinc_radius(dtype: np.dtype) -> float:
    """Return the |x| below which the first omitted term, x**10 / 11!, is negligible."""
    return float((float(dtypes.finfo(dtype).eps) * math.factorial(11) / 4) ** 0.1)


@functools.cache
def _log2_add_exp2() -> Any:
    """Return the function of reals, differentiable to any order also where a equals b."""

    def function(a: Array, b: Array) -> Array:
        return lax.add(lax.max(a, b), lax.mul(lax.log1p(lax.exp2(lax.neg(lax.abs(primitive.difference(a, b))))), 1.0 / math.log(2.0)))

    def jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
        (a, b), (tangent_a, tangent_b) = primals, tangents
        odds = lax.mul(primitive.difference(a, b), math.log(2.0))
        tangent = lax.add(lax.mul(tangent_a, lax.logistic(odds)), lax.mul(tangent_b, lax.logistic(lax.neg(odds))))
        return differentiable(a, b), tangent

    differentiable = _CUSTOM_JVP.custom_jvp(function)
    differentiable.defjvp(jvp)
    return differentiable


@fused
def logaddexp(x1: Any, x2: Any, /) -> Array:
    """Return log(exp(x1) + exp(x2)) without overflow.

    >>> jnp.logaddexp(jnp.array([1000.0, -jnp.inf]), jnp.array([1000.0, 0.0]))
    Array([1000.6932,    0.    ], dtype=float32)
    """
    a, b = promote_inexact("logaddexp", x1, x2)
    return _complex_log_add_exp(a, b) if is_complex(a) else arithmetic.logaddexp(a, b)


@fused
def logaddexp2(x1: Any, x2: Any, /) -> Array:
    """Return log2(2**x1 + 2**x2) without overflow."""
    a, b = promote_inexact("logaddexp2", x1, x2)
    if not is_complex(a):
        result: Array = _log2_add_exp2()(a, b)
        return result
    log_2 = full_like_scalar(a, math.log(2.0))
    return lax.div(_complex_log_add_exp(lax.mul(a, log_2), lax.mul(b, log_2)), log_2)


def _complex_log_add_exp(a: Array, b: Array) -> Array:
    """Return the principal value of log(exp(a) + exp(b)) of complex numbers."""
    swap = lax.lt(lax.real(a), lax.real(b))
    larger, smaller = lax.select(swap, b, a), lax.select(swap, a, b)
    total = lax.add(larger, lax.log1p(lax.exp(lax.sub(smaller, larger))))
    angle = lax.imag(total)
    return lax.complex(lax.real(total), lax.atan2(lax.sin(angle), lax.cos(angle)))


def _reals(function: str, *values: Any) -> list[Array]:
    arrays = promote_inexact(function, *values)
    if is_complex(arrays[0]):
        raise ArgumentTypeError(f"{function}: the arguments must be real, got complex numbers")
    return arrays


def i0(x: Any) -> Array:
    """Return the modified Bessel function of the first kind and order 0 of reals.

    >>> jnp.i0(jnp.array([0.0, 1.0]))
    Array([1.       , 1.2660658], dtype=float32)
    """
    result: Array = _POLYNOMIALS.i0(*_reals("i0", x))
    return result


# Aliases.
acos = arccos
acosh = arccosh
asin = arcsin
asinh = arcsinh
atan = arctan
atan2 = arctan2
atanh = arctanh
radians = deg2rad
degrees = rad2deg

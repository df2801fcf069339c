"""Elementwise exponentials, logarithms, trigonometric and hyperbolic functions.

Integers become floating-point numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentTypeError
from volta_fn.jit.fused import fused
from volta_fn.lazy_imports import deferred
from volta_fn.numpy.arguments import full_like_scalar, is_complex, narrowed, promote_inexact, wide
from volta_fn.numpy.elementwise.arithmetic import is_infinite
from volta_fn.primitives.declare import promoted
from volta_fn.primitives.elementwise import arithmetic

#: What only `i0` and `logaddexp2` need.
_POLYNOMIALS = deferred("volta_fn.scipy.special.polynomials")
_CUSTOM_JVP = deferred("volta_fn.transforms.custom_derivatives")

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
    squared = lax.select(near, lax.mul(scaled, scaled), full_like_scalar(scaled, 0.0))
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


def _gap(a: Array, b: Array) -> Array:
    """Return a - b, and 0 for equal infinities, whose difference is NaN."""
    same = lax.bitwise_and(lax.eq(a, b), is_infinite(a))
    return lax.select(same, full_like_scalar(a, 0.0), lax.sub(a, b))


@functools.cache
def _log2_add_exp2() -> Any:
    """Return the function of reals, differentiable to any order also where a equals b."""

    def function(a: Array, b: Array) -> Array:
        return lax.add(lax.max(a, b), lax.mul(lax.log1p(lax.exp2(lax.neg(lax.abs(_gap(a, b))))), 1.0 / math.log(2.0)))

    def jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
        (a, b), (tangent_a, tangent_b) = primals, tangents
        odds = lax.mul(_gap(a, b), math.log(2.0))
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


def i0(x: Any, /) -> Array:
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

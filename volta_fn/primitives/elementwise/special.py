"""Special functions: error, gamma, zeta and Bessel functions, integrals."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.errors import GradientError
from volta_fn.primitives.declare import Domain, Elementwise, elementwise
from volta_fn.primitives.elementwise.arithmetic import sign
from volta_fn.primitives.elementwise.comparison import eq, gt
from volta_fn.primitives.elementwise.exponential import exp, log
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.elementwise.trigonometric import cos, sin
from volta_fn.primitives.formulas import (
    bessel,
    dawson,
    error,
    exponential_integrals,
    faddeeva,
    gamma,
    hypergeometric,
    normal_quantile,
    oscillating_integrals,
    stirling,
)
from volta_fn.primitives.formulas import owens_t as owen
from volta_fn.primitives.formulas import spence as dilogarithm

_POSITIVE = Domain(0.2, 4.0)

# error function: its derivative is the Gaussian 2/sqrt(pi) exp(-x^2)

_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)

gaussian: Elementwise = elementwise(
    "gaussian", formula=error.gaussian, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * (-2.0 * x * out)], doc="exp(-x^2).",
)  # fmt: skip
erf: Elementwise = elementwise(
    "erf", formula=error.erf, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * (_TWO_OVER_SQRT_PI * gaussian(x))],
    doc="Error function.",
)  # fmt: skip
erfc: Elementwise = elementwise(
    "erfc", formula=error.erfc, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * (-_TWO_OVER_SQRT_PI * gaussian(x))],
    doc="1 - erf(x), exact for large x.",
)  # fmt: skip
erf_inv: Elementwise = elementwise(
    "erf_inv", formula=error.erf_inv, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g / (_TWO_OVER_SQRT_PI * gaussian(out))],
    domain=Domain(-0.9, 0.9), doc="The inverse of erf.",
)  # fmt: skip

erf_inv_of_uniform: Elementwise = elementwise(
    "erf_inv_of_uniform", formula=error.erf_inv_of_uniform, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x: g * (exp(out * out) / _TWO_OVER_SQRT_PI)],
    domain=Domain(-0.9, 0.9), doc="The inverse of erf as XLA rounds it, of which normal random numbers are made.",
)  # fmt: skip

# normal distribution: its density is the derivative of its function


def _density(x: Array) -> Array:
    return exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))


def scaled_slope(g: Array, out: Array, slope: Array) -> Array:
    """Return g out slope, and 0 where out is 0.

    The slope, that of a logarithm, may be infinite or NaN there.
    """
    zero = eq(out, 0.0)
    return g * select(zero, out, out * select(zero, as_value(np.zeros((), out.dtype)), slope))


normal_pdf: Elementwise = elementwise(
    "normal_pdf", formula=stirling.normal_pdf, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, x, loc, scale: scaled_slope(g, out, (loc - x) / scale / scale),
        lambda g, out, x, loc, scale: scaled_slope(g, out, (x - loc) / scale / scale),
        lambda g, out, x, loc, scale: scaled_slope(g, out, (((x - loc) / scale) * ((x - loc) / scale) - 1.0) / scale),
    ],
    domain=Domain(-2.0, 2.0, operands={2: (0.5, 2.0)}), doc="The normal density at x.",
)  # fmt: skip


ndtr: Elementwise = elementwise(
    "ndtr", formula=error.ndtr, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * normal_pdf(x, 0.0, 1.0)],
    doc="The normal distribution's function, exact far on the left.",
)  # fmt: skip
ndtri: Elementwise = elementwise(
    "ndtri", formula=normal_quantile.ndtri, operands=dtypes.FLOATS, derivatives=[lambda g, out, p: g / normal_pdf(out, 0.0, 1.0)],
    domain=Domain(0.05, 0.95), doc="The inverse of ndtr.",
)  # fmt: skip
gelu: Elementwise = elementwise(
    "gelu", formula=error.gelu, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * (ndtr(x) + x * _density(x))],
    doc="x ndtr(x), exact far on the left; an operation by itself since one evaluation of the tail does for both signs.",
)  # fmt: skip


def undefined(function: str, operand: str) -> Callable[..., Array]:
    """Return the derivative by an operand that has none: it raises."""

    def derivative(*_: Array) -> Array:
        raise GradientError(f"{function} has no derivative by {operand}; wrap the argument in lax.stop_gradient to hold it fixed")

    return derivative


# gamma function

lgamma: Elementwise = elementwise(
    "lgamma", formula=gamma.lgamma, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * digamma(x)], domain=_POSITIVE,
    doc="log |gamma(x)|.",
)  # fmt: skip
gamma_function: Elementwise = elementwise(
    "gamma", formula=gamma.gamma, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * out * digamma(x)], domain=_POSITIVE,
    doc="The gamma function.",
)  # fmt: skip
digamma: Elementwise = elementwise(
    "digamma", formula=gamma.digamma, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * polygamma(1.0, x)], domain=_POSITIVE,
    doc="The derivative of lgamma.",
)  # fmt: skip
polygamma: Elementwise = elementwise(
    "polygamma", formula=gamma.polygamma, operands=dtypes.FLOATS,
    derivatives=[undefined("polygamma", "m"), lambda g, out, m, x: g * polygamma(m + 1.0, x)],
    domain=Domain(0.2, 4.0, operands={0: (1.0, 1.0)}), doc="The m-th derivative of digamma at x.",
)  # fmt: skip

# zeta and Bessel functions

zeta: Elementwise = elementwise(
    "zeta", formula=gamma.zeta, operands=dtypes.FLOATS,
    derivatives=[undefined("zeta", "x"), lambda g, out, x, q: g * (-x * zeta(x + 1.0, q))],
    domain=Domain(0.5, 3.0, operands={0: (2.0, 2.0)}),
    doc="Hurwitz's zeta function, the sum of (q + k)^-x over k = 0, 1, …; differentiable in q.",
)  # fmt: skip

bessel_i0e: Elementwise = elementwise(
    "bessel_i0e", formula=bessel.bessel_i0e, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * (bessel_i1e(x) - sign(x) * out)],
    domain=Domain(avoid=(0.0,)), doc="The modified Bessel function of order 0, scaled: exp(-|x|) I0(x).",
)  # fmt: skip


def _i1e_derivative(g: Array, out: Array, x: Array) -> Array:
    """Return I0e - (sign x + 1 / x) I1e, whose limit at zero is 1/2."""
    at_zero = eq(x, 0.0)
    safe = select(at_zero, as_value(np.ones((), x.dtype)), x)
    slope = bessel_i0e(x) - (out * sign(x) + out / safe)
    return g * select(at_zero, as_value(np.asarray(0.5, x.dtype)), slope)


bessel_i1e: Elementwise = elementwise(
    "bessel_i1e", formula=bessel.bessel_i1e, operands=dtypes.FLOATS, derivatives=[_i1e_derivative],
    domain=Domain(avoid=(0.0,), margin=0.2), doc="The modified Bessel function of order 1, scaled: exp(-|x|) I1(x).",
)  # fmt: skip

bessel_i0: Elementwise = elementwise(
    "bessel_i0", formula=bessel.bessel_i0, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * bessel_i1(x)],
    doc="The modified Bessel function of order 0.",
)  # fmt: skip


def _i1_slope(x: Array, out: Array) -> Array:
    """Return I0(x) - I1(x) / x, which is one half at zero."""
    at_zero = eq(x, 0.0)
    return bessel_i0(x) - select(at_zero, as_value(np.full((), 0.5, x.dtype)), out / _safe(x, at_zero))


bessel_i1: Elementwise = elementwise(
    "bessel_i1", formula=bessel.bessel_i1, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * _i1_slope(x, out)],
    domain=Domain(avoid=(0.0,), margin=0.2), doc="The modified Bessel function of order 1.",
)  # fmt: skip

# integrals


def _safe(x: Array, at: Array) -> Array:
    """Return x, and 1 where it is `at`, a point that a quotient leaves out."""
    return select(at, as_value(np.ones((), x.dtype)), x)


def _dawson_slope(x: Array, out: Array) -> Array:
    """Return 1 - 2 x D(x); far away, where that cancels, by the asymptotic series."""
    border = {4: 5.0, 8: 10.0}[max(x.dtype.itemsize, 4)]
    far = gt(abs(x), border)
    inverse = 0.5 / _safe(x, ~far) / _safe(x, ~far)
    series = as_value(np.zeros((), x.dtype))
    for k in range(13, 0, -1):
        series = inverse * (2.0 * k - 1.0) * (1.0 + series)
    return select(far, -series, 1.0 - 2.0 * select(far, as_value(np.zeros((), x.dtype)), x) * out)


dawsn: Elementwise = elementwise(
    "dawsn", formula=dawson.dawsn, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * _dawson_slope(x, out)],
    doc="Dawson's integral, exp(-x^2) times the integral of exp(t^2) from 0 to x.",
)  # fmt: skip


def _expn_slope(n: Array, x: Array, out: Array) -> Array:
    """Return -E(n - 1)(x), which for n = 0 is E0 (1 + 1/x)."""
    first = eq(n, 0.0)
    return -select(first, out * (1.0 + 1.0 / x), expn(select(first, n, n - 1.0), x))


expn: Elementwise = elementwise(
    "expn", formula=exponential_integrals.expn, operands=dtypes.FLOATS,
    derivatives=[undefined("expn", "n"), lambda g, out, n, x: g * _expn_slope(n, x, out)],
    domain=Domain(0.2, 4.0, operands={0: (2.0, 2.0)}), doc="En(x), the integral of exp(-x t) / t^n from t = 1 to infinity.",
)  # fmt: skip


def _expi_slope(x: Array) -> Array:
    root = exp(0.5 * x)
    return root / x * root


expi: Elementwise = elementwise(
    "expi", formula=exponential_integrals.expi, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * _expi_slope(x)],
    domain=Domain(avoid=(0.0,), margin=0.2), doc="The integral of exp(t) / t from -infinity to x, as a principal value.",
)  # fmt: skip


def _erfcx_slope(x: Array, out: Array) -> Array:
    """Return 2 x erfcx(x) - 2 / sqrt(pi), far on the right by the asymptotic series."""
    far = gt(x, {4: 5.0, 8: 10.0}[max(x.dtype.itemsize, 4)])
    inverse = 0.5 / _safe(x, ~far) / _safe(x, ~far)
    series = as_value(np.zeros((), x.dtype))
    for k in range(13, 0, -1):
        series = inverse * (2.0 * k - 1.0) * (1.0 - series)
    near = 2.0 * (select(far, as_value(np.zeros((), x.dtype)), x) * out) - _TWO_OVER_SQRT_PI
    return select(far, -_TWO_OVER_SQRT_PI * series, near)


erfcx: Elementwise = elementwise(
    "erfcx", formula=exponential_integrals.erfcx, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * _erfcx_slope(x, out)],
    doc="exp(x^2) erfc(x).",
)  # fmt: skip

#: Farther away, x * x rounded gives the derivatives fewer and fewer digits, as near their zeros.
_FRESNEL_SMALL = Domain(-1.3, 1.3, avoid=(-1.0, 1.0), margin=0.1)

fresnel_sin_slope: Elementwise = elementwise(
    "fresnel_sin_slope", formula=oscillating_integrals.fresnel_sin_slope, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x: g * (math.pi * x * fresnel_cos_slope(x))], domain=_FRESNEL_SMALL, doc="sin(pi x^2 / 2).",
)  # fmt: skip
fresnel_cos_slope: Elementwise = elementwise(
    "fresnel_cos_slope", formula=oscillating_integrals.fresnel_cos_slope, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x: g * (-math.pi * x * fresnel_sin_slope(x))], domain=_FRESNEL_SMALL, doc="cos(pi x^2 / 2).",
)  # fmt: skip
fresnel_sin: Elementwise = elementwise(
    "fresnel_sin", formula=oscillating_integrals.fresnel_sin, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x: g * fresnel_sin_slope(x)], domain=_FRESNEL_SMALL,
    doc="The integral of sin(pi t^2 / 2) from 0 to x.",
)  # fmt: skip
fresnel_cos: Elementwise = elementwise(
    "fresnel_cos", formula=oscillating_integrals.fresnel_cos, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x: g * fresnel_cos_slope(x)], domain=_FRESNEL_SMALL,
    doc="The integral of cos(pi t^2 / 2) from 0 to x.",
)  # fmt: skip


def _sinc(x: Array) -> Array:
    zero = eq(x, 0.0)
    return select(zero, as_value(np.ones((), x.dtype)), sin(x) / _safe(x, zero))


sin_integral: Elementwise = elementwise(
    "sin_integral", formula=oscillating_integrals.sin_integral, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * _sinc(x)],
    doc="The integral of sin(t) / t from 0 to x.",
)  # fmt: skip
cos_integral: Elementwise = elementwise(
    "cos_integral", formula=oscillating_integrals.cos_integral, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x: g * (cos(x) / x)], domain=Domain(avoid=(0.0,), margin=0.2),
    doc="The cosine integral of |x|: gamma + log |x| + the integral of (cos(t) - 1) / t from 0 to |x|.",
)  # fmt: skip


def _spence_slope(x: Array) -> Array:
    one = eq(x, 1.0)
    return select(one, as_value(np.full((), -1, x.dtype)), log(x) / (1.0 - select(one, as_value(np.zeros((), x.dtype)), x)))


spence: Elementwise = elementwise(
    "spence", formula=dilogarithm.spence, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * _spence_slope(x)], domain=_POSITIVE,
    doc="Minus the integral of log(t) / (t - 1) from 1 to x, the dilogarithm of 1 - x.",
)  # fmt: skip
owens_t: Elementwise = elementwise(
    "owens_t", formula=owen.owens_t, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, h, a: g * (-0.5 * normal_pdf(h, 0.0, 1.0) * erf(a * h * math.sqrt(0.5))),
        lambda g, out, h, a: g * (exp(-0.5 * h * h * (1.0 + a * a)) / (1.0 + a * a) * (0.5 / math.pi)),
    ],
    doc="Owen's T function, the integral of exp(-h^2 (1 + t^2) / 2) / (1 + t^2) / (2 pi) from 0 to a.",
)  # fmt: skip


def _faddeeva_slopes(x: Array, y: Array, real: Array, imaginary: Array) -> tuple[Array, Array]:
    """Return the components of w'(z) = 2 i / sqrt(pi) - 2 z w(z)."""
    return 2.0 * (y * imaginary - x * real), _TWO_OVER_SQRT_PI - 2.0 * (x * imaginary + y * real)


faddeeva_real: Elementwise = elementwise(
    "faddeeva_real", formula=faddeeva.faddeeva_real, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, x, y: g * _faddeeva_slopes(x, y, out, faddeeva_imag(x, y))[0],
        lambda g, out, x, y: -g * _faddeeva_slopes(x, y, out, faddeeva_imag(x, y))[1],
    ],
    domain=Domain(operands={1: (-1.0, 3.0)}), doc="The real part of the Faddeeva function exp(-z^2) erfc(-i z) of x + i y.",
)  # fmt: skip
faddeeva_imag: Elementwise = elementwise(
    "faddeeva_imag", formula=faddeeva.faddeeva_imag, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, x, y: g * _faddeeva_slopes(x, y, faddeeva_real(x, y), out)[1],
        lambda g, out, x, y: g * _faddeeva_slopes(x, y, faddeeva_real(x, y), out)[0],
    ],
    domain=Domain(operands={1: (-1.0, 3.0)}), doc="The imaginary part of the Faddeeva function exp(-z^2) erfc(-i z) of x + i y.",
)  # fmt: skip


hyp1f1: Elementwise = elementwise(
    "hyp1f1", formula=hypergeometric.hyp1f1, operands=dtypes.FLOATS,
    derivatives=[undefined("hyp1f1", "a"), undefined("hyp1f1", "b"), lambda g, out, a, b, x: g * (a / b * hyp1f1(a + 1.0, b + 1.0, x))],
    domain=Domain(operands={0: (0.5, 2.0), 1: (1.0, 3.0)}),
    doc="Kummer's confluent hypergeometric function, the sum of (a)_k / (b)_k x^k / k!; differentiable in x.",
)  # fmt: skip
hyp2f1: Elementwise = elementwise(
    "hyp2f1", formula=hypergeometric.hyp2f1, operands=dtypes.FLOATS,
    derivatives=[
        *[undefined("hyp2f1", name) for name in "abc"],
        lambda g, out, a, b, c, x: g * (a * b / c * hyp2f1(a + 1.0, b + 1.0, c + 1.0, x)),
    ],
    domain=Domain(-2.0, 0.7, operands={0: (0.5, 2.0), 1: (0.5, 2.0), 2: (2.2, 3.0)}),
    doc="Gauss's hypergeometric function, the sum of (a)_k (b)_k / (c)_k x^k / k!; differentiable in x.",
)  # fmt: skip

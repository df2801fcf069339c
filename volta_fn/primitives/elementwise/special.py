"""Special functions: error, gamma, zeta and Bessel functions, and their quotients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import GradientError
from volta_fn.primitives.declare import Domain, Elementwise, elementwise
from volta_fn.primitives.elementwise.arithmetic import (
    cos,
    exp,
    log,
    log1p,
    pow,
    reciprocal_of_one_plus_square,
    sign,
    sin,
    sqrt,
    tanh,
)
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.elementwise.selection import bitwise_and, eq, gt, lt, select
from volta_fn.primitives.formulas import error, gamma, hypergeometric, incomplete, special
from volta_fn.primitives.formulas import special as dilogarithm
from volta_fn.primitives.formulas import special as owen

_POSITIVE = Domain(0.2, 4.0)

# error function: its derivative is the Gaussian 2/sqrt(pi) exp(-x^2)

_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)

gaussian: Elementwise = elementwise(
    "gaussian", formula=error.gaussian, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: scaled_slope(g, out, -2.0 * x)],
    doc="exp(-x^2).",
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


def _normal_density(x: Array) -> Array:
    return exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))


def scaled_slope(g: Array, out: Array, slope: Array) -> Array:
    """Return g out slope, and 0 where out is 0.

    The slope, that of a logarithm, may be infinite or NaN there.
    """
    zero = eq(out, 0.0)
    return g * select(zero, out, out * select(zero, as_value(np.zeros((), out.dtype)), slope))


normal_pdf: Elementwise = elementwise(
    "normal_pdf", formula=gamma.normal_pdf, operands=dtypes.FLOATS,
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
    "ndtri", formula=error.ndtri, operands=dtypes.FLOATS, derivatives=[lambda g, out, p: g / normal_pdf(out, 0.0, 1.0)],
    domain=Domain(0.05, 0.95), doc="The inverse of ndtr.",
)  # fmt: skip
gelu: Elementwise = elementwise(
    "gelu", formula=error.gelu, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * (ndtr(x) + x * _normal_density(x))],
    doc="x ndtr(x), exact far on the left; an operation by itself since one evaluation of the tail does for both signs.",
)  # fmt: skip


def undefined(function: str, operand: str) -> Callable[..., Array]:
    """Return a derivative that raises: the function has none by this operand."""

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


def _zeta_by_exponent(x: Array, q: Array) -> Array:
    """Return the derivative of zeta by x, the sum of -log(q + k) (q + k)^-x.

    It is NaN for x < 1 and for q < 0. The first terms are added one by one; the rest is the derivative of the Euler-Maclaurin formula.
    """
    dtype = dtypes.accumulator(x.dtype)
    s, start = convert_element_type(x, dtype), convert_element_type(q, dtype)
    zero = as_value(np.zeros((), dtype))
    total = zero
    for _ in range(gamma.DIRECT_TERMS):
        total = total - log(start) * pow(start, -s)
        start = start + 1.0
    scale, power, square = log(start), pow(start, -s), start * start
    tail, factor, slope = -0.5 * scale, s / start, 1.0 / start  # the slope is that of the factor
    for i, coefficient in enumerate(gamma.EULER_MACLAURIN):
        tail = tail + coefficient * (slope - scale * factor)
        first, second = s + (2.0 * i + 1.0), s + (2.0 * i + 2.0)
        slope = (slope * first * second + factor * (first + second)) / square
        factor = factor * first * second / square
    above_pole = s - 1.0
    rest = power * (tail - start * (scale * above_pole + 1.0) / (above_pole * above_pole))
    total = total + select(eq(power, 0.0), zero, rest)  # where the power underflows, factors may overflow
    return convert_element_type(select(lt(s, 1.0), as_value(np.full((), np.nan, dtype)), total), x.dtype)


zeta: Elementwise = elementwise(
    "zeta", formula=gamma.zeta, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x, q: g * _zeta_by_exponent(x, q), lambda g, out, x, q: g * (-x * zeta(x + 1.0, q))],
    domain=Domain(0.5, 3.0, operands={0: (1.5, 4.0)}), doc="Hurwitz's zeta function, the sum of (q + k)^-x over k = 0, 1, ….",
)  # fmt: skip

bessel_i0e: Elementwise = elementwise(
    "bessel_i0e", formula=special.bessel_i0e, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * (bessel_i1e(x) - sign(x) * out)],
    domain=Domain(avoid=(0.0,)), doc="The modified Bessel function of order 0, scaled: exp(-|x|) I0(x).",
)  # fmt: skip


def _over_x(out: Array, x: Array) -> Array:
    """Return I1(x) / x or I1e(x) / x: 1/2 where half of x may be subnormal."""
    small = lt(abs(x), 4.0 * float(dtypes.finfo(x.dtype).tiny))
    return select(small, as_value(np.full((), 0.5, x.dtype)), out / _safe(x, small))


def _i1e_derivative(g: Array, out: Array, x: Array) -> Array:
    """Return g times I0e - (sign x + 1 / x) I1e."""
    return g * (bessel_i0e(x) - (out * sign(x) + _over_x(out, x)))


bessel_i1e: Elementwise = elementwise(
    "bessel_i1e", formula=special.bessel_i1e, operands=dtypes.FLOATS, derivatives=[_i1e_derivative],
    domain=Domain(avoid=(0.0,), margin=0.2), doc="The modified Bessel function of order 1, scaled: exp(-|x|) I1(x).",
)  # fmt: skip

bessel_i0: Elementwise = elementwise(
    "bessel_i0", formula=special.bessel_i0, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * bessel_i1(x)],
    doc="The modified Bessel function of order 0.",
)  # fmt: skip


def _i1_slope(x: Array, out: Array) -> Array:
    """Return I0(x) - I1(x) / x, which is infinite where both are."""
    size = abs(out)
    return select(eq(size, math.inf), size, bessel_i0(x) - _over_x(out, x))


bessel_i1: Elementwise = elementwise(
    "bessel_i1", formula=special.bessel_i1, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * _i1_slope(x, out)],
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
    "dawsn", formula=special.dawsn, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * _dawson_slope(x, out)],
    doc="Dawson's integral, exp(-x^2) times the integral of exp(t^2) from 0 to x.",
)  # fmt: skip


def _expn_slope(n: Array, x: Array, out: Array) -> Array:
    """Return -E(n - 1)(x), which for n = 0 is E0 (1 + 1/x)."""
    first = eq(n, 0.0)
    return -select(first, out * (1.0 + 1.0 / x), expn(select(first, n, n - 1.0), x))


expn: Elementwise = elementwise(
    "expn", formula=hypergeometric.expn, operands=dtypes.FLOATS,
    derivatives=[undefined("expn", "n"), lambda g, out, n, x: g * _expn_slope(n, x, out)],
    domain=Domain(0.2, 4.0, operands={0: (2.0, 2.0)}), doc="En(x), the integral of exp(-x t) / t^n from t = 1 to infinity.",
)  # fmt: skip


def _expi_slope(x: Array) -> Array:
    root = exp(0.5 * x)
    return root / x * root


expi: Elementwise = elementwise(
    "expi", formula=hypergeometric.expi, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * _expi_slope(x)],
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
    "erfcx", formula=hypergeometric.erfcx, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * _erfcx_slope(x, out)],
    doc="exp(x^2) erfc(x).",
)  # fmt: skip

#: Farther away, x * x rounded gives the derivatives fewer and fewer digits, as near their zeros.
_FRESNEL_SMALL = Domain(-1.3, 1.3, avoid=(-1.0, 1.0), margin=0.1)

fresnel_sin_slope: Elementwise = elementwise(
    "fresnel_sin_slope", formula=special.fresnel_sin_slope, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x: g * (math.pi * x * fresnel_cos_slope(x))], domain=_FRESNEL_SMALL, doc="sin(pi x^2 / 2).",
)  # fmt: skip
fresnel_cos_slope: Elementwise = elementwise(
    "fresnel_cos_slope", formula=special.fresnel_cos_slope, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x: g * (-math.pi * x * fresnel_sin_slope(x))], domain=_FRESNEL_SMALL, doc="cos(pi x^2 / 2).",
)  # fmt: skip
fresnel_sin: Elementwise = elementwise(
    "fresnel_sin", formula=special.fresnel_sin, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x: g * fresnel_sin_slope(x)], domain=_FRESNEL_SMALL,
    doc="The integral of sin(pi t^2 / 2) from 0 to x.",
)  # fmt: skip
fresnel_cos: Elementwise = elementwise(
    "fresnel_cos", formula=special.fresnel_cos, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x: g * fresnel_cos_slope(x)], domain=_FRESNEL_SMALL,
    doc="The integral of cos(pi t^2 / 2) from 0 to x.",
)  # fmt: skip


def _sinc(x: Array) -> Array:
    zero = eq(x, 0.0)
    return select(zero, as_value(np.ones((), x.dtype)), sin(x) / _safe(x, zero))


sin_integral: Elementwise = elementwise(
    "sin_integral", formula=special.sin_integral, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * _sinc(x)],
    doc="The integral of sin(t) / t from 0 to x.",
)  # fmt: skip
cos_integral: Elementwise = elementwise(
    "cos_integral", formula=special.cos_integral, operands=dtypes.FLOATS,
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
        lambda g, out, h, a: g * (exp(-0.5 * (h * h + (a * h) * (a * h))) * reciprocal_of_one_plus_square(a) * (0.5 / math.pi)),
    ],
    doc="Owen's T function, the integral of exp(-h^2 (1 + t^2) / 2) / (1 + t^2) / (2 pi) from 0 to a.",
)  # fmt: skip


def _faddeeva_slopes(x: Array, y: Array, real: Array, imaginary: Array) -> tuple[Array, Array]:
    """Return the components of w'(z) = 2 i / sqrt(pi) - 2 z w(z)."""
    return 2.0 * (y * imaginary - x * real), _TWO_OVER_SQRT_PI - 2.0 * (x * imaginary + y * real)


faddeeva_real: Elementwise = elementwise(
    "faddeeva_real", formula=special.faddeeva_real, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, x, y: g * _faddeeva_slopes(x, y, out, faddeeva_imag(x, y))[0],
        lambda g, out, x, y: -g * _faddeeva_slopes(x, y, out, faddeeva_imag(x, y))[1],
    ],
    domain=Domain(operands={1: (-1.0, 3.0)}), doc="The real part of the Faddeeva function exp(-z^2) erfc(-i z) of x + i y.",
)  # fmt: skip
faddeeva_imag: Elementwise = elementwise(
    "faddeeva_imag", formula=special.faddeeva_imag, operands=dtypes.FLOATS,
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


# Quotients of gamma functions.

digamma_rise: Elementwise = elementwise(
    "digamma_rise", formula=gamma.digamma_rise, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, a, b: g * (polygamma(1.0, a + b) - polygamma(1.0, a)),
        lambda g, out, a, b: g * polygamma(1.0, a + b),
    ],
    domain=_POSITIVE, doc="digamma(a + b) - digamma(a).",
)  # fmt: skip
betaln: Elementwise = elementwise(
    "betaln", formula=gamma.betaln, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, a, b: g * -digamma_rise(a, b), lambda g, out, a, b: g * -digamma_rise(b, a)],
    domain=_POSITIVE, doc="log |beta(a, b)|.",
)  # fmt: skip
beta: Elementwise = elementwise(
    "beta", formula=gamma.beta, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, a, b: scaled_slope(g, out, -digamma_rise(a, b)),
        lambda g, out, a, b: scaled_slope(g, out, -digamma_rise(b, a)),
    ],
    domain=_POSITIVE, doc="gamma(a) gamma(b) / gamma(a + b).",
)  # fmt: skip
comb: Elementwise = elementwise(
    "comb", formula=gamma.comb, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, n, k: scaled_slope(g, out, digamma_rise(n - k + 1.0, k)),
        lambda g, out, n, k: scaled_slope(g, out, digamma_rise(k + 1.0, n - 2.0 * k)),
    ],
    domain=Domain(0.2, 1.9, operands={0: (2.0, 4.0)}), doc="gamma(n + 1) / (gamma(k + 1) gamma(n - k + 1)) for 0 <= k <= n, else 0.",
)  # fmt: skip
poch: Elementwise = elementwise(
    "poch", formula=gamma.poch, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, z, m: scaled_slope(g, out, digamma_rise(z, m)),
        lambda g, out, z, m: scaled_slope(g, out, digamma(z + m)),
    ],
    domain=_POSITIVE, doc="gamma(z + m) / gamma(z).",
)  # fmt: skip
factorial: Elementwise = elementwise(
    "factorial", formula=gamma.factorial, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, n: scaled_slope(g, out, digamma(n + 1.0))],
    domain=_POSITIVE, doc="gamma(n + 1) for n >= 0, else 0.",
)  # fmt: skip


# Incomplete gamma and beta functions, and densities of distributions.

_SHAPE = Domain(0.5, 4.0)

igamma: Elementwise = elementwise(
    "igamma", formula=incomplete.gammainc, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, a, x: g * igamma_grad_a(a, x), lambda g, out, a, x: g * gamma_density(a, x)],
    domain=_SHAPE, doc="The regularised lower incomplete gamma function.",
)  # fmt: skip
igammac: Elementwise = elementwise(
    "igammac", formula=incomplete.gammaincc, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, a, x: -g * igamma_grad_a(a, x), lambda g, out, a, x: -g * gamma_density(a, x)],
    domain=_SHAPE, doc="The regularised upper incomplete gamma function.",
)  # fmt: skip


def _density_by_a(g: Array, out: Array, a: Array, x: Array) -> Array:
    return scaled_slope(g, out, _log(x) - digamma(a))


def _log(x: Array) -> Array:
    """Return log(x), and 0 at 0."""
    # There densities are 0 or infinite, or leap with their shapes.
    return log(select(eq(x, 0.0), _number(1.0, x), x))


def _quotient(top: Array, bottom: Array) -> Array:
    """Return top / bottom, and 0 where the former is 0."""
    none = eq(top, 0.0)
    return select(none, top, top / select(none, _number(1.0, top), bottom))


def _number(value: float, model: Array) -> Array:
    return as_value(np.asarray(value, model.dtype))


def _score_of_gamma(out: Array, a: Array, x: Array) -> Array:
    """Return the derivative of the gamma density by x.

    At 0 it is 1 for a = 2, and infinite for 1 < a < 2.
    """
    at_zero = select(eq(a, 2.0), _number(1.0, out), select(lt(a, 2.0), _number(math.inf, out), out))
    rising = bitwise_and(eq(x, 0.0), gt(a, 1.0))
    return select(rising, at_zero, scaled_slope(_number(1.0, out), out, _quotient(a - 1.0, x) - 1.0))


gamma_density: Elementwise = elementwise(
    "gamma_density", formula=incomplete.gamma_density, operands=dtypes.FLOATS,
    derivatives=[_density_by_a, lambda g, out, a, x: g * _score_of_gamma(out, a, x)],
    domain=_SHAPE, doc="x^(a - 1) exp(-x) / gamma(a), the derivative of igamma by x.",
)  # fmt: skip
igamma_grad_a: Elementwise = elementwise(
    "igamma_grad_a", formula=incomplete.gammainc_grad_a, operands=dtypes.FLOATS,
    derivatives=[undefined("igamma_grad_a", "a"), lambda g, out, a, x: _density_by_a(g, gamma_density(a, x), a, x)],
    domain=_SHAPE, doc="The derivative of igamma by a.",
)  # fmt: skip
gamma_pdf: Elementwise = elementwise(
    "gamma_pdf", formula=incomplete.gamma_pdf, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, x, a, loc, scale: g * (_score_of_gamma(out * scale, a, (x - loc) / scale) / scale / scale),
        lambda g, out, x, a, loc, scale: _density_by_a(g, out, a, (x - loc) / scale),
        lambda g, out, x, a, loc, scale: g * (-_score_of_gamma(out * scale, a, (x - loc) / scale) / scale / scale),
        lambda g, out, x, a, loc, scale: scaled_slope(g, out, ((x - loc) / scale - a) / scale),
    ],
    domain=Domain(0.5, 4.0, operands={2: (-1.0, 0.4)}), doc="The density of the gamma distribution at x.",
)  # fmt: skip
random_gamma_grad: Elementwise = elementwise(
    "random_gamma_grad", formula=incomplete.random_gamma_grad, operands=dtypes.FLOATS,
    derivatives=[undefined("random_gamma_grad", "a"), undefined("random_gamma_grad", "the sample")],
    domain=_SHAPE, doc="The derivative of a gamma number by a at a fixed quantile.",
)  # fmt: skip

_SHARE = Domain(0.5, 4.0, operands={2: (0.05, 0.95)})

regularized_incomplete_beta: Elementwise = elementwise(
    "regularized_incomplete_beta", formula=incomplete.betainc, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, a, b, x: g * betainc_grad_a(a, b, x),
        lambda g, out, a, b, x: g * betainc_grad_b(a, b, x),
        lambda g, out, a, b, x: g * beta_density(a, b, x),
    ],
    domain=_SHARE, doc="The regularised incomplete beta function of x.",
)  # fmt: skip
regularized_incomplete_beta_complement: Elementwise = elementwise(
    "regularized_incomplete_beta_complement", formula=incomplete.betaincc, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, a, b, x: -g * betainc_grad_a(a, b, x),
        lambda g, out, a, b, x: -g * betainc_grad_b(a, b, x),
        lambda g, out, a, b, x: -g * beta_density(a, b, x),
    ],
    domain=_SHARE, doc="1 less the regularised incomplete beta function of x, precise if small.",
)  # fmt: skip


def _beta_density_by(g: Array, out: Array, log_x: Array, a: Array, b: Array) -> Array:
    return scaled_slope(g, out, log_x + digamma_rise(a, b))


def _score_of_beta(a: Array, b: Array, x: Array) -> Array:
    return _quotient(a - 1.0, x) - _quotient(b - 1.0, 1.0 - x)


beta_density: Elementwise = elementwise(
    "beta_density", formula=incomplete.beta_density, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, a, b, x: _beta_density_by(g, out, _log(x), a, b),
        lambda g, out, a, b, x: _beta_density_by(g, out, _log(1.0 - x), b, a),
        lambda g, out, a, b, x: scaled_slope(g, out, _score_of_beta(a, b, x)),
    ],
    domain=_SHARE, doc="x^(a - 1) (1 - x)^(b - 1) / B(a, b), the derivative of the incomplete beta function by x.",
)  # fmt: skip
beta_pdf: Elementwise = elementwise(
    "beta_pdf", formula=incomplete.beta_pdf, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, x, a, b, loc, scale: scaled_slope(g, out, _score_of_beta(a, b, (x - loc) / scale) / scale),
        lambda g, out, x, a, b, loc, scale: _beta_density_by(g, out, _log((x - loc) / scale), a, b),
        lambda g, out, x, a, b, loc, scale: _beta_density_by(g, out, _log(1.0 - (x - loc) / scale), b, a),
        lambda g, out, x, a, b, loc, scale: scaled_slope(g, out, -_score_of_beta(a, b, (x - loc) / scale) / scale),
        lambda g, out, x, a, b, loc, scale: scaled_slope(g, out, -_elasticity_of_beta(a, b, (x - loc) / scale) / scale),
    ],
    domain=Domain(0.5, 4.0, operands={0: (0.4, 0.9), 3: (-0.1, 0.1), 4: (1.2, 1.5)}), doc="The density of the beta distribution at x.",
)  # fmt: skip

nbinom_pmf: Elementwise = elementwise(
    "nbinom_pmf", formula=incomplete.nbinom_pmf, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, k, n, p: scaled_slope(g, out, _log(1.0 - p) + digamma(k + n) - digamma(k + 1.0)),
        lambda g, out, k, n, p: scaled_slope(g, out, _log(p) + digamma_rise(n, k)),
        lambda g, out, k, n, p: scaled_slope(g, out, n / p - _quotient(k, 1.0 - p)),
    ],
    domain=_SHARE, doc="The probability of k failures before the n-th success.",
)  # fmt: skip


def _elasticity_of_beta(a: Array, b: Array, x: Array) -> Array:
    return a - x * _quotient(b - 1.0, 1.0 - x)


betainc_grad_a: Elementwise = elementwise(
    "betainc_grad_a", formula=incomplete.betainc_grad_a, operands=dtypes.FLOATS,
    derivatives=[
        undefined("betainc_grad_a", "a"), undefined("betainc_grad_a", "b"),
        lambda g, out, a, b, x: _beta_density_by(g, beta_density(a, b, x), log(x), a, b),
    ],
    domain=_SHARE, doc="The derivative of the incomplete beta function by a.",
)  # fmt: skip
betainc_grad_b: Elementwise = elementwise(
    "betainc_grad_b", formula=incomplete.betainc_grad_b, operands=dtypes.FLOATS,
    derivatives=[
        undefined("betainc_grad_b", "a"), undefined("betainc_grad_b", "b"),
        lambda g, out, a, b, x: _beta_density_by(g, beta_density(a, b, x), log1p(-x), b, a),
    ],
    domain=_SHARE, doc="The derivative of the incomplete beta function by b.",
)  # fmt: skip

# densities without shape, and that of Student's t distribution


def _located(name: str, formula: Any, score: Callable[[Array], Array], doc: str) -> Elementwise:
    """Declare the density of a distribution without shape parameters.

    `score` is the derivative of its log by z.
    """

    def by_x(g: Array, out: Array, x: Array, loc: Array, scale: Array) -> Array:
        return scaled_slope(g, out, score((x - loc) / scale) / scale)

    def by_loc(g: Array, out: Array, x: Array, loc: Array, scale: Array) -> Array:
        return scaled_slope(g, out, -score((x - loc) / scale) / scale)

    def by_scale(g: Array, out: Array, x: Array, loc: Array, scale: Array) -> Array:
        z = (x - loc) / scale
        return scaled_slope(g, out, -(1.0 + z * score(z)) / scale)

    domain = Domain(-2.0, 2.0, operands={1: (2.5, 3.0), 2: (0.5, 2.0)})
    return elementwise(name, formula=formula, operands=dtypes.FLOATS, derivatives=[by_x, by_loc, by_scale], domain=domain, doc=doc)


exponential_pdf = _located("exponential_pdf", gamma.exponential_pdf, lambda z: -sign(z), "exp(-|x - loc| / scale) / scale.")
logistic_pdf = _located("logistic_pdf", gamma.logistic_pdf, lambda z: -tanh(0.5 * z), "The density of the logistic distribution at x.")
cauchy_pdf = _located(
    "cauchy_pdf", gamma.cauchy_pdf, lambda z: _score_of_t(_number(1.0, z), z), "The density of Cauchy's distribution at x."
)


def _score_of_t(df: Array, z: Array) -> Array:
    """Return the derivative of the log density by z: -(df + 1) z / (df + z^2)."""
    large, infinite = gt(z * z, 1.0), eq(df, math.inf)
    degrees, far = select(infinite, _number(1.0, df), df), select(large, z, _number(1.0, z))
    near = select(large, _number(0.0, z), z)
    inner = (1.0 + 1.0 / df) * near / (1.0 + near * near / df)
    return -select(infinite, z, select(large, (degrees + 1.0) / (far + degrees / far), inner))


def _log_slope_of_t(df: Array, z: Array) -> Array:
    """Return the derivative of the log density by df."""
    infinite = eq(df, math.inf)
    degrees = select(infinite, _number(1.0, df), df)
    ratio = z / sqrt(degrees)
    inverse = -_score_of_t(degrees, z) * z / degrees
    growth = digamma_rise(0.5 * degrees, _number(0.5, df)) - 1.0 / degrees
    return select(infinite, _number(0.0, df), 0.5 * (growth - _log1p_square(ratio) + inverse))


def _log1p_square(x: Array) -> Array:
    large = gt(x * x, 1.0)
    near, far = select(large, _number(0.0, x), x), select(large, x, _number(1.0, x))
    return select(large, log(far * sign(far)) * 2.0 + log1p(1.0 / far / far), log1p(near * near))


t_pdf: Elementwise = elementwise(
    "t_pdf", formula=gamma.t_pdf, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, x, df, loc, scale: scaled_slope(g, out, _score_of_t(df, (x - loc) / scale) / scale),
        lambda g, out, x, df, loc, scale: scaled_slope(g, out, _log_slope_of_t(df, (x - loc) / scale)),
        lambda g, out, x, df, loc, scale: scaled_slope(g, out, -_score_of_t(df, (x - loc) / scale) / scale),
        lambda g, out, x, df, loc, scale: scaled_slope(
            g, out, -(1.0 + (x - loc) / scale * _score_of_t(df, (x - loc) / scale)) / scale
        ),
    ],
    domain=Domain(-2.0, 2.0, operands={1: (0.5, 4.0), 3: (0.5, 2.0)}), doc="The density of Student's t distribution at x.",
)  # fmt: skip


# Box and Cox's power transforms.


def _by_power(logarithm: Array, power: Array) -> Array:
    """Return the derivative with respect to the power."""
    # It is log² (t e^t - e^t + 1) / t² with t = power log. For small t the quotient is the sum of (k + 1) t^k / (k + 2)!.
    t = power * logarithm
    close = lt(abs(t), 0.5)
    zero, one = (as_value(np.full((), value, t.dtype)) for value in (0, 1))
    small, large, safe = select(close, t, zero), select(close, one, t), select(close, one, power)
    series = as_value(np.full((), 14 / math.factorial(15), t.dtype))
    for k in range(12, -1, -1):
        series = series * small + (k + 1) / math.factorial(k + 2)
    slope = (large - 1.0) * exp(large) + 1.0
    return select(eq(power, 0.0) | close, logarithm * logarithm * series, slope / safe / safe)


boxcox: Elementwise = elementwise(
    "boxcox", formula=hypergeometric.boxcox, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x, power: g * (pow(x, power) / x), lambda g, out, x, power: g * _by_power(log(x), power)],
    domain=Domain(0.2, 4.0), doc="(x^power - 1) / power, and log(x) for the power 0.",
)  # fmt: skip
boxcox1p: Elementwise = elementwise(
    "boxcox1p", formula=hypergeometric.boxcox1p, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, x, power: g * exp(power * log1p(x)) / (1.0 + x),
        lambda g, out, x, power: g * _by_power(log1p(x), power),
    ],
    domain=Domain(-0.8, 3.0), doc="boxcox of 1 + x.",
)  # fmt: skip

"""Sums and integrals of exponentials, and the error function's family."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.primitive import Zero
from volta_fn.errors import ArgumentError
from volta_fn.jit import jit
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import narrowed, wide
from volta_fn.primitives.call import stop_gradient
from volta_fn.primitives.declare import promote_args, promoted
from volta_fn.primitives.elementwise import special
from volta_fn.primitives.elementwise.special import normal_pdf
from volta_fn.scipy.special.gamma_family import composite, rising
from volta_fn.transforms.custom_derivatives import custom_jvp

# Sums of exponentials without overflow, softmax, and functions of x log y.

# Sums of exponentials along axes, without overflow and with finite derivatives.

Axis = int | Sequence[int] | None


def _static_axis(axis: Axis) -> int | tuple[int, ...] | None:
    return axis if type(axis) is int or not isinstance(axis, Sequence) else tuple(axis)  # isinstance with an ABC is slow


def _shift(values: Array, axis: Axis, where: Any) -> Array:
    """Return the largest element (0 if infinite) as a constant to differentiation."""
    real = values.real if values.dtype in dtypes.COMPLEX else values
    largest = stop_gradient(vnp.max(real, axis, keepdims=True, where=where, initial=-math.inf))
    return vnp.where(vnp.isfinite(largest), largest, 0)


@fused
def logsumexp(a: Any, axis: Axis = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None) -> Any:
    """Return log(sum(b exp(a))) along `axis` (default: all), without overflow.

    Args:
        a: an array.
        axis: the dimensions to sum along.
        b: weights, which broadcast to `a`; a weight of zero removes its element, even an infinite one.
        keepdims: whether those dimensions stay, with size 1.
        return_sign: return a pair of the log of the sum's absolute value and its sign (for complex numbers: its direction); otherwise a
            negative sum gives NaN.
        where: bool mask; other elements are ignored.

    An empty sum gives -inf. The derivative is the softmax, and 0 where every element is -inf.

    >>> vf.scipy.special.logsumexp(vf.numpy.array([1000.0, 1000.0]))
    Array(1000.6932, dtype=float32)
    """
    weights: Array | None = None
    if b is None:
        (values,) = promote_args("logsumexp", (a,), dtypes.INEXACT)
    else:
        values, factors = promote_args("logsumexp", (a, b), dtypes.INEXACT)
        values, weights = vnp.where(factors == 0, -math.inf, values), wide(factors)
    narrow = values
    values = wide(values)
    if where is not None:
        values = vnp.where(where, values, -math.inf)  # lest their derivatives be NaN
    shift = _shift(values, axis, where)
    terms = vnp.exp(values - shift)
    total = vnp.sum(terms if weights is None else terms * weights, axis, keepdims=True, where=where)
    sign = vnp.sign(total)
    size = vnp.abs(total) if return_sign else total
    empty = size == 0
    out, sign = narrowed(vnp.where(empty, -math.inf, vnp.log(vnp.where(empty, 1, size)) + shift), narrow), narrowed(sign, narrow)
    if not keepdims:
        out, sign = vnp.squeeze(out, axis), vnp.squeeze(sign, axis)
    return (out, sign) if return_sign else out


def _widened_program(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return the program of ``function(x, axis, where)`` in float32 at least."""
    return jit(lambda x, axis, where: narrowed(function(wide(x), axis, where), x), static_argnums=1)


def softmax(x: Any, axis: Axis = -1, where: Any = None) -> Array:
    """Return exp(x) over its sum along `axis`; elements not in `where` are 0.

    >>> vf.nn.softmax(vf.numpy.array([1000.0, 1000.0]))
    Array([0.5, 0.5], dtype=float32)
    """
    (values,) = promote_args("softmax", (x,), dtypes.INEXACT)
    return _softmax_program(values, _static_axis(axis), where)


@functools.partial(custom_jvp, nondiff_argnums=(1,))
def _softmax(x: Array, axis: Axis, where: Any) -> Array:
    terms = vnp.exp(x - _shift(x, axis, where))
    if where is None:
        return terms / vnp.sum(terms, axis, keepdims=True)
    terms = vnp.where(where, terms, 0)
    total = vnp.sum(terms, axis, keepdims=True)
    return terms / vnp.where(total == 0, 1, total)  # `where` may be all False


_softmax_program = _widened_program(_softmax)


@_softmax.defjvp
def _(axis: Axis, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x, where), (tangent, _) = primals, tangents
    out = _softmax(x, axis, where)
    return out, out * (tangent - vnp.sum(out * tangent, axis, keepdims=True))


def log_softmax(x: Any, axis: Axis = -1, where: Any = None) -> Array:
    """Return log(softmax(x)), precise for small values; -inf outside `where`.

    >>> vf.nn.log_softmax(vf.numpy.array([0.0, 1000.0]))
    Array([-1000.,     0.], dtype=float32)
    """
    (values,) = promote_args("log_softmax", (x,), dtypes.INEXACT)
    return _log_softmax_program(values, _static_axis(axis), where)


@functools.partial(custom_jvp, nondiff_argnums=(1,))
def _log_softmax(x: Array, axis: Axis, where: Any) -> Array:
    shifted = x - _shift(x, axis, where)
    out = shifted - vnp.log(vnp.sum(vnp.exp(shifted), axis, keepdims=True, where=where))
    return out if where is None else vnp.where(where, out, -math.inf)


_log_softmax_program = _widened_program(_log_softmax)


@_log_softmax.defjvp
def _(axis: Axis, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x, where), (tangent, _) = primals, tangents
    out = _log_softmax(x, axis, where)
    change = tangent - vnp.sum(vnp.exp(out) * tangent, axis, keepdims=True)
    return out, change if where is None else vnp.where(where, change, 0)


# Functions of x log y, with 0 · log 0 = 0; logits; power transforms.

expit = promoted(lax.logistic, "expit", "Return the logistic function 1 / (1 + exp(-x)), without overflow.")


@fused
def logit(x: Any) -> Array:
    """Return log(x / (1 - x)), the inverse of `expit`; NaN outside [0, 1].

    >>> float(vf.grad(vf.scipy.special.logit)(0.5))
    4.0
    """
    return _logit(*promote_args("logit", (x,), dtypes.INEXACT))


@custom_jvp
def _logit(x: Array) -> Array:
    """Return log1p((2 x - 1) / (1 - x)) around 1/2, for x < 1/2 by 1 - x."""
    if x.dtype in dtypes.COMPLEX:
        return vnp.log(x / (1.0 - x))
    lower = x < 0.5
    ends = (x < 0.25) | (x > 0.75)
    centre = vnp.where(ends, 0.5, x)
    distance = vnp.log1p(vnp.abs(2.0 * centre - 1.0) / vnp.where(lower, centre, 1.0 - centre))
    return vnp.where(ends, vnp.log(x / (1.0 - x)), vnp.where(lower, -distance, distance))


_logit.defjvps(lambda g, out, x: g / (x * (1.0 - x)))


@composite
def log_expit(x: Any) -> Array:
    """Return log(expit(x)), to full precision also where expit is near 0 or 1.

    >>> vf.scipy.special.log_expit(vf.numpy.array([-200.0, 0.0]))
    Array([-200.       ,   -0.6931472], dtype=float32)
    """
    return -vnp.logaddexp(-x, vnp.zeros_like(x))


@composite
def softplus(x: Any) -> Array:
    """Return log(1 + exp(x)), without overflow.

    >>> vf.scipy.special.softplus(vf.numpy.array([0.0, 200.0]))
    Array([  0.6931472, 200.       ], dtype=float32)
    """
    return vnp.logaddexp(x, vnp.zeros_like(x))


@custom_jvp
def _exprel(x: Array) -> Array:
    tiny, large = vnp.abs(x) < dtypes.finfo(x.dtype).eps, x > 80.0
    safe = vnp.where(tiny, 1.0, x)
    root = vnp.exp(0.5 * vnp.where(large, x, 0.0))  # e^x may overflow where its quotient by x does not
    out = vnp.where(large, root / safe * root, vnp.expm1(vnp.where(large, 0.0, safe)) / safe)
    return vnp.where(tiny, 1.0 + 0.5 * x, vnp.where(x == np.inf, x, out))


def _exprel_slope(x: Array) -> Array:
    """Return (x e^x - e^x + 1) / x^2, near 0 by its Taylor series."""
    close, is_large = vnp.abs(x) < 0.5, x > 80.0
    small, large = vnp.where(close, x, 0.0), vnp.where(is_large, x, 80.0)
    middle = vnp.where(close | is_large, 1.0, x)
    near = rising(small, tuple((k + 1) / math.factorial(k + 2) for k in range(14)))
    far = _exprel(large) * (1.0 - 1.0 / large)  # e^x may overflow where this does not, and 1 / x^2 is lost
    return vnp.where(close, near, vnp.where(is_large, far, (vnp.exp(middle) - vnp.expm1(middle) / middle) / middle))


_exprel.defjvps(lambda g, out, x: g * _exprel_slope(x))


@composite
def exprel(x: Any) -> Array:
    """Return (exp(x) - 1) / x, which is 1 at 0.

    >>> vf.scipy.special.exprel(vf.numpy.array([0.0, 1.0])).round(4)
    Array([1.    , 1.7183], dtype=float32)
    """
    return _exprel(x)


@fused
def xlogy(x: Any, y: Any) -> Array:
    """Return x log(y), which is 0 for x = 0 unless y is NaN.

    >>> vf.scipy.special.xlogy(0.0, 0.0)
    Array(0., dtype=float32, weak_type=True)
    """
    return _xlogy(*promote_args("xlogy", (x, y), dtypes.INEXACT))


@custom_jvp
def _xlogy(x: Array, y: Array) -> Array:
    return vnp.where((x != 0) | vnp.isnan(y), x * vnp.log(y), 0.0)


@partial(_xlogy.defjvp, symbolic_zeros=True)
def _(primals: Any, tangents: Any) -> tuple[Array, Any]:
    return _two_terms(_xlogy, primals, tangents, vnp.log, 0.0)


@fused
def xlog1py(x: Any, y: Any) -> Array:
    """Return x log(1 + y), which is 0 for x = 0 unless y is NaN.

    >>> vf.scipy.special.xlog1py(vf.numpy.array([0.0, 2.0]), -1.0)
    Array([  0., -inf], dtype=float32)
    """
    return _xlog1py(*promote_args("xlog1py", (x, y), dtypes.INEXACT))


@custom_jvp
def _xlog1py(x: Array, y: Array) -> Array:
    return vnp.where((x != 0) | vnp.isnan(y), x * vnp.log1p(y), 0.0)


@partial(_xlog1py.defjvp, symbolic_zeros=True)
def _(primals: Any, tangents: Any) -> tuple[Array, Any]:
    return _two_terms(_xlog1py, primals, tangents, vnp.log1p, 1.0)


def _two_terms(
    function: Callable[..., Array], primals: Any, tangents: Any, log: Callable[[Any], Array], offset: float
) -> tuple[Array, Any]:
    """Differentiate x log(offset + y), by x, where it may be infinite, only if asked."""
    (x, y), (x_tangent, y_tangent) = primals, tangents
    out = function(x, y)
    total: Any = x_tangent if type(x_tangent) is Zero else x_tangent * log(y)
    if type(y_tangent) is not Zero:
        below = offset + y
        both = (x == 0) & (below == 0)  # elsewhere the quotient has derivatives by x where x = 0
        slope = vnp.where(both, 0.0, x / vnp.where(both, 1.0, below))
        total = y_tangent * slope if type(total) is Zero else total + y_tangent * slope
    return out, total


@composite
def entr(x: Any) -> Array:
    """Return -x log(x), the summand of entropy: 0 at 0, -inf for negative x.

    >>> p = vf.numpy.array([0.5, 0.5, 0.0])
    >>> vf.scipy.special.entr(p).sum()
    Array(0.6931472, dtype=float32)
    """
    return vnp.where(x < 0, -np.inf, -_xlogx(x))


@custom_jvp
def _xlogx(x: Array) -> Array:
    return _xlogy(x, x)


_xlogx.defjvps(lambda g, out, x: g * (vnp.log(x) + 1.0))


@composite
def rel_entr(p: Any, q: Any) -> Array:
    """Return p log(p / q), the summand of relative entropy.

    It is 0 for p = 0 and q >= 0, and infinite where it is not defined otherwise.

    >>> vf.scipy.special.rel_entr(2.0, 1.0).round(4)
    Array(1.3863, dtype=float32, weak_type=True)
    """
    return _where_positive(_relative_entropy, p, q, vnp.zeros_like(q))


@composite
def kl_div(p: Any, q: Any) -> Array:
    """Return p log(p / q) - p + q, the summand of the Kullback-Leibler divergence.

    >>> vf.scipy.special.kl_div(2.0, 1.0).round(4)
    Array(0.3863, dtype=float32, weak_type=True)
    """
    return _where_positive(_divergence, p, q, q)


def _where_positive(function: Callable[[Array, Array], Array], x: Array, y: Array, at_zero: Array) -> Array:
    """Apply a function where x, y > 0; `at_zero` at x = 0; else infinity, or NaN."""
    both = (x > 0) & (y > 0)
    value = function(vnp.where(both, x, 1.0), vnp.where(both, y, 1.0))
    out = vnp.where(both, value, vnp.where((x == 0) & (y >= 0), at_zero, np.inf))
    return vnp.where(vnp.isnan(x) | vnp.isnan(y), np.nan, out)


def _log_ratio(x: Array, y: Array) -> Array:
    """Return log(x / y) of positive numbers, to full precision where x is close to y."""
    beyond = (x - y) / y
    close = vnp.abs(beyond) < 0.5
    ratio = x / y
    normal = (ratio > dtypes.finfo(x.dtype).tiny) & (ratio < np.inf)
    far = vnp.where(normal, vnp.log(vnp.where(normal, ratio, 1.0)), vnp.log(x) - vnp.log(y))
    return vnp.where(close, vnp.log1p(vnp.where(close, beyond, 0.0)), far)


@custom_jvp
def _relative_entropy(x: Array, y: Array) -> Array:
    return x * _log_ratio(x, y)


_relative_entropy.defjvps(lambda g, out, x, y: g * (_log_ratio(x, y) + 1.0), lambda g, out, x, y: -g * (x / y))


@custom_jvp
def _divergence(x: Array, y: Array) -> Array:
    """Return y ((1 + r) log(1 + r) - r) with r = x/y - 1."""
    # With s = r / (2 + r) the logarithm is 2 atanh(s), 1 + r is (1 + s) / (1 - s), and for small s large terms cancel.
    total = x + y
    s = vnp.where(total < np.inf, (x - y) / total, (0.5 * x - 0.5 * y) / (0.5 * x + 0.5 * y))
    close = vnp.abs(s) < 0.6
    near = vnp.where(close, s, 0.0)
    square = near * near
    series = rising(square, tuple(1.0 / (2 * k + 3) for k in range(36 if x.dtype == np.float64 else 16)))
    first = (x - y) * near
    inner = first + first * (near * (1.0 + near) * series)
    return vnp.where(close, inner, x * (_log_ratio(x, y) - 1.0) + y)


_divergence.defjvps(lambda g, out, x, y: g * _log_ratio(x, y), lambda g, out, x, y: g * ((y - x) / y))


@composite
def boxcox(x: Any, lmbda: Any) -> Array:
    """Return (x^lmbda - 1) / lmbda, and log(x) for lmbda = 0 (Box and Cox 1964).

    >>> vf.scipy.special.boxcox(vf.numpy.array([1.0, 4.0]), 0.5)
    Array([0., 2.], dtype=float32)
    """
    return special.boxcox(x, lmbda)


@composite
def boxcox1p(x: Any, lmbda: Any) -> Array:
    """Return the power transform `boxcox` of 1 + x.

    >>> vf.scipy.special.boxcox1p(vf.numpy.array([0.0, 3.0]), 0.5)
    Array([0., 2.], dtype=float32)
    """
    return special.boxcox1p(x, lmbda)


# The error function's family, and integrals of exponentials.

# The error function's family and the normal distribution function.

erf = promoted(lax.erf, "erf", "Return the error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x.")
erfc = promoted(lax.erfc, "erfc", "Return 1 - erf(x), to full relative precision for large x.")
ndtr = promoted(lax.ndtr, "ndtr", "Return the probability that a standard normal number is at most x.")
erfinv = promoted(lax.erf_inv, "erfinv", "Return the inverse of erf; infinite at -1 and 1, NaN beyond.")

_SQRT_HALF = 0.5**0.5


@composite
def erfcinv(y: Any) -> Array:
    """Return the inverse of erfc, precise for small y, where 1 - y is 1.

    Infinite at 0, minus infinity at 2, NaN beyond; for real numbers alone.

    >>> vf.scipy.special.erfcinv(vf.numpy.array([1e-30, 0.5, 1.0])).round(4)
    Array([8.1486, 0.4769, 0.    ], dtype=float32)
    """
    # erfc(x) / 2 is the probability that a standard normal number is below -sqrt(2) x.
    return 0.0 - _SQRT_HALF * lax.ndtri(0.5 * y)


_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def _log_density(x: Array) -> Array:
    return -(0.5 * x) * x - _HALF_LOG_TWO_PI  # x * x may overflow


#: Below these the distribution function nears the smallest normal number of its dtype.
_SERIES_BELOW = {4: -10.0, 8: -35.0}


def log_ndtr(x: Any, series_order: int = 8) -> Array:
    """Return the log of the normal distribution function, exact far into both tails.

    Far on the left it is computed by the first terms, up to `series_order`, of the asymptotic series for erfc (Abramowitz & Stegun
    26.2.12); 8 are exact in float64. Raises `ArgumentError` unless 0 <= series_order <= 30.

    >>> vf.scipy.special.log_ndtr(vf.numpy.array([-30.0, 0.0]))
    Array([-454.32123  ,   -0.6931472], dtype=float32)
    """
    if not 0 <= series_order <= 30:
        raise ArgumentError(f"log_ndtr: series_order must be between 0 and 30, got {series_order}")
    return _log_ndtr(x, series_order=series_order)


@composite
def _log_ndtr(x: Any, *, series_order: int) -> Array:
    return _log_distribution(x, series_order)


@functools.partial(custom_jvp, nondiff_argnums=(1,))
def _log_distribution(x: Array, series_order: int) -> Array:
    border = _SERIES_BELOW[x.dtype.itemsize]
    far = x < border
    # The branch not selected must be finite, or its derivative times zero is NaN.
    near_x, far_x = vnp.where(far, border, x), vnp.where(far, x, border)
    right = near_x > 0
    tail = lax.ndtr(-vnp.abs(near_x))
    near = vnp.where(right, vnp.log1p(-tail), vnp.log(tail))
    return vnp.where(far, _log_density(far_x) - vnp.log(-far_x) + vnp.log(_series(far_x, series_order)), near)


def _series(x: Array, order: int) -> Array:
    """Return 1 - 1/x^2 + 1·3/x^4 - 1·3·5/x^6 …."""
    inverse = 1.0 / (x * x)
    total = vnp.ones_like(x)
    for k in range(order, 0, -1):
        total = 1.0 - (2 * k - 1) * inverse * total
    return total


@_log_distribution.defjvp
def _(series_order: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Differentiate: density over distribution function, by its series far left."""
    (x,), (tangent,) = primals, tangents
    out = _log_distribution(x, series_order)
    border = _SERIES_BELOW[x.dtype.itemsize]
    far = x < border
    far_x = vnp.where(far, x, border)
    near_x = vnp.where(far, border, x)
    near = normal_pdf(near_x, 0.0, 1.0) / lax.ndtr(near_x)
    return out, tangent * vnp.where(far, -far_x / _series(far_x, series_order), near)


@composite
def ndtri(p: Any) -> Array:
    """Return the quantile of the standard normal distribution, inverse of `ndtr`.

    >>> vf.scipy.special.ndtri(vf.numpy.array([0.025, 0.5, 0.975])).round(4)
    Array([-1.96,  0.  ,  1.96], dtype=float32)
    """
    return lax.ndtri(p)


# Exponential integrals, and the scaled complementary error function.


@composite
def expn(n: Any, x: Any) -> Array:
    """Return En(x), the integral of exp(-x t) / t^n over t from 1 to infinity.

    n is an integer >= 0 and x >= 0; the result is NaN for others. It is differentiable by x, and computed by a power series up to 1, by a
    continued fraction beyond (Abramowitz & Stegun 5.1.12 and 5.1.22).

    >>> vf.scipy.special.expn(2, vf.numpy.array([0.0, 1.0])).round(4)
    Array([1.    , 0.1485], dtype=float32)
    """
    return lax.expn(*vnp.broadcast_arrays(n, x))


@composite
def exp1(x: Any) -> Array:
    """Return E1(x), the integral of exp(-t) / t from x to infinity; NaN for x < 0.

    >>> vf.scipy.special.exp1(1.0).round(4)
    Array(0.2194, dtype=float32, weak_type=True)
    """
    return lax.expn(vnp.ones_like(x), x)


@composite
def expi(x: Any) -> Array:
    """Return Ei(x), the principal value of the integral of exp(t) / t from -inf to x.

    It is -inf at 0 and -E1(-x) left of it; on the right it is computed by a power series up to 40 and an asymptotic one beyond (Abramowitz
    & Stegun 5.1.10 and 5.1.51).

    >>> vf.scipy.special.expi(vf.numpy.array([-1.0, 1.0])).round(4)
    Array([-0.2194,  1.8951], dtype=float32)
    """
    return lax.expi(x)


@composite
def _real_erfcx(x: Any) -> Array:
    return lax.erfcx(x)


@fused
def erfcx(x: Any) -> Array:
    """Return exp(x^2) erfc(x), which neither overflows nor underflows for large x.

    Of complex numbers it is `wofz(1j * x)`. That of real ones is computed by Chebyshev interpolation (Schonfelder 1978),
    far on the right by the asymptotic series (Abramowitz & Stegun 7.1.23).

    >>> vf.scipy.special.erfcx(vf.numpy.array([0.0, 100.0])).round(6)
    Array([1.      , 0.005642], dtype=float32)
    """
    (value,) = promote_args("erfcx", (x,), dtypes.INEXACT)
    return wofz(lax.mul(value, 1j)) if value.dtype in dtypes.COMPLEX else _real_erfcx(value)


# Integrals: Dawson, Fresnel, sine, cosine, Spence, Owen's T, Faddeeva's w.

dawsn = promoted(lax.dawsn, "dawsn", "Return Dawson's integral, exp(-x^2) times the integral of exp(t^2) from 0 to x.")
spence = promoted(lax.spence, "spence", "Return minus the integral of log(t) / (t - 1) from 1 to x, which is the dilogarithm of 1 - x.")
_owens_t = promoted(lax.owens_t, "owens_t")


def owens_t(h: Any, a: Any) -> Array:
    """Return Owen's T function.

    T(h, a) is the integral of exp(-h^2 (1 + t^2) / 2) / (1 + t^2) / 2 pi from 0 to a.
    """
    return _owens_t(h, a)


def fresnel(x: Any) -> tuple[Array, Array]:
    """Return the integrals S and C of sin(pi t^2 / 2) and cos(pi t^2 / 2) from 0 to x.

    They are computed by Chebyshev interpolation, beyond 5/2 of their amplitudes (Abramowitz & Stegun 7.3.5).

    >>> [integral.round(4).item() for integral in vf.scipy.special.fresnel(vf.numpy.float32(1.0))]
    [0.438..., 0.7799...]
    """
    (value,) = promote_args("fresnel", (x,), dtypes.FLOATS)
    return lax.fresnel_sin(value), lax.fresnel_cos(value)


def sici(x: Any) -> tuple[Array, Array]:
    """Return the sine and the cosine integral, Si(x) and Ci(|x|).

    Si is the integral of sin(t) / t from 0 to x, and Ci is minus that of cos(t) / t from |x| to infinity; Ci(0) is -inf, and it is NaN at
    -inf, as in SciPy. They are computed by Chebyshev interpolation, beyond 10 of their amplitudes (Abramowitz & Stegun 5.2.6).

    >>> [integral.round(4).item() for integral in vf.scipy.special.sici(vf.numpy.float32(1.0))]
    [0.9460..., 0.337...]
    """
    (value,) = promote_args("sici", (x,), dtypes.FLOATS)
    return lax.sin_integral(value), lax.cos_integral(value)


def wofz(z: Any) -> Array:
    """Return the Faddeeva function exp(-z^2) erfc(-i z), complex.

    Each component is accurate by itself. It is computed by Laplace's continued fraction far from zero, elsewhere by algorithm 916 (Zaghloul
    and Ali 2011), with the border of S. G. Johnson's Faddeeva package.

    >>> vf.scipy.special.wofz(vf.numpy.array([0.0, 1.0j])).round(4)
    Array([1.    +0.j, 0.4276+0.j], dtype=complex64)
    """
    (value,) = promote_args("wofz", (z,), dtypes.INEXACT)
    value = lax.convert_element_type(value, dtypes.complex_dtype(value.dtype), value.weak_type)
    x, y = lax.real(value), lax.imag(value)
    return lax.complex(lax.faddeeva_real(x, y), lax.faddeeva_imag(x, y))

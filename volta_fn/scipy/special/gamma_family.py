"""The gamma function's family, and its incomplete functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from math import comb as exact_comb
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, from_host
from volta_fn.core.aval import as_integer
from volta_fn.core.trace import concrete_or_raise
from volta_fn.dtypes import as_dtype
from volta_fn.errors import ArgumentError, DTypeError
from volta_fn.jit.fused import fused
from volta_fn.primitives.declare import promote_args, promoted
from volta_fn.primitives.elementwise import special
from volta_fn.source import signature

# Promotion of the arguments of special functions that are composed of others.

Function = Callable[..., Array]


def composite(function: Function) -> Function:
    """Let a function of float arrays of one dtype take arrays and scalars of any.

    It is `fused`. Integers become floats. float16 and bfloat16 compute in float32, so that rounding errors do not accumulate.
    """
    names = [p.name for p in signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]

    @fused
    @functools.wraps(function)
    def promoting(*args: Any, **options: Any) -> Array:
        while len(args) < len(names) and names[len(args)] in options:
            args += (options.pop(names[len(args)]),)
        if not args:
            return function(**options)  # which says what is missing
        name = function.__name__.lstrip("_")
        values = promote_args(name, args, dtypes.FLOATS)
        dtype = values[0].dtype
        if dtype in dtypes.COMPLEX:
            raise DTypeError(f"{name} is not defined for {dtype.name}; it takes real numbers")
        wide = dtypes.accumulator(dtype)
        if dtype == wide:
            return function(*values, **options)
        return lax.convert_element_type(function(*[lax.convert_element_type(v, wide) for v in values], **options), dtype)

    return promoting


# Bernoulli's numbers.


def bernoulli(n: int, *, dtype: Any = None) -> Array:
    """Return Bernoulli's numbers B_0, B_1 = -1/2, …, B_n.

    Without `dtype` they have the default floating dtype. They are computed as fractions and rounded once; those beyond the
    dtype's range are infinite. Raises `ArgumentError` for n < 0.

    >>> vf.scipy.special.bernoulli(4)
    Array([ 1.        , -0.5       ,  0.16666667,  0.        , -0.03333334],      dtype=float32)
    """
    count = as_integer(n, "bernoulli: n")
    if count < 0:
        raise ArgumentError(f"bernoulli: n must not be negative, got {count}")
    numbers: list[Fraction] = []
    for k in range(count + 1):
        zero = k > 1 and k % 2 == 1
        total = sum((exact_comb(k + 1, j) * b for j, b in enumerate(numbers) if b), Fraction(0))
        numbers.append(Fraction(0) if zero else Fraction(1) if k == 0 else -total / (k + 1))
    return from_host(np.array([_rounded(b) for b in numbers]).astype(as_dtype(float if dtype is None else dtype)))


def _rounded(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return np.inf if number > 0 else -np.inf


# Logarithms of quotients of gamma functions by Stirling's series.
#
# Differences of `lgamma` would cancel: lgamma(x) is (x - 1/2) log x - x + log(2π)/2 plus a small remainder. The formulas below cancel the
# large terms analytically.

#: From here on the remainder's series is exact to the last bit of float64.
LEAST = 10.0

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
#: Bernoulli's numbers B_2k / (2k (2k - 1)) (Abramowitz & Stegun 6.1.41).
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def rising(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Evaluate the polynomial with these coefficients, the constant first."""
    total = vnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


def _remainder(x: Array) -> Array:
    """Return lgamma(x) minus its three large terms, for x >= LEAST."""
    inverse = 1.0 / x
    return inverse * rising(inverse * inverse, _SERIES)


def excess(ratio: Array, beyond: Array) -> Array:
    """Return u - log(1 + u) for u = `beyond` and 1 + u = `ratio`, to full precision.

    Where the two terms almost cancel it is the sum of a series.
    """
    close = vnp.abs(beyond) < 0.1
    near, far = vnp.where(close, beyond, 0.0), vnp.where(close, 1.0, ratio)
    return vnp.where(close, excess_near(near), beyond - vnp.log(far))


def excess_near(u: Array) -> Array:
    """Return u - log(1 + u) for |u| < 0.1 as the sum of a series."""
    terms = 16 if u.dtype == np.float64 else 9  # the first one left out is less than 1e-8 of the sum
    return u * u * rising(-u, tuple(1.0 / (k + 2) for k in range(terms)))


def log_rise(a: Array, b: Array) -> Array:
    """Return log |gamma(a + b) / gamma(a)|."""
    total = a + b
    large = (a >= LEAST) & (total >= LEAST)
    base = vnp.where(large, a, LEAST)
    top = vnp.where(large, total, LEAST)
    step = vnp.where(large, b, 0.0)
    by_series = (base - 0.5) * vnp.log1p(step / base) + step * (vnp.log(top) - 1.0) + (_remainder(top) - _remainder(base))
    return vnp.where(large, by_series, lax.lgamma(vnp.where(large, 1.0, total)) - lax.lgamma(vnp.where(large, 1.0, a)))


def log_beta(a: Array, b: Array) -> Array:
    """Return log |beta(a, b)|."""
    large, small = vnp.maximum(a, b), vnp.minimum(a, b)
    return lax.lgamma(small) - log_rise(large, small)


def log_gamma_weight(a: Array, x: Array) -> Array:
    """Return log(x^a e^-x / gamma(a)) for a >= 0, x > 0, without large terms at x ≈ a."""
    large = a >= LEAST
    base, argument = vnp.where(large, a, LEAST), vnp.where(large, x, LEAST)
    by_series = 0.5 * vnp.log(base) - _HALF_LOG_TWO_PI - _remainder(base) - base * excess(argument / base, (argument - base) / base)
    other, point = vnp.where(large, 1.0, a), vnp.where(large, 1.0, x)
    return vnp.where(large, by_series, other * vnp.log(point) - point - lax.lgamma(other))


def log_beta_weight(a: Array, b: Array, x: Array) -> Array:
    """Return log(x^a (1 - x)^b / beta(a, b)), without large terms near the mean."""
    large = (a >= LEAST) & (b >= LEAST)
    p, q, left = vnp.where(large, a, LEAST), vnp.where(large, b, LEAST), vnp.where(large, x, 0.5)
    total, right = p + q, 1.0 - left
    distance = p * excess(left * total / p, left * (q / p) - right) + q * excess(right * total / q, right * (p / q) - left)
    spread = 0.5 * (vnp.log(p) + vnp.log(q / total)) - _HALF_LOG_TWO_PI
    by_series = spread - (_remainder(p) + _remainder(q) - _remainder(total)) - distance
    other, another, point = vnp.where(large, 1.0, a), vnp.where(large, 1.0, b), vnp.where(large, 0.5, x)
    plain = other * vnp.log(point) + another * vnp.log1p(-point) - log_beta(other, another)
    return vnp.where(large, by_series, plain)


# The gamma function of complex numbers.
#
# Its logarithm is Stirling's series where |Re z| or |Im z| is large, reached by the recurrence from the right half plane, and by the
# reflection formula from the left one (Hare, "Computing the principal branch of log-Gamma", 1997).

#: Bernoulli's numbers B_2k over 2k (2k - 1), k = 1, 2, …
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
#: How far the recurrence goes: at this distance the series has the precision of float64.
_STEPS = 12


def log_gamma_of_complex(z: Array) -> Array:
    """Compute the branch of log Γ(z) that is continuous off the negative axis.

    NaN at the poles.
    """
    left = z.real < 0.5
    right = _of_right_half(vnp.where(left, 1 - z, z))
    # log of sin(πz) jumps by 2πi where the logarithm of Γ does not.
    jumps = vnp.floor(z.real / 2 + 0.25) * vnp.where(vnp.signbit(z.imag), -1.0, 1.0) * (2 * math.pi)
    reflected = math.log(math.pi) - _log_sine(z) - right + lax.complex(vnp.zeros_like(jumps), jumps)
    is_pole = (z.imag == 0) & (z.real <= 0) & (z.real == vnp.floor(z.real))
    return vnp.where(is_pole, complex(np.nan, np.nan), vnp.where(left, reflected, right))


def _of_right_half(z: Array) -> Array:
    shifted = z + _STEPS
    inverse = 1 / shifted
    square = inverse * inverse
    series = vnp.zeros_like(z)
    for coefficient in reversed(_STIRLING):
        series = series * square + coefficient
    stirling = (shifted - 0.5) * vnp.log(shifted) - shifted + 0.5 * math.log(2 * math.pi) + series * inverse
    for step in range(_STEPS):
        stirling = stirling - vnp.log(z + step)
    return stirling


def _log_sine(z: Array) -> Array:
    """Compute log sin(πz), far from the real axis by one exponential."""
    below = vnp.signbit(z.imag)
    up = vnp.where(below, vnp.conj(z), z)
    r = up.real - 2 * vnp.round(up.real / 2)  # the sine has this period
    # Zeros of sine and cosine are exact, so that their signs decide the branch.
    sine = vnp.sin(math.pi * vnp.where(abs(r) > 0.5, vnp.copysign(1.0, r) - r, r))
    cosine = vnp.sin(math.pi * (0.5 - abs(r)))
    far = up.imag > 8
    height = math.pi * vnp.where(far, 1.0, up.imag)
    near = vnp.log(lax.complex(sine * vnp.cosh(height), cosine * vnp.sinh(height)))
    # There cosh and sinh are exp(π Im z) / 2.
    logarithm = vnp.where(far, lax.complex(math.pi * up.imag - math.log(2.0), vnp.arctan2(cosine, sine)), near)
    return vnp.where(below, vnp.conj(logarithm), logarithm)


def gamma_of_complex(z: Array) -> Array:
    """Compute Γ(z); NaN at the poles."""
    return vnp.exp(log_gamma_of_complex(z))


# The gamma function's family: factorials, binomial coefficients, beta, zeta.

gammaln = promoted(lax.lgamma, "gammaln", "Return log |gamma(x)|; infinite at 0, -1, -2, ….")
gamma = promoted(
    lax.gamma_function, "gamma", "Return the gamma function, which is n! at n + 1; of complex numbers NaN at the poles.", gamma_of_complex
)
digamma = promoted(lax.digamma, "digamma", "Return the derivative of gammaln; NaN at 0, -1, -2, ….")


@composite
def gammasgn(x: Any) -> Array:
    """Return the sign of gamma(x); NaN at the negative integers.

    >>> vf.scipy.special.gammasgn(vf.numpy.array([0.5, -0.5, -1.5]))
    Array([ 1., -1.,  1.], dtype=float32)
    """
    below = vnp.floor(x)
    negative = (x < 0) & (below % 2 != 0) | (x == 0) & vnp.signbit(x)
    out = vnp.where(negative, x.dtype.type(-1), x.dtype.type(1))
    return vnp.where((x < 0) & (x == below) | vnp.isnan(x), np.nan, out)


@fused
def loggamma(x: Any) -> Array:
    """Compute log Γ(x), NaN for x < 0; `gammaln` takes the magnitude of Γ.

    Of complex numbers it is the branch that is continuous off the negative axis, NaN at the poles.

    >>> vf.scipy.special.loggamma(5.0).round(4)
    Array(3.1781, dtype=float32)
    """
    (value,) = promote_args("loggamma", (x,), dtypes.INEXACT)
    if value.dtype in dtypes.COMPLEX:
        return log_gamma_of_complex(value)
    return vnp.where(value >= 0, lax.lgamma(value), vnp.array(np.nan, value.dtype))


def factorial(n: Any, exact: bool = False) -> Array:
    """Return n! = gamma(n + 1) as a float; 0 for negative n.

    Raises `ArgumentError` for `exact`, since there are no big integers.

    >>> vf.scipy.special.factorial(vf.numpy.array([3, 5])).round(2)
    Array([  6., 120.], dtype=float32)
    """
    if exact:
        raise ArgumentError("factorial: exact=True needs integers of any size; use math.factorial")
    return _factorial(n)


@composite
def _factorial(n: Any) -> Array:
    return special.factorial(n)


@composite
def comb(N: Any, k: Any, *, repetition: bool = False) -> Array:
    """Return the number of ways to choose k of N things, as a float.

    It is 0 where there is no way. With `repetition`, a thing may be chosen again.

    >>> vf.scipy.special.comb(5, vf.numpy.arange(4)).round(3)
    Array([ 1.,  5., 10., 10.], dtype=float32)
    """
    if repetition:
        return vnp.where((k == 0) & (N >= 0), 1.0, comb(N + k - 1.0, k))
    return special.comb(N, k)


@composite
def poch(z: Any, m: Any) -> Array:
    """Return gamma(z + m) / gamma(z), the rising factorial (Pochhammer's symbol).

    >>> vf.scipy.special.poch(3.0, 2.0).round(3)
    Array(12., dtype=float32, weak_type=True)
    """
    return special.poch(z, m)


@composite
def betaln(a: Any, b: Any) -> Array:
    """Return log |beta(a, b)|.

    >>> vf.scipy.special.betaln(2.0, 3.0).round(4)
    Array(-2.4849, dtype=float32, weak_type=True)
    """
    return special.betaln(a, b)


@composite
def beta(a: Any, b: Any) -> Array:
    """Return the beta function gamma(a) gamma(b) / gamma(a + b).

    >>> vf.scipy.special.beta(2.0, 3.0).round(4)
    Array(0.0833, dtype=float32, weak_type=True)
    """
    return special.beta(a, b)


def multigammaln(a: Any, d: int) -> Array:
    """Return log of the multivariate gamma function of dimension d < 2 a + 1.

    >>> vf.scipy.special.multigammaln(3.0, 2).round(4)
    Array(1.5502, dtype=float32, weak_type=True)
    """
    count = int(concrete_or_raise(d, "argument d of multigammaln"))
    return _multigammaln(a, dimension=count)


@composite
def _multigammaln(a: Any, *, dimension: int) -> Array:
    total = vnp.full_like(a, 0.25 * dimension * (dimension - 1) * math.log(math.pi))
    for i in range(dimension):
        total = total + lax.lgamma(a - i / 2)
    return total


def zeta(x: Any, q: Any = None) -> Array:
    """Return Hurwitz's zeta, Σ_k (q + k)^-x for x > 1, or Riemann's without `q`.

    Below 1, Hurwitz's is NaN, and Riemann's its analytic continuation.

    >>> vf.scipy.special.zeta(vf.numpy.array([2.0, 4.0, -1.0])).round(4)
    Array([ 1.6449,  1.0823, -0.0833], dtype=float32)
    """
    return _riemann_zeta(x) if q is None else lax.zeta(*promote_args("zeta", (x, q), dtypes.FLOATS))


@composite
def _riemann_zeta(x: Any) -> Array:
    """Return the analytic continuation of Σ_k k^-x.

    It is an alternating series on [-1/2, 1) (P. Borwein, "An efficient algorithm for the Riemann zeta function", 2000), and follows from
    zeta(1 - x) below.
    """
    negative, middle = x < -0.5, (x >= -0.5) & (x < 1)
    direct = lax.zeta(*promote_args("zeta", (vnp.where(negative, 1 - x, vnp.where(middle, 2.0, x)), 1.0), dtypes.FLOATS))
    s, below = vnp.where(middle, x, 0.5), vnp.where(negative, x, -1.0)
    alternating = sum(c * float(k) ** -s for k, c in enumerate(_alternating_weights(24), 1))
    even = 2.0 * vnp.round(below / 2)  # from there the sine is 0 where zeta is
    sine = vnp.where(vnp.fmod(even, 4.0) == 0, 1.0, -1.0) * vnp.sin(math.pi / 2 * (below - even))
    reflected = 2.0 * sine * vnp.exp(gammaln(1 - below) - (1 - below) * math.log(2 * math.pi)) * direct
    return vnp.where(negative, reflected, vnp.where(middle, alternating / -vnp.expm1((1 - s) * math.log(2.0)), direct))


@functools.cache
def _alternating_weights(n: int) -> list[float]:
    """Return w of which Σ w_k k^-s is (1 - 2^(1-s)) zeta(s), up to (3 + √8)^-n."""
    factorial = math.factorial
    terms = [Fraction(factorial(n + i - 1) * 4**i, factorial(n - i) * factorial(2 * i)) for i in range(n + 1)]
    return [float((-1) ** k * (1 - sum(terms[: k + 1]) / sum(terms))) for k in range(n)]


def polygamma(n: Any, x: Any) -> Array:
    """Return the n-th derivative of digamma for integers n >= 0, NaN for others.

    >>> vf.scipy.special.polygamma(1, 2.0).round(4)
    Array(0.6449, dtype=float32, weak_type=True)
    """
    return lax.polygamma(*promote_args("polygamma", (n, x), dtypes.FLOATS))


# The incomplete gamma functions (the gamma distribution function), derivatives.


@composite
def gammainc(a: Any, x: Any) -> Array:
    """Return the regularised lower incomplete gamma function.

    It is the probability that a gamma random number of shape `a` is at most x. NaN for a < 0 or x < 0.

    >>> vf.scipy.special.gammainc(1.0, vf.numpy.array([0.0, 1.0, 2.0])).round(4)
    Array([0.    , 0.6321, 0.8647], dtype=float32)
    """
    return special.igamma(*vnp.broadcast_arrays(a, x))


@composite
def gammaincc(a: Any, x: Any) -> Array:
    """Return the upper incomplete gamma function 1 - gammainc(a, x), precise if small.

    >>> vf.scipy.special.gammaincc(1.0, vf.numpy.array([0.0, 1.0, 2.0])).round(4)
    Array([1.    , 0.3679, 0.1353], dtype=float32)
    """
    return special.igammac(*vnp.broadcast_arrays(a, x))


#: Their names in `jax.lax`.
igamma, igammac = gammainc, gammaincc


@composite
def random_gamma_grad(a: Any, sample: Any) -> Array:
    """Return dx/da of a gamma number x at a fixed quantile (Figurnov et al. 2018).

    >>> vf.lax.random_gamma_grad(2.0, vf.numpy.array([1.0, 2.0])).round(3)
    Array([0.751, 1.086], dtype=float32)
    """
    return special.random_gamma_grad(*vnp.broadcast_arrays(a, sample))


@composite
def igamma_grad_a(a: Any, x: Any) -> Array:
    """Return the derivative of `lax.igamma` by its first argument.

    >>> vf.lax.igamma_grad_a(2.0, vf.numpy.array([1.0, 2.0])).round(3)
    Array([-0.276, -0.294], dtype=float32)
    """
    return special.igamma_grad_a(*vnp.broadcast_arrays(a, x))


@composite
def betainc(a: Any, b: Any, x: Any) -> Array:
    """Return the regularised incomplete beta function of x with shape `a` and `b`.

    It is the probability that a beta random number is at most x. All arguments broadcast, and it is differentiable by each. NaN for
    negative a or b, if both are 0 or infinite, and unless 0 <= x <= 1.

    >>> vf.scipy.special.betainc(2.0, 3.0, vf.numpy.array([0.0, 0.5, 1.0])).round(4)
    Array([0.    , 0.6875, 1.    ], dtype=float32)
    """
    return special.regularized_incomplete_beta(*vnp.broadcast_arrays(a, b, x))

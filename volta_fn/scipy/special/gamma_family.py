"""The gamma function's family: factorials, binomial coefficients, beta, zeta."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.core.trace import concrete_or_raise
from volta_fn.errors import ArgumentError
from volta_fn.jit.fused import fused
from volta_fn.primitives.declare import promote_args, promoted
from volta_fn.primitives.elementwise import gamma_quotients
from volta_fn.scipy.special.arguments import composite
from volta_fn.scipy.special.complex_gamma import gamma_of_complex, log_gamma_of_complex

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
    return gamma_quotients.factorial(n)


@composite
def comb(N: Any, k: Any, *, repetition: bool = False) -> Array:
    """Return the number of ways to choose k of N things, as a float.

    It is 0 where there is no way. With `repetition`, a thing may be chosen again.

    >>> vf.scipy.special.comb(5, vf.numpy.arange(4)).round(3)
    Array([ 1.,  5., 10., 10.], dtype=float32)
    """
    if repetition:
        return vnp.where((k == 0) & (N >= 0), 1.0, comb(N + k - 1.0, k))
    return gamma_quotients.comb(N, k)


@composite
def poch(z: Any, m: Any) -> Array:
    """Return gamma(z + m) / gamma(z), the rising factorial (Pochhammer's symbol).

    >>> vf.scipy.special.poch(3.0, 2.0).round(3)
    Array(12., dtype=float32)
    """
    return gamma_quotients.poch(z, m)


@composite
def betaln(a: Any, b: Any) -> Array:
    """Return log |beta(a, b)|.

    >>> vf.scipy.special.betaln(2.0, 3.0).round(4)
    Array(-2.4849, dtype=float32)
    """
    return gamma_quotients.betaln(a, b)


@composite
def beta(a: Any, b: Any) -> Array:
    """Return the beta function gamma(a) gamma(b) / gamma(a + b).

    >>> vf.scipy.special.beta(2.0, 3.0).round(4)
    Array(0.0833, dtype=float32)
    """
    return gamma_quotients.beta(a, b)


def multigammaln(a: Any, d: int) -> Array:
    """Return log of the multivariate gamma function of dimension d < 2 a + 1.

    >>> vf.scipy.special.multigammaln(3.0, 2).round(4)
    Array(1.5502, dtype=float32)
    """
    count = int(concrete_or_raise(d, "argument d of multigammaln"))
    return _multigammaln(a, dimension=count)


@composite
def _multigammaln(a: Any, *, dimension: int) -> Array:
    total = vnp.full_like(a, 0.25 * dimension * (dimension - 1) * math.log(math.pi))
    for i in range(dimension):
        total = total + lax.lgamma(a - i / 2)
    return total


def zeta(x: Any, q: Any = 1.0) -> Array:
    """Return Hurwitz's zeta, Σ_k (q + k)^-x for x > 1 (Riemann's: q = 1).

    >>> vf.scipy.special.zeta(vf.numpy.array([2.0, 4.0])).round(4)
    Array([1.6449, 1.0823], dtype=float32)
    """
    return lax.zeta(*promote_args("zeta", (x, q), dtypes.FLOATS))


def polygamma(n: Any, x: Any) -> Array:
    """Return the n-th derivative of digamma for integers n >= 0, NaN for others.

    >>> vf.scipy.special.polygamma(1, 2.0).round(4)
    Array(0.6449, dtype=float32)
    """
    return lax.polygamma(*promote_args("polygamma", (n, x), dtypes.FLOATS))

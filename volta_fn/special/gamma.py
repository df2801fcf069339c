"""The gamma function's family: factorials, binomial coefficients, the beta function, zeta."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.core.trace import concrete_or_raise
from volta_fn.errors import ArgumentError
from volta_fn.primitives.declare import promote_args, promoted

gammaln = promoted(lax.lgamma, "gammaln", "log |gamma(x)|; infinite at 0, -1, -2, …")
digamma = promoted(lax.digamma, "digamma", "The derivative of gammaln; NaN at 0, -1, -2, …")


def _floats(function: str, *values: Any) -> list[Array]:
    return promote_args(function, values, dtypes.FLOATS)


def gammasgn(x: Any) -> Array:
    """The sign of gamma(x); NaN at the negative integers."""
    (value,) = _floats("gammasgn", x)
    below = vnp.floor(value)
    negative = (value < 0) & (below % 2 != 0) | (value == 0) & vnp.signbit(value)
    out = vnp.where(negative, value.dtype.type(-1), value.dtype.type(1))
    return vnp.where((value < 0) & (value == below) | vnp.isnan(value), np.nan, out)


def gamma(x: Any) -> Array:
    """The gamma function, of which gamma(n + 1) = n! for whole n.

    >>> import volta_fn as vf
    >>> vf.special.gamma(vf.numpy.array([0.5, 5.0])).round(4)
    Array([ 1.7725, 24.    ], dtype=float32)
    """
    (value,) = _floats("gamma", x)
    return gammasgn(value) * vnp.exp(lax.lgamma(value))


def loggamma(x: Any) -> Array:
    """log(gamma(x)), which is NaN where gamma is not positive: for x <= 0. `gammaln` takes the absolute value."""
    (value,) = _floats("loggamma", x)
    return vnp.where(value > 0, lax.lgamma(value), np.nan)


def factorial(n: Any, exact: bool = False) -> Array:
    """n! = gamma(n + 1) as a float; 0 for negative n. Raises `ArgumentError` for `exact`: there are no big integers here."""
    if exact:
        raise ArgumentError("factorial: exact=True needs integers of any size; use math.factorial")
    (value,) = _floats("factorial", n)
    return vnp.where(value < 0, 0.0, vnp.exp(lax.lgamma(value + 1.0)))


def comb(N: Any, k: Any, *, repetition: bool = False) -> Array:
    """The number of ways to choose k of N things, as a float; 0 where there is none. With `repetition`, a thing may be chosen again."""
    n, chosen = _floats("comb", N, k)
    if repetition:
        return vnp.where((chosen == 0) & (n >= 0), 1.0, comb(n + chosen - 1.0, chosen))
    possible = (chosen <= n) & (n >= 0) & (chosen >= 0)
    n, chosen = vnp.where(possible, n, 0.0), vnp.where(possible, chosen, 0.0)
    ways = vnp.exp(lax.lgamma(n + 1.0) - lax.lgamma(chosen + 1.0) - lax.lgamma(n + 1.0 - chosen))
    return vnp.where(possible, ways, 0.0)


def poch(z: Any, m: Any) -> Array:
    """Pochhammer's symbol gamma(z + m) / gamma(z), the rising factorial z (z + 1) … (z + m - 1)."""
    base, count = _floats("poch", z, m)
    ratio = gammasgn(base + count) * gammasgn(base) * vnp.exp(lax.lgamma(base + count) - lax.lgamma(base))
    return vnp.where(count == 0, 1.0, ratio)


def betaln(a: Any, b: Any) -> Array:
    """log |beta(a, b)|."""
    x, y = _floats("betaln", a, b)
    return lax.lgamma(x) + lax.lgamma(y) - lax.lgamma(x + y)


def beta(a: Any, b: Any) -> Array:
    """The beta function gamma(a) gamma(b) / gamma(a + b)."""
    x, y = _floats("beta", a, b)
    return gammasgn(x) * gammasgn(y) * gammasgn(x + y) * vnp.exp(betaln(x, y))


def multigammaln(a: Any, d: int) -> Array:
    """The logarithm of the multivariate gamma function of dimension d, for a > (d - 1) / 2."""
    (value,) = _floats("multigammaln", a)
    count = int(concrete_or_raise(d, "argument d of multigammaln"))
    total = vnp.full_like(value, 0.25 * count * (count - 1) * math.log(math.pi))
    for i in range(count):
        total = total + lax.lgamma(value - i / 2)
    return total


def zeta(x: Any, q: Any = 1.0) -> Array:
    """Hurwitz's zeta function, the sum of (q + k)^-x over k = 0, 1, …, for x > 1; Riemann's for q = 1. Differentiable by q.

    >>> import volta_fn as vf
    >>> vf.special.zeta(vf.numpy.array([2.0, 4.0])).round(4)
    Array([1.6449, 1.0823], dtype=float32)
    """
    return lax.zeta(*_floats("zeta", x, q))


def polygamma(n: Any, x: Any) -> Array:
    """The n-th derivative of digamma, for whole n >= 0 (NaN for others). Differentiable by x."""
    return lax.polygamma(*_floats("polygamma", n, x))

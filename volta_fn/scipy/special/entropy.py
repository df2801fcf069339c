"""Functions of x log y, with 0 · log 0 = 0; logits; power transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.core.primitive import Zero
from volta_fn.jit.fused import fused
from volta_fn.primitives.declare import promote_args, promoted
from volta_fn.primitives.elementwise import power_transforms
from volta_fn.scipy.special.arguments import composite
from volta_fn.scipy.special.stirling import rising
from volta_fn.transforms.custom.custom_jvp import custom_jvp

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
    close = vnp.abs(x) < 0.5
    small, large = vnp.where(close, x, 0.0), vnp.where(close, 1.0, x)
    near = rising(small, tuple((k + 1) / math.factorial(k + 2) for k in range(14)))
    return vnp.where(close, near, (vnp.exp(large) - vnp.expm1(large) / large) / large)


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
    Array(1.3863, dtype=float32)
    """
    return _where_positive(_relative_entropy, p, q, vnp.zeros_like(q))


@composite
def kl_div(p: Any, q: Any) -> Array:
    """Return p log(p / q) - p + q, the summand of the Kullback-Leibler divergence.

    >>> vf.scipy.special.kl_div(2.0, 1.0).round(4)
    Array(0.3863, dtype=float32)
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
    """Compute it as y ((1 + r) log(1 + r) - r) with r = x/y - 1.

    With s = r / (2 + r) the logarithm is 2 atanh(s), 1 + r is (1 + s) / (1 - s), and for small s large terms cancel.
    """
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
    return power_transforms.boxcox(x, lmbda)


@composite
def boxcox1p(x: Any, lmbda: Any) -> Array:
    """Return the power transform `boxcox` of 1 + x.

    >>> vf.scipy.special.boxcox1p(vf.numpy.array([0.0, 3.0]), 0.5)
    Array([0., 2.], dtype=float32)
    """
    return power_transforms.boxcox1p(x, lmbda)

"""Hypergeometric functions of real arguments, differentiable in their parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.core.primitive import Zero
from volta_fn.scipy.special.arguments import composite
from volta_fn.transforms.custom.custom_jvp import custom_jvp
from volta_fn.transforms.forward import jvp

Function = Callable[..., Array]


def _summed(factor: Callable[[Array], Array], like: Array) -> Array:
    """Return the sum of terms, each factor(k) times the one before, until they vanish."""
    eps = dtypes.finfo(like.dtype).eps

    def go_on(state: Any) -> Array:
        k, term, total = state
        return (k < 2000) & vnp.any((vnp.abs(term) > eps * vnp.abs(total)) | (k < 3))

    def step(state: Any) -> Any:
        k, term, total = state
        following = term * factor(k)
        return k + 1.0, following, total + following

    one = vnp.ones_like(like)
    return lax.while_loop(go_on, step, (vnp.zeros((), like.dtype), one, one))[2]


def _kummer(a: Array, b: Array, x: Array) -> Array:
    """Return M(a, b, x) by its Taylor series, for x < 0 that of e^x M(b - a, b, -x)."""
    mirrored = x < 0
    top, size = vnp.where(mirrored, b - a, a), vnp.abs(x)
    total = _summed(lambda k: (top + k) / (b + k) * (size / (k + 1.0)), x)
    return vnp.where(mirrored, vnp.exp(vnp.where(mirrored, x, 0.0)), 1.0) * total


def _gauss(a: Array, b: Array, c: Array, x: Array) -> Array:
    """Return F(a, b, c, x) by its Taylor series, for x < 0 by Pfaff's transformation."""
    mirrored = x < 0
    base = vnp.where(mirrored, 1.0 - x, 1.0)
    second, z = vnp.where(mirrored, c - b, b), vnp.where(mirrored, -x / base, x)
    total = _summed(lambda k: (a + k) / (c + k) * ((second + k) / (k + 1.0)) * z, x)
    return vnp.exp(-a * vnp.log(base)) * total


def _differentiable(function: Function, series: Function, slope: Function) -> Function:
    """Return a function with `slope` in its last argument.

    In the others, its derivatives are those of the series, if asked for.
    """
    wrapped = custom_jvp(function)

    @functools.partial(wrapped.defjvp, symbolic_zeros=True)
    def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
        total = vnp.zeros_like(primals[-1])
        for argument, tangent in enumerate(tangents):
            if type(tangent) is Zero:
                continue
            direction = tuple([vnp.full_like(v, i == argument) for i, v in enumerate(primals)])
            last = argument == len(primals) - 1
            total = total + tangent * (slope(*primals) if last else jvp(series, tuple(primals), direction)[1])
        return wrapped(*primals), total

    return wrapped


_hyp1f1: Function = _differentiable(lambda a, b, x: lax.hyp1f1(a, b, x), _kummer, lambda a, b, x: a / b * _hyp1f1(a + 1.0, b + 1.0, x))
_hyp2f1: Function = _differentiable(
    lambda a, b, c, x: lax.hyp2f1(a, b, c, x), _gauss, lambda a, b, c, x: a * b / c * _hyp2f1(a + 1.0, b + 1.0, c + 1.0, x)
)


@composite
def hyp1f1(a: Any, b: Any, x: Any) -> Array:
    """Return Kummer's confluent hypergeometric function M(a, b, x).

    It is the sum of (a)_k / (b)_k x^k / k!, computed by a Taylor series of e^x M(b - a, b, -x) for x < 0, and by an asymptotic series for
    large |x| (J. W. Pearson, "Computation of hypergeometric functions", 2009). Digits cancel for large negative a with x > 0, and for
    b - a far below 0 with x < 0. All arguments broadcast; derivatives by a and b are those of the Taylor series.

    >>> vf.scipy.special.hyp1f1(1.0, 1.0, vf.numpy.array([0.0, 1.0])).round(4)
    Array([1.    , 2.7183], dtype=float32)
    """
    return _hyp1f1(*vnp.broadcast_arrays(a, b, x))


@composite
def hyp2f1(a: Any, b: Any, c: Any, x: Any) -> Array:
    """Return Gauss's hypergeometric function F(a, b, c, x) for real x <= 1.

    It is the sum of (a)_k (b)_k / (c)_k x^k / k!, computed as that up to 3/4, by Pfaff's transformation for x < 0, and near 1 by the
    connection with 1 - x (Abramowitz & Stegun 15.3.4, 15.3.6 and 15.3.10 to 15.3.12; J. W. Pearson, "Computation of hypergeometric
    functions", 2009). Digits cancel for large parameters of different signs; where c - a - b is within 0.05 of an integer, but
    none, the sum needs 1 - |x| > 0.002. All arguments broadcast; derivatives by a, b and c are those of the sum. NaN for x > 1 unless
    a or b is an integer <= 0.

    >>> vf.scipy.special.hyp2f1(1.0, 1.0, 2.0, vf.numpy.array([0.0, 0.5])).round(4)
    Array([1.    , 1.3863], dtype=float32)
    """
    return _hyp2f1(*vnp.broadcast_arrays(a, b, c, x))

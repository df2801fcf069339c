"""Associated Legendre functions and spherical harmonics by recurrence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.core.aval import as_integer
from volta_fn.core.trace import concrete_or_raise
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.primitives.declare import promote_args


def lpmn(m: int, n: int, z: Any) -> tuple[Array, Array]:
    """Return associated Legendre functions and their derivatives.

    The functions have orders 0 to m, degrees 0 to n, and Condon and Shortley's phase.

    Args:
        m, n: the largest order and degree, m <= n.
        z: a vector of K numbers between -1 and 1.

    Both results are (m + 1, n + 1, K), zero where the order exceeds the degree. At 1 and -1 the derivative of order 1 is infinite. Computed
    by recurrence in the degree (Abramowitz & Stegun 8.5.3). Raises `ArgumentError` for m > n or m < 0, `ShapeError` for another z.

    >>> vf.scipy.special.lpmn(1, 1, vf.numpy.array([0.6]))[0][:, :, 0].round(4)
    Array([[ 1. ,  0.6],
           [ 0. , -0.8]], dtype=float32)
    """
    orders, degrees, points = _arguments("lpmn", m, n, z)
    tables = [_derivatives_of_legendre(k, degrees, points, False) for k in range(orders + 2)]
    sine = vnp.sqrt((1.0 - points) * (1.0 + points))
    values = [sine**k * tables[k] for k in range(orders + 1)]
    slopes = [-tables[1]]
    for k in range(1, orders + 1):
        outer = -k * points * (1.0 / sine if k == 1 else sine ** (k - 2))
        grown = vnp.where(vnp.arange(degrees + 1)[:, None] >= k, outer * tables[k], 0.0)
        slopes.append(grown - sine**k * tables[k + 1])
    return vnp.stack(values), vnp.stack(slopes)


def lpmn_values(m: int, n: int, z: Any, is_normalized: bool) -> Array:
    """Return associated Legendre functions of orders 0 to m and degrees 0 to n.

    With `is_normalized` they are divided by the norm that spherical harmonics need: multiplied by the root of
    (2 n + 1) (n - m)! / (4 pi (n + m)!). Arguments, errors and the result's shape (m + 1, n + 1, K) are as of `lpmn`.

    >>> vf.scipy.special.lpmn_values(1, 1, vf.numpy.array([0.6]), False)[:, :, 0].round(4)
    Array([[ 1. ,  0.6],
           [ 0. , -0.8]], dtype=float32)
    """
    orders, degrees, points = _arguments("lpmn_values", m, n, z)
    sine = vnp.sqrt((1.0 - points) * (1.0 + points))
    return vnp.stack([sine**k * _derivatives_of_legendre(k, degrees, points, bool(is_normalized)) for k in range(orders + 1)])


def _arguments(function: str, m: Any, n: Any, z: Any) -> tuple[int, int, Array]:
    orders, degrees = as_integer(m, f"{function}: m"), as_integer(n, f"{function}: n")
    if not 0 <= orders <= degrees:
        raise ArgumentError(f"{function}: the order m and the degree n must be 0 <= m <= n, got {orders} and {degrees}")
    (points,) = promote_args(function, (z,), dtypes.FLOATS)
    if points.ndim != 1:
        raise ShapeError(f"{function}: z must be a vector, got shape {points.shape}")
    return orders, degrees, points


def _derivatives_of_legendre(k: int, degrees: int, z: Array, normalized: bool) -> Array:
    """Return (-1)^k times the k-th derivatives of Legendre's polynomials.

    They are of degrees 0, 1, …, `degrees`.
    """
    rows = [vnp.zeros_like(z)] * min(k, degrees + 1)
    if k <= degrees:
        rows.append(vnp.full_like(z, (-1.0) ** k * _leading(k, normalized)))
    for degree in range(k + 1, degrees + 1):
        last, before = _recurrence(degree, k, normalized)
        rows.append(last * (z * rows[-1]) - (before * rows[-2] if degree > k + 1 else 0.0))
    return vnp.stack(rows)


def _leading(k: int, normalized: bool) -> float:
    """Return the k-th derivative of Legendre's polynomial of degree k, (2 k - 1)!!."""
    if normalized:
        return math.sqrt(math.prod((2 * j + 1) / (2 * j) for j in range(1, k + 1)) / (4 * math.pi))
    return float(math.prod(range(1, 2 * k, 2)))


def _recurrence(degree: int, k: int, normalized: bool) -> tuple[float, float]:
    """Return the factors of z P_(n - 1) and -P_(n - 2) in P_n."""
    if not normalized:
        return (2 * degree - 1) / (degree - k), (degree + k - 1) / (degree - k)
    last = (4 * degree**2 - 1) / (degree**2 - k**2)
    return math.sqrt(last), math.sqrt(last * ((degree - 1) ** 2 - k**2) / (4 * (degree - 1) ** 2 - 1))


def sph_harm_y(n: Any, m: Any, theta: Any, phi: Any, diff_n: int | None = None, n_max: int | None = None) -> Array:
    """Return spherical harmonics Y_n^m of polar and azimuthal angles, complex.

    Args:
        n: integer degrees, at least 0.
        m: integer orders, from -n to n; beyond them the function is 0.
        theta, phi: angles in radians. All four broadcast. Beyond [0, pi], the function of theta goes on smoothly; SciPy's has |sin theta|.
        diff_n: None or 0; for derivatives use `jvp` or `grad` instead.
        n_max: the largest degree, which must be given where n is traced.

    They have Condon and Shortley's phase and are orthonormal. Computed by the normalised recurrence in the degree (Abramowitz & Stegun
    8.5.3). Raises `ArgumentError` for another `diff_n`.

    >>> vf.scipy.special.sph_harm_y(1, 0, vf.numpy.array([0.0]), 0.0).real.round(4)
    Array([0.4886], dtype=float32)
    """
    if diff_n not in (None, 0):
        raise ArgumentError(f"sph_harm_y: diff_n must be None or 0, got {diff_n!r}; use vf.jvp or vf.grad for derivatives")
    if n_max is None:
        degrees = np.asarray(concrete_or_raise(n, "argument n of sph_harm_y", "give the largest degree as n_max"))
        n_max = int(degrees.max(initial=0))
    polar, azimuth = promote_args("sph_harm_y", (theta, phi), dtypes.FLOATS)
    degree, order, polar, azimuth = vnp.broadcast_arrays(n, m, polar, azimuth)
    degree, signed = (lax.convert_element_type(v, polar.dtype) for v in (degree, order))
    order = vnp.abs(signed)
    value = _normalized(degree, order, polar, n_max)
    value = vnp.where((signed < 0) & (order % 2 == 1), -value, value)
    angle = signed * azimuth
    return lax.complex(value * vnp.cos(angle), value * vnp.sin(angle))


def _normalized(degree: Array, order: Array, theta: Array, n_max: int) -> Array:
    """Return the normalised Legendre function of each degree and order at cos theta."""
    sine, cosine = vnp.sin(theta), vnp.cos(theta)
    sine = vnp.where(sine < 0, -sine, sine)  # sqrt(1 - cosine^2), with a derivative at 0

    def diagonal(k: Array, value: Array) -> Array:
        k = lax.convert_element_type(k, theta.dtype)
        return vnp.where(k <= order, -value * sine * vnp.sqrt((2.0 * k + 1.0) / (2.0 * k)), value)

    def upward(k: Array, values: tuple[Array, Array]) -> tuple[Array, Array]:
        before, last = values
        k = lax.convert_element_type(k, theta.dtype)
        above = (k > order) & (k <= degree)
        gap = vnp.where(above, k * k - order * order, 1.0)
        under = vnp.where(above, (k - 1.0) * (k - 1.0) - order * order, 0.0)
        next_ = vnp.sqrt((4.0 * k * k - 1.0) / gap) * (cosine * last - _root(under / (4.0 * (k - 1.0) * (k - 1.0) - 1.0)) * before)
        return vnp.where(above, last, before), vnp.where(above, next_, last)

    first = lax.fori_loop(1, n_max + 1, diagonal, vnp.full_like(theta, 0.5 / math.sqrt(math.pi)))
    value = lax.fori_loop(1, n_max + 1, upward, (vnp.zeros_like(theta), first))[1]
    return vnp.where((order > degree) | (degree < 0), 0.0, value)


def _root(x: Array) -> Array:
    """Return the square root, with derivative 0 where it is 0."""
    positive = x > 0
    return vnp.where(positive, vnp.sqrt(vnp.where(positive, x, 1.0)), 0.0)

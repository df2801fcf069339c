"""Bessel and Legendre functions, spherical harmonics, hypergeometric functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import as_integer
from volta_fn.core.primitive import Zero
from volta_fn.core.trace import concrete_or_raise
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.primitives.declare import promote_args, promoted
from volta_fn.scipy.special.gamma_family import composite
from volta_fn.transforms.custom_derivatives import custom_jvp
from volta_fn.transforms.grad import jvp

# Bessel functions of the first kind, modified ones and others.

i0e = promoted(lax.bessel_i0e, "i0e", "Return exp(-|x|) I0(x), the scaled modified Bessel function of order 0.")
i1e = promoted(lax.bessel_i1e, "i1e", "Return exp(-|x|) I1(x), the scaled modified Bessel function of order 1.")


@composite
def i0(x: Any) -> Array:
    """Return I0(x), the modified Bessel function of order 0.

    >>> vf.scipy.special.i0(1.0).round(4)
    Array(1.2661, dtype=float32, weak_type=True)
    """
    return lax.bessel_i0(x)


@composite
def i1(x: Any) -> Array:
    """Return I1(x), the modified Bessel function of order 1.

    >>> vf.scipy.special.i1(1.0).round(4)
    Array(0.5652, dtype=float32, weak_type=True)
    """
    return lax.bessel_i1(x)


def bessel_jn(z: Any, *, v: int, n_iter: int = 50) -> Array:
    """Return the Bessel functions J_0(z), …, J_v(z), stacked in front.

    They are computed by Miller's backward recurrence from order `n_iter` (Abramowitz & Stegun 9.12, example 1), which must exceed |z| by
    about 5 |z|^(1/3) + 10. Small values have an absolute error of some roundings of the largest one. Raises `ArgumentError` unless
    0 <= v < n_iter.

    >>> vf.scipy.special.bessel_jn(vf.numpy.array([0.0, 1.0]), v=1).round(4)
    Array([[1.    , 0.7652],
           [0.    , 0.4401]], dtype=float32)
    """
    order, start = as_integer(v, "bessel_jn: v"), as_integer(n_iter, "bessel_jn: n_iter")
    if not 0 <= order < start:
        raise ArgumentError(f"bessel_jn: v and n_iter must be 0 <= v < n_iter, got {order} and {start}")
    return _bessel_jn(z, order=order, start=start)


@composite
def _bessel_jn(z: Any, *, order: int, start: int) -> Array:
    """Recur in h with J_k = (z/2)^k / k! h_k, which neither over- nor underflows."""
    # The sum J_0 + 2 J_2 + 2 J_4 + … = 1 is evaluated by Horner's rule on the way.
    half = 0.5 * z

    def step(state: tuple[Array, Array, Array], k: Array) -> tuple[tuple[Array, Array, Array], Array]:
        above, value, total = state
        below = value - half * half / (k * (k + 1.0)) * above
        weight = vnp.where(k == 1.0, 1.0, vnp.where(k % 2.0 == 1.0, 2.0, 0.0))
        return (value, below, weight * below + half / k * total), below

    one = vnp.ones_like(z)
    orders = lax.convert_element_type(np.arange(start, 0, -1, dtype=np.float32), z.dtype)
    total, values = lax.scan(step, (one, one, vnp.full_like(z, 2.0 * (start % 2 == 0))), orders)
    powers = [one]
    for k in range(1, order + 1):
        powers.append(powers[-1] * (half / k))
    return vnp.stack(powers) * values[::-1][: order + 1] / total[2]


# Associated Legendre functions and spherical harmonics by recurrence.


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


# Hypergeometric functions of real arguments, differentiable in their parameters.

Function = Callable[..., Array]


def _summed(factor: Callable[[Array], Array], like: Array) -> Array:
    """Return the sum of terms, each factor(k) times the one before, until they vanish."""
    eps = dtypes.finfo(like.dtype).eps

    def continues(state: Any) -> Array:
        k, term, total = state
        return (k < 2000) & vnp.any((vnp.abs(term) > eps * vnp.abs(total)) | (k < 3))

    def step(state: Any) -> Any:
        k, term, total = state
        following = term * factor(k)
        return k + 1.0, following, total + following

    one = vnp.ones_like(like)
    return lax.while_loop(continues, step, (vnp.zeros((), like.dtype), one, one))[2]


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
    """Return a function with `slope` in its last argument."""
    # Derivatives by other arguments are those of the series, computed where a tangent is nonzero.
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

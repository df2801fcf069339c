"""Polynomials as coefficient vectors, and convolutions of vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import as_integer, check_option
from volta_fn.core.trace import concrete_or_raise
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.jit.fused import fused, fused_by_results
from volta_fn.numpy import reductions
from volta_fn.numpy.arguments import BOOL, INDEX, concrete, full_like_scalar, operand, promote, promote_inexact
from volta_fn.numpy.arithmetic import i0
from volta_fn.numpy.creation import array, ones
from volta_fn.numpy.indexing import diag
from volta_fn.numpy.joining import trim_zeros
from volta_fn.numpy.linalg import eigvals, inv, lstsq
from volta_fn.numpy.products import matmul, outer
from volta_fn.numpy.sorting import searchsorted
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.declare import to_dtype
from volta_fn.settings import current as settings

# Polynomials as coefficient vectors, highest power first; fits; interpolation.


def _coefficients(function: str, name: str, p: Any) -> Array:
    value = array(p) if isinstance(p, (list, tuple)) else operand(function, name, p)
    if value.ndim > 1:
        raise ShapeError(f"{function}: {name} must be a vector of coefficients, got shape {value.shape}")
    return lax.reshape(value, (value.size,))


@fused
def polyval(p: Any, x: Any, *, unroll: int = 16) -> Array:
    """Evaluate polynomials, powers along the first dimension, at `x` (Horner's rule).

    >>> jnp.polyval(jnp.array([1, 0, -1]), jnp.array([2, 3]))
    Array([3, 8], dtype=int32)
    """
    coefficients, at = promote("polyval", p, x)
    if not coefficients.ndim:
        raise ShapeError("polyval: p must have at least one dimension")
    shape = lax.broadcast_shapes(coefficients.shape[1:], at.shape)
    total = broadcast_to(lax.convert_element_type(0, at.dtype), shape)
    for i in range(coefficients.shape[0]):
        total = lax.add(lax.mul(total, at), lax.index_in_dim(coefficients, i, keepdims=False))
    return total


def polyadd(a1: Any, a2: Any) -> Array:
    """Add two polynomials.

    >>> jnp.polyadd(jnp.array([1, 2]), jnp.array([5, 0, 1]))
    Array([5, 1, 3], dtype=int32)
    """
    a, b = promote("polyadd", *[_coefficients("polyadd", name, v) for name, v in (("a1", a1), ("a2", a2))])
    size = max(a.size, b.size)
    return lax.add(*[lax.pad(v, full_like_scalar(v, 0), [(size - v.size, 0, 0)]) for v in (a, b)])


def polysub(a1: Any, a2: Any) -> Array:
    """Subtract two polynomials.

    >>> jnp.polysub(jnp.array([2.0, 1.0]), jnp.array([1.0]))
    Array([2., 0.], dtype=float32)
    """
    return polyadd(a1, lax.neg(_coefficients("polysub", "a2", a2)))


def polymul(a1: Any, a2: Any, *, trim_leading_zeros: bool = False) -> Array:
    """Multiply two polynomials.

    >>> jnp.polymul(jnp.array([1.0, 1.0]), jnp.array([1.0, -1.0]))
    Array([ 1.,  0., -1.], dtype=float32)
    """
    a, b = promote_inexact("polymul", *[_coefficients("polymul", name, v) for name, v in (("a1", a1), ("a2", a2))])
    if trim_leading_zeros:
        a, b = (trim_zeros(v, "f") for v in (a, b))
    zero = full_like_scalar(a, 0)
    a, b = (v if v.size else lax.reshape(zero, (1,)) for v in (a, b))
    return convolve(a, b)


def polydiv(u: Any, v: Any, *, trim_leading_zeros: bool = False) -> tuple[Array, Array]:
    """Divide two polynomials: return the pair (quotient, remainder).

    The remainder has as many coefficients as `u`, the first of them zeros, unless `trim_leading_zeros`.

    >>> jnp.polydiv(jnp.array([1.0, 0.0, -1.0]), jnp.array([1.0, 1.0]))
    (Array([ 1., -1.], dtype=float32), Array([0., 0., 0.], dtype=float32))
    """
    a, b = promote_inexact("polydiv", _coefficients("polydiv", "u", u), _coefficients("polydiv", "v", v))
    steps = max(a.size - b.size + 1, 1)
    if a.size < b.size:
        return lax.reshape(full_like_scalar(a, 0), (1,)), a
    lead = lax.index_in_dim(b, 0, keepdims=False)
    quotient = []
    for k in range(steps):
        factor = lax.div(lax.index_in_dim(a, k, keepdims=False), lead)
        quotient.append(lax.reshape(factor, (1,)))
        shifted = lax.pad(lax.mul(factor, b), full_like_scalar(b, 0), [(k, a.size - k - b.size, 0)])
        a = lax.sub(a, shifted)
    divided = lax.slice_in_dim(a, 0, steps)  # without rounding errors they are 0, or NaN where a quotient is infinite
    rest = lax.concatenate([lax.sub(divided, divided), lax.slice_in_dim(a, steps, None)], 0)
    return lax.concatenate(quotient, 0), trim_zeros(rest, "f") if trim_leading_zeros else rest


def _order(function: str, m: Any) -> int:
    order = as_integer(concrete_or_raise(m, f"argument m of {function}"), f"{function}: m")
    if order < 0:
        raise ArgumentError(f"{function}: m must not be negative, got {m}")
    return order


def polyder(p: Any, m: int = 1) -> Array:
    """Return the m-th derivative of a polynomial.

    >>> jnp.polyder(jnp.array([1.0, 2.0, 3.0]))
    Array([2., 2.], dtype=float32)
    """
    order = _order("polyder", m)
    (value,) = promote_inexact("polyder", _coefficients("polyder", "p", p))
    for _ in range(order):
        powers = np.arange(value.size - 1, 0, -1)
        value = lax.mul(lax.slice_in_dim(value, 0, max(value.size - 1, 0)), powers.astype(value.dtype))
    return value


def polyint(p: Any, m: int = 1, k: Any = None) -> Array:
    """Return the m-th integral; `k` (0) has its constants, the first integral's first.

    >>> jnp.polyint(jnp.array([2.0, 1.0]))
    Array([1., 1., 0.], dtype=float32)
    """
    order = _order("polyint", m)
    value, constants = promote_inexact("polyint", _coefficients("polyint", "p", p), 0 if k is None else array(k))
    constants = broadcast_to(constants, (order,)) if constants.size == 1 else constants
    if constants.shape != (order,):
        raise ShapeError(f"polyint: k must be one constant or {order}, got shape {constants.shape}")
    for i in range(order):
        powers = np.arange(value.size, 0, -1).astype(value.dtype)
        value = lax.concatenate([lax.div(value, powers), lax.slice_in_dim(constants, i, i + 1)], 0)
    return value


def poly(seq_of_zeros: Any) -> Array:
    """Return the coefficients of the monic polynomial with the given roots.

    Of a square matrix it is the characteristic polynomial.

    >>> jnp.poly(jnp.array([1.0, -1.0]))
    Array([ 1.,  0., -1.], dtype=float32)
    """
    (roots,) = promote_inexact("poly", array(seq_of_zeros) if isinstance(seq_of_zeros, (list, tuple)) else seq_of_zeros)
    if roots.ndim == 2 and roots.shape[0] == roots.shape[1] > 0:
        roots = eigvals(roots)
    roots = _coefficients("poly", "seq_of_zeros", roots)
    result = lax.reshape(full_like_scalar(roots, 1), (1,))
    for i in range(roots.size):
        root = lax.slice_in_dim(roots, i, i + 1)
        longer = lax.pad(result, full_like_scalar(result, 0), [(0, 1, 0)])
        result = lax.sub(longer, lax.pad(lax.mul(result, root), full_like_scalar(result, 0), [(1, 0, 0)]))
    return result


@fused_by_results
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Array:
    """Return the powers of the vector `x` as columns, descending unless `increasing`.

    >>> jnp.vander(jnp.array([1, 2, 3]), 3)
    Array([[1, 1, 1],
           [4, 2, 1],
           [9, 3, 1]], dtype=int32)
    """
    value = operand("vander", "x", x)
    if value.ndim != 1:
        raise ShapeError(f"vander: x must be a vector, got shape {value.shape}")
    count = value.size if N is None else as_integer(N, "vander: N")
    if count < 0:
        raise ArgumentError(f"vander: N must not be negative, got {count}")
    powers = range(count) if increasing else range(count - 1, -1, -1)
    columns = [lax.reshape(lax.integer_pow(value, n), (value.size, 1)) for n in powers]
    return lax.concatenate(columns, 1) if columns else lax.reshape(lax.slice_in_dim(value, 0, 0), (value.size, 0))


def polyfit(x: Any, y: Any, deg: int, rcond: float | None = None, full: bool = False, w: Any = None, cov: Any = False) -> Any:
    """Fit a polynomial of degree `deg` to the points (x, y) by least squares.

    Args:
        x: a vector of M points.
        y: the values there, (M,), or (M, K) for K polynomials.
        deg: the degree.
        rcond: singular values below this fraction of the largest count as zero (default: M times the dtype's precision).
        full: also return residuals, rank, singular values and rcond.
        w: weights of the (unsquared) errors, (M,).
        cov: also return the covariance matrix of the coefficients, scaled by the residuals' variance ("unscaled": not).

    The result has the coefficients, highest power first.

    >>> jnp.polyfit(jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 3.0, 5.0]), 1).round(3)
    Array([2., 1.], dtype=float32)
    """
    points, values = promote_inexact("polyfit", x, y)
    if deg < 0 or points.ndim != 1 or not points.size:
        raise ArgumentError(f"polyfit: deg must not be negative and x a vector of points, got deg={deg} and x of shape {points.shape}")
    if values.ndim not in (1, 2) or values.shape[0] != points.shape[0]:
        raise ShapeError(f"polyfit: y must have shape (M,) or (M, K) for x of shape {points.shape}, got {values.shape}")
    powers, right = vander(points, deg + 1), values
    if w is not None:
        weights, _ = promote_inexact("polyfit", w, points)
        if weights.shape != points.shape:
            raise ShapeError(f"polyfit: w must have the shape of x, {points.shape}, got {weights.shape}")
        powers = lax.mul(powers, lax.expand_dims(weights, (1,)))
        right = lax.mul(right, lax.expand_dims(weights, (1,)) if right.ndim == 2 else weights)
    limit = points.size * float(dtypes.finfo(points.dtype).eps) if rcond is None else rcond
    # Unit columns condition the problem better.
    scale = lax.sqrt(reductions.sum(lax.integer_pow(lax.abs(powers), 2), 0))
    solution, residuals, rank, singular = lstsq(lax.div(powers, scale), right, limit)
    coefficients = lax.div(solution, lax.expand_dims(scale, (1,)) if solution.ndim == 2 else scale)
    if full:
        return coefficients, residuals, rank, singular, array(limit)
    return (coefficients, _covariance(powers, scale, residuals, values, cov)) if cov else coefficients


def _covariance(powers: Array, scale: Array, residuals: Array, values: Array, cov: Any) -> Array:
    count, order = powers.shape
    scaled = lax.div(powers, scale)
    base = lax.div(inv(matmul(lax.transpose(scaled, (1, 0)), scaled)), outer(scale, scale))
    base = lax.expand_dims(base, (2,)) if values.ndim == 2 else base
    if cov == "unscaled":
        return base
    if count <= order:
        raise ArgumentError(f"polyfit: {count} points are too few to scale the covariance of {order} coefficients; use cov='unscaled'")
    variance = lax.div(residuals, full_like_scalar(residuals, count - order))
    return lax.mul(base, variance if values.ndim == 2 else variance[0])


def roots(p: Any, *, strip_zeros: bool = True) -> Array:
    """Return the complex roots of a polynomial: eigenvalues of its companion matrix.

    Zeros at either end of `p` are removed first, so its values must be known while tracing; `strip_zeros=False` keeps them.

    >>> jnp.sort(jnp.roots(jnp.array([1.0, 0.0, -4.0])).real).round(3)
    Array([-2.,  2.], dtype=float32)
    """
    (value,) = promote_inexact("roots", array(p))
    value = lax.reshape(value, (value.size,))
    trailing = 0
    if strip_zeros:
        nonzero = np.flatnonzero(concrete("roots", "p", value, "Give strip_zeros=False inside traced functions."))
        stop = int(nonzero[-1]) + 1 if nonzero.size else 0
        trailing = value.size - stop if nonzero.size else 0
        value = lax.slice_in_dim(value, int(nonzero[0]) if nonzero.size else 0, stop)
    zeros = lax.full((trailing,), 0, dtypes.complex_dtype(value.dtype))
    return lax.concatenate([_companion_eigenvalues(value), zeros], 0)


def _companion_eigenvalues(value: Array) -> Array:
    degree = max(value.size - 1, 0)
    if not degree:
        return lax.full((0,), 0, dtypes.complex_dtype(value.dtype))
    row = lax.neg(lax.div(lax.slice_in_dim(value, 1, None), lax.slice_in_dim(value, 0, 1)))
    below = diag(lax.full((degree - 1,), 1, value.dtype), -1) if degree > 1 else lax.full((1, 1), 0, value.dtype)
    return eigvals(lax.concatenate([lax.expand_dims(row, (0,)), lax.slice_in_dim(below, 1, None)], 0))


@fused
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Array:
    """Interpolate linearly, at `x`, through the points (xp, fp) with increasing `xp`.

    Outside, the result is `left` and `right` (by default the first and last value; "extrapolate" continues the lines at the ends); with
    `period`, the points repeat.

    >>> jnp.interp(jnp.array([0.5, 3.0]), jnp.array([0.0, 1.0, 2.0]), jnp.array([0.0, 10.0, 20.0]))
    Array([ 5., 20.], dtype=float32)
    """
    at, points = promote_inexact("interp", x, xp)
    (values,) = promote_inexact("interp", fp)
    if points.ndim != 1 or points.shape != values.shape or not points.size:
        raise ShapeError(f"interp: xp and fp must be vectors of the same nonzero length, got {points.shape} and {values.shape}")
    if period is not None:
        at, points, values = _periodic(at, points, values, period)
        left = right = None
    first, last = (lax.index_in_dim(values, i, keepdims=False) for i in (0, -1))
    result = _between(at, points, values) if points.size > 1 else broadcast_to(first, at.shape)
    if not _is_extrapolate(left):
        below = first if left is None else lax.convert_element_type(left, values.dtype)
        result = lax.select(lax.lt(at, lax.index_in_dim(points, 0, keepdims=False)), below, result)
    if not _is_extrapolate(right):
        above = last if right is None else lax.convert_element_type(right, values.dtype)
        result = lax.select(lax.gt(at, lax.index_in_dim(points, -1, keepdims=False)), above, result)
    return result


def _is_extrapolate(option: Any) -> bool:
    """Return True for the word, and False for a number or None; refuse other words."""
    if isinstance(option, str) and option != "extrapolate":
        raise ArgumentError(f"interp: left and right are numbers, None or 'extrapolate', got {option!r}")
    return isinstance(option, str)


def _between(at: Array, points: Array, values: Array) -> Array:
    """Interpolate between neighbouring sample points."""
    index = dtypes.index_dtype(points.size)
    upper = lax.clamp(index.type(1), searchsorted(points, at, side="right"), index.type(points.size - 1))
    lower = upper - 1
    width = lax.sub(points[upper], points[lower])
    empty = lax.eq(width, full_like_scalar(width, 0))
    fraction = lax.div(lax.sub(at, points[lower]), lax.select(empty, full_like_scalar(width, 1), width))
    fraction = lax.convert_element_type(lax.select(empty, full_like_scalar(fraction, 0), fraction), values.dtype)
    return lax.add(values[lower], lax.mul(fraction, lax.sub(values[upper], values[lower])))


def _periodic(at: Array, points: Array, values: Array, period: Any) -> tuple[Array, Array, Array]:
    """Sort all points into one period, and add a point of each adjacent period."""
    length = lax.abs(lax.convert_element_type(period, points.dtype))
    points, values = lax.sort((_wrap(points, length), values), num_keys=1)
    head, tail = lax.slice_in_dim(points, 0, 1), lax.slice_in_dim(points, -1, None)
    points = lax.concatenate([lax.sub(tail, length), points, lax.add(head, length)], 0)
    values = lax.concatenate([lax.slice_in_dim(values, -1, None), values, lax.slice_in_dim(values, 0, 1)], 0)
    return _wrap(at, length), points, values


def _wrap(x: Array, length: Array) -> Array:
    return lax.sub(x, lax.mul(lax.floor(lax.div(x, length)), length))


# Convolution and correlation of vectors, and window functions.


@fused
def convolve(a: Any, v: Any, mode: str = "full", *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """Convolve two vectors.

    The result is the "full" convolution, its middle as long as the longer vector ("same"), or where they overlap completely ("valid").

    >>> jnp.convolve(jnp.array([1, 2, 3]), jnp.array([0, 1]))
    Array([0, 1, 2, 3], dtype=int32)
    """
    return _convolved("convolve", a, v, mode, preferred_element_type)


@fused
def correlate(a: Any, v: Any, mode: str = "valid", *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """Return the cross-correlation of two vectors: sums of a[n + k] * conj(v[n]).

    >>> jnp.correlate(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 1.0]))
    Array([2., 3.], dtype=float32)
    """
    x, y = promote("correlate", a, v)
    _check_vectors("correlate", x, y)
    return _convolved("correlate", x, lax.rev(lax.conj(y), (0,)), mode, preferred_element_type, late_middle=x.size < y.size)


def _check_vectors(function: str, x: Array, y: Array) -> None:
    if x.ndim != 1 or y.ndim != 1 or not x.size or not y.size:
        raise ShapeError(f"{function}: a and v must be vectors of at least one element, got shapes {x.shape} and {y.shape}")


def _operands(function: str, a: Any, v: Any, preferred_element_type: Any) -> list[Array]:
    """Promote two vectors; JAX convolves integers as floats, unless told otherwise."""
    if settings.permissive and preferred_element_type is None:
        return promote_inexact(function, a, v)
    return promote(function, a, v)


def _convolved(function: str, a: Any, v: Any, mode: str, preferred_element_type: Any, late_middle: bool = False) -> Array:
    """Return the convolution.

    An even length has two middles, of which "same" takes the first, or the second with `late_middle`.
    """
    x, y = _operands(function, a, v, preferred_element_type)
    _check_vectors(function, x, y)
    if x.dtype == BOOL:
        x, y = to_dtype(x, INDEX), to_dtype(y, INDEX)
    if x.size < y.size:
        x, y = y, x
    long, short = x.size, y.size
    first = (short - 1) // 2 if late_middle else short // 2
    sides = {"full": (short - 1, short - 1), "same": (first, short - 1 - first), "valid": (0, 0)}
    check_option(mode, f"{function}: mode", sides)
    kernel = lax.rev(y, (0,))
    out = lax.conv_general_dilated(
        lax.reshape(x, (1, 1, long)), lax.reshape(kernel, (1, 1, short)), (1,), [sides[mode]], preferred_element_type=preferred_element_type
    )
    return lax.reshape(out, (out.size,))


def window_size(function: str, M: Any) -> int:
    """Return a window's number of points, which must be known while tracing.

    It may be an array of one number. Raises `ArgumentTypeError` for what is no number.
    """
    count = concrete_or_raise(M, f"the number of points of {function}", "It is the length of the result: make it a static argument.")
    try:
        return int(count)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{function}: M must be a number of points, got {M!r:.80} of type {type(M).__name__}") from None


def hanning(M: int) -> Array:
    """Return the Hann window of M points.

    >>> jnp.hanning(3).round(6)
    Array([0., 1., 0.], dtype=float32)
    """
    return array(np.hanning(window_size("hanning", M)).astype(dtypes.as_dtype(float)))


def hamming(M: int) -> Array:
    """Return the Hamming window of M points.

    >>> jnp.hamming(3).round(2)
    Array([0.08, 1.  , 0.08], dtype=float32)
    """
    return array(np.hamming(window_size("hamming", M)).astype(dtypes.as_dtype(float)))


def blackman(M: int) -> Array:
    """Return the Blackman window of M points."""
    return array(np.blackman(window_size("blackman", M)).astype(dtypes.as_dtype(float)))


def bartlett(M: int) -> Array:
    """Return the triangular window of M points.

    >>> jnp.bartlett(3)
    Array([0., 1., 0.], dtype=float32)
    """
    return array(np.bartlett(window_size("bartlett", M)).astype(dtypes.as_dtype(float)))


def kaiser(M: int, beta: Any) -> Array:
    """Return the Kaiser window of M points with shape parameter `beta`.

    >>> jnp.kaiser(3, 0.0)
    Array([1., 1., 1.], dtype=float32)
    """
    M = window_size("kaiser", M)
    if M <= 1:
        return ones(max(M, 0))
    points = np.linspace(-1.0, 1.0, M)
    dtype = dtypes.as_dtype(float)
    shape, inside = to_dtype(beta, dtype), array(np.sqrt(1.0 - points * points).astype(dtype))
    return lax.div(i0(lax.mul(shape, inside)), i0(shape))

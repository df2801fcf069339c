"""Polynomials as vectors of coefficients, highest power first: polyval, polyadd, polymul, polydiv, polyder, polyint, poly, …"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn.core.array import Array
from volta_fn.core.aval import whole_number
from volta_fn.core.trace import concrete_or_raise
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.common import full_like_scalar, operand, promote, promote_inexact
from volta_fn.numpy.creation import array
from volta_fn.numpy.joining import trim_zeros
from volta_fn.numpy.signals import convolve
from volta_fn.primitives.movement import broadcast_to


def _coefficients(function: str, name: str, p: Any) -> Array:
    value = array(p) if isinstance(p, (list, tuple)) else operand(function, name, p)
    if value.ndim > 1:
        raise ShapeError(f"{function}: {name} must be a vector of coefficients, got shape {value.shape}")
    return lax.reshape(value, (value.size,))


def polyval(p: Any, x: Any, *, unroll: int = 16) -> Array:
    """The value of the polynomial with coefficients `p` at `x`, by Horner's rule; for stacks of coefficients along the first dimension.

    >>> import volta_fn.numpy as jnp
    >>> jnp.polyval(jnp.array([1, 0, -1]), jnp.array([2, 3]))
    Array([3, 8], dtype=int32)
    """
    coefficients, at = promote("polyval", p, x)
    if not coefficients.ndim:
        raise ShapeError("polyval: p must have at least one dimension")
    shape = lax.broadcast_shapes(coefficients.shape[1:], at.shape)
    total = broadcast_to(full_like_scalar(at, 0), shape)
    for i in range(coefficients.shape[0]):
        total = lax.add(lax.mul(total, at), lax.index_in_dim(coefficients, i, keepdims=False))
    return total


def polyadd(a1: Any, a2: Any) -> Array:
    """The sum of two polynomials.

    >>> import volta_fn.numpy as jnp
    >>> jnp.polyadd(jnp.array([1, 2]), jnp.array([5, 0, 1]))
    Array([5, 1, 3], dtype=int32)
    """
    a, b = promote("polyadd", *[_coefficients("polyadd", name, v) for name, v in (("a1", a1), ("a2", a2))])
    size = max(a.size, b.size)
    return lax.add(*[lax.pad(v, full_like_scalar(v, 0), [(size - v.size, 0, 0)]) for v in (a, b)])


def polysub(a1: Any, a2: Any) -> Array:
    """The difference of two polynomials.

    >>> import volta_fn.numpy as jnp
    >>> jnp.polysub(jnp.array([2.0, 1.0]), jnp.array([1.0]))
    Array([2., 0.], dtype=float32)
    """
    return polyadd(a1, lax.neg(_coefficients("polysub", "a2", a2)))


def polymul(a1: Any, a2: Any, *, trim_leading_zeros: bool = False) -> Array:
    """The product of two polynomials.

    >>> import volta_fn.numpy as jnp
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
    """The pair (quotient, remainder) of two polynomials.

    >>> import volta_fn.numpy as jnp
    >>> jnp.polydiv(jnp.array([1.0, 0.0, -1.0]), jnp.array([1.0, 1.0]))
    (Array([ 1., -1.], dtype=float32), Array([0.], dtype=float32))
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
    rest = lax.slice_in_dim(a, steps, None) if b.size > 1 else lax.reshape(full_like_scalar(a, 0), (1,))
    return lax.concatenate(quotient, 0), trim_zeros(rest, "f") if trim_leading_zeros else rest


def polyder(p: Any, m: int = 1) -> Array:
    """The m-th derivative of a polynomial.

    >>> import volta_fn.numpy as jnp
    >>> jnp.polyder(jnp.array([1.0, 2.0, 3.0]))
    Array([2., 2.], dtype=float32)
    """
    order = whole_number(concrete_or_raise(m, "argument m of polyder"), "polyder: m")
    if order < 0:
        raise ArgumentError(f"polyder: m must not be negative, got {m}")
    (value,) = promote_inexact("polyder", _coefficients("polyder", "p", p))
    for _ in range(order):
        powers = np.arange(value.size - 1, 0, -1)
        value = lax.mul(lax.slice_in_dim(value, 0, max(value.size - 1, 0)), powers.astype(value.dtype))
    return value


def polyint(p: Any, m: int = 1, k: Any = None) -> Array:
    """The m-th integral of a polynomial, with the constants of integration `k` (0), the first integral's first.

    >>> import volta_fn.numpy as jnp
    >>> jnp.polyint(jnp.array([2.0, 1.0]))
    Array([1., 1., 0.], dtype=float32)
    """
    order = whole_number(concrete_or_raise(m, "argument m of polyint"), "polyint: m")
    if order < 0:
        raise ArgumentError(f"polyint: m must not be negative, got {m}")
    constants = array(0.0 if k is None else k)
    value, constants = promote_inexact("polyint", _coefficients("polyint", "p", p), constants)
    constants = broadcast_to(constants, (order,)) if constants.size == 1 else constants
    if constants.shape != (order,):
        raise ShapeError(f"polyint: k must be one constant or {order}, got shape {constants.shape}")
    for i in range(order):
        powers = np.arange(value.size, 0, -1).astype(value.dtype)
        value = lax.concatenate([lax.div(value, powers), lax.slice_in_dim(constants, i, i + 1)], 0)
    return value


def poly(seq_of_zeros: Any) -> Array:
    """The coefficients of the polynomial with leading coefficient 1 and the given roots.

    >>> import volta_fn.numpy as jnp
    >>> jnp.poly(jnp.array([1.0, -1.0]))
    Array([ 1.,  0., -1.], dtype=float32)
    """
    (roots,) = promote_inexact("poly", _coefficients("poly", "seq_of_zeros", seq_of_zeros))
    result = lax.reshape(full_like_scalar(roots, 1), (1,))
    for i in range(roots.size):
        root = lax.slice_in_dim(roots, i, i + 1)
        longer = lax.pad(result, full_like_scalar(result, 0), [(0, 1, 0)])
        result = lax.sub(longer, lax.pad(lax.mul(result, root), full_like_scalar(result, 0), [(1, 0, 0)]))
    return result


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Array:
    """The matrix whose columns are the powers of the vector `x`, the highest first unless `increasing`.

    >>> import volta_fn.numpy as jnp
    >>> jnp.vander(jnp.array([1, 2, 3]), 3)
    Array([[1, 1, 1],
           [4, 2, 1],
           [9, 3, 1]], dtype=int32)
    """
    value = operand("vander", "x", x)
    if value.ndim != 1:
        raise ShapeError(f"vander: x must be a vector, got shape {value.shape}")
    count = value.size if N is None else whole_number(N, "vander: N")
    if count < 0:
        raise ArgumentError(f"vander: N must not be negative, got {count}")
    powers = range(count) if increasing else range(count - 1, -1, -1)
    columns = [lax.reshape(lax.integer_pow(value, n), (value.size, 1)) for n in powers]
    return lax.concatenate(columns, 1) if columns else lax.reshape(lax.slice_in_dim(value, 0, 0), (value.size, 0))

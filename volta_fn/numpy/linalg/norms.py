"""Norms of vectors and matrices, and condition numbers.

The derivative of a norm at zero is zero, one of its subgradients, which keeps NaN out of gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.arguments import axes_of, narrowed, promote_inexact, wide
from volta_fn.numpy.linalg.decompositions import svdvals
from volta_fn.numpy.linalg.operands import last_axis, matrices, safe_root, squared
from volta_fn.numpy.linalg.solving import inv
from volta_fn.numpy.statistics import reductions


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:
    """Return the norm of vectors (`axis` an int) or matrices (`axis` a pair).

    Without `axis` x itself is the vector or matrix, or without `ord` too, all of its elements are one vector. Orders of a vector: None or
    2 (Euclidean), any number p (Σ|x|ᵖ)^(1/p), 0 (number of nonzeros), inf and -inf (greatest and least |x|). Orders of a matrix: None or
    "fro", "nuc" (sum of singular values), 2 and -2 (greatest and least singular value), 1 and -1 (greatest and least column sum), inf and
    -inf (row sums).

    >>> jnp.linalg.norm(jnp.array([[3.0, 4.0], [0.0, 2.0]]), axis=1)
    Array([5., 2.], dtype=float32)
    """
    (value,) = promote_inexact("norm", x)
    if axis is None and ord is None:
        flat = vector_norm(lax.reshape(value, (value.size,)))
        return lax.reshape(flat, (1,) * value.ndim) if keepdims else flat
    if axis is None and value.ndim not in (1, 2):
        raise ShapeError(
            f"norm: with ord={ord!r} and no axis, x must be a vector or a matrix, got shape {value.shape}; name one axis or two with axis="
        )
    axes = axes_of("norm", axis, value.ndim)
    if len(axes) == 1:
        return vector_norm(value, axis=axes[0], keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axes) != 2:
        raise ArgumentError(f"norm: axis must be an int, or a pair of them for matrices, got {axis!r}")
    others = [d for d in range(value.ndim) if d not in axes]
    result = matrix_norm(lax.transpose(value, [*others, *axes]), ord="fro" if ord is None else ord)
    return lax.expand_dims(result, sorted(axes)) if keepdims else result


def _power_norm(x: Array, p: float, axes: tuple[int, ...]) -> Array:
    sizes = lax.abs(x)
    total = reductions.sum(lax.pow(sizes, as_value(np.asarray(p, sizes.dtype))), axes)
    zero = lax.eq(total, 0)
    one, none = (as_value(np.asarray(v, total.dtype)) for v in (1, 0))
    root = lax.pow(lax.select(zero, one, total), as_value(np.asarray(1 / p, total.dtype)))
    return lax.select(zero, none, root) if p > 0 else root


_VECTOR_NORMS: dict[Any, Callable[[Array, tuple[int, ...]], Array]] = {
    2: lambda x, axes: safe_root(reductions.sum(squared(x), axes)),
    1: lambda x, axes: reductions.sum(lax.abs(x), axes),
    0: lambda x, axes: lax.reduce_sum(lax.convert_element_type(lax.ne(x, 0), lax.abs(x).dtype), axes),
    math.inf: lambda x, axes: _greatest(lax.abs(x), axes),
    -math.inf: lambda x, axes: lax.reduce_min(lax.abs(x), axes),
}


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Array:
    """Return the norm of order `ord` (see `norm`) over one axis, several, or all.

    Several axes count as one vector; `ord` is a number.

    >>> jnp.linalg.vector_norm(jnp.array([3.0, -4.0]), ord=1)
    Array(7., dtype=float32)
    """
    (value,) = promote_inexact("vector_norm", x)
    if isinstance(ord, str) or not isinstance(ord, (int, float, np.number)):
        raise ArgumentError(f"norm: the order of a vector norm must be a number, got {ord!r}")
    axes = axes_of("vector_norm", axis, value.ndim)
    function = _VECTOR_NORMS.get(float(ord))
    full = wide(value)
    result = narrowed(function(full, axes) if function else _power_norm(full, float(ord), axes), value)
    return lax.expand_dims(result, sorted(axes)) if keepdims else result


def _greatest(sizes: Array, axes: tuple[int, ...]) -> Array:
    """Return the largest size, or 0 if there are none."""
    found = lax.reduce_max(sizes, axes)
    return found if all(sizes.shape[i] for i in axes) else lax.full_like(found, 0)


def _extreme(reduce: Callable[..., Array], values: Array) -> Array:
    return reduce(values, (values.ndim - 1,))


def _abs_sums(x: Array, axis: int) -> Array:
    return reductions.sum(lax.abs(x), axis)


_MATRIX_NORMS: dict[Any, Callable[[Array], Array]] = {
    "fro": lambda x: vector_norm(x, axis=(-2, -1)),
    "nuc": lambda x: reductions.sum(svdvals(x), -1),
    2: lambda x: _extreme(lax.reduce_max, svdvals(x)),
    -2: lambda x: _extreme(lax.reduce_min, svdvals(x)),
    1: lambda x: _extreme(_greatest, _abs_sums(x, -2)),
    -1: lambda x: _extreme(lax.reduce_min, _abs_sums(x, -2)),
    math.inf: lambda x: _extreme(_greatest, _abs_sums(x, -1)),
    -math.inf: lambda x: _extreme(lax.reduce_min, _abs_sums(x, -1)),
}


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """Return the norm of order `ord` (see `norm`) of matrices in the last dimensions.

    >>> jnp.linalg.matrix_norm(jnp.array([[1.0, -2.0], [3.0, 4.0]]), ord=1)
    Array(6., dtype=float32)
    """
    value = matrices("matrix_norm", "x", x)
    if not isinstance(ord, (str, int, float, np.number)) or ord not in _MATRIX_NORMS:
        raise ArgumentError(f"norm: the order of a matrix norm must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {ord!r}")
    result = narrowed(_MATRIX_NORMS[ord](wide(value)), value)
    return lax.expand_dims(result, (value.ndim - 2, value.ndim - 1)) if keepdims else result


def cond(x: Any, p: Any = None) -> Array:
    """Return the condition number ‖x‖ ‖x⁻¹‖ of matrices in the norm `p`.

    For None or 2, the greatest singular value over the least. Singular matrices give inf.

    >>> jnp.linalg.cond(jnp.array([[4.0, 0.0], [0.0, 2.0]]))
    Array(2., dtype=float32)
    """
    value = matrices("cond", "x", x, square=p not in (None, 2, -2))
    if p in (None, 2, -2):
        values = svdvals(value)
        greatest, least = last_axis(values, 0), last_axis(values, -1)
        return least / greatest if p == -2 else greatest / least
    result = matrix_norm(value, ord=p) * matrix_norm(inv(value), ord=p)
    broken = lax.reduce_or(lax.ne(value, value), (value.ndim - 2, value.ndim - 1))
    return lax.select(lax.ne(result, result) & ~broken, as_value(np.asarray(np.inf, result.dtype)), result)

"""Products, norms and powers of matrices, condition numbers, determinants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import lax
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import as_integer
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy import indexing, products, reductions
from volta_fn.numpy.arguments import axes_of, axis_of, narrowed, operand, promote, promote_default, promote_inexact, wide
from volta_fn.numpy.linalg.decompositions import identity_like, inv, last_axis, matrices, safe_root, squared, svdvals
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.linalg.solvers import lu_solve, permute_rows
from volta_fn.transforms.custom_derivatives import custom_jvp

# Matrix powers, chains of products, and the Array API's forms of some functions.


@fused
def matrix_power(a: Any, n: int) -> Array:
    """Raise square matrices to an integer power by squaring; negative ones invert.

    >>> jnp.linalg.matrix_power(jnp.array([[1, 1], [0, 1]]), 5)
    Array([[1, 5],
           [0, 1]], dtype=int32)
    """
    exponent = as_integer(n, "matrix_power: n")
    base = operand("matrix_power", "a", a)
    if base.ndim < 2 or base.shape[-1] != base.shape[-2]:
        raise ShapeError(f"matrix_power: a must have square matrices in its last two dimensions, got shape {base.shape}")
    if exponent < 0:
        base, exponent = inv(base), -exponent
    if exponent == 0:
        return broadcast_to(identity_like(base), base.shape)
    result = None
    while True:
        if exponent % 2:
            result = base if result is None else products.matmul(result, base)
        exponent //= 2
        if not exponent:
            return result  # type: ignore[return-value]  # the highest bit of the exponent is set
        base = products.matmul(base, base)


def multi_dot(arrays: Sequence[Any], *, precision: Any = None) -> Array:
    """Multiply matrices (vectors at the ends) with the fewest multiplications.

    >>> jnp.linalg.multi_dot([jnp.ones((9, 2)), jnp.ones((2, 9)), jnp.ones(9)]).shape
    (9,)
    """
    chain = promote("multi_dot", *arrays) if arrays else []
    if len(chain) < 2:
        raise ArgumentError(f"multi_dot: needs at least two arrays, got {len(chain)}")
    ends = (chain[0], chain[-1])
    if any(a.ndim != 2 for a in chain[1:-1]) or any(a.ndim not in (1, 2) for a in ends):
        raise ShapeError(f"multi_dot: takes matrices, and vectors at the ends; got shapes {', '.join(str(a.shape) for a in chain)}")
    sizes = [1 if chain[0].ndim == 1 else chain[0].shape[0], *[a.shape[0] for a in chain[1:]]]
    sizes.append(1 if chain[-1].ndim == 1 else chain[-1].shape[1])
    splits = _best_splits(sizes)

    def product(first: int, last: int) -> Array:
        if first == last:
            return chain[first]
        middle = splits[first, last]
        return products.matmul(product(first, middle), product(middle + 1, last), precision=precision)

    return product(0, len(chain) - 1)


def _best_splits(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return where to split subchains for the cheapest product (Cormen et al., 15.2).

    Matrix i has the shape (sizes[i], sizes[i + 1]).
    """
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    splits = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            costs = {k: cost[first, k] + cost[k + 1, last] + sizes[first] * sizes[k + 1] * sizes[last + 1] for k in range(first, last)}
            splits[first, last] = min(costs, key=costs.__getitem__)
            cost[first, last] = costs[splits[first, last]]
    return splits


def outer(x1: Any, x2: Any, /) -> Array:
    """Return all products of an element of one vector with one of another.

    >>> jnp.linalg.outer(jnp.array([1, 2]), jnp.array([3, 4]))
    Array([[3, 4],
           [6, 8]], dtype=int32)
    """
    a, b = promote("outer", x1, x2)
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(f"linalg.outer takes vectors, got shapes {a.shape} and {b.shape}; volta_fn.numpy.outer flattens its arguments")
    return products.outer(a, b)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Return the cross product of vectors of three components along `axis`.

    >>> jnp.linalg.cross(jnp.array([1, 0, 0]), jnp.array([0, 1, 0]))
    Array([0, 0, 1], dtype=int32)
    """
    a, b = promote("cross", x1, x2)
    if any(v.shape[axis_of("cross", axis, v.ndim)] != 3 for v in (a, b)):
        raise ShapeError(f"linalg.cross takes vectors of three components along axis {axis}, got shapes {a.shape} and {b.shape}")
    return products.cross(a, b, axis=axis)


def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """Return the diagonals of the matrices in the last two dimensions.

    >>> jnp.linalg.diagonal(jnp.array([[1, 2], [3, 4]]))
    Array([1, 4], dtype=int32)
    """
    return indexing.diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Sum the diagonals of the matrices in the last two dimensions.

    >>> jnp.linalg.trace(jnp.array([[1, 2], [3, 4]]))
    Array(5, dtype=int32)
    """
    return indexing.trace(x, offset, -2, -1, dtype)


# Norms of vectors and matrices, and condition numbers.
#
# The derivative of a norm at zero is zero, one of its subgradients, which keeps NaN out of gradients.


@fused
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


@fused
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Array:
    """Return the norm of order `ord` (see `norm`) over one axis, several, or all.

    Several axes count as one vector; `ord` is a number.

    >>> jnp.linalg.vector_norm(jnp.array([3.0, -4.0]), ord=1)
    Array(7., dtype=float32)
    """
    (value,) = promote_default("vector_norm", x)
    if isinstance(ord, str) or not isinstance(ord, (int, float, np.number)):
        raise ArgumentError(f"norm: the order of a vector norm must be a number, got {ord!r}")
    axes = axes_of("vector_norm", axis, value.ndim)
    function = _VECTOR_NORMS.get(float(ord))
    full = wide(value)
    result = narrowed(function(full, axes) if function else _power_norm(full, float(ord), axes), value)
    return lax.expand_dims(result, sorted(axes)) if keepdims else result


def _greatest(sizes: Array, axes: tuple[int, ...]) -> Array:
    """Return the largest size, or 0 if there are none."""
    largest = lax.reduce_max(sizes, axes)
    return largest if all(sizes.shape[i] for i in axes) else lax.full_like(largest, 0)


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


@fused
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


@fused
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


# Determinants.


class SlogdetResult(NamedTuple):
    """The results of `slogdet`."""

    sign: Array
    logabsdet: Array


def _parity(pivots: Array, dtype: np.dtype) -> Array:
    """Return 1 or -1 for an even or odd number of row exchanges."""
    positions = lax.broadcasted_iota(pivots.dtype, pivots.shape, pivots.ndim - 1)
    exchanged = lax.convert_element_type(lax.ne(pivots, positions), np.int32)
    return lax.convert_element_type(1 - 2 * (lax.reduce_sum(exchanged, (pivots.ndim - 1,)) % 2), dtype)


@fused
def det(a: Any) -> Array:
    """Return the determinant of square matrices, differentiable also where singular.

    >>> jnp.linalg.det(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    Array(-2., dtype=float32)
    """
    matrix = matrices("det", "a", a, square=True)
    size = matrix.shape[-1]
    if size > 3:
        return _det(matrix)
    if size == 0:
        return lax.full(matrix.shape[:-2], 1, matrix.dtype)
    rows = [[matrix[..., i, j] for j in range(size)] for i in range(size)]
    return _expanded(rows)


def _expanded(rows: list[list[Array]]) -> Array:
    if len(rows) == 1:
        return rows[0][0]
    minors = [_expanded([row[:j] + row[j + 1 :] for row in rows[1:]]) for j in range(len(rows))]
    total = rows[0][0] * minors[0]
    for j in range(1, len(rows)):
        term = rows[0][j] * minors[j]
        total = total - term if j % 2 else total + term
    return total


@custom_jvp
def _det(a: Array) -> Array:
    packed, pivots, _ = lax.linalg.lu(a)
    return lax.reduce_prod(diagonal(packed), (a.ndim - 2,)) * _parity(pivots, a.dtype)


@_det.defjvp
def _det_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Return tr(det(A) A⁻¹ dA), where det(A) A⁻¹ stays finite for singular A."""
    (a,), (tangent,) = primals, tangents
    # By LU; the last pivot, which may vanish, cancels in the back substitution. Matrices of rank below n - 1 have the adjugate zero.
    packed, pivots, permutation = lax.linalg.lu(a)
    size = a.shape[-1]
    products = lax.cumprod(diagonal(packed), a.ndim - 2) * lax.expand_dims(_parity(pivots, a.dtype), (a.ndim - 2,))
    value, before_last = last_axis(products, size - 1), last_axis(products, size - 2)
    low_rank = lax.expand_dims(lax.eq(before_last, 0), (a.ndim - 2, a.ndim - 1))
    upper = lax.select(low_rank, identity_like(a), packed.at[..., -1, -1].set(1 / before_last))
    y = lax.linalg.triangular_solve(packed, permute_rows(tangent, permutation), left_side=True, lower=True, unit_diagonal=True)
    scale = lax.expand_dims(value, (a.ndim - 2, a.ndim - 1))
    y = lax.concatenate([lax.slice_in_dim(y, 0, size - 1, 1, -2) * scale, lax.slice_in_dim(y, size - 1, size, 1, -2)], a.ndim - 2)
    x = lax.linalg.triangular_solve(upper, y, left_side=True)
    moved = lax.select(low_rank, as_value(np.zeros((), a.dtype)), x)
    return value, lax.reduce_sum(diagonal(moved), (a.ndim - 2,))


@fused
def slogdet(a: Any, *, method: str | None = None) -> SlogdetResult:
    """Return the determinant's sign (or phase) and the log of its absolute value.

    The logarithm does not overflow. A singular matrix gives 0 and -inf. The methods "lu" and "qr" of JAX both use LU here.

    >>> jnp.linalg.slogdet(jnp.array([[0.0, 1.0], [1.0, 0.0]]))
    SlogdetResult(sign=Array(-1., dtype=float32), logabsdet=Array(0., dtype=float32))
    """
    if method not in (None, "lu", "qr"):
        raise ArgumentError(f"slogdet: method must be 'lu', 'qr' or None, got {method!r}")
    sign, log = _slogdet(matrices("slogdet", "a", a, square=True))
    return SlogdetResult(sign, log)


def _sign_and_log(packed: Array, pivots: Array) -> tuple[Array, Array]:
    factors = diagonal(packed)
    axis = (factors.ndim - 1,)
    sign = lax.reduce_prod(lax.sign(factors), axis) * _parity(pivots, factors.dtype)
    return sign, lax.reduce_sum(lax.log(lax.abs(factors)), axis)


@custom_jvp
def _slogdet(a: Array) -> tuple[Array, Array]:
    packed, pivots, _ = lax.linalg.lu(a)
    return _sign_and_log(packed, pivots)


@_slogdet.defjvp
def _slogdet_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Split d log det A = tr(A⁻¹ dA) in its real part (logarithm) and phase."""
    (a,), (tangent,) = primals, tangents
    packed, pivots, permutation = lax.linalg.lu(a)
    sign, log = _sign_and_log(packed, pivots)
    trace = lax.reduce_sum(diagonal(lu_solve(packed, permutation, tangent)), (a.ndim - 2,))
    if a.dtype.kind != "c":
        return (sign, log), (lax.full_like(sign, 0), trace)
    rotation = lax.complex(lax.full_like(log, 0), lax.imag(trace))
    return (sign, log), (sign * rotation, lax.real(trace))

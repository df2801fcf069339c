"""Linear systems, least squares, inverses and pseudo-inverses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.arguments import as_index, operand, promote_inexact
from volta_fn.numpy.linalg.decompositions import svdvals
from volta_fn.numpy.linalg.operands import identity_like, matrices, squared
from volta_fn.numpy.products import matmul
from volta_fn.numpy.statistics import reductions
from volta_fn.primitives.data_movement.movement import broadcast_to, canonical_axes
from volta_fn.primitives.linalg.factorization import linear_solve, lu_solve
from volta_fn.primitives.linalg.matrices import adjoint, diagonal, real_part, safe_inverse
from volta_fn.transforms.custom.custom_jvp import custom_jvp


@custom_jvp
def _solve(a: Array, b: Array) -> Array:
    return linear_solve(a, b)


@_solve.defjvp
def _solve_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """Solve A dX = dB - dA X with the factors of A."""
    (a, b), (a_tangent, b_tangent) = primals, tangents
    packed, _, permutation = lax.linalg.lu(a)
    x = lu_solve(packed, permutation, b)
    return x, lu_solve(packed, permutation, b_tangent - matmul(a_tangent, x))


def solve(a: Any, b: Any) -> Array:
    """Solve a X = b for square matrices a (*batch, N, N).

    b is (*batch, N, K), or a single right-hand side (N,). The batch dimensions broadcast. A singular matrix gives infinities or NaN. Raises
    `ShapeError` where a and b do not fit together.

    >>> jnp.linalg.solve(jnp.array([[2.0, 0.0], [0.0, 4.0]]), jnp.array([2.0, 2.0]))
    Array([1. , 0.5], dtype=float32)
    """
    matrix, right = promote_inexact("solve", a, b)
    matrix = matrices("solve", "a", matrix, square=True)
    single = right.ndim == 1
    right = lax.expand_dims(right, (1,)) if single else right
    size = matrix.shape[-1]
    if right.ndim < 2 or right.shape[-2] != size:
        raise ShapeError(
            f"solve: b must have {size} rows, as many as the matrices a of shape {matrix.shape}; got shape {operand('solve', 'b', b).shape}"
        )
    if matrix.ndim == 2 and right.ndim > 2:
        x = _solve_many(matrix, right)
    else:
        stack = lax.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
        x = _solve(broadcast_to(matrix, (*stack, size, size)), broadcast_to(right, (*stack, *right.shape[-2:])))
    return lax.squeeze(x, (x.ndim - 1,)) if single else x


def _solve_many(matrix: Array, right: Array) -> Array:
    """Solve for a stack of right-hand sides of one matrix as columns of one system."""
    *stack, size, columns = right.shape
    order = (len(stack), *range(len(stack)), len(stack) + 1)
    flat = lax.reshape(lax.transpose(right, order), (size, math.prod(stack) * columns))
    x = lax.reshape(_solve(matrix, flat), (size, *stack, columns))
    return lax.transpose(x, np.argsort(order).tolist())


def inv(a: Any) -> Array:
    """Invert square matrices; singular ones give infinities or NaN.

    To solve a system, `solve` is faster and more accurate.

    >>> jnp.linalg.inv(jnp.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    matrix = matrices("inv", "a", a, square=True)
    return _solve(matrix, broadcast_to(identity_like(matrix), matrix.shape))


def tensorsolve(a: Any, b: Any, axes: Sequence[int] | None = None) -> Array:
    """Solve ``tensordot(a, x, x.ndim) == b``; `axes` of a are moved to its end first.

    Raises `ShapeError` unless the dimensions of a are those of b followed by as many elements.

    >>> jnp.linalg.tensorsolve(jnp.eye(6).reshape(2, 3, 6), jnp.ones((2, 3))).shape
    (6,)
    """
    tensor, right = promote_inexact("tensorsolve", a, b)
    if axes is not None:
        last = canonical_axes(tuple(axes), tensor.ndim)
        tensor = lax.transpose(tensor, [*[d for d in range(tensor.ndim) if d not in last], *last])
    unknown = tensor.shape[right.ndim :]
    if tensor.shape[: right.ndim] != right.shape or math.prod(unknown) != right.size:
        raise ShapeError(
            f"tensorsolve: a must have the dimensions of b, {right.shape}, followed by dimensions of {right.size} elements in all; "
            f"got shape {tensor.shape}"
        )
    matrix = lax.reshape(tensor, (right.size, right.size))
    return lax.reshape(solve(matrix, lax.reshape(right, (right.size,))), unknown)


def tensorinv(a: Any, ind: int = 2) -> Array:
    """Invert ``x -> tensordot(a, x, a.ndim - ind)``.

    The result has the last dimensions of a before its first `ind` ones.

    >>> jnp.linalg.tensorinv(jnp.eye(24).reshape(4, 6, 8, 3)).shape
    (8, 3, 4, 6)
    """
    (tensor,) = promote_inexact("tensorinv", a)
    if ind <= 0:
        raise ArgumentError(f"tensorinv: ind must be positive, got {ind}")
    rows, columns = tensor.shape[:ind], tensor.shape[ind:]
    if math.prod(rows) != math.prod(columns):
        raise ShapeError(f"tensorinv: the first {ind} dimensions must have as many elements as the others, got shape {tensor.shape}")
    return lax.reshape(inv(lax.reshape(tensor, (math.prod(rows), math.prod(columns)))), (*columns, *rows))


def matrix_rank(M: Any, rtol: Any = None, *, hermitian: bool = False, tol: Any = None) -> Array:
    """Count the singular values greater than `tol`, or than `rtol` times the greatest.

    By default `rtol` is max(M.shape) · eps. A vector or scalar has rank 1 unless all elements are zero. `hermitian` has no effect.

    >>> jnp.linalg.matrix_rank(jnp.ones((3, 3)))
    Array(1, dtype=int32)
    """
    (value,) = promote_inexact("matrix_rank", M)
    if rtol is not None and tol is not None:
        raise ArgumentError("matrix_rank: give rtol (relative) or tol (absolute), not both")
    if value.ndim < 2:
        return as_index(lax.reduce_or(lax.ne(value, 0), range(value.ndim)))
    values = svdvals(value)
    limit = _per_matrix(tol, values) if tol is not None else _relative(values, value, rtol, 1)
    return lax.reduce_sum(as_index(values > limit), (values.ndim - 1,))


def _per_matrix(limit: Any, values: Array) -> Array:
    bound = lax.convert_element_type(operand("linalg", "tolerance", limit), values.dtype)
    return lax.expand_dims(bound, (bound.ndim,)) if bound.ndim else bound


def _relative(values: Array, a: Array, rtol: Any, factor: float) -> Array:
    """Return `rtol` (or `factor` · max(M, N) · eps) times the greatest singular value."""
    if rtol is None:
        rtol = factor * max(a.shape[-2:]) * float(dtypes.finfo(values.dtype).eps)
    greatest = lax.reduce_max(values, (values.ndim - 1,)) if values.shape[-1] else lax.full(values.shape[:-1], 0, values.dtype)
    return _per_matrix(rtol, values) * lax.expand_dims(greatest, (values.ndim - 1,))


@custom_jvp
def _pseudo_inverse(a: Array, rtol: Array) -> tuple[Array, Array, Array]:
    u, values, vt = lax.linalg.svd(a, full_matrices=False)
    counts = values > _relative(values, a, rtol, 1)
    inverse = safe_inverse(lax.select(counts, values, as_value(np.zeros((), values.dtype))))
    scaled = adjoint(vt) * lax.expand_dims(inverse, (values.ndim - 1,))
    return matmul(scaled, adjoint(u)), values, lax.reduce_sum(lax.convert_element_type(counts, np.int32), (values.ndim - 1,))


@_pseudo_inverse.defjvp
def _pseudo_inverse_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Any, Any]:
    """Return dP for constant rank (Golub and Pereyra, 1973).

    dP = -P dA P + P Pᴴ dAᴴ (1 - A P) + (1 - P A) dAᴴ Pᴴ P.
    """
    (a, rtol), (tangent, _) = primals, tangents
    p, _, rank = outs = _pseudo_inverse(a, rtol)
    back, ph = adjoint(tangent), adjoint(p)
    is_tall = a.shape[-2] > a.shape[-1]

    def product(x: Array, y: Array, z: Array) -> Array:
        """Multiply in the order that keeps intermediate matrices small."""
        return matmul(matmul(x, y), z) if is_tall else matmul(x, matmul(y, z))

    before, after = product(p, ph, back), product(back, ph, p)
    moved = before - product(before, a, p) + after - product(p, a, after) - product(p, tangent, p)
    u, _, vt = lax.linalg.svd(a, full_matrices=False)
    values_tangent = real_part(diagonal(matmul(adjoint(u), matmul(tangent, adjoint(vt)))))
    return outs, (moved, values_tangent, np.zeros(rank.shape, dtypes.float0))


def pinv(a: Any, rtol: Any = None, hermitian: bool = False, *, rcond: Any = None) -> Array:
    """Return the Moore-Penrose pseudo-inverse of matrices (*batch, M, N).

    Singular values up to `rtol` (also called `rcond`; default 10 · max(M, N) · eps) times the greatest count as zero. `hermitian` has no
    effect.

    >>> jnp.linalg.pinv(jnp.array([[2.0, 0.0], [0.0, 0.0]]))
    Array([[0.5, 0. ],
           [0. , 0. ]], dtype=float32)
    """
    if rtol is not None and rcond is not None:
        raise ArgumentError("pinv: rtol and rcond are two names of one argument; give one")
    value = matrices("pinv", "a", a)
    limit = rtol if rtol is not None else rcond
    if limit is None:
        limit = 10 * max(value.shape[-2:]) * float(dtypes.finfo(value.dtype).eps)
    return _pseudo_inverse(value, operand("pinv", "rtol", limit))[0]


def lstsq(a: Any, b: Any, rcond: float | None = None, *, numpy_resid: bool = False) -> tuple[Array, Array, Array, Array]:
    """Return (x, residuals, rank of a, singular values) of the least squares solution.

    x has the least norm of those that minimise ‖a x - b‖, for a (M, N) and b (M,) or (M, K). Singular values up to `rcond` (default
    max(M, N) · eps) times the greatest count as zero. The residuals are the squared norms of the columns of a x - b; with `numpy_resid`
    there are none where NumPy gives none (rank below N, or N ≥ M), which must be known while tracing.

    >>> jnp.linalg.lstsq(jnp.array([[1.0], [1.0]]), jnp.array([1.0, 3.0]))[0].round(3)
    Array([2.], dtype=float32)
    """
    matrix, right = promote_inexact("lstsq", a, b)
    if matrix.ndim != 2 or right.ndim not in (1, 2) or right.shape[0] != matrix.shape[0]:
        raise ShapeError(f"lstsq: a must be a matrix (M, N) and b (M,) or (M, K); got shapes {matrix.shape} and {right.shape}")
    m, n = matrix.shape
    limit = max(m, n) * float(dtypes.finfo(matrix.dtype).eps) if rcond is None else rcond
    inverse, values, rank = _pseudo_inverse(matrix, operand("lstsq", "rcond", limit))
    columns = lax.expand_dims(right, (1,)) if right.ndim == 1 else right
    x = matmul(inverse, columns)
    residuals = reductions.sum(squared(matmul(matrix, x) - columns), 0)
    if numpy_resid and (m <= n or int(rank) < n):
        residuals = lax.full((0,), 0, residuals.dtype)
    return (lax.squeeze(x, (1,)) if right.ndim == 1 else x), residuals, rank, values

"""Factorisations to keep, and the systems they solve: triangular, Cholesky, LU."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.numpy.arguments import INDEX, operand, promote_inexact
from volta_fn.numpy.linalg.operands import matrices
from volta_fn.numpy.products import matmul
from volta_fn.numpy.sorting import argsort
from volta_fn.primitives import linalg as primitives
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.linalg import factorization
from volta_fn.primitives.linalg.matrices import adjoint, eye_like, tril, triu

#: The values of `trans`, as numbers.
_TRANS = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}


def solve_triangular(
    a: Any,
    b: Any,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Array:
    """Solve op(a) X = b for triangular matrices a.

    Args:
        a: matrices (*batch, N, N), of which one triangle is read.
        b: right-hand sides (*batch, N, K), or (*batch, N) for single ones.
        trans: op is the identity (0 or "N"), transposition (1 or "T"), or the adjoint (2 or "C").
        lower: whether the lower triangle is read, or the upper.
        unit_diagonal: whether the diagonal counts as ones.
        overwrite_b, check_finite: without effect.

    The result has `b`'s shape. A zero on the diagonal gives infinities or NaN. Raises `ShapeError` where a and b do not fit together,
    `ArgumentError` for an unknown `trans`.

    >>> vf.scipy.linalg.solve_triangular(vf.numpy.array([[2.0, 0.0], [1.0, 1.0]]), vf.numpy.array([4.0, 5.0]), lower=True)
    Array([2., 3.], dtype=float32)
    """
    matrix, right, single = _system("solve_triangular", a, b)
    op = _op("solve_triangular", trans)
    x = primitives.triangular_solve(
        matrix, right, left_side=True, lower=lower, transpose_a=op > 0, conjugate_a=op == 2, unit_diagonal=unit_diagonal
    )
    return lax.squeeze(x, (x.ndim - 1,)) if single else x


def cho_factor(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Array, bool]:
    """Return the Cholesky factor of Hermitian matrices and `lower`, for `cho_solve`.

    One triangle of `a` (*batch, N, N) is read. The factor is L with L Lᴴ = a if `lower`, else U with Uᴴ U = a; NaN where a matrix is not
    positive definite. `overwrite_a` and `check_finite` have no effect.

    >>> vf.scipy.linalg.cho_factor(vf.numpy.array([[4.0, 2.0], [2.0, 5.0]]), lower=True)[0]
    Array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    matrix = matrices("cho_factor", "a", a, square=True)
    factor = primitives.cholesky(matrix if lower else adjoint(matrix), symmetrize_input=False)
    return (factor if lower else adjoint(factor)), lower


def cho_solve(c_and_lower: tuple[Any, bool], b: Any, overwrite_b: bool = False, check_finite: bool = True) -> Array:
    """Solve a X = b (*batch, N, K) or (*batch, N), given `cho_factor` of a.

    `overwrite_b` and `check_finite` have no effect.

    >>> vf.scipy.linalg.cho_solve((vf.numpy.array([[2.0, 0.0], [1.0, 2.0]]), True), vf.numpy.array([8.0, 12.0]))
    Array([1., 2.], dtype=float32)
    """
    c, lower = c_and_lower
    halfway = solve_triangular(c, b, "N" if lower else "C", lower)
    return solve_triangular(c, halfway, "C" if lower else "N", lower)


def lu(a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True, p_indices: bool = False) -> tuple[Array, ...]:
    """Factor P L U = a: a permutation, a unit lower and an upper triangular matrix.

    For matrices (*batch, M, N), P is (*batch, M, M), L (*batch, M, K) and U (*batch, K, N) with K = min(M, N), all of `a`'s dtype. With
    `permute_l`, return the two matrices P L and U; else with `p_indices`, int32 indices p (*batch, M) for P, with L[p] U = a. `overwrite_a`
    and `check_finite` have no effect.

    >>> p, l, u = vf.scipy.linalg.lu(vf.numpy.array([[1.0, 2.0], [4.0, 2.0]]))
    >>> u
    Array([[4. , 2. ],
           [0. , 1.5]], dtype=float32)
    """
    matrix = matrices("lu", "a", a)
    packed, _, permutation = primitives.lu(matrix)
    rows, columns = packed.shape[-2:]
    count = min(rows, columns)
    lower = tril(lax.slice_in_dim(packed, 0, count, axis=packed.ndim - 1), -1)
    lower = lower + eye_like(lower)
    upper = triu(lax.slice_in_dim(packed, 0, count, axis=packed.ndim - 2))
    if p_indices and not permute_l:
        return argsort(permutation, axis=-1), lower, upper
    positions = lax.broadcasted_iota(INDEX, (rows, rows), 0)
    exchange = to_dtype(lax.eq(lax.expand_dims(permutation, (permutation.ndim - 1,)), positions), packed.dtype)
    return (matmul(exchange, lower), upper) if permute_l else (exchange, lower, upper)


def lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Array, Array]:
    """Return L and U of matrices in one matrix, and pivots, for `lu_solve`.

    The matrices are (*batch, M, N), the int32 pivots (*batch, min(M, N)). L lies below the diagonal, which is ones, and U on and above it;
    step i exchanged rows i and pivots[i]. `overwrite_a` and `check_finite` have no effect.

    >>> vf.scipy.linalg.lu_factor(vf.numpy.array([[1.0, 2.0], [4.0, 2.0]]))[1]
    Array([1, 1], dtype=int32)
    """
    packed, pivots, _ = primitives.lu(matrices("lu_factor", "a", a))
    return packed, pivots


def lu_solve(lu_and_piv: tuple[Any, Any], b: Any, trans: int | str = 0, overwrite_b: bool = False, check_finite: bool = True) -> Array:
    """Solve op(a) X = b, given `lu_factor` of a.

    b is (*batch, N, K), or (*batch, N) for single right-hand sides; `trans` as in `solve_triangular`. `overwrite_b` and `check_finite` have
    no effect. Raises `ShapeError` where the factors and b do not fit together, `ArgumentError` for an unknown `trans`, `ArgumentTypeError`
    for pivots that are no integers.

    >>> factors = vf.scipy.linalg.lu_factor(vf.numpy.array([[1.0, 2.0], [4.0, 2.0]]))
    >>> vf.scipy.linalg.lu_solve(factors, vf.numpy.array([5.0, 8.0]))
    Array([1., 2.], dtype=float32)
    """
    packed, pivots = lu_and_piv
    matrix, right, single = _system("lu_solve", packed, b)
    steps = operand("lu_solve", "pivots", pivots)
    if steps.dtype.kind not in "iu":
        raise ArgumentTypeError(f"lu_solve: the pivots must be integers, got {steps.dtype.name}")
    if steps.shape != matrix.shape[:-1]:
        raise ShapeError(f"lu_solve: factors of shape {matrix.shape} need pivots of shape {matrix.shape[:-1]}, got {steps.shape}")
    x = factorization.lu_solve(matrix, _permutation(lax.convert_element_type(steps, INDEX)), right, _op("lu_solve", trans))
    return lax.squeeze(x, (x.ndim - 1,)) if single else x


def _system(function: str, a: Any, b: Any) -> tuple[Array, Array, bool]:
    """Return matrices and columns of one dtype, and True if b had single columns.

    Their batches broadcast; a vector serves every matrix.
    """
    left, right = promote_inexact(function, a, b)
    matrix = matrices(function, "a", left, square=True)
    single = right.ndim == 1 or right.shape == matrix.shape[:-1]
    columns = lax.expand_dims(right, (right.ndim,)) if single else right
    try:
        rows = lax.broadcast_shapes(columns.shape[:-1], matrix.shape[:-1]) if columns.ndim > 1 else ()
    except ShapeError:
        rows = ()
    if rows[-1:] != matrix.shape[-1:] or columns.shape[-2] != matrix.shape[-1]:
        raise ShapeError(f"{function}: b must have the leading dimensions {matrix.shape[:-1]} of the matrices, got shape {right.shape}")
    wide = broadcast_to(matrix, (*rows, matrix.shape[-1]))
    return wide, broadcast_to(columns, (*rows, columns.shape[-1])), single


def _op(function: str, trans: int | str) -> int:
    if trans not in _TRANS:
        raise ArgumentError(f"{function}: trans must be 0, 1, 2, 'N', 'T' or 'C', got {trans!r}")
    return _TRANS[trans]


def _permutation(pivots: Array) -> Array:
    """Return the order of rows after exchanging rows i and pivots[i] for every i."""
    last = pivots.ndim - 1
    positions = lax.broadcasted_iota(INDEX, pivots.shape, last)
    if not pivots.shape[last]:
        return positions

    def exchange(step: Array, order: Array) -> Array:
        here = lax.eq(positions, step)
        there = lax.eq(positions, lax.dynamic_index_in_dim(pivots, step, last))
        first, second = (lax.reduce_sum(lax.select(at, order, np.int32(0)), (last,)) for at in (here, there))
        moved = lax.select(there, lax.expand_dims(first, (last,)), order)
        return lax.select(here, lax.expand_dims(second, (last,)), moved)

    return lax.fori_loop(0, pivots.shape[last], exchange, positions)

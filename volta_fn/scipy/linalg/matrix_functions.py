"""Functions of matrices through the Schur form: square roots, and any function.

A function of a triangular matrix is triangular, and commutes with it; that determines its columns, one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.errors import ShapeError
from volta_fn.numpy.linalg.norms import norm
from volta_fn.numpy.linalg.operands import identity_like, matrices
from volta_fn.numpy.products import matmul
from volta_fn.primitives.linalg import triangular_solve
from volta_fn.primitives.linalg.matrices import adjoint, diagonal, triu
from volta_fn.scipy.linalg.condensed_forms import schur

#: ``(done, column, j) -> (matrix, right)``: what column j of a function has above its diagonal solves ``matrix x = right``, for the upper
#: triangle of `matrix`. `done` has the columns before, and the diagonal; `column` is that of the form above its diagonal, then zeros.
Equation = Callable[[Array, Array, Array], tuple[Array, Array]]


def sqrtm(A: Any, blocksize: int = 1) -> Array:
    """Return the principal square root of matrices (*batch, N, N), always complex.

    `blocksize` has no effect. A singular matrix may have no root; the result is then of no use. On the host, this needs SciPy. It has no
    derivative. (Björck and Hammarling, A Schur method for the square root of a matrix, 1983.)

    >>> vf.scipy.linalg.sqrtm(vf.numpy.array([[4.0, 1.0], [0.0, 9.0]])).real.round(3)
    Array([[2. , 0.2],
           [0. , 3. ]], dtype=float32)
    """
    form, vectors = schur(matrices("sqrtm", "A", A, square=True), "complex")

    root = lax.sqrt(diagonal(form))

    def equation(done: Array, column: Array, j: Array) -> tuple[Array, Array]:
        return done + _multiple(_element(root, j), done), column

    return _conjugated(vectors, _by_columns(form, root, equation, 0.0))


def funm(A: Any, func: Callable[[Array], Array], disp: bool = True) -> Any:
    """Return a function of a matrix (N, N), given the function of its eigenvalues.

    Args:
        A: the matrix.
        func: maps an array of complex eigenvalues to an array of its shape.
        disp: whether to return the result alone; else (result, estimated relative error in the 1-norm).

    The result is complex. Close eigenvalues make it inaccurate. On the host, this needs SciPy. It has no derivative. (Golub and Van Loan,
    Matrix Computations, algorithm 9.1.1.)

    >>> vf.scipy.linalg.funm(vf.numpy.array([[1.0, 1.0], [0.0, 4.0]]), vf.numpy.sqrt).real.round(3)
    Array([[1.   , 0.333],
           [0.   , 2.   ]], dtype=float32)
    """
    matrix = matrices("funm", "A", A, square=True)
    if matrix.ndim != 2:
        raise ShapeError(f"funm: A must be one matrix, got shape {matrix.shape}; map over a stack with vmap")
    form, vectors = schur(matrix, "complex")
    values = lax.convert_element_type(func(diagonal(form)), form.dtype)

    def equation(done: Array, column: Array, j: Array) -> tuple[Array, Array]:
        right = matmul(done, column) - column * lax.expand_dims(_element(values, j), (0,))
        return form - _multiple(_element(diagonal(form), j), form), right

    epsilon = float(dtypes.finfo(dtypes.real_dtype(form.dtype)).eps)
    result = _conjugated(vectors, _by_columns(form, values, equation, epsilon))
    return result if disp else (result, _error(form, result, epsilon))


def _by_columns(form: Array, values: Array, equation: Equation, least: float) -> Array:
    """Compute a triangular matrix with `values` on its diagonal, column by column.

    Numbers up to `least` times the norm, which the equations would divide by, are replaced by it, and zeros by one.
    """
    size, last = form.shape[-1], form.ndim - 1
    rows = lax.broadcasted_iota(np.int32, form.shape, last - 1)
    columns = lax.broadcasted_iota(np.int32, form.shape, last)
    on_diagonal, above = lax.eq(rows, columns), lax.lt(rows, columns)
    zero = lax.full((), 0, form.dtype)
    limit = least * norm(form, axis=(-2, -1), keepdims=True)
    smallest = lax.convert_element_type(lax.select(limit > 0, limit, lax.full_like(limit, 1)), form.dtype)

    def fill(j: Array, done: Array) -> Array:
        here = lax.eq(columns, j)
        column = lax.reduce_sum(lax.select(here & above, form, zero), (last,))
        matrix, right = equation(done, column, j)
        matrix = lax.select(on_diagonal & (abs(matrix) <= limit), smallest, matrix)
        x = triangular_solve(matrix, right, left_side=True)
        return lax.select(here & above, lax.expand_dims(x, (last,)), done)

    start = lax.select(on_diagonal, lax.expand_dims(values, (last,)), zero)
    return lax.fori_loop(1, size, fill, start) if size > 1 else start


def _element(values: Array, j: Array) -> Array:
    """Return element j of each vector."""
    return lax.dynamic_index_in_dim(values, j, values.ndim - 1, keepdims=False)


def _multiple(number: Array, like: Array) -> Array:
    """Return multiples of the identity, of the shape of other matrices."""
    return lax.reshape(number, (*number.shape, 1, 1)) * identity_like(like)


def _conjugated(vectors: Array, form: Array) -> Array:
    return matmul(matmul(vectors, form), adjoint(vectors))


def _error(form: Array, result: Array, epsilon: float) -> Array:
    """Estimate the relative error by the least distance of eigenvalues."""
    values = diagonal(form)
    distances = abs(lax.expand_dims(values, (0,)) - lax.expand_dims(values, (1,)))
    others = lax.ne(lax.broadcasted_iota(np.int32, form.shape, 0), lax.broadcasted_iota(np.int32, form.shape, 1))
    least = lax.reduce_min(lax.select(others, distances, lax.full((), np.inf, distances.dtype)), (0, 1))
    least = lax.select(lax.eq(least, 0), lax.full_like(least, epsilon), least)
    bound = lax.max(lax.full_like(least, epsilon), epsilon / least * norm(triu(form, 1), 1))
    finite = lax.reduce_and(lax.is_finite(abs(result)), (0, 1))
    return lax.select(finite, lax.min(lax.full_like(bound, 1), bound), lax.full_like(bound, np.inf))

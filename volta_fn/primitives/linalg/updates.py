"""Updates of factorisations, and what is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.primitives.control_flow.scan import scan
from volta_fn.primitives.data_movement.movement import broadcast_to, broadcasted_iota, expand_dims, moveaxis
from volta_fn.primitives.declare import weakly_promoted
from volta_fn.primitives.elementwise.exponential import sqrt
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.linalg.matrices import check_matrix, matmul, only_diagonal, swap, tril
from volta_fn.primitives.reduction import reduce_sum

INT32 = np.dtype(np.int32)


def cholesky_update(r_matrix: Any, w_vector: Any) -> Array:
    """Return the upper triangular factor of Rᵀ R + w wᵀ, for a real factor R.

    R is (*batch, n, n), w (*batch, n). Each row takes a rotation, which moves what w adds to it; the diagonal stays positive. It takes
    n steps of O(n) operations, is differentiable, and raises `ShapeError` where R and w do not fit together.

    >>> import volta_fn as vf
    >>> vf.lax.linalg.cholesky_update(vf.numpy.array([[3.0, 0.0], [0.0, 1.0]]), vf.numpy.array([4.0, 0.0]))
    Array([[5., 0.],
           [0., 1.]], dtype=float32)
    """
    factor, vector = weakly_promoted("cholesky_update", (r_matrix, w_vector))
    check_matrix("cholesky_update", factor.aval, square=True)
    if vector.shape != factor.shape[:-1]:
        raise ShapeError(f"cholesky_update needs r_matrix (*batch, n, n) and w_vector (*batch, n), got {factor.shape} and {vector.shape}")
    last = vector.ndim - 1
    positions = broadcasted_iota(INT32, vector.shape, last)

    def rotate(w: Array, item: tuple[Array, Array]) -> tuple[Array, Array]:
        step, row = item
        here = positions == step
        zero = as_value(np.zeros((), w.dtype))
        x, y = (reduce_sum(select(here, v, zero), (last,)) for v in (row, w))
        length = sqrt(x * x + y * y)
        cosine, sine = (expand_dims(v / length, (last,)) for v in (x, y))
        return select(here, zero, cosine * w - sine * row), cosine * row + sine * w

    steps = broadcasted_iota(INT32, (factor.shape[-1],), 0)
    _, rows = scan(rotate, vector, (steps, moveaxis(factor, last, 0)))
    return moveaxis(rows, 0, last)


def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Array:
    """Return the permutation that the exchanges of rows in `lu` make.

    Step i exchanges rows i and pivots[i].

    The pivots are integers (*batch, k) as of `lu`; the permutation is (*batch, permutation_size), of their dtype. Raises `ArgumentError` if
    `permutation_size` is less than k, `ArgumentTypeError` for pivots that are no integers.

    >>> import volta_fn as vf
    >>> vf.lax.linalg.lu_pivots_to_permutation(vf.numpy.array([2, 2]), 3)
    Array([2, 0, 1], dtype=int32)
    """
    steps = as_value(pivots)
    if steps.dtype.kind not in "iu" or not steps.ndim:
        raise ArgumentTypeError(f"lu_pivots_to_permutation needs pivots that are integers (*batch, k), got {steps.aval}")
    if permutation_size < steps.shape[-1]:
        raise ArgumentError(f"lu_pivots_to_permutation: permutation_size must be at least {steps.shape[-1]}, got {permutation_size}")
    last, shape = steps.ndim - 1, (*steps.shape[:-1], permutation_size)
    positions = broadcasted_iota(steps.dtype, shape, last)

    def exchange(order: Array, item: tuple[Array, Array]) -> tuple[Array, None]:
        step, pivot = item
        here, there = positions == step, positions == expand_dims(pivot, (last,))
        zero = as_value(np.zeros((), order.dtype))
        first, second = (expand_dims(reduce_sum(select(at, order, zero), (last,)), (last,)) for at in (here, there))
        moved = select(there, broadcast_to(first, shape), order)
        return select(here, broadcast_to(second, shape), moved), None

    numbers = broadcasted_iota(steps.dtype, (steps.shape[-1],), 0)
    return scan(exchange, positions, (numbers, moveaxis(steps, last, 0)))[0]


def symmetric_product(a_matrix: Any, c_matrix: Any, *, alpha: float = 1.0, beta: float = 0.0, symmetrize_output: bool = False) -> Array:
    """Return alpha A Aᵀ + beta C, for symmetric C.

    The matrices A are (*batch, m, n), and C (*batch, m, m).
    With `symmetrize_output` the lower triangle is copied to the upper one. Raises `ShapeError` where A and C do not fit together.

    >>> import volta_fn as vf
    >>> vf.lax.linalg.symmetric_product(vf.numpy.array([[1.0], [2.0]]), vf.numpy.eye(2), beta=3.0)
    Array([[4., 2.],
           [2., 7.]], dtype=float32)
    """
    a, c = weakly_promoted("symmetric_product", (a_matrix, c_matrix))
    check_matrix("symmetric_product", a.aval)
    if c.shape != (*a.shape[:-1], a.shape[-2]):
        raise ShapeError(f"symmetric_product needs A (*batch, m, n) and C (*batch, m, m), got shapes {a.shape} and {c.shape}")
    product = matmul(a, swap(a)) * alpha + c * beta
    if not symmetrize_output:
        return product
    below = tril(product, -1)
    return below + swap(below) + only_diagonal(product)

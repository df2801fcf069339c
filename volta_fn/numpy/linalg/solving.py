"""Linear systems and inverses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.common import operand, promote_inexact
from volta_fn.numpy.linalg.common import identity_like, matrices
from volta_fn.numpy.products import matmul
from volta_fn.primitives.linalg.factorization import linear_solve, lu_solve
from volta_fn.primitives.movement import broadcast_to, canonical_axes
from volta_fn.transforms.custom_jvp import custom_jvp


@custom_jvp
def _solve(a: Array, b: Array) -> Array:
    """X with a X = b, for stacks of equal length."""
    return linear_solve(a, b)


@_solve.defjvp
def _solve_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """From A dX = dB - dA X, with the factors of A used again."""
    (a, b), (a_rate, b_rate) = primals, tangents
    packed, _, permutation = lax.linalg.lu(a)
    x = lu_solve(packed, permutation, b)
    return x, lu_solve(packed, permutation, b_rate - matmul(a_rate, x))


def solve(a: Any, b: Any) -> Array:
    """X with a X = b, for square matrices a (*batch, N, N) and b (*batch, N, K), or a single right-hand side b (N,).

    The batch dimensions broadcast. A singular matrix gives infinities or NaN. Raises `ShapeError` where a and b do not fit together.

    >>> import volta_fn.numpy as jnp
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
    """One matrix for a stack of right-hand sides: their columns are those of one."""
    *stack, size, columns = right.shape
    order = (len(stack), *range(len(stack)), len(stack) + 1)
    flat = lax.reshape(lax.transpose(right, order), (size, math.prod(stack) * columns))
    x = lax.reshape(_solve(matrix, flat), (size, *stack, columns))
    return lax.transpose(x, np.argsort(order).tolist())


def inv(a: Any) -> Array:
    """The inverse of square matrices; infinities or NaN where there is none. To solve a system, `solve` is faster and more exact.

    >>> import volta_fn.numpy as jnp
    >>> jnp.linalg.inv(jnp.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    matrix = matrices("inv", "a", a, square=True)
    return _solve(matrix, broadcast_to(identity_like(matrix), matrix.shape))


def tensorsolve(a: Any, b: Any, axes: Sequence[int] | None = None) -> Array:
    """x with ``tensordot(a, x, x.ndim) == b``; `axes` of a are moved to its end first.

    Raises `ShapeError` unless the dimensions of a are those of b followed by as many elements.

    >>> import volta_fn.numpy as jnp
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
    """The inverse of ``x -> tensordot(a, x, a.ndim - ind)``, a tensor with the last dimensions of a before its first `ind` ones.

    >>> import volta_fn.numpy as jnp
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

"""The polar decomposition by QDWH: iterations of products and factorisations."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ShapeError
from volta_fn.primitives.control_flow.conditionals import cond
from volta_fn.primitives.control_flow.loops import while_loop
from volta_fn.primitives.data_movement.joining import concatenate
from volta_fn.primitives.data_movement.slicing import slice_in_dim
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.elementwise.arithmetic import abs as absolute
from volta_fn.primitives.elementwise.exponential import cbrt, sqrt
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.linalg.factorization import qr
from volta_fn.primitives.linalg.matrices import adjoint, check_matrix, eye_like, matmul
from volta_fn.primitives.linalg.triangular import cholesky, symmetrized, triangular_solve
from volta_fn.primitives.reduction import reduce_max, reduce_sum

#: Beyond this weight the iteration by Cholesky's factors would lose digits.
_GREATEST_WEIGHT = 100.0
#: How often it iterates at most by default: six iterations suffice in double precision.
_MOST_ITERATIONS = 10


def qdwh(
    x: Any, *, is_hermitian: bool = False, max_iterations: int | None = None, eps: float | None = None
) -> tuple[Array, Array, Array, Array]:
    """Return U and H with x = U H, the number of iterations, and if they converged.

    x is a matrix (m, n) of full rank with m ≥ n, U has orthonormal columns, and H is Hermitian positive semidefinite. Iterations end when
    one changes U by less than (4 eps)^(1/3) of its size, or after `max_iterations` (default 10); `eps` is the dtype's by default.
    `is_hermitian` has no effect. (Nakatsukasa, Bai and Gygi, Optimizing Halley's iteration for computing the matrix polar decomposition,
    SIAM J. Matrix Anal. Appl. 31, 2010.)

    Raises:
        ShapeError: x is not one matrix, or is wide.

    >>> import volta_fn as vf
    >>> vf.lax.linalg.qdwh(vf.numpy.array([[0.0, -2.0], [3.0, 0.0]]))[1].diagonal().round(3)
    Array([3., 2.], dtype=float32)
    """
    value = as_value(x)
    check_matrix("qdwh", value.aval)
    if value.ndim != 2 or value.shape[0] < value.shape[1]:
        raise ShapeError(f"qdwh needs one matrix (m, n) with m >= n, got shape {value.shape}; decompose the adjoint of a wide one")
    real = dtypes.real_dtype(value.dtype)
    epsilon = float(dtypes.finfo(real).eps) if eps is None else eps
    most = _MOST_ITERATIONS if max_iterations is None else max_iterations
    if not value.size:
        return value, eye_like(matmul(adjoint(value), value)), as_value(np.int32(0)), as_value(np.bool_(True))
    limit = np.asarray((4 * epsilon) ** (1 / 3), real)

    def unfinished(state: tuple[Array, Array, Array, Array]) -> Array:
        _, _, count, moving = state
        return (count < most) & moving

    def iterate(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        u, low, count, _ = state
        a, b, c = _weights(low)
        following = cond(c > _GREATEST_WEIGHT, _by_qr, _by_cholesky, u, a, b, c)
        low = low * (a + b * low * low) / (1 + c * low * low)
        low = select(low > 1, as_value(np.ones((), real)), low)
        moving = (_norm(following - u) > limit * _norm(following)) | (1 - low > 10 * epsilon)
        return following, low, count + 1, moving

    scaled, low = _scaled(value, epsilon)
    start = (scaled, low, as_value(np.int32(0)), as_value(np.bool_(True)))
    u, _, count, moving = while_loop(unfinished, iterate, start)
    return u, symmetrized(matmul(adjoint(u), value)), count, ~moving


def _scaled(x: Array, epsilon: float) -> tuple[Array, Array]:
    """Divide by a bound of the singular values; return a lower bound of them, too."""
    size = absolute(x)
    columns, rows = (reduce_max(reduce_sum(size, (axis,)), (0,)) for axis in (0, 1))
    bound = sqrt(columns) * sqrt(rows)
    safe = select(bound > 0, bound, as_value(np.ones((), bound.dtype)))
    return x / to_dtype(safe, x.dtype), as_value(np.asarray(epsilon, bound.dtype))


def _weights(low: Array) -> tuple[Array, Array, Array]:
    """Return Halley's weights that lift singular values in [low, 1] the most."""
    square = low * low
    d = cbrt(4 * (1 - square) / (square * square))
    root = sqrt(1 + d)
    a = root + sqrt(8 - 4 * d + 8 * (2 - square) / (square * root)) / 2
    b = (a - 1) * (a - 1) / 4
    return a, b, a + b - 1


def _by_qr(u: Array, a: Array, b: Array, c: Array) -> Array:
    root = sqrt(c)
    n = u.shape[1]
    identity = eye_like(slice_in_dim(u, 0, n))
    q, _ = qr(concatenate([to_dtype(root, u.dtype) * u, identity], 0), full_matrices=False)
    product = matmul(slice_in_dim(q, 0, u.shape[0]), adjoint(slice_in_dim(q, u.shape[0], u.shape[0] + n)))
    return to_dtype(b / c, u.dtype) * u + to_dtype((a - b / c) / root, u.dtype) * product


def _by_cholesky(u: Array, a: Array, b: Array, c: Array) -> Array:
    square = matmul(adjoint(u), u)
    factor = cholesky(eye_like(square) + to_dtype(c, u.dtype) * square)
    half = triangular_solve(factor, u, lower=True, transpose_a=True, conjugate_a=True)
    return to_dtype(b / c, u.dtype) * u + to_dtype(a - b / c, u.dtype) * triangular_solve(factor, half, lower=True)


def _norm(x: Array) -> Array:
    return sqrt(reduce_sum(absolute(x) * absolute(x), (0, 1)))

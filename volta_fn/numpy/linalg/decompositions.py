"""Decompositions of matrices, linear systems, least squares, inverses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.dimension import is_symbolic_dim
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy import reductions
from volta_fn.numpy.arguments import as_index, operand, promote_inexact
from volta_fn.numpy.products import matmul
from volta_fn.numpy.shapes import matrix_transpose
from volta_fn.primitives.data_movement.movement import broadcast_to, canonical_axes
from volta_fn.primitives.elementwise.selection import conj
from volta_fn.primitives.linalg.solvers import adjoint, diagonal, linear_solve, lu_solve, qr_without_q, real_part, safe_inverse
from volta_fn.transforms.custom_derivatives import custom_jvp

# Matrices as operands of linear algebra, and elementwise helpers.


def matrices(function: str, argument: str, value: Any, square: bool = False) -> Array:
    """Return `value` as (square) inexact matrices; raise `ShapeError` if it is none."""
    (a,) = promote_inexact(function, value)
    if a.ndim < 2:
        raise ShapeError(f"{function}: {argument} must be a matrix or a stack of matrices, got shape {a.shape}")
    if square and a.shape[-1] != a.shape[-2]:
        raise ShapeError(f"{function}: {argument} must have square matrices in its last two dimensions, got shape {a.shape}")
    return a


def squared(x: Array) -> Array:
    """Return the square of each element's absolute value, real."""
    return lax.real(conj(x) * x) if x.dtype.kind == "c" else x * x


def safe_root(x: Array) -> Array:
    """Return the square root with derivative 0, rather than infinity, at 0."""
    zero = lax.eq(x, 0)
    return lax.select(zero, as_value(np.zeros((), x.dtype)), lax.sqrt(lax.select(zero, as_value(np.ones((), x.dtype)), x)))


def identity_like(a: Array) -> Array:
    """Return the identity matrix of the size and dtype of the square matrices `a`."""
    size = a.shape[-1]
    if is_symbolic_dim(size):
        rows, columns = (lax.broadcasted_iota(np.int32, (size, size), axis) for axis in (0, 1))
        return lax.convert_element_type(lax.eq(rows, columns), a.dtype)
    return as_value(np.eye(size, dtype=a.dtype))


def last_axis(x: Array, index: int) -> Array:
    """Return the elements at an index of the last axis."""
    return lax.index_in_dim(x, index, -1, keepdims=False)


# QR factorization by Householder reflections, in LAPACK's packed form.


def packed_qr(a: Array) -> tuple[Array, Array]:
    """Return h (*batch, N, M) and tau (*batch, K) of matrices (*batch, M, N).

    The transpose of h has R on and above the diagonal, and below it vectors v, whose element on the diagonal is 1. Q is the product of
    the reflections I - tau v vᴴ (Golub and Van Loan, Matrix Computations, 4th edition, section 5.2).
    """
    count = min(a.shape[-2:])
    factors = vnp.zeros((*a.shape[:-2], count), a.dtype)
    packed, factors = lax.fori_loop(0, count, _reflect, (a, factors))
    return vnp.matrix_transpose(packed), factors


def _reflect(k: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
    """Reflect column `k` to a multiple of a unit vector, and the columns after it."""
    matrix, factors = state
    rows, columns = (np.arange(size, dtype=np.int32) for size in matrix.shape[-2:])
    column = lax.dynamic_index_in_dim(matrix, k, -1, keepdims=False)
    head = lax.dynamic_index_in_dim(column, k, -1, keepdims=False)
    below = vnp.where(rows > k, column, 0)
    length = vnp.linalg.norm(vnp.where(rows >= k, column, 0), axis=-1)
    reduced = vnp.where(head.real > 0, -length, length).astype(column.dtype)
    is_reduced = (vnp.abs(below).max(-1) == 0) & (head.imag == 0)
    divisor = vnp.where(is_reduced, 1, head - reduced)
    vector = vnp.where(rows == k, 1, below / divisor[..., None])
    factor = vnp.where(is_reduced, 0, (reduced - head) / vnp.where(is_reduced, 1, reduced))
    vector, head, factor = vector.astype(column.dtype), vnp.where(is_reduced, head, reduced), factor.astype(column.dtype)
    projected = vnp.einsum("...i,...ij->...j", vector.conj(), matrix)
    changed = matrix - (factor.conj()[..., None] * vector)[..., None] * projected[..., None, :]
    reflected = vnp.where(rows < k, column, vnp.where(rows == k, head[..., None], vector))
    matrix = vnp.where(columns > k, changed, vnp.where(columns == k, reflected[..., None], matrix))
    return matrix, vnp.where(np.arange(factors.shape[-1], dtype=np.int32) == k, factor[..., None], factors)


# Cholesky, QR, eigenvalue and singular value decompositions.


class EigResult(NamedTuple):
    """The results of `eig`."""

    eigenvalues: Array
    eigenvectors: Array


class EighResult(NamedTuple):
    """The results of `eigh`."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """The results of `qr`."""

    Q: Array
    R: Array


class SVDResult(NamedTuple):
    """The results of `svd`."""

    U: Array
    S: Array
    Vh: Array


@fused
def cholesky(a: Any, *, upper: bool = False, symmetrize_input: bool = True) -> Array:
    """Return the lower triangular L with L Lᴴ = a (`upper`: U with Uᴴ U = a).

    The factor is NaN where a Hermitian matrix is not positive definite. With `symmetrize_input` the matrices are averaged with their
    adjoints first, otherwise their lower triangles are read.

    >>> jnp.linalg.cholesky(jnp.array([[4.0, 2.0], [2.0, 5.0]]))
    Array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    factor = lax.linalg.cholesky(matrices("cholesky", "a", a, square=True), symmetrize_input=symmetrize_input)
    return conj(matrix_transpose(factor)) if upper else factor


def qr(a: Any, mode: str = "reduced") -> Any:
    """Factor matrices (*batch, M, N) into orthonormal columns Q and upper triangle R.

    Q is (M, K) and R (K, N), where K is min(M, N) in mode "reduced" and M in mode "complete"; mode "r" returns R of "reduced" alone,
    and mode "raw" LAPACK's packed form: h (*batch, N, M) and tau (*batch, min(M, N)), which `lax.linalg.ormqr` takes.

    >>> q, r = jnp.linalg.qr(jnp.ones((3, 2)))
    >>> bool(jnp.allclose(q @ r, 1.0, atol=1e-6))
    True
    """
    if mode not in ("reduced", "complete", "r", "raw"):
        raise ArgumentError(f"qr: mode must be 'reduced', 'complete', 'r' or 'raw', got {mode!r}")
    matrix = matrices("qr", "a", a)
    if mode == "raw":
        return QRResult(*packed_qr(matrix))
    return qr_without_q(matrix) if mode == "r" else QRResult(*lax.linalg.qr(matrix, full_matrices=mode == "complete"))


def eigh(a: Any, UPLO: str | None = None, symmetrize_input: bool = True) -> EighResult:
    """Return ascending eigenvalues and orthonormal eigenvectors of Hermitian matrices.

    The eigenvectors are columns. With `symmetrize_input` the matrices are averaged with their adjoints first, otherwise the triangle
    `UPLO` ("L", the default, or "U") is read. For equal eigenvalues the vectors' derivatives are zero.

    >>> jnp.linalg.eigh(jnp.array([[2.0, 1.0], [1.0, 2.0]])).eigenvalues.round(3)
    Array([1., 3.], dtype=float32)
    """
    if UPLO not in (None, "L", "U"):
        raise ArgumentError(f"eigh: UPLO must be 'L' or 'U', got {UPLO!r}")
    value = matrices("eigh", "a", a, square=True)
    vectors, values = lax.linalg.eigh(value, lower=UPLO != "U", symmetrize_input=symmetrize_input)
    return EighResult(values, vectors)


def eigvalsh(a: Any, UPLO: str | None = "L", *, symmetrize_input: bool = True) -> Array:
    """Return the ascending eigenvalues of Hermitian matrices; arguments as of `eigh`.

    >>> jnp.linalg.eigvalsh(jnp.array([[2.0, 1.0], [1.0, 2.0]])).round(4)
    Array([1., 3.], dtype=float32)
    """
    return eigh(a, UPLO, symmetrize_input).eigenvalues


def eig(a: Any) -> EigResult:
    """Return complex eigenvalues, unsorted, and unit eigenvectors (columns).

    >>> jnp.linalg.eig(jnp.array([[0.0, 1.0], [-1.0, 0.0]])).eigenvalues
    Array([0.+1.j, 0.-1.j], dtype=complex64)
    """
    values, vectors = lax.linalg.eig(matrices("eig", "a", a, square=True), compute_left_eigenvectors=False)
    return EigResult(values, vectors)


def eigvals(a: Any) -> Array:
    """Return the complex eigenvalues of square matrices, in no particular order.

    >>> jnp.linalg.eigvals(jnp.array([[2.0, 0.0], [0.0, 3.0]])).real.round(4)
    Array([2., 3.], dtype=float32)
    """
    value = matrices("eigvals", "a", a, square=True)
    return lax.linalg.eig(value, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]


def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False, subset_by_index: tuple[int, int] | None = None
) -> Any:
    """Decompose matrices (*batch, M, N) into U diag(S) Vh; only S if not `compute_uv`.

    S descends. U and Vh are square if `full_matrices`, else they have min(M, N) columns and rows. `hermitian` has no effect. For equal
    singular values the vectors' derivatives are zero where they are not determined.

    >>> jnp.linalg.svd(jnp.array([[3.0, 0.0], [0.0, -4.0]])).S
    Array([4., 3.], dtype=float32)
    """
    if subset_by_index is not None:
        raise ArgumentError("svd: subset_by_index is not supported; slice the result instead")
    value = matrices("svd", "a", a)
    if not compute_uv:
        return lax.linalg.svd(value, compute_uv=False)
    return SVDResult(*lax.linalg.svd(value, full_matrices=full_matrices))


def svdvals(x: Any, /) -> Array:
    """Return the singular values, descending.

    >>> jnp.linalg.svdvals(jnp.array([[3.0, 0.0], [0.0, 4.0]])).round(4)
    Array([4., 3.], dtype=float32)
    """
    return lax.linalg.svd(matrices("svdvals", "x", x), compute_uv=False)


# Linear systems, least squares, inverses and pseudo-inverses.


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


@fused
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


@fused
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


@fused
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
    return matmul(scaled, adjoint(u)), values, lax.reduce_sum(as_index(counts), (values.ndim - 1,))


@_pseudo_inverse.defjvp
def _pseudo_inverse_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Any, Any]:
    """Return dP for constant rank (Golub and Pereyra, 1973)."""
    # dP = -P dA P + P Pᴴ dAᴴ (1 - A P) + (1 - P A) dAᴴ Pᴴ P.
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


@fused
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

"""Linear algebra: `jax.numpy.linalg`'s names and meanings, on stacks of matrices.

All functions are differentiable. Decompositions come first, then what they solve, powers and products, norms, and determinants.

>>> import volta_fn.numpy as jnp
>>> jnp.linalg.solve(jnp.array([[3.0, 1.0], [1.0, 2.0]]), jnp.array([9.0, 8.0]))
Array([2., 3.], dtype=float32)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import as_integer, check_option
from volta_fn.core.dimension import is_symbolic_dim
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy import indexing, products, reductions
from volta_fn.numpy.arguments import as_index, axes_of, axis_of, narrowed, operand, promote, promote_default, promote_inexact, wide
from volta_fn.numpy.products import matmul, tensordot, vecdot
from volta_fn.numpy.shapes import matrix_transpose
from volta_fn.primitives.data_movement.movement import broadcast_to, canonical_axes
from volta_fn.primitives.elementwise.selection import conj
from volta_fn.primitives.linalg.solvers import adjoint, linear_solve, lu_solve, permute_rows, qr_without_q, real_part, safe_inverse
from volta_fn.primitives.linalg.solvers import diagonal as diagonal_part
from volta_fn.transforms.custom_derivatives import custom_jvp

__all__ = [
    "EigResult",
    "EighResult",
    "QRResult",
    "SVDResult",
    "SlogdetResult",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vecdot",
    "vector_norm",
]


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


def _safe_root(x: Array) -> Array:
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


def _last_axis(x: Array, index: int) -> Array:
    """Return the elements at an index of the last axis."""
    return lax.index_in_dim(x, index, -1, keepdims=False)


# QR factorization by Householder reflections, in LAPACK's packed form.


def _packed_qr(a: Array) -> tuple[Array, Array]:
    """Return h (*batch, N, M) and tau (*batch, K) of matrices (*batch, M, N).

    The transpose of h has R on and above the diagonal, and below it vectors v, whose element on the diagonal is 1. Q is the product of
    the reflections I - tau v vᴴ (Golub and Van Loan, Matrix Computations, 4th edition, section 5.2).
    """
    count = min(a.shape[-2:])
    factors = vnp.zeros((*a.shape[:-2], count), a.dtype)
    packed, factors = lax.fori_loop(0, count, _reflect, (a, factors)) if count else (a, factors)  # a column needs an element
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
    check_option(mode, "qr: mode", ("reduced", "complete", "r", "raw"))
    matrix = matrices("qr", "a", a)
    if mode == "raw":
        return QRResult(*_packed_qr(matrix))
    return qr_without_q(matrix) if mode == "r" else QRResult(*lax.linalg.qr(matrix, full_matrices=mode == "complete"))


def eigh(a: Any, UPLO: str | None = None, symmetrize_input: bool = True) -> EighResult:
    """Return ascending eigenvalues and orthonormal eigenvectors of Hermitian matrices.

    The eigenvectors are columns. With `symmetrize_input` the matrices are averaged with their adjoints first, otherwise the triangle
    `UPLO` ("L", the default, or "U") is read. For equal eigenvalues the vectors' derivatives are zero.

    >>> jnp.linalg.eigh(jnp.array([[2.0, 1.0], [1.0, 2.0]])).eigenvalues.round(3)
    Array([1., 3.], dtype=float32)
    """
    check_option(UPLO, "eigh: UPLO", (None, "L", "U"))
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
    matrix, right, single = system(a, b)
    x = _solve_many(matrix, right) if matrix.ndim == 2 and right.ndim > 2 else _solve(*broadcast_system(matrix, right))
    return lax.squeeze(x, (x.ndim - 1,)) if single else x


def system(a: Any, b: Any) -> tuple[Array, Array, bool]:
    """Return the matrices and right-hand sides of `solve`, and True if b is a vector."""
    matrix, right = promote_inexact("solve", a, b)
    matrix = matrices("solve", "a", matrix, square=True)
    columns = lax.expand_dims(right, (1,)) if right.ndim == 1 else right
    size = matrix.shape[-1]
    if columns.ndim < 2 or columns.shape[-2] != size:
        raise ShapeError(f"solve: b must have {size} rows, as many as the matrices a of shape {matrix.shape}; got shape {right.shape}")
    return matrix, columns, right.ndim == 1


def broadcast_system(matrix: Array, right: Array) -> tuple[Array, Array]:
    """Return matrices and right-hand sides with the same leading dimensions."""
    stack = lax.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    return broadcast_to(matrix, (*stack, *matrix.shape[-2:])), broadcast_to(right, (*stack, *right.shape[-2:]))


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
    limit = _per_matrix(tol, values) if tol is not None else _relative(values, value, rtol)
    return lax.reduce_sum(as_index(values > limit), (values.ndim - 1,))


def _per_matrix(limit: Any, values: Array) -> Array:
    bound = lax.convert_element_type(operand("linalg", "tolerance", limit), values.dtype)
    return lax.expand_dims(bound, (bound.ndim,)) if bound.ndim else bound


def _relative(values: Array, a: Array, rtol: Any) -> Array:
    """Return `rtol` (or max(M, N) · eps) times the greatest singular value."""
    if rtol is None:
        rtol = max(a.shape[-2:]) * float(dtypes.finfo(values.dtype).eps)
    greatest = lax.reduce_max(values, (values.ndim - 1,)) if values.shape[-1] else lax.full(values.shape[:-1], 0, values.dtype)
    return _per_matrix(rtol, values) * lax.expand_dims(greatest, (values.ndim - 1,))


@custom_jvp
def _pseudo_inverse(a: Array, rtol: Array) -> tuple[Array, Array, Array]:
    u, values, vt = lax.linalg.svd(a, full_matrices=False)
    counts = values > _relative(values, a, rtol)
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
    values_tangent = real_part(diagonal_part(matmul(adjoint(u), matmul(tangent, adjoint(vt)))))
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
    2: lambda x, axes: _safe_root(reductions.sum(squared(x), axes)),
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
    2: lambda x: _extreme(_greatest, svdvals(x)),
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

    For None or 2, the greatest singular value over the least; for -2, the inverse. Matrices without NaN for which it is undefined give inf.

    >>> jnp.linalg.cond(jnp.array([[4.0, 0.0], [0.0, 2.0]]))
    Array(2., dtype=float32)
    """
    value = matrices("cond", "x", x, square=p not in (None, 2, -2))
    if p in (None, 2, -2):
        values = svdvals(value)
        greatest, least = _last_axis(values, 0), _last_axis(values, -1)
        result = least / greatest if p == -2 else greatest / least
    else:
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
    factors = diagonal(packed)
    factors = factors * (factors != 0).all(-1, keepdims=True)  # all are 0 if one is, so that products of the others do not overflow
    return lax.reduce_prod(factors, (a.ndim - 2,)) * _parity(pivots, a.dtype)


@_det.defjvp
def _det_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Return tr(det(A) A⁻¹ dA), where det(A) A⁻¹ stays finite for singular A."""
    (a,), (tangent,) = primals, tangents
    # By LU; the last pivot, which may vanish, cancels in the back substitution. Matrices of rank below n - 1 have the adjugate zero.
    packed, pivots, permutation = lax.linalg.lu(a)
    size = a.shape[-1]
    products = lax.cumprod(diagonal(packed), a.ndim - 2) * lax.expand_dims(_parity(pivots, a.dtype), (a.ndim - 2,))
    value, before_last = _last_axis(products, size - 1), _last_axis(products, size - 2)
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
    check_option(method, "slogdet: method", (None, "lu", "qr"))
    sign, log = _slogdet(matrices("slogdet", "a", a, square=True))
    return SlogdetResult(sign, log)


def _sign_and_log(packed: Array, pivots: Array) -> tuple[Array, Array]:
    factors = diagonal(packed)
    axis = (factors.ndim - 1,)
    # The sign of a real determinant is 1 or -1 even where a factor is NaN, as in NumPy and JAX.
    certain = factors if factors.dtype.kind == "c" else lax.select(factors != factors, lax.full_like(factors, 1), factors)
    sign = lax.reduce_prod(lax.sign(certain), axis) * _parity(pivots, factors.dtype)
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

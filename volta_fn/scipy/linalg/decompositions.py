"""Cholesky, QR and singular value decompositions with SciPy's arguments."""

from __future__ import annotations

from typing import Any

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.arguments import INDEX, promote_inexact
from volta_fn.numpy.linalg import decompositions
from volta_fn.numpy.linalg.operands import matrices, squared
from volta_fn.numpy.products import matmul
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.elementwise.complex_components import conj
from volta_fn.primitives.linalg.factorization import qr_without_q
from volta_fn.primitives.linalg.matrices import adjoint, safe_inverse
from volta_fn.scipy.linalg.factorizations import cho_factor


def cholesky(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Return the Cholesky factor of Hermitian matrices (*batch, N, N).

    It is U with Uᴴ U = a, or L with L Lᴴ = a if `lower`; that triangle of `a` is read. NaN where a matrix is not positive definite.
    `overwrite_a` and `check_finite` have no effect.

    >>> vf.scipy.linalg.cholesky(vf.numpy.array([[4.0, 2.0], [2.0, 5.0]]))
    Array([[2., 1.],
           [0., 2.]], dtype=float32)
    """
    return cho_factor(matrices("cholesky", "a", a, square=True), lower)[0]


def qr(
    a: Any, overwrite_a: bool = False, lwork: None = None, mode: str = "full", pivoting: bool = False, check_finite: bool = True
) -> tuple[Array, ...]:
    """Factor matrices (*batch, M, N) into orthonormal columns Q and upper triangle R.

    Args:
        a: the matrices.
        mode: "full" for Q (M, M) and R (M, N), "economic" for Q (M, K) and R (K, N) with K = min(M, N), "r" for the tuple of R alone.
        pivoting: whether to reorder the columns so that the diagonal of R descends in magnitude; the tuple then ends with the order,
            int32 (*batch, N): a[:, order] = Q R. Its choice has no derivative.
        overwrite_a, lwork, check_finite: without effect.

    Raises `ArgumentError` for another mode: LAPACK's reflectors (SciPy's "raw") are not available.

    >>> q, r = vf.scipy.linalg.qr(vf.numpy.ones((3, 2)), mode="economic")
    >>> q.shape, r.shape
    ((3, 2), (2, 2))
    """
    if mode not in ("full", "economic", "r"):
        raise ArgumentError(f"qr: mode must be 'full', 'economic' or 'r', got {mode!r}")
    matrix = matrices("qr", "a", a)
    order = _pivots(lax.stop_gradient(matrix)) if pivoting else None
    if order is not None:
        matrix = vnp.take_along_axis(matrix, order[..., None, :], axis=-1)
    factors = (_padded_r(matrix),) if mode == "r" else lax.linalg.qr(matrix, full_matrices=mode == "full")
    return factors if order is None else (*factors, order)


def _padded_r(a: Array) -> Array:
    """Return R (*batch, M, N), with rows of zeros below the triangle of tall matrices."""
    m, n = a.shape[-2:]
    return vnp.pad(qr_without_q(a), [*[(0, 0)] * (a.ndim - 2), (0, max(0, m - n)), (0, 0)])


def _pivots(a: Array) -> Array:
    """Return the order of columns in which each has the largest remainder.

    It is what the others before it leave of a column (Golub and Van Loan, Matrix Computations, 5.4.2).
    """
    *batch, rows, columns = a.shape
    positions = lax.broadcasted_iota(INDEX, (*batch, columns), len(batch))

    def step(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, order = state
        size = vnp.where(positions < k, -1.0, vnp.sum(squared(rest), axis=-2))
        largest = vnp.argmax(size, axis=-1)[..., None]
        exchange = vnp.where(positions == k, largest, vnp.where(positions == largest, k, positions))
        rest = vnp.take_along_axis(rest, exchange[..., None, :], axis=-1)
        column = lax.dynamic_slice_in_dim(rest, k, 1, rest.ndim - 1)
        length = vnp.sum(squared(column), axis=(-2, -1), keepdims=True)
        rest = rest - matmul(column, matmul(adjoint(column), rest) * to_dtype(safe_inverse(length), a.dtype))
        return rest, vnp.take_along_axis(order, exchange, axis=-1)

    return lax.fori_loop(0, min(rows, columns), step, (a, positions))[1]


def qr_multiply(
    a: Any,
    c: Any,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
) -> tuple[Array, ...]:
    """Multiply c with Q of the economic QR decomposition of matrices (*batch, M, N).

    Args:
        a: the matrices, whose Q is (*batch, M, K) with K = min(M, N).
        c: matrices, or a vector that counts as a row (mode "right") or as a column.
        mode: "right" for c Q with c of M columns, "left" for Q c with c of K rows.
        pivoting: whether to reorder the columns of `a`, as in `qr`.
        conjugate: whether to multiply with the complex conjugate of Q.
        overwrite_a, overwrite_c: without effect.

    Return the product (a vector if c is one), R, and with `pivoting` the order of columns. Raises `ArgumentError` for another mode,
    `ShapeError` where c does not fit.

    >>> product, r = vf.scipy.linalg.qr_multiply(vf.numpy.eye(2), vf.numpy.array([3.0, 4.0]))
    >>> abs(product)
    Array([3., 4.], dtype=float32)
    """
    if mode not in ("left", "right"):
        raise ArgumentError(f"qr_multiply: mode must be 'left' or 'right', got {mode!r}")
    matrix, factor = promote_inexact("qr_multiply", a, c)
    q, *rest = qr(matrix, mode="economic", pivoting=pivoting)
    q = conj(q) if conjugate and q.dtype.kind == "c" else q
    single = factor.ndim == 1
    factor = lax.expand_dims(factor, (0 if mode == "right" else 1,)) if single else factor
    if factor.ndim < 2 or factor.shape[-1 if mode == "right" else -2] != q.shape[-2 if mode == "right" else -1]:
        raise ShapeError(f"qr_multiply: c of shape {factor.shape} does not fit Q of shape {q.shape} from the {mode}")
    product = matmul(factor, q) if mode == "right" else matmul(q, factor)
    return (lax.squeeze(product, (product.ndim - (2 if mode == "right" else 1),)) if single else product), *rest


def svd(
    a: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:
    """Decompose matrices (*batch, M, N) into U diag(s) Vh; only s if not `compute_uv`.

    s descends. U and Vh are square if `full_matrices`, else they have min(M, N) columns and rows. `overwrite_a`, `check_finite` and
    `lapack_driver` have no effect.

    >>> vf.scipy.linalg.svd(vf.numpy.array([[3.0, 0.0], [0.0, -4.0]]), compute_uv=False)
    Array([4., 3.], dtype=float32)
    """
    return decompositions.svd(a, full_matrices, compute_uv)


def svdvals(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Return the singular values of matrices (*batch, M, N), descending.

    `overwrite_a` and `check_finite` have no effect.

    >>> vf.scipy.linalg.svdvals(vf.numpy.array([[3.0, 0.0], [0.0, 4.0]])).round(4)
    Array([4., 3.], dtype=float32)
    """
    return decompositions.svdvals(a)

"""Eigenvalues and linear systems of sparse matrices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import check_option
from volta_fn.errors import DTypeError, MissingDependencyError, ShapeError
from volta_fn.experimental.sparse.matrices import CSR
from volta_fn.lazy_imports import is_installed, load
from volta_fn.primitives.call import pure_callback

__all__ = ["lobpcg_standard", "spsolve"]


def lobpcg_standard(A: Any, X: Any, m: int = 100, tol: Any = None) -> tuple[Array, Array, Array]:
    """Return the largest eigenvalues and eigenvectors of a matrix by LOBPCG.

    Args:
        A: a Hermitian matrix of shape (n, n), dense or sparse, or a function that multiplies matrices of shape (n, k) by one.
        X: where to begin: k linearly independent vectors, of shape (n, k), with 0 < 5 k < n.
        m: the largest number of iterations.
        tol: stop when the residuals' norms are at most ``tol · 10 n (|λ| + norm of A x)`` (default: the dtype's epsilon).

    Returns:
        ``(eigenvalues, eigenvectors, iterations)``: of shapes (k,) and (n, k), the largest first.

    Raises:
        ShapeError: the shapes do not fit.
        DTypeError: X is not of floating-point numbers.

    Each iteration finds the best vectors in the space of the current ones, their residuals, and the last steps (Knyazev, 2001). A QR
    decomposition makes an orthonormal basis of it.

    >>> start = vf.random.normal(vf.random.key(0), (8, 1))
    >>> lobpcg_standard(vf.numpy.diag(vf.numpy.arange(8.0)), start)[0].round(3)
    Array([7.], dtype=float32)
    """
    x = vnp.asarray(X)
    if not callable(A) and x.ndim == 2 and tuple(A.shape) != (x.shape[0], x.shape[0]):
        raise ShapeError(
            f"lobpcg_standard: A must have the shape {(x.shape[0], x.shape[0])} for an X of shape {x.shape}, got {tuple(A.shape)}"
        )
    multiply: Callable[[Array], Array] = A if callable(A) else lambda v: (vnp.asarray(A) if hasattr(A, "__array__") else A) @ v
    _check_inputs(multiply, x)
    n, k = x.shape
    limit = (dtypes.finfo(x.dtype).eps if tol is None else tol) * 10 * n

    def measure(x: Array) -> tuple[Array, Array, Array]:
        product = multiply(x)
        theta = (x.conj() * product).sum(0).real
        residual = product - theta.astype(x.dtype) * x
        scale = vnp.abs(theta) + vnp.linalg.norm(product, axis=0)
        return theta, residual, (vnp.linalg.norm(residual, axis=0) <= limit * scale).all()

    def improve(basis: Array) -> tuple[Array, Array]:
        projected = basis.conj().T @ multiply(basis)
        vectors = _eigh_ascending((projected + projected.conj().T) / 2)[1][:, :k]
        return basis @ vectors, basis[:, k:] @ vectors[k:]

    def continues(state: Any) -> Array:
        *_, is_converged, i = state
        return (i < m) & ~is_converged

    def step(state: Any) -> Any:
        x, p, _, residual, _, i = state
        x, p = improve(vnp.linalg.qr(vnp.concatenate([x, _unit_columns(residual), _unit_columns(p)], 1))[0])
        return x, p, *measure(x), i + 1

    x, _ = improve(vnp.linalg.qr(x)[0])
    x, _, theta, _, _, i = lax.while_loop(continues, step, (x, vnp.zeros_like(x), *measure(x), 0))
    order = vnp.argsort(-theta)  # equal eigenvalues differ by their rounding
    return theta[order], x[:, order], i


# Steps of LOBPCG, by the names of JAX's, which libraries put together in other ways.


def _check_inputs(A: Callable[[Array], Array], X: Array) -> None:
    """Raise unless LOBPCG may begin with `X`, and `A` multiplies such vectors."""
    if X.ndim != 2 or not 0 < 5 * X.shape[1] < X.shape[0]:
        raise ShapeError(f"lobpcg_standard: X must have the shape (n, k) with 0 < 5 k < n, got {X.shape}")
    if not vnp.issubdtype(X.dtype, np.inexact):
        raise DTypeError(f"lobpcg_standard: X must have floating-point numbers, got {X.dtype.name}")
    product = A(vnp.zeros((X.shape[0], 1), X.dtype))
    if product.shape != (X.shape[0], 1):
        raise ShapeError(f"lobpcg_standard: A must multiply vectors of shape {(X.shape[0], 1)}, got a product of shape {product.shape}")
    if product.dtype != X.dtype:
        raise DTypeError(f"lobpcg_standard: A and X must have one dtype, got {product.dtype.name} and {X.dtype.name}")


def _mm(a: Array, b: Array, precision: Any = lax.Precision.HIGHEST) -> Array:
    """Return a product of matrices, as precise as can be."""
    return lax.dot(a, b, precision=precision)


def _eigh_ascending(A: Array) -> tuple[Array, Array]:
    """Return eigenvalues, the largest first, and eigenvectors."""
    values, vectors = vnp.linalg.eigh(A)
    return values[::-1], vectors[:, ::-1]


def _unit_columns(x: Array) -> Array:
    norms = vnp.linalg.norm(x, axis=0)
    return x / vnp.where(norms == 0, 1, norms).astype(x.dtype)


def spsolve(data: Any, indices: Any, indptr: Any, b: Any, tol: float = 1e-6, reorder: int = 1) -> Array:
    """Solve a linear system of a sparse matrix by SciPy's direct solver, on the host.

    Args:
        data, indices, indptr: a square matrix by rows, as the arrays of a `CSR` matrix.
        b: the right-hand side, of shape (n,) or (n, k).
        tol, reorder: options of solvers for GPUs, which do not change the result here; `reorder` is 0, 1, 2 or 3.

    Returns:
        The solution, of the shape of `b`. For a singular matrix it is not a number, and SciPy warns.

    Raises:
        ShapeError: the shapes do not fit.
        ArgumentError: `reorder` is another number.
        MissingDependencyError: SciPy is not installed.
        DTypeError: data and `b` are not float32, float64, complex64 or complex128 numbers of one dtype.

    Derivatives by data and `b` are solutions of further systems; `vmap` solves one system after another.

    >>> m = CSR.fromdense(vf.numpy.array([[2.0, 0.0], [1.0, 4.0]]))
    >>> spsolve(m.data, m.indices, m.indptr, vf.numpy.array([2.0, 9.0]))
    Array([1., 2.], dtype=float32)
    """
    if not is_installed("scipy"):
        raise MissingDependencyError("spsolve needs the package scipy; install it: pip install scipy")
    elements, columns, pointers, right = (vnp.asarray(x) for x in (data, indices, indptr, b))
    n = pointers.shape[0] - 1 if pointers.ndim == 1 else -1
    if n < 0 or elements.ndim != 1 or elements.shape != columns.shape or right.ndim not in (1, 2) or right.shape[0] != n:
        shapes = elements.shape, columns.shape, pointers.shape, right.shape
        raise ShapeError(f"spsolve: data, indices, indptr and b of the shapes {shapes} do not make a square system")
    check_option(reorder, "spsolve: reorder", (0, 1, 2, 3))
    if elements.dtype != right.dtype or elements.dtype.name not in ("float32", "float64", "complex64", "complex128"):
        raise DTypeError(
            f"spsolve: data and b must both be float32, float64, complex64 or complex128, got {elements.dtype.name} and {right.dtype.name}"
        )
    matrix = CSR((elements, columns, pointers), shape=(n, n))

    def solve(vector: Array, transpose: bool) -> Array:
        if not right.size:
            return vnp.zeros_like(right)
        arrays = elements, columns, pointers, vector
        return pure_callback(functools.partial(_solve, transpose=transpose), right, *arrays, vmap_method="sequential")

    return lax.custom_linear_solve(
        lambda x: matrix @ x, right, lambda _, y: solve(y, False), transpose_solve=lambda _, y: solve(y, True), symmetric=False
    )


def _solve(data: Any, indices: Any, indptr: Any, b: Any, transpose: bool) -> np.ndarray:
    data, indices, indptr, b = (np.asarray(x) for x in (data, indices, indptr, b))
    matrix = load("scipy.sparse").csr_matrix((data, indices, indptr), shape=(len(b), len(b)))
    solve = load("scipy.sparse.linalg").spsolve
    return np.asarray(solve((matrix.T if transpose else matrix).tocsc(), b), b.dtype).reshape(b.shape)

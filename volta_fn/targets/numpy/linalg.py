"""Linear algebra in NumPy and by SciPy's LAPACK: factorisations and solves."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.errors import MissingDependencyError
from volta_fn.lazy_imports import is_installed, load

# Linear algebra that NumPy lacks, by SciPy's LAPACK and BLAS, matrix by matrix.

Result = tuple[np.ndarray, ...]


@functools.cache
def has_scipy() -> bool:
    """Return True if SciPy is installed."""
    return is_installed("scipy")


def functions(names: Sequence[str], dtype: np.dtype) -> list[Any]:
    """Return LAPACK's functions for a dtype.

    Raises:
        MissingDependencyError: SciPy is not installed.
    """
    if not has_scipy():
        raise MissingDependencyError(f"{names[0]} computes on the host by the package scipy; install it: pip install scipy")
    names = [_unitary(name) for name in names] if dtype.kind == "c" else names
    routines: list[Any] = load("scipy.linalg.lapack").get_lapack_funcs(names, dtype=dtype)
    return routines


def _unitary(name: str) -> str:
    """Return a function's name for unitary or Hermitian matrices."""
    return {"or": "un", "sy": "he"}.get(name[:2], name[:2]) + name[2:]


def each(compute: Callable[..., Any], stacks: Sequence[tuple[np.ndarray, int]], results: Sequence[tuple[Sequence[int], Any]]) -> Result:
    """Compute the results, of given shapes and dtypes, for every element of stacks.

    A stack stands with the number of dimensions of an element. Where it holds numbers that are not finite the results are NaN.
    """
    out = tuple([np.full(shape, np.nan, dtype) for shape, dtype in results])
    first, rank = stacks[0]
    for index in np.ndindex(first.shape[: first.ndim - rank]):
        elements = [stack[index] for stack, _ in stacks]
        if all(np.isfinite(element).all() for element in elements) and any(result[index].size for result in out):
            for result, value in zip(out, compute(*elements), strict=True):
                result[index] = value
    return out


def hessenberg(x: np.ndarray) -> Result:
    """Return Hessenberg forms with reflectors below, and the reflectors' factors."""
    (gehrd,) = functions(["gehrd"], x.dtype)
    n = x.shape[-1]
    return each(lambda m: gehrd(m)[:2], [(x, 2)], [(x.shape, x.dtype), ((*x.shape[:-2], max(0, n - 1)), x.dtype)])


def schur(x: np.ndarray, *, compute_vectors: bool) -> Result:
    """Return Schur forms, and vectors if asked; NaN where LAPACK does not converge."""
    (gees,) = functions(["gees"], x.dtype)

    def compute(m: np.ndarray) -> Any:
        outputs = gees(lambda *_: None, m, compute_v=compute_vectors)
        form, vectors = (outputs[0], outputs[-3]) if not outputs[-1] else (np.nan, np.nan)
        return (form, vectors) if compute_vectors else (form,)

    return each(compute, [(x, 2)], [(x.shape, x.dtype)] * (1 + compute_vectors))


def tridiagonal(x: np.ndarray, *, lower: bool) -> Result:
    """Return tridiagonal forms with reflectors, two diagonals, and factors."""
    (sytrd,) = functions(["sytrd"], x.dtype)
    *stack, n, _ = x.shape
    real, less = x.real.dtype, max(0, n - 1)
    shapes = [(x.shape, x.dtype), ((*stack, n), real), ((*stack, less), real), ((*stack, less), x.dtype)]
    return each(lambda m: sytrd(m, lower=lower)[:4], [(x, 2)], shapes)


def householder_product(a: np.ndarray, taus: np.ndarray) -> np.ndarray:
    """Return the first columns of products of Householder's reflections."""
    (orgqr,) = functions(["orgqr"], a.dtype)
    (out,) = each(lambda m, t: orgqr(m, t)[:1], [(a, 2), (taus, 1)], [(a.shape, a.dtype)])
    return out


def tridiagonal_solve(dl: np.ndarray, d: np.ndarray, du: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the solutions of tridiagonal systems; NaN where a matrix is singular."""
    (gtsv,) = functions(["gtsv"], b.dtype)

    def compute(lower: np.ndarray, diagonal: np.ndarray, upper: np.ndarray, right: np.ndarray) -> Any:
        # A further equation, x = 0, for SciPy does not take diagonals without elements.
        one, more = np.ones(1, b.dtype), np.zeros((1, b.shape[-1]), b.dtype)
        sides = [np.append(side, 0 * one) for side in (lower[1:], upper[:-1])]
        *_, x, status = gtsv(sides[0], np.append(diagonal, one), sides[1], np.vstack([right, more]))
        return (np.nan if status else x[:-1],)

    (out,) = each(compute, [(dl, 1), (d, 1), (du, 1), (b, 2)], [(b.shape, b.dtype)])
    return out


def lapack_lu(x: np.ndarray) -> Result:
    """Return what `linalg.lu` does."""
    (getrf,) = functions(["getrf"], x.dtype)
    (laswp,) = functions(["laswp"], np.dtype(np.float64))
    *batch, m, n = x.shape
    order = np.arange(m, dtype=np.float64)[:, None]
    packed, pivots, permutation = np.empty_like(x), np.empty((*batch, min(m, n)), np.int32), np.empty((*batch, m), np.int32)
    for index in np.ndindex(*batch):
        packed[index], pivots[index], _ = getrf(x[index])
        permutation[index] = laswp(order, pivots[index])[:, 0]
    return packed, pivots, permutation


def lapack_triangular_solve(
    a: np.ndarray, b: np.ndarray, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> np.ndarray:
    """Do what `linalg.triangular_solve` does; to BLAS it is Xᵀ op(A)ᵀ = Bᵀ."""
    trsm = load("scipy.linalg.blas").get_blas_funcs("trsm", dtype=b.dtype)
    conjugates = conjugate_a and not transpose_a and a.dtype.kind == "c"
    op = 0 if not transpose_a else 2 if conjugate_a else 1
    b = b.conj() if conjugates else b
    out = np.empty_like(b, order="C")
    for index in np.ndindex(b.shape[:-2]):
        out[index] = trsm(1, a[index].T, b[index].T, side=left_side, lower=not lower, trans_a=op, diag=unit_diagonal).T
    return out.conj() if conjugates else out


# Linear algebra in NumPy: factorisations and triangular solves.
#
# Operands are stacks of matrices. The dtypes are float32, float64, complex64 and complex128; leading dimensions are a batch. Where a
# factorisation does not exist or LAPACK does not converge, that matrix's results are NaN and the others' are unharmed. NumPy brings
# LAPACK's Cholesky, QR, eigenvalue and singular value routines, SciPy LU and the triangular solve; where it is not installed
# these are recursions whose work is matrix products.

#: Blocks up to this size are solved and factored row by row (column by column); larger ones are split in two.
_BLOCK = 16


def cholesky(x: np.ndarray) -> np.ndarray:
    """Return L with L Lᴴ = x from x's lower triangle; NaN if not positive definite."""
    (factor,) = _each(lambda m: (np.linalg.cholesky(m),), x, [(x.shape, x.dtype)])
    return np.tril(factor)


def qr(x: np.ndarray, *, full_matrices: bool, compute_q: bool) -> Result:
    """Return Q with orthonormal columns and upper triangular R with Q R = x.

    Without `compute_q` it is the tuple of R alone, as it is without `full_matrices`.
    """
    if not compute_q:
        return (np.asarray(np.linalg.qr(x, mode="r")),)
    q, r = np.linalg.qr(x, mode="complete" if full_matrices else "reduced")
    return q, r


def eigh(x: np.ndarray, *, lower: bool, sort_eigenvalues: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvectors, as columns, and ascending eigenvalues.

    The matrices are Hermitian, and one triangle is read. The eigenvalues ascend whether or not ``sort_eigenvalues`` asks for it.
    """
    real = x.real.dtype

    def vectors_first(m: np.ndarray) -> Result:
        w, v = np.linalg.eigh(m, UPLO="L" if lower else "U")
        return v, w

    v, w = _each(vectors_first, x, [(x.shape, x.dtype), (x.shape[:-1], real)])
    return v, w


def svd(x: np.ndarray, *, full_matrices: bool, compute_uv: bool) -> Result:
    """Return descending singular values s, or ``(s, U, Vᴴ)`` with U diag(s) Vᴴ = x.

    U and Vᴴ are returned if ``compute_uv``.
    """
    *batch, m, n = x.shape
    k = min(m, n)
    shapes = [((*batch, k), x.real.dtype)]
    if not compute_uv:
        return _each(lambda m: (np.linalg.svd(m, compute_uv=False),), x, shapes)
    shapes += [((*batch, m, m if full_matrices else k), x.dtype), ((*batch, n if full_matrices else k, n), x.dtype)]

    def values_first(m: np.ndarray) -> Result:
        u, s, vt = np.linalg.svd(m, full_matrices=full_matrices)
        return s, u, vt

    return _each(values_first, x, shapes)


def eig(x: np.ndarray, *, compute_vectors: bool) -> Result:
    """Return complex eigenvalues, and if asked right eigenvectors of unit length."""
    dtype = np.result_type(x.dtype, np.complex64)
    if not compute_vectors:
        return _each(lambda m: (np.linalg.eigvals(m).astype(dtype, copy=False),), x, [(x.shape[:-1], dtype)])

    def decompose(m: np.ndarray) -> Result:
        w, v = np.linalg.eig(m)
        return w.astype(dtype, copy=False), v.astype(dtype, copy=False)

    return _each(decompose, x, [(x.shape[:-1], dtype), (x.shape, dtype)])


def _each(function: Callable[[np.ndarray], Result], x: np.ndarray, results: Sequence[tuple[Sequence[int], np.dtype]]) -> Result:
    """Apply ``function`` to the stack, else to each matrix, with NaN where it fails."""
    try:
        return function(x)
    except np.linalg.LinAlgError:
        pass
    out = tuple(np.full(shape, np.nan, dtype) for shape, dtype in results)
    for index in np.ndindex(x.shape[:-2]):
        try:
            values = function(x[index])
        except np.linalg.LinAlgError:
            continue
        for stack, value in zip(out, values, strict=True):
            stack[index] = value
    return out


# The triangular solve.


def triangular_solve(
    a: np.ndarray, b: np.ndarray, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> np.ndarray:
    """Return X with op(a) X = b, or X op(a) = b unless ``left_side``.

    ``op`` transposes or conjugates ``a``, of which one triangle is read. Where the diagonal has a zero the result has infinities or NaN.
    """
    if b.size and has_scipy():
        flags = {"left_side": left_side, "lower": lower, "transpose_a": transpose_a, "conjugate_a": conjugate_a}
        return lapack_triangular_solve(a, b, unit_diagonal=unit_diagonal, **flags)
    a = a.conj() if conjugate_a else a
    if transpose_a != (not left_side):
        a, lower = a.swapaxes(-1, -2), not lower
    x = np.array(b if left_side else b.swapaxes(-1, -2), order="C")
    if not lower:  # Turned by half a circle, an upper triangle is a lower one.
        _solve_lower(a[..., ::-1, ::-1], x[..., ::-1, :], unit_diagonal)
    else:
        _solve_lower(a, x, unit_diagonal)
    return x if left_side else x.swapaxes(-1, -2)


def _solve_lower(a: np.ndarray, x: np.ndarray, unit_diagonal: bool) -> None:
    """Replace ``x`` by the solution of L X = x, L being the lower triangle of ``a``."""
    n = a.shape[-1]
    if n <= _BLOCK:
        for i in range(n):
            if i:
                x[..., i, :] -= (a[..., i : i + 1, :i] @ x[..., :i, :])[..., 0, :]
            if not unit_diagonal:
                x[..., i, :] /= a[..., i, i, None]
        return
    half = n // 2
    top, bottom = x[..., :half, :], x[..., half:, :]
    _solve_lower(a[..., :half, :half], top, unit_diagonal)
    bottom -= a[..., half:, :half] @ top
    _solve_lower(a[..., half:, half:], bottom, unit_diagonal)


# LU.


def lu(x: np.ndarray) -> Result:
    """Return the LU decomposition with partial pivoting: ``x[permutation] = L U``.

    L (unit lower triangular) and U are in one matrix; then come the int32 ``pivots`` (step i exchanged rows i and pivots[i]) and the int32
    ``permutation``. A singular matrix has zeros on the diagonal of U. The recursion is Toledo's (SIAM J. Matrix Anal. Appl. 18, 1997).
    """
    if x.size and has_scipy():
        return lapack_lu(x)
    *batch, m, n = x.shape
    out = np.array(x, order="C").reshape(math.prod(batch), m, n)
    pivots, permutation = _factor(out)
    return out.reshape(x.shape), pivots.astype(np.int32).reshape(*batch, min(m, n)), permutation.astype(np.int32).reshape(*batch, m)


def _factor(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Replace each matrix of the stack by its L and U; return pivots and permutation."""
    rank = min(a.shape[1:])
    if rank <= _BLOCK:
        stack, m, n = a.shape
        each = np.arange(stack)
        pivots = np.zeros((stack, min(m, n)), np.intp)
        permutation = np.tile(np.arange(m), (stack, 1))
        for j in range(min(m, n)):
            pivot = pivots[:, j] = j + _size(a[:, j:, j]).argmax(axis=1)
            for rows in (a, permutation):
                chosen = rows[each, pivot]
                rows[each, pivot] = rows[:, j]
                rows[:, j] = chosen
            below, diagonal = a[:, j + 1 :, j], a[:, j, j, None]
            below /= np.where(diagonal == 0, 1, diagonal)
            if j + 1 < n:
                a[:, j + 1 :, j + 1 :] -= below[..., None] * a[:, j, None, j + 1 :]
        return pivots, permutation
    half = rank // 2
    left, right = a[:, :, :half], a[:, :, half:]
    pivots, permutation = _factor(left)
    right[:] = _permuted(right, permutation)
    _solve_lower(left[:, :half], right[:, :half], unit_diagonal=True)
    right[:, half:] -= left[:, half:] @ right[:, :half]
    more_pivots, more = _factor(right[:, half:])
    left[:, half:] = _permuted(left[:, half:], more)
    permutation[:, half:] = np.take_along_axis(permutation[:, half:], more, 1)
    return np.concatenate([pivots, more_pivots + half], axis=1), permutation


def _size(x: np.ndarray) -> np.ndarray:
    """Return the size by which pivots are compared: |re| + |im|, as in LAPACK."""
    return abs(x.real) + abs(x.imag) if x.dtype.kind == "c" else abs(x)


def _permuted(rows: np.ndarray, permutation: np.ndarray) -> np.ndarray:
    return np.take_along_axis(rows, permutation[:, :, None], axis=1)

"""Linear algebra that NumPy lacks, by SciPy's LAPACK and BLAS, matrix by matrix."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.errors import MissingDependencyError
from volta_fn.lazy_imports import is_installed, load

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
    found: list[Any] = load("scipy.linalg.lapack").get_lapack_funcs(names, dtype=dtype)
    return found


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
        if all(np.isfinite(element).all() for element in elements) and any(one[index].size for one in out):
            for one, value in zip(out, compute(*elements), strict=True):
                one[index] = value
    return out


def hessenberg(x: np.ndarray) -> Result:
    """Return Hessenberg forms with reflectors below, and the reflectors' factors."""
    (gehrd,) = functions(["gehrd"], x.dtype)
    n = x.shape[-1]
    return each(lambda m: gehrd(m)[:2], [(x, 2)], [(x.shape, x.dtype), ((*x.shape[:-2], max(0, n - 1)), x.dtype)])


def schur(x: np.ndarray, *, compute_vectors: bool) -> Result:
    """Return Schur forms, and if ``compute_vectors`` the vectors.

    They are NaN where LAPACK does not converge.
    """
    (gees,) = functions(["gees"], x.dtype)

    def compute(m: np.ndarray) -> Any:
        found = gees(lambda *_: None, m, compute_v=compute_vectors)
        form, vectors = (found[0], found[-3]) if not found[-1] else (np.nan, np.nan)
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


def lu(x: np.ndarray) -> Result:
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


def triangular_solve(
    a: np.ndarray, b: np.ndarray, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> np.ndarray:
    """Return what `linalg.triangular_solve` does.

    To BLAS, op(A) X = B is Xᵀ op(A)ᵀ = Bᵀ.
    """
    trsm = load("scipy.linalg.blas").get_blas_funcs("trsm", dtype=b.dtype)
    conjugates = conjugate_a and not transpose_a and a.dtype.kind == "c"
    op = 0 if not transpose_a else 2 if conjugate_a else 1
    b = b.conj() if conjugates else b
    out = np.empty_like(b, order="C")
    for index in np.ndindex(b.shape[:-2]):
        out[index] = trsm(1, a[index].T, b[index].T, side=left_side, lower=not lower, trans_a=op, diag=unit_diagonal).T
    return out.conj() if conjugates else out

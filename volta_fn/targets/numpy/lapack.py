"""Linear algebra that NumPy lacks, by SciPy's LAPACK, one matrix at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.errors import MissingDependencyError
from volta_fn.lazy_imports import is_installed, load

Result = tuple[np.ndarray, ...]


def functions(names: Sequence[str], dtype: np.dtype) -> list[Any]:
    """Return LAPACK's functions for a dtype.

    Raises:
        MissingDependencyError: SciPy is not installed.
    """
    if not is_installed("scipy"):
        raise MissingDependencyError(f"{names[0]} computes on the host by the package scipy; install it: pip install scipy")
    names = [_unitary(name) for name in names] if dtype.kind == "c" else names
    found: list[Any] = load("scipy.linalg.lapack").get_lapack_funcs(names, dtype=dtype)
    return found


def _unitary(name: str) -> str:
    """Return the name of a function for orthogonal or symmetric matrices as it is of complex ones."""
    return {"or": "un", "sy": "he"}.get(name[:2], name[:2]) + name[2:]


def each(compute: Callable[..., Result], stacks: Sequence[tuple[np.ndarray, int]], results: Sequence[tuple[Sequence[int], Any]]) -> Result:
    """Compute the results, of given shapes and dtypes, for every element of stacks.

    An element of a stack has as many dimensions as is said beside it. Where it holds numbers that are not finite the results are NaN.
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
    """Return Hessenberg forms with the reflectors below them, and the reflectors' factors."""
    (gehrd,) = functions(["gehrd"], x.dtype)
    n = x.shape[-1]
    return each(lambda m: gehrd(m)[:2], [(x, 2)], [(x.shape, x.dtype), ((*x.shape[:-2], max(0, n - 1)), x.dtype)])


def schur(x: np.ndarray, *, compute_vectors: bool) -> Result:
    """Return Schur forms, and if ``compute_vectors`` the vectors; NaN where LAPACK does not converge."""
    (gees,) = functions(["gees"], x.dtype)

    def compute(m: np.ndarray) -> Result:
        found = gees(lambda *_: None, m, compute_v=compute_vectors)
        form, vectors = (found[0], found[-3]) if not found[-1] else (np.nan, np.nan)
        return (form, vectors) if compute_vectors else (form,)

    return each(compute, [(x, 2)], [(x.shape, x.dtype)] * (1 + compute_vectors))


def tridiagonal(x: np.ndarray, *, lower: bool) -> Result:
    """Return tridiagonal forms with reflectors beside them, two diagonals, and the reflectors' factors."""
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

    def compute(lower: np.ndarray, diagonal: np.ndarray, upper: np.ndarray, right: np.ndarray) -> Result:
        # A further equation, x = 0, for SciPy does not take diagonals without elements.
        one, more = np.ones(1, b.dtype), np.zeros((1, b.shape[-1]), b.dtype)
        sides = [np.append(side, 0 * one) for side in (lower[1:], upper[:-1])]
        *_, x, status = gtsv(sides[0], np.append(diagonal, one), sides[1], np.vstack([right, more]))
        return (np.nan if status else x[:-1],)

    (out,) = each(compute, [(dl, 1), (d, 1), (du, 1), (b, 2)], [(b.shape, b.dtype)])
    return out

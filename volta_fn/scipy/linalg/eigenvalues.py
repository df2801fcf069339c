"""Eigenvalues of Hermitian matrices, pairs of them, and tridiagonal matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn.core.array import Array
from volta_fn.core.aval import as_integer
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.arguments import concrete, promote_inexact
from volta_fn.numpy.linalg.operands import matrices
from volta_fn.numpy.products import matmul
from volta_fn.primitives.linalg.matrices import adjoint, hermitian_of
from volta_fn.scipy.linalg.factorizations import cho_factor, solve_triangular
from volta_fn.scipy.linalg.structured_matrices import on_diagonal


def eigh(
    a: Any,
    b: Any = None,
    *,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    type: int = 1,
    check_finite: bool = True,
    subset_by_index: Sequence[int] | None = None,
    subset_by_value: Sequence[float] | None = None,
    driver: str | None = None,
) -> Any:
    """Return ascending eigenvalues w and eigenvectors v of Hermitian matrices.

    The vectors are columns.

    Args:
        a: the matrices (*batch, N, N), of which one triangle is read.
        b: positive definite matrices of the same shape, for a generalised problem; reduced by its Cholesky factor.
        lower: whether the lower triangles of a and b are read, or the upper.
        eigvals_only: whether to return w alone.
        type: the generalised problem: 1 for a v = w b v, 2 for a b v = w v, 3 for b a v = w v; vᴴ b v = 1, of type 3 vᴴ b⁻¹ v = 1.
        subset_by_index: the first and the last index of those to return.
        subset_by_value: (low, high), to return those with low < w <= high; only for a single matrix that is not traced.
        overwrite_a, overwrite_b, check_finite, driver: without effect.

    Raises `ArgumentError` for another type, an impossible subset, or two of them, `ShapeError` where b has another shape than a.

    >>> vf.scipy.linalg.eigh(vf.numpy.array([[2.0, 1.0], [1.0, 2.0]]), eigvals_only=True).round(3)
    Array([1., 3.], dtype=float32)
    """
    if type not in (1, 2, 3):
        raise ArgumentError(f"eigh: type must be 1, 2 or 3, got {type!r}")
    if b is None:
        matrix = matrices("eigh", "a", a, square=True)
        vectors, values = lax.linalg.eigh(matrix, lower=lower, symmetrize_input=False)
    else:
        first, second = promote_inexact("eigh", a, b)
        vectors, values = _generalized(first, second, lower, type)
    chosen = _subset("eigh", values, subset_by_index, subset_by_value)
    return values[..., chosen] if eigvals_only else (values[..., chosen], vectors[..., chosen])


def _generalized(a: Array, b: Array, lower: bool, kind: int) -> tuple[Array, Array]:
    """Return eigenvectors and eigenvalues of a pair, with L Lᴴ = b.

    Of type 1 those of L⁻¹ a L⁻ᴴ, else of Lᴴ a L; L⁻ᴴ leads the vectors back, of type 3 L.
    """
    first, second = matrices("eigh", "a", a, square=True), matrices("eigh", "b", b, square=True)
    if first.shape != second.shape:
        raise ShapeError(f"eigh: a and b must have one shape, got {first.shape} and {second.shape}")
    factor = cho_factor(second, lower)[0]
    factor = factor if lower else adjoint(factor)
    full = hermitian_of(first, lower)
    if kind == 1:
        half = solve_triangular(factor, full, lower=True)
        reduced = adjoint(solve_triangular(factor, adjoint(half), lower=True))
    else:
        reduced = matmul(adjoint(factor), matmul(full, factor))
    vectors, values = lax.linalg.eigh(reduced)
    return (matmul(factor, vectors) if kind == 3 else solve_triangular(factor, vectors, "C", True)), values


def _subset(function: str, values: Array, by_index: Sequence[float] | None, by_value: Sequence[float] | None) -> slice:
    """Return which of the ascending eigenvalues are asked for."""
    if by_index is not None and by_value is not None:
        raise ArgumentError(f"{function}: choose a subset by index or by value, not both")
    count = values.shape[-1]
    if by_index is not None:
        low, high = (as_integer(end, f"{function}: an index of a subset") for end in by_index)
        if not 0 <= low <= high < count:
            raise ArgumentError(f"{function}: the indices of a subset must be 0 <= first <= last < {count}, got {(low, high)}")
        return slice(low, high + 1)
    if by_value is None:
        return slice(None)
    bottom, top = by_value
    if not bottom < top:
        raise ArgumentError(f"{function}: the bounds of a subset must be low < high, got {(bottom, top)}")
    known = concrete(function, "a", values, "choose a subset by index, whose size is known while tracing")
    if known.ndim != 1:
        raise ShapeError(f"{function}: a subset by value needs a single matrix, for several have subsets of different sizes")
    first, last = np.searchsorted(known, [bottom, top], side="right")
    return slice(int(first), int(last))


def eigvalsh(
    a: Any,
    b: Any = None,
    *,
    lower: bool = True,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    type: int = 1,
    check_finite: bool = True,
    subset_by_index: Sequence[int] | None = None,
    subset_by_value: Sequence[float] | None = None,
    driver: str | None = None,
) -> Array:
    """Return the ascending eigenvalues of Hermitian matrices; arguments as of `eigh`.

    >>> vf.scipy.linalg.eigvalsh(vf.numpy.array([[2.0, 1.0], [1.0, 2.0]])).round(4)
    Array([1., 3.], dtype=float32)
    """
    return eigh(a, b, lower=lower, eigvals_only=True, type=type, subset_by_index=subset_by_index, subset_by_value=subset_by_value)


def eigh_tridiagonal(
    d: Any,
    e: Any,
    eigvals_only: bool = False,
    select: str = "a",
    select_range: Sequence[float] | None = None,
    check_finite: bool = True,
    tol: float = 0.0,
    lapack_driver: str = "auto",
) -> Any:
    """Return ascending eigenvalues and eigenvectors of real tridiagonal matrices.

    Args:
        d: the diagonals (*batch, N).
        e: the diagonals next to them (*batch, N - 1).
        eigvals_only: whether to return the eigenvalues alone.
        select: "a" for all, "v" for those with low < w <= high, "i" for those from one index to another, both included.
        select_range: (low, high) or the two indices.
        check_finite, tol, lapack_driver: without effect.

    The matrix is decomposed as a full one. Raises `ArgumentError` for another `select`, or one without its range, `ShapeError` where d and
    e do not fit together.

    >>> vf.scipy.linalg.eigh_tridiagonal(vf.numpy.array([2.0, 2.0]), vf.numpy.array([1.0]), eigvals_only=True).round(3)
    Array([1., 3.], dtype=float32)
    """
    if select not in ("a", "v", "i") or (select != "a" and select_range is None):
        raise ArgumentError(f"eigh_tridiagonal: select must be 'a', or 'v' or 'i' with a select_range; got {select!r}, {select_range}")
    main, side = promote_inexact("eigh_tridiagonal", d, e)
    if main.dtype.kind == "c":
        raise ArgumentError("eigh_tridiagonal: the matrices must be real; use eigh for complex ones")
    if not main.ndim or not side.ndim or side.shape != (*main.shape[:-1], main.shape[-1] - 1):
        raise ShapeError(f"eigh_tridiagonal: d of N elements needs e of N - 1, got shapes {main.shape} and {side.shape}")
    vectors, values = lax.linalg.eigh(on_diagonal(main) + on_diagonal(side, -1), symmetrize_input=False)
    chosen = _subset("eigh_tridiagonal", values, *(select_range if select == kind else None for kind in "iv"))
    return values[..., chosen] if eigvals_only else (values[..., chosen], vectors[..., chosen])

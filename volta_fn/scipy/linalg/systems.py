"""Linear systems of matrices of known structure, inverses and determinants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.arguments import promote_inexact
from volta_fn.numpy.linalg import determinants, norms, solving
from volta_fn.numpy.linalg.operands import identity_like, matrices
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.linalg.matrices import diagonal, hermitian_of, swap, tril, triu
from volta_fn.scipy.linalg.factorizations import cho_factor, cho_solve, solve_triangular

Solver = Callable[[Array, Array, bool], Array]


def _symmetric(a: Array, lower: bool) -> Array:
    """Return the symmetric matrix with a triangle of `a`."""
    return tril(a) + swap(tril(a, -1)) if lower else triu(a) + swap(triu(a, 1))


def _tridiagonal(a: Array) -> Array:
    return triu(tril(a, 1), -1)


#: How `solve` reads the matrix for each `assume_a`, and solves; names in SciPy's order.
_SOLVERS: dict[str | None, Solver] = {
    None: lambda a, b, lower: solving.solve(a, b),
    "general": lambda a, b, lower: solving.solve(a, b),
    "diagonal": lambda a, b, lower: b / lax.expand_dims(diagonal(a), (a.ndim - 1,)),
    "tridiagonal": lambda a, b, lower: solving.solve(_tridiagonal(a), b),
    "banded": lambda a, b, lower: solving.solve(a, b),
    "upper triangular": lambda a, b, lower: solve_triangular(a, b),
    "lower triangular": lambda a, b, lower: solve_triangular(a, b, lower=True),
    "symmetric": lambda a, b, lower: solving.solve(_symmetric(a, lower), b),
    "hermitian": lambda a, b, lower: solving.solve(hermitian_of(a, lower), b),
    "positive definite": lambda a, b, lower: cho_solve(cho_factor(a, lower), b),
}
_SHORT = {"gen": "general", "sym": "symmetric", "her": "hermitian", "pos": "positive definite"}


def solve(
    a: Any,
    b: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    assume_a: str | None = None,
    transposed: bool = False,
) -> Array:
    """Solve a X = b for square matrices a (*batch, N, N), which may have a structure.

    Args:
        a: the matrices.
        b: right-hand sides (*batch, N, K), or a single one (N,). The batch dimensions broadcast.
        lower: whether the lower triangle is read, or the upper, of symmetric, Hermitian and positive definite matrices.
        assume_a: "general" ("gen") or None, "diagonal", "tridiagonal", "banded", "upper triangular", "lower triangular", "symmetric"
            ("sym"), "hermitian" ("her") or "positive definite" ("pos", solved by its Cholesky factor). Other elements are not read;
            "banded" reads all of them.
        transposed: whether to solve aᵀ X = b.
        overwrite_a, overwrite_b, check_finite: without effect.

    A singular matrix gives infinities or NaN. Raises `ArgumentError` for another `assume_a`, `ShapeError` where a and b do not
    fit together.

    >>> vf.scipy.linalg.solve(vf.numpy.array([[4.0, 2.0], [2.0, 5.0]]), vf.numpy.array([8.0, 12.0]), assume_a="pos").round(4)
    Array([1., 2.], dtype=float32)
    """
    structure = _SHORT.get(assume_a, assume_a) if assume_a else None
    if structure not in _SOLVERS:
        names = ", ".join(repr(name) for name in (*_SHORT, *_SOLVERS) if name)
        raise ArgumentError(f"solve: assume_a must be one of {names}, or None; got {assume_a!r}")
    matrix, right = promote_inexact("solve", a, b)
    matrix = matrices("solve", "a", matrix, square=True)
    single = right.ndim == 1
    right = lax.expand_dims(right, (1,)) if single else right
    size = matrix.shape[-1]
    if right.ndim < 2 or right.shape[-2] != size:
        raise ShapeError(f"solve: b must have {size} rows, as many as a of shape {matrix.shape}; got shape {right.shape}")
    stack = lax.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    matrix, right = broadcast_to(matrix, (*stack, size, size)), broadcast_to(right, (*stack, *right.shape[-2:]))
    # A transpose has the other triangle. One that is assumed to be symmetric is its own.
    if transposed and structure in ("upper triangular", "lower triangular"):
        x = solve_triangular(matrix, right, "T", structure == "lower triangular")
    elif transposed and structure in ("hermitian", "positive definite"):
        x = _SOLVERS[structure](swap(matrix), right, not lower)
    elif transposed and structure != "symmetric":
        x = _SOLVERS[structure](swap(matrix), right, lower)
    else:
        x = _SOLVERS[structure](matrix, right, lower)
    return lax.squeeze(x, (x.ndim - 1,)) if single else x


def inv(a: Any, overwrite_a: bool = False, check_finite: bool = True, *, assume_a: str | None = None, lower: bool = False) -> Array:
    """Invert square matrices (*batch, N, N); singular ones give infinities or NaN.

    `assume_a` and `lower` are as in `solve`; `overwrite_a` and `check_finite` have no effect.

    >>> vf.scipy.linalg.inv(vf.numpy.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    matrix = matrices("inv", "a", a, square=True)
    return solve(matrix, identity_like(matrix), lower, assume_a=assume_a)


def pinv(a: Any, *, atol: Any = None, rtol: Any = None, return_rank: bool = False, check_finite: bool = True) -> Any:
    """Return the Moore-Penrose pseudo-inverse of matrices (*batch, M, N).

    Singular values up to `atol` + `rtol` times the greatest count as zero; by default `atol` is 0, and `rtol` max(M, N) · eps unless `atol`
    is given. With `return_rank`, return the number of the others, too. `check_finite` has no effect.

    >>> vf.scipy.linalg.pinv(vf.numpy.array([[2.0, 0.0], [0.0, 0.0]]))
    Array([[0.5, 0. ],
           [0. , 0. ]], dtype=float32)
    """
    matrix = matrices("pinv", "a", a)
    limit = (0.0 if atol is not None else max(matrix.shape[-2:]) * float(dtypes.finfo(matrix.dtype).eps)) if rtol is None else rtol
    if atol is not None and matrix.size:
        limit = limit + atol / vnp.max(solving.svdvals(lax.stop_gradient(matrix)), axis=-1)
    inverse = solving.pinv(matrix, limit)
    return (inverse, solving.matrix_rank(matrix, limit)) if return_rank else inverse


def norm(a: Any, ord: Any = None, axis: Any = None, keepdims: bool = False, check_finite: bool = True) -> Array:
    """Return the norm of a vector or a matrix; `numpy.linalg.norm` lists the orders.

    `check_finite` has no effect.

    >>> vf.scipy.linalg.norm(vf.numpy.array([3.0, 4.0]))
    Array(5., dtype=float32)
    """
    return norms.norm(a, ord, axis, keepdims)


def det(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Return the determinant of square matrices, differentiable also where singular.

    `overwrite_a` and `check_finite` have no effect.

    >>> vf.scipy.linalg.det(vf.numpy.array([[1.0, 2.0], [3.0, 4.0]]))
    Array(-2., dtype=float32)
    """
    return determinants.det(a)

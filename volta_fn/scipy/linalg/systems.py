"""Linear systems of matrices of known structure, and Sylvester's equation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy import linalg
from volta_fn.numpy.arguments import promote_inexact
from volta_fn.numpy.linalg import broadcast_system, identity_like, matrices, system
from volta_fn.primitives.linalg import triangular_solve
from volta_fn.primitives.linalg.solvers import adjoint, diagonal, hermitian_of, swap, tril, triu
from volta_fn.scipy.linalg.decompositions import cho_factor, cho_solve, schur, solve_triangular

# Linear systems of matrices of known structure, inverses and determinants.

Solver = Callable[[Array, Array, bool], Array]


def _symmetric(a: Array, lower: bool) -> Array:
    """Return the symmetric matrix with a triangle of `a`."""
    return tril(a) + swap(tril(a, -1)) if lower else triu(a) + swap(triu(a, 1))


#: How `solve` reads the matrix for each `assume_a`, and solves; names in SciPy's order.
_SOLVERS: dict[str | None, Solver] = {
    None: lambda a, b, lower: linalg.solve(a, b),
    "general": lambda a, b, lower: linalg.solve(a, b),
    "diagonal": lambda a, b, lower: b / lax.expand_dims(diagonal(a), (a.ndim - 1,)),
    "tridiagonal": lambda a, b, lower: linalg.solve(triu(tril(a, 1), -1), b),
    "banded": lambda a, b, lower: linalg.solve(a, b),
    "upper triangular": lambda a, b, lower: solve_triangular(a, b),
    "lower triangular": lambda a, b, lower: solve_triangular(a, b, lower=True),
    "symmetric": lambda a, b, lower: linalg.solve(_symmetric(a, lower), b),
    "hermitian": lambda a, b, lower: linalg.solve(hermitian_of(a, lower), b),
    "positive definite": lambda a, b, lower: cho_solve(cho_factor(a, lower), b),
}
_SHORT = {"gen": "general", "sym": "symmetric", "her": "hermitian", "pos": "positive definite"}


@fused
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
    matrix, right, single = system(a, b)
    matrix, right = broadcast_system(matrix, right)
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


@fused
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
        limit = limit + atol / vnp.max(linalg.svdvals(lax.stop_gradient(matrix)), axis=-1)
    inverse = linalg.pinv(matrix, limit)
    return (inverse, linalg.matrix_rank(matrix, limit)) if return_rank else inverse


def norm(a: Any, ord: Any = None, axis: Any = None, keepdims: bool = False, check_finite: bool = True) -> Array:
    """Return the norm of a vector or a matrix; `numpy.linalg.norm` lists the orders.

    `check_finite` has no effect.

    >>> vf.scipy.linalg.norm(vf.numpy.array([3.0, 4.0]))
    Array(5., dtype=float32)
    """
    return linalg.norm(a, ord, axis, keepdims)


def det(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Return the determinant of square matrices, differentiable also where singular.

    `overwrite_a` and `check_finite` have no effect.

    >>> vf.scipy.linalg.det(vf.numpy.array([[1.0, 2.0], [3.0, 4.0]]))
    Array(-2., dtype=float32)
    """
    return linalg.det(a)


# Sylvester's equation, A X + X B = C.


def solve_sylvester(A: Any, B: Any, C: Any, *, method: str = "schur", tol: float = 1e-8) -> Array:
    """Return the solution X of A X + X B = C.

    Args:
        A, B: matrices (*batch, M, M) and (*batch, N, N).
        C: matrices (*batch, M, N). The batches broadcast.
        method: "schur", by Schur forms (Bartels and Stewart, 1972), or "eigen", by eigenvectors, which loses digits where they are
            almost dependent. On the host, "schur" needs SciPy.
        tol: matrices with eigenvalues a of A and b of B for which |a + b| is less have no unique solution: the result is NaN.

    Raises `ShapeError` if the shapes do not fit.

    >>> A, B = vf.numpy.array([[1.0, 2.0], [0.0, 3.0]]), vf.numpy.array([[4.0]])
    >>> vf.scipy.linalg.solve_sylvester(A, B, vf.numpy.array([[9.0], [7.0]])).round(3)
    Array([[1.4],
           [1. ]], dtype=float32)
    """
    if method not in ("schur", "eigen"):
        raise ArgumentError(f"solve_sylvester: method must be 'schur' or 'eigen', got {method!r}")
    a, b, c = promote_inexact("solve_sylvester", A, B, C)
    a, b = matrices("solve_sylvester", "A", a, square=True), matrices("solve_sylvester", "B", b, square=True)
    c = matrices("solve_sylvester", "C", c)
    if (a.shape[-1], b.shape[-1]) != c.shape[-2:]:
        raise ShapeError(f"solve_sylvester: A must be (M, M), B (N, N) and C (M, N), got {a.shape}, {b.shape} and {c.shape}")
    batch = vnp.broadcast_shapes(*[x.shape[:-2] for x in (a, b, c)])
    a, b, c = (vnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b, c))
    if not c.size:
        return c
    solve = _by_schur_forms if method == "schur" else _by_eigenvectors
    transposed = lambda _, right: solve(a.mT, b.mT, right, tol)  # noqa: E731
    return lax.custom_linear_solve(lambda x: a @ x + x @ b, c, lambda _, right: solve(a, b, right, tol), transposed)


def _by_schur_forms(a: Array, b: Array, c: Array, tol: float) -> Array:
    """Solve by the triangular Schur forms R of a and S of b."""
    # They make it R Y + Y S = F, whose columns follow one from another.
    (r, u), (s, v) = schur(a, "complex"), schur(b, "complex")
    right = adjoint(u) @ c.astype(r.dtype) @ v
    last = right.ndim - 1

    def fill(j: Array, done: Array) -> Array:
        column = lax.dynamic_slice_in_dim(s, j, 1, last)
        shift = lax.dynamic_slice_in_dim(column, j, 1, last - 1)
        x = triangular_solve(r + shift * identity_like(r), lax.dynamic_slice_in_dim(right, j, 1, last) - done @ column, left_side=True)
        return lax.dynamic_update_slice_in_dim(done, x, j, last)

    solution = lax.fori_loop(0, right.shape[-1], fill, lax.full_like(right, 0))
    return _where_unique(u @ solution @ adjoint(v), diagonal(r), diagonal(s), tol, c)


def _by_eigenvectors(a: Array, b: Array, c: Array, tol: float) -> Array:
    (p, u), (q, v) = vnp.linalg.eig(a), vnp.linalg.eig(b)
    right = vnp.linalg.solve(u, c.astype(p.dtype) @ v)
    solution = right / (p[..., :, None] + q[..., None, :])
    return _where_unique(u @ vnp.linalg.solve(v.mT, solution.mT).mT, p, q, tol, c)


def _where_unique(x: Array, p: Array, q: Array, tol: float, like: Array) -> Array:
    """Return x, or NaN where eigenvalues p and q have a sum of almost 0.

    It is real if `like` is.
    """
    unique = abs(p[..., :, None] + q[..., None, :]).min((-2, -1), keepdims=True) >= tol
    return vnp.where(unique, x if like.dtype.kind == "c" else x.real, vnp.nan)

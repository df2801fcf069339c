"""Sylvester's equation, A X + X B = C."""

from __future__ import annotations

from typing import Any

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.arguments import promote_inexact
from volta_fn.numpy.linalg.operands import identity_like, matrices
from volta_fn.primitives.linalg import triangular_solve
from volta_fn.primitives.linalg.matrices import adjoint, diagonal
from volta_fn.scipy.linalg.condensed_forms import schur


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
    """Solve by the triangular Schur forms R of a and S of b.

    They make it R Y + Y S = F, whose columns follow one from another.
    """
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

"""GMRES: generalised minimal residuals (Saad and Schultz, 1986), with restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.scipy.linalg.factorizations import solve_triangular
from volta_fn.scipy.sparse.linalg.systems import System, solved

#: From the system, an orthonormal basis' first vector, the residual's norm, the number of vectors, and the norm to reach, to a correction.
Cycle = Callable[[System, Array, Array, int, Any], Array]


def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: Any = 1e-5,
    atol: Any = 0.0,
    restart: int = 20,
    maxiter: int | None = None,
    M: Any = None,
    solve_method: str = "batched",
) -> tuple[Any, None]:
    """Solve ``A x = b`` by GMRES, for any invertible A.

    Args:
        A: a matrix, or a linear function from pytrees like b to such.
        b: the right-hand side, a pytree of arrays; integers become floats.
        x0: where to begin (default: zeros).
        tol, atol: stop when the norm of the (preconditioned) residual is at most max(tol · norm of b, atol).
        restart: the dimension of the Krylov spaces, which are built anew from each approximation. Larger ones converge in fewer cycles.
        maxiter: the largest number of such cycles (default: ten times the number of unknowns).
        M: an approximate inverse of A, for faster convergence.
        solve_method: "batched" builds all of the space, then solves one least squares problem; "incremental" updates a QR decomposition in
            every iteration, so that a cycle can end early.

    Returns:
        ``(x, None)``; SciPy has a status in the second position, and so may this function one day.

    Derivatives and errors are those of `cg`; an unknown `solve_method` or a `restart` below 1 raises `ArgumentError`.

    >>> x, _ = vf.scipy.sparse.linalg.gmres(jnp.array([[2.0, 1.0], [0.0, 4.0]]), jnp.array([3.0, 4.0]))
    >>> x.round(4)
    Array([1., 1.], dtype=float32)
    """
    if solve_method not in _CYCLES:
        raise ArgumentError(f"gmres: solve_method must be 'batched' or 'incremental', got {solve_method!r}")
    if restart < 1:
        raise ArgumentError(f"gmres: restart must be at least 1, got {restart}")
    cycle = _CYCLES[solve_method]
    return solved("gmres", A, b, x0, M, lambda system: _restarted(system, cycle, tol, atol, restart, maxiter)), None


def _restarted(system: System, cycle: Cycle, tol: Any, atol: Any, restart: int, maxiter: int | None) -> Array:
    limit = 10 * system.b.size if maxiter is None else maxiter
    size = min(restart, system.b.size)
    if not size:
        return system.x0
    norm_b = vnp.linalg.norm(system.b)
    enough = vnp.maximum(tol * norm_b, atol)
    # Within a cycle the preconditioned residual counts, relative to the preconditioned right-hand side.
    ratio = vnp.minimum(1, enough / vnp.where(norm_b == 0, 1, norm_b))
    enough_in_cycle = vnp.linalg.norm(system.precondition(system.b)) * ratio

    def goes_on(state: Any) -> Array:
        _, _, norm, k = state
        return (norm > enough) & (k < limit)

    def step(state: Any) -> Any:
        x, unit, norm, k = state
        x = x + cycle(system, unit, norm, size, enough_in_cycle)
        return x, *residual(x), k + 1

    def residual(x: Array) -> tuple[Array, Array]:
        return normalized(system.precondition(system.b - system.operator(x)))

    return lax.while_loop(goes_on, step, (system.x0, *residual(system.x0), 0))[0]


def normalized(v: Array, least: Any = 0.0) -> tuple[Array, Array]:
    """Return a vector divided by its norm, and the norm; zeros up to `least`."""
    norm = vnp.linalg.norm(v)
    is_zero = norm <= least
    return vnp.where(is_zero, 0, v / vnp.where(is_zero, 1, norm)), vnp.where(is_zero, 0, norm)


def _extended(system: System, basis: Array, k: Array) -> tuple[Array, Array]:
    """Do step k of Arnoldi's iteration: return the basis with one more vector.

    Also return column k of the operator's matrix in that basis. The basis has zeros for its missing vectors, so that all columns can be
    projected on; the second projection removes what rounding left over from the first.
    """
    v = system.precondition(system.operator(basis[:, k]))
    before = vnp.linalg.norm(v)
    column = vnp.zeros(basis.shape[1], basis.dtype)
    for _ in range(2):
        overlap = basis.conj().T @ v
        v, column = v - basis @ overlap, column + overlap
    unit, norm = normalized(v, float(dtypes.finfo(basis.dtype).eps) * before)
    return basis.at[:, k + 1].set(unit), column.at[k + 1].set(norm.astype(basis.dtype))


def _empty_space(unit: Array, size: int) -> tuple[Array, Array]:
    """Return a basis of one vector, and an identity for the operator's matrix."""
    basis = vnp.zeros((unit.size, size + 1), unit.dtype).at[:, 0].set(unit)
    return basis, vnp.eye(size + 1, size, dtype=unit.dtype)


def _batched(system: System, unit: Array, norm: Array, size: int, enough: Any) -> Array:
    def goes_on(state: Any) -> Array:
        _, _, is_complete, k = state
        return (k < size) & ~is_complete

    def step(state: Any) -> Any:
        basis, matrix, _, k = state
        basis, column = _extended(system, basis, k)
        return basis, matrix.at[:, k].set(column), column[k + 1] == 0, k + 1

    basis, matrix, _, _ = lax.while_loop(goes_on, step, (*_empty_space(unit, size), False, 0))
    q, r = vnp.linalg.qr(matrix)
    return basis[:, :-1] @ solve_triangular(r, q[0].conj() * norm.astype(q.dtype))


def _incremental(system: System, unit: Array, norm: Array, size: int, enough: Any) -> Array:
    def goes_on(state: Any) -> Array:
        _, _, _, rest, k = state
        return (k < size) & (abs(rest[k]) > enough)

    def step(state: Any) -> Any:
        basis, matrix, rotations, rest, k = state
        basis, column = _extended(system, basis, k)
        column = lax.fori_loop(0, k, lambda i, c: _rotated(c, i, rotations[i]), column)
        rotation = _rotation(column[k], column[k + 1])
        column, rest = _rotated(column, k, rotation), _rotated(rest, k, rotation)
        return basis, matrix.at[:, k].set(column), rotations.at[k].set(rotation), rest, k + 1

    basis, matrix = _empty_space(unit, size)
    rest = vnp.zeros(size + 1, unit.dtype).at[0].set(norm.astype(unit.dtype))
    rotations = vnp.zeros((size, 2), unit.dtype)
    basis, triangle, _, rest, k = lax.while_loop(goes_on, step, (basis, matrix, rotations, rest, 0))
    known = vnp.where(vnp.arange(size) < k, rest[:-1], 0)
    return basis[:, :-1] @ solve_triangular(triangle[:-1], known)


def _rotation(a: Array, b: Array) -> Array:
    """Return cosine and sine of the Givens rotation of (a, b) to (r, 0); b is real."""
    size = abs(a)
    length = vnp.hypot(size, abs(b))
    phase = vnp.where(size == 0, 1, a / vnp.where(size == 0, 1, size))
    scale = vnp.where(length == 0, 1, length)
    cosine = vnp.where(length == 0, 1, size / scale)
    return vnp.stack([cosine.astype(a.dtype), phase * b / scale])


def _rotated(vector: Array, i: Any, rotation: Array) -> Array:
    """Rotate elements i and i + 1 of a vector."""
    x, y = vector[i], vector[i + 1]
    cosine, sine = rotation[0], rotation[1]
    return vector.at[i].set(cosine * x + sine * y).at[i + 1].set(cosine * y - sine.conj() * x)


_CYCLES: dict[str, Cycle] = {"batched": _batched, "incremental": _incremental}

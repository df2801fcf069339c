"""Iterative solvers of ``A x = b``, where A is a matrix or a function.

The solvers are conjugate gradients, BiCGSTAB and GMRES. Derivatives of a solution are solutions of further systems. The examples use
`import volta_fn as vf`.

>>> import volta_fn as vf
>>> matrix = vf.numpy.array([[4.0, 1.0], [1.0, 3.0]])
>>> x, _ = vf.scipy.sparse.linalg.cg(matrix, vf.numpy.array([1.0, 2.0]))
>>> x.round(4)
Array([0.0909, 0.6364], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import check_option
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError, TreeError
from volta_fn.numpy.arguments import promote_inexact
from volta_fn.numpy.joining import ravel_pytree
from volta_fn.scipy.linalg.decompositions import solve_triangular

__all__ = ["bicgstab", "cg", "gmres"]


# Linear systems of pytrees as systems of vectors, with implicit derivatives.
#
# The solvers work on one vector, in which the leaves of b are concatenated.

Operator = Callable[[Any], Any]


class System(NamedTuple):
    """A linear system of vectors: ``operator(x) = b``, to be solved from x0."""

    operator: Callable[[Array], Array]
    b: Array
    x0: Array
    #: An approximate inverse of the operator, or None.
    preconditioner: Callable[[Array], Array] | None

    def precondition(self, residual: Array) -> Array:
        """Apply the preconditioner, if there is one."""
        return residual if self.preconditioner is None else self.preconditioner(residual)


def solved(function: str, A: Any, b: Any, x0: Any, M: Any, solve: Callable[[System], Array], is_hermitian: bool = False) -> Any:
    """Solve a system of pytrees by a solver of vectors, and make it differentiable."""
    right = tree.map(lambda x: promote_inexact(function, x)[0], b)
    start = tree.map(vnp.zeros_like, right) if x0 is None else x0
    if tree.structure(start) != tree.structure(right):
        raise TreeError(f"{function}: x0 must have the structure of b, {tree.structure(right)}, got {tree.structure(start)}")
    shapes = [[vnp.shape(x) for x in tree.leaves(t)] for t in (start, right)]
    if shapes[0] != shapes[1]:
        raise ShapeError(f"{function}: x0 must have the shapes of b, {shapes[1]}, got {shapes[0]}")
    operator, preconditioner = as_operator(function, A), M if M is None else as_operator(function, M)

    def run(matvec: Operator, vector: Any) -> Any:
        flat, unravel = ravel_pytree(vector)
        x = ravel_pytree(start)[0].astype(flat.dtype)
        on_vectors = lambda apply: lambda v: ravel_pytree(apply(unravel(v)))[0]  # noqa: E731
        return unravel(solve(System(on_vectors(matvec), flat, x, preconditioner and on_vectors(preconditioner))))

    is_real = all(leaf.dtype not in dtypes.COMPLEX for leaf in tree.leaves(right))
    solution = lax.custom_linear_solve(operator, right, run, transpose_solve=run, symmetric=is_hermitian and is_real)
    return tree.map(lambda x, b: lax.convert_element_type(x, x.dtype, weak_type=b.weak_type), solution, right)


def as_operator(function: str, A: Any) -> Operator:
    """Return a matrix, or anything that can be multiplied, as a function."""
    if callable(A):
        return A
    if not hasattr(A, "__matmul__"):
        raise ArgumentTypeError(f"{function}: a linear operator is a function or a matrix, got {type(A).__name__}")
    shape = getattr(A, "shape", None)
    if shape is not None and (len(shape) != 2 or shape[0] != shape[1]):
        raise ShapeError(f"{function}: a linear operator must be a square matrix, got shape {shape}")
    matrix = vnp.asarray(A) if hasattr(A, "__array__") else A
    return lambda x: matrix @ x


def squared_norm(x: Array) -> Array:
    """Return the sum of squared magnitudes."""
    return vnp.vdot(x, x).real


def largest_residual(b: Array, tol: Any, atol: Any) -> Array:
    """Return the norm of the residual at which a solution is good enough, squared."""
    return vnp.maximum(tol * tol * squared_norm(b), atol * atol)


# Conjugate gradients, and stabilised biconjugate gradients.


def cg(A: Any, b: Any, x0: Any = None, *, tol: Any = 1e-5, atol: Any = 0.0, maxiter: int | None = None, M: Any = None) -> tuple[Any, None]:
    """Solve ``A x = b`` by conjugate gradients, for a Hermitian positive definite A.

    Args:
        A: a matrix, or a linear function from pytrees like b to such (Hestenes and Stiefel, 1952).
        b: the right-hand side, a pytree of arrays; integers become floats.
        x0: where to begin (default: zeros).
        tol, atol: stop when the residual's norm is at most max(tol · norm of b, atol).
        maxiter: the largest number of iterations (default: ten times the number of unknowns).
        M: an approximate inverse of A, for faster convergence.

    Returns:
        ``(x, None)``; SciPy has a status in the second position, and so may this function one day.

    Derivatives, of both modes, are solutions of further systems, and as exact as those are. Raises `ShapeError`, `TreeError`, `DTypeError`
    or `ArgumentTypeError` for arguments that do not fit together.

    >>> vf.scipy.sparse.linalg.cg(lambda x: jnp.array([2.0, 4.0]) * x, jnp.ones(2))
    (Array([0.5 , 0.25], dtype=float32), None)
    """
    return solved("cg", A, b, x0, M, lambda system: _cg(system, tol, atol, _limit(system, maxiter)), is_hermitian=True), None


def bicgstab(
    A: Any, b: Any, x0: Any = None, *, tol: Any = 1e-5, atol: Any = 0.0, maxiter: int | None = None, M: Any = None
) -> tuple[Any, None]:
    """Solve ``A x = b`` by stabilised biconjugate gradients (van der Vorst, 1992).

    A need not be symmetric. Arguments, result, derivatives and errors are those of `cg`.

    >>> x, _ = vf.scipy.sparse.linalg.bicgstab(jnp.array([[2.0, 1.0], [0.0, 4.0]]), jnp.array([3.0, 4.0]))
    >>> x.round(4)
    Array([1., 1.], dtype=float32)
    """
    return solved("bicgstab", A, b, x0, M, lambda system: _bicgstab(system, tol, atol, _limit(system, maxiter))), None


def _limit(system: System, maxiter: int | None) -> Any:
    return 10 * system.b.size if maxiter is None else maxiter


def _cg(system: System, tol: Any, atol: Any, maxiter: Any) -> Array:
    enough = largest_residual(system.b, tol, atol)

    def continues(state: Any) -> Array:
        _, r, _, _, k = state
        return (squared_norm(r) > enough) & (k < maxiter)

    def step(state: Any) -> Any:
        x, r, gamma, p, k = state
        moved = system.operator(p)
        alpha = gamma / vnp.vdot(p, moved).real
        x, r = x + alpha * p, r - alpha * moved
        z = system.precondition(r)
        after = vnp.vdot(r, z).real
        return x, r, after, z + after / gamma * p, k + 1

    r = system.b - system.operator(system.x0)
    z = system.precondition(r)
    return lax.while_loop(continues, step, (system.x0, r, vnp.vdot(r, z).real, z, 0))[0]


def _bicgstab(system: System, tol: Any, atol: Any, maxiter: Any) -> Array:
    enough = largest_residual(system.b, tol, atol)

    def continues(state: Any) -> Array:
        *_, r, is_stuck, k = state
        return (squared_norm(r) > enough) & (k < maxiter) & ~is_stuck

    def step(state: Any) -> Any:
        x, rho, alpha, omega, p, v, r, _, k = state
        rho_after = vnp.vdot(shadow, r)
        p = r + rho_after / rho * alpha / omega * (p - omega * v)
        direction = system.precondition(p)
        v = system.operator(direction)
        alpha = rho_after / vnp.vdot(shadow, v)
        s = r - alpha * v
        second = system.precondition(s)
        t = system.operator(second)
        is_done = squared_norm(s) <= enough  # so that omega may be 0 / 0
        omega = vnp.where(is_done, 0, vnp.vdot(t, s) / vnp.vdot(t, t))
        x, r = x + alpha * direction + omega * second, vnp.where(is_done, s, s - omega * t)
        return x, rho_after, alpha, omega, p, v, r, (omega == 0) | (alpha == 0) | (rho_after == 0), k + 1

    shadow = system.b - system.operator(system.x0)
    one, zeros = vnp.ones((), shadow.dtype), vnp.zeros_like(shadow)
    start = (system.x0, one, one, one, zeros, zeros, shadow, False, 0)
    return lax.while_loop(continues, step, start)[0]


# GMRES: generalised minimal residuals (Saad and Schultz, 1986), with restarts.

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
    check_option(solve_method, "gmres: solve_method", _CYCLES)
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

    def continues(state: Any) -> Array:
        _, _, norm, k = state
        return (norm > enough) & (k < limit)

    def step(state: Any) -> Any:
        x, unit, norm, k = state
        x = x + cycle(system, unit, norm, size, enough_in_cycle)
        return x, *residual(x), k + 1

    def residual(x: Array) -> tuple[Array, Array]:
        return normalized(system.precondition(system.b - system.operator(x)))

    return lax.while_loop(continues, step, (system.x0, *residual(system.x0), 0))[0]


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
    def continues(state: Any) -> Array:
        _, _, is_complete, k = state
        return (k < size) & ~is_complete

    def step(state: Any) -> Any:
        basis, matrix, _, k = state
        basis, column = _extended(system, basis, k)
        return basis, matrix.at[:, k].set(column), column[k + 1] == 0, k + 1

    basis, matrix, _, _ = lax.while_loop(continues, step, (*_empty_space(unit, size), False, 0))
    q, r = vnp.linalg.qr(matrix)
    return basis[:, :-1] @ solve_triangular(r, q[0].conj() * norm.astype(q.dtype))


def _incremental(system: System, unit: Array, norm: Array, size: int, enough: Any) -> Array:
    def continues(state: Any) -> Array:
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
    basis, triangle, _, rest, k = lax.while_loop(continues, step, (basis, matrix, rotations, rest, 0))
    rotated = vnp.where(vnp.arange(size) < k, rest[:-1], 0)
    return basis[:, :-1] @ solve_triangular(triangle[:-1], rotated)


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

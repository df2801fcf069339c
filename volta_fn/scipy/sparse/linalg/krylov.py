"""Conjugate gradients, and stabilised biconjugate gradients."""

from __future__ import annotations

from typing import Any

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.scipy.sparse.linalg.systems import System, largest_residual, solved, squared_norm


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

    def goes_on(state: Any) -> Array:
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
    return lax.while_loop(goes_on, step, (system.x0, r, vnp.vdot(r, z).real, z, 0))[0]


def _bicgstab(system: System, tol: Any, atol: Any, maxiter: Any) -> Array:
    enough = largest_residual(system.b, tol, atol)

    def goes_on(state: Any) -> Array:
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
    return lax.while_loop(goes_on, step, start)[0]

"""Linear systems of pytrees as systems of vectors, with implicit derivatives.

The solvers work on one vector, in which the leaves of b are concatenated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentTypeError, ShapeError, TreeError
from volta_fn.flatten_util import ravel_pytree
from volta_fn.numpy.arguments import promote_inexact

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


def solved(
    function: str,
    A: Any,
    b: Any,
    x0: Any,
    M: Any,
    solve: Callable[[System], Array],
    is_hermitian: bool = False,
) -> Any:
    """Solve a system of pytrees by a solver of vectors, and make it differentiable."""
    right = tree.map(lambda x: promote_inexact(function, x)[0], b)
    start = tree.map(vnp.zeros_like, right) if x0 is None else x0
    _check_start(function, start, right)
    operator, preconditioner = as_operator(function, A), M if M is None else as_operator(function, M)

    def run(matvec: Operator, vector: Any) -> Any:
        flat, unravel = ravel_pytree(vector)
        x = ravel_pytree(start)[0].astype(flat.dtype)
        on_vectors = lambda apply: lambda v: ravel_pytree(apply(unravel(v)))[0]  # noqa: E731
        return unravel(solve(System(on_vectors(matvec), flat, x, preconditioner and on_vectors(preconditioner))))

    is_real = all(leaf.dtype not in dtypes.COMPLEX for leaf in tree.leaves(right))
    found = lax.custom_linear_solve(operator, right, run, transpose_solve=run, symmetric=is_hermitian and is_real)
    return tree.map(lambda x, b: lax.convert_element_type(x, x.dtype, weak_type=b.weak_type), found, right)


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


def _check_start(function: str, x0: Any, b: Any) -> None:
    if tree.structure(x0) != tree.structure(b):
        raise TreeError(f"{function}: x0 must have the structure of b, {tree.structure(b)}, got {tree.structure(x0)}")
    shapes = [[vnp.shape(x) for x in tree.leaves(t)] for t in (x0, b)]
    if shapes[0] != shapes[1]:
        raise ShapeError(f"{function}: x0 must have the shapes of b, {shapes[1]}, got {shapes[0]}")


def squared_norm(x: Array) -> Array:
    """Return the sum of squared magnitudes."""
    return vnp.vdot(x, x).real


def largest_residual(b: Array, tol: Any, atol: Any) -> Array:
    """Return the norm of the residual at which a solution is good enough, squared."""
    return vnp.maximum(tol * tol * squared_norm(b), atol * atol)

"""Second derivatives of losses, and iterative linear algebra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.joining import ravel_pytree
from volta_fn.optim.numerics import global_norm, normalized, widened
from volta_fn.optim.tree_utils import tree_add_scale, tree_vdot
from volta_fn.transforms.grad import grad, jvp
from volta_fn.transforms.vmap import vmap

__all__ = ["fisher_diag", "hessian_diag", "hvp", "matrix_inverse_pth_root", "nnls", "power_iteration"]


# Second derivatives of losses with respect to all parameters, as vectors.

#: A function of parameters, inputs and targets to a scalar.
Loss = Callable[[Any, Any, Any], Any]


def hvp(loss: Loss, v: Any, params: Any, inputs: Any, targets: Any) -> Any:
    """Return the product of the loss's Hessian with a vector.

    Args:
        loss: ``loss(params, inputs, targets)``, a scalar.
        v: a vector of as many elements as the parameters have.
        params: a tree of arrays.
        inputs: of the loss.
        targets: of the loss.

    Returns a tree like the parameters.

    >>> loss = lambda w, x, y: jnp.sum(w**3 * x)
    >>> optim.second_order.hvp(loss, jnp.array([1.0, 1.0]), jnp.array([1.0, 2.0]), 1.0, None)
    Array([ 6., 12.], dtype=float32)
    """
    vector, unravel = ravel_pytree(params)
    return jvp(grad(lambda p: loss(p, inputs, targets)), (params,), (unravel(vnp.asarray(v, vector.dtype)),))[1]


def hessian_diag(loss: Loss, params: Any, inputs: Any, targets: Any) -> Array:
    """Return the diagonal of the loss's Hessian, by one `hvp` for each element.

    >>> loss = lambda w, x, y: jnp.sum(w**3 * x)
    >>> optim.second_order.hessian_diag(loss, jnp.array([1.0, 2.0]), 1.0, None)
    Array([ 6., 12.], dtype=float32)
    """
    vector, _ = ravel_pytree(params)
    return vmap(lambda v: vnp.vdot(v, ravel_pytree(hvp(loss, v, params, inputs, targets))[0]))(vnp.eye(vector.size, dtype=vector.dtype))


def fisher_diag(negative_log_likelihood: Loss, params: Any, inputs: Any, targets: Any) -> Array:
    """Return the squared gradient, the diagonal of the observed Fisher information.

    >>> loss = lambda w, x, y: jnp.sum(w**2 * x)
    >>> optim.second_order.fisher_diag(loss, jnp.array([1.0, 2.0]), 1.0, None)
    Array([ 4., 16.], dtype=float32)
    """
    return vnp.square(ravel_pytree(grad(negative_log_likelihood)(params, inputs, targets))[0])


# Iterative linear algebra that optimizers use: eigenvalues, roots, least squares.


def power_iteration(
    matrix: Any, *, v0: Any = None, num_iters: Any = 100, error_tolerance: Any = 1e-6, precision: Any = None, key: Any = None
) -> tuple[Array, Any]:
    """Return a symmetric matrix's eigenvalue of greatest magnitude and its vector.

    Args:
        matrix: of shape (n, n), or a function from a tree of arrays to such a tree.
        v0: the first vector, or tree; for a matrix by default random.
        num_iters: the greatest number of products.
        error_tolerance: how small |A v - λ v| / |λ| must be to stop earlier.
        precision: accepted for compatibility; products have full precision.
        key: a random key for `v0`, by default ``random.key(0)``.

    Raises `ArgumentError` for a function without `v0`, `ShapeError` for an array that is no square matrix.

    >>> value, vector = optim.power_iteration(jnp.array([[2.0, 0.0], [0.0, 1.0]]))
    >>> value.round(4), jnp.abs(vector).round(2)
    (Array(2., dtype=float32), Array([1., 0.], dtype=float32))
    """
    product, start = _operator(matrix, v0, key)
    start = normalized(start)
    image = product(start)

    def running(state: tuple[Any, ...]) -> Array:
        vector, image, value, step = state
        residual = global_norm(tree_add_scale(image, -value, vector))
        return ~(vnp.abs(residual / value) < error_tolerance) & (step < num_iters)

    def iterate(state: tuple[Any, ...]) -> tuple[Any, ...]:
        vector = normalized(state[1])
        image = product(vector)
        return vector, image, vnp.asarray(tree_vdot(vector, image)), state[3] + 1

    zero = vnp.zeros((), vnp.asarray(tree_vdot(start, image)).dtype)
    _, image, value, _ = lax.while_loop(running, iterate, (start, image, zero, vnp.zeros((), np.int32)))
    return value, normalized(image)


def _operator(matrix: Any, v0: Any, key: Any) -> tuple[Callable[[Any], Any], Any]:
    if callable(matrix):
        if v0 is None:
            raise ArgumentError("power_iteration: a function needs a first vector v0")
        return matrix, v0
    value = _square_matrix("power_iteration", matrix)
    if v0 is None:
        v0 = random.uniform(random.key(0) if key is None else key, value.shape[-1:], value.dtype, -1.0, 1.0)
    return lambda v: value @ v, v0


def _square_matrix(name: str, matrix: Any) -> Array:
    value = as_value(matrix)
    if value.ndim != 2 or value.shape[0] != value.shape[1]:
        raise ShapeError(f"{name}: a square matrix is needed, got shape {value.shape}")
    return value if value.dtype in dtypes.INEXACT else value.astype(np.float32)


def matrix_inverse_pth_root(
    matrix: Any, p: int, num_iters: Any = 100, ridge_epsilon: Any = 1e-6, error_tolerance: Any = 1e-6, precision: Any = None
) -> tuple[Array, Array]:
    """Return A^(-1/p) of a positive semidefinite matrix, and its error.

    It is computed by coupled Newton iterations (Guo and Higham 2006), as in Shampoo (Anil et al. 2020).

    Args:
        matrix: of shape (n, n).
        p: a positive integer.
        num_iters: the greatest number of iterations.
        ridge_epsilon: times the greatest eigenvalue, added to the diagonal.
        error_tolerance: the error at which to stop.
        precision: accepted for compatibility; products have full precision.

    Raises `ArgumentError` for another p, `ShapeError` for an array that is no square matrix.

    >>> root, error = optim.matrix_inverse_pth_root(jnp.array([[4.0, 0.0], [0.0, 16.0]]), 2)
    >>> root.round(3)
    Array([[0.5 , 0.  ], [0.  , 0.25]], dtype=float32)
    """
    if not isinstance(p, int) or isinstance(p, bool) or p < 1:
        raise ArgumentError(f"matrix_inverse_pth_root: p is a positive integer, got {p!r}")
    square = _square_matrix("matrix_inverse_pth_root", matrix)
    wide = widened(square)
    identity = vnp.eye(square.shape[0], dtype=wide.dtype)
    largest, _ = power_iteration(wide)
    damped = wide + ridge_epsilon * vnp.maximum(largest, 1e-16) * identity
    root, error = _inverse_root(damped, identity, p, num_iters, error_tolerance)
    return root.astype(square.dtype), error


def _inverse_root(damped: Array, identity: Array, p: int, num_iters: Any, error_tolerance: Any) -> tuple[Array, Array]:
    """Iterate M -> T^p M and H -> H T with T = ((p + 1) I - M) / p, until M = I."""

    def error_of(m: Array) -> Array:
        return vnp.max(vnp.abs(m - identity), initial=0)

    def running(state: tuple[Array, ...]) -> Array:
        _, _, error, improves, step = state
        return (step < num_iters) & (error > error_tolerance) & improves

    def iterate(state: tuple[Array, ...]) -> tuple[Array, ...]:
        m, h, error, _, step = state
        t = ((p + 1) * identity - m) / p
        new_m = vnp.linalg.matrix_power(t, p) @ m
        new_error = error_of(new_m)
        improves = new_error < 1.2 * error  # rounding makes it diverge in the end
        return vnp.where(improves, new_m, m), vnp.where(improves, h @ t, h), vnp.where(improves, new_error, error), improves, step + 1

    scale = (1 + p) / (2 * vnp.linalg.norm(damped))
    m = damped * scale
    start = (m, identity * scale ** (1 / p), error_of(m), vnp.array(True), vnp.zeros((), np.int32))
    _, root, error, _, _ = lax.while_loop(running, iterate, start)
    return root, error


def nnls(A: Any, b: Any, iters: int, unroll: int | bool = 1, L: Any = None) -> Array:
    """Return the least-squares solution of A x = b without negative numbers.

    It is computed by accelerated projected gradient descent (Polyak 2015).

    Args:
        A: of shape (m, n).
        b: of shape (m,) or (m, k).
        iters: the number of iterations.
        unroll: that of `lax.scan`.
        L: an upper bound of the eigenvalues of AᵀA; by default estimated.

    Returns x, of shape (n,) or (n, k). Raises `ShapeError` if the shapes do not fit.

    >>> optim.nnls(jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.array([3.0, -2.0]), iters=100).round(4)
    Array([3., 0.], dtype=float32)
    """
    matrix, target = as_value(A), as_value(b)
    if matrix.ndim != 2 or target.ndim not in (1, 2) or target.shape[0] != matrix.shape[0]:
        raise ShapeError(f"nnls: A has shape (m, n) and b (m,) or (m, k), got {matrix.shape} and {target.shape}")
    gram, image = matrix.mT @ matrix, matrix.mT @ target
    bound = vnp.asarray(_largest_eigenvalue(gram) if L is None else L, gram.dtype)
    bound = vnp.where(bound == 0, 1, bound)

    def step(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
        x, ahead, momentum = state
        following = (1 + vnp.sqrt(1 + 4 * momentum**2)) / 2
        new = vnp.maximum(ahead - (gram @ ahead - image) / bound, 0)
        return (new, new + (momentum - 1) / following * (new - x), following), None

    zero = vnp.zeros_like(image)
    state, _ = lax.scan(step, (zero, zero, vnp.zeros((), zero.dtype)), length=iters, unroll=unroll)
    return state[0]


def _largest_eigenvalue(gram: Array) -> Array:
    """Return an upper bound of a matrix's eigenvalues: the lesser of two norms."""
    if not gram.size:
        return vnp.zeros((), gram.dtype)
    return vnp.minimum(vnp.linalg.norm(gram), vnp.linalg.norm(gram, 1))

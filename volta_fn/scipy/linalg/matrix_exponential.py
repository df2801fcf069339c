"""Matrix exponentials by scaling, Padé approximation and squaring (Higham, 2005)."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn.core.array import Array
from volta_fn.core.aval import as_integer
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.arguments import full_like_scalar, promote_inexact
from volta_fn.numpy.linalg.norms import matrix_norm
from volta_fn.numpy.linalg.operands import identity_like, matrices
from volta_fn.numpy.linalg.solving import solve
from volta_fn.numpy.products import matmul
from volta_fn.scipy.linalg.factorizations import solve_triangular
from volta_fn.transforms.forward import jvp

#: By float size: the coefficients of Padé's approximation, and the largest norm for which it is exact to the last bit.
_PADE = {
    4: ((17297280, 8648640, 1995840, 277200, 25200, 1512, 56, 1), 3.925724783138660),
    8: (
        (
            64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600, 670442572800,
            33522128640, 1323241920, 40840800, 960960, 16380, 182, 1,
        ),
        5.371920351148152,
    ),
}  # fmt: skip


def expm(A: Any, *, upper_triangular: bool = False, max_squarings: int = 16) -> Array:
    """Return exp(A) = Σ Aᵏ / k! of square matrices (*batch, N, N), in their dtype.

    Matrices are halved until they are small, and the result is squared as often, at most `max_squarings` times; matrices that need more
    give NaN. With `upper_triangular` the system within is solved as a triangular one.

    >>> vf.scipy.linalg.expm(vf.numpy.array([[0.0, 1.0], [0.0, 0.0]]))
    Array([[1., 1.],
           [0., 1.]], dtype=float32)
    """
    matrix = matrices("expm", "A", A, square=True)
    most = as_integer(max_squarings, "expm: max_squarings")
    if not matrix.size:
        return matrix
    coefficients, largest = _PADE[matrix.dtype.itemsize // (2 if matrix.dtype.kind == "c" else 1)]
    norm = matrix_norm(lax.stop_gradient(matrix), keepdims=True, ord=1)
    times = lax.max(lax.ceil(lax.log2(lax.div(norm, full_like_scalar(norm, largest)))), full_like_scalar(norm, 0))
    scaled = lax.mul(matrix, lax.convert_element_type(lax.exp2(lax.neg(times)), matrix.dtype))
    result = _squared(_pade(scaled, coefficients, upper_triangular), times, most)
    return lax.select(lax.le(times, full_like_scalar(times, most)), result, full_like_scalar(result, np.nan))


def expm_frechet(A: Any, E: Any, method: str | None = None, compute_expm: bool = True, check_finite: bool = True) -> Any:
    """Return exp(A) and its derivative at A in the direction E (*batch, N, N).

    Without `compute_expm`, return the derivative alone. `method` ("SPS", "blockEnlarge" or None) and `check_finite` have no effect: it is
    the forward derivative of `expm`. Raises `ShapeError` where A and E have different shapes.

    >>> vf.scipy.linalg.expm_frechet(vf.numpy.zeros((2, 2)), vf.numpy.eye(2), compute_expm=False)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    if method not in (None, "SPS", "blockEnlarge"):
        raise ArgumentError(f"expm_frechet: method must be 'SPS', 'blockEnlarge' or None, got {method!r}")
    matrix, direction = promote_inexact("expm_frechet", A, E)
    if matrix.shape != direction.shape:
        raise ShapeError(f"expm_frechet: A and E must have one shape, got {matrix.shape} and {direction.shape}")
    result, derivative = jvp(expm, (matrix,), (direction,))
    return (result, derivative) if compute_expm else derivative


def _pade(x: Array, coefficients: tuple[int, ...], upper_triangular: bool) -> Array:
    """Return (V - U)⁻¹ (V + U), with the even terms in V and the odd ones in U."""
    square = matmul(x, x)
    power = identity_like(x)
    even, odd = (lax.mul(power, full_like_scalar(x, c)) for c in coefficients[:2])
    for c, d in zip(coefficients[2::2], coefficients[3::2], strict=True):
        power = matmul(power, square)
        even, odd = even + lax.mul(power, full_like_scalar(x, c)), odd + lax.mul(power, full_like_scalar(x, d))
    odd = matmul(x, odd)
    return solve_triangular(even - odd, even + odd) if upper_triangular else solve(even - odd, even + odd)


def _squared(x: Array, times: Array, most: int) -> Array:
    """Square each matrix `times` times, skipping iterations that no matrix needs."""

    def step(x: Array, number: Array) -> tuple[Array, None]:
        wanted = lax.lt(number, times)
        needed = lax.reduce_or(wanted, tuple(range(wanted.ndim)))
        return lax.cond(needed, lambda x: lax.select(wanted, matmul(x, x), x), lambda x: x, x), None

    return lax.scan(step, x, lax.iota(times.dtype, most))[0]

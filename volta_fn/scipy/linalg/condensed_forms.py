"""Schur and Hessenberg forms, and the polar decomposition."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.arguments import promote_inexact
from volta_fn.numpy.joining import stack
from volta_fn.numpy.linalg.decompositions import eigvals
from volta_fn.numpy.linalg.operands import matrices
from volta_fn.numpy.products import matmul
from volta_fn.primitives import linalg as primitives
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.linalg.matrices import adjoint, triu
from volta_fn.primitives.linalg.triangular import symmetrized
from volta_fn.transforms.vmap import vmap


def schur(a: Any, output: str = "real") -> tuple[Array, Array]:
    """Return the Schur form T and unitary Z with Z T Zᴴ = a.

    For matrices (*batch, N, N), T is upper triangular, except that the form of a real matrix has a block of two by two for each pair of
    complex eigenvalues. With `output` "complex" real matrices are taken as complex ones. On the host, this needs SciPy. It has no
    derivative.

    >>> vf.scipy.linalg.schur(vf.numpy.array([[1.0, 2.0], [0.0, 3.0]]))[0]
    Array([[1., 2.],
           [0., 3.]], dtype=float32)
    """
    if output not in ("real", "complex"):
        raise ArgumentError(f"schur: output must be 'real' or 'complex', got {output!r}")
    matrix = matrices("schur", "a", a, square=True)
    form, vectors = primitives.schur(to_dtype(matrix, dtypes.complex_dtype(matrix.dtype)) if output == "complex" else matrix)
    return form, vectors


def rsf2csf(T: Any, Z: Any, check_finite: bool = True) -> tuple[Array, Array]:
    """Convert a real Schur form T and vectors Z to complex ones, with T triangular.

    Both are (*batch, N, N), whose batch dimensions broadcast; a rotation for each block of two by two makes it triangular (Golub and Van
    Loan, 2013, section 7.7). `check_finite` has no effect: numbers that are not finite give NaN.

    >>> form, vectors = vf.scipy.linalg.schur(vf.numpy.array([[0.0, 1.0], [-1.0, 0.0]]))
    >>> vf.scipy.linalg.rsf2csf(form, vectors)[0].imag.round(3).diagonal()
    Array([ 1., -1.], dtype=float32)
    """
    form, vectors = promote_inexact("rsf2csf", T, Z)
    form, vectors = matrices("rsf2csf", "T", form, square=True), matrices("rsf2csf", "Z", vectors, square=True)
    if form.shape[-1] != vectors.shape[-1]:
        raise ShapeError(f"rsf2csf: T and Z must have one size, got {form.shape} and {vectors.shape}")
    batch = lax.broadcast_shapes(form.shape[:-2], vectors.shape[:-2])
    dtype = dtypes.complex_dtype(form.dtype)
    convert = _triangular
    for _ in batch:
        convert = vmap(convert)
    triangular, change = convert(*[broadcast_to(to_dtype(x, dtype), (*batch, *x.shape[-2:])) for x in (form, vectors)])
    return triangular, change


def _triangular(form: Array, vectors: Array) -> tuple[Array, Array]:
    """Make one complex matrix triangular by rotations of neighbouring rows.

    They go from the last pair of rows, and of columns, to the first.
    """
    size = form.shape[0]
    epsilon = float(dtypes.finfo(form.dtype).eps)
    columns, rows = lax.iota(np.int32, size)[None, :], lax.iota(np.int32, size)[:, None]

    def step(count: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        t, z = state
        last = size - 1 - count
        first = last - 1
        block = lax.dynamic_slice(t, (first, first), (2, 2))
        below = block[1, 0]
        gap = eigvals(block)[0] - block[1, 1]
        length = lax.sqrt(abs(gap) ** 2 + abs(below) ** 2)
        is_small = abs(below) <= epsilon * (abs(block[0, 0]) + abs(block[1, 1]))
        cosine = lax.select(is_small, lax.full_like(gap, 1), gap / lax.select(is_small, lax.full_like(length, 1), length))
        sine = lax.select(is_small, lax.full_like(gap, 0), below / lax.select(is_small, lax.full_like(length, 1), length))
        rotation = stack([stack([lax.conj(cosine), sine]), stack([-sine, cosine])])
        pair = lax.dynamic_slice(t, (first, 0), (2, size))
        t = lax.dynamic_update_slice(t, lax.select(broadcast_to(columns >= first, pair.shape), matmul(rotation, pair), pair), (first, 0))
        pair = lax.dynamic_slice(t, (0, first), (size, 2))
        turned = matmul(pair, adjoint(rotation))
        t = lax.dynamic_update_slice(t, lax.select(broadcast_to(rows <= last, pair.shape), turned, pair), (0, first))
        z_pair = lax.dynamic_slice(z, (0, first), (size, 2))
        z = lax.dynamic_update_slice(z, matmul(z_pair, adjoint(rotation)), (0, first))
        return lax.dynamic_update_slice(t, lax.full((1, 1), 0, t.dtype), (last, first)), z

    return lax.fori_loop(0, size - 1, step, (form, vectors)) if size > 1 else (form, vectors)


def hessenberg(a: Any, calc_q: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Return the Hessenberg form H of a, which is zero below the subdiagonal.

    The matrices are (*batch, N, N). With `calc_q` return (H, Q) for unitary Q with Q H Qᴴ = a. `overwrite_a` and `check_finite` have no
    effect. On the host, this needs SciPy. It has no derivative.

    >>> vf.scipy.linalg.hessenberg(vf.numpy.eye(3), calc_q=True)[0]
    Array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    matrix = matrices("hessenberg", "a", a, square=True)
    size = matrix.shape[-1]
    reduced, factors = primitives.hessenberg(matrix) if size else (matrix, matrix)
    form = triu(reduced, -1)
    if not calc_q:
        return form
    if size < 2:
        return form, lax.full_like(matrix, 1)
    inner = primitives.householder_product(reduced[..., 1:, : size - 1], factors)
    corner = [(0, 0, 0)] * (matrix.ndim - 2) + [(1, 0, 0)] * 2
    first = np.zeros((size, size), matrix.dtype)
    first[0, 0] = 1
    return form, lax.pad(inner, lax.full((), 0, matrix.dtype), corner) + first


def polar(
    a: Any, side: str = "right", *, method: str = "qdwh", eps: float | None = None, max_iterations: int | None = None
) -> tuple[Array, Array]:
    """Return unitary U and positive semidefinite P with U P = a, or P U = a.

    Args:
        a: matrices (*batch, M, N). U has orthonormal columns, or rows if a is wide.
        side: where P stands, "right" or "left" of U.
        method: "qdwh", iterations that reverse mode does not differentiate, or "svd", which is differentiable.
        eps, max_iterations: when QDWH ends; see `lax.linalg.qdwh`.

    >>> vf.scipy.linalg.polar(vf.numpy.array([[0.0, -2.0], [3.0, 0.0]]))[1].diagonal().round(3)
    Array([3., 2.], dtype=float32)
    """
    if side not in ("right", "left") or method not in ("qdwh", "svd"):
        raise ArgumentError(f"polar: side must be 'right' or 'left' and method 'qdwh' or 'svd', got {side!r} and {method!r}")
    matrix = matrices("polar", "a", a)
    decompose = _polar_by_svd if method == "svd" else partial(_polar_by_qdwh, eps=eps, max_iterations=max_iterations)
    for _ in matrix.shape[:-2]:
        decompose = vmap(decompose)
    unitary = decompose(matrix)
    half = matmul(adjoint(unitary), matrix) if side == "right" else matmul(matrix, adjoint(unitary))
    return unitary, symmetrized(half)


def _polar_by_svd(matrix: Array) -> Array:
    u, _, vt = primitives.svd(matrix, full_matrices=False)
    return matmul(u, vt)


def _polar_by_qdwh(matrix: Array, eps: float | None, max_iterations: int | None) -> Array:
    wide = matrix.shape[0] < matrix.shape[1]
    unitary = primitives.qdwh(adjoint(matrix) if wide else matrix, eps=eps, max_iterations=max_iterations)[0]
    return adjoint(unitary) if wide else unitary

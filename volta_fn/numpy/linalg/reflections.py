"""QR factorization by Householder reflections, in LAPACK's packed form."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array


def packed_qr(a: Array) -> tuple[Array, Array]:
    """Return h (*batch, N, M) and tau (*batch, K) of matrices (*batch, M, N).

    The transpose of h has R on and above the diagonal, and below it vectors v, whose element on the diagonal is 1. Q is the product of
    the reflections I - tau v vᴴ (Golub and Van Loan, Matrix Computations, 4th edition, section 5.2).
    """
    count = min(a.shape[-2:])
    factors = vnp.zeros((*a.shape[:-2], count), a.dtype)
    packed, factors = lax.fori_loop(0, count, _reflect, (a, factors))
    return vnp.matrix_transpose(packed), factors


def _reflect(k: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
    """Reflect column `k` to a multiple of a unit vector, and change those after it."""
    matrix, factors = state
    rows, columns = (np.arange(size, dtype=np.int32) for size in matrix.shape[-2:])
    column = lax.dynamic_index_in_dim(matrix, k, -1, keepdims=False)
    vector, head, factor = _reflection(column, rows, k)
    projected = vnp.einsum("...i,...ij->...j", vector.conj(), matrix)
    changed = matrix - (factor.conj()[..., None] * vector)[..., None] * projected[..., None, :]
    kept = vnp.where(rows < k, column, vnp.where(rows == k, head[..., None], vector))
    matrix = vnp.where(columns > k, changed, vnp.where(columns == k, kept[..., None], matrix))
    return matrix, vnp.where(np.arange(factors.shape[-1], dtype=np.int32) == k, factor[..., None], factors)


def _reflection(column: Array, rows: np.ndarray, k: Any) -> tuple[Array, Array, Array]:
    """Return v, the element that the column is reduced to, and tau."""
    head = lax.dynamic_index_in_dim(column, k, -1, keepdims=False)
    below = vnp.where(rows > k, column, 0)
    length = vnp.linalg.norm(vnp.where(rows >= k, column, 0), axis=-1)
    reduced = vnp.where(head.real > 0, -length, length).astype(column.dtype)
    is_reduced = (vnp.abs(below).max(-1) == 0) & (head.imag == 0)
    divisor = vnp.where(is_reduced, 1, head - reduced)
    vector = vnp.where(rows == k, 1, below / divisor[..., None])
    factor = vnp.where(is_reduced, 0, (reduced - head) / vnp.where(is_reduced, 1, reduced))
    return vector.astype(column.dtype), vnp.where(is_reduced, head, reduced), factor.astype(column.dtype)

"""Block diagonal and Toeplitz matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn.core.array import Array
from volta_fn.errors import ShapeError
from volta_fn.numpy.arguments import promote
from volta_fn.numpy.indexing import take
from volta_fn.primitives.complex_components import conj


def block_diag(*arrs: Any) -> Array:
    """Create the matrix with the given blocks along its diagonal and zeros elsewhere.

    Vectors count as single rows, scalars as 1×1; the blocks are promoted to one dtype. Without any the result is a 1×0 matrix, like
    SciPy's. Raises `ShapeError` for an array of more than two dimensions.

    >>> vf.scipy.linalg.block_diag(vf.numpy.ones((1, 2)), 3.0)
    Array([[1., 1., 0.],
           [0., 0., 3.]], dtype=float32)
    """
    blocks = promote("block_diag", *(arrs or (np.zeros((1, 0), np.float32),)))
    if any(b.ndim > 2 for b in blocks):
        raise ShapeError(f"block_diag: the blocks must be matrices, got shapes {[b.shape for b in blocks]}")
    blocks = [lax.broadcast_to_rank(b, 2) for b in blocks]
    width, before, rows = sum(b.shape[1] for b in blocks), 0, []
    for block in blocks:
        after = width - before - block.shape[1]
        rows.append(lax.pad(block, np.zeros((), block.dtype), [(0, 0, 0), (before, after, 0)]))
        before += block.shape[1]
    return lax.concatenate(rows, 0)


def toeplitz(c: Any, r: Any = None) -> Array:
    """Create the Toeplitz matrix with first column `c` and first row `r`.

    Element (i, j) is c[i - j] or r[j - i].

    Args:
        c: the first columns (*batch, M).
        r: the first rows (*batch, N), whose element 0 is ignored. None: the conjugates of `c`, which makes Hermitian matrices.

    The result is (*batch, M, N), of the common dtype. Raises `ShapeError` for a scalar or two different batches.

    >>> vf.scipy.linalg.toeplitz(vf.numpy.array([1, 2, 3]), vf.numpy.array([0, 8, 9]))
    Array([[1, 8, 9],
           [2, 1, 8],
           [3, 2, 1]], dtype=int32)
    """
    column, row = promote("toeplitz", c, c if r is None else r)
    row = conj(row) if r is None and row.dtype.kind == "c" else row
    if not column.ndim or not row.ndim or column.shape[:-1] != row.shape[:-1]:
        raise ShapeError(
            f"toeplitz: c and r must be vectors, or stacks with the same batch shape, got shapes {column.shape} and {row.shape}"
        )
    last = column.ndim - 1
    m, n = column.shape[last], row.shape[last]
    if not m or not n:
        return lax.full((*column.shape[:-1], m, n), 0, column.dtype)
    beyond = lax.rev(lax.slice_in_dim(row, 1, n, axis=last), (last,))
    diagonals = lax.concatenate([beyond, column], last)
    return take(diagonals, np.arange(m, dtype=np.int32)[:, None] - np.arange(n, dtype=np.int32) + np.int32(n - 1), axis=last)

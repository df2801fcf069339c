"""Diagonals and triangles of matrices, and the indices of their elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.core.aval import canonical_shape
from volta_fn.errors import ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import INDEX, axis_of, dtype_or, full_like_scalar, no_out, operand
from volta_fn.numpy.creation import array, diagonal_offset, ones
from volta_fn.numpy.indexing import _refuse_in_place, nonzero
from volta_fn.numpy.statistics import reductions


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Array:
    """Create the N×M matrix with ones on and below the k-th diagonal.

    >>> jnp.tri(2, 3)
    Array([[1., 0., 0.],
           [1., 1., 0.]], dtype=float32)
    """
    rows, columns = canonical_shape((N, N if M is None else M), "tri: the size")
    return lax.convert_element_type(_on_or_below(rows, columns, k), dtype_or(dtype, dtypes.default(np.dtype(np.float32))))


def _on_or_below(rows: int, columns: int, k: int) -> Array:
    index = dtypes.index_dtype(rows + columns)
    i, j = (lax.broadcasted_iota(index, (rows, columns), d) for d in (0, 1))
    return lax.ge(lax.add(i, diagonal_offset(k, rows, columns)), j)


@fused
def tril(m: Any, k: int = 0) -> Array:
    """Return the lower triangle of matrices: zeros above the k-th diagonal.

    >>> jnp.tril(jnp.ones((2, 2)))
    Array([[1., 0.],
           [1., 1.]], dtype=float32)
    """
    value = _matrices("tril", m)
    return lax.select(_on_or_below(value.shape[-2], value.shape[-1], k), value, full_like_scalar(value, 0))


@fused
def triu(m: Any, k: int = 0) -> Array:
    """Return the upper triangle of matrices: zeros below the k-th diagonal.

    >>> jnp.triu(jnp.ones((2, 2)))
    Array([[1., 1.],
           [0., 1.]], dtype=float32)
    """
    value = _matrices("triu", m)
    return lax.select(_on_or_below(value.shape[-2], value.shape[-1], k - 1), full_like_scalar(value, 0), value)


def _matrices(function: str, m: Any) -> Array:
    value = operand(function, "m", m)
    if value.ndim < 2:
        raise ShapeError(f"{function}: m must have at least two dimensions, got shape {value.shape}")
    return value


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Return the elements a[i, i + offset] of two axes as the result's last dimension.

    >>> jnp.diagonal(jnp.arange(6).reshape(2, 3), 1)
    Array([1, 5], dtype=int32)
    """
    value = operand("diagonal", "a", a)
    if value.ndim < 2:
        raise ShapeError(f"diagonal: a must have at least two dimensions, got shape {value.shape}")
    i, j = (axis_of("diagonal", axis, value.ndim) for axis in (axis1, axis2))
    if i == j:
        raise ShapeError(f"diagonal: axis1 and axis2 must differ, got {axis1} and {axis2}")
    value = lax.transpose(value, [*[d for d in range(value.ndim) if d not in (i, j)], i, j])
    rows, columns = value.shape[-2:]
    top, left = max(-offset, 0), max(offset, 0)
    size = max(min(rows - top, columns - left), 0)
    if not size:
        return lax.reshape(lax.slice_in_dim(value, 0, 0, axis=-1), (*value.shape[:-2], 0))
    square = lax.slice_in_dim(lax.slice_in_dim(value, top, top + size, axis=-2), left, left + size, axis=-1)
    # In row-major order, the diagonal is every (size + 1)-th element.
    flat = lax.reshape(square, (*square.shape[:-2], size * size))
    return lax.slice_in_dim(flat, 0, size * size, size + 1, axis=-1)


@fused
def diag(v: Any, k: int = 0) -> Array:
    """Return a matrix's k-th diagonal, or the matrix with a vector as k-th diagonal.

    >>> jnp.diag(jnp.array([1, 2]))
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    value = operand("diag", "v", v)
    if value.ndim == 2:
        return diagonal(value, k)
    if value.ndim != 1:
        raise ShapeError(f"diag: v must have one or two dimensions, got shape {value.shape}")
    n = value.shape[0]
    if not n:
        return lax.reshape(lax.pad(value, full_like_scalar(value, 0), [(0, k * k, 0)]), (abs(k), abs(k)))
    # With n zeros between its elements, the vector is the diagonal of a flattened n×(n+1) matrix without its tail.
    spread = lax.pad(value, full_like_scalar(value, 0), [(0, 0, n)])
    square = lax.reshape(spread, (n, n)) if n > 1 else lax.reshape(spread, (1, 1))
    return lax.pad(square, full_like_scalar(value, 0), [(max(-k, 0), max(k, 0), 0), (max(k, 0), max(-k, 0), 0)])


def diagflat(v: Any, k: int = 0) -> Array:
    """Create the matrix with the flattened `v` as k-th diagonal.

    >>> jnp.diagflat(jnp.array([1, 2]))
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    value = operand("diagflat", "v", v)
    return diag(lax.reshape(value, (value.size,)), k)


@fused
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None) -> Array:
    """Sum a diagonal.

    >>> jnp.trace(jnp.eye(3))
    Array(3., dtype=float32)
    """
    no_out("trace", out)
    return reductions.sum(diagonal(a, offset, axis1, axis2), -1, dtype)


def fill_diagonal(a: Any, val: Any, wrap: bool = False, *, inplace: bool = True) -> Array:
    """Return a copy with `val`, repeated, on the main diagonal (needs inplace=False).

    >>> jnp.fill_diagonal(jnp.zeros((2, 2)), 5.0, inplace=False)
    Array([[5., 0.],
           [0., 5.]], dtype=float32)
    """
    _refuse_in_place("fill_diagonal", inplace)
    value = operand("fill_diagonal", "a", a)
    if value.ndim < 2 or (value.ndim > 2 and len(set(value.shape)) > 1):
        raise ShapeError(f"fill_diagonal: a must be a matrix or have equal dimensions, got shape {value.shape}")
    columns = value.shape[-1]
    step = columns + 1 if value.ndim == 2 else int(np.sum(np.cumprod([1, *value.shape[1:]])))
    end = value.size if wrap or value.ndim > 2 else columns * columns
    positions = np.arange(0, min(end, value.size), step)
    new = array(val, value.dtype)
    new = lax.reshape(new, (new.size,))[np.arange(positions.size) % max(new.size, 1)]
    flat = lax.reshape(value, (value.size,))
    return lax.reshape(flat.at[positions].set(new), value.shape)


def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """Return the indices of the main diagonal of `ndim` dimensions of length `n`.

    >>> jnp.eye(2).at[jnp.diag_indices(2)].add(1.0)
    Array([[2., 0.],
           [0., 2.]], dtype=float32)
    """
    return (lax.iota(dtypes.index_dtype(n), n),) * ndim


def diag_indices_from(arr: Any) -> tuple[Array, ...]:
    """Return the indices of the main diagonal of `arr`, whose dimensions are equal."""
    value = operand("diag_indices_from", "arr", arr)
    if value.ndim < 2 or len(set(value.shape)) > 1:
        raise ShapeError(f"diag_indices_from: arr must have at least two dimensions, all equal, got shape {value.shape}")
    return diag_indices(value.shape[0], value.ndim)


def _indices(pair: Any) -> tuple[Array, Array]:
    rows, columns = pair
    wanted = dtypes.index_dtype(max(map(int, [*rows[-1:], *columns[-1:]]), default=0), dtypes.default(INDEX))
    return array(rows.astype(wanted)), array(columns.astype(wanted))


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Return the indices of the lower triangle of an n×m matrix.

    >>> jnp.tril_indices(2)
    (Array([0, 1, 1], dtype=int32), Array([0, 0, 1], dtype=int32))
    """
    return _indices(np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Return the indices of the upper triangle of an n×m matrix.

    >>> jnp.triu_indices(2)
    (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    return _indices(np.triu_indices(n, k, m))


def tril_indices_from(arr: Any, k: int = 0) -> tuple[Array, Array]:
    """Return the indices of the lower triangle of the matrix `arr`."""
    return tril_indices(_matrices("tril_indices_from", arr).shape[-2], k, arr.shape[-1])


def triu_indices_from(arr: Any, k: int = 0) -> tuple[Array, Array]:
    """Return the indices of the upper triangle of the matrix `arr`."""
    return triu_indices(_matrices("triu_indices_from", arr).shape[-2], k, arr.shape[-1])


def mask_indices(n: int, mask_func: Any, k: Any = 0, *, size: int | None = None) -> tuple[Array, ...]:
    """Return the indices that `mask_func` (`triu`, …) keeps; `size` as in `nonzero`.

    >>> jnp.mask_indices(2, jnp.triu)
    (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    return nonzero(mask_func(ones((n, n)), k), size=size)

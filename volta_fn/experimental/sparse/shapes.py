"""Operations on `BCOO` arrays that change shapes and layouts, or select elements."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import check_option
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.experimental.sparse.bcoo import BCOO, add_at, dtype_of_indices, outside, over_batches
from volta_fn.primitives.data_movement.movement import canonical_axes


class SparseEfficiencyError(ValueError):
    """An error about an operation that would store many zeros."""


class SparseEfficiencyWarning(UserWarning):
    """A warning about an operation that stores many zeros."""


class CuSparseEfficiencyWarning(SparseEfficiencyWarning):
    """A warning of JAX's about kernels of cuSPARSE; nothing here issues it."""


def stacked(columns: Sequence[Array], shape: Sequence[int], dtype: Any) -> Array:
    """Return the indices whose columns, of shape (…, nse), are given."""
    return vnp.stack(columns, -1).astype(dtype) if columns else vnp.zeros((*shape, 0), dtype)


def bounded(mat: BCOO) -> BCOO:
    """Return the array with at most as many stored elements as there are indices."""
    most = math.prod(mat.sparse_shape)
    return mat if mat.nse <= most else mat.sum_duplicates(most, remove_zeros=False)


# Layouts: which dimensions are batch, sparse and dense.


def bcoo_update_layout(mat: BCOO, *, n_batch: int | None = None, n_dense: int | None = None, on_inefficient: str | None = "error") -> BCOO:
    """Return the array with other numbers of batch and dense dimensions.

    Args:
        mat: the array.
        n_batch, n_dense: the numbers of dimensions (default: those of `mat`).
        on_inefficient: what to do where the result stores zeros that `mat` does not, as with more batch dimensions or more dense ones:
            "error", "warn", or None for nothing.

    Raises:
        ArgumentError: the numbers do not fit the array, or `on_inefficient` is another value.
        SparseEfficiencyError: the result would store many zeros, and `on_inefficient` is "error".

    >>> m = BCOO.fromdense(vf.numpy.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> bcoo_update_layout(m, n_dense=1, on_inefficient=None).data
    Array([[0., 2.],
           [3., 0.]], dtype=float32)
    """
    batch, dense = mat.n_batch if n_batch is None else n_batch, mat.n_dense if n_dense is None else n_dense
    check_option(on_inefficient, "bcoo_update_layout: on_inefficient", ("error", "warn", None))
    if min(batch, dense) < 0 or batch + dense > mat.ndim:
        raise ArgumentError(f"bcoo_update_layout: n_batch={batch} and n_dense={dense} do not fit an array of {mat.ndim} dimensions")
    nse = _nse_of_layout(mat, batch, dense)
    if dense > mat.n_dense or batch > mat.n_batch:
        message = f"bcoo_update_layout: n_batch={batch} and n_dense={dense} instead of {mat.n_batch} and {mat.n_dense} may store zeros"
        if on_inefficient == "error":
            raise SparseEfficiencyError(f"{message}; on_inefficient=None permits it")
        if on_inefficient == "warn":
            warnings.warn(message, SparseEfficiencyWarning, stacklevel=2)
    if (batch, dense) == (mat.n_batch, mat.n_dense):
        return mat
    mat = _without_dense(mat, dense)
    mat = over_batches(BCOO.folded, batch)(mat.broadcast_batches()) if batch < mat.n_batch else mat
    mat = _with_dense(mat, dense)
    mat = _with_batches(mat, batch)
    return mat if mat.nse <= nse else mat.sum_duplicates(nse, remove_zeros=False)


def _nse_of_layout(mat: BCOO, batch: int, dense: int) -> int:
    """Return how many elements a layout needs at most."""
    shape = mat.shape
    count = mat.nse * math.prod(shape[batch : mat.n_batch]) * math.prod(shape[mat.ndim - mat.n_dense : mat.ndim - dense])
    if dense > mat.n_dense or batch > mat.n_batch:
        return min(count, math.prod(shape[batch : mat.ndim - dense]))
    return count


def _without_dense(mat: BCOO, n_dense: int) -> BCOO:
    """Make the first dense dimensions sparse, so that `n_dense` remain."""
    count = mat.n_dense - n_dense
    if count <= 0:
        return mat
    n, sizes = mat.n_batch, mat.data.shape[mat.n_batch + 1 : mat.n_batch + 1 + count]
    each = math.prod(sizes)
    data = mat.data.reshape(*mat.data.shape[:n], mat.nse * each, *mat.data.shape[n + 1 + count :])
    positions = np.moveaxis(np.indices(sizes), 0, -1).reshape(each, count).astype(dtype_of_indices(mat.indices.dtype, sizes))
    batch = mat.indices.shape[:n]
    old = vnp.broadcast_to(mat.indices[..., None, :], (*batch, mat.nse, each, mat.n_sparse))
    new = vnp.broadcast_to(positions, (*batch, mat.nse, each, count))
    indices = vnp.concatenate([old, new], -1).reshape(*batch, mat.nse * each, mat.n_sparse + count)
    return BCOO((data, indices), shape=mat.shape, indices_sorted=mat.indices_sorted, unique_indices=mat.unique_indices)


def _with_dense(mat: BCOO, n_dense: int) -> BCOO:
    """Make the last sparse dimensions dense, so that there are `n_dense`."""
    count = n_dense - mat.n_dense
    if count <= 0:
        return mat
    n_sparse = mat.n_sparse
    sizes = mat.sparse_shape[n_sparse - count :]

    def spread(m: BCOO) -> BCOO:
        data = vnp.zeros((m.nse, *sizes, *m.data.shape[1:]), m.dtype)
        at = (vnp.arange(m.nse), *m.columns()[n_sparse - count :])
        data = add_at(data, at, m.masked_data())
        return BCOO((data, m.indices[:, : n_sparse - count]), shape=m.shape)

    return over_batches(spread, mat.n_batch)(mat.broadcast_batches())


def _with_batches(mat: BCOO, n_batch: int) -> BCOO:
    """Make the first sparse dimensions batch dimensions.

    Each position gets all elements, most of them as padding.
    """
    count = n_batch - mat.n_batch
    if count <= 0:
        return mat
    mat, sizes = mat.broadcast_batches(), mat.sparse_shape[:count]

    def spread(m: BCOO) -> BCOO:
        positions = [lax.broadcasted_iota(m.indices.dtype, (*sizes, 1), i) for i in range(count)]
        here = vnp.ones((*sizes, m.nse), bool)
        for column, position in zip(m.columns(), positions, strict=False):
            here = here & (column == position)
        indices = vnp.where(here[..., None], m.indices[:, count:], outside(m)[count:])
        data = vnp.where(here.reshape(*here.shape, *[1] * m.n_dense), m.data, vnp.zeros((), m.dtype))
        return BCOO((data, indices), shape=m.shape, unique_indices=m.unique_indices and m.n_sparse > count)

    return over_batches(spread, mat.n_batch)(mat)


# Permutations, reversals and broadcasts.


def bcoo_transpose(mat: BCOO, *, permutation: Sequence[int]) -> BCOO:
    """Permute the dimensions of each kind among themselves."""
    n, k, order = mat.n_batch, mat.n_sparse, [int(p) for p in permutation]
    batch, sparse, dense = order[:n], [p - n for p in order[n : n + k]], [p - k + 1 for p in order[n + k :]]
    if sorted(order) != list(range(mat.ndim)) or any(p >= n for p in batch) or any(not 0 <= p < k for p in sparse):
        raise ArgumentError(
            f"transpose: {tuple(permutation)} must permute {n} batch, {k} sparse and {mat.n_dense} dense dimensions, each among themselves"
        )
    data = vnp.transpose(mat.data, [*batch, n, *dense])
    indices = vnp.transpose(mat.indices, [*batch, n, n + 1])[..., np.array(sparse, int)]
    is_sorted = mat.indices_sorted and sparse == list(range(k))
    shape = tuple([mat.shape[p] for p in order])
    return BCOO((data, indices), shape=shape, indices_sorted=is_sorted, unique_indices=mat.unique_indices)


def bcoo_rev(operand: BCOO, dimensions: Sequence[int]) -> BCOO:
    """Reverse the order of elements along dimensions, as `lax.rev` does.

    >>> bcoo_rev(BCOO.fromdense(vf.numpy.array([0, 1, 2])), (0,)).todense()
    Array([2, 1, 0], dtype=int32)
    """
    axes, n, k = canonical_axes(tuple(dimensions), operand.ndim), operand.n_batch, operand.n_sparse
    along = tuple(a for a in axes if a < n)
    dense = tuple(a - k + 1 for a in axes if a >= n + k)
    data, indices = vnp.flip(operand.data, (*along, *dense)), vnp.flip(operand.indices, along)
    if sparse := [a - n for a in axes if n <= a < n + k]:
        is_reversed = np.isin(np.arange(k), sparse)
        bounds = outside(operand)
        valid = ((indices >= 0) & (indices < bounds)).all(-1, keepdims=True)
        indices = vnp.where(valid, vnp.where(is_reversed, bounds - 1 - indices, indices), bounds)
    promises = {"indices_sorted": operand.indices_sorted and not sparse, "unique_indices": operand.unique_indices}
    return BCOO((data, indices), shape=operand.shape, **promises)


def bcoo_broadcast_in_dim(mat: BCOO, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], sharding: Any = None) -> BCOO:
    """Place dimensions in a larger shape, as `lax.broadcast_in_dim` does.

    A new dimension before the first sparse one is a batch dimension, one behind the first dense dimension is dense, and others are
    sparse: these repeat the elements.

    >>> m = BCOO.fromdense(vf.numpy.array([0, 3]))
    >>> bcoo_broadcast_in_dim(m, shape=(2, 2), broadcast_dimensions=(1,)).todense()
    Array([[0, 3],
           [0, 3]], dtype=int32)
    """
    sizes, places = tuple(shape), tuple(broadcast_dimensions)
    if len(places) != mat.ndim or list(places) != sorted(set(places)) or any(not 0 <= p < len(sizes) for p in places):
        raise ArgumentError(
            f"broadcast_in_dim: broadcast_dimensions={places} must place {mat.ndim} dimensions among {len(sizes)}, in increasing order"
        )
    if any(size not in (1, sizes[p]) for size, p in zip(mat.shape, places, strict=True)):
        raise ShapeError(f"broadcast_in_dim: an array of shape {mat.shape} does not fit {sizes} at the dimensions {places}")
    n, k = mat.n_batch, mat.n_sparse
    n_batch = min(places[n:], default=len(sizes))
    n_dense = len(sizes) - places[n + k] if mat.n_dense else 0
    n_sparse = len(sizes) - n_batch - n_dense
    # Data and indices have new batch dimensions in full, and else keep sizes of 1 there; new dense dimensions are repeated.
    batch_places, dense_places = places[:n], [p - n_batch - n_sparse for p in places[n + k :]]
    batch_data, batch_indices = [1] * n_batch, [1] * n_batch
    for i, p in enumerate(batch_places):
        batch_data[p], batch_indices[p] = mat.data.shape[i], mat.indices.shape[i]
    dense_sizes = [1] * n_dense
    for i, p in enumerate(dense_places):
        dense_sizes[p] = mat.data.shape[n + 1 + i]
    data = mat.data.reshape(*batch_data, mat.nse, *dense_sizes)
    indices = mat.indices.reshape(*batch_indices, mat.nse, k)
    if n_batch != n:
        batch_data = batch_indices = list(sizes[:n_batch])
        indices = vnp.broadcast_to(indices, (*batch_indices, mat.nse, k))
    data = vnp.broadcast_to(data, (*batch_data, mat.nse, *sizes[n_batch + n_sparse :]))
    # Sparse dimensions that grow repeat each element at all positions along them.
    sources = {p - n_batch: i for i, p in enumerate(places[n : n + k])}
    sparse_sizes = sizes[n_batch : n_batch + n_sparse]
    grows = [j for j in range(n_sparse) if j not in sources or mat.sparse_shape[sources[j]] != sparse_sizes[j]]
    repeats = [sparse_sizes[j] for j in grows]
    each = math.prod(repeats)
    positions = np.indices(repeats).reshape(len(repeats), each)
    valid = ((indices >= 0) & (indices < outside(mat))).all(-1)[..., None]
    dtype = dtype_of_indices(mat.indices.dtype, sparse_sizes)
    columns = []
    for j in range(n_sparse):
        column = positions[grows.index(j)] if j in grows else indices[..., sources[j]][..., None]
        columns.append(vnp.where(valid, column.astype(dtype), sparse_sizes[j]))
    columns = [vnp.broadcast_to(c, (*batch_indices, mat.nse, each)) for c in columns]
    indices = stacked(columns, (*batch_indices, mat.nse, each), dtype).reshape(*batch_indices, mat.nse * each, n_sparse)
    dense = data.shape[n_batch + 1 :]
    wide = data.reshape(*batch_data, mat.nse, 1, *dense)
    data = vnp.broadcast_to(wide, (*batch_data, mat.nse, each, *dense)).reshape(*batch_data, mat.nse * each, *dense)
    return BCOO((data, indices), shape=sizes, indices_sorted=mat.indices_sorted and not grows, unique_indices=mat.unique_indices)


def bcoo_reshape(mat: BCOO, *, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None, sharding: Any = None) -> BCOO:
    """Reshape an array.

    The first of the new sizes make up the batch dimensions, the next ones the sparse dimensions; dense dimensions stay the last. Raises
    `ArgumentError` where a new dimension would be of two kinds, and `ShapeError` for another number of elements.
    """
    if dimensions is not None:
        mat = bcoo_transpose(mat, permutation=dimensions)
    sizes = tuple(int(s) for s in new_sizes)
    if sizes.count(-1) == 1:
        rest = -math.prod(sizes)
        sizes = tuple(mat.size // max(rest, 1) if s == -1 else s for s in sizes)
    if math.prod(sizes) != mat.size:
        raise ShapeError(f"reshape: an array of shape {mat.shape} cannot have the shape {tuple(new_sizes)}")
    n, dense = mat.n_batch, mat.shape[mat.ndim - mat.n_dense :]
    batch_size = math.prod(mat.shape[:n])
    new_batch = next((i for i in range(len(sizes) + 1) if math.prod(sizes[:i]) == batch_size), -1) if n else 0
    last = len(sizes) - len(dense)
    sparse_sizes = sizes[new_batch:last] if last >= 0 else ()
    if new_batch < 0 or last < new_batch or sizes[last:] != dense or math.prod(sparse_sizes) != math.prod(mat.sparse_shape):
        raise ArgumentError(
            f"reshape: {sizes} must have the {n} batch dimensions of {mat.shape} first and its {mat.n_dense} dense dimensions last; other "
            "shapes need bcoo_update_layout"
        )
    batch = sizes[:new_batch]
    if not sparse_sizes:
        mat = mat.replace_data(mat.masked_data())
    data, indices = mat.data, mat.indices
    if batch != mat.shape[:n]:
        wide, arrays = mat.broadcast_batches(), []
        for narrow, full in ((data, wide.data), (indices, wide.indices)):
            shared = math.prod(narrow.shape[:n]) == 1
            arrays.append((narrow if shared else full).reshape(*([1] * new_batch if shared else batch), *narrow.shape[n:]))
        data, indices = arrays
    position = vnp.zeros(indices.shape[:-1], dtype_of_indices(indices.dtype, [math.prod(sparse_sizes)]))
    for i, size in enumerate(mat.sparse_shape):
        position = position * size + indices[..., i]
    columns = []
    for size in reversed(sparse_sizes):
        columns.append(position % max(size, 1))
        position = position // max(size, 1)
    valid = ((indices >= 0) & (indices < outside(mat))).all(-1)[..., None]
    moved = stacked(columns[::-1], indices.shape[:-1], dtype_of_indices(indices.dtype, sparse_sizes))
    new = vnp.where(valid, moved, np.array(sparse_sizes, moved.dtype))
    return BCOO((data, new), shape=sizes, indices_sorted=mat.indices_sorted, unique_indices=mat.unique_indices)


def bcoo_squeeze(arr: BCOO, *, dimensions: Sequence[int]) -> BCOO:
    """Drop dimensions of size 1."""
    axes = canonical_axes(tuple(dimensions), arr.ndim)
    if any(arr.shape[a] != 1 for a in axes):
        raise ShapeError(f"squeeze: the dimensions {axes} of {arr.shape} must have size 1")
    n, k = arr.n_batch, arr.n_sparse
    batch, dense = tuple(a for a in axes if a < n), tuple(a - k + 1 for a in axes if a >= n + k)
    remaining = np.array([i for i in range(k) if i + n not in axes], int)
    data = arr.masked_data() if len(remaining) < k else arr.data
    data, indices = vnp.squeeze(data, (*batch, *dense)), vnp.squeeze(arr.indices, batch)[..., remaining]
    shape = tuple([s for i, s in enumerate(arr.shape) if i not in axes])
    return BCOO((data, indices), shape=shape, indices_sorted=arr.indices_sorted)


# Selections of elements.


def bcoo_concatenate(operands: Sequence[BCOO], *, dimension: int) -> BCOO:
    """Join arrays of one layout along a dimension."""
    operands = [operand if isinstance(operand, BCOO) else BCOO.fromdense(operand) for operand in operands]
    if not operands:
        raise ArgumentError("concatenate: at least one array is needed")
    first = operands[0]
    (axis,) = canonical_axes((dimension,), first.ndim)
    for operand in operands:
        if (operand.n_batch, operand.n_sparse, operand.n_dense) != (first.n_batch, first.n_sparse, first.n_dense):
            raise ArgumentError("concatenate: the arrays must have the same numbers of batch, sparse and dense dimensions")
        if operand.shape[:axis] + operand.shape[axis + 1 :] != first.shape[:axis] + first.shape[axis + 1 :]:
            raise ShapeError(f"concatenate: {operand.shape} and {first.shape} may differ in dimension {axis} only")
    n, k = first.n_batch, first.n_sparse
    shape = list(first.shape)
    shape[axis] = sum(operand.shape[axis] for operand in operands)
    operands = [operand.broadcast_batches() for operand in operands]
    if axis < n:
        nse = max(operand.nse for operand in operands)
        operands = [_padded(operand, nse) for operand in operands]
        data, indices = (vnp.concatenate([getattr(m, name) for m in operands], axis) for name in ("data", "indices"))
        flags = {name: all(getattr(m, name) for m in operands) for name in ("indices_sorted", "unique_indices")}
        return BCOO((data, indices), shape=shape, **flags)
    offset, all_data, all_indices = 0, [], []
    dtype = dtype_of_indices(first.indices.dtype, shape[n : n + k])
    bounds = np.array(shape[n : n + k], dtype)
    for operand in operands:
        data, indices = operand.data, operand.indices.astype(dtype)
        if axis < n + k:
            step = np.zeros(k, dtype)
            step[axis - n] = offset
            indices = indices + step
        else:
            widths = [(0, 0)] * data.ndim
            widths[axis - k + 1] = (offset, shape[axis] - offset - operand.shape[axis])
            data = vnp.pad(data, widths)
        all_data.append(data)
        all_indices.append(vnp.where(operand.valid()[..., None], indices, bounds))
        offset += operand.shape[axis]
    return BCOO((vnp.concatenate(all_data, n), vnp.concatenate(all_indices, n)), shape=shape)


def _padded(mat: BCOO, nse: int) -> BCOO:
    """Return the array with padding behind its elements, so that it stores `nse`."""
    n, count = mat.n_batch, nse - mat.nse
    if not count:
        return mat
    data = vnp.concatenate([mat.data, vnp.zeros((*mat.data.shape[:n], count, *mat.data.shape[n + 1 :]), mat.dtype)], n)
    padding = vnp.broadcast_to(outside(mat), (*mat.indices.shape[:n], count, mat.n_sparse))
    return mat.replace(data, vnp.concatenate([mat.indices, padding], n), indices_sorted=mat.indices_sorted)


def bcoo_slice(mat: BCOO, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None) -> BCOO:
    """Return a block; the elements outside of it become padding."""
    steps = [1] * mat.ndim if strides is None else list(strides)
    if not len(start_indices) == len(limit_indices) == len(steps) == mat.ndim:
        raise ArgumentError(f"slice: start_indices, limit_indices and strides must have {mat.ndim} numbers")
    if any(not 0 <= a <= b <= s or c < 1 for a, b, c, s in zip(start_indices, limit_indices, steps, mat.shape, strict=True)):
        raise ArgumentError(
            f"slice: the block from {tuple(start_indices)} to {tuple(limit_indices)} by {tuple(steps)} is outside of {mat.shape}"
        )
    n, k = mat.n_batch, mat.n_sparse
    sizes = [-(-(b - a) // c) for a, b, c in zip(start_indices, limit_indices, steps, strict=True)]
    spans = [slice(a, b, c) for a, b, c in zip(start_indices, limit_indices, steps, strict=True)]
    wide = mat if spans[:n] == [slice(0, s, 1) for s in mat.shape[:n]] else mat.broadcast_batches()
    data, indices = wide.data[(*spans[:n], slice(None), *spans[n + k :])], wide.indices[tuple(spans[:n])]
    indices = indices.astype(dtype_of_indices(indices.dtype, [*limit_indices[n : n + k], *steps[n : n + k]]))
    start, stop, step = (np.array(x[n : n + k], indices.dtype) for x in (start_indices, limit_indices, steps))
    inside = ((indices >= start) & (indices < stop) & ((indices - start) % step == 0)).all(-1)
    moved = vnp.where(inside[..., None], (indices - start) // step, np.array(sizes[n : n + k], indices.dtype))
    data = vnp.where(inside.reshape(*inside.shape, *[1] * mat.n_dense), data, vnp.zeros((), mat.dtype))
    return bounded(BCOO((data, moved), shape=sizes, unique_indices=mat.unique_indices))


def bcoo_dynamic_slice(mat: BCOO, start_indices: Sequence[Any], slice_sizes: Sequence[int]) -> BCOO:
    """Return a block that begins anywhere, as `lax.dynamic_slice` does.

    A block that would reach beyond the array begins earlier.

    >>> bcoo_dynamic_slice(BCOO.fromdense(vf.numpy.arange(4)), (3,), (2,)).todense()
    Array([2, 3], dtype=int32)
    """
    sizes = tuple(int(s) for s in slice_sizes)
    if len(start_indices) != mat.ndim or len(sizes) != mat.ndim:
        raise ArgumentError(f"dynamic_slice: start_indices and slice_sizes must have {mat.ndim} numbers")
    if any(not 0 <= size <= whole for size, whole in zip(sizes, mat.shape, strict=True)):
        raise ShapeError(f"dynamic_slice: slices of sizes {sizes} do not fit an array of shape {mat.shape}")
    n, k = mat.n_batch, mat.n_sparse
    starts = []
    for start, size, whole in zip(start_indices, sizes, mat.shape, strict=True):
        start = vnp.asarray(start)
        starts.append(vnp.clip(vnp.where(start < 0, start + whole, start), 0, whole - size))
    wide = mat.broadcast_batches() if n else mat
    data, indices = wide.data, wide.indices
    for axis in range(mat.ndim):
        if sizes[axis] == mat.shape[axis] or n <= axis < n + k:
            continue
        positions = starts[axis] + np.arange(sizes[axis])
        data = vnp.take(data, positions, axis if axis < n else axis - k + 1)
        if axis < n:
            indices = vnp.take(indices, positions, axis)
    if not k:
        return bounded(BCOO((data, indices), shape=sizes))
    indices = indices.astype(dtype_of_indices(indices.dtype, mat.sparse_shape))
    start = vnp.stack(starts[n : n + k]).astype(indices.dtype)
    block = np.array(sizes[n : n + k], indices.dtype)
    in_range = ((indices >= 0) & (indices < outside(mat))).all(-1)
    inside = in_range & ((indices >= start) & (indices < start + block)).all(-1)
    moved = vnp.where(inside[..., None], indices - start, block)
    data = vnp.where(inside.reshape(*inside.shape, *[1] * mat.n_dense), data, vnp.zeros((), mat.dtype))
    return bounded(BCOO((data, moved), shape=sizes, unique_indices=mat.unique_indices))


def bcoo_reduce_sum(mat: BCOO, *, axes: Sequence[int]) -> BCOO:
    """Add up along dimensions; elements at the same remaining indices are not joined."""
    summed = canonical_axes(tuple(axes), mat.ndim)
    n, k = mat.n_batch, mat.n_sparse
    remaining = np.array([i for i in range(k) if i + n not in summed], int)
    data, indices = mat.masked_data(), mat.indices
    data = data.sum(tuple([a - k + 1 for a in summed if a >= n + k])).astype(mat.dtype)
    shape = tuple([s for i, s in enumerate(mat.shape) if i not in summed])
    batch = [a for a in summed if a < n]
    indices = vnp.where(mat.valid()[..., None], indices, outside(mat))[..., remaining]
    if batch:
        data = vnp.broadcast_to(data, (*mat.shape[:n], *data.shape[n:]))
        indices = vnp.broadcast_to(indices, (*mat.shape[:n], *indices.shape[n:]))
        retained = [a for a in range(n) if a not in batch]
        count = math.prod(mat.shape[a] for a in batch) * mat.nse
        sizes = [mat.shape[a] for a in retained]
        data = vnp.transpose(data, [*retained, *batch, *range(n, data.ndim)]).reshape(*sizes, count, *data.shape[n + 1 :])
        indices = vnp.transpose(indices, [*retained, *batch, n, n + 1]).reshape(*sizes, count, len(remaining))
    return BCOO((data, indices), shape=shape)


def bcoo_sort_indices(mat: BCOO) -> BCOO:
    """Do what the method `sort_indices` does."""
    return mat.sort_indices()


def bcoo_sum_duplicates(mat: BCOO, nse: int | None = None) -> BCOO:
    """Return the array with every index stored once, zeros included."""
    return mat.sum_duplicates(nse, remove_zeros=False)


def bcoo_eliminate_zeros(mat: BCOO, nse: int | None = None) -> BCOO:
    """Return the array with every index stored once, without elements that are zero."""
    return mat.sum_duplicates(nse, remove_zeros=True)

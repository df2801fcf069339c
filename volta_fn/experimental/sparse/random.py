"""Random sparse arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import random
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.experimental.sparse.bcoo import BCOO, over_batches


def random_bcoo(
    key: Any,
    shape: Sequence[int],
    *,
    dtype: Any = np.float32,
    indices_dtype: Any = None,
    nse: float = 0.2,
    n_batch: int = 0,
    n_dense: int = 0,
    unique_indices: bool = True,
    sorted_indices: bool = False,
    generator: Callable[..., Any] = random.uniform,
    **kwds: Any,
) -> BCOO:
    """Return a sparse array of random elements at random indices.

    Args:
        key: a random key.
        shape: the shape of the array.
        dtype, indices_dtype: the dtypes of data and indices (default of the latter: int32).
        nse: the number of elements for each position of the batch dimensions; below 1, their fraction of the sparse dimensions' size.
        n_batch, n_dense: the numbers of batch and dense dimensions.
        unique_indices: whether no index occurs twice; `nse` may then not exceed the size of the sparse dimensions.
        sorted_indices: whether indices are in order.
        generator: makes the data, ``generator(key, shape=…, dtype=…, **kwds)``.

    Raises:
        ArgumentError: the numbers of dimensions do not fit the shape, or `nse` is negative or too large.

    >>> import volta_fn as vf
    >>> random_bcoo(vf.random.key(0), (3, 4), nse=0.5)
    BCOO(float32[3, 4], nse=6)
    """
    shape = tuple(shape)
    n_sparse = len(shape) - n_batch - n_dense
    if min(n_batch, n_dense, n_sparse) < 0:
        raise ArgumentError(f"random_bcoo: n_batch={n_batch} and n_dense={n_dense} do not fit the shape {shape}")
    batch, sizes, dense = shape[:n_batch], shape[n_batch : n_batch + n_sparse], shape[n_batch + n_sparse :]
    size = math.prod(sizes)
    count = math.ceil(nse * size) if 0 < nse < 1 else int(nse)
    if count < 0 or (unique_indices and count > size) or (count and not size):
        raise ArgumentError(f"random_bcoo: nse={nse} must be between 0 and the size {size} of the sparse dimensions")
    key_of_data, key_of_indices = random.split(key)
    index_dtype = np.int32 if indices_dtype is None else indices_dtype

    def draw(key: Any) -> Array:
        if not count or not n_sparse:
            return vnp.zeros((count, n_sparse), index_dtype)
        positions = random.permutation(key, size)[:count] if unique_indices else random.randint(key, (count,), 0, size)
        if sorted_indices:
            positions = vnp.sort(positions)
        return vnp.stack(vnp.unravel_index(positions, sizes), -1).astype(index_dtype)

    keys = random.split(key_of_indices, math.prod(batch))
    keys = keys.reshape(*batch, *keys.shape[1:])
    data = generator(key_of_data, shape=(*batch, count, *dense), dtype=dtype, **kwds)
    indices = over_batches(draw, n_batch)(keys) if batch else draw(key_of_indices)
    return BCOO((data, indices), shape=shape, indices_sorted=sorted_indices, unique_indices=unique_indices)

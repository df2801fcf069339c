"""Buckets: small arrays that are sent together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import ml_dtypes
import numpy as np

#: Bytes from which an array travels by itself, without a copy.
LARGE = 1 << 18
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def wire_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype, as wide as needed, in which MPI combines a dtype."""
    if dtype == np.bool_:
        return np.dtype(np.uint8)
    if dtype.isbuiltin == 1 and dtype.kind in "iufc" and dtype != np.float16:
        return dtype
    return np.dtype(np.int32 if "int" in dtype.name else np.float32)


class Bucket:
    """The numbers of arrays that travel in one call, and the dtype in which they do."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.positions: list[int] = []

    def is_direct(self, arrays: Sequence[np.ndarray]) -> bool:
        """Return True if it is one array that can be sent as it is."""
        return len(self.positions) == 1 and arrays[self.positions[0]].dtype == self.dtype

    def packed(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Copy the arrays one after another."""
        joined = np.empty(sum([arrays[i].size for i in self.positions]), self.dtype)
        for block, i in self._slices(joined, arrays):
            block[...] = arrays[i].reshape(-1)
        return joined

    def unpack(self, joined: np.ndarray, outs: Sequence[np.ndarray]) -> None:
        """Copy the results to where they belong."""
        for block, i in self._slices(joined, outs):
            outs[i][...] = block.reshape(outs[i].shape).astype(outs[i].dtype, copy=False)

    def _slices(self, joined: np.ndarray, arrays: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, int]]:
        at = 0
        for i in self.positions:
            yield joined[at : at + arrays[i].size], i
            at += arrays[i].size


def buckets_of(arrays: Sequence[np.ndarray], wire: Callable[[np.dtype], np.dtype] = wire_dtype) -> list[Bucket]:
    """Group arrays into buckets, by their types alone."""
    buckets: list[Bucket] = []
    shared: dict[np.dtype, Bucket] = {}
    for i, array in enumerate(arrays):
        dtype = wire(array.dtype)
        if not array.size:
            continue
        if array.nbytes >= LARGE:
            buckets.append(Bucket(dtype))
            buckets[-1].positions.append(i)
            continue
        if dtype not in shared:
            shared[dtype] = Bucket(dtype)
            buckets.append(shared[dtype])
        shared[dtype].positions.append(i)
    return buckets

"""The routines of collectives between processes whose GPUs share memory.

Those of other processes, and of arrays that these kernels do not have, run on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices import distribution
from volta_fn.core.jaxpr import Equation
from volta_fn.targets.nvidia.peers.kernels import Rows, moved, permuted, reduction, scattered_sum
from volta_fn.targets.nvidia.peers.memory import Peers
from volta_fn.targets.nvidia.peers.numbers import combines
from volta_fn.targets.wgsl.routine import Dispatch, Routine

#: The most bytes of an array, so that 32 bits number its words.
_LARGEST = 1 << 30
#: The most arrays of a kernel.
_MOST_ARRAYS = 24

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

Avals = tuple[ShapedArray, ...]


def _ranks(params: dict[str, Any]) -> tuple[int, ...]:
    return distribution.members_of(params["axis_names"], params.get("axis_index_groups"))


def _bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


# Reductions.


def _buckets(avals: Avals, dtypes: Sequence[np.dtype]) -> list[list[int]]:
    """Group arrays with elements by their dtypes and those of their results."""
    by_dtypes: dict[tuple[np.dtype, np.dtype], list[list[int]]] = {}
    for number, (aval, dtype) in enumerate(zip(avals, dtypes, strict=True)):
        if aval.size:
            groups = by_dtypes.setdefault((aval.dtype, dtype), [[]])
            size = aval.size * dtype.itemsize
            if len(groups[-1]) == _MOST_ARRAYS or sum([avals[i].size * dtype.itemsize for i in groups[-1]]) + size > _LARGEST:
                groups.append([])
            groups[-1].append(number)
    return [group for groups in by_dtypes.values() for group in groups if group]


def _reduced(step: str, avals: Avals, params: dict[str, Any], shared: Peers) -> Routine | None:
    """Return the routine of a reduction by "sum", "max" or "min"."""
    dtypes = params.get("dtypes") or [aval.dtype for aval in avals]
    sizes = [aval.size * dtype.itemsize for aval, dtype in zip(avals, dtypes, strict=True)]
    if any(size > _LARGEST for size in sizes) or not all(combines(step, aval.dtype) for aval in avals) or not any(sizes):
        return None
    ranks = _ranks(params)
    if not shared.connect(ranks):
        return None
    compression = None if params.get("compression") is None else _BFLOAT16
    dispatches: list[Dispatch] = []
    for bucket in _buckets(avals, dtypes):
        buffers = [*bucket, *[len(avals) + number for number in bucket]]
        source, dtype = avals[bucket[0]].dtype, dtypes[bucket[0]]
        dispatches.append(reduction(step, dtype, [sizes[i] for i in bucket], buffers, ranks, compression, source))
    return Routine(tuple(dispatches))


def sums(eqn: Equation, shared: Peers) -> bool:
    """Return whether processes share the memory by which kernels compute a sum."""
    return shared.connect(_ranks(eqn.params))


# Rows.


def _moves(aval: ShapedArray, params: dict[str, Any], shared: Peers, copies: int = 1) -> bool:
    """Return whether an array is moved between processes by a kernel.

    The result has so many `copies` of it.
    """
    return 0 < aval.nbytes <= _LARGEST and aval.nbytes * copies < 2 * _LARGEST and shared.connect(_ranks(params))


def all_gather(avals: Avals, params: dict[str, Any], shared: Peers) -> Routine | None:
    """Return the routine of a gather."""
    (aval,) = avals
    if not _moves(aval, params, shared, params["size"]):
        return None
    behind = _bytes(aval.shape[params["axis"] :], aval.dtype)
    target = Rows(behind, params["size"])
    return Routine((moved(aval.nbytes, Rows(aval.nbytes, 1), target, (0, 1), _ranks(params)),))


def all_to_all(avals: Avals, params: dict[str, Any], shared: Peers) -> Routine | None:
    """Return the routine of an exchange of rows."""
    (aval,) = avals
    if not _moves(aval, params, shared):
        return None
    split, concat = params["split_axis"], params["concat_axis"]
    rest = [*aval.shape[:split], *aval.shape[split + 1 :]]
    count = aval.shape[split]
    source, target = Rows(_bytes(aval.shape[split + 1 :], aval.dtype), count), Rows(_bytes(rest[concat:], aval.dtype), count)
    return Routine((moved(aval.nbytes // count, source, target, (0, 1), _ranks(params)),))


def reduce_scatter(avals: Avals, params: dict[str, Any], shared: Peers) -> Routine | None:
    """Return the routine of a sum of which each process keeps a row."""
    (aval,) = avals
    if not combines("sum", aval.dtype) or not _moves(aval, params, shared):
        return None
    axis = params["axis"]
    source = Rows(_bytes(aval.shape[axis + 1 :], aval.dtype), aval.shape[axis])
    return Routine((scattered_sum(aval.dtype, aval.nbytes // aval.shape[axis], source, (0, 1), _ranks(params)),))


def ppermute(avals: Avals, params: dict[str, Any], shared: Peers) -> Routine | None:
    """Return the routine of a permutation."""
    (aval,) = avals
    if not _moves(aval, params, shared):
        return None
    return Routine((permuted(aval.nbytes, params["perm"], (0, 1), _ranks(params)),))


#: Makers of routines by the name of the primitive.
ROUTINES: dict[str, Callable[..., Routine | None]] = {
    "psum_bucket": partial(_reduced, "sum"),
    "pmax": partial(_reduced, "max"),
    "pmin": partial(_reduced, "min"),
    "all_gather": all_gather,
    "all_to_all": all_to_all,
    "reduce_scatter": reduce_scatter,
    "ppermute": ppermute,
}

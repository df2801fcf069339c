"""Communication between processes, with JAX's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.memory import device_get
from volta_fn.core.devices import distribution
from volta_fn.core.devices.device import synchronize
from volta_fn.errors import DistributedError


def _everyone() -> distribution.Communicator:
    return distribution.current().communicator(tuple(range(distribution.current().size)))


def _in_all(one: Callable[[np.ndarray], np.ndarray], values: Any) -> Any:
    return tree.map(lambda x: one(np.asarray(x)), device_get(values))


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """Return the arrays of all processes, as NumPy arrays.

    They are stacked along a new axis 0, one row for each process, or joined along the first axis if `tiled`.

    >>> import volta_fn as vf
    >>> vf.experimental.multihost_utils.process_allgather(vf.numpy.ones(2))
    array([[1., 1.]], dtype=float32)
    """

    def gathered(x: np.ndarray) -> np.ndarray:
        rows = x[None] if distribution.current().size == 1 else _everyone().gather(x, "process_allgather")
        return np.concatenate([np.atleast_1d(row) for row in rows]) if tiled else rows

    return _in_all(gathered, in_tree)


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """Return the values of the first process, or of the one that is the source."""
    if distribution.current().size == 1:
        return device_get(in_tree)
    sources = process_allgather(np.array(distribution.current().rank == 0 if is_source is None else is_source))
    if sources.sum() != 1:
        raise DistributedError(f"broadcast_one_to_all: one process is the source, not {np.flatnonzero(sources).tolist()}")
    return _in_all(lambda x: _everyone().gather(x, "broadcast_one_to_all")[int(np.argmax(sources))], in_tree)


def sync_global_devices(name: str) -> None:
    """Wait until all processes have called this, and their devices are idle."""
    synchronize()
    if distribution.current().size > 1:
        _everyone().gather(np.zeros(1, np.uint8), f"sync_global_devices({name!r})")


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Check that all processes have the same values.

    Raises `DistributedError`, in all of them, if not.
    """
    for rows in tree.leaves(process_allgather(in_tree)):
        if any(row.tobytes() != rows[0].tobytes() for row in rows):
            raise DistributedError(f"the values of the processes differ. {fail_message}".strip())


def host_local_array_to_global_array(local_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """Return the arrays: a process holds its part of an array, and no more."""
    return local_inputs


def global_array_to_host_local_array(global_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """Return the arrays: a process holds its part of an array, and no more."""
    return global_inputs

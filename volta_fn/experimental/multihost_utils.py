"""What processes tell each other, with JAX's names, for one process."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.device import synchronize
from volta_fn.core.transfer import device_get


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """Return the arrays of all processes, as NumPy arrays.

    They are stacked along a new axis 0 of size 1, or joined along the first axis if `tiled`.

    >>> import volta_fn as vf
    >>> vf.experimental.multihost_utils.process_allgather(vf.numpy.ones(2))
    array([[1., 1.]], dtype=float32)
    """
    return tree.map(lambda x: np.atleast_1d(x) if tiled else np.asarray(x)[None], device_get(in_tree))


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """Return the first process's values: those given."""
    return device_get(in_tree)


def sync_global_devices(name: str) -> None:
    """Wait for the devices of all processes."""
    synchronize()


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Check that all processes have the same values; there is one."""


def host_local_array_to_global_array(local_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """Return this process's arrays as those of all processes."""
    return local_inputs


def global_array_to_host_local_array(global_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """Return all processes' arrays as those of this one."""
    return global_inputs

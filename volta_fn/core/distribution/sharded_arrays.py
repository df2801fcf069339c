"""Arrays made of shards: an array here is one shard, that of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.core.array import Array, as_value
from volta_fn.core.distribution.sharding import NamedSharding, Sharding
from volta_fn.core.memory.transfer import device_put
from volta_fn.errors import DeviceError, ShapeError


def make_array_from_callback(
    shape: Sequence[int], sharding: Sharding, data_callback: Callable[[tuple[slice, ...]], Any], dtype: Any = None
) -> Array:
    """Make an array from a function of indices, which is called once, for all of it.

    >>> import numpy as np, volta_fn as vf
    >>> sharding = vf.sharding.SingleDeviceSharding("cpu")
    >>> vf.make_array_from_callback((3,), sharding, lambda index: np.arange(3.0, dtype="float32")[index])
    Array([0., 1., 2.], dtype=float32)
    """
    values = np.asarray(data_callback(tuple([slice(0, size) for size in shape])), dtype)
    if values.shape != tuple(shape):
        raise ShapeError(f"the callback returned an array of shape {values.shape}, not {tuple(shape)}")
    result: Array = device_put(values, sharding)
    return result


def make_array_from_process_local_data(sharding: Sharding, local_data: Any, global_shape: Sequence[int] | None = None) -> Array:
    """Return this process's shard of an array: a process holds no more of it.

    Raises `ShapeError` if `global_shape` is given, and its shard for one process has another shape.

    >>> import numpy as np, volta_fn as vf
    >>> sharding = vf.NamedSharding(vf.make_mesh({"data": vf.process_count()}), vf.P("data"))
    >>> vf.make_array_from_process_local_data(sharding, np.arange(2, dtype="int32"))
    Array([0, 1], dtype=int32)
    """
    array = as_value(local_data)
    if global_shape is not None and isinstance(sharding, NamedSharding):
        wanted = sharding.own_shard(np.broadcast_to(False, tuple(global_shape))).shape
        if array.shape != wanted:
            raise ShapeError(f"a process's shard of an array of shape {tuple(global_shape)} has shape {wanted}, not {array.shape}")
    return array


def make_array_from_single_device_arrays(shape: Sequence[int], sharding: Sharding, arrays: Sequence[Array], *, dtype: Any = None) -> Array:
    """Return the only array of a list, which must have the shape.

    Raises `DeviceError` if there are several: an array lies on one device.
    """
    if len(arrays) != 1:
        raise DeviceError(f"an array lies on one device, but {len(arrays)} shards are given")
    if arrays[0].shape != tuple(shape):
        raise ShapeError(f"the shard has shape {arrays[0].shape}, not {tuple(shape)}")
    result: Array = device_put(arrays[0], sharding)
    return result

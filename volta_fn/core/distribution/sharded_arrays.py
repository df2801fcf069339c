"""Arrays made of shards: of those of this process's devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.core.array import Array, as_value
from volta_fn.core.distribution.placement import indices_of, joined
from volta_fn.core.distribution.sharding import NamedSharding, Sharding
from volta_fn.core.memory.transfer import device_put
from volta_fn.errors import DeviceError, ShapeError


def make_array_from_callback(
    shape: Sequence[int], sharding: Sharding, data_callback: Callable[[tuple[slice, ...]], Any], dtype: Any = None
) -> Array:
    """Make an array from a function of indices, which is called once for each device.

    >>> import numpy as np, volta_fn as vf
    >>> sharding = vf.sharding.SingleDeviceSharding("cpu")
    >>> vf.make_array_from_callback((3,), sharding, lambda index: np.arange(3.0, dtype="float32")[index])
    Array([0., 1., 2.], dtype=float32)
    """
    shards = {device: np.asarray(data_callback(index), dtype) for device, index in indices_of(sharding, tuple(shape)).items()}
    wanted = sharding.shard_shape(tuple(shape))
    for shard in shards.values():
        if shard.shape != wanted:
            raise ShapeError(f"the callback returned an array of shape {shard.shape}, not {wanted}")
    result: Array = device_put(joined(shape, sharding, shards), sharding)
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
    """Join arrays, one on each device of a sharding, to an array of this shape.

    Raises `DeviceError` if there is not one array on each device, and `ShapeError` if one has not a shard's shape.
    """
    shards = {array.device: array for array in arrays}
    if len(arrays) != len(shards) or shards.keys() != sharding.device_set:
        raise DeviceError(f"{sharding} needs one shard on each of its {sharding.num_devices} devices, got {len(arrays)} on {[*shards]}")
    wanted = sharding.shard_shape(tuple(shape))
    for array in arrays:
        if array.shape != wanted:
            raise ShapeError(f"the shard on {array.device} has shape {array.shape}, not {wanted}")
    if len(arrays) == 1:
        only: Array = device_put(arrays[0], sharding)
        return only
    result: Array = device_put(joined(shape, sharding, {d: np.asarray(a, dtype) for d, a in shards.items()}), sharding)
    return result

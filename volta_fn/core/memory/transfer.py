"""Moving pytrees of arrays between host and devices."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array, ConcreteArray, alias, as_value, from_host
from volta_fn.core.device import Device, find_device
from volta_fn.core.distribution import world
from volta_fn.core.trace import Tracer
from volta_fn.errors import DeviceError
from volta_fn.lazy_imports import load

T = TypeVar("T", bound=Any)


def device_put(x: Any, device: Any = None, *, src: Any = None, donate: Any = False, may_alias: Any = None) -> Any:
    """Move a pytree of arrays and scalars to a device.

    `device` is a device, its name, or a sharding. By one over a mesh of several processes, each keeps its shard of the arrays.

    By default arrays stay where they are, and other values go to the default device. `src`, `donate` and `may_alias` are accepted for
    compatibility.

    Dtypes stay as they are: NumPy's float64 arrays become float64 arrays, which the result's repr shows. Convert data for a float32
    network before, by ``x.astype("float32")``.

    Values that are being traced pass through: the program runs where its arguments are.
    Raises `DeviceError` for an unknown device.

    >>> import numpy as np, volta_fn as vf
    >>> vf.device_put({"w": np.ones(2, np.float32)}, "cpu")
    {'w': Array([1., 1.], dtype=float32)}
    """
    shard = getattr(device, "own_shard", None)
    target = None if device is None else _target(device)
    return tree.map(lambda leaf: _put(leaf if shard is None else shard(as_value(leaf)), target), x)


def _target(device: Any) -> Device:
    """Return a device, or the only one of a sharding."""
    found = getattr(device, "device_set", None)
    if found is None:
        return find_device(device)
    found = {d for d in found if d.process_index == world.current().rank}
    if len(found) > 1:
        raise DeviceError(f"{device} has {len(found)} devices, but an array lies on one")
    (only,) = found
    return only


def _put(leaf: Any, target: Device | None) -> Array:
    if isinstance(leaf, Tracer) or (isinstance(leaf, ConcreteArray) and target in (None, leaf.device)):
        return leaf
    if isinstance(leaf, ConcreteArray):
        return alias(leaf, target)
    if isinstance(leaf, (np.ndarray, np.generic)):
        return from_host(np.asarray(leaf), device=target)
    return _put(as_value(leaf), target)


def constrained(x: T, sharding: Any) -> T:
    """Return a result, after a check of `out_sharding` if that is given.

    It is a sharding or a `PartitionSpec` of the current mesh; see `lax.with_sharding_constraint`.
    """
    if sharding is None:
        return x
    result: T = load("volta_fn.core.distribution.sharding").with_sharding_constraint(x, sharding)
    return result


def device_get(x: Any) -> Any:
    """Return `x` with every array replaced by a NumPy array of its elements.

    >>> import volta_fn as vf
    >>> vf.device_get([vf.numpy.arange(2), 1.5])
    [array([0, 1], dtype=int32), 1.5]
    """
    return tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, Array) else leaf, x)


def block_until_ready(x: T) -> T:
    """Return `x` once all of its arrays are computed.

    >>> import volta_fn as vf
    >>> vf.block_until_ready({"x": vf.numpy.ones(2) + 1})
    {'x': Array([2., 2.], dtype=float32)}
    """
    for leaf in (x,) if type(x) is ConcreteArray else tree.leaves(x):
        if isinstance(leaf, ConcreteArray):
            leaf.block_until_ready()
    return x

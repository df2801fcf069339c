"""Moving pytrees of arrays between host and devices."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array, ConcreteArray, alias, array_spec, as_value, from_host, unmasked, wrap
from volta_fn.core.device import Device, find_device
from volta_fn.core.trace import Tracer
from volta_fn.lazy_imports import load

T = TypeVar("T", bound=Any)


def device_put(x: Any, device: Any = None, *, src: Any = None, donate: Any = False, may_alias: Any = None) -> Any:
    """Move a pytree of arrays and scalars to a device.

    `device` is a device, its name, a sharding, or a `PartitionSpec` of the current mesh; or a pytree of these that is a prefix of `x`. By
    a sharding over a mesh of several processes, each keeps its shard of the arrays.

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
    if device is None or isinstance(device, (str, Device)):
        target = None if device is None else find_device(device)
        return tree.map(lambda leaf: _put(leaf, target), x)
    placement = load("volta_fn.core.distribution.placement")
    leaves, structure = tree.flatten(x)
    wanted = tree.broadcast_prefix(device, x, is_leaf=lambda s: s is None)
    return tree.unflatten(structure, [_put_split(leaf, d, placement) for leaf, d in zip(leaves, wanted, strict=True)])


def _put_split(leaf: Any, given: Any, placement: Any) -> Array:
    """Put a value where a device or a sharding says."""
    if given is None or isinstance(given, (str, Device)):
        return _put(leaf, None if given is None else find_device(given))
    sharding = placement.sharding_for(given)
    if isinstance(leaf, Tracer):
        traced: Array = placement.split(leaf, sharding)
        return traced
    own = getattr(sharding, "own_shard", None)
    if own is None or sharding.mesh.processes is None:
        sharding.shard_shape(np.shape(leaf))
    return _put(leaf if own is None else own(as_value(leaf)), placement.group_of(sharding))


def _put(leaf: Any, target: Device | None) -> Array:
    if isinstance(leaf, Tracer) or (isinstance(leaf, ConcreteArray) and target in (None, leaf.device)):
        return leaf
    if isinstance(leaf, ConcreteArray):
        if target is not None and target.backend is leaf.device.backend:
            return wrap(leaf.buffer(), array_spec(leaf.aval, target))
        return alias(leaf, target)
    if isinstance(leaf, (np.ndarray, np.generic)):
        return from_host(np.asarray(unmasked(leaf)), device=target)
    return _put(as_value(leaf), target)


def constrained(x: T, sharding: Any) -> T:
    """Return a result, after a check of `out_sharding` if that is given.

    It is a sharding or a `PartitionSpec` of the current mesh; see `lax.with_sharding_constraint`.
    """
    if sharding is None:
        return x
    result: T = load("volta_fn.core.distribution.placement").with_sharding_constraint(x, sharding)
    return result


def device_get(x: Any) -> Any:
    """Return `x` with every array replaced by a NumPy array of its elements.

    Traced arrays have no elements yet, and stay as they are.

    >>> import volta_fn as vf
    >>> vf.device_get([vf.numpy.arange(2), 1.5])
    [array([0, 1], dtype=int32), 1.5]
    """
    return tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, Array) and not isinstance(leaf, Tracer) else leaf, x)


def copy_to_host_async(x: T) -> T:
    """Return `x`, whose arrays are read when they are asked for.

    Calls the method `copy_to_host_async` of other leaves that have one.

    >>> import volta_fn as vf
    >>> vf.copy_to_host_async({"x": vf.numpy.ones(2)})
    {'x': Array([1., 1.], dtype=float32)}
    """
    for leaf in tree.leaves(x):
        if not isinstance(leaf, Array) and hasattr(leaf, "copy_to_host_async"):
            leaf.copy_to_host_async()
    return x


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

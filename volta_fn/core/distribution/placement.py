"""Arrays that are split between several devices of one memory.

These are the CPUs of `set_cpu_devices`.

All elements are in one buffer, so that a shard is a view of it and no operation depends on where shards lie. What an array has in place of
a device is the *group* of its devices, with the sharding, so that types, and programs found by types, differ where shardings do.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array, ConcreteArray, array_spec, as_value, wrap
from volta_fn.core.device import Device
from volta_fn.core.distribution import world
from volta_fn.core.distribution.sharding import (
    AbstractMesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
    get_abstract_mesh,
    get_mesh,
)
from volta_fn.core.staging import JaxprTracer
from volta_fn.core.trace import Tracer
from volta_fn.errors import ArgumentError, DeviceError
from volta_fn.lazy_imports import load


class DeviceGroup(Device):
    """The devices that hold an array's shards, with its sharding."""

    __slots__ = ("home", "sharding")
    sharding: NamedSharding  # type: ignore[misc]  # a class variable of single devices, which have none

    def __init__(self, sharding: NamedSharding, home: Device) -> None:
        super().__init__(home.platform, home.id, home.device_kind, home.backend)
        self.sharding = sharding
        #: The device that computes for the group.
        self.home = home

    def members(self) -> set[Device]:
        """Return the devices of the group."""
        return self.sharding.device_set

    def __str__(self) -> str:
        return f"{self.platform} devices of {self.sharding}"

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        return group_of, (self.sharding,)


_groups: dict[NamedSharding, DeviceGroup] = {}
_lock = threading.Lock()


def group_of(sharding: Sharding) -> Device:
    """Return the device of arrays with this sharding: a group, or the only device.

    Raises `DeviceError` if the devices have no common memory.
    """
    own = [d for d in _devices_of(sharding) if d.process_index == world.current().rank]
    distinct = list(dict.fromkeys(own))
    if not distinct:
        raise DeviceError(f"{sharding} has no device of this process")
    if len(distinct) == 1 or not isinstance(sharding, NamedSharding):
        return distinct[0]
    if any(d.backend is not distinct[0].backend for d in distinct):
        raise DeviceError(f"{sharding} has devices of several memories, but an array lies in one")
    with _lock:
        return _groups.setdefault(sharding, DeviceGroup(sharding, min(distinct, key=lambda d: d.id)))


def _devices_of(sharding: Sharding) -> list[Device]:
    mesh = getattr(sharding, "mesh", None)
    return [*sharding.device_set] if mesh is None else [*mesh.devices.flat]


def moved(array: ConcreteArray, device: Device) -> ConcreteArray:
    """Return the same buffer as an array on another device of its memory."""
    return wrap(array.buffer(), array_spec(array.aval, device))


def at_home(value: Any) -> Any:
    """Return an array that is split as one on a single device, other values as is."""
    if isinstance(value, ConcreteArray) and isinstance(value.device, DeviceGroup):
        return moved(value, value.device.home)
    return value


def split(value: Array, sharding: Sharding) -> Array:
    """Return a value with a sharding.

    Of a traced one, the results of its program show it.

    Raises `ShapeError` if the mesh's axes do not divide the dimensions.
    """
    sharding.shard_shape(value.shape)
    if isinstance(value, JaxprTracer) and isinstance(sharding, NamedSharding):
        value._trace.builder.shardings[value._var] = sharding  # type: ignore[attr-defined]  # of all traces that make programs
    if not isinstance(value, ConcreteArray):
        return value
    device = group_of(sharding)
    if device is value.device or device.backend is not value.device.backend:
        return value
    return moved(value, device)


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """Return `x`, a pytree of arrays, split between devices as `shardings` says.

    `shardings` is a `Sharding`, or a `PartitionSpec` of the current mesh, or a pytree of them that is a prefix of `x`. An `AbstractMesh`
    stands for the current mesh with these axes. Values are not moved: where devices do not share a memory, this checks only that the
    array can be split so.

    Raises `ShapeError` if the mesh's axes do not divide an array's dimensions, and `ArgumentError` if there is no such axis.

    >>> import volta_fn as vf
    >>> with vf.make_mesh((1,), ("data",)):
    ...     vf.lax.with_sharding_constraint(vf.numpy.ones(2), vf.P("data"))
    Array([1., 1.], dtype=float32)
    """
    leaves, structure = tree.flatten(x)
    wanted = tree.broadcast_prefix(shardings, x, is_leaf=lambda s: s is None)
    values = [as_value(leaf) for leaf in leaves]
    return tree.unflatten(structure, [v if s is None else split(v, sharding_for(s)) for v, s in zip(values, wanted, strict=True)])


reshard = with_sharding_constraint


def constrained_function(
    function: Callable[..., Any], in_shardings: Any, out_shardings: Any, static: Collection[int] = ()
) -> Callable[..., Any]:
    """Return a function whose arguments and results are split so (None: as they are).

    Arguments at `static` positions have no shardings.
    """

    @functools.wraps(function)
    def constrained(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        if in_shardings is not None:
            numbers = [n for n in range(len(args)) if n not in static]
            placed = with_sharding_constraint(tuple([args[n] for n in numbers]), _per_argument(in_shardings))
            for n, x in zip(numbers, placed, strict=True):
                given[n] = x
        result = function(*given, **kwargs)
        return result if out_shardings is None else with_sharding_constraint(result, out_shardings)

    return constrained


def _per_argument(shardings: Any) -> Any:
    return tuple(shardings) if isinstance(shardings, list) else shardings


def sharding_for(given: Any) -> Sharding:
    """Return the sharding that is meant.

    That of a `PartitionSpec`, or of an `AbstractMesh` with its axes, is of the current mesh; a `Format` has its own.
    """
    given = getattr(given, "sharding", given)
    if isinstance(given, PartitionSpec):
        return NamedSharding(get_mesh(), given)
    if isinstance(given, NamedSharding) and isinstance(given.mesh, AbstractMesh) and given.mesh == get_abstract_mesh():
        return NamedSharding(get_mesh(), given.spec)
    found: Sharding = given
    return found


@dataclass(frozen=True)
class Shard:
    """A slice of an array: its device, its indices, its number, its elements."""

    device: Device
    index: tuple[slice, ...]
    replica_id: int
    data: ConcreteArray


def shards_of(array: ConcreteArray) -> list[Shard]:
    """Return the shards of an array, one for each of its devices."""
    group = array.device
    if not isinstance(group, DeviceGroup):
        return [Shard(group, (slice(None),) * array.ndim, 0, array)]
    joined_array = at_home(array)
    replicas: dict[Any, int] = {}
    found = []
    for device, index in indices_of(group.sharding, array.shape).items():
        key = tuple([(s.start, s.stop) for s in index])
        replicas[key] = replicas.get(key, -1) + 1
        found.append(Shard(device, index, replicas[key], moved(joined_array[index] if index else joined_array, device)))
    return found


def indices_of(sharding: Sharding, shape: Sequence[int]) -> dict[Device, tuple[slice, ...]]:
    """Return the indices of the elements that each device holds."""
    if not isinstance(sharding, NamedSharding):
        return {device: (slice(None),) * len(shape) for device in sharding.device_set}
    sizes, mesh = sharding.shard_shape(shape), sharding.mesh
    return {mesh.devices[at]: tuple(_slices(sharding, shape, sizes, at)) for at in np.ndindex(mesh.devices.shape)}


def _slices(sharding: NamedSharding, shape: Sequence[int], sizes: Sequence[int], at: Sequence[int]) -> Iterator[slice]:
    position = dict(zip(sharding.mesh.axis_names, at, strict=True))
    for dimension, size in enumerate(sizes):
        number = 0
        for name in sharding.spec.axes_of(dimension):
            number = number * sharding.mesh.shape[name] + position[name]
        yield slice(None) if size == shape[dimension] else slice(number * size, (number + 1) * size)


def joined(shape: Sequence[int], sharding: Sharding, by_device: Mapping[Device, np.ndarray]) -> np.ndarray:
    """Return the elements of an array, given those of each device."""
    first = next(iter(by_device.values()))
    result = np.empty(tuple(shape), first.dtype)
    for device, index in indices_of(sharding, shape).items():
        if device not in by_device:
            raise ArgumentError(f"there is no shard for {device}")
        result[index] = by_device[device]
    return result


def sharding_of(array: Array) -> Sharding:
    """Return how an array lies on devices."""
    device = array.device
    return device.sharding if isinstance(device, DeviceGroup) else SingleDeviceSharding(device)


def sharding_spec(x: Any) -> PartitionSpec:
    """Return the spec of a value's sharding, as far as it is known."""
    found = known_sharding(x)
    return PartitionSpec() if found is None else found.spec


def known_sharding(x: Any) -> NamedSharding | None:
    """Return how a value is split; None if it is not, or unknown."""
    if isinstance(x, Tracer):
        x = getattr(x, "primal", x)
        found: NamedSharding | None = load("volta_fn.core.distribution.propagation").of_tracer(x) if isinstance(x, JaxprTracer) else None
        return found
    return x.device.sharding if isinstance(x, ConcreteArray) else None

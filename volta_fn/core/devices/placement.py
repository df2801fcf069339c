"""Arrays split between several devices: their types, shards and device groups.

Shards are views of one buffer where devices share a memory.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, ConcreteArray, alias, array_spec, as_value, wrap
from volta_fn.core.arrays.memory import device_put
from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices.device import Device, current_default_device, process_rank
from volta_fn.core.devices.propagation import tracer_sharding
from volta_fn.core.devices.sharding import (
    AbstractMesh,
    AxisType,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
    get_mesh,
)
from volta_fn.core.staging import DynamicJaxprTracer
from volta_fn.core.trace import Tracer
from volta_fn.errors import ArgumentError, ArgumentTypeError, DeviceError, ShapeError

# Types that show how values are split between devices, for `typeof`.
#
# Programs do not have them: there a type is a shape and a dtype.


class PlacedAval(ShapedArray):
    """A type that also says how arrays are split, and along which axes values vary."""

    __slots__ = ("sharding", "vma")
    sharding: Any
    vma: frozenset[Any]

    def __new__(cls, aval: ShapedArray, sharding: Any, vma: Sequence[Any]) -> PlacedAval:
        placed = object.__new__(cls)
        for name in ("shape", "dtype", "weak_type", "ndim", "size", "is_float"):
            setattr(placed, name, getattr(aval, name))
        placed.sharding, placed.vma = sharding, frozenset(vma)
        return placed

    @property
    def manual_axis_type(self) -> Any:
        """The axes along which the value varies, as ``.varying``."""
        return ManualAxisType(self.vma)

    def _sizes(self) -> str:
        spec = self.sharding.spec
        names = ["".join(map(str, spec.axes_of(i))) if len(spec.axes_of(i)) < 2 else _listed(spec.axes_of(i)) for i in range(self.ndim)]
        sizes = [f"{size}@{name}" if name else str(size) for size, name in zip(self.shape, names, strict=True)]
        vma = sorted(map(str, self.vma))
        varying = f"{{V:{vma[0] if len(vma) == 1 else _listed(vma)}}}" if vma else ""
        return f"[{','.join(sizes)}]{varying}"


@dataclass(frozen=True)
class ManualAxisType:
    """The axes of a mesh along which a value varies, or is to be summed.

    Values are summed where they are computed, so that no value has axes of the latter kinds.
    """

    varying: frozenset[Any] = frozenset()
    unreduced: frozenset[Any] = frozenset()
    reduced: frozenset[Any] = frozenset()

    @property
    def empty(self) -> bool:
        """True if there are no axes."""
        return not self.varying | self.unreduced | self.reduced

    @property
    def vur(self) -> frozenset[Any]:
        """All axes."""
        return self.varying | self.unreduced | self.reduced

    def invarying(self, mesh: Any) -> frozenset[Any]:
        """Return the other axes of a mesh over which a program is mapped."""
        return frozenset(mesh.manual_axes) - self.vur

    def update(self, **axes: Any) -> ManualAxisType:
        """Return the type with other axes."""
        return replace(self, **axes)

    def to_ct_mat(self) -> ManualAxisType:
        """Return the type of a cotangent, whose summed axes are to be summed."""
        return self.update(unreduced=self.reduced, reduced=self.unreduced)


def _listed(names: Sequence[Any]) -> str:
    return f"({','.join(map(str, names))})"


def placed_aval(x: Any) -> ShapedArray | None:
    """Return the type of a value that is split, or varies along axes; None for others."""
    if isinstance(x, Array) and (sharding := known_sharding(x)) is not None:
        return PlacedAval(x.aval, explicit_axes_of(sharding, x.ndim), ())
    if isinstance(x, Tracer) and (names := _varying(x)):
        return PlacedAval(x.aval, x.aval.sharding, names)
    return None


def explicit_axes_of(sharding: NamedSharding, ndim: int) -> NamedSharding:
    """Return the part of a sharding that types show: explicit axes."""
    mesh, spec = sharding.mesh, sharding.spec
    explicit = {n for n, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Explicit}
    explicit_names = [tuple([name for name in spec.axes_of(i) if name in explicit]) for i in range(ndim)]
    return NamedSharding(mesh.abstract_mesh, PartitionSpec(*explicit_names))


def _varying(x: Any) -> list[Any]:
    """Return the named axes that a value is mapped over."""
    names = []
    while (axis := getattr(getattr(x, "_trace", None), "axis", None)) is not None and hasattr(x, "stacked"):
        names += [axis.name] if axis.name is not None else []
        x = x.stacked
    return names


# Arrays assembled from the shards of this process's devices.


def make_array_from_callback(
    shape: Sequence[int], sharding: Sharding, data_callback: Callable[[tuple[slice, ...]], Any], dtype: Any = None
) -> Array:
    """Make an array from a function of indices, which is called once for each device.

    >>> import numpy as np
    >>> sharding = vf.sharding.SingleDeviceSharding("cpu")
    >>> vf.make_array_from_callback((3,), sharding, lambda index: np.arange(3.0, dtype="float32")[index])
    Array([0., 1., 2.], dtype=float32)
    """
    shards = {device: np.asarray(data_callback(index), dtype) for device, index in indices_of(sharding, tuple(shape)).items()}
    shard_shape = sharding.shard_shape(tuple(shape))
    for shard in shards.values():
        if shard.shape != shard_shape:
            raise ShapeError(f"the callback returned an array of shape {shard.shape}, not {shard_shape}")
    result: Array = device_put(joined(shape, sharding, shards), sharding)
    return result


def make_array_from_process_local_data(sharding: Any, local_data: Any, global_shape: Any = None) -> Any:
    """Return arrays of which this process has these elements.

    An array that is split between processes is this process's shard of it, all that it holds. Others are placed as by `device_put`.

    Args:
        sharding: a sharding, or a pytree of them that is a prefix of `local_data`; a `PartitionSpec` is one of the current mesh.
        local_data: a pytree of arrays.
        global_shape: the shape of the whole array, or such a prefix, with None where it follows from the others.

    Raises `ShapeError` if this process's shard of an array of that shape has another shape.

    >>> import numpy as np
    >>> sharding = vf.NamedSharding(vf.make_mesh({"data": vf.process_count()}), vf.P("data"))
    >>> vf.make_array_from_process_local_data(sharding, np.arange(2, dtype="int32"))
    Array([0, 1], dtype=int32)
    """
    leaves, structure = tree.flatten(local_data)
    shardings = map(sharding_for, tree.broadcast_prefix(sharding, local_data))
    shapes = tree.broadcast_prefix(global_shape, local_data, is_leaf=lambda shape: shape is None or isinstance(shape, tuple))
    return tree.unflatten(structure, [_local_array(*row) for row in zip(shardings, leaves, shapes, strict=True)])


def _local_array(sharding: Sharding, local_data: Any, global_shape: Sequence[int] | None) -> Array:
    array = as_value(local_data)
    named = sharding if isinstance(sharding, NamedSharding) else None
    if global_shape is not None:
        shard_shape = tuple(global_shape) if named is None else named.own_shard(np.broadcast_to(False, global_shape)).shape
        if array.shape != shard_shape:
            raise ShapeError(f"a process's shard of an array of shape {tuple(global_shape)} has shape {shard_shape}, not {array.shape}")
    return device_put(array, sharding) if named is None or named.mesh.processes is None else array


def make_array_from_single_device_arrays(shape: Sequence[int], sharding: Sharding, arrays: Sequence[Array], *, dtype: Any = None) -> Array:
    """Join arrays, one on each device of a sharding, to an array of this shape.

    Raises `DeviceError` if there is not one array on each device, and `ShapeError` if one has not a shard's shape.
    """
    shards = {array.device: array for array in arrays}
    if len(arrays) != len(shards) or shards.keys() != sharding.device_set:
        raise DeviceError(f"{sharding} needs one shard on each of its {sharding.num_devices} devices, got {len(arrays)} on {[*shards]}")
    shard_shape = sharding.shard_shape(tuple(shape))
    for array in arrays:
        if array.shape != shard_shape:
            raise ShapeError(f"the shard on {array.device} has shape {array.shape}, not {shard_shape}")
    if len(arrays) == 1:
        only: Array = device_put(arrays[0], sharding)
        return only
    result: Array = device_put(joined(shape, sharding, {d: np.asarray(a, dtype) for d, a in shards.items()}), sharding)
    return result


# Arrays that are split between several devices.
#
# What an array has in place of a device is the *group* of its devices, with the sharding, so that types, and programs found by types,
# differ where shardings do. The CPUs of `set_cpu_devices` have one memory: all elements are in one buffer, so that a shard is a view of it
# and no operation depends on where shards lie. GPUs have a memory each, and a buffer for each shard.


class Shards:
    """The buffers of an array's shards, by their devices, and the array's shape."""

    __slots__ = ("parts", "shape")

    def __init__(self, parts: dict[Device, Any], shape: tuple[int, ...]) -> None:
        self.parts, self.shape = parts, shape


class ShardedMemory:
    """The memories of several devices, as the backend of split arrays.

    All but memory is that of the group's home.
    """

    def __init__(self, sharding: NamedSharding, home: Device) -> None:
        self._sharding, self._home = sharding, home

    def put(self, values: np.ndarray) -> Shards:
        """Return the shards of an array."""
        indices = indices_of(self._sharding, values.shape)
        parts = {device: device.backend.put(np.array(values[index], order="C")) for device, index in indices.items()}
        return Shards(parts, values.shape)

    def get(self, buffer: Shards) -> np.ndarray:
        """Return the elements of all shards."""
        if self._sharding.is_fully_replicated:
            return self._home.backend.get(buffer.parts[self._home])
        by_device = {device: device.backend.get(part) for device, part in buffer.parts.items()}
        return joined(buffer.shape, self._sharding, by_device)

    def wait(self, buffer: Shards) -> None:
        """Wait until all shards are computed."""
        for device, part in buffer.parts.items():
            device.backend.wait(part)

    def is_ready(self, buffer: Shards) -> bool:
        """Return whether all shards are computed."""
        return all(device.backend.is_ready(part) for device, part in buffer.parts.items())

    def host_elements(self, buffer: Shards) -> None:
        """Return None: the elements are on the devices."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._home.backend, name)


class DeviceGroup(Device):
    """The devices that hold an array's shards, with its sharding."""

    __slots__ = ("home", "sharding")
    sharding: NamedSharding  # type: ignore[misc]  # a class variable of single devices, which have none

    def __init__(self, sharding: NamedSharding, home: Device) -> None:
        memory: Any = home.backend if sharding.mesh.grid is None else ShardedMemory(sharding, home)
        super().__init__(home.platform, home.id, home.device_kind, memory)
        self.sharding = sharding
        #: The device that computes for the group, where it has one memory or a program no collectives.
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

    Raises `DeviceError` if the devices have no common memory, unless each is at one position.
    """
    local = [d for d in _devices_of(sharding) if d.process_index == process_rank()]
    distinct = list(dict.fromkeys(local))
    if not distinct:
        raise DeviceError(f"{sharding} has no device of this process")
    if len(distinct) == 1 or not isinstance(sharding, NamedSharding):
        return distinct[0]
    if sharding.mesh.grid is None and any(d.backend is not distinct[0].backend for d in distinct):
        raise DeviceError(
            f"{sharding} has devices of several memories, of which an array is split between those of one platform, each at one position"
        )
    with _lock:
        return _groups.setdefault(sharding, DeviceGroup(sharding, min(distinct, key=lambda d: d.id)))


def _devices_of(sharding: Sharding) -> list[Device]:
    mesh = getattr(sharding, "mesh", None)
    if mesh is not None and not mesh.axis_names:  # the type of an array that is not split has it
        return [current_default_device()]
    return [*sharding.device_set] if mesh is None else [*mesh.devices.flat]


def with_device(array: ConcreteArray, device: Device) -> ConcreteArray:
    """Return the same buffer as an array on another device of its memory."""
    return wrap(array.buffer(), array_spec(array.aval, device))


def with_named_sharding(array: ConcreteArray, sharding: Sharding) -> ConcreteArray:
    """Return an array on one device that tells the mesh that it was put on."""
    if not isinstance(sharding, NamedSharding) or not sharding.mesh.axis_names or isinstance(array.device, DeviceGroup):
        return array
    # Only the array itself remembers it: results of operations would need a group of one device, which computes more slowly.
    result = with_device(array, array.device)
    vars(result)["_named_sharding"] = sharding
    return result


def on_home_device(value: Any) -> Any:
    """Return a sharded array as one on a single device; pass other values through."""
    if isinstance(value, ConcreteArray) and isinstance(value.device, DeviceGroup):
        return moved(value, value.device.home)
    return value


def moved(array: ConcreteArray, device: Device) -> ConcreteArray:
    """Return an array on another device, or split between those of another group."""
    if array.device is device:
        return array
    buffer = array.buffer()
    if not isinstance(buffer, Shards):
        return with_device(array, device) if array.device.backend is device.backend else alias(array, device)
    group = array.device
    if isinstance(device, DeviceGroup):
        is_there = same_placement(group.sharding, device.sharding, array.shape)
    else:
        is_there = group.sharding.is_fully_replicated and device in buffer.parts
        buffer = buffer.parts[device] if is_there else buffer
    return wrap(buffer, array_spec(array.aval, device)) if is_there else alias(array, device)


def same_placement(first: Sharding, second: Sharding, shape: Sequence[int]) -> bool:
    """Return whether every device holds the same elements of an array by both."""
    return first == second or indices_of(first, shape) == indices_of(second, shape)


def split(value: Array, sharding: Sharding) -> Array:
    """Return a value with a sharding.

    Of a traced one, the results of its program show it. Raises `ShapeError` if the mesh's axes do not divide the dimensions.
    """
    sharding.shard_shape(value.shape)
    if isinstance(value, Tracer) and isinstance(sharding, NamedSharding):
        return value.constrain(sharding)
    if not isinstance(value, ConcreteArray):
        return value
    device = group_of(sharding)
    if isinstance(device.backend, ShardedMemory) or isinstance(value.device.backend, ShardedMemory):
        return moved(value, device)
    if device is value.device or device.backend is not value.device.backend:
        return value
    return with_device(value, device)


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """Return `x`, a pytree of arrays, split between devices as `shardings` says.

    `shardings` is a `Sharding`, or a `PartitionSpec` of the current mesh, or a pytree of them that is a prefix of `x`. An `AbstractMesh`
    stands for the current mesh with these axes.

    Raises `ShapeError` if the mesh's axes do not divide an array's dimensions, and `ArgumentError` if there is no such axis.

    >>> with vf.make_mesh((1,), ("data",)):
    ...     vf.lax.with_sharding_constraint(vf.numpy.ones(2), vf.P("data"))
    Array([1., 1.], dtype=float32)
    """
    leaves, structure = tree.flatten(x)
    leaf_shardings = tree.broadcast_prefix(shardings, x, is_leaf=lambda s: s is None)
    values = [as_value(leaf) for leaf in leaves]
    return tree.unflatten(structure, [v if s is None else split(v, sharding_for(s)) for v, s in zip(values, leaf_shardings, strict=True)])


reshard = with_sharding_constraint


def constrained_function(
    function: Callable[..., Any], in_shardings: Any, out_shardings: Any, static: Collection[int] = ()
) -> Callable[..., Any]:
    """Return a function whose arguments and results are split so (None: as they are).

    Arguments at `static` positions have no shardings.
    """

    @functools.wraps(function)
    def constrained(*args: Any, **kwargs: Any) -> Any:
        sharded_args = list(args)
        if in_shardings is not None:
            numbers = [n for n in range(len(args)) if n not in static]
            shardings = tuple(in_shardings) if isinstance(in_shardings, list) else in_shardings
            placed = with_sharding_constraint(tuple([args[n] for n in numbers]), shardings)
            for n, x in zip(numbers, placed, strict=True):
                sharded_args[n] = x
        result = function(*sharded_args, **kwargs)
        return result if out_shardings is None else with_sharding_constraint(result, out_shardings)

    return constrained


def single_device_of(shardings: Any) -> Device | None:
    """Return the one device that shardings name; None for meshes.

    Raises `DeviceError` if they have several.
    """
    leaves = [leaf if isinstance(leaf, Device) else getattr(leaf, "sharding", leaf) for leaf in tree.leaves(shardings)]
    devices = {leaf.device if isinstance(leaf, SingleDeviceSharding) else leaf for leaf in leaves}
    if not all(isinstance(d, Device) and d.sharding is None for d in devices):
        return None
    if len(devices) > 1:
        raise DeviceError(f"jit: a program runs on one device, but its shardings name {', '.join(sorted(map(str, devices)))}")
    return devices.pop() if devices else None


def sharding_for(placement: Any) -> Sharding:
    """Resolve a placement to a sharding.

    That of a device has this device alone; that of a `PartitionSpec`, or of an `AbstractMesh` with its axes, is of the current mesh; a
    `Format` has its own. Raises `ArgumentError` for a spec without a mesh, and `ArgumentTypeError` for what is no placement.
    """
    if isinstance(placement, Device) and placement.sharding is None:
        return SingleDeviceSharding(placement)
    placement = getattr(placement, "sharding", placement)
    if isinstance(placement, PartitionSpec):
        mesh = get_mesh()
        if not mesh.axis_names:
            raise ArgumentError(
                f"{placement} is of a mesh's axes, but no mesh is set: NamedSharding(mesh, {placement}), or `with mesh:` around it"
            )
        return NamedSharding(mesh, placement)
    if isinstance(placement, NamedSharding) and isinstance(placement.mesh, AbstractMesh):
        mesh = get_mesh()
        if not placement.mesh.axis_names or placement.mesh.shape_tuple == mesh.shape_tuple:
            placement = NamedSharding(mesh, placement.spec)
    if not isinstance(placement, Sharding):
        raise ArgumentTypeError(
            f"a placement is a device, its name, such as 'gpu:1', or a sharding, such as NamedSharding(mesh, P('x')); got {placement!r:.60}"
        )
    return placement


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
    buffer = array.buffer()
    joined_array = None if isinstance(buffer, Shards) else on_home_device(array)
    replicas: dict[Any, int] = {}
    shards = []
    for device, index in indices_of(group.sharding, array.shape).items():
        key = tuple([(s.start, s.stop) for s in index])
        replicas[key] = replicas.get(key, -1) + 1
        if joined_array is None:
            aval = ShapedArray(group.sharding.shard_shape(array.shape), array.dtype, array.weak_type)
            data = wrap(buffer.parts[device], array_spec(aval, device))
        else:
            data = with_device(joined_array[index] if index else joined_array, device)
        shards.append(Shard(device, index, replicas[key], data))
    return shards


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
    """Join the elements on each device to those of an array."""
    first = next(iter(by_device.values()))
    result = np.empty(tuple(shape), first.dtype)
    for device, index in indices_of(sharding, shape).items():
        if device not in by_device:
            raise ArgumentError(f"there is no shard for {device}")
        result[index] = by_device[device]
    return result


def sharding_of(array: Array) -> Sharding:
    """Return the sharding of an array."""
    device = array.device
    if isinstance(device, DeviceGroup):
        return device.sharding
    return vars(array).get("_named_sharding") or SingleDeviceSharding(device)


def sharding_spec(x: Any) -> PartitionSpec:
    """Return the spec of a value's sharding; empty if that is unknown."""
    sharding = known_sharding(x)
    return PartitionSpec() if sharding is None else sharding.spec


def known_sharding(x: Any) -> NamedSharding | None:
    """Return a value's sharding; None if it is not split, or unknown."""
    if isinstance(x, Tracer):
        x = getattr(x, "primal", x)
        sharding: NamedSharding | None = tracer_sharding(x) if isinstance(x, DynamicJaxprTracer) else None
        return sharding
    return x.device.sharding if isinstance(x, ConcreteArray) else None

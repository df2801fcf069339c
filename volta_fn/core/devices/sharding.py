"""Meshes of devices, and shardings: which elements lie on which device.

Where the CPU is several devices (`core.devices.placement`), an array may be split between them; else a sharding says which device it
lies on.
"""

from __future__ import annotations

import copy
import enum
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from volta_fn.core.devices.device import Device, devices, find_device, process_rank, set_mesh_compiler
from volta_fn.core.trace import ProcessGrid, current_mesh, read_mesh
from volta_fn.errors import ArgumentError, ArgumentTypeError, DeviceError, ShapeError
from volta_fn.lazy_imports import load

# `volta_fn.sharding.shard_map` maps over the axes. One device may stand at several positions of a mesh.


class AxisType(enum.Enum):
    """Modes of sharding along a mesh axis; `typeof` shows explicit axes."""

    Auto = enum.auto()
    Explicit = enum.auto()
    Manual = enum.auto()

    def __repr__(self) -> str:
        return self.name


class _Axes:
    """Named axes with sizes, the base of meshes with and without devices."""

    def __init__(self, sizes: Sequence[int], axis_names: Any, axis_types: Any) -> None:
        #: The sizes of the axes.
        self.axis_sizes = tuple(sizes)
        self.axis_names: tuple[Any, ...] = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
        if len(self.axis_sizes) != len(self.axis_names) or len({*self.axis_names}) < len(self.axis_names):
            raise ArgumentError(f"a mesh needs a name of its own for each axis, got the shape {self.axis_sizes} and {self.axis_names}")
        types = axis_types if isinstance(axis_types, (tuple, list)) else (axis_types or AxisType.Auto,) * len(self.axis_sizes)
        self.axis_types: tuple[Any, ...] = tuple(types)

    @property
    def shape(self) -> dict[Any, int]:
        """The size of each axis by its name."""
        return dict(zip(self.axis_names, self.axis_sizes, strict=True))

    @property
    def shape_tuple(self) -> tuple[tuple[Any, int], ...]:
        """The name and size of each axis."""
        return tuple(self.shape.items())

    def _axes_of_type(self, kind: AxisType) -> tuple[Any, ...]:
        return tuple([name for name, type_ in zip(self.axis_names, self.axis_types, strict=True) if type_ is kind])

    @property
    def auto_axes(self) -> tuple[Any, ...]:
        """The names of the axes of the type `AxisType.Auto`."""
        return self._axes_of_type(AxisType.Auto)

    @property
    def explicit_axes(self) -> tuple[Any, ...]:
        """The names of the axes of the type `AxisType.Explicit`."""
        return self._axes_of_type(AxisType.Explicit)

    @property
    def manual_axes(self) -> tuple[Any, ...]:
        """The names of the axes of the type `AxisType.Manual`."""
        return self._axes_of_type(AxisType.Manual)

    @property
    def size(self) -> int:
        """The number of positions."""
        return math.prod(self.axis_sizes)

    @property
    def are_all_axes_auto(self) -> bool:
        """Whether all axes have the type `AxisType.Auto`."""
        return all(kind is AxisType.Auto for kind in self.axis_types)

    @property
    def are_all_axes_explicit(self) -> bool:
        """Whether all axes have the type `AxisType.Explicit`."""
        return all(kind is AxisType.Explicit for kind in self.axis_types)

    @property
    def are_all_axes_manual(self) -> bool:
        """Whether all axes have the type `AxisType.Manual`."""
        return all(kind is AxisType.Manual for kind in self.axis_types)

    @property
    def empty(self) -> bool:
        """Whether it has no axes."""
        return not self.axis_names

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name!r}: {size}' for name, size in self.shape.items())})"


class AbstractMesh(_Axes):
    """Named axes without devices.

    >>> vf.sharding.AbstractMesh((2, 4), ("data", "model"))
    AbstractMesh('data': 2, 'model': 4)
    """

    def __init__(self, axis_sizes: Sequence[int], axis_names: Any, axis_types: Any = None, *, abstract_device: Any = None) -> None:
        super().__init__(axis_sizes, axis_names, axis_types)
        #: The kind of its devices (`AbstractDevice`), or None.
        self.abstract_device = abstract_device

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The mesh itself."""
        return self

    def update(self, axis_sizes: Any = None, axis_names: Any = None, axis_types: Any = None, **changes: Any) -> AbstractMesh:
        """Return a mesh with other sizes, names, types or `abstract_device`."""
        sizes = self.axis_sizes if axis_sizes is None else axis_sizes
        names = self.axis_names if axis_names is None else axis_names
        types = self.axis_types if axis_types is None else axis_types
        return AbstractMesh(sizes, names, types, **({"abstract_device": self.abstract_device} | changes))

    def update_axis_types(self, name_to_type: dict[Any, AxisType]) -> AbstractMesh:
        """Return a mesh in which the axes with these names have these types."""
        return self.update(axis_types=tuple(name_to_type.get(n, t) for n, t in zip(self.axis_names, self.axis_types, strict=True)))

    def _refuse(self) -> Any:
        """Raise `ArgumentError`."""
        raise ArgumentError(f"{self} has no devices; a Mesh has")

    devices = device_ids = is_multi_process = local_devices = local_mesh = processes = property(
        _refuse, doc="None: raises `ArgumentError`."
    )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbstractMesh) and (other.shape_tuple, other.axis_types) == (self.shape_tuple, self.axis_types)

    def __hash__(self) -> int:
        return hash((self.axis_sizes, self.axis_names))


class Mesh(_Axes):
    """An array of devices with named axes; in a ``with``, like `set_mesh`.

    Args:
        devices: an array (or nested lists) of devices.
        axis_names: a name for each axis, or one name.
        axis_types: the type of each axis, or one for all; by default `AxisType.Auto`.

    >>> import numpy as np
    >>> mesh = vf.sharding.Mesh(np.array(vf.devices("cpu")[:1]).reshape(1, 1), ("data", "model"))
    >>> mesh.shape, mesh.size
    ({'data': 1, 'model': 1}, 1)
    """

    def __init__(self, devices: Any, axis_names: Any, axis_types: Any = None) -> None:
        self.devices = np.asarray(devices, dtype=object)
        super().__init__(self.devices.shape, axis_names, axis_types)

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The same axes without devices."""
        return AbstractMesh(self.axis_sizes, self.axis_names, self.axis_types)

    @property
    def local_devices(self) -> list[Device]:
        """The devices in it that belong to this process."""
        return [device for device in self.devices.flat if device.process_index == process_rank()]

    @functools.cached_property
    def processes(self) -> ProcessGrid | None:
        """The processes along the axes that cross processes; None if there is one.

        Raises `ArgumentError` unless the positions of each process are a box of the other axes.
        """
        if not self.axis_names:
            return None
        of = np.vectorize(lambda device: device.process_index, otypes=[int])(self.devices)
        if len(np.unique(of)) < 2:
            return None
        across = [bool(np.any(np.diff(of, axis=i))) for i in range(of.ndim)]
        first = of[tuple([slice(None) if a else slice(0, 1) for a in across])]
        if np.any(of != first) or len(np.unique(first)) < first.size:
            raise ArgumentError(
                f"{self}: along an axis, the process must change with every step or with none; the processes are {of.tolist()}"
            )
        names = tuple([name for name, a in zip(self.axis_names, across, strict=True) if a])
        ranks = tuple(first.ravel().tolist())
        if process_rank() not in ranks:
            raise ArgumentError(f"{self} has no device of process {process_rank()}, only of {sorted(ranks)}")
        return ProcessGrid(names, tuple([size for size in first.shape if size > 1]), ranks)

    @functools.cached_property
    def grid(self) -> ProcessGrid | None:
        """The processes, or devices with memories of their own; None if one computes."""
        if self.processes is not None or len({device.backend for device in self.devices.flat}) < 2:
            return self.processes
        devices = tuple(self.devices.flat)
        if len(set(devices)) < len(devices) or len({device.platform for device in devices}) > 1:
            return None
        axes = {name: size for name, size in self.shape.items() if size > 1}
        set_mesh_compiler(load("volta_fn.core.devices.device_world").executable_at_home)
        return ProcessGrid(tuple(axes), tuple(axes.values()), tuple([device.id for device in devices]), devices)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return NotImplemented
        names_and_types = (self.axis_names, self.axis_types) == (other.axis_names, other.axis_types)
        return names_and_types and np.array_equal(self.devices, other.devices)

    def __hash__(self) -> int:
        return hash((self.axis_names, self.devices.shape, tuple(self.devices.flat)))

    def __enter__(self) -> Mesh:
        self._entered: list[Any] = [*getattr(self, "_entered", []), current_mesh.set(self)]
        return self

    def __exit__(self, *error: object) -> None:
        current_mesh.reset(self._entered.pop())


def get_mesh() -> Mesh:
    """Return the current mesh; an empty one if none is set."""
    return read_mesh() or Mesh(np.empty((), object), ())


def get_abstract_mesh() -> AbstractMesh:
    """Return the axes of the current mesh; none if none is set."""
    return get_mesh().abstract_mesh


class set_mesh:  # JAX's name
    """Make a mesh the current one, until the end of a ``with`` block if used in one."""

    #: The mesh before.
    prev_mesh: Mesh | None

    def __init__(self, mesh: Mesh | None) -> None:
        self.mesh = mesh
        self.prev_mesh = current_mesh.get()
        self._token = current_mesh.set(mesh)

    def __enter__(self) -> Mesh | None:
        return self.mesh

    def __exit__(self, *error: object) -> None:
        current_mesh.reset(self._token)


#: JAX's former name.
use_mesh = set_mesh


def make_mesh(
    axis_shapes: Sequence[int] | Mapping[str, int], axis_names: Sequence[str] | None = None, axis_types: Any = None, *, devices: Any = None
) -> Mesh:
    """Make a mesh of the available devices of all processes.

    Args:
        axis_shapes: the sizes of the axes, or a dict from names to sizes.
        axis_names: the names of the axes, unless `axis_shapes` has them.
        axis_types: the type of each axis, or one for all; by default `AxisType.Explicit`.
        devices: the devices, by default all (`devices`); with several processes one of each.

    Raises `DeviceError` if these are too few, and `ArgumentError` if there is not one name for each axis.

    >>> vf.make_mesh((1, 1), ("data", "model"))
    Mesh('data': 1, 'model': 1)
    >>> vf.make_mesh({"data": vf.process_count()})
    Mesh('data': 1)
    """
    available = list(_default_devices() if devices is None else devices)
    if isinstance(axis_shapes, Mapping):
        if axis_names is not None:
            raise ArgumentError(f"make_mesh: {axis_shapes} has the names of the axes; got {axis_names}, too")
        axis_names, axis_shapes = list(axis_shapes), list(axis_shapes.values())
    if axis_names is None:
        raise ArgumentError(f"make_mesh: the axes of the shape {tuple(axis_shapes)} need names: make_mesh({{name: size, …}})")
    if not all(isinstance(size, (int, np.integer)) for size in axis_shapes):
        raise ArgumentTypeError(f"make_mesh: the sizes of the axes are integers, got {tuple(axis_shapes)}")
    device_count = math.prod(axis_shapes)
    if device_count > len(available):
        raise DeviceError(
            f"a mesh of shape {tuple(axis_shapes)} needs {device_count} devices, but there are {len(available)}. A device may stand at all "
            "positions: sharding.Mesh(numpy.full(shape, device), names), and the CPU may be several devices: set_cpu_devices(n)."
        )
    return Mesh(np.array(available[:device_count], object).reshape(tuple(axis_shapes)), axis_names, axis_types or AxisType.Explicit)


def _default_devices() -> list[Device]:
    return devices()


# Shardings.


class _Unconstrained:
    """The type of `PartitionSpec.UNCONSTRAINED`."""

    def __repr__(self) -> str:
        return "UNCONSTRAINED"

    def __reduce__(self) -> str:
        return "PartitionSpec.UNCONSTRAINED"


class PartitionSpec:
    """The mesh axis, or axes, that splits each dimension of an array; or None.

    >>> vf.P("data", None, ("model", "stage"))
    P('data', None, ('model', 'stage'))
    """

    __slots__ = ("partitions", "reduced", "unreduced")
    #: An entry of `with_sharding_constraint` that leaves a dimension as it is.
    UNCONSTRAINED: ClassVar[Any] = _Unconstrained()

    def __init__(self, *partitions: Any, unreduced: Any = frozenset(), reduced: Any = frozenset()) -> None:
        self.partitions = tuple(map(_canonical, partitions))
        #: Accepted for compatibility: arrays here are always reduced.
        self.unreduced, self.reduced = frozenset(unreduced), frozenset(reduced)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)

    def __getitem__(self, index: Any) -> Any:
        return self.partitions[index]

    def index(self, value: Any) -> int:
        """Return the first dimension with an entry; raise `ValueError` without one."""
        return self.partitions.index(value)

    def count(self, value: Any) -> int:
        """Return the number of dimensions with an entry."""
        return self.partitions.count(value)

    def update(self, partitions: Sequence[Any] | None = None, unreduced: Any = None, reduced: Any = None) -> PartitionSpec:
        """Return a spec with other `partitions`, `unreduced` or `reduced` axes.

        >>> vf.P("data").update(partitions=("data", None))
        P('data', None)
        """
        axes = [own if new is None else new for new, own in ((unreduced, self.unreduced), (reduced, self.reduced))]
        return PartitionSpec(*(self.partitions if partitions is None else partitions), unreduced=axes[0], reduced=axes[1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionSpec) and self.partitions == other.partitions

    def __hash__(self) -> int:
        return hash(self.partitions)

    def __repr__(self) -> str:
        axes = [f"{name}={set(names)!r}" for name, names in (("unreduced", self.unreduced), ("reduced", self.reduced)) if names]
        parts = [*map(repr, self.partitions), *axes]
        return f"P({', '.join(parts)}{',' * (len(parts) == 1 and not axes)})"

    def axes_of(self, dimension: int) -> tuple[Any, ...]:
        """Return the names of the axes that split a dimension."""
        entry = self.partitions[dimension] if dimension < len(self) else None
        is_free = entry is None or entry is PartitionSpec.UNCONSTRAINED
        return () if is_free else entry if isinstance(entry, tuple) else (entry,)

    def names(self) -> list[Any]:
        """Return the names of all axes, in order."""
        return [name for dimension in range(len(self)) for name in self.axes_of(dimension)]


def _canonical(entry: Any) -> Any:
    """Return an entry of a spec: None, a name, or a tuple of several names."""
    if not isinstance(entry, (tuple, list)):
        return entry
    if any(isinstance(name, (tuple, list)) for name in entry):
        raise ArgumentError(f"an entry of a PartitionSpec is an axis or a tuple of axes, got {entry!r}, which has tuples in it")
    return None if not entry else entry[0] if len(entry) == 1 else tuple(entry)


class Sharding:
    """The distribution of an array over devices."""

    @property
    def device_set(self) -> set[Device]:
        """The devices."""
        raise NotImplementedError

    @property
    def addressable_devices(self) -> set[Device]:
        """The devices: all belong to this process."""
        return self.device_set

    @property
    def is_fully_addressable(self) -> bool:
        """True: all devices belong to this process."""
        return True

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device would hold all of an array."""
        return True

    @property
    def has_addressable_devices(self) -> bool:
        """Whether some devices belong to this process."""
        return bool(self.addressable_devices)

    def check_compatible_aval(self, aval_shape: Sequence[int]) -> None:
        """Raise `ShapeError` if an array of this shape cannot have the sharding."""
        self.shard_shape(aval_shape)

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return len(self.device_set)

    #: JAX's private names, by which checkpoints place shards.
    @property
    def _addressable_device_assignment(self) -> tuple[Device, ...]:
        return tuple(self.device_set)

    _device_assignment = _addressable_device_assignment
    _memory_kind: str | None = None

    @property
    def memory_kind(self) -> str:
        """The requested kind of memory; devices have only one."""
        return self._memory_kind or "device"

    def with_memory_kind(self, kind: str) -> Self:
        """Return the same sharding, labelled with another kind of memory."""
        sharding = copy.copy(self)
        sharding._memory_kind = kind
        return sharding

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one shard of an array."""
        return tuple(global_shape)

    def devices_indices_map(self, global_shape: Sequence[int]) -> dict[Device, tuple[slice, ...]]:
        """Return the indices of an array's elements that each device holds."""
        indices: dict[Device, tuple[slice, ...]] = load("volta_fn.core.devices.placement").indices_of(self, tuple(global_shape))
        return indices

    addressable_devices_indices_map = devices_indices_map

    def is_equivalent_to(self, other: Sharding, ndim: int) -> bool:
        """Return True if both place an array's elements alike."""
        shape = (math.prod(getattr(s, "mesh_size", 1) for s in (self, other)),) * ndim
        return self.device_set == other.device_set and self.shard_shape(shape) == other.shard_shape(shape)


@dataclass(frozen=True)
class AbstractDevice:
    """The kind of a mesh's devices: its name, the cores of each, and the platform."""

    device_kind: str
    num_cores: int | None
    platform: str


def make_single_device_sharding(device: str | Device, *, memory_kind: str | None = None) -> SingleDeviceSharding:
    """Return the sharding of arrays on a device."""
    return SingleDeviceSharding(device, memory_kind=memory_kind)


class SingleDeviceSharding(Sharding):
    """The sharding of arrays on one device."""

    def __init__(self, device: str | Device, *, memory_kind: str | None = None) -> None:
        self.device = find_device(device)
        self._memory_kind = memory_kind

    @property
    def device_set(self) -> set[Device]:
        """The device."""
        return {self.device}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SingleDeviceSharding) and other.device is self.device

    def __hash__(self) -> int:
        return hash(self.device)

    def __repr__(self) -> str:
        return f"SingleDeviceSharding(device={self.device!r})"


class NamedSharding(Sharding):
    """An array's dimensions split along axes of a mesh.

    Raises `ArgumentError` if the mesh lacks an axis, or one splits two dimensions.

    >>> vf.NamedSharding(vf.make_mesh((1,), ("data",)), vf.P("data")).shard_shape((8, 2))
    (8, 2)
    """

    def __init__(self, mesh: Mesh | AbstractMesh, spec: PartitionSpec, *, memory_kind: str | None = None) -> None:
        if not isinstance(spec, PartitionSpec):
            raise ArgumentTypeError(f"a spec is a PartitionSpec of a mesh's axes, as P('x') or P(None, 'x'), got {spec!r:.80}")
        self._mesh: Any = mesh
        self._spec = spec
        self._memory_kind = memory_kind
        names = spec.names()
        if unknown := [n for n in names if n not in mesh.axis_names]:
            raise ArgumentError(f"{spec} names the axes {unknown}, but the mesh has {mesh.axis_names}")
        if len({*names}) < len(names):
            raise ArgumentError(f"{spec} names an axis twice")

    @property
    def mesh(self) -> Any:
        """The mesh."""
        return self._mesh

    @property
    def spec(self) -> PartitionSpec:
        """The axes that split each dimension."""
        return self._spec

    @property
    def replicated_axes(self) -> frozenset[Any]:
        """The names of the axes along which all devices hold the same elements."""
        return frozenset(self.mesh.axis_names) - frozenset(self.spec.names())

    @property
    def device_set(self) -> set[Device]:
        """The devices of the mesh."""
        return {*self.mesh.devices.flat}

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all devices belong to this process."""
        return self.mesh.processes is None

    def own_shard(self, x: Any) -> Any:
        """Return the shard of an array that belongs to this process."""
        grid = self.mesh.processes
        if grid is None:
            return x
        self.shard_shape(x.shape)
        slices = []
        for dimension, size in enumerate(x.shape):
            names = tuple([name for name in self.spec.axes_of(dimension) if name in grid.names])
            group = grid.group(names, process_rank()) if names else (process_rank(),)
            length, position = size // len(group), group.index(process_rank())
            slices.append(slice(position * length, (position + 1) * length))
        return x[tuple(slices)]

    @property
    def mesh_size(self) -> int:
        """The number of positions in the mesh."""
        return self.mesh.size

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device would hold all of an array."""
        return all(self.mesh.shape[name] == 1 for name in self.spec.names())

    def update(self, **kwargs: Any) -> NamedSharding:
        """Return a sharding with another `mesh`, `spec` or `memory_kind`.

        Raises `ArgumentTypeError` for other names.
        """
        fields = {"mesh": self.mesh, "spec": self.spec, "memory_kind": self._memory_kind}
        if unknown := kwargs.keys() - fields.keys():
            raise ArgumentTypeError(f"a NamedSharding has no {sorted(unknown)}; it has {sorted(fields)}")
        mesh, spec, memory_kind = (fields | kwargs).values()
        return NamedSharding(mesh, spec if isinstance(spec, PartitionSpec) else PartitionSpec(*spec), memory_kind=memory_kind)

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one shard; raise `ShapeError` if the axes do not divide it."""
        if len(self.spec) > len(global_shape):
            raise ShapeError(f"{self.spec} has more dimensions than an array of shape {tuple(global_shape)}")
        counts = [math.prod(self.mesh.shape[name] for name in self.spec.axes_of(i)) for i in range(len(global_shape))]
        if any(size % count for size, count in zip(global_shape, counts, strict=True)):
            raise ShapeError(f"{self.spec} on {self.mesh} splits dimensions in {counts}, which does not divide {tuple(global_shape)}")
        return tuple([size // count for size, count in zip(global_shape, counts, strict=True)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedSharding) and (other.mesh, other.spec) == (self.mesh, self.spec)

    def __hash__(self) -> int:
        return hash((self.mesh, self.spec))

    def __repr__(self) -> str:
        return f"NamedSharding(mesh={self.mesh!r}, spec={self.spec!r})"

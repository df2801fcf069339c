"""Meshes: devices, or numbers of devices, along named axes.

`volta_fn.sharding.shard_map` maps over the axes. One device may stand at several positions of a mesh.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from volta_fn.core.devices.device import Device, devices, process_rank, set_mesh_compiler
from volta_fn.core.trace import ProcessGrid, current_mesh, read_mesh
from volta_fn.errors import ArgumentError, DeviceError
from volta_fn.lazy_imports import load


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

    >>> import volta_fn as vf
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

    devices = device_ids = is_multi_process = local_devices = local_mesh = property(_refuse, doc="None: raises `ArgumentError`.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbstractMesh) and (other.axis_sizes, other.axis_names) == (self.axis_sizes, self.axis_names)

    def __hash__(self) -> int:
        return hash((self.axis_sizes, self.axis_names))


class Mesh(_Axes):
    """An array of devices with named axes; in a ``with``, like `set_mesh`.

    Args:
        devices: an array (or nested lists) of devices.
        axis_names: a name for each axis, or one name.
        axis_types: the type of each axis, or one for all; by default `AxisType.Auto`.

    >>> import numpy as np, volta_fn as vf
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
        return self.axis_names == other.axis_names and np.array_equal(self.devices, other.devices)

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

    >>> import volta_fn as vf
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
    device_count = math.prod(axis_shapes)
    if device_count > len(available):
        raise DeviceError(
            f"a mesh of shape {tuple(axis_shapes)} needs {device_count} devices, but there are {len(available)}. A device may stand at all "
            "positions: sharding.Mesh(numpy.full(shape, device), names), and the CPU may be several devices: set_cpu_devices(n)."
        )
    return Mesh(np.array(available[:device_count], object).reshape(tuple(axis_shapes)), axis_names, axis_types or AxisType.Explicit)


def _default_devices() -> list[Device]:
    return devices()

"""Named axes: those that `vmap` and `shard_map` bind, and the current mesh.

The positions along an axis are the examples of a `vmap`, or processes. Collectives refer to an axis of examples by its name, which the
`vmap` resolves, and to one of processes by its `ProcessAxis`, which stays in the program.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_fn.errors import AxisNameError


@dataclass(frozen=True)
class ProcessGrid:
    """Processes at the positions of named axes, row-major, or devices of one."""

    names: tuple[Any, ...]
    shape: tuple[int, ...]
    #: The ranks of the processes, or the numbers of the devices.
    ranks: tuple[int, ...]
    #: The devices of one process, each with a memory of its own; none if the positions are processes.
    devices: tuple[Any, ...] = ()

    @functools.cache  # noqa: B019  # grids are few, and compared by value
    def group(self, names: tuple[Any, ...], rank: int) -> tuple[int, ...]:
        """Return the processes that differ from `rank` along the named axes only."""
        grid = np.asarray(self.ranks).reshape(self.shape)
        position = np.argwhere(grid == rank)[0]
        members = grid[tuple([slice(None) if name in names else position[i] for i, name in enumerate(self.names)])]
        order = [name for name in self.names if name in names]
        return tuple(np.transpose(members, [order.index(name) for name in names]).ravel().tolist())


@dataclass(frozen=True, repr=False)
class ProcessAxis:
    """A named axis whose positions are processes, or devices of one."""

    name: Any
    grid: ProcessGrid

    @property
    def size(self) -> int:
        """The number of processes along it."""
        return self.grid.shape[self.grid.names.index(self.name)]

    def __repr__(self) -> str:
        return f"{self.name}:{self.size}"


@dataclass(frozen=True, eq=False, repr=False)
class StepAxis:
    """A named axis whose positions are the steps of a kernel's grid."""

    name: Any
    size: int
    #: The step's index along it, an array.
    index: Any

    def __repr__(self) -> str:
        return f"{self.name}:{self.size}"


#: The bound names with their sizes, outermost first.
_axes: ContextVar[tuple[tuple[Any, int | ProcessAxis | StepAxis], ...]] = ContextVar("named_axes", default=())


def axis_environment() -> tuple[tuple[Any, int | ProcessAxis | StepAxis], ...]:
    """Return the bound names, outermost first; programs depend on them."""
    return _axes.get()


@contextlib.contextmanager
def bound_axis(name: Any, size: int | ProcessAxis | StepAxis) -> Iterator[None]:
    """Bind a name (None binds nothing) to a size, or an axis of processes or steps."""
    if name is None:
        yield
        return
    previous = _axes.get()
    try:
        _axes.set((*previous, (name, size)))
        yield
    finally:
        _axes.set(previous)


def bound_axes(axis_name: Any, *, with_steps: bool = False) -> tuple[Any, ...]:
    """Return what names are bound to.

    That is themselves by `vmap`, or a `ProcessAxis`, or a `StepAxis` if these are asked for.

    Raises `AxisNameError` for a name that is not bound, and for one of steps, which exchange nothing.
    """
    axes = tuple([_binding(name)[0] for name in _names(axis_name)])
    if not with_steps and (steps := [axis for axis in axes if isinstance(axis, StepAxis)]):
        raise AxisNameError(f"the steps along the axis {steps[0].name!r} run one after another and exchange nothing: write to a reference")
    return axes


def axis_size(axis_name: Any) -> int:
    """Return the number of positions; raise `AxisNameError` for an unbound name."""
    size = 1
    for name in _names(axis_name):
        size *= _binding(name)[1]
    return size


def _names(axis_name: Any) -> Sequence[Any]:
    """Return one or several names as a sequence."""
    return axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)


def _binding(name: Any) -> tuple[Any, int]:
    """Return what a name is bound to, and the number of positions."""
    if isinstance(name, ProcessAxis | StepAxis):
        return name, name.size
    for bound, size in reversed(_axes.get()):
        if bound == name:
            return (size, size.size) if isinstance(size, ProcessAxis | StepAxis) else (name, size)
    bound_names = [n for n, _ in _axes.get()]
    raise AxisNameError(f"no axis named {name!r} is in scope (bound here: {bound_names}); give one with vmap(f, axis_name={name!r})")


# The mesh that `set_mesh` sets.

current_mesh: ContextVar[Any] = ContextVar("mesh", default=None)


class _MeshReads(threading.local):
    """The number of times that this thread has read the current mesh.

    A program whose trace did is for that mesh alone.
    """

    count = 0


mesh_reads = _MeshReads()


def read_mesh() -> Any:
    """Return the current mesh, and count the read."""
    mesh_reads.count += 1
    return current_mesh.get()

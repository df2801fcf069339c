"""The processes that run a program together: the world, and their collectives.

Without `distributed.initialize`, and with one process, the world is this process alone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from volta_fn.core.devices import device as process
from volta_fn.core.jaxpr import ClosedJaxpr, process_axes

T = TypeVar("T")


class Pending(Protocol):
    """A collective under way."""

    def results(self) -> list[np.ndarray]:
        """Wait for the results, and return them."""


class Communicator(Protocol):
    """Collectives of NumPy arrays, which all processes call in the same order.

    `description` describes the call in messages.
    """

    #: The number of processes, and which of them this one is.
    size: int
    index: int

    def reduce(self, step: str, arrays: Sequence[np.ndarray], outs: Sequence[np.ndarray], description: str) -> None:
        """Combine each array by "sum", "max" or "min"; an `out` may be its operand."""

    def compressed_sum(self, arrays: Sequence[np.ndarray], outs: Sequence[np.ndarray], description: str) -> None:
        """Sum float32 arrays that travel as bfloat16."""

    def start_sum(self, arrays: Sequence[np.ndarray], compression: str | None, description: str) -> Pending:
        """Begin a sum of copies of the arrays."""

    def gather(self, array: np.ndarray, description: str) -> np.ndarray:
        """Stack the arrays of all processes along a new first axis."""

    def reduce_scatter(self, array: np.ndarray, description: str) -> np.ndarray:
        """Sum the arrays, whose first axis numbers processes, and return this one's row."""

    def exchange(self, array: np.ndarray, description: str) -> np.ndarray:
        """Send row i to process i; row i of the result is from process i."""

    def permute(self, array: np.ndarray, pairs: Sequence[tuple[int, int]], description: str) -> np.ndarray:
        """Send the array by pairs of source and target; others receive zeros."""


class DeviceCall(NamedTuple):
    """A collective that waits on a device."""

    ranks: tuple[int, ...]
    #: Its number among those of its group that were launched.
    number: int
    since: float


class SharedMemory(Protocol):
    """Memory through which a device's kernels wait for those of others."""

    def waiting(self) -> list[DeviceCall]:
        """Return the collectives that wait, and have for long."""

    def check_device(self) -> None:
        """Raise `DeviceError` if the device has failed."""

    def launches(self) -> dict[tuple[int, ...], int]:
        """Return how many collectives each group has launched."""

    def has_settled(self, launches: Mapping[tuple[int, ...], int]) -> bool:
        """Return whether the device is idle or waits in a collective after these."""

    def interrupt(self) -> None:
        """End all collectives that wait."""

    def drain(self) -> None:
        """Wait for the device."""

    def reset(self) -> None:
        """Forget what was announced before an interruption.

        No device of a group runs a collective now.
        """


class World(Protocol):
    """All processes, or all devices of one process."""

    rank: int
    size: int
    #: The driver of each process's device that the last program was compiled for: "nvidia", "wgpu", or "" for a CPU.
    drivers: tuple[str, ...]
    #: Seconds that a collective waits for a process.
    limit: float
    #: What its members are: "process", or "GPU" for the devices of one process.
    member: str

    def communicator(self, ranks: tuple[int, ...]) -> Communicator:
        """Return the communicator of some processes, in this order."""

    def check_program(self, closed: ClosedJaxpr, driver: str) -> None:
        """Raise `ProgramMismatchError` unless all processes compile the same program now.

        `driver` is that of the device that this process compiles it for; see `drivers`.
        """

    def launched(self, ranks: tuple[int, ...]) -> None:
        """Count a collective of some processes that a device is about to run."""

    def watch_device(self, memory: SharedMemory) -> None:
        """Watch over the collectives of a device through memory that it shares."""

    def check_members(self, ranks: tuple[int, ...], awaited: int | None) -> None:
        """Raise `DistributedError` if a member of a group is a device that has failed.

        `awaited` is the one for which a kernel has waited for long.
        """

    def run_once(self, function: Callable[[], T]) -> T:
        """Call a function in the first process; return or raise the same in all."""


class _Alone:
    """The world of one process."""

    rank, size = 0, 1
    drivers: tuple[str, ...] = ("",)
    limit, member = math.inf, "process"

    def communicator(self, ranks: tuple[int, ...]) -> Communicator:
        """Fail: meshes of one process have no axes of processes."""
        raise NotImplementedError

    def check_program(self, closed: ClosedJaxpr, driver: str) -> None:
        """Do nothing: there is no other process."""

    def launched(self, ranks: tuple[int, ...]) -> None:
        """Do nothing: there is no watch."""

    def watch_device(self, memory: SharedMemory) -> None:
        """Do nothing: there is no watch."""

    def check_members(self, ranks: tuple[int, ...], awaited: int | None) -> None:
        """Do nothing: there is no other process."""

    def run_once(self, function: Callable[[], T]) -> T:
        return function()


ALONE: World = _Alone()
_world: World = ALONE
_of_thread = threading.local()


def current() -> World:
    """Return the world: that of the processes; of devices in their threads."""
    world: World = getattr(_of_thread, "world", _world)
    return world


def set_current(world: World) -> None:
    """Replace the world."""
    global _world
    _world = world
    process.set_process_rank(world.rank, world.size, _check_collectives if world.size > 1 else None)


def set_current_in_thread(world: World | None) -> None:
    """Replace the world in this thread, which works for one device alone.

    None restores that of the processes.
    """
    _of_thread.__dict__.pop("world", None)
    if world is not None:
        _of_thread.world = world


def members_of(axis_names: Any, axis_index_groups: Any) -> tuple[int, ...]:
    """Return the processes (or devices) of this one's collective, in order."""
    (grid,) = {axis.grid for axis in axis_names}
    rank = current().rank
    group: tuple[int, ...] = grid.group(tuple([axis.name for axis in axis_names]), rank)
    if axis_index_groups is None:
        return group
    index = group.index(rank)
    return tuple([group[i] for positions in axis_index_groups if index in positions for i in positions])


def _check_collectives(closed: ClosedJaxpr, driver: str) -> None:
    """Raise `ProgramMismatchError` unless all processes compile a program.

    A program without collectives between them is not checked.
    """
    if process_axes(closed):
        _world.check_program(closed, driver)

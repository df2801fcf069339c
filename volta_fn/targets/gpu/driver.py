"""The interface between programs on a GPU and the GPU's driver.

A driver gives memory, compiles shaders, runs their dispatches in order, and copies. `wgpu` implements it for every vendor (Vulkan, Metal,
DirectX 12), `nvidia` through NVIDIA's own driver. Everything above works with either: pools of memory, batches, caches of pipelines,
recorded command lists, recovery.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from volta_fn.errors import OutOfMemoryError

if TYPE_CHECKING:  # processes that compile for a driver load neither
    from volta_fn.compiler.target import TargetCapabilities
    from volta_fn.targets.wgsl.target import WgslTarget

_Result = TypeVar("_Result")

#: The logger of the runtime; it writes to stderr if VOLTA_GPU_DEBUG=1.
log = logging.getLogger("volta_fn.gpu")
if os.environ.get("VOLTA_GPU_DEBUG", "0") != "0":
    log.setLevel(logging.DEBUG)
    log.addHandler(logging.StreamHandler())
    log.handlers[-1].setFormatter(logging.Formatter("%(relativeCreated).3f ms %(threadName)s: %(message)s"))

FORKED = (
    "this process was forked from one that had begun to use the GPU, which is not there in a fork. "
    "Start processes by multiprocessing's methods 'spawn' or 'forkserver', or use the device 'cpu' in forked ones"
)

_LOST = (
    "the GPU was lost, by a failure of its driver or a reset. {} again. "
    "set_recovery('checkpoint') has copies kept, with which programs go on"
)
LOST = _LOST.format("Arrays that were there are gone; make them")


def lost(array: str) -> str:
    """Return the message for the loss of an array of this description."""
    return _LOST.format(f"{array} is gone; make it")


class Description(NamedTuple):
    """An open device."""

    name: str
    #: "discrete", "integrated", "cpu", …
    kind: str
    capabilities: TargetCapabilities
    #: Bytes of the largest buffer.
    largest: int
    features: tuple[str, ...]
    limits: dict[str, int]


class BoundRange(NamedTuple):
    """A range of bytes of a block, whose `handle` is the driver's memory."""

    block: Any
    offset: int
    size: int


class BoundDispatch(NamedTuple):
    """A dispatch ready to be written: a `wgsl.commands.Run` with the driver's objects.

    An indirect one reads its grid, three 32-bit words, at an offset in the memory `grid_buffer`. These are either `workgroups` or zeros.
    """

    pipeline: Any
    bind_group: Any
    workgroups: tuple[int, int, int]
    grid_buffer: Any = None
    grid_offset: int = 0


class Repeat(NamedTuple):
    """Steps that are repeated while a word that they set is not zero."""

    flag: BoundRange
    steps: tuple[DriverStep, ...]


DriverStep = BoundDispatch | Repeat


class ReplayPart(NamedTuple):
    """A part of a replay: dispatches, and what writes and changes them."""

    dispatches: int
    write: Callable[[], None]
    #: Changes dispatches, by their numbers in the part. False if it changes none of them, since the replay has to be made anew.
    change: Callable[[Mapping[int, BoundDispatch]], bool]


class Errors(Protocol):
    """A context for calls of the driver, which raises the errors that it reports."""

    #: Whether the device is known to be lost; then no further call may be made.
    device_lost: bool

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None: ...


class Readback(Protocol):
    """A pending copy to the host."""

    @property
    def submitted(self) -> bool:
        """Whether the batch in which it was requested is submitted."""


class Readbacks(Protocol):
    """Copies from the device to the host, requested now and taken later.

    A readback arrives when the batch in which it was requested is done, whatever follows. `request`, `keep` and `clear` are called under
    the queue's lock.
    """

    def request(self, memory: Any, size: int, offset: int = 0) -> Readback:
        """Request a copy of `size` bytes of memory, as of the commands written so far."""

    def arrived(self, readback: Readback) -> bool:
        """Return whether a readback that was submitted has arrived, after `Driver.poll`."""

    def take(self, readback: Readback) -> np.ndarray:
        """Return the bytes of a readback that has arrived; call it once.

        Raises `DeviceError` if the device is lost.
        """

    def keep(self, readback: Readback) -> None:
        """Keep the host's memory of a readback that was taken, for later ones."""

    def clear(self) -> None:
        """Release the memory that is kept."""


class Timestamps(Protocol):
    """The begin and the end of dispatches, in the device's memory until they are read."""

    def play(self, step: BoundDispatch) -> None:
        """Write a dispatch between two timestamps."""

    def read(self) -> np.ndarray:
        """Return the begins and ends of dispatches that are done, in ns from the first.

        The shape is (dispatches, 2).
        """


class Driver(Protocol):
    """An open GPU.

    Commands are written in order, and executed in that order as if one after another. `submit` ends a *batch*; batches are numbered
    from 1. Any thread may call `compile`, `release_pipeline` and `poll`; the other methods are called under the queue's lock. Memory is
    an object of the driver's choice. Methods raise `OutOfMemoryError`, and `DeviceError`, whose message is `LOST` if the device is lost.
    """

    description: Description
    errors: Errors
    readbacks: Readbacks
    #: Called when memory is short, by any thread: releases the free blocks, but not the leases of temporary values.
    release_free_blocks: Callable[[], None]

    def target(self, capabilities: TargetCapabilities) -> WgslTarget:
        """Return the target of programs, given the capabilities that tests have found."""

    # memory

    def allocate(self, size: int, *, grids: bool = False) -> Any:
        """Return memory of `size` bytes, a multiple of four.

        If `grids`, indirect dispatches may read their grids from it.
        """

    def free(self, memory: Any) -> None:
        """Release memory once no command that was written uses it."""

    def check(self) -> None:
        """Raise `DeviceError` if the device is lost."""

    def write(self, memory: Any, data: np.ndarray, offset: int) -> None:
        """Copy bytes from the host to memory that no pending command uses.

        The number of bytes is a multiple of four. Commands of the pending batch may run before or after the copy, later ones after it.
        """

    def copy(self, target: Any, source: Any, offset: int, size: int) -> None:
        """Copy `size` bytes at an offset of the source to the beginning of the target."""

    # shaders

    def compile(self, source: str, count: int, written: frozenset[int], checks: int, *, is_checked: bool = False) -> tuple[Any, Any]:
        """Return the pipeline of a shader, and the layout of its bindings.

        There are `count` bindings, some of them written.

        `checks` says which checks wgpu's compiler adds: `ALL`, `LOOPS` or `NONE` of `pipelines`. If `is_checked`, NVIDIA's compiler adds
        checks that end the kernel at an index out of range.
        """

    def release_pipeline(self, pipeline: Any) -> None:
        """Release a pipeline that no recording has."""

    def bind(self, layout: Any, ranges: Sequence[BoundRange]) -> Any:
        """Return the bind group of some ranges of blocks.

        Pipelines of equal layouts (a hashable) share bind groups.
        """

    def release_group(self, group: Any) -> None:
        """Release a bind group; dispatches that were written keep theirs."""

    # commands

    def can_repeat(self, sources: Iterable[str]) -> bool:
        """Return whether the device repeats dispatches of these shaders, in a `Repeat`."""

    def play(self, steps: Sequence[DriverStep]) -> None:
        """Write dispatches."""

    def replay_parts(self, steps: Sequence[DriverStep]) -> Sequence[ReplayPart] | None:
        """Return the parts of a replay; None if `play` is as fast.

        It is valid until one of its pipelines, bind groups or blocks is released.
        """

    @property
    def is_pending(self) -> bool:
        """Whether commands were written that are not submitted."""

    def submit(self, number: int) -> None:
        """Submit the commands since the last batch, if any, as batch `number`."""

    def poll(self) -> int:
        """Return the number of the last batch that is done."""

    @property
    def progress_mark(self) -> int:
        """A number that changes while the device repeats steps."""

    def timestamps(self) -> Timestamps:
        """Return new timestamps. Raises `DeviceError` if the device has none."""

    # the end

    def release(self) -> None:
        """Release readbacks, and commands that were never submitted."""

    def destroy(self) -> None:
        """Close the device; nothing uses it any more."""


def with_memory(operation: Callable[[], _Result], driver: Driver) -> _Result:
    """Return the result of an operation that takes the GPU's memory.

    If memory is short, free blocks are released before it is tried again.
    """
    try:
        return operation()
    except OutOfMemoryError:
        driver.release_free_blocks()
        return operation()


class Adapter(Protocol):
    """A GPU that can be opened through one driver."""

    #: "wgpu" or "nvidia".
    driver: str
    #: The device's name.
    name: str

    def open(self) -> Driver:
        """Open the device with all of its features and limits.

        VOLTA_GPU_LIMITS=webgpu restricts it to those of every WebGPU device. Raises `DeviceError` if it cannot be opened.
        """

    def again(self) -> Adapter:
        """Return the adapter by which a lost device is opened again.

        A reset may have changed the driver's name of it.
        """

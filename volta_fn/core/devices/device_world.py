"""The devices of one process as a world: programs that run on all at once.

Devices with memories of their own are for a program what processes are: each has its shard of an array, and they meet in collectives.
Every device has a thread, which compiles and calls programs for it in the order in which they were asked for. So a device that waits for
another, in a kernel or on the host, never keeps that one from coming. A program that only submits work (`Executable.submits`) is called by
the caller's thread, for one device after another.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from sys import getrefcount
from typing import Any, NamedTuple, TypeVar

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import DELETED, ConcreteArray, array_spec, wrap
from volta_fn.core.devices import distribution
from volta_fn.core.devices.device import Device, Executable, default_device, local_devices
from volta_fn.core.devices.placement import Shards, group_of, moved
from volta_fn.core.devices.sharding import NamedSharding
from volta_fn.core.jaxpr import ClosedJaxpr, devices_of
from volta_fn.errors import DeviceError, DistributedError
from volta_fn.settings import value_of

T = TypeVar("T")

# Collectives of NumPy arrays between the threads of devices: of dtypes, and of GPUs, for which there are no kernels.

_COMBINE: dict[str, Callable[..., Any]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def _combined(step: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Combine arrays in their order.

    Short numbers are combined in a wider dtype, from which the result is rounded once.
    """
    dtype = arrays[0].dtype
    is_short = dtype.isbuiltin != 1 or dtype == np.float16
    wide = np.dtype(np.int32 if "int" in dtype.name else np.float32) if is_short else dtype
    total = arrays[0].astype(wide)
    for array in arrays[1:]:
        total = _COMBINE[step](total, array.astype(wide, copy=False))
    return np.asarray(total).astype(dtype, copy=False)


class _Meeting:
    """Where the threads of some devices exchange arrays."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.barrier = threading.Barrier(len(ranks))
        self.rows: list[Any] = [None] * len(ranks)


class _Summed(NamedTuple):
    """A sum that was computed when it began."""

    outs: list[np.ndarray]

    def results(self) -> list[np.ndarray]:
        """Return the results."""
        return self.outs


class ThreadCommunicator:
    """The collectives of one of several devices, each in its thread."""

    def __init__(self, meeting: _Meeting, rank: int, limit: float) -> None:
        self._meeting, self._limit = meeting, limit
        self.size, self.index = len(meeting.ranks), meeting.ranks.index(rank)

    def _all(self, value: Any, description: str) -> list[Any]:
        """Return the values of all devices."""
        meeting = self._meeting
        _meetings.check(meeting.ranks)  # nobody comes for a device that has failed
        meeting.rows[self.index] = value
        try:
            meeting.barrier.wait(self._limit)
            rows = [*meeting.rows]
            meeting.barrier.wait(self._limit)
        except threading.BrokenBarrierError:
            _meetings.check(meeting.ranks)  # whoever notices a failure ends the others' waiting, and they may be first to tell
            raise DistributedError(
                f"GPU {meeting.ranks[self.index]} has waited in vain for the others of the GPUs {list(meeting.ranks)} in {description}: "
                f"one of them has failed, or has not come in {self._limit:g} s"
            ) from None
        return rows

    def reduce(self, step: str, arrays: Sequence[np.ndarray], outs: Sequence[np.ndarray], description: str) -> None:
        """Combine each array over the devices, and write the result."""
        totals = [_combined(step, parts) for parts in zip(*self._all([*map(np.array, arrays)], description), strict=True)]
        for out, total in zip(outs, totals, strict=True):
            out[...] = total

    def compressed_sum(self, arrays: Sequence[np.ndarray], outs: Sequence[np.ndarray], description: str) -> None:
        """Sum float32 arrays that travel as bfloat16."""
        rounded = [array.astype(dtypes.as_dtype("bfloat16")) for array in arrays]
        self.reduce("sum", rounded, rounded, description)
        for out, total in zip(outs, rounded, strict=True):
            out[...] = total

    def start_sum(self, arrays: Sequence[np.ndarray], compression: str | None, description: str) -> _Summed:
        """Compute a sum: devices of one process have nothing to send."""
        outs = [np.empty(array.shape, array.dtype) for array in arrays]
        if compression is None:
            self.reduce("sum", arrays, outs, description)
        else:
            self.compressed_sum(arrays, outs, description)
        return _Summed(outs)

    def gather(self, array: np.ndarray, description: str) -> np.ndarray:
        """Stack the arrays of all devices."""
        return np.stack(self._all(np.array(array), description))

    def reduce_scatter(self, array: np.ndarray, description: str) -> np.ndarray:
        """Sum the arrays, and return this device's row."""
        return _combined("sum", [rows[self.index] for rows in self._all(np.array(array), description)])

    def exchange(self, array: np.ndarray, description: str) -> np.ndarray:
        """Send row i to device i."""
        return np.stack([rows[self.index] for rows in self._all(np.array(array), description)])

    def permute(self, array: np.ndarray, pairs: Sequence[tuple[int, int]], description: str) -> np.ndarray:
        """Send the array by pairs of source and target."""
        rows = self._all(np.array(array), description)
        source = next((s for s, t in pairs if t == self.index), None)
        return np.zeros_like(array) if source is None else np.array(rows[source])


# The world of each device.

#: By the numbers of devices, how many collectives each group has launched.
Launches = Mapping[int, Mapping[tuple[int, ...], int]]


class _Meetings:
    """Where the devices of a process meet, and the memory through which kernels do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_ranks: dict[tuple[int, ...], _Meeting] = {}
        #: By the numbers of devices.
        self._memories: dict[int, distribution.SharedMemory] = {}
        #: The errors of devices that have failed while others waited for them.
        self._failures: dict[int, str] = {}

    def of(self, ranks: tuple[int, ...]) -> _Meeting:
        """Return the meeting of some devices."""
        with self._lock:
            return self._by_ranks.setdefault(ranks, _Meeting(ranks))

    def add(self, rank: int, memory: distribution.SharedMemory) -> None:
        """Add memory that a device shares with others."""
        with self._lock:
            self._memories[rank] = memory

    def check(self, ranks: Iterable[int], awaited: int | None = None) -> None:
        """Raise `DistributedError` if one of some devices has failed.

        Kernels that wait for a device that has failed, `awaited`, end with undefined results. So the error is raised from then on.
        """
        if awaited is not None and awaited not in self._failures:
            try:
                self._memories[awaited].check_device()
            except DeviceError as error:
                self._failures[awaited] = error.message
                self.interrupt()
                self.reset()
        for rank in ranks:
            if rank in self._failures:
                raise DistributedError(
                    f"GPU {rank} has failed, for which others waited in a collective: {self._failures[rank]}; start the process again"
                )

    def launches(self) -> Launches:
        """Return how many collectives the devices have launched."""
        return {rank: memory.launches() for rank, memory in self._memories.copy().items()}

    def interrupt(self, complete: Launches | None = None) -> None:
        """End all collectives that wait.

        Those that `complete` counts, which all devices have launched, end by themselves before, since others may have their results.
        """
        self._note_failures()
        try:
            if complete is not None:
                self._settle(complete)
        finally:
            with self._lock:
                for meeting in self._by_ranks.values():
                    meeting.barrier.abort()
                for memory in self._memories.values():
                    memory.interrupt()

    def _note_failures(self) -> None:
        """Remember devices that have failed, whose memory the others still have."""
        for rank, memory in self._memories.copy().items():
            try:
                memory.check_device()
            except DeviceError as error:
                self._failures.setdefault(rank, error.message)

    def _settle(self, complete: Launches) -> None:
        """Wait for collectives, unless a device has failed, as long as these wait."""
        last = time.monotonic() + distribution.current().limit
        with contextlib.suppress(DeviceError):
            while time.monotonic() < last:
                memories = self._memories.copy()
                for memory in memories.values():
                    memory.check_device()
                if all(memory.has_settled(complete.get(rank, {})) for rank, memory in memories.items()):
                    return
                time.sleep(1e-3)

    def reset(self) -> None:
        """Begin anew once no thread is in a collective."""
        with self._lock:
            for meeting in self._by_ranks.values():
                meeting.barrier.reset()
            for memory in self._memories.values():
                memory.drain()
            for memory in self._memories.values():
                memory.reset()


_meetings = _Meetings()


class DeviceWorld:
    """All devices of a platform, as one sees them.

    Their ranks are their numbers.
    """

    member = "GPU"

    def __init__(self, device: Device) -> None:
        devices = local_devices(backend=device.platform)
        self.rank, self.size = device.id, max([len(devices), device.id + 1])
        self.drivers = (device.backend.hardware().driver,) * self.size
        self.limit: float = value_of("VOLTA_COLLECTIVE_TIMEOUT") or 300.0

    def communicator(self, ranks: tuple[int, ...]) -> ThreadCommunicator:
        """Return the communicator of some devices."""
        return ThreadCommunicator(_meetings.of(ranks), self.rank, self.limit)

    def check_program(self, closed: ClosedJaxpr, driver: str) -> None:
        """Do nothing: all devices compile one program."""

    def launched(self, ranks: tuple[int, ...]) -> None:
        """Do nothing: all devices launch the same collectives."""

    def watch_device(self, memory: distribution.SharedMemory) -> None:
        """Let the failure of another device end the collectives of this one."""
        _meetings.add(self.rank, memory)

    def check_members(self, ranks: tuple[int, ...], awaited: int | None) -> None:
        """Raise `DistributedError` if another device of a group has failed."""
        _meetings.check([rank for rank in ranks if rank != self.rank], awaited)

    def run_once(self, function: Callable[[], T]) -> T:
        """Call a function."""
        return function()


# The threads.


class _Task:
    """A function to call in the threads of some devices."""

    def __init__(self, count: int, before: Launches) -> None:
        #: The collectives that were launched before.
        self.before = before
        self.results: list[Any] = [None] * count
        self.errors: list[tuple[Device, BaseException]] = []
        self._remaining, self._lock, self._done = count, threading.Lock(), threading.Event()

    def run(self, number: int, device: Device, call: Callable[[], Any]) -> None:
        """Call it for a device; the first error ends what the others wait for."""
        try:
            self.results[number] = call()
        except BaseException as error:
            with self._lock:
                self.errors.append((device, error))
            if len(self.errors) == 1:
                _meetings.interrupt(self.before)
        with self._lock:
            self._remaining -= 1
            if not self._remaining:
                self._done.set()

    def wait(self) -> None:
        """Wait for all devices."""
        self._done.wait()


class _Worker:
    """The thread of a device."""

    def __init__(self, device: Device) -> None:
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.world = DeviceWorld(device)
        threading.Thread(target=self._work, name=f"volta_fn {device}", daemon=True).start()

    def _work(self) -> None:
        distribution.set_current_in_thread(self.world)
        while True:
            self.calls.get()()


_workers: dict[Device, _Worker] = {}
#: Held while a call is submitted to several threads and runs, so that all have the calls in one order.
_submission = threading.Lock()
if hasattr(os, "register_at_fork"):  # a forked process has none of the threads
    os.register_at_fork(after_in_child=_workers.clear)


def on_all(devices: Sequence[Device], function: Callable[[Device], T]) -> list[T]:
    """Call a function in the threads of some devices.

    Return the results in the order of the devices.

    Raises the first error, with a note that names its device; collectives in which others wait for that one end.
    """
    _check(devices)

    def call(task: _Task, number: int, device: Device, context: contextvars.Context) -> None:
        def in_context() -> T:
            with default_device(device):
                return function(device)

        task.run(number, device, lambda: context.run(in_context))

    with _submission:
        task, workers = _Task(len(devices), _meetings.launches()), [*map(_worker_of, devices)]
        try:
            for number, (device, worker) in enumerate(zip(devices, workers, strict=True)):
                worker.calls.put(partial(call, task, number, device, contextvars.copy_context()))
            task.wait()
        except BaseException:  # Ctrl-C
            _meetings.interrupt(task.before)
            task.wait()
            _meetings.reset()
            raise
        if task.errors:
            _meetings.reset()
    if task.errors:
        device, error = task.errors[0]
        _add_note(error, device, devices)
        raise error
    return task.results


def in_turn(devices: Sequence[Device], function: Callable[[Device], T]) -> list[T]:
    """Call a function that submits work to each of some devices, and waits for none.

    Return the results in their order. Raises as `on_all` does.
    """
    _check(devices)
    results: list[T] = []
    with _submission:
        before = _meetings.launches()
        try:
            for device in devices:
                distribution.set_current_in_thread(_worker_of(device).world)
                results.append(function(device))
        except BaseException as error:
            _meetings.interrupt(before)
            _meetings.reset()
            _add_note(error, devices[min(len(results), len(devices) - 1)], devices)
            raise
        finally:
            distribution.set_current_in_thread(None)
    return results


def _worker_of(device: Device) -> _Worker:
    return _workers.get(device) or _workers.setdefault(device, _Worker(device))


def _check(devices: Sequence[Device]) -> None:
    """Raise `DistributedError` in a callback of a program, or if a GPU has failed."""
    if distribution.current().member == DeviceWorld.member:
        raise DistributedError("a callback of a program on several GPUs cannot call another such program, for which they are not free")
    _meetings.check([device.id for device in devices if device.platform == "gpu"])


def _add_note(error: BaseException, device: Device, devices: Sequence[Device]) -> None:
    error.add_note(f"It was raised on {device}, one of the devices {[str(d) for d in devices]} of the program.")


# Programs.

#: References to donated shards that nothing else uses: those of two lists (of a dict and a list), and of the argument of getrefcount.
_EXCLUSIVE_REFERENCES = 3


class DeviceProgram:
    """A program that runs on all devices of a mesh, each with its shards."""

    def __init__(self, closed: ClosedJaxpr, shardings: Sequence[NamedSharding | None], donated: Sequence[bool], pipeline: Any) -> None:
        """Compile a program.

        `shardings` are those of arguments that are split between its devices. Without flags, nothing is donated.
        """
        self.devices = devices_of(closed) or tuple(next(s for s in shardings if s is not None).mesh.devices.flat)
        local = pipeline.local_program(closed, self.devices, tuple(shardings))
        self._in_groups = [group_of(s) for s in local.in_shardings]
        self._out_specs = [array_spec(a, group_of(s)) for a, s in zip(closed.out_avals, local.out_shardings, strict=True)]
        self._donated = [i for i, flag in enumerate(donated) if flag]

        def compiled(device: Device) -> Executable:
            flags = donated or [False] * len(self._in_groups)
            executable: Executable = device.backend.compile(local.at(device), flags, pipeline)
            return executable

        executables = on_all(self.devices, compiled)
        self._programs = {device: executable.run for device, executable in zip(self.devices, executables, strict=True)}
        #: How devices are called: first each by its thread, as kernels are loaded then.
        self._call: Callable[..., list[Any]] = on_all
        self._next_call: Callable[..., list[Any]] = in_turn if all(executable.submits for executable in executables) else on_all

    def __call__(self, args: Sequence[ConcreteArray]) -> list[ConcreteArray]:
        """Run the program; donated arguments are deleted."""
        buffers: list[Shards] = [moved(a, group).buffer() for a, group in zip(args, self._in_groups, strict=True)]
        for i in self._donated:
            args[i]._buffer, args[i]._spec = DELETED, array_spec(args[i].aval, args[i].device).donated
        donate = bool(self._donated) and _are_exclusive([buffers[i] for i in self._donated], self.devices)
        results = self._call(self.devices, lambda device: self._programs[device](donate, *[b.parts[device] for b in buffers]))
        self._call = self._next_call
        by_result = zip(*results, strict=True)
        return [
            wrap(Shards(dict(zip(self.devices, parts, strict=True)), spec.aval.shape), spec)
            for parts, spec in zip(by_result, self._out_specs, strict=True)
        ]


def _are_exclusive(shards: Sequence[Shards], devices: Sequence[Device]) -> bool:
    """Return whether nothing but lists of the caller refers to shards.

    Then they may be overwritten.
    """
    if max(map(getrefcount, shards)) > _EXCLUSIVE_REFERENCES:
        return False
    for device in devices:
        parts = [each.parts[device] for each in shards]
        if max(map(getrefcount, parts)) > _EXCLUSIVE_REFERENCES or not device.backend.exclusive(parts):
            return False
    return True


def executable_at_home(closed: ClosedJaxpr, home: Device, pipeline: Any) -> Executable | None:
    """Compile a program for the devices of its meshes; return None if it has none.

    Arguments and results are on one of them.
    """
    if not devices_of(closed):
        return None
    count = len(closed.in_avals)
    program = DeviceProgram(closed, [None] * count, (), pipeline)
    specs = [array_spec(aval, home) for aval in closed.in_avals]

    def run(donate: bool, *buffers: Any) -> list[Any]:
        results = program([*map(wrap, buffers, specs)])
        return [moved(result, home).buffer() for result in results]

    return Executable(run)


def first_described(closed: ClosedJaxpr, pipeline: Any, describe: Callable[[ClosedJaxpr, Device], T]) -> T:
    """Return what a function says of the program of the first device.

    It is called for all devices, as compilers may let these meet.
    """
    devices = devices_of(closed)
    local = pipeline.local_program(closed, devices, (None,) * len(closed.in_avals))
    return on_all(devices, lambda device: describe(local.at(device), device))[0]

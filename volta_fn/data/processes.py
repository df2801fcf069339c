"""Worker processes of a loader, for datasets whose work is Python's.

Each worker loads every n-th batch, a few ahead of the consumer, and writes the arrays to shared memory: a block for each batch that is
under way, which the worker uses again when the consumer has copied its batch. Only the structure of a batch, and the sizes and offsets of
its arrays, pass through a pipe. The name of a block is removed as soon as both processes have it, so that none remains, however they end.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random as python_random
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array
from volta_fn.core.devices.device import set_default_device
from volta_fn.errors import ArgumentError, DataError, VoltaError
from volta_fn.source import user_location

T = TypeVar("T")

#: Seconds that workers have to end by themselves when the loader does.
_GRACE = 1.0
#: Arrays begin at multiples of this many bytes.
_ALIGNMENT = 64


class Loading(Protocol):
    """What a worker does: ``loading(task)`` returns the batch, a pytree of arrays."""

    def __call__(self, task: Any, /) -> Any: ...


class WorkerInfo(NamedTuple):
    """The worker process that the code runs in.

    `id` is its number among `num_workers`, and `seed` what Python's and NumPy's global random numbers were seeded with for the batch.
    """

    id: int
    num_workers: int
    seed: int


_info: WorkerInfo | None = None


def worker_info() -> WorkerInfo | None:
    """Return the worker process of a loader that calls this; None elsewhere.

    >>> from volta_fn import data
    >>> data.worker_info() is None
    True
    """
    return _info


class Task(NamedTuple):
    """A batch to load: the argument of `Loading`, and a seed."""

    argument: Any
    seed: int
    #: What the batch is, for errors.
    description: str


def context_of(processes: bool | str) -> multiprocessing.context.BaseContext:
    """Return the platform's default way of starting processes, or one by name.

    Raises `ArgumentError` for a name that the platform does not have.
    """
    names = multiprocessing.get_all_start_methods()
    if isinstance(processes, str) and processes not in names:
        raise ArgumentError(f"DataLoader: processes is True, False or one of {', '.join(map(repr, names))} here, got {processes!r}")
    return multiprocessing.get_context(processes if isinstance(processes, str) else None)


def loaded_by_processes(
    tasks: Iterator[Task], loading: Loading, place: Callable[[Any], T], workers: int, ahead: int, processes: bool | str
) -> Generator[T, None, None]:
    """Yield the batches of the tasks in order, loaded by worker processes.

    `ahead` is the number of batches that each worker may load before they are needed. `place` copies a batch out of shared memory, whose
    arrays are overwritten later. An exception in a worker is raised when its batch is
    due, with the worker's traceback as a note. No worker remains when the iterator ends.
    """
    context = context_of(processes)
    if sys.platform != "win32":  # which has no tracker: blocks end with their last handle
        resource_tracker.ensure_running()  # else each worker would have one of its own, which would not know that a name was removed
    team: list[_Worker] = []
    try:
        for number in range(workers):
            team.append(_Worker(context, number, workers, loading, team))
        turns = itertools.cycle(team)
        pending: deque[_Worker] = deque()
        for task in itertools.islice(tasks, workers * ahead):
            pending.append(next(turns))
            pending[-1].submit(task)
        while pending:
            worker = pending.popleft()
            batch = worker.result(place)
            for task in itertools.islice(tasks, 1):
                pending.append(next(turns))
                pending[-1].submit(task)
            yield batch
            del batch  # so that its memory is free while the next one is awaited
    finally:
        for worker in team:
            worker.close()
        latest = time.monotonic() + _GRACE
        for worker in team:
            worker.join(max(0.0, latest - time.monotonic()))


class _Worker:
    """A worker process, as its consumer sees it."""

    def __init__(self, context: Any, number: int, workers: int, loading: Loading, team: Sequence[_Worker]) -> None:
        self._connection, other = context.Pipe()
        # A fork has all that is open here. It closes the consumer's ends, since a pipe ends when all of its ends are closed.
        inherited = [worker._connection for worker in [*team, self]] if context.get_start_method() == "fork" else []
        self._process = context.Process(target=_serve, args=(other, inherited, number, workers, loading), daemon=True)
        self._tasks: deque[Task] = deque()
        self._free: list[int] = []
        self._blocks: list[SharedMemory | None] = []
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of forks beside other threads; those of this package begin anew in a fork.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._process.start()
        except OSError:  # no process could be started
            raise
        except Exception as error:  # what sending raises depends on the object
            raise ArgumentError(
                f"DataLoader: processes={context.get_start_method()!r} sends dataset, collate and augment to the workers, and one of them "
                f"cannot be sent ({error}). Define their functions and classes by def and class at the top of a module, or use "
                "processes='fork'"
            ) from error
        finally:
            other.close()  # so that no worker that starts later holds it open

    def submit(self, task: Task) -> None:
        """Send a task, with the number of a block that is free."""
        if not self._free:
            self._free.append(len(self._blocks))
            self._blocks.append(None)
        self._tasks.append(task)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a worker that has ended is told of by `result`
            self._connection.send((self._free.pop(), task))

    def result(self, place: Callable[[Any], T]) -> T:
        """Return the batch of the oldest task, copied by `place`."""
        task = self._tasks.popleft()
        try:
            slot, name, answer = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(_GRACE)
            raise DataError(
                f"DataLoader: worker process {self._process.pid} ended with exit code {self._process.exitcode} {task.description}. "
                "A negative code is the signal that ended it; 9 usually means that memory ran out"
            ) from None
        if isinstance(answer, _Failure):
            raise answer.error(task)
        if name is not None:
            previous, self._blocks[slot] = self._blocks[slot], SharedMemory(name)
            self._blocks[slot].unlink()
            if previous is not None:
                previous.close()
        batch = place(tree.map(lambda leaf: _view(leaf, self._blocks[slot]), answer, is_leaf=_is_stored))
        self._free.append(slot)
        return batch

    def close(self) -> None:
        """Tell the worker to end: its pipe ends."""
        self._connection.close()

    def join(self, seconds: float) -> None:
        """Wait for the worker, and end it if it is in the middle of a batch."""
        if self._process.pid is None:
            return
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()
        self._process.close()
        for block in filter(None, self._blocks):
            block.close()


# Batches in shared memory.


class _Stored(NamedTuple):
    """An array in a block of shared memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype


def _is_stored(leaf: Any) -> bool:
    return isinstance(leaf, _Stored)


def _view(leaf: Any, block: SharedMemory | None) -> Any:
    if not isinstance(leaf, _Stored):
        return leaf
    if block is None:  # every array is empty
        return np.zeros(leaf.shape, leaf.dtype)
    return np.ndarray(leaf.shape, leaf.dtype, block.buf, leaf.offset)


class _Blocks:
    """A worker's blocks of shared memory, by number."""

    def __init__(self) -> None:
        self._blocks: dict[int, SharedMemory] = {}

    def store(self, slot: int, batch: Any) -> tuple[str | None, Any]:
        """Write a batch's arrays to a block.

        Returns the block's name if it is new, and the batch with places instead of arrays. Python's numbers stay as they are.
        """
        leaves, structure = tree.flatten(batch)
        arrays = [np.asarray(leaf) if isinstance(leaf, (np.ndarray, np.generic, Array)) else None for leaf in leaves]
        places, end = _places(arrays)
        name = None
        if end > 0 and (slot not in self._blocks or self._blocks[slot].size < end):
            if slot in self._blocks:
                self._blocks.pop(slot).close()
            block = self._blocks[slot] = SharedMemory(create=True, size=end)
            name = block.name
        for array, place in zip(arrays, places, strict=True):
            if array is not None and place is not None and array.size:
                np.copyto(np.ndarray(place.shape, place.dtype, self._blocks[slot].buf, place.offset), array)
        return name, tree.unflatten(structure, [leaf if place is None else place for leaf, place in zip(leaves, places, strict=True)])

    def remove(self) -> None:
        """Remove the names that the consumer has not removed."""
        for block in self._blocks.values():
            with contextlib.suppress(FileNotFoundError):
                block.unlink()


def _places(arrays: Sequence[np.ndarray | None]) -> tuple[list[_Stored | None], int]:
    """Return where arrays lie one after the other, and where the last one ends."""
    places: list[_Stored | None] = []
    end = 0
    for array in arrays:
        if array is None:
            places.append(None)
            continue
        if array.dtype.hasobject:
            raise DataError(f"DataLoader: a batch has an array of Python objects of shape {array.shape}; give a collate that makes numbers")
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        places.append(_Stored(offset, array.shape, array.dtype))
        end = offset + array.nbytes
    return places, end


# What runs in a worker.


class _Failure(NamedTuple):
    """An exception in a worker: itself if it can be sent, and its traceback."""

    exception: Exception | None
    summary: str
    trace: str

    def error(self, task: Task) -> Exception:
        """Return the exception to raise in the consumer."""
        error = DataError(f"a worker failed {task.description}: {self.summary}") if self.exception is None else self.exception
        if isinstance(error, VoltaError):
            error.location = error.location or user_location()
        error.add_note(f"in a worker process, {task.description}:\n{self.trace}")
        return error


def _failure(error: Exception) -> _Failure:
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # the exceptions of users' classes may raise anything here
        return _Failure(None, f"{type(error).__name__}: {error}", trace)
    return _Failure(error, "", trace)


def _serve(connection: Connection, inherited: Sequence[Connection], number: int, workers: int, loading: Loading) -> None:
    """Load what the consumer asks for, until its end of the pipe is gone."""
    global _info
    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the consumer, who ends its workers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that names are removed
    os.environ["VOLTA_NUM_THREADS"] = "1"  # the workers share the cores
    set_default_device("cpu")  # a GPU belongs to the consumer
    blocks = _Blocks()
    try:
        while True:
            slot, task = connection.recv()
            _info = WorkerInfo(number, workers, task.seed)
            python_random.seed(task.seed)
            np.random.seed(task.seed)  # the global numbers that datasets of others draw
            try:
                message = (slot, *blocks.store(slot, loading(task.argument)))
            except Exception as error:  # whatever the dataset raises is the consumer's
                message = (slot, None, _failure(error))
            connection.send(message)
    except (EOFError, ConnectionResetError, BrokenPipeError):
        return  # the consumer is gone
    finally:
        blocks.remove()

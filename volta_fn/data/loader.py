"""The loader: shuffled batches on a device, prefetched, also by worker processes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import multiprocessing
import os
import random as python_random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.shared_memory import SharedMemory
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypedDict, TypeVar, Unpack, overload

import numpy as np

from volta_fn import advice, random, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, aval_of, library_name
from volta_fn.core.arrays.memory import device_put
from volta_fn.core.devices.device import Device, find_device, set_default_device
from volta_fn.data.dataset import Batch, Dataset, Examples, example, gather
from volta_fn.errors import ArgumentError, ArgumentTypeError, DataError, VoltaError
from volta_fn.random.keys import as_key
from volta_fn.runtime.threads import AwaitedCall, has_started, hold_exit_during
from volta_fn.source import user_location

# Worker processes, for datasets whose work is Python's.
#
# Each worker loads every n-th batch, a few ahead of the consumer, and writes the arrays to shared memory: a block for each batch that is
# under way, which the worker uses again when the consumer has copied its batch. Only the structure of a batch, and the sizes and offsets of
# its arrays, pass through a pipe. The name of a block is removed as soon as both processes have it, so that none remains, however they end.

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


# Tasks on threads, a limited number ahead of their consumer.

_log = logging.getLogger("volta_fn")


class _ThreadWorker(threading.local):
    """Whether this thread is a worker."""

    now = False


_worker = _ThreadWorker()


def prefetched(tasks: Iterator[Callable[[], T]], workers: int, ahead: int) -> Generator[T, None, None]:
    """Yield the results of the tasks in order.

    With workers, that many threads run up to `ahead` tasks before their results are needed.

    Each task runs in a copy of the consumer's context, so that context variables such as the default device reach it. A task's exception
    is raised when its result is due, with the traceback of the thread. No thread remains when the iterator ends, unless a signal's handler
    raises again while it waits for them: then they end after the tasks that they are in.
    """
    if workers == 0:
        for task in tasks:
            yield task()
        return
    threads = _Workers(workers)
    try:
        pending = deque(threads.submit(task) for task in itertools.islice(tasks, ahead))
        while pending:
            result = threads.result(pending.popleft())
            pending.extend(threads.submit(task) for task in itertools.islice(tasks, 1))
            yield result
            del result  # so that its memory is free while the next one is awaited
    finally:
        # Not in a Python function, since a signal's handler may raise when one begins.
        threads.closed = True
        threads.calls.put(None)
        threads.join()


class _Workers:
    """Threads that make calls, and do not keep the process alive.

    A signal's handler may raise anywhere in here: no lock of Python's is used, which would stay held.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._threads: list[AwaitedCall] = []
        #: The calls to make; None, which remains in the queue, is its end.
        self.calls: SimpleQueue[AwaitedCall | None] = SimpleQueue()
        #: Whether calls that have not begun are dropped.
        self.closed = False

    def submit(self, task: Callable[[], T]) -> AwaitedCall:
        """Queue a task for a thread; without threads, `result` runs it."""
        call = AwaitedCall(task)
        self.calls.put(call)
        if len(self._threads) < self._most:
            self._start()
        return call

    def _start(self) -> None:
        thread = AwaitedCall(self._work)
        # Browsers have no threads. After the main thread has ended, new threads may be stopped at any moment.
        if threading.main_thread().is_alive() and has_started(thread):
            self._threads.append(thread)
        else:
            self._most = len(self._threads)
            _log.info(
                "no thread can be started, so that %s", "fewer load batches" if self._most else "batches are loaded when they are needed"
            )

    def _work(self) -> None:
        _worker.now = True
        while (call := self.calls.get()) is not None and not self.closed:
            hold_exit_during(call.run)
            del call  # so that its result is free while the next one is awaited
        self.calls.put(None)

    def result(self, call: AwaitedCall) -> Any:
        """Return a call's result; a typed error gets the consumer's line if it has none."""
        if not self._threads:
            call.run()
        try:
            return call.result()
        except VoltaError as error:
            error.location = error.location or user_location()
            raise

    def join(self) -> None:
        """Wait for the threads, which have been told to end.

        The garbage collector may close the iterator in one of the threads, which cannot wait for itself, and at the end of the process,
        which has stopped them.
        """
        if _worker.now or not threading.main_thread().is_alive():
            return
        for thread in self._threads:
            if thread.process == os.getpid():
                thread.result()


# The loader: shuffled batches of a dataset on a device, prefetched and resumable.


class _Options(TypedDict, total=False):
    shuffle: bool
    key: Any
    drop_last: bool
    augment: Callable[[Any, Any], Any] | None
    workers: int
    processes: bool | str
    prefetch: int
    device: str | Device | None
    shard: tuple[int, int] | None


class DataLoader(Generic[Batch]):
    """An iterable of a dataset's batches, one epoch in each iteration.

    Batches are pytrees of arrays on a device, with the dataset's dtypes (float64 data stay float64); when one is loaded, the repr of the
    loader has the types of its arrays.

    The examples of a batch depend only on the dataset, the arguments before `workers`, the epoch and the batch's number: not on the
    number of workers, nor on what was loaded before.

    Args:
        dataset: anything with `__len__` and `__getitem__`; one with `gather(indices)` makes batches at once.
        batch_size: the number of examples in a batch.
        shuffle: whether every epoch has a random order, which needs a key.
        key: a key or an integer seed for everything random.
        drop_last: whether to drop a last batch that is smaller than the others.
        collate: makes a batch of a list of examples; by default the dataset's `gather`, or else `stack`.
        augment: a random transform of batches, ``augment(key, batch)``, which the workers run.
        workers: the number of threads that load batches ahead of time; 0 loads them on demand.
        processes: whether the workers are processes instead, started as Python does by default (on Linux "fork", from Python 3.14 on
            "forkserver"), or by "fork", "spawn" or "forkserver". They are for datasets whose work is Python's: of threads, only one runs
            Python at a time. Arrays come back through shared memory. The dataset, `collate` and `augment` run in a worker on its CPU;
            before each batch it seeds the global random numbers of Python and NumPy, by the key if there is one, and `worker_info` tells
            its number. "spawn" and "forkserver" send the functions to the workers, which can be done if they are defined at the top of a
            module.
        prefetch: the number of batches per worker that may be loaded ahead of time.
        device: the device of the arrays (default: the default device).
        first_epoch: the epoch of the first iteration. A resumed run gives the number of epochs that are done, or calls `restore`; else it
            would begin with the order of epoch 0 again.
        shard: ``(index, count)``, as of this process and all: of each batch, the loader yields slice number `index` of `count` equal
            ones. Loaders with the same key yield slices of the same batches, so all of them yield as many, of the same sizes; `augment`
            gets a key of its own in each. `state` fits any `count`.

    Raises:
        DataError: the dataset is empty, or `drop_last` drops all of it. ArgumentError: an argument is out of range, or a batch does not
            divide by `count` (`drop_last` may help). ArgumentTypeError: the dataset has no length, as a stream.

    An exception in a worker is raised in the loop that consumes the batches. Leaving the loop ends the workers.

    >>> import numpy as np
    >>> loader = vf.data.DataLoader(vf.data.ArrayDataset(np.arange(5, dtype=np.float32)), 2, shuffle=True, key=0)
    >>> for batch in loader:
    ...     print(batch)
    [0. 4.]
    [1. 2.]
    [3.]
    >>> loader
    DataLoader(...: 3 batches of f32[2])
    """

    @overload
    def __init__(self, dataset: Dataset[Batch], batch_size: int, **options: Unpack[_Options]) -> None: ...
    @overload
    def __init__(
        self: DataLoader[Any],
        dataset: Examples,
        batch_size: int,
        *,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        **options: Unpack[_Options],
    ) -> None: ...
    @advice.explained
    def __init__(
        self,
        dataset: Examples,
        batch_size: int,
        *,
        shuffle: bool = False,
        key: Any = None,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        augment: Callable[[Any, Any], Any] | None = None,
        workers: int = 0,
        processes: bool | str = False,
        prefetch: int = 2,
        device: str | Device | None = None,
        first_epoch: int = 0,
        shard: tuple[int, int] | None = None,
    ) -> None:
        _check(batch_size=(batch_size, 1), workers=(workers, 0), prefetch=(prefetch, 1), first_epoch=(first_epoch, 0))
        if key is None and (shuffle or augment is not None):
            raise ArgumentError("DataLoader: shuffle and augment draw random numbers, so give a key: key=0, or a key of volta_fn.random")
        if processes and workers == 0:
            raise ArgumentError(f"DataLoader: processes={processes!r} is about workers; say how many, as in workers=4")
        if processes:
            context_of(processes)
        self.dataset = dataset
        self.batch_size, self.shuffle, self.drop_last = batch_size, shuffle, drop_last
        self.workers, self.processes, self.prefetch = workers, processes, prefetch
        self.device = None if device is None else find_device(device)
        self._collate, self._augment = collate, augment
        self._key = None if key is None else as_key(key)
        if not hasattr(dataset, "__len__"):
            raise ArgumentTypeError(
                f"DataLoader: a data set has a length and examples by number, {library_name(dataset)} has no length. Iterate over a stream "
                "by itself, or make a list of it first"
            )
        self._length = len(dataset)
        self.shard = _checked_shard(shard, [batch_size, 0 if drop_last else len(dataset) % batch_size])
        self._next = self._position = (int(first_epoch), 0)  # (epoch, batch) where the next iteration starts, and of the current one
        self._types: Any = None  # of the arrays of a batch, when one is loaded
        if not len(self):
            raise DataError(
                f"DataLoader: there is no batch to load: {self._length} examples, batch_size={batch_size}, drop_last={drop_last}"
            )

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._length // self.batch_size if self.drop_last else -(-self._length // self.batch_size)

    def __repr__(self) -> str:
        types = "" if self._types is None else f" of {self._types}"
        kind = type(self.dataset).__name__
        dataset = repr(self.dataset) if isinstance(self.dataset, Dataset) else f"{kind} of {len(self.dataset):,} examples"
        return f"DataLoader({dataset}, batch_size={self.batch_size}: {len(self):,} batches{types})"

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch, or after `restore` the remaining ones."""
        epoch, start = self._position = self._next
        self._next = (epoch + 1, 0)
        with contextlib.closing(self.epoch(epoch, start)) as batches:
            for batch in batches:
                start += 1
                self._position = (epoch, start)
                yield batch
                del batch  # so that its memory is free while the loop waits for the next one
        self._position = (epoch + 1, 0)

    def __next__(self) -> NoReturn:
        """Raise `ArgumentTypeError`: an epoch is an iterator, the loader is not."""
        raise ArgumentTypeError(
            "next: a DataLoader begins an epoch whenever it is iterated over, and has no next batch itself: batches = iter(loader), then "
            "next(batches) is the next one of an epoch"
        )

    def epoch(self, number: int, start: int = 0) -> Generator[Batch, None, None]:
        """Yield the batches of an epoch, from batch `start` on.

        The loader's own position does not change.

        >>> import numpy as np
        >>> loader = vf.data.DataLoader(vf.data.ArrayDataset(np.arange(6, dtype=np.int32)), 2)
        >>> list(loader.epoch(0, start=2))
        [Array([4, 5], dtype=int32)]
        """
        if number < 0 or not 0 <= start <= len(self):
            raise ArgumentError(f"DataLoader: there is no batch {start} of epoch {number}; an epoch has {len(self)} batches")
        order = self._order(number)
        chunks = ((i, self._shard_of(order[i * self.batch_size : (i + 1) * self.batch_size])) for i in range(start, len(self)))
        if self.processes:
            return self._from_processes(number, start, chunks)
        return prefetched(
            (functools.partial(self._load, number, i, rows) for i, rows in chunks), self.workers, self.workers * self.prefetch
        )

    def _from_processes(self, epoch: int, start: int, chunks: Iterator[tuple[int, np.ndarray]]) -> Generator[Batch, None, None]:
        """Yield batches that worker processes load."""
        seeds = [self._identity()["seed"], epoch, *self.shard] if self._key is not None else [int.from_bytes(os.urandom(16), "little")]
        tasks = (
            Task(
                (rows, _sent(self._batch_key(epoch, i))),
                int(np.random.SeedSequence([*seeds, i]).generate_state(1)[0]),
                _doing(i, epoch, rows),
            )
            for i, rows in chunks
        )
        numbers = itertools.count(start)
        return loaded_by_processes(
            tasks, self._assembly, lambda batch: self._placed(next(numbers), batch), self.workers, self.prefetch, self.processes
        )

    def state(self) -> dict[str, int]:
        """Return the position as a dict of ints.

        It has the epoch, the number of batches taken from it, and numbers that identify the data and their order.
        """
        epoch, batch = self._position
        return {"epoch": epoch, "batch": batch, **self._identity()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a position that `state` returned, maybe in another process.

        The next iteration yields exactly the remaining batches.

        Raises `ArgumentError` if the state belongs to a loader with other data, batch size, order or key.

        >>> import numpy as np
        >>> loader = vf.data.DataLoader(vf.data.ArrayDataset(np.arange(4, dtype=np.int32)), 1, shuffle=True, key=7)
        >>> for batch in loader:
        ...     break
        >>> saved, rest = loader.state(), [int(batch[0]) for batch in loader.epoch(0, start=1)]
        >>> loader.restore(saved)
        >>> [int(batch[0]) for batch in loader] == rest
        True
        """
        identity = self._identity()
        if set(state) != {"epoch", "batch", *identity}:
            raise ArgumentError(f"DataLoader.restore: a state has epoch, batch, {', '.join(identity)}; got {sorted(state)}")
        changed = {name: (int(state[name]), value) for name, value in identity.items() if int(state[name]) != value}
        if changed:
            raise ArgumentError(f"DataLoader.restore: the state is of another loader; these differ (saved, now): {changed}")
        epoch, batch = int(state["epoch"]), int(state["batch"])
        if epoch < 0 or not 0 <= batch <= len(self):
            raise ArgumentError(f"DataLoader.restore: there is no batch {batch} of epoch {epoch}; an epoch has {len(self)} batches")
        self._next = self._position = (epoch, batch)

    def _identity(self) -> dict[str, int]:
        """Return the numbers that determine the examples of a batch (31 bits of the key)."""
        seed = 0 if self._key is None else int(np.bitwise_xor.reduce(np.asarray(random.key_data(self._key)))) & 0x7FFFFFFF
        return {"length": self._length, "batch_size": self.batch_size, "shuffle": int(self.shuffle), "seed": seed}

    def _order(self, epoch: int) -> np.ndarray:
        """Return the indices of the examples in the order of an epoch."""
        if not self.shuffle:
            return np.arange(self._length)
        return np.asarray(random.permutation(random.fold_in(random.fold_in(self._key, 0), epoch), self._length))

    def _shard_of(self, rows: np.ndarray) -> np.ndarray:
        index, count = self.shard
        size = len(rows) // count
        return rows[index * size : (index + 1) * size]

    def _load(self, epoch: int, number: int, rows: np.ndarray) -> Any:
        """Load one batch; add its number to an exception."""
        try:
            return self._placed(number, self._assembly((rows, self._batch_key(epoch, number))))
        except Exception as error:
            error.add_note(_doing(number, epoch, rows))
            raise

    @property
    def _assembly(self) -> _Assembly:
        return _Assembly(self.dataset, self._collate, self._augment)

    def _batch_key(self, epoch: int, number: int) -> Any:
        """Return the key of a batch's augmentation; None without one."""
        if self._augment is None:
            return None
        key = random.fold_in(random.fold_in(random.fold_in(self._key, 1), epoch), number)
        return key if self.shard[1] == 1 else random.fold_in(key, self.shard[0])

    def _placed(self, number: int, batch: Any) -> Any:
        """Move a batch to the loader's device."""
        loaded = device_put(batch, self.device)
        if number == 0 or self._types is None:  # the last batch may be smaller
            self._types = tree.map(aval_of, loaded)
        return loaded


class _Assembly(NamedTuple):
    """How a batch is made on the host, of the numbers of its examples and a key."""

    dataset: Examples
    collate: Callable[[list[Any]], Any] | None
    augment: Callable[[Any, Any], Any] | None

    def __call__(self, task: tuple[np.ndarray, Any], /) -> Any:
        rows, key = task
        batch = gather(self.dataset, rows) if self.collate is None else self.collate([example(self.dataset, int(row)) for row in rows])
        return batch if self.augment is None else self.augment(key.received() if isinstance(key, _Key) else key, batch)


class _Key(NamedTuple):
    """A key on its way to a worker process."""

    words: np.ndarray
    impl: str | None

    def received(self) -> Any:
        """Return the key."""
        return vnp.asarray(self.words) if self.impl is None else random.wrap_key_data(self.words, impl=self.impl)


def _sent(key: Any) -> _Key | None:
    if key is None:
        return None
    return _Key(np.asarray(random.key_data(key)), random.key_impl(key) if isinstance(key, random.PRNGKeyArray) else None)


def _doing(number: int, epoch: int, rows: np.ndarray) -> str:
    return f"while loading batch {number} of epoch {epoch}, examples {_in_words(rows)}"


def _checked_shard(shard: Any, sizes: Sequence[int]) -> tuple[int, int]:
    """Return the shard to load, and how many batches of these sizes have."""
    if shard is None:
        return 0, 1
    index, count = map(int, shard)
    if not 0 <= index < count:
        raise ArgumentError(f"DataLoader: shard is (index, count) with 0 <= index < count, got {shard!r}")
    if any(size % count for size in sizes):
        raise ArgumentError(f"DataLoader: batches of {[s for s in sizes if s]} examples do not divide into {count} equal shards")
    return index, count


def _check(**arguments: tuple[int, int]) -> None:
    """Raise `ArgumentError` unless each argument is an integer and at least a minimum."""
    for name, (value, least) in arguments.items():
        if not isinstance(value, (int, np.integer)) or value < least:
            raise ArgumentError(f"DataLoader: {name} is an integer, at least {least}, got {value!r}")


def _in_words(rows: Sequence[int] | np.ndarray) -> str:
    first = ", ".join(str(row) for row in rows[:8])
    return first if len(rows) <= 8 else f"{first}, …"

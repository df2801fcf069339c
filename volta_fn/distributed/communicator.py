"""Collectives of NumPy arrays through MPI, with small arrays sent together."""

from __future__ import annotations

import functools
import hashlib
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import DistributedError
from volta_fn.lazy_imports import load

if TYPE_CHECKING:
    from volta_fn.distributed.watch import Calls


# Buckets: small arrays that are sent together.

#: Bytes from which an array travels by itself, without a copy.
LARGE = 1 << 18
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def wire_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype, as wide as needed, in which MPI combines a dtype."""
    if dtype == np.bool_:
        return np.dtype(np.uint8)
    if dtype.isbuiltin == 1 and dtype.kind in "iufc" and dtype != np.float16:
        return dtype
    return np.dtype(np.int32 if "int" in dtype.name else np.float32)


class Bucket:
    """The numbers of arrays that travel in one call, and the dtype in which they do."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.positions: list[int] = []

    def is_direct(self, arrays: Sequence[np.ndarray]) -> bool:
        """Return True if it is one array that can be sent as it is."""
        return len(self.positions) == 1 and arrays[self.positions[0]].dtype == self.dtype

    def packed(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Copy the arrays one after another."""
        joined = np.empty(sum([arrays[i].size for i in self.positions]), self.dtype)
        for block, i in self._slices(joined, arrays):
            block[...] = arrays[i].reshape(-1)
        return joined

    def unpack(self, joined: np.ndarray, outs: Sequence[np.ndarray]) -> None:
        """Copy the results to where they belong."""
        for block, i in self._slices(joined, outs):
            outs[i][...] = block.reshape(outs[i].shape).astype(outs[i].dtype, copy=False)

    def _slices(self, joined: np.ndarray, arrays: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, int]]:
        at = 0
        for i in self.positions:
            yield joined[at : at + arrays[i].size], i
            at += arrays[i].size


def buckets_of(arrays: Sequence[np.ndarray], wire: Callable[[np.dtype], np.dtype] = wire_dtype) -> list[Bucket]:
    """Group arrays into buckets, by their types alone."""
    buckets: list[Bucket] = []
    shared: dict[np.dtype, Bucket] = {}
    for i, array in enumerate(arrays):
        dtype = wire(array.dtype)
        if not array.size:
            continue
        if array.nbytes >= LARGE:
            buckets.append(Bucket(dtype))
            buckets[-1].positions.append(i)
            continue
        if dtype not in shared:
            shared[dtype] = Bucket(dtype)
            buckets.append(shared[dtype])
        shared[dtype].positions.append(i)
    return buckets


# Comparison of the processes' programs, equation by equation.

#: The memory address of an object, which differs between processes.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

#: A row with the results of an equation.
_EQUATION = re.compile(r"^\s*[a-z]+:\S+.* = ")


def text_of(closed: ClosedJaxpr, *, sources: bool = False) -> str:
    """Return a program's text, which is the same in all processes."""
    return _ADDRESS.sub("", closed.jaxpr.pretty_print(source_info=sources))


def digest(text: str) -> bytes:
    """Return a hash of a program's text."""
    return hashlib.blake2b(text.encode(), digest_size=32).digest()


def first_difference(texts: Sequence[str]) -> str:
    """Describe the first equation in which the programs of processes differ."""
    rows = [text.splitlines() for text in texts]
    for number in range(max(map(len, rows))):
        lines = [program[number].strip() if number < len(program) else "nothing, it has ended" for program in rows]
        compared = [row.partition("  # ")[0] for row in lines]
        if len({*compared}) > 1:
            first = next(i for i, row in enumerate(compared) if row != compared[0])
            equation = len([row for row in rows[0][: number + 1] if _EQUATION.match(row)])
            where = f"equation {equation} differs" if equation else "the inputs differ"
            return f"{where}:\n  process 0: {lines[0]}\n  process {first}: {lines[first]}"
    return "only constants differ"


# Collectives of NumPy arrays through MPI.
#
# A sum that is started runs in a separate thread, with a separate MPI communicator, so that it cannot match a call of the program's
# thread.


@functools.cache
def _operation(step: str, dtype: np.dtype) -> Any:
    """Return MPI's operation; its extremes are NaN if an operand is."""
    mpi = load("mpi4py.MPI")
    if step == "sum" or dtype.kind != "f":
        return {"sum": mpi.SUM, "max": mpi.MAX, "min": mpi.MIN}[step]
    combine = np.maximum if step == "max" else np.minimum

    def into(source: Any, target: Any, datatype: Any) -> None:
        array = np.frombuffer(target, dtype)
        with np.errstate(all="ignore"):
            combine(np.frombuffer(source, dtype), array, out=array)

    return mpi.Op.Create(into, commute=True)


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


#: Bytes from which two processes exchange an array, and each adds. MPI's own sum takes twice as long, and where other programs keep the
#: cores busy, far longer: its processes wait for each other more often, and each wait may cost a time slice.
_EXCHANGED = 1 << 14


def _reduce(comm: Any, step: str, source: np.ndarray, target: np.ndarray) -> None:
    """Combine contiguous arrays; the target may be the source, but not overlap it."""
    same = source.ctypes.data == target.ctypes.data
    if step == "sum" and comm.size == 2 and source.nbytes >= _EXCHANGED:
        received, other = np.empty_like(source) if same else target, 1 - comm.rank
        comm.Sendrecv(source, other, recvbuf=received, source=other)
        np.add(source, received, out=target)  # the order does not matter to the bits
    else:
        comm.Allreduce(load("mpi4py.MPI").IN_PLACE if same else source, target, _operation(step, source.dtype))


class MpiCommunicator:
    """The collectives of some processes."""

    def __init__(self, make: Callable[[], Any], ranks: tuple[int, ...], calls: Calls, background: Background) -> None:
        self.comm, self._comm_of_thread = make(), make()
        self.ranks = ranks
        self.size, self.index = self.comm.size, self.comm.rank
        self._calls, self._background = calls, background

    def _run(self, description: str, call: Callable[[], None], thread: str = "program") -> None:
        """Make a call that waits for the other processes."""
        with self._calls.waiting(self.ranks, thread, description):
            try:
                call()
            except load("mpi4py.MPI").Exception as error:
                raise DistributedError(f"{description} failed: {error}. Have all processes arrays of the same shape and dtype?") from error

    def reduce(self, step: str, arrays: Sequence[np.ndarray], outs: Sequence[np.ndarray], description: str) -> None:
        """Combine each array over the processes, and write the result."""
        buckets = buckets_of(arrays)

        def call() -> None:
            for bucket in buckets:
                source, target = arrays[bucket.positions[0]], outs[bucket.positions[0]]
                if bucket.is_direct(arrays) and source.flags.c_contiguous and target.flags.c_contiguous:
                    _reduce(self.comm, step, source, target)
                    continue
                joined = bucket.packed(arrays)
                _reduce(self.comm, step, joined, joined)
                bucket.unpack(joined, outs)

        self._run(description, call)

    def compressed_sum(self, arrays: Sequence[np.ndarray], outs: Sequence[np.ndarray], description: str) -> None:
        """Sum float32 arrays that travel as bfloat16."""

        def call() -> None:
            for bucket in buckets_of(arrays, lambda dtype: BFLOAT16):
                bucket.unpack(_sum_as_bfloat16(self.comm, bucket.packed(arrays)), outs)

        self._run(description, call)

    def start_sum(self, arrays: Sequence[np.ndarray], compression: str | None, description: str) -> PendingSum:
        """Begin a sum of copies of the arrays."""
        return self._background.start(PendingSum(self, arrays, compression, description))

    def sum_in_thread(self, joined: np.ndarray, compression: str | None, description: str) -> np.ndarray:
        """Sum an array in the background thread; it may be overwritten."""
        outputs = [joined]

        def call() -> None:
            if compression is None:
                _reduce(self._comm_of_thread, "sum", joined, joined)
            else:
                outputs[0] = _sum_as_bfloat16(self._comm_of_thread, joined)

        self._run(description, call, "background")
        return outputs[0]

    def gather(self, array: np.ndarray, description: str) -> np.ndarray:
        """Stack the arrays of all processes."""
        stacked = np.empty((self.size, *array.shape), array.dtype)
        self._run(description, lambda: self.comm.Allgather(_bytes(array), _bytes(stacked)))
        return stacked

    def reduce_scatter(self, array: np.ndarray, description: str) -> np.ndarray:
        """Sum the arrays, and return this process's row."""
        dtype = wire_dtype(array.dtype)
        wide, row = np.ascontiguousarray(array, dtype), np.empty(array.shape[1:], dtype)
        if row.size:
            self._run(description, lambda: self.comm.Reduce_scatter_block(wide, row, _operation("sum", dtype)))
        return row.astype(array.dtype, copy=False)

    def exchange(self, array: np.ndarray, description: str) -> np.ndarray:
        """Send row i to process i."""
        received = np.empty(array.shape, array.dtype)
        self._run(description, lambda: self.comm.Alltoall(_bytes(array), _bytes(received)))
        return received

    def permute(self, array: np.ndarray, pairs: Sequence[tuple[int, int]], description: str) -> np.ndarray:
        """Send the array by pairs of source and target."""
        sent, received = _bytes(array), np.zeros(array.shape, array.dtype)
        target = next((t for s, t in pairs if s == self.index), None)
        source = next((s for s, t in pairs if t == self.index), None)

        def call() -> None:
            null = load("mpi4py.MPI").PROC_NULL
            arrived = _bytes(received) if source is not None else None
            self.comm.Sendrecv(sent, null if target is None else target, recvbuf=arrived, source=null if source is None else source)

        self._run(description, call)
        return received


def _sum_as_bfloat16(comm: Any, joined: np.ndarray) -> np.ndarray:
    """Sum bfloat16 arrays in float32, each process a block of them."""
    size = comm.size
    block = -(-joined.size // size)
    sent = np.zeros((size, block), BFLOAT16)
    sent.reshape(-1)[: joined.size] = joined
    arrived = np.empty((size, block), BFLOAT16)
    comm.Alltoall(_bytes(sent), _bytes(arrived))
    block_sum = arrived.astype(np.float32).sum(0).astype(BFLOAT16)
    comm.Allgather(_bytes(block_sum), _bytes(sent))
    return sent.reshape(-1)[: joined.size]


class PendingSum:
    """A sum that the background thread computes."""

    def __init__(self, communicator: MpiCommunicator, arrays: Sequence[np.ndarray], compression: str | None, description: str) -> None:
        self._communicator, self._compression, self._description = communicator, compression, description
        self._types = [(a.shape, a.dtype) for a in arrays]
        self._buckets = buckets_of(arrays) if compression is None else buckets_of(arrays, lambda dtype: BFLOAT16)
        self._joined = [bucket.packed(arrays) for bucket in self._buckets]
        self._done = threading.Event()
        self._error: BaseException | None = None
        #: Seconds that it took, and that the program waited for it.
        self.seconds = self.waited = 0.0

    def run(self) -> None:
        """Compute it; called by the background thread."""
        start = time.perf_counter()
        try:
            self._joined = [self._communicator.sum_in_thread(j, self._compression, self._description) for j in self._joined]
        except BaseException as error:  # raised where the results are read
            self._error = error
        self.seconds = time.perf_counter() - start
        self._done.set()

    def results(self) -> list[np.ndarray]:
        """Wait for the results, and return them."""
        start = time.perf_counter()
        self._done.wait()
        self.waited = time.perf_counter() - start
        self._communicator._background.finished(self)
        if self._error is not None:
            raise self._error
        outs = [np.empty(shape, dtype) for shape, dtype in self._types]
        for bucket, joined in zip(self._buckets, self._joined, strict=True):
            bucket.unpack(joined, outs)
        return outs


class Background:
    """The thread that computes sums while the program goes on."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[PendingSum | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: Sums so far, the seconds that they took, and those that programs waited for them.
        self.sums, self.seconds, self.waited = 0, 0.0, 0.0

    def start(self, pending: PendingSum) -> PendingSum:
        """Queue a sum for the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="volta_fn sums", daemon=True)
            self._thread.start()
        self._queue.put(pending)
        return pending

    def finished(self, pending: PendingSum) -> None:
        """Count a sum whose results were read."""
        self.sums += 1
        self.seconds += pending.seconds
        self.waited += pending.waited

    def stop(self) -> None:
        """Wait for all sums, and end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (pending := self._queue.get()) is not None:
            pending.run()

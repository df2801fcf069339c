"""The world of several processes, and its collectives through MPI."""

from __future__ import annotations

import atexit
import functools
import hashlib
import ipaddress
import os
import queue
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import ml_dtypes
import numpy as np

from volta_fn.core.devices import distribution
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.distributed.watch import DEVICE, FAREWELL_SECONDS, LOOPBACK, Calls, Connection, Switchboard, Watch, parse_address
from volta_fn.errors import ArgumentError, DistributedError, MissingDependencyError, ProgramMismatchError
from volta_fn.lazy_imports import is_installed, load
from volta_fn.settings import value_of

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


# The world of several processes.

T = TypeVar("T")


class MpiWorld:
    """All processes of an MPI program."""

    member = "process"

    def __init__(self, comm: Any, limit: float, address: str | None = None) -> None:
        self.comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.calls = Calls()
        self.background = Background()
        self._communicators: dict[tuple[int, ...], MpiCommunicator] = {}
        self._everyone = tuple(range(self.size))
        self.drivers = ("",) * self.size
        self.limit = limit
        self.watch = Watch(self._connected(address), self.calls, limit)

    def _connected(self, address: str | None) -> Connection:
        """Connect all processes to a switchboard in the first."""
        # On several machines it listens on the interface with the address.
        hosts = self.comm.allgather(socket.gethostname())
        host, port, secret, error = LOOPBACK, 0, "", ""
        if self.rank == 0:
            try:
                if len({*hosts}) > 1:
                    host, port = interface_of(hosts[0]) if address is None else parse_address(address)
                secret = secrets.token_hex(32)
                port = Switchboard(host, secret, port).port
            except (DistributedError, OSError) as raised:
                error = f"process 0 cannot listen for the others at {host}:{port}: {raised}"
        host, port, secret, error = self.comm.bcast((host, port, secret, error), 0)
        if error:
            raise DistributedError(error)
        connection = Connection(host, port, secret, self.rank)
        self.comm.Barrier()
        return connection

    def communicator(self, ranks: tuple[int, ...]) -> MpiCommunicator:
        """Return the communicator of some processes, which all of them create together."""
        communicator = self._communicators.get(ranks)
        if communicator is None:
            with self.calls.waiting(ranks, "control", f"the first collective of the processes {list(ranks)}"):
                group = self.comm.group.Incl(ranks)
                communicator = MpiCommunicator(lambda: self.comm.Create_group(group), ranks, self.calls, self.background)
            self._communicators[ranks] = communicator
        return communicator

    def _wait_for_all(self, description: str, call: Callable[[], T]) -> T:
        with self.calls.waiting(self._everyone, "control", description):
            return call()

    def check_program(self, closed: ClosedJaxpr, driver: str) -> None:
        """Raise `ProgramMismatchError` unless all processes compile the same program now.

        It tells the others which driver this process's device has.
        """
        text = text_of(closed)
        description = f"the compilation of a program of {len(closed.eqns)} equations with the inputs {', '.join(map(str, closed.in_avals))}"
        told = self._wait_for_all(description, lambda: self.comm.allgather((digest(text), driver)))
        self.drivers = tuple([of_process for _, of_process in told])
        if len({program for program, _ in told}) > 1:
            texts = self._wait_for_all(description, lambda: self.comm.allgather(text_of(closed, sources=True)))
            raise ProgramMismatchError(
                f"the processes compile different programs; {first_difference(texts)}\nAll processes have to call the same functions with "
                "arguments of the same types, in the same order. What depends on the process is data, or follows from lax.axis_index"
            )

    def launched(self, ranks: tuple[int, ...]) -> None:
        """Count a collective of some processes that a device is about to run."""
        self.calls.begin(ranks, DEVICE)

    def watch_device(self, memory: distribution.SharedMemory) -> None:
        """Watch over the collectives of a device through memory that it shares."""
        self.calls.devices.append(memory.waiting)

    def check_members(self, ranks: tuple[int, ...], awaited: int | None) -> None:
        """Do nothing: a process whose device fails ends, which the watch sees."""

    def run_once(self, function: Callable[[], T]) -> T:
        """Call a function in the first process; return or raise the same in all."""
        result: Any = None
        error: Exception | None = None
        if self.rank == 0:
            try:
                result = function()
            except Exception as raised:
                error = raised
        result, error = self._wait_for_all("a step that process 0 does for all", lambda: self.comm.bcast((result, error), 0))
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        """Wait for all processes, and end the threads."""
        self.background.stop()
        self._wait_for_all("distributed.shutdown", self.comm.Barrier)
        self.watch.stop()


def interface_of(name: str) -> tuple[str, int]:
    """Return the address that this machine's name stands for, and port 0.

    Raises:
        DistributedError: the name is that of the loopback interface here.
    """
    address = socket.gethostbyname(name)
    if ipaddress.ip_address(address).is_loopback:
        raise DistributedError(
            f"{name!r}, the name of its machine, is that of the loopback interface there ({address}); name the interface that the other "
            "machines reach: distributed.initialize(coordinator_address='10.0.0.5')"
        )
    return address, 0


def connected(limit: float, address: str | None = None) -> MpiWorld:
    """Return the world of the processes that MPI started."""
    return MpiWorld(load("mpi4py.MPI").COMM_WORLD, limit, address)


# The beginning and the end of a program on several processes.

#: Variables in which starters of MPI programs tell the number of processes.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS")
_initialized = False


def initialize(
    coordinator_address: str | None = None, num_processes: int | None = None, process_id: int | None = None, *, timeout: float | None = None
) -> None:
    """Connect this process with the others that run the same program.

    MPI has started them: `python -m volta_fn.launch -n 4 script.py` on one machine, `srun` or `mpiexec` on several. A process that was
    started by itself is a world of one, without MPI, so that the same script runs everywhere.

    Args:
        coordinator_address: where processes on several machines tell each other of failures: the address of an interface of the first
            one's machine, with or without a port; by default the address that the machine's name stands for, and any port. On one
            machine they use the loopback interface, whatever this says.
        num_processes, process_id: if given, checked against what MPI says.
        timeout: seconds that a collective may wait for a process, after which all end with an error that names those that are missing;
            by default VOLTA_COLLECTIVE_TIMEOUT, or 300.

    Raises:
        MissingDependencyError: there are several processes, and mpi4py is not installed.
        DistributedError: it was called before, or a process cannot be reached.
        ArgumentError: an argument is out of range, or not what MPI says.

    >>> vf.distributed.initialize()
    >>> vf.distributed.is_initialized()
    True
    """
    global _initialized
    limit = (value_of("VOLTA_COLLECTIVE_TIMEOUT") or 300.0) if timeout is None else timeout
    if not limit > 0:
        raise ArgumentError(f"distributed.initialize: timeout is a positive number of seconds, got {timeout!r}")
    if coordinator_address is not None:
        parse_address(coordinator_address)
    if distribution.current().size > 1:
        raise DistributedError("distributed.initialize was called before; call distributed.shutdown first")
    if "SLURM_NTASKS" in os.environ and "SLURM_STEP_ID" not in os.environ and not any(n in os.environ for n in _SIZES[:3]):
        count = 1  # a job's script itself, not a step of it
    else:
        count = max([int(os.environ[name]) for name in _SIZES if os.environ.get(name, "").isdigit()], default=1)
    if count > 1:
        if not is_installed("mpi4py"):
            raise MissingDependencyError(
                f"{count} processes were started together, but mpi4py is not installed: pip install 'volta-fn[distributed]'"
            )
        world = connected(limit, coordinator_address)
        distribution.set_current(world)
        # End all processes after an uncaught exception: others would wait forever.
        before, watch = sys.excepthook, world.watch

        def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            before(kind, error, trace)
            if distribution.current() is world:  # not after `shutdown`
                sys.stderr.flush()
                sys.stdout.flush()
                watch.fail(f"{kind.__name__}: {error}")
                time.sleep(FAREWELL_SECONDS)
                os._exit(1)

        sys.excepthook = hook
        atexit.register(shutdown)
    _check("num_processes", num_processes, distribution.current().size)
    _check("process_id", process_id, distribution.current().rank)
    _initialized = True


def _check(name: str, expected: int | None, actual: int) -> None:
    if expected is not None and expected != actual:
        raise ArgumentError(
            f"distributed.initialize: {name}={expected!r}, but MPI says {actual}. Start the processes with "
            "python -m volta_fn.launch -n N script.py, with srun or mpiexec"
        )


def shutdown() -> None:
    """Leave the other processes, once all have come to this; called when Python exits.

    >>> vf.distributed.shutdown()
    >>> vf.distributed.is_initialized()
    False
    """
    global _initialized
    world: Any = distribution.current()
    if world is not distribution.ALONE:
        world.stop()
        distribution.set_current(distribution.ALONE)
    _initialized = False


def is_initialized() -> bool:
    """Return True between `initialize` and `shutdown`."""
    return _initialized


class Statistics(NamedTuple):
    """The time of sums that overlapped with computation."""

    #: Their number.
    sums: int
    #: Their seconds, and the seconds of these for which the program waited.
    seconds: float
    waited: float

    @property
    def hidden(self) -> float:
        """The share of the seconds in which the program computed meanwhile."""
        return 1 - min(self.waited / self.seconds, 1.0) if self.seconds else 0.0


def statistics() -> Statistics:
    """Return how long overlapped sums took so far, and how much was hidden.

    >>> vf.distributed.statistics()
    Statistics(sums=0, seconds=0.0, waited=0.0)
    """
    world: Any = distribution.current()
    if world is distribution.ALONE:
        return Statistics(0, 0.0, 0.0)
    return Statistics(world.background.sums, world.background.seconds, world.background.waited)

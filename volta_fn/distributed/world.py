"""The world of several processes, from its beginning to its end."""

from __future__ import annotations

import atexit
import ipaddress
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from volta_fn.core.devices import distribution
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.distributed.communicator import Background, MpiCommunicator, digest, first_difference, text_of
from volta_fn.distributed.watch import DEVICE, FAREWELL_SECONDS, LOOPBACK, Calls, Connection, Switchboard, Watch, parse_address
from volta_fn.errors import ArgumentError, DistributedError, MissingDependencyError, ProgramMismatchError
from volta_fn.lazy_imports import is_installed, load
from volta_fn.settings import value_of

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

    >>> import volta_fn as vf
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

    >>> import volta_fn as vf
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

    >>> import volta_fn as vf
    >>> vf.distributed.statistics()
    Statistics(sums=0, seconds=0.0, waited=0.0)
    """
    world: Any = distribution.current()
    if world is distribution.ALONE:
        return Statistics(0, 0.0, 0.0)
    return Statistics(world.background.sums, world.background.seconds, world.background.waited)

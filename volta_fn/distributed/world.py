"""The world of several processes: all that the package asks of them."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Callable
from typing import Any, TypeVar

from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.distributed.calls import Calls
from volta_fn.distributed.communicator import Background, MpiCommunicator
from volta_fn.distributed.control import LOOPBACK, Connection, Switchboard, parse_address
from volta_fn.distributed.programs import digest, first_difference, text_of
from volta_fn.distributed.watch import Watch
from volta_fn.errors import DistributedError, ProgramMismatchError
from volta_fn.lazy_imports import load

T = TypeVar("T")


class MpiWorld:
    """All processes of an MPI program."""

    def __init__(self, comm: Any, limit: float, address: str | None = None) -> None:
        self.comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.calls = Calls()
        self.background = Background()
        self._communicators: dict[tuple[int, ...], MpiCommunicator] = {}
        self._everyone = tuple(range(self.size))
        self.watch = Watch(self._connected(address), self.calls, limit)

    def _connected(self, address: str | None) -> Connection:
        """Connect all processes to a switchboard in the first.

        On several machines it listens on the interface with the address.
        """
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
        """Return the communicator of some processes, which all of them make."""
        found = self._communicators.get(ranks)
        if found is None:
            with self.calls.waiting(ranks, "control", f"the first collective of the processes {list(ranks)}"):
                group = self.comm.group.Incl(ranks)
                found = MpiCommunicator(lambda: self.comm.Create_group(group), ranks, self.calls, self.background)
            self._communicators[ranks] = found
        return found

    def _together(self, description: str, call: Callable[[], T]) -> T:
        with self.calls.waiting(self._everyone, "control", description):
            return call()

    def check_program(self, closed: ClosedJaxpr) -> None:
        """Raise `ProgramMismatchError` unless all processes compile the same program now."""
        text = text_of(closed)
        description = f"the compilation of a program of {len(closed.eqns)} equations with the inputs {', '.join(map(str, closed.in_avals))}"
        digests = self._together(description, lambda: self.comm.allgather(digest(text)))
        if len({*digests}) > 1:
            texts = self._together(description, lambda: self.comm.allgather(text_of(closed, sources=True)))
            raise ProgramMismatchError(
                f"the processes compile different programs; {first_difference(texts)}\nAll processes have to call the same functions with "
                "arguments of the same types, in the same order. What depends on the process is data, or follows from lax.axis_index"
            )

    def run_once(self, function: Callable[[], T]) -> T:
        """Call a function in the first process; return or raise the same in all."""
        result: Any = None
        error: Exception | None = None
        if self.rank == 0:
            try:
                result = function()
            except Exception as raised:
                error = raised
        result, error = self._together("a step that process 0 does for all", lambda: self.comm.bcast((result, error), 0))
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        """Wait for all processes, and end the threads."""
        self.background.stop()
        self._together("distributed.shutdown", self.comm.Barrier)
        self.watch.stop()


def interface_of(name: str) -> tuple[str, int]:
    """Return the address that this machine's name stands for, and port 0.

    Raises:
        DistributedError: the name is that of the loopback interface here.
    """
    found = socket.gethostbyname(name)
    if ipaddress.ip_address(found).is_loopback:
        raise DistributedError(
            f"{name!r}, the name of its machine, is that of the loopback interface there ({found}); name the interface that the other "
            "machines reach: distributed.initialize(coordinator_address='10.0.0.5')"
        )
    return found, 0


def connected(limit: float, address: str | None = None) -> MpiWorld:
    """Return the world of the processes that MPI started."""
    return MpiWorld(load("mpi4py.MPI").COMM_WORLD, limit, address)

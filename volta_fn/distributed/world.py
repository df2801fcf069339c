"""The world of several processes: all that the package asks of them."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from typing import Any, TypeVar

from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.distributed.calls import Calls
from volta_fn.distributed.communicator import Background, MpiCommunicator
from volta_fn.distributed.control import Connection, Switchboard
from volta_fn.distributed.programs import digest, first_difference, text_of
from volta_fn.distributed.watch import Watch
from volta_fn.errors import ProgramMismatchError
from volta_fn.lazy_imports import load

T = TypeVar("T")


class MpiWorld:
    """All processes of an MPI program."""

    def __init__(self, comm: Any, limit: float) -> None:
        self.comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.calls = Calls()
        self.background = Background()
        self._communicators: dict[tuple[int, ...], MpiCommunicator] = {}
        self._everyone = tuple(range(self.size))
        self.watch = Watch(self._connected(), self.calls, limit)

    def _connected(self) -> Connection:
        """Connect all processes to a switchboard in the first."""
        hosts = self.comm.allgather(socket.gethostname())
        host = "127.0.0.1" if len({*hosts}) == 1 else hosts[0]
        secret = board = None
        if self.rank == 0:
            secret = secrets.token_hex(16)
            board = Switchboard("127.0.0.1" if host == "127.0.0.1" else "", secret)
        port, secret = self.comm.bcast((board and board.port, secret), 0)
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


def connected(limit: float) -> MpiWorld:
    """Return the world of the processes that MPI started."""
    return MpiWorld(load("mpi4py.MPI").COMM_WORLD, limit)

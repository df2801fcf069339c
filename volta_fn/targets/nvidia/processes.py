"""Processes that answer requests, forked from one that has loaded what they need.

LLVM may end its process, and Python runs one thread at a time. To start Python and to import the compiler take longer than most shaders do.
A *server* does so once, and forks the *workers*, which then share its memory.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import IO, NamedTuple, NoReturn

from volta_fn.core.caches import WeakIdentityDict
from volta_fn.errors import DeviceError
from volta_fn.runtime.threads import cpu_count
from volta_fn.signals import deferred_interrupts

# Messages between processes: lists of byte strings, each preceded by its length.

_COUNT, _LENGTH = struct.Struct("<I"), struct.Struct("<Q")


def send(stream: socket.socket, parts: Sequence[bytes]) -> None:
    """Write a message."""
    stream.sendall(_COUNT.pack(len(parts)) + b"".join([_LENGTH.pack(len(part)) + part for part in parts]))


def receive(stream: socket.socket) -> list[bytes]:
    """Read a message. Raises `EOFError` at the end of the stream."""
    (count,) = _COUNT.unpack(_read(stream, _COUNT.size))
    return [_read(stream, *_LENGTH.unpack(_read(stream, _LENGTH.size))) for _ in range(count)]


def _read(stream: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = stream.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


# The server, which is a process of Python.
#
# Its standard input is a socket, and each message has the number of a worker. With three files the worker is to be started: the socket of
# its requests, where its status is written when it has ended, and where it writes what libraries print. Without files it is to be killed.

_NUMBER, _STATUS = struct.Struct("<Q"), struct.Struct("<i")
_FILES = 3
#: Seconds without a request after which a worker ends.
_IDLE_S = 20.0

#: Answers a request.
Answer = Callable[..., Sequence[bytes]]


class _Child(NamedTuple):
    """A worker, as its server has it."""

    number: int
    process: int
    #: The file for its status.
    status: int


def serve(answer: Answer) -> None:
    """Start and kill workers, as standard input says, until it ends; then kill all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    gc.freeze()  # a collection would copy the memory that workers share
    #: The workers by pipes that end with them.
    children: dict[int, _Child] = {}
    with socket.socket(fileno=0) as control:
        while True:
            ready = select.select([control.fileno(), *children], [], [])[0]
            for end in children.keys() & ready:
                _report(children.pop(end), end)
            if control.fileno() in ready and not _obey(control, children, answer):
                return


def _obey(control: socket.socket, children: dict[int, _Child], answer: Answer) -> bool:
    """Do what a message says; return False at the end of the messages."""
    message, files, _, _ = socket.recv_fds(control, _NUMBER.size, _FILES)
    number = _NUMBER.unpack(message)[0] if message else None
    if number is not None and files:
        _fork(number, files, children, answer)
        return True
    for end, child in [*children.items()]:
        if number in (None, child.number):
            os.kill(child.process, signal.SIGKILL)
            _report(children.pop(end), end)
    return number is not None


def _report(child: _Child, end: int) -> None:
    """Write the status of a worker that ends."""
    status = os.waitstatus_to_exitcode(os.waitpid(child.process, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(child.status, _STATUS.pack(status))
    os.close(child.status)
    os.close(end)


def _fork(number: int, files: Sequence[int], children: dict[int, _Child], answer: Answer) -> None:
    """Start a worker."""
    requests, status, messages = files
    end, open_while_alive = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of a library, which are not needed
        process = os.fork()
    if not process:
        for file in (status, end, *children, *[child.status for child in children.values()]):
            os.close(file)
        _work(requests, messages, answer)
    children[end] = _Child(number, process, status)
    for file in (open_while_alive, requests, messages):
        os.close(file)


def _work(requests: int, messages: int, answer: Answer) -> NoReturn:
    """Answer requests until there are no more, and end the process."""
    status = 1
    try:
        for file in (0, 1, 2):  # what libraries print is no answer; and the server's messages are not for this process
            os.dup2(messages, file)
        with socket.socket(fileno=requests) as stream, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            while select.select([stream], [], [], _IDLE_S)[0]:
                send(stream, answer(*receive(stream)))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


# The server and its workers as the process that asks has them.

#: Seconds to wait for the status of a process that has ended.
_STATUS_S = 5.0
#: The most characters of a process's last words in an error.
_LAST_WORDS = 2000


def _last_words(messages: IO[bytes], status: int) -> str:
    """Return how a process ended, and what it printed."""
    messages.seek(0)
    words = messages.read().decode(errors="replace").strip()[-_LAST_WORDS:]
    return f"{'by signal' if status < 0 else 'with status'} {abs(status)}: {words or 'it said nothing'}"


class _Server:
    """A server, started at once."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start Python with some arguments. Raises `OSError` if that fails."""
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._messages: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        path = os.pathsep.join([os.path.abspath(folder) for folder in sys.path])
        # Threads of NumPy's libraries would be lost in workers, and are not needed.
        environment = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
        try:
            with control:
                self.process = subprocess.Popen(
                    [sys.executable, *command], stdin=control.fileno(), stdout=self._messages, stderr=self._messages, env=environment
                )
        except BaseException:
            self._control.close()
            self._messages.close()
            raise

    def start(self, number: int, files: Sequence[int]) -> None:
        """Have a worker started. Raises `OSError` if the server has ended."""
        socket.send_fds(self._control, [_NUMBER.pack(number)], files)

    def kill(self, number: int) -> None:
        """Have a worker killed, if it lives."""
        with contextlib.suppress(OSError):  # the server has ended; the worker ends when nobody reads its answer
            self._control.send(_NUMBER.pack(number))

    def last_words(self) -> str:
        """Return how it ended, and what it printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STATUS_S)
        return _last_words(self._messages, self.process.returncode or 0)

    def end(self) -> None:
        """End the process, and all of its workers."""
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STATUS_S)
        self.process.kill()
        self.process.wait()
        self._messages.close()

    def forget(self) -> None:
        """Close the files of a forked process, whose child it is not."""
        self._control.close()
        self._messages.close()
        self.process.returncode = 0  # Python would warn that it runs


class Worker:
    """A worker, which answers requests one after another."""

    def __init__(self, server: _Server, number: int) -> None:
        """Have a server start a worker of some number. Raises `OSError` if it has ended."""
        self._server, self._number = server, number
        self._stream, requests = socket.socketpair()
        self._status, status = os.pipe()
        self._messages: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            server.start(number, [requests.fileno(), status, self._messages.fileno()])
        except BaseException:
            self.forget()
            raise
        finally:
            requests.close()
            os.close(status)
        self.last_used = time.monotonic()

    def ask(self, request: Sequence[bytes]) -> list[bytes]:
        """Send a request and return the answer. Raises `DeviceError` if the process ends."""
        try:
            send(self._stream, request)
            answer = receive(self._stream)
        except (EOFError, OSError):
            raise DeviceError(f"the process that compiles it ended, {self._last_words()}") from None
        self.last_used = time.monotonic()
        return answer

    def _last_words(self) -> str:
        status = os.read(self._status, _STATUS.size) if self._has_ended(_STATUS_S) else b""
        if len(status) < _STATUS.size:  # it was not started
            return self._server.last_words()
        return _last_words(self._messages, *_STATUS.unpack(status))

    def _has_ended(self, timeout: float) -> bool:
        poll = select.poll()  # unlike `select`, it takes any number of a file
        poll.register(self._status, select.POLLIN)
        return bool(poll.poll(1000 * timeout))

    @property
    def is_usable(self) -> bool:
        """Whether it lives, and does not end soon since it had no requests."""
        return not self._has_ended(0) and time.monotonic() - self.last_used < _IDLE_S / 2

    def end(self) -> None:
        """End the process."""
        self._server.kill(self._number)
        self.forget()

    def forget(self) -> None:
        """Close the files; the process ends when nobody reads its answer."""
        self._stream.close()
        os.close(self._status)
        self._messages.close()


# The pool.

#: Workers at most: as many as there are threads that compile (`targets/gpu/pipelines.py`). One CPU belongs to the program.
_MOST = 16
#: Seconds after which a thread that waits for a worker sees Ctrl-C.
_WAKE_S = 0.1

_POOLS: WeakIdentityDict[WorkerPool, None] = WeakIdentityDict()


class WorkerPool:
    """Workers, started when they are needed."""

    def __init__(self, command: Sequence[str], most: int | None = None) -> None:
        """Prepare at most `most` workers.

        Their server is Python with the arguments `command`.
        """
        self._command, self._most = command, most or max(1, min(_MOST, cpu_count() - 1))
        self._numbers = itertools.count()
        self._reset()
        _POOLS.set(self, None)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._workers: set[Worker] = set()
        self._idle: list[Worker] = []
        #: Workers being started.
        self._starting = 0
        self._server: _Server | None = None

    def prepare(self) -> None:
        """Start all workers before they are needed.

        Does nothing if some are there, or if none can be started: that is an error when one is needed.
        """
        with deferred_interrupts, self._changed, contextlib.suppress(OSError):
            for _ in range(0 if self._workers or self._starting else self._most):
                worker = self._started()
                self._workers.add(worker)
                self._idle.append(worker)

    def ask(self, request: Sequence[bytes]) -> list[bytes]:
        """Have a worker answer a request.

        Raises `DeviceError` if its process ends or none can be started. Another one takes its place.
        """
        worker, answer = None, None
        try:
            with deferred_interrupts:  # Ctrl-C between its statements would lose a place
                worker = self._take()
            answer = worker.ask(request)
            return answer
        finally:
            if worker is not None:
                with deferred_interrupts:
                    self._give_back(worker, is_idle=answer is not None)

    def _give_back(self, worker: Worker, *, is_idle: bool) -> None:
        """Let other threads use a worker, or end it.

        One that is not idle has ended, or Ctrl-C has left an answer in its stream.
        """
        with self._changed:
            if is_idle:
                self._idle.append(worker)
            else:
                self._workers.discard(worker)
            self._changed.notify()
        if not is_idle:
            worker.end()

    def _take(self) -> Worker:
        """Return a worker that no thread uses, which may be a new one."""
        stale: list[Worker] = []
        usable: Worker | None = None
        with self._changed:
            while not self._idle and len(self._workers) + self._starting >= self._most:
                self._changed.wait(_WAKE_S)
                deferred_interrupts.deliver_pending()
            while usable is None and self._idle:
                worker = self._idle.pop()
                if worker.is_usable:
                    usable = worker
                else:
                    self._workers.discard(worker)
                    stale.append(worker)
            self._starting += usable is None
        for worker in stale:
            worker.end()
        return usable or self._start()

    def _start(self) -> Worker:
        worker = None
        try:
            worker = self._started()
        except OSError as error:
            raise DeviceError(f"no process that compiles shaders can be started: {error}") from error
        finally:
            with self._changed:
                self._starting -= 1
                if worker is not None:
                    self._workers.add(worker)
                else:
                    self._changed.notify()
        return worker

    def _started(self) -> Worker:
        """Start a worker, and its server if that is not there."""
        with self._changed:
            if self._server is not None:
                with contextlib.suppress(OSError):
                    return Worker(self._server, next(self._numbers))
                self._server.end()
                self._server = None
            self._server = _Server(self._command)
            return Worker(self._server, next(self._numbers))

    def close(self) -> None:
        """End all processes. Threads that wait for an answer get a `DeviceError`."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._workers.difference_update(idle)
            server, self._server = self._server, None
        for worker in idle:
            worker.forget()
        if server is not None:
            server.end()  # the threads that wait for answers end the other workers

    def forget(self) -> None:
        """Forget all processes, in a forked process, whose children they are not."""
        for worker in self._workers:
            worker.forget()
        if self._server is not None:
            self._server.forget()
        self._reset()


@atexit.register
def _close_pools() -> None:
    for pool in _POOLS:
        pool.close()


def _forget_pools() -> None:
    for pool in _POOLS:
        pool.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)

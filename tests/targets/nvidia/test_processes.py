"""Requests are answered by processes that may end, which are forked from one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from volta_fn.errors import DeviceError
from volta_fn.targets.nvidia import processes
from volta_fn.targets.nvidia.processes import WorkerPool, receive, send

#: A server whose workers answer with results of Python's expressions.
PROGRAM = """
import ctypes, os, sys, threading, time
from volta_fn.targets.nvidia import processes
{}
processes.serve(lambda expression: [str(eval(expression)).encode()])
"""


def pool_of(text: str = "", most: int = 1) -> WorkerPool:
    """Return a pool whose server runs some text first."""
    return WorkerPool(("-P", "-c", PROGRAM.format(text)), most)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = pool_of()
    yield pool
    pool.close()


def ask(pool: WorkerPool, expression: str) -> str:
    (answer,) = pool.ask([expression.encode()])
    return answer.decode()


def has_ended(pid: int) -> bool:
    """Wait until a process has ended."""
    for _ in range(200):
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.1)
                continue
        return True
    return False


# messages


def test_messages() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, [b"", b"a\0\n", bytes(1000)])
        send(ours, [])
        assert receive(theirs) == [b"", b"a\0\n", bytes(1000)]
        assert receive(theirs) == []
        ours.sendall(b"\1\0\0\0\4\0\0\0\0\0\0\0abc")
        ours.close()
        for _ in range(2):
            with pytest.raises(EOFError):
                receive(theirs)


def test_messages_longer_than_a_socket_has_room_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=send, args=(ours, [bytes(1 << 22), b"end"]))
        sender.start()
        assert receive(theirs) == [bytes(1 << 22), b"end"]
        sender.join()


# workers


def test_a_worker_answers_all_requests(pool: WorkerPool) -> None:
    assert len({ask(pool, "os.getpid()") for _ in range(3)}) == 1
    assert ask(pool, "'a' * 100000") == "a" * 100000


def test_workers_share_what_the_server_has_loaded() -> None:
    pool = pool_of("loaded_by = os.getpid()", 2)
    answers = [ask(pool, "(loaded_by, os.getppid())") for _ in range(2)]
    assert len(set(answers)) == 1 and len(set(eval(answers[0]))) == 1
    pool.close()


def test_a_worker_whose_process_ends_is_replaced(pool: WorkerPool) -> None:
    before = ask(pool, "os.getpid()")
    with pytest.raises(DeviceError, match="by signal 6: last words"):
        ask(pool, "os.write(1, b'last words') and os.abort()")
    with pytest.raises(DeviceError, match="with status 3: it said nothing"):
        ask(pool, "os._exit(3)")
    with pytest.raises(DeviceError, match=r"with status 1: (.|\n)*ZeroDivisionError"):
        ask(pool, "1 / 0")
    assert ask(pool, "os.getpid()") != before


def test_a_worker_that_was_killed_while_idle_is_replaced(pool: WorkerPool) -> None:
    pid = int(ask(pool, "os.getpid()"))
    os.kill(pid, signal.SIGKILL)
    for worker in pool._workers:
        assert worker._has_ended(20)
    assert int(ask(pool, "os.getpid()")) != pid


def test_a_server_that_was_killed_is_replaced(pool: WorkerPool) -> None:
    server, worker = eval(ask(pool, "(os.getppid(), os.getpid())"))
    os.kill(server, signal.SIGKILL)
    assert pool._server is not None
    pool._server.process.wait()
    others = eval(ask(pool, "(os.getppid(), os.getpid())"))
    assert not {server, worker, os.getpid()} & {*others}
    assert has_ended(worker)


def test_a_server_is_killed_while_a_worker_is_busy(pool: WorkerPool) -> None:
    assert ask(pool, "os.kill(os.getppid(), 9) or time.sleep(0.1) or 'done'") == "done"
    with pytest.raises(DeviceError, match="by signal 9: it said nothing"):
        ask(pool, "os.kill(os.getppid(), 9) or os._exit(0)")


def test_threads_share_a_few_workers() -> None:
    pool = pool_of(most=2)
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(pool, "time.sleep(0.1) or os.getpid()"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 6 and len(set(answers)) == 2
    assert len(pool._workers) == len(pool._idle) == 2
    pool.close()


def test_what_libraries_print_is_no_answer(pool: WorkerPool) -> None:
    assert ask(pool, "os.write(1, b'noise') and os.write(2, b'noise')") == "5"


def test_a_worker_without_requests_ends() -> None:
    pool = pool_of("processes._IDLE_S = 0.2")
    pid = int(ask(pool, "os.getpid()"))
    (worker,) = pool._workers
    assert worker._has_ended(20)
    assert int(ask(pool, "os.getpid()")) != pid
    pool.close()


def test_workers_of_a_server_with_threads() -> None:
    """Python warns of forks in a process with threads."""
    pool = pool_of("threading.Thread(target=time.sleep, args=(100,), daemon=True).start()\nimport warnings; warnings.simplefilter('error')")
    assert ask(pool, "threading.active_count()") == "1"
    pool.close()


def test_a_server_that_cannot_start() -> None:
    pool = WorkerPool(("-c", "raise SystemExit('no such module')"), 1)
    for _ in range(2):
        with pytest.raises(DeviceError, match="with status 1: no such module"):
            pool.ask([])
    pool.close()


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        for _ in range(2):
            with pytest.raises(DeviceError, match="no process that compiles shaders can be started"):
                pool.ask([])
    assert ask(pool, "1") == "1"
    pool.close()


def test_processes_leave_no_files_open() -> None:
    before = os.listdir("/proc/self/fd")
    pool = pool_of(most=2)
    for expression in ("1", "os.abort()", "2"):
        with contextlib.suppress(DeviceError):
            ask(pool, expression)
    pool.close()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_worker_has_no_files_of_others() -> None:
    """Its socket, its messages three times and once by its own name, and the pipe that ends with it; one lists the folder."""
    pool = pool_of(most=2)
    threads = [threading.Thread(target=ask, args=(pool, "time.sleep(0.2)")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = {ask(pool, "(os.getpid(), len(os.listdir('/proc/self/fd')))") for _ in range(2)}
    assert {eval(count)[1] for count in counts} == {7}
    pool.close()


# preparation


def test_prepared_workers() -> None:
    pool = pool_of(most=3)
    for _ in range(2):
        pool.prepare()
        assert len(pool._workers) == len(pool._idle) == 3
    workers = {*pool._workers}
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(pool, "time.sleep(0.2) or os.getpid()"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(answers)) == 3 and pool._workers == workers
    pool.close()


def test_preparing_what_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool(("-c", "raise SystemExit('no such module')"), 1)
    pool.prepare()
    with pytest.raises(DeviceError, match="with status 1: no such module"):
        pool.ask([])
    pool.close()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        pool.prepare()
    assert not pool._workers


# ends


def test_closing_ends_requests() -> None:
    pool = pool_of()
    errors: list[str] = []

    def wait() -> None:
        try:
            ask(pool, "time.sleep(100)")
        except DeviceError as error:
            errors.append(error.message)

    ask(pool, "1")
    thread = threading.Thread(target=wait)
    thread.start()
    while pool._idle:
        time.sleep(0.01)
    pool.close()
    thread.join()
    assert "by signal 9" in errors[0]
    assert not pool._workers


def test_an_interrupted_request_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of()
    with monkeypatch.context() as patch:
        patch.setattr(processes, "receive", lambda stream: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ask(pool, "'another'")
    assert ask(pool, "'mine'") == "mine"
    pool.close()


def test_an_interrupted_worker_ends(pool: WorkerPool, tmp_path: Path) -> None:
    ask(pool, "1")
    interrupt = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        ask(pool, f"[open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())), time.sleep(100)]")
    assert has_ended(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("place", ["_take", "_start", "_give_back"])
def test_ctrl_c_between_requests_loses_no_worker(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It arrives when a worker was taken, when one was started, and when one was given back."""
    pool, inner = pool_of(), getattr(WorkerPool, place)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        result = inner(*arguments, **options)
        signal.raise_signal(signal.SIGINT)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(WorkerPool, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask(pool, "1")
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(ask(pool, "2")), daemon=True)
    thread.start()
    thread.join(60)
    assert answers == ["2"]
    assert len(pool._workers) == len(pool._idle) == 1
    pool.close()


def test_ctrl_c_ends_a_wait_for_a_worker() -> None:
    pool = pool_of()

    def wait() -> None:
        with contextlib.suppress(DeviceError):
            ask(pool, "time.sleep(100)")

    thread = threading.Thread(target=wait)
    thread.start()
    while not pool._workers:
        time.sleep(0.01)
    interrupt = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        ask(pool, "1")
    pool.close()
    thread.join()


SCRIPT = """
import contextlib, os, sys, threading
from tests.targets.nvidia.test_processes import DeviceError, ask, pool_of
pool = pool_of(most=2)
server, worker = eval(ask(pool, "(os.getppid(), os.getpid())"))
print(server, worker, flush=True)
{}
"""

#: A worker that is busy when the process ends.
BUSY = """
def wait():
    with contextlib.suppress(DeviceError):
        ask(pool, "time.sleep(100)")
threading.Thread(target=wait, daemon=True).start()
while pool._idle:
    pass
"""


@pytest.mark.parametrize("busy", ["", BUSY], ids=["idle", "busy"])
@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)", "sys.exit(3)"], ids=["end", "kill", "exit"])
def test_processes_end_with_their_parent(busy: str, end: str) -> None:
    result = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT.format(busy + end)], capture_output=True, text=True)
    assert not result.stderr
    assert all(has_ended(int(pid)) for pid in result.stdout.split())


FORK = """
child = os.fork()
if not child:
    assert not pool._workers
    assert worker != int(ask(pool, "os.getpid()"))
    pool.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert int(ask(pool, "os.getpid()")) == worker and len(pool._workers) == 1
"""


def test_forked_processes_have_workers_of_their_own() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT.format(FORK)], capture_output=True, text=True)
    assert not result.returncode, result.stderr
    assert not result.stderr


def test_a_fork_does_not_keep_processes() -> None:
    """The fork lives on when the process that started them is killed."""
    fork = """
child = os.fork()
if not child:
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), 9)
"""
    with subprocess.Popen([sys.executable, "-c", SCRIPT.format(fork)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = process.stdout.readline().split()
        assert all(has_ended(int(pid)) for pid in pids)

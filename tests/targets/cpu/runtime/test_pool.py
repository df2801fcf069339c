"""Tasks shared out to threads: each is done once, whoever does it."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from volta_fn.runtime.llvm.machine import compile_object, load_object
from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.targets.cpu.routine import SignalWord
from volta_fn.targets.cpu.runtime.executor import Workers, write_pool


def pool_and_task() -> tuple[list[int], list[int]]:
    """Return a pool of its own (share, work, reset), a slow routine, and two handlers of signals.

    The routine adds 1 to the int64 with the task's number. The first handler does nothing, the second says that the program is to end.
    """
    module = Module()
    write_pool(module)
    buffers, begin, end = Value("ptr", "%buffers"), Value("i64", "%begin"), Value("i64", "%end")
    f = Function(module, "task", [buffers, begin, end])
    counts = f.load("ptr", buffers, 8)

    def count(i: Value, _: list[Value]) -> None:
        place = f.at(counts, "i64", i)
        spent = f.loop(i64(0), i64(100), 1, [i64(0)], lambda k, c: [f.let("i64", f"xor {c[0]}, {k.name}")])[0]
        once = f.binary("or", f.binary("and", spent, i64(0)), i64(1))
        f.store(f.binary("add", f.load("i64", place, 8), once), place, 8)

    f.loop(begin, end, 1, [], count)
    f.finish()
    signals = Value("ptr", "%signals")
    f = Function(module, "nothing", [signals], "i64")
    f.finish(i64(0))
    f = Function(module, "ends", [signals], "i64")
    f.do(f"store atomic i64 -3, {f.at(signals, 'i64', i64(SignalWord.STATUS))} monotonic, align 8")
    f.finish(i64(-3))
    *pool, task, nothing, ends = load_object(compile_object(str(module)), ["share", "work", "reset", "task", "nothing", "ends"])
    return pool, [task, nothing, ends]


#: ``share(function, buffers, tasks, wakes)``
SHARE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool)


class Buffers:
    """The pointers of a launch whose only buffer is `counts`."""

    def __init__(self, counts: np.ndarray, handle: int) -> None:
        self.signals = np.array([handle, *[0] * (len(SignalWord) - 1)], np.int64)
        self.words = np.array([self.signals.ctypes.data, counts.ctypes.data], np.int64)
        self.address = self.words[1:].ctypes.data


@pytest.mark.parametrize("tasks, threads", [(0, 4), (1, 4), (7, 4), (10_000, 4), (10_000, 70)])
def test_each_task_is_done_once(tasks: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by more threads than there are parts."""
    monkeypatch.setenv("VOLTA_NUM_THREADS", str(threads))
    (share_address, work, reset), (task, nothing, _) = pool_and_task()
    workers = Workers(work, reset)
    share = SHARE(share_address)

    def many(rounds: int) -> None:
        counts = np.zeros(max(tasks, 1), np.int64)
        buffers = Buffers(counts, nothing)
        for number in range(rounds):
            share(task, buffers.address, tasks, number % 4 == 0)
        assert (counts[:tasks] == rounds).all()

    callers = [threading.Thread(target=many, args=(50,)) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    many(50)
    assert workers is not None


def test_no_task_begins_when_a_handler_has_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the thread that has the pool, nor in those that find it taken."""
    monkeypatch.setenv("VOLTA_NUM_THREADS", "1")
    (share_address, work, reset), (task, _, ends) = pool_and_task()
    workers = Workers(work, reset)
    share = SHARE(share_address)

    def launch() -> None:
        for _ in range(1000):
            counts = np.zeros(8, np.int64)
            buffers = Buffers(counts, ends)
            share(task, buffers.address, counts.size, True)
            assert counts.tolist() == [1, 0, 0, 0, 0, 0, 0, 0]

    with ThreadPoolExecutor(3) as threads:
        for outcome in [threads.submit(launch) for _ in range(3)]:
            outcome.result()
    assert workers is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")  # JAX, where another test has imported it
@pytest.mark.parametrize("call", [1, 5])
def test_a_handler_may_fork_between_tasks(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first task, too; the child, whose pool is new, ends the launch."""
    monkeypatch.setenv("VOLTA_NUM_THREADS", "1")
    (share_address, work, reset), (task, _, _) = pool_and_task()
    workers = Workers(work, reset)
    children: list[int] = []
    calls = itertools.count(1)

    @ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
    def fork(_: int) -> int:
        if next(calls) == call:
            children.append(os.fork())
        return 0

    counts = np.zeros(8, np.int64)
    address = ctypes.cast(fork, ctypes.c_void_p).value
    assert address is not None
    buffers = Buffers(counts, address)
    SHARE(share_address)(task, buffers.address, counts.size, True)
    if children == [0]:
        os._exit(0 if (counts >= 1).all() else 1)
    assert counts.tolist() == [1] * 8
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    assert workers is not None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say on which CPU a thread may run")
def test_workers_wake_up_beside_who_wakes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the same CPU, where there is another; on the one that was forbidden before, when the caller has left it.

    A launch that is not to wake them leaves them asleep.
    """
    monkeypatch.setenv("VOLTA_NUM_THREADS", "3")
    threads_before = threads_of_process()
    (share_address, work, reset), (task, nothing, _) = pool_and_task()
    workers = Workers(work, reset)
    share = SHARE(share_address)
    counts = np.zeros(8, np.int64)
    buffers = Buffers(counts, nothing)
    allowed = os.sched_getaffinity(0)
    try:
        time.sleep(0.1)
        share(task, buffers.address, len(counts), False)
        assert (counts == 1).all()
        assert [os.sched_getaffinity(thread) for thread in threads_of_process() - threads_before] == [allowed] * 2
        for cpu in sorted(allowed)[:2]:
            os.sched_setaffinity(0, {cpu})
            deadline = time.monotonic() + 30
            while True:
                time.sleep(0.002)  # by then, workers sleep, unless the machine is busy
                share(task, buffers.address, len(counts), True)
                results = [os.sched_getaffinity(thread) for thread in threads_of_process() - threads_before]
                if results == [allowed - {cpu} or allowed] * 2:
                    break
                assert time.monotonic() < deadline, (cpu, results)
    finally:
        os.sched_setaffinity(0, allowed)
    assert workers is not None


def threads_of_process() -> set[int]:
    """Return the system's numbers of this process's threads."""
    return {int(name) for name in os.listdir("/proc/self/task")}


ASK_AT_ONCE = """
import threading
from volta_fn.targets.cpu.runtime.executor import support_code_of_process

found, start = [], threading.Barrier(8)

def ask():
    start.wait()
    found.append(support_code_of_process())

threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 8 and all(m is found[0] for m in found)
"""


def test_threads_that_ask_at_once_get_one_pool() -> None:
    subprocess.run([sys.executable, "-c", ASK_AT_ONCE], check=True)

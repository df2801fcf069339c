"""Threads that do the tasks of a routine's phase together with the thread that runs the program.

The pool is one record of machine words shared by all. A thread with a phase to run takes the pool if it is free (else it does the tasks
alone), announces the phase, and takes tasks until none is left; *workers* see the announcement and take tasks too. Workers wait for
the next phase in a short busy loop, as it often comes within microseconds, and then go to sleep.

A worker says that it is busy before it looks whether a phase is open; the announcer closes the phase before it looks whether a worker is
busy. So no worker works on a phase whose announcer has gone on.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

from volta_fn.backends.native.llvm.host import host
from volta_fn.backends.native.llvm.text import Function, Module, Value, i64
from volta_fn.errors import ArgumentError

#: Words of the pool's record, a cache line (8 words) apart where different threads write to them.
_TAKEN, _FUNCTION, _BUFFERS, _TASKS, _OPEN, _ROUND, _NEXT, _BUSY, _SLEEPERS, _MUTEX, _CONDITION = 0, 8, 9, 10, 16, 24, 32, 40, 48, 56, 72
_WORDS = 96
#: Turns of the busy loop (each some 40 ns) before a worker goes to sleep.
_SPINS = 1000

_PTR = "ptr"


def write_pool(module: Module) -> None:
    """Add ``@share(function, buffers, tasks)``, which does a phase's tasks, and ``@work()``, which a worker runs for ever."""
    module.declare("pool", f"@pool = internal global [{_WORDS} x i64] zeroinitializer, align 64")
    for name in ("mutex_lock", "mutex_unlock", "cond_broadcast"):
        module.declare(name, f"declare i32 @pthread_{name}(ptr)")
    module.declare("cond_wait", "declare i32 @pthread_cond_wait(ptr, ptr)")
    module.declare("init", "declare i32 @pthread_mutex_init(ptr, ptr)\ndeclare i32 @pthread_cond_init(ptr, ptr)")
    _write_take(module)
    _write_share(module)
    _write_work(module)
    _write_reset(module)


def _word(number: int) -> Value:
    return Value(_PTR, f"getelementptr (i64, ptr @pool, i64 {number})")


def _read(f: Function, number: int) -> Value:
    return f.let("i64", f"load atomic i64, {_word(number)} seq_cst, align 8")


def _write(f: Function, number: int, value: Value) -> None:
    f.do(f"store atomic {value}, {_word(number)} seq_cst, align 8")


def _add(f: Function, number: int, value: int) -> Value:
    """The word's value before the addition."""
    return f.let("i64", f"atomicrmw add {_word(number)}, i64 {value} seq_cst")


def _pause(f: Function) -> None:
    if host().triple.startswith("x86_64"):
        f.module.declare("llvm.x86.sse2.pause", "declare void @llvm.x86.sse2.pause()")
        f.run("llvm.x86.sse2.pause")


def _repeat(f: Function, turn: Callable[[], Value]) -> None:
    """``while turn(): pass``, where a turn gives an i1."""
    head, done = f.fresh("again"), f.fresh("over")
    f.do(f"br label %{head}")
    f.label(head)
    more = turn()
    f.do(f"br {more}, label %{head}, label %{done}")
    f.label(done)


def _write_take(module: Module) -> None:
    """``@take()``: do tasks of the announced phase, one at a time, until none is left."""
    f = Function(module, "take", [], attributes="nounwind")
    function = f.load(_PTR, _word(_FUNCTION), 8)
    buffers = f.load(_PTR, _word(_BUFFERS), 8)
    tasks = f.load("i64", _word(_TASKS), 8)

    def turn() -> Value:
        begin = _add(f, _NEXT, 1)
        some = f.compare("icmp slt", begin, tasks)

        def work() -> None:
            end = f.binary("add", begin, i64(1))
            f.do(f"call void {function.name}({buffers}, {begin}, {end})")

        f.branch(some, work)
        return some

    _repeat(f, turn)
    f.finish()


def _write_share(module: Module) -> None:
    function, buffers, tasks = Value(_PTR, "%function"), Value(_PTR, "%buffers"), Value("i64", "%tasks")
    f = Function(module, "share", [function, buffers, tasks])
    pair = f.let("{ i64, i1 }", f"cmpxchg {_word(_TAKEN)}, i64 0, i64 1 seq_cst seq_cst")
    free = f.let("i1", f"extractvalue {pair}, 1")

    def together() -> None:
        f.store(function, _word(_FUNCTION), 8)
        f.store(buffers, _word(_BUFFERS), 8)
        f.store(tasks, _word(_TASKS), 8)
        _write(f, _NEXT, i64(0))
        _write(f, _OPEN, i64(1))
        _add(f, _ROUND, 1)
        asleep = f.compare("icmp sgt", _read(f, _SLEEPERS), i64(0))
        f.branch(asleep, wake)
        f.run("take")
        _write(f, _OPEN, i64(0))

        def wait() -> Value:
            _pause(f)
            return f.compare("icmp sgt", _read(f, _BUSY), i64(0))

        _repeat(f, wait)
        _write(f, _TAKEN, i64(0))

    def wake() -> None:
        f.call("pthread_mutex_lock", "i32", _word(_MUTEX))
        f.call("pthread_cond_broadcast", "i32", _word(_CONDITION))
        f.call("pthread_mutex_unlock", "i32", _word(_MUTEX))

    def alone() -> None:
        f.do(f"call void {function.name}({buffers}, i64 0, {tasks})")

    f.branch(free, together, alone)
    f.finish()


def _write_work(module: Module) -> None:
    f = Function(module, "work", [])
    seen = f.alloca("i64", align=8)
    f.store(i64(0), seen, 8)

    def turn() -> Value:
        last = f.load("i64", seen, 8)
        spins = f.alloca("i64", align=8)
        f.store(i64(0), spins, 8)

        def spin() -> Value:
            _pause(f)
            count = f.binary("add", f.load("i64", spins, 8), i64(1))
            f.store(count, spins, 8)
            same = f.compare("icmp eq", _read(f, _ROUND), last)
            return f.binary("and", same, f.compare("icmp slt", count, i64(_SPINS)))

        _repeat(f, spin)

        def sleep() -> None:
            f.call("pthread_mutex_lock", "i32", _word(_MUTEX))
            _add(f, _SLEEPERS, 1)
            # The announcer counts the round before it looks for sleepers, and a sleeper counts itself before it looks at the round.
            still = f.compare("icmp eq", _read(f, _ROUND), last)

            def wait() -> None:
                f.call("pthread_cond_wait", "i32", _word(_CONDITION), _word(_MUTEX))

            f.branch(still, wait)
            _add(f, _SLEEPERS, -1)
            f.call("pthread_mutex_unlock", "i32", _word(_MUTEX))

        f.branch(f.compare("icmp eq", _read(f, _ROUND), last), sleep)
        f.store(_read(f, _ROUND), seen, 8)
        _add(f, _BUSY, 1)

        def help_() -> None:
            f.run("take")

        f.branch(f.compare("icmp eq", _read(f, _OPEN), i64(1)), help_)
        _add(f, _BUSY, -1)
        return Value("i1", "true")

    _repeat(f, turn)
    f.finish()


def _write_reset(module: Module) -> None:
    """``@reset()``: the pool as it is before there are workers."""
    f = Function(module, "reset", [])
    f.module.declare("llvm.memset.p0.i64", "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    f.run("llvm.memset.p0.i64", Value(_PTR, "@pool"), Value("i8", "0"), i64(8 * _WORDS), Value("i1", "false"))
    f.call("pthread_mutex_init", "i32", _word(_MUTEX), Value(_PTR, "null"))
    f.call("pthread_cond_init", "i32", _word(_CONDITION), Value(_PTR, "null"))
    f.finish()


def thread_count() -> int:
    """How many threads a program may use: VOLTA_NUM_THREADS, else the number of CPUs that the process may run on."""
    wanted = os.environ.get("VOLTA_NUM_THREADS")
    if wanted is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not wanted.isdigit() or int(wanted) < 1:
        raise ArgumentError(f"VOLTA_NUM_THREADS is {wanted!r}; give a number of threads, at least 1")
    return int(wanted)


class Workers:
    """The pool's threads, started anew in a forked child, which has none of its parent's."""

    def __init__(self, work: int, reset: int) -> None:
        self._work = ctypes.CFUNCTYPE(None)(work)
        self._reset = ctypes.CFUNCTYPE(None)(reset)
        self.start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.start)

    def start(self) -> None:
        """Begin with an empty pool and as many workers as there are threads to use besides the caller's."""
        self._reset()
        self.add(thread_count() - 1)

    def add(self, count: int) -> None:
        """Begin so many more workers."""
        for _ in range(count):
            threading.Thread(target=self._work, name="volta_fn worker", daemon=True).start()

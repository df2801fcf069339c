"""The thread pool: workers that share a launch's tasks with the calling thread.

The pool is one record of machine words shared by all. A thread with a launch takes the pool if it is free (else it does the tasks
alone), announces the launch, and takes tasks until none is left; *workers* see the announcement and take tasks too. Workers wait for
the next launch in a short busy loop, as it often comes within microseconds, and then go to sleep.

Each thread has a contiguous chunk of the tasks, and helps with the others' when its own are done. So each core reads a range of memory
sequentially, and the same one in the next call. Tasks handed out one by one to whoever comes first took up to twice as long
where they do little more than read: what a core has prefetched at a task's end, or has cached from the call before, was the other's.

A worker says that it is busy before it looks whether a launch is open; the announcer closes the launch before it looks whether a worker is
busy. So no worker works on a launch whose announcer has gone on.

The thread with a launch handles signals between tasks. No task begins after a handler has raised.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

from volta_fn.runtime.internals import system
from volta_fn.runtime.internals.threads import reset_affinity, write_affinity
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.runtime.threads import thread_count
from volta_fn.targets.cpu.routine import handle_signals, signal_status, signals_of

#: Words of the pool's record, in separate cache lines (8 words) where different threads write to them.
_TAKEN, _FUNCTION, _BUFFERS, _TASKS, _CHUNKS, _OPEN, _ROUND, _BUSY = 0, 8, 9, 10, 11, 16, 24, 32
_SLEEPERS, _MUTEX, _CONDITION, _WORKERS = 40, 48, 64, 88
#: The next task of each chunk, and the most chunks that there are.
_NEXT, _MOST_CHUNKS = 96, 64
_WORDS = _NEXT + 8 * _MOST_CHUNKS
#: Iterations of the busy loop (some 25 to 40 ns each) before a worker sleeps: longer than from one call to the next, or a short launch
#: that is not shared, since waking it takes as long as a small product.
_SPINS = 4000

_PTR = "ptr"


def write_pool(module: Module) -> None:
    """Define ``@share(function, buffers, tasks)`` and a worker's endless ``@work()``."""
    module.declare("pool", f"@pool = internal global [{_WORDS} x i64] zeroinitializer, align 64")
    write_affinity(module)
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
    """Emit an atomic addition and return the word's value before."""
    return f.let("i64", f"atomicrmw add {_word(number)}, i64 {value} seq_cst")


def _pause(f: Function) -> None:
    if host().triple.startswith("x86_64"):
        f.module.declare("llvm.x86.sse2.pause", "declare void @llvm.x86.sse2.pause()")
        f.run("llvm.x86.sse2.pause")


def _repeat(f: Function, iteration: Callable[[], Value]) -> None:
    """Emit ``while iteration(): pass``, where an iteration gives an i1."""
    head, done = f.fresh("again"), f.fresh("over")
    f.do(f"br label %{head}")
    f.label(head)
    more = iteration()
    f.do(f"br {more}, label %{head}, label %{done}")
    f.label(done)


def _next_of(f: Function, chunk: Value) -> Value:
    """Emit the address of the number of a chunk's next task."""
    return f.at(_word(_NEXT), "i64", f.binary("shl", chunk, i64(3)))


def _start_of(f: Function, chunk: Value, tasks: Value, chunks: Value) -> Value:
    """Emit the first task of a chunk."""
    return f.binary("udiv", f.binary("mul", chunk, tasks), chunks)


def _write_take(module: Module) -> None:
    """Define ``@take(mine)``: do tasks one at a time, first those of the chunk `mine`.

    Chunk 0 is that of the thread with the launch, which handles signals.
    """
    mine = Value("i64", "%mine")
    f = Function(module, "take", [mine], attributes="nounwind")
    function = f.load(_PTR, _word(_FUNCTION), 8)
    buffers = f.load(_PTR, _word(_BUFFERS), 8)
    signals, announces = signals_of(f, buffers), f.compare("icmp eq", mine, i64(0))
    tasks, chunks = f.load("i64", _word(_TASKS), 8), f.load("i64", _word(_CHUNKS), 8)

    def chunk(iteration: Value, _: list[Value]) -> list[Value]:
        number = f.binary("urem", f.binary("add", mine, iteration), chunks)
        stop, next_task = _start_of(f, f.binary("add", number, i64(1)), tasks, chunks), _next_of(f, number)

        def take_task() -> Value:
            begin = f.let("i64", f"atomicrmw add {next_task}, i64 1 seq_cst")
            some = f.compare("icmp slt", begin, stop)
            some = f.binary("and", some, f.compare("icmp eq", signal_status(f, signals), i64(0)))

            def run_task() -> None:
                f.do(f"call void {function.name}({buffers}, {begin}, {f.binary('add', begin, i64(1))})")
                f.branch(announces, lambda: [handle_signals(f, signals)], lambda: [i64(0)])

            f.branch(some, run_task)
            return some

        _repeat(f, take_task)
        return []

    f.loop(i64(0), chunks, 1, [], chunk, nonempty=True)
    f.finish()


def _write_share(module: Module) -> None:
    function, buffers, tasks = Value(_PTR, "%function"), Value(_PTR, "%buffers"), Value("i64", "%tasks")
    f = Function(module, "share", [function, buffers, tasks])
    pair = f.let("{ i64, i1 }", f"cmpxchg {_word(_TAKEN)}, i64 0, i64 1 seq_cst seq_cst")
    free = f.let("i1", f"extractvalue {pair}, 1")

    def together() -> None:
        _announce(f, function, buffers, tasks)
        f.run("take", i64(0))
        _write(f, _OPEN, i64(0))

        def wait() -> Value:
            _pause(f)
            return f.compare("icmp sgt", _read(f, _BUSY), i64(0))

        _repeat(f, wait)
        _write(f, _TAKEN, i64(0))

    def alone() -> None:
        signals, task = signals_of(f, buffers), f.alloca("i64", align=8)
        f.store(i64(0), task, 8)

        def run_task() -> Value:
            begin = f.load("i64", task, 8)
            end = f.binary("add", begin, i64(1))
            f.do(f"call void {function.name}({buffers}, {begin}, {end})")
            f.store(end, task, 8)
            good = f.compare("icmp eq", handle_signals(f, signals), i64(0))
            return f.binary("and", good, f.compare("icmp slt", end, tasks))

        f.branch(f.compare("icmp sgt", tasks, i64(0)), lambda: _repeat(f, run_task))

    f.branch(free, together, alone)
    f.finish()


def _announce(f: Function, function: Value, buffers: Value, tasks: Value) -> None:
    """Emit the announcement of a launch in chunks, and wake sleeping workers."""
    f.store(function, _word(_FUNCTION), 8)
    f.store(buffers, _word(_BUFFERS), 8)
    f.store(tasks, _word(_TASKS), 8)
    threads = f.binary("add", _read(f, _WORKERS), i64(1))
    chunks = f.select(f.compare("icmp slt", threads, i64(_MOST_CHUNKS)), threads, i64(_MOST_CHUNKS))
    f.store(chunks, _word(_CHUNKS), 8)

    def begin(chunk: Value, _: list[Value]) -> list[Value]:
        f.store(_start_of(f, chunk, tasks, chunks), _next_of(f, chunk), 8)
        return []

    f.loop(i64(0), chunks, 1, [], begin, nonempty=True)
    _write(f, _OPEN, i64(1))
    _add(f, _ROUND, 1)

    def wake() -> None:
        f.run("exclude_current_cpu")
        system.lock(f, _word(_MUTEX))
        system.wake_all(f, _word(_CONDITION))
        system.unlock(f, _word(_MUTEX))

    f.branch(f.compare("icmp sgt", _read(f, _SLEEPERS), i64(0)), wake)


def _write_work(module: Module) -> None:
    f = Function(module, "work", [])
    f.run("register_worker")
    seen = f.alloca("i64", align=8)
    f.store(i64(0), seen, 8)
    mine = f.binary("add", _add(f, _WORKERS, 1), i64(1))

    def iteration() -> Value:
        last = f.load("i64", seen, 8)
        _spin(f, last)
        f.branch(f.compare("icmp eq", _read(f, _ROUND), last), lambda: _sleep(f, last))
        f.store(_read(f, _ROUND), seen, 8)
        _add(f, _BUSY, 1)

        def help_() -> None:
            f.run("take", mine)

        f.branch(f.compare("icmp eq", _read(f, _OPEN), i64(1)), help_)
        _add(f, _BUSY, -1)
        return Value("i1", "true")

    _repeat(f, iteration)
    f.finish()


def _spin(f: Function, last: Value) -> None:
    """Emit a busy wait, for a while, for a round after the last one."""
    spins = f.alloca("i64", align=8)
    f.store(i64(0), spins, 8)

    def spin() -> Value:
        _pause(f)
        count = f.binary("add", f.load("i64", spins, 8), i64(1))
        f.store(count, spins, 8)
        same = f.compare("icmp eq", _read(f, _ROUND), last)
        return f.binary("and", same, f.compare("icmp slt", count, i64(_SPINS)))

    _repeat(f, spin)


def _sleep(f: Function, last: Value) -> None:
    """Emit a sleep until there may be another round than the last one."""
    system.lock(f, _word(_MUTEX))
    _add(f, _SLEEPERS, 1)
    # The announcer counts the round before it looks for sleepers, and a sleeper counts itself before it looks at the round.
    still = f.compare("icmp eq", _read(f, _ROUND), last)

    f.branch(still, lambda: system.wait(f, _word(_CONDITION), _word(_MUTEX)))
    _add(f, _SLEEPERS, -1)
    system.unlock(f, _word(_MUTEX))


def _write_reset(module: Module) -> None:
    """Define ``@reset()``: the pool before there are workers."""
    f = Function(module, "reset", [])
    f.module.declare("llvm.memset.p0.i64", "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    f.run("llvm.memset.p0.i64", Value(_PTR, "@pool"), Value("i8", "0"), i64(8 * _WORDS), Value("i1", "false"))
    reset_affinity(f)
    system.initialize_lock(f, _word(_MUTEX), _word(_CONDITION))
    f.finish()


class Workers:
    """The pool's threads, started anew in a forked child, which inherits none."""

    def __init__(self, work: int, reset: int) -> None:
        self._work = ctypes.CFUNCTYPE(None)(work)
        self._reset = ctypes.CFUNCTYPE(None)(reset)
        self.start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.start)

    def start(self) -> None:
        """Reset the pool and start the workers: one thread fewer than there may be."""
        self._reset()
        self.add(thread_count() - 1)

    def add(self, count: int) -> None:
        """Start `count` more workers."""
        for _ in range(count):
            threading.Thread(target=self._work, name="volta_fn worker", daemon=True).start()

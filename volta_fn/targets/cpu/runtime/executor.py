"""The executor: machine code that runs a program's commands, and its threads."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from enum import IntEnum, IntFlag
from typing import NamedTuple

from volta_fn.runtime import system
from volta_fn.runtime.fastcall import Addresses, CtypesEntry, FastcallEntry, Status, make_entry, write_entry_points
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.machine import compile_object, load_object
from volta_fn.runtime.llvm.text import Function, Module, Value, greatest, i64, least
from volta_fn.runtime.native_calls import reset_affinity, write_affinity
from volta_fn.runtime.result_allocator import FUNCTIONS, Empty, make_empty, write_blocks
from volta_fn.runtime.threads import thread_count
from volta_fn.targets.cpu.routine import MOST_ARRAYS, SignalWord, handle_signals, signal_status, signals_of
from volta_fn.targets.cpu.runtime import artifact

# The thread pool.
#
# The pool is one record of machine words shared by all. A thread with a launch takes the pool if it is free (else it does the tasks alone),
# announces the launch, and takes tasks until none is left; *workers* see the announcement and take tasks too. Workers wait for the next
# launch in a short busy loop, as it often comes within microseconds, and then go to sleep.
#
# Each thread has a contiguous chunk of the tasks, and helps with the others' when its own are done. So each core reads a range of memory
# sequentially, and the same one in the next call. Tasks handed out one by one to whoever comes first took up to twice as long where they do
# little more than read: what a core has prefetched at a task's end, or has cached from the call before, was the other's.
#
# One word, the *state*, has the launch's number, whether it is open, and how many workers are on it. A worker joins by adding itself to a
# state that is open; the announcer closes the launch, and goes on when no worker is on it. So none works on a launch that has ended.
#
# Where cores have caches of their own, a word that another core has written takes 100 to 200 ns to arrive, and a launch may take a few µs.
# So the launch is described beside the state, in one cache line; a worker fetches what it needs next while it joins; and the announcer
# begins its first task at once, by plain stores, without waiting until others have seen them.
#
# The thread with a launch handles signals between tasks. No task begins after a handler has raised.

#: Words of the pool's record, in separate cache lines (8 words) where different threads write to them.
_STATE, _FUNCTION, _BUFFERS, _TASKS, _CHUNKS = 0, 1, 2, 3, 4
_TAKEN, _SLEEPERS, _WORKERS, _MUTEX, _CONDITION = 8, 16, 17, 24, 40
#: The next task of each chunk, and the most chunks that there are.
_NEXT, _MOST_CHUNKS = 64, 64
_WORDS = _NEXT + 8 * _MOST_CHUNKS
#: Parts of the state: the workers on the launch, whether it is open, and from there on its number.
_BUSY_MASK, _OPEN, _ROUND = (1 << 20) - 1, 1 << 20, 1 << 21
#: Iterations of the busy loop (some 25 to 40 ns each) before a worker sleeps: longer than from one call to the next, or a short launch
#: that is not shared, since waking it takes as long as a small product.
_SPINS = 4000

_PTR = "ptr"


def write_pool(module: Module) -> None:
    """Define ``@share(…)`` and a worker's endless ``@work()``."""
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
    """Emit an atomic store, which other threads see after all stores before it."""
    f.do(f"store atomic {value}, {_word(number)} release, align 8")


def _add(f: Function, number: int, value: int) -> Value:
    """Emit an atomic addition and return the word's value before."""
    return f.let("i64", f"atomicrmw add {_word(number)}, i64 {value} seq_cst")


def _swap_if_equal(f: Function, number: int, old: Value, new: Value) -> Value:
    """Emit the exchange of a word that has the value `old`, and whether it had."""
    pair = f.let("{ i64, i1 }", f"cmpxchg {_word(number)}, {old}, {new} seq_cst seq_cst")
    return f.let("i1", f"extractvalue {pair}, 1")


def _prefetch(f: Function, pointer: Value, writes: bool) -> None:
    f.module.declare("llvm.prefetch.p0", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    f.run("llvm.prefetch.p0", pointer, Value("i32", str(int(writes))), Value("i32", "3"), Value("i32", "1"))


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
    """Define ``@take(mine, function, buffers, tasks, chunks)``.

    It does tasks one at a time, first those of the chunk `mine`. Chunk 0 is that of the thread with the launch, which has done task 0 and
    handles signals. A handler may fork, and the child resets the pool, so that thread passes its own launch rather than read it there.
    """
    mine, function, buffers, tasks, chunks = parameters = [
        Value(type_, f"%{name}")
        for type_, name in (("i64", "mine"), (_PTR, "function"), (_PTR, "buffers"), ("i64", "tasks"), ("i64", "chunks"))
    ]
    f = Function(module, "take", parameters, attributes="nounwind")
    signals, announces = signals_of(f, buffers), f.compare("icmp eq", mine, i64(0))

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
    """Define ``@share(function, buffers, tasks, wakes)``, which does a launch's tasks.

    Other threads help if the pool is free.
    """
    function, buffers, tasks, wakes = Value(_PTR, "%function"), Value(_PTR, "%buffers"), Value("i64", "%tasks"), Value("i1", "%wakes")
    f = Function(module, "share", [function, buffers, tasks, wakes])
    signals = signals_of(f, buffers)

    def run_task(begin: Value) -> Value:
        """Emit a task, and whether the program goes on."""
        f.do(f"call void {function.name}({buffers}, {begin}, {f.binary('add', begin, i64(1))})")
        return f.compare("icmp eq", handle_signals(f, signals), i64(0))

    def together() -> None:
        chunks = _announce(f, function, buffers, tasks, wakes)
        begins = f.binary("and", f.compare("icmp sgt", tasks, i64(0)), f.compare("icmp eq", signal_status(f, signals), i64(0)))
        f.branch(begins, lambda: [run_task(i64(0))], lambda: [Value("i1", "false")])
        f.run("take", i64(0), function, buffers, tasks, chunks)
        f.do(f"atomicrmw and {_word(_STATE)}, i64 {~_OPEN} seq_cst")

        def wait() -> Value:
            _pause(f)
            return f.compare("icmp ne", f.binary("and", _read(f, _STATE), i64(_BUSY_MASK)), i64(0))

        _repeat(f, wait)
        _write(f, _TAKEN, i64(0))

    def alone() -> None:
        task = f.alloca("i64", align=8)
        f.store(i64(0), task, 8)

        def next_task() -> Value:
            begin = f.load("i64", task, 8)
            good = run_task(begin)
            end = f.binary("add", begin, i64(1))
            f.store(end, task, 8)
            return f.binary("and", good, f.compare("icmp slt", end, tasks))

        f.branch(f.compare("icmp sgt", tasks, i64(0)), lambda: _repeat(f, next_task))

    f.branch(_swap_if_equal(f, _TAKEN, i64(0), i64(1)), together, alone)
    f.finish()


def _announce(f: Function, function: Value, buffers: Value, tasks: Value, wakes: Value) -> Value:
    """Emit the announcement of a launch; return its number of chunks.

    It may wake sleeping workers.
    """
    f.store(function, _word(_FUNCTION), 8)
    f.store(buffers, _word(_BUFFERS), 8)
    f.store(tasks, _word(_TASKS), 8)
    threads = least(f, f.binary("add", _read(f, _WORKERS), i64(1)), i64(_MOST_CHUNKS))
    chunks = greatest(f, least(f, threads, tasks), i64(1))  # so that task 0 is of chunk 0
    f.store(chunks, _word(_CHUNKS), 8)

    def begin(chunk: Value, _: list[Value]) -> list[Value]:
        f.store(_start_of(f, chunk, tasks, chunks), _next_of(f, chunk), 8)
        return []

    f.loop(i64(1), chunks, 1, [], begin)
    f.store(i64(1), _word(_NEXT), 8)  # after task 0, which is this thread's
    _write(f, _STATE, f.binary("add", _read(f, _STATE), i64(_ROUND + _OPEN)))

    def wake() -> None:
        f.run("exclude_current_cpu")
        system.lock(f, _word(_MUTEX))
        system.wake_all(f, _word(_CONDITION))
        system.unlock(f, _word(_MUTEX))

    def wake_sleepers() -> None:
        f.do("fence seq_cst")  # a sleeper counts itself before it looks at the state
        f.branch(f.compare("icmp sgt", _read(f, _SLEEPERS), i64(0)), wake)

    f.branch(wakes, wake_sleepers)
    return chunks


def _write_work(module: Module) -> None:
    f = Function(module, "work", [])
    f.run("register_worker")
    last = f.alloca("i64", align=8)
    f.store(i64(0), last, 8)
    mine = f.binary("add", _add(f, _WORKERS, 1), i64(1))

    def iteration() -> Value:
        state = _spin(f, last)

        def join() -> None:
            _prefetch(f, _next_of(f, mine), writes=True)
            _prefetch(f, f.load(_PTR, _word(_BUFFERS), 8), writes=False)

            def help_() -> None:
                f.store(_round_of(f, state), last, 8)
                launch = [f.load(_PTR, _word(_FUNCTION), 8), f.load(_PTR, _word(_BUFFERS), 8)]
                f.run("take", mine, *launch, f.load("i64", _word(_TASKS), 8), f.load("i64", _word(_CHUNKS), 8))
                _add(f, _STATE, -1)

            f.branch(_swap_if_equal(f, _STATE, state, f.binary("add", state, i64(1))), help_)

        f.branch(_is_new(f, state, last), join, lambda: _sleep(f, last))
        return Value("i1", "true")

    _repeat(f, iteration)
    f.finish()


def _round_of(f: Function, state: Value) -> Value:
    """Emit the number of the launch of a state."""
    return f.binary("and", state, i64(-_ROUND))


def _is_new(f: Function, state: Value, last: Value) -> Value:
    """Emit whether a state is that of a new open launch.

    The number of the one before is stored at `last`.
    """
    is_open = f.compare("icmp ne", f.binary("and", state, i64(_OPEN)), i64(0))
    return f.binary("and", is_open, f.compare("icmp ne", _round_of(f, state), f.load("i64", last, 8)))


def _spin(f: Function, last: Value) -> Value:
    """Emit a busy wait for a new launch, for a while; return the state."""
    spins = f.alloca("i64", align=8)
    f.store(i64(0), spins, 8)

    def spin() -> Value:
        _pause(f)
        count = f.binary("add", f.load("i64", spins, 8), i64(1))
        f.store(count, spins, 8)
        f.store(_read(f, _STATE), state, 8)
        waits = f.binary("xor", _is_new(f, f.load("i64", state, 8), last), Value("i1", "true"))
        return f.binary("and", waits, f.compare("icmp slt", count, i64(_SPINS)))

    state = f.alloca("i64", align=8)
    _repeat(f, spin)
    return f.load("i64", state, 8)


def _sleep(f: Function, last: Value) -> None:
    """Emit a sleep until there may be another launch than the last one."""
    system.lock(f, _word(_MUTEX))
    _add(f, _SLEEPERS, 1)

    def sleep() -> None:
        system.wait(f, _word(_CONDITION), _word(_MUTEX))

    f.branch(_is_new(f, _read(f, _STATE), last), lambda: None, sleep)
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


# The runtime's own machine code, compiled with the first program.

_lock = threading.Lock()


class SupportCode(NamedTuple):
    """State shared by all programs of a process.

    Whoever asks for it first (`support_code_of_process`) compiles it and starts the worker threads.
    """

    #: Makes built-ins of programs.
    functions: FastcallEntry | CtypesEntry
    workers: Workers
    #: `numpy.empty` of large arrays.
    large_empty: Empty


def support_code_of_process() -> SupportCode:
    """Return the process's support code, compiled by whichever thread asks first."""
    with _lock:
        return _start_support_code()


@functools.cache
def _start_support_code() -> SupportCode:
    name = artifact.name_of("support code")
    compiled = artifact.read_compiled(name)
    if compiled is None:
        module = Module()
        for write in (write_pool, write_executor, write_entry_points, write_blocks):
            write(module)
        compiled = artifact.Compiled(compile_object(str(module)))
        artifact.write_compiled(name, compiled)
    work, reset, *others = load_object(compiled.code, ["work", "reset", *Addresses._fields, *FUNCTIONS])
    addresses, allocator = Addresses(*others[: len(Addresses._fields)]), others[len(Addresses._fields) :]
    return SupportCode(make_entry(addresses), Workers(work, reset), make_empty(allocator))


# The executor: machine code that runs a program's commands, 64-bit words.
#
# A program works on a *table* of pointers, whose entries are *slots*: the caller's arrays, constants, buffers in the program's own memory
# (the *arena*), and slots whose pointers commands set. Commands follow one another; those that hold others say how many words these take.
#
# ====== ==========================================================================================================================
# RUN    function, tasks, mode, n, slot…: run a launch of a routine, as `Mode` says.
# JOIN   members, tasks, mode, (function, tasks, n, slot…)…: run several launches as one, whose tasks are those of all.
# HOST   function: call ``i64 function(ptr table)``; a result other than 0 ends the program.
# COPY   to, from, bytes: copy memory.
# POINT  to, from: make a slot point to where another does.
# SWAP   a, b: exchange two slots' pointers.
# ROW    to, base, bytes, counter: make a slot point to row number ``counter`` of the array at `base`, rows of so many bytes.
# VIEW   to, base, bytes, index, size, last: make a slot point to the row whose number, clamped to 0…last, is the integer of so many
#        bytes at `index`.
# LOOP   count, counter, first, step, words: run the commands in the next `words` words `count` times; counter is first, first + step, …
# WHILE  slot, words of condition, words of body: run the condition, and while the bool at `slot` is true the body and the condition.
# SWITCH slot, n, words…: of the n bodies that follow, run that whose number (int32, clamped) is at `slot`.
# ====== ==========================================================================================================================
#
# A *counter* is a slot too, which holds a number instead of a pointer.


class Op(IntEnum):
    """The first word of a command."""

    RUN = 0
    HOST = 1
    COPY = 2
    POINT = 3
    SWAP = 4
    ROW = 5
    LOOP = 6
    WHILE = 7
    SWITCH = 8
    VIEW = 9
    JOIN = 10


class Mode(IntFlag):
    """How a launch runs: by itself on the calling thread, unless these say otherwise."""

    #: Other threads that are awake help.
    SHARED = 1
    #: It takes so long that signals are handled after it, and a handler that raised ends the program.
    POLLS = 2
    #: It takes so long that threads are woken to help.
    WAKES = 4


#: The most buffers of a routine: its arrays and a workspace.
MOST_BUFFERS = MOST_ARRAYS + 1
#: The most launches that are run as one, and the most buffers of all.
MOST_JOINED, MOST_JOINED_BUFFERS = 8, 64


_CODE, _END, _TABLE, _SIGNALS = Value("ptr", "%code"), Value("ptr", "%end"), Value("ptr", "%table"), Value("ptr", "%signals")
_OK = i64(Status.OK)
#: Iterations of a loop from one reading of the clock, which costs a few nanoseconds, to the next.
_CLOCK_INTERVAL = 8


def write_executor(module: Module) -> None:
    """Define ``i64 @execute(ptr code, ptr end, ptr table)``, which returns a status.

    The status is 0, that of the host function that ended the program, or `INTERRUPTED`.
    """
    _write_execute(module)
    for op, write in _WRITERS.items():
        _Command(module, op.name.lower(), write).finish()
    _write_commands(module)
    _write_run_joined(module)
    _write_poll_signals(module)


class _Command(Function):
    """The function ``i64 @do_<name>(code, table, after, signals)`` of a command.

    It stores in `after` where the next command is.
    """

    def __init__(self, module: Module, name: str, write: Callable[[_Command], Value]) -> None:
        parameters = [_CODE, _TABLE, Value("ptr", "%after"), _SIGNALS]
        super().__init__(module, f"do_{name}", parameters, "i64", "nounwind")
        self.status = write(self)

    def finish(self, result: Value | None = None) -> None:
        """Return the status."""
        super().finish(result or self.status)

    def word(self, number: int | Value) -> Value:
        """Emit a word of the command."""
        index = i64(number) if isinstance(number, int) else number
        return self.load("i64", self.at(_CODE, "i64", index), 8)

    def slot(self, number: Value) -> Value:
        """Emit the address of a slot."""
        return self.at(_TABLE, "ptr", number)

    def pointer(self, number: Value) -> Value:
        """Emit a slot's pointer."""
        return self.load("ptr", self.slot(number), 8)

    def words(self, start: Value, count: Value) -> tuple[Value, Value]:
        """Emit the start and the end of `count` words of the command."""
        return self.at(_CODE, "i64", start), self.at(_CODE, "i64", self.binary("add", start, count))

    def advance(self, words: int | Value) -> None:
        """Emit the end of the command, after `words` words."""
        count = i64(words) if isinstance(words, int) else words
        self.store(self.at(_CODE, "i64", count), Value("ptr", "%after"), 8)

    def execute(self, start: Value, end: Value) -> Value:
        """Emit the execution of commands, and return their status."""
        return self.call("commands", "i64", start, end, _TABLE, _SIGNALS)

    def if_ok(self, status: Value, more: Callable[[], Value]) -> Value:
        """Emit `more` if the status so far is good, and return its status."""
        good = self.compare("icmp eq", status, _OK)
        return self.branch(good, lambda: [more()], lambda: [status])[0]

    def poll_signals(self, iteration: Value) -> Value:
        """Emit the handling of signals in some iterations; return its status."""
        due = self.compare("icmp eq", self.binary("and", iteration, i64(_CLOCK_INTERVAL - 1)), i64(0))
        return self.branch(due, lambda: [self.call("poll_signals", "i64", _SIGNALS)], lambda: [_OK])[0]


def _run(f: _Command) -> Value:
    function = f.cast("inttoptr", f.word(1), "ptr")
    tasks, mode, count = f.word(2), f.word(3), f.word(4)
    buffers = f.at(f.alloca("ptr", MOST_BUFFERS + 1), "ptr", i64(1))
    _gather(f, buffers, i64(5), count)
    _launch(f, function, buffers, tasks, mode)
    f.advance(f.binary("add", count, i64(5)))
    return _poll_after(f, mode)


def _gather(f: _Command, buffers: Value, first: Value, count: Value) -> None:
    """Emit the pointers to a launch's buffers.

    Their slots are `count` words from the word `first` on.
    """
    f.store(_SIGNALS, f.at(buffers, "ptr", i64(-1)), 8)

    def gather(i: Value, _: list[Value]) -> None:
        f.store(f.pointer(f.word(f.binary("add", i, first))), f.at(buffers, "ptr", i), 8)

    f.loop(i64(0), count, 1, [], gather)


def _launch(f: _Command, function: Value, buffers: Value, tasks: Value, mode: Value) -> None:
    """Emit a launch, on the threads that its mode asks for."""
    wakes, any_awake = _has(f, mode, Mode.WAKES), f.compare("icmp slt", _read(f, _SLEEPERS), _read(f, _WORKERS))

    def share() -> None:
        f.run("share", function, buffers, tasks, wakes)

    def alone() -> None:
        f.do(f"call void {function.name}({buffers}, i64 0, {tasks})")

    f.branch(f.binary("and", _has(f, mode, Mode.SHARED), f.binary("or", wakes, any_awake)), share, alone)


def _has(f: Function, mode: Value, flag: Mode) -> Value:
    return f.compare("icmp ne", f.binary("and", mode, i64(flag)), i64(0))


def _poll_after(f: _Command, mode: Value) -> Value:
    return f.branch(_has(f, mode, Mode.POLLS), lambda: [f.call("poll_signals", "i64", _SIGNALS)], lambda: [_OK])[0]


def _join(f: _Command) -> Value:
    """Emit launches that run as one; `_write_run_joined` has their record."""
    members, tasks, mode = f.word(1), f.word(2), f.word(3)
    record = f.at(f.alloca("ptr", 3 * MOST_JOINED + 1), "ptr", i64(1))
    pointers = f.alloca("ptr", MOST_JOINED_BUFFERS + MOST_JOINED)
    f.store(_SIGNALS, f.at(record, "ptr", i64(-1)), 8)

    def member(number: Value, carried: list[Value]) -> list[Value]:
        word, pointer, before = carried
        function, tasks, count = [f.word(f.binary("add", word, i64(k))) for k in range(3)]
        first, end = f.binary("add", word, i64(3)), f.binary("add", before, tasks)
        buffers = f.at(pointers, "ptr", f.binary("add", pointer, i64(1)))
        _gather(f, buffers, first, count)
        entry = f.at(record, "ptr", f.binary("mul", number, i64(3)))
        for place, value in enumerate((f.cast("inttoptr", function, "ptr"), buffers, end)):
            f.store(value, f.at(entry, "ptr", i64(place)), 8)
        return [f.binary("add", first, count), f.binary("add", f.binary("add", pointer, i64(1)), count), end]

    words, _, _ = f.loop(i64(0), members, 1, [i64(4), i64(0), i64(0)], member)
    _launch(f, Value("ptr", "@run_joined"), record, tasks, mode)
    f.advance(words)
    return _poll_after(f, mode)


def _write_run_joined(module: Module) -> None:
    """Define ``@run_joined(ptr record, i64 begin, i64 end)``.

    It is the entry point of launches that run as one. The record has the function, the buffers and the end of the tasks of each.
    """
    record, begin, end = Value("ptr", "%record"), Value("i64", "%begin"), Value("i64", "%end")
    f = Function(module, "run_joined", [record, begin, end])
    number, before = f.alloca("i64", align=8), f.alloca("i64", align=8)
    f.store(i64(0), number, 8)
    f.store(i64(0), before, 8)

    def member() -> Value:
        k, first = f.load("i64", number, 8), f.load("i64", before, 8)
        entry = f.at(record, "ptr", f.binary("mul", k, i64(3)))
        function, buffers = f.load("ptr", entry, 8), f.load("ptr", f.at(entry, "ptr", i64(1)), 8)
        last = f.load("i64", f.at(entry, "ptr", i64(2)), 8)
        low, high = greatest(f, begin, first), least(f, end, last)

        def run() -> None:
            f.do(f"call void {function.name}({buffers}, {f.binary('sub', low, first)}, {f.binary('sub', high, first)})")

        f.branch(f.compare("icmp slt", low, high), run)
        f.store(f.binary("add", k, i64(1)), number, 8)
        f.store(last, before, 8)
        return f.compare("icmp slt", last, end)

    _repeat(f, member)
    f.finish()


def _host(f: _Command) -> Value:
    function = f.cast("inttoptr", f.word(1), "ptr")
    status = f.let("i64", f"call i64 {function.name}({_TABLE})")
    f.advance(2)
    return status


def _copy(f: _Command) -> Value:
    f.memcpy(f.pointer(f.word(1)), f.pointer(f.word(2)), f.word(3))
    f.advance(4)
    return _OK


def _point(f: _Command) -> Value:
    f.store(f.pointer(f.word(2)), f.slot(f.word(1)), 8)
    f.advance(3)
    return _OK


def _swap(f: _Command) -> Value:
    first, second = f.slot(f.word(1)), f.slot(f.word(2))
    x, y = f.load("ptr", first, 8), f.load("ptr", second, 8)
    f.store(y, first, 8)
    f.store(x, second, 8)
    f.advance(3)
    return _OK


def _row(f: _Command) -> Value:
    counter = f.load("i64", f.slot(f.word(4)), 8)
    row = f.at(f.pointer(f.word(2)), "i8", f.binary("mul", counter, f.word(3)))
    f.store(row, f.slot(f.word(1)), 8)
    f.advance(5)
    return _OK


def _view(f: _Command) -> Value:
    pointer, last = f.pointer(f.word(4)), f.word(6)
    (index,) = f.branch(
        f.compare("icmp eq", f.word(5), i64(8)),
        lambda: [f.load("i64", pointer, 8)],
        lambda: [f.cast("sext", f.load("i32", pointer, 4), "i64")],
    )
    number = greatest(f, i64(0), least(f, index, last))
    f.store(f.at(f.pointer(f.word(2)), "i8", f.binary("mul", number, f.word(3))), f.slot(f.word(1)), 8)
    f.advance(7)
    return _OK


def _begin_loop(f: Function) -> tuple[str, str, str]:
    """Begin the header of a loop; return the labels of header, body and exit."""
    header, body, exit_label = f.fresh("header"), f.fresh("body"), f.fresh("exit")
    f.do(f"br label %{header}")
    f.label(header)
    return header, body, exit_label


def _loop(f: _Command) -> Value:
    count, counter, first, step, words = f.word(1), f.slot(f.word(2)), f.word(3), f.word(4), f.word(5)
    start, end = f.words(i64(6), words)
    status, number = f.alloca("i64", align=8), f.alloca("i64", align=8)
    f.store(_OK, status, 8)
    f.store(i64(0), number, 8)
    header, body_label, exit_label = _begin_loop(f)
    i = f.load("i64", number, 8)
    good = f.compare("icmp eq", f.load("i64", status, 8), _OK)
    f.do(f"br {f.binary('and', good, f.compare('icmp slt', i, count))}, label %{body_label}, label %{exit_label}")
    f.label(body_label)
    f.store(f.binary("add", first, f.binary("mul", i, step)), counter, 8)
    f.store(f.if_ok(f.poll_signals(i), lambda: f.execute(start, end)), status, 8)
    f.store(f.binary("add", i, i64(1)), number, 8)
    f.do(f"br label %{header}")
    f.label(exit_label)
    f.advance(f.binary("add", words, i64(6)))
    return f.load("i64", status, 8)


def _while(f: _Command) -> Value:
    slot, condition_words, body_words = f.word(1), f.word(2), f.word(3)
    condition, body = f.words(i64(4), condition_words)
    _, end = f.words(f.binary("add", condition_words, i64(4)), body_words)
    status, count = f.alloca("i64", align=8), f.alloca("i64", align=8)
    f.store(i64(0), count, 8)
    header, body_label, exit_label = _begin_loop(f)
    tested = f.execute(condition, body)
    f.store(tested, status, 8)
    holds = f.compare("icmp ne", f.load("i8", f.pointer(slot), 1), Value("i8", "0"))
    f.do(f"br {f.binary('and', holds, f.compare('icmp eq', tested, _OK))}, label %{body_label}, label %{exit_label}")
    f.label(body_label)
    number = f.binary("add", f.load("i64", count, 8), i64(1))
    f.store(number, count, 8)
    done = f.if_ok(f.poll_signals(number), lambda: f.execute(body, end))
    f.store(done, status, 8)
    f.do(f"br {f.compare('icmp eq', done, _OK)}, label %{header}, label %{exit_label}")
    f.label(exit_label)
    f.advance(f.binary("add", f.binary("add", condition_words, body_words), i64(4)))
    return f.load("i64", status, 8)


def _switch(f: _Command) -> Value:
    slot, count = f.word(1), f.word(2)
    index = f.cast("sext", f.load("i32", f.pointer(slot), 4), "i64")
    last = f.binary("sub", count, i64(1))
    index = greatest(f, index, i64(0))
    index = least(f, index, last)

    def pass_body(i: Value, carried: list[Value]) -> list[Value]:
        """Emit the words before the chosen body, and before the end of all."""
        before, total = carried
        words = f.word(f.binary("add", i, i64(3)))
        earlier = f.compare("icmp slt", i, index)
        return [f.binary("add", before, f.select(earlier, words, i64(0))), f.binary("add", total, words)]

    before, total = f.loop(i64(0), count, 1, [i64(0), i64(0)], pass_body)
    head = f.binary("add", count, i64(3))
    start, end = f.words(f.binary("add", head, before), f.word(f.binary("add", index, i64(3))))
    status = f.execute(start, end)
    f.advance(f.binary("add", head, total))
    return status


_WRITERS: dict[Op, Callable[[_Command], Value]] = {
    Op.RUN: _run,
    Op.HOST: _host,
    Op.COPY: _copy,
    Op.POINT: _point,
    Op.SWAP: _swap,
    Op.ROW: _row,
    Op.LOOP: _loop,
    Op.WHILE: _while,
    Op.SWITCH: _switch,
    Op.VIEW: _view,
    Op.JOIN: _join,
}


def _write_execute(module: Module) -> None:
    """Define ``i64 @execute(code, end, table)``, which makes a record of signals."""
    f = Function(module, "execute", [_CODE, _END, _TABLE], "i64")
    signals = f.alloca("i64", 8)  # a cache line that nothing else is written to, as threads read it before each task
    for word, value in ((SignalWord.HANDLE, Value("ptr", "@poll_signals")), (SignalWord.STATUS, _OK), (SignalWord.SECOND, i64(0))):
        f.store(value, f.at(signals, "i64", i64(word)), 8)
    f.finish(f.call("commands", "i64", _CODE, _END, _TABLE, signals))


def _write_commands(module: Module) -> None:
    """Define ``i64 @commands(code, end, table, signals)``, which returns a status."""
    functions = ", ".join(f"ptr @do_{op.name.lower()}" for op in Op)
    module.declare("command_functions", f"@command_functions = internal constant [{len(Op)} x ptr] [{functions}]")
    f = Function(module, "commands", [_CODE, _END, _TABLE, _SIGNALS], "i64")
    next_command = f.alloca("ptr", align=8)
    status = f.alloca("i64", align=8)
    f.store(_CODE, next_command, 8)
    f.store(_OK, status, 8)
    header, body_label, exit_label = _begin_loop(f)
    code = f.load("ptr", next_command, 8)
    good = f.compare("icmp eq", f.load("i64", status, 8), _OK)
    f.do(f"br {f.binary('and', good, f.compare('icmp ult', code, _END))}, label %{body_label}, label %{exit_label}")
    f.label(body_label)
    function = f.load("ptr", f.at(Value("ptr", "@command_functions"), "ptr", f.load("i64", code, 8)), 8)
    f.store(f.let("i64", f"call i64 {function.name}({code}, {_TABLE}, {next_command}, {_SIGNALS})"), status, 8)
    f.do(f"br label %{header}")
    f.label(exit_label)
    f.finish(f.load("i64", status, 8))


def _write_poll_signals(module: Module) -> None:
    """Define ``i64 @poll_signals(ptr signals)``, which has Python handle signals."""
    # It does so when the second has changed, since Python's lock may have to be waited for. The status is `INTERRUPTED` if a handler
    # raised.
    module.declare("ensure", "declare i32 @PyGILState_Ensure()")
    module.declare("check", "declare i32 @PyErr_CheckSignals()")
    module.declare("release", "declare void @PyGILState_Release(i32)")
    f = Function(module, "poll_signals", [_SIGNALS], "i64")
    second, status = (f.at(_SIGNALS, "i64", i64(word)) for word in (SignalWord.SECOND, SignalWord.STATUS))
    now, before = system.seconds(f), f.load("i64", second, 8)

    def handle() -> None:
        state = f.call("PyGILState_Ensure", "i32")
        raised = f.call("PyErr_CheckSignals", "i32")
        f.run("PyGILState_Release", state)
        outcome = f.select(f.compare("icmp eq", raised, Value("i32", "0")), _OK, i64(Status.INTERRUPTED))
        f.do(f"store atomic {outcome}, {status} monotonic, align 8")

    def next_second() -> None:
        f.store(now, second, 8)
        f.branch(f.compare("icmp ne", before, i64(0)), handle)  # 0: the program has just begun, and a second has not passed

    f.branch(f.compare("icmp ne", now, before), next_second)
    f.finish(f.load("i64", status, 8))

"""Compilation of lowered programs: their routines and their commands.

`build` is the entry point, and `TimedProgram` that of programs that note the time of each item. `CodeCache` compiles the routines that are
neither in the process nor on disk, `CommandWriter` writes the commands that call them, and `assemble` lays out the memory.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.buffers import Lifetime, Output
from volta_fn.compiler.emission import CarriedValue, CommandScope, ProgramWriter, Slot, reusable, scan_slots, while_slots
from volta_fn.compiler.ir.kernel import KernelCall
from volta_fn.compiler.target import Item, LoweredProgram, Passes, RoutineKey
from volta_fn.compiler.verification import Extent, SlotUses, fail_item, verify_extents, verify_reuse
from volta_fn.core.arrays.array import host_buffer
from volta_fn.core.aval import ShapedArray
from volta_fn.core.caches import LruCache
from volta_fn.core.jaxpr import ClosedJaxpr, Equation
from volta_fn.core.primitive import Primitive
from volta_fn.errors import CompilerError
from volta_fn.primitives.data_movement.dynamic_slicing import dynamic_slice_p
from volta_fn.primitives.loops import cond_p, while_p
from volta_fn.primitives.scan import scan_p
from volta_fn.runtime.llvm.machine import LoadedCode, compile_object, load_objects
from volta_fn.runtime.llvm.text import Function, Module, SharedFunction, Value, i64
from volta_fn.runtime.system import nanoseconds
from volta_fn.runtime.threads import compile_uninterrupted, on_own_thread, run_together, thread_count
from volta_fn.targets.cpu.routine import WORTH_SHARING, WORTH_WAKING, routine_of
from volta_fn.targets.cpu.runtime import artifact
from volta_fn.targets.cpu.runtime.artifact import Artifact, layout_of
from volta_fn.targets.cpu.runtime.executor import MOST_JOINED, MOST_JOINED_BUFFERS, Mode, Op, support_code_of_process
from volta_fn.targets.cpu.runtime.program import HostCall, Program, equation_call, kernel_call
from volta_fn.targets.cpu.target import TARGET, excess_of_arrays

# The routines of the process: compiled, loaded by their keys, and cached on disk.

#: Routines that are kept for other programs.
_MOST_RECENT = 512


class LoadedLaunch(NamedTuple):
    """A launch at an address, by its name in an object."""

    address: int
    tasks: int
    mode: Mode
    symbol: str
    #: The name of the object's entry on disk.
    entry: str
    #: The code that holds the address.
    code: LoadedCode
    is_copy: bool = False
    #: Estimated nanoseconds on one thread.
    cost: float = 0.0
    #: Whether it handles signals itself; see `Launch.polls`.
    polls: bool = False


class LoadedRoutine(NamedTuple):
    """A routine ready to run."""

    launches: tuple[LoadedLaunch, ...]
    workspace: int
    #: Estimated nanoseconds on one thread.
    cost: float

    def without_copies(self) -> LoadedRoutine:
        """Return the routine without launches that copy its operand to another place."""
        return self._replace(launches=tuple([launch for launch in self.launches if not launch.is_copy]))


#: What `CodeCache` keeps for keys without a routine.
_NO_ROUTINE = LoadedRoutine((), 0, 0.0)


class RefusedRoutine(Exception):
    """A routine that LLVM refuses, by its key.

    The caller, which has the program, finds the equation.
    """

    def __init__(self, key: RoutineKey, error: CompilerError) -> None:
        super().__init__(error.message)
        self.key, self.error = key.key, error


class SharedCode:
    """The compiled functions that routines share, by their entries' names on disk."""

    def __init__(self) -> None:
        self._codes: dict[str, bytes] = {}
        self._locks: dict[str, threading.Lock] = {}

    def compile(self, function: SharedFunction) -> str:
        """Compile a function, unless some thread has done so, and return its name.

        Threads that want one function wait for the first of them; if it fails, the next one tries, and has an error of its own.
        """
        name = artifact.name_of(f"function {function.name}")
        with self._locks.setdefault(name, threading.Lock()):
            if name not in self._codes:
                self._codes[name] = _compile_shared(name, function)
        return name

    def has(self, name: str) -> bool:
        """Return True if there is such a function, in the process or on disk."""
        if name not in self._codes:
            compiled = artifact.read_compiled(name)
            if compiled is None:
                return False
            self._codes[name] = compiled.code
        return True

    def codes(self, names: Iterable[str]) -> list[bytes]:
        """Return the object code of compiled functions."""
        return [self._codes[name] for name in names]


def _compile_shared(name: str, function: SharedFunction) -> bytes:
    compiled = artifact.read_compiled(name)
    if compiled is None:
        # The text has nothing that passes could remove.
        compiled = artifact.Compiled(compile_object(function.text, clean=False))
        artifact.write_compiled(name, compiled)
    return compiled.code


class CodeCache:
    """The routines used last in this process; programs keep theirs, others are freed."""

    def __init__(self) -> None:
        #: By their keys; `_NO_ROUTINE` for keys without one.
        self._recent: LruCache[LoadedRoutine] = LruCache(_MOST_RECENT)
        self._shared = SharedCode()

    def load(self, keys: Sequence[RoutineKey]) -> list[LoadedRoutine | None]:
        """Load routines, compiling the new ones on several threads."""
        routines = {k.key: self._recent.get(k.key) for k in keys}
        missing = list({k.key: k for k in keys if routines[k.key] is None}.values())
        compiled = run_together([partial(self._compiled, key) for key in missing], thread_count())
        loaded = self._load(dict([entry for entry in compiled if entry is not None]))
        for key, entry in zip(missing, compiled, strict=True):
            routines[key.key] = self._recent.setdefault(key.key, _NO_ROUTINE if entry is None else loaded[entry[0]])
        return [None if routines[k.key] is _NO_ROUTINE else routines[k.key] for k in keys]

    def _compiled(self, key: RoutineKey) -> tuple[str, artifact.Compiled] | None:
        """Return a routine, compiled if need be, and the name of its entry on disk."""
        name = artifact.name_of(repr(key.key))
        compiled = artifact.read_compiled(name)
        if compiled is None or not all(map(self._shared.has, compiled.shared)):
            try:
                routine = routine_of(key)
                if routine is None:
                    return None
                suffix = f"_{name}"  # so that the routines of a program can be loaded together
                launches = tuple(
                    [artifact.CompiledLaunch(p.symbol + suffix, p.tasks, p.cost, p.restores, p.is_copy, p.polls) for p in routine.launches]
                )
                code = compile_object(routine.text, suffix)  # before functions that other threads may be compiling
                shared = tuple([self._shared.compile(function) for function in routine.shared])
                compiled = artifact.Compiled(code, launches, routine.workspace, shared)
            except CompilerError as error:
                raise RefusedRoutine(key, error) from error
            artifact.write_compiled(name, compiled)
        return name, compiled

    def _load(self, entries: Mapping[str, artifact.Compiled]) -> dict[str, LoadedRoutine]:
        """Load routines and their shared functions at once, little slower than one."""
        if not entries:
            return {}
        symbols = [launch.symbol for compiled in entries.values() for launch in compiled.launches]
        shared = dict.fromkeys([name for compiled in entries.values() for name in compiled.shared])
        codes = [*[compiled.code for compiled in entries.values()], *self._shared.codes(shared)]
        loaded = load_objects(codes, symbols)
        addresses = dict(zip(symbols, loaded.addresses, strict=True))
        return {entry: _loaded_routine(entry, compiled, addresses, loaded) for entry, compiled in entries.items()}


def _loaded_routine(entry: str, compiled: artifact.Compiled, addresses: Mapping[str, int], code: LoadedCode) -> LoadedRoutine:
    launches = []
    for number, launch in enumerate(compiled.launches):
        following = compiled.launches[number + 1 : number + 2]
        # A handler that raised must not end the program between a launch that changes something and the next one, which restores it.
        mode = _mode_of(launch.tasks, launch.cost)
        if any(f.restores for f in following):
            mode &= ~Mode.POLLS
        elif launch.restores or launch.polls:
            mode |= Mode.POLLS
        address, symbol = addresses[launch.symbol], launch.symbol
        launches.append(LoadedLaunch(address, launch.tasks, mode, symbol, entry, code, launch.is_copy, launch.cost, launch.polls))
    return LoadedRoutine(tuple(launches), compiled.workspace, sum(launch.cost for launch in compiled.launches))


def _mode_of(tasks: int, cost: float) -> Mode:
    """Return how a launch of so many estimated nanoseconds runs."""
    mode = Mode.POLLS if cost > WORTH_WAKING else Mode(0)
    if tasks > 1 and cost > WORTH_SHARING:
        mode |= Mode.SHARED | (Mode.WAKES if cost > WORTH_WAKING else Mode(0))
    return mode


CODE_CACHE = CodeCache()

# Compile programs: the commands of a lowered program, and its routines.
#
# Loops and branches are commands that hold others. A loop's carry is updated in place where a step allows it; else it alternates
# between two buffers.

#: A word of a command: slots and launches become their numbers.
Word = int | Slot | LoadedLaunch
#: How control flow is written: (writer, item, operands' slots, results' slots, scope).
ControlFlow = Callable[["CommandWriter", Item, Sequence[Slot], Sequence[Slot], CommandScope], None]

#: Nanoseconds that a call of NumPy costs at least.
_HOST_COST = 10_000.0


#: The number of words of each command but `RUN` and `JOIN`, whose length varies, without the commands in it. A switch has, after these, a
#: word for each body: its number of words.
_WORDS = {Op.HOST: 2, Op.COPY: 4, Op.POINT: 3, Op.SWAP: 3, Op.ROW: 5, Op.LOOP: 6, Op.WHILE: 4, Op.SWITCH: 3, Op.VIEW: 7}


# Launches that run together.
#
# A launch begins when the one before has ended on all threads, which takes 1 to 3 µs: threads wait for the last one, and each begins to
# read other memory. Short launches that are independent of each other, such as the products with a layer's three matrices for queries, keys
# and values, have no such wait between them.

#: Estimated nanoseconds of the launches that run together: shorter ones are not worth another thread, longer ones not worth joining.
WORTH_JOINING, WORTH_A_LAUNCH = 1_000.0, 200_000.0


class JoinedLaunch(NamedTuple):
    """The last launch of a routine, which runs together with others.

    Short ones may stand before it, which prepare it.
    """

    launches: Sequence[LoadedLaunch]
    buffers: list[Slot]
    #: The memory that the routine reads, but for what no launch writes, and that which it writes.
    read: frozenset[Slot]
    written: frozenset[Slot]

    @classmethod
    def may_be(cls, launches: Sequence[LoadedLaunch]) -> bool:
        """Return True if a routine's launches are worth joining with others."""
        if not launches or launches[-1].polls or not WORTH_JOINING < launches[-1].cost < WORTH_A_LAUNCH:
            return False
        return not any(p.mode or p.cost > WORTH_SHARING for p in launches[:-1])

    @property
    def launch(self) -> LoadedLaunch:
        """The launch that is joined with others."""
        return self.launches[-1]

    def is_independent(self, other: JoinedLaunch) -> bool:
        """Return True if neither launch writes what the other uses."""
        return not (self.written & other.written or self._overwrites(other) or other._overwrites(self))

    def _overwrites(self, other: JoinedLaunch) -> bool:
        return bool(self.written & other.read) or (_any_callers(self.written) and _any_callers(other.read))


def _memory(slots: Iterable[Slot]) -> Iterator[Slot]:
    """Yield slots, and those into whose memory they may point."""
    for slot in slots:
        yield slot
        yield from _memory(slot.backing)


def _any_callers(slots: Iterable[Slot]) -> bool:
    """Return True if some memory is the caller's.

    The memory of a donated argument may be that of a result, too.
    """
    return any(slot.array is None and not slot.size and not slot.backing for slot in slots)


class JoinedLaunches(NamedTuple):
    """Independent launches of a scope that run as one."""

    scope: CommandScope
    #: Where the words of the command begin.
    begin: int
    members: list[JoinedLaunch]

    @property
    def end(self) -> int:
        """Where the words of the command end."""
        return self.begin + len(self.words())

    def takes(self, member: JoinedLaunch) -> bool:
        """Return True if a launch may run together with these."""
        buffers = sum(len(m.buffers) for m in (*self.members, member))
        return len(self.members) < MOST_JOINED and buffers <= MOST_JOINED_BUFFERS and all(map(member.is_independent, self.members))

    def words(self) -> list[Word]:
        """Return the words of the command."""
        if len(self.members) == 1:
            return _runs(self.members[0].launches, self.members[0].buffers)
        preparations = [word for m in self.members for word in _runs(m.launches[:-1], m.buffers)]
        tasks, cost = sum(m.launch.tasks for m in self.members), sum(m.launch.cost for m in self.members)
        words: list[Word] = [*preparations, Op.JOIN, len(self.members), tasks, _mode_of(tasks, cost)]
        for m in self.members:
            words += [m.launch, m.launch.tasks, len(m.buffers), *m.buffers]
        return words


def _runs(launches: Sequence[LoadedLaunch], buffers: list[Slot]) -> list[Word]:
    """Return the words of commands that run launches one after another."""
    words: list[Word] = []
    for launch in launches:
        words += [Op.RUN, launch, launch.tasks, launch.mode, len(buffers), *buffers]
    return words


class CommandWriter(ProgramWriter):
    """Writes the commands of one program, item by item."""

    def __init__(self, loaded: Mapping[Any, LoadedRoutine | None], control_flow: Mapping[Primitive, ControlFlow]) -> None:
        super().__init__()
        #: Which arguments are donated: flags of the first ones; others, of which it is not known, count as donated.
        self.donated: Sequence[bool] = ()
        self.loaded = loaded
        self.control_flow = control_flow
        self.words: list[Word] = []
        self.hosts: list[HostCall] = []
        #: Estimated nanoseconds of the program, which decide whether it releases Python's lock: a while loop counts as long, and of a
        #: conditional all branches count.
        self.cost = 0.0
        #: The memory that nothing overwrites while the commands written now run: arguments, and what loops read in every iteration.
        self.unchanged: set[Slot] = set()
        #: The launches of the last command, if others may join them.
        self._joined: JoinedLaunches | None = None

    def body(self, program: LoweredProgram, inputs: Sequence[Slot], destinations: Sequence[Slot | None], scope: CommandScope) -> None:
        """Write a program that reads `inputs` and stores outputs at `destinations`."""
        if scope is self.slots.outermost:
            self.unchanged.update([slot for slot, is_donated in zip(inputs, self.donated, strict=False) if not is_donated])
        self._joined = None  # a loop's condition and its body have one scope
        super().body(program, inputs, destinations, scope)

    def view(self, item: Item, operands: Sequence[Slot], scope: CommandScope) -> Slot | None:
        """Return a slot for a slice of whole rows that is read where it lies.

        None if something may overwrite it.
        """
        if not isinstance(item.node, Equation) or item.node.primitive is not dynamic_slice_p or operands[0] not in self.unchanged:
            return None
        array, start = [v.aval for v in item.node.invars[:2]]
        sizes, (result,) = item.node.params["slice_sizes"], item.results
        if not result.aval.size or sizes[1:] != array.shape[1:] or start.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
            return None
        slot, row = self.slots.pointer(scope, operands[0]), array.nbytes // array.shape[0]
        last = array.shape[0] - sizes[0]
        self.command(scope, [operands[0], operands[1], slot], Op.VIEW, slot, operands[0], row, operands[1], start.dtype.itemsize, last)
        return slot

    def item(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
        """Write an item."""
        loaded = None if item.key is None else self.loaded[item.key.key]
        if loaded is not None and excess_of_arrays(item) is None:
            # A copy into the operand's own memory does nothing, but would wake threads.
            is_in_place = isinstance(item.node, Equation) and results[0] in operands
            self.routine(loaded.without_copies() if is_in_place else loaded, operands, results, scope)
        elif isinstance(item.node, KernelCall):
            self.host(item, kernel_call(item.node.kernel, operands, results), [*operands, *results], scope)
        elif item.node.primitive in self.control_flow:
            self.control_flow[item.node.primitive](self, item, operands, results, scope)
        else:
            self.host(item, equation_call(item.node, operands, results), [*operands, *results], scope)

    @contextmanager
    def constant_memory(self, slots: Sequence[Slot]) -> Iterator[None]:
        """Have some slots unchanged while a loop's commands are written."""
        before = self.unchanged
        self.unchanged = before.union(slots)
        try:
            yield
        finally:
            self.unchanged = before

    # commands

    def command(self, scope: CommandScope, touched: Sequence[Slot], op: Op, *words: int | Slot) -> None:
        """Write a command that uses some slots."""
        for slot in touched:
            self.slots.touch(slot, scope)
        self.words += [op, *words]
        self.slots.time += 1

    def routine(self, loaded: LoadedRoutine, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
        """Write the launches of a routine.

        A short one runs together with those right before it, if they are independent.
        """
        workspace = [self.slots.memory(loaded.workspace, scope)] if loaded.workspace else []
        buffers = [*operands, *results, *workspace]
        self.cost += loaded.cost
        launches = [launch for launch in loaded.launches if launch.tasks]
        joined = None
        if JoinedLaunch.may_be(launches):
            read, written = frozenset(_memory(operands)) - self.unchanged, frozenset(_memory([*results, *workspace]))
            member = JoinedLaunch(launches, buffers, read, written)
            joined = JoinedLaunches(scope, len(self.words), [member])
            before = self._joined
            if before is not None and before.scope is scope and before.end == len(self.words) and before.takes(member):
                joined = JoinedLaunches(scope, before.begin, [*before.members, member])
                del self.words[joined.begin :]
                self.slots.time -= 1  # the memory of all is in use at one time
        for slot in buffers:
            self.slots.touch(slot, scope)
        self.words += _runs(launches, buffers) if joined is None else joined.words()
        self._joined = joined
        self.slots.time += 1

    def host(self, item: Item, call: HostCall, touched: Sequence[Slot], scope: CommandScope) -> None:
        """Write a call of NumPy."""
        self.on_host.append(item)
        self.hosts.append(call)
        self.cost += _HOST_COST
        self.command(scope, touched, Op.HOST, call.address)

    def copy(self, to: Slot, source: Slot, size: int, scope: CommandScope) -> None:
        """Copy an array."""
        if to is not source and size:
            self.command(scope, [to, source], Op.COPY, to, source, size)

    def uses(self) -> SlotUses:
        """Return when the commands use each slot, as the executor will."""
        uses, hosts = SlotUses(), iter(self.hosts)
        self._add_uses(uses, hosts, 0, len(self.words))
        return uses

    def _add_uses(self, uses: SlotUses, hosts: Iterator[HostCall], at: int, end: int) -> None:
        words: list[Any] = self.words
        while at < end:
            op = words[at]
            begin, size = uses.time, _WORDS.get(op, 0)
            if op == Op.RUN:
                size = 5 + words[at + 4]
                uses.command(words[at + 5 : at + size])
            elif op == Op.JOIN:
                size = 4
                for _ in range(words[at + 1]):
                    size += 3 + words[at + size + 2]
                uses.command([word for word in words[at + 4 : at + size] if isinstance(word, Slot)])
            elif op == Op.HOST:
                uses.command(next(hosts).slots)
            else:
                uses.command([word for word in words[at + 1 : at + size] if isinstance(word, Slot)])
            at += size
            if op in (Op.LOOP, Op.WHILE):
                inside = words[at - 1] + (words[at - 2] if op == Op.WHILE else 0)
                self._add_uses(uses, hosts, at, at + inside)
                uses.loop(begin)
                at += inside
            elif op == Op.SWITCH:
                lengths = words[at : at + words[at - 1]]
                self._add_uses(uses, hosts, at + len(lengths), at + len(lengths) + sum(lengths))
                at += len(lengths) + sum(lengths)

    # the result

    def code(self) -> tuple[np.ndarray, np.ndarray, list[LoadedLaunch]]:
        """Return the commands as words, which words are launches, and the launches.

        The slots must have their numbers (`Slots.assign_numbers`).
        """
        assert all(w.number >= 0 for w in self.words if isinstance(w, Slot)), "slots are numbered before"
        launches = {w: i for i, w in enumerate(dict.fromkeys([w for w in self.words if isinstance(w, LoadedLaunch)]))}
        launch_words = [i for i, w in enumerate(self.words) if isinstance(w, LoadedLaunch)]
        words = [w.number if isinstance(w, Slot) else launches[w] if isinstance(w, LoadedLaunch) else w for w in self.words]
        return np.array(words, np.int64), np.array(launch_words, np.int64), list(launches)


class _CarrySlots(NamedTuple):
    """The slots in which a step reads a carry, and writes the next one."""

    now: Slot
    next: Slot


def _begin_loop(writer: CommandWriter, carries: Sequence[CarriedValue], scope: CommandScope, steps: int | None) -> list[_CarrySlots]:
    """Begin a loop: copy the initial carry to where the first step reads it."""
    # A carry that is not updated in place alternates between the result's slot and another, beginning so that the last of `steps` steps
    # writes it to the result's. For a loop of unknown length (None) it begins in the result's, and the caller copies the last one there.
    slots = []
    for carry in carries:
        size, result = carry.var.aval.nbytes, carry.result
        if carry.in_place:
            writer.copy(result, carry.start, size, scope)
            slots.append(_CarrySlots(result, result))
            continue
        other = writer.slots.memory(size, scope)
        now, then = (other, result) if steps is not None and steps % 2 else (result, other)
        writer.copy(now, carry.start, size, scope)
        pointers = _CarrySlots(writer.slots.pointer(scope, result, other), writer.slots.pointer(scope, result, other))
        writer.command(scope, [now, pointers.now], Op.POINT, pointers.now, now)
        writer.command(scope, [then, pointers.next], Op.POINT, pointers.next, then)
        slots.append(pointers)
    return slots


def _advance(writer: CommandWriter, carries: Sequence[_CarrySlots], scope: CommandScope) -> None:
    """Make the next carry the current one."""
    for now, then in carries:
        if now is not then:
            writer.command(scope, [now, then], Op.SWAP, now, then)


def _scan(writer: CommandWriter, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
    scan = scan_slots(item, operands, results)
    carries = _begin_loop(writer, scan.carries, scope, scan.length)
    counter = writer.slots.pointer(scope)
    first, step = (scan.length - 1, -1) if scan.reverse else (0, 1)
    before, writer.cost = writer.cost, 0.0
    inner = writer.slots.open_scope(scope)
    writer.command(scope, [counter], Op.LOOP, scan.length, counter, first, step, 0)
    start = len(writer.words)

    def row(base: Slot, aval: ShapedArray) -> Slot:
        slot = writer.slots.pointer(inner, base)
        writer.command(inner, [base, slot], Op.ROW, slot, base, aval.nbytes, counter)
        return slot

    xs, ys = [row(*rows) for rows in scan.xs], [row(*rows) for rows in scan.ys]
    with writer.constant_memory(scan.constants):
        writer.body(scan.body, [*scan.constants, *[c.now for c in carries], *xs], [*[c.next for c in carries], *ys], inner)
    _advance(writer, carries, inner)
    writer.words[start - 1] = len(writer.words) - start
    writer.slots.touch(counter, inner)
    writer.slots.close_scope(inner)
    writer.cost = before + (scan.length * writer.cost if scan.length else 0.0)  # a while loop in the body costs infinity


def _while(writer: CommandWriter, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
    loop = while_slots(item, operands, results)
    carries = _begin_loop(writer, loop.carries, scope, None)
    flag = writer.slots.memory(1, scope)
    inner = writer.slots.open_scope(scope)
    writer.command(scope, [flag], Op.WHILE, flag, 0, 0)
    start = len(writer.words)
    now = [c.now for c in carries]
    with writer.constant_memory([*loop.condition_constants, *loop.body_constants]):
        writer.body(loop.condition, [*loop.condition_constants, *now], [flag], inner)
        middle = len(writer.words)
        writer.body(loop.body, [*loop.body_constants, *now], [c.next for c in carries], inner)
    _advance(writer, carries, inner)
    writer.words[start - 2 : start] = [middle - start, len(writer.words) - middle]
    writer.slots.touch(flag, inner)
    writer.slots.close_scope(inner)
    writer.cost = float("inf")
    for slots, carry in zip(carries, loop.carries, strict=True):
        writer.copy(carry.result, slots.now, carry.var.aval.nbytes, scope)


def _cond(writer: CommandWriter, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
    branches = item.programs
    index, *arguments = operands
    writer.command(scope, [index], Op.SWITCH, index, len(branches), *[0] * len(branches))
    sizes_at = len(writer.words) - len(branches)
    for number, branch in enumerate(branches):
        start = len(writer.words)
        inner = writer.slots.open_scope(scope)
        writer.body(branch, arguments, results, inner)
        writer.slots.close_scope(inner)
        writer.words[sizes_at + number] = len(writer.words) - start


CONTROL_FLOW: dict[Primitive, ControlFlow] = {scan_p: _scan, while_p: _while, cond_p: _cond}


#: A program of more estimated nanoseconds releases Python's lock.
_RELEASES_LOCK_NS = 20_000.0


class CompiledProgram(NamedTuple):
    """A compiled program, its launches, and the host functions that it calls."""

    artifact: Artifact
    launches: list[LoadedLaunch]
    hosts: list[HostCall]


def build(closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes) -> CompiledProgram:
    """Compile a program, and meanwhile the support code, which is needed next."""
    meanwhile = on_own_thread(support_code_of_process)
    try:
        program = pipeline.lower(closed, TARGET)
        return assemble(program, donated, CommandWriter(loaded_routines(program), CONTROL_FLOW))
    finally:
        meanwhile.error()  # wait only: `Program` asks for the support code, and raises its error


def loaded_routines(program: LoweredProgram) -> dict[Any, LoadedRoutine | None]:
    """Return a program's routines by their keys, compiled where they have to be."""
    keys = program.routine_keys()
    try:
        return dict(zip([k.key for k in keys], CODE_CACHE.load(keys), strict=True))
    except RefusedRoutine as refusal:
        _raise_refusal(program, refusal)
        raise refusal.error from None


def _raise_refusal(program: LoweredProgram, refusal: RefusedRoutine) -> None:
    """Raise the error of a refused routine, with an item that has it."""
    for item in program.items:
        if item.key is not None and item.key.key == refusal.key:
            fail_item(refusal.error.stage, refusal.error.message.partition(": ")[2], program, item)
        for inner in item.programs:
            _raise_refusal(inner, refusal)


def assemble(program: LoweredProgram, donated: Sequence[bool], writer: CommandWriter) -> CompiledProgram:
    """Write the commands of a lowered program, lay out its memory, and return both."""
    writer.donated = donated
    writer.write(program)
    outputs = tuple([_with_host_constant(output) for output in program.outputs()])
    specs = tuple([(v.aval.shape, v.aval.dtype) for v in program.results])
    # Not given to `write`: the code is the same for a call that may overwrite arguments, which passes these as results, too.
    reuse = reusable(program, donated)
    layout = layout_of(writer.slots)  # which numbers the slots for `writer.code`
    if writer.verifier is not None:
        verify_reuse(program, reuse)
        offsets = layout.offsets.tolist()
        extents = {slot: Extent(0, offset, slot.size) for slot, offset in zip(writer.slots.arena, offsets, strict=True)}
        verify_extents("layout of the arena", writer.uses(), extents, writer.verifier.writers)
    words, launch_words, launches = writer.code()
    artifact = Artifact(words, launch_words, layout, bool(writer.cost > _RELEASES_LOCK_NS), outputs, specs, reuse)
    return CompiledProgram(artifact, launches, writer.hosts)


def _with_host_constant(output: Output) -> Output:
    return output if output.constant is None else output._replace(constant=host_buffer(output.constant))


# Programs with times.
#
# Between items stands one more launch, which reads the clock and appends the next item's number and the time to a log. It takes some 30
# nanoseconds; programs that are not profiled have none.

#: The numbers of the items, begin and end.
Span = tuple[tuple[int, ...], int, int]

#: Entries of a log. What a call notes after that many is lost, and `Log.is_full` says so.
_CAPACITY = 1 << 18

#: The words of a command that writes one, and the launch's name.
_STAMP_WORDS, _STAMP = 6, "volta_fn_stamp"


@functools.cache
def _stamp() -> LoadedCode:
    """Compile the launch that reads the clock.

    ``stamp(buffers, first, number)`` appends (number, nanoseconds) to the log at buffers[0]: the count, the capacity, the entries.
    """
    module, buffers, first, number = Module(), Value("ptr", "%buffers"), Value("i64", "%first"), Value("i64", "%number")
    f = Function(module, _STAMP, [buffers, first, number])
    log = f.load("ptr", buffers, 8)
    count, capacity = f.load("i64", log, 8), f.load("i64", f.at(log, "i64", i64(1)), 8)

    def append() -> None:
        entry = f.at(log, "i64", f.plus(f.times(count, 2), i64(2)))
        f.store(number, entry, 8)
        f.store(nanoseconds(f), f.at(entry, "i64", i64(1)), 8)
        f.store(f.plus(count, i64(1)), log, 8)

    f.branch(f.compare("icmp ult", count, capacity), append)
    f.finish()
    return compile_uninterrupted(lambda: load_objects([compile_object(str(module))], [_STAMP]))


class TimedWriter(CommandWriter):
    """Writes a program's commands with a stamp before each item.

    Item number k of `items` has the stamp k; 0 stands for what is between items.
    """

    def __init__(self, loaded: Mapping[Any, LoadedRoutine | None], log: np.ndarray) -> None:
        super().__init__(loaded, CONTROL_FLOW)
        code = _stamp()
        self.items: list[tuple[LoweredProgram, Item] | None] = [None]
        self._log = log
        self._launch = LoadedLaunch(code.addresses[0], 1, Mode(0), _STAMP, "", code)
        #: The numbers of the items that are being written, from the outermost to the innermost, and the programs that they belong to.
        self._outer = [0]
        self._programs: list[LoweredProgram] = []
        #: How many words there were after the stamp at an item's end, if it is one of the program that is being written.
        self._after_end = -1

    def body(self, program: LoweredProgram, inputs: Sequence[Slot], destinations: Sequence[Slot | None], scope: CommandScope) -> None:
        """Write a program; its time outside of items is that of the item that holds it."""
        self._programs.append(program)
        self._after_end = -1
        super().body(program, inputs, destinations, scope)
        self._programs.pop()

    def item(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
        """Write an item between two stamps."""
        number = len(self.items)
        self.items.append((self._programs[-1], item))
        if self._after_end == len(self.words):  # nothing is between this item and the one before: one stamp does for both
            del self.words[-_STAMP_WORDS:]
        self._write_stamp(number, scope)
        self._outer.append(number)
        super().item(item, operands, results, scope)
        self._outer.pop()
        self._write_stamp(self._outer[-1], scope)
        self._after_end = len(self.words)

    def _write_stamp(self, number: int, scope: CommandScope) -> None:
        slot = self.slots.constant(self._log)
        self.slots.touch(slot, scope)
        stamp: list[Word] = [Op.RUN, self._launch, number, 0, 1, slot]
        assert len(stamp) == _STAMP_WORDS, "as many are taken back"
        self.words += stamp


class TimedProgram:
    """A compiled program of the CPU that notes the time of each item.

    Attributes:
        items: the item of each number in `times`; the first, None, stands for the time between items.
        lifetimes: when each value between arguments and results is needed, by the number of the command.
    """

    #: The device of the times, which are those of single items.
    device = "cpu"

    def __init__(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes) -> None:
        self._log = np.zeros(2 + 2 * _CAPACITY, np.int64)
        self._log[1] = _CAPACITY
        program = pipeline.lower(closed, TARGET)
        writer = TimedWriter(loaded_routines(program), self._log)
        built = assemble(program, donated, writer)
        self.items, self.lowered = writer.items, program
        self.lifetimes: list[Lifetime] = writer.slots.lifetimes()
        codes = [launch.code for launch in built.launches]
        self._program = Program(built.artifact, [launch.address for launch in built.launches], codes, built.hosts)
        self._run = self._program.executable().run
        self.temporaries = self._program.temporaries

    def __call__(self, donate: bool, *buffers: Any) -> Sequence[Any]:
        """Run the program on arrays, and note the times of this call alone."""
        self._log[0] = 0
        return self._run(donate, *buffers)

    def times(self) -> list[Span]:
        """Return (numbers of items, begin, end) in nanoseconds, as `perf_counter_ns`."""
        return self.noted()()

    def noted(self) -> Callable[[], list[Span]]:
        """Return what `times` would, as a function: a copy of the log costs little."""
        count = int(self._log[0])
        return functools.partial(_spans, self._log[2 : 2 + 2 * count].copy())

    def settle(self) -> None:
        """Do nothing: the code is final."""

    @property
    def is_full(self) -> bool:
        """Whether the last call had more items than its log."""
        return bool(self._log[0] >= _CAPACITY)


def _spans(entries: np.ndarray) -> list[Span]:
    numbers, moments = entries[::2].tolist(), entries[1::2].tolist()
    return [((n,), a, b) for n, a, b in zip(numbers, moments, moments[1:], strict=False)]

"""Memory for a program's values: slots, their layout, and plans for NumPy.

Emission writes commands over numbered *slots*. Slots whose lifetimes do not overlap share memory in one block. For NumPy, a *plan* is a
straight-line program over registers, which are reused as values die.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.ir.index import is_view
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, sub_jaxprs

# Slots stand for the memory of a program's values while its commands are written.
#
# Their numbers are known at the end.


#: Bytes up to which constants are compared by their elements, larger ones by their address.
SMALL_CONSTANT = 64


class Block:
    """A list of commands inside another, which repeats or may not run.

    Values from outside are live until its end.
    """

    def __init__(self, outer: Block | None) -> None:
        self.outer = outer
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.begin = 0
        self.used: set[Slot] = set()


class Slot:
    """The memory of one value."""

    def __init__(self, block: Block, size: int = 0, backing: tuple[Slot, ...] = (), array: Any = None) -> None:
        self.block = block
        #: Bytes in the arena, if it is there.
        self.size = size
        #: For a slot whose pointer moves: the slots into whose memory it may point.
        self.backing = backing
        #: A constant's value.
        self.array = array
        self.number = -1
        self.begin: int | None = None
        self.end = 0


class Slots:
    """All slots of a program, and the clock of their lifetimes: a tick per command."""

    def __init__(self) -> None:
        self.outermost = Block(None)
        self.callers: list[Slot] = []
        self.constants: dict[Any, Slot] = {}
        #: The constants as they were passed: while they live, no other array has their address.
        self.sources: list[np.ndarray] = []
        self.arena: list[Slot] = []
        self.moving: list[Slot] = []
        self.time = 0

    # making slots

    def caller(self) -> Slot:
        """Add a slot for an array that the caller passes."""
        self.callers.append(Slot(self.outermost))
        return self.callers[-1]

    def constant(self, array: np.ndarray) -> Slot:
        """Return the slot of a constant.

        Equal small constants share one, and so do large ones in the same memory.
        """
        contiguous = np.ascontiguousarray(array).reshape(array.shape)  # `ascontiguousarray` alone makes a 0-d array 1-d
        identity = contiguous.tobytes() if array.nbytes <= SMALL_CONSTANT else (array.ctypes.data, array.strides)
        key = array.dtype, array.shape, identity
        if key not in self.constants:
            self.constants[key] = Slot(self.outermost, array=contiguous)
            self.sources.append(array)
        return self.constants[key]

    def held(self, value: Any) -> Slot:
        """Return the slot of a constant that is already on the device."""
        if id(value) not in self.constants:
            self.constants[id(value)] = Slot(self.outermost, array=value)
        return self.constants[id(value)]

    def memory(self, size: int, block: Block) -> Slot:
        """Add a slot in the arena."""
        self.arena.append(Slot(block, size))
        return self.arena[-1]

    def pointer(self, block: Block, *backing: Slot) -> Slot:
        """Add a slot whose pointer commands set."""
        self.moving.append(Slot(block, backing=backing))
        return self.moving[-1]

    # lifetimes

    def touch(self, slot: Slot, block: Block) -> None:
        """Record that the next command of a block uses a slot."""
        for backing in slot.backing:
            self.touch(backing, block)
        slot.begin = self.time if slot.begin is None else slot.begin
        slot.end = max(slot.end, self.time)
        inner: Block | None = block
        while inner is not None and inner.depth > slot.block.depth:
            inner.used.add(slot)
            inner = inner.outer

    def open_block(self, outer: Block) -> Block:
        """Begin a block inside another."""
        block = Block(outer)
        block.begin = self.time
        return block

    def close_block(self, block: Block) -> None:
        """End a block: slots from outside that it uses live at least until here."""
        for slot in block.used:
            slot.begin = min(block.begin, self.time if slot.begin is None else slot.begin)
            slot.end = max(slot.end, self.time)

    # after the last command

    def assign_numbers(self) -> int:
        """Assign numbers to the caller's slots, the arena's, constants, and pointers.

        Return how many there are.
        """
        slots = [*self.callers, *self.arena, *self.constants.values(), *self.moving]
        for number, slot in enumerate(slots):
            slot.number = number
        return len(slots)

    def lifetimes(self) -> list[Lifetime]:
        """Return the lifetime of each of the arena's slots."""
        return [Lifetime(s.begin or 0, s.end, s.size) for s in self.arena]

    def arrays(self) -> tuple[Any, ...]:
        """Return the constants."""
        return tuple([s.array for s in self.constants.values() if s.array is not None])


# The layout of a program's values in one block of memory.
#
# Values whose lifetimes do not overlap may share memory.

#: Every value begins at a multiple of this many bytes (a cache line).
ALIGNMENT = 64


class Lifetime(NamedTuple):
    """A value's size, and the first and last moment at which it is needed."""

    begin: int
    end: int
    bytes: int


def arrange(values: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Return an offset for every value, and the size of the block.

    Values are assigned in order of time, each to the smallest gap that it fits (best fit), else at the end.
    """
    offsets = [0] * len(values)
    living: list[tuple[int, int]] = []  # (end, value)
    gaps = _Gaps()
    for value in sorted(range(len(values)), key=lambda v: values[v].begin):
        lifetime = values[value]
        while living and living[0][0] < lifetime.begin:
            _, dead = heapq.heappop(living)
            gaps.give(offsets[dead], _rounded(values[dead].bytes))
        offsets[value] = gaps.take(_rounded(lifetime.bytes))
        heapq.heappush(living, (lifetime.end, value))
    return offsets, gaps.size


def _rounded(size: int) -> int:
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT


class _Gaps:
    """The free ranges of a block that grows at its end."""

    def __init__(self) -> None:
        self.size = 0
        #: Free ranges by offset, their sizes, and (size, offset) of each in order.
        self.starts: list[int] = []
        self.sizes: dict[int, int] = {}
        self.by_size: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        """Reserve a range and return its offset."""
        position = bisect.bisect_left(self.by_size, (size, -1))
        if position < len(self.by_size):
            room, offset = self.by_size[position]
            self._remove(offset)
            if room > size:
                self._add(offset + size, room - size)
            return offset
        offset = self.size
        if self.starts and self.starts[-1] + self.sizes[self.starts[-1]] == self.size:  # the last gap, made longer
            offset = self.starts[-1]
            self._remove(offset)
        self.size = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        """Free a range, and merge it with free neighbours."""
        position = bisect.bisect_left(self.starts, offset)
        if position < len(self.starts) and self.starts[position] == offset + size:
            following = self.starts[position]
            size += self.sizes[following]
            self._remove(following)
        if position and self.starts[position - 1] + self.sizes[self.starts[position - 1]] == offset:
            before = self.starts[position - 1]
            size += self.sizes[before]
            offset = before
            self._remove(before)
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        bisect.insort(self.starts, offset)
        self.sizes[offset] = size
        bisect.insort(self.by_size, (size, offset))

    def _remove(self, offset: int) -> None:
        size = self.sizes.pop(offset)
        self.starts.pop(bisect.bisect_left(self.starts, offset))
        self.by_size.pop(bisect.bisect_left(self.by_size, (size, offset)))


class Memory(NamedTuple):
    """The memory of a program, in bytes."""

    #: Bytes of the arguments, of the results, and at most of the values in between.
    arguments: int
    results: int
    temporaries: int

    @property
    def peak(self) -> int:
        """The total; results in the memory of donated arguments count twice."""
        return self.arguments + self.results + self.temporaries


class Output(NamedTuple):
    """An output of a program: an array that it computes, an argument, or a constant.

    In a module that imports little, so that programs from the disk cache run without loading the compiler.
    """

    result: int | None
    argument: int | None
    constant: Any
    shape: tuple[int, ...]


# Plans: straight-line programs whose buffer lifetimes are solved, for NumPy.
#
# A plan's *registers* are reused as values die. A step may be told to write its result into an operand that dies there (`Step.into`),
# if the operand's memory is the plan's own: computed by an earlier step, or donated by the caller, and shared with no view that lives
# on. Large values that are no results lie in one block of memory (`Step.buffers`), if kernels can write them there.

Operand = int | Literal

#: Bytes of the smallest value that goes into the block: the C library has memory for smaller ones at hand.
_LARGE = 1 << 14


class Step(NamedTuple):
    """One equation on registers."""

    eqn: Equation
    operands: tuple[Operand, ...]
    results: tuple[int, ...]
    #: Registers that hold nothing of use after this step (and are not its results).
    frees: tuple[int, ...]
    #: Position of the operand to overwrite with the result, if any.
    into: int | None
    #: Numbers of the buffers in the plan's block that results go to, None for those that get memory elsewhere; empty if all do.
    buffers: tuple[int | None, ...]


class BlockBuffer(NamedTuple):
    """The offset and type of an array in a plan's block of memory."""

    offset: int
    aval: ShapedArray


class Plan(NamedTuple):
    """A program ready for NumPy."""

    inputs: tuple[int, ...]
    constants: tuple[tuple[int, Any], ...]
    steps: tuple[Step, ...]
    outputs: tuple[Operand, ...]
    #: Inputs whose memory the plan overwrites if the caller lets it.
    overwritten: tuple[int, ...]
    effectful: bool
    #: The arrays that lie in the block, and its size in bytes.
    buffers: tuple[BlockBuffer, ...]
    block: int
    #: The lifetimes of values outside the block that are neither arguments nor results.
    loose: tuple[Lifetime, ...]


#: Plans a program that an equation holds.
Planner = Callable[[ClosedJaxpr], Plan]


def make_plan(closed: ClosedJaxpr, donated: Sequence[bool] = (), writes: Callable[[Equation], Sequence[int]] = lambda eqn: ()) -> Plan:
    """Assign registers, overwrites and buffers to an optimized program.

    `writes` says which results an equation's kernel writes into given arrays.
    """
    return _Planner(closed, donated, writes).plan()


class _Planner:
    """Assigns registers in one pass, after one that finds each buffer's last use."""

    def __init__(self, closed: ClosedJaxpr, donated: Sequence[bool], writes: Callable[[Equation], Sequence[int]]) -> None:
        self.closed = closed
        self.writes = writes
        jaxpr = closed.jaxpr
        self.end = len(jaxpr.eqns)
        #: Variables whose memory the plan owns: results of steps that make new arrays, and donated inputs.
        self.owned: set[Var] = {v for v, d in zip(jaxpr.invars, donated, strict=False) if d}
        self.donated = set(self.owned)
        #: The variables whose memory a variable may share.
        self.bases: dict[Var, frozenset[Var]] = {v: frozenset((v,)) for v in (*jaxpr.constvars, *jaxpr.invars)}
        self.last_use: dict[Var, int] = {}
        self.block_end: dict[Var, int] = {}
        self.free: list[int] = []
        self.registers: dict[Var, int] = {}
        self.count = 0
        self.overwritten: list[int] = []
        #: The arrays in the block, their lifetimes, and the number of each variable's array.
        self.in_block: list[ShapedArray] = []
        self.lifetimes: list[Lifetime] = []
        self.homes: dict[Var, int] = {}
        self.loose: list[Lifetime] = []
        self.loose_homes: dict[Var, int] = {}
        self._find_lifetimes()

    def _find_lifetimes(self) -> None:
        jaxpr = self.closed.jaxpr
        for i, eqn in enumerate(jaxpr.eqns):
            read = [v for v in eqn.invars if type(v) is Var]
            for var in read:
                self._touch(var, i)
            shared = frozenset().union(*[self.bases[v] for v in read]) if eqn.primitive.views else frozenset()
            for var in eqn.outvars:
                self.last_use[var] = i
                self.bases[var] = shared | {var}
                self.block_end[var] = i
                if not eqn.primitive.views:
                    self.owned.add(var)
        for out in jaxpr.outvars:
            if type(out) is Var:
                self._touch(out, self.end)

    def _touch(self, var: Var, time: int) -> None:
        self.last_use[var] = time
        for base in self.bases[var]:
            self.block_end[base] = time

    def plan(self) -> Plan:
        """Return the finished plan."""
        jaxpr = self.closed.jaxpr
        inputs = tuple([self._take(v) for v in jaxpr.invars])
        constants = tuple([(self._take(v), c) for v, c in zip(jaxpr.constvars, self.closed.consts, strict=True)])
        steps = [self._step(i, eqn) for i, eqn in enumerate(jaxpr.eqns)]
        outputs = tuple([v if isinstance(v, Literal) else self.registers[v] for v in jaxpr.outvars])
        effectful = any(e.primitive.effectful for e in jaxpr.eqns)
        offsets, block = arrange(self.lifetimes)
        buffers = tuple(map(BlockBuffer, offsets, self.in_block))
        loose = tuple([life for life in self.loose if life.end < self.end])  # the others are results
        return Plan(inputs, constants, tuple(steps), outputs, tuple(self.overwritten), effectful, buffers, block, loose)

    def _take(self, var: Var) -> int:
        if self.free:
            register = heapq.heappop(self.free)
        else:
            register = self.count
            self.count += 1
        self.registers[var] = register
        return register

    def _step(self, time: int, eqn: Equation) -> Step:
        operands = tuple([v if isinstance(v, Literal) else self.registers[v] for v in eqn.invars])
        into = self._overwritable(time, eqn)
        buffers = self._buffers(time, eqn, into)
        dying = {v for v in eqn.invars if type(v) is Var and self.last_use[v] == time}
        dead = [self.registers[v] for v in dying if v not in self.closed.jaxpr.constvars] if dying else []
        results = tuple([self._take(v) for v in eqn.outvars])
        unused = [self.registers[v] for v in eqn.outvars if self.last_use[v] == time]
        for register in (*dead, *unused):
            heapq.heappush(self.free, register)
        return Step(eqn, operands, results, (*dead, *unused), into, buffers)

    def _overwritable(self, time: int, eqn: Equation) -> int | None:
        """Return the operand that the result may overwrite, or None.

        It dies here, is owned, and has the result's type.
        """
        primitive, result = eqn.primitive, eqn.outvars[0].aval if eqn.outvars else None
        if result is None or not result.shape or not (primitive.inplace or primitive.overwrites is not None):
            return None
        positions = range(len(eqn.invars)) if primitive.overwrites is None else (primitive.overwrites,)
        for position in positions:
            var = eqn.invars[position]
            if (
                type(var) is Var
                and var in self.owned
                and (var.aval.shape, var.aval.dtype) == (result.shape, result.dtype)
                and self.block_end[var] == time
                and not (var in self.homes and self.block_end[eqn.outvars[0]] == self.end)  # results outlive the block
            ):
                if var in self.donated:
                    self.overwritten.append(self.closed.jaxpr.invars.index(var))
                return position
        return None

    def _buffers(self, time: int, eqn: Equation, into: int | None) -> tuple[int | None, ...]:
        """Assign buffers to results, unless an operand is overwritten."""
        if into is not None:
            self._inherit(eqn.outvars[0], eqn.invars[into])
        if into is not None or is_view(eqn):
            return ()
        written = self.writes(eqn)
        buffers = [self._buffer(var, time, number in written) for number, var in enumerate(eqn.outvars)]
        return tuple(buffers) if any(p is not None for p in buffers) else ()

    def _buffer(self, var: Var, time: int, written: bool) -> int | None:
        """Assign a result a buffer in the block, if it is large and can be written there."""
        life = Lifetime(time, self.block_end[var], var.aval.nbytes)
        if written and life.bytes >= _LARGE and life.end < self.end:
            self.homes[var] = len(self.in_block)
            self.in_block.append(var.aval)
            self.lifetimes.append(life)
            return len(self.in_block) - 1
        self.loose_homes[var] = len(self.loose)
        self.loose.append(life)
        return None

    def _inherit(self, var: Var, old: Atom) -> None:
        """Give a result the memory of an operand."""
        for values, homes in ((self.lifetimes, self.homes), (self.loose, self.loose_homes)):
            if isinstance(old, Var) and old in homes:
                homes[var] = homes[old]
                values[homes[var]] = values[homes[var]]._replace(end=self.block_end[var])


def most_temporaries(plan: Plan, make: Planner, workspace: Callable[[Equation], int]) -> int:
    """Return the most bytes of values between arguments and results at a time.

    `make` plans the programs in steps; `workspace` says how many bytes an equation's kernel needs for itself.
    """
    changes = [0] * (len(plan.steps) + 1)
    for life in plan.loose:
        changes[life.begin] += life.bytes
        changes[life.end + 1] -= life.bytes
    now = most = 0
    for change, step in zip(changes, plan.steps, strict=False):
        now += change
        inside = [most_temporaries(make(p), make, workspace) + sum(a.nbytes for a in p.out_avals) for p in sub_jaxprs(step.eqn.params)]
        most = max(most, now + max(inside, default=workspace(step.eqn)))
    return plan.block + most

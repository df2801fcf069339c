"""Plans: straight-line programs for NumPy, with registers and buffers assigned."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from volta_fn.compiler.buffers import Lifetime, arrange
from volta_fn.compiler.ir.index import is_view
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Literal, Var, sub_jaxprs

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
        #: The types and lifetimes of the arrays in the block, and the number of each variable's array.
        self.block_avals: list[ShapedArray] = []
        self.lifetimes: list[Lifetime] = []
        self.homes: dict[Var, int] = {}
        #: The same of values outside the block.
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
        jaxpr = self.closed.jaxpr
        inputs = tuple([self._take(v) for v in jaxpr.invars])
        constants = tuple([(self._take(v), c) for v, c in zip(jaxpr.constvars, self.closed.consts, strict=True)])
        steps = [self._step(i, eqn) for i, eqn in enumerate(jaxpr.eqns)]
        outputs = tuple([v if isinstance(v, Literal) else self.registers[v] for v in jaxpr.outvars])
        effectful = any(e.primitive.effectful for e in jaxpr.eqns)
        offsets, block = arrange(self.lifetimes)
        buffers = tuple(map(BlockBuffer, offsets, self.block_avals))
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
        dying = dict.fromkeys([v for v in eqn.invars if type(v) is Var and self.last_use[v] == time])
        dead = [self.registers[v] for v in dying if v not in self.closed.jaxpr.constvars]
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
            # Give a result the memory of an operand.
            var = eqn.outvars[0]
            old = eqn.invars[into]
            for values, homes in ((self.lifetimes, self.homes), (self.loose, self.loose_homes)):
                if isinstance(old, Var) and old in homes:
                    homes[var] = homes[old]
                    values[homes[var]] = values[homes[var]]._replace(end=self.block_end[var])
        if into is not None or is_view(eqn):
            return ()
        written = self.writes(eqn)
        buffers = [self._buffer(var, time, number in written) for number, var in enumerate(eqn.outvars)]
        return tuple(buffers) if any(p is not None for p in buffers) else ()

    def _buffer(self, var: Var, time: int, written: bool) -> int | None:
        """Assign a result a buffer in the block, if it is large and can be written there."""
        life = Lifetime(time, self.block_end[var], var.aval.nbytes)
        if written and life.bytes >= _LARGE and life.end < self.end:
            self.homes[var] = len(self.block_avals)
            self.block_avals.append(var.aval)
            self.lifetimes.append(life)
            return len(self.block_avals) - 1
        self.loose_homes[var] = len(self.loose)
        self.loose.append(life)
        return None


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

"""Plans: straight-line programs with buffer lifetimes solved.

A plan's *registers* are reused as values die. A step may be told to write its result into an operand that dies there
(`Step.into`), if the operand's memory is the plan's own: made by an earlier step, or donated by the caller, and shared with no
view that lives on. The plan knows no backend.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

from volta_fn.compiler.passes.driver import simplify
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Literal, Var

Operand = int | Literal


class Step(NamedTuple):
    """One equation on registers."""

    eqn: Equation
    operands: tuple[Operand, ...]
    results: tuple[int, ...]
    #: Registers that hold nothing of use after this step (and are not its results).
    frees: tuple[int, ...]
    #: Position of the operand to overwrite with the result, if any.
    into: int | None


class Plan(NamedTuple):
    """A program ready for a backend."""

    inputs: tuple[int, ...]
    constants: tuple[tuple[int, Any], ...]
    steps: tuple[Step, ...]
    outputs: tuple[Operand, ...]
    #: Inputs whose memory the plan overwrites if the caller lets it.
    overwritten: tuple[int, ...]
    effectful: bool


def make_plan(closed: ClosedJaxpr, donated: Sequence[bool] = ()) -> Plan:
    """Simplify the program, and assign registers and overwrites."""
    return _Planner(simplify(closed), donated).plan()


class _Planner:
    """Assigns registers in one pass over the equations, after one pass that finds when each memory block is last used."""

    def __init__(self, closed: ClosedJaxpr, donated: Sequence[bool]) -> None:
        self.closed = closed
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
        """The finished plan."""
        jaxpr = self.closed.jaxpr
        inputs = tuple([self._take(v) for v in jaxpr.invars])
        constants = tuple([(self._take(v), c) for v, c in zip(jaxpr.constvars, self.closed.consts, strict=True)])
        steps = [self._step(i, eqn) for i, eqn in enumerate(jaxpr.eqns)]
        outputs = tuple([v if isinstance(v, Literal) else self.registers[v] for v in jaxpr.outvars])
        effectful = any(e.primitive.effectful for e in jaxpr.eqns)
        return Plan(inputs, constants, tuple(steps), outputs, tuple(self.overwritten), effectful)

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
        dying = {v for v in eqn.invars if type(v) is Var and self.last_use[v] == time}
        dead = [self.registers[v] for v in dying if v not in self.closed.jaxpr.constvars] if dying else []
        results = tuple([self._take(v) for v in eqn.outvars])
        unused = [self.registers[v] for v in eqn.outvars if self.last_use[v] == time]
        for register in (*dead, *unused):
            heapq.heappush(self.free, register)
        return Step(eqn, operands, results, (*dead, *unused), into)

    def _overwritable(self, time: int, eqn: Equation) -> int | None:
        """The operand that dies here, is the plan's own, and has the result's shape and dtype."""
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
            ):
                if var in self.donated:
                    self.overwritten.append(self.closed.jaxpr.invars.index(var))
                return position
        return None

"""Plans: straight-line programs with buffer lifetimes solved.

A plan's *registers* are reused as values die. A step may be told to write its result into an operand that dies there
(`Step.into`), if the operand's memory is the plan's own: made by an earlier step, or donated by the caller, and shared with no
view that lives on. The plan knows no backend.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

from volta_fn.core.array import Array
from volta_fn.core.dce import dce_jaxpr
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var
from volta_fn.core.primitive import Primitive

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
    """Inline calls, drop dead code, and assign registers and overwrites."""
    program = dce_jaxpr(inline_calls(closed))
    return _Planner(program, donated).plan()


def inline_calls(closed: ClosedJaxpr, of: Primitive | None = None) -> ClosedJaxpr:
    """The program with the bodies of all calls (or only those `of` one primitive) in place of the calls, to any depth.

    A body has the call's values, but not the derivative that a call may have of its own.
    """

    def is_inlined(eqn: Equation) -> bool:
        return eqn.primitive.call_param is not None and of in (None, eqn.primitive)

    if not any(map(is_inlined, closed.eqns)):
        return closed
    consts: dict[Var, Array] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    rename: dict[Var, Atom] = {}
    eqns: list[Equation] = []

    def read(atom: Atom) -> Atom:
        return rename.get(atom, atom) if type(atom) is Var else atom

    def fresh(var: Var) -> Var:
        new = Var(var.aval)
        rename[var] = new
        return new

    # A stack of bodies being copied: (equations left, what to do after).
    stack: list[tuple[list[Equation], Equation | None, ClosedJaxpr | None]] = [(closed.eqns[::-1], None, None)]
    while stack:
        left, call, body = stack[-1]
        if not left:
            stack.pop()
            if call is not None and body is not None:
                rename.update(zip(call.outvars, [read(v) for v in body.jaxpr.outvars], strict=True))
            continue
        eqn = left.pop()
        invars = [read(v) for v in eqn.invars]
        if not is_inlined(eqn):
            # The outermost program's variables keep their identity; those of inlined bodies are made afresh, as a body may be called twice.
            outvars = eqn.outvars if len(stack) == 1 else [fresh(v) for v in eqn.outvars]
            eqns.append(eqn.replace(invars=invars, outvars=outvars))
            continue
        inner: ClosedJaxpr = eqn.params[eqn.primitive.call_param]  # type: ignore[index]  # it is_inlined, so it has one
        rename.update(zip(inner.jaxpr.invars, invars, strict=True))
        for var, value in zip(inner.jaxpr.constvars, inner.consts, strict=True):
            consts[fresh(var)] = value
        stack.append((inner.eqns[::-1], eqn, inner))
    jaxpr = Jaxpr(list(consts), closed.jaxpr.invars, [read(v) for v in closed.jaxpr.outvars], eqns)
    return ClosedJaxpr(jaxpr, list(consts.values()))


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

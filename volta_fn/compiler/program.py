"""Lowered programs: the output of the pipeline, for which targets generate code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from volta_fn.compiler.buffers.memory_layout import Output
from volta_fn.compiler.ir.nodes import KernelCall, Node
from volta_fn.compiler.target import Target
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var
from volta_fn.core.memory.donations import pairs_of

if TYPE_CHECKING:
    from volta_fn.compiler.buffers.plan import Plan


class Pipeline(Protocol):
    """The interface of `compiler/pipeline.py`, which `jit` gives to targets."""

    def lower(self, closed: ClosedJaxpr, target: Target) -> LoweredProgram:
        """Lower a program for a target."""

    def early_routine_keys(self, closed: ClosedJaxpr, target: Target) -> Iterator[RoutineKey]:
        """Yield the keys of equations that fusion leaves alone."""

    def optimize(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """Simplify a program and move products out of scans."""

    def plan(self, closed: ClosedJaxpr, donated: Sequence[bool], writes: Callable[[Equation], Sequence[int]]) -> Plan:
        """Return the straight-line program that NumPy runs."""


class RoutineKey(NamedTuple):
    """Identifies a routine.

    `key` describes it completely, `make()` generates it, or returns None if the target cannot.
    """

    key: Any
    make: Callable[[], Any]


class Item(NamedTuple):
    """A node of a lowered program, with its routine's key.

    The key is None for control flow, and for equations that NumPy computes on the host.
    """

    node: Node
    operands: tuple[Atom, ...]
    results: tuple[Var, ...]
    key: RoutineKey | None
    #: The lowered programs of control flow: a scan's body; a while loop's condition and body; a conditional's branches.
    programs: tuple[LoweredProgram, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether it does anything: it has an effect, or a result with elements."""
        effectful = isinstance(self.node, Equation) and self.node.primitive.effectful
        return effectful or any(v.aval.size for v in self.results)

    @property
    def is_batched(self) -> bool:
        """Whether it is a deferred product that runs in one dispatch with others."""
        return isinstance(self.node, KernelCall) and self.node.batch_products > 0


class HostStep(NamedTuple):
    """An equation that NumPy computes on the host, and why."""

    primitive: str
    reason: str
    #: The user's line that the equation comes from.
    source: str

    @classmethod
    def of(cls, item: Item, reason: str) -> HostStep:
        """Describe an item that runs on the host."""
        if isinstance(item.node, KernelCall):
            return cls("kernel", reason, "")
        return cls(item.node.primitive.name, reason, str(item.node.source or ""))

    def __str__(self) -> str:
        return f"{self.primitive} runs on the host ({self.reason}){f', at {self.source}' if self.source else ''}"


def _kind(var: Var) -> tuple[int, np.dtype]:
    return var.aval.size, var.aval.dtype


def fits(old: Var, new: Var) -> bool:
    """Return True if a value may take another's memory: equal size and dtype."""
    return _kind(old) == _kind(new)


class LoweredProgram(NamedTuple):
    """A program, or the body or branch of control flow, ready for code generation."""

    target: Target
    closed: ClosedJaxpr
    items: tuple[Item, ...]
    #: Aliases (reshapes of values in memory), each with the variable whose memory it shares.
    roots: dict[Var, Var]
    #: The number of the item that reads a root last; for outputs, the number of items.
    last_use: dict[Var, int]
    #: The number of the item that computes a root.
    producers: dict[Var, int]

    def root(self, var: Var) -> Var:
        """Return the variable whose memory a variable has."""
        return self.roots.get(var, var)

    @property
    def results(self) -> list[Var]:
        """The roots of the outputs that the program computes itself, each once."""
        roots = [self.root(v) for v in self.closed.jaxpr.outvars if isinstance(v, Var)]
        return list(dict.fromkeys([v for v in roots if v in self.producers]))

    def routine_keys(self) -> list[RoutineKey]:
        """Return the keys of all routines, those of nested programs included."""
        own = [item.key for item in self.items if item.key is not None]
        return own + [key for item in self.items for program in item.programs for key in program.routine_keys()]

    def host_steps(self) -> Iterator[HostStep]:
        """Yield the equations that run on the host, those of nested programs included.

        This generates all routines.
        """
        for item in self.items:
            if item.is_needed and (reason := self.target.host_reason(item)) is not None:
                yield HostStep.of(item, reason)
            for program in item.programs:
                yield from program.host_steps()

    # memory

    def can_overwrite(self, number: int, operand: Var, result: Var) -> bool:
        """Return True if an item may store a result in an operand's memory."""
        item = self.items[number]
        positions = [i for i, v in enumerate(item.operands) if isinstance(v, Var) and self.root(v) is operand]
        return len(positions) == 1 and positions[0] in self.target.overwritable(item, item.results.index(result))

    def may_share(self, argument: Var, output: Atom) -> bool:
        """Return True if an output may be computed in the memory of an input."""
        if not isinstance(output, Var):
            return False
        result = self.root(output)
        producer, last = self.producers.get(result), self.last_use.get(argument, -1)
        if producer is None or last > producer or not fits(argument, result):
            return False
        return last < producer or self.can_overwrite(producer, argument, result)

    def overwritten_before(self, output: Var) -> list[Var]:
        """Return the values that an output's memory may hold before it, latest first.

        These are the operand that the output overwrites, what that one overwrites, and so on. An input that may share the output's memory
        is not overwritten before its last use.
        """
        found: list[Var] = []
        inputs: list[Var] | None = None
        result = self.root(output)
        while True:
            number = self.producers[result]
            operands = [self.root(v) for v in self.items[number].operands if isinstance(v, Var)]
            dying = [v for v in operands if v in self.producers and self.last_use[v] == number and fits(v, result)]
            old = next((v for v in dying if self.can_overwrite(number, v, result)), None)
            if old is None:
                return found
            if inputs is None:
                inputs = [v for v in self.closed.jaxpr.invars if self.may_share(v, output)]
            if any(self.last_use.get(v, -1) >= self.producers[old] for v in inputs):
                return found
            found.append(old)
            result = old

    def reusable(self, donated: Sequence[bool]) -> tuple[tuple[int, int], ...]:
        """Return which results may take the memory of donated arguments.

        Each is a pair of numbers: (result, argument). Those with equal paths in their trees come first.
        """
        invars = self.closed.jaxpr.invars
        pairs = self._paired(donated)
        taken, results = {argument for _, argument in pairs}, {result for result, _ in pairs}
        free: dict[tuple[int, np.dtype], list[int]] = {}
        for i in [i for i, d in enumerate(donated) if d and i not in taken]:
            free.setdefault(_kind(invars[i]), []).append(i)
        for number, var in enumerate(self.results):
            fitting = free.get(_kind(var), []) if number not in results else []
            found = next((i for i in fitting if self.may_share(invars[i], var)), None)
            if found is not None:
                fitting.remove(found)
                pairs.append((number, found))
        return tuple(sorted(pairs))

    def _paired(self, donated: Sequence[bool]) -> list[tuple[int, int]]:
        """Return the results that may take the memory of the argument of their path."""
        jaxpr, numbers = self.closed.jaxpr, {var: number for number, var in enumerate(self.results)}
        found: dict[int, int] = {}
        for output, argument in pairs_of(donated):
            var = jaxpr.outvars[output]
            number = numbers.get(self.root(var)) if isinstance(var, Var) else None
            if number is not None and number not in found and self.may_share(jaxpr.invars[argument], var):
                found[number] = argument
        return list(found.items())

    def outputs(self) -> list[Output]:
        """Return what each output is: a result, an argument or a constant."""
        results = {var: number for number, var in enumerate(self.results)}
        return [self._output(v, results) for v in self.closed.jaxpr.outvars]

    def _output(self, atom: Atom, results: dict[Var, int]) -> Output:
        if isinstance(atom, Literal):
            return Output(None, None, atom.val, atom.aval.shape)
        root, jaxpr = self.root(atom), self.closed.jaxpr
        if root in results:
            return Output(results[root], None, None, atom.aval.shape)
        if root in jaxpr.constvars:
            return Output(None, None, self.closed.consts[jaxpr.constvars.index(root)], atom.aval.shape)
        return Output(None, jaxpr.invars.index(root), None, atom.aval.shape)

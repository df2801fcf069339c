"""Programs of kernel calls and equations, with the uses of their variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import is_
from typing import Any, NamedTuple

from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var


class KernelCall(NamedTuple):
    """A kernel in a program: the variables that it reads and those that it computes."""

    kernel: Kernel
    operands: tuple[Var, ...]
    results: tuple[Var, ...]
    #: Multiplications of all matrix products that are to run in one dispatch with this one; 0 if it runs by itself.
    deferred_work: int = 0


#: A node of a fused program; `ir.kernel.Node` is one of a kernel.
ProgramNode = KernelCall | Equation


def reads(node: ProgramNode) -> Sequence[Var]:
    """Return the variables that a node reads, without literals."""
    return node.operands if isinstance(node, KernelCall) else [v for v in node.invars if isinstance(v, Var)]


def writes(node: ProgramNode) -> Sequence[Var]:
    """Return the variables that a node computes."""
    return node.results if isinstance(node, KernelCall) else node.outvars


class FusedProgram(NamedTuple):
    """A program as kernel calls and remaining equations, in an order that can run."""

    closed: ClosedJaxpr
    nodes: tuple[ProgramNode, ...]
    #: Aliases (reshapes of values in memory), each with the variable whose memory it shares.
    roots: Mapping[Var, Var] = {}
    #: Whether it is the body or a branch of control flow.
    nested: bool = False

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels, equal ones included."""
        return [node.kernel for node in self.nodes if isinstance(node, KernelCall)]

    @property
    def outputs(self) -> list[Atom]:
        """The program's outputs."""
        return self.closed.jaxpr.outvars

    def root(self, var: Var) -> Var:
        """Return the variable whose memory a variable has."""
        return self.roots.get(var, var)

    def reads(self, node: ProgramNode) -> list[Var]:
        """Return the roots of the variables that a node reads."""
        return [self.roots.get(v, v) for v in reads(node)]


def with_each_replaced(closed: ClosedJaxpr, replace: Callable[[Equation], Sequence[Equation]]) -> ClosedJaxpr:
    """Replace each equation of a program by those that `replace` gives for it."""
    eqns = [new for eqn in closed.eqns for new in replace(eqn)]
    same = len(eqns) == len(closed.eqns) and all(map(is_, eqns, closed.eqns))
    return closed if same else closed.replace(eqns=eqns)


def simplify_nested(closed: ClosedJaxpr, simplify: Callable[[ClosedJaxpr], ClosedJaxpr]) -> ClosedJaxpr:
    """Apply `simplify` to the programs that a program's equations hold."""
    return with_each_replaced(closed, lambda eqn: [_with_simplified_programs(eqn, simplify) if eqn.primitive.holds_programs else eqn])


def _with_simplified_programs(eqn: Equation, simplify: Callable[[ClosedJaxpr], ClosedJaxpr]) -> Equation:
    def apply(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return simplify(value)
        return tuple(map(apply, value)) if type(value) is tuple else value

    params = {k: apply(v) for k, v in eqn.params.items()}
    return eqn if params == eqn.params else eqn.replace(params=params)


def equations_between(producers: Mapping[Var, Equation], operands: Iterable[Var | object], results: Iterable[Var]) -> list[Equation]:
    """Return the equations on all paths from operands to results."""
    ends, pending = set(operands), [*results]
    equations: dict[int, Equation] = {}
    while pending:
        var = pending.pop()
        eqn = producers.get(var)
        if eqn is None or var in ends or id(eqn) in equations:
            continue
        equations[id(eqn)] = eqn
        pending += [v for v in eqn.invars if isinstance(v, Var)]
    return list(equations.values())


class DefUse:
    """The producer and the consumers of each variable, as numbers of nodes."""

    def __init__(self, nodes: Iterable[ProgramNode] = (), roots: Mapping[Var, Var] = {}) -> None:
        self.nodes: list[ProgramNode] = []
        self.roots = roots
        self.producers: dict[Var, int] = {}
        for node in nodes:
            self.add(node)

    def add(self, node: ProgramNode) -> None:
        """Append a node; only before anything is asked about consumers."""
        for var in writes(node):
            self.producers[var] = len(self.nodes)
        self.nodes.append(node)

    @cached_property
    def consumers(self) -> dict[Var, list[int]]:
        """The numbers of the nodes that read each root."""
        consumers: dict[Var, list[int]] = {}
        for number, node in enumerate(self.nodes):
            for var in dict.fromkeys([self.roots.get(v, v) for v in reads(node)]):
                consumers.setdefault(var, []).append(number)
        return consumers

    def position(self, atom: Atom) -> int:
        """Return the number of an atom's producer; -1 for literals, inputs and constants."""
        return self.producers.get(atom, -1) if type(atom) is Var else -1

    def producer(self, atom: Atom, *names: str) -> Equation | None:
        """Return the equation that computes an atom; with names, only one of these."""
        number = self.producers.get(atom) if type(atom) is Var else None
        node = None if number is None else self.nodes[number]
        return node if isinstance(node, Equation) and (not names or node.primitive.name in names) else None

    def users(self, var: Var) -> list[Equation]:
        """Return the equations that read a variable."""
        return [node for n in self.consumers.get(var, ()) if isinstance(node := self.nodes[n], Equation)]

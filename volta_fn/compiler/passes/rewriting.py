"""Rewriting: one walk over a program that replaces results by simpler ones.

A *rule* looks at an equation whose operands are simplified already, and returns the atom that may replace its result (a list of atoms if
the primitive has several results), or None. It may `emit` equations to make that atom. A *source* of rules says which apply to a primitive;
a table, of rules by primitives' names, is the most common one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.compiler.ir.kernel import DefUse
from volta_fn.core.arrays.array import Array, from_host, numbers_of
from volta_fn.core.aval import Shape
from volta_fn.core.caches import exact
from volta_fn.core.devices.device import find_device
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var, primitives_of
from volta_fn.core.primitive import PRIMITIVES, Primitive

Rule = Callable[[Equation, "Rewriter"], Atom | Sequence[Atom] | None]
RuleSource = Callable[[Primitive], Sequence[Rule]]
Table = dict[str, list[Rule]]


def rule(table: Table, *names: str) -> Callable[[Rule], Rule]:
    """Add the decorated rule to the table, for primitives of these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            table.setdefault(name, []).append(function)
        return function

    return register


def rules_of_table(table: Table) -> RuleSource:
    """Return the table as a source of rules."""
    return lambda primitive: table.get(primitive.name, ())


class Rules(dict[Primitive, Sequence[Rule]]):
    """The rules of each primitive from all sources, in order, found once."""

    def __init__(self, *sources: RuleSource) -> None:
        super().__init__()
        self.sources = sources

    def __missing__(self, primitive: Primitive) -> Sequence[Rule]:
        rules = self[primitive] = tuple([rule for source in self.sources for rule in source(primitive)])
        return rules


def rewrite(closed: ClosedJaxpr, rules: Rules) -> ClosedJaxpr:
    """Return the program after one walk with these rules.

    It is the same object if none applied. One walk is enough: rules look back only, at what is simplified already, and what they emit is
    simplified, too.
    """
    if not any(rules[primitive] for primitive in primitives_of(closed)):
        return closed
    return Rewriter(closed, rules).run()


class Rewriter:
    """The rewritten beginning of a program, in which rules look up equations."""

    def __init__(self, closed: ClosedJaxpr, rules: Rules) -> None:
        self._closed = closed
        self._rules = rules
        self._index = DefUse()
        self.producer = self._index.producer
        #: The values of variables that are constants of the program.
        self.constants: dict[Var, Array] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        #: The results of equations, by a key that equal equations share.
        self.seen: dict[Any, list[Var]] = {}

    def run(self) -> ClosedJaxpr:
        """Walk over the program."""
        renamed: dict[Atom, Atom] = {}
        for eqn in self._closed.eqns:
            for atom in eqn.invars:
                if atom in renamed:
                    eqn = eqn.replace(invars=[renamed.get(v, v) for v in eqn.invars])
                    break
            atoms = self._simplified(eqn)
            if atoms is not None:
                renamed.update(zip(eqn.outvars, atoms if eqn.primitive.multiple_results else [atoms], strict=True))
        if not renamed:
            return self._closed
        jaxpr = self._closed.jaxpr
        outvars = [renamed.get(v, v) for v in jaxpr.outvars]
        eqns = [node for node in self._index.nodes if isinstance(node, Equation)]
        return ClosedJaxpr(Jaxpr(list(self.constants), jaxpr.invars, outvars, eqns), list(self.constants.values()))

    def _simplified(self, eqn: Equation) -> Any:
        """Return the first matching rule's atoms, or append the equation and return None."""
        for function in self._rules[eqn.primitive]:
            result = function(eqn, self)
            if result is not None:
                return result
        self._index.add(eqn)
        return None

    def emit(self, origin: Equation, name: str, *invars: Atom, **params: Any) -> Atom:
        """Return the result of a new equation, which is simplified, too.

        It has the source position of `origin`, the equation that it helps to replace.
        """
        primitive = PRIMITIVES[name]
        aval = primitive.result_avals(tuple([v.aval for v in invars]), params)
        eqn = Equation(primitive, list(invars), [Var(aval)], params, origin.position)
        simplified = self._simplified(eqn)
        return eqn.outvars[0] if simplified is None else simplified

    def scalar(self, atom: Atom) -> np.ndarray | None:
        """Return the one value that all elements of the atom have, if it is known."""
        if type(atom) is Literal:
            return numbers_of(atom.val)
        eqn = self.producer(atom, "broadcast_in_dim")
        return None if eqn is None or type(eqn.invars[0]) is not Literal else numbers_of(eqn.invars[0].val)

    def fitted(self, eqn: Equation, atom: Atom) -> Atom:
        """Broadcast the atom to the shape of the equation's result."""
        shape: Shape = eqn.outvars[0].aval.shape
        if atom.aval.shape == shape:
            return atom
        dims = tuple(range(len(shape) - atom.aval.ndim, len(shape)))
        return self.emit(eqn, "broadcast_in_dim", atom, shape=shape, broadcast_dimensions=dims)


def literal(value: Any, dtype: np.dtype) -> Literal:
    """Return a literal of this value and dtype."""
    return Literal(from_host(np.asarray(value, dtype), device=find_device("cpu")))


def literal_key(atom: Atom) -> Any:
    """Return a key that literals of the same dtype and bits share; a variable itself."""
    value = numbers_of(atom.val) if type(atom) is Literal else None
    return atom if value is None else (value.dtype, value.tobytes())


def params_key(params: dict[str, Any]) -> tuple[Any, ...]:
    """Return parameters as a key, which tells 1 from True and 0.0 from -0.0."""
    return (*params, *map(exact, params.values()))

"""Rewriting: one walk over a program that replaces results by simpler ones.

A *rule* looks at an equation whose operands are simplified already, and gives the atom that may stand for its result (a list of atoms
if the primitive has several results), or None. It may `emit` equations to make that atom. A *source* of rules says which apply to a
primitive; a table, of rules by primitives' names, is the most common one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.compiler.passes.param_keys import numbers_of
from volta_fn.core.array import Array, from_host
from volta_fn.core.aval import Shape
from volta_fn.core.device import find_device
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var
from volta_fn.core.primitive import PRIMITIVES, Primitive

Rule = Callable[[Equation, "Rewriter"], Atom | Sequence[Atom] | None]
Source = Callable[[Primitive], Sequence[Rule]]
Table = dict[str, list[Rule]]


def rule(table: Table, *names: str) -> Callable[[Rule], Rule]:
    """Put the decorated rule into the table, for primitives of these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            table.setdefault(name, []).append(function)
        return function

    return register


def listed(table: Table) -> Source:
    """The table as a source of rules."""
    return lambda primitive: table.get(primitive.name, ())


class Rules(dict[Primitive, Sequence[Rule]]):
    """The rules of each primitive from all sources, in their order. Found once per primitive."""

    def __init__(self, *sources: Source) -> None:
        super().__init__()
        self.sources = sources

    def __missing__(self, primitive: Primitive) -> Sequence[Rule]:
        rules = self[primitive] = tuple([found for source in self.sources for found in source(primitive)])
        return rules


def rewrite(closed: ClosedJaxpr, rules: Rules) -> ClosedJaxpr:
    """The program after one walk with these rules; the same object if none applied.

    One walk is enough: rules look back only, at what is simplified already, and what they emit is simplified on the spot.
    """
    return Rewriter(closed, rules).run()


class Rewriter:
    """The program as far as it is rewritten; what rules look things up in."""

    def __init__(self, closed: ClosedJaxpr, rules: Rules) -> None:
        self._closed = closed
        self._rules = rules
        self._eqns: list[Equation] = []
        self._makers: dict[Var, Equation] = {}
        #: The values of variables that are constants of the program.
        self.constants: dict[Var, Array] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        #: The results of equations, by what equal equations have in common.
        self.seen: dict[Any, list[Var]] = {}

    def run(self) -> ClosedJaxpr:
        """Walk over the program."""
        renamed: dict[Atom, Atom] = {}
        for eqn in self._closed.eqns:
            for atom in eqn.invars:
                if atom in renamed:
                    eqn = eqn.replace(invars=[renamed.get(v, v) for v in eqn.invars])
                    break
            found = self._place(eqn)
            if found is not None:
                renamed.update(zip(eqn.outvars, found if eqn.primitive.multiple_results else [found], strict=True))
        if not renamed:
            return self._closed
        jaxpr = self._closed.jaxpr
        outvars = [renamed.get(v, v) for v in jaxpr.outvars]
        return ClosedJaxpr(Jaxpr(list(self.constants), jaxpr.invars, outvars, self._eqns), list(self.constants.values()))

    def _place(self, eqn: Equation) -> Any:
        """What a rule has for the equation's results; None if none has, and then the equation is part of the new program."""
        for function in self._rules[eqn.primitive]:
            found = function(eqn, self)
            if found is not None:
                return found
        self._eqns.append(eqn)
        for var in eqn.outvars:
            self._makers[var] = eqn
        return None

    def emit(self, place: Equation, name: str, *invars: Atom, **params: Any) -> Atom:
        """The result of a new equation, itself simplified, that belongs to the line of the equation at whose place it stands."""
        primitive = PRIMITIVES[name]
        aval = primitive.result_avals(tuple([v.aval for v in invars]), params)
        eqn = Equation(primitive, list(invars), [Var(aval)], params, place.position)
        found = self._place(eqn)
        return eqn.outvars[0] if found is None else found

    def makes(self, atom: Atom) -> Equation | None:
        """The equation that computes the atom."""
        return self._makers.get(atom) if type(atom) is Var else None

    def maker(self, atom: Atom, name: str) -> Equation | None:
        """The equation that computes the atom, if it is one of the primitive of this name."""
        eqn = self.makes(atom)
        return eqn if eqn is not None and eqn.primitive.name == name else None

    def scalar(self, atom: Atom) -> np.ndarray | None:
        """The one value that all elements of the atom have, if it is known."""
        if type(atom) is Literal:
            return numbers_of(atom.val)
        made = self.maker(atom, "broadcast_in_dim")
        return None if made is None or type(made.invars[0]) is not Literal else numbers_of(made.invars[0].val)

    def fitted(self, place: Equation, atom: Atom) -> Atom:
        """The atom broadcast to the shape of the equation's result."""
        shape: Shape = place.outvars[0].aval.shape
        if atom.aval.shape == shape:
            return atom
        dims = tuple(range(len(shape) - atom.aval.ndim, len(shape)))
        return self.emit(place, "broadcast_in_dim", atom, shape=shape, broadcast_dimensions=dims)


def literal(value: Any, dtype: np.dtype) -> Literal:
    """A literal of this value and dtype."""
    return Literal(from_host(np.asarray(value, dtype), device=find_device("cpu")))

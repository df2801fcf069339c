"""Looking things up in a program: what makes a variable, and who reads it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from volta_fn.compiler.passes.param_keys import numbers_of
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var


class Program:
    """A program to look things up in."""

    def __init__(self, closed: ClosedJaxpr) -> None:
        self.closed = closed
        #: Where in the program an equation stands; which makes a variable; which read it.
        self.positions: dict[int, int] = {}
        self.makers: dict[Var, Equation] = {}
        self.readers: dict[Var, list[Equation]] = {}
        for position, eqn in enumerate(closed.eqns):
            self.positions[id(eqn)] = position
            self.makers.update(dict.fromkeys(eqn.outvars, eqn))
            for var in dict.fromkeys(v for v in eqn.invars if isinstance(v, Var)):
                self.readers.setdefault(var, []).append(eqn)
        self.outputs = {v for v in closed.jaxpr.outvars if isinstance(v, Var)}

    def maker(self, atom: Atom, *names: str) -> Equation | None:
        """The equation that makes the atom, if it is one of the primitives of these names."""
        eqn = self.makers.get(atom) if isinstance(atom, Var) else None
        return eqn if eqn is not None and eqn.primitive.name in names else None

    def position(self, atom: Atom) -> int:
        """Where what makes the atom stands; -1 for what is there from the beginning."""
        eqn = self.makers.get(atom) if isinstance(atom, Var) else None
        return -1 if eqn is None else self.positions[id(eqn)]

    def behind(self, atom: Atom, *names: str) -> Atom:
        """What an atom is before equations of these names were applied to it."""
        while (eqn := self.maker(atom, *names)) is not None:
            atom = eqn.invars[0]
        return atom

    def final_readers(self, var: Var, *names: str) -> Iterator[tuple[Equation, Var] | None]:
        """The readers of a variable with what they read, looking through equations of these names; None if it is an output."""
        if var in self.outputs:
            yield None
        for eqn in self.readers.get(var, ()):
            if eqn.primitive.name in names:
                yield from self.final_readers(eqn.outvars[0], *names)
            else:
                yield eqn, var


def number(atom: Atom) -> float | None:
    """The value of a scalar that is written in the program."""
    value = numbers_of(atom.val) if isinstance(atom, Literal) else None
    return None if value is None or np.iscomplexobj(value) else float(value)

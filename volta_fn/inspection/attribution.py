"""Which equations a kernel computes, and the user's lines that they come from.

Fusion keeps no record of what it fused: a kernel computes what lies between its operands and its results in the program before fusion.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.compiler.ir.nodes import KernelCall, equations_between
from volta_fn.compiler.program import Item, LoweredProgram
from volta_fn.core.jaxpr import Equation, Var, sub_jaxprs
from volta_fn.source import SourceLocation


class Attribution:
    """The equations of a lowered program's items."""

    def __init__(self, program: LoweredProgram) -> None:
        self.program = program
        self._producers = {v: eqn for eqn in program.closed.eqns for v in eqn.outvars}
        self._order = {id(eqn): number for number, eqn in enumerate(program.closed.eqns)}
        self._readers: dict[Var, list[Item]] = {}
        for item in program.items:
            for operand in item.operands:
                if isinstance(operand, Var):
                    self._readers.setdefault(program.root(operand), []).append(item)

    def equations(self, item: Item) -> list[Equation]:
        """Return the equations that an item computes, in the program's order."""
        if not isinstance(item.node, KernelCall):
            return [item.node]
        found = equations_between(self._producers, item.operands, item.results)
        if not found:  # its results are partial sums, which the program before fusion does not have
            readers = [reader for result in item.results for reader in self._readers.get(result, ())]
            found = equations_between(self._producers, item.operands, [v for reader in readers for v in reader.results])
        return sorted(found, key=lambda eqn: self._order[id(eqn)])


def locations_of(equations: Sequence[Equation]) -> list[SourceLocation]:
    """Return the lines of the user that equations come from, each once.

    Lines of an equation's programs count where it has none of its own.
    """
    found: dict[SourceLocation, None] = {}
    for eqn in equations:
        if eqn.source is not None:
            found[eqn.source] = None
            continue
        for program in sub_jaxprs(eqn.params):
            found.update(dict.fromkeys(locations_of(program.eqns)))
    return list(found)

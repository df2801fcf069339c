"""Signatures: loops that differ only in what their variables are called have one, and one kernel serves them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volta_fn.compiler.lowering.equations import Loop, Lowered, lower
from volta_fn.compiler.passes.param_keys import literal_key, params_key
from volta_fn.core.jaxpr import Atom, Equation, Var


class Kernels:
    """Lowers each kind of loop once."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, list[int]]] = {}

    def lowered(self, loop: Loop, views: Mapping[Var, Equation]) -> Lowered:
        """The kernel of a loop, as `lower` gives it. Raises `NotAffine`."""
        key, variables = _signature(loop, views)
        if key not in self._known:
            found = lower(loop, views)
            numbers = {v: n for n, v in enumerate(variables)}
            self._known[key] = found.kernel, [numbers[v] for v in found.operands]
        kernel, operands = self._known[key]
        return Lowered(kernel, tuple([variables[n] for n in operands]))


def _signature(loop: Loop, views: Mapping[Var, Equation]) -> tuple[Any, list[Var]]:
    """What a kernel depends on, with variables as numbers in the order of their first appearance, and the variables."""
    numbers: dict[Var, int] = {}
    parts: list[Any] = [loop.sizes, loop.reduced]
    through: list[Equation] = []

    def number(atom: Atom) -> Any:
        if not isinstance(atom, Var):
            return literal_key(atom)
        if atom not in numbers:
            numbers[atom] = len(numbers)
            parts.append(atom.aval)
            if atom in views:
                through.append(views[atom])
        return numbers[atom]

    def describe(eqn: Equation) -> None:
        parts.append(eqn.primitive)
        parts.extend([number(v) for v in eqn.invars])
        parts.extend([number(v) for v in eqn.outvars])
        if eqn.params:
            parts.append(params_key(eqn.params))

    for step in loop.steps:
        describe(step.eqn)
        parts.append(step.at)
        while through:
            describe(through.pop())
    for var, index in loop.outputs:
        parts.append((numbers[var], index))
    return tuple(parts), list(numbers)

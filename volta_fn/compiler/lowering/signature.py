"""Loops that differ only in the identity of variables are lowered once."""

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
        """Return the kernel of a loop, as `lower` does. Raises `NotAffine`."""
        key, variables = _signature(loop, views)
        if key not in self._known:
            found = lower(loop, views)
            numbers = {v: n for n, v in enumerate(variables)}
            self._known[key] = found.kernel, [numbers[v] for v in found.operands]
        kernel, operands = self._known[key]
        return Lowered(kernel, tuple([variables[n] for n in operands]))


def _signature(loop: Loop, views: Mapping[Var, Equation]) -> tuple[Any, list[Var]]:
    """Return what a kernel depends on, and the variables.

    Variables are numbered in the order of their first appearance.
    """
    numbers: dict[Var, int] = {}
    key: list[Any] = [loop.sizes, loop.reduced]
    through: list[Equation] = []

    def number(atom: Atom) -> Any:
        if not isinstance(atom, Var):
            return literal_key(atom)
        if atom not in numbers:
            numbers[atom] = len(numbers)
            key.append(atom.aval)
            if atom in views:
                through.append(views[atom])
        return numbers[atom]

    def describe(eqn: Equation) -> None:
        key.append(eqn.primitive)
        key.extend([number(v) for v in eqn.invars])
        key.extend([number(v) for v in eqn.outvars])
        if eqn.params:
            key.append(params_key(eqn.params))

    for step in loop.steps:
        describe(step.eqn)
        key.append(step.at)
        while through:
            describe(through.pop())
    for var, index in loop.outputs:
        key.append((numbers[var], index))
    return tuple(key), list(numbers)

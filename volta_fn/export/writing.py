"""From a program to the JSON of a manifest.

Calls are kept, but for their derivative rules, which are Python functions: what is written is the program that they call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn.core.array import ConcreteArray, host_buffer
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, called_program
from volta_fn.errors import ExportError
from volta_fn.export.values import UnstorableError, encode, encode_aval
from volta_fn.primitives.call import call_params, jit_p

#: Calls that targets have routines for, which recognise them by name.
_KEPT = frozenset({"attention", "attention_tangent", "attention_gradient", "jit"})


class ProgramWriter:
    """Writes programs, each once, those that a program calls before it."""

    def __init__(self) -> None:
        self.programs: list[dict[str, Any]] = []
        self.constants: list[np.ndarray] = []
        self.types: list[Any] = []
        self._written: dict[ClosedJaxpr, int] = {}
        self._stored: dict[int, int] = {}

    def write(self, closed: ClosedJaxpr) -> int:
        """Write a program, unless it has been, and return its number."""
        if closed not in self._written:
            made = self._program(closed)
            self._written[closed] = len(self.programs)
            self.programs.append(made)
        return self._written[closed]

    def _program(self, closed: ClosedJaxpr) -> dict[str, Any]:
        jaxpr = closed.jaxpr
        numbers: dict[Atom, int] = {}

        def bind(variables: Sequence[Var]) -> list[Any]:
            for variable in variables:
                numbers[variable] = len(numbers)
            return [encode_aval(v.aval) for v in variables]

        def read(atoms: Sequence[Atom]) -> list[Any]:
            return [_literal(a) if isinstance(a, Literal) else numbers[a] for a in atoms]

        bind(jaxpr.constvars)
        constants, inputs = [self._constant(c) for c in closed.consts], bind(jaxpr.invars)
        equations = []
        for eqn in map(without_rules, jaxpr.eqns):
            operands, params = read(eqn.invars), self._params(eqn)
            equations.append([eqn.primitive.name, operands, bind(eqn.outvars), params])
        return {"constants": constants, "inputs": inputs, "equations": equations, "outputs": read(jaxpr.outvars)}

    def _params(self, eqn: Equation) -> dict[str, Any]:
        if eqn.primitive.effectful or "callback" in eqn.params:
            raise ExportError(f"{_where(eqn)} calls a Python function, which a file cannot hold; leave it out of the exported function")
        try:
            return {name: encode(value, self.write) for name, value in sorted(eqn.params.items())}
        except UnstorableError as error:
            raise ExportError(f"{_where(eqn)} holds {error}, which a file cannot") from error

    def _constant(self, value: Any) -> int:
        if id(value) not in self._stored:
            if not isinstance(value, ConcreteArray):
                raise ExportError("an exported function cannot depend on traced arrays; export it outside of transforms")
            self._stored[id(value)] = len(self.constants)
            self.constants.append(np.asarray(host_buffer(value)))
            self.types.append(encode_aval(value.aval))
        return self._stored[id(value)]


def without_rules(eqn: Equation) -> Equation:
    """Return an equation whose calls have no rules in Python: calls become plain ones."""
    if eqn.primitive.name in _KEPT:
        return eqn
    called = called_program(eqn)
    if called is None:
        return eqn
    operands = eqn.invars[len(eqn.invars) - len(called.invars) :]
    return Equation(jit_p, operands, eqn.outvars, call_params(called, eqn.primitive.name), eqn.position)


def _literal(literal: Literal) -> dict[str, Any]:
    buffer = np.asarray(host_buffer(literal.val))
    return {"literal": [encode_aval(literal.aval), buffer.tobytes().hex()]}


def _where(eqn: Equation) -> str:
    return f"{eqn.primitive.name}{'' if eqn.source is None else f' (from {eqn.source})'}"

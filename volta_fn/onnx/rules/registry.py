"""Declaration of rules, which write nodes for equations.

A rule is a function ``(writer, eqn, *names) -> name or names``: given the names of the operands' values, it adds nodes and returns the
names of the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Equation

Rule = Callable[..., Any]

#: Rules by primitive.
RULES: dict[str, Rule] = {}


class Writer(Protocol):
    """Adds nodes to a graph; values have names."""

    def op(self, kind: str, *names: str, **attributes: Any) -> str:
        """Add a node with one result, and return that result's name."""

    def ops(self, kind: str, outputs: int, *names: str, **attributes: Any) -> list[str]:
        """Add a node with several results."""

    def constant(self, value: Any) -> str:
        """Return the name of a constant."""

    def program(self, closed: ClosedJaxpr, operands: Sequence[str]) -> list[str]:
        """Add the nodes of a program, and return the names of its results."""

    def graph(self, name: str, inputs: Sequence[ShapedArray], build: Callable[[Writer, Sequence[str]], Sequence[str]]) -> Any:
        """Return a graph that a node runs; `build` adds its nodes."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Declare a function to be the rule of primitives (decorator)."""

    def declare(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return declare


def ints(w: Writer, values: Any) -> str:
    """Return the name of a constant of integers."""
    return w.constant(np.asarray(values, np.int64))


def scalar(w: Writer, value: Any, like: ShapedArray) -> str:
    """Return the name of a number of a dtype."""
    return w.constant(np.asarray(value, like.dtype))


def aval(eqn: Equation, position: int = 0) -> ShapedArray:
    """Return the type of an operand."""
    return eqn.invars[position].aval


def result(eqn: Equation) -> ShapedArray:
    """Return the type of the first result."""
    return eqn.outvars[0].aval


def shaped(w: Writer, name: str, shape: Sequence[int]) -> str:
    """Reshape a value."""
    return w.op("Reshape", name, ints(w, shape), allowzero=1)

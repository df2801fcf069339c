"""Emitting the values of nodes, each once, as far out of the loops as it can be.

A `Scope` is a position in a nest of loops: some axes are *bound* to indices. Before a loop is opened, `hoist` emits what the loop's nodes
need and what depends on bound axes alone. Targets say how a node is emitted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Generic, Self, TypeVar

from volta_fn.compiler.ir.analysis import KernelAnalysis
from volta_fn.compiler.ir.kernel import Constant, Reduce, operands

#: A target's index along an axis, and its value of a node.
I = TypeVar("I")  # noqa: E741
N = TypeVar("N")


class Scope(ABC, Generic[I, N]):
    """A position in a nest of loops, which sees what its parents have emitted."""

    #: Nodes whose values are loaded from where they were kept, so that their operands are not needed.
    kept: Set[int] = frozenset()

    def __init__(self, analysis: KernelAnalysis, parents: Sequence[Self], axes: Mapping[int, I]) -> None:
        self.analysis = analysis
        self.parents = parents
        self.axes: dict[int, I] = {}
        for parent in parents:
            self.axes.update(parent.axes)
        self.axes.update(axes)
        self.numbers: dict[int, N] = {}

    @abstractmethod
    def number(self, number: int) -> N:
        """Return a node's value, which is emitted here unless it is known."""

    @abstractmethod
    def prepare_operands(self, number: int) -> None:
        """Emit operands of a node that are known here, although its value is not."""

    def inherited(self, table: str, key: Any) -> Any:
        """Return an entry of one of the tables here or of a parent; None if there is none."""
        found = getattr(self, table).get(key)
        for parent in self.parents:
            if found is not None:
                break
            found = parent.inherited(table, key)
        return found

    def find(self, number: int) -> N | None:
        """Return a node's value if it is emitted already."""
        return self.inherited("numbers", number)

    def needed(self, targets: Iterable[int]) -> list[int]:
        """Return the nodes, in order, that are to be emitted for some nodes."""
        nodes, found = self.analysis.kernel.nodes, set[int]()
        waiting = list(targets)
        while waiting:
            number = waiting.pop()
            if number in found or self.find(number) is not None:
                continue
            found.add(number)
            if number not in self.kept and not isinstance(nodes[number], Reduce):
                waiting += operands(nodes[number])
        return sorted(found)

    def hoist(self, targets: Iterable[int]) -> None:
        """Emit what inner loops need for some nodes and what is the same in all of them."""
        bound = self.axes.keys()
        for number in self.needed(targets):
            if isinstance(self.analysis.kernel.nodes[number], Constant | Reduce):
                continue
            if self.analysis.depends[number] <= bound:
                self.number(number)
            else:
                self.prepare_operands(number)

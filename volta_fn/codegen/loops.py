"""Loops over kernels, as all targets emit them.

A `Scope` emits the values of nodes, each once, as far out of the loops as possible. Accumulators are the states of reductions. A pass is
one traversal of a row: what it reduces, stores, and keeps for later passes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import numpy as np

from volta_fn.compiler.ir.axes import KernelAnalysis, coefficient
from volta_fn.compiler.ir.kernel import Constant, Reduce, operands

# A `Scope` is a position in a nest of loops: some axes are *bound* to indices. Before a loop is opened, `hoist` emits what the loop's
# nodes need and what depends on bound axes alone. Targets say how a node is emitted.

#: A target's index along an axis, and its value of a node.
I = TypeVar("I")  # noqa: E741
N = TypeVar("N")


class Scope(ABC, Generic[I, N]):
    """A position in a nest of loops, which sees what its parents have emitted."""

    #: Nodes whose values are loaded from buffers, so that their operands are not needed.
    buffered: Set[int] = frozenset()

    def __init__(self, analysis: KernelAnalysis, parents: Sequence[Self], axes: Mapping[int, I]) -> None:
        self.analysis = analysis
        self.parents = parents
        #: The scopes whose values it sees, but for itself: a reference cycle would keep every nest until a garbage collection.
        self.enclosing: tuple[Self, ...] = tuple([scope for parent in parents for scope in (parent, *parent.enclosing)])
        self.axes: dict[int, I] = {}
        for parent in parents:
            self.axes.update(parent.axes)
        self.axes.update(axes)
        self.values: dict[int, N] = {}

    @abstractmethod
    def emit(self, node_number: int) -> N:
        """Emit a node, whose operands have been emitted."""

    @abstractmethod
    def prepare_operands(self, node: int) -> None:
        """Emit those operands of a node that depend on bound axes alone."""

    def inherited(self, table: str, key: Any) -> Any:
        """Return an entry of one of the tables here or of a parent; None if there is none."""
        return next((entry for scope in (self, *self.enclosing) if (entry := getattr(scope, table).get(key)) is not None), None)

    def find(self, node: int) -> N | None:
        """Return a node's value if it is emitted already."""
        if (value := self.values.get(node)) is not None:  # rather than by `inherited`, as half of all values are found here
            return value
        for scope in self.enclosing:
            if (value := scope.values.get(node)) is not None:
                return value
        return None

    def value(self, node: int) -> N:
        """Return a node's value; emit it here, after its operands, if it is new."""
        value = self.find(node)
        if value is None:
            for n in self.needed([node]):
                self.values[n] = self.emit(n)
            value = self.values[node]
        return value

    def operands(self, node: int) -> tuple[int, ...]:
        """Return the nodes that a node reads in this scope."""
        return operands(self.analysis.kernel.nodes[node])

    def needed(self, targets: Iterable[int]) -> list[int]:
        """Return the nodes, in order, that are to be emitted for some nodes."""
        nodes, needed = self.analysis.kernel.nodes, set[int]()
        waiting = list(targets)
        while waiting:
            node = waiting.pop()
            if node in needed or self.find(node) is not None:
                continue
            needed.add(node)
            if node not in self.buffered and not isinstance(nodes[node], Reduce):
                waiting += self.operands(node)
        return sorted(needed)

    def hoist(self, targets: Iterable[int]) -> None:
        """Emit the values of some nodes' operands that inner loops do not change."""
        bound = self.axes.keys()
        for node in self.needed(targets):
            if isinstance(self.analysis.kernel.nodes[node], Constant | Reduce):
                continue
            if self.analysis.depends[node] <= bound:
                self.value(node)
            else:
                self.prepare_operands(node)


# Accumulators: the states of reductions that loops carry, and how two merge.
#
# The state of ``argmax`` and ``argmin`` is the best value so far and its index in the row.

#: The state of a reduction: a target's values for the numbers that loops carry.
S = TypeVar("S")


@dataclass(frozen=True)
class BaseAccumulator(Generic[S]):
    """One reduction of numbers of a dtype."""

    node: Reduce
    dtype: np.dtype

    @property
    def rounds(self) -> bool:
        """True if long reductions should be blocked, to bound rounding errors."""
        return self.node.reduction.is_pairwise(self.dtype)

    @abstractmethod
    def merge(self, x: S, y: S) -> S:
        """Emit the combination of two states."""

    def merged(self, states: Sequence[S]) -> S:
        """Emit the combination of several states, by a tree."""
        if len(states) == 1:
            return states[0]
        half = (len(states) + 1) // 2
        return self.merge(self.merged(states[:half]), self.merged(states[half:]))


def reductions(analysis: KernelAnalysis, numbers: Sequence[int]) -> list[tuple[Reduce, np.dtype]]:
    """Return the reductions of these numbers, each with its operand's dtype."""
    return [(analysis.reduces[n], analysis.kernel.nodes[analysis.reduces[n].operand].dtype) for n in numbers]


# Passes over a row: what each reduces, stores and keeps for later ones.


@dataclass
class RowPass:
    """One pass over a row, by numbers of nodes and stores.

    First it does its stores per row; then, per element, it reduces, stores and keeps.
    """

    row_stores: list[int]
    reduces: list[int]
    stores: list[int]
    keeps: list[int] = field(default_factory=list)

    def targets(self, analysis: KernelAnalysis) -> list[int]:
        """Return the nodes that its iterations need."""
        reduced = [analysis.reduces[n].operand for n in self.reduces]
        return [*reduced, *[analysis.kernel.stores[s].value for s in self.stores], *self.keeps]

    @property
    def has_iterations(self) -> bool:
        """True if there is anything to do per element."""
        return bool(self.reduces or self.stores)


def row_passes(analysis: KernelAnalysis) -> list[RowPass]:
    """Return the passes over a row of a kernel, which keep nothing."""
    result: list[RowPass] = []
    for stage in range(analysis.pass_count):
        stores = [s for s, store in enumerate(analysis.kernel.stores) if analysis.stages[store.value] == stage]
        inside = [s for s in stores if analysis.store_axes(s) & analysis.reduction_axes]
        ready = [n for n in analysis.reduces if analysis.stages[n] == stage + 1]
        result.append(RowPass([s for s in stores if s not in inside], ready, inside))
    return result


# Transposes: kernels whose loads and stores are contiguous along different axes.


def transposed_loads(analysis: KernelAnalysis, axis: int, least: int, *, backward: bool) -> tuple[int, list[int]] | None:
    """Return the loads to transpose, and the axis along which they are contiguous.

    That axis has at least `least` iterations; if `backward`, reversed loads count, too. None if there is no such axis.
    """
    sizes, steps = analysis.kernel.sizes, (1, -1) if backward else (1,)
    across = {n: p for n, p in analysis.load_offsets.items() if coefficient(p, axis) not in (0, 1, -1)}
    contiguous = Counter(a for p in across.values() for a, c in p.terms if c in steps and sizes[a] >= least)
    if not contiguous:
        return None
    other = min(contiguous, key=lambda a: (-contiguous[a], a))
    return other, [n for n, p in across.items() if coefficient(p, other) in steps]

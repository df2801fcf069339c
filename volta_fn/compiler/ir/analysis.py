"""Analysis of a kernel for code generation: offsets in memory, and dependences."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from volta_fn.compiler.ir.index import Affine, Range, along
from volta_fn.compiler.ir.kernel import Apply, Constant, Inside, Kernel, Load, Node, Position, Reduce, operands, stages
from volta_fn.compiler.ir.views import row_major

Axes = frozenset[int]

#: Bytes of an array that no cache near the core is sure to hold.
_LONG = 1 << 18


class KernelAnalysis:
    """A simplified kernel and what follows from it.

    Reductions depend on the axes `each`, whatever they read: every iteration along these axes has its own.
    """

    def __init__(self, kernel: Kernel, each: Axes = frozenset()) -> None:
        self.kernel = kernel
        self.each = each
        self.reduction_axes: Axes = frozenset(kernel.reduction_axes)
        self.parallel_axes: Axes = frozenset(range(kernel.parallel))
        self.stages = stages(kernel)
        #: The offset of every load's and store's element in its buffer.
        self.load_offsets = {n: row_major(node.index, node.shape) for n, node in self.loads.items()}
        self.store_offsets = [row_major(store.index, store.shape) for store in kernel.stores]
        #: The axes that each node depends on.
        self.depends: list[Axes] = []
        for number, node in enumerate(kernel.nodes):
            self.depends.append(self._depends(number, node))

    def _depends(self, number: int, node: Node) -> Axes:
        if isinstance(node, Load):
            return self.load_offsets[number].axes | _axes_of(node.mask)
        if isinstance(node, Position):
            return node.value.axes
        if isinstance(node, Inside):
            return _axes_of(node.ranges)
        read = frozenset[int]().union(*[self.depends[i] for i in operands(node)])
        return (read - self.reduction_axes) | self.each if isinstance(node, Reduce) else read

    @cached_property
    def loads(self) -> dict[int, Load]:
        """The loads by their numbers."""
        return {n: node for n, node in enumerate(self.kernel.nodes) if isinstance(node, Load)}

    @cached_property
    def reduces(self) -> dict[int, Reduce]:
        """The reductions by their numbers."""
        return {n: node for n, node in enumerate(self.kernel.nodes) if isinstance(node, Reduce)}

    @cached_property
    def passes(self) -> int:
        """The number of passes over a row."""
        return max([self.stages[store.value] for store in self.kernel.stores], default=0) + 1

    @cached_property
    def row_number(self) -> Affine:
        """The row-major number of an element in its row."""
        axes = self.kernel.reduction_axes
        return row_major(tuple(map(along, axes)), tuple([self.kernel.sizes[a] for a in axes]))

    def size(self, axes: Iterable[int]) -> int:
        """Return the number of iterations along axes."""
        return math.prod(self.kernel.sizes[a] for a in axes)

    def ranges(self, number: int) -> tuple[Range, ...]:
        """Return the conditions of a node."""
        node = self.kernel.nodes[number]
        return node.mask if isinstance(node, Load) else node.ranges if isinstance(node, Inside) else ()

    def neighbours(self, number: int, distance: int) -> dict[int, int]:
        """Return the loads within `distance` elements, with their offsets.

        They include the load itself, which must have no mask. All read the same input without a mask, and their offsets have the same
        terms. Offsets are relative to the least one.
        """
        here, input_ = self.load_offsets[number], self.loads[number].input
        alike = [n for n, load in self.loads.items() if load.input == input_ and not load.mask and self.load_offsets[n].terms == here.terms]
        least = min([self.load_offsets[n].offset for n in alike])
        group = (here.offset - least) // distance
        offsets = {n: self.load_offsets[n].offset for n in alike if (self.load_offsets[n].offset - least) // distance == group}
        return {n: offset - min(offsets.values()) for n, offset in offsets.items()}

    def store_axes(self, number: int) -> Axes:
        """Return the axes that a store's offset and value depend on."""
        return self.store_offsets[number].axes | self.depends[self.kernel.stores[number].value]

    def dtypes(self) -> set[np.dtype]:
        """Return the dtypes of all nodes, those of constants only if there are no others."""
        nodes = self.kernel.nodes
        return {node.dtype for node in nodes if not isinstance(node, Constant)} or {node.dtype for node in nodes}

    def applies(self) -> list[tuple[int, Apply]]:
        """Return the scalar operations with their numbers."""
        return [(n, node) for n, node in enumerate(self.kernel.nodes) if isinstance(node, Apply)]

    def streams(self, axis: int, at_any_length: bool = False) -> frozenset[int]:
        """Return the loads that read long arrays in the order of memory.

        The loop over `axis` is the innermost. Arrays `at_any_length` count as long.
        """
        order = [a for a in range(len(self.kernel.sizes)) if a != axis] + [axis]
        terms = row_major(tuple(map(along, order)), tuple([self.kernel.sizes[a] for a in order])).terms
        found = [n for n, offset in self.load_offsets.items() if offset.terms == terms]
        return frozenset([n for n in found if at_any_length or self.size(order) * self.kernel.nodes[n].dtype.itemsize >= _LONG])


def overwritable(kernel: Kernel, output: int) -> list[int]:
    """Return the inputs whose memory may hold an output.

    Each iteration reads such an input at the offset that it writes the output to and at no other, and the kernel makes one pass over its
    rows (a later pass might read what an earlier one has overwritten). Each iteration writes an element of its own: one that several
    share, such as one per row, would be overwritten before the last of them has read it.
    """
    result = kernel.outputs[output]
    if result.size != math.prod(kernel.sizes) or any(isinstance(node, Reduce) for node in kernel.nodes):
        return []
    store = kernel.stores[output]
    offset = row_major(store.index, store.shape)
    fitting = [i for i, b in enumerate(kernel.inputs) if (b.size, b.dtype) == (result.size, result.dtype)]
    loads = [node for node in kernel.nodes if isinstance(node, Load)]
    return [i for i in fitting if all(not n.mask and row_major(n.index, n.shape) == offset for n in loads if n.input == i)]


def coefficient(affine: Affine, axis: int | None) -> int:
    """Return by how much an affine number grows with a step along an axis."""
    return next((c for a, c in affine.terms if a == axis), 0)


def _axes_of(ranges: Iterable[Range]) -> Axes:
    return frozenset[int]().union(*[r.value.axes for r in ranges])

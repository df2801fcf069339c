"""Axes of kernels: simplification, offsets in memory, and splits.

Code generators print kernels from this form. The analysis gives offsets in memory and dependences; kernels whose arrays are too large to be
bound as one are split along their first axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.ir.index import ZERO, Affine, Index, Range, along, combine, row_major, undecided
from volta_fn.compiler.ir.kernel import (
    Apply,
    Buffer,
    Constant,
    Inside,
    Kernel,
    Load,
    Node,
    Position,
    Reduce,
    Store,
    affines,
    operands,
    stages,
)
from volta_fn.core.aval import Shape

Axes = frozenset[int]

#: Bytes of an array that may exceed a core's own caches.
_STREAM_BYTES = 1 << 18


class KernelAnalysis:
    """A simplified kernel and what follows from it.

    Every iteration along the axes `private_axes` has reductions of its own, even of the same elements: lanes reduce for themselves.
    """

    def __init__(self, kernel: Kernel, private_axes: Axes = frozenset()) -> None:
        self.kernel = kernel
        self.private_axes = private_axes
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
        return (read - self.reduction_axes) | self.private_axes if isinstance(node, Reduce) else read

    @cached_property
    def loads(self) -> dict[int, Load]:
        """The loads by their numbers."""
        return {n: node for n, node in enumerate(self.kernel.nodes) if isinstance(node, Load)}

    @cached_property
    def reduces(self) -> dict[int, Reduce]:
        """The reductions by their numbers."""
        return {n: node for n, node in enumerate(self.kernel.nodes) if isinstance(node, Reduce)}

    @cached_property
    def pass_count(self) -> int:
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

    def is_selection(self, number: int) -> bool:
        """Return True for a node that selects by an index: part of a concatenation or pad."""
        node = self.kernel.nodes[number]
        return isinstance(node, Apply) and node.op == "select_n" and isinstance(self.kernel.nodes[node.operands[0]], Inside)

    def operands(self, number: int, decided: Mapping[Range, bool]) -> tuple[int, ...]:
        """Return the nodes that a node reads: of a decided selection, one."""
        read = operands(self.kernel.nodes[number])
        ranges = self.ranges(read[0]) if decided and self.is_selection(number) else ()
        if not ranges or not all(r in decided for r in ranges):
            return read
        return (read[2 if all(decided[r] for r in ranges) else 1],)

    def live(self, decided: Mapping[Range, bool]) -> set[int]:
        """Return the nodes that results depend on where conditions are decided."""
        live: set[int] = set()
        waiting = [store.value for store in self.kernel.stores]
        while waiting:
            if (node := waiting.pop()) not in live:
                live.add(node)
                waiting += self.operands(node, decided)
        return live

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
        contiguous = [n for n, offset in self.load_offsets.items() if offset.terms == terms]
        return frozenset(
            [n for n in contiguous if at_any_length or self.size(order) * self.kernel.nodes[n].dtype.itemsize >= _STREAM_BYTES]
        )


@lru_cache(maxsize=1024)
def overwritable(kernel: Kernel, output: int) -> tuple[int, ...]:
    """Return the inputs whose memory may hold an output.

    Each iteration reads such an input at the offset that it writes the output to and at no other, and writes it in the last pass over its
    row: a later pass might read what an earlier one has overwritten. Each iteration writes an element of its own: one that several share,
    such as one per row, would be overwritten before the last of them has read it.
    """
    return inputs_read_at_store(kernel, output) if kernel.outputs[output].size == math.prod(kernel.sizes) else ()


def inputs_read_at_store(kernel: Kernel, output: int) -> tuple[int, ...]:
    """Return the inputs of an output's type that are read at its offset and no other.

    An output that is stored before the last pass has none: a later pass may read the inputs again.
    """
    result, store, passes = kernel.outputs[output], kernel.stores[output], stages(kernel)
    if passes[store.value] < max(passes):
        return ()
    offset = row_major(store.index, store.shape)
    same_type = [i for i, b in enumerate(kernel.inputs) if (b.size, b.dtype) == (result.size, result.dtype)]
    loads = [node for node in kernel.nodes if isinstance(node, Load)]
    return tuple([i for i in same_type if all(not n.mask and row_major(n.index, n.shape) == offset for n in loads if n.input == i)])


def coefficient(affine: Affine, axis: int | None) -> int:
    """Return the coefficient of an axis in an affine number."""
    return next((c for a, c in affine.terms if a == axis), 0)


def _axes_of(ranges: Iterable[Range]) -> Axes:
    return frozenset[int]().union(*[r.value.axes for r in ranges])


# Kernels in as few axes as possible: the form that code generators print from.
#
# Axes of one iteration go; two axes that every load, store, position and condition walks as one (a step of the first is as long as all
# steps of the second) become one; arrays are seen in as few dimensions as their conditions allow. Values, and the order of reductions,
# stay.


@lru_cache(maxsize=1024)
def simplified(kernel: Kernel) -> Kernel:
    """Return the same kernel in fewer axes; outputs have at most one dimension."""
    kernel = _without_reductions_of_single_elements(_without_single_axes(kernel))
    if 0 in kernel.sizes:
        return kernel
    kernel = replace(
        kernel, nodes=tuple([_flattened(kernel, node) for node in kernel.nodes]), stores=tuple([_flat_store(s) for s in kernel.stores])
    )
    while (pair := next(_mergeable(kernel), None)) is not None:
        kernel = _merged(kernel, *pair)
    return kernel


def rewritten(kernel: Kernel, sizes: tuple[int, ...], parallel: int, axes: Mapping[int, Affine]) -> Kernel:
    """Write every axis of a kernel in terms of others."""

    def index(old: Index) -> Index:
        return tuple([a.replaced(axes) for a in old])

    def ranges(old: Sequence[Range]) -> tuple[Range, ...]:
        return tuple([r._replace(value=r.value.replaced(axes)).canonical() for r in old])

    def node(old: Node) -> Node:
        if isinstance(old, Load):
            return replace(old, index=index(old.index), mask=ranges(old.mask))
        if isinstance(old, Position):
            return replace(old, value=old.value.replaced(axes))
        return replace(old, ranges=ranges(old.ranges)) if isinstance(old, Inside) else old

    stores = tuple([replace(s, index=index(s.index)) for s in kernel.stores])
    return replace(kernel, sizes=sizes, parallel=parallel, nodes=tuple(map(node, kernel.nodes)), stores=stores)


def _without_single_axes(kernel: Kernel) -> Kernel:
    if 1 not in kernel.sizes:
        return kernel
    remaining = [a for a, n in enumerate(kernel.sizes) if n != 1]
    axes = {a: Affine(((remaining.index(a), 1),), 0) if a in remaining else ZERO for a in range(len(kernel.sizes))}
    return rewritten(kernel, tuple([kernel.sizes[a] for a in remaining]), sum(a < kernel.parallel for a in remaining), axes)


def _without_reductions_of_single_elements(kernel: Kernel) -> Kernel:
    if kernel.reduction_axes:
        return kernel
    nodes: list[Node] = []
    new: list[int] = []
    for node in kernel.nodes:
        if isinstance(node, Reduce) and not node.is_index:
            new.append(new[node.operand])
            continue
        if isinstance(node, Reduce):
            node = Constant.of(0, node.dtype)
        elif isinstance(node, Apply):
            node = replace(node, operands=tuple([new[i] for i in node.operands]))
        new.append(len(nodes))
        nodes.append(node)
    return replace(kernel, nodes=tuple(nodes), stores=tuple([replace(s, value=new[s.value]) for s in kernel.stores]))


def _flattened(kernel: Kernel, node: Node) -> Node:
    """Drop conditions that always hold, and merge dimensions without conditions."""
    if isinstance(node, Inside):
        ranges = undecided(node.ranges, kernel.sizes)
        return replace(node, ranges=ranges) if ranges else Constant.of(ranges is not None, np.dtype(np.bool_))
    if not isinstance(node, Load):
        return node
    mask = undecided(node.mask, kernel.sizes)
    if mask is None:
        return node.fill
    shape: list[int] = []
    index: list[Affine] = []
    free = False  # whether the dimension before may take in another
    for size, affine in zip(node.shape, node.index, strict=True):
        inside = bool(Range(affine, 0, size).holds(kernel.sizes))
        if inside and (free or size == 1):
            if size != 1:
                shape[-1], index[-1] = shape[-1] * size, combine([(size, index[-1]), (1, affine)])
            continue
        shape.append(size)
        index.append(affine)
        free = inside
    return replace(node, shape=tuple(shape), index=tuple(index), mask=mask)


def _flat_store(store: Store) -> Store:
    shape: Shape = (math.prod(store.shape),)
    return (
        replace(store, shape=shape, index=(row_major(store.index, store.shape),)) if shape != (1,) else replace(store, shape=(), index=())
    )


def _mergeable(kernel: Kernel) -> Iterator[tuple[int, int]]:
    """Yield pairs of axes that can be merged."""
    # A step of the first is as long as all steps of the second. Reduction axes must be neighbours, because their order counts.
    used = {a for node in kernel.nodes for a in affines(node)} | {a for store in kernel.stores for a in store.index}
    terms = [dict(a.terms) for a in used]
    for first in range(len(kernel.sizes)):
        others = range(kernel.parallel) if first < kernel.parallel else range(first + 1, min(first + 2, len(kernel.sizes)))
        for second in others:
            size = kernel.sizes[second]
            if first != second and all(t.get(first, 0) == t.get(second, 0) * size for t in terms):
                yield first, second


def _merged(kernel: Kernel, first: int, second: int) -> Kernel:
    remaining = [a for a in range(len(kernel.sizes)) if a != first]
    sizes = tuple([kernel.sizes[a] * (kernel.sizes[first] if a == second else 1) for a in remaining])
    axes = {a: Affine(((remaining.index(a), 1),), 0) for a in remaining} | {first: ZERO}
    return rewritten(kernel, sizes, kernel.parallel - (first < kernel.parallel), axes)


# Kernels split along their first axis for arrays too large to be bound as one.
#
# Each chunk sees only *windows* of its buffers.

#: Chunks begin at multiples of this many iterations, and windows of this many elements: no word of memory belongs to two.
_UNIT = 256


class Window(NamedTuple):
    """A contiguous range of a buffer's elements."""

    first: int
    size: int


class Chunk(NamedTuple):
    """A chunk of a kernel, and the windows of its inputs and outputs."""

    kernel: Kernel
    windows: tuple[Window, ...]


def largest(kernel: Kernel) -> int:
    """Return the bytes of a kernel's largest buffer."""
    return max([b.size * b.dtype.itemsize for b in (*kernel.inputs, *kernel.outputs)], default=0)


def windowed(kernel: Kernel, most: int) -> list[Chunk] | None:
    """Split a kernel in as few chunks of at most `most` bytes as possible, or None."""
    kernel = simplified(kernel)
    if not kernel.parallel:
        return None
    iterations = length = kernel.sizes[0]
    while length > _UNIT:
        length = -(-length // (2 * _UNIT)) * _UNIT
        chunks = [_chunk(kernel, first, min(length, iterations - first)) for first in range(0, iterations, length)]
        windows = [p for p in chunks if p is not None]
        if len(windows) < len(chunks):
            return None
        if all(largest(p.kernel) <= most for p in windows):
            return windows
    return None


def _chunk(kernel: Kernel, first: int, count: int) -> Chunk | None:
    """Return some iterations of the first axis; None where windows are impossible."""
    kernel = rewritten(kernel, (count, *kernel.sizes[1:]), kernel.parallel, {0: along(0).plus(first)})
    inputs = [_read(kernel, number) for number in range(len(kernel.inputs))]
    outputs = [_written(kernel, store) for store in kernel.stores]
    if any(w.first % _UNIT for w in outputs):
        return None
    nodes = list(kernel.nodes)
    for number, node in enumerate(nodes):
        if isinstance(node, Load):
            window = inputs[node.input]
            if node.mask and window.size < kernel.inputs[node.input].size:
                return None  # conditions are about dimensions, which a window does not have
            index = row_major(node.index, node.shape).plus(-window.first)
            nodes[number] = replace(node, shape=(window.size,), index=(index,))
    stores = [Store((w.size,), (row_major(s.index, s.shape).plus(-w.first),), s.value) for s, w in zip(kernel.stores, outputs, strict=True)]
    buffers = tuple([Buffer(w.size, b.dtype) for w, b in zip(inputs, kernel.inputs, strict=True)])
    return Chunk(replace(kernel, inputs=buffers, nodes=tuple(nodes), stores=tuple(stores)), (*inputs, *outputs))


def _read(kernel: Kernel, number: int) -> Window:
    """Return the window that a kernel reads of an input; its start is aligned."""
    size = kernel.inputs[number].size
    low, high = size, 0
    for node in kernel.nodes:
        if isinstance(node, Load) and node.input == number:
            least, greatest = row_major(node.index, node.shape).bounds(kernel.sizes)
            low, high = min(low, max(least, 0)), max(high, min(greatest + 1, size))
    low = min(low, high) // _UNIT * _UNIT
    return Window(low, max(high - low, min(size, 1)))


def _written(kernel: Kernel, store: Store) -> Window:
    low, high = row_major(store.index, store.shape).bounds(kernel.sizes)
    return Window(low, high + 1 - low)

"""Kernels split along their first axis for arrays too large to be bound as one.

Each chunk sees only *windows* of its buffers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from volta_fn.compiler.ir.axes import rewritten, simplified
from volta_fn.compiler.ir.index import along
from volta_fn.compiler.ir.kernel import Buffer, Kernel, Load, Store
from volta_fn.compiler.ir.views import row_major

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
    """Split a kernel in as few chunks as have windows of at most `most` bytes.

    None if it cannot be split so.
    """
    kernel = simplified(kernel)
    if not kernel.parallel:
        return None
    iterations = length = kernel.sizes[0]
    while length > _UNIT:
        length = -(-length // (2 * _UNIT)) * _UNIT
        chunks = [_chunk(kernel, first, min(length, iterations - first)) for first in range(0, iterations, length)]
        found = [p for p in chunks if p is not None]
        if len(found) < len(chunks):
            return None
        if all(largest(p.kernel) <= most for p in found):
            return found
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
    """Return what a kernel reads of an input, from a multiple of the unit on."""
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

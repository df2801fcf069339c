"""Reductions of a few long rows, in steps that keep many workgroups busy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.codegen.loops import NodeBuilder, closure, restricted
from volta_fn.compiler.ir.axes import KernelAnalysis, rewritten
from volta_fn.compiler.ir.index import Affine, Range, along, combine, row_major
from volta_fn.compiler.ir.kernel import Apply, Buffer, Constant, Kernel, Load, Reduce, Store
from volta_fn.targets.wgsl.loops.emit_values import Buffers, KernelStep
from volta_fn.targets.wgsl.loops.reductions import INT32
from volta_fn.targets.wgsl.loops.schedule import Cut
from volta_fn.targets.wgsl.routine import Workspaces

# For each stage of a kernel's reductions, one step reduces *chunks* of the rows into workspaces. Another one combines these partial
# results, computes the stores per row, and stores the results of reductions that later steps need. Stores per element come last.

#: The fewest rows for which the partial results of neighbouring rows are contiguous; of fewer, those of one row are.
_MANY = 32

_BOOL = np.dtype(np.bool_)


class ChunkBuffers(NamedTuple):
    """The buffers of partial results: values, and indices for arg-extrema."""

    values: int
    positions: int | None


class Split:
    """The steps of a kernel."""

    def __init__(self, analysis: KernelAnalysis, cut: Cut, buffers: Buffers, workspaces: Workspaces) -> None:
        self.analysis = analysis
        self.kernel = analysis.kernel
        self.cut = cut
        self.buffers = buffers
        self.workspaces = workspaces
        outer = range(self.kernel.parallel)
        self.row_count = analysis.size(outer)
        self.row_offset = row_major(tuple(map(along, outer)), tuple([self.kernel.sizes[a] for a in outer]))
        #: The buffers of results of reductions, by node.
        self.result_buffers: dict[int, int] = {}
        #: The stores per row and per element, by the stages of their values.
        self.row_stores: dict[int, list[int]] = {}
        self.stores: dict[int, list[int]] = {}
        for s, store in enumerate(self.kernel.stores):
            which = self.stores if analysis.store_axes(s) & analysis.reduction_axes else self.row_stores
            which.setdefault(analysis.stages[store.value], []).append(s)

    def steps(self) -> list[KernelStep]:
        """Return all steps in order; the last ones have no reduction axes."""
        result: list[KernelStep] = []
        last = [s for stage, stores in self.stores.items() if stage for s in stores]
        for stage in range(1, max(self.analysis.stages) + 1):
            ready = [n for n in self.analysis.reduces if self.analysis.stages[n] == stage]
            partials = {n: self.of_chunks(n) for n in ready}
            result.append(self.chunks(partials, self.stores.get(0, []) if stage == 1 else []))
            row_stores = [*self.row_stores.get(stage, []), *(self.row_stores.get(0, []) if stage == 1 else [])]
            result.append(self.combined(partials, row_stores, self.live_results(stage, ready, last)))
        if last:
            result.append(self.elementwise(last))
        return [s._replace(kernel=restricted(s.kernel, range(len(s.kernel.stores)))) for s in result]

    def live_results(self, stage: int, ready: Sequence[int], last: Sequence[int]) -> list[int]:
        """Return the results of a stage's reductions that later steps need."""
        stores = [s for later, stores in self.row_stores.items() if later > stage for s in stores]
        targets = [r.operand for n, r in self.analysis.reduces.items() if self.analysis.stages[n] > stage]
        needed = closure(self.kernel, [*targets, *[self.kernel.stores[s].value for s in (*stores, *last)]])
        return [n for n in ready if n in needed]

    # buffers

    def of_chunks(self, node: int) -> ChunkBuffers:
        """Return buffers for the partial results."""
        reduce, size = self.analysis.reduces[node], self.row_count * self.cut.chunks
        values = self.workspaces.new(size * self.kernel.nodes[reduce.operand].dtype.itemsize)
        return ChunkBuffers(values, self.workspaces.new(size * reduce.dtype.itemsize) if reduce.is_index else None)

    def partial_layout(self) -> tuple[tuple[int, int], tuple[Affine, Affine]]:
        """Return the shape of partial results, and the index in it.

        The chunk is the axis after the parallel ones.
        """
        chunk = along(self.kernel.parallel)
        if self.row_count >= _MANY:
            return (self.cut.chunks, self.row_count), (chunk, self.row_offset)
        return (self.row_count, self.cut.chunks), (self.row_offset, chunk)

    def build_step(
        self, nodes: NodeBuilder, sizes: tuple[int, ...], outer: int, stores: Sequence[tuple[Store, int]], more: Sequence[int]
    ) -> KernelStep:
        """Return a step with more inputs than the kernel's, and stores with buffers."""
        inputs = [*self.kernel.inputs]
        for number in more:
            dtype = next(n.dtype for n in nodes.nodes if isinstance(n, Load) and n.input == len(inputs))
            inputs.append(Buffer(self.workspaces.size_of(number) // dtype.itemsize, dtype))
        kernel = Kernel(sizes, outer, tuple(inputs), tuple(nodes.nodes), tuple([store for store, _ in stores]))
        return KernelStep(kernel, Buffers((*self.buffers.inputs, *more), tuple([number for _, number in stores])))

    def begin_nodes(self) -> tuple[NodeBuilder, list[int]]:
        """Return nodes that include loads of earlier results, and the buffers of those."""
        nodes, more = NodeBuilder(self.kernel), list(self.result_buffers.values())
        for k, n in enumerate(self.result_buffers):
            nodes.numbers[n] = nodes.add(
                _load(self.analysis.reduces[n].dtype, len(self.kernel.inputs) + k, (self.row_count,), (self.row_offset,))
            )
        return nodes, more

    def stored(self, nodes: NodeBuilder, stores: Iterable[int]) -> list[tuple[Store, int]]:
        """Return stores of the kernel, with their buffers."""
        result = []
        for s in stores:
            store = self.kernel.stores[s]
            nodes.copy([store.value])
            result.append((replace(store, value=nodes.numbers[store.value]), self.buffers.outputs[s]))
        return result

    # steps

    def chunks(self, partials: dict[int, ChunkBuffers], stores: Sequence[int]) -> KernelStep:
        """Return the step of reductions, and stores per element, over the chunks."""
        nodes, more = self.begin_nodes()
        old = self.stored(nodes, stores)
        shape, index = self.partial_layout()
        partial: list[tuple[Store, int]] = []
        for n, buffers in partials.items():
            reduce = self.analysis.reduces[n]
            nodes.copy([reduce.operand])
            operand = nodes.numbers[reduce.operand]
            value = Reduce(nodes.nodes[operand].dtype, reduce.reduction.index_of or reduce.op, operand)
            partial.append((Store(shape, index, nodes.add(value)), buffers.values))
            if buffers.positions is not None:
                partial.append((Store(shape, index, nodes.add(replace(reduce, operand=operand))), buffers.positions))
        step = self.build_step(nodes, self.kernel.sizes, self.kernel.parallel, old, more)
        return self.in_chunks(step, partial)

    def in_chunks(self, step: KernelStep, partial: Sequence[tuple[Store, int]]) -> KernelStep:
        """Return a step whose rows are chunks of the original rows, with further stores."""
        axis, chunks, size = self.cut
        outer = self.kernel.parallel
        moved = {a: along(a + 1) for a in self.analysis.reduction_axes}
        moved[axis] = combine([(size, along(outer)), (1, along(axis + 1))])
        old = step.kernel.sizes
        sizes = (*old[:outer], chunks, *[size if a == axis else old[a] for a in range(outer, len(old))])
        kernel = rewritten(step.kernel, sizes, outer + 1, moved)
        kernel = replace(kernel, stores=(*kernel.stores, *[store for store, _ in partial]))
        outputs = (*step.buffers.outputs, *[number for _, number in partial])
        condition = None if chunks * size == old[axis] else Range(moved[axis], 0, old[axis])
        return KernelStep(kernel, step.buffers._replace(outputs=outputs), condition, self.analysis.row_number.replaced(moved))

    def combined(self, partials: dict[int, ChunkBuffers], stores: Sequence[int], live: Sequence[int]) -> KernelStep:
        """Return the step that combines partial results, with the stores per row."""
        nodes, more = self.begin_nodes()
        shape, index = self.partial_layout()
        for n, buffers in partials.items():
            reduce = self.analysis.reduces[n]
            dtype = self.kernel.nodes[reduce.operand].dtype
            value = nodes.add(_load(dtype, len(self.kernel.inputs) + len(more), shape, index))
            more.append(buffers.values)
            result = nodes.add(Reduce(dtype, reduce.reduction.index_of or reduce.op, value))
            if buffers.positions is not None:
                position = nodes.add(_load(INT32, len(self.kernel.inputs) + len(more), shape, index))
                more.append(buffers.positions)
                result = _first_index(nodes, value, result, position)
            nodes.numbers[n] = result
        outputs = self.stored(nodes, stores)
        for n in live:
            dtype = self.analysis.reduces[n].dtype
            self.result_buffers[n] = self.workspaces.new(self.row_count * dtype.itemsize)
            outputs.append((Store((self.row_count,), (self.row_offset,), nodes.numbers[n]), self.result_buffers[n]))
        outer = self.kernel.parallel
        return self.build_step(nodes, (*self.kernel.sizes[:outer], self.cut.chunks), outer, outputs, more)

    def elementwise(self, stores: Sequence[int]) -> KernelStep:
        """Return the step of the stores per element."""
        nodes, more = self.begin_nodes()
        outputs = self.stored(nodes, stores)
        return self.build_step(nodes, self.kernel.sizes, len(self.kernel.sizes), outputs, more)


def _load(dtype: np.dtype, buffer: int, shape: tuple[int, ...], index: tuple[Affine, ...]) -> Load:
    return Load(dtype, buffer, shape, index, (), Constant.of(0, dtype))


def _first_index(nodes: NodeBuilder, value: int, best: int, position: int) -> int:
    """Return the least index of the values that equal the best one, or are NaN, too."""

    def apply(op: str, *operands: int, dtype: np.dtype = _BOOL) -> int:
        return nodes.add(Apply(dtype, op, operands))

    same = apply("eq", value, best)
    if nodes.nodes[value].dtype in dtypes.FLOATS:
        same = apply("or", same, apply("and", apply("ne", value, value), apply("ne", best, best)))
    never = nodes.add(Constant.of(np.iinfo(np.int32).max, INT32))
    return nodes.add(Reduce(INT32, "reduce_min", apply("select_n", same, never, position, dtype=INT32)))

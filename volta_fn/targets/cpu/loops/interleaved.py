"""Kernels whose innermost axis is short: interleaved results.

`repeat` has such kernels, and `stack` along the last axis. Vectors go along a longer axis, whose elements are not neighbours in memory. So
those of all indices along the short axis are made together, and their lanes shuffled, to be stored side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn import dtypes
from volta_fn.compiler.ir.analysis import KernelAnalysis, coefficient
from volta_fn.compiler.ir.index import Range
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.loops.emit_values import VectorAxis, VectorScope
from volta_fn.targets.cpu.loops.rows import Segment, Vectors
from volta_fn.targets.cpu.scalars import Number, store

#: The most elements of the short axis.
_MOST = 4


def interleaved_axis(analysis: KernelAnalysis, axis: int, lanes: int) -> int | None:
    """Return the short axis along which the elements of all results lie side by side.

    None if there is none, or if vectors along `axis` can be stored as they are.
    """
    kernel = analysis.kernel
    is_complex = dtypes.COMPLEX.intersection([kernel.nodes[s.value].dtype for s in kernel.stores])
    if analysis.reduces or lanes < 4 or axis not in analysis.parallel_axes or is_complex:
        return None
    for inner, size in enumerate(kernel.sizes):
        others = analysis.reduction_axes - {inner}
        if inner == axis or others or not 2 <= size <= _MOST:
            continue
        if all((coefficient(offset, inner), coefficient(offset, axis)) == (1, size) for offset in analysis.store_offsets):
            return inner
    return None


class InterleavedStores:
    """Writes vectors of a kernel with a short innermost axis."""

    def __init__(self, analysis: KernelAnalysis, vectors: Vectors, inner: int) -> None:
        self.analysis = analysis
        self.vectors = vectors
        self.inner = inner
        kernel = analysis.kernel
        self.targets = [s.value for s in kernel.stores]
        ranges = {r for n in range(len(kernel.nodes)) for r in analysis.ranges(n) if r.value.axes == {inner}}
        #: For each index along the short axis, which conditions on it hold.
        self.decided = [{r: _holds(r, inner, k) for r in ranges} for k in range(kernel.sizes[inner])]

    def emit(self, scope: VectorScope, segment: Segment, start: Value, count: Value | None, unroll: int) -> None:
        """Emit some vectors from a position on."""
        lane = VectorAxis(self.vectors.axis, self.vectors.lanes, count)
        for column in scope.vectors(lane, start, unroll, segment.decided):
            column.hoist(self.targets)
            cells = []
            for index, decided in enumerate(self.decided):
                cells.append(column.child({self.inner: i64(index)}))
                cells[-1].decided.update(decided)
            # All before the first store, as a result may lie where an operand of another one is.
            results = [_interleaved(scope.nest.f, [cell.spread(target) for cell in cells]) for target in self.targets]
            wide = None if count is None else scope.nest.f.times(count, len(cells))
            for number, result in enumerate(results):
                scope.nest.pending.discard(number)
                store(scope.nest.f, result, cells[0].pointer(("store", number)), count=wide)


def _interleaved(f: Function, vectors: Sequence[Number]) -> Number:
    """Emit the first lanes of all vectors, then the second ones, and so on."""
    lanes, size, components = vectors[0].lanes, len(vectors), [vector.components[0] for vector in vectors]
    order = [lanes * k + lane for lane in range(lanes) for k in range(size)]
    if size % 2:
        components, order = _blended(f, components, lanes), list(range(lanes * size))
        components += [components[-1]]
    pairs = [f.taken(x, range(2 * lanes), y) for x, y in zip(components[::2], components[1::2], strict=True)]
    return Number(vectors[0].dtype, (f.taken(pairs[0], order, pairs[1] if len(pairs) > 1 else None),))


def _blended(f: Function, vectors: Sequence[Value], lanes: int) -> list[Value]:
    """Emit an odd number of vectors interleaved, by one permutation of each.

    No two lanes of a vector go to the same lane of results.
    """
    size = len(vectors)
    turned = [f.taken(x, [(lane - k) * pow(size, -1, lanes) % lanes for lane in range(lanes)]) for k, x in enumerate(vectors)]
    results = [turned[0]] * size
    for k, x in enumerate(turned[1:], 1):
        results = [f.taken(y, [j + lanes * ((lanes * i + j) % size == k) for j in range(lanes)], x) for i, y in enumerate(results)]
    return results


def _holds(condition: Range, axis: int, index: int) -> bool:
    value = condition.value.offset + coefficient(condition.value, axis) * index
    return condition.low <= value < condition.high

"""Kernels that copy long ranges as they are, such as concatenations.

The C library copies them in less time than a loop over vectors, which reads the result's cache lines before it writes them.
"""

from __future__ import annotations

from volta_fn.compiler.ir.analysis import KernelAnalysis, coefficient
from volta_fn.compiler.ir.kernel import Apply, Inside, Load
from volta_fn.runtime.llvm.index_arith import greatest, least
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.loops.emit_values import VectorScope
from volta_fn.targets.cpu.loops.rows import Segment, Vectors

#: Bytes of the longest range from which on a call of the C library pays.
_LONG = 1 << 12


class Copies:
    """Writes a kernel's only store, of which each segment is one load's elements."""

    def __init__(self, vectors: Vectors, sources: list[int], itemsize: int) -> None:
        self.vectors, self.sources, self.itemsize = vectors, sources, itemsize

    def emit(self, scope: VectorScope, start: Value, stop: Value) -> None:
        """Emit the copies between two positions along the axis."""
        f: Function = scope.nest.f
        scope.nest.pending.discard(0)
        f.module.declare("llvm.memcpy.p0.p0.i64", "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        for segment, source in zip(self.vectors.segments, self.sources, strict=True):
            low = greatest(f, start, i64(segment.start))
            high = greatest(f, low, least(f, stop, i64(segment.end)))
            here = scope.child({self.vectors.axis: low})
            size = f.times(f.minus(high, low), self.itemsize)
            f.run("llvm.memcpy.p0.p0.i64", here.pointer(("store", 0)), here.pointer(("load", source)), size, Value("i1", "false"))


def copies_of(analysis: KernelAnalysis, vectors: Vectors, wanted: bool | None = None) -> Copies | None:
    """Return what copies a kernel's elements; None if not all are copies.

    Unless it is said whether copies are `wanted`, long ones are.
    """
    kernel = analysis.kernel
    if analysis.reduction_axes or len(kernel.stores) != 1 or coefficient(analysis.store_offsets[0], vectors.axis) != 1:
        return None
    itemsize = kernel.nodes[kernel.stores[0].value].dtype.itemsize
    long = max(segment.end - segment.start for segment in vectors.segments) * itemsize >= _LONG
    if not (long if wanted is None else wanted):
        return None
    sources = [source for segment in vectors.segments if (source := _source(analysis, vectors.axis, segment)) is not None]
    return Copies(vectors, sources, itemsize) if len(sources) == len(vectors.segments) else None


def _source(analysis: KernelAnalysis, axis: int, segment: Segment) -> int | None:
    """Return the load that gives the store's elements in a segment, one after another."""
    nodes, number = analysis.kernel.nodes, analysis.kernel.stores[0].value
    while isinstance(node := nodes[number], Apply):
        condition = nodes[node.operands[0]] if node.op == "select_n" and len(node.operands) == 3 else None
        if not isinstance(condition, Inside) or not all(r in segment.decided for r in condition.ranges):
            return None
        number = node.operands[2 if all(segment.decided[r] for r in condition.ranges) else 1]
    if not isinstance(node, Load) or coefficient(analysis.load_offsets[number], axis) != 1:
        return None
    return number if all(segment.decided.get(r, False) for r in node.mask) else None

"""Rows of x that a kernel computes, such as a norm.

Every block computes the row by itself.

That takes less time than another dispatch, which blocks would wait for. Loads of the matrix begin before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from volta_fn.compiler.ir.axes import KernelAnalysis
from volta_fn.compiler.ir.index import row_major
from volta_fn.compiler.ir.kernel import Apply, Kernel, PendingStores, Reduce
from volta_fn.runtime.llvm.text import Function, Value
from volta_fn.targets.cpu.loops.emit_values import LoopNest
from volta_fn.targets.cpu.scalars import Number
from volta_fn.targets.cpu.scalars.number import element
from volta_fn.targets.nvidia.function import GLOBAL, ZERO, i32
from volta_fn.targets.nvidia.matmul.contract import DTYPES, OPERATIONS
from volta_fn.targets.nvidia.matmul.results import EpilogueScope
from volta_fn.targets.nvidia.rows.kernel import TERMS, RowsKernel, Source

#: The most numbers of x and nodes of the kernel, all of which every block computes. With a gated activation of 1,536 numbers before it, a
#: product takes 3.6 µs on an H200, as two dispatches 1.1 and 1.5; with one of 4,864 numbers 9.0.
_NUMBERS, _NODES = 1024, 64

#: Bytes of shared memory for the sums of the warps, for each reduction.
_SUMS = 4 * 32

_FLOAT32 = np.dtype(np.float32)
#: Codes of a quantised embedding are among them.
_DTYPES = DTYPES | {np.dtype(np.int8), np.dtype(np.uint8)}


def computes_row(kernel: Kernel, store: int) -> bool:
    """Return whether blocks can compute a kernel.

    The store of this number is the row x.
    """
    count = math.prod(kernel.sizes)
    outer = math.prod(kernel.sizes[: kernel.parallel])
    reductions = [node for node in kernel.nodes if isinstance(node, Reduce)]
    if not 0 < count <= _NUMBERS or len(kernel.nodes) > _NODES or (reductions and outer > 1):
        return False
    if any(math.prod(each.shape) != count for each in kernel.stores) or kernel.outputs[store].dtype.itemsize not in TERMS:
        return False
    for node in kernel.nodes:
        if node.dtype not in _DTYPES or (isinstance(node, Apply) and node.op not in OPERATIONS):
            return False
        if isinstance(node, Reduce) and (node.op != "reduce_sum" or node.dtype != _FLOAT32):
            return False
    return kernel.outputs[store].dtype.kind in "fV"


class Computed(Source):
    """A row that a kernel computes.

    `inputs` and `outputs` are the bindings of its arrays; that of the row itself is None where nothing else reads it.
    """

    def __init__(self, kernel: Kernel, store: int, inputs: Sequence[int], outputs: Mapping[int, int]) -> None:
        self._kernel, self._row, self._inputs, self._outputs = kernel, store, inputs, outputs
        self._analysis = KernelAnalysis(kernel)
        self._reductions = [n for n, node in enumerate(kernel.nodes) if isinstance(node, Reduce)]
        self.terms = TERMS[kernel.outputs[store].dtype.itemsize]
        self.workspace = _SUMS * len(self._reductions)

    def put(self, kernel: RowsKernel) -> None:
        """Compute the row, and store it with zeros beyond its end.

        The first block stores the kernel's other results.
        """
        f, count = kernel.f, math.prod(self._kernel.sizes)
        reduced: dict[int, Value] = {}
        for number, node in enumerate(self._reductions):
            reduce = self._kernel.nodes[node]
            assert isinstance(reduce, Reduce)
            reduced[node] = self._sum(kernel, number, reduce.operand, dict(reduced), count)
        stores = self._kernel.stores

        def store(index: Value, value: Value) -> None:
            kernel.put_number(i32(0), self._place(kernel, self._row, index), value)

        shares = kernel.unrolled(count)
        if shares is None:
            kernel.each(count, lambda index: store(index, self._value(kernel, stores[self._row].value, reduced, index)))
        else:
            values = [self._value(kernel, stores[self._row].value, reduced, index) for index, _ in shares]
            for (index, exists), value in zip(shares, values, strict=True):
                with f.only_if(exists):
                    store(index, value)
        if kernel.numbers > count:
            kernel.each(kernel.numbers - count, lambda index: kernel.put_number(i32(0), f.plus(index, i32(count)), ZERO))
        if self._outputs:

            def others(index: Value) -> None:
                for store, binding in self._outputs.items():
                    self._store(kernel, store, binding, reduced, index)

            with f.only_if(f.equals(kernel.block, 0)):
                kernel.each(count, others)

    def _place(self, kernel: RowsKernel, store: int, index: Value) -> Value:
        """Emit the place of an iteration's element in a result."""
        f, at = kernel.f, row_major(self._kernel.stores[store].index, self._kernel.stores[store].shape)
        digits = f.coordinates(index, self._kernel.sizes)
        return f.plus(i32(at.offset), *[f.times(digits[axis], step) for axis, step in at.terms])

    def _store(self, kernel: RowsKernel, store: int, binding: int, reduced: Mapping[int, Value], index: Value) -> None:
        f, dtype = kernel.f, self._kernel.outputs[store].dtype
        value = self._value(kernel, self._kernel.stores[store].value, reduced, index)
        if dtype.itemsize == 2:
            value = f.rounded(value, dtype)
        elif value.type == "i1":
            value = f.cast("zext", value, "i8")
        at = f.widened_index(f.times(self._place(kernel, store, index), dtype.itemsize))
        f.store(value, f.further(f.bindings[binding], at), dtype.itemsize)

    def _sum(self, kernel: RowsKernel, number: int, operand: int, reduced: Mapping[int, Value], count: int) -> Value:
        """Emit the sum of a node over the row, which all threads get."""
        f = kernel.f

        def add(index: Value, totals: list[Value]) -> list[Value]:
            return [f.fadd(totals[0], self._value(kernel, operand, reduced, index))]

        def part() -> list[Value]:
            return f.repeat(f.thread, i32(count), i32(kernel.threads), [ZERO], add)

        shares = kernel.unrolled(count)
        if shares is None:
            (total,) = part()
        else:
            values = [self._value(kernel, operand, reduced, index) for index, _ in shares]
            total = ZERO
            for (_, exists), value in zip(shares, values, strict=True):
                total = f.fadd(total, value if exists is None else f.select(exists, value, ZERO))
        total = f.reduce_lanes(f.fadd, total)
        begin = kernel.x_bytes + _SUMS * number
        with f.only_if(f.equals(f.lane, 0)):
            f.store(total, f.shared(f.plus(i32(begin), f.times(f.warp, 4))), 4)
        f.synchronise()
        total = f.load("float", f.shared(i32(begin)), 4)
        for warp in range(1, kernel.schedule.warps):
            total = f.fadd(total, f.load("float", f.shared(i32(begin + 4 * warp)), 4))
        return total

    def _value(self, kernel: RowsKernel, node: int, reduced: Mapping[int, Value], index: Value) -> Value:
        """Emit the value of a node for an iteration; 16-bit floats are of 32 bits."""
        f, name = kernel.f, f"prologue{node}.{len(reduced)}"
        type_ = element(self._kernel.nodes[node].dtype)
        f.module.define(name, lambda: self._define(kernel, name, node, type_, reduced))
        arguments = [f.bindings[binding] for binding in self._inputs]
        return f.call(name, type_, *arguments, *reduced.values(), index)

    def _define(self, kernel: RowsKernel, name: str, node: int, type_: str, reduced: Mapping[int, Value]) -> None:
        """Define the function of a node's value."""
        pointers = [Value(f"{GLOBAL} noalias align 16", f"%x{k}") for k in range(len(self._inputs))]
        sums = [Value("float", f"%sum{n}") for n in reduced]
        index = Value("i32", "%index")
        g = Function(kernel.f.module, name, [*pointers, *sums, index], f"internal {type_}", "alwaysinline nounwind")
        inputs = [g.cast("addrspacecast", Value(GLOBAL, pointer.name), "ptr") for pointer in pointers]
        digits = g.coordinates(g.cast("zext", index, "i64"), self._kernel.sizes)
        nest = LoopNest(g, self._analysis, inputs, [], {}, set(), PendingStores(self._kernel))
        scope = EpilogueScope(nest, (), dict(enumerate(digits)), None)
        for n, value in zip(reduced, sums, strict=True):
            scope.values[n] = Number(_FLOAT32, (value,))
        g.finish(scope.value(node).value)

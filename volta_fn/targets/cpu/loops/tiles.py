"""Transposes: kernels whose loads and stores are contiguous along different axes.

Square tiles, as many lanes wide and high, are loaded along the loads' axis, transposed in registers, put on the stack, and used along the
stores' axis, so that memory is read and written by full cache lines. Tiles are visited in blocks that few pages of memory hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from volta_fn.codegen.loops.transpose import crossing_loads
from volta_fn.compiler.ir.analysis import KernelAnalysis
from volta_fn.runtime.llvm.index_arith import least
from volta_fn.runtime.llvm.text import Function, Value, i64, lanes_of, vector_of
from volta_fn.targets.cpu.loops.emit_values import VectorAxis, VectorScope, fetch_ahead
from volta_fn.targets.cpu.scalars import Number
from volta_fn.targets.cpu.scalars.number import element
from volta_fn.targets.cpu.scalars.values import bits_of

#: Iterations along either axis after which a block of tiles ends.
BLOCK = 64


def crossing(analysis: KernelAnalysis, axis: int, lanes: int) -> tuple[int, list[int]] | None:
    """Return the loads that cross the vectors' axis, and their contiguous axis.

    None if tiles do not help.
    """
    if analysis.reduction_axes or lanes < 4 or analysis.kernel.sizes[axis] < lanes:
        return None
    found = crossing_loads(analysis, axis, lanes, backward=False)
    if found is None or any(r.value.axes & {axis, found[0]} for n in range(len(analysis.kernel.nodes)) for r in analysis.ranges(n)):
        return None
    return found


class TransposeTiles:
    """Writes blocks of tiles over two axes of a kernel without inner axes."""

    def __init__(self, analysis: KernelAnalysis, f: Function, axis: int, other: int, lanes: int, loads: Sequence[int]) -> None:
        self.analysis = analysis
        self.f = f
        self.axis = axis
        self.other = other
        self.lanes = lanes
        self.loads = loads
        #: How many tiles lie side by side in a block.
        self.columns = -(-BLOCK // lanes)
        #: The tile of every part of every load.
        self.tiles: dict[int, list[Value]] = {}

    def strip(self, scope: VectorScope, start: Value, stop: Value) -> None:
        """Emit the full extent of the vectors' axis, for a strip along the other one."""
        f, size = self.f, self.analysis.kernel.sizes[self.axis]

        def block(first: Value, _: list[Value]) -> None:
            end = least(f, f.plus(first, i64(BLOCK)), i64(size))

            def across(u: Value, _: list[Value]) -> None:
                wide = i64(self.lanes) if self.is_full else least(f, i64(self.lanes), f.minus(stop, u))
                f.loop(first, end, self.lanes, [], lambda v, _: self.tile(scope, u, wide, v, first, end), once=True)
                f.loop(i64(0), wide, 1, [], lambda i, _: self.work_row(scope, u, i, first, end), once=True)

            f.loop(start, stop, self.lanes, [], across, once=True)

        f.loop(i64(0), i64(size), BLOCK, [], block, once=True)

    @property
    def is_full(self) -> bool:
        """True if all tiles are full."""
        sizes = self.analysis.kernel.sizes
        return sizes[self.axis] % self.lanes == 0 and sizes[self.other] % self.lanes == 0

    def tile(self, scope: VectorScope, u: Value, wide: Value, v: Value, first: Value, end: Value) -> None:
        """Emit the load of one tile, of which some may be beyond the ends."""
        f, column = self.f, self.f.divided(self.f.minus(v, first), self.lanes)[0]
        if self.is_full:
            self.staged(scope, u, None, v, None, column)
            return
        high = least(f, i64(self.lanes), f.minus(end, v))
        full = f.compare("icmp eq", f.plus(wide, high), i64(2 * self.lanes))
        f.branch(full, lambda: self.staged(scope, u, None, v, None, column), lambda: self.staged(scope, u, wide, v, high, column))

    def work_row(self, scope: VectorScope, u: Value, i: Value, first: Value, end: Value) -> None:
        """Emit the work on a row of a block of tiles, along the vectors' axis."""
        f, targets = self.f, [store.value for store in self.analysis.kernel.stores]
        outside = scope.child({self.other: f.plus(u, i)})
        outside.prepare(targets, range(len(targets)))

        def iteration(v: Value, _: list[Value]) -> None:
            count = None if self.is_full else least(f, i64(self.lanes), f.minus(end, v))
            inside = outside.child({self.axis: v}, VectorAxis(self.axis, self.lanes, count))
            column = f.divided(f.minus(v, first), self.lanes)[0]
            for number, tiles in self.tiles.items():
                inside.numbers[number] = self.taken(number, tiles, f.plus(f.times(i, self.columns), column))
            for number in inside.needed(targets):  # before the first store, as a result may lie where an operand of another one is
                inside.number(number)
            for s in range(len(targets)):
                inside.store(s)

        f.loop(first, end, self.lanes, [], iteration, once=True)

    def staged(self, scope: VectorScope, u: Value, wide: Value | None, v: Value, high: Value | None, column: Value) -> None:
        """Emit the loads and the transpose of a tile, and put it on the stack."""
        for number in self.loads:
            rows = []
            for k in range(self.lanes):
                count = wide
                if wide is not None and high is not None:
                    count = self.f.select(self.f.compare("icmp slt", i64(k), high), wide, i64(0))
                row = scope.child({self.other: u, self.axis: self.f.plus(v, i64(k))}, VectorAxis(self.other, self.lanes, count))
                rows.append(row.number(number).components)
                fetch_ahead(self.f, row.pointer(("load", number)), self.analysis.kernel.nodes[number].dtype.itemsize * self.lanes)
            type_ = vector_of(_tile_element(self.analysis.kernel.nodes[number].dtype), self.lanes)
            for component, columns in enumerate(zip(*rows, strict=True)):
                self.put(number, component, transposed(self.f, [self.f.cast("zext", x, type_) for x in columns]), column)

    def put(self, number: int, component: int, vectors: Sequence[Value], column: Value) -> None:
        """Emit the stores of a tile on the stack."""
        tiles, type_ = self.tiles.setdefault(number, []), vectors[0].type
        if component == len(tiles):
            tiles.append(self.f.alloca(type_, self.lanes * self.columns))
        for k, vector in enumerate(vectors):
            slot = self.f.plus(i64(k * self.columns), column)
            self.f.store(vector, self.f.at(tiles[component], type_, slot), _align(type_))

    def taken(self, number: int, tiles: Sequence[Value], i: Value) -> Number:
        """Emit the load of a row of a tile on the stack."""
        dtype = self.analysis.kernel.nodes[number].dtype
        components = []
        for tile in tiles:
            type_ = vector_of(_tile_element(dtype), self.lanes)
            x = self.f.load(type_, self.f.at(tile, type_, i), _align(type_))
            components.append(self.f.cast("trunc", x, vector_of("i1", self.lanes)) if dtype.kind == "b" else x)
        return Number(dtype, tuple(components))


def _tile_element(dtype: np.dtype) -> str:
    return "i8" if dtype.kind == "b" else element(dtype)


def _align(type_: str) -> int:
    return min(64, bits_of(type_) // 8 * lanes_of(type_))


def transposed(f: Function, rows: Sequence[Value]) -> list[Value]:
    """Emit the transpose of a square of vectors, by swaps of growing blocks."""
    result, lanes = list(rows), len(rows)
    step = 1
    while step < lanes:
        upper = [j if not j & step else lanes + j - step for j in range(lanes)]
        lower = [j + step if not j & step else lanes + j for j in range(lanes)]
        for i in [i for i in range(lanes) if not i & step]:
            a, b = result[i], result[i + step]
            result[i], result[i + step] = _shuffled(f, a, b, upper), _shuffled(f, a, b, lower)
        step *= 2
    return result


def _shuffled(f: Function, a: Value, b: Value, order: Sequence[int]) -> Value:
    mask = ", ".join(f"i32 {p}" for p in order)
    return f.let(a.type, f"shufflevector {a}, {b}, <{len(order)} x i32> <{mask}>")

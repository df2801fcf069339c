"""Transposes in tiles, and interleaved results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from volta_fn.compiler.ir.axes import KernelAnalysis, coefficient
from volta_fn.compiler.ir.index import Range
from volta_fn.runtime.llvm.text import Function, Value, i64, least, vector_of
from volta_fn.runtime.llvm.text import lanes_of as vector_lanes
from volta_fn.targets.cpu.loops.emit_values import VectorAxis, VectorScope, fetch_ahead
from volta_fn.targets.cpu.loops.rows import Segment, Vectors
from volta_fn.targets.cpu.loops.schedule import BLOCK
from volta_fn.targets.cpu.scalars import Number, store
from volta_fn.targets.cpu.scalars.number import element
from volta_fn.targets.cpu.scalars.values import bits_of

# Kernels whose innermost axis is short: interleaved results.
#
# `repeat` has such kernels, and `stack` along the last axis. Vectors go along a longer axis, whose elements are not neighbours in
# memory. So the elements of all indices along the short axis are computed together, and their lanes are interleaved before the store.


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
        vector_axis = VectorAxis(self.vectors.axis, self.vectors.lanes, count)
        for column in scope.vectors(vector_axis, start, unroll, segment.decided):
            column.hoist(self.targets)
            cells = []
            for index, decided in enumerate(self.decided):
                cells.append(column.child({self.inner: i64(index)}))
                cells[-1].decided.update(decided)
            # All before the first store, as a result may share the memory of another one's operand.
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
    pairs = [f.shuffle(x, range(2 * lanes), y) for x, y in zip(components[::2], components[1::2], strict=True)]
    return Number(vectors[0].dtype, (f.shuffle(pairs[0], order, pairs[1] if len(pairs) > 1 else None),))


def _blended(f: Function, vectors: Sequence[Value], lanes: int) -> list[Value]:
    """Emit an odd number of vectors interleaved, by one permutation of each.

    No two lanes of a vector go to the same lane of results.
    """
    size = len(vectors)
    rotated = [f.shuffle(x, [(lane - k) * pow(size, -1, lanes) % lanes for lane in range(lanes)]) for k, x in enumerate(vectors)]
    results = [rotated[0]] * size
    for k, x in enumerate(rotated[1:], 1):
        results = [f.shuffle(y, [j + lanes * ((lanes * i + j) % size == k) for j in range(lanes)], x) for i, y in enumerate(results)]
    return results


def _holds(condition: Range, axis: int, index: int) -> bool:
    value = condition.value.offset + coefficient(condition.value, axis) * index
    return condition.low <= value < condition.high


# Transposes: kernels whose loads and stores are contiguous along different axes.
#
# Square tiles of vectors are loaded along the loads' axis, transposed in registers, stored on the stack, and used along
# the stores' axis, so that memory is read and written by full cache lines. Tiles are visited in blocks that few pages of memory hold.


class TransposeTiles:
    """Writes blocks of tiles over two axes of a kernel without inner axes."""

    def __init__(self, analysis: KernelAnalysis, f: Function, axis: int, other: int, lanes: int, loads: Sequence[int]) -> None:
        self.analysis = analysis
        self.f = f
        self.axis = axis
        self.other = other
        self.lanes = lanes
        self.loads = loads
        #: Tiles of a block along the vectors' axis.
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
                f.loop(first, end, self.lanes, [], lambda v, _: self.tile(scope, u, wide, v, first, end), nonempty=True)
                f.loop(i64(0), wide, 1, [], lambda i, _: self.work_row(scope, u, i, first, end), nonempty=True)

            f.loop(start, stop, self.lanes, [], across, nonempty=True)

        f.loop(i64(0), i64(size), BLOCK, [], block, nonempty=True)

    @property
    def is_full(self) -> bool:
        """True if all tiles are full."""
        sizes = self.analysis.kernel.sizes
        return sizes[self.axis] % self.lanes == 0 and sizes[self.other] % self.lanes == 0

    def tile(self, scope: VectorScope, u: Value, wide: Value, v: Value, first: Value, end: Value) -> None:
        """Emit the load of one tile, of which some may be beyond the ends."""
        f, column = self.f, self.f.divided(self.f.minus(v, first), self.lanes)[0]
        if self.is_full:
            self.stage_tile(scope, u, None, v, None, column)
            return
        high = least(f, i64(self.lanes), f.minus(end, v))
        full = f.compare("icmp eq", f.plus(wide, high), i64(2 * self.lanes))
        f.branch(full, lambda: self.stage_tile(scope, u, None, v, None, column), lambda: self.stage_tile(scope, u, wide, v, high, column))

    def work_row(self, scope: VectorScope, u: Value, i: Value, first: Value, end: Value) -> None:
        """Emit the work on a row of a block of tiles, along the vectors' axis."""
        f, targets = self.f, [store.value for store in self.analysis.kernel.stores]
        outside = scope.child({self.other: f.plus(u, i)})
        outside.prepare(targets, range(len(targets)))

        def iteration(v: Value, _: list[Value]) -> None:
            count = None if self.is_full else least(f, i64(self.lanes), f.minus(end, v))
            inside = outside.child({self.axis: v}, VectorAxis(self.axis, self.lanes, count))
            column = f.divided(f.minus(v, first), self.lanes)[0]
            for node, tiles in self.tiles.items():
                inside.values[node] = self.load_tile_row(node, tiles, f.plus(f.times(i, self.columns), column))
            for node in inside.needed(targets):  # before the first store, as a result may share the memory of another one's operand
                inside.value(node)
            for s in range(len(targets)):
                inside.store(s)

        f.loop(first, end, self.lanes, [], iteration, nonempty=True)

    def stage_tile(self, scope: VectorScope, u: Value, wide: Value | None, v: Value, high: Value | None, column: Value) -> None:
        """Emit the loads and the transpose of a tile, and store it on the stack."""
        for node in self.loads:
            rows = []
            for k in range(self.lanes):
                count = wide
                if wide is not None and high is not None:
                    count = self.f.select(self.f.compare("icmp slt", i64(k), high), wide, i64(0))
                row = scope.child({self.other: u, self.axis: self.f.plus(v, i64(k))}, VectorAxis(self.other, self.lanes, count))
                rows.append(row.value(node).components)
                fetch_ahead(self.f, row.pointer(("load", node)), self.analysis.kernel.nodes[node].dtype.itemsize * self.lanes)
            type_ = vector_of(_tile_element(self.analysis.kernel.nodes[node].dtype), self.lanes)
            for component, columns in enumerate(zip(*rows, strict=True)):
                self.store_tile(node, component, transposed(self.f, [self.f.cast("zext", x, type_) for x in columns]), column)

    def store_tile(self, node: int, component: int, vectors: Sequence[Value], column: Value) -> None:
        """Emit the stores of a tile on the stack."""
        tiles, type_ = self.tiles.setdefault(node, []), vectors[0].type
        if component == len(tiles):
            tiles.append(self.f.alloca(type_, self.lanes * self.columns))
        for k, vector in enumerate(vectors):
            slot = self.f.plus(i64(k * self.columns), column)
            self.f.store(vector, self.f.at(tiles[component], type_, slot), _align(type_))

    def load_tile_row(self, node: int, tiles: Sequence[Value], i: Value) -> Number:
        """Emit the load of a row of a tile on the stack."""
        dtype = self.analysis.kernel.nodes[node].dtype
        components = []
        for tile in tiles:
            type_ = vector_of(_tile_element(dtype), self.lanes)
            x = self.f.load(type_, self.f.at(tile, type_, i), _align(type_))
            components.append(self.f.cast("trunc", x, vector_of("i1", self.lanes)) if dtype.kind == "b" else x)
        return Number(dtype, tuple(components))


def _tile_element(dtype: np.dtype) -> str:
    return "i8" if dtype.kind == "b" else element(dtype)


def _align(type_: str) -> int:
    return min(64, bits_of(type_) // 8 * vector_lanes(type_))


def transposed(f: Function, rows: Sequence[Value]) -> list[Value]:
    """Emit the transpose of a square of vectors, by swaps of growing blocks."""
    result, lanes = list(rows), len(rows)
    step = 1
    while step < lanes:
        upper = [j if not j & step else lanes + j - step for j in range(lanes)]
        lower = [j + step if not j & step else lanes + j for j in range(lanes)]
        for i in [i for i in range(lanes) if not i & step]:
            a, b = result[i], result[i + step]
            result[i], result[i + step] = f.shuffle(a, upper, b), f.shuffle(a, lower, b)
        step *= 2
    return result

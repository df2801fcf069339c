"""A register tile of a product for one block of k: the micro-kernel, then what follows from the sums."""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.targets.cpu.matmul.blocking import Schedule
from volta_fn.targets.cpu.matmul.compute_dtype import Working, is_itself
from volta_fn.targets.cpu.matmul.epilogues import Epilogue, Partial, Placed, Store
from volta_fn.targets.cpu.matmul.fused_epilogue import Fused, Strip
from volta_fn.targets.cpu.matmul.micro_kernel import Kind, Place, Tile, multiply
from volta_fn.targets.cpu.matmul.task_loops import parameters_of, when

_STRIP_BYTES = 64 << 10  # of sums that are kept for the epilogue, at most


class Spot(NamedTuple):
    """What a tile is told: where it belongs, where A and B begin, how many k there are, which block this is, its place in the strip."""

    buffers: Value
    batch: Value
    row: Value
    column: Value
    depth: Value
    a: Value
    b: Value
    split: Value
    state: Value
    strip: Value

    def tile(self, work: Working, columns: int) -> Tile:
        """The tile, without sums."""
        return Tile(work, self.buffers, self.batch, self.row, self.column, [], columns)


class Tiles:
    """Writes the tiles of a product."""

    def __init__(
        self, work: Working, plan: Schedule, a_strides: tuple[int, int], b_inner: int | None, epilogue: Epilogue, partial: Partial
    ) -> None:
        """For A by (row, k) with strides in elements, and B with a stride along k, or None where it is packed."""
        self.work, self.plan, self.a_strides, self.b_inner, self.epilogue, self.partial = work, plan, a_strides, b_inner, epilogue, partial
        self.strip_width = plan.task_columns * plan.width
        short = plan.tallest * self.strip_width * work.itemsize <= _STRIP_BYTES
        #: The epilogue, where it waits until all columns of some rows are done.
        self.strips = epilogue if isinstance(epilogue, Fused) and short else None
        self.direct = epilogue if isinstance(epilogue, Store | Placed) and epilogue.direct else None

    def write(self, f: Function, rows: int, count: int, spot: Spot) -> None:
        """Do a tile of `rows` rows and `count` columns for one block of k."""
        tile = spot.tile(self.work, count)
        if self.plan.splits > 1:
            self._multiply(f, rows, spot, tile, None)
        elif self.strips is not None and is_itself(self.work, self.strips.dtype):
            self._multiply(f, rows, spot, tile, Place(spot.strip, i64(self.strip_width * self.work.itemsize)))
        elif self.direct is not None:
            self._multiply(f, rows, spot, tile, self.direct.place(f, tile))
        else:
            f.run(self._tile_and_end(f.module, rows, count), *spot)

    def _tile_and_end(self, module: Module, rows: int, count: int) -> str:
        """The function that does a tile for one block of k, and what follows from it after the last one."""
        name = f"tile{rows}x{count}"

        def write() -> None:
            f = Function(module, name, parameters_of(*Spot._fields), "internal void")
            spot, width = Spot(*f.parameters), self._width_of(count)
            tile, sums = spot.tile(self.work, count), f.alloca(self.work.type, rows * width)
            self._multiply(f, rows, spot, tile, Place(sums, i64(width * self.work.itemsize)))
            if self.plan.blocks == 1:
                self._end(f, tile, sums, rows, spot.strip)
            else:
                last = f.compare("icmp ne", f.binary("and", spot.state, i64(2)), i64(0))
                when(f, last, lambda: self._end(f, tile, sums, rows, spot.strip))
            f.finish()

        module.define(name, write)
        return name

    def _multiply(self, f: Function, rows: int, spot: Spot, tile: Tile, result: Place | None) -> None:
        """Add a block's products to what earlier blocks gave of a tile. After the last block, the sums are in the result."""
        outer, inner = self.a_strides
        b_inner = self._width_of(tile.columns) if self.b_inner is None else self.b_inner
        kind = Kind(self.work, rows, tile.columns, None if inner == 1 else outer, inner, b_inner, self.b_inner is None)
        source, target = self._ways(f, spot, tile, result)
        f.run_shared(multiply(kind), spot.a, i64(outer * self.work.itemsize), spot.b, spot.depth, *source, *target)

    def _ways(self, f: Function, spot: Spot, tile: Tile, result: Place | None) -> tuple[Place, Place]:
        """Where a tile's sums come from, and where they go. The state has bit 0 in the first block, bit 1 in the last."""
        null = Value("ptr", "null")
        if self.plan.blocks == 1 and result is not None:
            return Place(null, i64(0)), result
        partial = self.partial.place(f, tile, spot.split)
        first, last = [f.compare("icmp ne", f.binary("and", spot.state, i64(bit)), i64(0)) for bit in (1, 2)]
        source = partial._replace(pointer=f.select(first, null, partial.pointer))
        if result is None:
            return source, partial
        return source, Place(*[f.select(last, x, y) for x, y in zip(result, partial, strict=True)])

    def _end(self, f: Function, tile: Tile, sums: Value, rows: int, strip: Value) -> None:
        """What follows from complete sums: the epilogue, or they are put into the strip, whose turn comes later."""
        work, width = self.work, self._width_of(tile.columns)
        if isinstance(self.epilogue, Fused) and self.strips is None and is_itself(work, self.epilogue.dtype):
            self.epilogue.finish(f, Strip(tile.buffers, tile.batch, tile.row, i64(rows), tile.column, i64(tile.columns), sums, width))
            return
        places = [[f.at(sums, work.type, i64(row * width + start)) for start in range(0, width, work.lanes)] for row in range(rows)]
        tile = tile._replace(sums=[[f.load(work.vector, place, work.itemsize) for place in row] for row in places])
        if self.strips is None:
            self.epilogue.write(f, tile)
        else:
            self.strips.put(f, tile, strip, self.strip_width)

    def _width_of(self, count: int) -> int:
        return count + -count % self.work.lanes

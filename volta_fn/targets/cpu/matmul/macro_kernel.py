"""A register tile for one block of k: the micro-kernel, then the epilogue."""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.targets.cpu.matmul.blocking import Blocking
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType, is_itself
from volta_fn.targets.cpu.matmul.epilogues import Epilogue, PartialSums, StoreStrided, StoreSums
from volta_fn.targets.cpu.matmul.fused_epilogue import FusedEpilogue, Strip
from volta_fn.targets.cpu.matmul.micro_kernel import MicroKernel, ResultTile, TileAddress, micro_kernel
from volta_fn.targets.cpu.matmul.task_loops import parameters_of

_STRIP_BYTES = 64 << 10  # most bytes of sums that are kept for the epilogue


class TileArguments(NamedTuple):
    """A tile's arguments: its position, where A and B begin, k, block and strip."""

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

    def tile(self, work: ComputeType, columns: int) -> ResultTile:
        """Return the tile, without sums."""
        return ResultTile(work, self.buffers, self.batch, self.row, self.column, [], columns)


class TileWriter:
    """Writes the tiles of a product."""

    def __init__(
        self,
        work: ComputeType,
        plan: Blocking,
        a_strides: tuple[int, int],
        b_inner: int | None,
        epilogue: Epilogue,
        partial: PartialSums,
        strips: bool | None = None,
    ) -> None:
        """Take A's strides in elements, and B's along k, or None where it is packed."""
        self.work, self.plan, self.a_strides, self.b_inner, self.epilogue, self.partial = work, plan, a_strides, b_inner, epilogue, partial
        self.strip_width = plan.task_columns * plan.width
        short = plan.tallest * self.strip_width * work.itemsize <= _STRIP_BYTES
        #: The epilogue, if it runs when all columns of some rows are done.
        self.strips = epilogue if isinstance(epilogue, FusedEpilogue) and short and strips is not False else None
        self.direct = epilogue if isinstance(epilogue, StoreSums | StoreStrided) and epilogue.direct else None

    def write(self, f: Function, rows: int, count: int, arguments: TileArguments) -> None:
        """Emit a tile of `rows` rows and `count` columns for one block of k."""
        tile = arguments.tile(self.work, count)
        if self.plan.splits > 1:
            self._multiply(f, rows, arguments, tile, None)
        elif self.strips is not None and is_itself(self.work, self.strips.dtype):
            self._multiply(f, rows, arguments, tile, TileAddress(arguments.strip, i64(self.strip_width * self.work.itemsize)))
        elif self.direct is not None:
            self._multiply(f, rows, arguments, tile, self.direct.address(f, tile))
        else:
            f.run(self._tile_and_end(f.module, rows, count), *arguments)

    def _tile_and_end(self, module: Module, rows: int, count: int) -> str:
        """Return the function of a tile for one block of k, and the last's epilogue."""
        name = f"tile{rows}x{count}"

        def write() -> None:
            f = Function(module, name, parameters_of(*TileArguments._fields), "internal void")
            arguments, width = TileArguments(*f.parameters), self._width_of(count)
            tile, sums = arguments.tile(self.work, count), f.alloca(self.work.type, rows * width)
            self._multiply(f, rows, arguments, tile, TileAddress(sums, i64(width * self.work.itemsize)))
            if self.plan.blocks == 1:
                self._end(f, tile, sums, rows, arguments.strip)
            else:
                last = f.compare("icmp ne", f.binary("and", arguments.state, i64(2)), i64(0))
                f.branch(last, lambda: self._end(f, tile, sums, rows, arguments.strip))
            f.finish()

        module.define(name, write)
        return name

    def _multiply(self, f: Function, rows: int, arguments: TileArguments, tile: ResultTile, result: TileAddress | None) -> None:
        """Emit the micro-kernel; after the last block, the sums are in the result."""
        outer, inner = self.a_strides
        b_inner = self._width_of(tile.columns) if self.b_inner is None else self.b_inner
        kind = MicroKernel(self.work, rows, tile.columns, None if inner == 1 else outer, inner, b_inner, self.b_inner is None)
        source, target = self._ways(f, arguments, tile, result)
        f.run_shared(micro_kernel(kind), arguments.a, i64(outer * self.work.itemsize), arguments.b, arguments.depth, *source, *target)

    def _ways(self, f: Function, arguments: TileArguments, tile: ResultTile, result: TileAddress | None) -> tuple[TileAddress, TileAddress]:
        """Emit the addresses that sums are read from and stored to.

        The state has bit 0 in the first block, bit 1 in the last.
        """
        null = Value("ptr", "null")
        if self.plan.blocks == 1 and result is not None:
            return TileAddress(null, i64(0)), result
        partial = self.partial.address(f, tile, arguments.split)
        first, last = [f.compare("icmp ne", f.binary("and", arguments.state, i64(bit)), i64(0)) for bit in (1, 2)]
        source = partial._replace(pointer=f.select(first, null, partial.pointer))
        if result is None:
            return source, partial
        return source, TileAddress(*[f.select(last, x, y) for x, y in zip(result, partial, strict=True)])

    def _end(self, f: Function, tile: ResultTile, sums: Value, rows: int, strip: Value) -> None:
        """Emit the epilogue of complete sums, or store them to the strip for it."""
        work, width = self.work, self._width_of(tile.columns)
        if isinstance(self.epilogue, FusedEpilogue) and self.strips is None and is_itself(work, self.epilogue.dtype):
            self.epilogue.finish(f, Strip(tile.buffers, tile.batch, tile.row, i64(rows), tile.column, i64(tile.columns), sums, width))
            return
        addresses = [[f.at(sums, work.type, i64(row * width + start)) for start in range(0, width, work.lanes)] for row in range(rows)]
        tile = tile._replace(sums=[[f.load(work.vector, address, work.itemsize) for address in row] for row in addresses])
        if self.strips is None:
            self.epilogue.write(f, tile)
        else:
            self.strips.put(f, tile, strip, self.strip_width)

    def _width_of(self, count: int) -> int:
        return count + -count % self.work.lanes

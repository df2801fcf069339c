"""Epilogues: from a tile's sums to results, and the partial sums of split-K."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from volta_fn.compiler.contractions.matmul_problem import Walk
from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.targets.cpu.matmul.blocking import Blocking
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType, is_itself, load, write
from volta_fn.targets.cpu.matmul.micro_kernel import ResultTile, TileAddress
from volta_fn.targets.cpu.matmul.task_loops import each, offset_of
from volta_fn.targets.cpu.routine import Launch


class Epilogue(Protocol):
    """The end of a product."""

    #: The number of a buffer ``[stack, m, n]`` of the compute type that can hold incomplete sums; None if there is none.
    holds_sums: int | None

    def write(self, f: Function, tile: ResultTile) -> None:
        """Write what follows from the sums of a tile."""


class StoreSums:
    """Stores sums, rounded to a dtype, to ``[stack, m, n]``."""

    def __init__(self, work: ComputeType, dtype: np.dtype, sizes: tuple[int, int], buffer: int) -> None:
        self.dtype, self.sizes, self.buffer = dtype, sizes, buffer
        #: Whether the sums need no conversion.
        self.direct = is_itself(work, dtype)
        self.holds_sums = buffer if self.direct else None

    def address(self, f: Function, tile: ResultTile) -> TileAddress:
        """Emit where a tile's sums belong, if they are direct."""
        return TileAddress(self._start(f, tile), i64(self.sizes[1] * self.dtype.itemsize))

    def _start(self, f: Function, tile: ResultTile) -> Value:
        m, n = self.sizes
        matrix = self._move(f, f.load("ptr", f.at(tile.buffers, "ptr", i64(self.buffer)), 8), _times(f, tile.batch, m * n))
        return self._move(f, self._move(f, matrix, _times(f, tile.row, n)), tile.column)

    def write(self, f: Function, tile: ResultTile) -> None:
        """See `Epilogue`."""
        n, start, lanes = self.sizes[1], self._start(f, tile), tile.work.lanes
        for i, row in enumerate(tile.sums):
            for v, sums in enumerate(row):
                write(f, tile.work, self.dtype, sums, lanes, self._move(f, start, i64(i * n + v * lanes)), tile.mask(v))

    def _move(self, f: Function, pointer: Value, offset: Value) -> Value:
        return pointer if offset.name == "0" else f.at(pointer, f"[{self.dtype.itemsize} x i8]", offset)


class StoreStrided:
    """Stores sums, rounded to a dtype, to rows that are contiguous along columns.

    Index maps give the offsets of rows and matrices.
    """

    def __init__(self, work: ComputeType, dtype: np.dtype, stack: Walk, rows: Walk, columns: int, buffer: int) -> None:
        self.dtype, self.stack, self.rows, self.buffer = dtype, stack, rows, buffer
        in_order = rows.stride == columns and stack.stride in (0, columns * rows.size)
        self.holds_sums = buffer if is_itself(work, dtype) and in_order else None
        #: Whether the sums need no conversion, and rows have one stride.
        self.direct = is_itself(work, dtype) and rows.stride is not None

    def address(self, f: Function, tile: ResultTile) -> TileAddress:
        """Emit where a tile's sums belong, if they are direct."""
        start = f.at(self._columns(f, tile), f"[{self.dtype.itemsize} x i8]", offset_of(f, self.rows, tile.row))
        return TileAddress(start, i64((self.rows.stride or 0) * self.dtype.itemsize))

    def _columns(self, f: Function, tile: ResultTile) -> Value:
        """Emit where the tile's columns begin in the first of all rows."""
        element = f"[{self.dtype.itemsize} x i8]"
        array = f.load("ptr", f.at(tile.buffers, "ptr", i64(self.buffer)), 8)
        return f.at(f.at(array, element, offset_of(f, self.stack, tile.batch)), element, tile.column)

    def write(self, f: Function, tile: ResultTile) -> None:
        """See `Epilogue`."""
        element, lanes, start = f"[{self.dtype.itemsize} x i8]", tile.work.lanes, self._columns(f, tile)
        first = f.at(start, element, offset_of(f, self.rows, tile.row)) if self.rows.stride is not None else None
        for i, row in enumerate(tile.sums):
            if first is not None:
                row_address = f.at(first, element, i64(i * (self.rows.stride or 0)))
            else:
                row_address = f.at(start, element, offset_of(f, self.rows, f.binary("add", tile.row, i64(i))))
            for v, sums in enumerate(row):
                write(f, tile.work, self.dtype, sums, lanes, f.at(row_address, element, i64(v * lanes)), tile.mask(v))


def _times(f: Function, index: Value, step: int) -> Value:
    return index if step == 1 or index.name == "0" else f.binary("mul", index, i64(step))


_WORKING_DTYPES = {"float": "float32", "double": "float64", "i32": "int32", "i64": "int64"}
_ROW_COST = 0.3  # nanoseconds for a vector of a split


class PartialSums(NamedTuple):
    """An array ``[split, stack, m, n]`` of the compute type, in a buffer at `offset`."""

    buffer: int
    offset: int
    plan: Blocking

    def address(self, f: Function, tile: ResultTile, split: Value) -> TileAddress:
        """Emit where a tile's sums belong."""
        return TileAddress(self._start(f, tile, split), i64(self.plan.n * tile.work.itemsize))

    def _start(self, f: Function, tile: ResultTile, split: Value) -> Value:
        plan, type_ = self.plan, tile.work.type
        start = f.at(f.load("ptr", f.at(tile.buffers, "ptr", i64(self.buffer)), 8), "i8", i64(self.offset))
        if plan.splits > 1:
            start = f.at(start, f"[{plan.batch * plan.m * plan.n} x {type_}]", split)
        matrix = f.at(start, f"[{plan.m * plan.n} x {type_}]", tile.batch)
        return f.at(f.at(matrix, f"[{plan.n} x {type_}]", tile.row), type_, tile.column)

    def add(self, f: Function, tile: ResultTile, split: Value) -> list[Value]:
        """Emit a tile's sums plus what the array holds."""
        work, start = tile.work, self._start(f, tile, split)
        return [
            work.add(f, load(f, work.type, work.itemsize, self._vector(f, tile, start, i, v), work.lanes, tile.mask(v)), sums)
            for i, row in enumerate(tile.sums)
            for v, sums in enumerate(row)
        ]

    def store(self, f: Function, tile: ResultTile, split: Value) -> None:
        """Store a tile's sums to the array."""
        work, start = tile.work, self._start(f, tile, split)
        dtype = np.dtype(_WORKING_DTYPES[work.type])
        for i, row in enumerate(tile.sums):
            for v, sums in enumerate(row):
                write(f, work, dtype, sums, work.lanes, self._vector(f, tile, start, i, v), tile.mask(v))

    def _vector(self, f: Function, tile: ResultTile, start: Value, i: int, v: int) -> Value:
        return f.at(start, tile.work.type, i64(i * self.plan.n + v * tile.work.lanes))


def combine(module: Module, name: str, work: ComputeType, plan: Blocking, partial: PartialSums, epilogue: Epilogue) -> Launch:
    """Write the launch that adds the splits in order; a row of the result is a task."""
    f = Function(module, name, [Value("ptr", "%buffers"), Value("i64", "%begin"), Value("i64", "%end")])
    buffers, begin, end = f.parameters
    width = plan.width
    vectors = width // work.lanes

    def row_of_panel(batch: Value, row: Value, column: Value, count: int) -> None:
        across = -(-count // work.lanes)
        empty = ResultTile(work, buffers, batch, row, column, [[work.zero()] * across], count)

        def add_split(split: Value, sums: list[Value]) -> list[Value]:
            return partial.add(f, empty._replace(sums=[sums]), split)

        sums = f.loop(i64(0), i64(plan.splits), 1, [work.zero()] * across, add_split, once=True)
        epilogue.write(f, empty._replace(sums=[sums]))

    def task(number: Value) -> None:
        batch, row = f.binary("udiv", number, i64(plan.m)), f.binary("urem", number, i64(plan.m))

        def panel(index: Value) -> None:
            row_of_panel(batch, row, f.binary("mul", index, i64(width)), width)

        full_panels = plan.n // width
        each(f, i64(0), i64(full_panels), panel)
        if plan.n % width:
            row_of_panel(batch, row, i64(full_panels * width), plan.n % width)

    each(f, begin, end, task)
    f.finish()
    return Launch(name, plan.batch * plan.m, plan.batch * plan.m * -(-plan.n // width) * vectors * plan.splits * _ROW_COST)

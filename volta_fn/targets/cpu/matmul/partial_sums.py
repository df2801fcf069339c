"""Sums that are not complete yet: after some blocks of k, or of a part of a long sum."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.targets.cpu.matmul.compute_dtype import Working, load, write
from volta_fn.targets.cpu.matmul.epilogues import Epilogue
from volta_fn.targets.cpu.matmul.loops import each
from volta_fn.targets.cpu.matmul.schedule import Schedule
from volta_fn.targets.cpu.matmul.tile import Place, Tile
from volta_fn.targets.cpu.routine import Phase

_WORKING_DTYPES = {"float": "float32", "double": "float64", "i32": "int32", "i64": "int64"}
_ROW_COST = 0.3  # nanoseconds for a vector of a part


class Partial(NamedTuple):
    """An array ``[part, stack, m, n]`` of the working type, `offset` bytes into a buffer."""

    buffer: int
    offset: int
    plan: Schedule

    def place(self, f: Function, tile: Tile, split: Value) -> Place:
        """Where a tile's sums belong."""
        return Place(self._start(f, tile, split), i64(self.plan.n * tile.work.itemsize))

    def _start(self, f: Function, tile: Tile, split: Value) -> Value:
        plan, type_ = self.plan, tile.work.type
        start = f.at(f.load("ptr", f.at(tile.buffers, "ptr", i64(self.buffer)), 8), "i8", i64(self.offset))
        if plan.splits > 1:
            start = f.at(start, f"[{plan.batch * plan.m * plan.n} x {type_}]", split)
        matrix = f.at(start, f"[{plan.m * plan.n} x {type_}]", tile.batch)
        return f.at(f.at(matrix, f"[{plan.n} x {type_}]", tile.row), type_, tile.column)

    def add(self, f: Function, tile: Tile, split: Value) -> list[Value]:
        """The sums of a tile with what the array holds."""
        work, start = tile.work, self._start(f, tile, split)
        return [
            work.add(f, load(f, work.type, work.itemsize, self._vector(f, tile, start, i, v), work.lanes, tile.mask(v)), sums)
            for i, row in enumerate(tile.sums)
            for v, sums in enumerate(row)
        ]

    def store(self, f: Function, tile: Tile, split: Value) -> None:
        """Put the sums of a tile into the array."""
        work, start = tile.work, self._start(f, tile, split)
        dtype = np.dtype(_WORKING_DTYPES[work.type])
        for i, row in enumerate(tile.sums):
            for v, sums in enumerate(row):
                write(f, work, dtype, sums, work.lanes, self._vector(f, tile, start, i, v), tile.mask(v))

    def _vector(self, f: Function, tile: Tile, start: Value, i: int, v: int) -> Value:
        return f.at(start, tile.work.type, i64(i * self.plan.n + v * tile.work.lanes))


def combine(module: Module, name: str, work: Working, plan: Schedule, partial: Partial, epilogue: Epilogue) -> Phase:
    """The phase that adds the parts of long sums, one after another, a row of the result being a task."""
    f = Function(module, name, [Value("ptr", "%buffers"), Value("i64", "%begin"), Value("i64", "%end")])
    buffers, begin, end = f.parameters
    width = plan.width
    vectors = width // work.lanes

    def piece(batch: Value, row: Value, column: Value, count: int) -> None:
        across = -(-count // work.lanes)
        empty = Tile(work, buffers, batch, row, column, [[work.zero()] * across], count)

        def part(split: Value, sums: list[Value]) -> list[Value]:
            return partial.add(f, empty._replace(sums=[sums]), split)

        sums = f.loop(i64(0), i64(plan.splits), 1, [work.zero()] * across, part, once=True)
        epilogue.write(f, empty._replace(sums=[sums]))

    def task(number: Value) -> None:
        batch, row = f.binary("udiv", number, i64(plan.m)), f.binary("urem", number, i64(plan.m))

        def panel(index: Value) -> None:
            piece(batch, row, f.binary("mul", index, i64(width)), width)

        whole = plan.n // width
        each(f, i64(0), i64(whole), panel)
        if plan.n % width:
            piece(batch, row, i64(whole * width), plan.n % width)

    each(f, begin, end, task)
    f.finish()
    return Phase(name, plan.batch * plan.m, plan.batch * plan.m * -(-plan.n // width) * vectors * plan.splits * _ROW_COST)

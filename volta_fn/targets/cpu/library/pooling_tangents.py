"""Pooling's tangents: to each window what its winner has."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.index_arith import nest
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.library.entry_points import Writer, nothing, part, pieces
from volta_fn.targets.cpu.library.numbers import map_run
from volta_fn.targets.cpu.library.strided import read
from volta_fn.targets.cpu.library.window_argmax import Some, apart, moves_of, winners
from volta_fn.targets.cpu.library.windows import position_of
from volta_fn.targets.cpu.routine import Routine
from volta_fn.targets.cpu.scalars import Number, constant, store

_TASK = 1 << 13


def select_and_gather_add(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """The routine of the primitive."""
    moves = moves_of(avals[0], avals[1], params)
    if moves is None:
        return None
    windows, lanes = moves.windows, moves.lanes
    rows, across = windows.outer * windows.results, windows.across.positions
    if not rows * across:
        return nothing()
    tasks = pieces(rows, max(1, _TASK // (across * windows.taps + 1)))

    def row(f: Function, pointers: list[Value], number: Value) -> None:
        outer, position = f.quotient(number, windows.results), position_of(f, windows, number)

        def some(i: Value, _: int, count: Value | None) -> None:
            def bring(_: Value, at: Value, mask: Value) -> list[Value]:
                return list(read(f, moves.moved, apart(f, moves, pointers[0], moves.moved, at, mask)).parts)

            nothing_yet = constant(f, np.zeros((), moves.moved), lanes).parts
            found = winners(f, moves, pointers[1], Some(outer, position, i, count), nothing_yet, bring)
            at = f.plus(f.times(number, across), i)
            store(f, Number(moves.moved, tuple(found)), f.at(pointers[2], f"[{moves.moved.itemsize} x i8]", at), count=count)

        map_run(f, i64(0), i64(across), lanes, some)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        nest(f, [rows], lambda index: row(f, pointers, index[0]), part(f, number, rows, tasks))

    writer = Writer("select_and_gather_add", 3)
    writer.phase(tasks, rows * across * windows.taps * 0.3, task)
    return writer.routine()

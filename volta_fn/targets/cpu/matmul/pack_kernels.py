"""Functions that pack panels, compiled once for all products.

They copy rows, spread them over panels, or transpose them in registers. Their arguments are an address, the bytes between rows in memory,
the number of k, and the panel's address.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from volta_fn.runtime.llvm.text import Function, SharedFunction, Value, i64, lanes_of, shared_function
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType, first_lanes, put, read
from volta_fn.targets.cpu.matmul.micro_kernel import RowPointers, type_name
from volta_fn.targets.cpu.matmul.task_loops import each

#: Rows that are packed at a time where they belong to several panels.
RUN = 8
#: Registers of rows that are transposed at a time. More are a loop: less code, and rows do not drive one another from the cache.
_ROWS = 2


@functools.cache
def copy_rows(work: ComputeType, dtype: np.dtype, count: int, width: int) -> SharedFunction:
    """Return the function that copies `count` numbers per k, padded to `width`."""

    def write(f: Function) -> None:
        source, stride, depth, target = f.parameters
        each(f, i64(0), depth, lambda k: copy_row(f, work, dtype, count, width, f.at(source, "i8", f.binary("mul", k, stride)), target, k))

    return shared_function(f"copy_{type_name(work)}_{dtype.name}_{count}to{width}", _packing_parameters(), write)


def copy_row(f: Function, work: ComputeType, dtype: np.dtype, count: int, width: int, source: Value, target: Value, k: Value) -> None:
    """Emit row `k` of a panel: `count` adjacent numbers, and zeros up to `width`."""
    address = f.at(target, work.type, f.binary("mul", k, i64(width)))
    for start in range(0, width, work.lanes):
        value = work.zero()
        if start < count:
            there = f.at(source, f"[{dtype.itemsize} x i8]", i64(start))
            value = read(f, work, dtype, there, work.lanes, first_lanes(count - start, work.lanes))
        put(f, work, value, f.at(address, work.type, i64(start)), width - start)


@functools.cache
def spread_rows(work: ComputeType, dtype: np.dtype, count: int, width: int) -> SharedFunction:
    """Return the function that copies rows of `count` numbers to several panels.

    Two more arguments are the number of panels, and their stride in bytes.
    """

    def write(f: Function) -> None:
        source, stride, depth, target, panels, panel_stride = f.parameters
        row_pointers = RowPointers(f, stride, RUN)
        runs_end = f.binary("and", depth, i64(-RUN))

        def ways(k: Value, panel: Value) -> tuple[Value, Value]:
            there = f.at(f.at(source, "i8", f.binary("mul", k, stride)), f"[{count * dtype.itemsize} x i8]", panel)
            return there, f.at(target, "i8", f.binary("mul", panel, panel_stride))

        def several(k: Value, panel: Value) -> None:
            there, address = ways(k, panel)
            starts = row_pointers.starts(f, there)
            numbers = _numbers(f, work, dtype, [row_pointers.row(f, starts, row) for row in range(RUN)], count, width)
            first = f.at(address, f"[{width * work.itemsize} x i8]", k)
            for start in range(0, RUN * width, work.lanes):
                value = assembled(f, numbers[start : start + work.lanes])
                f.store(value, f.at(first, work.type, i64(start)), work.itemsize)

        def single(k: Value, panel: Value) -> None:
            there, address = ways(k, panel)
            copy_row(f, work, dtype, count, width, there, address, k)

        each(f, i64(0), runs_end, lambda k: each(f, i64(0), panels, lambda panel: several(k, panel)), RUN)
        each(f, runs_end, depth, lambda k: each(f, i64(0), panels, lambda panel: single(k, panel)))

    parameters = [*_packing_parameters(), Value("i64", "%panels"), Value("i64", "%panel_apart")]
    return shared_function(f"spread_{type_name(work)}_{dtype.name}_{count}to{width}", parameters, write)


def _numbers(f: Function, work: ComputeType, dtype: np.dtype, rows: Sequence[Value], count: int, width: int) -> list[tuple[Value, int]]:
    """Emit each row's `count` numbers, and zeros up to `width`, as vectors and lanes."""
    numbers = []
    for row in rows:
        for start in range(0, width, work.lanes):
            vector = work.zero()
            if start < count:
                there = f.at(row, f"[{dtype.itemsize} x i8]", i64(start))
                vector = read(f, work, dtype, there, work.lanes, first_lanes(count - start, work.lanes))
            numbers += [(vector, lane) for lane in range(min(work.lanes, width - start))]
    return numbers


@functools.cache
def transpose_rows(work: ComputeType, dtype: np.dtype, count: int, width: int) -> SharedFunction:
    """Return the function that packs `count` rows along k, and zeros up to `width`."""

    def write(f: Function) -> None:
        source, stride, depth, target = f.parameters
        in_registers = count == width and count % work.lanes == 0 and count > _ROWS * work.lanes
        rows = work.lanes if in_registers else count
        row_pointers = RowPointers(f, stride, rows)

        def several(first: Value) -> None:
            start = f.at(source, "i8", f.binary("mul", first, stride))

            def at(k: Value) -> list[Value]:
                starts = row_pointers.starts(f, f.at(start, f"[{dtype.itemsize} x i8]", k))
                return [row_pointers.row(f, starts, row) for row in range(rows)]

            transposed_rows(f, work, dtype, at, rows if in_registers else width, depth, f.at(target, work.type, first), width)

        if in_registers:
            each(f, i64(0), i64(count), several, rows)
        else:
            several(i64(0))

    return shared_function(f"turn_{type_name(work)}_{dtype.name}_{count}to{width}", _packing_parameters(), write)


def _packing_parameters() -> list[Value]:
    return [Value("ptr" if name in ("source", "target") else "i64", f"%{name}") for name in ("source", "apart", "depth", "target")]


def transposed_rows(
    f: Function,
    work: ComputeType,
    dtype: np.dtype,
    rows_at: Callable[[Value], Sequence[Value]],
    width: int,
    depth: Value,
    target: Value,
    pitch: int,
) -> None:
    """Write the transpose of rows: for each of `depth` k, element k of every row.

    ``rows_at(k)`` gives the rows' addresses from k on. Those of the transpose are `pitch` numbers long, with zeros up to `width`.
    """

    def address(k: Value, start: int) -> Value:
        return f.at(target, work.type, f.binary("add", f.binary("mul", k, i64(pitch)), i64(start)))

    square = 16 // work.itemsize  # a quarter of the widest register, within which shuffles are cheap

    def squares(k: Value) -> None:
        rows = rows_at(k)
        for start in range(0, width, work.lanes):
            block = [
                _gathered([_row(f, work, dtype, rows, start + group * square + r, square) for group in range(work.lanes // square)], f)
                for r in range(square)
            ]
            for c, vector in enumerate(_squares_transposed(f, block, square)):
                put(f, work, vector, address(f.binary("add", k, i64(c)), start), width - start)

    def single(k: Value) -> None:
        rows = rows_at(k)
        for j in range(width):
            value = read(f, work, dtype, rows[j], 1) if j < len(rows) else Value(work.type, "zeroinitializer")
            f.store(value, address(k, j), work.itemsize)

    squares_end = f.binary("and", depth, i64(-square))
    each(f, i64(0), squares_end, squares, square)
    each(f, squares_end, depth, single)


def _row(f: Function, work: ComputeType, dtype: np.dtype, rows: Sequence[Value], number: int, square: int) -> Value:
    """Emit `square` numbers of a row; zeros beyond the last row."""
    return read(f, work, dtype, rows[number], square) if number < len(rows) else work.zero(square)


def _gathered(groups: Sequence[Value], f: Function) -> Value:
    """Emit the concatenation of vectors."""
    groups = list(groups)
    while len(groups) > 1:
        groups = [_joined(f, x, y) for x, y in zip(groups[::2], groups[1::2], strict=True)]
    return groups[0]


def _joined(f: Function, x: Value, y: Value) -> Value:
    return f.taken(x, range(2 * lanes_of(x.type)), y)


def _squares_transposed(f: Function, block: Sequence[Value], square: int) -> list[Value]:
    """Emit vectors with each run of `square` lanes transposed over `square` vectors."""
    lanes = lanes_of(block[0].type)
    starts = range(0, lanes, square)
    if square == 2:
        x, y = block
        return [f.taken(x, [s for b in starts for s in (b + half, lanes + b + half)], y) for half in (0, 1)]
    w, x, y, z = block
    low = [f.taken(p, [s for b in starts for s in (b, lanes + b, b + 1, lanes + b + 1)], q) for p, q in ((w, x), (y, z))]
    high = [f.taken(p, [s for b in starts for s in (b + 2, lanes + b + 2, b + 3, lanes + b + 3)], q) for p, q in ((w, x), (y, z))]
    first = [s for b in starts for s in (b, b + 1, lanes + b, lanes + b + 1)]
    second = [s for b in starts for s in (b + 2, b + 3, lanes + b + 2, lanes + b + 3)]
    return [f.taken(p, picks, q) for p, q in (low, high) for picks in (first, second)]


def assembled(f: Function, picks: Sequence[tuple[Value, int]]) -> Value:
    """Emit a vector of lanes of others, each by its vector and its number."""
    first, *others = dict.fromkeys([vector for vector, _ in picks])
    lanes = len(picks)
    made, order = first, [lane if vector == first else 0 for vector, lane in picks]
    for other in others or [first]:
        chosen = [lanes + lane if vector == other else now for (vector, lane), now in zip(picks, order, strict=True)]
        made, order = f.taken(made, chosen, other), list(range(lanes))
    return made

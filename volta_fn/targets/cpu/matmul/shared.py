"""The innermost functions of products, which are compiled once for all of them: what differs with the matrices' sizes, they are told."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.runtime.llvm.text import Function, Part, Value, i64, part
from volta_fn.targets.cpu.matmul.compute_dtype import Working, first_lanes, load, put, read
from volta_fn.targets.cpu.matmul.loops import each, when
from volta_fn.targets.cpu.matmul.tile import Lines, View, accumulate, fetch
from volta_fn.targets.cpu.matmul.transpose import assembled, transposed_rows

_NULL = Value("ptr", "null")
#: Lines that are packed at a time where they belong to several panels.
RUN = 8
_WORTH_FETCHING = 32  # k: it takes so long until the tile is wanted


class Kind(NamedTuple):
    """What a function that multiplies depends on: tiles of `rows` by `columns`, and how A and B lie."""

    work: Working
    rows: int
    columns: int
    #: How far A's rows are apart, in elements; None if it is told how many bytes.
    a_outer: int | None
    a_inner: int
    b_inner: int
    #: Whether B may be read beyond the last column, to a whole number of vectors.
    padded: bool


@functools.cache
def multiply(kind: Kind) -> Part:
    """The function that adds products to a tile.

    Its arguments are A's address and the bytes between its rows, B's address, how many k there are, and two tiles, each by its address
    and the bytes between its rows: the sums so far (null if there are none), and where the sums belong.
    """
    work, rows, columns = kind[:3]
    name = f"multiply_{_type(work)}_{rows}x{columns}_a{'' if kind.a_outer is None else kind.a_outer}_{kind.a_inner}_b{kind.b_inner}"
    pointers = ("a", "b", "source", "target")
    names = ("a", "a_apart", "b", "depth", "source", "source_apart", "target", "target_apart")

    def write(f: Function) -> None:
        a, a_apart, b, depth, source, source_apart, target, target_apart = f.parameters
        fresh = f.compare("icmp eq", source, _NULL)
        first, apart = f.select(fresh, target, source), f.select(fresh, target_apart, source_apart)
        when(f, f.compare("icmp sge", depth, i64(_WORTH_FETCHING)), lambda: _fetch(f, kind, first, apart))
        view = View(a, a_apart if kind.a_outer is None else kind.a_outer, kind.a_inner)
        sums = accumulate(f, work, rows, columns, view, View(b, 1, kind.b_inner), depth, padded=kind.padded)
        flat = [vector for row in sums for vector in row]
        flat = f.branch(fresh, lambda: flat, lambda: _added(f, kind, flat, source, source_apart))
        for (vector, place), value in zip(_vectors(f, kind, target, target_apart), flat, strict=True):
            put(f, work, value, place, columns - vector * work.lanes)

    parameters = [Value("ptr" if parameter in pointers else "i64", f"%{parameter}") for parameter in names]
    return part(f"{name}{'' if kind.padded else '_exact'}", parameters, write)


def _vectors(f: Function, kind: Kind, first: Value, apart: Value) -> list[tuple[int, Value]]:
    """The number and the address of each vector of a tile, row by row."""
    across = -(-kind.columns // kind.work.lanes)
    lines = Lines(f, apart, kind.rows)
    starts = lines.starts(f, first)
    places = [(lines.place(f, starts, row), vector) for row in range(kind.rows) for vector in range(across)]
    return [(vector, f.at(place, kind.work.type, i64(vector * kind.work.lanes))) for place, vector in places]


def _fetch(f: Function, kind: Kind, first: Value, apart: Value) -> None:
    """Have a tile brought near."""
    for _, place in _vectors(f, kind, first, apart):
        fetch(f, place, to_write=True)


def _added(f: Function, kind: Kind, sums: list[Value], first: Value, apart: Value) -> list[Value]:
    """Sums, and what a tile has, together."""
    work = kind.work
    masks = [first_lanes(kind.columns - start, work.lanes) for start in range(0, kind.columns, work.lanes)]
    return [
        work.add(f, load(f, work.type, work.itemsize, place, work.lanes, masks[vector]), value)
        for (vector, place), value in zip(_vectors(f, kind, first, apart), sums, strict=True)
    ]


# packing: the arguments are an address, the bytes between lines, how many k there are, and the panel's address


@functools.cache
def copy_lines(work: Working, dtype: np.dtype, count: int, width: int) -> Part:
    """The function that packs lines, one for each k, of `count` numbers side by side, with zeros up to `width`."""

    def write(f: Function) -> None:
        source, apart, depth, target = f.parameters
        each(f, i64(0), depth, lambda k: copy_line(f, work, dtype, count, width, f.at(source, "i8", f.binary("mul", k, apart)), target, k))

    return part(f"copy_{_type(work)}_{dtype.name}_{count}to{width}", _packing_parameters(), write)


def copy_line(f: Function, work: Working, dtype: np.dtype, count: int, width: int, source: Value, target: Value, k: Value) -> None:
    """Write the line number `k` of a panel: `count` numbers side by side, and zeros up to `width`."""
    place = f.at(target, work.type, f.binary("mul", k, i64(width)))
    for start in range(0, width, work.lanes):
        value = work.zero()
        if start < count:
            there = f.at(source, f"[{dtype.itemsize} x i8]", i64(start))
            value = read(f, work, dtype, there, work.lanes, first_lanes(count - start, work.lanes))
        put(f, work, value, f.at(place, work.type, i64(start)), width - start)


@functools.cache
def spread_lines(work: Working, dtype: np.dtype, count: int, width: int) -> Part:
    """The function that packs lines, one for each k, of `count` numbers for each of several panels side by side.

    Two more arguments are the number of panels, and how many bytes they are apart.
    """

    def write(f: Function) -> None:
        source, apart, depth, target, panels, panel_apart = f.parameters
        lines = Lines(f, apart, RUN)
        whole = f.binary("and", depth, i64(-RUN))

        def ways(k: Value, panel: Value) -> tuple[Value, Value]:
            there = f.at(f.at(source, "i8", f.binary("mul", k, apart)), f"[{count * dtype.itemsize} x i8]", panel)
            return there, f.at(target, "i8", f.binary("mul", panel, panel_apart))

        def several(k: Value, panel: Value) -> None:
            there, place = ways(k, panel)
            starts = lines.starts(f, there)
            numbers = _numbers(f, work, dtype, [lines.place(f, starts, row) for row in range(RUN)], count, width)
            first = f.at(place, f"[{width * work.itemsize} x i8]", k)
            for start in range(0, RUN * width, work.lanes):
                value = assembled(f, numbers[start : start + work.lanes])
                f.store(value, f.at(first, work.type, i64(start)), work.itemsize)

        def single(k: Value, panel: Value) -> None:
            there, place = ways(k, panel)
            copy_line(f, work, dtype, count, width, there, place, k)

        each(f, i64(0), whole, lambda k: each(f, i64(0), panels, lambda panel: several(k, panel)), RUN)
        each(f, whole, depth, lambda k: each(f, i64(0), panels, lambda panel: single(k, panel)))

    parameters = [*_packing_parameters(), Value("i64", "%panels"), Value("i64", "%panel_apart")]
    return part(f"spread_{_type(work)}_{dtype.name}_{count}to{width}", parameters, write)


def _numbers(f: Function, work: Working, dtype: np.dtype, rows: Sequence[Value], count: int, width: int) -> list[tuple[Value, int]]:
    """The first `count` numbers of each row, and zeros up to `width`, each by a vector and the lane of it."""
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
def turn_lines(work: Working, dtype: np.dtype, count: int, width: int) -> Part:
    """The function that packs `count` lines along k, and zeros up to `width`."""

    def write(f: Function) -> None:
        source, apart, depth, target = f.parameters
        lines = Lines(f, apart, count)

        def at(k: Value) -> list[Value]:
            starts = lines.starts(f, f.at(source, f"[{dtype.itemsize} x i8]", k))
            return [lines.place(f, starts, row) for row in range(count)]

        transposed_rows(f, work, dtype, at, width, depth, target)

    return part(f"turn_{_type(work)}_{dtype.name}_{count}to{width}", _packing_parameters(), write)


def _packing_parameters() -> list[Value]:
    return [Value("ptr" if name in ("source", "target") else "i64", f"%{name}") for name in ("source", "apart", "depth", "target")]


def _type(work: Working) -> str:
    return "bool" if work.boolean else work.type

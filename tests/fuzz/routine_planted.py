"""Mistakes planted in the generators of routines, of the kinds that compilers make: a check that finds none of them is worth nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from unittest.mock import patch

from volta_fn import dtypes
from volta_fn.lazy_imports import load
from volta_fn.primitives.formulas.complex_numbers import Complex
from volta_fn.runtime.llvm.text import Function, Value, clamped, i64
from volta_fn.targets.cpu.convolution import winograd
from volta_fn.targets.cpu.fourier import Passes
from volta_fn.targets.cpu.library.pooling import WindowSelection
from volta_fn.targets.cpu.matmul import epilogues, micro_kernel
from volta_fn.targets.cpu.routine import map_run
from volta_fn.targets.wgsl.routine import Shader

Plant = Callable[[], AbstractContextManager[Any]]


class Planted(NamedTuple):
    """A mistake: what it is, the family of problems that meet it, what plants it, and the target."""

    what: str
    family: str
    plant: Plant
    target: str = "cpu"


def _module(name: str) -> Any:
    """Return a module of the targets; packages have functions of the same names."""
    return load(f"volta_fn.targets.{name}")


def _replaced(module: str, name: str, new: Any) -> Plant:
    return lambda: patch.object(_module(module), name, new)


def _whole_vectors(f: Function, begin: Value, end: Value, lanes: int, write: Callable[[Value, int, Value | None], None]) -> None:
    map_run(f, begin, f.minus(end, f.remainder(f.minus(end, begin), lanes)), lanes, write)


def _shared_windows() -> AbstractContextManager[Any]:
    movement = _module("cpu.library.movement")
    described = movement._described
    return patch.object(movement, "_described", lambda *args: described(*args)._replace(shared=None))


def _lost_tiles() -> AbstractContextManager[Any]:
    return patch.object(_module("wgsl.library.cumulative")._Tiles, "_earlier", lambda self, *_: self.scan.neutral())


def _one_lane_more() -> AbstractContextManager[Any]:
    scan = _module("cpu.library.scans").Scan
    write = scan.write

    def written(self: Any, f: Function, x: Any, base: Value, offset: Value, count: Value | None = None) -> None:
        write(self, f, x, base, offset, None if count is None else f.plus(count, i64(1)))

    return patch.object(scan, "write", written)


def _without_first_digit() -> AbstractContextManager[Any]:
    sort = _module("cpu.library.sort")
    digits = sort.digits
    return patch.object(sort, "digits", lambda bits, wide: digits(bits, wide)[1:])


def _last_wins(f: Function, selection: WindowSelection, x: Value, y: Value) -> Value:
    beats = "ge" if selection.select == "ge" else "le"
    if selection.deciding in dtypes.FLOATS:
        return f.compare(f"fcmp u{beats}", x, y)
    return f.compare(f"icmp {'u' if selection.deciding.kind == 'u' else 's'}{beats}", x, y)


def _first_split_again() -> AbstractContextManager[Any]:
    add = epilogues.PartialSums.add
    return patch.object(epilogues.PartialSums, "add", lambda self, f, tile, split: add(self, f, tile, i64(0)))


def _imprecise_points() -> AbstractContextManager[Any]:
    number = winograd.VectorAlgebra.number
    return patch.object(winograd.VectorAlgebra, "number", lambda self, factor: number(self, 1.001 * factor))


def _other_direction() -> AbstractContextManager[Any]:
    twiddle = Passes.twiddle

    def turned(self: Passes, table: Value, number: Value) -> Complex:
        result = twiddle(self, table, number)
        return Complex(result.re, -result.im)

    return patch.object(Passes, "twiddle", turned)


def _without_barriers() -> AbstractContextManager[Any]:
    emit = Shader.emit
    return patch.object(Shader, "emit", lambda self, text: None if text == "workgroupBarrier();" else emit(self, text))


def _one_too_far(f: Function, index: Value, limit: int) -> Value:
    return clamped(f, index, limit + 1)


PLANTED = [
    Planted(
        "the total of earlier chunks is lost",
        "cumulative",
        _replaced("cpu.library.scans", "_preceding_total", lambda f, scan, *_: scan.identity(f, 1)),
    ),
    Planted("a mask of one lane too many", "cumulative", _one_lane_more),
    Planted("the wrong lane is carried", "cumulative", _replaced("cpu.library.scans", "_last", lambda scan, lanes: lanes // 2)),
    Planted("a digit is not sorted by", "sort", _without_first_digit),
    Planted("padding takes part in ranks", "top_k", _replaced("cpu.library.sort", "fill_padding", lambda *_: None)),
    Planted("indices are not checked", "gather", _replaced("cpu.library.movement", "are_inside", lambda *_: Value("i1", "true"))),
    Planted("an index is clamped one too far", "gather", _replaced("cpu.library.movement", "clamped", _one_too_far)),
    Planted("a tail is dropped", "scatter", _replaced("cpu.library.movement", "map_run", _whole_vectors)),
    Planted("tasks do each other's windows", "scatter", _shared_windows),
    Planted("a block begins beyond its last place", "dynamic_slice", _replaced("cpu.library.movement", "clamped", _one_too_far)),
    Planted("padding is not neutral", "window", _replaced("cpu.library.pooling", "_clear", lambda *_: None)),
    Planted("the last of equal elements wins", "window", _replaced("cpu.library.pooling", "_ahead", _last_wins)),
    Planted("a split is added again", "product", _first_split_again),
    Planted("a last vector is stored in full", "product", lambda: patch.object(micro_kernel.ResultTile, "mask", lambda self, vector: None)),
    Planted("blocks of a sum are dropped", "convolution", _replaced("cpu.convolution.igemm", "iterations_of", lambda plan: [1, 1])),
    Planted("a point is off by a thousandth", "convolution", _imprecise_points),
    Planted("roots of the other direction", "fourier", _other_direction),
    Planted("the upper triangle is not cleared", "linalg", _replaced("cpu.lapack", "zero_above", lambda *_: None)),
    Planted(
        "some lanes are not summed",
        "quantized",
        _replaced("cpu.quantized", "sums_across", lambda f, work, vectors: f.shuffle(vectors[0], range(len(vectors)))),
    ),
    Planted("barriers are missing", "cumulative", _without_barriers, "wgsl"),
    Planted("earlier tiles are lost", "cumulative", _lost_tiles, "wgsl"),
]

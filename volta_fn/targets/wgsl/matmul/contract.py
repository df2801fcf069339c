"""Contractions: their algorithms, those without tiles, and timed schedules.

A contraction is an equation (`dot_general`) or a kernel that is a product. An estimate of the time on a large GPU chooses a schedule where
none was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from volta_fn.codegen.scalars import kind
from volta_fn.compiler.contractions import (
    Axes,
    Contraction,
    IndexedContraction,
    Operand,
    OperandMap,
    ResultMap,
    Walk,
    contraction_of,
    merged,
    of_problem,
    problem_of,
)
from volta_fn.compiler.ir.axes import KernelAnalysis
from volta_fn.compiler.ir.kernel import Kernel, Load
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.contraction import product_dtype
from volta_fn.targets.wgsl.loops.emit_values import LANES, AxisSpan, Buffers, LaneScope, Texts, bind_kernel
from volta_fn.targets.wgsl.matmul.results import (
    BufferNumbers,
    Elements,
    Epilogue,
    OperandRow,
    ResultStore,
    SumIndex,
    Working,
    chunk,
    complete_routine,
    emit_store,
    rounded,
    sum_dispatch,
    total,
    working,
)
from volta_fn.targets.wgsl.matmul.tiles import (
    Choices,
    Schedule,
    class_of,
    read_schedules,
    record_schedules,
    remembered,
    tiled,
    write_schedules,
)
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader
from volta_fn.targets.wgsl.scalars.number import is_supported
from volta_fn.targets.wgsl.shader import times

# Thin products: a matrix, contiguous along the results, by one or two vectors (BLAS's gemv).
#
# Each element of the matrix is used once or twice, so memory bandwidth bounds the speed: a workgroup computes a narrow strip of
# results, of which its invocations read four at a time, each for other terms of the sums; the partial sums are added up at the end.

#: Invocations of a workgroup: the fewest, the most, and the iterations that each has at least if there are more than the fewest.
_FEWEST, _MOST, _ITERATIONS = 256, 1024, 2

#: The most vectors, and the fewest terms of a sum.
_MOST_VECTORS, _TERMS = 2, 256

#: Vectors of results in a strip, widest first, and the strips that there must be for that. (Eight are a cache row.)
_STRIPS = ((32, 256), (16, 256), (8, 64), (4, 0))

#: The fewest workgroups without split sums, and the fewest terms of a chunk of a split sum.
_FEW, _THIN_CHUNK = 32, 2048

#: Terms that an invocation reads at a time.
_THIN_TOGETHER = 16


def is_thin(c: IndexedContraction, work: Working) -> bool:
    """Return whether a contraction is a thin product with long sums."""
    return c.k >= _TERMS and can_be_thin(c, work)


def can_be_thin(c: IndexedContraction, work: Working) -> bool:
    """Return whether `thin` can compute a contraction, however short its sums are."""
    return work.lanes == 4 and c.k > 0 and min(c.m, c.n) <= _MOST_VECTORS and _sides(c)[1].fours(along_inner=False)


def thin(
    c: IndexedContraction, work: Working, capabilities: TargetCapabilities, epilogue: Epilogue, buffers: BufferNumbers, *, may_split: bool
) -> Routine:
    """Return the routine of a thin product; sums are split only if `may_split` is set."""
    wide = next(wide for wide, strips in _STRIPS if c.batch * max(c.m, c.n) >= 4 * wide * strips)
    strips = -(-max(c.m, c.n) // (4 * wide))
    length, splits = _cut_thin(c.k, c.batch * strips) if may_split else (c.k, 1)
    first = _Strips(c, work, capabilities, buffers, wide, _invocations(c, work, capabilities, wide, length)).dispatch(
        epilogue, strips, length, splits
    )
    return complete_routine(first, c, work, splits, capabilities, epilogue, buffers)


def _sides(c: IndexedContraction) -> tuple[OperandMap, OperandMap]:
    """Return the vectors, and the matrix."""
    return (c.lhs, c.rhs) if c.m <= c.n else (c.rhs, c.lhs)


def _cut_thin(terms: int, groups: int) -> tuple[int, int]:
    """Return the terms of a chunk of a sum, and how many chunks there are."""
    slices = max(1, min(2 * _FEW // groups, terms // _THIN_CHUNK)) if groups < _FEW else 1
    length = -(-terms // slices // _THIN_TOGETHER) * _THIN_TOGETHER
    return length, -(-terms // length)


def _invocations(c: IndexedContraction, work: Working, capabilities: TargetCapabilities, wide: int, length: int) -> int:
    """Return the number of invocations that compute a strip's sums of `length` terms.

    It is the most that the device allows and that have enough iterations each.
    """
    room = capabilities.workgroup_memory // (min(c.m, c.n) * work.lanes * work.dtype.itemsize)
    most = min(_MOST, capabilities.invocations, room, length * wide // (_THIN_TOGETHER * _ITERATIONS))
    return max(_FEWEST, 1 << most.bit_length() >> 1)


class _Strips:
    """A shader under construction, for strips of `wide` vectors of results."""

    def __init__(
        self, c: IndexedContraction, work: Working, capabilities: TargetCapabilities, buffers: BufferNumbers, wide: int, invocations: int
    ) -> None:
        self.c, self.work, self.buffers, self.wide, self.invocations = c, work, buffers, wide, invocations
        self.f = f = Shader(capabilities, invocations)
        self.by_row = c.m <= c.n
        self.few, self.many = sorted((c.m, c.n))
        vectors, matrix = _sides(c)
        numbers = (buffers.lhs, buffers.rhs) if self.by_row else (buffers.rhs, buffers.lhs)
        self.vectors = Elements(f, work, vectors, numbers[0], fours=vectors.fours(along_inner=True))
        self.matrix = Elements(f, work, matrix, numbers[1], fours=True)

    def dispatch(self, epilogue: Epilogue, strips: int, length: int, splits: int) -> Dispatch:
        """Return the finished dispatch, with sums in `splits` chunks of `length` terms."""
        c, f, work, few, wide, all_ = self.c, self.f, self.work, self.few, self.wide, self.invocations
        split, stack, strip = f.digits(f.group, (splits, c.batch, strips))
        begin, end = chunk(f, split, length, splits, c.k)
        shared = f.workgroup("totals", work.vector, few * all_)
        for position, sum_ in enumerate(self._sums(stack, strip, begin, end)):
            f.emit(f"{shared}[local + {position * all_}u] = {sum_};")
        add_up(f, work, shared, few, all_, wide)
        put = emit_store(f, work, c, epilogue, self.buffers, 1, splits)
        where = stack if splits == 1 else total(f, times(split, c.batch), stack)
        with f.block(f"if (local < {few * wide * 4}u)"):
            vector, result = f.digits("local", (few, wide * 4))
            value = f.let(work.type, f"{shared}[{vector} * {all_}u + {result} / 4u][{result} % 4u]")
            where_in = vector, f.let("u32", f"{strip} * {4 * wide}u + {result}")
            f.emit(f"{put}({where}, {', '.join(where_in if self.by_row else where_in[::-1])}, {value});")
        return f.dispatch(splits * c.batch * strips, c.products)

    def _sums(self, stack: str, strip: str, begin: str, end: str) -> list[str]:
        """Compute an invocation's sums of four results of each vector."""
        f, work, wide = self.f, self.work, self.wide
        x, y = f.let("u32", f"local % {wide}u"), f.let("u32", f"local / {wide}u")
        column = f.let("u32", f"min(({strip} * {wide}u + {x}) * 4u, {self.many - 4}u)")
        row = self.matrix.row(stack, column)
        rows = [self.vectors.row(stack, f"{i}u") for i in range(self.few)]
        sums = [f.var(work.vector, work.zero) for _ in rows]
        together = next(n for n in (_THIN_TOGETHER, 8, 4, 2, 1) if self.c.k % n == 0)
        start = f.let("u32", f"{begin} + {y} * {together}u")
        with f.loop(end, start, self.invocations // wide * together) as k:
            terms = [k, *[f.let("u32", f"{k} + {i}u") for i in range(1, together)]]
            fours = [self.matrix.load(row, term) for term in terms]
            for vector, sum_ in zip(rows, sums, strict=True):
                for factor, four in zip(self._factors(vector, terms), fours, strict=True):
                    f.emit(f"{sum_} = {work.add_scaled(factor, four, sum_)};")
        return sums

    def _factors(self, vector: OperandRow, terms: list[str]) -> list[str]:
        """Load a vector's numbers for terms, of which those after the first follow it."""
        if not self.vectors.fours:
            return [self.vectors.load(vector, term) for term in terms]
        return [f"{four}.{c}" for four in [self.vectors.load(vector, term) for term in terms[::4]] for c in "xyzw"]


# Compute contractions of few terms, or of few results, without tiles.
#
# With *few terms*, an invocation sums all terms of one result. Depthwise convolutions and outer products are of this kind. With *few
# results*, the invocations of a workgroup divide the terms of a few sums, or of chunks of them, and add up their partial sums. Products
# of rows with few columns and the gradients by weights of depthwise convolutions are of this kind.

_INVOCATIONS = 128

#: Terms up to which the loop is unrolled, and up to which one invocation sums a result.
_WRITTEN_OUT, _FEW_TERMS = 32, 128

#: The most results of a workgroup, and the fewest terms for which that pays.
_TOGETHER, _MANY_TERMS = 9, 256

#: Fewer than `_TOO_FEW` workgroups do not saturate a large device: sums are split until there are `_ENOUGH`, in chunks of at least `_CHUNK`
#: terms.
_TOO_FEW, _ENOUGH, _CHUNK = 512, 2048, 2048


def is_of_few_terms(c: IndexedContraction) -> bool:
    """Return whether terms are so few, and so rarely reused, that tiles do not pay."""
    return 0 < c.k <= _FEW_TERMS and (min(c.m, c.n) <= 2 or c.products <= 1 << 15)


def few_terms(
    c: IndexedContraction, work: Working, capabilities: TargetCapabilities, epilogue: Epilogue, buffers: BufferNumbers
) -> Routine:
    """Return the routine in which every invocation computes one result."""
    f = Shader(capabilities, _INVOCATIONS)
    a, b = Elements(f, work, c.lhs, buffers.lhs), Elements(f, work, c.rhs, buffers.rhs)
    put = emit_store(f, work, c, epilogue, buffers, 1)
    size = c.batch * c.m * c.n

    def sum_terms(number: str) -> None:
        walks = c.target.stack, c.target.rows, c.target.columns
        sizes = c.batch, c.m, c.n
        order = sorted(range(3), key=lambda i: -walks[i].strides[-1] if walks[i].strides else -size)  # the contiguous axis last
        coordinates = f.digits(number, [sizes[i] for i in order])
        stack, row, column = [coordinates[order.index(i)] for i in range(3)]
        left, right = a.row(stack, row), b.row(stack, column)
        sum_ = f.var(work.type, f"{work.type}()")
        if c.k <= _WRITTEN_OUT:
            for k in range(c.k):
                f.emit(f"{sum_} = {work.add_product(a.load(left, k), b.load(right, k), sum_)};")
        else:
            with f.loop(c.k) as i:
                f.emit(f"{sum_} = {work.add_product(a.load(left, i), b.load(right, i), sum_)};")
        f.emit(f"{put}({stack}, {row}, {column}, {sum_});")

    return Routine((f.for_each(size, sum_terms, c.products),))


def is_of_few_results(c: IndexedContraction) -> bool:
    """Return whether sums are long and operands rarely shared, so tiles do not pay."""
    near = c.lhs.inner.strides[-1:] == c.rhs.inner.strides[-1:] == (1,)
    return c.k >= _MANY_TERMS and min(c.m, c.n) <= 2 and (near or c.m * c.n <= _TOGETHER)


def few_results(
    c: IndexedContraction, work: Working, capabilities: TargetCapabilities, epilogue: Epilogue, buffers: BufferNumbers
) -> Routine:
    """Return the routine in which a workgroup computes a few results or partial sums."""
    f = Shader(capabilities, _INVOCATIONS)
    fours = work.lanes == 4 and c.lhs.fours(along_inner=True) and c.rhs.fours(along_inner=True)
    a, b = [Elements(f, work, map_, k, fours=fours) for map_, k in ((c.lhs, buffers.lhs), (c.rhs, buffers.rhs))]
    rows, columns = _together(c)
    down, across = -(-c.m // rows), -(-c.n // columns)
    length, splits = _cut(c, c.batch * down * across)
    put = emit_store(f, work, c, epilogue, buffers, 1, splits)
    split, stack, i, j = f.digits(f.group, (splits, c.batch, down, across))
    first = f.let("u32", f"{i} * {rows}u"), f.let("u32", f"{j} * {columns}u")
    left = [a.row(stack, _within(f, first[0], r, c.m)) for r in range(rows)]
    right = [b.row(stack, _within(f, first[1], s, c.n)) for s in range(columns)]
    each, type_ = (4, work.vector) if fours else (1, work.type)
    sums = [[f.var(type_, f"{type_}()") for _ in right] for _ in left]
    begin, end = chunk(f, split, length, splits, c.k)
    start = f.let("u32", f"{begin} + local * {each}u")
    with f.loop(end, start, _INVOCATIONS * each) as k:
        xs, ys = [a.load(operand, k) for operand in left], [b.load(operand, k) for operand in right]
        for x, totals in zip(xs, sums, strict=True):
            for y, sum_ in zip(ys, totals, strict=True):
                f.emit(f"{sum_} = {work.add_product(x, y, sum_)};")
    flat = [sum_ for totals in sums for sum_ in totals]
    shared = f.workgroup("totals", work.type, len(flat) * _INVOCATIONS)
    for sum_index, sum_ in enumerate(flat):
        f.emit(f"{shared}[local + {sum_index * _INVOCATIONS}u] = {work.sum_components(sum_) if fours else sum_};")
    add_up(f, work, shared, len(flat), _INVOCATIONS)
    with f.block(f"if (local < {len(flat)}u)"):
        r, s = f.digits("local", (rows, columns))
        where = stack if splits == 1 else total(f, times(split, c.batch), stack)
        f.emit(f"{put}({where}, {total(f, first[0], r)}, {total(f, first[1], s)}, {shared}[local * {_INVOCATIONS}u]);")
    partial_sums = f.dispatch(splits * c.batch * down * across, c.products)
    return complete_routine(partial_sums, c, work, splits, capabilities, epilogue, buffers)


def _together(c: IndexedContraction) -> tuple[int, int]:
    """Return how many rows and columns of results a workgroup computes: all, if few."""
    if c.m * c.n <= _TOGETHER:
        return c.m, c.n
    rows = c.m if c.m * min(c.n, 2) <= _TOGETHER else min(c.m, 2)
    return rows, min(c.n, max(1, 4 // rows))


def _cut(c: IndexedContraction, groups: int) -> tuple[int, int]:
    """Return the terms of a chunk of a sum, and how many chunks there are."""
    slices = max(1, min(_ENOUGH // groups, c.k // _CHUNK)) if groups < _TOO_FEW else 1
    length = -(-c.k // slices // 4) * 4
    return length, -(-c.k // length)


def _within(f: Shader, first: str, further: int, size: int) -> str:
    """Return ``first + further``, limited to the last index."""
    return f.let("u32", f"min({first} + {further}u, {size - 1}u)")


def add_up(f: Shader, work: Working, shared: str, count: int, invocations: int, totals: int = 1) -> None:
    """Add up the partial sums of the invocations in `shared`.

    It has an array for each of `count` sums. `totals` of each remain: total i is that of the elements i, i + totals, i + 2 totals, ….
    """
    with f.block(f"for (var half = {invocations // 2}u; half >= {totals}u; half /= 2u)"):
        f.emit("workgroupBarrier();")
        with f.block("if (local < half)"):
            for sum_index in range(count):
                mine, other = (f"{shared}[local + {sum_index * invocations}u{more}]" for more in ("", " + half"))
                f.emit(f"{mine} = {work.add(mine, other)};")
    f.emit("workgroupBarrier();")


# The choice of schedules, by an estimate of their time on a large GPU.

#: Multiprocessors of the device, and the invocations that saturate one of them.
_PROCESSORS = 132
_BUSY = 256

#: Multiplications of a multiprocessor during the latency of a slice, and of a dispatch; and of all of them during the access to a byte.
_SLICE_WAIT = 8_000
_DISPATCH_WAIT = 500_000
_BYTE = 8

#: Below this many multiplications loops are unrolled less: fetching and compiling long shaders costs more than it saves.
LITTLE = 1 << 29

#: Up to this many workgroups per multiprocessor, their number is rounded up to full waves.
_ROUNDS = 4

#: Tiles for dtypes with vectors, and the fraction of peak speed that each reaches.
_VECTORS = (
    (Schedule(64, 128, 16, 8, 8), 0.94),
    (Schedule(128, 64, 16, 8, 8), 0.94),
    (Schedule(128, 128, 8, 8, 16, lane_rows=2, lane_columns=16), 0.92),
    (Schedule(128, 128, 8, 16, 8, twice=True), 0.9),
    (Schedule(64, 128, 8, 8, 8), 0.89),
    (Schedule(128, 128, 16, 8, 8), 0.87),
    (Schedule(64, 64, 16, 8, 8), 0.89),
    (Schedule(64, 64, 8, 8, 8), 0.88),
    (Schedule(64, 128, 16, 8, 4), 0.86),
    (Schedule(128, 64, 16, 8, 4), 0.85),
    (Schedule(64, 64, 16, 8, 4), 0.84),
    (Schedule(32, 64, 16, 8, 4), 0.78),
    (Schedule(32, 64, 16, 4, 8), 0.70),
    (Schedule(32, 64, 16, 4, 4), 0.60),
    (Schedule(32, 32, 16, 4, 4), 0.52),
    (Schedule(16, 64, 32, 4, 4), 0.48),
    (Schedule(16, 32, 32, 4, 4), 0.40),
    (Schedule(16, 128, 16, 4, 8), 0.55),
    (Schedule(4, 256, 16, 4, 4), 0.3),
    (Schedule(4, 128, 32, 4, 4), 0.3),
    (Schedule(64, 16, 32, 4, 4), 0.48),
)
#: The same for other dtypes.
_SINGLES = ((Schedule(32, 32, 16, 4, 4), 0.5), (Schedule(32, 32, 8, 4, 4), 0.45), (Schedule(16, 16, 16, 2, 2), 0.3))

#: Variations to be timed on large contractions.
_VARIATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"band": 4},
    {"band": 16},
    {"band": 1},
    {"unroll": 8},
    {"unroll": 4},
    {"twice": True},
    {"once": True},
    {"lane_rows": 8, "lane_columns": 4},
    {"lane_rows": 2, "lane_columns": 16},
    {"pad": 0},
    {"pad": 2},
    {"ahead": False},
    {"depth": 8},
    {"depth": 32},
)

_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def candidates(
    c: IndexedContraction, work: Working, capabilities: TargetCapabilities, count: int = 8, deferred_work: int = 0
) -> list[Schedule]:
    """Return schedules that fit the device, the probably fastest first.

    There are at most two for each tile. `deferred_work`: see `choose`.
    """
    pairs = []
    little = c.products < LITTLE
    for tile, efficiency in _SINGLES if work.lanes == 1 else _VECTORS:
        schedule = replace(tile, unroll=4 if little else 0, once=little)
        splits = [n for n in _SPLITS if n == 1 or c.k >= 2 * schedule.depth * n]
        timed = [
            (_time(c, split, efficiency, deferred_work), split) for n in splits if (split := schedule.split(n)).fits(work, capabilities)
        ]
        pairs += sorted(timed, key=lambda pair: pair[0])[:2]
    return [schedule for _, schedule in sorted(pairs, key=lambda pair: pair[0])[:count]]


def choose(c: IndexedContraction, work: Working, capabilities: TargetCapabilities, deferred_work: int = 0) -> Schedule:
    """Return the schedule measured to be fastest, or the one estimated to be.

    If the product is deferred to run in one dispatch with others, `deferred_work` counts the multiplications of all of them.
    """
    if deferred_work:
        return candidates(c, work, capabilities, 1, deferred_work)[0]
    return remembered(c, work, capabilities) or candidates(c, work, capabilities, 1)[0]


def variations(schedule: Schedule, work: Working, capabilities: TargetCapabilities) -> list[Schedule]:
    """Return schedules with the same tile that differ in details."""
    schedules = [replace(schedule, **details) for details in _VARIATIONS]
    return [x for x in schedules if x.fits(work, capabilities)]


def _time(c: IndexedContraction, schedule: Schedule, efficiency: float, deferred_work: int) -> float:
    """Estimate the time of a schedule, in multiplications of one multiprocessor."""
    groups, terms = schedule.groups(c), schedule.chunk(c)
    adding = 2 * schedule.splits * c.batch * c.m * c.n * 4 * _BYTE / _PROCESSORS + _DISPATCH_WAIT if schedule.splits > 1 else 0.0
    if deferred_work:  # all multiprocessors are busy until the end, unless one workgroup takes longer
        busy = efficiency * schedule.invocations / _BUSY
        alone = terms / schedule.depth * _SLICE_WAIT + schedule.rows * schedule.columns * terms / busy
        return max(deferred_work / _PROCESSORS / efficiency, alone) + adding
    rounds = groups / _PROCESSORS
    each = ceil(rounds) if rounds <= _ROUNDS else rounds + 0.5  # with many, multiprocessors that finish early start others
    together = min(each, max(1, 512 // schedule.invocations))
    busy = min(1.0, together * schedule.invocations / _BUSY)
    work = each * schedule.rows * schedule.columns * terms / (efficiency * busy)
    waits = ceil(each / together) * (terms / schedule.depth) * _SLICE_WAIT
    return work + waits + adding


# Select the algorithm of a contraction.
#
# Thin products, few terms and few results are computed without tiles where that is faster; everything else is tiled.


class ProductOptions(NamedTuple):
    """Choices of a contraction's routine that are forced; None: the routine's own."""

    #: "few terms", "few results", "thin" or "tiled", which needs a schedule.
    algorithm: str | None = None
    schedule: Schedule | None = None
    #: Whether the operands are swapped.
    swapped: bool | None = None


DEFAULT_OPTIONS = ProductOptions()

#: Schedules of tests: all forms of tiles, small ones, so that small products have several.
_SCHEDULES = (
    Schedule(32, 32, 16, 4, 4),
    Schedule(16, 16, 8, 4, 4, band=1),
    Schedule(16, 32, 8, 4, 8, lane_rows=2, lane_columns=16, pad=0),
    Schedule(16, 16, 8, 4, 4, ahead=False),
    Schedule(16, 16, 8, 4, 4, twice=True, unroll=4),
    Schedule(16, 16, 8, 4, 4, once=True, brief=True, unroll=2, ahead=False),
    Schedule(16, 16, 8, 4, 4, splits=2),
    Schedule(16, 16, 8, 4, 4, splits=3, twice=True),
    Schedule(4, 128, 32, 4, 4),
)


def legal_options(c: IndexedContraction, capabilities: TargetCapabilities, may_split: bool) -> Iterator[ProductOptions]:
    """Yield the default options and their alternatives."""
    work = working(c.target.dtype)
    yield DEFAULT_OPTIONS
    if c.k:
        yield from (ProductOptions("few terms"), ProductOptions("few results"))
    if can_be_thin(c, work):
        yield ProductOptions("thin")
    yield from [ProductOptions("tiled", s) for s in _SCHEDULES if s.fits(work, capabilities) and (may_split or s.splits == 1)]


def contract(
    c: IndexedContraction,
    capabilities: TargetCapabilities,
    buffers: BufferNumbers,
    epilogue: Epilogue | None = None,
    *,
    may_split: bool = True,
    deferred_work: int = 0,
    alone: bool = False,
    options: ProductOptions = DEFAULT_OPTIONS,
) -> Routine:
    """Return the routine of a contraction with results.

    The epilogue gets rows and columns as they are in `c`. Sums are only split if `may_split` says that the device can bind all that adding
    them needs. `deferred_work`: see `choose`; `alone`: see `tiled`.
    """
    work, finish = working(c.target.dtype), epilogue or rounded(c.target.dtype)
    algorithm = options.algorithm or _algorithm(c, work)
    if algorithm == "few terms":
        return few_terms(c, work, capabilities, finish, buffers)
    if algorithm == "few results":
        return few_results(c, work, capabilities, finish, buffers)
    if algorithm == "thin":
        return thin(c, work, capabilities, finish, buffers, may_split=may_split)
    schedule = options.schedule or choose(c, work, capabilities, deferred_work)
    return tiled(c, work, schedule if may_split else schedule.split(1), capabilities, finish, buffers, alone=alone)


def _algorithm(c: IndexedContraction, work: Working) -> str:
    if is_of_few_terms(c):
        return "few terms"
    return "few results" if is_of_few_results(c) else "thin" if is_thin(c, work) else "tiled"


def is_tiled(c: IndexedContraction) -> bool:
    """Return whether a contraction is computed by tiles, which have schedules."""
    return _algorithm(c, working(c.target.dtype)) == "tiled"


def oriented(c: IndexedContraction) -> tuple[IndexedContraction, BufferNumbers]:
    """Return a contraction whose columns are the more contiguous axis of the results."""
    rows, columns = c.target.rows.strides, c.target.columns.strides
    if rows and (not columns or rows[-1] < columns[-1]):
        return c.swapped(), BufferNumbers().swapped()
    return c, BufferNumbers()


def dot_general(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine for operands of these types.

    None for dtypes that the device lacks, and for results without elements.
    """
    lhs, rhs = avals
    dtype = product_dtype("dot_general", lhs, rhs, params.get("preferred_element_type"))
    if not all(is_supported(d, capabilities) for d in (lhs.dtype, rhs.dtype, dtype)):
        return None
    c = of_problem(problem_of(lhs.shape, rhs.shape, params["dimension_numbers"], (lhs.dtype, rhs.dtype, dtype)))
    if c.batch * c.m * c.n == 0:
        return None
    c, buffers = oriented(c)
    return contract(c, capabilities, buffers)


# Lower kernels that are matrix products (see `compiler.contractions`).
#
# Operands are read through their index maps, and the kernel's elementwise operations on the sums are an epilogue in registers.


def computes_product(kernel: Kernel, capabilities: TargetCapabilities) -> bool:
    """Return whether a kernel is a product whose operands can be read in place.

    Neighbouring invocations must read neighbouring elements.
    """
    product = contraction_of(kernel)
    if product is None:
        return False
    problem = product.problem()
    dtypes = problem.lhs.dtype, problem.rhs.dtype, problem.dtype
    return (
        all(is_supported(d, capabilities) for d in dtypes) and len({*map(kind, dtypes)}) == 1 and all(map(_is_contiguous, problem.operands))
    )


def is_small_product(kernel: Kernel, capabilities: TargetCapabilities) -> bool:
    """Return whether a kernel is a product that leaves a GPU underused."""
    return math.prod(kernel.sizes) < LITTLE and computes_product(kernel, capabilities)


def _is_contiguous(operand: Operand) -> bool:
    """Return whether an operand is contiguous along an axis of the product."""
    return 1 in (*operand.inner.strides[-1:], *operand.outer.strides[-1:])


def contraction(
    kernel: Kernel, capabilities: TargetCapabilities, deferred_work: int = 0, options: ProductOptions = DEFAULT_OPTIONS
) -> Routine | None:
    """Return the routine of a kernel that is such a product; None for others."""
    if not computes_product(kernel, capabilities):
        return None
    product = _oriented_contraction(kernel, options.swapped)
    epilogue = KernelEpilogue(product)
    c, may_split = _indexed_contraction(product, epilogue), epilogue.may_split(capabilities)
    return contract(c, capabilities, epilogue.buffers, epilogue, may_split=may_split, deferred_work=deferred_work, options=options)


def finishing(product: Contraction, splits: int, capabilities: TargetCapabilities) -> Dispatch | None:
    """Return the dispatch that adds up partial sums, and applies the epilogue.

    None if the device cannot bind its buffers. The partial sums are an array [splits, batch, rows, columns] in the buffer after the
    kernel's results.
    """
    epilogue = KernelEpilogue(product)
    if not epilogue.may_split(capabilities):
        return None
    c = _indexed_contraction(product, epilogue)
    return sum_dispatch(c, working(c.target.dtype), splits, capabilities, epilogue, epilogue.buffers)


def contraction_options(kernel: Kernel, capabilities: TargetCapabilities) -> Iterator[ProductOptions]:
    """Yield the options that `contraction` takes for a kernel."""
    if not computes_product(kernel, capabilities):
        return
    for swapped in (None, True, False):
        product = _oriented_contraction(kernel, swapped)
        epilogue = KernelEpilogue(product)
        for options in legal_options(_indexed_contraction(product, epilogue), capabilities, epilogue.may_split(capabilities)):
            if swapped is not None or options == DEFAULT_OPTIONS:
                yield options._replace(swapped=swapped)


def split_k(kernel: Kernel, capabilities: TargetCapabilities) -> int:
    """Return the split-K factor of a kernel; 1 if it is no product."""
    if not computes_product(kernel, capabilities):
        return 1
    product = _oriented_contraction(kernel, None)
    c = _indexed_contraction(product, KernelEpilogue(product))
    return choose(c, working(c.target.dtype), capabilities).fitted(c).splits if is_tiled(c) else 1


def _indexed_contraction(product: Contraction, epilogue: KernelEpilogue) -> IndexedContraction:
    """Return the contraction as schedules see it."""
    inputs, problem = product.kernel.inputs, product.problem()
    lhs, rhs = [
        OperandMap(side.dtype, inputs[load.input].size, side.start, side.stack, side.outer, side.inner)
        for side, load in zip(problem.operands, (product.lhs, product.rhs), strict=True)
    ]
    return IndexedContraction(lhs, rhs, epilogue.target())


def _oriented_contraction(kernel: Kernel, swapped: bool | None) -> Contraction:
    product = contraction_of(kernel)
    assert product is not None
    return product.oriented(swapped)


class KernelEpilogue:
    """The epilogue of a kernel that is a contraction: its operations on the sums."""

    def __init__(self, product: Contraction) -> None:
        self.product = product
        kernel, self.inputs = product.epilogue()
        self.analysis = KernelAnalysis(kernel)
        #: The node that loads a sum.
        self.total = next(n for n, node in enumerate(kernel.nodes) if isinstance(node, Load) and node.input == 0)

    @property
    def buffers(self) -> BufferNumbers:
        """The buffers of the kernel: its inputs, its results, and a workspace."""
        product, count = self.product, len(self.product.kernel.inputs)
        return BufferNumbers(product.lhs.input, product.rhs.input, count, count + len(product.kernel.stores))

    def may_split(self, capabilities: TargetCapabilities) -> bool:
        """Return whether the device can bind partial sums and the kernel's buffers."""
        return len({*self.inputs}) + len(self.product.kernel.stores) + 1 <= capabilities.buffers

    def target(self) -> ResultMap:
        """Return where the first result's elements are."""
        kernel, offset = self.product.kernel, self.analysis.store_offsets[0]
        steps = dict(offset.terms)

        def walk(axes: Axes) -> Walk:
            return merged([kernel.sizes[a] for a in axes], [[steps.get(a, 0) for a in axes]])[0]

        walks = [walk(axes) for axes in (self.product.batch, self.product.rows, self.product.columns)]
        return ResultMap(kernel.nodes[self.product.total].dtype, kernel.outputs[0].size, offset.offset, *walks)

    def __call__(self, f: Shader, work: Working, c: IndexedContraction, number: int, lanes: int) -> ResultStore:
        """Declare the results; see `Epilogue`."""
        product, sizes = self.product, self.product.kernel.sizes
        columns = tuple([sizes[a] for a in product.columns])
        together = LANES if lanes == LANES and columns[-1] % LANES == 0 else 1
        span = AxisSpan(product.columns, columns, together)
        outputs = tuple(range(number, number + len(product.kernel.stores)))
        nest = bind_kernel(f, self.analysis, (span,), Buffers((-1, *self.inputs), outputs), absent=(0,))

        def store(at: SumIndex, sums: Sequence[str]) -> None:
            axes: dict[int, Texts] = {}
            for names, index in ((product.batch, at.stack), (product.rows, at.row)):
                axes |= {a: (text,) for a, text in zip(names, f.digits(index, [sizes[a] for a in names]), strict=True)}
            group = at.column if together == 1 else f.let("u32", f"{at.column} / {LANES}u")
            here = LaneScope(nest, None, axes).child(span.bind(f, group), span)
            here.values[self.total] = tuple([work.convert_sum(f, x, c.target.dtype) for x in sums])
            for s in range(len(outputs)):
                here.store(s)

        return ResultStore(together, store)


# Time schedules on the device, check their results, and remember the fastest.

#: The plain schedule whose results are the reference.
SIMPLE = Schedule(32, 32, 8, 4, 4, ahead=False, unroll=4)

#: Terms of a sum that is accurate enough for a reference.
_LONGEST = 1 << 14

#: Runs a routine on flat operands, given the number and dtype of the result's elements; returns the result and the seconds.
Trial = Callable[[Routine, Sequence[np.ndarray], int, np.dtype], tuple[np.ndarray, float]]


class Timing(NamedTuple):
    """The time of a schedule."""

    seconds: float
    schedule: Schedule


def timings(
    c: IndexedContraction,
    work: Working,
    capabilities: TargetCapabilities,
    schedules: Iterable[Schedule],
    trial: Trial,
    buffers: BufferNumbers | None = None,
) -> list[Timing]:
    """Return the times of schedules, of which the first is trusted.

    Those whose results differ from its results (up to rounding) are left out.
    """
    buffers = buffers or BufferNumbers()
    rng = np.random.default_rng(0)
    sides = sorted([(buffers.lhs, c.lhs), (buffers.rhs, c.rhs)], key=lambda side: side[0])
    operands = [_random_numbers(rng, side.elements, side.dtype) for _, side in sides]
    measurements: list[Timing] = []
    trusted: np.ndarray | None = None
    for schedule in schedules:
        routine = tiled(c, work, schedule, capabilities, rounded(c.target.dtype), buffers)
        result, seconds = trial(routine, operands, c.target.elements, c.target.dtype)
        trusted = result if trusted is None else trusted
        if _alike(result, trusted, c.k):
            measurements.append(Timing(seconds, schedule))
    return sorted(measurements, key=lambda timing: timing.seconds)


def _random_numbers(rng: np.random.Generator, size: int, dtype: np.dtype) -> np.ndarray:
    return rng.integers(0, 2, size).astype(dtype) if dtype.kind in "iub" else rng.standard_normal(size, np.float32).astype(dtype)


def _alike(x: np.ndarray, y: np.ndarray, terms: int) -> bool:
    if x.dtype.kind in "iub":
        return bool((x == y).all())
    wide = np.complex128 if x.dtype.kind == "c" else np.float32
    coarse = 1e-2 if x.dtype.itemsize < 4 else 1e-5
    return bool((np.abs(x.astype(wide) - y.astype(wide)) <= coarse * max(terms, 16) ** 0.5 * 4).all())


def shortlist(c: IndexedContraction, work: Working, capabilities: TargetCapabilities, count: int = 8) -> list[Schedule]:
    """Return the schedules to be timed.

    The first is a plain one, whose results are the reference; the others are the best by estimate.
    """
    return [SIMPLE.split(max(1, -(-c.k // _LONGEST))), *candidates(c, work, capabilities, count)]


def tune(
    c: IndexedContraction,
    work: Working,
    capabilities: TargetCapabilities,
    trial: Trial,
    buffers: BufferNumbers | None = None,
    path: Path | None = None,
    count: int = 8,
) -> list[Timing]:
    """Time schedules and remember the fastest, also in a file if its path is given."""
    measurements = timings(c, work, capabilities, shortlist(c, work, capabilities, count), trial, buffers)
    best: Choices = {capabilities.adapter: {class_of(c): measurements[0].schedule}}
    record_schedules(best)
    if path is not None:
        choices = read_schedules(path)
        choices.setdefault(capabilities.adapter, {}).update(best[capabilities.adapter])
        write_schedules(path, choices)
    return measurements

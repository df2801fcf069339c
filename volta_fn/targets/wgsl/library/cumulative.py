"""Cumulative reductions, and reductions over windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.codegen.scalars import CumulativeOp, cumulative_op, row_offset
from volta_fn.codegen.windows import Axis, Windows, windows_of
from volta_fn.codegen.windows import over_taps as emit_over_taps
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import reduction_of
from volta_fn.dtypes import accumulator
from volta_fn.targets.wgsl.library.movement import INVOCATIONS, fill, result_array
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader, ShaderArray
from volta_fn.targets.wgsl.scalars import Number, combine, combine_indexed, constant, supports
from volta_fn.targets.wgsl.scalars.operations import convert
from volta_fn.targets.wgsl.shader import TEXT, Function, plus, quotient, remainder, times

# Scans over the invocations of a workgroup.


class Scan(CumulativeOp):
    """A cumulative operation, and the code of its steps."""

    @property
    def row_count(self) -> int:
        """The number of accumulations."""
        return self.rows * self.columns

    def supported(self, capabilities: TargetCapabilities) -> bool:
        """Return True if the device can compute it."""
        return supports(self.reduction.step, (self.dtype, self.dtype), {}, capabilities)

    def combine(self, f: Function, x: Number, y: Number) -> Number:
        """Emit the combination of `x` with a later `y`."""
        return combine(f, self.reduction, x, y)

    def neutral(self) -> Number:
        """Return the identity."""
        return constant(self.dtype, self.reduction.start(self.dtype))

    def offset(self, row: str, i: str) -> str:
        """Return the offset of the i-th element of a row in the order of the scan."""
        return row_offset(TEXT, row, self.position(TEXT, i), self.size, self.columns)


def variable(f: Function, value: Number) -> Number:
    """Declare a variable that holds a number at first."""
    return Number(value.dtype, f.var(value.type, value.text))


def accumulate(f: Function, scan: Scan, total: Number, value: Number) -> None:
    """Emit the combination of a variable with the next value."""
    f.emit(f"{total.text} = {scan.combine(f, total, value).text};")


def scan_group(shader: Shader, scan: Scan, values: list[Number]) -> tuple[list[Number], list[Number]]:
    """Emit the exclusive scan of values over a workgroup, and the totals.

    All invocations must execute this.
    """
    count = shader.invocations
    held = [shader.workgroup(f"held{k}", value.type, 2 * count) for k, value in enumerate(values)]
    totals, here = [variable(shader, value) for value in values], shader.var("u32", "0u")
    for name, total in zip(held, totals, strict=True):
        shader.emit(f"{name}[{shader.local}] = {total.text};")
    shader.emit("workgroupBarrier();")
    with shader.block(f"for (var reach = 1u; reach < {count}u; reach <<= 1u)"):
        with shader.block(f"if ({shader.local} >= reach)"):
            for name, total in zip(held, totals, strict=True):
                before = Number(scan.dtype, shader.let(total.type, f"{name}[{here} + {shader.local} - reach]"))
                shader.emit(f"{total.text} = {scan.combine(shader, before, total).text};")
        shader.emit(f"{here} = {count}u - {here};")
        for name, total in zip(held, totals, strict=True):
            shader.emit(f"{name}[{here} + {shader.local}] = {total.text};")
        shader.emit("workgroupBarrier();")
    befores = [variable(shader, scan.neutral()) for _ in values]
    with shader.block(f"if ({shader.local} > 0u)"):
        for name, before in zip(held, befores, strict=True):
            shader.emit(f"{before.text} = {name}[{here} + {shader.local} - 1u];")
    group_totals = [
        Number(scan.dtype, shader.let(value.type, f"{name}[{here} + {count - 1}u]")) for name, value in zip(held, values, strict=True)
    ]
    shader.emit("workgroupBarrier();")
    return befores, group_totals


# Cumulative sums, products, extrema and log-sum-exps.
#
# Long contiguous rows are split into tiles, which workgroups scan: a first dispatch computes the tiles' totals, a second one scans these
# (if they are not few), and the last one scans the tiles, each beginning with the total before it. Otherwise every invocation accumulates a
# row, or a chunk of one, beginning with the totals of the chunks before. Products of floats are computed sequentially, since products of
# chunks might overflow where the result does not; those of long rows in stretches, since drivers reset a GPU, and some in software end a
# loop, that is busy for too long.
#
# float16 and bfloat16 accumulate in float32.

_UINT32 = np.dtype(np.uint32)

_OPERAND, _RESULT, _TOTALS, _POSITIONS = range(4)

#: The fewest elements of contiguous rows that are cut into tiles; elements of an invocation, and those where rows have many tiles.
_LONG = 256
_EACH = 8
_EACH_OF_MANY = 16

#: The most tiles of a row whose totals every workgroup sums.
_FEW_TILES = 1024

#: Rows are split until there is work for `_ENOUGH` invocations; a chunk has at least `_CHUNK` elements.
_ENOUGH = 1 << 14
_CHUNK = 32
_MOST_CHUNKS = 256

#: The elements that an invocation sums before it adds them to its total, so that long sums are sums of short ones.
_BLOCK = 64

#: The most elements of a row that an invocation accumulates in a dispatch.
_STRETCH = 1 << 15


def cumulative(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities, name: str) -> Routine | None:
    """Return the routine of the primitive of that name."""
    (operand,) = avals
    if not operand.size:
        return Routine(())
    dtype = accumulator(operand.dtype)
    scan = Scan(*cumulative_op(name, operand, dtype, params["axis"], params["reverse"]))
    if not scan.supported(capabilities):
        return None
    if scan.columns == 1 and scan.size >= _LONG and not scan.is_sequential:
        return _Tiles(scan, capabilities).routine()
    if scan.is_sequential and scan.size > _STRETCH:
        # Each dispatch accumulates one stretch of all rows, and begins where the one before it ended, with its totals.

        def stretch(*, first: bool) -> Dispatch:
            shader = Shader(capabilities, INVOCATIONS)
            source, target = shader.buffer(_OPERAND, scan.stored), shader.buffer(_RESULT, scan.stored, written=True)
            totals, positions = shader.buffer(_TOTALS, scan.dtype, written=True), shader.buffer(_POSITIONS, _UINT32, written=True)

            def along(row: str) -> None:
                total = variable(shader, scan.neutral() if first else totals.load(row))
                start = "0u" if first else shader.let("u32", positions.load(row).text)
                end = shader.let("u32", f"min({start} + {_STRETCH}u, {scan.size}u)")
                with shader.loop(end, start) as i:
                    at = shader.let("u32", scan.offset(row, i))
                    accumulate(shader, scan, total, convert(shader, source.load(at), scan.dtype))
                    target.store(at, convert(shader, total, scan.stored))
                totals.store(row, total)
                positions.store(row, Number(_UINT32, end))

            return shader.for_each(scan.row_count, along)

        count = -(-scan.size // _STRETCH)
        return Routine(
            (stretch(first=True), *[stretch(first=False)] * (count - 1)), (scan.row_count * scan.dtype.itemsize, scan.row_count * 4)
        )
    length = -(-scan.size // (1 if scan.is_sequential else _chunk_count(scan)))
    return _RowScan(scan, length, -(-scan.size // length), capabilities).routine()


# rows


def _chunk_count(scan: Scan) -> int:
    return max(1, min(_ENOUGH // scan.row_count, scan.size // _CHUNK, _MOST_CHUNKS), -(-scan.size // _STRETCH))


class _RowScan:
    """A scan of rows in chunks of `length`, with an invocation for each.

    One dispatch computes the totals of all chunks but the last, a second one the results.
    """

    def __init__(self, scan: Scan, length: int, chunks: int, capabilities: TargetCapabilities) -> None:
        self.scan, self.length, self.chunks, self.capabilities = scan, length, chunks, capabilities

    def routine(self) -> Routine:
        """Return the routine of both dispatches; of one if rows are not split."""
        if self.chunks == 1:
            return Routine((self.results(),))
        return Routine((self.sums(), self.results()), (self.scan.row_count * (self.chunks - 1) * self.scan.dtype.itemsize,))

    def sums(self) -> Dispatch:
        """Return the dispatch of the chunks' totals, `[chunk, row]`."""
        scan, shader = self.scan, Shader(self.capabilities, INVOCATIONS)
        source, totals = shader.buffer(_OPERAND, scan.stored), shader.buffer(_TOTALS, scan.dtype, written=True)

        def reduce(index: str) -> None:
            total = variable(shader, scan.neutral())
            self._accumulate(shader, source, index, total)
            totals.store(index, total)

        return shader.for_each(scan.row_count * (self.chunks - 1), reduce)

    def results(self) -> Dispatch:
        """Return the dispatch of the chunks' results, given the totals of those before."""
        scan, shader = self.scan, Shader(self.capabilities, INVOCATIONS)
        source, target = shader.buffer(_OPERAND, scan.stored), shader.buffer(_RESULT, scan.stored, written=True)
        totals = shader.buffer(_TOTALS, scan.dtype) if self.chunks > 1 else None

        def write(index: str) -> None:
            total = variable(shader, scan.neutral())
            if totals:
                with shader.loop(quotient(index, scan.row_count)) as earlier:
                    at = shader.let("u32", plus(times(earlier, scan.row_count), remainder(index, scan.row_count)))
                    accumulate(shader, scan, total, totals.load(at))
            self._accumulate(shader, source, index, total, lambda at, result: target.store(at, convert(shader, result, scan.stored)))

        return shader.for_each(scan.row_count * self.chunks, write)

    def _accumulate(
        self, shader: Shader, source: ShaderArray, index: str, total: Number, write: Callable[[str, Number], None] | None = None
    ) -> None:
        """Emit the accumulation of a chunk of a row; `write` gets offsets and results."""
        scan = self.scan
        row, chunk = shader.let("u32", remainder(index, scan.row_count)), shader.let("u32", quotient(index, scan.row_count))
        first = shader.let("u32", times(chunk, self.length))
        end = shader.let("u32", f"min({first} + {self.length}u, {scan.size}u)")

        def elements(first: str, end: str, partial: Number, result: Callable[[], Number]) -> None:
            with shader.loop(end, first) as i:
                at = shader.let("u32", scan.offset(row, i))
                accumulate(shader, scan, partial, convert(shader, source.load(at), scan.dtype))
                if write is not None:
                    write(at, result())

        if scan.is_sequential or self.length <= _BLOCK or not scan.reduction.is_pairwise(scan.dtype):
            elements(first, end, total, lambda: total)
            return
        with shader.loop(end, first, _BLOCK) as begin:
            block = variable(shader, scan.neutral())
            elements(begin, f"min({begin} + {_BLOCK}u, {end})", block, lambda: scan.combine(shader, total, block))
            accumulate(shader, scan, total, block)


class _Tiles:
    def __init__(self, scan: Scan, capabilities: TargetCapabilities) -> None:
        self.scan, self.capabilities = scan, capabilities
        self.invocations = 256 if scan.dtype.itemsize <= 8 else 128
        self.each = _EACH if scan.size <= _EACH * self.invocations else _EACH_OF_MANY
        self.tile = self.invocations * self.each
        self.tiles = -(-scan.size // self.tile)
        #: Whether a tile's workgroup sums the totals before it itself.
        self.few = self.tiles <= _FEW_TILES and scan.dtype.itemsize <= 4
        #: Whether all rows begin with a four, so that an invocation's elements are fours.
        self.in_fours = scan.size % 4 == 0
        self.elements = scan.rows * scan.size if self.in_fours else 0

    def routine(self) -> Routine:
        if self.tiles == 1:
            return Routine((self._scan(),))
        totals = [] if self.few else [self._scan_totals()]
        return Routine((self._sum(), *totals, self._scan()), (self.scan.rows * self.tiles * self.scan.dtype.itemsize,))

    def _begin(self, number: str) -> tuple[Shader, ShaderArray, str, list[str]]:
        """Return a shader with a workgroup for every tile.

        The operand, the tile's row, and the first elements of an invocation's fours come with it. Neighbouring invocations have
        neighbouring fours. The second four of each comes after the first ones of all.
        """
        shader = Shader(self.capabilities, self.invocations)
        source = shader.buffer(_OPERAND, self.scan.stored, size=self.elements)
        tile = shader.let("u32", number)
        row = shader.let("u32", quotient(tile, self.tiles))
        start = plus(times(remainder(tile, self.tiles), self.tile), times(shader.local, 4))
        return shader, source, row, [shader.let("u32", f"{start} + {4 * k * self.invocations}u") for k in range(self.each // 4)]

    def _read(self, shader: Shader, source: ShaderArray, row: str, positions: list[str]) -> list[list[Number]]:
        """Emit the loads of an invocation's fours; beyond the row's end are identities."""
        fours: list[list[Number]] = []
        neutral = self.scan.neutral()
        for i in positions:
            read = [variable(shader, neutral) for _ in range(4)]
            if self.in_fours:
                with shader.block(f"if ({i} < {self.scan.size}u)"):
                    four = source.load4(self._four(row, i))
                    self._set(shader, read, four[::-1] if self.scan.reverse else four)
            else:
                for n, x in enumerate(read):
                    with shader.block(f"if ({i} + {n}u < {self.scan.size}u)"):
                        self._set(shader, [x], [source.load(shader.let("u32", self.scan.offset(row, f"({i} + {n}u)")))])
            fours.append(read)
        return fours

    def _set(self, shader: Shader, variables: list[Number], values: list[Number]) -> None:
        for x, value in zip(variables, values, strict=True):
            shader.emit(f"{x.text} = {convert(shader, value, self.scan.dtype).text};")

    def _four(self, row: str, i: str) -> str:
        return f"({plus(times(row, self.scan.size), self.scan.position(TEXT, i, 4))}) / 4u"

    def _write(self, shader: Shader, target: ShaderArray, row: str, i: str, numbers: list[Number]) -> None:
        four = [convert(shader, x, self.scan.stored) for x in numbers]
        if self.in_fours:
            with shader.block(f"if ({i} < {self.scan.size}u)"):
                target.store4(self._four(row, i), four[::-1] if self.scan.reverse else four)
        else:
            for n, x in enumerate(four):
                with shader.block(f"if ({i} + {n}u < {self.scan.size}u)"):
                    target.store(shader.let("u32", self.scan.offset(row, f"({i} + {n}u)")), x)

    def _sums(self, shader: Shader, numbers: list[Number]) -> list[Number]:
        sums = numbers[:1]
        for x in numbers[1:]:
            sums.append(self.scan.combine(shader, sums[-1], x))
        return sums

    def _sum(self) -> Dispatch:
        shader, source, row, positions = self._begin(Shader.group)
        totals = shader.buffer(_TOTALS, self.scan.dtype, written=True)
        fours = self._read(shader, source, row, positions)
        _, (group_total,) = scan_group(shader, self.scan, self._sums(shader, [x for four in fours for x in four])[-1:])
        with shader.block(f"if ({shader.local} == 0u)"):
            totals.store(shader.group, group_total)
        return shader.dispatch(self.scan.rows * self.tiles)

    def _scan_totals(self) -> Dispatch:
        """Return the dispatch that replaces a row's totals by their exclusive scan."""
        scan = self.scan
        shader = Shader(self.capabilities, self.invocations)
        totals = shader.buffer(_TOTALS, scan.dtype, written=True)
        carried = variable(shader, scan.neutral())
        with shader.loop(self.tiles, 0, self.invocations * _EACH) as start:
            first = shader.let("u32", f"{start} + {shader.local} * {_EACH}u")
            numbers = [shader.let("u32", f"{first} + {k}u") for k in range(_EACH)]
            positions = [shader.let("u32", plus(times(shader.group, self.tiles), i)) for i in numbers]
            read = [variable(shader, scan.neutral()) for _ in numbers]
            for i, at, x in zip(numbers, positions, read, strict=True):
                with shader.block(f"if ({i} < {self.tiles}u)"):
                    shader.emit(f"{x.text} = {totals.load(at).text};")
            sums = self._sums(shader, read)
            (before,), (group_total,) = scan_group(shader, scan, sums[-1:])
            before = scan.combine(shader, carried, before)
            earlier = [before, *[scan.combine(shader, before, x) for x in sums[:-1]]]
            for i, at, x in zip(numbers, positions, earlier, strict=True):
                with shader.block(f"if ({i} < {self.tiles}u)"):
                    totals.store(at, x)
            accumulate(shader, scan, carried, group_total)
        return shader.dispatch(scan.rows)

    def _scan(self) -> Dispatch:
        """Return the dispatch of every tile's results, given the totals before it."""
        # The last tile comes first: its elements were read last, and are likely still in the cache.
        scan, count = self.scan, self.scan.rows * self.tiles
        number = f"({count - 1}u - {Shader.group})"
        shader, source, row, positions = self._begin(number)
        target = shader.buffer(_RESULT, scan.stored, written=True, size=self.elements)
        sums = [self._sums(shader, four) for four in self._read(shader, source, row, positions)]
        earlier = [self._earlier(shader, number)] if self.few and self.tiles > 1 else []
        befores, group_totals = scan_group(shader, scan, [*[four[-1] for four in sums], *earlier])
        if self.tiles == 1:
            carried = scan.neutral()
        else:
            carried = group_totals[-1] if self.few else shader.buffer(_TOTALS, scan.dtype).load(number)
        for i, four, before, group_total in zip(positions, sums, befores, group_totals, strict=False):
            start = scan.combine(shader, carried, before)
            self._write(shader, target, row, i, [scan.combine(shader, start, x) for x in four])
            carried = scan.combine(shader, carried, group_total)
        return shader.dispatch(count)

    def _earlier(self, shader: Shader, number: str) -> Number:
        """Emit an invocation's share of the totals of the tiles before one."""
        totals, total = shader.buffer(_TOTALS, self.scan.dtype), variable(shader, self.scan.neutral())
        tile = shader.let("u32", remainder(number, self.tiles))
        for k in range(0, self.tiles, self.invocations):
            i = shader.let("u32", f"{shader.local} + {k}u")
            with shader.block(f"if ({i} < {tile})"):
                accumulate(shader, self.scan, total, totals.load(f"{number} - {tile} + {i}"))
        return total


# Sliding windows: the elements of a window, and the windows of an element.


def over_taps(f: Function, windows: Windows, number: str, body: Callable[[str], None]) -> None:
    """Emit ``body(element)`` for the elements of a window, in row-major order."""
    outer, *position = f.coordinates(number, [windows.outer, *[axis.positions for axis in windows.axes]])
    emit_over_taps(f, windows.axes, position, outer, None, partial(_over_axis, f), lambda element, _: body(element))


def _over_axis(f: Function, axis: Axis, position: str, carried: None, body: Callable[[str, None], None]) -> None:
    """Emit the body for every element that a window's taps meet along an axis."""
    # Negative positions wrap to large numbers, which are out of range, too.
    start = f.let("u32", f"{times(position, axis.stride)} {'-' if axis.low >= 0 else '+'} {abs(axis.low)}u")
    with f.loop(axis.taps) as k:
        element = f.let("u32", f"{start} {'+' if axis.dilation >= 0 else '-'} {times(k, abs(axis.dilation))}")
        if axis.inside:
            return body(element, None)
        divisible = f" && {element} % {axis.base}u == 0u" if axis.base > 1 else ""
        with f.block(f"if ({element} < {max((axis.size - 1) * axis.base + 1, 0)}u{divisible})"):
            return body(quotient(element, axis.base), None)


def iterations_of(windows: Windows) -> int:
    """Return the iterations of the loops along a window's axes, with the last ones."""
    iterations = 0
    for axis in reversed(windows.axes):
        iterations = iterations if axis.plain else axis.taps * (1 + iterations) + 1
    return iterations


# Reductions of windows, and the tangents and cotangents of their extrema.
#
# A window's *winner* is the first of its elements, in row-major order, that equals the maximum (or minimum); NaN wins over numbers.
# An element sums the values of the windows that it wins, window after window, so that sums are the same in every run.


#: The winner of a window without elements.
_NONE = 0xFFFFFFFF

#: Windows that an invocation has at most: those whose results are packed in a word.
_AT_ONCE = 4

#: The most elements that it is cheaper to read again than to store a winner.
_FEW = 16


def reduce_window(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities, name: str) -> Routine | None:
    """Return the routine of the primitive of that name, which reduces windows."""
    reduction = reduction_of(name)
    (operand,) = avals
    windows, dtype = windows_of(operand.shape, params), accumulator(operand.dtype)
    count = windows.number
    if not count:
        return Routine(())
    if not supports(reduction.step, (dtype, dtype), {}, capabilities) or not _can_walk(windows, capabilities):
        return None
    shader = Shader(capabilities, INVOCATIONS)
    source, target = shader.buffer(0, operand.dtype), result_array(shader, 1, operand.dtype, count)

    def reduce_one_window(number: str) -> Number:
        total = variable(shader, constant(dtype, reduction.start(dtype)))

        def add(element: str) -> None:
            value = combine(shader, reduction, total, convert(shader, source.load(element), dtype))
            shader.emit(f"{total.text} = {value.text};")

        over_taps(shader, windows, number, add)
        return convert(shader, total, operand.dtype)

    return Routine((fill(shader, target, count, reduce_one_window),))


def _windows(moved: ShapedArray, operand: ShapedArray, params: dict[str, Any], capabilities: TargetCapabilities) -> Windows | None:
    """Return the windows; None if the device cannot compare or add these dtypes."""
    fits = all(supports("max", (d, d), {}, capabilities) for d in (operand.dtype, moved.dtype))
    if moved.dtype not in dtypes.FLOATS or operand.dtype.kind in "cb" or not fits:
        return None
    windows = windows_of(operand.shape, params)
    return windows if _can_walk(windows, capabilities) else None


def _can_walk(windows: Windows, capabilities: TargetCapabilities) -> bool:
    """Return True if a device may do the iterations, in indices of 32 bits."""
    return _AT_ONCE * iterations_of(windows) <= capabilities.iterations and windows.reach < 1 << 31


def _winner(shader: Shader, windows: Windows, operand: ShaderArray, select: str, number: str) -> str:
    at = Number(_UINT32, shader.var("u32", f"{_NONE}u"))
    best = variable(shader, constant(operand.dtype, 0))

    def meet(element: str) -> None:
        here = (operand.load(element), Number(_UINT32, shader.let("u32", element)))
        value, where = combine_indexed(shader, reduction_of("reduce_max" if select == "ge" else "reduce_min"), (best, at), here)
        first = f"{at.text} == {_NONE}u"
        taken = shader.let("u32", f"select({where.text}, {here[1].text}, {first})")
        shader.emit(f"{best.text} = select({value.text}, {here[0].text}, {first});")
        shader.emit(f"{at.text} = {taken};")

    over_taps(shader, windows, number, meet)
    return at.text


def select_and_gather_add(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive: each window gets the tangent of its winner."""
    tangents, operand = avals
    windows = _windows(tangents, operand, params, capabilities)
    if windows is None:
        return None
    count = windows.number
    if not count:
        return Routine(())
    shader = Shader(capabilities, INVOCATIONS)
    rates, values = shader.buffer(0, tangents.dtype), shader.buffer(1, operand.dtype)
    zero = constant(tangents.dtype, 0)

    def gather_tangent(number: str) -> Number:
        at = _winner(shader, windows, values, params["select"], number)
        if not operand.size:
            return zero
        rate = rates.load(shader.let("u32", f"min({at}, {operand.size - 1}u)"))
        return Number(rate.dtype, shader.let(rate.type, f"select({rate.text}, {zero.text}, {at} == {_NONE}u)"))

    return Routine((fill(shader, result_array(shader, 2, tangents.dtype, count), count, gather_tangent),))


def select_and_scatter_add(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine: elements get the values of the windows that they win."""
    # A first dispatch stores all windows' winners, unless every element meets few windows: then it searches for their winners itself.
    source, operand = avals
    windows = _windows(source, operand, params, capabilities)
    if windows is None:
        return None
    count, size = windows.number, windows.elements
    if not size:
        return Routine(())
    dtype, shader = accumulator(source.dtype), Shader(capabilities, INVOCATIONS)
    target = result_array(shader, 2, source.dtype, size)
    if not count:
        return Routine((fill(shader, target, size, lambda _: constant(source.dtype, 0)),))
    cotangents = shader.buffer(0, source.dtype)
    at_once = _searches(windows) <= _FEW
    winners = shader.buffer(1, operand.dtype) if at_once else shader.buffer(3, _UINT32)

    def sum_cotangents(number: str) -> Number:
        total = variable(shader, constant(dtype, 0))

        def add(window: str) -> None:
            window = shader.let("u32", window)
            winner = _winner(shader, windows, winners, params["select"], window) if at_once else winners.load(window).text
            with shader.block(f"if ({winner} == {number})"):
                value = combine(shader, reduction_of("reduce_sum"), total, convert(shader, cotangents.load(window), dtype))
                shader.emit(f"{total.text} = {value.text};")

        over_taps(shader, windows.inverse, number, add)
        return convert(shader, total, source.dtype)

    sums = fill(shader, target, size, sum_cotangents)
    if at_once:
        return Routine((sums,))
    finder = Shader(capabilities, INVOCATIONS)
    values = finder.buffer(1, operand.dtype)
    elements = finder.buffer(3, _UINT32, written=True)
    search = fill(finder, elements, count, lambda i: Number(_UINT32, _winner(finder, windows, values, params["select"], i)))
    return Routine((search, sums), (4 * count,))


def _searches(windows: Windows) -> int:
    """Return the elements that an element reads to find its windows' winners."""
    return windows.taps * math.prod(-(-axis.taps // axis.stride) for axis in windows.axes)

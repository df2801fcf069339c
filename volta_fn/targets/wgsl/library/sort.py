"""Sorting rows, of one or several operands, by one or several keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volta_fn.codegen.scalars import row_offset
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.movement import INVOCATIONS, fill, result_array
from volta_fn.targets.wgsl.library.small_sort import (
    LAST,
    SHORT,
    Key,
    KeyWord,
    Sorting,
    SortWord,
    Tile,
    Write,
    collect,
    digit_bits,
    exchange,
    exclusive,
    key_words,
    lanes_of,
    lesser_zero,
    number_of,
    numbers_in_tile,
    positions_by_digit,
    read_key,
    sort_short,
    sort_tile,
    spread,
    storage,
    variables,
)
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader, ShaderArray, Workspaces
from volta_fn.targets.wgsl.scalars import Number
from volta_fn.targets.wgsl.shader import TEXT, plus, quotient, remainder, times

# Rows sorted stably by keys of 32 bits.
#
# Rows that are not `SHORT` are sorted by one digit of eight bits after another (LSD radix sort): a pass counts the digits of every tile
# of a row, sums the counts, digit by digit, over the tiles, and then moves elements. For that a tile is sorted by the digit in the
# memory of its workgroup, by ballots where subgroups can hold them, so that runs of elements go to neighbouring positions. Of rows of
# few tiles every workgroup that moves elements counts the digits of all tiles.

_UINT32 = np.dtype(np.uint32)

_DIGIT = 8

#: The tile that a workgroup sorts; and the tile where there are more elements than resident workgroups can hold. With ballots, the larger
#: one takes more memory than every device has.
_TILE, _LARGE_TILE, _MUCH = Tile(256, 8), Tile(256, 12), 1 << 22
_LARGE_ROOM = 20 << 10

#: The most counts that an invocation sums at a time.
_SUMMED = 12

#: Tiles of a row whose digits every workgroup counts. (With a large tile there is no room for that.)
_FEW_TILES = 16


def sort_rows(sorting: Sorting, capabilities: TargetCapabilities, workspaces: Workspaces) -> list[Dispatch]:
    """Return the dispatches that sort."""
    if sorting.size <= SHORT:
        return [sort_short(sorting, capabilities)]
    return _Long(sorting, capabilities, workspaces).dispatches()


class _Pass(NamedTuple):
    """A pass by some bits of a word, between buffers; None: the operands."""

    word: SortWord
    first: int
    bits: int
    fresh: bool
    source: int | None
    target: int | None

    @property
    def buckets(self) -> int:
        return 1 << self.bits


class _Long:
    def __init__(self, sorting: Sorting, capabilities: TargetCapabilities, workspaces: Workspaces) -> None:
        self.sorting, self.capabilities = sorting, capabilities
        self.ballots = lanes_of(capabilities) > 0
        few = sorting.size <= _FEW_TILES * _TILE.size
        room = not self.ballots or capabilities.workgroup_memory >= _LARGE_ROOM
        self.tile = _LARGE_TILE if sorting.rows * sorting.size >= _MUCH and room and not few else _TILE
        self.tiles = -(-sorting.size // self.tile.size)
        words = sorting.rows * sorting.size
        passes = self._passes()
        used = max(1, min(2, len(passes) - 1))
        self.keys = [workspaces.words(words) for _ in range(used)]
        self.values = [workspaces.words(words) for _ in range(used)] if sorting.valued else []
        #: Workspaces for counts and for their totals.
        self.counted = None if few else (workspaces.words(sorting.rows * 256 * self.tiles), workspaces.words(sorting.rows * 256))
        self.passes = passes

    def _passes(self) -> list[_Pass]:
        most = digit_bits(self.capabilities) if self.ballots else _DIGIT
        passes: list[_Pass] = []
        for word in reversed(self.sorting.words):
            for first in range(0, word.bits, most):
                # Digits have a multiple of four bits.
                bits = min(most, -(-(word.bits - first) // 4) * 4)
                source = passes[-1].target if passes else None
                passes.append(_Pass(word, first, bits, first == 0, source, 0 if source is None else 1 - source))
        passes[-1] = passes[-1]._replace(target=None)
        return passes

    def dispatches(self) -> list[Dispatch]:
        if self.counted is None:
            return [self._deal(step, None) for step in self.passes]
        dispatches: list[Dispatch] = []
        for step in self.passes:
            dispatches += [self._count(step, self.counted[0]), self._sum(step, self.counted), self._deal(step, self.counted)]
        return dispatches

    def _shader(self) -> tuple[Shader, str, str]:
        """Return a shader with a workgroup for every tile: row and first element, too."""
        shader = Shader(self.capabilities, self.tile.invocations)
        row = shader.let("u32", quotient(shader.group, self.tiles))
        return shader, row, shader.let("u32", times(remainder(shader.group, self.tiles), self.tile.size))

    def _reader(self, shader: Shader, step: _Pass, values_too: bool) -> Callable[[str, str], tuple[str, str]]:
        """Return ``read(row, i)``: the key of an element and, if asked for, its value."""
        size, valued = self.sorting.size, self.sorting.valued
        held = step.source is not None
        keys = shader.buffer(self.keys[step.source], _UINT32) if step.source is not None and not step.fresh else None
        values = (
            shader.buffer(self.values[step.source], _UINT32) if step.source is not None and valued and (values_too or step.fresh) else None
        )
        read = step.word.key(shader) if step.fresh else None
        first_value = self.sorting.value(shader) if self.sorting.value and not held and values_too else None

        def element(row: str, i: str) -> tuple[str, str]:
            at = shader.let("u32", plus(times(row, size), i))
            value = values.load(at).text if values else first_value(row, i) if first_value else i
            if keys:
                return keys.load(at).text, value
            assert read is not None
            return read(row, value if held else i), value

        return element

    def _within(self, shader: Shader, i: str) -> str:
        """Emit the number of an element, or of the last one."""
        # Unconditional loads are in flight together.
        return shader.let("u32", f"min({i}, {self.sorting.size - 1}u)")

    def _digit(self, step: _Pass, key: str) -> str:
        return f"({step.word.rank(key)} >> {step.first}u) & {step.buckets - 1}u"

    def _count(self, step: _Pass, number: int) -> Dispatch:
        """Return the dispatch that counts each digit in each tile."""
        shader, row, first = self._shader()
        read = self._reader(shader, step, values_too=False)
        counts = shader.buffer(number, _UINT32, written=True)
        shader.workgroup("digit_counts", "atomic<u32>", step.buckets)
        mine = f"{shader.local} < {step.buckets}u"
        with shader.block(f"if ({mine})"):
            shader.emit(f"atomicStore(&digit_counts[{shader.local}], 0u);")
        shader.emit("workgroupBarrier();")
        numbers = [shader.let("u32", f"{first} + {k * self.tile.invocations}u + {shader.local}") for k in range(self.tile.each)]
        digits = [shader.let("u32", self._digit(step, read(row, self._within(shader, i))[0])) for i in numbers]
        for i, digit in zip(numbers, digits, strict=True):
            shader.emit(f"if ({i} < {self.sorting.size}u) {{ atomicAdd(&digit_counts[{digit}], 1u); }}")
        shader.emit("workgroupBarrier();")
        with shader.block(f"if ({mine})"):
            at = self._count_offset(shader, step, row, shader.local)
            shader.emit(f"{counts.name}[{at}] = atomicLoad(&digit_counts[{shader.local}]);")
        return shader.dispatch(self.sorting.rows * self.tiles)

    def _count_offset(self, shader: Shader, step: _Pass, row: str, digit: str) -> str:
        """Emit the offset of this tile's count of a digit."""
        lists = plus(times(row, step.buckets), digit)
        return plus(times(lists, self.tiles), remainder(shader.group, self.tiles))

    def _sum(self, step: _Pass, counted: tuple[int, int]) -> Dispatch:
        """Return the dispatch that sums each digit's counts over earlier tiles.

        It also stores the totals.
        """
        counts_tile = Tile(256, min(_SUMMED, -(-self.tiles // 256)))
        shader = Shader(self.capabilities, counts_tile.invocations)
        counts, totals = (shader.buffer(number, _UINT32, written=True) for number in counted)
        before = shader.var("u32", "0u")
        with shader.loop(self.tiles, 0, counts_tile.size) as start:
            tiles = [shader.let("u32", f"{start} + {shader.local} + {k * counts_tile.invocations}u") for k in range(counts_tile.each)]
            positions = [shader.let("u32", f"{shader.group} * {self.tiles}u + min({tile}, {self.tiles - 1}u)") for tile in tiles]
            tile_counts = [shader.let("u32", f"{counts.name}[{position}]") for position in positions]
            sums = [
                shader.var("u32", f"select(0u, {count}, {tile} < {self.tiles}u)") for count, tile in zip(tile_counts, tiles, strict=True)
            ]
            collect(shader, counts_tile, sums)
            of_all = exclusive(shader, " + ".join(sums))
            total = shader.var("u32", f"{before} + {of_all}.x")
            for count in sums:
                shader.emit(f"{total} += {count};")
                shader.emit(f"{count} = {total} - {count};")
            shader.emit(f"{before} += {of_all}.y;")
            spread(shader, counts_tile, sums)
            for tile, position, count in zip(tiles, positions, sums, strict=True):
                shader.emit(f"if ({tile} < {self.tiles}u) {{ {counts.name}[{position}] = {count}; }}")
        with shader.block(f"if ({shader.local} == 0u)"):
            shader.emit(f"{totals.name}[{shader.group}] = {before};")
        return shader.dispatch(self.sorting.rows * step.buckets)

    def _deal(self, step: _Pass, counted: tuple[int, int] | None) -> Dispatch:
        """Return the dispatch that moves every element.

        Without workspaces of counts, each workgroup counts all digits itself.
        """
        shader, row, first = self._shader()
        size, valued = self.sorting.size, self.sorting.valued
        read = self._reader(shader, step, values_too=valued)
        keys, values = variables(shader, self.tile.each), variables(shader, self.tile.each if valued else 0)
        numbers = [shader.let("u32", f"{shader.local} + {k * self.tile.invocations}u") for k in range(self.tile.each)]
        positions = [shader.let("u32", f"{first} + {i}") for i in (numbers_in_tile(shader, self.tile) if self.ballots else numbers)]
        for k, (key, value) in enumerate([read(row, self._within(shader, position)) for position in positions]):
            shader.emit(f"{keys[k]} = select({LAST}, {key}, {positions[k]} < {size}u);")
            if valued:
                shader.emit(f"{values[k]} = {value};")
        if counted is None:
            self._count_all(shader, step, row, first, read)
        else:
            self._find_bases(shader, step, row, *[shader.buffer(number, _UINT32) for number in counted])
        sort = self._sort_by_ballots if self.ballots else self._sort_by_counts
        sort(shader, step, numbers, keys, values)
        write = self._writer(shader, step)
        for k, key in enumerate(keys):
            with shader.block(f"if ({first} + {numbers[k]} < {size}u)"):
                position = shader.let("u32", f"bases[{self._digit(step, key)}] + {numbers[k]}")
                write(row, position, key, values[k] if valued else "0u")
        return shader.dispatch(self.sorting.rows * self.tiles)

    def _sort_by_ballots(self, shader: Shader, step: _Pass, numbers: list[str], keys: list[str], values: list[str]) -> None:
        """Sort the tile, and subtract each digit's first position in it from `bases`."""
        digits = [shader.let("u32", self._digit(step, key)) for key in keys]
        positions = positions_by_digit(shader, self.tile, digits, step.bits, "bases")
        for some in (keys, values) if values else (keys,):
            exchange(shader, self.tile, positions, numbers, some)

    def _sort_by_counts(self, shader: Shader, step: _Pass, numbers: list[str], keys: list[str], values: list[str]) -> None:
        """Sort the tile and make `bases`, as `_sort_by_ballots` does, without ballots."""
        collect(shader, self.tile, keys)
        collect(shader, self.tile, values)
        sort_tile(shader, self.tile, keys, values, step.word.rank, f"{step.first}u", f"{step.first + step.bits}u")
        spread(shader, self.tile, values)
        before = spread(shader, self.tile, keys)
        for k, (number, key, earlier) in enumerate(zip(numbers, keys, before, strict=True)):
            digit = shader.let("u32", self._digit(step, key))
            first = f" || {shader.local} == 0u" if k == 0 else ""
            with shader.block(f"if ({digit} != ({self._digit(step, earlier)}){first})"):
                shader.emit(f"bases[{digit}] -= {number};")
        shader.emit("workgroupBarrier();")

    def _find_bases(self, shader: Shader, step: _Pass, row: str, counts: ShaderArray, totals: ShaderArray) -> None:
        """Emit `bases`, the first position in the row of the tile's elements of a digit."""
        shader.workgroup("bases", "u32", step.buckets)
        digit = shader.let("u32", f"min({shader.local}, {step.buckets - 1}u)")
        total = totals.load(plus(times(row, step.buckets), digit)).text
        sums = exclusive(shader, f"select(0u, {total}, {shader.local} < {step.buckets}u)")
        with shader.block(f"if ({shader.local} < {step.buckets}u)"):
            earlier = counts.load(self._count_offset(shader, step, row, shader.local)).text
            shader.emit(f"bases[{shader.local}] = {sums}.x + {earlier};")

    def _count_all(self, shader: Shader, step: _Pass, row: str, first: str, read: Callable[[str, str], tuple[str, str]]) -> None:
        """Emit `bases` from the keys of the full row."""
        mine = f"{shader.local} < {step.buckets}u"
        for name in ("all", "earlier"):
            shader.workgroup(name, "atomic<u32>", step.buckets)
            shader.emit(f"if ({mine}) {{ atomicStore(&{name}[{shader.local}], 0u); }}")
        shader.workgroup("bases", "u32", step.buckets)
        shader.emit("workgroupBarrier();")
        with shader.loop(self.sorting.size, shader.local, self.tile.size) as start:
            numbers = [shader.let("u32", f"{start} + {k * self.tile.invocations}u") for k in range(self.tile.each)]
            digits = [shader.let("u32", self._digit(step, read(row, self._within(shader, i))[0])) for i in numbers]
            for i, digit in zip(numbers, digits, strict=True):
                shader.emit(f"if ({i} < {self.sorting.size}u) {{ atomicAdd(&all[{digit}], 1u); }}")
                shader.emit(f"if ({i} < {first}) {{ atomicAdd(&earlier[{digit}], 1u); }}")
        shader.emit("workgroupBarrier();")
        total = shader.var("u32", "0u")
        shader.emit(f"if ({mine}) {{ {total} = atomicLoad(&all[{shader.local}]); }}")
        sums = exclusive(shader, total)
        with shader.block(f"if ({mine})"):
            shader.emit(f"bases[{shader.local}] = {sums}.x + atomicLoad(&earlier[{shader.local}]);")

    def _writer(self, shader: Shader, step: _Pass) -> Write:
        if step.target is None:
            return self.sorting.emit(shader)
        keys = shader.buffer(self.keys[step.target], _UINT32, written=True)
        values = shader.buffer(self.values[step.target], _UINT32, written=True) if self.sorting.valued else None

        def write(row: str, position: str, key: str, value: str) -> None:
            at = shader.let("u32", plus(times(row, self.sorting.size), position))
            shader.emit(f"{keys.name}[{at}] = {key};")
            if values:
                shader.emit(f"{values.name}[{at}] = {value};")

        return write


# Sorting rows, of one or several operands, by one or several keys.
#
# Keys are sorted together with the elements' indices, by which the operands are gathered at the end. A single operand needs no indices if
# its keys can be converted back, nor does a second one whose bits are sorted in their place.


class SortRows(NamedTuple):
    """Rows along an axis: their number and size, and the columns after the axis."""

    number: int
    size: int
    columns: int

    def offset(self, row: str, i: str, size: int | None = None) -> str:
        """Return the offset of a row's element; rows may have another size."""
        return row_offset(TEXT, row, i, self.size if size is None else size, self.columns)

    def row_of(self, at: str, size: int) -> str:
        """Return the row of an element of an array whose rows have this size."""
        return plus(times(quotient(at, size * self.columns), self.columns), remainder(at, self.columns))


def rows_of(aval: ShapedArray, axis: int) -> SortRows:
    """Return the rows along an axis of an array that is not empty."""
    return SortRows(aval.size // aval.shape[axis], aval.shape[axis], math.prod(aval.shape[axis + 1 :]))


def sort(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive."""
    if not avals[0].size:
        return Routine(())
    rows = rows_of(avals[0], params["dimension"])
    workspaces = Workspaces(2 * len(avals))
    first = avals[0].dtype
    small = len(avals) == 1 or (len(avals) == 2 and avals[1].dtype.itemsize <= 4)
    if params["num_keys"] == 1 and small and first.kind != "c" and first.itemsize <= 4:
        return Routine(tuple(sort_rows(_self_contained(avals, rows), capabilities, workspaces)), tuple(workspaces.sizes))
    words = [(k, word) for k in range(params["num_keys"]) for word in key_words(avals[k].dtype)]
    order = workspaces.words(rows.number * rows.size)
    dispatches = sort_rows(by_keys(avals, rows, words, order), capabilities, workspaces)
    moves = [ordered(aval, rows, rows.size, order, k, len(avals) + k, capabilities) for k, aval in enumerate(avals)]
    return Routine((*dispatches, *moves), tuple(workspaces.sizes))


def _self_contained(avals: tuple[ShapedArray, ...], rows: SortRows) -> Sorting:
    """Return the sorting of keys that are converted back to the operand.

    Values are the second operand, if there is one.
    """
    dtype = avals[0].dtype
    (which,) = key_words(dtype)

    def key(shader: Shader) -> Any:
        array = shader.buffer(0, storage(dtype))
        return lambda row, i: read_key(shader, array, which, shader.let("u32", rows.offset(row, i)), faithful=True)

    def value(shader: Shader) -> Any:
        array = shader.buffer(1, storage(avals[1].dtype))
        return lambda row, i: array.load(rows.offset(row, i)).text

    def emit(shader: Shader) -> Any:
        targets = [shader.buffer(len(avals) + k, storage(aval.dtype), written=True) for k, aval in enumerate(avals)]

        def write(row: str, position: str, sorted_key: str, sorted_value: str) -> None:
            at = shader.let("u32", rows.offset(row, position))
            numbers = (number_of(shader, dtype, sorted_key), Number(targets[-1].dtype, sorted_value))
            for target, number in zip(targets, numbers, strict=False):
                target.store(at, number)

        return write

    words = (SortWord(key, which.bits, lesser_zero(dtype)),)
    two = len(avals) == 2
    return Sorting(rows.number, rows.size, words, emit, value if two else None, two)


def by_keys(
    avals: tuple[ShapedArray, ...],
    rows: SortRows,
    words: list[tuple[int, KeyWord]],
    order: int,
    falling: bool = False,
    count: int | None = None,
) -> Sorting:
    """Return the sorting that finds the order of the rows' elements.

    Of each row the first `count` (or all) go to buffer `order`, laid out as rows are.
    """
    bound: dict[tuple[Shader, int], ShaderArray] = {}
    count = rows.size if count is None else count

    def operand(shader: Shader, number: int) -> ShaderArray:
        if (shader, number) not in bound:
            bound[shader, number] = shader.buffer(number, storage(avals[number].dtype))
        return bound[shader, number]

    def key_for(number: int, which: KeyWord) -> Key:
        def key(shader: Shader) -> Any:
            array = operand(shader, number)
            return lambda row, i: read_key(shader, array, which, shader.let("u32", rows.offset(row, i)), falling=falling)

        return key

    def emit(shader: Shader) -> Any:
        target = shader.buffer(order, _UINT32, written=True)

        def write(row: str, position: str, _: str, number: str) -> None:
            guard = f"if ({position} < {count}u) " if count < rows.size else ""
            at = rows.offset(row, position, count)
            shader.emit(f"{guard}{{ {target.name}[{at}] = {number}; }}")

        return write

    return Sorting(rows.number, rows.size, tuple([SortWord(key_for(k, which), which.bits) for k, which in words]), emit)


def ordered(
    aval: ShapedArray, rows: SortRows, per_row: int, order: int, source: int, target: int, capabilities: TargetCapabilities
) -> Dispatch:
    """Return the dispatch that stores the first `per_row` elements of each row."""
    shader = Shader(capabilities, INVOCATIONS)
    words = max(1, aval.dtype.itemsize // 4)
    count = rows.number * per_row
    array, positions = shader.buffer(source, storage(aval.dtype)), shader.buffer(order, _UINT32)

    def element(index: str) -> Number:
        component = remainder(index, words)
        at = shader.let("u32", quotient(index, words))
        offset = rows.offset(rows.row_of(at, per_row), positions.load(at).text)
        return array.load(plus(times(offset, words), component))

    return fill(shader, result_array(shader, target, storage(aval.dtype), count), count * words, element)

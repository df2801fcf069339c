"""Sorting rows, by one or several keys, and their greatest elements."""

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
    Emit,
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
    key_of,
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


# The first few of long rows, in one pass over the elements.
#
# A workgroup reads a chunk of a row and keeps, in its own memory, the elements that come before a threshold: the last of the wanted
# elements so far. When its memory is full, it sorts the elements in it, and drops all but the wanted ones. Elements are kept in the order
# of the chunk, so that equal ones stay in their order. The first threshold comes from a sample of the beginning, so that few elements of a
# random order pass it.

_SIEVE_TILE = Tile(256, 4)

#: Fours that an invocation reads at a time: two, since the counts of both share a word.
_FOURS = 2

#: Elements that a workgroup reads at a time.
CHUNK = 4 * _FOURS * _SIEVE_TILE.invocations

#: The first threshold comes from this fraction of a chunk: then about nine times the wanted elements pass it.
_SAMPLED_SHARE = 8

#: The most that can be wanted.
MOST = _SIEVE_TILE.size // 4

#: ``fours(shader)`` binds buffers and gives ``read(chunk, number)``: four neighbours' keys, some key where there is none.
Fours = Callable[[Shader], Callable[[str, str], list[str]]]

#: ``numbers(shader)`` binds buffers and returns ``number(chunk, position)``, which gives the index of an element.
Numbers = Callable[[Shader], Callable[[str, str], str]]


class Sieving(NamedTuple):
    """A search for the first elements of chunks.

    Attributes:
        chunks: the number of chunks.
        size: the text of the number of elements of one.
        limit: the number of elements to keep of each; missing ones have the last key.
        keys, numbers: the chunks' elements.
        emit: where they go, in order.
    """

    chunks: int
    size: Callable[[str], str]
    limit: int
    keys: Fours
    numbers: Numbers
    emit: Emit


def sieve(sieving: Sieving, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that finds the first elements of each chunk."""
    return _Sieve(sieving, capabilities).dispatch()


class _Sieve:
    """The shader of a search; `scratch` has the keys kept, then their numbers.

    Sorting uses `scratch`, too.
    """

    def __init__(self, sieving: Sieving, capabilities: TargetCapabilities) -> None:
        self.sieving, self.shader = sieving, Shader(capabilities, _SIEVE_TILE.invocations)
        shader = self.shader
        self.size = shader.let("u32", sieving.size(shader.group))
        self.read, self.number = sieving.keys(shader), sieving.numbers(shader)
        #: The number of elements kept; the threshold that an element must come before; whether it may also equal the threshold.
        self.count, self.threshold, self.accepts_ties = shader.var("u32", "0u"), shader.var("u32", LAST), shader.var("bool", "true")
        shader.workgroup("scratch", "u32", _SIEVE_TILE.room)

    def dispatch(self) -> Dispatch:
        shader, limit = self.shader, self.sieving.limit
        self._first_threshold()
        with shader.loop(self.size, 0, CHUNK) as start:
            keys, positions = self._chunk(start)
            rest = shader.var("u32", " | ".join(f"select(0u, {1 << k}u, {at} < {self.size})" for k, at in enumerate(positions)))
            with shader.block("loop"):
                total = self._keep(keys, positions, rest)
                with shader.block(f"if ({total} <= {_SIEVE_TILE.size}u && {start} + {CHUNK}u < {self.size})"):
                    shader.emit(f"{self.count} = {total};")
                    shader.emit("break;")
                self._forget(total)
                shader.emit(f"if ({total} <= {_SIEVE_TILE.size}u) {{ break; }}")
        write = self.sieving.emit(shader)
        with shader.block(f"if ({shader.local} < {limit}u)"):
            key, number = (shader.let("u32", f"scratch[{shader.local} + {n}u]") for n in (0, _SIEVE_TILE.size))
            write(shader.group, shader.local, key, number)
        return shader.dispatch(self.sieving.chunks)

    def _chunk(self, start: str) -> tuple[list[str], list[str]]:
        """Emit an invocation's keys of a stretch, and their numbers in the chunk."""
        shader = self.shader
        firsts = [shader.let("u32", f"{start} + {shader.local} * 4u + {k * 4 * _SIEVE_TILE.invocations}u") for k in range(_FOURS)]
        keys = [key for first in firsts for key in self.read(shader.group, first)]
        return keys, [f"({first} + {c}u)" for first in firsts for c in range(4)]

    def _first_threshold(self) -> None:
        """Emit the first threshold, which as many as are wanted pass."""
        # Groups of invocations find the first keys in their shares of the chunk's beginning.
        shader, limit = self.shader, self.sieving.limit
        groups = max(64, 1 << (2 * limit - 1).bit_length())
        if groups > _SIEVE_TILE.invocations:
            return
        best = shader.var("u32", LAST)
        with shader.loop(f"max(1u, {self.size} / {_SAMPLED_SHARE}u)", 0, CHUNK) as start:
            keys, positions = self._chunk(start)
            for key, at in zip(keys, positions, strict=True):
                shader.emit(f"{best} = min({best}, select({LAST}, {key}, {at} < {self.size}));")
        shader.emit(f"scratch[{shader.local}] = {best};")
        shader.workgroup("agreed", "u32")
        shader.emit("workgroupBarrier();")
        with shader.block(f"if ({shader.local} < {groups}u)"):
            for k in range(groups, _SIEVE_TILE.invocations, groups):
                shader.emit(f"{best} = min({best}, scratch[{shader.local} + {k}u]);")
            shader.emit(f"scratch[{shader.local}] = {best};")
        shader.emit("workgroupBarrier();")
        with shader.block(f"if ({shader.local} < {groups}u)"):
            before = shader.var("u32", "0u")
            with shader.loop(groups) as j:
                other = shader.let("u32", f"scratch[{j}]")
                shader.emit(f"{before} += select(0u, 1u, {other} < {best} || ({other} == {best} && {j} < {shader.local}));")
            shader.emit(f"if ({before} == {limit - 1}u) {{ agreed = {best}; }}")
        shader.emit(f"{self.threshold} = workgroupUniformLoad(&agreed);")

    def _keep(self, keys: list[str], positions: list[str], rest: str) -> str:
        """Keep elements while there is room, and leave the others in `rest`.

        Return how many there would be.
        """
        shader = self.shader
        passing = " | ".join(
            f"select(0u, {1 << k}u, {key} < {self.threshold} || ({self.accepts_ties} && {key} == {self.threshold}))"
            for k, key in enumerate(keys)
        )
        shader.emit(f"{rest} &= {passing};")
        halves = (f"countOneBits({rest} & 15u)", f"countOneBits({rest} >> 4u)")
        sums = exclusive(shader, f"({halves[0]} | ({halves[1]} << 16u))")
        first = shader.let("u32", f"{self.count} + ({sums}.x & 0xffffu)")
        second = shader.let("u32", f"{self.count} + ({sums}.y & 0xffffu) + ({sums}.x >> 16u)")
        candidates = shader.let("u32", rest)
        for k, (key, at) in enumerate(zip(keys, positions, strict=True)):
            base, mask = (first, (1 << k) - 1) if k < 4 else (second, (1 << k) - 16)
            with shader.block(f"if (({candidates} & {1 << k}u) != 0u)"):
                position = shader.let("u32", f"{base} + countOneBits({candidates} & {mask}u)")
                with shader.block(f"if ({position} < {_SIEVE_TILE.size}u)"):
                    shader.emit(f"scratch[{position}] = {key};")
                    shader.emit(f"scratch[{position} + {_SIEVE_TILE.size}u] = {self.number(shader.group, at)};")
                    shader.emit(f"{rest} &= {~(1 << k) & 0xFF}u;")
        shader.workgroup("agreed", "u32")
        shader.emit(f"if ({shader.local} == 0u) {{ agreed = {self.count} + ({sums}.y & 0xffffu) + ({sums}.y >> 16u); }}")
        return shader.let("u32", "workgroupUniformLoad(&agreed)")

    def _forget(self, total: str) -> None:
        """Keep only the wanted elements of `total`, in order."""
        shader, limit = self.shader, self.sieving.limit
        positions = [shader.let("u32", plus(times(shader.local, _SIEVE_TILE.each), f"{k}u")) for k in range(_SIEVE_TILE.each)]
        keys = [shader.var("u32", f"select({LAST}, scratch[{at}], {at} < {total})") for at in positions]
        values = [shader.var("u32", f"scratch[{at} + {_SIEVE_TILE.size}u]") for at in positions]
        shader.emit("workgroupBarrier();")
        sort_tile(shader, _SIEVE_TILE, keys, values, str, "0u", "32u")
        for at, key, value in zip(positions, keys, values, strict=True):
            with shader.block(f"if ({at} < {limit}u)"):
                shader.emit(f"scratch[{at}] = {key};")
                shader.emit(f"scratch[{at} + {_SIEVE_TILE.size}u] = {value};")
        shader.emit("workgroupBarrier();")
        shader.emit(f"{self.count} = min({total}, {limit}u);")
        shader.emit(f"{self.accepts_ties} = {total} < {limit}u;")
        shader.emit(f"if (!{self.accepts_ties}) {{ {self.threshold} = scratch[{limit - 1}u]; }}")


# The greatest elements of rows, and their indices.
#
# Rows are sorted, the greatest first. Where only a few of long rows are wanted, these are sought in chunks of the rows first, and then in
# what was found in these, until one chunk is left.

_OPERAND, _VALUES, _INDICES, _SPACES = range(4)

#: Chunks have at least `_LEAST` elements if there are fewer than `_MANY` of them.
_LEAST, _MANY = 4096, 1024


def top_k(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive."""
    (operand,) = avals
    k = params["k"]
    if not k * operand.size:
        return Routine(())
    rows = rows_of(operand, params["axis"])
    workspaces = Workspaces(_SPACES)
    words = key_words(operand.dtype)
    if rows.size > SHORT and k <= MOST and len(words) == 1:
        return Routine(tuple(_choose(rows, words[0], k, capabilities, workspaces)), tuple(workspaces.sizes))
    sorting = by_keys(avals, rows, [(0, word) for word in words], _INDICES, falling=True, count=k)
    dispatches = sort_rows(sorting, capabilities, workspaces)
    return Routine((*dispatches, ordered(operand, rows, k, _INDICES, _OPERAND, _VALUES, capabilities)), tuple(workspaces.sizes))


class _Candidates(NamedTuple):
    """Some elements of each row: where keys and numbers are (None: the row)."""

    number: int
    keys: int | None = None
    numbers: int | None = None


def _choose(rows: SortRows, which: KeyWord, k: int, capabilities: TargetCapabilities, workspaces: Workspaces) -> list[Dispatch]:
    candidates, dispatches = _Candidates(rows.size), []
    while True:
        length = _length(rows.number, candidates.number)
        chunks = -(-candidates.number // length)
        survivors = _Candidates(chunks * k, *(workspaces.words(rows.number * chunks * k) for _ in range(2))) if chunks > 1 else None
        dispatches.append(_Round(rows, which, k, candidates, length, survivors).dispatch(capabilities))
        if survivors is None:
            return dispatches
        candidates = survivors


def _length(rows: int, size: int) -> int:
    """Return the size of a chunk, which balances the chunks' number and work."""
    chunks = min(-(-size // _LEAST), -(-_MANY // rows))
    return -(-size // (4 * chunks)) * 4


class _Round(NamedTuple):
    """A round that finds the greatest of every chunk of `length` candidates.

    They are the candidates of the next round, `survivors`, or the results.
    """

    rows: SortRows
    which: KeyWord
    k: int
    candidates: _Candidates
    length: int
    survivors: _Candidates | None

    def dispatch(self, capabilities: TargetCapabilities) -> Dispatch:
        """Return the dispatch for all chunks of all rows.

        Beyond a row's last candidate are keys that come last.
        """
        return sieve(Sieving(self.rows.number * self.chunks, self.size, self.k, self.keys, self.numbers, self.emit), capabilities)

    @property
    def chunks(self) -> int:
        return -(-self.candidates.number // self.length)

    def size(self, chunk: str) -> str:
        return f"min({self.length}u, {self.candidates.number}u - {self.number(chunk, '0u')})"

    def row(self, chunk: str) -> str:
        return quotient(chunk, self.chunks)

    def number(self, chunk: str, i: str) -> str:
        """Return the number in its row of a chunk's i-th candidate."""
        return plus(times(remainder(chunk, self.chunks), self.length), i)

    def offset(self, chunk: str, i: str) -> str:
        """Return the offset of the i-th candidate of a chunk's row."""
        return (
            self.rows.offset(self.row(chunk), i)
            if self.candidates.keys is None
            else plus(times(self.row(chunk), self.candidates.number), i)
        )

    def keys(self, shader: Shader) -> Callable[[str, str], list[str]]:
        """Return the function that loads the keys of a chunk's four candidates from i on."""
        count, has_keys = self.candidates.number, self.candidates.keys is not None
        fours = count % 4 == 0 and (has_keys or self.rows.columns == 1)
        stored = _UINT32 if has_keys else storage(self.which.dtype)
        array = shader.buffer(
            _OPERAND if self.candidates.keys is None else self.candidates.keys, stored, size=self.rows.number * count if fours else 0
        )

        def read(chunk: str, i: str) -> list[str]:
            first = shader.let("u32", self.number(chunk, i))
            if fours:
                within = f"min({first} / 4u, {count // 4 - 1}u)"
                four = array.load4(shader.let("u32", plus(times(self.row(chunk), count // 4), within)))
            else:
                positions = [shader.let("u32", f"min({first} + {c}u, {count - 1}u)") for c in range(4)]
                four = [array.load(self.offset(chunk, at)) for at in positions]
            return [shader.let("u32", x.text if has_keys else self.falling(shader, x.text)) for x in four]

        return read

    def falling(self, shader: Shader, bits: str) -> str:
        """Emit the key of an element, which is the less the greater that is."""
        return f"({key_of(shader, self.which.dtype, bits, faithful=False)} ^ {(1 << self.which.bits) - 1}u)"

    def numbers(self, shader: Shader) -> Callable[[str, str], str]:
        """Return the function that loads the index in the row of a chunk's i-th candidate."""
        if self.candidates.numbers is None:
            return self.number
        array = shader.buffer(self.candidates.numbers, _UINT32)
        return lambda chunk, i: array.load(self.offset(chunk, self.number(chunk, i))).text

    def emit(self, shader: Shader) -> Callable[[str, str, str, str], None]:
        """Return the function that stores a chunk's i-th greatest: key and index."""
        if self.survivors is None:
            return _results(shader, self.rows, self.which, self.k)
        targets = [shader.buffer(n, _UINT32, written=True) for n in (self.survivors.keys, self.survivors.numbers) if n is not None]

        def write(chunk: str, i: str, *words: str) -> None:
            at = shader.let("u32", plus(times(chunk, self.k), i))
            for target, value in zip(targets, words, strict=True):
                shader.emit(f"{target.name}[{at}] = {value};")

        return write


def _results(shader: Shader, rows: SortRows, which: KeyWord, k: int) -> Callable[[str, str, str, str], None]:
    stored = storage(which.dtype)
    source, values = shader.buffer(_OPERAND, stored), shader.buffer(_VALUES, stored, written=True)
    indices = shader.buffer(_INDICES, _UINT32, written=True)

    def write(row: str, i: str, _: str, number: str) -> None:
        at = shader.let("u32", rows.offset(row, i, k))
        shader.emit(f"{indices.name}[{at}] = {number};")
        values.store(at, source.load(rows.offset(row, number)))

    return write

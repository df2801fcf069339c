"""Sorting rows by keys of 32 bits, stably.

Of very short rows every element counts those that come before it. A row that a workgroup can hold is sorted there. Long rows are sorted by
one digit of eight bits after another (LSD radix sort): a pass counts the digits of every tile of a row, sums the counts, digit by digit,
over the tiles, and then moves elements. There a tile is sorted by the digit in the memory of its workgroup, so that runs of elements go to
neighbouring places. Of rows of few tiles everyone who moves elements counts the digits of all tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.library.ranking import Rank, Tile, exclusive, sort_tile, spread
from volta_fn.backends.wgsl.library.spaces import Spaces
from volta_fn.backends.wgsl.library.units import INVOCATIONS, for_each
from volta_fn.backends.wgsl.library.whole import plus, quotient, remainder, times
from volta_fn.backends.wgsl.routine import Dispatch
from volta_fn.backends.wgsl.scalars import Array, Shader

_UINT32 = np.dtype(np.uint32)

_TILE = Tile(256, 8)
_DIGIT = 8

#: Rows up to this size are sorted by one workgroup each.
SHORT = _TILE.size

#: Elements of rows up to this size are compared with all others.
_VERY_SHORT = 32

#: Tiles of a row whose digits everyone counts.
_FEW_TILES = 16

#: The key of what is behind a row's end: it comes last, as it stands behind all others at first.
LAST = "0xffffffffu"

#: ``key(shader)`` binds buffers and gives ``read(row, value)``, the key of the element with that value.
Key = Callable[[Shader], Callable[[str, str], str]]

#: ``emit(shader)`` binds buffers and gives ``write(row, place, key, value)``, which writes a sorted element where it belongs.
Emit = Callable[[Shader], Callable[[str, str, str, str], None]]


class Word(NamedTuple):
    """One part of what is sorted by: how keys are read, how many of their bits count, and by what they are ranked."""

    key: Key
    bits: int
    rank: Rank = str


class Sorting(NamedTuple):
    """What is to be sorted.

    Attributes:
        rows, size: how many rows there are, of how many elements each.
        words: what is sorted by, the most important first. Only a single word has a rank that is not its key.
        emit: where the result goes.
        value: reads, as `Key` does, the value of an element by its number in the row; None: the value is that number.
        valued: whether there are values at all.
    """

    rows: int
    size: int
    words: tuple[Word, ...]
    emit: Emit
    value: Key | None = None
    valued: bool = True


def sort_rows(sorting: Sorting, facts: Facts, spaces: Spaces) -> list[Dispatch]:
    """The shaders that sort."""
    if sorting.size <= _VERY_SHORT:
        return [_count_before(sorting, facts)]
    if sorting.size <= SHORT:
        return [_sort_short(sorting, facts)]
    return _Long(sorting, facts, spaces).dispatches()


def _count_before(sorting: Sorting, facts: Facts) -> Dispatch:
    """Each element by an invocation, which counts those that come before it."""
    shader = Shader(facts, INVOCATIONS)
    readers = [word.key(shader) for word in sorting.words]
    value, write = sorting.value(shader) if sorting.value else None, sorting.emit(shader)

    def keys(row: str, i: str) -> list[str]:
        return [shader.let("u32", read(row, i)) for read in readers]

    def put(index: str) -> None:
        row, i = shader.let("u32", quotient(index, sorting.size)), shader.let("u32", remainder(index, sorting.size))
        mine, place = keys(row, i), shader.var("u32", "0u")
        with shader.loop(sorting.size) as j:
            before = f"{j} < {i}"
            for word, key, other in reversed(list(zip(sorting.words, mine, keys(row, j), strict=True))):
                a, b = shader.let("u32", word.rank(other)), shader.let("u32", word.rank(key))
                before = shader.let("bool", f"{a} < {b} || ({a} == {b} && {before})")
            shader.line(f"{place} += select(0u, 1u, {before});")
        write(row, place, mine[0], value(row, i) if value else i)

    return for_each(shader, sorting.rows * sorting.size, put)


def _variables(shader: Shader, count: int) -> list[str]:
    return [shader.var("u32", LAST) for _ in range(count)]


def _sort_short(sorting: Sorting, facts: Facts) -> Dispatch:
    """Each row by a workgroup."""
    invocations = 64 if sorting.size <= 512 else 256
    tile = Tile(invocations, -(-sorting.size // invocations))
    shader = Shader(facts, invocations)
    first = shader.let("u32", times(shader.local, tile.each))
    keys, values = _variables(shader, tile.each), _variables(shader, tile.each if sorting.valued else 0)
    numbers = [shader.let("u32", f"{first} + {k}u") for k in range(tile.each)]
    value = sorting.value(shader) if sorting.value else None
    for number, variable in zip(numbers, values, strict=False):
        with shader.block(f"if ({number} < {sorting.size}u)"):
            shader.line(f"{variable} = {value(shader.group, number) if value else number};")
    least_first = sorting.words[::-1]
    readers = [word.key(shader) for word in least_first]
    with shader.loop(len(readers)) as turn:
        for k, key in enumerate(keys):
            for t, read in enumerate(readers):
                # Later words are those of the elements that are there by then; before, these are the row's own.
                which = values[k] if len(readers) > 1 else numbers[k]
                with shader.block(f"if ({numbers[k]} < {sorting.size}u && {turn} == {t}u)"):
                    shader.line(f"{key} = {read(shader.group, which)};")
        bits = shader.let("u32", f"array({', '.join(f'{word.bits}u' for word in least_first)})[{turn}]")
        sort_tile(shader, tile, keys, values, sorting.words[0].rank, "0u", bits)
    write = sorting.emit(shader)
    for k, (number, key) in enumerate(zip(numbers, keys, strict=True)):
        with shader.block(f"if ({number} < {sorting.size}u)"):
            write(shader.group, number, key, values[k] if sorting.valued else "0u")
    return shader.dispatch(sorting.rows)


class _Pass(NamedTuple):
    """A pass: by which bits of a word, from which buffers (None: the operands) to which, of keys and of values."""

    word: Word
    first: int
    bits: int
    fresh: bool
    source: int | None
    target: int | None

    @property
    def buckets(self) -> int:
        """How many digits there are."""
        return 1 << self.bits


class _Long:
    """The shaders for long rows."""

    def __init__(self, sorting: Sorting, facts: Facts, spaces: Spaces) -> None:
        self.sorting, self.facts = sorting, facts
        self.tiles = -(-sorting.size // _TILE.size)
        words = sorting.rows * sorting.size
        passes = self._passes()
        used = max(1, min(2, len(passes) - 1))
        self.keys = [spaces.words(words) for _ in range(used)]
        self.values = [spaces.words(words) for _ in range(used)] if sorting.valued else []
        #: Workspaces for counts and for their totals.
        self.counted = (
            None if self.tiles <= _FEW_TILES else (spaces.words(sorting.rows * 256 * self.tiles), spaces.words(sorting.rows * 256))
        )
        self.passes = passes

    def _passes(self) -> list[_Pass]:
        found: list[_Pass] = []
        for word in reversed(self.sorting.words):
            for first in range(0, word.bits, _DIGIT):
                # Digits of half a pass are not worth while.
                bits = min(_DIGIT, -(-(word.bits - first) // 4) * 4)
                source = found[-1].target if found else None
                found.append(_Pass(word, first, bits, first == 0, source, 0 if source is None else 1 - source))
        found[-1] = found[-1]._replace(target=None)
        return found

    def dispatches(self) -> list[Dispatch]:
        """All shaders."""
        if self.counted is None:
            return [self._deal(step, None) for step in self.passes]
        made = [(self._count(step, self.counted[0]), self._sum(step, self.counted), self._deal(step, self.counted)) for step in self.passes]
        return [shader for shaders in made for shader in shaders]

    def _shader(self) -> tuple[Shader, str, str]:
        """A shader with a workgroup for every tile, the number of the row, and that of its first element in the row."""
        shader = Shader(self.facts, _TILE.invocations)
        row = shader.let("u32", quotient(shader.group, self.tiles))
        return shader, row, shader.let("u32", times(remainder(shader.group, self.tiles), _TILE.size))

    def _reader(self, shader: Shader, step: _Pass, values_too: bool) -> Callable[[str, str], tuple[str, str]]:
        """``read(row, i)``: the key of an element and, if asked for, its value."""
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
        """The number of an element, or the last there is: what is read under no condition is on its way together."""
        return shader.let("u32", f"min({i}, {self.sorting.size - 1}u)")

    def _digit(self, step: _Pass, key: str) -> str:
        return f"({step.word.rank(key)} >> {step.first}u) & {step.buckets - 1}u"

    def _count(self, step: _Pass, number: int) -> Dispatch:
        """How often each digit is in each tile."""
        shader, row, first = self._shader()
        read = self._reader(shader, step, values_too=False)
        counts = shader.buffer(number, _UINT32, written=True)
        shader.workgroup("found", "atomic<u32>", step.buckets)
        mine = f"{shader.local} < {step.buckets}u"
        with shader.block(f"if ({mine})"):
            shader.line(f"atomicStore(&found[{shader.local}], 0u);")
        shader.line("workgroupBarrier();")
        numbers = [shader.let("u32", f"{first} + {k * _TILE.invocations}u + {shader.local}") for k in range(_TILE.each)]
        digits = [shader.let("u32", self._digit(step, read(row, self._within(shader, i))[0])) for i in numbers]
        for i, digit in zip(numbers, digits, strict=True):
            shader.line(f"if ({i} < {self.sorting.size}u) {{ atomicAdd(&found[{digit}], 1u); }}")
        shader.line("workgroupBarrier();")
        with shader.block(f"if ({mine})"):
            at = self._place(shader, step, row, shader.local)
            shader.line(f"{counts.name}[{at}] = atomicLoad(&found[{shader.local}]);")
        return shader.dispatch(self.sorting.rows * self.tiles)

    def _place(self, shader: Shader, step: _Pass, row: str, digit: str) -> str:
        """Where this tile's count of a digit is."""
        lists = plus(times(row, step.buckets), digit)
        return plus(times(lists, self.tiles), remainder(shader.group, self.tiles))

    def _sum(self, step: _Pass, counted: tuple[int, int]) -> Dispatch:
        """Make of the counts of each digit the sums of those in the tiles before; and their totals."""
        shader = Shader(self.facts, _TILE.invocations)
        counts, totals = (shader.buffer(number, _UINT32, written=True) for number in counted)
        before = shader.var("u32", "0u")
        with shader.loop(self.tiles, 0, _TILE.invocations) as start:
            i = shader.let("u32", f"{start} + {shader.local}")
            at = shader.let("u32", f"{shader.group} * {self.tiles}u + min({i}, {self.tiles - 1}u)")
            count = shader.let("u32", f"select(0u, {counts.name}[{at}], {i} < {self.tiles}u)")
            sums = exclusive(shader, count)
            with shader.block(f"if ({i} < {self.tiles}u)"):
                shader.line(f"{counts.name}[{at}] = {before} + {sums}.x;")
            shader.line(f"{before} += {sums}.y;")
        with shader.block(f"if ({shader.local} == 0u)"):
            shader.line(f"{totals.name}[{shader.group}] = {before};")
        return shader.dispatch(self.sorting.rows * step.buckets)

    def _deal(self, step: _Pass, counted: tuple[int, int] | None) -> Dispatch:
        """Every element to its place. If nothing is counted yet, everything is counted here."""
        shader, row, first = self._shader()
        size, valued = self.sorting.size, self.sorting.valued
        read = self._reader(shader, step, values_too=valued)
        keys, values = _variables(shader, _TILE.each), _variables(shader, _TILE.each if valued else 0)
        numbers = [shader.let("u32", f"{first} + {shader.local} * {_TILE.each}u + {k}u") for k in range(_TILE.each)]
        for k, (key, value) in enumerate([read(row, self._within(shader, i)) for i in numbers]):
            there = f"{numbers[k]} < {size}u"
            shader.line(f"{keys[k]} = select({LAST}, {key}, {there});")
            if valued:
                shader.line(f"{values[k]} = {value};")
        if counted is None:
            self._count_all(shader, step, row, first, read)
        else:
            self._find_bases(shader, step, row, *[shader.buffer(number, _UINT32) for number in counted])
        sort_tile(shader, _TILE, keys, values, step.word.rank, f"{step.first}u", f"{step.first + step.bits}u")
        spread(shader, _TILE, values)
        before = spread(shader, _TILE, keys)
        self._find_places(shader, step, keys, before)
        write = self._writer(shader, step)
        for k, key in enumerate(keys):
            at = shader.let("u32", f"{shader.local} + {k * _TILE.invocations}u")
            with shader.block(f"if ({first} + {at} < {size}u)"):
                place = shader.let("u32", f"bases[{self._digit(step, key)}] + {at}")
                write(row, place, key, values[k] if valued else "0u")
        return shader.dispatch(self.sorting.rows * self.tiles)

    def _find_bases(self, shader: Shader, step: _Pass, row: str, counts: Array, totals: Array) -> None:
        """Where in the row the tile's elements of each digit go: `bases`."""
        shader.workgroup("bases", "u32", step.buckets)
        digit = shader.let("u32", f"min({shader.local}, {step.buckets - 1}u)")
        total = totals.load(plus(times(row, step.buckets), digit)).text
        sums = exclusive(shader, f"select(0u, {total}, {shader.local} < {step.buckets}u)")
        with shader.block(f"if ({shader.local} < {step.buckets}u)"):
            earlier = counts.load(self._place(shader, step, row, shader.local)).text
            shader.line(f"bases[{shader.local}] = {sums}.x + {earlier};")

    def _count_all(self, shader: Shader, step: _Pass, row: str, first: str, read: Callable[[str, str], tuple[str, str]]) -> None:
        """The same, from the keys of the whole row."""
        mine = f"{shader.local} < {step.buckets}u"
        for name in ("all", "earlier"):
            shader.workgroup(name, "atomic<u32>", step.buckets)
            shader.line(f"if ({mine}) {{ atomicStore(&{name}[{shader.local}], 0u); }}")
        shader.workgroup("bases", "u32", step.buckets)
        shader.line("workgroupBarrier();")
        with shader.loop(self.sorting.size, shader.local, _TILE.size) as start:
            numbers = [shader.let("u32", f"{start} + {k * _TILE.invocations}u") for k in range(_TILE.each)]
            digits = [shader.let("u32", self._digit(step, read(row, self._within(shader, i))[0])) for i in numbers]
            for i, digit in zip(numbers, digits, strict=True):
                shader.line(f"if ({i} < {self.sorting.size}u) {{ atomicAdd(&all[{digit}], 1u); }}")
                shader.line(f"if ({i} < {first}) {{ atomicAdd(&earlier[{digit}], 1u); }}")
        shader.line("workgroupBarrier();")
        total = shader.var("u32", "0u")
        shader.line(f"if ({mine}) {{ {total} = atomicLoad(&all[{shader.local}]); }}")
        sums = exclusive(shader, total)
        with shader.block(f"if ({mine})"):
            shader.line(f"bases[{shader.local}] = {sums}.x + atomicLoad(&earlier[{shader.local}]);")

    def _find_places(self, shader: Shader, step: _Pass, keys: list[str], before: list[str]) -> None:
        """Make of `bases` where the tile's elements go: the first of each digit takes its place in the tile off."""
        for k, (key, earlier) in enumerate(zip(keys, before, strict=True)):
            digit = shader.let("u32", self._digit(step, key))
            first = f" || {shader.local} == 0u" if k == 0 else ""
            with shader.block(f"if ({digit} != ({self._digit(step, earlier)}){first})"):
                shader.line(f"bases[{digit}] -= {shader.local} + {k * _TILE.invocations}u;")
        shader.line("workgroupBarrier();")

    def _writer(self, shader: Shader, step: _Pass) -> Callable[[str, str, str, str], None]:
        if step.target is None:
            return self.sorting.emit(shader)
        keys = shader.buffer(self.keys[step.target], _UINT32, written=True)
        values = shader.buffer(self.values[step.target], _UINT32, written=True) if self.sorting.valued else None

        def write(row: str, place: str, key: str, value: str) -> None:
            at = shader.let("u32", plus(times(row, self.sorting.size), place))
            shader.line(f"{keys.name}[{at}] = {key};")
            if values:
                shader.line(f"{values.name}[{at}] = {value};")

        return write

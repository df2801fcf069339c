"""The greatest elements of rows, and their indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.small_sort import LAST, SHORT, Emit, KeyWord, Tile, exclusive, key_of, key_words, sort_tile, storage
from volta_fn.targets.wgsl.library.sort import SortRows, by_keys, ordered, rows_of, sort_rows
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader, Workspaces
from volta_fn.targets.wgsl.shader import plus, quotient, remainder, times

# The first few of long rows, in one pass over the elements.
#
# A workgroup reads a chunk of a row and keeps, in its own memory, the elements that come before a threshold: the last of the wanted
# elements so far. When its memory is full, it sorts the elements in it, and drops all but the wanted ones. Elements are kept in the order
# of the chunk, so that equal ones stay in their order. The first threshold comes from a sample of the beginning, so that few elements of a
# random order pass it.

_TILE = Tile(256, 4)

#: Fours that an invocation reads at a time: two, since the counts of both share a word.
_FOURS = 2

#: Elements that a workgroup reads at a time.
CHUNK = 4 * _FOURS * _TILE.invocations

#: The first threshold comes from this fraction of a chunk: then about nine times the wanted elements pass it.
_SAMPLED_SHARE = 8

#: The most that can be wanted.
MOST = _TILE.size // 4

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
        self.sieving, self.shader = sieving, Shader(capabilities, _TILE.invocations)
        shader = self.shader
        self.size = shader.let("u32", sieving.size(shader.group))
        self.read, self.number = sieving.keys(shader), sieving.numbers(shader)
        #: The number of elements kept; the threshold that an element must come before; whether it may also equal the threshold.
        self.count, self.threshold, self.accepts_ties = shader.var("u32", "0u"), shader.var("u32", LAST), shader.var("bool", "true")
        shader.workgroup("scratch", "u32", _TILE.room)

    def dispatch(self) -> Dispatch:
        shader, limit = self.shader, self.sieving.limit
        self._first_threshold()
        with shader.loop(self.size, 0, CHUNK) as start:
            keys, positions = self._chunk(start)
            rest = shader.var("u32", " | ".join(f"select(0u, {1 << k}u, {at} < {self.size})" for k, at in enumerate(positions)))
            with shader.block("loop"):
                total = self._keep(keys, positions, rest)
                with shader.block(f"if ({total} <= {_TILE.size}u && {start} + {CHUNK}u < {self.size})"):
                    shader.emit(f"{self.count} = {total};")
                    shader.emit("break;")
                self._forget(total)
                shader.emit(f"if ({total} <= {_TILE.size}u) {{ break; }}")
        write = self.sieving.emit(shader)
        with shader.block(f"if ({shader.local} < {limit}u)"):
            key, number = (shader.let("u32", f"scratch[{shader.local} + {n}u]") for n in (0, _TILE.size))
            write(shader.group, shader.local, key, number)
        return shader.dispatch(self.sieving.chunks)

    def _chunk(self, start: str) -> tuple[list[str], list[str]]:
        """Emit an invocation's keys of a stretch, and their numbers in the chunk."""
        shader = self.shader
        firsts = [shader.let("u32", f"{start} + {shader.local} * 4u + {k * 4 * _TILE.invocations}u") for k in range(_FOURS)]
        keys = [key for first in firsts for key in self.read(shader.group, first)]
        return keys, [f"({first} + {c}u)" for first in firsts for c in range(4)]

    def _first_threshold(self) -> None:
        """Emit the first threshold, which as many as are wanted pass."""
        # Groups of invocations find the first keys in their shares of the chunk's beginning.
        shader, limit = self.shader, self.sieving.limit
        groups = max(64, 1 << (2 * limit - 1).bit_length())
        if groups > _TILE.invocations:
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
            for k in range(groups, _TILE.invocations, groups):
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
                with shader.block(f"if ({position} < {_TILE.size}u)"):
                    shader.emit(f"scratch[{position}] = {key};")
                    shader.emit(f"scratch[{position} + {_TILE.size}u] = {self.number(shader.group, at)};")
                    shader.emit(f"{rest} &= {~(1 << k) & 0xFF}u;")
        shader.workgroup("agreed", "u32")
        shader.emit(f"if ({shader.local} == 0u) {{ agreed = {self.count} + ({sums}.y & 0xffffu) + ({sums}.y >> 16u); }}")
        return shader.let("u32", "workgroupUniformLoad(&agreed)")

    def _forget(self, total: str) -> None:
        """Keep only the wanted elements of `total`, in order."""
        shader, limit = self.shader, self.sieving.limit
        positions = [shader.let("u32", plus(times(shader.local, _TILE.each), f"{k}u")) for k in range(_TILE.each)]
        keys = [shader.var("u32", f"select({LAST}, scratch[{at}], {at} < {total})") for at in positions]
        values = [shader.var("u32", f"scratch[{at} + {_TILE.size}u]") for at in positions]
        shader.emit("workgroupBarrier();")
        sort_tile(shader, _TILE, keys, values, str, "0u", "32u")
        for at, key, value in zip(positions, keys, values, strict=True):
            with shader.block(f"if ({at} < {limit}u)"):
                shader.emit(f"scratch[{at}] = {key};")
                shader.emit(f"scratch[{at} + {_TILE.size}u] = {value};")
        shader.emit("workgroupBarrier();")
        shader.emit(f"{self.count} = min({total}, {limit}u);")
        shader.emit(f"{self.accepts_ties} = {total} < {limit}u;")
        shader.emit(f"if (!{self.accepts_ties}) {{ {self.threshold} = scratch[{limit - 1}u]; }}")


# The greatest elements of rows, and their indices.
#
# Rows are sorted, the greatest first. Where only a few of long rows are wanted, these are sought in chunks of the rows first, and then in
# what was found in these, until one chunk is left.

_OPERAND, _VALUES, _INDICES, _SPACES = range(4)
_UINT32 = np.dtype(np.uint32)

#: Chunks have at least `_LEAST` elements if there are fewer than `_MANY` of them.
_LEAST, _MANY = 4096, 1024


def top_k(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive."""
    (operand,) = avals
    k = params["k"]
    if not k * operand.size:
        return Routine(())
    rows = rows_of(operand, params["dimension"])
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

"""The greatest elements of rows, and their indices.

Rows are sorted, the greatest first. Where only a few of long rows are wanted, these are sought in chunks of the rows first, and then in
what was found in these, until one chunk is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.index_arith import plus, quotient, remainder, times
from volta_fn.targets.wgsl.library.keys import KeyWord, key_of, key_words, storage
from volta_fn.targets.wgsl.library.radix import sort_rows
from volta_fn.targets.wgsl.library.small_sort import SHORT
from volta_fn.targets.wgsl.library.sort import SortRows, by_keys, ordered, rows_of
from volta_fn.targets.wgsl.library.top_k_threshold import MOST, Sieving, sieve
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Workspaces
from volta_fn.targets.wgsl.scalars import Shader

_OPERAND, _VALUES, _INDICES, _SPACES = range(4)
_UINT32 = np.dtype(np.uint32)

#: Chunks have at least so many elements if there are less than so many of them.
_LEAST, _MANY = 4096, 1024


def top_k(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive."""
    (operand,) = avals
    k = params["k"]
    if not k * operand.size:
        return Routine(())
    rows = rows_of(operand, params["dimension"])
    workspaces = Workspaces(_SPACES)
    words = key_words(operand.dtype)
    if rows.size > SHORT and k <= MOST and len(words) == 1:
        return Routine(tuple(_choose(rows, words[0], k, device, workspaces)), tuple(workspaces.sizes))
    sorting = by_keys(avals, rows, [(0, word) for word in words], _INDICES, falling=True, wanted=k)
    dispatches = sort_rows(sorting, device, workspaces)
    return Routine((*dispatches, ordered(operand, rows, k, _INDICES, _OPERAND, _VALUES, device)), tuple(workspaces.sizes))


class _Candidates(NamedTuple):
    """Some elements of each row: where keys and numbers are (None: the row)."""

    number: int
    keys: int | None = None
    numbers: int | None = None


def _choose(rows: SortRows, which: KeyWord, k: int, device: TargetCapabilities, workspaces: Workspaces) -> list[Dispatch]:
    candidates, dispatches = _Candidates(rows.size), []
    while True:
        length = _length(rows.number, candidates.number)
        chunks = -(-candidates.number // length)
        kept = _Candidates(chunks * k, *(workspaces.words(rows.number * chunks * k) for _ in range(2))) if chunks > 1 else None
        dispatches.append(_Round(rows, which, k, candidates, length, kept).dispatch(device))
        if kept is None:
            return dispatches
        candidates = kept


def _length(rows: int, size: int) -> int:
    """Return the size of a chunk: there are many chunks, but each is worth while."""
    chunks = min(-(-size // _LEAST), -(-_MANY // rows))
    return -(-size // (4 * chunks)) * 4


class _Round(NamedTuple):
    """A round that finds the greatest of every chunk of `length` candidates.

    They are `kept` as candidates, or they are the results.
    """

    rows: SortRows
    which: KeyWord
    k: int
    given: _Candidates
    length: int
    kept: _Candidates | None

    def dispatch(self, device: TargetCapabilities) -> Dispatch:
        """Return the dispatch for all chunks of all rows.

        Beyond a row's last candidate is what comes last.
        """
        return sieve(Sieving(self.rows.number * self.chunks, self.size, self.k, self.keys, self.numbers, self.emit), device)

    @property
    def chunks(self) -> int:
        return -(-self.given.number // self.length)

    def size(self, chunk: str) -> str:
        return f"min({self.length}u, {self.given.number}u - {self.number(chunk, '0u')})"

    def row(self, chunk: str) -> str:
        return quotient(chunk, self.chunks)

    def number(self, chunk: str, i: str) -> str:
        """Return the number in its row of a chunk's i-th candidate."""
        return plus(times(remainder(chunk, self.chunks), self.length), i)

    def offset(self, chunk: str, i: str) -> str:
        """Return the offset of the i-th candidate of a chunk's row."""
        return self.rows.offset(self.row(chunk), i) if self.given.keys is None else plus(times(self.row(chunk), self.given.number), i)

    def keys(self, shader: Shader) -> Callable[[str, str], list[str]]:
        """Return the function that loads the keys of a chunk's four candidates from i on."""
        count, known = self.given.number, self.given.keys is not None
        fours = count % 4 == 0 and (known or self.rows.columns == 1)
        stored = _UINT32 if known else storage(self.which.dtype)
        array = shader.buffer(
            _OPERAND if self.given.keys is None else self.given.keys, stored, size=self.rows.number * count if fours else 0
        )

        def read(chunk: str, i: str) -> list[str]:
            first = shader.let("u32", self.number(chunk, i))
            if fours:
                within = f"min({first} / 4u, {count // 4 - 1}u)"
                four = array.load4(shader.let("u32", plus(times(self.row(chunk), count // 4), within)))
            else:
                positions = [shader.let("u32", f"min({first} + {c}u, {count - 1}u)") for c in range(4)]
                four = [array.load(self.offset(chunk, at)) for at in positions]
            return [shader.let("u32", x.text if known else self.falling(shader, x.text)) for x in four]

        return read

    def falling(self, shader: Shader, bits: str) -> str:
        """Emit the key of an element, which is the less the greater that is."""
        return f"({key_of(shader, self.which.dtype, bits, faithful=False)} ^ {(1 << self.which.bits) - 1}u)"

    def numbers(self, shader: Shader) -> Callable[[str, str], str]:
        """Return the function that loads the index in the row of a chunk's i-th candidate."""
        if self.given.numbers is None:
            return self.number
        array = shader.buffer(self.given.numbers, _UINT32)
        return lambda chunk, i: array.load(self.offset(chunk, self.number(chunk, i))).text

    def emit(self, shader: Shader) -> Callable[[str, str, str, str], None]:
        """Return the function that stores a chunk's i-th greatest: key and index."""
        if self.kept is None:
            return _results(shader, self.rows, self.which, self.k)
        targets = [shader.buffer(n, _UINT32, written=True) for n in (self.kept.keys, self.kept.numbers) if n is not None]

        def write(chunk: str, i: str, *found: str) -> None:
            at = shader.let("u32", plus(times(chunk, self.k), i))
            for target, value in zip(targets, found, strict=True):
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

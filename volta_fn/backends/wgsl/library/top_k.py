"""The greatest of rows, with where they were.

Rows are sorted, the greatest first. Where only a few of long rows are wanted, these are sought in pieces of the rows first, and among what
was found in these then, until one piece is left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.library.keys import KeyWord, key_of, key_words, storage
from volta_fn.backends.wgsl.library.radix import sort_rows
from volta_fn.backends.wgsl.library.short import SHORT
from volta_fn.backends.wgsl.library.sieve import MOST, Sieving, sieve
from volta_fn.backends.wgsl.library.sort import Rows, by_keys, ordered, rows_of
from volta_fn.backends.wgsl.library.spaces import Spaces
from volta_fn.backends.wgsl.library.whole import plus, quotient, remainder, times
from volta_fn.backends.wgsl.routine import Dispatch, Routine
from volta_fn.backends.wgsl.scalars import Shader
from volta_fn.core.aval import ShapedArray

_OPERAND, _VALUES, _INDICES, _SPACES = range(4)
_UINT32 = np.dtype(np.uint32)

#: Pieces have at least so many elements if there are less than so many of them.
_LEAST, _MANY = 4096, 1024


def top_k(avals: tuple[ShapedArray, ...], params: dict[str, Any], facts: Facts) -> Routine | None:
    """The routine of the primitive."""
    (operand,) = avals
    k = params["k"]
    if not k * operand.size:
        return Routine(())
    rows = rows_of(operand, params["dimension"])
    spaces = Spaces(_SPACES)
    words = key_words(operand.dtype)
    if rows.size > SHORT and k <= MOST and len(words) == 1:
        return Routine(tuple(_choose(rows, words[0], k, facts, spaces)), spaces.sizes)
    sorting = by_keys(avals, rows, [(0, word) for word in words], _INDICES, falling=True, wanted=k)
    dispatches = sort_rows(sorting, facts, spaces)
    return Routine((*dispatches, ordered(operand, rows, k, _INDICES, _OPERAND, _VALUES, facts)), spaces.sizes)


class _Candidates(NamedTuple):
    """Some of the elements of each row, in order: where their keys and numbers are (None: they are the row)."""

    number: int
    keys: int | None = None
    numbers: int | None = None


def _choose(rows: Rows, which: KeyWord, k: int, facts: Facts, spaces: Spaces) -> list[Dispatch]:
    candidates, dispatches = _Candidates(rows.size), []
    while True:
        length = _length(rows.number, candidates.number)
        pieces = -(-candidates.number // length)
        kept = _Candidates(pieces * k, *(spaces.words(rows.number * pieces * k) for _ in range(2))) if pieces > 1 else None
        dispatches.append(_round(rows, which, k, candidates, length, kept, facts))
        if kept is None:
            return dispatches
        candidates = kept


def _length(rows: int, size: int) -> int:
    """Elements of a piece, so that there are many pieces to work on, but each is worth while."""
    pieces = min(-(-size // _LEAST), -(-_MANY // rows))
    return -(-size // (4 * pieces)) * 4


def _round(rows: Rows, which: KeyWord, k: int, given: _Candidates, length: int, kept: _Candidates | None, facts: Facts) -> Dispatch:
    """The greatest of every piece, to candidates or to the results. Behind a row's last candidate stands what comes last."""
    pieces = -(-given.number // length)

    def line(piece: str) -> str:
        return quotient(piece, pieces)

    def number(piece: str, i: str) -> str:
        return plus(times(remainder(piece, pieces), length), i)

    def keys(shader: Shader) -> Any:
        stored = storage(which.dtype) if given.keys is None else _UINT32
        fours = given.number % 4 == 0 and (given.keys is not None or rows.columns == 1)
        array = shader.buffer(_OPERAND if given.keys is None else given.keys, stored, size=rows.number * given.number if fours else 0)

        def key(bits: str) -> str:
            return bits if given.keys is not None else f"({key_of(shader, which.dtype, bits, faithful=False)} ^ {(1 << which.bits) - 1}u)"

        def read(piece: str, i: str) -> list[str]:
            first = shader.let("u32", number(piece, i))
            if fours:
                within = f"min({first} / 4u, {given.number // 4 - 1}u)"
                four = array.load4(shader.let("u32", plus(times(line(piece), given.number // 4), within)))
            else:
                places = [shader.let("u32", f"min({first} + {c}u, {given.number - 1}u)") for c in range(4)]
                four = [array.load(place(piece, at)) for at in places]
            return [shader.let("u32", key(x.text)) for x in four]

        return read

    def place(piece: str, i: str) -> str:
        return rows.place(line(piece), i) if given.keys is None else plus(times(line(piece), given.number), i)

    def numbers(shader: Shader) -> Any:
        if given.numbers is None:
            return number
        array = shader.buffer(given.numbers, _UINT32)
        return lambda piece, i: array.load(place(piece, number(piece, i))).text

    def emit(shader: Shader) -> Any:
        if kept is None:
            return _results(shader, rows, which, k)
        targets = [shader.buffer(n, _UINT32, written=True) for n in (kept.keys, kept.numbers) if n is not None]

        def write(piece: str, i: str, *found: str) -> None:
            at = shader.let("u32", plus(times(piece, k), i))
            for target, value in zip(targets, found, strict=True):
                shader.line(f"{target.name}[{at}] = {value};")

        return write

    def size(piece: str) -> str:
        return f"min({length}u, {given.number}u - {number(piece, '0u')})"

    return sieve(Sieving(rows.number * pieces, size, k, keys, numbers, emit), facts)


def _results(shader: Shader, rows: Rows, which: KeyWord, k: int) -> Any:
    """Writes where the greatest are, and the greatest."""
    stored = storage(which.dtype)
    source, values = shader.buffer(_OPERAND, stored), shader.buffer(_VALUES, stored, written=True)
    indices = shader.buffer(_INDICES, _UINT32, written=True)

    def write(row: str, i: str, _: str, number: str) -> None:
        at = shader.let("u32", rows.place(row, i, k))
        shader.line(f"{indices.name}[{at}] = {number};")
        values.store(at, source.load(rows.place(row, number)))

    return write

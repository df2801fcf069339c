"""The greatest of rows, with where they were.

Rows are sorted, the greatest first. Where only a few of long rows are wanted, pieces that a workgroup can hold are sorted first, and what
is wanted of each of them goes on, until one piece is left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.library.keys import KeyWord, key_words, read_key, storage
from volta_fn.backends.wgsl.library.radix import LAST, SHORT, Key, Sorting, Word, sort_rows
from volta_fn.backends.wgsl.library.sort import Rows, by_keys, ordered, rows_of
from volta_fn.backends.wgsl.library.spaces import Spaces
from volta_fn.backends.wgsl.library.whole import plus, quotient, remainder, times
from volta_fn.backends.wgsl.routine import Dispatch, Routine
from volta_fn.backends.wgsl.scalars import Shader
from volta_fn.core.aval import ShapedArray

_OPERAND, _VALUES, _INDICES, _SPACES = range(4)
_UINT32 = np.dtype(np.uint32)

#: How many are chosen from pieces, at most.
_FEW = SHORT // 8


def top_k(avals: tuple[ShapedArray, ...], params: dict[str, Any], facts: Facts) -> Routine | None:
    """The routine of the primitive."""
    (operand,) = avals
    k = params["k"]
    if not k * operand.size:
        return Routine(())
    rows = rows_of(operand, params["dimension"])
    spaces = Spaces(_SPACES)
    words = key_words(operand.dtype)
    if rows.size > SHORT and k <= _FEW and len(words) == 1:
        dispatches = _choose(rows, words[0], k, facts, spaces)
    else:
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
    while candidates.number > SHORT:
        pieces = -(-candidates.number // SHORT)
        kept = _Candidates(pieces * k, *(spaces.words(rows.number * pieces * k) for _ in range(2)))
        dispatches += _round(rows, which, k, candidates, kept, facts, spaces)
        candidates = kept
    return dispatches + _round(rows, which, k, candidates, None, facts, spaces)


def _round(
    rows: Rows, which: KeyWord, k: int, candidates: _Candidates, kept: _Candidates | None, facts: Facts, spaces: Spaces
) -> list[Dispatch]:
    """The greatest of every piece, to candidates or to the result. Behind a row's last candidate stands what comes last."""
    pieces = -(-candidates.number // SHORT)

    def reader(what: int | None) -> Key:
        def bind(shader: Shader) -> Any:
            array = shader.buffer(_OPERAND if what is None else what, storage(which.dtype) if what is None else _UINT32)

            def read(piece: str, number: str) -> str:
                line = shader.let("u32", quotient(piece, pieces))
                i = shader.let("u32", plus(times(remainder(piece, pieces), SHORT), number))
                found = shader.var("u32", LAST)
                with shader.block(f"if ({i} < {candidates.number}u)"):
                    if what is None:
                        at = shader.let("u32", rows.place(line, i))
                        shader.line(f"{found} = {read_key(shader, array, which, at, falling=True)};")
                    else:
                        shader.line(f"{found} = {array.load(plus(times(line, candidates.number), i)).text};")
                return found

            return read

        return bind

    def number_in_row(_: Shader) -> Any:
        return lambda piece, number: plus(times(remainder(piece, pieces), SHORT), number)

    def emit(shader: Shader) -> Any:
        numbers = (_INDICES,) if kept is None else (kept.keys, kept.numbers)
        targets = [shader.buffer(n, _UINT32, written=True) for n in numbers if n is not None]

        def write(piece: str, place: str, key: str, number: str) -> None:
            with shader.block(f"if ({place} < {k}u)"):
                if kept is None:
                    shader.line(f"{targets[0].name}[{rows.place(piece, place, k)}] = {number};")
                else:
                    at = shader.let("u32", plus(times(piece, k), place))
                    shader.line(f"{targets[0].name}[{at}] = {key};")
                    shader.line(f"{targets[1].name}[{at}] = {number};")

        return write

    value = number_in_row if candidates.numbers is None else reader(candidates.numbers)
    size = min(SHORT, candidates.number)
    words = (Word(reader(candidates.keys), which.bits),)
    return sort_rows(Sorting(rows.number * pieces, size, words, emit, value), facts, spaces)

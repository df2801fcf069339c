"""What is to be sorted: rows of elements, by keys of 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from volta_fn.targets.wgsl.scalars import Shader

#: The key of what is behind a row's end: it comes last, as it stands behind all others at first.
LAST = "0xffffffffu"

#: ``key(shader)`` binds buffers and gives ``read(row, value)``, the key of the element with that value.
Key = Callable[[Shader], Callable[[str, str], str]]

#: ``write(row, place, key, value)`` writes a sorted element where it belongs.
Write = Callable[[str, str, str, str], None]

#: ``emit(shader)`` binds buffers and gives `Write`.
Emit = Callable[[Shader], Write]


class SortWord(NamedTuple):
    """One part of what is sorted by.

    Attributes:
        key: how keys are read.
        bits: how many of their bits count.
        equals: a key that is ranked as the next greater one is, though they differ (None: there is none).
    """

    key: Key
    bits: int
    equals: int | None = None

    def rank(self, key: str) -> str:
        """What a key is sorted by."""
        return key if self.equals is None else f"({key} + select(0u, 1u, {key} == {self.equals}u))"


class Sorting(NamedTuple):
    """What is to be sorted.

    Attributes:
        rows, size: how many rows there are, of how many elements each.
        words: what is sorted by, the most important first. Only a single word has keys that are equals though they differ.
        emit: where the result goes.
        value: reads, as `Key` does, the value of an element by its number in the row; None: the value is that number.
        valued: whether there are values at all; if not, there is one word.
    """

    rows: int
    size: int
    words: tuple[SortWord, ...]
    emit: Emit
    value: Key | None = None
    valued: bool = True


def variables(shader: Shader, count: int) -> list[str]:
    """So many variables for keys, or for values."""
    return [shader.var("u32", LAST) for _ in range(count)]

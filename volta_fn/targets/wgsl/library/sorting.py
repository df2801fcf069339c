"""Sorting problems: rows of elements with keys of 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from volta_fn.targets.wgsl.scalars import Shader

#: The key of what is beyond a row's end: it comes last, since it is after all others at first.
LAST = "0xffffffffu"

#: ``key(shader)`` binds buffers and gives ``read(row, value)``, the key of the element with that value.
Key = Callable[[Shader], Callable[[str, str], str]]

#: ``write(row, position, key, value)`` stores a sorted element.
Write = Callable[[str, str, str, str], None]

#: ``emit(shader)`` binds buffers and gives `Write`.
Emit = Callable[[Shader], Write]


class SortWord(NamedTuple):
    """A word of the keys.

    Attributes:
        key: how keys are read.
        bits: how many of their bits count.
        equals: a key that is ranked as the next greater one is, though they differ (None: there is none).
    """

    key: Key
    bits: int
    equals: int | None = None

    def rank(self, key: str) -> str:
        """Return the rank that a key is sorted by."""
        return key if self.equals is None else f"({key} + select(0u, 1u, {key} == {self.equals}u))"


class Sorting(NamedTuple):
    """A sorting problem.

    Attributes:
        rows, size: the number of rows, and their elements.
        words: the words of the keys, the most significant first. Only a single word has keys that are equal though they differ.
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
    """Declare so many variables for keys, or for values."""
    return [shader.var("u32", LAST) for _ in range(count)]

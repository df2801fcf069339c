"""Text as numbers: vocabularies of characters, and windows of a text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from volta_fn.core.array import Array
from volta_fn.data.dataset import Dataset, Indices, position, positions
from volta_fn.errors import ArgumentError, DataError, OutOfBoundsError


class Vocabulary:
    """Numbers for characters: their indices in `symbols`.

    >>> from volta_fn import data
    >>> letters = data.Vocabulary("abc")
    >>> letters.encode("cab")
    array([2, 0, 1], dtype=int32)
    >>> letters.decode([0, 1, 1, 0])
    'abba'

    Raises `ArgumentError` for symbols that repeat or are not single characters.
    """

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = tuple(symbols)
        if not self.symbols or any(len(symbol) != 1 for symbol in self.symbols) or len(set(self.symbols)) < len(self.symbols):
            raise ArgumentError(f"Vocabulary: symbols are different single characters, at least one, got {self.symbols!r:.200}")
        self._points = _code_points("".join(self.symbols))
        self._order = np.argsort(self._points)

    @classmethod
    def of(cls, text: str) -> Vocabulary:
        """Return the vocabulary of a text's characters, sorted.

        >>> from volta_fn import data
        >>> data.Vocabulary.of("hello").symbols
        ('e', 'h', 'l', 'o')
        """
        return cls(sorted(set(text)))

    def __len__(self) -> int:
        return len(self.symbols)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.symbols == other.symbols

    def __hash__(self) -> int:
        return hash(self.symbols)

    def __repr__(self) -> str:
        return f"Vocabulary({''.join(self.symbols)!r})"

    def encode(self, text: str) -> np.ndarray:
        """Return a text's numbers as int32; raise `DataError` for unknown characters."""
        points = _code_points(text)
        found = np.searchsorted(self._points, points, sorter=self._order)
        numbers = self._order[np.minimum(found, len(self) - 1)]
        unknown = np.flatnonzero(self._points[numbers] != points)
        if unknown.size:
            raise DataError(
                f"the character {text[unknown[0]]!r} at position {unknown[0]:,} is not in the vocabulary of {len(self)} symbols"
            )
        return numbers.astype(np.int32)

    def decode(self, numbers: Any) -> str:
        """Return the text of some numbers, a sequence or an array of integers.

        Raises `ArgumentTypeError` for anything but integers, `OutOfBoundsError` for a number without symbol.
        """
        flat = np.ravel(np.asarray(numbers))
        if flat.size and flat.min() < 0:
            raise OutOfBoundsError(f"a vocabulary's numbers are 0 … {len(self) - 1}, got {flat.min()}")
        return "".join(self.symbols[i] for i in positions(flat, len(self)))


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


class CharDataset(Dataset[tuple[Array, Array]]):
    """Windows of a text for learning to predict the next character.

    Example i is (inputs, targets), two int32 arrays of `length`.

    The targets are the inputs shifted by one character. Windows start at every `stride`-th character, so the default ones overlap
    and ``stride=length`` ones touch. `text` is a string, or an array of integers that are numbers already; `vocabulary` is by default
    that of the text. Raises `DataError` if the text is shorter than one window and its next character.

    >>> from volta_fn import data
    >>> windows = data.CharDataset("abcab", 3)
    >>> windows[1]
    (array([1, 2, 0], dtype=int32), array([2, 0, 1], dtype=int32))
    >>> len(windows), windows.vocabulary
    (2, Vocabulary('abc'))
    """

    def __init__(self, text: str | np.ndarray, length: int, *, vocabulary: Vocabulary | None = None, stride: int = 1) -> None:
        if length < 1 or stride < 1:
            raise ArgumentError(f"CharDataset: length and stride are at least 1, got {length} and {stride}")
        self.vocabulary = Vocabulary.of(text) if vocabulary is None and isinstance(text, str) and text else vocabulary
        self.numbers = _encoded(text, self.vocabulary)
        if len(self.numbers) <= length:
            raise DataError(f"CharDataset: a window of {length} characters and the next one need {length + 1}, got {len(self.numbers)}")
        self._windows = np.lib.stride_tricks.sliding_window_view(self.numbers, length + 1)[::stride]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int, /) -> tuple[np.ndarray, np.ndarray]:
        window = self._windows[position(index, len(self))]
        return window[:-1], window[1:]

    def gather(self, indices: Indices) -> tuple[np.ndarray, np.ndarray]:
        """Return the batch of the windows at these indices."""
        windows = self._windows[positions(indices, len(self))]
        return windows[:, :-1], windows[:, 1:]


def _encoded(text: str | np.ndarray, vocabulary: Vocabulary | None) -> np.ndarray:
    if isinstance(text, str):
        return vocabulary.encode(text) if vocabulary else np.zeros(0, np.int32)
    numbers = np.asarray(text)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise ArgumentError(f"CharDataset: a text is a string or a row of integers, got {numbers.dtype} of shape {numbers.shape}")
    return numbers.astype(np.int32)

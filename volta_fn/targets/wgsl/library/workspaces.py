"""The workspaces of a routine in the making."""

from __future__ import annotations


class Spaces:
    """Numbers of workspaces, which follow those of operands and results."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._sizes: list[int] = []

    def words(self, count: int) -> int:
        """A new workspace for so many words of 32 bits."""
        self._sizes.append(4 * count)
        return self._first + len(self._sizes) - 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of all."""
        return tuple(self._sizes)

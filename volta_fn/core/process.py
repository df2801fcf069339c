"""The rank of the process among those that run a program together.

One process alone has rank 0 of 1. `core.distribution` sets both when a program on several processes begins and ends.
"""

from __future__ import annotations

_rank, _size = 0, 1


def rank() -> int:
    """Return the rank of this process."""
    return _rank


def size() -> int:
    """Return the number of processes."""
    return _size


def set_rank(rank: int, size: int) -> None:
    """Set the rank of this process and the number of processes."""
    global _rank, _size
    _rank, _size = rank, size

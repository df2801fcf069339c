"""Blocks of memory in which programs keep their values; one is kept from call to call, for all programs of the process.

Memory that the operating system has just given is several times slower to write to than memory that was in use before.
"""

from __future__ import annotations

import numpy as np

_ALIGNMENT = 64

#: At most one block that nobody uses; a list, whose `pop` and `append` threads cannot interrupt.
_spare: list[np.ndarray] = []


def _pop() -> np.ndarray | None:
    try:
        return _spare.pop()
    except IndexError:
        return None


def take(size: int) -> np.ndarray:
    """A block of at least so many bytes, whose elements may be anything."""
    block = _pop()
    if block is None or block.size < size:
        block = None  # let go of before more is asked for
        block = np.empty(size + _ALIGNMENT, np.uint8)
        block = block[-block.ctypes.data % _ALIGNMENT :]
    return block


def give(block: np.ndarray) -> None:
    """Give back a block that no array of importance shares: the next call may get it."""
    other = _pop()
    _spare.append(block if other is None or other.size < block.size else other)


def free() -> None:
    """Let go of the block that nobody uses."""
    _spare.clear()

"""The table of slots by which the executor finds a program's values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from volta_fn.compiler.buffers.buffer_assignment import Slots
from volta_fn.compiler.buffers.memory_layout import arrange


class Layout(NamedTuple):
    """The table of slots: those of the caller, then of the arena, of constants, and others."""

    callers: int
    #: Where in the arena its slots are, and how many bytes it has.
    offsets: np.ndarray
    arena: int
    constants: tuple[np.ndarray, ...]
    #: How many slots there are.
    slots: int


def layout_of(slots: Slots) -> Layout:
    """Number the slots, and find places for them."""
    count = len(slots.ordered())
    offsets, size = arrange(slots.lifetimes())
    return Layout(len(slots.callers), np.array(offsets, np.int64), size, slots.arrays(), max(count, 1))

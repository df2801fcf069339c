"""Blocks of memory for programs' values and for kernels, reused from call to call.

Memory that the operating system has just given is several times slower to write to than memory that was in use before.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import prod
from types import TracebackType
from typing import Self

import numpy as np

_ALIGNMENT = 64
_SPARES = 3  # a program, a kernel within it, and a smaller one that it calls

#: Spare blocks, from the smallest to the largest.
_spare: list[np.ndarray] = []
_lock = threading.Lock()


def take(size: int) -> np.ndarray:
    """Return the smallest spare block of at least `size` bytes, or a new one."""
    with _lock:
        fits = next((i for i, block in enumerate(_spare) if block.size >= size), None)
        if fits is not None:
            return _spare.pop(fits)
        if _spare:
            _spare.pop()  # the largest is let go of before more is asked for
    return _new(size)


def _new(size: int) -> np.ndarray:
    block = np.empty(size + _ALIGNMENT, np.uint8)
    return block[-block.ctypes.data % _ALIGNMENT :]


def give(block: np.ndarray) -> None:
    """Give back a block that no live array shares: the next call may get it."""
    with _lock:
        _spare.append(block)
        _spare.sort(key=len)
        if len(_spare) > _SPARES:
            del _spare[0]


def free() -> None:
    """Free the spare blocks."""
    with _lock:
        _spare.clear()


class Scratch:
    """Arrays for a kernel while it runs: ``with Scratch() as scratch``.

    They lie one after another in the largest spare block. What does not fit is newly allocated, and the next `Scratch` finds a block that
    is large enough.
    """

    def __enter__(self) -> Self:
        with _lock:
            self._block = _spare.pop() if _spare else None
        self._used = 0
        return self

    def array(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Return an uninitialised array, which must not outlive the kernel."""
        start = self._used
        self._used += -(-prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        if self._block is None or self._used > self._block.size:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, self._block, start)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        enough = self._block is not None and self._used <= self._block.size
        block = self._block if enough else _new(self._used)
        assert block is not None
        give(block)

"""Checks of indices: at once, or in a running program by VOLTA_CHECK_INDICES=1.

A compiled program cannot raise by itself: it moves an index out of range inside, drops the update, or gives NaN. With the variable set
while a function is traced, its program calls back to Python with each index, which costs time, and raises.
"""

from __future__ import annotations

import os

import numpy as np

from volta_fn.core.array import Array
from volta_fn.core.trace import bind, is_concrete
from volta_fn.errors import OutOfBoundsError
from volta_fn.lazy_imports import deferred
from volta_fn.settings import current as settings
from volta_fn.source import user_location

#: Loaded when a check is traced: it depends on indexing.
_CALLBACKS = deferred("volta_fn.primitives.callbacks")


def checks_indices() -> bool:
    """Return True if programs that are traced now check their indices."""
    return settings.check_indices or os.environ.get("VOLTA_CHECK_INDICES", "0") != "0"


class _Check:
    """Raises for numbers outside a range, as from the line where it was made."""

    def __init__(self, low: int, high: int, message: str, ignored: int | None) -> None:
        self.low, self.high, self.message, self.ignored = low, high, message, ignored
        self.location = user_location()

    def __call__(self, numbers: np.ndarray) -> None:
        outside = (numbers < self.low) | (numbers >= self.high)
        if self.ignored is not None:
            outside &= numbers != self.ignored
        if outside.any():
            error = OutOfBoundsError(self.message.format(np.asarray(numbers)[outside].flat[0]))
            error.location = self.location
            raise error


def check_indices(indices: Array, low: int, high: int, message: str, ignored: int | None = None) -> None:
    """Raise `OutOfBoundsError` for an index outside ``low <= i < high``.

    Of traced indices the program makes sure if the user asks for checks. The message has ``{}`` for the index; `ignored` is a number that
    may occur.
    """
    check = _Check(low, high, message, ignored)
    if is_concrete(indices):
        check(np.asarray(indices))
    elif checks_indices():
        bind(_CALLBACKS.debug_callback_p, indices, callback=check)

"""Values by key, as long as something refers to them.

When a value ends, no function of Python runs, as one does with `weakref.WeakValueDictionary`: there a signal's handler might raise, which
Python would only print, so that the interrupt would be lost.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _End(weakref.ref[V]):
    """A reference to a value, which adds itself to a list when that has ended."""

    __slots__ = ("key",)

    key: Any


class Interned(Generic[K, V]):
    """Values by key; `get` needs no lock, but `add` does."""

    def __init__(self) -> None:
        self._values: dict[K, _End[V]] = {}
        self._gone: list[_End[V]] = []

    def __len__(self) -> int:
        """Return the number of values, and of those that have ended since the last `add`."""
        return len(self._values)

    def get(self, key: K) -> V | None:
        """Return the value of a key, if there is one."""
        found = self._values.get(key)
        return None if found is None else found()

    def add(self, key: K, value: V) -> None:
        """Set the value of a key, and forget the keys of values that have ended."""
        while self._gone:
            end = self._gone.pop()
            if self._values.get(end.key) is end:
                del self._values[end.key]
        end = _End(value, self._gone.append)
        end.key = key
        self._values[key] = end

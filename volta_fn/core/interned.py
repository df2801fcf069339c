"""Keep values as long as something else refers to an object.

These classes replace the collections of `weakref`, and `weakref.finalize`.

When the object ends, no function of Python runs, as one does with those: there a signal's handler might raise, which Python would only
print, so that the interrupt would be lost.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class End(weakref.ref[V]):
    """A weak reference with a key.

    Its callback adds it to a list when the object has ended.
    """

    __slots__ = ("key",)

    key: Any


class Interned(Generic[K, V]):
    """Values by key; `get` needs no lock, but `add` does."""

    def __init__(self) -> None:
        self._values: dict[K, End[V]] = {}
        self._gone: list[End[V]] = []

    def __len__(self) -> int:
        """Return the number of values, and of those that have ended since the last `add`."""
        return len(self._values)

    def get(self, key: K) -> V | None:
        """Return the value of a key, if there is one."""
        reference = self._values.get(key)
        return None if reference is None else reference()

    def add(self, key: K, value: V) -> None:
        """Set the value of a key, and forget the keys of values that have ended."""
        while self._gone:
            end = self._gone.pop()
            if self._values.get(end.key) is end:
                del self._values[end.key]
        end = End(value, self._gone.append)
        end.key = key
        self._values[key] = end


class Attached(Generic[K, V]):
    """Values of objects, which are compared by identity, as long as the objects live."""

    def __init__(self) -> None:
        self._values: dict[weakref.ref[K], V] = {}

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        """Return an iterator over the objects that there are now."""
        return iter([key for reference in self._values.copy() if (key := reference()) is not None])

    def get(self, key: K) -> V | None:
        """Return the value of an object, if it has one."""
        return self._values.get(weakref.ref(key))

    def attach(self, key: K, value: V) -> None:
        """Set the value of an object."""
        self._values[weakref.ref(key, self._values.pop)] = value

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()


class Left(Generic[V]):
    """What objects leave when they end, to be cleared away later."""

    def __init__(self) -> None:
        self._ends: dict[int, End[Any]] = {}
        self._gone: list[End[Any]] = []

    def leave(self, owner: object, value: V) -> None:
        """Keep a value, which `take` gives when its owner has ended."""
        end = End(owner, self._gone.append)
        end.key = value
        self._ends[id(end)] = end

    def take(self) -> Iterator[V]:
        """Give the values whose owners have ended, each once."""
        while self._gone:
            try:
                end = self._gone.pop()
            except IndexError:  # another thread was faster
                return
            del self._ends[id(end)]
            yield end.key

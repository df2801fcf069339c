"""Tables of weak references, whose callbacks run no Python code.

They replace the collections of `weakref`, and `weakref.finalize`. Those call Python functions when an object is collected: a signal handler
that raises in one is only printed by Python, and the interrupt is lost.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class KeyedWeakref(weakref.ref[V]):
    """A weak reference with a key.

    The callback of its tables, `list.append`, runs when the object is collected.
    """

    __slots__ = ("key",)

    key: Any


class Interned(Generic[K, V]):
    """Weakly referenced values by key; `get` needs no lock, but `add` does."""

    def __init__(self) -> None:
        self._values: dict[K, KeyedWeakref[V]] = {}
        self._collected: list[KeyedWeakref[V]] = []

    def __len__(self) -> int:
        """Return the number of entries, including values collected since the last `add`."""
        return len(self._values)

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        reference = self._values.get(key)
        return None if reference is None else reference()

    def add(self, key: K, value: V) -> None:
        """Set the value of a key, and drop the entries of collected values."""
        while self._collected:
            reference = self._collected.pop()
            if self._values.get(reference.key) is reference:
                del self._values[reference.key]
        reference = KeyedWeakref(value, self._collected.append)
        reference.key = key
        self._values[key] = reference


class WeakIdentityDict(Generic[K, V]):
    """A dict with weakly referenced keys, which are compared by identity."""

    def __init__(self) -> None:
        self._values: dict[weakref.ref[K], V] = {}

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        """Iterate over a snapshot of the keys."""
        return iter([key for reference in self._values.copy() if (key := reference()) is not None])

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        return self._values.get(weakref.ref(key))

    def set(self, key: K, value: V) -> None:
        """Set the value of a key."""
        self._values[weakref.ref(key, self._values.pop)] = value

    def clear(self) -> None:
        """Drop all entries."""
        self._values.clear()


class Finalized(Generic[V]):
    """Values of collected owners, to be released at the next access."""

    def __init__(self) -> None:
        self._references: dict[int, KeyedWeakref[Any]] = {}
        self._collected: list[KeyedWeakref[Any]] = []

    def add(self, owner: object, value: V) -> None:
        """Keep a value, which `drain` yields once its owner is collected."""
        reference = KeyedWeakref(owner, self._collected.append)
        reference.key = value
        self._references[id(reference)] = reference

    def drain(self) -> Iterator[V]:
        """Yield the values whose owners were collected, each once."""
        while self._collected:
            try:
                reference = self._collected.pop()
            except IndexError:  # another thread was faster
                return
            del self._references[id(reference)]
            yield reference.key

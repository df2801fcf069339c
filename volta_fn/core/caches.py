"""Caches in memory: tables of weak references, bounded caches, caches of calls."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

# Tables of weak references, whose callbacks run no Python code.
#
# They replace the collections of `weakref`, and `weakref.finalize`. Those call Python functions when an object is collected: a signal
# handler that raises in one is only printed by Python, and the interrupt is lost.

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


class LruCache(Generic[V]):
    """A mapping that retains its `most` most recently used values."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Any, V] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Any) -> V | None:
        """Return the value of a key, or None."""
        with self._lock:
            value = self._values.pop(key, None)
            if value is not None:
                self._values[key] = value
            return value

    def setdefault(self, key: Any, value: V) -> V:
        """Return the value of a key, which is `value` if it had none."""
        with self._lock:
            stored = self._values[key] = self._values.pop(key, value)
            while len(self._values) > self._most:
                del self._values[next(iter(self._values))]
            return stored

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._values.clear()


def exact(value: Any) -> Any:
    """Return a value as a key, in which 1, 1.0 and True differ, and 0.0 and -0.0.

    >>> exact((1, 0.0)) == exact((1, -0.0)), exact((1, 2)) == exact((1, 2.0)), exact((1, 2)) == exact((1, 2))
    (False, False, True)
    """
    if isinstance(value, tuple):
        if all(type(entry) is int for entry in value):  # almost all
            return type(value), value
        return (type(value), *map(exact, value))
    return type(value), repr(value) if isinstance(value, (float, complex, np.generic)) else value


# Caches of calls: from the types of arguments to what runs a call, in tables.
#
# Jitted functions, primitives, marked functions (`jit/fused.py`) and eager gradients (`transforms/eager.py`) each have a `CallCache`. Its
# tables lead from what a call is cheap to recognise by to what was expensive to make.
#
# Compiled programs and routines are on disk as well, for all caches of all processes (`targets/cpu/runtime/artifact.py`).

Table = dict[Any, Any]


class CallCache:
    """Entries by key, in named tables, of a bounded size in all.

    Lookups need no lock: they read a table, which is a dict that is never replaced. When there is no room for another entry, the cache is
    emptied, since entries of one table lead to those of others.

    >>> cache = CallCache("example", ["calls", "programs"], room=2)
    >>> for size in (1, 2):
    ...     _ = cache.add("programs", size, f"program {size}")
    >>> cache.table("programs").get(2)
    'program 2'
    >>> _ = cache.add("programs", 3, "program 3")
    >>> cache.table("programs")
    {3: 'program 3'}
    """

    __slots__ = ("__weakref__", "_remaining", "_tables", "lock", "room")

    def __init__(self, kind: str, tables: Iterable[str], room: int = 4096) -> None:
        self._tables: dict[str, Table] = {name: {} for name in tables}
        self.room = self._remaining = room
        self.lock = threading.Lock()
        _CACHES.set(self, kind)

    def table(self, name: str) -> Table:
        """Return a table, for lookups."""
        return self._tables[name]

    def add(self, name: str, key: Hashable, value: Any, size: int = 1) -> Any:
        """Add an entry, and return it, or the one that another thread added before.

        An entry of size 0 takes no room: it leads to one of another table, and is dropped with that.
        """
        self.reserve(size)
        return self._tables[name].setdefault(key, value)

    def reserve(self, size: int) -> None:
        """Make room for entries of that size, by emptying the cache if need be."""
        if size > self._remaining:
            self.clear()
        self._remaining -= size

    def clear(self) -> None:
        """Drop all entries."""
        for table in self._tables.values():
            table.clear()
        self._remaining = self.room

    def why_missed(
        self, name: str, key: Any, distance: Callable[[Any, Any], Any], differences: Callable[[Sequence[Any]], Iterable[str]]
    ) -> str | None:
        """Return how a key differs from the closest one of a table.

        None if the table has it. `distance` compares two keys, by numbers or tuples of some; `differences` yields, in words, what differs
        among keys.
        """
        keys = [*self._tables[name]]
        if key in self._tables[name]:
            return None
        if not keys:
            return "its first call, or the first of a function that is made anew each time"
        closest = min(keys, key=lambda other: distance(key, other))
        return f"compared with the closest of {len(keys)} {name}, {'; '.join(differences([closest, key]))}"


#: Every cache, with its kind.
_CACHES: WeakIdentityDict[CallCache, str] = WeakIdentityDict()


def clear_all(kind: str | None = None) -> None:
    """Empty all caches, or those of a kind."""
    for cache in _CACHES:
        if kind is None or _CACHES.get(cache) == kind:
            cache.clear()

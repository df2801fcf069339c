"""A bounded cache, which forgets what was not used for longest."""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Up to `most` values by keys: those that were asked for last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Any, T] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Any) -> T | None:
        """Return the value of a key, or None."""
        with self._lock:
            value = self._values.pop(key, None)
            if value is not None:
                self._values[key] = value
            return value

    def setdefault(self, key: Any, value: T) -> T:
        """Return the value of a key, which is `value` if it had none."""
        with self._lock:
            kept = self._values[key] = self._values.pop(key, value)
            while len(self._values) > self._most:
                del self._values[next(iter(self._values))]
            return kept

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._values.clear()

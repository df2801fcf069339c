"""Collect the bytes of constants and parameters, each once."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.errors import ArgumentError

#: Dtypes in which a file may hold float32 parameters.
STORAGES = ("float32", "float16", "bfloat16")


class Data:
    """The bytes of a page's arrays, as ranges of one block."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0
        self._known: dict[bytes, dict[str, Any]] = {}

    def add(self, array: np.ndarray, storage: str = "float32") -> dict[str, Any]:
        """Return where an array is: its offset and bytes.

        Also the dtype in which float32 numbers are stored, if that is another one.

        Raises `ArgumentError` if a finite number is infinite in `storage`.
        """
        elements = np.ascontiguousarray(array)
        described: dict[str, Any] = {}
        if storage != "float32" and elements.dtype == np.float32:
            elements = _narrowed(elements, storage)
            described["storage"] = storage
        data = elements.tobytes()
        data += bytes(-len(data) % 4)
        if data not in self._known:
            self._known[data] = {"offset": self._size, "bytes": len(data)}
            self._chunks.append(data)
            self._size += len(data)
        return self._known[data] | described

    def block(self) -> bytes:
        """Return all of it."""
        return b"".join(self._chunks)


def _narrowed(elements: np.ndarray, storage: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = elements.astype(dtypes.as_dtype(storage))
    lost = np.isfinite(elements) & ~np.isfinite(narrow.astype(np.float32))
    if lost.any():
        raise ArgumentError(f"storage: {elements[lost].flat[0]} is beyond {storage}; store such parameters as 'float32' or 'bfloat16'")
    return narrow

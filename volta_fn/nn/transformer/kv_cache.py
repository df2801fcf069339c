"""Caches of keys and values, for attention in step-by-step decoding."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ShapeError

__all__ = ["KVCache", "KeysValues"]


class KeysValues(NamedTuple):
    """Keys and values for each head, as `project` computes: (…, groups, S, features)."""

    keys: Array
    values: Array


class KVCache(NamedTuple):
    """Keys and values of a sequence's first `length` positions, with room for more.

    It is a pytree of arrays of constant shapes: `keys` and `values` have shape (…, groups, max_length, features), `length` is an int32
    scalar. More positions than there is room for make the values NaN, which is visible even in compiled programs.
    """

    keys: Array
    values: Array
    length: Array

    @classmethod
    def empty(cls, batch: tuple[int, ...], groups: int, max_length: int, features: int, dtype: Any) -> KVCache:
        """Return a cache with room for `max_length` positions."""
        room = vnp.zeros((*batch, groups, max_length, features), dtype)
        return cls(room, room, vnp.zeros((), "int32"))

    @property
    def max_length(self) -> int:
        """The number of positions that there is room for."""
        return self.keys.shape[-2]

    def append(self, new: KeysValues) -> KVCache:
        """Append keys and values; raise `ShapeError` if they cannot fit."""
        count = new.keys.shape[-2]
        room = (*self.keys.shape[:-2], count, self.keys.shape[-1])
        if new.keys.shape != room or count > self.max_length:
            raise ShapeError(f"KVCache: keys of shape {new.keys.shape} do not fit a cache of shape {self.keys.shape}")
        values = vnp.where(self.length + count <= self.max_length, new.values, vnp.nan)
        keys, values = (
            lax.dynamic_update_slice_in_dim(old, now.astype(old.dtype), self.length, -2)
            for old, now in ((self.keys, new.keys), (self.values, values))
        )
        return KVCache(keys, values, self.length + count)

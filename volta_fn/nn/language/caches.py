"""Keys and values of earlier tokens: all, those of a window, or in pages.

A cache numbers its *slots*: the tokens that a batch was given, padding included, have the slots 0, 1, 2, … in all rows. A row that is
shorter than others is padded on the left; its `start` is the slot of its first token, whose position is 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ShapeError
from volta_fn.nn.layers.multi_head_attention import KeysValues

__all__ = ["CausalLMCache", "FullCache", "PagedCache", "RollingCache"]


class Placement(NamedTuple):
    """Where a cache puts new tokens.

    Attributes:
        length: slots in use before, an int32 scalar; of shape (batch,) for pages.
        added: how many of the new tokens are no padding, likewise.
        table: the pages of each row, int32 of shape (batch, pages); negative for none. None without pages.
        window: how many tokens a token sees in this layer; None for all.
    """

    length: Array
    added: Array
    table: Array | None = None
    window: Any = None


def _zeros(*shape: int, dtype: str) -> tuple[Array, Array]:
    """Return the keys and values of an empty cache, in memory of their own each."""
    return vnp.zeros(shape, dtype), vnp.zeros(shape, dtype)


class FullCache(NamedTuple):
    """Keys and values of one layer by slot, of shape (batch, groups, slots, features)."""

    keys: Array
    values: Array

    @classmethod
    def empty(cls, batch: int, groups: int, slots: int, features: int, dtype: str) -> Self:
        """Return a cache with room for `slots` tokens."""
        return cls(*_zeros(batch, groups, slots, features, dtype=dtype))

    def update(self, new: KeysValues, placement: Placement) -> tuple[FullCache, KeysValues, Array]:
        """Write the keys and values of new tokens to the next slots.

        Padding, which comes last, is written too: its slots hide it, and later tokens overwrite it.

        Returns:
            The new cache, the keys and values to attend to, and the slot of each of them. Values are NaN where there is no room, which is
            visible even in compiled programs.

        Raises:
            ShapeError: more tokens than slots.
        """
        length, added, slots = placement.length, new.keys.shape[2], self.keys.shape[2]
        if added > slots:
            raise ShapeError(f"FullCache: {added} tokens do not fit {slots} slots")
        values = vnp.where(length + added <= slots, new.values, vnp.nan)
        keys, values = (
            lax.dynamic_update_slice_in_dim(old, now.astype(old.dtype), length, 2)
            for old, now in ((self.keys, new.keys), (self.values, values))
        )
        return FullCache(keys, values), KeysValues(keys, values), vnp.arange(slots)


class RollingCache(NamedTuple):
    """Keys and values of the last tokens alone: a ring of slots.

    Slot s is at index s mod its size. A ring of the size of its layer's window has room for any number of tokens; a smaller one, of a text
    that is still shorter than the window, must grow before it is full.
    """

    keys: Array
    values: Array

    @classmethod
    def empty(cls, batch: int, groups: int, slots: int, features: int, dtype: str) -> Self:
        """Return a ring of so many slots."""
        return cls(*_zeros(batch, groups, slots, features, dtype=dtype))

    def update(self, new: KeysValues, placement: Placement) -> tuple[RollingCache, KeysValues, Array]:
        """Write new keys and values over the oldest; arguments are those of `FullCache`.

        Returns:
            The new cache, the keys and values to attend to, and the slot of each; negative for none. Values are NaN where the ring is
            smaller than the window and there is no room.
        """
        length, size, added = placement.length, self.keys.shape[2], new.keys.shape[2]
        indices = vnp.arange(size)
        if placement.window is not None:
            has_room = (size >= placement.window) | (length + placement.added <= size)
            new = new._replace(values=vnp.where(has_room, new.values, vnp.nan))
        if added == 1:  # a step: what the token overwrites is out of its sight
            keys, values = (
                lax.dynamic_update_slice_in_dim(old, now.astype(old.dtype), length % size, 2) for old, now in zip(self, new, strict=True)
            )
            return RollingCache(keys, values), KeysValues(keys, values), length - (length - indices) % size
        before = length - 1 - (length - 1 - indices) % size
        last = length + placement.added - 1
        after = last - (last - indices) % size  # the slot that each index holds afterwards
        source = vnp.clip(after - length, 0, max(added - 1, 0))
        arrays = []
        for old, now in zip(self, new, strict=True):
            taken = vnp.take(now.astype(old.dtype), source, axis=2) if added else old
            arrays.append(vnp.where((after >= length)[:, None], taken, old))
        attended = [vnp.concatenate([old, now.astype(old.dtype)], 2) for old, now in zip(self, new, strict=True)]
        return RollingCache(*arrays), KeysValues(*attended), vnp.concatenate([before, length + vnp.arange(added)])


class PagedCache(NamedTuple):
    """Keys and values of one layer in pages that rows take from a pool.

    Slot s of a row is at index s mod page size of the page that its table has at s // page size (Kwon et al. 2023), so that rows of any
    lengths take no more memory than they have tokens, rounded up to pages. Arrays have shape (pages, groups, page size, features).
    """

    keys: Array
    values: Array

    @classmethod
    def empty(cls, pages: int, groups: int, page_size: int, features: int, dtype: str) -> Self:
        """Return a pool of pages."""
        return cls(*_zeros(pages, groups, page_size, features, dtype=dtype))

    def update(self, new: KeysValues, placement: Placement) -> tuple[PagedCache, KeysValues, Array]:
        """Write new keys and values to the rows' pages.

        Padding, and tokens beyond the pages of a row, are not written.

        Returns:
            The new pool, the keys and values of all slots of the tables, and the slot of each. Values are 0 where a row has no token: other
            rows' there may be NaN, which a weight of 0 does not hide.
        """
        pool, _, page_size, features = self.keys.shape
        batch, groups, added, _ = new.keys.shape
        assert placement.table is not None
        table, length = placement.table, vnp.broadcast_to(placement.length, (batch,))
        slots = length[:, None] + vnp.arange(added)
        column = slots // page_size
        page = vnp.take_along_axis(table, vnp.minimum(column, table.shape[1] - 1), 1)
        counts = vnp.arange(added) < vnp.broadcast_to(placement.added, (batch,))[:, None]
        page = vnp.where(counts & (page >= 0) & (column < table.shape[1]), page, pool)  # beyond the pool: dropped
        written, read = [], []
        for old, now in zip(self, new, strict=True):
            rows = now.astype(old.dtype).transpose(0, 2, 1, 3)
            array = old.at[page, :, slots % page_size].set(rows, mode="drop")
            gathered = vnp.take(array, vnp.maximum(table, 0), axis=0).transpose(0, 2, 1, 3, 4)
            written.append(array)
            read.append(gathered.reshape(batch, groups, table.shape[1] * page_size, features))
        all_slots, (keys, values) = vnp.arange(table.shape[1] * page_size), read
        has_token = vnp.repeat(table >= 0, page_size, axis=1) & (all_slots < (length + placement.added)[:, None])
        return PagedCache(*written), KeysValues(keys, vnp.where(has_token[:, None, :, None], values, 0)), all_slots


class CausalLMCache(NamedTuple):
    """The caches of all layers, and what they have in common.

    Attributes:
        layers: one for each layer.
        length: how many slots are in use, an int32 scalar; of shape (batch,) for pages.
        start: the slot of each row's first token, int32 of shape (batch,); None for 0.
        table: the pages of each row, see `Placement`; None without pages.
    """

    layers: tuple[FullCache | RollingCache | PagedCache, ...]
    length: Array
    start: Array | None
    table: Array | None = None

    @property
    def slots(self) -> int | None:
        """How many tokens there is room for; None if no layer has a `FullCache`."""
        return next((layer.keys.shape[2] for layer in self.layers if isinstance(layer, FullCache)), None)

    def grow(self, slots: int, window: int | None = None) -> CausalLMCache:
        """Return a cache with room for `slots` tokens, or more if it has more.

        Rings grow to `window`, the config's `sliding_window`, at most.
        """
        return self._replace(layers=tuple([_grown(layer, slots, window) for layer in self.layers]))


def _grown(layer: FullCache | RollingCache | PagedCache, slots: int, window: int | None) -> FullCache | RollingCache | PagedCache:
    """Return a layer's cache with room for more tokens, if it has fewer slots."""
    if isinstance(layer, PagedCache):
        return layer
    size = min(slots, window) if isinstance(layer, RollingCache) and window is not None else slots
    more = size - layer.keys.shape[2]
    if more <= 0:
        return layer
    return type(layer)(*[vnp.pad(x, ((0, 0), (0, 0), (0, more), (0, 0))) for x in layer])

"""Paths into pytrees, as in `jax.tree_util`: tuples with a key per node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from volta_fn.tree.library import optree


@dataclass(frozen=True, slots=True)
class SequenceKey:
    """A position in a list or tuple. Prints as `[0]`."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"


@dataclass(frozen=True, slots=True)
class DictKey:
    """A key of a dictionary. Prints as `['name']`."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclass(frozen=True, slots=True)
class GetAttrKey:
    """An attribute of a dataclass or a field of a namedtuple. Prints as `.name`."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@dataclass(frozen=True, slots=True)
class FlattenedIndexKey:
    """The position of a child in a registered node without keys: `[<flat index 0>]`."""

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


KeyPath = tuple[Any, ...]
_KEY_TYPES = (SequenceKey, DictKey, GetAttrKey, FlattenedIndexKey)


def keystr(keys: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """Return a path in Python's notation.

    `simple` leaves out brackets, dots and quotes.

    >>> keystr((DictKey("a"), SequenceKey(0), GetAttrKey("weight")))
    "['a'][0].weight"
    >>> keystr((DictKey("a"), SequenceKey(0)), simple=True, separator="/")
    'a/0'
    """
    return separator.join(_bare(key) if simple else str(key) for key in keys)


def _bare(key: Any) -> str:
    if isinstance(key, (DictKey, FlattenedIndexKey)):
        return str(key.key)
    if isinstance(key, SequenceKey):
        return str(key.idx)
    return key.name if isinstance(key, GetAttrKey) else str(key)


def key_of(entry: optree.PyTreeEntry) -> Any:
    """Return the key that an optree path entry stands for."""
    if isinstance(entry.entry, _KEY_TYPES):
        return entry.entry
    if isinstance(entry, (optree.NamedTupleEntry, optree.StructSequenceEntry)):
        return GetAttrKey(entry.field)
    if isinstance(entry, optree.SequenceEntry):
        return SequenceKey(entry.index)
    if isinstance(entry, optree.MappingEntry):
        return DictKey(entry.key)
    # A node registered with keys of the user's own making passes them through; one without has positions.
    return FlattenedIndexKey(entry.entry) if isinstance(entry.entry, int) else entry.entry

"""Compiled programs in the cache on disk, with the objects of all their routines.

A later process neither compiles nor chooses again. Large constants that the traced program has too are not in the entry but are named by
their numbers.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import threading
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from volta_fn.compiler.buffers.buffer_assignment import Slots
from volta_fn.compiler.buffers.memory_layout import Output, arrange
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.runtime.llvm.machine import load_objects
from volta_fn.targets.cpu.runtime import disk_cache
from volta_fn.targets.cpu.runtime.fingerprint import fingerprint_of


class SlotLayout(NamedTuple):
    """The table of slots: the caller's, the arena's, constants', and others."""

    callers: int
    #: The offsets of slots in the arena, and the arena's size in bytes.
    offsets: np.ndarray
    arena: int
    constants: tuple[np.ndarray, ...]
    #: The number of slots.
    slots: int


def layout_of(slots: Slots) -> SlotLayout:
    """Assign numbers to the slots, and offsets in the arena."""
    count = len(slots.ordered())
    offsets, size = arrange(slots.lifetimes())
    return SlotLayout(len(slots.callers), np.array(offsets, np.int64), size, slots.arrays(), max(count, 1))


class Artifact(NamedTuple):
    """A compiled program as data, which can be cached on disk."""

    #: The commands; the words at `launch_words` are numbers of launches, and become their addresses.
    words: np.ndarray
    launch_words: np.ndarray
    layout: SlotLayout
    #: Whether to release Python's lock.
    long: bool
    outputs: tuple[Output, ...]
    #: The arrays that the program makes.
    specs: tuple[tuple[tuple[int, ...], np.dtype], ...]
    #: Results in the memory of donated arguments: pairs of their numbers.
    reuse: tuple[tuple[int, int], ...]


#: Larger constants are not written if the traced program has them; programs with more bytes of others are not written.
_SMALL, _LARGEST = 4096, 1 << 26
#: The addresses of the launches of programs that this process has loaded.
_loaded: dict[str, list[int]] = {}
_lock = threading.Lock()


class Key(NamedTuple):
    """The name of a program's entry, and the program's constants."""

    name: str
    constants: tuple[np.ndarray, ...]


class Kept(NamedTuple):
    """A program from the disk, and where its launches have been loaded."""

    artifact: Artifact
    addresses: list[int]


def key_of(closed: ClosedJaxpr, donated: Sequence[bool]) -> Key | None:
    """Return the key of a program; None if it cannot be cached."""
    if disk_cache.cache_dir() is None:
        return None
    found = fingerprint_of(closed, donated)
    return None if found is None else Key(disk_cache.name_of(f"program {found.text}"), found.constants)


class _TooLarge(Exception):
    """A program has too many constants."""


class _Pickler(pickle.Pickler):
    """Pickles a program, with the numbers of large constants of the traced program."""

    def __init__(self, file: BinaryIO, own: Sequence[np.ndarray]) -> None:
        super().__init__(file)
        self.numbers = {_identity(array): number for number, array in enumerate(own) if array.flags.c_contiguous}
        self.size = 0

    def persistent_id(self, value: Any) -> int | None:
        """Return the number of a constant of the traced program."""
        if not isinstance(value, np.ndarray):
            return None
        number = self.numbers.get(_identity(value)) if value.nbytes > _SMALL and value.flags.c_contiguous else None
        if number is None:
            self.size += value.nbytes
            if self.size > _LARGEST:
                raise _TooLarge
        return number


class _Unpickler(pickle.Unpickler):
    """Unpickles a program."""

    def __init__(self, content: bytes, own: Sequence[np.ndarray]) -> None:
        super().__init__(io.BytesIO(content))
        self.own = own

    def persistent_load(self, number: Any) -> np.ndarray:
        """Return a constant of the traced program."""
        return self.own[number]


def _identity(array: np.ndarray) -> tuple[Any, ...]:
    return array.ctypes.data, array.dtype, array.shape


def keep(key: Key, artifact: Artifact, launches: Sequence[tuple[str, str]]) -> None:
    """Write a program and its routines' objects, if that is possible.

    `launches` are pairs of a routine's entry and a symbol.
    """
    routines = [disk_cache.read_compiled(entry) for entry in dict.fromkeys([entry for entry, _ in launches])]
    shared = dict.fromkeys([name for routine in routines if routine is not None for name in routine.shared])
    compiled = [*routines, *[disk_cache.read_compiled(name) for name in shared]]
    codes = [found.code for found in compiled if found is not None]
    file = io.BytesIO()
    with contextlib.suppress(_TooLarge):
        _Pickler(file, key.constants).dump((artifact, codes, [symbol for _, symbol in launches]))
        if len(codes) == len(compiled):
            disk_cache.write(key.name, file.getvalue())


def find(key: Key) -> Kept | None:
    """Return a program from the disk, loaded, or None."""

    def load(content: bytes) -> tuple[Artifact, list[bytes], list[str]]:
        artifact, codes, symbols = _Unpickler(content, key.constants).load()
        return Artifact(*artifact), codes, symbols

    found = disk_cache.read(key.name, load)
    if found is None:
        return None
    artifact, codes, symbols = found
    with _lock:
        if key.name not in _loaded:
            _loaded[key.name] = load_objects(codes, symbols)
        return Kept(artifact, _loaded[key.name])

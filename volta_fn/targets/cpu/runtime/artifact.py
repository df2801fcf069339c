"""Compiled programs on disk: the cache, and artifacts, its entries of programs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from volta_fn.compiler.buffers import Output, arrange
from volta_fn.core.arrays.array import host_buffer
from volta_fn.core.caches import Interned, LruCache
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.runtime import entries
from volta_fn.runtime.caches import cache_dir
from volta_fn.runtime.entries import DTYPES, Contents, NotCacheable, Reader, dtype_name, fingerprint_of
from volta_fn.runtime.llvm.host import host, llvm
from volta_fn.runtime.llvm.machine import LoadedCode, load_objects
from volta_fn.settings import current as settings

if TYPE_CHECKING:
    from volta_fn.compiler.emission import Slots

# The cache on disk.
#
# A process keeps the entries that it has loaded in memory. There are three kinds of entries, each a file named by a hash of its key, the
# state of this package, the versions of what it uses, and the CPU:
#
# - an *object*: the machine code of one routine, by the routine's key (the process also keeps it loaded by key), or of a function
#   that routines share, by its name, so that another program with the same kernel need not compile it;
# - the *support code*: pool and executor (`support_code_of_process`);
# - a *program*: its commands with all objects, by the fingerprint of the traced program, so that a process that has the same program need
#   not lower it. One read loads it, instead of one for each of its routines.
#
# The purpose of an entry is the CPU that it is for. `runtime.entries` makes fingerprints, and reads and writes entries; `runtime.caches`
# keeps these from damage and from other users.

T = TypeVar("T")


class CompiledLaunch(NamedTuple):
    """A launch (`targets.cpu.routine.Launch`) by its symbol in an object."""

    symbol: str
    tasks: int
    cost: float
    restores: bool
    is_copy: bool
    polls: bool


class Compiled(NamedTuple):
    """A routine's object code, launches and workspace."""

    code: bytes
    launches: tuple[CompiledLaunch, ...] = ()
    workspace: int = 0
    #: The names of the entries of functions that it shares with others.
    shared: tuple[str, ...] = ()


@functools.cache
def _kind() -> tuple[Any, ...]:
    return llvm().llvm_version_info, host()


def name_of(key: str) -> str:
    """Return the name of the entry for a key."""
    return entries.name_of(_kind(), key)


def _cpu() -> str:
    return f"{host().cpu} {host().vector_bytes}"


def read(name: str, parse: Callable[[Any, bytes], T]) -> T | None:
    """Return an entry, parsed from its header and bytes; None if it is missing."""
    return entries.read(cache_dir(), name, _cpu(), parse)


def write(name: str, header: Any, contents: Sequence[bytes]) -> None:
    """Write an entry, if there are room and permission for it."""
    entries.write(cache_dir(), name, _cpu(), header, contents)


def read_compiled(name: str) -> Compiled | None:
    """Return a routine from the disk, or None."""

    def parse(header: Any, code: bytes) -> Compiled:
        launches = tuple([CompiledLaunch(*launch) for launch in header["launches"]])
        return Compiled(code, launches, header["workspace"], tuple(header["shared"]))

    return read(name, parse)


def write_compiled(name: str, compiled: Compiled) -> None:
    """Write a routine to the disk."""
    header = {"launches": compiled.launches, "workspace": compiled.workspace, "shared": compiled.shared}
    write(name, header, [compiled.code])


# Artifacts: compiled programs as data, and their entries in the cache on disk.
#
# An entry has the objects of all routines of its program, so that a later process neither compiles nor chooses again. Its header gives
# the sizes of what follows it: the commands, the layout's offsets, constants, objects.


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
    count = slots.assign_numbers()
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
    #: The arrays that the program allocates.
    specs: tuple[tuple[tuple[int, ...], np.dtype], ...]
    #: Results in the memory of donated arguments: pairs of their numbers.
    reuse: tuple[tuple[int, int], ...]


#: Loaded code by entry: `_recent` keeps that of the last programs alive, `_loaded` finds any that a program still uses.
_recent: LruCache[LoadedCode] = LruCache(256)
_loaded: Interned[str, LoadedCode] = Interned()
_lock = threading.Lock()


class Key(NamedTuple):
    """The name of a program's entry, and the program's constants."""

    name: str
    constants: tuple[np.ndarray, ...]


class CachedProgram(NamedTuple):
    """A program from the disk, with its loaded launches."""

    artifact: Artifact
    code: LoadedCode


def key_of(closed: ClosedJaxpr, donated: Sequence[bool]) -> Key | None:
    """Return the key of a program; None if it cannot be cached."""
    if cache_dir() is None:
        return None
    fingerprint, kind = fingerprint_of(closed, donated), "verified program" if settings.verify else "program"
    return None if fingerprint is None else Key(name_of(f"{kind} {fingerprint.text}"), tuple(map(host_buffer, fingerprint.constants)))


def write_program(key: Key, artifact: Artifact, launches: Sequence[tuple[str, str]]) -> None:
    """Write a program and its routines' objects, if that is possible.

    `launches` are pairs of a routine's entry and a symbol.
    """
    # The process has the routines loaded, but no longer their objects, which are on disk, unless another process has removed them.
    routines = [read_compiled(name) for name in dict.fromkeys([entry for entry, _ in launches])]
    shared = dict.fromkeys([name for routine in routines if routine is not None for name in routine.shared])
    compiled = [*routines, *[read_compiled(name) for name in shared]]
    codes = [item.code for item in compiled if item is not None]
    contents, layout = Contents(key.constants), artifact.layout
    try:
        header = {
            "words": [contents.array(artifact.words), contents.array(artifact.launch_words), contents.array(layout.offsets)],
            "layout": [layout.callers, layout.arena, layout.slots],
            "constants": [contents.array(array) for array in layout.constants],
            "long": artifact.long,
            "outputs": [
                [o.result, o.argument, None if o.constant is None else [contents.array(o.constant)], o.shape] for o in artifact.outputs
            ],
            "specs": [[shape, dtype_name(dtype)] for shape, dtype in artifact.specs],
            "reuse": artifact.reuse,
            "codes": [len(code) for code in codes],
            "symbols": [symbol for _, symbol in launches],
        }
    except NotCacheable:
        return
    if len(codes) == len(compiled):
        write(key.name, header, [*contents.parts, *codes])


def read_program(key: Key) -> CachedProgram | None:
    """Return a program from the disk, loaded, or None."""

    def parse(header: Any, content: bytes) -> tuple[Artifact, list[bytes], list[str]]:
        reader = Reader(content, key.constants)
        words, launch_words, offsets = [reader.array(entry) for entry in header["words"]]
        callers, arena, slots = header["layout"]
        layout = SlotLayout(callers, offsets, arena, tuple([reader.array(entry) for entry in header["constants"]]), slots)
        outputs = tuple(
            [
                Output(number, argument, None if constant is None else reader.array(constant[0]), tuple(shape))
                for number, argument, constant, shape in header["outputs"]
            ]
        )
        specs = tuple([(tuple(shape), DTYPES[name]) for shape, name in header["specs"]])
        reuse = tuple([(result, argument) for result, argument in header["reuse"]])
        artifact = Artifact(words, launch_words, layout, header["long"], outputs, specs, reuse)
        return artifact, [reader.take(size) for size in header["codes"]], header["symbols"]

    entry_data = read(key.name, parse)
    if entry_data is None:
        return None
    artifact, codes, symbols = entry_data
    with _lock:
        code = _loaded.get(key.name)
        if code is None:
            code = load_objects(codes, symbols)
            _loaded.add(key.name, code)
        return CachedProgram(artifact, _recent.setdefault(key.name, code))

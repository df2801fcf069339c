"""Compiled programs on disk: the cache, and programs as its entries.

Artifacts, which are their entries in the cache, and the fingerprints that are their keys.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from types import FunctionType, NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import ml_dtypes
import numpy as np

from volta_fn.compiler.buffers import Output, arrange
from volta_fn.core.arrays.array import ConcreteArray, host_buffer
from volta_fn.core.arrays.memory import pairs_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.caches import Interned, LruCache
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var, called_program
from volta_fn.core.jaxpr import Literal as JaxprLiteral
from volta_fn.core.primitive import Primitive, evaluation_of
from volta_fn.dtypes import ALL, short_name
from volta_fn.lazy_imports import is_installed
from volta_fn.runtime import caches
from volta_fn.runtime.caches import cache_dir, sources_digest
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
# An entry holds a row of JSON and bytes. The row begins with the CPU that the entry is for, although the hash of its name has it, too: a
# file that came by its name in another way must not run on another CPU. `runtime.caches` keeps entries from damage and from other users.

T = TypeVar("T")


class CompiledLaunch(NamedTuple):
    """A launch (`targets.cpu.routine.Launch`) by its symbol in an object."""

    symbol: str
    tasks: int
    cost: float
    restores: bool


class Compiled(NamedTuple):
    """A routine's object code, launches and workspace."""

    code: bytes
    launches: tuple[CompiledLaunch, ...] = ()
    workspace: int = 0
    #: The names of the entries of functions that it shares with others.
    shared: tuple[str, ...] = ()


@functools.cache
def _circumstances() -> bytes:
    versions = (sys.version, np.__version__, ml_dtypes.__version__, llvm().llvm_version_info, is_installed("scipy"))
    return repr((sources_digest(Path(__file__).parents[3], cache_dir()), versions, host())).encode()


def name_of(key: str) -> str:
    """Return the name of the entry for a key."""
    return hashlib.sha256(_circumstances() + b"\0" + key.encode()).hexdigest()


def _cpu() -> str:
    return f"{host().cpu} {host().vector_bytes}"


def read(name: str, parse: Callable[[Any, bytes], T]) -> T | None:
    """Return an entry, parsed from its header and bytes; None if it is missing."""
    where = cache_dir()
    data = None if where is None else caches.read(where, name)
    if where is None or data is None:
        return None
    line, _, content = data.partition(b"\n")
    with contextlib.suppress(LookupError, TypeError, ValueError):  # an intact entry in another format
        cpu, header = json.loads(line)
        if cpu == _cpu():
            return parse(header, content)
    caches.delete(where / name[:2] / name)
    return None


def write(name: str, header: Any, contents: Sequence[bytes]) -> None:
    """Write an entry, if there are room and permission for it."""
    where = cache_dir()
    if where is not None:
        caches.write(where, name, b"".join([json.dumps([_cpu(), header]).encode(), b"\n", *contents]))


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


# Fingerprints of programs: texts that are equal only for equal programs.
#
# A fingerprint is the key of a compiled program on disk. Variables are numbers in the order in which they are bound, constants are
# hashes of their bytes. A call is written as the program that it calls, as only this is compiled. A program that holds something
# without such a text, like a user's function, has no fingerprint.

_PLAIN = frozenset({int, bool, str, bytes, NoneType})


class Fingerprint(NamedTuple):
    """A program's text, and the constants in it, in order."""

    text: str
    constants: tuple[np.ndarray, ...]


class _NotSerializable(Exception):
    """The program holds something that has no text."""


def fingerprint_of(closed: ClosedJaxpr, donated: Sequence[bool]) -> Fingerprint | None:
    """Return the fingerprint of a program with donated arguments, or None."""
    writer = _Serializer()
    try:
        writer.program(closed)
    except _NotSerializable:
        return None
    flags = "".join(["01"[bool(d)] for d in donated]) + "".join([f" {result}:{argument}" for result, argument in pairs_of(donated)])
    return Fingerprint("\n\n".join([flags, *writer.meanings.values(), *writer.programs]), tuple(writer.constants))


class _Serializer:
    """The texts of a program and of those in it, each written once."""

    def __init__(self) -> None:
        self.programs: list[str] = []
        self.meanings: dict[Primitive, str] = {}
        self.constants: list[np.ndarray] = []
        self._numbers: dict[int, int] = {}
        self._avals: dict[ShapedArray, str] = {}
        self._constants: dict[int, str] = {}

    def program(self, closed: ClosedJaxpr) -> str:
        """Write a program, unless it has been, and return its number."""
        if id(closed) not in self._numbers:
            text = self._program(closed)
            self._numbers[id(closed)] = len(self.programs)
            self.programs.append(text)
        return f"j{self._numbers[id(closed)]}"

    def _program(self, closed: ClosedJaxpr) -> str:
        jaxpr = closed.jaxpr
        names: dict[Atom, str] = {}

        def bound(variables: Sequence[Var]) -> str:
            for v in variables:
                names[v] = str(len(names))
            return " ".join([self.aval(v.aval) for v in variables])

        def read(atoms: Sequence[Atom]) -> str:
            return " ".join([self.literal(a) if type(a) is JaxprLiteral else names[a] for a in atoms])

        text_lines = [bound(jaxpr.constvars), " ".join([self.constant(c) for c in closed.consts]), bound(jaxpr.invars)]
        for eqn in jaxpr.eqns:
            operands = read(eqn.invars)
            text_lines.append(f"{self.primitive(eqn.primitive)}{self.params(eqn)} {operands}:{bound(eqn.outvars)}")
        return "\n".join([*text_lines, read(jaxpr.outvars)])

    def primitive(self, primitive: Primitive) -> str:
        """Return a primitive's name, and note its meaning."""
        if primitive not in self.meanings:
            self.meanings[primitive] = _meaning(primitive)
        return primitive.name

    def params(self, eqn: Equation) -> str:
        """Write an equation's parameters."""
        called = called_program(eqn)
        if called is not None:
            return self.value(called)
        return f"[{','.join([f'{name}={self.value(v)}' for name, v in sorted(eqn.params.items())])}]"

    def aval(self, aval: ShapedArray) -> str:
        """Write a type."""
        text = self._avals.get(aval)
        if text is None:
            text = f"{short_name(aval.dtype)}{list(aval.shape)}{'w' * aval.weak_type}".replace(" ", "")
            self._avals[aval] = text
        return text

    def literal(self, literal: JaxprLiteral) -> str:
        return f"{self.aval(literal.aval)}={host_buffer(literal.val).tobytes().hex()}"

    def constant(self, value: Any) -> str:
        """Write a constant, by a hash of its bytes."""
        text = self._constants.get(id(value))
        if text is None:
            buffer = host_buffer(value) if type(value) is ConcreteArray else None
            if not isinstance(buffer, np.ndarray):
                raise _NotSerializable
            content = hashlib.blake2b(np.ascontiguousarray(buffer).reshape(-1).view(np.uint8).data, digest_size=32).hexdigest()
            text = self._constants[id(value)] = f"c{len(self.constants)}{self.aval(value.aval)}={content}"
            self.constants.append(buffer)
        return text

    def value(self, value: Any) -> str:
        """Write a parameter's value."""
        kind = type(value)
        if kind in _PLAIN:
            return repr(value)
        if kind is float:
            return f"f{struct.pack('<d', value).hex()}"
        if kind is complex:
            return f"z{struct.pack('<dd', value.real, value.imag).hex()}"
        if isinstance(value, ClosedJaxpr):
            return self.program(value)
        if isinstance(value, Enum):
            return f"{_path(kind)}.{value.name}"
        if kind in (tuple, list) or hasattr(kind, "_fields"):
            return f"{'' if kind is tuple else _path(kind)}({''.join([self.value(v) + ',' for v in value])})"
        if isinstance(value, np.dtype):
            return f"d{short_name(value)}{value.str}"
        if isinstance(value, np.generic):
            return f"n{short_name(value.dtype)}{value.tobytes().hex()}"
        if isinstance(value, ShapedArray):
            return self.aval(value)
        raise _NotSerializable


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _meaning(primitive: Primitive) -> str:
    """Return a primitive's name and the names of its rules."""
    rules = [primitive.abstract, evaluation_of(primitive), primitive.ufunc_for]
    return f"{primitive.name} {' '.join(map(_rule, rules))}"


def _rule(rule: Any) -> str:
    """Return the name of a rule of this package or NumPy's."""
    # Others may change unnoticed.
    if isinstance(rule, functools.partial):
        return f"{_rule(rule.func)}({_rules([*rule.args, *rule.keywords.values()])})"
    name = getattr(rule, "__name__", "")
    if rule is None or getattr(np, name, None) is rule:
        return f"numpy.{name}"
    if (getattr(rule, "__module__", None) or "").startswith("volta_fn.") and isinstance(rule, FunctionType | type):
        cells = getattr(rule, "__closure__", None) or ()
        return f"{rule.__module__}.{rule.__qualname__}({_rules([cell.cell_contents for cell in cells])})"
    raise _NotSerializable


def _rules(values: Sequence[Any]) -> str:
    """Return the names of the functions among some values."""
    return ",".join([_rule(value) for value in values if callable(value)])


# Artifacts: compiled programs as data, and their entries in the cache on disk.
#
# An entry has the objects of all routines of its program, so that a later process neither compiles nor chooses again. Its header gives
# the sizes of what follows it: the commands, the layout's offsets, constants, objects. Large constants that the traced program has too
# are not in the entry but are named by their numbers.


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


#: Larger constants are not written if the traced program has them; programs with more bytes of others are not written.
_SMALL, _LARGEST = 4096, 1 << 26
_DTYPES = {dtype.name: dtype for dtype in ALL}
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
    return None if fingerprint is None else Key(name_of(f"{kind} {fingerprint.text}"), fingerprint.constants)


# writing


class NotCacheable(Exception):
    """A program has too many constants, or uncommon ones."""


class _Arrays:
    """The arrays of an entry, in the order in which they are written."""

    def __init__(self, constants: Sequence[np.ndarray]) -> None:
        self.constants = {_identity(array): number for number, array in enumerate(constants) if array.flags.c_contiguous}
        self.contents: list[bytes] = []
        self.size = 0

    def write(self, array: np.ndarray) -> Any:
        """Write an array, and return its description for the header."""
        number = self.constants.get(_identity(array)) if array.nbytes > _SMALL and array.flags.c_contiguous else None
        if number is not None:
            return number
        self.size += array.nbytes
        if self.size > _LARGEST or array.dtype.name not in _DTYPES:
            raise NotCacheable
        self.contents.append(array.tobytes())
        return [array.dtype.name, array.shape]


def _identity(array: np.ndarray) -> tuple[Any, ...]:
    return array.ctypes.data, array.dtype, array.shape


def write_entry(key: Key, artifact: Artifact, launches: Sequence[tuple[str, str]]) -> None:
    """Write a program and its routines' objects, if that is possible.

    `launches` are pairs of a routine's entry and a symbol.
    """
    entries = list(dict.fromkeys([entry for entry, _ in launches]))
    routines = [read_compiled(entry) for entry in entries]
    shared = dict.fromkeys([name for routine in routines if routine is not None for name in routine.shared])
    compiled = [*routines, *[read_compiled(name) for name in shared]]
    codes = [item.code for item in compiled if item is not None]
    arrays, layout = _Arrays(key.constants), artifact.layout
    try:
        header = {
            "words": [arrays.write(artifact.words), arrays.write(artifact.launch_words), arrays.write(layout.offsets)],
            "layout": [layout.callers, layout.arena, layout.slots],
            "constants": [arrays.write(array) for array in layout.constants],
            "long": artifact.long,
            "outputs": [
                [o.result, o.argument, None if o.constant is None else [arrays.write(o.constant)], o.shape] for o in artifact.outputs
            ],
            "specs": [[shape, _name(dtype)] for shape, dtype in artifact.specs],
            "reuse": artifact.reuse,
            "codes": [len(code) for code in codes],
            "symbols": [symbol for _, symbol in launches],
        }
    except NotCacheable:
        return
    if len(codes) == len(compiled):
        write(key.name, header, [*arrays.contents, *codes])


def _name(dtype: np.dtype) -> str:
    if dtype.name not in _DTYPES:
        raise NotCacheable
    return dtype.name


# reading


class _Reader:
    """An entry's bytes, read from the front."""

    def __init__(self, content: bytes, constants: Sequence[np.ndarray]) -> None:
        self.content = content
        self.constants = constants
        self.position = 0

    def take(self, size: int) -> bytes:
        self.position += size
        return self.content[self.position - size : self.position]

    def array(self, description: Any) -> np.ndarray:
        """Return an array by its description in the header."""
        if isinstance(description, int):
            return self.constants[description]
        dtype, shape = _DTYPES[description[0]], tuple(description[1])
        return np.ndarray(shape, dtype, bytearray(self.take(math.prod(shape) * dtype.itemsize)))


def read_entry(key: Key) -> CachedProgram | None:
    """Return a program from the disk, loaded, or None."""

    def parse(header: Any, content: bytes) -> tuple[Artifact, list[bytes], list[str]]:
        reader = _Reader(content, key.constants)
        words, launch_words, offsets = [reader.array(entry) for entry in header["words"]]
        callers, arena, slots = header["layout"]
        layout = SlotLayout(callers, offsets, arena, tuple([reader.array(entry) for entry in header["constants"]]), slots)
        outputs = tuple(
            [
                Output(number, argument, None if constant is None else reader.array(constant[0]), tuple(shape))
                for number, argument, constant, shape in header["outputs"]
            ]
        )
        specs = tuple([(tuple(shape), _DTYPES[name]) for shape, name in header["specs"]])
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

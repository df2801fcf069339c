"""Programs ready to run: compiled on demand, or from the cache on disk."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from volta_fn.compiler.buffers import Output, Slots, arrange
from volta_fn.core.array import ArraySpec
from volta_fn.core.caches import Finalized, Interned
from volta_fn.core.device import Executable
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.dtypes import ALL
from volta_fn.errors import OutOfMemoryError
from volta_fn.lazy_imports import load
from volta_fn.runtime.caches import LruCache
from volta_fn.runtime.compiling import compile_uninterrupted
from volta_fn.runtime.internals.array_calls import MOST_OPERANDS, MOST_RESULTS, Status
from volta_fn.runtime.internals.fastcall import ProgramWord, release
from volta_fn.runtime.internals.result_allocator import LARGE
from volta_fn.runtime.llvm.machine import LoadedCode, load_objects
from volta_fn.settings import current as settings
from volta_fn.targets.cpu.runtime import cache
from volta_fn.targets.cpu.runtime.cache import fingerprint_of
from volta_fn.targets.cpu.runtime.executor import support_code_of_process
from volta_fn.targets.cpu.runtime.host_calls import failure, interruptible

if TYPE_CHECKING:
    from volta_fn.compiler.target import Pipeline


# Compiled programs in the cache on disk, with the objects of all their routines.
#
# A later process neither compiles nor chooses again. An entry's header gives the sizes of what follows it: the commands, the layout's
# offsets, constants, objects. Large constants that the traced program has too are not in the entry but are named by their numbers.


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
    if cache.cache_dir() is None:
        return None
    fingerprint, kind = fingerprint_of(closed, donated), "verified program" if settings.verify else "program"
    return None if fingerprint is None else Key(cache.name_of(f"{kind} {fingerprint.text}"), fingerprint.constants)


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
    routines = [cache.read_compiled(entry) for entry in entries]
    shared = dict.fromkeys([name for routine in routines if routine is not None for name in routine.shared])
    compiled = [*routines, *[cache.read_compiled(name) for name in shared]]
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
        cache.write(key.name, header, [*arrays.contents, *codes])


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
        """Return the next bytes."""
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

    entry_data = cache.read(key.name, parse)
    if entry_data is None:
        return None
    artifact, codes, symbols = entry_data
    with _lock:
        code = _loaded.get(key.name)
        if code is None:
            code = load_objects(codes, symbols)
            _loaded.add(key.name, code)
        return CachedProgram(artifact, _recent.setdefault(key.name, code))


# Programs ready to run: functions of NumPy arrays, compiled or from the disk.

#: Records of programs. The tables of collected programs are freed when another program is created.
_records: Finalized[np.ndarray] = Finalized()


@functools.cache
def _compiler() -> Any:
    """Load the compiler, when the first program is compiled that is not on disk."""
    return load("volta_fn.targets.cpu.runtime.compile")


class Program:
    """A compiled program: a function ``(donate, *arrays) -> arrays``."""

    @classmethod
    def of(cls, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Pipeline) -> Program:
        """Return a traced program, compiled unless it is on disk."""
        return compile_uninterrupted(cls._of, closed, donated, pipeline)

    @classmethod
    def _of(cls, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Pipeline) -> Program:
        key = key_of(closed, donated)
        cached = None if key is None else read_entry(key)
        if cached is not None:
            return cls(cached.artifact, cached.code.addresses, [cached.code])
        built = _compiler().build(closed, donated, pipeline)
        if key is not None and not built.hosts:
            write_entry(key, built.artifact, [(launch.entry, launch.symbol) for launch in built.launches])
        return cls(built.artifact, [launch.address for launch in built.launches], [launch.code for launch in built.launches], built.hosts)

    def __init__(self, artifact: Artifact, addresses: Sequence[int], code: Sequence[Any], hosts: Sequence[Any] = ()) -> None:
        """Take a program, its launches' addresses in loaded code, and host functions."""
        self.outputs, self.reuse, layout = artifact.outputs, dict(artifact.reuse), artifact.layout
        large = support_code_of_process().large_empty
        #: The allocator, shape and dtype of each array that a call makes.
        shapes = {output.result: output.shape for output in reversed(artifact.outputs)}  # of the first output that each array is
        self.specs = [
            (large if math.prod(s) * d.itemsize >= LARGE else np.empty, shapes.get(number, s), d)
            for number, (s, d) in enumerate(artifact.specs)
        ]
        self.code = artifact.words.copy()
        self.code[artifact.launch_words] = np.array(addresses, np.int64)[artifact.words[artifact.launch_words]]
        self.template = np.zeros(layout.slots, np.int64)
        constants = layout.callers + len(layout.offsets)
        self.template[layout.callers : constants] = layout.offsets
        self.template[constants : constants + len(layout.constants)] = [array.ctypes.data for array in layout.constants]
        self.references = (hosts, layout.constants, code)
        #: Whether steps run in NumPy.
        self.calls_host = bool(hosts)
        words = {
            ProgramWord.CODE: self.code.ctypes.data,
            ProgramWord.END: self.code.ctypes.data + self.code.nbytes,
            ProgramWord.SLOTS: layout.slots,
            ProgramWord.CALLER: layout.callers,
            ProgramWord.ARENA_FIRST: layout.callers,
            ProgramWord.ARENA_SLOTS: len(layout.offsets),
            ProgramWord.ARENA_BYTES: layout.arena,
            ProgramWord.TEMPLATE: self.template.ctypes.data,
            ProgramWord.TABLE: 0,
            ProgramWord.LONG: int(artifact.long),
        }
        self.record = np.array([words[name] for name in ProgramWord], np.int64)
        for record in _records.drain():
            release(record)
        _records.add(self, self.record)
        enter = support_code_of_process().functions.function(self.record)
        self.enter = interruptible(enter) if hosts else enter
        #: See `Executable.copied`.
        self.copied: list[int] = []
        #: Bytes of the arena, and of what one function of NumPy needs for itself.
        self.temporaries = layout.arena + max([host.workspace for host in hosts], default=0)

    def executable(self) -> Executable:
        """Return the program for `jit`; the common case skips output remapping.

        In that case all results are freshly allocated.
        """
        plain = [(o.result, o.shape) for o in self.outputs] == [(number, shape) for number, (_, shape, _) in enumerate(self.specs)]
        if self.reuse or not plain:
            return Executable(self, None, self.copied)
        specs, enter, retry = self.specs, self.enter, self._retry

        def run_program(donate: bool, *arguments: np.ndarray) -> Sequence[np.ndarray]:
            results = [empty(shape, dtype) for empty, shape, dtype in specs]
            status = enter(*arguments, *results)
            return results if not status else retry(status, arguments)

        if self.calls_host or not specs:  # a built-in's fallback would call a failing callback again
            return Executable(run_program, None, self.copied)
        takes_few = self.record[ProgramWord.CALLER] - len(specs) <= MOST_OPERANDS and len(specs) <= MOST_RESULTS
        of_arrays = self._of_arrays if takes_few else None
        if len(specs) > 1:
            return Executable(run_program, of_arrays, self.copied)
        ((empty, shape, dtype),) = specs

        def run_single_result(donate: bool, *arguments: np.ndarray) -> Sequence[np.ndarray]:
            out = empty(shape, dtype)
            status = enter(*arguments, out)
            return (out,) if not status else retry(status, arguments)

        return Executable(run_single_result, of_arrays, self.copied)

    def _of_arrays(
        self, specs: Sequence[ArraySpec], within: type[tuple] | type[list] | None, fallback: Callable[..., Any]
    ) -> Callable[..., Any]:
        """See `OfArrays`."""
        makes = [functools.partial(empty, shape, dtype) for empty, shape, dtype in self.specs]
        return support_code_of_process().functions.of_arrays(self, self.record, makes, specs, within, fallback)

    def __call__(self, donate: bool, *arguments: np.ndarray) -> Sequence[np.ndarray]:
        """Return the results; donated arguments may be overwritten if `donate` says so."""
        over = self.reuse if donate else {}
        results = [
            _shaped(arguments[over[number]], shape) if number in over else empty(shape, dtype)
            for number, (empty, shape, dtype) in enumerate(self.specs)
        ]
        status = self.enter(*arguments, *results)
        if status:
            results = self._retry(status, arguments)
        return tuple([self._result(output, arguments, results) for output in self.outputs])

    def _result(self, output: Output, arguments: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> np.ndarray:
        if output.result is not None:
            array = results[output.result]
        else:
            array = output.constant if output.constant is not None else arguments[output.argument or 0]
        return _shaped(array, output.shape)

    def _retry(self, status: int, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run the program again, with contiguous copies of arguments.

        Raises the error of any status but `NOT_CONTIGUOUS`. Returns new results: those of the first attempt may be in arguments' memory.
        """
        if status == Status.NO_MEMORY:
            raise OutOfMemoryError(f"a program needs {self.temporaries} bytes for values between its arguments and its results")
        if status != Status.NOT_CONTIGUOUS:
            raise failure()
        self.copied.extend([number for number, argument in enumerate(arguments) if not argument.flags.c_contiguous])
        results = [empty(shape, dtype) for empty, shape, dtype in self.specs]
        contiguous = [np.require(a, requirements=["C", "A"]) for a in arguments]
        status = self.enter(*contiguous, *results)
        return results if not status else self._retry(status, contiguous)


def _shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return array if array.shape == shape else array.reshape(shape)

"""Compiled routines: loaded in the process by their keys, and cached on disk."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from volta_fn.compiler.program import RoutineKey
from volta_fn.runtime.llvm.machine import compile_object, load_objects
from volta_fn.runtime.llvm.text import SharedFunction
from volta_fn.runtime.threads import thread_count
from volta_fn.targets.cpu.runtime import disk_cache

#: A launch that costs fewer nanoseconds is run by one thread: waking another takes about as long.
_WORTH_SHARING = 20_000.0


class LoadedLaunch(NamedTuple):
    """A launch at an address, by its name in an object."""

    address: int
    tasks: int
    shared: bool
    symbol: str
    #: The name of the object's entry on disk.
    entry: str


class LoadedRoutine(NamedTuple):
    """A routine ready to run."""

    launches: tuple[LoadedLaunch, ...]
    workspace: int
    #: Estimated nanoseconds on one thread.
    cost: float


class SharedCode:
    """The compiled functions that routines share, by their entries' names on disk."""

    def __init__(self) -> None:
        self._codes: dict[str, Future[bytes]] = {}
        self._lock = threading.Lock()

    def compile(self, function: SharedFunction) -> str:
        """Compile a function unless it is there or another thread does; return its name."""
        name = disk_cache.name_of(f"function {function.name}")
        code: Future[bytes] = Future()
        with self._lock:
            mine = self._codes.setdefault(name, code) is code
        if mine:
            try:
                code.set_result(_compile_shared(name, function))
            except BaseException as error:
                del self._codes[name]
                code.set_exception(error)
                raise
        return name

    def has(self, name: str) -> bool:
        """Return True if there is such a function, in the process or on disk."""
        if name not in self._codes:
            found = disk_cache.read_compiled(name)
            if found is None:
                return False
            code: Future[bytes] = Future()
            code.set_result(found.code)
            with self._lock:
                self._codes.setdefault(name, code)
        return True

    def codes(self, names: Iterable[str]) -> list[bytes]:
        """Return the object code of functions that are there."""
        return [self._codes[name].result() for name in names]


def _compile_shared(name: str, function: SharedFunction) -> bytes:
    found = disk_cache.read_compiled(name)
    if found is None:
        found = disk_cache.Compiled(compile_object(function.text))
        disk_cache.write_compiled(name, found)
    return found.code


class CodeCache:
    """The routines of this process; None for keys without a routine."""

    def __init__(self) -> None:
        self._loaded: dict[Any, LoadedRoutine | None] = {}
        self._shared = SharedCode()
        self._lock = threading.Lock()

    def load(self, keys: Sequence[RoutineKey]) -> list[LoadedRoutine | None]:
        """Load routines, compiling the new ones on several threads."""
        missing = list({k.key: k for k in keys if k.key not in self._loaded}.values())
        if len(missing) > 1 and thread_count() > 1:
            with ThreadPoolExecutor(thread_count()) as threads:
                compiled = list(threads.map(self._compiled, missing))
        else:
            compiled = [self._compiled(key) for key in missing]
        loaded = self._load(dict([found for found in compiled if found is not None]))
        with self._lock:
            for key, found in zip(missing, compiled, strict=True):
                self._loaded.setdefault(key.key, None if found is None else loaded[found[0]])
        return [self._loaded[k.key] for k in keys]

    def _compiled(self, key: RoutineKey) -> tuple[str, disk_cache.Compiled] | None:
        """Return a routine, compiled if need be, and the name of its entry on disk."""
        name = disk_cache.name_of(repr(key.key))
        found = disk_cache.read_compiled(name)
        if found is None or not all(map(self._shared.has, found.shared)):
            routine = key.make()
            if routine is None:
                return None
            suffix = f"_{name}"  # so that the routines of a program can be loaded together
            launches = tuple([(p.symbol + suffix, p.tasks, p.cost) for p in routine.launches])
            shared = tuple([self._shared.compile(function) for function in routine.shared])
            found = disk_cache.Compiled(compile_object(routine.text, suffix), launches, routine.workspace, shared)
            disk_cache.write_compiled(name, found)
        return name, found

    def _load(self, entries: Mapping[str, disk_cache.Compiled]) -> dict[str, LoadedRoutine]:
        """Load routines at once, with what they share: little slower than loading one."""
        if not entries:
            return {}
        symbols = [symbol for compiled in entries.values() for symbol, _, _ in compiled.launches]
        shared = dict.fromkeys([name for compiled in entries.values() for name in compiled.shared])
        codes = [*[compiled.code for compiled in entries.values()], *self._shared.codes(shared)]
        addresses = dict(zip(symbols, load_objects(codes, symbols), strict=True))
        return {entry: _ready(entry, compiled, addresses) for entry, compiled in entries.items()}


def _ready(entry: str, compiled: disk_cache.Compiled, addresses: Mapping[str, int]) -> LoadedRoutine:
    launches = [
        LoadedLaunch(addresses[symbol], tasks, tasks > 1 and cost > _WORTH_SHARING, symbol, entry)
        for symbol, tasks, cost in compiled.launches
    ]
    return LoadedRoutine(tuple(launches), compiled.workspace, sum(cost for _, _, cost in compiled.launches))


CODE_CACHE = CodeCache()

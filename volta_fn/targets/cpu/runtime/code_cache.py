"""The routines of the process: compiled, loaded by their keys, and cached on disk."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from volta_fn.compiler.target import RoutineKey
from volta_fn.errors import CompilerError
from volta_fn.runtime.caches import LruCache
from volta_fn.runtime.llvm.machine import LoadedCode, compile_object, load_objects
from volta_fn.runtime.llvm.text import SharedFunction
from volta_fn.runtime.threads import run_together, thread_count
from volta_fn.targets.cpu.runtime import cache
from volta_fn.targets.cpu.runtime.executor import Mode

#: A launch that costs fewer nanoseconds is run by one thread: waking another takes about as long.
_WORTH_SHARING = 20_000.0
#: Routines that are kept for other programs.
_MOST_RECENT = 512


class LoadedLaunch(NamedTuple):
    """A launch at an address, by its name in an object."""

    address: int
    tasks: int
    mode: Mode
    symbol: str
    #: The name of the object's entry on disk.
    entry: str
    #: The code that holds the address.
    code: LoadedCode


class LoadedRoutine(NamedTuple):
    """A routine ready to run."""

    launches: tuple[LoadedLaunch, ...]
    workspace: int
    #: Estimated nanoseconds on one thread.
    cost: float


#: What `CodeCache` keeps for keys without a routine.
_NO_ROUTINE = LoadedRoutine((), 0, 0.0)


class RefusedRoutine(Exception):
    """A routine that LLVM refuses, by its key.

    The caller, which has the program, finds the equation.
    """

    def __init__(self, key: RoutineKey, error: CompilerError) -> None:
        super().__init__(error.message)
        self.key, self.error = key.key, error


class SharedCode:
    """The compiled functions that routines share, by their entries' names on disk."""

    def __init__(self) -> None:
        self._codes: dict[str, Future[bytes]] = {}
        self._lock = threading.Lock()

    def compile(self, function: SharedFunction) -> str:
        """Compile a function, unless some thread has begun to, and return its name."""
        name = cache.name_of(f"function {function.name}")
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
            compiled = cache.read_compiled(name)
            if compiled is None:
                return False
            code: Future[bytes] = Future()
            code.set_result(compiled.code)
            with self._lock:
                self._codes.setdefault(name, code)
        return True

    def codes(self, names: Iterable[str]) -> list[bytes]:
        """Return the object code of compiled functions."""
        return [self._codes[name].result() for name in names]


def _compile_shared(name: str, function: SharedFunction) -> bytes:
    compiled = cache.read_compiled(name)
    if compiled is None:
        # The text has nothing that passes could remove.
        compiled = cache.Compiled(compile_object(function.text, clean=False))
        cache.write_compiled(name, compiled)
    return compiled.code


class CodeCache:
    """The routines used last in this process; programs keep theirs, others are freed."""

    def __init__(self) -> None:
        #: By their keys; `_NO_ROUTINE` for keys without one.
        self._recent: LruCache[LoadedRoutine] = LruCache(_MOST_RECENT)
        self._shared = SharedCode()

    def load(self, keys: Sequence[RoutineKey]) -> list[LoadedRoutine | None]:
        """Load routines, compiling the new ones on several threads."""
        routines = {k.key: self._recent.get(k.key) for k in keys}
        missing = list({k.key: k for k in keys if routines[k.key] is None}.values())
        compiled = run_together([partial(self._compiled, key) for key in missing], thread_count())
        loaded = self._load(dict([entry for entry in compiled if entry is not None]))
        for key, entry in zip(missing, compiled, strict=True):
            routines[key.key] = self._recent.setdefault(key.key, _NO_ROUTINE if entry is None else loaded[entry[0]])
        return [None if routines[k.key] is _NO_ROUTINE else routines[k.key] for k in keys]

    def _compiled(self, key: RoutineKey) -> tuple[str, cache.Compiled] | None:
        """Return a routine, compiled if need be, and the name of its entry on disk."""
        name = cache.name_of(repr(key.key))
        compiled = cache.read_compiled(name)
        if compiled is None or not all(map(self._shared.has, compiled.shared)):
            return self._generated(key, name)
        return name, compiled

    def _generated(self, key: RoutineKey, name: str) -> tuple[str, cache.Compiled] | None:
        try:
            routine = key.make()
            if routine is None:
                return None
            suffix = f"_{name}"  # so that the routines of a program can be loaded together
            launches = tuple([cache.CompiledLaunch(p.symbol + suffix, p.tasks, p.cost, p.restores) for p in routine.launches])
            shared = tuple([self._shared.compile(function) for function in routine.shared])
            compiled = cache.Compiled(compile_object(routine.text, suffix), launches, routine.workspace, shared)
        except CompilerError as error:
            raise RefusedRoutine(key, error) from error
        cache.write_compiled(name, compiled)
        return name, compiled

    def _load(self, entries: Mapping[str, cache.Compiled]) -> dict[str, LoadedRoutine]:
        """Load routines and their shared functions at once, little slower than one."""
        if not entries:
            return {}
        symbols = [launch.symbol for compiled in entries.values() for launch in compiled.launches]
        shared = dict.fromkeys([name for compiled in entries.values() for name in compiled.shared])
        codes = [*[compiled.code for compiled in entries.values()], *self._shared.codes(shared)]
        loaded = load_objects(codes, symbols)
        addresses = dict(zip(symbols, loaded.addresses, strict=True))
        return {entry: _loaded_routine(entry, compiled, addresses, loaded) for entry, compiled in entries.items()}


def _loaded_routine(entry: str, compiled: cache.Compiled, addresses: Mapping[str, int], code: LoadedCode) -> LoadedRoutine:
    launches = []
    for number, launch in enumerate(compiled.launches):
        following = compiled.launches[number + 1 : number + 2]
        mode = _mode_of(launch, before_restoring=any(f.restores for f in following))
        launches.append(LoadedLaunch(addresses[launch.symbol], launch.tasks, mode, launch.symbol, entry, code))
    return LoadedRoutine(tuple(launches), compiled.workspace, sum(launch.cost for launch in compiled.launches))


def _mode_of(launch: cache.CompiledLaunch, *, before_restoring: bool) -> Mode:
    """Return how a launch runs.

    A handler that raised must not end the program between a launch that changes something and the next one, which restores it.
    """
    long = launch.cost > _WORTH_SHARING
    polls = (long or launch.restores) and not before_restoring
    return (Mode.SHARED if long and launch.tasks > 1 else Mode(0)) | (Mode.POLLS if polls else Mode(0))


CODE_CACHE = CodeCache()

"""Compiled routines: loaded in the process by their keys, and cached on disk."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Literal, NamedTuple

from volta_fn.compiler.target import RoutineKey
from volta_fn.errors import CompilerError
from volta_fn.runtime.caches import Recent
from volta_fn.runtime.llvm.machine import LoadedCode, compile_object, load_objects
from volta_fn.runtime.llvm.text import SharedFunction
from volta_fn.runtime.threads import run_together, thread_count
from volta_fn.targets.cpu.runtime import cache
from volta_fn.targets.cpu.runtime.executor import Mode

#: A launch that costs fewer nanoseconds is run by one thread: waking another takes about as long.
_WORTH_SHARING = 20_000.0
#: Routines that are kept for other programs.
_MOST = 512


class LoadedLaunch(NamedTuple):
    """A launch at an address, by its name in an object."""

    address: int
    tasks: int
    mode: int
    symbol: str
    #: The name of the object's entry on disk.
    entry: str
    #: What the address is in.
    code: LoadedCode


class LoadedRoutine(NamedTuple):
    """A routine ready to run."""

    launches: tuple[LoadedLaunch, ...]
    workspace: int
    #: Estimated nanoseconds on one thread.
    cost: float


class RefusedRoutine(Exception):
    """A routine that LLVM refuses, by its key.

    Who has the program knows the equations.
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
        """Compile a function unless it is there or another thread does; return its name."""
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
            found = cache.read_compiled(name)
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
    found = cache.read_compiled(name)
    if found is None:
        # The text has nothing that passes could remove.
        found = cache.Compiled(compile_object(function.text, clean=False))
        cache.write_compiled(name, found)
    return found.code


class CodeCache:
    """The routines that this process used last.

    Programs keep those that they use; others are freed.
    """

    def __init__(self) -> None:
        #: By their keys; False for keys without a routine.
        self._recent: Recent[LoadedRoutine | Literal[False]] = Recent(_MOST)
        self._shared = SharedCode()

    def load(self, keys: Sequence[RoutineKey]) -> list[LoadedRoutine | None]:
        """Load routines, compiling the new ones on several threads."""
        found = {k.key: self._recent.get(k.key) for k in keys}
        missing = list({k.key: k for k in keys if found[k.key] is None}.values())
        compiled = run_together([partial(self._compiled, key) for key in missing], thread_count())
        loaded = self._load(dict([made for made in compiled if made is not None]))
        for key, made in zip(missing, compiled, strict=True):
            found[key.key] = self._recent.setdefault(key.key, False if made is None else loaded[made[0]])
        return [found[k.key] or None for k in keys]

    def _compiled(self, key: RoutineKey) -> tuple[str, cache.Compiled] | None:
        """Return a routine, compiled if need be, and the name of its entry on disk."""
        name = cache.name_of(repr(key.key))
        found = cache.read_compiled(name)
        if found is None or not all(map(self._shared.has, found.shared)):
            return self._generated(key, name)
        return name, found

    def _generated(self, key: RoutineKey, name: str) -> tuple[str, cache.Compiled] | None:
        try:
            routine = key.make()
            if routine is None:
                return None
            suffix = f"_{name}"  # so that the routines of a program can be loaded together
            launches = tuple([(p.symbol + suffix, p.tasks, p.cost, p.restores) for p in routine.launches])
            shared = tuple([self._shared.compile(function) for function in routine.shared])
            compiled = cache.Compiled(compile_object(routine.text, suffix), launches, routine.workspace, shared)
        except CompilerError as error:
            raise RefusedRoutine(key, error) from error
        cache.write_compiled(name, compiled)
        return name, compiled

    def _load(self, entries: Mapping[str, cache.Compiled]) -> dict[str, LoadedRoutine]:
        """Load routines at once, with what they share: little slower than loading one."""
        if not entries:
            return {}
        symbols = [symbol for compiled in entries.values() for symbol, *_ in compiled.launches]
        shared = dict.fromkeys([name for compiled in entries.values() for name in compiled.shared])
        codes = [*[compiled.code for compiled in entries.values()], *self._shared.codes(shared)]
        loaded = load_objects(codes, symbols)
        addresses = dict(zip(symbols, loaded.addresses, strict=True))
        return {entry: _ready(entry, compiled, addresses, loaded) for entry, compiled in entries.items()}


def _ready(entry: str, compiled: cache.Compiled, addresses: Mapping[str, int], code: LoadedCode) -> LoadedRoutine:
    restored = [*[restores for *_, restores in compiled.launches[1:]], False][: len(compiled.launches)]  # none of results without elements
    launches = [
        LoadedLaunch(addresses[symbol], tasks, _mode(tasks, cost, restores, before_restoring), symbol, entry, code)
        for (symbol, tasks, cost, restores), before_restoring in zip(compiled.launches, restored, strict=True)
    ]
    return LoadedRoutine(tuple(launches), compiled.workspace, sum(cost for _, _, cost, _ in compiled.launches))


def _mode(tasks: int, cost: float, restores: bool, before_restoring: bool) -> int:
    long = cost > _WORTH_SHARING
    ends = (long or restores) and not before_restoring
    return (Mode.SHARED if long and tasks > 1 else 0) | (Mode.ENDS if ends else 0)


CODE_CACHE = CodeCache()

"""Routines compiled, loaded, and kept: in the process by what they are of, and on disk."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from volta_fn.backends.native.llvm.machine import compile_object, load_objects
from volta_fn.backends.native.runtime import objects
from volta_fn.backends.native.runtime.pool import thread_count
from volta_fn.compiler.bodies import Source

#: A phase that costs less than this many nanoseconds is done by one thread: waking another takes about as long.
_WORTH_SHARING = 20_000.0


class LoadedPhase(NamedTuple):
    """A phase at an address, of a name in an object."""

    address: int
    tasks: int
    shared: bool
    symbol: str
    #: The name of the object's entry on disk.
    entry: str


class Loaded(NamedTuple):
    """A routine ready to run."""

    phases: tuple[LoadedPhase, ...]
    workspace: int
    #: Nanoseconds, roughly, on one thread.
    cost: float


class Library:
    """The routines of this process. None stands for what has no routine."""

    def __init__(self) -> None:
        self._loaded: dict[Any, Loaded | None] = {}
        self._lock = threading.Lock()

    def load(self, sources: Sequence[Source]) -> list[Loaded | None]:
        """The routines, those that are new compiled on several threads."""
        missing = list({s.key: s for s in sources if s.key not in self._loaded}.values())
        if len(missing) > 1 and thread_count() > 1:
            with ThreadPoolExecutor(thread_count()) as threads:
                compiled = list(threads.map(_compiled, missing))
        else:
            compiled = [_compiled(source) for source in missing]
        loaded = _loaded(dict([found for found in compiled if found is not None]))
        with self._lock:
            for source, found in zip(missing, compiled, strict=True):
                self._loaded.setdefault(source.key, None if found is None else loaded[found[0]])
        return [self._loaded[s.key] for s in sources]


def _compiled(source: Source) -> tuple[str, objects.Compiled] | None:
    """The name of its entry on disk, which no other routine has, and what is or might be in it."""
    name = objects.name_of(repr(source.key))
    found = objects.read_compiled(name)
    if found is None:
        routine = source.make()
        if routine is None:
            return None
        suffix = f"_{name}"  # so that the routines of a program can be loaded together
        phases = tuple([(p.symbol + suffix, p.tasks, p.cost) for p in routine.phases])
        found = objects.Compiled(compile_object(routine.text, suffix), phases, routine.workspace)
        objects.write_compiled(name, found)
    return name, found


def _loaded(entries: Mapping[str, objects.Compiled]) -> dict[str, Loaded]:
    """Routines loaded, all at once, which takes little longer than loading one of them."""
    if not entries:
        return {}
    symbols = [symbol for compiled in entries.values() for symbol, _, _ in compiled.phases]
    addresses = dict(zip(symbols, load_objects([compiled.code for compiled in entries.values()], symbols), strict=True))

    def ready(entry: str, compiled: objects.Compiled) -> Loaded:
        phases = [
            LoadedPhase(addresses[symbol], tasks, tasks > 1 and cost > _WORTH_SHARING, symbol, entry)
            for symbol, tasks, cost in compiled.phases
        ]
        return Loaded(tuple(phases), compiled.workspace, sum(cost for _, _, cost in compiled.phases))

    return {entry: ready(entry, compiled) for entry, compiled in entries.items()}


LIBRARY = Library()

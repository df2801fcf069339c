"""The programs of one jitted function, and how a call finds its own.

What takes least is tried first: trees of a known structure are taken apart by code of their own (`matchers`), arguments that are arrays are
known by their types (`fast`), other trees by structure and types (`fast`, too); what is left is a `Request`, which may have to be traced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from volta_fn import tree
from volta_fn.core.array import Array, ConcreteArray
from volta_fn.core.axes import axis_environment
from volta_fn.core.device import current_default_device
from volta_fn.core.flatten import function_name
from volta_fn.jit.arguments import Request, call_key
from volta_fn.jit.programs import Traced, trace_function
from volta_fn.lazy_imports import load

if TYPE_CHECKING:
    from volta_fn.tree.matching import Match

#: Programs kept per function before all are dropped, and structures of arguments that are taken apart by code of their own.
_CACHE_LIMIT = 4096
_MATCHERS = 4

#: A compiled program: the result's pytree for a sequence of concrete arrays.
Run = Callable[[Sequence[Any]], Any]

#: What takes trees of one structure apart, and what runs calls by such trees, by their arrays' types.
Matcher = tuple["Match", dict[Any, Run]]


class Cache:
    """Traced and compiled programs of one function, by structure and types of its arguments."""

    def __init__(self) -> None:
        self.traced: dict[Any, Traced] = {}
        #: Of calls by arrays: compiled programs by their types, and what a traced call needs by theirs.
        self.fast: dict[Any, Run] = {}
        self.met: dict[Any, tuple[dict[str, Any], Run]] = {}
        #: Of calls by trees of arrays that were made before.
        self.matchers: list[Matcher] = []
        self.structures: set[Any] = set()
        #: Structures for which there is no such code: it cannot be written, or there were others before.
        self.without_code: set[Any] = set()
        self.lock = threading.Lock()
        self.traces = 0

    # compiled programs

    def by_structure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Run, list[Any]] | None:
        """What runs a call of a function without static arguments, and its arrays, if there was one of this structure and types."""
        leaves, structure = tree.flatten((args, kwargs))
        try:
            run = self.fast.get((structure, *[x._spec for x in leaves]))
        except AttributeError:  # some leaf is no array
            return None
        if run is None:
            return None
        if not kwargs and structure not in self.without_code:
            self.learn(structure, args, leaves, run)
        return run, leaves

    def learn(self, structure: Any, args: tuple[Any, ...], leaves: Sequence[Any], run: Run) -> None:
        """Let calls like this one find what runs them without looking at every node of their arguments."""
        with self.lock:
            if structure not in self.structures:
                match = _matcher(structure, args) if len(self.matchers) < _MATCHERS else None
                if match is None:
                    self.without_code.add(structure)
                    return
                self.structures.add(structure)
                self.matchers.append((match, {}))
            for match, programs in self.matchers:
                if match(args) is not None:
                    programs[tuple([x._spec for x in leaves])] = run

    def remember(self, request: Request, run: Run) -> None:
        """Note what runs calls like this one, under the key that the next one finds it by, if its arguments are arrays on a device."""
        args, argnums = request.args, request.statics.argnums
        if request.statics.some and not request.kwargs and all(a is None or type(a) is ConcreteArray for a in request.dynamic_args):
            places = [i for i, a in enumerate(args) if i not in argnums and a is not None]
            self.fast[call_key(argnums, len(args), "_spec")(*args)] = _of_places(run, places)
        elif not request.statics.some and all(type(x) is ConcreteArray for x in request.leaves):
            flat_call = not request.kwargs and len(args) == len(request.leaves) > 0 and all(type(a) is ConcreteArray for a in args)
            specs = tuple([x._spec for x in request.leaves])
            self.fast[specs if flat_call else (request.in_tree, *specs)] = run

    # traced programs

    def program(self, request: Request, values: Sequence[Array]) -> Traced:
        """The program of a call, traced if there is none for its types."""
        avals = tuple([v.aval for v in values])
        key = (request.key, avals, axis_environment(), current_default_device())
        found = self.traced.get(key)
        if found is not None:
            return found
        # No lock is held while tracing: the function may call other jitted functions, which other threads may be tracing.
        traced = trace_function(request.function, values, request.in_tree, avals, function_name(request.fun))
        traced.donated = request.donated()
        return traced if traced.captured else self.keep(key, traced)

    def keep(self, key: Any, traced: Traced) -> Traced:
        """Store a program; if another thread was faster, its program is the one to use."""
        with self.lock:
            self.traces += 1
            if len(self.traced) >= _CACHE_LIMIT:
                self._drop()
            return self.traced.setdefault(key, traced)

    def clear(self) -> None:
        """Forget all programs."""
        with self.lock:
            self._drop()

    def _drop(self) -> None:
        for programs in (self.traced, self.fast, self.met, self.matchers, self.structures, self.without_code):
            programs.clear()


def matched(matchers: Sequence[Matcher], args: tuple[Any, ...]) -> tuple[Run, list[Any]] | None:
    """What runs a call by trees that were met before, and their arrays; None if there is nothing."""
    for match, programs in matchers:
        leaves = match(args)
        if leaves is None:
            continue
        try:
            run = programs.get(tuple([x._spec for x in leaves]))
        except AttributeError:  # a tree, or a number, in the place of an array
            continue
        if run is not None:
            return run, leaves
    return None


def _matcher(structure: Any, args: tuple[Any, ...]) -> Match | None:
    made: Match | None = load("volta_fn.tree.matching").matcher(structure.child(0), args)
    return made


def _of_places(run: Run, places: list[int]) -> Run:
    """`run` of all arguments, of which it takes those at the places."""
    first, last = (places[0], places[-1] + 1) if places else (0, 0)
    if last - first == len(places):
        return lambda args: run(args[first:last])
    return lambda args: run([args[i] for i in places])

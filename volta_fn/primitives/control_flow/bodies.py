"""Bodies: users' functions, traced to the sub-programs of control flow.

A body is traced once per function and argument types. An eager loop that scans with one function thus does not trace it again and
again. A program that captured tracers belongs to one call and is never kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any, ClassVar, NamedTuple

from volta_fn import tree
from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.axes import axis_environment
from volta_fn.core.device import current_default_device
from volta_fn.core.flatten import FlatFunction, argument_labels, function_name
from volta_fn.core.interned import Attached
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.staging import hoist_tracers, trace_to_jaxpr

#: Functions whose programs are kept, and programs kept per function, before all are dropped.
_FUNCTIONS, _PROGRAMS = 512, 64


class Body(NamedTuple):
    """A function's program from captured values and arguments to the result's leaves."""

    jaxpr: ClosedJaxpr
    out_tree: tree.TreeDef
    #: The outer tracers that the function closed over; the leading inputs stand for them.
    captured: list[Array]
    #: The positions of weakly typed arguments that meet 64-bit dtypes. If there are some, trace again with these `widened`.
    in_full: list[int]


class Adapted:
    """A user's function with another signature.

    Its programs are kept with those of the user's function, its `owner`.
    """

    #: How many keys of a path into the carry are ours, not the user's.
    hidden_keys: ClassVar[int] = 0

    def __init__(self, owner: Callable[..., Any]) -> None:
        self.owner = owner


def trace_body(function: Callable[..., Any], args: Sequence[Any], avals: Sequence[ShapedArray]) -> Body:
    """Trace ``function(*args)``.

    Only the structure of the arguments matters; `avals` are their leaves' types.
    """
    in_tree = tree.structure((tuple(args), {}))
    owner = function.owner if isinstance(function, Adapted) else function
    key = (type(function), in_tree, tuple(avals), axis_environment(), current_default_device())
    found = _kept.find(owner, key)
    if found is not None:
        return found
    flat, in_full = FlatFunction(function, in_tree), list[int]()
    closed = trace_to_jaxpr(flat, avals, function_name(owner), argument_labels(function, in_tree, len(avals)), in_full)
    program, captured = hoist_tracers(closed)
    body = Body(program, flat.out_tree, captured, in_full)
    return body if captured else _kept.keep(owner, key, body)


class _Kept(NamedTuple):
    body: Body
    #: The names of globals that the function may read, and their values and those of its closure when it was traced.
    names: tuple[str, ...]
    seen: list[Any]


class _Bodies:
    """Programs by function, for as long as the function lives.

    A function that sees other closed-over or global values is traced again.
    """

    def __init__(self) -> None:
        self.by_function: Attached[FunctionType, dict[Any, _Kept]] = Attached()
        self.lock = threading.Lock()

    def find(self, function: Any, key: Any) -> Body | None:
        """Return the program kept under the key, if it still holds.

        Only plain functions have one: other callables may change unseen.
        """
        if type(function) is not FunctionType:
            return None
        with self.lock:
            kept = (self.by_function.get(function) or {}).get(key)
        if kept is None or not _same(kept.seen, _visible(function, kept.names)):
            return None
        return kept.body

    def keep(self, function: Any, key: Any, body: Body) -> Body:
        """Keep a program, and return it."""
        if type(function) is FunctionType:
            names = tuple(set(_names(function.__code__)))
            kept = _Kept(body, names, _visible(function, names))
            with self.lock:
                programs = self.by_function.get(function)
                if programs is None:
                    if len(self.by_function) >= _FUNCTIONS:
                        self.by_function.clear()
                    programs = {}
                    self.by_function.attach(function, programs)
                if len(programs) >= _PROGRAMS:
                    programs.clear()
                programs[key] = kept
        return body


_kept = _Bodies()


def _names(code: CodeType) -> Iterator[str]:
    """Return the names that a function and its nested functions look up outside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _visible(function: FunctionType, names: Sequence[str]) -> list[Any]:
    """Return all that the function can see except its arguments."""
    cells = [_content(cell) for cell in function.__closure__ or ()]
    return [*cells, *[function.__globals__.get(n) for n in names], function.__code__, function.__defaults__, function.__kwdefaults__]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _same(old: Sequence[Any], new: Sequence[Any]) -> bool:
    return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))

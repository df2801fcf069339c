"""Destinations of cotangents, which `VJP.with_refs` adds to references or drops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from volta_fn import tree
from volta_fn.core.refs import Ref
from volta_fn.dtypes import float0
from volta_fn.errors import ArgumentError, RefError
from volta_fn.primitives.elementwise.arithmetic import add


class _Marker:
    """A value without contents; those of one class are equal."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))


class GradValue(_Marker):
    """A destination of `VJP.with_refs`: return the argument's cotangent (the default)."""


class DontWant(_Marker):
    """A destination of `VJP.with_refs`: drop the argument's cotangent."""


class GradRef(_Marker):
    """A placeholder for a cotangent that was added to a reference."""


class DidntWant(_Marker):
    """A placeholder for a cotangent that was not requested."""


class RefSlots(NamedTuple):
    """The structure of a function's ``(args, {})``, and which leaves are references."""

    in_tree: Any
    positions: tuple[int, ...]


def apply_with_refs(vjp_fun: Callable[[Any], Any], slots: RefSlots, entries: Sequence[Any], cotangent: Any) -> Any:
    """Return the arguments' cotangents, or accumulate them in references.

    A reference's last value is a result, whose cotangent the entry holds; then it holds that of the first value.
    """
    args = tree.unflatten(slots.in_tree, list(range(slots.in_tree.num_leaves)))[0]
    if len(entries) != len(args):
        raise ArgumentError(f"with_refs takes one entry per argument: {len(args)}, got {len(entries)}")
    destinations = tree.broadcast_prefix(tuple(entries), args)
    for entry in destinations:
        if not isinstance(entry, (Ref, GradValue, DontWant)):
            raise ArgumentError(f"an entry of with_refs is a reference, GradValue() or DontWant(), got {entry!r:.80}")
    if slots.positions:
        cotangent = cotangent, [_last_cotangent(destinations[i]) for i in slots.positions]
    cotangents = tree.leaves(vjp_fun(cotangent))
    results = [_deliver(e, c, i in slots.positions) for i, (e, c) in enumerate(zip(destinations, cotangents, strict=True))]
    return tree.unflatten(slots.in_tree, results)[0]


def _last_cotangent(entry: Any) -> Any:
    """Return the cotangent of the last value of a reference."""
    if isinstance(entry, Ref):
        return entry.get()
    raise RefError("the gradient by a reference must be accumulated into a reference: give with_refs one for that argument")


def _deliver(entry: Any, cotangent: Any, replaces: bool) -> Any:
    """Bring a cotangent to its destination; return what stands for it in the result."""
    if isinstance(entry, DontWant):
        return DidntWant()
    if isinstance(entry, GradValue):
        return cotangent
    if cotangent.dtype == float0:
        raise RefError("an integer argument has no gradient to accumulate in a reference: give with_refs GradValue() for it")
    entry[...] = cotangent if replaces else add(entry.get(), cotangent)
    return GradRef()

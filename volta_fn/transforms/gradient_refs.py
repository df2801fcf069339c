"""Where cotangents go: `VJP.with_refs` adds them to references, or drops them."""

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
    """Asks `VJP.with_refs` to return an argument's cotangent, as it does by default."""


class DontWant(_Marker):
    """Asks `VJP.with_refs` for no cotangent of an argument."""


class GradRef(_Marker):
    """Stands for a cotangent that was added to a reference."""


class DidntWant(_Marker):
    """Stands for a cotangent that was not wanted."""


class RefSlots(NamedTuple):
    """The structure of a function's ``(args, {})``, and which leaves are references."""

    in_tree: Any
    positions: tuple[int, ...]


def apply_with_refs(pull_back: Callable[[Any], Any], slots: RefSlots, entries: Sequence[Any], cotangent: Any) -> Any:
    """Return cotangents of the arguments; add those with a reference as entry to it.

    A reference's last value is a result, whose cotangent the entry holds; then it holds that of the first value.
    """
    args = tree.unflatten(slots.in_tree, list(range(slots.in_tree.num_leaves)))[0]
    if len(entries) != len(args):
        raise ArgumentError(f"with_refs takes one entry per argument: {len(args)}, got {len(entries)}")
    wanted = tree.broadcast_prefix(tuple(entries), args)
    for entry in wanted:
        if not isinstance(entry, (Ref, GradValue, DontWant)):
            raise ArgumentError(f"an entry of with_refs is a reference, GradValue() or DontWant(), got {entry!r:.80}")
    if slots.positions:
        cotangent = cotangent, [_seed(wanted[i]) for i in slots.positions]
    found = tree.leaves(pull_back(cotangent))
    placed = [_destined(e, c, i in slots.positions) for i, (e, c) in enumerate(zip(wanted, found, strict=True))]
    return tree.unflatten(slots.in_tree, placed)[0]


def _seed(entry: Any) -> Any:
    """Return the cotangent of the last value of a reference."""
    if isinstance(entry, Ref):
        return entry.get()
    raise RefError("the gradient by a reference must be accumulated into a reference: give with_refs one for that argument")


def _destined(entry: Any, cotangent: Any, replaces: bool) -> Any:
    if isinstance(entry, DontWant):
        return DidntWant()
    if isinstance(entry, GradValue):
        return cotangent
    if cotangent.dtype == float0:
        raise RefError("an integer argument has no gradient to accumulate in a reference: give with_refs GradValue() for it")
    entry[...] = cotangent if replaces else add(entry.get(), cotangent)
    return GradRef()

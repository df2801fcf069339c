"""Names of a tree's leaves: dotted paths such as `encoder.layers.0.weight`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable
from typing import Any

from volta_fn import tree
from volta_fn.errors import StateDictError


def leaves_by_name(node: Any) -> dict[str, Any]:
    """Return the leaves of a tree by name; `StateDictError` for duplicate names."""
    found: dict[str, Any] = {}
    for path, leaf in tree.leaves_with_path(node):
        name = dotted(path)
        if name in found:
            raise StateDictError(f"two leaves of the tree have the name {name!r}; keys of dicts should not contain dots")
        found[name] = leaf
    return found


def dotted(path: tree.KeyPath) -> str:
    """Return a leaf's name.

    >>> dotted((tree.GetAttrKey("layers"), tree.SequenceKey(0), tree.DictKey("weight")))
    'layers.0.weight'
    """
    return tree.keystr(path, simple=True, separator=".")


def joined(prefix: str, name: str) -> str:
    """Return the name of a child."""
    return f"{prefix}.{name}" if prefix else name


def children_by_name(node: Any) -> dict[str, Any] | None:
    """Return a node's children by name, in order; None for a leaf."""
    pairs = tree.leaves_with_path(node, is_leaf=lambda value: value is not node)
    if len(pairs) == 1 and not pairs[0][0]:
        return None
    return {dotted(path): child for path, child in pairs}


def corresponding(template: Any, available: Iterable[str]) -> dict[str, str]:
    """Map the name of each leaf of the template to its name in `available`.

    They are the same, except that a child whose name does not occur may be there by its position in its parent: a `Sequential` with
    names takes parameters of one without.

    >>> corresponding({"encoder": 1, "decoder": {"w": 2}}, ["encoder", "0.w"])
    {'decoder.w': '0.w', 'encoder': 'encoder'}
    """
    known = Prefixes(available)
    found: dict[str, str] = {}

    def visit(node: Any, ours: str, theirs: str) -> None:
        children = matching_children(node, theirs, known)
        if children is None:
            found[ours] = theirs
            return
        for name, other, child in children:
            visit(child, joined(ours, name), other)

    visit(template, "", "")
    return found


def matching_children(node: Any, prefix: str, known: Container[str]) -> list[tuple[str, str, Any]] | None:
    """Return the names and values of a node's children; None for a leaf.

    Each entry has the child's name, its full name below `prefix` in the other tree (see `corresponding`), and the child.
    """
    children = children_by_name(node)
    if children is None:
        return None
    taken = children.keys()
    found = []
    for position, (name, child) in enumerate(children.items()):
        by_name, by_position = joined(prefix, name), joined(prefix, str(position))
        numbered = by_name not in known and by_position in known and str(position) not in taken
        found.append((name, by_position if numbered else by_name, child))
    return found


class Prefixes:
    """Some names, and all their prefixes that end before a dot.

    They are found by search, not stored: a name of n dots has prefixes of n² characters.

    >>> [prefix in Prefixes(["a.b.c", "a.bc"]) for prefix in ("a", "a.b", "a.b.c", "a.bc", "a.", "b")]
    [True, True, True, True, False, False]
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)

    def __contains__(self, prefix: object) -> bool:
        return (
            isinstance(prefix, str)
            and prefix != ""
            and (self._begins(prefix) == prefix or self._begins(f"{prefix}.").startswith(f"{prefix}."))
        )

    def _begins(self, start: str) -> str:
        """Return the first name in order that is not before `start`, or nothing."""
        position = bisect_left(self._names, start)
        return self._names[position] if position < len(self._names) else ""

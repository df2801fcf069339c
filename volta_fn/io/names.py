"""Names of a tree's leaves: the keys of their paths with dots between them, `encoder.layers.0.weight`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from volta_fn import tree
from volta_fn.errors import StateDictError


def leaves_by_name(node: Any) -> dict[str, Any]:
    """The leaves of a tree by their names. Raises `StateDictError` if two have the same."""
    found: dict[str, Any] = {}
    for path, leaf in tree.leaves_with_path(node):
        name = dotted(path)
        if name in found:
            raise StateDictError(f"two leaves of the tree have the name {name!r}; a dict's keys should have no dots in them")
        found[name] = leaf
    return found


def dotted(path: tree.KeyPath) -> str:
    """A leaf's name.

    >>> dotted((tree.GetAttrKey("layers"), tree.SequenceKey(0), tree.DictKey("weight")))
    'layers.0.weight'
    """
    return tree.keystr(path, simple=True, separator=".")


def joined(prefix: str, name: str) -> str:
    """The name of something below another."""
    return f"{prefix}.{name}" if prefix else name


def children_by_name(node: Any) -> dict[str, Any] | None:
    """A node's children by their names, in order; None if it is a leaf."""
    pairs = tree.leaves_with_path(node, is_leaf=lambda value: value is not node)
    if len(pairs) == 1 and not pairs[0][0]:
        return None
    return {dotted(path): child for path, child in pairs}


def corresponding(template: Any, available: Iterable[str]) -> dict[str, str]:
    """For each leaf of the template its name and the one under which it is looked for among the available ones.

    Those are the same, except that a child whose name does not occur may stand under its position in its parent: a `Sequential` with
    names takes parameters that were saved from one without.

    >>> corresponding({"encoder": 1, "decoder": {"w": 2}}, ["encoder", "0.w"])
    {'decoder.w': '0.w', 'encoder': 'encoder'}
    """
    known = prefixes(available)
    found: dict[str, str] = {}

    def visit(node: Any, ours: str, theirs: str) -> None:
        places = places_of_children(node, theirs, known)
        if places is None:
            found[ours] = theirs
            return
        for name, place, child in places:
            visit(child, joined(ours, name), place)

    visit(template, "", "")
    return found


def places_of_children(node: Any, prefix: str, known: Collection[str]) -> list[tuple[str, str, Any]] | None:
    """The children of a node: the name of each, where it stands below `prefix` (see `corresponding`), and itself. None for a leaf."""
    children = children_by_name(node)
    if children is None:
        return None
    taken = children.keys()
    places = []
    for position, (name, child) in enumerate(children.items()):
        by_name, by_position = joined(prefix, name), joined(prefix, str(position))
        numbered = by_name not in known and by_position in known and str(position) not in taken
        places.append((name, by_position if numbered else by_name, child))
    return places


def prefixes(names: Iterable[str]) -> set[str]:
    """The names themselves, and what is before each of their dots."""
    return {prefix for name in names for prefix in _with_prefixes(name)}


def _with_prefixes(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]

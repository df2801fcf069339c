"""Taking trees of one structure apart, again and again.

Walking a tree without knowing what it is takes longer than a small step of training needs to begin. Where the structure is known from calls
before, generated code only looks whether a tree has it, and reads the leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.tree.registry import FIELDS
from volta_fn.tree.structures import TreeDef

#: Leaves of the largest tree for which code is generated.
_MOST_LEAVES = 1000

#: The leaves of a tree of the known structure, in the order of `flatten`; None for other trees. What is in the place of a leaf is not
#: looked at: it may be a tree.
Match = Callable[[Any], list[Any] | None]


def matcher(treedef: TreeDef, example: Any) -> Match | None:
    """What takes trees of the same structure as an example's apart. None if there are nodes that only their own functions take apart.

    >>> from volta_fn import tree
    >>> example = {"b": (1, None), "a": 2}
    >>> match = matcher(tree.structure(example), example)
    >>> match({"a": 3, "b": (4, None)})
    [3, 4]
    >>> match({"a": 3, "b": (4, 5)}) is None
    True
    """
    source = _Source()
    if treedef.num_leaves > _MOST_LEAVES or not source.look(treedef, example, "tree"):
        return None
    body = "\n".join(f"        {line}" for line in [*source.lines, f"return [{', '.join(source.leaves)}]"])
    exec(f"def match(tree):\n    try:\n{body}\n    except KeyError:\n        return None\n", source.values)
    made: Match = source.values["match"]
    return made


class _Source:
    """Statements that look at a tree, the expressions of its leaves, and the objects that they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.leaves: list[str] = []
        self.values: dict[str, Any] = {}
        self.count = 0

    def look(self, treedef: TreeDef, node: Any, place: str) -> bool:
        """Add what looks at a node, which is in a place. False if that cannot be written."""
        kind, count = treedef.type, treedef.num_children
        if kind is None:
            self.leaves.append(place)
            return True
        name = self.variable()
        self.lines.append(f"{name} = {place}")
        same = f"type({name}) is {self.value(kind)}"
        if kind in FIELDS:
            data, meta = FIELDS[kind]
            for field in meta:
                static = self.value(getattr(node, field))
                same += f" and ({name}.{field} is {static} or {name}.{field} == {static})"
            parts, places = [getattr(node, field) for field in data], [f"{name}.{field}" for field in data]
        elif kind is dict:
            same += f" and len({name}) == {count}"
            keys = treedef.entries()
            parts, places = [node[key] for key in keys], [f"{name}[{repr(key) if type(key) is str else self.value(key)}]" for key in keys]
        elif kind in (tuple, list) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
            same += f" and len({name}) == {count}"
            parts, places = [*node], [f"{name}[{i}]" for i in range(count)]
        elif node is None:
            parts, places = [], []
        else:
            return False
        self.lines.append(f"if not ({same}): return None")
        return all(self.look(*child) for child in zip(treedef.children(), parts, places, strict=True))

    def variable(self) -> str:
        """A new variable."""
        self.count += 1
        return f"v{self.count}"

    def value(self, value: Any) -> str:
        """A name for an object."""
        name = f"c{len(self.values)}"
        self.values[name] = value
        return name

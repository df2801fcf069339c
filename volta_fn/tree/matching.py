"""Generated code that checks the structure of a tree and reads its leaves.

Flattening a tree takes longer than a small training step needs to start. Where the structure is known from earlier calls, generated code
only checks that a tree has it, and reads the leaves. Its text has counters and the fields of classes, never the keys of dicts or other
values, which it names.
"""

from __future__ import annotations

from collections.abc import Callable
from keyword import iskeyword
from typing import Any

from volta_fn.tree.registry import FIELDS
from volta_fn.tree.structures import TreeDef

#: Leaves of the largest tree for which code is generated.
_MOST_LEAVES = 1000

#: Returns the leaves of a tree of the known structure, in the order of `flatten`; None for other trees. Leaves are not examined, so one
#: of them may be a tree.
Match = Callable[[Any], list[Any] | None]


def matcher(treedef: TreeDef, example: Any) -> Match | None:
    """Generate code for trees of the structure of `example`.

    None if some nodes can only be flattened by their own functions.

    >>> from volta_fn import tree
    >>> example = {"b": (1, None), "a": 2}
    >>> match = matcher(tree.structure(example), example)
    >>> match({"a": 3, "b": (4, None)})
    [3, 4]
    >>> match({"a": 3, "b": (4, 5)}) is None
    True
    """
    source = _Source()
    if treedef.num_leaves > _MOST_LEAVES or not source.visit(treedef, example, "tree"):
        return None
    body = "\n".join(f"        {statement}" for statement in [*source.statements, f"return [{', '.join(source.leaves)}]"])
    exec(f"def match(tree):\n    try:\n{body}\n    except KeyError:\n        return None\n", source.values)
    match: Match = source.values["match"]
    return match


class _Source:
    """The generated statements, the leaves' expressions, and the objects they name."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.leaves: list[str] = []
        self.values: dict[str, Any] = {}
        self.count = 0

    def visit(self, treedef: TreeDef, node: Any, expression: str) -> bool:
        """Generate code for a node, the value of `expression`; return False if impossible."""
        kind, count = treedef.type, treedef.num_children
        if kind is None:
            self.leaves.append(expression)
            return True
        name = self.variable()
        self.statements.append(f"{name} = {expression}")
        same = f"type({name}) is {self.value(kind)}"
        if kind in FIELDS:
            data, meta = FIELDS[kind]
            if not all(field.isidentifier() and not iskeyword(field) for field in (*data, *meta)):
                return False
            for field in meta:
                static = self.value(getattr(node, field))
                same += f" and ({name}.{field} is {static} or {name}.{field} == {static})"
            children, expressions = [getattr(node, field) for field in data], [f"{name}.{field}" for field in data]
        elif kind is dict:
            same += f" and len({name}) == {count}"
            keys = treedef.entries()
            children = [node[key] for key in keys]
            expressions = [f"{name}[{self.value(key)}]" for key in keys]
        elif kind in (tuple, list) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
            same += f" and len({name}) == {count}"
            children, expressions = [*node], [f"{name}[{i}]" for i in range(count)]
        elif node is None:
            children, expressions = [], []
        else:
            return False
        self.statements.append(f"if not ({same}): return None")
        return all(self.visit(*child) for child in zip(treedef.children(), children, expressions, strict=True))

    def variable(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def value(self, value: Any) -> str:
        name = f"c{len(self.values)}"
        self.values[name] = value
        return name

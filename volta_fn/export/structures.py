"""Structures of pytrees as JSON, without the classes of their nodes.

A leaf is "*", None is null. Lists, tuples and dictionaries are themselves, every other node is named with its children's names. Where a
process has not registered such a class for files (`register_pytree_node_serialization`, `register_namedtuple_serialization`), a
dictionary of the children by name stands for it, in results as in arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from volta_fn import tree
from volta_fn.errors import ArgumentError, CorruptFileError, ExportError, TreeError
from volta_fn.tree.keys import DictKey, FlattenedIndexKey, GetAttrKey, key_of

LEAF = "*"
C = TypeVar("C", bound=type)


class NodeForm(NamedTuple):
    """How the nodes of a class are in files."""

    name: str
    serialize: Callable[[Any], bytes | bytearray]
    deserialize: Callable[[bytes], Any]
    from_children: Callable[[Any, Sequence[Any]], Any]


_BY_CLASS: dict[type, NodeForm] = {}
_BY_NAME: dict[str, NodeForm] = {}


def register_pytree_node_serialization(
    nodetype: C,
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes | bytearray],
    deserialize_auxdata: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any],
) -> C:
    """Have files of exported functions keep the nodes of a registered pytree class.

    Args:
        nodetype: the class.
        serialized_name: its name in files, unique in a process.
        serialize_auxdata, deserialize_auxdata: the node's auxiliary data to bytes, and back.
        from_children: ``from_children(auxdata, children)`` returns a node.

    Raises `ArgumentError` if the class or the name is registered already. Without this, results have dictionaries in place of such nodes.

    >>> import volta_fn as vf
    >>> class Pair(list): ...
    >>> vf.tree_util.register_pytree_node(Pair, lambda p: (tuple(p), None), lambda _, children: Pair(children))
    >>> kept = register_pytree_node_serialization(
    ...     Pair, serialized_name="Pair", serialize_auxdata=lambda _: b"", deserialize_auxdata=lambda _: None,
    ...     from_children=lambda _, children: Pair(children))
    >>> exported = vf.export.export(vf.jit(lambda x: Pair([x, x])))(1.0)
    >>> type(vf.export.deserialize(exported.serialize()).call(1.0)).__name__
    'Pair'
    """
    if nodetype in _BY_CLASS or serialized_name in _BY_NAME:
        raise ArgumentError(f"{nodetype.__name__} or the name {serialized_name!r} is registered for files already")
    form = NodeForm(serialized_name, serialize_auxdata, deserialize_auxdata, from_children)
    _BY_CLASS[nodetype] = _BY_NAME[serialized_name] = form
    return nodetype


def register_namedtuple_serialization(nodetype: C, *, serialized_name: str) -> C:
    """Have files of exported functions keep a namedtuple; see the function for nodes.

    >>> from typing import NamedTuple
    >>> class Moments(NamedTuple):
    ...     mean: float
    >>> register_namedtuple_serialization(Moments, serialized_name="Moments") is Moments
    True
    """
    return register_pytree_node_serialization(
        nodetype,
        serialized_name=serialized_name,
        serialize_auxdata=lambda _: b"",
        deserialize_auxdata=lambda _: None,
        from_children=lambda _, children: nodetype(*children),
    )


def describe(treedef: tree.TreeDef) -> Any:
    """Return the JSON of a structure."""
    level = treedef.one_level()
    if level is None:
        return LEAF
    kind: Any = treedef.type
    children = [describe(child) for child in treedef.children()]
    if kind is type(None):
        return None
    if kind is list or kind is tuple:
        return {kind.__name__: children}
    keys = [_name(key_of(accessor[0])) for accessor in level.accessors()]
    if kind is dict:
        return {"dict": [[key, child] for key, child in zip(keys, children, strict=True)]}
    form = _BY_CLASS.get(kind)
    static = "" if form is None else form.serialize(_auxiliary(level)).hex()
    name = kind.__qualname__ if form is None else form.name
    return {"node": [name, static, [[str(key), child] for key, child in zip(keys, children, strict=True)]]}


def _auxiliary(level: tree.TreeDef) -> Any:
    return level.entry_data() if hasattr(level, "entry_data") else None


def _name(key: Any) -> str | int:
    name = key.key if isinstance(key, DictKey | FlattenedIndexKey) else key.name if isinstance(key, GetAttrKey) else key.idx
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise ExportError(f"a dictionary in an exported function's arguments or results has the key {name!r:.40}; keys must be str or int")
    return name


def leaf_count(form: Any) -> int:
    """Return the number of leaves of a structure."""
    return 1 if form == LEAF else sum([leaf_count(child) for _, child in _children(form)])


def _children(form: Any) -> list[tuple[Any, Any]]:
    if form is None:
        return []
    if form == LEAF or not isinstance(form, dict):
        raise CorruptFileError(f"{form!r:.40} is no structure of a pytree")
    ((kind, content),) = form.items()
    if kind in ("list", "tuple"):
        return list(enumerate(content))
    if kind not in ("dict", "node"):
        raise CorruptFileError(f"{kind!r:.40} is no node of a pytree")
    return [(key, child) for key, child in (content if kind == "dict" else content[2])]


def unflatten(form: Any, leaves: Iterator[Any]) -> Any:
    """Return the tree of a structure with these leaves."""
    if form == LEAF:
        return next(leaves)
    children = [(key, unflatten(child, leaves)) for key, child in _children(form)]
    if form is None:
        return None
    ((kind, content),) = form.items()
    values = [child for _, child in children]
    if kind in ("list", "tuple"):
        return values if kind == "list" else tuple(values)
    known = _BY_NAME.get(content[0]) if kind == "node" else None
    return dict(children) if known is None else known.from_children(known.deserialize(bytes.fromhex(content[1])), values)


def flatten(form: Any, value: Any, path: str = "") -> list[Any]:
    """Return a tree's leaves; raise `TreeError` if it has another structure."""
    if form == LEAF:
        if not tree.all_leaves([value]):
            raise TreeError(f"the exported function takes an array at {path or 'its root'}, got a {type(value).__name__}")
        return [value]
    wanted = _children(form)
    given = _given(value)
    if form is None:
        fits = value is None
    elif "node" in form and isinstance(value, dict):
        fits = given.keys() == {key for key, _ in wanted}
    else:
        fits = _kind(form) == _kind(_level(value)) and [*given] == [key for key, _ in wanted]
    if not fits:
        names = [key for key, _ in wanted]
        raise TreeError(
            f"the exported function takes {_words(form)} of {names} at {path or 'its root'}, got a {type(value).__name__} of {[*given]}"
        )
    return [leaf for key, child in wanted for leaf in flatten(child, given[key], f"{path}[{key!r}]")]


def _level(value: Any) -> Any:
    return describe(tree.structure(value, lambda node: node is not value))


def _kind(form: Any) -> Any:
    if not isinstance(form, dict):
        return form
    ((kind, content),) = form.items()
    return (kind, *content[:2]) if kind == "node" else kind


def _words(form: Any) -> str:
    kind = _kind(form)
    return f"a {kind[1]}, or a dictionary," if isinstance(kind, tuple) else "None, a tree" if kind is None else f"a {kind}"


def _given(value: Any) -> dict[Any, Any]:
    """Return a node's children by name."""
    if tree.all_leaves([value]):
        return {}
    pairs, treedef = tree.flatten_with_path(value, is_leaf=lambda node: node is not value)
    names = [key for key, _ in _children(describe(treedef))]
    return dict(zip(names, [child for _, child in pairs], strict=True))

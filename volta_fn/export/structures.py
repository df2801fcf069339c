"""Structures of pytrees in files, and how files store the nodes of users' classes."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from volta_fn import tree
from volta_fn.errors import ArgumentError, ArgumentTypeError, CorruptFileError, TreeError
from volta_fn.export.values import damaged
from volta_fn.random.keys import PRNGKeyArray
from volta_fn.tree.registry import DictKey, FlattenedIndexKey, GetAttrKey, key_of, registry_entry

# Structures of pytrees as JSON, without the classes of their nodes.
#
# A leaf is "*", None is null. Lists, tuples and dictionaries are themselves, every other node is named with its children's names. Where a
# process has not registered such a class for files (`register_pytree_node_serialization`, `register_namedtuple_serialization`), a
# dictionary of the children by name stands for it, in results as in arguments.

LEAF = "*"
C = TypeVar("C", bound=type)


class NodeForm(NamedTuple):
    """The representation of a class's nodes in files."""

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
    from_children: Callable[[Any, Sequence[Any]], Any] | None = None,
) -> C:
    """Register how files of exported functions store the nodes of a pytree class.

    Args:
        nodetype: the class.
        serialized_name: its name in files, unique in a process.
        serialize_auxdata, deserialize_auxdata: the node's auxiliary data to bytes, and back.
        from_children: ``from_children(auxdata, children)`` returns a node; without it the function that the class was registered with as
            a pytree does.

    Raises `ArgumentError` if the class or the name is registered already, or the class is no pytree and `from_children` is missing.
    Without this, results have dictionaries in place of such nodes.

    >>> import volta_fn as vf
    >>> class Pair(list): ...
    >>> vf.tree_util.register_pytree_node(Pair, lambda p: (tuple(p), None), lambda _, children: Pair(children))
    >>> _ = register_pytree_node_serialization(
    ...     Pair, serialized_name="Pair", serialize_auxdata=lambda _: b"", deserialize_auxdata=lambda _: None)
    >>> exported = vf.export.export(vf.jit(lambda x: Pair([x, x])))(1.0)
    >>> type(vf.export.deserialize(exported.serialize()).call(1.0)).__name__
    'Pair'
    """
    if nodetype in _BY_CLASS or serialized_name in _BY_NAME:
        raise ArgumentError(
            f"duplicate serialization registration: {nodetype.__name__} or the name {serialized_name!r} is registered for files already"
        )
    if from_children is None:
        entry = registry_entry(nodetype)
        if entry is None:
            raise ArgumentError(
                f"{nodetype.__name__} is no pytree: give from_children, or call register_pytree_node or register_pytree_node_class first"
            )
        from_children = entry.unflatten_func
    form = NodeForm(serialized_name, serialize_auxdata, deserialize_auxdata, from_children)
    _BY_CLASS[nodetype] = _BY_NAME[serialized_name] = form
    return nodetype


def register_namedtuple_serialization(nodetype: C, *, serialized_name: str) -> C:
    """Register a namedtuple for files of exported functions, as for other nodes.

    Raises `ArgumentError` for other classes.

    >>> from typing import NamedTuple
    >>> class Moments(NamedTuple):
    ...     mean: float
    >>> register_namedtuple_serialization(Moments, serialized_name="Moments") is Moments
    True
    """
    if not (isinstance(nodetype, type) and issubclass(nodetype, tuple) and hasattr(nodetype, "_fields")):
        raise ArgumentError(f"{nodetype!r} is no namedtuple; use register_pytree_node_serialization for other classes")
    return register_pytree_node_serialization(
        nodetype,
        serialized_name=serialized_name,
        serialize_auxdata=lambda _: b"",
        deserialize_auxdata=lambda _: None,
        from_children=lambda _, children: nodetype(*children),
    )


register_pytree_node_serialization(
    PRNGKeyArray,
    serialized_name="PRNGKeyArray",
    serialize_auxdata=lambda implementation: implementation.encode(),
    deserialize_auxdata=lambda data: data.decode(),
)
register_pytree_node_serialization(
    OrderedDict,
    serialized_name="OrderedDict",
    serialize_auxdata=lambda keys: json.dumps(list(keys)).encode(),
    deserialize_auxdata=json.loads,
    from_children=lambda keys, children: OrderedDict(zip(keys, children, strict=True)),
)


def describe(treedef: tree.TreeDef) -> Any:
    """Return a structure as JSON."""
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
    auxiliary = level.walk(range(len(children)), lambda _, data, children: data)
    static = "" if form is None else form.serialize(auxiliary).hex()
    name = kind.__qualname__ if form is None else form.name
    return {"node": [name, static, [[str(key), child] for key, child in zip(keys, children, strict=True)]]}


def _name(key: Any) -> Any:
    return key.key if isinstance(key, DictKey | FlattenedIndexKey) else key.name if isinstance(key, GetAttrKey) else key.idx


def check_keys(structure: Any) -> None:
    """Raise `ArgumentTypeError` if a file cannot hold a dictionary's keys."""
    for key, child in [] if structure == LEAF else _children(structure):
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise ArgumentTypeError(
                f"a dictionary in an exported function's arguments or results has the key {key!r:.40}. Serialization is supported only for "
                "dictionaries with string keys, and integers"
            )
        check_keys(child)


def leaf_count(structure: Any) -> int:
    """Return the number of leaves of a structure."""
    return 1 if structure == LEAF else sum([leaf_count(child) for _, child in _children(structure)])


def _children(structure: Any) -> list[tuple[Any, Any]]:
    if structure is None:
        return []
    if structure == LEAF or not isinstance(structure, dict):
        raise CorruptFileError(f"{structure!r:.40} is no structure of a pytree")
    ((kind, content),) = structure.items()
    if kind in ("list", "tuple"):
        return list(enumerate(content))
    if kind not in ("dict", "node"):
        raise CorruptFileError(f"{kind!r:.40} is no node of a pytree")
    return [(key, child) for key, child in (content if kind == "dict" else content[2])]


def unflatten(structure: Any, leaves: Iterator[Any]) -> Any:
    """Return the tree of a structure with these leaves."""
    if structure == LEAF:
        return next(leaves)
    children = [(key, unflatten(child, leaves)) for key, child in _children(structure)]
    if structure is None:
        return None
    ((kind, content),) = structure.items()
    values = [child for _, child in children]
    if kind in ("list", "tuple"):
        return values if kind == "list" else tuple(values)
    node_form = _BY_NAME.get(content[0]) if kind == "node" else None
    return dict(children) if node_form is None else node_form.from_children(node_form.deserialize(bytes.fromhex(content[1])), values)


def flatten(structure: Any, value: Any, path: str = "") -> list[Any]:
    """Return a tree's leaves; raise `TreeError` if it has another structure."""
    if structure == LEAF:
        if not tree.all_leaves([value]):
            raise TreeError(f"the exported function takes an array at {path or 'its root'}, got a {type(value).__name__}")
        return [value]
    expected = _children(structure)
    children = _named_children(value)
    if structure is None:
        fits = value is None
    elif "node" in structure and isinstance(value, dict):
        fits = children.keys() == {key for key, _ in expected}
    else:
        actual = describe(tree.structure(value, lambda node: node is not value))
        fits = _kind(structure) == _kind(actual) and [*children] == [key for key, _ in expected]
    if not fits:
        names, where = [key for key, _ in expected], path or "its root"
        raise TreeError(
            f"the exported function takes {_in_words(structure)} of {names} at {where}, got a {type(value).__name__} of {[*children]}"
        )
    return [leaf for key, child in expected for leaf in flatten(child, children[key], f"{path}[{key!r}]")]


def _kind(structure: Any) -> Any:
    if not isinstance(structure, dict):
        return structure
    ((kind, content),) = structure.items()
    return (kind, *content[:2]) if kind == "node" else kind


def _in_words(structure: Any) -> str:
    kind = _kind(structure)
    return f"a {kind[1]}, or a dictionary," if isinstance(kind, tuple) else "None, a tree" if kind is None else f"a {kind}"


def _named_children(value: Any) -> dict[Any, Any]:
    """Return a node's children by name."""
    if tree.all_leaves([value]):
        return {}
    pairs, treedef = tree.flatten_with_path(value, is_leaf=lambda node: node is not value)
    names = [key for key, _ in _children(describe(treedef))]
    return dict(zip(names, [child for _, child in pairs], strict=True))


def treedef_of(structure: Any, leaves: Sequence[Any]) -> tree.TreeDef:
    """Return a structure in JSON as one of pytrees, whose leaves these may be.

    Constructors of nodes may look at their shapes and dtypes.
    """
    if leaf_count(structure) != len(leaves):
        raise damaged("its program does not fit its structures")
    return tree.structure(unflatten(structure, iter(leaves)))

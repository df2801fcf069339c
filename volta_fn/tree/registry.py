"""Which classes are pytree nodes: registration of the user's own containers, with the meaning of `jax.tree_util`.

A node class is given by two functions: *flatten* takes an instance apart into children (further trees) and auxiliary data
(static, hashable and comparable, part of the tree's structure), *unflatten* puts one together from those.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import optree

from volta_fn.errors import TreeError
from volta_fn.tree.keys import GetAttrKey

NAMESPACE = "volta_fn"

C = TypeVar("C", bound=type)

#: Of registered dataclasses and the like: the attributes that are children, and those that are static.
FIELDS: dict[type, tuple[tuple[str, ...], tuple[str, ...]]] = {}


#: Takes a node apart into children and auxiliary data; into pairs of keys and children, and auxiliary data; and puts one together.
Flatten = Callable[[Any], tuple[Iterable[Any], Hashable]]
FlattenWithKeys = Callable[[Any], tuple[Iterable[tuple[Any, Any]], Hashable]]
Unflatten = Callable[[Any, Sequence[Any]], Any]


def register_node(
    nodetype: type, flatten_func: Flatten, unflatten_func: Unflatten, flatten_with_keys_func: FlattenWithKeys | None = None
) -> None:
    """Make a class a pytree node: `flatten_func(node) -> (children, aux)` and `unflatten_func(aux, children) -> node`.

    With `flatten_with_keys_func(node) -> (((key, child), …), aux)` paths name the children. Raises `TreeError` if the class is registered
    already.
    """
    if flatten_with_keys_func is not None:
        register_pytree_with_keys(nodetype, flatten_with_keys_func, unflatten_func)
    else:
        _register(nodetype, lambda node: _pair(nodetype, flatten_func(node)), unflatten_func)


register_pytree_node = register_node


def register_pytree_with_keys(
    nodetype: type, flatten_with_keys: FlattenWithKeys, unflatten_func: Unflatten, flatten_func: Flatten | None = None
) -> None:
    """Like `register_node`, with a flatten that returns `((key, child), …), aux`, so that paths name the children.

    `flatten_func` is accepted for compatibility: there is nothing for it to say.
    """

    def flatten(node: Any) -> tuple[list[Any], Any, list[Any]]:
        keyed, aux = _pair(nodetype, flatten_with_keys(node))
        pairs = list(keyed)
        return [child for _, child in pairs], aux, [key for key, _ in pairs]

    _register(nodetype, flatten, unflatten_func)


def register_pytree_node_class(cls: C) -> C:
    """Class decorator for a node with methods `tree_flatten() -> (children, aux)` and `tree_unflatten(aux, children)`.

    >>> from volta_fn import tree
    >>> @tree.register_pytree_node_class
    ... class Pair:
    ...     def __init__(self, x, y):
    ...         self.x, self.y = x, y
    ...     def tree_flatten(self):
    ...         return (self.x, self.y), None
    ...     @classmethod
    ...     def tree_unflatten(cls, aux, children):
    ...         return cls(*children)
    >>> tree.leaves(Pair(1, {"a": 2}))
    [1, 2]
    """
    register_node(cls, lambda node: node.tree_flatten(), cls.tree_unflatten)  # type: ignore[attr-defined]  # the protocol
    return cls


def register_pytree_with_keys_class(cls: C) -> C:
    """Class decorator like `register_pytree_node_class`, with a method `tree_flatten_with_keys() -> (((key, child), …), aux)` in place of
    `tree_flatten`, so that paths name the children.

    >>> from volta_fn import tree
    >>> @tree.register_pytree_with_keys_class
    ... class Named:
    ...     def __init__(self, x):
    ...         self.x = x
    ...     def tree_flatten_with_keys(self):
    ...         return ((tree.GetAttrKey("x"), self.x),), None
    ...     @classmethod
    ...     def tree_unflatten(cls, aux, children):
    ...         return cls(*children)
    >>> [tree.keystr(path) for path, _ in tree.leaves_with_path([Named(1)])]
    ['[0].x']
    """
    register_pytree_with_keys(cls, lambda node: node.tree_flatten_with_keys(), cls.tree_unflatten)  # type: ignore[attr-defined]  # the protocol
    return cls


def register_static(cls: C) -> C:
    """Make instances of `cls` nodes without leaves: they belong to the structure. They must be hashable and comparable."""
    register_node(cls, lambda node: ((), node), lambda node, _: node)
    return cls


def register_dataclass(
    nodetype: C,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> C:
    """Make a class a node whose `data_fields` are children and whose `meta_fields` are static.

    For a dataclass both may be left out: fields declared with `dataclasses.field(metadata={"static": True})` are static, the
    rest are data. `drop_fields` are neither, and take their defaults when the node is rebuilt. Raises `TreeError` unless the
    three lists name every field that the constructor takes exactly once.

    >>> from volta_fn import tree
    >>> @tree.register_dataclass
    ... @dataclasses.dataclass(frozen=True)
    ... class Scale:
    ...     factor: float
    ...     name: str = dataclasses.field(metadata={"static": True})
    >>> tree.map(lambda x: 2 * x, Scale(3.0, "double"))
    Scale(factor=6.0, name='double')
    """
    data, meta = _dataclass_fields(nodetype, data_fields, meta_fields, drop_fields)
    keys = [GetAttrKey(name) for name in data]

    def flatten(node: Any) -> tuple[list[Any], tuple[Any, ...], list[GetAttrKey]]:
        return [getattr(node, name) for name in data], tuple(getattr(node, name) for name in meta), keys

    def unflatten(static: Sequence[Any], children: Sequence[Any]) -> Any:
        return nodetype(**dict(zip(data, children, strict=True)), **dict(zip(meta, static, strict=True)))

    _register(nodetype, flatten, unflatten)
    FIELDS[nodetype] = data, meta
    return nodetype


def _dataclass_fields(
    cls: type, data: Sequence[str] | None, meta: Sequence[str] | None, dropped: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The data and static fields, checked against the dataclass if `cls` is one."""
    if (data is None) != (meta is None):
        raise TreeError(f"register_dataclass({cls.__name__}): give both data_fields and meta_fields, or neither")
    if not dataclasses.is_dataclass(cls):
        if data is None or meta is None:
            raise TreeError(f"register_dataclass({cls.__name__}): not a dataclass, so data_fields and meta_fields are needed")
        return tuple(data), tuple(meta)
    fields = [field for field in dataclasses.fields(cls) if field.init and field.name not in dropped]
    if data is None or meta is None:
        static = [field.name for field in fields if field.metadata.get("static", False)]
        return tuple(field.name for field in fields if field.name not in static), tuple(static)
    named, wanted = [*data, *meta], {field.name for field in fields}
    if len(named) != len(set(named)) or set(named) != wanted:
        raise TreeError(
            f"register_dataclass({cls.__name__}): data_fields {list(data)} and meta_fields {list(meta)} must name each field of "
            f"the constructor exactly once: {sorted(wanted)}"
        )
    return tuple(data), tuple(meta)


def _pair(cls: type, flattened: Any) -> tuple[Any, Any]:
    """What a user's flatten function returned, checked."""
    if not isinstance(flattened, tuple) or len(flattened) != 2:
        raise TreeError(f"the flatten function of {cls.__name__} must return a pair (children, auxiliary data), got {flattened!r}")
    return flattened


def _register(cls: type, flatten: Callable[[Any], Any], unflatten: Callable[[Any, Any], Any]) -> None:
    if not isinstance(cls, type):
        raise TreeError(f"only a class can be registered as a pytree node, got {cls!r}")
    try:
        optree.register_pytree_node(cls, flatten, unflatten, namespace=NAMESPACE)
    except ValueError as error:
        raise TreeError(f"{cls.__name__} cannot be registered as a pytree node: it is one already") from error

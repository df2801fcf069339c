"""Pytrees in Python, with the part of optree's interface that this package uses.

They serve where optree is not installed, as in browsers; they are slower, and equal in all else.
"""

from __future__ import annotations

import collections
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

Flatten = Callable[[Any], tuple[Any, ...]]
IsLeaf = Callable[[Any], bool] | None


class Registration(NamedTuple):
    """How the nodes of a registered class are flattened and made."""

    flatten_func: Flatten
    unflatten_func: Callable[[Any, Any], Any]


_REGISTERED: dict[type, Registration] = {}


class Entry:
    """A step of a path: how a node names a child."""

    __slots__ = ("entry",)

    def __init__(self, entry: Any) -> None:
        self.entry = entry

    @property
    def index(self) -> Any:
        """The position of a child of a sequence."""
        return self.entry

    @property
    def key(self) -> Any:
        """The key of a child of a dictionary."""
        return self.entry


class SequenceEntry(Entry):
    """A position."""


class MappingEntry(Entry):
    """A key of a dictionary."""


class NamedTupleEntry(Entry):
    """A field of a named tuple."""

    __slots__ = ("field",)

    def __init__(self, entry: Any, field: str) -> None:
        super().__init__(entry)
        self.field = field


class StructSequenceEntry(NamedTupleEntry):
    """A field of a structure such as `time.struct_time`; those are tuples here."""


class _Node(NamedTuple):
    """A node and its children."""

    kind: type
    #: What distinguishes nodes of one class: keys, lengths, auxiliary data.
    data: Any
    entries: tuple[Any, ...]
    children: list[Any]
    #: The keys of a dictionary in the order in which they were written.
    order: tuple[Any, ...] = ()


class PyTreeSpec:
    """The structure of a tree."""

    __slots__ = ("_children", "_data", "_entries", "_order", "num_leaves", "num_nodes", "type")

    def __init__(
        self, kind: type | None, data: Any, entries: tuple[Any, ...], children: tuple[PyTreeSpec, ...], order: tuple[Any, ...] = ()
    ) -> None:
        #: The class of the root; None for a leaf.
        self.type = kind
        self._data, self._entries, self._children, self._order = data, entries, children, order
        self.num_leaves: int = sum([c.num_leaves for c in children]) if kind is not None else 1
        self.num_nodes: int = 1 + sum([c.num_nodes for c in children])

    @property
    def num_children(self) -> int:
        """The number of the root's children."""
        return len(self._children)

    def children(self) -> list[PyTreeSpec]:
        """Return the structures of the root's children."""
        return list(self._children)

    def child(self, index: int) -> PyTreeSpec:
        """Return the structure of one of the root's children."""
        return self._children[index]

    def entries(self) -> list[Any]:
        """Return the keys of the root's children."""
        return list(self._entries)

    def one_level(self) -> PyTreeSpec | None:
        """Return the root with leaves for children; None for a leaf."""
        return None if self.type is None else self._with_children([LEAF] * len(self._children))

    def _with_children(self, children: Iterable[PyTreeSpec]) -> PyTreeSpec:
        return PyTreeSpec(self.type, self._data, self._entries, tuple(children), self._order)

    def accessors(self) -> list[tuple[Entry, ...]]:
        """Return the paths of the leaves."""
        if self.type is None:
            return [()]
        steps = [_entry(self.type, e) for e in self._entries]
        return [(step, *rest) for step, child in zip(steps, self._children, strict=True) for rest in child.accessors()]

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """Return the tree of this structure with these leaves."""
        values = iter(leaves)
        tree = self._build(values)
        if next(values, self) is not self:
            raise ValueError("too many leaves")
        return tree

    def _build(self, values: Any) -> Any:
        if self.type is None:
            return next(values)
        children = [c._build(values) for c in self._children]
        if self.type in _REGISTERED:
            return _REGISTERED[self.type][1](self._data, children)
        if self.type is type(None):
            return None
        if self.type in _DICTS:
            by_key = dict(zip(self._entries, children, strict=True))
            pairs: Any = [(key, by_key[key]) for key in self._order]
            return collections.defaultdict(self._data[0], pairs) if self.type is collections.defaultdict else self.type(pairs)
        if self.type is collections.deque:
            return collections.deque(children, maxlen=self._data[0])
        return self.type(*children) if _is_namedtuple(self.type) else self.type(children)

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """Return the subtrees at this structure's leaves; ValueError if it differs."""
        if self.type is None:
            return [tree]
        node = _node_of(tree)
        same_keys = node is not None and self.type in _DICTS and node.kind in _DICTS and set(node.entries) == set(self._entries)
        if node is None or not (same_keys or (node.kind is self.type and node.data == self._data)):
            raise ValueError(f"{self} does not fit {type(tree).__name__}")
        children = dict(zip(node.entries, node.children, strict=True)) if same_keys else None
        ordered = node.children if children is None else [children[e] for e in self._entries]
        return [leaf for spec, child in zip(self._children, ordered, strict=True) for leaf in spec.flatten_up_to(child)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PyTreeSpec):
            return NotImplemented
        return self.type is other.type and self._data == other._data and self._children == other._children

    def __hash__(self) -> int:
        try:
            return hash((self.type, self._data, self._children))
        except TypeError:  # data that cannot be hashed are compared alone
            return hash((self.type, self._children))

    def __repr__(self) -> str:
        return f"PyTreeSpec({self._text()}, namespace='volta_fn')"

    def _text(self) -> str:
        kind, texts = self.type, [c._text() for c in self._children]
        if kind is None or kind is type(None):
            return "*" if kind is None else "None"
        if kind is dict:
            return "{" + ", ".join([f"{k!r}: {p}" for k, p in zip(self._entries, texts, strict=True)]) + "}"
        if kind is list:
            return f"[{', '.join(texts)}]"
        if kind is tuple:
            return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
        if _is_namedtuple(kind):
            fields = getattr(kind, "_fields", ())
            return f"{kind.__name__}({', '.join([f'{n}={p}' for n, p in zip(fields, texts, strict=True)])})"
        return f"CustomTreeNode({kind.__name__}[{self._data!r}], [{', '.join(texts)}])"


LEAF = PyTreeSpec(None, None, (), ())
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)


def _is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _sorted(keys: Iterable[Any]) -> list[Any]:
    key_list = list(keys)
    try:
        return sorted(key_list)
    except TypeError:
        return sorted(key_list, key=lambda key: (f"{type(key).__module__}.{type(key).__qualname__}", key))


def _node_of(value: Any) -> _Node | None:
    """Return a node's children and data; None for a leaf."""
    kind = type(value)
    if kind in _REGISTERED:
        children, data, *entries = _REGISTERED[kind][0](value)
        items = list(children)
        return _Node(kind, data, tuple(entries[0]) if entries and entries[0] is not None else tuple(range(len(items))), items)
    if value is None:
        return _Node(kind, None, (), [])
    if kind is tuple or kind is list:
        return _Node(kind, len(value), tuple(range(len(value))), list(value))
    if kind is dict or kind is collections.defaultdict:
        keys = _sorted(value)
        data = tuple(keys) if kind is dict else (value.default_factory, tuple(keys))
        return _Node(kind, data, tuple(keys), [value[k] for k in keys], tuple(value))
    if kind is collections.OrderedDict:
        return _Node(kind, tuple(value), tuple(value), list(value.values()), tuple(value))
    if kind is collections.deque:
        return _Node(kind, (value.maxlen, len(value)), tuple(range(len(value))), list(value))
    return _Node(kind, len(value), tuple(range(len(value))), list(value)) if _is_namedtuple(kind) else None


def _entry(kind: type, entry: Any) -> Entry:
    if kind in _REGISTERED:
        return Entry(entry)
    if kind in _DICTS:
        return MappingEntry(entry)
    return NamedTupleEntry(entry, getattr(kind, "_fields", ())[entry]) if _is_namedtuple(kind) else SequenceEntry(entry)


def _flattened(value: Any, is_leaf: IsLeaf, leaves: list[Any]) -> PyTreeSpec:
    node = None if is_leaf is not None and is_leaf(value) else _node_of(value)
    if node is None:
        leaves.append(value)
        return LEAF
    return PyTreeSpec(node.kind, node.data, node.entries, tuple([_flattened(c, is_leaf, leaves) for c in node.children]), node.order)


def tree_flatten(tree: Any, is_leaf: IsLeaf = None, *, namespace: str = "") -> tuple[list[Any], PyTreeSpec]:
    """Return the leaves of a tree and its structure.

    Raises RecursionError for too many levels, which says so as optree's does, or that of `is_leaf`: whose calls are the most.
    """
    leaves: list[Any] = []
    try:
        return leaves, _flattened(tree, is_leaf, leaves)
    except RecursionError as error:
        ours = [frame.f_globals is globals() for frame, _ in traceback.walk_tb(error.__traceback__)]
        if 2 * sum(ours) < len(ours):
            raise
        raise RecursionError("maximum recursion depth exceeded during flattening the tree") from None


def tree_leaves(tree: Any, is_leaf: IsLeaf = None, *, namespace: str = "") -> list[Any]:
    """Return the leaves of a tree."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: IsLeaf = None, *, namespace: str = "") -> PyTreeSpec:
    """Return the structure of a tree."""
    return tree_flatten(tree, is_leaf)[1]


def tree_flatten_with_accessor(
    tree: Any, is_leaf: IsLeaf = None, *, namespace: str = ""
) -> tuple[list[tuple[Entry, ...]], list[Any], PyTreeSpec]:
    """Return the paths of the leaves, the leaves, and the structure."""
    leaves, spec = tree_flatten(tree, is_leaf)
    return spec.accessors(), leaves, spec


def tree_flatten_one_level(tree: Any, *, namespace: str = "") -> tuple[list[Any], Any]:
    """Return a node's children, and what else distinguishes it."""
    node = _node_of(tree)
    if node is None:
        raise ValueError(f"{tree!r:.80} is a leaf")
    sequence = node.kind in (tuple, list)
    return node.children, None if sequence else node.kind if _is_namedtuple(node.kind) and node.kind not in _REGISTERED else node.data


def treespec_is_leaf(spec: PyTreeSpec, *, strict: bool = True) -> bool:
    """Return True if a structure is a leaf."""
    return spec.type is None


def treespec_dict(specs: dict[Any, PyTreeSpec], *, namespace: str = "") -> PyTreeSpec:
    """Return the structure of a dictionary of trees."""
    return _with_specs(specs)


def treespec_defaultdict(factory: Any, specs: dict[Any, PyTreeSpec], *, namespace: str = "") -> PyTreeSpec:
    """Return the structure of a dictionary of trees with a default."""
    return _with_specs(collections.defaultdict(factory, specs))


def _with_specs(specs: dict[Any, PyTreeSpec]) -> PyTreeSpec:
    node: Any = _node_of(specs)
    return PyTreeSpec(node.kind, node.data, node.entries, tuple(node.children), node.order)


def treespec_transform(spec: PyTreeSpec, function: Callable[[PyTreeSpec], PyTreeSpec]) -> PyTreeSpec:
    """Return the structure whose levels a function returns, given those of another."""
    level = spec.one_level()
    return spec if level is None else function(level)._with_children([treespec_transform(c, function) for c in spec._children])


def treespec_tuple(specs: Sequence[PyTreeSpec], *, namespace: str = "") -> PyTreeSpec:
    """Return the structure of a tuple of trees."""
    return PyTreeSpec(tuple, len(specs), tuple(range(len(specs))), tuple(specs))


def register_pytree_node(kind: type, flatten: Flatten, unflatten: Callable[[Any, Any], Any], *, namespace: str = "") -> None:
    """Make a class a node; raise ValueError if it is one already."""
    if kind in _REGISTERED or kind in (*_DICTS, list, tuple, type(None), collections.deque):
        raise ValueError(f"{kind.__name__} is registered already")
    _REGISTERED[kind] = Registration(flatten, unflatten)


def _registration(kind: type, *, namespace: str = "") -> Registration | None:
    """Return the registration of a class; None if it has none."""
    return _REGISTERED.get(kind)


register_pytree_node.get = _registration  # type: ignore[attr-defined]  # as optree's function has it

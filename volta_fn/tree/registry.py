"""Registration of classes as pytree nodes, and paths into pytrees."""

from __future__ import annotations

import collections
import dataclasses
import functools
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from volta_fn.errors import TreeError
from volta_fn.lazy_imports import load

if TYPE_CHECKING:
    import optree as optree
else:
    try:
        optree = load("optree")
    except ImportError:
        optree = load("volta_fn.tree.python_trees")

# Paths into pytrees, as in `jax.tree_util`: tuples with a key per node.


@dataclass(frozen=True, slots=True)
class SequenceKey:
    """A position in a list or tuple. Prints as `[0]`."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"


@dataclass(frozen=True, slots=True)
class DictKey:
    """A key of a dictionary. Prints as `['name']`."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclass(frozen=True, slots=True)
class GetAttrKey:
    """An attribute of a dataclass or a field of a namedtuple. Prints as `.name`."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@dataclass(frozen=True, slots=True)
class FlattenedIndexKey:
    """The position of a child in a registered node without keys: `[<flat index 0>]`."""

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


KeyPath = tuple[Any, ...]
_KEY_TYPES = (SequenceKey, DictKey, GetAttrKey, FlattenedIndexKey)


def keystr(keys: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """Return a path in Python's notation.

    `simple` leaves out brackets, dots and quotes.

    >>> keystr((DictKey("a"), SequenceKey(0), GetAttrKey("weight")))
    "['a'][0].weight"
    >>> keystr((DictKey("a"), SequenceKey(0)), simple=True, separator="/")
    'a/0'
    """
    return separator.join(_bare(key) if simple else str(key) for key in keys)


def _bare(key: Any) -> str:
    if isinstance(key, (DictKey, FlattenedIndexKey)):
        return str(key.key)
    if isinstance(key, SequenceKey):
        return str(key.idx)
    return key.name if isinstance(key, GetAttrKey) else str(key)


def key_of(entry: optree.PyTreeEntry) -> Any:
    """Return the key that an optree path entry stands for."""
    if isinstance(entry.entry, _KEY_TYPES):
        return entry.entry
    if isinstance(entry, (optree.NamedTupleEntry, optree.StructSequenceEntry)):
        return GetAttrKey(entry.field)
    if isinstance(entry, optree.SequenceEntry):
        return SequenceKey(entry.index)
    if isinstance(entry, optree.MappingEntry):
        return DictKey(entry.key)
    # A node registered with keys of the user's own making passes them through; one without has positions.
    return FlattenedIndexKey(entry.entry) if isinstance(entry.entry, int) else entry.entry


# Registration of classes as pytree nodes, as in `jax.tree_util`, and `Partial`.
#
# A node class is defined by two functions: *flatten* returns an instance's children (further trees) and auxiliary data (static, hashable
# and comparable: it belongs to the tree's structure), and *unflatten* makes an instance of those.

NAMESPACE = "volta_fn"

C = TypeVar("C", bound=type)

#: The attributes that are children, and those that are static, of classes that are no more than these: dataclasses and modules.
FIELDS: dict[type, tuple[tuple[str, ...], tuple[str, ...]]] = {}


#: The classes of containers, those of Python first; namedtuples are found by what they are.
REGISTERED: set[type] = {tuple, list, dict, type(None), collections.OrderedDict, collections.defaultdict, collections.deque}

#: From a node to children and auxiliary data; to pairs of a key and a child, and auxiliary data; from these to a node.
Flatten = Callable[[Any], tuple[Iterable[Any], Hashable]]
FlattenWithKeys = Callable[[Any], tuple[Iterable[tuple[Any, Any]], Hashable]]
Unflatten = Callable[[Any, Sequence[Any]], Any]


def register_node(
    nodetype: type, flatten_func: Flatten, unflatten_func: Unflatten, flatten_with_keys_func: FlattenWithKeys | None = None
) -> None:
    """Make a class a pytree node, given how to flatten and to unflatten it.

    `flatten_func(node)` returns `(children, aux)`, `unflatten_func(aux, children)` the node.

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
    """Make a class a pytree node whose children have keys in paths.

    `flatten_with_keys(node)` returns `((key, child), …), aux`.

    `flatten_func` is accepted for compatibility and ignored.
    """

    def flatten(node: Any) -> tuple[list[Any], Any, list[Any]]:
        keyed, aux = _pair(nodetype, flatten_with_keys(node))
        pairs = list(keyed)
        return [child for _, child in pairs], aux, [key for key, _ in pairs]

    _register(nodetype, flatten, unflatten_func)


def register_pytree_node_class(cls: C) -> C:
    """Make a class with `tree_flatten` and `tree_unflatten` a node (decorator).

    They are `tree_flatten() -> (children, aux)` and `tree_unflatten(aux, children)`.

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
    """Make a class with `tree_flatten_with_keys` a node (decorator).

    They are `tree_flatten_with_keys() -> (((key, child), …), aux)` and `tree_unflatten(aux, children)`.

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
    """Make instances of `cls` nodes without leaves; they must be hashable, comparable."""
    register_node(cls, lambda node: ((), node), lambda node, _: node)
    return cls


def register_dataclass(
    nodetype: C, data_fields: Sequence[str] | None = None, meta_fields: Sequence[str] | None = None, drop_fields: Sequence[str] = ()
) -> C:
    """Make a class a node with fields that are children, and static fields.

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
    """Return the data and static fields, checked if `cls` is a dataclass."""
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
    named, required = [*data, *meta], {field.name for field in fields}
    if len(named) != len(set(named)) or set(named) != required:
        raise TreeError(
            f"register_dataclass({cls.__name__}): data_fields {list(data)} and meta_fields {list(meta)} must name each field of "
            f"the constructor exactly once: {sorted(required)}"
        )
    return tuple(data), tuple(meta)


def _pair(cls: type, flattened: Any) -> tuple[Any, Any]:
    """Check what a user's flatten function returned."""
    if not isinstance(flattened, tuple) or len(flattened) != 2:
        raise TreeError(f"the flatten function of {cls.__name__} must return a pair (children, auxiliary data), got {flattened!r}")
    return flattened


def _register(cls: type, flatten: Callable[[Any], Any], unflatten: Callable[[Any, Any], Any]) -> None:
    if not isinstance(cls, type):
        raise TreeError(f"only a class can be registered as a pytree node, got {cls!r}")
    try:
        with warnings.catch_warnings():
            # optree warns of classes that are nodes without registration, as namedtuples are; JAX does not.
            warnings.filterwarnings("ignore", "PyTree type .* already registered in the global namespace", UserWarning)
            optree.register_pytree_node(cls, flatten, unflatten, namespace=NAMESPACE)
        REGISTERED.add(cls)
    except ValueError as error:
        raise TreeError(f"{cls.__name__} cannot be registered as a pytree node: it is one already") from error


def registry_entry(cls: type) -> Any:
    """Return optree's entry of a registered class; None if it is not registered."""
    return optree.register_pytree_node.get(cls, namespace=NAMESPACE)


class Partial(functools.partial):
    """`functools.partial` as a pytree: bound arguments are children.

    The function is static.

    >>> from volta_fn import tree
    >>> add = Partial(lambda x, y: x + y, 1)
    >>> tree.map(lambda leaf: 10 * leaf, add)(2)
    12
    """

    def __new__(cls, func: Callable[..., Any], /, *args: Any, **keywords: Any) -> Partial:
        """Bind arguments to `func`; those of a plain `functools.partial` are static."""
        if isinstance(func, functools.partial) and not isinstance(func, Partial):
            func = _Opaque(func)
        return super().__new__(cls, func, *args, **keywords)


class _Opaque:
    """Hides a partial from functools, which would merge it with the outer one."""

    def __init__(self, function: functools.partial[Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self.function == (other.function if isinstance(other, _Opaque) else other)

    def __hash__(self) -> int:
        return hash(self.function)


register_node(
    Partial, lambda partial: ((partial.args, partial.keywords), partial.func), lambda func, bound: Partial(func, *bound[0], **bound[1])
)

"""Functions on pytrees and their structures, and trees as text.

A *pytree* is a nest of containers: dicts (in order of their sorted keys), lists, tuples, namedtuples, None (a container of
nothing) and registered classes. Any other object is a *leaf*. A *treedef* is the structure of a tree, without
its leaves. A *prefix* of a tree is the same tree with leaves where some of its nodes are.
"""

from __future__ import annotations

import builtins
import collections
import functools
import math
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from volta_fn import dtypes
from volta_fn.errors import ArgumentError, ArgumentTypeError, TreeError
from volta_fn.settings import current as settings
from volta_fn.tree.registry import NAMESPACE, DictKey, GetAttrKey, KeyPath, key_of, keystr, optree

TreeDef: TypeAlias = optree.PyTreeSpec
IsLeaf: TypeAlias = Callable[[Any], bool] | None

_flatten, _leaves, _structure = optree.tree_flatten, optree.tree_leaves, optree.tree_structure
_MISSING: Any = object()


def _depth_error(error: RecursionError, is_leaf: Callable[..., bool] | None) -> BaseException:
    """Return the error for a tree whose levels are too many to be followed."""
    if is_leaf is not None and "flatten" not in str(error):
        return error  # that of `is_leaf` itself
    return TreeError("a tree contains itself, or has more levels than Python follows (some hundreds); break the cycle")


def _ordered(treedef: TreeDef) -> TreeDef:
    """Return the structure whose dictionaries have the order of their sorted keys."""
    if treedef.num_nodes == treedef.num_leaves:
        return treedef
    try:
        ordered, stands_for_equal = _ordered_cached(treedef)
    except Exception:  # auxiliary data without a hash, or whose comparison raises
        stands_for_equal = False
    return ordered if stands_for_equal else optree.treespec_transform(treedef, _ordered_level)


def _ordered_level(level: TreeDef) -> TreeDef:
    """Return `_ordered` of a structure of one level."""
    if level.type is not dict and level.type is not collections.defaultdict:
        return level
    children = dict(zip(level.entries(), level.children(), strict=True))
    if level.type is dict:
        return optree.treespec_dict(children, namespace=NAMESPACE)
    example: Any = level.unflatten(range(level.num_leaves))
    return optree.treespec_defaultdict(example.default_factory, children, namespace=NAMESPACE)


@functools.lru_cache(maxsize=4096)  # structures are equal whatever the order in which their dictionaries were written
def _ordered_cached(treedef: TreeDef) -> tuple[TreeDef, bool]:
    """Return `_ordered` of a structure, and whether it serves for equal ones."""
    nodes: list[Any] = []
    treedef.walk(range(treedef.num_leaves), lambda cls, data, children: nodes.append(data))
    return optree.treespec_transform(treedef, _ordered_level), _compares_wholly(nodes)


def _compares_wholly(data: Any) -> bool:
    """Return whether no `__eq__` in Python may make equal what differs."""
    if isinstance(data, dict):
        return _compares_wholly([*data, *data.values()])
    if isinstance(data, (tuple, list, set, frozenset)):
        return builtins.all(_compares_wholly(item) for item in data)
    return not isinstance(type(data).__eq__, types.FunctionType)


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeDef]:
    """Return the leaves of a tree, depth first, and its structure.

    `is_leaf(node)` true makes a node a leaf. Dictionaries of the structure keep the order in which they were written; in JAX's mode they
    have that of their sorted keys, as their leaves do.

    >>> leaves, treedef = flatten({"b": [1, 2], "a": (3, None)})
    >>> leaves
    [3, 1, 2]
    >>> unflatten(treedef, leaves)
    {'b': [1, 2], 'a': (3, None)}
    """
    try:
        leaves, treedef = _flatten(tree, is_leaf, namespace=NAMESPACE)
    except RecursionError as error:
        raise _depth_error(error, is_leaf) from None
    return leaves, _ordered(treedef) if settings.sorted_dicts else treedef


def unflatten(treedef: TreeDef, leaves: Iterable[Any]) -> Any:
    """Return the tree of a structure with these leaves.

    Raises `TreeError` if there are too few or too many.

    >>> unflatten(structure({"a": 0, "b": [0]}), [1, 2])
    {'a': 1, 'b': [2]}
    """
    leaves = leaves if type(leaves) is list else list(leaves)
    if len(leaves) != treedef.num_leaves:
        raise TreeError(f"unflatten: the structure {describe(treedef)} has {treedef.num_leaves} leaves, got {len(leaves)}")
    return treedef.unflatten(leaves)


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """Return the leaves of a tree, depth first.

    >>> leaves([1, (2, {"x": 3})])
    [1, 2, 3]
    """
    try:
        return _leaves(tree, is_leaf, namespace=NAMESPACE)
    except RecursionError as error:
        raise _depth_error(error, is_leaf) from None


def structure(tree: Any, is_leaf: IsLeaf = None) -> TreeDef:
    """Return the structure of a tree, which is hashable and comparable.

    >>> structure([1, 2]) == structure(["a", "b"])
    True
    """
    try:
        treedef = _structure(tree, is_leaf, namespace=NAMESPACE)
    except RecursionError as error:
        raise _depth_error(error, is_leaf) from None
    return _ordered(treedef) if settings.sorted_dicts else treedef


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Return the tree of `f(leaf, *corresponding subtrees of rest)`.

    `tree` must be a prefix of each of the others.

    >>> map(lambda x, y: x + y, {"a": 1, "b": [2]}, {"a": 10, "b": [20]})
    {'a': 11, 'b': [22]}

    Raises `TreeError` with the path of the first difference.
    """
    if not callable(f):
        raise ArgumentTypeError(f"tree.map: the function comes first, tree.map(f, tree); got {type(f).__name__} in its place")
    first, treedef = flatten(tree, is_leaf)
    columns = [flatten_up_to(treedef, other, f"tree.map: argument {i}") for i, other in enumerate(rest, 2)]
    return treedef.unflatten([f(*row) for row in zip(first, *columns, strict=True)])


def reduce(function: Callable[[Any, Any], Any], tree: Any, initializer: Any = _MISSING, is_leaf: IsLeaf = None) -> Any:
    """Fold `function` over the leaves from the left.

    It starts with `initializer` or, without one, with the first leaf.

    >>> reduce(lambda total, x: total + x, [1, (2, 3)], 0)
    6
    """
    items = leaves(tree, is_leaf)
    if initializer is not _MISSING:
        return functools.reduce(function, items, initializer)
    if not items:
        raise TreeError("tree.reduce: a tree without leaves needs an initializer")
    return functools.reduce(function, items)


def reduce_associative(operation: Callable[[Any, Any], Any], tree: Any, *, identity: Any = _MISSING, is_leaf: IsLeaf = None) -> Any:
    """Combine the leaves by an associative `operation`, neighbours first.

    That is a chain of log2 n operations, where `reduce` has n.

    A tree without leaves gives `identity`, or raises `TreeError` if that is not given.

    >>> reduce_associative(lambda a, b: f"({a}{b})", ["a", "b", ("c", "d")])
    '((ab)(cd))'
    """
    items = leaves(tree, is_leaf)
    if not items and identity is _MISSING:
        raise TreeError("tree.reduce_associative: a tree without leaves needs an identity")
    while len(items) > 1:
        pairs = [operation(a, b) for a, b in zip(items[::2], items[1::2], strict=False)]
        items = [*pairs, items[-1]] if len(items) % 2 else pairs
    return items[0] if items else identity


def all(tree: Any, *, is_leaf: IsLeaf = None) -> bool:
    """Return True if every leaf is true.

    >>> all({"a": True, "b": [1, 0]})
    False
    """
    return builtins.all(leaves(tree, is_leaf))


def transpose(outer_treedef: TreeDef, inner_treedef: TreeDef | None, pytree_to_transpose: Any) -> Any:
    """Transpose an outer tree of inner trees to an inner tree of outer trees.

    >>> transpose(structure([0, 0]), structure({"a": 0}), [{"a": 1}, {"a": 2}])
    {'a': [1, 2]}

    With None for `inner_treedef` the first inner tree gives it. Raises `TreeError` if the structures do not fit.
    """
    rows = flatten_up_to(outer_treedef, pytree_to_transpose, "tree.transpose: the tree")
    if inner_treedef is None:
        if not rows:
            raise TreeError("tree.transpose: an outer structure without leaves needs an inner_treedef")
        inner_treedef = structure(rows[0])
    inner = [flatten_up_to(inner_treedef, row, "tree.transpose: an inner tree") for row in rows]
    return inner_treedef.unflatten([outer_treedef.unflatten([row[i] for row in inner]) for i in range(inner_treedef.num_leaves)])


def flatten_with_path(
    tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> tuple[list[tuple[KeyPath, Any]], TreeDef]:
    """Return the leaves of a tree with their paths, and its structure.

    With `is_leaf_takes_path`, it is ``is_leaf(path, node)``.

    >>> [(keystr(path), leaf) for path, leaf in flatten_with_path({"a": [1, 2]})[0]]
    [("['a'][0]", 1), ("['a'][1]", 2)]
    """
    if is_leaf is not None and is_leaf_takes_path:
        return _flatten_by_path(tree, is_leaf)
    try:
        accessors, items, treedef = optree.tree_flatten_with_accessor(tree, is_leaf, namespace=NAMESPACE)
    except RecursionError as error:
        raise _depth_error(error, is_leaf) from None
    paths = [tuple([key_of(entry) for entry in accessor]) for accessor in accessors]
    return list(zip(paths, items, strict=True)), _ordered(treedef) if settings.sorted_dicts else treedef


def paths_of(treedef: TreeDef) -> list[KeyPath]:
    """Return the paths of a structure's leaves.

    No tree is made, as constructors of nodes may look at their leaves.

    >>> [keystr(path) for path in paths_of(structure({"a": [1, 2]}))]
    ["['a'][0]", "['a'][1]"]
    """
    return [tuple([key_of(entry) for entry in accessor]) for accessor in treedef.accessors()]


def _flatten_by_path(tree: Any, is_leaf: Callable[[KeyPath, Any], bool]) -> tuple[list[tuple[KeyPath, Any]], TreeDef]:
    """Flatten level by level, so that the path of every node is known."""
    leaves: list[tuple[KeyPath, Any]] = []

    def below(path: KeyPath, node: Any) -> Any:
        """Return the node with the leaves' numbers instead of the leaves."""
        children, treedef = flatten_with_path(node, is_leaf=lambda child: child is not node)
        if is_leaf(path, node) or (len(children) == 1 and not children[0][0]):
            leaves.append((path, node))
            return len(leaves) - 1
        return treedef.unflatten([below(path + step, child) for step, child in children])

    return leaves, structure(below((), tree))


def leaves_with_path(tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False) -> list[tuple[KeyPath, Any]]:
    """Return the (path, leaf) pairs of a tree, like `flatten_with_path`.

    >>> [(keystr(path), leaf) for path, leaf in leaves_with_path({"a": [1, 2]})]
    [("['a'][0]", 1), ("['a'][1]", 2)]
    """
    return flatten_with_path(tree, is_leaf, is_leaf_takes_path)[0]


def map_with_path(
    f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> Any:
    """Map like `map`, with the path as `f`'s first argument; see `flatten_with_path`.

    >>> map_with_path(lambda path, x: f"{keystr(path)}={x}", {"a": 1})
    {'a': "['a']=1"}
    """
    pairs, treedef = flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    columns = [flatten_up_to(treedef, other, f"tree.map_with_path: argument {i}") for i, other in enumerate(rest, 2)]
    return treedef.unflatten([f(path, leaf, *row) for (path, leaf), *row in zip(pairs, *columns, strict=True)])


def broadcast_prefix(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """Repeat each leaf of `prefix_tree` for all leaves of `full_tree` below it.

    `is_leaf` applies to the prefix: with `lambda x: x is None`, None is a leaf that stands for a subtree.

    >>> broadcast_prefix((0, None), ({"a": 1, "b": 2}, [3, 4]), is_leaf=lambda x: x is None)
    [0, 0, None, None]

    Raises `TreeError` with the path of the first difference if it is not a prefix.
    """
    items, treedef = flatten(prefix_tree, is_leaf)
    subtrees = flatten_up_to(treedef, full_tree, "a tree and its prefix")
    counts = [structure(subtree).num_leaves for subtree in subtrees]
    return [item for item, count in zip(items, counts, strict=True) for _ in range(count)]


def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> Any:
    """Return a tree of `full_tree`'s structure with the leaves of `broadcast_prefix`.

    >>> broadcast((0, 1), ({"a": 5, "b": 6}, [7, 8]))
    ({'a': 0, 'b': 0}, [1, 1])
    """
    return structure(full_tree).unflatten(broadcast_prefix(prefix_tree, full_tree, is_leaf))


def flatten_up_to(treedef: TreeDef, tree: Any, name: str = "the tree", remedy: str = "") -> list[Any]:
    """Return the subtrees of `tree` at `treedef`'s leaves.

    The message of a `TreeError` has the `name` of the tree, and ends with `remedy`.
    """
    try:
        return treedef.flatten_up_to(tree)
    except ValueError:
        difference = first_difference(treedef, tree)
        path, expected, got = difference if difference is not None else ((), describe(treedef), describe(structure(tree)))
        where = f"at {keystr(path)}" if path else "at the root"
        raise TreeError(
            f"{name}: structures differ {where}: expected {expected}, got {got}. "
            f"Expected structure: {describe(treedef)}; given: {describe(structure(tree))}{'. ' * bool(remedy)}{remedy}"
        ) from None


def all_leaves(iterable: Iterable[Any], is_leaf: IsLeaf = None) -> bool:
    """Return True if no element is a container, so that they can be leaves.

    >>> all_leaves([1, "a"]), all_leaves([1, {"a": 2}]), all_leaves([None])
    (True, False, False)
    """
    return builtins.all(optree.treespec_is_leaf(structure(element, is_leaf), strict=True) for element in iterable)


def treedef_is_leaf(treedef: TreeDef) -> bool:
    """Return True if a structure has a single node: a leaf or an empty container.

    >>> treedef_is_leaf(structure(1)), treedef_is_leaf(structure([1])), treedef_is_leaf(structure([]))
    (True, False, True)
    """
    return treedef.num_nodes == 1


def treedef_children(treedef: TreeDef) -> list[TreeDef]:
    """Return the structures of a node's children (none for a leaf).

    >>> treedef_children(structure([1, (2, 3)])) == [structure(1), structure((2, 3))]
    True
    """
    return treedef.children()


def treedef_tuple(treedefs: Iterable[TreeDef]) -> TreeDef:
    """Return the structure of a tuple of trees of the given structures.

    >>> treedef_tuple([structure(1), structure({"a": 2})]) == structure((1, {"a": 2}))
    True
    """
    return optree.treespec_tuple(list(treedefs), namespace=NAMESPACE)


def describe(treedef: TreeDef) -> str:
    """Return a structure in short: `{'a': *, 'b': [*, *]}`."""
    text = str(treedef).removeprefix("PyTreeSpec(").removesuffix(")")
    return text.removesuffix(f", namespace={NAMESPACE!r}")


def first_difference(treedef: TreeDef, tree: Any) -> tuple[KeyPath, str, str] | None:
    """Return the path of the first difference, what is expected there, and what is."""
    expected_level = treedef.one_level()
    if expected_level is None:  # a leaf, which any tree fits
        return None
    children, level = _flatten(tree, lambda node: node is not tree, namespace=NAMESPACE)
    if expected_level != level:
        return (), *_structure_difference(expected_level, level, tree)
    keys = [key_of(accessor[0]) for accessor in level.accessors()]
    for key, child, node in zip(keys, treedef.children(), children, strict=True):
        difference = first_difference(child, node)
        if difference is not None:
            path, expected, got = difference
            return (key, *path), expected, got
    return None


def structural_difference(one: TreeDef, other: TreeDef) -> tuple[KeyPath, str, str]:
    """Return what `first_difference` does, for two structures."""
    difference = first_difference(one, _example(other))
    if difference is not None:
        return difference
    # `first_difference` lets any tree match a leaf: here `one` has a leaf where `other` has a subtree.
    path, second, first = first_difference(other, _example(one)) or ((), describe(other), describe(one))
    return path, first, second


def _example(treedef: TreeDef) -> Any:
    return unflatten(treedef, [array()] * treedef.num_leaves)


class array:
    """A stand-in for arrays in trees that are compared; messages show its name."""


def _structure_difference(expected_level: TreeDef, level: TreeDef, node: Any) -> tuple[str, str]:
    """Describe two one-level structures briefly, but such that they differ."""
    if optree.treespec_is_leaf(level, strict=True):
        return _node_in_words(expected_level), f"a leaf of type {type(node).__name__}"
    expected, got = _node_in_words(expected_level), _node_in_words(level)
    return (expected, got) if expected != got else (describe(expected_level), describe(level))


def _node_in_words(treedef: TreeDef) -> str:
    kind = treedef.type
    if kind is None or kind is type(None):
        return "a leaf" if kind is None else "None"
    if issubclass(kind, dict):
        return f"a {kind.__name__} with keys {treedef.entries()}"
    return f"a {kind.__name__} of {treedef.num_children}"


# Trees as text: their containers, and the types and sizes of their arrays.


_BRACKETS: dict[type, tuple[str, str]] = {dict: ("{", "}"), list: ("[", "]"), tuple: ("(", ")")}


class _Sizes(NamedTuple):
    """The number of arrays in a tree, of their elements and of their bytes."""

    arrays: int
    elements: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.arrays:,} array{'s' * (self.arrays != 1)}, {self.elements:,} elements, {self.bytes:,} bytes"


def pformat(tree: Any, *, width: int = 80, indent: int = 2) -> str:
    """Format a tree with the types of its arrays and the sizes of its containers.

    Nothing is computed or copied: leaves may be arrays of any library, `ShapeDtypeStruct`, or traced. A container that does not fit in a
    row takes a row for each child, and tells how many arrays, elements and bytes it has. Leaves that are no arrays are shown by `repr`.

    Args:
        tree: any pytree.
        width: the most columns of a container in one row.
        indent: the columns by which children are indented.

    Raises:
        ArgumentError: `width` or `indent` is negative.

    >>> params = {"layers": [{"w": vf.numpy.ones((784, 512)), "b": vf.numpy.ones(512)}] * 2, "step": 3}
    >>> print(vf.tree.pformat(params, width=40))
    {  # 4 arrays, 803,840 elements, 3,215,360 bytes
      'layers': [  # 4 arrays, 803,840 elements, 3,215,360 bytes
        {'b': f32[512], 'w': f32[784,512]},
        {'b': f32[512], 'w': f32[784,512]},
      ],
      'step': 3,
    }
    """
    if width < 0 or indent < 0:
        raise ArgumentError(f"pformat: width and indent must not be negative, got {width} and {indent}")
    return "\n".join(_rows(tree, "", width, " " * indent)[0])


def pprint(tree: Any, *, width: int = 80, indent: int = 2) -> None:
    """Print a tree with the types of its arrays and its sizes; see `pformat`.

    >>> vf.tree.pprint((vf.numpy.ones(3), None))
    (f32[3], None)
    """
    print(pformat(tree, width=width, indent=indent))


def _rows(node: Any, margin: str, width: int, step: str) -> tuple[list[str], _Sizes]:
    """Return the rows of a node, of which the first has no margin, and its sizes."""
    entries = flatten_with_path(node, is_leaf=lambda inner: inner is not node)[0]
    if len(entries) == 1 and not entries[0][0]:
        return [_leaf(node, width)], _sizes(node)
    if node is None:
        return ["None"], _Sizes(0, 0, 0)
    opening, closing = _BRACKETS.get(type(node)) or (f"{type(node).__name__}(", ")")
    children = [(_label(path[0]), *_rows(child, margin + step, width, step)) for path, child in entries]
    sizes = _Sizes(*builtins.map(sum, zip(_Sizes(0, 0, 0), *[sizes for _, _, sizes in children], strict=True)))
    if builtins.all(len(rows) == 1 for _, rows, _ in children):
        lonely = "," * (type(node) is tuple and len(children) == 1)
        row = f"{opening}{', '.join([label + rows[0] for label, rows, _ in children])}{lonely}{closing}"
        if len(margin) + len(row) <= width or not children:
            return [row], sizes
    shown = [f"{opening}  # {sizes}"]
    for label, rows, _ in children:
        shown += [f"{margin}{step}{label}{rows[0]}", *rows[1:]]
        shown[-1] += ","
    return [*shown, f"{margin}{closing}"], sizes


def _label(key: Any) -> str:
    if isinstance(key, DictKey):
        return f"{key.key!r}: "
    return f"{key.name}=" if isinstance(key, GetAttrKey) else ""


def _is_array(leaf: Any) -> bool:
    return isinstance(getattr(leaf, "shape", None), tuple) and hasattr(leaf, "dtype")


def _leaf(leaf: Any, width: int) -> str:
    if not _is_array(leaf):
        text = " ".join(repr(leaf).split())
        return text if len(text) <= width else f"{text[: max(width - 1, 1)]}…"
    name = dtypes.short_name(leaf.dtype) if isinstance(leaf.dtype, np.dtype) else str(leaf.dtype)
    return f"{name}[{','.join(builtins.map(str, leaf.shape))}]"


def _sizes(leaf: Any) -> _Sizes:
    if not _is_array(leaf):
        return _Sizes(0, 0, 0)
    elements = math.prod(leaf.shape)
    return _Sizes(1, elements, elements * int(leaf.dtype.itemsize))

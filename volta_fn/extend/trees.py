"""Functions on pytrees in which an array of random keys is a leaf, as in JAX.

In `volta_fn.tree` it is a node, whose leaf is its data: so keys pass through transforms like any tree of arrays. Programs written for JAX
map functions over trees of keys, and `jax.tree` and `jax.tree_util` are these functions.
"""

from __future__ import annotations

import functools
from abc import ABC
from collections.abc import Callable, Iterator
from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array
from volta_fn.errors import TreeError
from volta_fn.random.keys import PRNGKeyArray
from volta_fn.tree.registry import REGISTERED as REGISTERED

#: Asks whether a node is an array of keys (a method in C, as every node is asked).
_is_key: Callable[[Any], bool] = PRNGKeyArray.__instancecheck__


class AnyArray(ABC):  # noqa: B024  # it has no methods of its own
    """The class of arrays and arrays of keys, for `isinstance` and annotations.

    >>> import volta_fn as vf
    >>> isinstance(vf.random.key(0), AnyArray), isinstance(vf.numpy.ones(2), AnyArray)
    (True, True)
    """


AnyArray.register(Array)
AnyArray.register(PRNGKeyArray)


def _with_keys(function: Callable[..., Any], position: int) -> Callable[..., Any]:
    """Make keys leaves for a function of trees with `is_leaf`, by position or keyword."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.pop("is_leaf", None)
        if len(args) > position >= 0:
            args, given = (*args[:position], *args[position + 1 :]), args[position]
        is_leaf = _is_key if given is None else (lambda node: _is_key(node) or given(node))
        return function(*args, is_leaf=is_leaf, **kwargs)

    return call


flatten = tree_flatten = _with_keys(tree.flatten, 1)
leaves = tree_leaves = _with_keys(tree.leaves, 1)
structure = tree_structure = _with_keys(tree.structure, 1)
map = tree_map = _with_keys(tree.map, -1)
reduce = tree_reduce = _with_keys(tree.reduce, 3)
reduce_associative = tree_reduce_associative = _with_keys(tree.reduce_associative, -1)
all = tree_all = _with_keys(tree.all, -1)
all_leaves = _with_keys(tree.all_leaves, 1)
unflatten = tree_unflatten = tree.unflatten
transpose = tree_transpose = tree.transpose


def flatten_with_path(tree_: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False) -> tuple[list[Any], Any]:
    """Return the leaves of a tree with their paths, and its structure.

    With `is_leaf_takes_path` it is `is_leaf(path, node)`.

    >>> deep = lambda path, node: len(path) == 1
    >>> flatten_with_path({"a": [1, 2]}, deep, is_leaf_takes_path=True)[0]
    [((DictKey(key='a'),), [1, 2])]
    """
    if is_leaf is None or not is_leaf_takes_path:
        return _with_keys(tree.flatten_with_path, 1)(tree_, is_leaf)
    found = set[int]()
    pairs = list(_walk((), tree_, is_leaf, found))
    return pairs, structure(tree_, is_leaf=lambda node: id(node) in found)


def _walk(path: tuple[Any, ...], node: Any, is_leaf: Callable[..., bool], found: set[int]) -> Iterator[tuple[Any, Any]]:
    """Yield the paths and leaves below a node; add the ids of the leaves."""
    if is_leaf(path, node) or structure(node) == _LEAF:
        found.add(id(node))
        yield path, node
        return
    for (key, *_), child in leaves_with_path(node, is_leaf=lambda inner: inner is not node):
        yield from _walk((*path, key), child, is_leaf, found)


def leaves_with_path(tree_: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False) -> list[tuple[Any, Any]]:
    """Return the leaves of a tree with their paths, as `flatten_with_path` does."""
    return flatten_with_path(tree_, is_leaf, is_leaf_takes_path)[0]


def map_with_path(
    f: Callable[..., Any], tree_: Any, *rest: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> Any:
    """Map like `map`, with the path as `f`'s first argument."""
    pairs, treedef = flatten_with_path(tree_, is_leaf, is_leaf_takes_path)
    columns = [tree.flatten_up_to(treedef, other, "tree.map_with_path: a tree") for other in rest]
    return treedef.unflatten([f(path, leaf, *row) for (path, leaf), *row in zip(pairs, *columns, strict=True)])


tree_flatten_with_path, tree_leaves_with_path, tree_map_with_path = flatten_with_path, leaves_with_path, map_with_path


def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Return a tree like `full_tree`, with a prefix's leaf for each leaf below it.

    >>> broadcast((0, 1), ({"a": 5}, [7, 8]))
    ({'a': 0}, [1, 1])
    """
    items, treedef = flatten(prefix_tree, is_leaf=is_leaf)
    below = tree.flatten_up_to(treedef, full_tree, "tree.broadcast: the tree")
    return treedef.unflatten(
        [structure(subtree).unflatten([item] * structure(subtree).num_leaves) for item, subtree in zip(items, below, strict=True)]
    )


tree_broadcast = broadcast


def is_tree_node(cls: type) -> bool:
    """Return True for the classes of containers.

    >>> is_tree_node(dict), is_tree_node(int)
    (True, False)
    """
    return cls in REGISTERED


def flatten_one_level(node: Any) -> tuple[list[Any], Any]:
    """Return a container's children and its structure without them.

    Raises `TreeError` for a leaf.

    >>> flatten_one_level({"a": [1, 2]})[0]
    [[1, 2]]
    """
    children, treedef = flatten(node, is_leaf=lambda inner: inner is not node)
    if _is_key(node) or treedef == _LEAF:
        raise TreeError(f"flatten_one_level: {node!r:.80} of type {type(node).__name__} is a leaf")
    return children, treedef


def flatten_one_level_with_keys(node: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Return a container's children with their keys, and its structure without them."""
    _, treedef = flatten_one_level(node)
    pairs = leaves_with_path(node, is_leaf=lambda inner: inner is not node)
    return [(path[0], child) for path, child in pairs], treedef


_LEAF = tree.structure(0)

"""Structures taken apart and put together, and questions about them."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any

import optree

from volta_fn.tree.registry import NAMESPACE
from volta_fn.tree.structures import IsLeaf, TreeDef, structure


def all_leaves(iterable: Iterable[Any], is_leaf: IsLeaf = None) -> bool:
    """Whether none of the elements is a container: whether they can be the leaves of a tree.

    >>> all_leaves([1, "a"]), all_leaves([1, {"a": 2}]), all_leaves([None])
    (True, False, False)
    """
    return builtins.all(optree.treespec_is_leaf(structure(element, is_leaf), strict=True) for element in iterable)


def treedef_is_leaf(treedef: TreeDef) -> bool:
    """Whether a structure has a single node: that of a leaf, or of a container of nothing.

    >>> treedef_is_leaf(structure(1)), treedef_is_leaf(structure([1])), treedef_is_leaf(structure([]))
    (True, False, True)
    """
    return treedef.num_nodes == 1


def treedef_children(treedef: TreeDef) -> list[TreeDef]:
    """The structures of a node's children; of a leaf there are none.

    >>> treedef_children(structure([1, (2, 3)])) == [structure(1), structure((2, 3))]
    True
    """
    return treedef.children()


def treedef_tuple(treedefs: Iterable[TreeDef]) -> TreeDef:
    """The structure of a tuple of trees of the given structures.

    >>> treedef_tuple([structure(1), structure({"a": 2})]) == structure((1, {"a": 2}))
    True
    """
    return optree.treespec_tuple(list(treedefs), namespace=NAMESPACE)

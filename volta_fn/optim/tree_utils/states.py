"""Look-up and replacement of values in optimizers' states by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from volta_fn import tree as trees
from volta_fn.errors import ArgumentError
from volta_fn.tree.keys import DictKey, KeyPath

__all__ = ["NamedTupleKey", "tree_get", "tree_get_all_with_path", "tree_map_params", "tree_set"]

#: Decides by path and value whether a value is meant.
Filter = Callable[[KeyPath, Any], bool]


@dataclass(frozen=True)
class NamedTupleKey:
    """A field of a named tuple, with the tuple's name. Prints as `Tuple.field`."""

    tuple_name: str
    name: str

    def __str__(self) -> str:
        return f"{self.tuple_name}.{self.name}"


@trees.register_static
@dataclass(frozen=True)
class ParamsPlaceholder:
    """Stands for the parameters in the state that `init` makes of it."""


def tree_map_params(
    initable: Any,
    f: Callable[..., Any],
    state: Any,
    /,
    *rest: Any,
    transform_non_params: Callable[[Any], Any] | None = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Apply a function to what a state has for each parameter, such as its moments.

    Args:
        initable: the optimizer, or its `init`. It must treat parameters as a tree of which it knows nothing, so masks are functions.
        f: a function of a leaf of the state, and of the corresponding leaves of `rest`.
        state: the optimizer's state.
        rest: trees of the parameters' structure.
        transform_non_params: applied to all other leaves of the state.
        is_leaf: where to stop in the trees that are like the parameters.

    >>> optimizer = optim.adam(0.1)
    >>> state = optimizer.init({"w": vf.numpy.zeros(2)})
    >>> optim.tree.map_params(optimizer, lambda x: x + 1, state)[0].mu
    {'w': Array([1., 1.], dtype=float32)}
    """
    init = getattr(initable, "init", initable)

    def mapped(node: Any, value: Any) -> Any:
        if isinstance(node, ParamsPlaceholder):
            return trees.map(f, value, *rest, is_leaf=is_leaf)
        return value if transform_non_params is None else transform_non_params(value)

    return trees.map(mapped, init(ParamsPlaceholder()), state, is_leaf=lambda node: isinstance(node, ParamsPlaceholder))


def _is_named_tuple(node: Any) -> bool:
    return isinstance(node, tuple) and hasattr(node, "_fields")


def _children(node: Any) -> tuple[list[tuple[Any, Any]], Callable[[list[Any]], Any]]:
    """Return a node's children with their keys, and the function that rebuilds it."""
    if _is_named_tuple(node):
        keys = [NamedTupleKey(type(node).__name__, field) for field in node._fields]
        return list(zip(keys, node, strict=True)), lambda values: type(node)(*values)
    pairs, treedef = trees.flatten_with_path(node, is_leaf=lambda x: x is not node)
    below = [(path, child) for path, child in pairs if path]
    return [(path[0], child) for path, child in below], treedef.unflatten


def _is_named(path: KeyPath, node: Any, key: Any) -> bool:
    """Return True for a named tuple of that name, a field or an item of that key."""
    if _is_named_tuple(node) and type(node).__name__ == key:
        return True
    last = path[-1] if path else None
    return (isinstance(last, NamedTupleKey) and last.name == key) or (isinstance(last, DictKey) and last.key == key)


def tree_get_all_with_path(tree: Any, key: Any, filtering: Filter | None = None) -> list[tuple[KeyPath, Any]]:
    """Return the paths and values of a name in a tree, at any depth.

    Args:
        tree: a tree of named tuples and dicts, such as a state.
        key: the name of a field, of a named tuple, or a key of a dict.
        filtering: tells by path and value which to keep. Fields of named tuples are `NamedTupleKey` in paths.

    >>> state = optim.adam(0.1).init(vf.numpy.zeros(1))
    >>> [(path[-1].tuple_name, value) for path, value in optim.tree.get_all_with_path(state, "count")]
    [('ScaleByAdamState', Array(0, dtype=int32))]
    """
    found: list[tuple[KeyPath, Any]] = []

    def visit(path: KeyPath, node: Any) -> None:
        if _is_named(path, node, key):
            found.append((path, node))
        for entry, child in _children(node)[0]:
            visit((*path, entry), child)

    visit((), tree)
    return [(path, value) for path, value in found if filtering is None or filtering(path, value)]


def tree_get(tree: Any, key: Any, default: Any = None, filtering: Filter | None = None) -> Any:
    """Return the value of a name in a tree, or `default`.

    Arguments are those of `tree_get_all_with_path`. Raises `ArgumentError` if there are several.

    >>> optim.tree.get(optim.adam(0.1).init(vf.numpy.zeros(1)), "count")
    Array(0, dtype=int32)
    """
    found = tree_get_all_with_path(tree, key, filtering)
    if len(found) > 1:
        paths = ", ".join(trees.keystr(path) for path, _ in found)
        raise ArgumentError(f"tree_get: there are {len(found)} values named {key!r}, at {paths}; choose one by filtering")
    return found[0][1] if found else default


def tree_set(tree: Any, filtering: Filter | None = None, /, **kwargs: Any) -> Any:
    """Return the tree with all values of some names replaced.

    Names and `filtering` are those of `tree_get_all_with_path`. Raises `ArgumentError` for a name that is not in the tree.

    >>> state = optim.tree.set(optim.adam(0.1).init(vf.numpy.zeros(1)), count=7)
    >>> optim.tree.get(state, "count")
    7
    """
    for key in kwargs:
        if not tree_get_all_with_path(tree, key, filtering):
            raise ArgumentError(f"tree_set: nothing in the tree is named {key!r}" + (" and passes the filter" if filtering else ""))

    def replaced(path: KeyPath, node: Any) -> Any:
        for key, value in kwargs.items():
            if _is_named(path, node, key) and (filtering is None or filtering(path, node)):
                return value
        children, rebuild = _children(node)
        return rebuild([replaced((*path, entry), child) for entry, child in children]) if children else node

    return replaced((), tree)

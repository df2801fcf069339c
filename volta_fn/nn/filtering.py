"""Trees of arrays and other objects: selection, replacement and transforms.

Names and meanings are Equinox's. Modules of this package have arrays and modules as children and everything else as static fields, so that
`jit` and `grad` take them as they are; these functions serve trees with other leaves, frozen layers, and changes deep inside a model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar, overload

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array
from volta_fn.dtypes import INEXACT
from volta_fn.errors import ArgumentError, UnhashableStaticError
from volta_fn.jit import jit
from volta_fn.transforms.grad import value_and_grad, without_value

__all__ = ["combine", "filter", "filter_grad", "filter_jit", "filter_value_and_grad", "is_array", "is_array_like", "is_inexact_array"]
__all__ += ["is_inexact_array_like", "partition", "tree_at", "tree_equal"]

IsLeaf = Callable[[Any], bool] | None
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Any)
Aux = TypeVar("Aux")


def is_array(element: Any) -> bool:
    """Return True for an array of this package, traced or not.

    >>> nn.is_array(vf.numpy.ones(2)), nn.is_array(1.0)
    (True, False)
    """
    return isinstance(element, Array)


def is_array_like(element: Any) -> bool:
    """Return True for an array, one of NumPy's, or a Python number or boolean.

    >>> nn.is_array_like(1.0), nn.is_array_like("text")
    (True, False)
    """
    return isinstance(element, (Array, np.ndarray, np.generic, bool, int, float, complex)) or hasattr(element, "__jax_array__")


def is_inexact_array(element: Any) -> bool:
    """Return True for an array of this package with floats or complex numbers.

    >>> nn.is_inexact_array(vf.numpy.ones(2)), nn.is_inexact_array(vf.numpy.arange(2))
    (True, False)
    """
    return is_array(element) and element.dtype in INEXACT


def is_inexact_array_like(element: Any) -> bool:
    """Return True for floats and complex numbers among what `is_array_like` accepts.

    >>> nn.is_inexact_array_like(1.0), nn.is_inexact_array_like(1)
    (True, False)
    """
    if isinstance(element, (Array, np.ndarray, np.generic)):
        return element.dtype in INEXACT
    return isinstance(element, (float, complex)) or hasattr(element, "__jax_array__")


# Selection of leaves.


def partition(pytree: T, filter_spec: Any, replace: Any = None, is_leaf: IsLeaf = None) -> tuple[T, T]:
    """Split a tree in two: the leaves that are selected, and the others.

    Args:
        pytree: a tree of any objects.
        filter_spec: a function of a leaf to a boolean, or a tree of booleans and such functions with the structure of `pytree` or of a
            prefix of it.
        replace: stands for the missing leaves in both.
        is_leaf: where to stop in `pytree`.

    Raises `TreeError` if `filter_spec` does not fit.

    >>> nn.partition({"w": vf.numpy.ones(1), "name": "dense"}, nn.is_array)
    ({'w': Array([1.], dtype=float32), 'name': None}, {'w': None, 'name': 'dense'})
    """
    leaves, treedef = tree.flatten(pytree, is_leaf)
    flags = _flags(pytree, filter_spec, is_leaf)
    chosen = [leaf if flag else replace for leaf, flag in zip(leaves, flags, strict=True)]
    others = [replace if flag else leaf for leaf, flag in zip(leaves, flags, strict=True)]
    return tree.unflatten(treedef, chosen), tree.unflatten(treedef, others)


def _flags(pytree: Any, filter_spec: Any, is_leaf: IsLeaf) -> list[bool]:
    def flagged(spec: Any, subtree: Any) -> list[bool]:
        return [bool(spec(leaf) if callable(spec) else spec) for leaf in tree.leaves(subtree, is_leaf)]

    specs, treedef = tree.flatten(filter_spec)
    subtrees = tree.flatten_up_to(treedef, pytree, "the tree that filter_spec selects from")
    return [flag for spec, subtree in zip(specs, subtrees, strict=True) for flag in flagged(spec, subtree)]


def filter(pytree: T, filter_spec: Any, inverse: bool = False, replace: Any = None, is_leaf: IsLeaf = None) -> T:
    """Return the tree with leaves replaced that are not selected.

    With `inverse` it is those that are. Other arguments are those of `partition`.

    >>> nn.filter([vf.numpy.ones(1), "text"], nn.is_array)
    [Array([1.], dtype=float32), None]
    """
    return partition(pytree, filter_spec, replace, is_leaf)[bool(inverse)]


def combine(*pytrees: Any, is_leaf: IsLeaf = None) -> Any:
    """Return one tree of the first leaves that are not None: undo `partition`.

    Raises `TreeError` if the structures differ.

    >>> nn.combine([None, 2], [1, None])
    [1, 2]
    """

    def stops(node: Any) -> bool:
        return node is None or (is_leaf is not None and is_leaf(node))

    return tree.map(lambda *leaves: next((leaf for leaf in leaves if leaf is not None), None), *pytrees, is_leaf=stops)


def tree_equal(*pytrees: Any) -> bool:
    """Return True if trees have the same structure, and equal leaves of equal dtypes.

    >>> nn.tree_equal([vf.numpy.ones(2), "a"], [vf.numpy.ones(2), "a"])
    True
    """
    first, *rest = pytrees
    leaves, treedef = tree.flatten(first)
    for other in rest:
        other_leaves, structure = tree.flatten(other)
        if structure != treedef or not all(map(_equal, leaves, other_leaves)):
            return False
    return True


def _equal(first: Any, second: Any) -> bool:
    arrays = (Array, np.ndarray, np.generic)
    if not isinstance(first, arrays) or not isinstance(second, arrays):
        return type(first) is type(second) and bool(first == second)
    return first.dtype == second.dtype and first.shape == second.shape and bool(np.all(np.asarray(first) == np.asarray(second)))


# Replacement of nodes.


class _Position:
    """Stands for a leaf while nodes are looked up by identity."""

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf


_NOT_GIVEN: Any = object()


def tree_at(where: Callable[[T], Any], pytree: T, replace: Any = _NOT_GIVEN, replace_fn: Any = _NOT_GIVEN, is_leaf: IsLeaf = None) -> T:
    """Return the tree with some nodes replaced.

    Args:
        where: a function of the tree to one of its nodes, or to a sequence of them. It may not look at the leaves' values.
        pytree: a tree, such as a model.
        replace: the new node, or a sequence of as many.
        replace_fn: instead of that, a function of the old node to the new one.
        is_leaf: what counts as a leaf; ``lambda x: x is None`` to replace None.

    Raises `ArgumentError` unless either `replace` or `replace_fn` is given, if their numbers differ, or if `where` returns what is no node,
    or one inside another.

    >>> layer = nn.Linear.init(vf.random.key(0), 3, 2)
    >>> nn.tree_at(lambda layer: layer.bias, layer, vf.numpy.ones(2)).bias
    Array([1., 1.], dtype=float32)
    >>> nn.tree_at(lambda t: (t["a"], t["b"][0]), {"a": 1, "b": [2, 3]}, replace_fn=lambda x: 10 * x)
    {'a': 10, 'b': [20, 3]}
    """
    if (replace is _NOT_GIVEN) == (replace_fn is _NOT_GIVEN):
        raise ArgumentError("tree_at: give either replace or replace_fn")
    marked = tree.map(_Position, pytree, is_leaf=is_leaf)
    single, nodes = _selected(where(marked), marked)
    old = [tree.map(lambda position: position.leaf, node) for node in nodes]
    new = [replace_fn(node) for node in old] if replace is _NOT_GIVEN else [replace] if single else list(replace)
    if len(new) != len(nodes):
        raise ArgumentError(f"tree_at: {len(nodes)} nodes cannot be replaced by {len(new)}")
    by_identity = {id(node): value for node, value in zip(nodes, new, strict=True)}
    used: list[int] = []

    def substituted(node: Any) -> Any:
        if id(node) not in by_identity:
            return node.leaf
        used.append(id(node))
        return by_identity[id(node)]

    changed = tree.map(substituted, marked, is_leaf=lambda node: id(node) in by_identity)
    if sorted(used) != sorted(id(node) for node in nodes):
        raise ArgumentError("tree_at: `where` returned a node twice, or one inside another")
    return changed


def _selected(result: Any, marked: Any) -> tuple[bool, list[Any]]:
    """Return whether `where` returned a single node, and the nodes, checked."""
    node_ids: set[int] = set()

    def visit(node: Any) -> bool:
        node_ids.add(id(node))
        return False

    tree.flatten(marked, is_leaf=visit)
    if result is not None and id(result) in node_ids:
        return True, [result]
    nodes = list(result) if isinstance(result, (tuple, list)) else [result]
    if any(node is None or id(node) not in node_ids for node in nodes):
        raise ArgumentError(
            "tree_at: `where` must return a node of the tree or a sequence of them, got something else; None is a node with "
            "is_leaf=lambda x: x is None"
        )
    return False, nodes


# Transforms.


class _Static(NamedTuple):
    """The structure and the leaves of a tree without arrays, to be compared."""

    treedef: Any
    leaves: tuple[Hashable, ...]

    @classmethod
    def of(cls, values: Any) -> _Static:
        leaves, treedef = tree.flatten(values)
        for leaf in leaves:
            try:
                hash(leaf)
            except TypeError:
                raise UnhashableStaticError(f"filter_jit: leaves that are no arrays must be hashable, got {leaf!r:.80}") from None
        return cls(treedef, tuple(leaves))

    def tree(self) -> Any:
        """Return the tree again."""
        return self.treedef.unflatten(self.leaves)


@tree.register_static
class _Constant:
    """A result that is static: a node without leaves."""

    def __init__(self, value: _Static) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and self.value == other.value


@functools.partial(jit, static_argnums=0)
def _call(static: _Static, arrays: Any) -> tuple[Any, _Constant]:
    fun, args, kwargs = combine(arrays, static.tree())
    chosen, others = partition(fun(*args, **kwargs), is_array)
    return chosen, _Constant(_Static.of(others))


def filter_jit(fun: Callable[P, R]) -> Callable[P, R]:
    """Return a compiled function whose arguments may have leaves that are no arrays.

    Arrays (NumPy's too) are traced. All other leaves of arguments, and of `fun` itself if it is a tree, are static: there is a program for
    each of their values, which must be hashable. So may be leaves of the result.

    >>> scaled = nn.filter_jit(lambda x, how: (2 * x if how == "double" else x, how))
    >>> scaled(vf.numpy.ones(2), "double")
    (Array([2., 2.], dtype=float32), 'double')

    Raises `UnhashableStaticError` for static leaves that cannot be hashed.
    """

    @functools.wraps(fun, updated=())
    def compiled(*args: Any, **kwargs: Any) -> Any:
        arrays, others = partition((fun, args, kwargs), lambda leaf: isinstance(leaf, (Array, np.ndarray, np.generic)))
        chosen, constant = _call(_Static.of(others), arrays)
        return combine(chosen, constant.value.tree())

    return compiled


@overload
def filter_value_and_grad(
    fun: Callable[Concatenate[T, P], R], *, has_aux: Literal[False] = False
) -> Callable[Concatenate[T, P], tuple[R, T]]: ...
@overload
def filter_value_and_grad(
    fun: Callable[Concatenate[T, P], tuple[R, Aux]], *, has_aux: Literal[True]
) -> Callable[Concatenate[T, P], tuple[tuple[R, Aux], T]]: ...
def filter_value_and_grad(fun: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., Any]:
    """Return `value_and_grad` by the floating-point arrays of the first argument.

    In the gradient, None stands for all other leaves. `has_aux` is that of `value_and_grad`.

    >>> nn.filter_value_and_grad(lambda p: vf.numpy.sum(p["w"] ** 2))({"w": vf.numpy.ones(2), "steps": 3})
    (Array(2., dtype=float32), {'w': Array([2., 2.], dtype=float32), 'steps': None})
    """

    @functools.wraps(fun, updated=())
    def gradient(x: Any, /, *args: Any, **kwargs: Any) -> Any:
        chosen, others = partition(x, is_inexact_array)
        return value_and_grad(lambda arrays: fun(combine(arrays, others), *args, **kwargs), has_aux=has_aux)(chosen)

    return gradient


@overload
def filter_grad(fun: Callable[Concatenate[T, P], Any], *, has_aux: Literal[False] = False) -> Callable[Concatenate[T, P], T]: ...
@overload
def filter_grad(
    fun: Callable[Concatenate[T, P], tuple[Any, Aux]], *, has_aux: Literal[True]
) -> Callable[Concatenate[T, P], tuple[T, Aux]]: ...
def filter_grad(fun: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., Any]:
    """Return `grad` by the floating-point arrays of the first argument.

    With `has_aux` it returns the gradient and the further results; otherwise as `filter_value_and_grad`.

    >>> nn.filter_grad(lambda p: vf.numpy.sum(p["w"] ** 2))({"w": vf.numpy.ones(2), "steps": 3})
    {'w': Array([2., 2.], dtype=float32), 'steps': None}
    """
    both: Any = filter_value_and_grad(fun, has_aux=True) if has_aux else filter_value_and_grad(fun)
    return functools.wraps(fun, updated=())(without_value(both, has_aux))

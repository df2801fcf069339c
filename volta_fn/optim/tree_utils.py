"""Arithmetic on trees and look-up in optimizers' states, under Optax's names."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_fn import dtypes, random
from volta_fn import numpy as vnp
from volta_fn import tree as trees
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import check_option
from volta_fn.errors import ArgumentError, DTypeError
from volta_fn.optim.numerics import abs_sq, bias_correction, update_infinity_moment, update_moment, update_moment_per_elem_norm
from volta_fn.tree.registry import DictKey, KeyPath

__all__ = [
    "NamedTupleKey", "tree_add", "tree_add_scale", "tree_allclose", "tree_batch_shape", "tree_bias_correction", "tree_cast",
    "tree_cast_like", "tree_clip", "tree_conj", "tree_div", "tree_dtype", "tree_full_like", "tree_get", "tree_get_all_with_path",
    "tree_map_params", "tree_max", "tree_min", "tree_mul", "tree_norm", "tree_ones_like", "tree_random_like", "tree_real", "tree_scale",
    "tree_set", "tree_size", "tree_split_key_like", "tree_sub", "tree_sum", "tree_unwrap_random_key_data", "tree_update_infinity_moment",
    "tree_update_moment", "tree_update_moment_per_elem_norm", "tree_vdot", "tree_where", "tree_zeros_like",
]  # fmt: skip


# Trees like others: dtypes, fills and random numbers.


def tree_cast(tree: Any, dtype: Any) -> Any:
    """Return each leaf in another dtype; None leaves them as they are."""
    return tree if dtype is None else trees.map(lambda x: as_value(x).astype(dtype), tree)


def tree_cast_like(tree: Any, other_tree: Any) -> Any:
    """Return each leaf in the dtype of the other tree's, if that has one."""
    return trees.map(lambda x, like: as_value(x).astype(like.dtype) if hasattr(like, "dtype") else x, tree, other_tree)


def tree_dtype(tree: Any, mixed_dtype_handler: str | None = None) -> np.dtype:
    """Return the dtype of all leaves; float32 if there are none.

    Args:
        tree: a tree of arrays.
        mixed_dtype_handler: which one if they differ: "promote" for the dtype in which they combine, "highest" and "lowest" for the one
            that all or none can be promoted to.

    Raises `DTypeError` if dtypes differ without a handler, or cannot be ordered; `ArgumentError` for another handler.

    >>> optim.tree.dtype([jnp.ones(2), jnp.ones(2, "float16")], "lowest")
    dtype('float16')
    """
    leaf_dtypes = [as_value(x).dtype for x in trees.leaves(tree)]
    check_option(mixed_dtype_handler, "tree_dtype: mixed_dtype_handler", (None, "promote", "highest", "lowest"))
    if not leaf_dtypes:
        return np.dtype(np.float32)
    if mixed_dtype_handler is None and len(set(leaf_dtypes)) > 1:
        raise DTypeError(f"tree_dtype: the leaves have the dtypes {sorted({d.name for d in leaf_dtypes})}; give a mixed_dtype_handler")
    if mixed_dtype_handler == "promote":
        return functools.reduce(dtypes.promote_types, leaf_dtypes)
    return functools.reduce(lambda a, b: _ordered(a, b)[mixed_dtype_handler == "highest"], leaf_dtypes)


def _ordered(first: np.dtype, second: np.dtype) -> tuple[np.dtype, np.dtype]:
    """Return two dtypes, the one that can be promoted to the other first."""
    common = dtypes.promote_types(first, second)
    if common not in (first, second):
        raise DTypeError(f"tree_dtype: neither {first.name} nor {second.name} can be promoted to the other; use 'promote'")
    return (first, second) if common == second else (second, first)


def tree_zeros_like(tree: Any, dtype: Any = None) -> Any:
    """Return zeros of the leaves' shapes, in their dtypes or in `dtype`."""
    return trees.map(lambda x: vnp.zeros_like(x, dtype), tree)


def tree_ones_like(tree: Any, dtype: Any = None) -> Any:
    """Return ones of the leaves' shapes, in their dtypes or in `dtype`."""
    return trees.map(lambda x: vnp.ones_like(x, dtype), tree)


def tree_full_like(tree: Any, fill_value: Any, dtype: Any = None) -> Any:
    """Return arrays of the leaves' shapes filled with a number.

    >>> optim.tree.full_like({"w": jnp.zeros(2)}, 0.5)
    {'w': Array([0.5, 0.5], dtype=float32)}
    """
    return trees.map(lambda x: vnp.full_like(x, fill_value, dtype), tree)


def tree_size(tree: Any) -> int:
    """Return the number of elements of all leaves."""
    return sum(int(vnp.size(x)) for x in trees.leaves(tree))


def tree_batch_shape(tree: Any, shape: tuple[int, ...] = ()) -> Any:
    """Repeat each leaf along new leading axes of the sizes given.

    >>> optim.tree.batch_shape({"w": jnp.ones(2)}, (3,))["w"].shape
    (3, 2)
    """
    return trees.map(lambda x: vnp.broadcast_to(x, (*shape, *vnp.shape(x))), tree)


def tree_split_key_like(rng_key: Any, target_tree: Any) -> Any:
    """Split a random key into a tree of keys, one for each leaf."""
    structure = trees.structure(target_tree)
    return structure.unflatten(list(random.split(rng_key, structure.num_leaves)))


def tree_random_like(rng_key: Any, target_tree: Any, sampler: Callable[..., Any] = random.normal, dtype: Any = None) -> Any:
    """Return random arrays of the leaves' shapes.

    Args:
        rng_key: a random key.
        target_tree: a tree of arrays.
        sampler: ``sampler(key, shape, dtype)``.
        dtype: by default that of each leaf.

    >>> optim.tree.random_like(vf.random.key(0), {"w": jnp.zeros((2, 3))})["w"].shape
    (2, 3)
    """
    keys = tree_split_key_like(rng_key, target_tree)

    def draw(like: Any, key: Any) -> Any:
        return sampler(key, as_value(like).shape, as_value(like).dtype if dtype is None else dtype)

    return trees.map(draw, target_tree, keys)


def tree_unwrap_random_key_data(input_tree: Any) -> Any:
    """Return the tree with random keys replaced by their integers."""

    def is_key(x: Any) -> bool:
        return isinstance(x, random.PRNGKeyArray)

    return trees.map(lambda x: random.key_data(x) if is_key(x) else x, input_tree, is_leaf=is_key)


# Arithmetic on trees of arrays.

tree_bias_correction = bias_correction
tree_update_infinity_moment = update_infinity_moment
tree_update_moment = update_moment
tree_update_moment_per_elem_norm = update_moment_per_elem_norm


def tree_add(tree_x: Any, tree_y: Any, *other_trees: Any) -> Any:
    """Return the sum of two or more trees, leaf by leaf.

    >>> optim.tree.add({"w": 1.0}, {"w": 2.0}, {"w": 3.0})
    {'w': 6.0}
    """
    return trees.map(lambda *leaves: functools.reduce(operator.add, leaves), tree_x, tree_y, *other_trees)


def tree_sub(tree_x: Any, tree_y: Any) -> Any:
    """Return the difference of two trees, leaf by leaf."""
    return trees.map(operator.sub, tree_x, tree_y)


def tree_mul(tree_x: Any, tree_y: Any) -> Any:
    """Return the product of two trees, leaf by leaf."""
    return trees.map(operator.mul, tree_x, tree_y)


def tree_div(tree_x: Any, tree_y: Any) -> Any:
    """Return the quotient of two trees, leaf by leaf."""
    return trees.map(operator.truediv, tree_x, tree_y)


def tree_scale(scalar: Any, tree: Any) -> Any:
    """Return ``scalar * leaf`` for each leaf."""
    return trees.map(lambda x: scalar * x, tree)


def tree_add_scale(tree_x: Any, scalar: Any, tree_y: Any) -> Any:
    """Return ``x + scalar * y`` for the leaves of two trees.

    >>> optim.tree.add_scale([1.0], 0.5, [4.0])
    [3.0]
    """
    return trees.map(lambda x, y: x + scalar * y, tree_x, tree_y)


def tree_where(condition: Any, tree_x: Any, tree_y: Any) -> Any:
    """Select between the leaves of two trees by a condition for all of them."""
    return trees.map(lambda x, y: vnp.where(condition, x, y), tree_x, tree_y)


def tree_clip(tree: Any, min_value: Any = None, max_value: Any = None) -> Any:
    """Limit all elements to an interval; a bound of None is none."""
    return trees.map(lambda x: vnp.clip(x, min_value, max_value), tree)


def tree_conj(tree: Any) -> Any:
    """Return the complex conjugate of each leaf."""
    return trees.map(vnp.conj, tree)


def tree_real(tree: Any) -> Any:
    """Return the real part of each leaf."""
    return trees.map(vnp.real, tree)


def _total(values: Any) -> Any:
    """Return the sum of scalars, 0 of none."""
    return functools.reduce(operator.add, trees.leaves(values), 0)


def tree_vdot(tree_x: Any, tree_y: Any) -> Any:
    """Return the inner product of two trees, of which the first is conjugated.

    >>> optim.tree.vdot([jnp.array([1.0, 2.0])], [jnp.array([3.0, 4.0])])
    Array(11., dtype=float32)
    """
    return _total(trees.map(vnp.vdot, tree_x, tree_y))


def tree_sum(tree: Any, associative_reduction: bool = False) -> Any:
    """Return the sum of all elements of all leaves; 0 if there are none.

    With `associative_reduction` the leaves' sums are added in pairs, which rounds less.

    >>> optim.tree.sum({"w": jnp.ones((2, 2)), "b": jnp.ones(1)})
    Array(5., dtype=float32)
    """
    sums = trees.map(vnp.sum, tree)
    return _pairwise_total(trees.leaves(sums)) if associative_reduction else _total(sums)


def _pairwise_total(values: list[Any]) -> Any:
    if len(values) < 2:
        return values[0] if values else 0
    middle = len(values) // 2
    return _pairwise_total(values[:middle]) + _pairwise_total(values[middle:])


def tree_max(tree: Any) -> Any:
    """Return the largest element of all leaves; -inf if there are none."""
    maxima: list[Any] = [-math.inf, *[vnp.max(x) for x in trees.leaves(tree) if vnp.size(x)]]
    return functools.reduce(vnp.maximum, maxima)


def tree_min(tree: Any) -> Any:
    """Return the smallest element of all leaves; inf if there are none."""
    minima: list[Any] = [math.inf, *[vnp.min(x) for x in trees.leaves(tree) if vnp.size(x)]]
    return functools.reduce(vnp.minimum, minima)


def tree_norm(tree: Any, ord: Any = None, squared: bool = False) -> Array:
    """Return a norm of all elements of all leaves together.

    Args:
        tree: a tree of arrays, whose dtypes the norm is computed in. (`global_norm` computes in float32 at least.)
        ord: 2 or None for the Euclidean norm, 1 for the sum of absolute values, `inf` (also as a string) for the largest.
        squared: whether to return the norm's square.

    Raises `ArgumentError` for another order.

    >>> optim.tree.norm({"w": jnp.array([3.0, 4.0])}), optim.tree.norm(jnp.array([3.0, -4.0]), ord="inf")
    (Array(5., dtype=float32), Array(4., dtype=float32))
    """
    if ord is None or ord == 2:
        dtype = None if trees.leaves(tree) else np.float32
        square = vnp.asarray(_total(trees.map(lambda x: vnp.sum(abs_sq(x)), tree)), dtype)
        return square if squared else vnp.sqrt(square)
    sizes = trees.map(vnp.abs, tree)
    if ord == 1:
        norm = vnp.asarray(tree_sum(sizes))
    elif ord in (math.inf, "inf", "infinity"):
        norm = vnp.asarray(tree_max(sizes))
    else:
        raise ArgumentError(f"tree_norm: ord is None, 1, 2, inf, 'inf' or 'infinity', got {ord!r}")
    return vnp.square(norm) if squared else norm


def tree_allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    """Return whether all elements of two trees are close, as `numpy.allclose` has it.

    >>> optim.tree.allclose([1.0, 2.0], [1.0, 2.0 + 1e-7])
    Array(True, dtype=bool)
    """
    flags = trees.map(lambda x, y: vnp.allclose(as_value(x), as_value(y), rtol=rtol, atol=atol, equal_nan=equal_nan), a, b)
    return functools.reduce(operator.and_, trees.leaves(flags), True)


# Look-up and replacement of values in optimizers' states by name.

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
    entries: list[tuple[KeyPath, Any]] = []

    def visit(path: KeyPath, node: Any) -> None:
        if _is_named(path, node, key):
            entries.append((path, node))
        for entry, child in _children(node)[0]:
            visit((*path, entry), child)

    visit((), tree)
    return [(path, value) for path, value in entries if filtering is None or filtering(path, value)]


def tree_get(tree: Any, key: Any, default: Any = None, filtering: Filter | None = None) -> Any:
    """Return the value of a name in a tree, or `default`.

    Arguments are those of `tree_get_all_with_path`. Raises `ArgumentError` if there are several.

    >>> optim.tree.get(optim.adam(0.1).init(vf.numpy.zeros(1)), "count")
    Array(0, dtype=int32)
    """
    entries = tree_get_all_with_path(tree, key, filtering)
    if len(entries) > 1:
        paths = ", ".join(trees.keystr(path) for path, _ in entries)
        raise ArgumentError(f"tree_get: there are {len(entries)} values named {key!r}, at {paths}; choose one by filtering")
    return entries[0][1] if entries else default


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

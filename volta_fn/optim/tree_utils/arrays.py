"""Trees like others: dtypes, fills and random numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, random
from volta_fn import numpy as vnp
from volta_fn import tree as trees
from volta_fn.core.array import as_value
from volta_fn.errors import ArgumentError, DTypeError

__all__ = ["tree_batch_shape", "tree_cast", "tree_cast_like", "tree_dtype", "tree_full_like", "tree_ones_like", "tree_random_like"]
__all__ += ["tree_size", "tree_split_key_like", "tree_unwrap_random_key_data", "tree_zeros_like"]


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

    >>> optim.tree.dtype([vnp.ones(2), vnp.ones(2, "float16")], "lowest")
    dtype('float16')
    """
    found = [as_value(x).dtype for x in trees.leaves(tree)]
    if mixed_dtype_handler not in (None, "promote", "highest", "lowest"):
        raise ArgumentError(f"tree_dtype: mixed_dtype_handler is None, 'promote', 'highest' or 'lowest', got {mixed_dtype_handler!r}")
    if not found:
        return np.dtype(np.float32)
    if mixed_dtype_handler is None and len(set(found)) > 1:
        raise DTypeError(f"tree_dtype: the leaves have the dtypes {sorted({d.name for d in found})}; give a mixed_dtype_handler")
    if mixed_dtype_handler == "promote":
        return functools.reduce(dtypes.promote_types, found)
    return functools.reduce(lambda a, b: _ordered(a, b)[mixed_dtype_handler == "highest"], found)


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

    >>> optim.tree.full_like({"w": vnp.zeros(2)}, 0.5)
    {'w': Array([0.5, 0.5], dtype=float32)}
    """
    return trees.map(lambda x: vnp.full_like(x, fill_value, dtype), tree)


def tree_size(tree: Any) -> int:
    """Return the number of elements of all leaves."""
    return sum(int(vnp.size(x)) for x in trees.leaves(tree))


def tree_batch_shape(tree: Any, shape: tuple[int, ...] = ()) -> Any:
    """Repeat each leaf along new leading axes of the sizes given.

    >>> optim.tree.batch_shape({"w": vnp.ones(2)}, (3,))["w"].shape
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

    >>> optim.tree.random_like(vf.random.key(0), {"w": vnp.zeros((2, 3))})["w"].shape
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

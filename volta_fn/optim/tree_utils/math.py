"""Arithmetic on trees of arrays."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import tree as trees
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.numerics import abs_sq, bias_correction, update_infinity_moment, update_moment, update_moment_per_elem_norm

__all__ = ["tree_add", "tree_add_scale", "tree_allclose", "tree_clip", "tree_conj", "tree_div", "tree_max", "tree_min", "tree_mul"]
__all__ += ["tree_norm", "tree_real", "tree_scale", "tree_sub", "tree_sum", "tree_vdot", "tree_where"]
__all__ += ["tree_bias_correction", "tree_update_infinity_moment", "tree_update_moment", "tree_update_moment_per_elem_norm"]

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

    >>> optim.tree.vdot([vnp.array([1.0, 2.0])], [vnp.array([3.0, 4.0])])
    Array(11., dtype=float32)
    """
    return _total(trees.map(vnp.vdot, tree_x, tree_y))


def tree_sum(tree: Any, associative_reduction: bool = False) -> Any:
    """Return the sum of all elements of all leaves; 0 if there are none.

    With `associative_reduction` the leaves' sums are added in pairs, which rounds less.

    >>> optim.tree.sum({"w": vnp.ones((2, 2)), "b": vnp.ones(1)})
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
    found: list[Any] = [-math.inf, *[vnp.max(x) for x in trees.leaves(tree) if vnp.size(x)]]
    return functools.reduce(vnp.maximum, found)


def tree_min(tree: Any) -> Any:
    """Return the smallest element of all leaves; inf if there are none."""
    found: list[Any] = [math.inf, *[vnp.min(x) for x in trees.leaves(tree) if vnp.size(x)]]
    return functools.reduce(vnp.minimum, found)


def tree_norm(tree: Any, ord: Any = None, squared: bool = False) -> Array:
    """Return a norm of all elements of all leaves together.

    Args:
        tree: a tree of arrays, whose dtypes the norm is computed in. (`global_norm` computes in float32 at least.)
        ord: 2 or None for the Euclidean norm, 1 for the sum of absolute values, `inf` (also as a string) for the largest.
        squared: whether to return the norm's square.

    Raises `ArgumentError` for another order.

    >>> optim.tree.norm({"w": vnp.array([3.0, 4.0])}), optim.tree.norm(vnp.array([3.0, -4.0]), ord="inf")
    (Array(5., dtype=float32), Array(4., dtype=float32))
    """
    if ord is None or ord == 2:
        square = vnp.asarray(_total(trees.map(lambda x: vnp.sum(abs_sq(x)), tree)), _inexact(tree))
        return square if squared else vnp.sqrt(square)
    sizes = trees.map(vnp.abs, tree)
    if ord == 1:
        norm = vnp.asarray(tree_sum(sizes))
    elif ord in (math.inf, "inf", "infinity"):
        norm = vnp.asarray(tree_max(sizes))
    else:
        raise ArgumentError(f"tree_norm: ord is None, 1, 2, inf, 'inf' or 'infinity', got {ord!r}")
    return vnp.square(norm) if squared else norm


def _inexact(tree: Any) -> Any:
    """Return float32 for a tree without elements, else None."""
    return None if trees.leaves(tree) else np.float32


def tree_allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    """Return whether all elements of two trees are close, as `numpy.allclose` has it.

    >>> optim.tree.allclose([1.0, 2.0], [1.0, 2.0 + 1e-7])
    Array(True, dtype=bool)
    """
    flags = trees.map(lambda x, y: vnp.allclose(as_value(x), as_value(y), rtol=rtol, atol=atol, equal_nan=equal_nan), a, b)
    return functools.reduce(operator.and_, trees.leaves(flags), True)

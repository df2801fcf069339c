"""Updates of some rows of a table, without a gradient of the whole table."""

from __future__ import annotations

from typing import Any

import volta_fn.numpy as vnp
from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.dtypes import INTEGERS
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.numpy.arguments import as_signed
from volta_fn.optim.base import GradientTransformation

__all__ = ["update_rows"]


def update_rows(
    optimizer: GradientTransformation, table: Any, state: Any, indices: Any, gradients: Any, **extra_args: Any
) -> tuple[Array, Any]:
    """Update the rows of a table that have gradients.

    All others remain as they are.

    An embedding of a large vocabulary uses few of its rows in a step. Take the gradient by the rows, ``table[indices]``, instead of by the
    table, and no array of the table's size is computed; in a jitted step with donated arguments rows are replaced in place. Gradients of
    equal indices are added.

    It is PyTorch's ``sparse=True`` with SGD, and its SparseAdam, for every optimizer that computes each element by itself: moments and
    weight decay change where there is a gradient only, and the count of steps for all. Without momentum, results are those of a gradient
    with zeros elsewhere.

    Args:
        optimizer: its state has arrays of the table's shape, and numbers.
        table: shape (rows, …).
        state: of ``optimizer.init(table)``.
        indices: integers of any shape; negative ones count from the end. The gradient of one outside the table is dropped.
        gradients: of ``table[indices]``, of its shape.
        extra_args: further arguments of ``optimizer.update``.

    Returns the new table and the new state.

    Raises:
        ShapeError: the gradients do not fit. DTypeError: the indices are not integers.
        ArgumentError: the state has arrays that are neither numbers nor of the table's shape.

    >>> table, ids = vf.numpy.zeros((5, 2)), vf.numpy.array([3, 0, 3])
    >>> optimizer = optim.sgd(0.1)
    >>> gradient = vf.grad(lambda rows: vf.numpy.sum((rows - 1.0) ** 2))(table[ids])
    >>> table, state = optim.update_rows(optimizer, table, optimizer.init(table), ids, gradient)
    >>> table[:, 0]
    Array([0.2, 0. , 0. , 0.4, 0. ], dtype=float32)
    """
    values, numbers, slopes = as_value(table), as_value(indices), as_value(gradients)
    if numbers.dtype not in INTEGERS:
        raise DTypeError(f"update_rows: indices are integers, got {numbers.aval}")
    if not values.ndim or slopes.shape != (*numbers.shape, *values.shape[1:]):
        raise ShapeError(
            f"update_rows: gradients are those of table[indices], of shape {(*numbers.shape, *values.shape[1:])}, got {slopes.shape}"
        )
    for leaf in tree.leaves(state):
        if as_value(leaf).shape not in ((), values.shape):
            raise ArgumentError(
                f"update_rows: the state has an array of shape {as_value(leaf).shape}, and the table has {values.shape}; use an optimizer "
                f"that computes each element by itself, such as sgd or adam"
            )
    rows, sums = _sums_of_rows(numbers.reshape(-1), slopes.reshape((-1, *values.shape[1:])), values.shape[0])

    def pick(leaf: Any) -> Any:
        return vnp.take(leaf, rows, axis=0, mode="clip") if as_value(leaf).ndim else leaf

    def put(leaf: Any, new: Any) -> Any:
        return as_value(leaf).at[rows].set(new, mode="drop", unique_indices=True) if as_value(leaf).ndim else new

    old = pick(values)
    updates, new_state = optimizer.update(sums, tree.map(pick, state), old, **extra_args)
    return put(values, old + updates.astype(values.dtype)), tree.map(put, state, new_state)


def _sums_of_rows(indices: Array, gradients: Array, rows: int) -> tuple[Array, Array]:
    """Return the distinct indices and the sums of their gradients.

    As many are returned as given: those left over are beyond the table.
    """
    indices = as_signed(indices)
    indices = vnp.where((indices >= -rows) & (indices < 0), indices + rows, vnp.where(indices < 0, rows, indices))
    order = vnp.argsort(indices)
    ascending = indices[order]
    is_first = vnp.concatenate([vnp.ones(min(1, indices.size), bool), ascending[1:] != ascending[:-1]])
    positions = vnp.cumsum(is_first.astype("int32")) - 1
    distinct = vnp.full_like(indices, rows).at[positions].set(ascending)
    return distinct, vnp.zeros_like(gradients).at[positions].add(gradients[order])

"""Leaf by leaf: how rules for single arrays are applied to trees of updates, states and parameters.

A *rule* is a function of the arrays that stand at one place of the trees. float16 and bfloat16 leaves are *widened* to float32 for it, and
what it returns is cast back to the dtype of what it replaces: updates keep their dtype and so do states, whatever the rule computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, ConcreteArray, as_value
from volta_fn.errors import DTypeError, ShapeError

Rule = Callable[..., Any]
_FLOAT = np.dtype(np.float32)


def is_leaf(node: Any) -> bool:
    """Whether a node is a leaf, not a container (nor None, a container of nothing)."""
    leaves = tree.leaves(node)
    return len(leaves) == 1 and leaves[0] is node


def widened(x: Array) -> Array:
    """A float16 or bfloat16 array in float32, any other as it is."""
    wide = dtypes.accumulator(x.dtype)
    return x if wide == x.dtype else lax.convert_element_type(x, wide)


def cast_like(x: Array, like: Array) -> Array:
    """`x` in the dtype of `like`."""
    if x.dtype == like.dtype and x.weak_type <= like.weak_type:
        return x
    return lax.convert_element_type(x, like.dtype)


def tree_cast_like(values: Any, like: Any) -> Any:
    """Each leaf of `values` in the dtype of that of `like`."""
    return tree.map(lambda x, other: cast_like(as_value(x), as_value(other)), values, like)


def map_leaves(rule: Rule, updates: Any, *given: Any) -> Any:
    """The tree of ``rule(update, *given)``; the trees given (parameters) have the updates' structure and shapes.

    Raises `TreeError` or `ShapeError` where they differ, `DTypeError` for updates that are not floating-point or complex numbers.
    """
    return map_with_state(lambda *row: (rule(*row),), updates, given=given)[0]


def map_with_state(rule: Rule, updates: Any, *states: Any, given: Sequence[Any] = (), same_shapes: bool = True) -> tuple[Any, ...]:
    """The trees of new updates and new states where ``rule(update, *states, *given) -> (update, *states)``.

    `same_shapes` tells whether the states have the updates' shapes. Raises as `map_leaves`.
    """
    leaves, treedef = tree.flatten(updates)
    leaves = [_inexact(x, updates, i) for i, x in enumerate(leaves)]
    columns = [leaves]
    for i, other in enumerate((*states, *given)):
        columns.append(_column(updates, leaves, treedef, other, same_shapes or i >= len(states)))
    rows = [_apply(rule, row, 1 + len(states)) for row in zip(*columns, strict=True)]
    return tuple(treedef.unflatten([row[i] for row in rows]) for i in range(1 + len(states)))


def _apply(rule: Rule, row: tuple[Array, ...], count: int) -> list[Array]:
    results = rule(*[widened(x) for x in row])
    return [cast_like(result, old) for result, old in zip(results, row[:count], strict=True)]


def _inexact(x: Any, updates: Any, i: int) -> Array:
    value = as_value(x)
    if value.dtype not in dtypes.INEXACT:
        raise DTypeError(
            f"an optimizer's leaf{_place(updates, i)} is of dtype {value.dtype.name}: only floating-point and complex numbers can be "
            "optimised. Leave it out, or let optim.masked pass over it."
        )
    return value


def _column(updates: Any, leaves: list[Array], treedef: tree.TreeDef, other: Any, same_shapes: bool) -> list[Array]:
    """The leaves of a state or of parameters at the places of the updates' leaves."""
    what = "an optimizer's state or parameters, compared with the updates"
    parts = tree.flatten_up_to(treedef, other, what)
    if not all(isinstance(part, Array) for part in parts):
        tree.flatten_up_to(tree.structure(other), updates, what)  # raises if some part is a container
    column = [as_value(part) for part in parts]
    if same_shapes:
        for i, (value, leaf) in enumerate(zip(column, leaves, strict=True)):
            if value.shape != leaf.shape:
                _raise_shapes(updates, i, leaf.shape, value.shape)
    return column


def _raise_shapes(updates: Any, i: int, got: Any, expected: Any) -> NoReturn:
    raise ShapeError(
        f"the update{_place(updates, i)} has shape {got}, its parameter (or the state made from it) {expected}; "
        "pass gradients with respect to the parameters that init was called with"
    )


def _place(updates: Any, i: int) -> str:
    path, _ = tree.leaves_with_path(updates)[i]
    return f" at {tree.keystr(path)}" if path else ""


# The states that optimizers begin with.


def count_zero() -> Array:
    """The counter of steps at the start: an int32."""
    return vnp.zeros((), np.int32)


def zeros_like(params: Any, dtype: Any = None) -> Any:
    """Zeros of the parameters' shapes, in their dtypes or the one given."""
    return full_like(params, 0, dtype)


def full_like(params: Any, value: Any, dtype: Any = None) -> Any:
    """Arrays of the parameters' shapes full of `value`, in their dtypes or the one given."""
    leaves, treedef = tree.flatten(params)
    arrays = [_inexact(x, params, i) for i, x in enumerate(leaves)]
    return treedef.unflatten([vnp.full(x.shape, value, x.dtype if dtype is None else dtype) for x in arrays])


def magnitudes(params: Any, value: Any = 0) -> Any:
    """Arrays full of `value` for statistics of squares and absolute values: real, and at least float32, for small squares vanish in
    float16 and small changes in bfloat16."""
    leaves, treedef = tree.flatten(params)
    arrays = [_inexact(x, params, i) for i, x in enumerate(leaves)]
    return treedef.unflatten([vnp.full(x.shape, value, dtypes.real_dtype(dtypes.accumulator(x.dtype))) for x in arrays])


def widest_real(values: Any) -> np.dtype:
    """The real dtype, float32 at least, that holds the magnitudes of all leaves."""
    parts = {dtypes.real_dtype(dtypes.accumulator(as_value(x).dtype)) for x in tree.leaves(values)}
    return np.dtype(np.float64) if np.dtype(np.float64) in parts else _FLOAT


def factor(value: Any, like: Array) -> Any:
    """A number or scalar array as a factor for `like` that does not change its dtype."""
    if isinstance(value, (int, float)):
        return float(value)
    scalar = as_value(value)
    if scalar.shape:
        raise ShapeError(f"a learning rate or other factor of updates must be a scalar, got shape {scalar.shape}")
    return lax.convert_element_type(scalar, dtypes.real_dtype(like.dtype))


def steps_for(count: Array, updates: Any) -> Array:
    """A counter for a schedule: as int64 where there are float64 updates, so that the schedule computes in float64."""
    return count if widest_real(updates) == _FLOAT else lax.convert_element_type(count, np.int64)


# Choices between trees.


def branch(pred: Array, on_true: Callable[[], Any], on_false: Callable[[], Any]) -> Any:
    """``on_true() if pred else on_false()``: at once where `pred` is known, else by `lax.cond`."""
    if isinstance(pred, ConcreteArray):
        return on_true() if bool(pred) else on_false()
    return lax.cond(pred, on_true, on_false)


def where(pred: Array, on_true: Any, on_false: Any) -> Any:
    """The leaves of one tree or of another of the same structure."""
    return tree.map(lambda a, b: vnp.where(pred, a, b), on_true, on_false)

"""Rules for single arrays, applied to the leaves of trees.

A *rule* is a function of corresponding leaves of these trees. float16 and bfloat16 leaves are *widened* to float32 for it, and its
results are cast back to the dtypes of the leaves that they replace: updates and states keep their dtypes, whatever the rule computes in.
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
    """Return True if a node is a leaf: no container, not None."""
    leaves = tree.leaves(node)
    return len(leaves) == 1 and leaves[0] is node


def widened(x: Array) -> Array:
    """Return a float16 or bfloat16 array in float32, any other unchanged."""
    wide = dtypes.accumulator(x.dtype)
    return x if wide == x.dtype else lax.convert_element_type(x, wide)


def cast_like(x: Array, like: Array) -> Array:
    """Return `x` in the dtype of `like`."""
    if x.dtype == like.dtype and x.weak_type <= like.weak_type:
        return x
    return lax.convert_element_type(x, like.dtype)


def tree_cast_like(values: Any, like: Any) -> Any:
    """Return each leaf of `values` in the dtype of the corresponding leaf of `like`."""
    return tree.map(lambda x, other: cast_like(as_value(x), as_value(other)), values, like)


def map_leaves(rule: Rule, updates: Any, *given: Any) -> Any:
    """Return the tree of ``rule(update, *given)``.

    The trees given (parameters) have the structure and shapes of the updates. Raises `TreeError` or `ShapeError` where they differ,
    `DTypeError` for updates that are not floating-point or complex numbers.
    """
    return map_with_state(lambda *row: (rule(*row),), updates, given=given)[0]


def map_with_state(rule: Rule, updates: Any, *states: Any, given: Sequence[Any] = (), same_shapes: bool = True) -> tuple[Any, ...]:
    """Map leaves by ``rule(update, *states, *given) -> (update, *states)``.

    `same_shapes` says whether the states have the shapes of the updates. Raises the errors of `map_leaves`.
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
            f"an optimizer's leaf{at_path(updates, i)} is of dtype {value.dtype.name}: only floating-point and complex numbers can be "
            "optimised. Leave it out, or exclude it with optim.masked."
        )
    return value


_SAME_TREES = "The updates are gradients with respect to the parameters that init was called with, or were made of such gradients."


def _column(updates: Any, leaves: list[Array], treedef: tree.TreeDef, other: Any, same_shapes: bool) -> list[Array]:
    """Return the leaves of a state or of parameters in the order of the updates."""
    context = "an optimizer's state or parameters, compared with the updates"
    nodes = tree.flatten_up_to(treedef, other, context, _SAME_TREES)
    if not all(isinstance(node, Array) for node in nodes):
        tree.flatten_up_to(tree.structure(other), updates, context, _SAME_TREES)  # raises if a node is a container
    column = [as_value(node) for node in nodes]
    if same_shapes:
        for i, (value, leaf) in enumerate(zip(column, leaves, strict=True)):
            if value.shape != leaf.shape:
                _raise_shapes(updates, i, leaf.shape, value.shape)
    return column


def _raise_shapes(updates: Any, i: int, got: Any, expected: Any) -> NoReturn:
    raise ShapeError(
        f"the update{at_path(updates, i)} has shape {got}, its parameter (or the state made from it) {expected}; "
        "pass gradients with respect to the parameters that init was called with"
    )


def at_path(updates: Any, i: int, is_leaf: Callable[[Any], bool] | None = None) -> str:
    """Return where leaf `i` of a tree is, for a message."""
    path, _ = tree.leaves_with_path(updates, is_leaf)[i]
    return f" at {tree.keystr(path)}" if path else ""


# Initial states.


def count_zero() -> Array:
    """Return the initial step counter, an int32."""
    return vnp.zeros((), np.int32)


def zeros_like(params: Any, dtype: Any = None) -> Any:
    """Return zeros of the parameters' shapes, in their dtypes or in `dtype`."""
    return full_like(params, 0, dtype)


def full_like(params: Any, value: Any, dtype: Any = None) -> Any:
    """Return arrays like the parameters filled with `value`, in `dtype` if given."""
    return _filled(params, value, lambda own: own if dtype is None else dtype)


def magnitudes(params: Any, value: Any = 0) -> Any:
    """Return real arrays filled with `value`, in float32 at least, for statistics."""
    return _filled(params, value, lambda own: dtypes.real_dtype(dtypes.accumulator(own)))


def _filled(params: Any, value: Any, dtype_of: Callable[[np.dtype], Any]) -> Any:
    leaves, treedef = tree.flatten(params)
    arrays = [_inexact(x, params, i) for i, x in enumerate(leaves)]
    return treedef.unflatten([vnp.full(x.shape, value, dtype_of(x.dtype)) for x in arrays])


# Scalars for rules.


def widest_real(values: Any) -> np.dtype:
    """Return the real dtype (float32 or float64) that holds all leaves' magnitudes."""
    found = {dtypes.real_dtype(dtypes.accumulator(as_value(x).dtype)) for x in tree.leaves(values)}
    return np.dtype(np.float64) if np.dtype(np.float64) in found else _FLOAT


def factor(value: Any, like: Array) -> Any:
    """Return a number or scalar array as a factor that keeps the dtype of `like`."""
    if isinstance(value, (int, float)):
        return float(value)
    scalar = as_value(value)
    if scalar.shape:
        raise ShapeError(f"a learning rate or other factor of updates must be a scalar, got shape {scalar.shape}")
    return lax.convert_element_type(scalar, dtypes.real_dtype(like.dtype))


def scaled_by(value: Any, updates: Any) -> Any:
    """Return updates times a number or scalar array."""
    return map_leaves(lambda u: factor(value, u) * u, updates)


def steps_for(count: Array, updates: Any) -> Array:
    """Return a step counter, int64 for float64 updates, whose schedule needs it."""
    return count if widest_real(updates) == _FLOAT else lax.convert_element_type(count, np.int64)


# Choices between trees.


def branch(pred: Array, on_true: Callable[[], Any], on_false: Callable[[], Any]) -> Any:
    """Return ``on_true() if pred else on_false()``, by `lax.cond` if `pred` is traced."""
    if isinstance(pred, ConcreteArray):
        return on_true() if bool(pred) else on_false()
    return lax.cond(pred, on_true, on_false)


def where(pred: Array, on_true: Any, on_false: Any) -> Any:
    """Select between the leaves of two trees of the same structure."""
    return tree.map(lambda a, b: vnp.where(pred, a, b), on_true, on_false)

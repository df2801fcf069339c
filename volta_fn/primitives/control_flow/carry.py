"""The carry of a loop, whose structure, shapes and dtypes must not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import dtypes, tree
from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.flatten import function_name
from volta_fn.errors import DTypeError, ShapeError, TreeError
from volta_fn.primitives.control_flow.bodies import Adapted
from volta_fn.primitives.elementwise.cast import convert_element_type


def promote_weak(init: Sequence[Array], after: Sequence[ShapedArray]) -> list[Array] | None:
    """Promote weakly typed values of the initial carry as a step does.

    Return None if they have the step's dtypes already.
    """
    if len(init) != len(after):
        return None
    promoted = [_promoted(x, a) for x, a in zip(init, after, strict=True)]
    return promoted if any(p is not x for p, x in zip(promoted, init, strict=True)) else None


def _promoted(value: Array, after: ShapedArray) -> Array:
    if not value.weak_type or value.dtype == after.dtype:
        return value
    dtype, _ = dtypes.promote((value.dtype, True), (after.dtype, after.weak_type))
    return value if dtype == value.dtype else convert_element_type(value, dtype)


def check_carry(
    loop: str,
    function: Callable[..., Any],
    init: Any,
    before: Sequence[ShapedArray],
    after_tree: tree.TreeDef,
    after: Sequence[ShapedArray],
) -> None:
    """Raise unless a step returns a carry like the one it takes.

    The error is a `TreeError`, `ShapeError` or `DTypeError`; `before` are the types of `init`.
    """
    hidden = function.hidden_keys if isinstance(function, Adapted) else 0
    name = function_name(function.owner if isinstance(function, Adapted) else function)
    if tree.structure(init) != after_tree:
        path, expected, got = structural_difference(tree.structure(init), after_tree)
        raise TreeError(
            f"{loop}: the carry that {name} returns differs in structure from the one it takes, at {_location(path, hidden)}: "
            f"it takes {expected} and returns {got}. Return a carry of the structure of the initial one."
        )
    for (path, _), old, new in zip(tree.leaves_with_path(init), before, after, strict=True):
        if old.shape != new.shape:
            raise ShapeError(
                f"{loop}: {name} takes a carry of type {old} at {_location(path, hidden)} and returns {new}. "
                "Every step needs the same shape: start with an array of the final shape, or return that part as an output of the step."
            )
        if old.dtype != new.dtype:
            raise DTypeError(
                f"{loop}: {name} takes a carry of type {old} at {_location(path, hidden)} and returns {new}. "
                f"Every step needs the same dtype: start with .astype({new.dtype.name}), or convert the result to {old.dtype.name}."
            )


def structural_difference(one: tree.TreeDef, other: tree.TreeDef) -> tuple[tree.KeyPath, str, str]:
    """Describe the first difference of two structures."""
    found = tree.first_difference(one, _example(other))
    if found is not None:
        return found
    # To `first_difference` any tree fits a leaf: the leaf is one where `one` has a leaf and `other` has more.
    path, second, first = tree.first_difference(other, _example(one)) or ((), tree.describe(other), tree.describe(one))
    return path, first, second


def _example(structure: tree.TreeDef) -> Any:
    return tree.unflatten(structure, [array()] * structure.num_leaves)


class array:
    """A stand-in for arrays in trees that are compared; messages show its name."""


def _location(path: tree.KeyPath, hidden: int) -> str:
    keys = tree.keystr(path[hidden:])
    return f"carry{keys}" if keys else "the carry itself"

"""Loops and branches under `disable_jit`, whose functions Python calls.

The functions get values that `print` and a debugger show. A loop returns what the traced one does, and refuses the same carries. Where the
value of a condition or an index is unknown, as in `make_jaxpr` or for the examples of `vmap`, the function is traced after all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ConcretizationError
from volta_fn.primitives.control_flow.bodies import check_carry, promote_weak
from volta_fn.primitives.data_movement.movement import reshape
from volta_fn.primitives.data_movement.slicing import concatenate

#: The result of loops that must be traced instead.
UNKNOWN: Any = object()


def scan_in_python(
    name: str, f: Callable[..., Any], init: Any, xs: Any, rows: Sequence[Array], length: int, reverse: bool, check_pair: Callable[..., Any]
) -> tuple[Any, Any]:
    """Run `scan` of one step or more; `check_pair` checks the results of a step."""
    structure = tree.structure(xs)
    carry: Any = tree.map(as_value, init)
    stacked: list[Any] = []
    order = reversed(range(length)) if reverse else range(length)
    for number in order:
        x = tree.unflatten(structure, [row[number] for row in rows])
        result = f(carry, x)
        check_pair(name, f, tree.structure(result))
        if (start := _promoted_outputs(carry, result[0])) is not None:  # the dtype of the initial carry, which a step decides
            carry, result = start, f(start, x)
        carry, y = _next(name, f, carry, result[0]), result[1]
        stacked.append(y)
    return carry, tree.map(_stack, *(stacked[::-1] if reverse else stacked))


def while_in_python(name: str, cond_fun: Callable[..., Any], body_fun: Callable[..., Any], init: Any, check: Callable[..., None]) -> Any:
    """Run `while_loop` in Python, `check` its conditions; `UNKNOWN` if one is traced."""
    carry: Any = tree.map(as_value, init)
    try:
        while True:
            condition = cond_fun(carry)
            check(name, cond_fun, tree.structure(condition), [as_value(x).aval for x in tree.leaves(condition)])
            if not bool(condition):
                return carry
            result = body_fun(carry)
            if (start := _promoted_outputs(carry, result)) is not None:
                carry, result = start, body_fun(start)
            carry = _next(name, body_fun, carry, result)
    except ConcretizationError:
        return UNKNOWN


def chosen_in_python(index: Array, functions: Sequence[Callable[..., Any]], operands: Sequence[Any]) -> Any:
    """Run the chosen branch in Python; return `UNKNOWN` if `index` is traced."""
    try:
        number = int(index)
    except ConcretizationError:
        return UNKNOWN
    return tree.map(as_value, functions[number](*tree.map(as_value, tuple(operands))))


def _promoted_outputs(carry: Any, result: Any) -> Any:
    """Promote a carry to a step's dtypes; None if it has them already."""
    if tree.structure(carry) != tree.structure(result):
        return None
    promoted = promote_weak(tree.leaves(carry), [as_value(x).aval for x in tree.leaves(result)])
    return None if promoted is None else tree.unflatten(tree.structure(carry), promoted)


def _next(name: str, f: Callable[..., Any], carry: Any, result: Any) -> Any:
    """Return the next carry, which must have the type of the one before."""
    leaves = [as_value(x) for x in tree.leaves(result)]
    check_carry(name, f, carry, [x.aval for x in tree.leaves(carry)], tree.structure(result), [x.aval for x in leaves])
    return tree.unflatten(tree.structure(carry), leaves)


def _stack(*ys: Any) -> Array:
    values = [as_value(y) for y in ys]
    return concatenate([reshape(value, (1, *value.shape)) for value in values], 0)

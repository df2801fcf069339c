"""Control flow under `disable_jit`: Python calls the loops' functions.

They get values that `print` and a debugger show. What a loop returns, and which carries it refuses, is as for the traced loop. Where a
value that decides is unknown, as in `make_jaxpr` or for the examples of `vmap`, the loop is traced after all. Branches likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ConcretizationError
from volta_fn.primitives.control_flow.carry import check_carry, promote_weak
from volta_fn.primitives.data_movement.joining import concatenate
from volta_fn.primitives.data_movement.movement import reshape

#: What stands for the result of a loop that must be traced.
UNKNOWN: Any = object()


def scan_in_python(
    name: str, f: Callable[..., Any], init: Any, xs: Any, rows: Sequence[Array], length: int, reverse: bool, check_pair: Callable[..., Any]
) -> tuple[Any, Any]:
    """Run `scan` of one step or more; `check_pair` looks at what a step returns."""
    structure = tree.structure(xs)
    carry: Any = tree.map(as_value, init)
    stacked: list[Any] = []
    order = reversed(range(length)) if reverse else range(length)
    for number in order:
        x = tree.unflatten(structure, [row[number] for row in rows])
        result = f(carry, x)
        check_pair(name, f, tree.structure(result))
        if (start := _promoted(carry, result[0])) is not None:  # the dtype of the initial carry, which a step decides
            carry, result = start, f(start, x)
        carry, y = _next(name, f, carry, result[0]), result[1]
        stacked.append(y)
    return carry, tree.map(_stack, *(stacked[::-1] if reverse else stacked))


def while_in_python(name: str, cond_fun: Callable[..., Any], body_fun: Callable[..., Any], init: Any, check: Callable[..., None]) -> Any:
    """Run `while_loop`; return `UNKNOWN` if a condition is.

    `check` looks at the type of a condition.
    """
    carry: Any = tree.map(as_value, init)
    try:
        while True:
            condition = cond_fun(carry)
            check(name, cond_fun, tree.structure(condition), [as_value(x).aval for x in tree.leaves(condition)])
            if not bool(condition):
                return carry
            result = body_fun(carry)
            if (start := _promoted(carry, result)) is not None:
                carry, result = start, body_fun(start)
            carry = _next(name, body_fun, carry, result)
    except ConcretizationError:
        return UNKNOWN


def chosen_in_python(index: Array, functions: Sequence[Callable[..., Any]], operands: Sequence[Any]) -> Any:
    """Run the function of a conditional; return `UNKNOWN` if `index` is."""
    try:
        number = int(index)
    except ConcretizationError:
        return UNKNOWN
    return tree.map(as_value, functions[number](*tree.map(as_value, tuple(operands))))


def _promoted(carry: Any, result: Any) -> Any:
    """Return a carry in the dtypes that a step gives its leaves.

    None if they are the same.
    """
    if tree.structure(carry) != tree.structure(result):
        return None
    found = promote_weak(tree.leaves(carry), [as_value(x).aval for x in tree.leaves(result)])
    return None if found is None else tree.unflatten(tree.structure(carry), found)


def _next(name: str, f: Callable[..., Any], carry: Any, result: Any) -> Any:
    """Return the next carry, which must have the type of the one before."""
    leaves = [as_value(x) for x in tree.leaves(result)]
    check_carry(name, f, carry, [x.aval for x in tree.leaves(carry)], tree.structure(result), [x.aval for x in leaves])
    return tree.unflatten(tree.structure(carry), leaves)


def _stack(*ys: Any) -> Array:
    values = [as_value(y) for y in ys]
    return concatenate([reshape(value, (1, *value.shape)) for value in values], 0)

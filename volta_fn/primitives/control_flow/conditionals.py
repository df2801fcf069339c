"""Conditionals: `cond` of two branches, `switch` of many.

Only the chosen one is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr, Var
from volta_fn.core.primitive import Primitive
from volta_fn.core.refs import Ref, bound, check_no_refs, discharged, positions_of_refs, read_all, write_all
from volta_fn.core.staging import check_callable, function_name, wraps
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, DTypeError, ShapeError, TreeError
from volta_fn.primitives.control_flow.bodies import UNKNOWN, Body, chosen_in_python, structural_difference, trace_body
from volta_fn.primitives.elementwise.cast import convert_element_type, widened
from volta_fn.primitives.elementwise.selection import clamp, ne
from volta_fn.settings import current as settings

_ABSENT: Any = object()
R = TypeVar("R")


def _cond_abstract(index: ShapedArray, *operands: ShapedArray, branches: tuple[ClosedJaxpr, ...]) -> tuple[ShapedArray, ...]:
    for given, wanted in zip(operands, branches[0].in_avals, strict=True):
        if (given.shape, given.dtype) != (wanted.shape, wanted.dtype):
            raise ShapeError(f"cond's programs take {wanted} where {given} is given")
    return tuple(branches[0].out_avals)  # of branches that differ in weak types, the first one's count, as in JAX


#: Operands: an int32 scalar below the number of branches, and every branch's operands. False and True are branches 0 and 1.
cond_p = Primitive("cond", _cond_abstract, multiple_results=True, holds_programs=True, views=True)


def cond(pred: Any, true_fun: Callable[..., R], false_fun: Callable[..., R], *operands: Any, operand: Any = _ABSENT) -> R:
    """Evaluate one of two functions, as `pred`, which may be traced, says.

    The same as ``true_fun(*operands) if pred else false_fun(*operands)``.

    Under `vmap` with a `pred` that differs between examples both branches are computed and the results selected.

    Args:
        pred: a boolean scalar; of a number, whether it is not zero.
        true_fun, false_fun: functions whose results agree in structure, shapes and dtypes.
        operands: pytrees of arrays, given to either function. ``operand=x`` is the older spelling for one of them. An older form still,
            ``cond(pred, true_operand, true_fun, false_operand, false_fun)``, gives each function an operand of its own.

    Raises:
        ShapeError, DTypeError, TreeError: `pred` is not a scalar, or the branches' results differ.

    >>> import volta_fn as vf
    >>> vf.lax.cond(True, lambda x: x + 1, lambda x: x * 10, 5)
    Array(6, dtype=int32, weak_type=True)
    """
    if operand is not _ABSENT:
        if operands:
            raise ArgumentError("cond: give the operands by position or one of them with operand=, not both")
        operands = (operand,)
    if not callable(true_fun) and len(operands) == 2 and callable(false_fun) and callable(operands[1]):
        on_true, on_false = false_fun, operands[1]
        both = (true_fun, operands[0])
        return cond(pred, lambda own, _: on_true(own), lambda _, own: on_false(own), *both)
    check_callable(true_fun, "cond")
    check_callable(false_fun, "cond")
    value = as_value(pred)
    if value.shape:
        raise ShapeError(
            f"cond: pred must be a scalar, got {value.aval}. Reduce it with .any() or .all(), or choose by element with where."
        )
    truth = value if value.dtype == np.bool_ else ne(value, 0)
    return _choose("cond", convert_element_type(truth, np.int32), {"false_fun": false_fun, "true_fun": true_fun}, operands)


def switch(index: Any, branches: Sequence[Callable[..., R]], *operands: Any, operand: Any = _ABSENT) -> R:
    """Evaluate ``branches[index](*operands)``.

    An `index` out of range means the nearest branch.

    Args:
        index: an integer scalar.
        branches: functions whose results agree in structure, shapes and dtypes.
        operands: pytrees of arrays, given to the chosen function; ``operand=x`` is the older spelling for one of them.

    Raises:
        ArgumentError: there are no branches.
        ShapeError, DTypeError, TreeError: `index` is not an integer scalar, or the branches' results differ.

    >>> import volta_fn as vf
    >>> vf.lax.switch(2, [lambda x: x, lambda x: -x, lambda x: x * x], 3)
    Array(9, dtype=int32, weak_type=True)
    """
    if operand is not _ABSENT:
        if operands:
            raise ArgumentError("switch: give the operands by position or one of them with operand=, not both")
        operands = (operand,)
    for branch in branches:
        check_callable(branch, "switch")
    value = as_value(index)
    if value.shape:
        raise ShapeError(f"switch: index must be a scalar, got {value.aval}")
    if value.dtype not in dtypes.INTEGERS:
        raise DTypeError(f"switch: index must be an integer, got {value.aval}. Choose by a truth value with cond.")
    if not branches:
        raise ArgumentError("switch: there are no branches to choose from")
    if len(branches) == 1:
        return branches[0](*operands)
    last = min(len(branches) - 1, int(np.iinfo(value.dtype).max))
    named = {f"branches[{i}]": branch for i, branch in enumerate(branches)}
    return _choose("switch", convert_element_type(clamp(0, value, last), np.int32), named, operands)


def _choose(name: str, index: Array, functions: dict[str, Callable[..., Any]], operands: tuple[Any, ...]) -> Any:
    """Evaluate one of the functions, whose references become operands and results."""
    leaves, structure = tree.flatten(operands)
    if found := positions_of_refs(leaves):
        closed = {label: _closing_over(f, leaves, found, structure) for label, f in functions.items()}
        return _choose(name, index, closed, tuple([x for i, x in enumerate(leaves) if i not in found]))

    def run(refs: list[Ref]) -> Any:
        if not refs:
            return _choose_pure(name, index, functions, operands)
        branches = {label: _with_refs(f, refs, name) for label, f in functions.items()}
        result, values = _choose_pure(name, index, branches, (read_all(refs), *operands))
        write_all(refs, values)
        return result

    return discharged(run)


def _closing_over(function: Callable[..., Any], leaves: Sequence[Any], found: Sequence[int], structure: Any) -> Callable[..., Any]:
    """Make a function of the other leaves alone of one that gets references."""

    @wraps(function)
    def run(*others: Any) -> Any:
        rest = iter(others)
        return function(*tree.unflatten(structure, [leaf if i in found else next(rest) for i, leaf in enumerate(leaves)]))

    return run


def _with_refs(function: Callable[..., Any], refs: Sequence[Ref], name: str) -> Callable[..., Any]:
    """Make a function take the values of references, and return the last ones."""

    @wraps(function)
    def run(values: Sequence[Array], *operands: Any) -> tuple[Any, list[Array]]:
        with bound(refs, values):
            result = function(*operands)
            check_no_refs(result, name)
            return result, read_all(refs)

    return run


def _choose_pure(name: str, index: Array, functions: dict[str, Callable[..., Any]], operands: tuple[Any, ...]) -> Any:
    if settings.disable_jit:
        found = chosen_in_python(index, [*functions.values()], operands)
        if found is not UNKNOWN:
            return found
    values = [as_value(x) for x in tree.leaves(operands)]
    bodies = [trace_body(f, operands, [v.aval for v in values]) for f in functions.values()]
    if in_full := {i for body in bodies for i in body.in_full}:
        return _choose_pure(name, index, functions, tree.unflatten(tree.structure(operands), widened(values, in_full)))
    labels = [f"{label} ({function_name(f)})" for label, f in functions.items()]
    for label, body in zip(labels[1:], bodies[1:], strict=True):
        _check_alike(f"{name}: the results of {labels[0]} and {label} must have the same", bodies[0], body)
    captured, branches = _share_captured(bodies)
    flat = bind(cond_p, index, *captured, *values, branches=branches)
    return tree.unflatten(bodies[0].out_tree, flat)


def _check_alike(demand: str, first: Body, second: Body) -> None:
    if first.out_tree != second.out_tree:
        path, one, other = structural_difference(first.out_tree, second.out_tree)
        raise TreeError(
            f"{demand} structure, but differ{_location(path)}: {one} and {other}. Return the same containers with the same keys."
        )
    example = tree.unflatten(second.out_tree, second.jaxpr.out_avals)
    for (path, b), a in zip(tree.leaves_with_path(example), first.jaxpr.out_avals, strict=True):
        if a.shape != b.shape:
            raise ShapeError(f"{demand} shapes, but differ{_location(path)}: {a} and {b}. Reshape, pad or broadcast one of them.")
        if a.dtype != b.dtype:
            raise DTypeError(f"{demand} dtypes, but differ{_location(path)}: {a} and {b}. Convert one of them with .astype(...).")


def _location(path: tree.KeyPath) -> str:
    return f" at {tree.keystr(path)}" if path else ""


def _share_captured(bodies: Sequence[Body]) -> tuple[list[Array], tuple[ClosedJaxpr, ...]]:
    """Give the branches all values that any of them closes over."""
    captured = list({id(x): x for body in bodies for x in body.captured}.values())
    if not captured:
        return [], tuple([body.jaxpr for body in bodies])
    return captured, tuple([_with_inputs(body, captured) for body in bodies])


def _with_inputs(body: Body, captured: Sequence[Array]) -> ClosedJaxpr:
    jaxpr, count = body.jaxpr.jaxpr, len(body.captured)
    own = {id(x): var for x, var in zip(body.captured, jaxpr.invars[:count], strict=True)}
    inputs = [own[id(x)] if id(x) in own else Var(x.aval) for x in captured]
    return ClosedJaxpr(Jaxpr(jaxpr.constvars, [*inputs, *jaxpr.invars[count:]], jaxpr.outvars, jaxpr.eqns), body.jaxpr.consts)

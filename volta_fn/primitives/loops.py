"""Conditionals and loops: `cond`, `switch`, `while_loop`, `fori_loop`, `reduce`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, overload

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import PRIMITIVES, Primitive, reduction_of
from volta_fn.core.refs import Ref, RefArguments, bound, check_no_refs, discharged, positions_of_refs, read_all, with_view_nodes, write_all
from volta_fn.core.staging import check_callable, function_name, leaf_structure, wraps
from volta_fn.core.trace import bind, is_concrete
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, TreeError
from volta_fn.primitives.data_movement.movement import broadcast, canonical_axes, reshape, transpose
from volta_fn.primitives.data_movement.slicing import concatenate, slice_in_dim
from volta_fn.primitives.declare import weakly_promoted
from volta_fn.primitives.elementwise.cast import convert_element_type, widened
from volta_fn.primitives.elementwise.selection import clamp, ne
from volta_fn.primitives.scan import (
    STRUCTURES,
    UNKNOWN,
    AdaptedFunction,
    Combination,
    captured_values,
    check_carry,
    checked_unroll,
    chosen_in_python,
    every_other,
    flat_arrays,
    promote_weak,
    run_scan,
    trace_body,
    while_in_python,
)
from volta_fn.settings import current as settings

# Conditionals: `cond` of two branches, `switch` of many.
#
# Only the chosen one is evaluated.

_ABSENT: Any = object()
R = TypeVar("R")


def _cond_abstract(index: ShapedArray, *operands: ShapedArray, branches: tuple[ClosedJaxpr, ...]) -> tuple[ShapedArray, ...]:
    for operand, expected in zip(operands, branches[0].in_avals, strict=True):
        if (operand.shape, operand.dtype) != (expected.shape, expected.dtype):
            raise ShapeError(f"cond's programs take {expected} where {operand} is given")
    return tuple(branches[0].out_avals)  # of branches that differ in weak types, the first one's count, as in JAX


#: Operands: an int32 scalar below the number of branches, and every branch's operands. False and True are branches 0 and 1.
cond_p = Primitive("cond", _cond_abstract, multiple_results=True, holds_programs=True, views=True)


def cond(pred: Any, true_fun: Callable[..., R], false_fun: Callable[..., R], *operands: Any, operand: Any = _ABSENT) -> R:
    """Evaluate one of two functions, chosen by `pred`, which may be traced.

    The same as ``true_fun(*operands) if pred else false_fun(*operands)``. Under `vmap` with a `pred` that differs between examples both
    branches are computed and the results selected.

    Args:
        pred: a boolean scalar; of a number, whether it is not zero.
        true_fun, false_fun: functions whose results agree in structure, shapes and dtypes.
        operands: pytrees of arrays, given to either function. ``operand=x`` is the older spelling for one of them. An older form still,
            ``cond(pred, true_operand, true_fun, false_operand, false_fun)``, gives each function an operand of its own.

    Raises:
        ShapeError, DTypeError, TreeError: `pred` is not a scalar, or the branches' results differ.

    >>> vf.lax.cond(True, lambda x: x + 1, lambda x: x * 10, 5)
    Array(6, dtype=int32, weak_type=True)
    """
    if operand is not _ABSENT:
        if operands:
            raise ArgumentError("cond: give the operands by position or one of them with operand=, not both")
        operands = (operand,)
    if not callable(true_fun) and len(operands) == 2 and callable(false_fun) and callable(operands[1]):
        on_true, on_false = false_fun, operands[1]
        pair = (true_fun, operands[0])
        return cond(pred, lambda x, _: on_true(x), lambda _, x: on_false(x), *pair)
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
        ArgumentError: there are no branches. ArgumentTypeError: they are not functions in a sequence.
        ShapeError, DTypeError, TreeError: `index` is not an integer scalar, or the branches' results differ.

    >>> vf.lax.switch(2, [lambda x: x, lambda x: -x, lambda x: x * x], 3)
    Array(9, dtype=int32, weak_type=True)
    """
    if operand is not _ABSENT:
        if operands:
            raise ArgumentError("switch: give the operands by position or one of them with operand=, not both")
        operands = (operand,)
    if callable(branches):
        raise ArgumentTypeError("switch: the branches are one sequence, switch(index, [f, g], *operands), got a function in its place")
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
    operands = with_view_nodes(operands)
    leaves, structure = tree.flatten(operands)
    if positions := positions_of_refs(leaves):
        arguments = RefArguments(leaves, positions, name)
        closed = {label: _bind_references(f, arguments, structure) for label, f in functions.items()}
        return _choose(name, index, closed, tuple([x for i, x in enumerate(leaves) if i not in positions]))

    def run(refs: list[Ref]) -> Any:
        if not refs:
            return _choose_pure(name, index, functions, operands)
        branches = {label: _with_refs(f, refs, name) for label, f in functions.items()}
        result, values = _choose_pure(name, index, branches, (read_all(refs), *operands))
        write_all(refs, values)
        return result

    return discharged(run)


def _bind_references(function: Callable[..., Any], arguments: RefArguments, structure: Any) -> Callable[..., Any]:
    """Bind the references among a function's leaves; return a function of the rest."""

    @wraps(function)
    def run(*others: Any) -> Any:
        return function(*tree.unflatten(structure, arguments.with_others(iter(others))))

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
        result = chosen_in_python(index, [*functions.values()], operands)
        if result is not UNKNOWN:
            return result
    values = [as_value(x) for x in tree.leaves(operands)]
    bodies = [trace_body(f, operands, [v.aval for v in values]) for f in functions.values()]
    if wide_inputs := {i for body in bodies for i in body.wide_inputs}:
        return _choose_pure(name, index, functions, tree.unflatten(tree.structure(operands), widened(values, wide_inputs)))
    labels = [f"{label} ({function_name(f)})" for label, f in functions.items()]
    for label, body in zip(labels[1:], bodies[1:], strict=True):
        demand = f"{name}: the results of {labels[0]} and {label} must have the same"
        first = bodies[0]
        if first.out_tree != body.out_tree:
            path, one, other = STRUCTURES.structural_difference(first.out_tree, body.out_tree)
            raise TreeError(
                f"{demand} structure, but differ{_location(path)}: {one} and {other}. Return the same containers with the same keys."
            )
        example = tree.unflatten(body.out_tree, body.jaxpr.out_avals)
        for (path, b), a in zip(tree.leaves_with_path(example), first.jaxpr.out_avals, strict=True):
            if a.shape != b.shape:
                raise ShapeError(f"{demand} shapes, but differ{_location(path)}: {a} and {b}. Reshape, pad or broadcast one of them.")
            if a.dtype != b.dtype:
                raise DTypeError(f"{demand} dtypes, but differ{_location(path)}: {a} and {b}. Convert one of them with .astype(...).")
    captured = captured_values(bodies)
    flat = bind(cond_p, index, *captured, *values, branches=tuple([body.with_captured(captured) for body in bodies]))
    return tree.unflatten(bodies[0].out_tree, flat)


def _location(path: tree.KeyPath) -> str:
    return f" at {tree.keystr(path)}" if path else ""


# Loops that run until a condition fails, or a given number of times.


def _while_abstract(
    *avals: ShapedArray, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr, cond_nconsts: int, body_nconsts: int
) -> tuple[ShapedArray, ...]:
    carry = avals[cond_nconsts + body_nconsts :]
    for value, expected in zip(carry, body_jaxpr.in_avals[body_nconsts:], strict=True):
        if (value.shape, value.dtype) != (expected.shape, expected.dtype):
            raise ShapeError(f"while's program takes {expected} where {value} is given")
    return tuple(body_jaxpr.out_avals)


#: Operands: the values that the condition closes over, those that the body closes over, and the initial carry.
while_p = Primitive("while", _while_abstract, multiple_results=True, holds_programs=True, views=True)


T = TypeVar("T")


@overload
def while_loop(cond_fun: Callable[[T], Any], body_fun: Callable[[T], T], init_val: T) -> T: ...
@overload
def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], T], init_val: Any) -> T: ...
def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any) -> Any:
    """Repeat ``val = body_fun(val)`` while ``cond_fun(val)`` is true.

    The loop is one program; it returns the last value, beginning with `init_val`. Forward mode passes through it. Reverse mode does not, as
    the number of steps is unknown: use `scan`, or `fori_loop` with bounds that are Python integers. Under `vmap` with conditions that
    differ the loop runs until the last example is done.

    Args:
        cond_fun: from the carry to a boolean scalar.
        body_fun: from the carry to the next one, of the same structure, shapes and dtypes.
        init_val: the first carry, a pytree of arrays. Python scalars in it take the dtype that a step gives them.

    Raises:
        TreeError, ShapeError, DTypeError: the carry changes its structure, shape or dtype; `cond_fun` gives no boolean scalar.

    >>> vf.lax.while_loop(lambda x: x < 100, lambda x: x * 2, 3)
    Array(192, dtype=int32, weak_type=True)
    """
    check_callable(cond_fun, "while_loop")
    check_callable(body_fun, "while_loop")
    return _run_while("while_loop", cond_fun, body_fun, init_val)


def _run_while(name: str, cond_fun: Callable[..., Any], body_fun: Callable[..., Any], init: Any) -> Any:
    """Run a loop; references that its functions use become part of the carry."""

    def run(refs: list[Ref]) -> Any:
        if not refs:
            return _run_pure(name, cond_fun, body_fun, init)

        @wraps(cond_fun)
        def condition(carry: Any) -> Any:
            with bound(refs, carry[1]):
                return cond_fun(carry[0])

        @wraps(body_fun)
        def step(carry: Any) -> Any:
            with bound(refs, carry[1]):
                result = body_fun(carry[0])
                check_no_refs(result, name)
                return result, read_all(refs)

        result, values = _run_pure(name, condition, step, (init, read_all(refs)))
        write_all(refs, values)
        return result

    return discharged(run)


def _run_pure(name: str, cond_fun: Callable[..., Any], body_fun: Callable[..., Any], init: Any) -> Any:
    if settings.disable_jit:
        result = while_in_python(name, cond_fun, body_fun, init, _check_condition)
        if result is not UNKNOWN:
            return result
    leaves, init_tree = tree.flatten(init)
    start = [as_value(x) for x in leaves]
    while True:
        avals = [x.aval for x in start]
        cond = trace_body(cond_fun, (init,), avals)
        _check_condition(name, cond_fun, cond.out_tree, cond.jaxpr.out_avals)
        body = trace_body(body_fun, (init,), avals)
        wide_inputs = {*cond.wide_inputs, *body.wide_inputs}
        promoted = widened(start, wide_inputs) if wide_inputs else promote_weak(start, body.jaxpr.out_avals)
        if promoted is None:
            break
        start = promoted
    check_carry(name, body_fun, init, avals, body.out_tree, body.jaxpr.out_avals)
    flat = bind(
        while_p, *cond.captured, *body.captured, *start,
        cond_jaxpr=cond.jaxpr, body_jaxpr=body.jaxpr, cond_nconsts=len(cond.captured), body_nconsts=len(body.captured),
    )  # fmt: skip
    return tree.unflatten(init_tree, flat)


def _check_condition(name: str, cond_fun: Callable[..., Any], out_tree: tree.TreeDef, avals: Sequence[ShapedArray]) -> None:
    who = f"{name}: {function_name(cond_fun)} must return a boolean scalar, but returned"
    if out_tree != leaf_structure():
        raise TreeError(f"{who} the structure {tree.describe(out_tree)}")
    (aval,) = avals
    if aval.shape:
        raise ShapeError(f"{who} {aval}. Reduce it with .any() or .all().")
    if aval.dtype != np.bool_:
        raise DTypeError(f"{who} {aval}. Compare it with something, such as != 0.")


class _CountedStep(AdaptedFunction):
    """A `fori_loop` body as the body of a scan."""

    hidden_keys: ClassVar[int] = 1

    def __call__(self, carry: Any, _: None) -> Any:
        i, value = carry
        return (i + 1, self.owner(i, value)), None


class _CountedWhile(AdaptedFunction):
    """A `fori_loop` body as the body of a while loop that carries its upper bound."""

    hidden_keys: ClassVar[int] = 1

    def __call__(self, carry: Any) -> Any:
        i, upper, value = carry
        return i + 1, upper, self.owner(i, value)


@overload
def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any, T], T], init_val: T, *, unroll: int | bool | None = None) -> T: ...
@overload
def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any, Any], T], init_val: Any, *, unroll: int | bool | None = None) -> T: ...
def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init_val: Any, *, unroll: int | bool | None = None) -> Any:
    """Repeat ``val = body_fun(i, val)`` for i from `lower` to `upper` - 1.

    The loop is one program; it returns the last value, beginning with `init_val`. With bounds known while tracing it is a `scan` and
    differentiable in both modes; else a `while_loop`, which reverse mode cannot pass.

    Args:
        lower, upper: scalars of one dtype (Python integers take the other's dtype).
        body_fun: ``(i, val) -> val``.
        init_val: a pytree of arrays, whose structure, shapes and dtypes stay the same.
        unroll: as for `scan`; needs bounds known while tracing.

    Raises:
        ShapeError, DTypeError: a bound is no scalar, or they differ in dtype; and what `scan` raises.
        ArgumentError: `unroll` with bounds that are traced.

    >>> vf.lax.fori_loop(0, 5, lambda i, total: total + i, 0)
    Array(10, dtype=int32, weak_type=True)
    """
    check_callable(body_fun, "fori_loop")
    first, last = _bounds(lower, upper)
    if is_concrete(first) and is_concrete(last):
        steps = max(int(last) - int(first), 0)
        written = checked_unroll("fori_loop", False if unroll is None else unroll, steps)
        (_, result), _ = run_scan("fori_loop", _CountedStep(body_fun), (first, init_val), None, [], steps, False, written)
        return result
    if unroll is not None:
        raise ArgumentError("fori_loop: unroll needs bounds that are known while tracing (Python integers), but a bound is traced")
    _, _, result = _run_while("fori_loop", lambda carry: carry[0] < carry[1], _CountedWhile(body_fun), (first, last, init_val))
    return result


def _bounds(lower: Any, upper: Any) -> Sequence[Array]:
    bounds = weakly_promoted("fori_loop", [as_value(lower), as_value(upper)])
    for value in bounds:
        if value.shape:
            raise ShapeError(f"fori_loop: the bounds must be scalars, got {bounds[0].aval} and {bounds[1].aval}")
        if value.dtype in dtypes.COMPLEX or value.dtype == np.bool_:
            raise DTypeError(f"fori_loop: the bounds must be integers, got {bounds[0].aval} and {bounds[1].aval}")
    if bounds[0].dtype != bounds[1].dtype:
        raise DTypeError(f"fori_loop: the bounds must have one dtype, got {bounds[0].aval} and {bounds[1].aval}")
    return bounds


# `reduce`: elements along axes combined by a function of the user's.


def reduce(
    operands: Any, init_values: Any, computation: Callable[[Any, Any], Any], dimensions: Sequence[int], out_sharding: Any = None
) -> Any:
    """Combine the elements along `dimensions` by `computation`.

    The combination begins with `init_values`. `computation` is one of `lax.add`, `mul`, `max`, `min`, `bitwise_and`, `bitwise_or`,
    `bitwise_xor`, which have kernels, or any associative function of two arrays that treats elements alike. That is applied about log2 n
    times to many elements at once, neighbours first, so that their (row-major) order is kept, and its derivative is that of these
    applications.

    Args:
        operands: an array, or a pytree of arrays of one shape, whose elements are then reduced together.
        init_values: a scalar for each array, of its dtype, as a pytree of the same structure.
        computation: from two values like `operands` (one before the other) to one of as many leaves, of the same shapes and dtypes.
        dimensions: the axes that are reduced.

    Returns the reduced arrays in the structure that `computation` returns, without `dimensions`, of the operands' dtypes.

    Raises:
        ArgumentError: there are no arrays, or an array and its initial value have two dtypes.
        ShapeError: the arrays have several shapes, or an initial value is not a scalar.
        TreeError, ShapeError, DTypeError: `computation` returns leaves unlike those that it takes.

    >>> vf.lax.reduce(vf.numpy.array([1, 2, 3]), 0, vf.lax.add, (0,))
    Array(6, dtype=int32)

    The largest of the values and where it is:

    >>> def larger(a, b):
    ...     first = a[0] >= b[0]
    ...     return vf.lax.select(first, a[0], b[0]), vf.lax.select(first, a[1], b[1])
    >>> values, indices = vf.numpy.array([3.0, 7.0, 5.0]), vf.numpy.arange(3)
    >>> vf.lax.reduce((values, indices), (-vf.numpy.inf, -1), larger, (0,))
    (Array(7., dtype=float32), Array(1, dtype=int32))
    """
    check_callable(computation, "reduce")
    values, structure = flat_arrays("reduce", operands)
    if len({v.shape for v in values}) > 1:
        raise ShapeError(f"reduce: the operands must have one shape, got {', '.join(str(v.shape) for v in values)}")
    inits = tree.flatten_up_to(structure, init_values, "reduce: init_values")
    starts = [_initial(init, value) for init, value in zip(inits, values, strict=True)]
    axes = canonical_axes(tuple(dimensions), values[0].ndim, "dimensions")
    step = getattr(computation, "primitive", None)
    reductions = [p for p in PRIMITIVES.values() if step and p.reduction and p.reduction.step == step.name and not p.reduction.index_of]
    reduction = reductions[0] if reductions else None
    if len(values) == 1 and reduction is not None:
        reduced = bind(reduction, values[0], axes=axes) if axes else values[0]
        return constrained(tree.unflatten(structure, [_with_start(reduction, starts[0], reduced, computation)]), out_sharding)
    combine = Combination("reduce", computation, structure)
    results = _reduce_by_neighbours(values, starts, combine, sorted(axes))
    return constrained(tree.unflatten(combine.structure, results), out_sharding)


def _initial(init_value: Any, operand: Array) -> Array:
    start = as_value(init_value)
    if start.shape:
        raise ShapeError(f"reduce: init_value must be a scalar, got an array of shape {start.shape}")
    if start.dtype != operand.dtype and not start.weak_type:
        raise ArgumentError(f"reduce: operand has dtype {operand.dtype.name} and init_value {start.dtype.name}; they must agree")
    return convert_element_type(start, operand.dtype)


def _with_start(primitive: Primitive, start: Array, reduced: Array, computation: Callable[..., Any]) -> Array:
    identity = reduction_of(primitive.name).start(reduced.dtype)
    # Compared on the host: while a function is traced, a comparison of arrays is traced, too.
    return reduced if is_concrete(start) and np.asarray(start) == identity else computation(start, reduced)


def _reduce_by_neighbours(values: Sequence[Array], starts: Sequence[Array], combine: Combination, axes: Sequence[int]) -> list[Array]:
    shape = values[0].shape
    other_axes = [i for i in range(len(shape)) if i not in axes]
    other_sizes = [shape[i] for i in other_axes]
    size = math.prod([shape[i] for i in axes])
    rest = [reshape(transpose(v, (*axes, *other_axes)), (size, *other_sizes)) for v in values]
    while size > 1:
        pairs = combine(every_other(rest, 0, size - 1, 0), every_other(rest, 1, size, 0))
        rest = [concatenate([p, slice_in_dim(r, size - 1, size)], 0) if size % 2 else p for p, r in zip(pairs, rest, strict=True)]
        size = (size + 1) // 2
    firsts = [broadcast(s, (1, *other_sizes)) for s in starts]
    combined = combine(firsts, rest if size else firsts)  # also without elements, since it says what the results look like
    return [reshape(r, other_sizes) for r in (combined if size else firsts)]

"""Bodies of control flow.

Traced to sub-programs, or called by Python under `disable_jit`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any, ClassVar, NamedTuple

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.caches import CallCache, WeakIdentityDict
from volta_fn.core.devices.device import current_default_device
from volta_fn.core.jaxpr import ClosedJaxpr, Var
from volta_fn.core.staging import FlatFunction, argument_labels, function_name, hoist_tracers, trace_with_wide_inputs
from volta_fn.core.trace import axis_environment, mesh_reads
from volta_fn.errors import ArgumentTypeError, ConcretizationError, DTypeError, ShapeError, TreeError
from volta_fn.primitives.data_movement.movement import reshape
from volta_fn.primitives.data_movement.slicing import concatenate
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.tree.structures import structural_difference

# Bodies of control flow: functions traced to sub-programs, and their carries.

# The carry of a loop, whose structure, shapes and dtypes must not change.


def promote_weak(init: Sequence[Array], step_avals: Sequence[ShapedArray]) -> list[Array] | None:
    """Promote weak values of the initial carry to a step's dtypes; None if they agree."""
    if len(init) != len(step_avals):
        return None
    promoted = [_promoted_carry(x, a) for x, a in zip(init, step_avals, strict=True)]
    return promoted if any(p is not x for p, x in zip(promoted, init, strict=True)) else None


def _promoted_carry(value: Array, step_aval: ShapedArray) -> Array:
    if not value.weak_type or value.dtype == step_aval.dtype:
        return value
    dtype, _ = dtypes.promote((value.dtype, True), (step_aval.dtype, step_aval.weak_type))
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
    hidden = function.hidden_keys if isinstance(function, AdaptedFunction) else 0
    name = function_name(function.owner if isinstance(function, AdaptedFunction) else function)
    if tree.structure(init) != after_tree:
        path, expected, got = structural_difference(tree.structure(init), after_tree)
        is_missing = got == "None" and not path[hidden:]
        remedy = "Is a `return` missing at its end?" if is_missing else "Return a carry of the structure of the initial one."
        raise TreeError(
            f"{loop}: the carry that {name} returns differs in structure from the one it takes, at {_location(path, hidden)}: "
            f"it takes {expected} and returns {got}. {remedy}"
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


def _location(path: tree.KeyPath, hidden: int) -> str:
    keys = tree.keystr(path[hidden:])
    return f"carry{keys}" if keys else "the carry itself"


# Bodies: users' functions, traced to the sub-programs of control flow.
#
# A body is traced once per function and argument types. An eager loop that scans with one function thus does not trace it again and
# again, until `clear_caches`. A program that captured tracers belongs to one call and is never kept.

#: Functions whose programs are kept, and programs kept per function, before all are dropped.
_FUNCTIONS, _PROGRAMS = 512, 64


class Body(NamedTuple):
    """A function's program from captured values and arguments to the result's leaves."""

    jaxpr: ClosedJaxpr
    out_tree: tree.TreeDef
    #: The outer tracers that the function closed over; the leading inputs stand for them.
    captured: list[Array]
    #: The positions of weakly typed arguments that meet 64-bit dtypes. If there are some, trace again with these `widened`.
    wide_inputs: list[int]

    def with_captured(self, captured: Sequence[Array]) -> ClosedJaxpr:
        """Return the program with leading inputs for these values, its own among them."""
        if not captured:
            return self.jaxpr
        count = len(self.captured)
        inputs_of = {id(x): v for x, v in zip(self.captured, self.jaxpr.invars[:count], strict=True)}
        leading = [inputs_of[id(x)] if id(x) in inputs_of else Var(x.aval) for x in captured]
        return self.jaxpr.replace(invars=[*leading, *self.jaxpr.invars[count:]])


def captured_values(bodies: Iterable[Body]) -> list[Array]:
    """Return the values that some body captured, each once."""
    return list({id(x): x for body in bodies for x in body.captured}.values())


class AdaptedFunction:
    """A user's function with another signature, whose programs its `owner` keeps."""

    #: The number of leading keys of a carry's paths that wrappers added.
    hidden_keys: ClassVar[int] = 0

    def __init__(self, owner: Callable[..., Any]) -> None:
        self.owner = owner


def trace_body(function: Callable[..., Any], args: Sequence[Any], avals: Sequence[ShapedArray]) -> Body:
    """Trace ``function(*args)``.

    Only the structure of the arguments matters; `avals` are their leaves' types.
    """
    in_tree = tree.structure((tuple(args), {}))
    owner = function.owner if isinstance(function, AdaptedFunction) else function
    key = (type(function), in_tree, tuple(avals), axis_environment(), current_default_device())
    cached = _find(owner, key)
    if cached is not None:
        return cached
    reads = mesh_reads.count
    flat = FlatFunction(function, in_tree)
    labels = argument_labels(function, in_tree)
    try:
        closed, wide_inputs = trace_with_wide_inputs(flat, avals, function_name(owner), labels)
    except TypeError as error:
        if re.match(rf"{re.escape(getattr(owner, '__qualname__', ''))}\(\) (missing|takes)", str(error)):
            raise ArgumentTypeError(
                f"{error}: branches of cond and switch get the operands that follow them, a scan's step (carry, x), the body of fori_loop "
                "(i, carry), the functions of while_loop the carry, and map's function one element, of a tuple of arrays a tuple"
            ) from None
        raise
    program, captured = hoist_tracers(closed)
    body = Body(program, flat.out_tree, captured, wide_inputs)
    if not captured and mesh_reads.count == reads:  # else it belongs to one call, or to the current mesh
        _store(owner, key, body)
    return body


class _CacheEntry(NamedTuple):
    body: Body
    #: The names of globals that the function may read, and their values and those of its closure when it was traced.
    names: tuple[str, ...]
    seen: list[Any]


#: The programs of functions, for as long as these live. A function that sees other closed-over or global values is traced again.
_caches: WeakIdentityDict[FunctionType, CallCache] = WeakIdentityDict()


def _find(function: Any, key: Any) -> Body | None:
    """Return the program cached under a key, if it is still valid."""
    # Only plain functions have one: other callables may change unseen.
    cache = _caches.get(function) if type(function) is FunctionType else None
    entry = None if cache is None else cache.table("bodies").get(key)
    return entry.body if entry is not None and _all_identical(entry.seen, _referenced_values(function, entry.names)) else None


def _store(function: Any, key: Any, body: Body) -> None:
    if type(function) is not FunctionType:
        return
    cache = _caches.get(function)
    if cache is None:
        if len(_caches) >= _FUNCTIONS:
            _caches.clear()
        cache = CallCache("jit", ["bodies"], _PROGRAMS)
        _caches.set(function, cache)
    names = tuple(set(_names(function.__code__)))
    cache.reserve(1)
    cache.table("bodies")[key] = _CacheEntry(body, names, _referenced_values(function, names))


def _names(code: CodeType) -> Iterator[str]:
    """Return the names that a function and its nested functions look up outside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _referenced_values(function: FunctionType, names: Sequence[str]) -> list[Any]:
    """Return the values of the globals and the closure that a function reads."""
    cells = [_cell_contents(cell) for cell in function.__closure__ or ()]
    return [*cells, *[function.__globals__.get(n) for n in names], function.__code__, function.__defaults__, function.__kwdefaults__]


def _cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _all_identical(old: Sequence[Any], new: Sequence[Any]) -> bool:
    return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))


# Loops and branches under `disable_jit`, whose functions Python calls.
#
# The functions get values that `print` and a debugger show. A loop returns what the traced one does, and refuses the same carries.
# Where the value of a condition or an index is unknown, as in `make_jaxpr` or for the examples of `vmap`, the function is traced after
# all.

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
        carry, y = _next_carry(name, f, carry, result[0]), result[1]
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
            carry = _next_carry(name, body_fun, carry, result)
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


def _next_carry(name: str, f: Callable[..., Any], carry: Any, result: Any) -> Any:
    """Return the next carry, which must have the type of the one before."""
    leaves = [as_value(x) for x in tree.leaves(result)]
    check_carry(name, f, carry, [x.aval for x in tree.leaves(carry)], tree.structure(result), [x.aval for x in leaves])
    return tree.unflatten(tree.structure(carry), leaves)


def _stack(*ys: Any) -> Array:
    values = [as_value(y) for y in ys]
    return concatenate([reshape(value, (1, *value.shape)) for value in values], 0)

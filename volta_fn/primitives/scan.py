"""`scan`, `associative_scan`, and the bodies of all control flow."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, ClassVar, NamedTuple, TypeVar, overload

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray, as_integer
from volta_fn.core.caches import CallCache, WeakIdentityDict
from volta_fn.core.devices.device import current_default_device
from volta_fn.core.jaxpr import ClosedJaxpr, Var
from volta_fn.core.primitive import Primitive
from volta_fn.core.refs import Ref, RefArguments, bound, check_no_refs, discharged, positions_of_refs, read_all, with_refs_at, write_all
from volta_fn.core.staging import FlatFunction, argument_labels, check_callable, function_name, hoist_tracers, trace_with_wide_inputs, wraps
from volta_fn.core.trace import axis_environment, bind, mesh_reads
from volta_fn.errors import ArgumentError, ArgumentTypeError, ConcretizationError, DTypeError, ShapeError, TreeError
from volta_fn.lazy_imports import deferred
from volta_fn.primitives.data_movement.movement import canonical_axis, expand_dims, reshape, rev
from volta_fn.primitives.data_movement.slicing import concatenate, slice_in_dim
from volta_fn.primitives.elementwise.cast import convert_element_type, widened
from volta_fn.settings import current as settings

#: Loaded with the first tree, and optree with it.
STRUCTURES = deferred("volta_fn.tree.structures")

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
        path, expected, got = STRUCTURES.structural_difference(tree.structure(init), after_tree)
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
    #: What the function refers to, as it was after it had been traced.
    seen: list[Any]


#: The programs of functions, for as long as these live. A function that refers to other values is traced again.
_caches: WeakIdentityDict[Callable[..., Any], CallCache] = WeakIdentityDict()


def _find(function: Any, key: Any) -> Body | None:
    """Return the program cached under a key, if it is still valid."""
    cache = _caches.get(function) if _is_compared_by_identity(function) else None
    entry = None if cache is None else cache.table("bodies").get(key)
    return entry.body if entry is not None and _all_identical(entry.seen, _references(function)) else None


def _store(function: Any, key: Any, body: Body) -> None:
    seen = _references(function)
    if seen is None:
        return
    cache = _caches.get(function)
    if cache is None:
        if len(_caches) >= _FUNCTIONS:
            _caches.clear()
        cache = CallCache("jit", ["bodies"], _PROGRAMS)
        _caches.set(function, cache)
    cache.reserve(1)
    cache.table("bodies")[key] = _CacheEntry(body, seen)


@functools.lru_cache(maxsize=_FUNCTIONS)
def _names(code: CodeType) -> tuple[str, ...]:
    """Return the names that a function and its nested functions look up outside."""
    nested = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return tuple({*code.co_names, *itertools.chain(*nested)})


def _references(function: Any) -> list[Any] | None:
    """Return the values that a function refers to; None if they may change unseen.

    They are the globals and the closure of a plain function. A callable object refers to its attributes and those of its class, and to
    what its `__call__` and the functions among its attributes refer to.
    """
    if type(function) is FunctionType:
        return _referenced_values(function)
    attributes, method = getattr(function, "__dict__", None), vars(type(function)).get("__call__")
    if type(attributes) is not dict or type(method) is not FunctionType or not _is_compared_by_identity(function):
        return None
    inherited = itertools.chain(*[vars(base).values() for base in type(function).__mro__[:-1]])
    parts = [*_parts(method), *_parts(attributes), *inherited]
    return None if any(part is _CHANGING for part in parts) else parts


def _is_compared_by_identity(function: Any) -> bool:
    return type(function).__hash__ is object.__hash__ and type(function).__weakrefoffset__ > 0  # type: ignore[comparison-overlap]


#: Stands for an attribute of a callable object whose value may change unseen.
_CHANGING = object()
#: Classes of values that never change, and the depth of containers from which on they count as changing.
_CONSTANT, _DEPTH = (type(None), bool, int, float, complex, str, bytes, type, np.dtype), 4


def _parts(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield a function and what it refers to, or the elements of a container."""
    if type(value) is FunctionType:
        yield from (value, *_referenced_values(value))
    elif depth <= _DEPTH and isinstance(value, (Mapping, tuple, list)):
        for element in (*value, *value.values()) if isinstance(value, Mapping) else (*value,):
            yield from _parts(element, depth + 1)
    else:
        yield value if isinstance(value, _CONSTANT) else _CHANGING


def _referenced_values(function: FunctionType) -> list[Any]:
    """Return the values of the globals and the closure that a function reads."""
    code = function.__code__
    cells = [_cell_contents(cell) for cell in function.__closure__ or ()]
    return [*cells, *[function.__globals__.get(n) for n in _names(code)], code, function.__defaults__, function.__kwdefaults__]


def _cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _all_identical(old: Sequence[Any], new: Sequence[Any] | None) -> bool:
    return new is not None and len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))


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


# `scan`: a loop of known length over the leading axis of its inputs.
#
# A scan's body is one program ``(*consts, *carry, *x) -> (*carry, *y)``: *consts* are the same in every step, the *carry* goes from
# step to step, an *x* is one row of the scanned arrays, the *y* of all steps are stacked.


def _scan_abstract(
    *avals: ShapedArray, jaxpr: ClosedJaxpr, length: int, reverse: bool, num_consts: int, num_carry: int, unroll: int
) -> tuple[ShapedArray, ...]:
    stacked = num_consts + num_carry
    for number, (aval, expected) in enumerate(zip(avals, jaxpr.in_avals, strict=True)):
        if aval is expected and number < stacked:
            continue
        shape = aval.shape[1:] if number >= stacked else aval.shape
        if shape != expected.shape or aval.dtype != expected.dtype:
            raise ShapeError(f"scan's program takes {expected} where {aval.update(shape=shape)} is given")
    outs = jaxpr.out_avals
    return (*outs[:num_carry], *[ShapedArray((length, *a.shape), a.dtype, a.weak_type) for a in outs[num_carry:]])


#: Parameters: the body, the number of steps, whether they go from last to first, how the operands divide, and the steps per iteration
#: that a target which generates loops should unroll.
scan_p = Primitive("scan", _scan_abstract, multiple_results=True, holds_programs=True, views=True)


Carry = TypeVar("Carry")
Y = TypeVar("Y")


@overload
def scan(
    f: Callable[[Carry, Any], tuple[Carry, Y]],
    init: Carry,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
) -> tuple[Carry, Y]: ...
@overload
def scan(
    f: Callable[[Any, Any], tuple[Carry, Y]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
) -> tuple[Carry, Y]: ...
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
) -> tuple[Any, Any]:
    """Carry a value through the rows of `xs` and stack the outputs of all steps.

    It is a `for` loop as one program. ``scan(f, init, xs)`` means ``carry = init; for x in xs: carry, y = f(carry, x)`` and returns the
    last carry and the stacked ``y``. Differentiable in both modes; reverse mode stores what each step needs, once where it is the same for
    all.

    Args:
        f: one step, ``(carry, x) -> (carry, y)``. It is traced once, whatever the length. A plain function that is passed again, with
            arguments of the same types and seeing the same global and closed-over objects, is not traced again.
        init: the first carry, a pytree of arrays. Python scalars in it take the dtype that a step gives them.
        xs: a pytree of arrays that share the size of their leading axis, or None.
        length: the number of steps; needed if `xs` has no arrays.
        reverse: go from the last row to the first (``ys[i]`` still belongs to ``xs[i]``).
        unroll: how many steps (0 or True: all) a target that generates loops may write out per iteration; the result is the same.
        _split_transpose: accepted, as libraries written for JAX pass it; it changes nothing.

    Raises:
        TreeError, ShapeError, DTypeError: the carry changes its structure, shape or dtype, or the lengths differ.
        ArgumentError, ArgumentTypeError: no length is known, or `f` does not return a pair.

    >>> vf.lax.scan(lambda total, x: (total + x, total), 0, vf.numpy.arange(4.0))
    (Array(6., dtype=float32), Array([0., 0., 1., 3.], dtype=float32))
    """
    check_callable(f, "scan")
    xs_pairs = tree.leaves_with_path(xs)
    if positions := positions_of_refs([x for _, x in xs_pairs]):
        # Some of `xs` are references, whose rows a step may write.
        leaves, structure = tree.flatten(xs)
        arguments = RefArguments(leaves, positions, "scan")

        @wraps(f)
        def step(carry: Any, row: Any) -> Any:
            rows, refs = with_refs_at(positions, row, arguments.refs)
            carry, y = f(carry, tree.unflatten(structure, rows))
            check_no_refs((carry, y), "scan")
            return carry, (y, read_all(refs))

        def run(rows: list[Any]) -> Any:
            carry, (ys, last) = scan(step, init, rows, length, reverse, unroll)
            return (carry, ys), last

        return arguments.run(run)
    rows = [as_value(x) for _, x in xs_pairs]
    steps = _length(rows, [tree.keystr(path) for path, _ in xs_pairs], length)
    return run_scan("scan", f, init, xs, rows, steps, reverse, checked_unroll("scan", unroll, steps))


def _length(rows: Sequence[Array], paths: Sequence[str], length: int | None) -> int:
    for row, path in zip(rows, paths, strict=True):
        if not row.ndim:
            raise ShapeError(f"scan: xs{path} is a scalar of type {row.aval}; every array in xs needs a leading axis to scan over")
    sizes = {row.shape[0] for row in rows}
    if len(sizes) > 1:
        listed = ", ".join(f"xs{path}: {row.shape}" for row, path in zip(rows, paths, strict=True))
        raise ShapeError(f"scan: the arrays in xs must have one leading size, the number of steps; got {listed}")
    if length is None:
        if not sizes:
            raise ArgumentError("scan: there are no arrays in xs, so the number of steps must be given with length=")
        return sizes.pop()
    steps = int(length) if settings.permissive and isinstance(length, float) else as_integer(length, "scan: length")  # as in JAX
    if steps < 0:
        raise ArgumentError(f"scan: length cannot be negative, got {steps}")
    if sizes and sizes != {steps}:
        raise ShapeError(f"scan: length={steps}, but the arrays in xs have {sizes.pop()} rows. Leave length out.")
    return steps


def checked_unroll(caller: str, unroll: int | bool, steps: int) -> int:
    """Return how many steps to unroll; raise `ArgumentError` if `unroll` is invalid."""
    if unroll is False:
        return 1
    if not isinstance(unroll, int) or unroll < 0:
        raise ArgumentError(f"{caller}: unroll must be a bool or an integer of at least 0, got {unroll!r}")
    return max(steps, 1) if unroll is True or unroll == 0 else unroll


def run_scan(
    name: str, f: Callable[..., Any], init: Any, xs: Any, rows: Sequence[Array], length: int, reverse: bool, unroll: int
) -> tuple[Any, Any]:
    """Run `scan` on checked arguments, called `name`; references join the carry."""

    def run(refs: list[Ref]) -> tuple[Any, Any]:
        if not refs:
            return _run_pure(name, f, init, xs, rows, length, reverse, unroll)
        carry = init, read_all(refs)
        (last, values), ys = _run_pure(name, _carrying(f, refs, name), carry, xs, rows, length, reverse, unroll)
        write_all(refs, values)
        return last, ys

    return discharged(run)


def _carrying(f: Callable[..., Any], refs: Sequence[Ref], name: str) -> Callable[..., Any]:
    """Make a step that also carries the values of references."""

    @wraps(f)
    def step(carry: Any, x: Any) -> Any:
        with bound(refs, carry[1]):
            pair = f(carry[0], x)
            check_no_refs(pair, name)
            return ((pair[0], read_all(refs)), pair[1]) if isinstance(pair, (tuple, list)) and len(pair) == 2 else pair

    return step


def _run_pure(
    name: str, f: Callable[..., Any], init: Any, xs: Any, rows: Sequence[Array], length: int, reverse: bool, unroll: int
) -> tuple[Any, Any]:
    if settings.disable_jit and length:
        return scan_in_python(name, f, init, xs, rows, length, reverse, _result_trees)
    leaves, init_tree = tree.flatten(init)
    start, rows, body = _trace_step(f, init, [as_value(x) for x in leaves], xs, rows)
    outs = body.jaxpr.out_avals
    carry_tree, y_tree = _result_trees(name, f, body.out_tree)
    count = carry_tree.num_leaves
    check_carry(name, f, init, [x.aval for x in start], carry_tree, outs[:count])
    flat = bind(
        scan_p, *body.captured, *start, *rows,
        jaxpr=body.jaxpr, length=length, reverse=bool(reverse), num_consts=len(body.captured), num_carry=count, unroll=unroll,
    )  # fmt: skip
    return tree.unflatten(init_tree, flat[:count]), tree.unflatten(y_tree, flat[count:])


def _trace_step(
    f: Callable[..., Any], init: Any, start: Sequence[Array], xs: Any, rows: Sequence[Array]
) -> tuple[Sequence[Array], Sequence[Array], Body]:
    """Trace the body, and promote the initial carry."""
    # Tracing repeats as long as the body gives weakly typed leaves of the carry a higher dtype.
    count = len(start)
    while True:
        body = trace_body(f, (init, xs), [*[x.aval for x in start], *[r.aval.update(shape=r.shape[1:]) for r in rows]])
        if body.wide_inputs:
            values = widened([*start, *rows], body.wide_inputs)
            start, rows = values[:count], values[count:]
            continue
        promoted = promote_weak(start, body.jaxpr.out_avals[:count])
        if promoted is None:
            return start, rows, body
        start = promoted


def _describe_outputs(structure: tree.TreeDef) -> str:
    result = tree.describe(structure)
    if result in ("*", "None"):
        return "one array" if result == "*" else "None; is a `return` missing at its end?"
    return f"{result}, where * is an array"


def _result_trees(name: str, f: Callable[..., Any], out_tree: tree.TreeDef) -> tuple[tree.TreeDef, tree.TreeDef]:
    kind, children = out_tree.type, out_tree.children()
    if kind is None or not issubclass(kind, (tuple, list)) or len(children) != 2:
        result = _describe_outputs(out_tree)
        remedy = "" if result.endswith("?") else ". Return None for y if a step gives nothing but the carry."
        raise TreeError(f"{name}: {function_name(f)} must return a pair (carry, y), but it returns {result}{remedy}")
    return children[0], children[1]


# Prefix combinations by an associative function in O(log n) array operations.

T = TypeVar("T", bound=Any)


def associative_scan(fn: Callable[[T, T], T], elems: T, reverse: bool = False, axis: int = 0) -> T:
    """Return all prefix combinations ``x0, fn(x0, x1), …`` along an axis.

    `fn` is called about ``2 log2 n`` times, each time on many elements at once, about ``2 n`` in all (Blelloch, Prefix sums and their
    applications, 1990), so it must be associative and work on arrays whose size along `axis` varies.

    Args:
        fn: associative, from two pytrees like `elems` to one of such leaves.
        elems: a pytree of arrays of one size along `axis`.
        reverse: combine from the last element on.
        axis: the axis along which elements lie.

    Raises:
        ArgumentError, ShapeError: there are no arrays, or their sizes along `axis` differ.
        TreeError, ShapeError, DTypeError: `fn` returns leaves unlike those of `elems`.

    >>> vf.lax.associative_scan(vf.lax.max, vf.numpy.array([3, 1, 4, 1, 5]))
    Array([3, 3, 4, 4, 5], dtype=int32)
    """
    check_callable(fn, "associative_scan")
    values, structure = flat_arrays("associative_scan", elems)
    dim = canonical_axis(axis, values[0].ndim)
    if len({(v.shape + (-1,) * (dim + 1))[dim] for v in values}) > 1 or any(v.ndim <= dim for v in values):
        shapes = ", ".join(str(v.shape) for v in values)
        raise ShapeError(f"associative_scan: the arrays must have one size along axis {dim}, got shapes {shapes}")

    in_order = [rev(v, (dim,)) for v in values] if reverse else values
    results = _prefixes(Combination("associative_scan", fn, structure), in_order, dim)
    return tree.unflatten(structure, [rev(r, (dim,)) for r in results] if reverse else results)


def flat_arrays(caller: str, arrays: Any) -> tuple[list[Array], tree.TreeDef]:
    """Return the arrays of a tree, at least one, and its structure."""
    leaves, structure = tree.flatten(arrays)
    if not leaves:
        raise ArgumentError(f"{caller}: there are no arrays in {tree.describe(structure)}; give at least one")
    return [as_value(x) for x in leaves], structure


class Combination:
    """A function of two trees to one, as a function of leaves.

    `structure` is that of its latest result, whose class may be another one than that of its arguments: a tuple for a named tuple.
    """

    def __init__(self, caller: str, fn: Callable[[Any, Any], Any], structure: tree.TreeDef) -> None:
        self._caller, self._fn, self._argument_structure, self.structure = caller, fn, structure, structure

    def __call__(self, a: Sequence[Array], b: Sequence[Array]) -> list[Array]:
        """Combine the leaves of two trees."""
        structure = self._argument_structure
        leaves, self.structure = tree.flatten(self._fn(tree.unflatten(structure, a), tree.unflatten(structure, b)))
        if len(leaves) != structure.num_leaves:
            raise TreeError(
                f"{self._caller}: {function_name(self._fn)} takes the structure {tree.describe(structure)} and returns "
                f"{tree.describe(self.structure)}, which has another number of leaves"
            )
        return [self._checked(x, as_value(y)) for x, y in zip(b, leaves, strict=True)]

    def _checked(self, argument: Array, returned: Array) -> Array:
        if (argument.shape, argument.dtype) == (returned.shape, returned.dtype):
            return returned
        error = DTypeError if argument.shape == returned.shape else ShapeError
        raise error(f"{self._caller}: {function_name(self._fn)} takes arrays of type {argument.aval} and returns {returned.aval}")


def _prefixes(combine: Combination, values: Sequence[Array], dim: int) -> list[Array]:
    """Combine neighbors, scan those pairs, and complete the even elements."""
    size = values[0].shape[dim]
    if size < 2:
        return list(values)
    pairs = combine(every_other(values, 0, size - 1, dim), every_other(values, 1, size, dim))
    odd = _prefixes(combine, pairs, dim)
    evens = every_other(values, 2, size, dim)
    count = evens[0].shape[dim]
    first = [slice_in_dim(v, 0, 1, 1, dim) for v in values]
    if not count:
        return [concatenate([f, o], dim) for f, o in zip(first, odd, strict=True)]
    later = combine([slice_in_dim(o, 0, count, 1, dim) for o in odd], evens)
    even = [concatenate([f, x], dim) for f, x in zip(first, later, strict=True)]
    return [_interleave(e, o, dim) for e, o in zip(even, odd, strict=True)]


def every_other(values: Sequence[Array], start: int, stop: int, dim: int) -> list[Array]:
    """Return the elements `start`, `start` + 2, … before `stop` of each array."""
    return [slice_in_dim(v, start, stop, 2, dim) for v in values]


def _interleave(even: Array, odd: Array, dim: int) -> Array:
    """Return even[0], odd[0], even[1], odd[1], …; `even` may have one more."""
    count = odd.shape[dim]
    stacked = concatenate([expand_dims(slice_in_dim(even, 0, count, 1, dim), (dim + 1,)), expand_dims(odd, (dim + 1,))], dim + 1)
    joined = reshape(stacked, (*even.shape[:dim], 2 * count, *even.shape[dim + 1 :]))
    return concatenate([joined, slice_in_dim(even, count, count + 1, 1, dim)], dim) if even.shape[dim] > count else joined

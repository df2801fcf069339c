"""Functions with rules by users.

Their calls, and `custom_vmap`, whose batching rule is one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.caches import CallCache, exact
from volta_fn.core.devices.device import current_default_device
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr, Var
from volta_fn.core.primitive import AxisData, Primitive, RuleOf, SharedParams, Zero
from volta_fn.core.refs import PassedRefError, Ref, check_distinct, check_no_refs, positions_of_refs
from volta_fn.core.staging import (
    DynamicJaxprTrace,
    check_callable,
    eval_jaxpr,
    function_name,
    hoist_tracers,
    output_arrays,
    trace_with_wide_inputs,
)
from volta_fn.core.trace import EVAL, Tracer, axis_environment, bind, current_trace, mesh_reads, run_under
from volta_fn.errors import ArgumentError, CapturedTracerError, ConcretizationError, ShapeError, TreeError, UnsetRuleError
from volta_fn.primitives.call import call_primitive
from volta_fn.primitives.data_movement.movement import broadcast, instantiate, to_front
from volta_fn.primitives.elementwise.cast import convert_element_type, widened
from volta_fn.primitives.scan import scan
from volta_fn.source import signature_of
from volta_fn.transforms.differentiation import (
    JVPTrace,
    JVPTracer,
    PartialEvalTrace,
    jvp_flat,
    jvp_jaxpr,
    marked,
    merge,
    nonzero_marks,
    split_tangents,
    with_zeros,
)
from volta_fn.transforms.eager import RecordedTracer, Recording
from volta_fn.transforms.vmap import batch_jaxpr, vmap_flat

#: The programs kept per function before all are dropped.
_MOST_PROGRAMS = 512


@dataclass(slots=True)
class TracedCall:
    """The program of a call; closed-over tracers are its leading inputs."""

    jaxpr: ClosedJaxpr
    out_tree: Any
    captured: list[Array]
    #: The parameters of all such calls, if the function and its rule belong to this package and so depend on their arguments alone.
    params: SharedParams | None = None
    #: The positions of weakly typed arguments that meet 64-bit dtypes; `Programs.trace` converts these.
    wide_inputs: Sequence[int] = ()


class _RefNode:
    """A reference as a pytree without leaves; unflattening returns the reference."""

    def __init__(self, ref: Ref) -> None:
        self.ref = ref


tree.register_pytree_node(_RefNode, lambda node: ((), node.ref), lambda ref, _: ref)


def _with_ref_nodes(arguments: Any) -> Any:
    """Make references among arguments part of the structure: they are no leaves then."""
    leaves = tree.leaves(arguments) if Ref.exist else []
    if not positions_of_refs(leaves):
        return arguments
    for leaf in leaves:
        if type(leaf) is Ref and leaf.passing is not None:
            raise PassedRefError(leaf)
    return tree.map(lambda x: _RefNode(x) if type(x) is Ref else x, arguments)


class Programs:
    """The traced programs of a function, by their keys."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = function_name(function)
        self._cache = CallCache("jit", ["programs"], _MOST_PROGRAMS)

    def trace(self, call: Callable[[Sequence[Array]], Any], values: Sequence[Array], key: Any) -> tuple[TracedCall, list[Array]]:
        """Trace `call` for these arrays; return the program and its operands.

        The operands are the closed-over tracers and `values`, of which weakly typed ones that meet 64-bit dtypes are converted to 64 bits.
        The program is kept under `key`, unless that is None or the function closes over tracers.
        """
        traced = self._trace(call, values, key)
        if traced.wide_inputs:
            values = widened(values, traced.wide_inputs)
            traced = self._trace(call, values, key)
        return traced, [*traced.captured, *values]

    def _trace(self, call: Callable[[Sequence[Array]], Any], values: Sequence[Array], key: Any) -> TracedCall:
        avals = tuple([v.aval for v in values])
        full_key = None if key is None else _hashable((key, avals, axis_environment(), current_default_device()))
        cached: TracedCall | None = self._cache.table("programs").get(full_key) if full_key is not None else None
        if cached is not None:
            return cached
        reads = mesh_reads.count
        out_tree: Any = None

        def flat(*leaves: Array) -> list[Array]:
            nonlocal out_tree
            outs, out_tree = tree.flatten(call(leaves))
            return output_arrays(outs, self.function)

        closed, wide_inputs = trace_with_wide_inputs(flat, avals, self.name)
        program, captured = hoist_tracers(closed)
        traced = TracedCall(program, out_tree, captured, wide_inputs=wide_inputs)
        if full_key is not None and not captured and mesh_reads.count == reads:  # it does not belong to one call, or to the current mesh
            self._cache.add("programs", full_key, traced)
        return traced


def _hashable(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        return None
    return key


class Arguments(NamedTuple):
    """The positional arguments of a call, split in fixed and differentiable ones."""

    #: The fixed arguments: their positions, and the leaves and structure of their values.
    positions: tuple[int, ...]
    fixed_leaves: list[Any]
    fixed_tree: Any
    differentiable: tuple[Any, ...]

    @property
    def traced(self) -> list[Array]:
        """The tracers in the fixed arguments; they become operands, which can be mapped."""
        return [x for x in self.fixed_leaves if isinstance(x, Tracer)]

    def fixed(self, traced: Sequence[Array]) -> list[Any]:
        """Return the fixed arguments, with tracers replaced by other values."""
        values = iter(traced)
        return tree.unflatten(self.fixed_tree, [next(values) if isinstance(x, Tracer) else x for x in self.fixed_leaves])

    def merge(self, traced: Sequence[Array], differentiable: Sequence[Any]) -> list[Any]:
        """Return all arguments, with tracers and differentiable arguments replaced."""
        fixed = dict(zip(self.positions, self.fixed(traced), strict=True))
        rest = iter(differentiable)
        return [fixed[i] if i in fixed else next(rest) for i in range(len(fixed) + len(self.differentiable))]

    @property
    def differentiable_positions(self) -> list[int]:
        """The positions of the differentiable arguments in the call."""
        return [i for i in range(len(self.positions) + len(self.differentiable)) if i not in self.positions]


class UserRule:
    """A user's rule for one call, on flat lists: first the tracers in fixed arguments."""

    def __init__(self, function: Any, arguments: Arguments, in_tree: Any, traced: TracedCall, numbers: dict[int, Any]) -> None:
        self.function = function
        self.arguments = arguments
        self._numbers = numbers
        #: The structures of the differentiable arguments and of the function's value, and the types of the value.
        self.in_tree = in_tree
        self.out_tree = traced.out_tree
        self.out_avals = traced.jaxpr.out_avals

    def with_numbers(self, values: Sequence[Any]) -> list[Any]:
        """Replace the operands that the caller gave as Python numbers by these."""
        return _with_numbers(values, self._numbers)

    def __repr__(self) -> str:
        return str(self.function.name)  # in texts of programs, which are the same each time


def _with_numbers(values: Sequence[Any], numbers: dict[int, Any]) -> list[Any]:
    return [numbers.get(i, v) for i, v in enumerate(values)]


def _python_numbers(leaves: Sequence[Any]) -> dict[int, Any]:
    """Return the Python numbers among operands, by position.

    They stay numbers for a user's function and rules, as in JAX, unless the call becomes part of a program.
    """
    is_traced = isinstance(current_trace(), DynamicJaxprTrace)
    return {} if is_traced else {i: x for i, x in enumerate(leaves) if type(x) in (bool, int, float, complex)}


def positional_arguments(name: str, signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return all arguments by position, defaults included, as rules take them.

    Keyword-only parameters keep their defaults. Raises `ArgumentError` if the call has another value for one.
    """
    if signature is None:
        return args
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    if names := sorted(bound.kwargs.keys() & kwargs.keys()):
        raise ArgumentError(f"{name} has a rule of its own, so its arguments {names} cannot be keyword-only")
    return bound.args


class RuledFunction:
    """A function with rules of its own. Methods that set rules it passes on.

    So of a function that is wrapped several times, any wrapper sets the rules of all.
    """

    fun: Callable[..., Any]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("def") and isinstance(self.fun, RuledFunction):
            return getattr(self.fun, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)


class CustomFunction(RuledFunction):
    """A function with a custom derivative rule."""

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: int | Sequence[int] = (), nondiff_argnames: Sequence[str] = ()) -> None:
        functools.update_wrapper(self, fun)  # type: ignore[arg-type]  # subclasses are callable
        self.fun = fun
        self.name = function_name(fun)
        self.is_internal = str(getattr(fun, "__module__", "")).startswith("volta_fn.")
        self.programs = Programs(fun)
        self.signature = signature_of(fun)
        names = list(self.signature.parameters) if self.signature else []
        unknown = [n for n in nondiff_argnames if n not in names]
        if unknown:
            raise ArgumentError(f"{self.name} has no arguments {unknown}, which nondiff_argnames names")
        numbers = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        self.nondiff = frozenset([*numbers, *[names.index(n) for n in nondiff_argnames]])

    def __reduce__(self) -> str:
        return getattr(self, "__qualname__", self.name)  # as functions: pickled by name, copied as themselves

    def call(self, primitive: Primitive, rule: type[UserRule], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function; under a transform, as an equation with a program and a rule."""
        if current_trace() is EVAL:
            return self._in_python(args, kwargs)
        arguments = self.split(args, kwargs)
        leaves, in_tree = tree.flatten(_with_ref_nodes(arguments.differentiable))
        values = [*arguments.traced, *[as_value(x) for x in leaves]]
        if current_trace().runs_now(values):
            return self._in_python(args, kwargs)
        numbers = {} if self.is_internal else _python_numbers(leaves)
        # Traced for the structure and types of the result, which rules' results must have; it runs only where nothing is differentiated.
        traced, operands = self._program(arguments, in_tree, values, numbers)
        params: dict[str, Any] | None = traced.params
        if params is None:
            without_values = arguments._replace(differentiable=(None,) * len(arguments.differentiable))  # as rules outlive the call
            params = {
                "call_jaxpr": traced.jaxpr,
                "rule": rule(self, without_values, in_tree, traced, numbers),
                "num_captured": len(traced.captured),
            }
            if self.is_internal:
                params = traced.params = SharedParams(params)
        return tree.unflatten(traced.out_tree, current_trace().process(primitive, operands, params))  # `bind` would copy `SharedParams`

    def _in_python(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function itself."""
        if not Ref.exist:
            return self.fun(*args, **kwargs)
        check_distinct(tree.leaves((args, kwargs)), self.name)
        result = self.fun(*args, **kwargs)
        check_no_refs(result, self.name)
        return result

    def _program(
        self, arguments: Arguments, in_tree: Any, values: Sequence[Array], numbers: dict[int, Any]
    ) -> tuple[TracedCall, list[Array]]:
        """Return the function's program and its operands."""
        # Under eager differentiation the function may depend on numbers; then the program returns the function's value for these.
        try:
            return self.trace(arguments, in_tree, values, numbers)
        except ConcretizationError:
            concrete = [_concrete(v) for v in values]
            if not _only_differentiates() or any(isinstance(v, Tracer) for v in concrete):
                raise
        count = len(arguments.traced)
        differentiable = tree.unflatten(in_tree, _with_numbers(concrete[count:], numbers))
        result = run_under(EVAL, self.fun, *arguments.merge(concrete[:count], differentiable))
        outs, out_tree = tree.flatten(result)
        constants = output_arrays(outs, self.fun)
        outvars = [Var(c.aval) for c in constants]
        program = ClosedJaxpr(Jaxpr(outvars, [Var(v.aval) for v in values], [*outvars], []), constants)
        return TracedCall(program, out_tree, []), list(values)

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Split a call's arguments in fixed and differentiable ones."""
        positional = positional_arguments(self.name, self.signature, args, kwargs)
        count = len(positional)
        beyond = [n for n in self.nondiff if not -count <= n < count]
        if beyond:
            raise ArgumentError(f"{self.name}: nondiff_argnums names the arguments {beyond}, but the call has {count} arguments")
        positions = tuple(sorted({n % count for n in self.nondiff}))
        leaves, structure = tree.flatten([positional[i] for i in positions])
        return Arguments(positions, leaves, structure, tuple([a for i, a in enumerate(positional) if i not in positions]))

    def trace(self, arguments: Arguments, in_tree: Any, values: Sequence[Array], numbers: dict[int, Any]) -> tuple[TracedCall, list[Array]]:
        """Trace the function of `values`: tracers in fixed arguments, then other leaves."""
        count = len(arguments.traced)
        # Integers decide about shapes and are often static arguments; a program for each float would be traced at each step of a schedule.
        integers = {i: x for i, x in numbers.items() if isinstance(x, int)}

        def call(leaves: Sequence[Array]) -> Any:
            return self.fun(*arguments.merge(leaves[:count], tree.unflatten(in_tree, _with_numbers(leaves[count:], integers))))

        # The function's closure may have changed since the last call, so a kept program serves only where it is not run.
        key = None
        if _only_differentiates() and not any(isinstance(x, Array) for x in arguments.fixed_leaves):
            fixed = [*arguments.fixed_leaves, *integers.items()]
            key = (in_tree, arguments.positions, arguments.fixed_tree, exact(tuple(fixed)))
        return self.programs.trace(call, values, key)


def _concrete(value: Array) -> Array:
    """Return the primal of a tracer under eager differentiation."""
    while isinstance(value, (RecordedTracer, JVPTracer)):
        value = value._trace.value(value) if isinstance(value, RecordedTracer) else value.primal
    return value


def _only_differentiates() -> bool:
    """Return True if all current traces differentiate eagerly."""
    trace: Any = current_trace()
    while isinstance(trace, (JVPTrace, PartialEvalTrace, Recording)):
        trace = trace.parent
    return trace is EVAL


def checked_outputs(outs: Any, out_tree: Any, avals: Sequence[ShapedArray], label: str) -> list[Array]:
    """Return the leaves of a rule's value.

    Raises `TreeError` or `ShapeError` if it is not like the function's own; `label` names the rule.
    """
    leaves, structure = tree.flatten(outs)
    if structure != out_tree:
        raise TreeError(f"{label} must return a value of structure {out_tree}, like the function itself, got {structure}")
    values = [as_value(x) for x in leaves]
    for value, aval in zip(values, avals, strict=True):
        if (value.shape, value.dtype) != (aval.shape, aval.dtype):
            raise ShapeError(f"{label} returned a value of type {value.aval} where the function returns {aval}")
    return values


def as_tangent(tangent: Any, aval: ShapedArray, label: str, of: str, rounded: bool = False) -> Any:
    """Convert a tangent or cotangent (None: zero) of a value of type `aval`.

    With `rounded`, it may be of another precision. Raises `ShapeError` for another shape or dtype; `label` and `of` name the tangent and
    its value in the message.
    """
    expected = aval.tangent_aval()
    if type(tangent) is Zero and tangent.aval.shape != expected.shape:
        raise ShapeError(f"{label} that is zero, of type {tangent.aval}, for {of} of type {aval}. None stands for a zero of any type")
    if tangent is None or type(tangent) is Zero or expected.dtype == dtypes.float0:
        return Zero(expected)
    value = as_value(tangent)
    if value.shape != expected.shape or (value.dtype != aval.dtype and not _has_dtype(value, expected.dtype, rounded)):
        raise ShapeError(f"{label} of type {value.aval} for {of} of type {aval}")
    return value if value.dtype == expected.dtype else convert_element_type(value, expected.dtype)


def _has_dtype(value: Array, dtype: np.dtype, rounded: bool) -> bool:
    """Return True if a derivative has the dtype or, if `rounded`, its kind."""
    kinds = (dtypes.FLOATS, dtypes.COMPLEX) if rounded else ()
    return value.dtype == dtype or value.weak_type or any(value.dtype in kind and dtype in kind for kind in kinds)


def check_captured(tangents: Sequence[Any], num_captured: int, kind: str) -> None:
    """Raise `CapturedTracerError` if a closed-over value is being differentiated."""
    if any(type(t) is not Zero for t in tangents[:num_captured]):
        raise CapturedTracerError(
            f"a function with a {kind} rule closes over a value that is being differentiated, for which the rule has no derivative. "
            "Pass that value as an argument."
        )


def batch_custom_call(batched_rule: Callable[..., Any]) -> RuleOf:
    """Return the batching rule of custom calls, whose results are then stacked.

    The rules of the new calls are `batched_rule(rule, axis, stacked)`.
    """

    def make(primitive: Primitive) -> Callable[..., Any]:
        def batch(
            axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, call_jaxpr: ClosedJaxpr, rule: Any, num_captured: int
        ) -> tuple[Sequence[Array], list[int]]:
            stacked = [d is not None for d in dims]
            batched, _ = batch_jaxpr(call_jaxpr, axis, stacked, [True] * len(call_jaxpr.out_avals))
            rule = batched_rule(rule, axis, stacked[num_captured:])
            outs = bind(primitive, *to_front(args, dims), call_jaxpr=batched, rule=rule, num_captured=num_captured)
            return outs, [0] * len(outs)

        return batch

    return RuleOf(make)


# Batching rules by the user, `custom_vmap`; `sequential_vmap` maps in a loop.


class custom_vmap(RuledFunction):  # JAX's name
    """A function with a batching rule of its own, set with `def_vmap`.

    In forward mode, mapped derivatives are those of the rule, so that it has to be differentiable. Reverse mode needs values without
    tangents, which a rule need not give: gradients are those of the function, and are batched as usual.

    >>> @vf.custom_batching.custom_vmap
    ... def square(x):
    ...     return x * x
    >>> @square.def_vmap
    ... def _(axis_size, in_batched, x):
    ...     return x ** 2 + 0.5, in_batched[0]
    >>> square(vf.numpy.float32(2.0)), vf.vmap(square)(vf.numpy.arange(3.0))
    (Array(4., dtype=float32), Array([0.5, 1.5, 4.5], dtype=float32))
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        check_callable(fun, "custom_vmap")
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.name = function_name(fun)
        self.signature = signature_of(fun)
        self.vmap_rule: Callable[..., Any] | None = None
        self.programs = Programs(fun)

    def def_vmap(self, vmap_rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule ``vmap_rule(axis_size, in_batched, *args) -> (out, out_batched)``.

        Arguments that `in_batched` marks have the examples along axis 0, as have results that `out_batched` marks; both are pytrees of
        bools, and `out_batched` may be a prefix. Returns the rule, so it serves as a decorator.
        """
        self.vmap_rule = vmap_rule
        return vmap_rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        if self.vmap_rule is None:
            raise UnsetRuleError(f"{self.name}: no batching rule is set; give one with {self.name}.def_vmap")
        positional = positional_arguments(self.name, self.signature, args, kwargs)
        if current_trace() is EVAL:
            return self.fun(*positional)
        leaves, in_tree = tree.flatten(positional)
        values = [as_value(x) for x in leaves]
        traced, operands = self.programs.trace(lambda flat: self.fun(*tree.unflatten(in_tree, flat)), values, None)
        if traced.captured:
            raise ArgumentError(f"{self.name} has a custom batching rule, so it cannot close over traced values; pass them as arguments")
        rule = _Rule(self, in_tree, traced.out_tree)
        return tree.unflatten(traced.out_tree, bind(custom_vmap_call_p, *operands, call_jaxpr=traced.jaxpr, rule=rule))


class _Rule:
    """A user's batching rule on flat lists."""

    def __init__(self, function: custom_vmap, in_tree: Any, out_tree: Any) -> None:
        self.function = function
        self.in_tree = in_tree
        self.out_tree = out_tree

    def __repr__(self) -> str:
        return self.function.name  # in texts of programs, which are the same each time

    def __call__(self, axis: AxisData, args: Sequence[Array], dims: Sequence[int | None]) -> tuple[list[Array], list[int | None]]:
        label = f"the batching rule of {self.function.name}"
        stacked = tree.unflatten(self.in_tree, to_front(args, dims))
        rule: Any = self.function.vmap_rule
        pair = rule(axis.size, list(tree.unflatten(self.in_tree, [d is not None for d in dims])), *stacked)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TreeError(f"{label} must return (out, out_batched), got {type(pair).__name__}")
        outs, structure = tree.flatten(pair[0])
        if structure != self.out_tree:
            raise TreeError(f"{label} must return a value of structure {self.out_tree}, like the function itself, got {structure}")
        marks = tree.broadcast_prefix(pair[1], pair[0])
        return output_arrays(outs, rule), [0 if marked else None for marked in marks]


class _JvpRule:
    """The derivative of a batching rule, on flat lists.

    Its operands are those of the rule, then the tangents that are `nonzero`. Its results are the rule's, then the tangents of those that
    `out_nonzero` marks.
    """

    def __init__(self, rule: Any, nonzero: Sequence[bool], out_nonzero: Sequence[bool]) -> None:
        self.rule = rule
        self.nonzero = nonzero
        self.out_nonzero = out_nonzero

    def __call__(self, axis: AxisData, args: Sequence[Array], dims: Sequence[int | None]) -> tuple[list[Array], list[int | None]]:
        stacked = to_front(args, dims)
        count, marks = len(self.nonzero), [d is not None for d in dims]
        of_primals = marks[:count]
        of_tangents = merge(self.nonzero, marks[count:], marked(of_primals, self.nonzero, False))
        if of_primals == of_tangents:
            return self._run(axis, stacked, of_primals)
        if not any(p and t for p, t in zip(of_primals, of_tangents, strict=True)):
            results = self._run_for_each(axis, stacked, marks)
            if results is not None:
                return results
        either = [p or t for p, t in zip(of_primals, of_tangents, strict=True)]
        stacked_operands = [*either, *marked(either, self.nonzero)]
        missing = [w and not m for w, m in zip(stacked_operands, marks, strict=True)]
        return self._run(axis, [broadcast(x, (axis.size,)) if m else x for x, m in zip(stacked, missing, strict=True)], either)

    def _run(self, axis: AxisData, args: Sequence[Array], stacked: Sequence[bool]) -> tuple[list[Array], list[int | None]]:
        """Differentiate the rule where operands and their tangents are stacked alike."""
        count = len(self.nonzero)
        out_dims: list[int | None] = []

        def call(*primals: Array) -> list[Array]:
            outs, dims = self.rule(axis, primals, [0 if s else None for s in stacked])
            out_dims[:] = dims
            return outs

        outs, tangents = jvp_flat(call, args[:count], with_zeros(args[count:], self.nonzero, args[:count]))
        return [*outs, *map(instantiate, marked(tangents, self.out_nonzero))], [*out_dims, *marked(out_dims, self.out_nonzero)]

    def _run_for_each(self, axis: AxisData, args: Sequence[Array], stacked: Sequence[bool]) -> tuple[list[Array], list[int | None]] | None:
        """Map the derivative of a rule over its examples, without stacked operands.

        The operands whose tangents are not stacked, or the tangents of operands that are not, are stacked for `vmap` alone. Returns None
        if results of the rule are stacked nevertheless.
        """
        of_rule: list[int | None] = []

        def differentiate_example(*flat: Array) -> list[Array]:
            outs, of_rule[:] = self._run(axis, flat, [False] * len(self.nonzero))
            return outs

        outs, dims = vmap_flat(differentiate_example, axis._replace(name=None), args, [0 if s else None for s in stacked])
        return (outs, dims) if of_rule == [None] * len(outs) else None


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], *, call_jaxpr: ClosedJaxpr, rule: Any) -> tuple[list[Array], list[Any]]:
    nonzero = nonzero_marks(tangents)
    program, out_nonzero = jvp_jaxpr(call_jaxpr, nonzero, True)
    both = bind(custom_vmap_call_p, *primals, *marked(tangents, nonzero), call_jaxpr=program, rule=_JvpRule(rule, nonzero, out_nonzero))
    outs, out_tangents = split_tangents(both, out_nonzero)
    return list(outs), out_tangents


def _partial_eval(trace: PartialEvalTrace, args: Sequence[Array], params: dict[str, Any]) -> Any:
    """Inline the function's program, since rules do not tell which results are known."""
    return tuple(run_under(trace, eval_jaxpr, params["call_jaxpr"], *args))


custom_vmap_call_p = call_primitive(
    "custom_vmap_call",
    "call_jaxpr",
    jvp=_jvp,
    partial_eval=_partial_eval,
    batch=lambda axis, args, dims, *, call_jaxpr, rule: rule(axis, args, dims),
)


def sequential_vmap(f: Callable[..., Any]) -> custom_vmap:
    """Make a function that `vmap` maps over one example after another, in a loop.

    >>> vf.vmap(vf.custom_batching.sequential_vmap(lambda x: x * 2))(vf.numpy.arange(3.0))
    Array([0., 2., 4.], dtype=float32)
    """
    mapped = custom_vmap(f)

    def rule(axis_size: int, in_batched: Any, *args: Any) -> Any:
        leaves, structure = tree.flatten(args)
        marks = tree.leaves(tuple(in_batched))

        def step(_: None, rows: Any) -> Any:
            slices = iter(rows)
            values = [next(slices) if m else x for x, m in zip(leaves, marks, strict=True)]
            return None, mapped(*tree.unflatten(structure, values))

        outs = scan(step, None, [x for x, m in zip(leaves, marks, strict=True) if m], length=axis_size)[1]
        return outs, tree.map(lambda _: True, outs)

    mapped.def_vmap(rule)
    return mapped

"""Staging: users' functions of flat arrays, traced to jaxprs; named blocks.

Users' functions are of pytrees; transforms trace functions of flat lists of arrays. A transform of a jitted function is jitted itself, and
kept with that function. `make_jaxpr` and `eval_shape` show what tracing gives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ContextDecorator, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, overload

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value, aval_of, brief, conversion
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var, constraints_of
from volta_fn.core.primitive import Primitive, Zero
from volta_fn.core.trace import (
    EVAL,
    Trace,
    Tracer,
    bound_axis,
    check_alive,
    check_leaks,
    current_trace,
    is_concrete,
    raised_recursion_limit,
    run_under,
    set_trace,
)
from volta_fn.dtypes import ExtendedDType
from volta_fn.errors import ArgumentError, ArgumentTypeError, GradientError, RefError
from volta_fn.lazy_imports import deferred, load
from volta_fn.settings import current as settings
from volta_fn.source import Position, current_scope, in_scope, parameter_names, user_code_position

_structures = deferred("volta_fn.tree.structures")  # which loads optree
_refs = deferred("volta_fn.core.refs")  # which imports this module

# From functions of pytrees to functions of flat lists of arrays.


@functools.cache  # made on first use, since optree loads then
def leaf_structure() -> tree.TreeDef:
    """Return the structure of a result that is one array."""
    return tree.structure(0)


class FlatFunction:
    """A function of pytrees as one of leaves; a call sets `out_tree`."""

    __slots__ = ("function", "in_tree", "out_tree")

    def __init__(self, function: Callable[..., Any], in_tree: Any) -> None:
        self.function = function
        #: Structure of ``(args, kwargs)``.
        self.in_tree = in_tree
        self.out_tree: Any = None

    def __call__(self, *leaves: Any) -> list[Array]:
        args, kwargs = tree.unflatten(self.in_tree, leaves)
        result = self.function(*args, **kwargs)
        if isinstance(result, Array):
            self.out_tree = leaf_structure()
            return [result]
        outs, self.out_tree = tree.flatten(result)
        return output_arrays(outs, self.function)


def describe_data(leaves: list[Any], structure: Any) -> tuple[list[Any], Any]:
    """Flatten descriptions of random keys to descriptions of their data.

    The same holds for all extended dtypes: in a call, a pytree node stands where such a description does.
    """
    described = [isinstance(getattr(leaf, "dtype", None), ExtendedDType) for leaf in leaves]
    if not any(described):
        return leaves, structure
    nodes = [leaf.dtype.describe(leaf.shape) if extended else leaf for leaf, extended in zip(leaves, described, strict=True)]
    return tree.flatten(tree.unflatten(structure, nodes))


def output_arrays(outs: Sequence[Any], function: Callable[..., Any]) -> list[Array]:
    """Convert a function's flat results to arrays; errors name the function."""
    values: list[Array] = []
    for out in outs:
        if type(out) is Zero:  # of a derivative rule
            out = np.zeros(out.aval.shape, out.aval.dtype)
        try:
            values.append(as_value(out))
        except ArgumentTypeError:
            raise ArgumentTypeError(
                f"{function_name(function)} must return arrays (or pytrees of them), but one of its results is {brief(out)} "
                f"of type {type(out).__name__}{_result_remedy(out)}"
            ) from None
    return values


def _result_remedy(out: Any) -> str:
    if expression := conversion(out):
        return f". Convert it first: {expression}"
    return ". Return text outside of the traced function" if isinstance(out, str) else ""


def function_name(function: Callable[..., Any]) -> str:
    """Return a function's name for messages."""
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) and name else type(function).__name__


def wraps(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Apply `functools.wraps`, also for objects whose names are not text.

    Callable objects, such as modules of other libraries, may hold placeholders there, which a function cannot have.
    """
    plain = all(isinstance(getattr(function, name, ""), str) for name in ("__name__", "__qualname__"))
    return functools.wraps(function, functools.WRAPPER_ASSIGNMENTS if plain else ("__doc__",))


def argument_labels(function: Callable[..., Any], in_tree: Any) -> list[str]:
    """Label each leaf of ``(args, kwargs)`` by argument and path: ``params['w']``."""
    names = parameter_names(function)
    labels = []
    for path in _structures.paths_of(in_tree):
        position = getattr(path[1], "idx", None)
        if position is None:
            labels.append(f"{getattr(path[1], 'key', path[1])}{tree.keystr(path[2:])}")
        else:
            name = names[position] if position < len(names) else f"#{position}"
            labels.append(f"{name}{tree.keystr(path[2:])}")
    return labels


def check_callable(function: Any, transform: str = "jit") -> None:
    """Raise `ArgumentTypeError` unless `function` is callable."""
    if not callable(function):
        raise ArgumentTypeError(
            f"{transform} transforms a function, got {function!r:.80} of type {type(function).__name__}. "
            "Pass the function itself, f, and not its result, f(x)."
        )


def positional_index(argnum: int, count: int, transform: str) -> int:
    """Count `argnum` from the front; raise `ArgumentError` if the call lacks it."""
    if not hasattr(argnum, "__index__"):
        raise ArgumentTypeError(f"{transform}: arguments are chosen by their positions, which are integers, got {argnum!r:.80}")
    if not -count <= argnum < count:
        raise ArgumentError(f"{transform}: positional argument {argnum} was chosen, but the call has {count} positional arguments")
    return argnum % count


# Transforms of jitted functions are jitted themselves.
#
# Called eagerly, `vmap(jit(f))` is thus one program, like `jit(vmap(f))`, and another `vmap(jit(f))` finds it again. Programs that rules
# derive of a jitted function, as for ``grad(lambda x: f(x) + 1)``, are compiled by `jit.eager`.


class JittedFunction:
    """The interface of jitted functions to transforms."""

    __slots__ = ()

    def transformed(self, key: Hashable, function: Callable[..., Any], same_arguments: bool) -> Callable[..., Any]:
        """Return a transform of this function, jitted.

        The first `function` that is passed with a `key` serves for all later ones. If some arguments are static, and the transform does not
        take the `same_arguments`, it is returned without being jitted.
        """
        raise NotImplementedError


def jitted_like(fun: Callable[..., Any], function: Callable[..., Any], *settings: Any, same_arguments: bool = True) -> Callable[..., Any]:
    """Return `function`, a transform of `fun` with these settings; jitted if `fun` is.

    A jitted function (`jit.function.PjitFunction`) keeps the first `function` per settings and uses it for all later ones, so that a loop
    may call ``grad(f)`` in each step and still finds one program.

    `same_arguments` tells whether `function` takes the arguments of `fun`, so that the same ones are static.
    """
    if not isinstance(fun, JittedFunction):
        return function
    leaves, structure = tree.flatten(settings, is_leaf=lambda x: x is None)
    try:
        key = (structure, tuple([(type(x), x) for x in leaves]))
        hash(key)
    except TypeError:  # a setting that is no name and no number: the transform will say so
        return function
    return fun.transformed(key, function, same_arguments)


# From functions of flat lists of arrays to jaxprs, and back.

T = TypeVar("T")


#: While a program is interpreted: the user's line of the current equation, which is also that of the equations its rules record.
current_position: ContextVar[Position | None] = ContextVar("current_position", default=None)


def position_in_scope() -> Position | None:
    """Return the position that equations carry now, with the names of the scopes."""
    position = current_position.get() or user_code_position()
    scope = current_scope.get()
    return in_scope(position, scope) if scope and position is not None else position


#: Whether cotangents are being computed: then the current position is that of the forward computation, and messages say so.
in_backward_pass: ContextVar[bool] = ContextVar("in_backward_pass", default=False)
#: The trace of `eval_shape`: a `ShapeDtypeStruct` stands for an array in a call of a jitted function there.
eval_shape_trace: ContextVar[Trace | None] = ContextVar("eval_shape_trace", default=None)


class DynamicJaxprTracer(Tracer):
    """A variable of a program being written."""

    __slots__ = ("_label", "_var")

    def __init__(self, trace: Trace, var: Var, label: str = "") -> None:
        super().__init__(trace, var.aval)
        self._var = var
        self._label = label

    def constrain(self, sharding: Any) -> DynamicJaxprTracer:
        """Let the program split the value."""
        self._trace.builder.shardings[self._var] = sharding  # type: ignore[attr-defined]  # of all traces that make programs
        return self

    def origin(self) -> str:
        """Name the argument, or the user's line that computed the value."""
        if self._label:
            return f"argument {self._label}"
        trace = self._trace
        producer = trace.builder.find(self._var) if isinstance(trace, DynamicJaxprTrace) else None
        return f"the result of `{producer.primitive}` at {producer.source}" if producer else "an intermediate value"


class UsedRefsError(RefError):
    """A function that is traced to a program uses references from outside."""

    def __init__(self, name: str, refs: Sequence[Any]) -> None:
        super().__init__(
            f"{name or 'a function'} is traced to a program of its own, which cannot use references from outside "
            f"({', '.join(str(r.aval) for r in refs)}). Read them before, and write the results afterwards."
        )
        self.refs = list(refs)


class JaxprBuilder:
    """Collects equations and constants for `DynamicJaxprTrace` and linearization."""

    __slots__ = ("consts", "constvars", "eqns", "shardings")

    def __init__(self) -> None:
        self.eqns: list[Equation] = []
        #: Shardings of values that the function constrains (`core.devices.placement`).
        self.shardings: dict[Var, Any] = {}
        #: By the `id` of the value, which `consts` keeps alive.
        self.constvars: dict[int, Var] = {}
        self.consts: list[Array] = []

    def atom(self, value: Array) -> Atom:
        """Return the atom of an outer value: a literal if it is a scalar on the host.

        A scalar of a GPU becomes a constant, since reading it would wait for the GPU.
        """
        if type(value) is ConcreteArray and not value.shape and value.device.backend.host_elements(value.buffer()) is not None:
            return Literal(value)
        var = self.constvars.get(id(value))
        if var is None:
            check_alive(value)
            var = self.constvars[id(value)] = Var(value.aval)
            self.consts.append(value)
        return var

    def find(self, var: Var) -> Equation | None:
        """Return the equation that binds `var`, or None."""
        return next((eqn for eqn in self.eqns if any(v is var for v in eqn.outvars)), None)

    def build(self, invars: list[Var], outvars: list[Atom]) -> ClosedJaxpr:
        """Return the finished program."""
        jaxpr = Jaxpr(list(self.constvars.values()), invars, outvars, self.eqns)
        jaxpr.shardings = self.shardings
        return ClosedJaxpr(jaxpr, self.consts)


class WideValues:
    """The wide values of a program's weakly typed variables.

    `primitives.elementwise.cast` derives them (in 64 bits), where one meets a 64-bit dtype.

    Attributes:
        definitions: the equations of weakly typed results.
        variables: for each variable whose wide value was asked for, the variable of that, or None if it has none.
        inputs: by the positions of scalar inputs, further inputs for their wide values; None if the program may have none.
    """

    __slots__ = ("definitions", "inputs", "variables")

    def __init__(self, allows_inputs: bool) -> None:
        self.definitions: dict[Var, Equation] = {}
        self.variables: dict[Var, Var | None] = {}
        self.inputs: dict[int, Var] | None = {} if allows_inputs else None


class DynamicJaxprTrace(Trace):
    """Records every primitive, so that the program holds all that the function does.

    Attributes:
        builder: the equations and constants so far.
        inputs: the inputs.
        refs: the references from outside that were used, and their values before (`volta_fn.core.refs`).
        wide: the wide values of weakly typed variables.
    """

    __slots__ = ("builder", "inputs", "refs", "wide")

    def __init__(self, parent: Trace, name: str = "", *, allows_wide_inputs: bool = False) -> None:
        super().__init__(parent, name)
        self.builder = JaxprBuilder()
        self.inputs: list[Var] = []
        self.wide = WideValues(allows_wide_inputs)
        self.refs: dict[Any, Array] = {}

    def new_input(self, aval: ShapedArray, label: str = "") -> DynamicJaxprTracer:
        """Add an input and return its tracer."""
        var = Var(aval)
        self.inputs.append(var)
        return DynamicJaxprTracer(self, var, label)

    def wide_input(self, var: Var, dtype: Any) -> Var | None:
        """Add an input for the wide value of a scalar input; None for other variables."""
        if self.wide.inputs is None or var.aval.shape or var not in self.inputs:
            return None
        return self.wide.inputs.setdefault(self.inputs.index(var), Var(ShapedArray((), dtype, True)))

    def value(self, var: Var) -> Array:
        """Return the constant that a variable stands for, or a tracer."""
        builder = self.builder
        constants = zip(builder.constvars.values(), builder.consts, strict=True)
        return next((value for constant, value in constants if constant is var), DynamicJaxprTracer(self, var))

    def atom(self, value: Array) -> Atom:
        """Return the atom of a value in this program."""
        if type(value) is DynamicJaxprTracer and value._trace is self:
            return value._var
        return self.builder.atom(value)

    def process(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Append an equation and return tracers for its results."""
        avals = primitive.result_avals(tuple([a.aval for a in args]), params)
        invars = [self.atom(a) for a in args]
        position = position_in_scope()
        if primitive.multiple_results:
            outvars = [Var(a) for a in avals]
            self.builder.eqns.append(Equation(primitive, invars, outvars, params, position))
            return tuple([DynamicJaxprTracer(self, v) for v in outvars])
        var = Var(avals)
        eqn = Equation(primitive, invars, [var], params, position)
        self.builder.eqns.append(eqn)
        if avals.weak_type:
            self.wide.definitions[var] = eqn
        return DynamicJaxprTracer(self, var)


def trace_to_jaxpr(
    function: Callable[..., Sequence[Array]], in_avals: Sequence[ShapedArray], name: str = "", labels: Sequence[str] = ()
) -> ClosedJaxpr:
    """Trace `function`, from flat lists of arrays to flat lists of arrays.

    Values that it closes over become constants; tracers of outer traces can be such values (`hoist_tracers` makes them inputs).

    Raises `UsedRefsError` if the function uses references from outside, which keep their values.
    """
    return _trace(function, in_avals, name, labels, allows_wide_inputs=False)[0]


def trace_with_wide_inputs(
    function: Callable[..., Sequence[Array]], in_avals: Sequence[ShapedArray], name: str = "", labels: Sequence[str] = ()
) -> tuple[ClosedJaxpr, list[int]]:
    """Trace as `trace_to_jaxpr` does, with further inputs for wide values.

    They follow all others, one for each weakly typed scalar among these that meets a 64-bit dtype. Returns the program, and the positions
    of those scalars.
    """
    return _trace(function, in_avals, name, labels, allows_wide_inputs=True)


def _trace(
    function: Callable[..., Sequence[Array]], in_avals: Sequence[ShapedArray], name: str, labels: Sequence[str], allows_wide_inputs: bool
) -> tuple[ClosedJaxpr, list[int]]:
    parent = current_trace()
    trace = DynamicJaxprTrace(parent, name or getattr(function, "__name__", ""), allows_wide_inputs=allows_wide_inputs)
    try:
        set_trace(trace)
        tracers = [trace.new_input(a, labels[i] if labels else "") for i, a in enumerate(in_avals)]
        with raised_recursion_limit():
            outs = function(*tracers)
        outvars = [trace.atom(o) for o in outs]
    finally:
        set_trace(parent)
        trace.finish()
        for ref, value in trace.refs.items():
            ref.value = value
    if trace.refs:
        raise UsedRefsError(trace.name, [*trace.refs])
    if settings.check_tracer_leaks:
        del tracers, outs
        check_leaks(trace)
    wide_inputs = trace.wide.inputs or {}
    return trace.builder.build([*trace.inputs, *wide_inputs.values()], outvars), [*wide_inputs]


def trace_derived(function: Callable[..., Sequence[Array]], in_avals: Sequence[ShapedArray], name: str) -> ClosedJaxpr:
    """Trace a program that is derived from another, on which it is cached.

    Users' derivative rules may run while it is traced. Raises `GradientError` if one closes over a tracer, which belongs to a single call.
    """
    closed = trace_to_jaxpr(function, in_avals, name)
    for value in closed.consts:
        if isinstance(value, Tracer):
            raise GradientError(
                f"a custom derivative rule closes over an array of type {value.aval} that is being traced ({value.origin()}), and it is "
                "applied to a program of its own, that of a jit, scan, cond or checkpoint. Pass the array as an argument of the function; "
                "closure_convert does that for functions that close over some."
            )
    return closed


def trace_with_aux(
    to_jaxpr: Callable[..., ClosedJaxpr], function: Callable[..., tuple[Sequence[Array], T]], in_avals: Sequence[ShapedArray], name: str
) -> tuple[ClosedJaxpr, T]:
    """Trace a function that returns (outputs, aux); return the program and aux.

    `to_jaxpr` is `trace_to_jaxpr` or `trace_derived`.
    """
    auxiliary: list[T] = []

    def outputs(*xs: Array) -> Sequence[Array]:
        outs, aux = function(*xs)
        auxiliary.append(aux)
        return outs

    closed = to_jaxpr(outputs, in_avals, name)
    return closed, auxiliary[0]


def hoist_tracers(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Array]]:
    """Turn constants that are tracers into leading inputs; also return them."""
    pairs = [*zip(closed.constvars, closed.consts, strict=True)]
    hoisted = [(v, c) for v, c in pairs if isinstance(c, Tracer)]
    if not hoisted:
        return closed, []
    constants = [(v, c) for v, c in pairs if not isinstance(c, Tracer)]
    jaxpr = closed.jaxpr.replace(constvars=[v for v, _ in constants], invars=[*[v for v, _ in hoisted], *closed.invars])
    return ClosedJaxpr(jaxpr, [c for _, c in constants]), [c for _, c in hoisted]


def eval_jaxpr(closed: ClosedJaxpr, *args: Array) -> list[Array]:
    """Apply a program's equations under the current trace."""
    jaxpr = closed.jaxpr
    env: dict[Var, Array] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    if constraints := jaxpr.shardings:
        constrain(env, jaxpr.invars, constraints)
    process = current_trace().process
    token = current_position.set(None)
    try:
        for eqn in jaxpr.eqns:
            current_position.set(eqn.position)
            values = [v.val if type(v) is Literal else env[v] for v in eqn.invars]  # type: ignore[index]  # mypy keeps the union
            result = process(eqn.primitive, values, eqn.params)
            if eqn.primitive.multiple_results:
                env.update(zip(eqn.outvars, result, strict=True))
            else:
                env[eqn.outvars[0]] = result
            if constraints:
                constrain(env, eqn.outvars, constraints)
    finally:
        current_position.reset(token)
    return [v.val if type(v) is Literal else env[v] for v in jaxpr.outvars]  # type: ignore[index]  # mypy keeps the union


def constrain(env: dict[Var, Array], variables: Sequence[Var], shardings: Mapping[Var, Any]) -> None:
    """Split the values of variables between devices as a program says."""
    for v in variables:
        if v in shardings and v in env:
            env[v] = constrained(env[v], shardings[v])


# What users trace: `make_jaxpr` and `eval_shape`.


def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[Any, int]] | None = None,
    return_shape: bool = False,
) -> Callable[..., Any]:
    """Make a function that returns the program of `fun` as a `ClosedJaxpr`.

    Arguments may be arrays or `ShapeDtypeStruct`; those at `static_argnums` are constants. `axis_env` has the names and sizes of axes
    for collectives. With `return_shape` the result is a pair of the program and the shapes and dtypes of the results.

    The program takes the value of a reference in place of one that is an argument, and the values of others that `fun` uses after all
    arguments. The last values of both are its last results.

    >>> vf.make_jaxpr(lambda x: vf.lax.sin(x) * 2.0)(1.0)
    { lambda ; a:f32[]. let
        b:f32[] = sin a
        c:f32[] = mul b 2.0:f32[]
      in (c,) }
    """
    check_callable(fun, "make_jaxpr")
    static = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)

    @wraps(fun)
    def to_jaxpr(*args: Any, **kwargs: Any) -> Any:
        """Return the program for arguments like these."""
        fixed = {i % len(args): args[i] for i in static}
        dynamic = [a for i, a in enumerate(args) if i not in fixed]

        @wraps(fun)
        def of_dynamic(*values: Any, **named: Any) -> Any:
            rest = iter(values)
            return fun(*[fixed[i] if i in fixed else next(rest) for i in range(len(args))], **named)

        with ExitStack() as axes:
            for name, size in axis_env or ():
                axes.enter_context(bound_axis(name, size))
            closed, shapes = _refs.shapes_with_refs(_program_and_shapes, of_dynamic if fixed else fun, dynamic, kwargs)
        return (closed, shapes) if return_shape else closed

    to_jaxpr.__name__ = f"make_jaxpr({function_name(fun)})"
    to_jaxpr.__qualname__ = f"make_jaxpr({getattr(fun, '__qualname__', function_name(fun))})"
    return to_jaxpr


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the shapes and dtypes of ``fun(*args, **kwargs)`` without computing it.

    The result is a pytree of `ShapeDtypeStruct`. Results that are themselves of this class are returned as they are; in `fun`, jitted
    functions take them as arguments.

    >>> vf.eval_shape(lambda x: x.sum(0), vf.ShapeDtypeStruct((1000, 3), "float32"))
    ShapeDtypeStruct(shape=(3,), dtype=float32)
    """
    check_callable(fun, "eval_shape")
    results: list[Any] = []
    structure: Any = None

    @wraps(fun)
    def of_arrays(*args: Any, **kwargs: Any) -> list[Any]:
        nonlocal structure
        token = eval_shape_trace.set(current_trace())
        try:
            leaves, structure = tree.flatten(fun(*args, **kwargs))
        finally:
            eval_shape_trace.reset(token)
        results[:] = [leaf if isinstance(leaf, ShapeDtypeStruct) else None for leaf in leaves]
        return [leaf for leaf, shape in zip(leaves, results, strict=True) if shape is None]

    shapes = iter(_refs.shapes_with_refs(_program_and_shapes, of_arrays, args, kwargs)[1])
    return tree.unflatten(structure, [next(shapes) if shape is None else shape for shape in results])


def _program_and_shapes(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return a function's program, and the shapes and dtypes of its results."""
    leaves, in_tree = describe_data(*tree.flatten((tuple(args), kwargs)))
    flat = FlatFunction(fun, in_tree)
    labels = argument_labels(fun, in_tree)
    closed = trace_to_jaxpr(flat, [aval_of(x) for x in leaves], function_name(fun), labels)
    shardings: list[Any] = [None] * len(closed.outvars)
    if constraints_of(closed):
        shardings = load("volta_fn.core.devices.propagation").program_shardings(closed, [None] * len(closed.invars))
    shapes = [
        ShapeDtypeStruct(a.shape, a.dtype, sharding=s, weak_type=a.weak_type) for a, s in zip(closed.out_avals, shardings, strict=True)
    ]
    return closed, tree.unflatten(flat.out_tree, shapes)


# Blocks and functions with names, and blocks that compute while tracing.

F = TypeVar("F", bound=Callable[..., Any])


class named_scope(ContextDecorator):  # JAX's name
    """Give a block a name (context manager or decorator).

    Equations that are traced in it carry the name with their line, as `make_jaxpr(f)(x).pretty_print(source_info=True)`, `explain` and
    traces of the profiler show. Names of nested blocks are joined by slashes.

    >>> def f(x):
    ...     with vf.named_scope("layer"):
    ...         return vf.numpy.tanh(x)
    >>> vf.make_jaxpr(f)(1.0).eqns[0].source.scope
    'layer'
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"named_scope: a name is a string, got {name!r:.80} of type {type(name).__name__}")
        self.name = name
        self._tokens: list[Any] = []

    def __enter__(self) -> None:
        outer = current_scope.get()
        self._tokens.append(current_scope.set(f"{outer}/{self.name}" if outer else self.name))

    def __exit__(self, *exception: object) -> None:
        current_scope.reset(self._tokens.pop())


@overload
def named_call(fun: None = None, *, name: str | None = None) -> Callable[[F], F]: ...
@overload
def named_call(fun: F, *, name: str | None = None) -> F: ...
def named_call(fun: Callable[..., Any] | None = None, *, name: str | None = None) -> Callable[..., Any]:
    """Return a function whose equations carry its name; see `named_scope`.

    `name` is by default that of the function. Without a function, return a decorator.

    >>> vf.make_jaxpr(vf.named_call(vf.numpy.tanh, name="squash"))(1.0).eqns[0].source.scope
    'squash'
    """
    if fun is None:
        return functools.partial(named_call, name=name)
    title = name or str(getattr(fun, "__name__", "function"))

    @functools.wraps(fun)
    def named(*args: Any, **kwargs: Any) -> Any:
        with named_scope(title):
            return fun(*args, **kwargs)

    return named


@contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """Evaluate operations on concrete arrays in a block of a traced function.

    >>> @vf.jit
    ... def f(x):
    ...     with vf.ensure_compile_time_eval():
    ...         total = int((vf.numpy.arange(3) + 1).sum())  # of an array, which Python may look at
    ...     return x * total
    >>> int(f(2))
    12
    """
    before = current_trace()
    try:
        set_trace(_EvaluateConcrete(before))
        yield
    finally:
        set_trace(before)


class _EvaluateConcrete(Trace):
    """Evaluates operations on concrete values; others are traced as before."""

    __slots__ = ()

    def runs_now(self, args: Sequence[Array]) -> bool:
        return all(map(is_concrete, args))

    def process(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Evaluate a primitive, or hand it to the trace outside."""
        outside = EVAL if self.runs_now(args) else self.parent
        assert outside is not None, "it was made with one"
        return run_under(outside, outside.process, primitive, args, params)

"""Programs, traces and types by the names of `jax.core`, and primitives of users.

The last part is by the names of `jax.extend.source_info_util`: lines of source and stacks of names.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from volta_fn.core import primitive as core
from volta_fn.core.arrays.array import Array, as_value, aval_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices.device import current_default_device
from volta_fn.core.devices.placement import placed_aval
from volta_fn.core.dimension import is_symbolic_dim, max_dim, min_dim
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Jaxpr, Literal, Var, check_jaxpr, sub_jaxprs
from volta_fn.core.jaxpr import Equation as JaxprEqn
from volta_fn.core.primitive import Primitive as _AnyPrimitive
from volta_fn.core.refs import AbstractRef, Ref
from volta_fn.core.staging import DynamicJaxprTrace, trace_to_jaxpr
from volta_fn.core.staging import eval_jaxpr as _eval_jaxpr
from volta_fn.core.trace import EVAL, Trace, Tracer, axis_environment, current_trace, is_concrete, set_trace
from volta_fn.errors import GradientError, InconclusiveDimensionOperation, VoltaError
from volta_fn.extend.functions import DebugInfo
from volta_fn.source import NameStack, SourceInfo, user_location
from volta_fn.transforms.vmap import BatchTrace

__all__ = [
    "AbstractToken", "AbstractValue", "Atom", "CallPrimitive", "ClosedJaxpr", "DebugInfo", "DropVar", "Effect", "Effects",
    "InconclusiveDimensionOperation", "Jaxpr", "JaxprEqn", "Literal", "OutputType", "ParamDict", "Primitive", "ShapedArray", "Token",
    "Trace", "TraceTag", "Tracer", "Value", "Var", "array_types", "call_impl", "check_jaxpr", "concrete_or_error", "eval_context",
    "eval_jaxpr", "find_top_trace", "gensym", "get_aval", "get_opaque_trace_state", "is_concrete", "is_constant_dim", "jaxpr_as_fun",
    "jaxprs_in_params", "mapped_aval", "max_dim", "min_dim", "new_jaxpr_eqn", "no_effects", "nonempty_axis_env_DO_NOT_USE",
    "primal_dtype_to_tangent_dtype", "pytype_aval_mappings", "raise_to_shaped", "set_current_trace", "subjaxprs", "take_current_trace",
    "trace_state_clean", "unmapped_aval", "unsafe_am_i_under_a_jit_DO_NOT_USE", "unsafe_am_i_under_a_vmap_DO_NOT_USE",
    "unsafe_get_axis_names_DO_NOT_USE", "valid_jaxtype",
]  # fmt: skip


# Primitives that users define, with rules in JAX's form.
#
# Eagerly, one is the Python function of `def_impl`. In a compiled program, the compiler inlines what its lowering rule gives, or else
# that function, traced. So rules for lowering are functions of other primitives (`lowering.lower_fun`), and no target has code of its
# own.

Rule = Callable[..., Any]


class _OfAnyKind(type):
    """Lets the primitives of this package pass as instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, core.Primitive)


class Primitive(core.Primitive, metaclass=_OfAnyKind):
    """A primitive of a user, whose rules are given after it is made.

    >>> from volta_fn.extend import ad
    >>> from volta_fn.extend.core import Primitive
    >>> twice_p = Primitive("twice")
    >>> impl = twice_p.def_impl(lambda x: 2 * x)
    >>> abstract = twice_p.def_abstract_eval(lambda x: x)
    >>> ad.deflinear(twice_p, lambda ct: [twice_p.bind(ct)])
    >>> float(vf.jit(vf.grad(lambda x: twice_p.bind(x) * x))(3.0))
    12.0
    """

    __slots__ = ("__dict__", "call_primitive", "eager_rule", "lowering", "map_primitive")  # libraries set attributes of their own
    __setattr__ = object.__setattr__  # type: ignore[assignment]  # its rules are given one by one
    __delattr__ = object.__delattr__
    #: The rule for compiled programs: `lowering(context, *operands, **params)` returns the results.
    lowering: Rule | None
    #: The function that `def_impl` sets.
    eager_rule: Rule | None

    def __init__(self, name: str) -> None:
        super().__init__(name, self._no_rule, impl=self._no_rule, expand=self._expanded, listed=False)
        self.call_primitive = self.map_primitive = False
        self.lowering = self.eager_rule = None

    def __reduce__(self) -> Any:
        return self.name  # the variable that holds it

    def _no_rule(self, *args: Any, **params: Any) -> Any:
        raise NotImplementedError(f"the primitive {self.name} has no such rule: give one by def_impl or def_abstract_eval")

    def def_impl(self, impl: Rule) -> Rule:
        """Set the function that evaluates the primitive on arrays; return it."""
        self.impl = lambda *args, **params: self._as_results(impl(*args, **params))
        self.eager_rule = impl
        return impl

    def bind(self, *args: Any, **params: Any) -> Any:
        """Apply the primitive.

        Outside of transforms the function of `def_impl` takes the operands, and gives the results, as they are.
        """
        if self.eager_rule is not None and current_trace() is EVAL:
            return self.eager_rule(*args, **params)
        return super().bind(*args, **params)

    def def_abstract_eval(self, abstract_eval: Rule) -> Rule:
        """Set the rule from the operands' types to the result's; return it."""
        self.abstract = lambda *avals, **params: self._as_types(abstract_eval(*avals, **params))
        return abstract_eval

    def def_effectful_abstract_eval(self, effectful_abstract_eval: Rule) -> Rule:
        """Set a rule that also returns effects; such a primitive always runs."""
        self.effectful = True
        self.abstract = lambda *avals, **params: self._as_types(effectful_abstract_eval(*avals, **params)[0])
        return effectful_abstract_eval

    def result_avals(self, avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Any:
        """Return the types of results; parameters may be of any kind, so none are kept."""
        return self.abstract(*avals, **params)

    def _as_types(self, result: Any) -> Any:
        return tuple(result) if self.multiple_results else result

    def _as_results(self, result: Any) -> Any:
        return tuple(as_value(x) for x in result) if self.multiple_results else as_value(result)

    def _expanded(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> ClosedJaxpr:
        """Return the program that stands for a call in a compiled one."""

        def function(*operands: Array) -> list[Array]:
            result = self.impl(*operands, **params) if self.lowering is None else self._lowered(operands, avals, params)  # type: ignore[misc]
            return list(result) if isinstance(result, (tuple, list)) else [result]

        return trace_to_jaxpr(function, avals, self.name)

    def apply_lowering(self, operands: Sequence[Any], params: dict[str, Any]) -> Any:
        """Return what the lowering rule makes of arrays.

        Raises `NotImplementedError` if there is none.
        """
        if self.lowering is None:
            raise NotImplementedError(f"MLIR translation rule for primitive '{self.name}' not found: give one by mlir.register_lowering")
        values = [as_value(x) for x in operands]
        results = self._lowered(values, [x.aval for x in values], params)
        return results if self.multiple_results else results[0]

    def _lowered(self, operands: Sequence[Array], avals: Sequence[ShapedArray], params: dict[str, Any]) -> list[Array]:
        result_avals = self.result_avals(tuple(avals), params)
        context = LoweringContext(self, avals, result_avals if self.multiple_results else (result_avals,))
        result = self.lowering(context, *operands, **params)  # type: ignore[misc]  # it is given
        results = result if isinstance(result, (tuple, list)) else [result]
        return [as_value(x) for x in results]


class LoweringContext:
    """The context of a lowering rule: primitive, types of operands and results."""

    def __init__(self, primitive: core.Primitive, avals_in: Sequence[ShapedArray], avals_out: Sequence[ShapedArray]) -> None:
        self.primitive, self.avals_in, self.avals_out = primitive, list(avals_in), list(avals_out)

    def replace(self, **changes: Any) -> LoweringContext:
        """Return a context with another `primitive`, `avals_in` or `avals_out`.

        Other fields have no effect.
        """
        fields: dict[str, Any] = {"primitive": self.primitive, "avals_in": self.avals_in, "avals_out": self.avals_out} | changes
        return LoweringContext(fields["primitive"], fields["avals_in"], fields["avals_out"])

    @property
    def module_context(self) -> LoweringContext:
        """The module's context, which is this one: there are no modules here."""
        return self

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platform of the program, in a tuple."""
        return (current_default_device().platform,)

    def is_forward_compat(self) -> bool:
        """Return False: programs run where they are made."""
        return False

    def add_keepalive(self, value: Any) -> None:
        """Accept an object that must live as long as the program: the program holds it."""


class Rules(dict[core.Primitive, Rule]):
    """A mapping from primitives to rules of one kind, in JAX's form.

    `adapt` makes of a rule in JAX's form the one of `core.primitive`, which `table` stores. Primitives without an entry have their
    own rule, in `attribute`.
    """

    def __init__(self, table: core.RuleTable, attribute: str, adapt: Callable[[Rule], Rule]) -> None:
        super().__init__()
        self.table, self.attribute, self.adapt = table, attribute, adapt

    def __setitem__(self, primitive: core.Primitive, rule: Rule) -> None:
        super().__setitem__(primitive, rule)
        self.table[primitive] = self.adapt(rule)

    def __missing__(self, primitive: core.Primitive) -> Rule:
        rule: Rule | None = self.table.get(primitive, getattr(primitive, self.attribute))
        if rule is None:
            raise KeyError(primitive)
        return rule

    def __contains__(self, primitive: object) -> bool:
        return super().__contains__(primitive) or primitive in self.table or getattr(primitive, self.attribute, None) is not None

    def get(self, primitive: core.Primitive, default: Any = None) -> Any:
        """Return a primitive's rule, or `default` if it has none."""
        return self[primitive] if primitive in self else default  # noqa: SIM401  # dict.get does not look at attributes


def no_rule(primitive: core.Primitive, kind: str) -> GradientError:
    """Return the error for a primitive that lacks a rule."""
    return GradientError(f"the primitive {primitive} has no {kind} rule")


# Programs, traces and types, by the names of `jax.core` and `jax.extend.core`.


def get_aval(x: Any) -> Any:
    """Return the type of an array, a number, a reference, or an array of random keys.

    >>> get_aval(1.5), get_aval(vf.random.key(0)).dtype
    (f32[], key<fry>)
    """
    if isinstance(x, Ref):
        return AbstractRef(x.aval)
    return placed_aval(x) or aval_of(x)


AbstractValue = ShapedArray
CallPrimitive = Primitive
OutputType = type[Tracer]
ParamDict = dict[str, Any]
Value = Any
#: What a program does in addition to computing results. Primitives say themselves whether they must run, so programs tell none.
Effect = type("Effect", (), {"__doc__": "An action of a program in addition to its results."})
Effects = frozenset[Any]
no_effects: frozenset[Any] = frozenset()
TraceTag = type("TraceTag", (), {"__doc__": "Distinguishes traces of one kind; those here are distinguished by identity."})
Token = type("Token", (), {"__doc__": "Orders effects; programs here run in order."})
AbstractToken = type("AbstractToken", (), {"__doc__": "The type of a token."})
#: Types by which libraries register arrays of their own with JAX; none are asked here.
pytype_aval_mappings: dict[type, Callable[..., Any]] = {np.ndarray: get_aval}
array_types: set[type] = {np.ndarray, np.generic}


class DropVar(Var):
    """A result that nothing uses; programs here have variables for these, too."""

    __slots__ = ()


def eval_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any], *args: Any, propagate_source_info: bool = True) -> list[Array]:
    """Run a program, given the values of its constants and inputs.

    >>> closed = vf.make_jaxpr(lambda x: x * x + 1)(2.0)
    >>> eval_jaxpr(closed.jaxpr, closed.consts, 3.0)
    [Array(10., dtype=float32, weak_type=True)]
    """
    return _eval_jaxpr(ClosedJaxpr(jaxpr, list(map(as_value, consts))), *map(as_value, args))


def jaxpr_as_fun(closed_jaxpr: ClosedJaxpr) -> Callable[..., list[Array]]:
    """Return the function from inputs to a list of outputs that a program computes."""
    return lambda *args: eval_jaxpr(closed_jaxpr.jaxpr, closed_jaxpr.consts, *args)


def jaxprs_in_params(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """Yield the programs in an equation's parameters, without their constants."""
    return (closed.jaxpr for closed in sub_jaxprs(params))


def subjaxprs(jaxpr: Jaxpr) -> Iterator[Jaxpr]:
    """Yield the programs in the equations of a program."""
    return itertools.chain.from_iterable(jaxprs_in_params(eqn.params) for eqn in jaxpr.eqns)


def new_jaxpr_eqn(
    invars: Sequence[Atom], outvars: Sequence[Var], primitive: _AnyPrimitive, params: dict[str, Any], *rest: Any, **options: Any
) -> JaxprEqn:
    """Return an equation; effects and the line of source are not kept."""
    return JaxprEqn(primitive, list(invars), list(outvars), params)


def gensym(suffix: str = "") -> Callable[[ShapedArray], Var]:
    """Return the function that makes a new variable of a type."""
    return Var


def mapped_aval(size: int, axis: int | None, aval: ShapedArray, *unused: Any) -> ShapedArray:
    """Return the type of one example of a stacked array."""
    return aval if axis is None else aval.update(shape=aval.shape[:axis] + aval.shape[axis + 1 :])


def unmapped_aval(size: int, axis: int | None, aval: ShapedArray, *unused: Any) -> ShapedArray:
    """Return the type of `size` examples stacked along an axis."""
    return aval if axis is None else aval.update(shape=(*aval.shape[:axis], size, *aval.shape[axis:]))


def raise_to_shaped(aval: ShapedArray, weak_type: bool | None = None) -> ShapedArray:
    """Return the type of an array: all types here are of this kind."""
    return aval if weak_type is None else aval.update(weak_type=weak_type)


def primal_dtype_to_tangent_dtype(primal_dtype: Any) -> Any:
    """Return the dtype of tangents of values of a dtype."""
    return ShapedArray((), primal_dtype).tangent_aval().dtype


def valid_jaxtype(x: Any) -> bool:
    """Return True if a value is an array, or a number that becomes one."""
    try:
        as_value(x)
    except (VoltaError, OverflowError):
        return False
    return True


def concrete_or_error(force: Callable[[Any], Any] | None, val: Any, context: str = "") -> Any:
    """Return `force(val)` if the value is known, else raise a `ConcretizationError`."""
    if isinstance(val, Tracer):
        val._refuse_value(context or "this argument", "Make the argument static with jit(..., static_argnums=...).")
    return val if force is None else force(val)


def is_constant_dim(d: Any) -> bool:
    """Return True if a dimension is a number, and not symbolic."""
    return not is_symbolic_dim(d)


def call_impl(function: Any, *args: Any, **params: Any) -> Any:
    """Call a wrapped function."""
    return function.call_wrapped(*args, **params)


# The current trace.


def get_opaque_trace_state(convention: str | None = None) -> Any:
    """Return an object that compares equal only to those of the same trace."""
    return current_trace()


def find_top_trace(_: Sequence[Any] = ()) -> Trace:
    """Return the current trace."""
    return current_trace()


def trace_state_clean() -> bool:
    """Return True outside of all transforms."""
    return current_trace() is EVAL


@contextmanager
def take_current_trace() -> Iterator[Trace]:
    """Give the current trace to a block, which runs without any."""
    trace = current_trace()
    try:
        set_trace(EVAL)
        yield trace
    finally:
        set_trace(trace)


@contextmanager
def set_current_trace(trace: Trace | None, check_leaks: bool = False) -> Iterator[None]:
    """Make a trace the current one while a block runs."""
    before = current_trace()
    try:
        set_trace(EVAL if trace is None else trace)
        yield
    finally:
        set_trace(before)


@contextmanager
def eval_context() -> Iterator[None]:
    """Compute with known values while a block runs, whatever is being traced."""
    with set_current_trace(EVAL):
        yield


def _traces() -> Iterator[Trace]:
    trace: Trace | None = current_trace()
    while trace is not None:
        yield trace
        trace = trace.parent


def unsafe_am_i_under_a_jit_DO_NOT_USE() -> bool:  # JAX's name
    """Return True while a program is traced."""
    return any(isinstance(trace, DynamicJaxprTrace) for trace in _traces())


def unsafe_am_i_under_a_vmap_DO_NOT_USE() -> bool:
    """Return True while a function is mapped."""
    return any(isinstance(trace, BatchTrace) for trace in _traces())


def unsafe_get_axis_names_DO_NOT_USE() -> list[Any]:
    """Return the names of the axes that are mapped."""
    return [entry[0] for entry in axis_environment()]


def nonempty_axis_env_DO_NOT_USE() -> bool:
    """Return True if an axis with a name is mapped."""
    return bool(axis_environment())


# Lines of source and stacks of names.
#
# Equations of programs keep the user's line. A name stack is what blocks of `extend_name_stack` and `set_name_stack` make of it for the
# code inside; it is not kept with equations, whose stack has the names of `named_scope`.

_NO_NAMES = NameStack()
_stack: ContextVar[NameStack] = ContextVar("name_stack", default=_NO_NAMES)


def current_name_stack() -> NameStack:
    """Return the names of the scopes around the caller.

    >>> with extend_name_stack("block"):
    ...     str(current_name_stack())
    'block'
    """
    return _stack.get()


def new_name_stack(name: str = "") -> NameStack:
    """Return a stack of one name, or of none."""
    return NameStack((name,) if name else ())


def current() -> SourceInfo:
    """Return the user's line that calls, and the scopes around it."""
    return SourceInfo(user_location(), current_name_stack())


def new_source_info() -> SourceInfo:
    """Return a place that is unknown."""
    return SourceInfo(None, NameStack())


def summarize(source_info: SourceInfo, num_frames: int = 1) -> str:
    """Return a place as text: the file, the line and the function."""
    return "unknown" if source_info.traceback is None else str(source_info.traceback)


@contextmanager
def set_name_stack(name_stack: NameStack) -> Iterator[None]:
    """Make a stack the current one while a block runs."""
    token = _stack.set(name_stack)
    try:
        yield
    finally:
        _stack.reset(token)


def extend_name_stack(name: str) -> Any:
    """Add a scope to the current stack while a block runs."""
    return set_name_stack(current_name_stack().extend(name) if name else current_name_stack())


def transform_name_stack(name: str) -> Any:
    """Make the current stack that of a transform while a block runs."""
    return set_name_stack(current_name_stack().transform(name))


def reset_name_stack() -> Any:
    """Make the empty stack the current one while a block runs."""
    return set_name_stack(NameStack())


def user_context(traceback: Any, *, name_stack: NameStack | None = None) -> Any:
    """Run a block with a stack of names; errors show the lines that raise them."""
    return set_name_stack(current_name_stack() if name_stack is None else name_stack)

"""Differentiation: tangents (JVP), linear programs of tangents, their transposes.

Forward mode carries a tangent with each value. Linearization records the linear program from tangents to tangents, and its transpose is
reverse mode. `gradient_flat` does both. Outside of traces `eager` does the same by compiled programs where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from volta_fn.core.arrays.array import Array, ConcreteArray, alias, array_spec, wrap
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices.device import Device, current_default_device
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var, dce_jaxpr, program_cache
from volta_fn.core.primitive import Linear, Primitive, Rule, RuleTable, Zero
from volta_fn.core.refs import Ref, bound, discharged, read_all, write_all
from volta_fn.core.staging import (
    DynamicJaxprTrace,
    JaxprBuilder,
    constrain,
    current_position,
    eval_jaxpr,
    in_backward_pass,
    position_in_scope,
    trace_derived,
    trace_to_jaxpr,
    trace_with_aux,
)
from volta_fn.core.trace import Trace, Tracer, check_alive, current_trace, run_under, set_trace
from volta_fn.dtypes import BOOL
from volta_fn.errors import MissingRuleError
from volta_fn.primitives.data_movement.movement import instantiate
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.settings import current as settings
from volta_fn.source import Position

#: Rules of primitives whose derivatives need this layer or one above, or that users define.
jvp_rules, transpose_rules, partial_eval_rules = RuleTable(), RuleTable(), RuleTable()
#: Of primitives that hold programs: ``(params, marks of used results) -> (marks of operands, marks of results, params)`` without dead code.
dce_rules = RuleTable()

#: Whether the function of a `checkpoint` is being differentiated: residuals that its rules compute are dropped in the forward pass.
in_checkpoint: ContextVar[bool] = ContextVar("in_checkpoint", default=False)

# Lists with marks: which values are differentiated, unknown, linear or stacked.


def marked(values: Sequence[Any], marks: Sequence[bool], mark: bool = True) -> list[Any]:
    """Return the values whose mark is `mark`."""
    return [v for v, m in zip(values, marks, strict=True) if m is mark]


def merge(marks: Sequence[bool], where_true: Iterable[Any], where_false: Iterable[Any]) -> list[Any]:
    """Return values of one list where marked, and of the other elsewhere."""
    marked_values, other_values = iter(where_true), iter(where_false)
    return [next(marked_values) if m else next(other_values) for m in marks]


def nonzero_marks(values: Sequence[Any]) -> list[bool]:
    """Mark the tangents or cotangents that are not symbolic zeros."""
    return [type(v) is not Zero for v in values]


def linear_marks(args: Sequence[Any]) -> list[bool]:
    """Mark the arguments that are linear: those to transpose by."""
    return [type(a) is Linear for a in args]


def with_zeros(tangents: Iterable[Any], nonzero: Sequence[bool], primals: Sequence[Any]) -> list[Any]:
    """Return a tangent for each primal or aval: the next if `nonzero`, else a `Zero`."""
    remaining = iter(tangents)
    return [next(remaining) if nz else Zero(getattr(p, "aval", p).tangent_aval()) for nz, p in zip(nonzero, primals, strict=True)]


def split_tangents(flat: Sequence[Array], nonzero: Sequence[bool]) -> tuple[Sequence[Array], list[Any]]:
    """Split the results of a `jvp_jaxpr` into values and tangents."""
    outs = flat[: len(nonzero)]
    return outs, with_zeros(flat[len(nonzero) :], nonzero, outs)


def per_operand(cotangents: Iterable[Any], linear: Sequence[bool], has_cotangent: Iterable[bool]) -> list[Any]:
    """Return a cotangent or None for each operand.

    `has_cotangent` has an entry for each linear operand, and `cotangents` one for each True in it.
    """
    remaining, exists = iter(cotangents), iter(has_cotangent)
    return [next(remaining) if is_linear and next(exists) else None for is_linear in linear]


def fixed_point(start: Sequence[bool], step: Callable[[list[bool]], tuple[Any, Sequence[bool]]]) -> tuple[Any, list[bool]]:
    """Iterate `step` until the marks of a loop's carry reach a fixed point.

    `step` returns a result and the marks of the carry that comes out. Returns the last result, and the marks. No mark is ever removed, so
    the iteration ends.
    """
    marks = list(start)
    while True:
        result, out_marks = step(marks)
        union = [m or o for m, o in zip(marks, out_marks, strict=True)]
        if union == marks:
            return result, marks
        marks = union


# Dead-code elimination, inside control flow and calls too.


def eliminate_dead_code(closed: ClosedJaxpr, used: Sequence[bool] | None = None) -> ClosedJaxpr:
    """Drop equations that neither the `used` outputs (default: all) nor effects need.

    The program keeps all of its inputs.
    """
    return dce_jaxpr(closed, used, _narrowed)


def _narrowed(eqn: Equation, used: list[bool]) -> Equation:
    if eqn.primitive not in dce_rules:
        return eqn
    operands, results, params = dce_rules[eqn.primitive](eqn.params, tuple(used))
    if all(operands) and all(results) and params is eqn.params:
        return eqn
    return eqn.replace(marked(eqn.invars, operands), marked(eqn.outvars, results), params)


# Forward-mode differentiation: values carry tangents, directional derivatives.


class DifferentiatedTracer(Tracer):
    """A value whose `primal` is known, so that Python may branch on it, and a tangent."""

    __slots__ = ()
    primal: Any
    tangent: Any

    def origin(self) -> str:
        """Describe where this tracer comes from."""
        return "a value that is being differentiated"

    def __bool__(self) -> bool:
        return bool(self.primal)

    def __index__(self) -> int:
        return self.primal.__index__()

    def __int__(self) -> int:
        return int(self.primal)


class JVPTracer(DifferentiatedTracer):
    """A value (`primal`) and its tangent."""

    __slots__ = ("aval", "primal", "tangent")
    aval: ShapedArray

    def __init__(self, trace: Trace, primal: Array, tangent: Any) -> None:
        self._trace = trace
        self.aval = primal.aval
        self.primal = primal
        self.tangent = tangent

    def constrain(self, sharding: Any) -> JVPTracer:
        """Return the value with primal and tangent split."""
        return JVPTracer(self._trace, constrained(self.primal, sharding), constrained(self.tangent, sharding))

    def __repr__(self) -> str:
        return f"Traced<{self.aval}>with<JVP, primal={self.primal!r}>"


class JVPTrace(Trace):
    """Applies each primitive's `jvp` rule, under the parent trace."""

    __slots__ = ()

    def process(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Apply a primitive to values and tangents, or to bare values if none has one."""
        active = False
        primals: list[Array] = []
        tangents: list[Any] = []
        for arg in args:
            if type(arg) is JVPTracer and arg._trace is self:
                primals.append(arg.primal)
                tangents.append(arg.tangent)
                active = True
            else:
                check_alive(arg)
                primals.append(arg)
                tangents.append(None)
        parent: Trace = self.parent  # type: ignore[assignment]  # every trace but the bottom one has a parent
        previous = current_trace()
        try:
            set_trace(parent)
            if not active:
                return parent.process(primitive, primals, params)
            for i, tangent in enumerate(tangents):
                if tangent is None:
                    tangents[i] = Zero(primals[i].aval.tangent_aval())
            jvp = jvp_rules.get(primitive, primitive.jvp)
            if jvp is None:
                raise MissingRuleError(f"the primitive {primitive} has no derivative rule")
            out, out_tangent = jvp(primals, tangents, **params)
        finally:
            set_trace(previous)
        if primitive.multiple_results:
            return tuple([self.attach(o, t) for o, t in zip(out, out_tangent, strict=True)])
        return self.attach(out, out_tangent)

    def attach(self, primal: Array, tangent: Any) -> Array:
        """Return a tracer for a value with a tangent; the bare value if that is zero."""
        return primal if type(tangent) is Zero else JVPTracer(self, primal, tangent)

    def detach(self, value: Array) -> tuple[Array, Any]:
        """Return a value and its tangent."""
        if type(value) is JVPTracer and value._trace is self:
            return value.primal, value.tangent
        check_alive(value)
        return value, Zero(value.aval.tangent_aval())


def jvp_flat(
    function: Callable[..., Sequence[Array]], primals: Sequence[Array], tangents: Sequence[Any], name: str = ""
) -> tuple[list[Array], list[Any]]:
    """Run `function` of flat arrays; return outputs and their tangents or `Zero`."""
    trace = JVPTrace(current_trace(), name)
    try:
        pairs = [trace.detach(o) for o in run_under(trace, function, *map(trace.attach, primals, tangents))]
    finally:
        trace.finish()
    return [p for p, _ in pairs], [t for _, t in pairs]


@program_cache
def jvp_jaxpr(closed: ClosedJaxpr, nonzero: Sequence[bool], instantiate_outs: bool | Sequence[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """Derive the program that also computes tangents, and tell which outputs have one.

    It is ``(*primals, *nonzero tangents) -> (*primals out, *nonzero tangents out)``. `instantiate_outs` marks the outputs (a bool: all or
    none) whose tangents are to be arrays of zeros where they would be symbolic zeros; integers have none.
    """
    instantiates = [instantiate_outs] * len(closed.out_avals) if isinstance(instantiate_outs, bool) else list(instantiate_outs)
    in_avals = closed.in_avals

    def run(*flat: Array) -> tuple[list[Array], list[bool]]:
        primals = flat[: len(in_avals)]
        tangents = with_zeros(flat[len(in_avals) :], nonzero, in_avals)
        outs, out_tangents = jvp_flat(lambda *xs: eval_jaxpr(closed, *xs), primals, tangents)
        forced = [i and a.is_differentiable for i, a in zip(instantiates, closed.out_avals, strict=True)]
        out_nonzero = [f or nz for f, nz in zip(forced, nonzero_marks(out_tangents), strict=True)]
        return [*outs, *map(instantiate, marked(out_tangents, out_nonzero))], out_nonzero

    tangent_avals = [a.tangent_aval() for a in marked(in_avals, nonzero)]
    return trace_with_aux(trace_derived, run, [*in_avals, *tangent_avals], "jvp")


# Linearization: record the linear program from tangents to tangents.
#
# A `PartialEvalTrace` evaluates operations on known values now, under the parent trace, and records those on unknown ones. Under the
# forward differentiation of a `LinearizeTrace` only the tangents are unknown, so the recorded program is linear; its transpose is reverse
# mode.


class UnknownTracer(Tracer):
    """A value that depends on an unknown input: `variable` of the recorded program."""

    __slots__ = ("variable",)

    def __init__(self, trace: Trace, var: Var) -> None:
        self._trace = trace
        self.variable = var

    @property
    def aval(self) -> ShapedArray:
        """Shape, dtype and weak type."""
        return self.variable.aval

    def origin(self) -> str:
        """Describe where this tracer comes from."""
        return "a tangent that is being linearized"

    def constrain(self, sharding: Any) -> UnknownTracer:
        """Let the recorded program split the value, and its transpose the cotangent."""
        self._trace.builder.shardings[self.variable] = sharding  # type: ignore[attr-defined]  # of a `PartialEvalTrace`
        return self


class PartialEvalTrace(Trace):
    """Evaluates operations on known values under the parent trace; records others."""

    __slots__ = ("builder", "is_staged")

    def __init__(self, parent: Trace, name: str = "") -> None:
        super().__init__(parent, name)
        self.builder = JaxprBuilder()
        #: Whether what runs under the parents becomes a program.
        self.is_staged = any(isinstance(trace, DynamicJaxprTrace) for trace in _ancestors(parent))

    def new_unknown(self, aval: ShapedArray) -> UnknownTracer:
        """Add an unknown input."""
        return UnknownTracer(self, Var(aval))

    def is_unknown(self, value: Array) -> bool:
        """Return True if a value depends on an unknown input."""
        return type(value) is UnknownTracer and value._trace is self

    def atom(self, value: Array) -> Atom:
        """Return the atom of a value in the recorded program."""
        if type(value) is UnknownTracer and value._trace is self:
            return value.variable
        return self.builder.atom(value)

    def process(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Evaluate, record, or (for primitives with sub-programs) split a primitive."""
        parent: Trace = self.parent  # type: ignore[assignment]  # every trace but the bottom one has a parent
        for arg in args:
            if type(arg) is UnknownTracer and arg._trace is self:
                break
        else:
            return run_under(parent, parent.process, primitive, args, params)
        partial_eval = partial_eval_rules.get(primitive, primitive.partial_eval)
        if partial_eval is not None:
            return run_under(parent, partial_eval, self, args, params)
        return self.record(primitive, args, params)

    def record(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Append an equation to the recorded program."""
        avals = primitive.result_avals(tuple([a.aval for a in args]), params)
        several = primitive.multiple_results
        outvars = [Var(a) for a in avals] if several else [Var(avals)]
        self.builder.eqns.append(Equation(primitive, [self.atom(a) for a in args], outvars, params, self.position()))
        outs = tuple([UnknownTracer(self, v) for v in outvars])
        return outs if several else outs[0]

    def position(self) -> Position | None:
        """Return the user's line; eagerly only that of an equation that is evaluated.

        Finding a line takes a microsecond. Eagerly the recorded program is transposed and dropped; its lines are seen if the results of
        single operations are inspected, or if the transpose is recorded in a program that is being traced.
        """
        return position_in_scope() if settings.sees_results or self.is_staged else current_position.get()


def _ancestors(trace: Trace | None) -> Iterator[Trace]:
    """Yield a trace and its parents."""
    while trace is not None:
        yield trace
        trace = trace.parent


def evaluate_known(closed: ClosedJaxpr, name: str = "") -> ClosedJaxpr:
    """Evaluate what does not depend on the inputs, of loops and branches too."""
    trace = PartialEvalTrace(current_trace(), name)
    unknowns = [trace.new_unknown(a) for a in closed.in_avals]
    try:
        outs = run_under(trace, eval_jaxpr, closed, *unknowns)
    finally:
        trace.finish()
    return trace.builder.build([u.variable for u in unknowns], [trace.atom(o) for o in outs])


class Linearization(NamedTuple):
    """A function of flat arrays at a point, and the linear program of its derivative."""

    outs: list[Array]
    #: From tangents of the differentiable inputs to those of the outputs that depend on them.
    program: ClosedJaxpr
    #: The outputs that depend on those inputs: all other tangents are zero.
    out_nonzero: list[bool]

    def of_first(self, count: int) -> tuple[ClosedJaxpr, list[bool]]:
        """Return the program of the first outputs alone, and their marks."""
        out_nonzero = self.out_nonzero[:count]
        used = [number < sum(out_nonzero) for number in range(len(self.program.outvars))]
        return eliminate_dead_code(self.program, used), out_nonzero


class LinearizeTrace(JVPTrace):
    """Forward differentiation whose tangents are unknown: `recorder` records them."""

    __slots__ = ("recorder", "tangents")

    def __init__(self, parent: Trace, name: str = "") -> None:
        self.recorder = PartialEvalTrace(parent, name)
        super().__init__(self.recorder, name)
        self.tangents: list[UnknownTracer | Zero] = []

    def start(self, primals: Sequence[Array], nonzero: Sequence[bool] | None = None) -> list[Array]:
        """Attach unknown tangents to `nonzero` primals (default: differentiable ones)."""
        marks = [p.aval.is_differentiable for p in primals] if nonzero is None else nonzero
        avals = [p.aval.tangent_aval() for p in primals]
        self.tangents = [self.recorder.new_unknown(a) if nz else Zero(a) for nz, a in zip(marks, avals, strict=True)]
        return [self.attach(p, t) for p, t in zip(primals, self.tangents, strict=True)]

    def end(self, results: Sequence[Array]) -> Linearization:
        """Return what was recorded of a function with these results."""
        pairs = [self.detach(o) for o in results]
        tangents = [t for _, t in pairs]
        out_nonzero = nonzero_marks(tangents)
        outvars = [self.recorder.atom(t) for t in marked(tangents, out_nonzero)]
        invars = [t.variable for t in self.tangents if type(t) is UnknownTracer]
        return Linearization([p for p, _ in pairs], self.recorder.builder.build(invars, outvars), out_nonzero)

    def finish(self) -> None:
        """Mark both traces as over."""
        super().finish()
        self.recorder.finish()


def linearize_flat(
    function: Callable[..., Sequence[Array]], primals: Sequence[Array], nonzero: Sequence[bool] | None = None, name: str = ""
) -> Linearization:
    """Run `function` on flat arrays, and record its derivative.

    The inputs that are `nonzero` (default: the differentiable ones) have tangents.
    """
    trace = LinearizeTrace(current_trace(), name)
    try:
        return run_under(trace, lambda: trace.end(function(*trace.start(primals, nonzero))))
    finally:
        trace.finish()


@program_cache
def partial_eval_jaxpr(closed: ClosedJaxpr, is_unknown: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Split a program into one of the known inputs and one of the unknown ones.

    Returns the known program ``known inputs -> (*known outputs, *residuals)``, the unknown program
    ``(*residuals, *unknown inputs) -> unknown outputs``, and which outputs are unknown.
    """
    avals = closed.in_avals

    def run(*known_values: Array) -> tuple[list[Array], tuple[Jaxpr, list[bool]]]:
        trace = PartialEvalTrace(current_trace())
        unknowns = [trace.new_unknown(a) for a in marked(avals, is_unknown)]
        try:
            outs = run_under(trace, eval_jaxpr, closed, *merge(is_unknown, unknowns, known_values))
        finally:
            trace.finish()
        out_unknown = [trace.is_unknown(o) for o in outs]
        program = trace.builder.build([u.variable for u in unknowns], [trace.atom(o) for o in marked(outs, out_unknown)])
        unknown_program = eliminate_dead_code(program)  # so that what only dead tangents need is no residual
        return [*marked(outs, out_unknown, False), *unknown_program.consts], (unknown_program.jaxpr, out_unknown)

    known_program, (jaxpr, out_unknown) = trace_with_aux(trace_to_jaxpr, run, marked(avals, is_unknown, False), "known")
    with_residuals = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    return known_program, ClosedJaxpr(with_residuals), out_unknown


@program_cache
def partial_eval_forced(
    closed: ClosedJaxpr, is_unknown: Sequence[bool], forced_unknown: Sequence[bool]
) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Split as `partial_eval_jaxpr`, with outputs of `forced_unknown` marks unknown.

    So all branches have the same unknown outputs, and a loop's carry that is unknown after one iteration is so in each. The known program
    returns outputs that it could know as its first residuals, which the unknown program forwards.
    """
    known_program, unknown_program, out_unknown = partial_eval_jaxpr(closed, is_unknown)
    is_forwarded = [f for f, u in zip(forced_unknown, out_unknown, strict=True) if not u]
    if not any(is_forwarded):
        return known_program, unknown_program, out_unknown
    known_outs, residuals = known_program.outvars[: len(is_forwarded)], known_program.outvars[len(is_forwarded) :]
    forwarded_inputs = [Var(v.aval) for v in marked(known_outs, is_forwarded)]
    outs_unknown = [u or f for u, f in zip(out_unknown, forced_unknown, strict=True)]
    outvars = merge(marked(out_unknown, outs_unknown), unknown_program.outvars, forwarded_inputs)
    known_outvars = [*marked(known_outs, is_forwarded, False), *marked(known_outs, is_forwarded), *residuals]
    forwarding = unknown_program.replace(invars=[*forwarded_inputs, *unknown_program.invars], outvars=outvars)
    return known_program.replace(outvars=known_outvars), forwarding, outs_unknown


# Transposition: from cotangents of a linear program's outputs to those of inputs.


#: No cotangents but those of a backward pass.
NO_TOTALS: Mapping[Var, Any] = MappingProxyType({})


def transpose_linear_program(program: ClosedJaxpr, cotangents: Sequence[Any]) -> list[Any]:
    """Return cotangents of the inputs of a program that linearization recorded.

    A cotangent is an array or a `Zero`. Each equation of such a program depends on its inputs, so none has to be evaluated first.
    """
    jaxpr = program.jaxpr
    values: dict[Var, Any] = dict(zip(jaxpr.constvars, program.consts, strict=True))
    with positions_in(backward=True):
        pending = _transpose_equations(jaxpr, values, cotangents, NO_TOTALS)
    return [_cotangent(pending, v) for v in jaxpr.invars]


def backward_pass(
    closed: ClosedJaxpr, linear: Sequence[bool], args: Sequence[Any], cotangents: Sequence[Any], totals: Mapping[Var, Any] = NO_TOTALS
) -> list[Any]:
    """Return cotangents of the `linear` inputs of any program (None for others).

    `args` are the values of all inputs; those of linear ones are not read. Equations that depend on no linear input are evaluated first.
    The cotangents of inputs in `totals` are added to these.
    """
    jaxpr = closed.jaxpr
    #: The values of the non-linear variables.
    values: dict[Var, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update((v, a) for v, a, is_linear in zip(jaxpr.invars, args, linear, strict=True) if not is_linear)
    constrain(values, jaxpr.invars, jaxpr.shardings)
    with positions_in(backward=True):
        # First the equations whose operands all have values.
        process = current_trace().process
        for eqn in jaxpr.eqns:
            for atom in eqn.invars:
                if atom not in values and type(atom) is not Literal:
                    break
            else:
                current_position.set(eqn.position)
                result = process(eqn.primitive, [_read(values, v) for v in eqn.invars], eqn.params)
                values.update(zip(eqn.outvars, result if eqn.primitive.multiple_results else (result,), strict=True))
                constrain(values, eqn.outvars, jaxpr.shardings)
        pending = _transpose_equations(jaxpr, values, cotangents, totals)
    return [_cotangent(pending, v) if is_linear else None for v, is_linear in zip(jaxpr.invars, linear, strict=True)]


@contextmanager
def positions_in(backward: bool) -> Iterator[None]:
    """Mark that a backward pass, or a rule in it, is running; restore the position."""
    position_token, backward_token = current_position.set(current_position.get() if backward else None), in_backward_pass.set(backward)
    try:
        yield
    finally:
        current_position.reset(position_token)
        in_backward_pass.reset(backward_token)


def _cotangent(pending: dict[Var, Any], var: Var) -> Any:
    return pending[var] if var in pending else Zero(var.aval)


def _read(values: dict[Var, Any], atom: Atom) -> Any:
    return atom.val if type(atom) is Literal else values[atom]  # type: ignore[index]  # mypy keeps the union


def _transpose_equations(jaxpr: Jaxpr, values: dict[Var, Any], cotangents: Sequence[Any], totals: Mapping[Var, Any]) -> dict[Var, Any]:
    """Transpose the equations in reverse order; return the linear inputs' cotangents."""
    # The cotangent of a variable is complete when the equation that computes it is reached. A gather or slice has a cotangent for a few
    # elements of its operand. Added to a sum that exists, it touches these alone; by itself it would need an array of zeros. So, if no sum
    # is pending yet, its addition waits in `late` until the operand's cotangent is needed.
    pending: dict[Var, Any] = {**totals}
    late: dict[Var, list[Callable[[Any], Any]]] = {}

    def complete(var: Var) -> Any:
        total = pending.pop(var, None)
        for add_later in late.pop(var, ()):
            total = add_later(total)
        return total if total is None else constrained(total, jaxpr.shardings.get(var))

    _accumulate(pending, jaxpr.outvars, cotangents, values)
    for eqn in reversed(jaxpr.eqns):
        out_cotangents = [complete(v) for v in eqn.outvars]
        if not out_cotangents or (out_cotangents[0] is None and all(c is None for c in out_cotangents)):
            continue
        primitive = eqn.primitive
        transpose = transpose_rules.get(primitive, primitive.transpose)
        if transpose is None:
            raise _no_transpose_rule(eqn)
        current_position.set(eqn.position)
        args = [values[v] if v in values else v.val if type(v) is Literal else Linear(v.aval, eqn) for v in eqn.invars]
        for arg in args:
            if type(arg) is Linear and arg.dtype in BOOL:  # a comparison's result, which is not linear even if no rule reads it
                arg.refuse()
        if primitive.accumulate is not None and type(args[0]) is Linear:
            add_later = partial(_add_where_read, transpose, primitive.accumulate, eqn, args, out_cotangents[0])
            var = eqn.invars[0]
            assert isinstance(var, Var), "literals have values"
            if var in pending:
                pending[var] = add_later(pending[var])
            else:
                late.setdefault(var, []).append(add_later)
            continue
        if primitive.multiple_results:
            instantiated = [Zero(v.aval) if c is None else c for c, v in zip(out_cotangents, eqn.outvars, strict=True)]
            in_cotangents = transpose(instantiated, *args, **eqn.params)
        else:
            in_cotangents = transpose(out_cotangents[0], *args, **eqn.params)
        _accumulate(pending, eqn.invars, in_cotangents, values)
    return {var: complete(var) for var in dict.fromkeys([*pending, *late])}


def _add_where_read(transpose: Rule, accumulate: Rule, eqn: Equation, args: Sequence[Any], cotangent: Any, total: Any) -> Any:
    """Add the cotangent of what an equation reads to the sum of others, or to nothing."""
    current_position.set(eqn.position)
    return transpose(cotangent, *args, **eqn.params)[0] if total is None else accumulate(total, cotangent, *args, **eqn.params)


def _accumulate(pending: dict[Var, Any], atoms: Sequence[Atom], cotangents: Sequence[Any], values: dict[Var, Any]) -> None:
    """Add cotangents to those of the atoms that are linear variables."""
    for atom, cotangent in zip(atoms, cotangents, strict=True):
        if cotangent is None or type(cotangent) is Zero or type(atom) is Literal or atom in values:
            continue
        partial_sum = pending.get(atom)  # type: ignore[arg-type]  # mypy keeps the union
        pending[atom] = cotangent if partial_sum is None else add(partial_sum, cotangent)  # type: ignore[index]  # likewise


def _no_transpose_rule(eqn: Equation) -> MissingRuleError:
    return MissingRuleError(
        f"the primitive {eqn.primitive} (from {eqn.source}) has no transpose rule, so reverse-mode differentiation cannot pass it. "
        "Use forward mode (jvp, jacfwd), or give the function a custom_vjp."
    )


class BackwardProgram(NamedTuple):
    """A backward program, and what its results are."""

    #: ``(*non-linear inputs, *nonzero cotangents, *totals, *values of refs) -> (*cotangents of linear inputs, *last values of refs)``
    program: ClosedJaxpr
    #: The linear inputs that have a cotangent.
    has_cotangent: list[bool]
    #: The references from outside that users' backward rules read and write.
    refs: list[Ref]

    def run(self, call: Callable[[ClosedJaxpr, Sequence[Array]], Sequence[Array]], operands: Sequence[Any]) -> Sequence[Array]:
        """Return the cotangents that a call of the program gives; write the references."""
        if not self.refs:
            return call(self.program, operands)
        outs = call(self.program, [*operands, *read_all(self.refs)])
        count = len(outs) - len(self.refs)
        write_all(self.refs, outs[count:])
        return outs[:count]


@program_cache
def transpose_jaxpr(
    closed: ClosedJaxpr, linear: Sequence[bool], nonzero_cts: Sequence[bool], with_totals: Sequence[int] = ()
) -> BackwardProgram:
    """Derive the backward program.

    Cotangents of the inputs at positions `with_totals` are added to totals, further inputs of the backward program.
    """
    outs = closed.out_avals
    known_avals, ct_avals = marked(closed.in_avals, linear, False), marked(outs, nonzero_cts)
    inputs = [closed.jaxpr.invars[position] for position in with_totals]

    def derive(refs: list[Ref]) -> BackwardProgram:
        def run(*flat: Array) -> tuple[list[Array], list[bool]]:
            rest = iter(flat)
            args = merge(linear, [None] * sum(linear), [next(rest) for _ in known_avals])
            cts = merge(nonzero_cts, [next(rest) for _ in ct_avals], map(Zero, marked(outs, nonzero_cts, False)))
            totals = {v: next(rest) for v in inputs}
            with bound(refs, [*rest]):
                results = marked(backward_pass(closed, linear, args, cts, totals), linear)
                last = read_all(refs)
            nonzero = nonzero_marks(results)
            return [*marked(results, nonzero), *last], nonzero

        avals = [*known_avals, *ct_avals, *[v.aval for v in inputs], *[r.aval for r in refs]]
        return BackwardProgram(*trace_with_aux(trace_derived, run, avals, "backward"), refs)

    return discharged(derive)


# Gradients: the transpose of a linearization, called with one.


def gradient_flat(
    function: Callable[..., Sequence[Array]], values: Sequence[Array], nonzero: Sequence[bool], name: str, check: Callable[[Any], None]
) -> tuple[list[Array], list[Any]]:
    """Return the results of a function of flat arrays, and the gradient of the first.

    `nonzero` marks the inputs to differentiate with respect to. The gradient has an entry for each of these: an array, or a `Zero` where
    the result does not depend on it. `check` is called before the backward pass, and raises if the results are not those of a function that
    has a gradient.
    """
    linearization = linearize_flat(function, values, nonzero, name)
    outs = linearization.outs
    check(outs)
    # Under a trace the device of the unit cotangent does not matter: it becomes a literal of the program.
    device = outs[0].device if type(outs[0]) is ConcreteArray else current_default_device()
    return outs, gradient_of_first(linearization, device)


@lru_cache(maxsize=64)
def _unit_cotangent(aval: ShapedArray, device: Device) -> ConcreteArray:
    """Return the initial cotangent of a gradient: one."""
    # It is weak if the result is, so that the gradient of Python numbers is weak, as in JAX. Programs that linearization records have
    # strong types. NumPy makes it, which keeps 64 bits where default dtypes no longer allow them.
    return wrap(device.backend.put(np.ones((), aval.dtype)), array_spec(aval, device))


def gradient_of_first(linearization: Linearization, device: Device) -> list[Any]:
    """Return the gradient of the first result."""
    program, out_nonzero = linearization.of_first(1)
    # An alias, since it is itself the gradient of the identity, which the user may delete or donate.
    return transpose_linear_program(program, [alias(_unit_cotangent(linearization.outs[0].aval, device))] if out_nonzero[0] else [])

"""Linearization: run a function once, writing down the linear program that maps tangents to tangents.

A `LinearTrace` is a partial evaluation: what is known is computed now, under the parent trace, and what depends on an
unknown input is recorded. Forward differentiation on top of it leaves just the tangents unknown, so the recorded program is
linear; its transpose gives reverse mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Var
from volta_fn.core.primitive import Primitive, Zero
from volta_fn.core.staging import JaxprBuilder, JaxprTrace, Position, current_position, eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import Trace, Tracer, current_trace, pop_trace, push_trace
from volta_fn.source import user_code_position
from volta_fn.transforms.jvp import JVPTrace


class LinearTracer(Tracer):
    """A value that is unknown until the recorded program runs."""

    __slots__ = ("var",)

    def __init__(self, trace: Trace, var: Var) -> None:
        self._trace = trace
        self.var = var

    @property
    def aval(self) -> ShapedArray:
        """Shape, dtype and weak type."""
        return self.var.aval

    def origin(self) -> str:
        """Words for where this tracer comes from."""
        return "a tangent that is being linearized"


class LinearTrace(Trace):
    """Evaluates what is known under the parent trace and records the rest."""

    __slots__ = ("builder",)

    def __init__(self, parent: Trace, name: str = "") -> None:
        super().__init__(parent, name)
        self.builder = JaxprBuilder()

    def unknown(self, aval: ShapedArray) -> LinearTracer:
        """A new unknown input."""
        return LinearTracer(self, Var(aval))

    def is_unknown(self, value: Array) -> bool:
        """Whether a value depends on an unknown input."""
        return type(value) is LinearTracer and value._trace is self

    def atom(self, value: Array) -> Atom:
        """The atom that stands for a value in the recorded program."""
        if type(value) is LinearTracer and value._trace is self:
            return value.var
        return self.builder.atom(value)

    def process(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Evaluate, record, or (for primitives with sub-programs) split."""
        parent: Trace = self.parent  # type: ignore[assignment]  # every trace but the bottom one has a parent
        if not any(type(a) is LinearTracer and a._trace is self for a in args):
            token = push_trace(parent)
            try:
                return parent.process(primitive, args, params)
            finally:
                pop_trace(token)
        if primitive.partial_eval is not None:
            token = push_trace(parent)
            try:
                return primitive.partial_eval(self, args, params)
            finally:
                pop_trace(token)
        return self.record(primitive, args, params)

    def record(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Append an equation to the recorded program."""
        avals = primitive.result_avals(tuple([a.aval for a in args]), params)
        several = primitive.multiple_results
        outvars = [Var(a) for a in avals] if several else [Var(avals)]
        self.builder.eqns.append(Equation(primitive, [self.atom(a) for a in args], outvars, params, self.position()))
        outs = tuple([LinearTracer(self, v) for v in outvars])
        return outs if several else outs[0]

    def position(self) -> Position | None:
        """The user's line; looked up only while a program is written, since eager differentiation has no use for it."""
        return current_position.get() or (user_code_position() if isinstance(self.parent, JaxprTrace) else None)


class LinearizeTrace(JVPTrace):
    """Forward differentiation whose tangents are unknowns of a `LinearTrace`, its parent."""

    __slots__ = ("linear", "tangents")

    def __init__(self, parent: Trace, name: str = "") -> None:
        self.linear = LinearTrace(parent, name)
        super().__init__(self.linear, name)
        self.tangents: list[LinearTracer | Zero] = []

    def start(self, primals: Sequence[Array], nonzero: Sequence[bool] | None = None) -> list[Array]:
        """Values to run a function on: those that are `nonzero` (default: of inexact dtype) with unknown tangents."""
        avals = [p.aval.at_least_vspace() for p in primals]
        if nonzero is None:
            nonzero = [a.dtype == p.dtype for a, p in zip(avals, primals, strict=True)]
        self.tangents = [self.linear.unknown(a) if nz else Zero(a) for nz, a in zip(nonzero, avals, strict=True)]
        return [self.attach(p, t) for p, t in zip(primals, self.tangents, strict=True)]

    def end(self, results: Sequence[Array]) -> tuple[list[Array], ClosedJaxpr, list[bool]]:
        """What `linearize_flat` returns, from what the function returned."""
        pairs = [self.detach(o) for o in results]
        depends = [type(t) is not Zero for _, t in pairs]
        outvars = [self.linear.atom(t) for _, t in pairs if type(t) is not Zero]
        invars = [t.var for t in self.tangents if type(t) is LinearTracer]
        return [p for p, _ in pairs], self.linear.builder.build(invars, outvars), depends

    def finish(self) -> None:
        """Mark both traces as over."""
        super().finish()
        self.linear.finish()


def linearize_flat(
    function: Callable[..., Sequence[Array]],
    primals: Sequence[Array],
    nonzero: Sequence[bool] | None = None,
    name: str = "",
) -> tuple[list[Array], ClosedJaxpr, list[bool]]:
    """Run `function` on flat arrays: its outputs, the linear program from tangents of the inputs that are `nonzero` (default:
    those with inexact dtype) to the tangents of the outputs that depend on them, and which outputs those are.
    """
    trace = LinearizeTrace(current_trace(), name)
    token = push_trace(trace)
    try:
        return trace.end(function(*trace.start(primals, nonzero)))
    finally:
        pop_trace(token)
        trace.finish()


def partial_eval_jaxpr(closed: ClosedJaxpr, unknown: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Split a program into what can run now and what must wait for the unknown inputs.

    Returns the known program ``known inputs -> (*known outputs, *residuals)``, the waiting program
    ``(*residuals, *unknown inputs) -> unknown outputs``, and which outputs are unknown.
    """
    key = ("partial_eval", tuple(unknown))
    if key in closed.cache:
        return closed.cache[key]
    avals = closed.in_avals
    rest: list[Any] = []

    def run(*known: Array) -> list[Array]:
        trace = LinearTrace(current_trace())
        given = iter(known)
        inputs: list[Array] = [trace.unknown(a) if u else next(given) for u, a in zip(unknown, avals, strict=True)]
        token = push_trace(trace)
        try:
            outs = eval_jaxpr(closed, *inputs)
        finally:
            pop_trace(token)
            trace.finish()
        out_unknown = [trace.is_unknown(o) for o in outs]
        outvars = [trace.atom(o) for o, u in zip(outs, out_unknown, strict=True) if u]
        waiting = trace.builder.build([i.var for i in inputs if type(i) is LinearTracer and i._trace is trace], outvars)
        rest[:] = [waiting, out_unknown]
        return [*[o for o, u in zip(outs, out_unknown, strict=True) if not u], *waiting.consts]

    known_jaxpr = trace_to_jaxpr(run, [a for u, a in zip(unknown, avals, strict=True) if not u], "known")
    waiting, out_unknown = rest
    jaxpr = waiting.jaxpr
    waiting_jaxpr = ClosedJaxpr(Jaxpr([], [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns))
    closed.cache[key] = (known_jaxpr, waiting_jaxpr, out_unknown)
    return closed.cache[key]

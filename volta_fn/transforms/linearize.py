"""Linearization: record the linear program from tangents to tangents.

A `LinearTrace` is a partial evaluation: it computes what is known now, under the parent trace, and records what depends on an unknown
input. Forward differentiation above it leaves only the tangents unknown, so the recorded program is linear; its transpose is reverse mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Var, program_cache
from volta_fn.core.primitive import Primitive, Zero
from volta_fn.core.staging import JaxprBuilder, JaxprTrace, Position, current_position, eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import Trace, Tracer, current_trace, run_under
from volta_fn.settings import current as settings
from volta_fn.source import user_code_position
from volta_fn.transforms.jvp import JVPTrace
from volta_fn.transforms.marks import is_nonzero, marked, merge


class LinearTracer(Tracer):
    """A value that is unknown until the recorded program runs."""

    __slots__ = ("unknown",)

    def __init__(self, trace: Trace, var: Var) -> None:
        self._trace = trace
        self.unknown = var

    @property
    def aval(self) -> ShapedArray:
        """Shape, dtype and weak type."""
        return self.unknown.aval

    def origin(self) -> str:
        """Describe where this tracer comes from."""
        return "a tangent that is being linearized"


class LinearTrace(Trace):
    """Evaluates what is known under the parent trace and records the rest."""

    __slots__ = ("builder",)

    def __init__(self, parent: Trace, name: str = "") -> None:
        super().__init__(parent, name)
        self.builder = JaxprBuilder()

    def unknown(self, aval: ShapedArray) -> LinearTracer:
        """Add an unknown input."""
        return LinearTracer(self, Var(aval))

    def is_unknown(self, value: Array) -> bool:
        """Return True if a value depends on an unknown input."""
        return type(value) is LinearTracer and value._trace is self

    def atom(self, value: Array) -> Atom:
        """Return the atom of a value in the recorded program."""
        if type(value) is LinearTracer and value._trace is self:
            return value.unknown
        return self.builder.atom(value)

    def process(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Evaluate, record, or (for primitives with sub-programs) split a primitive."""
        parent: Trace = self.parent  # type: ignore[assignment]  # every trace but the bottom one has a parent
        for arg in args:
            if type(arg) is LinearTracer and arg._trace is self:
                break
        else:
            return run_under(parent, parent.process, primitive, args, params)
        if primitive.partial_eval is not None:
            return run_under(parent, primitive.partial_eval, self, args, params)
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
        """Return the user's line, which only programs and messages have a use for."""
        return current_position.get() or (user_code_position() if settings.sees_results or isinstance(self.parent, JaxprTrace) else None)


class LinearizeTrace(JVPTrace):
    """Forward differentiation whose tangents are unknown: the parent records them."""

    __slots__ = ("linear", "tangents")

    def __init__(self, parent: Trace, name: str = "") -> None:
        self.linear = LinearTrace(parent, name)
        super().__init__(self.linear, name)
        self.tangents: list[LinearTracer | Zero] = []

    def start(self, primals: Sequence[Array], nonzero: Sequence[bool] | None = None) -> list[Array]:
        """Attach unknown tangents to the `nonzero` primals (default: of inexact dtype)."""
        avals = [p.aval.at_least_vspace() for p in primals]
        if nonzero is None:
            nonzero = [a.dtype == p.dtype for a, p in zip(avals, primals, strict=True)]
        self.tangents = [self.linear.unknown(a) if nz else Zero(a) for nz, a in zip(nonzero, avals, strict=True)]
        return [self.attach(p, t) for p, t in zip(primals, self.tangents, strict=True)]

    def end(self, results: Sequence[Array]) -> tuple[list[Array], ClosedJaxpr, list[bool]]:
        """Return what `linearize_flat` does, given what the function returned."""
        pairs = [self.detach(o) for o in results]
        tangents = [t for _, t in pairs]
        depends = is_nonzero(tangents)
        outvars = [self.linear.atom(t) for t in marked(tangents, depends)]
        invars = [t.unknown for t in self.tangents if type(t) is LinearTracer]
        return [p for p, _ in pairs], self.linear.builder.build(invars, outvars), depends

    def finish(self) -> None:
        """Mark both traces as over."""
        super().finish()
        self.linear.finish()


def linearize_flat(
    function: Callable[..., Sequence[Array]], primals: Sequence[Array], nonzero: Sequence[bool] | None = None, name: str = ""
) -> tuple[list[Array], ClosedJaxpr, list[bool]]:
    """Run `function` on flat arrays, and record its derivative.

    Returns the outputs, the linear program from tangents of the inputs that are `nonzero` (default: those with inexact dtype) to
    tangents of the outputs that depend on them, and which outputs those are.
    """
    trace = LinearizeTrace(current_trace(), name)
    try:
        return run_under(trace, lambda: trace.end(function(*trace.start(primals, nonzero))))
    finally:
        trace.finish()


@program_cache
def partial_eval_jaxpr(closed: ClosedJaxpr, unknown: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Split a program into what can run now and what must wait for the unknown inputs.

    Returns the known program ``known inputs -> (*known outputs, *residuals)``, the waiting program
    ``(*residuals, *unknown inputs) -> unknown outputs``, and which outputs are unknown.
    """
    avals = closed.in_avals
    found: list[Any] = []

    def run(*known: Array) -> list[Array]:
        trace = LinearTrace(current_trace())
        unknowns = [trace.unknown(a) for a in marked(avals, unknown)]
        try:
            outs = run_under(trace, eval_jaxpr, closed, *merge(unknown, unknowns, known))
        finally:
            trace.finish()
        out_unknown = [trace.is_unknown(o) for o in outs]
        waiting = trace.builder.build([u.unknown for u in unknowns], [trace.atom(o) for o in marked(outs, out_unknown)])
        found[:] = [waiting, out_unknown]
        return [*marked(outs, out_unknown, False), *waiting.consts]

    known = trace_to_jaxpr(run, marked(avals, unknown, False), "known")
    jaxpr, out_unknown = found[0].jaxpr, found[1]
    with_residuals = ClosedJaxpr(Jaxpr([], [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns))
    return known, with_residuals, out_unknown

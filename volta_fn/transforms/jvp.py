"""Forward-mode differentiation: values carry tangents, directional derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, program_cache
from volta_fn.core.primitive import Primitive, Zero
from volta_fn.core.staging import eval_jaxpr, trace_rules
from volta_fn.core.trace import Trace, Tracer, check_alive, current_trace, run_under, set_trace
from volta_fn.errors import MissingRuleError
from volta_fn.primitives.data_movement.joining import instantiate
from volta_fn.transforms.marks import is_nonzero, marked, with_zeros


class DifferentiatedTracer(Tracer):
    """A known value (`primal`) and its tangent; Python may branch on it."""

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
        before = current_trace()
        try:
            set_trace(parent)
            if not active:
                return parent.process(primitive, primals, params)
            for i, tangent in enumerate(tangents):
                if tangent is None:
                    tangents[i] = Zero(primals[i].aval.at_least_vspace())
            if primitive.jvp is None:
                raise MissingRuleError(f"the primitive {primitive} has no derivative rule")
            out, out_tangent = primitive.jvp(primals, tangents, **params)
        finally:
            set_trace(before)
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
        return value, Zero(value.aval.at_least_vspace())


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

    It is ``(*primals, *nonzero tangents) -> (*primals out, *nonzero tangents out)``. `instantiate_outs` asks for tangents that are arrays
    of zeros where they would be symbolic zeros.
    """
    wanted = [instantiate_outs] * len(closed.out_avals) if isinstance(instantiate_outs, bool) else list(instantiate_outs)
    in_avals = closed.in_avals
    out_nonzero: list[bool] = []

    def run(*flat: Array) -> list[Array]:
        primals = flat[: len(in_avals)]
        tangents = with_zeros(flat[len(in_avals) :], nonzero, in_avals)
        outs, out_tangents = jvp_flat(lambda *xs: eval_jaxpr(closed, *xs), primals, tangents)
        can = [w and a.at_least_vspace().dtype == a.dtype for w, a in zip(wanted, closed.out_avals, strict=True)]
        out_nonzero[:] = [c or nz for c, nz in zip(can, is_nonzero(out_tangents), strict=True)]
        return [*outs, *map(instantiate, marked(out_tangents, out_nonzero))]

    tangent_avals = [a.at_least_vspace() for a in marked(in_avals, nonzero)]
    result = trace_rules(run, [*in_avals, *tangent_avals], "jvp")
    return result, out_nonzero

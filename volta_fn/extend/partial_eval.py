"""Tracing to jaxprs, by the names of `jax.interpreters.partial_eval`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dce import dce_jaxpr as _dce_jaxpr
from volta_fn.core.dce import prune_inputs
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr
from volta_fn.core.primitive import Primitive
from volta_fn.core.staging import JaxprTracer as DynamicJaxprTracer
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.core.trace import current_trace, run_under
from volta_fn.extend.linear_util import WrappedFun
from volta_fn.transforms.linearize import LinearTrace
from volta_fn.transforms.linearize import LinearTracer as JaxprTracer

__all__ = [
    "DynamicJaxprTracer", "JaxprTracer", "PartialVal", "custom_partial_eval_rules", "dce_jaxpr", "dce_rules",
    "partial_eval_jaxpr_custom_rules", "trace_to_jaxpr_dynamic", "trace_to_jaxpr_nounits",
]  # fmt: skip

#: Rules by which JAX's libraries change how their primitives are split or removed; here the general rules hold for all.
custom_partial_eval_rules: dict[Primitive, Callable[..., Any]] = {}
partial_eval_jaxpr_custom_rules: dict[Primitive, Callable[..., Any]] = {}
dce_rules: dict[Primitive, Callable[..., Any]] = {}


class PartialVal(tuple[Any, Any]):
    """A value that is known, `(None, value)`, or of which the type is, `(aval, None)`."""

    __slots__ = ()

    @classmethod
    def known(cls, const: Any) -> PartialVal:
        """Return a known value."""
        return cls((None, const))

    @classmethod
    def unknown(cls, aval: ShapedArray) -> PartialVal:
        """Return a value of a type, which is not known."""
        return cls((aval, None))

    def is_known(self) -> bool:
        """Return True if the value is known."""
        return self[0] is None

    def get_known(self) -> Any:
        """Return the value, or None if it is unknown."""
        return self[1]

    def get_aval(self) -> ShapedArray:
        """Return the value's type."""
        return as_value(self[1]).aval if self.is_known() else self[0]


def trace_to_jaxpr_nounits(fun: WrappedFun, pvals: Sequence[PartialVal], instantiate: bool = False) -> Any:
    """Run a flat function on known values, and record what depends on unknown ones.

    Returns the program of the unknown inputs and results, a `PartialVal` for each result, and the program's constants.
    """
    trace = LinearTrace(current_trace(), fun.__name__)
    inputs = [as_value(p.get_known()) if p.is_known() else trace.unknown(p.get_aval()) for p in pvals]
    try:
        outs = [as_value(out) for out in run_under(trace, fun.call_wrapped, *inputs)]
    finally:
        trace.finish()
    unknown = [trace.is_unknown(out) or instantiate for out in outs]
    invars = [x.unknown for x, p in zip(inputs, pvals, strict=True) if isinstance(x, JaxprTracer) and not p.is_known()]
    closed = trace.builder.build(invars, [trace.atom(out) for out, u in zip(outs, unknown, strict=True) if u])
    found = [PartialVal.unknown(out.aval) if u else PartialVal.known(out) for out, u in zip(outs, unknown, strict=True)]
    return closed.jaxpr, found, closed.consts


def trace_to_jaxpr_dynamic(
    fun: WrappedFun, in_avals: Sequence[ShapedArray], **options: Any
) -> tuple[Jaxpr, list[ShapedArray], list[Array]]:
    """Trace a flat function to a jaxpr; also return its results' types and constants."""
    closed = trace_to_jaxpr(lambda *xs: [as_value(x) for x in fun.call_wrapped(*xs)], in_avals, fun.__name__)
    return closed.jaxpr, closed.out_avals, closed.consts


def dce_jaxpr(jaxpr: Jaxpr, used_outputs: Sequence[bool], instantiate: bool | Sequence[bool] = False) -> tuple[Jaxpr, list[bool]]:
    """Drop unused outputs, dead equations and (unless instantiated) unused inputs.

    Returns the program, and which inputs it keeps.
    """
    keeps = [instantiate] * len(jaxpr.invars) if isinstance(instantiate, bool) else list(instantiate)
    as_inputs = ClosedJaxpr(Jaxpr([], [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns))
    live = _dce_jaxpr(as_inputs, used_outputs)
    count = len(jaxpr.constvars)
    pruned, stays = prune_inputs(live, [*[False] * count, *[not k for k in keeps]])
    variables = pruned.jaxpr.invars
    return Jaxpr(variables[:count], variables[count:], pruned.jaxpr.outvars, pruned.eqns), stays[count:]

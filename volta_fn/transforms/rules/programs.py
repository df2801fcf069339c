"""Programs that rules of control flow derive, cached on the original programs."""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr, Var, dce_jaxpr, program_cache
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.transforms.linearize import marked, merge, partial_eval_jaxpr


@program_cache
def reordered(closed: ClosedJaxpr, inputs: Sequence[int], outputs: Sequence[int]) -> ClosedJaxpr:
    """Return the program of some outputs, with reordered inputs."""
    jaxpr = closed.jaxpr
    invars, outvars = [jaxpr.invars[i] for i in inputs], [jaxpr.outvars[i] for i in outputs]
    program = closed.replace(invars=invars, outvars=outvars)
    return program if len(outvars) == len(jaxpr.outvars) else dce_jaxpr(program)


@program_cache
def with_unused(closed: ClosedJaxpr, extra: Sequence[ShapedArray]) -> ClosedJaxpr:
    """Return the program with more inputs at the end, which it ignores."""
    jaxpr = closed.jaxpr
    invars = [*jaxpr.invars, *map(Var, extra)]
    return closed.replace(invars=invars)


@program_cache
def split_program(closed: ClosedJaxpr, is_unknown: Sequence[bool], wanted: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Split a program like `partial_eval_jaxpr`, with more outputs unknown.

    The outputs in `wanted` are unknown even if they could be known. The known program returns those as its first residuals.
    """
    known_program, unknown_program, out_unknown = partial_eval_jaxpr(closed, is_unknown)
    is_moved = [w for w, u in zip(wanted, out_unknown, strict=True) if not u]
    if not any(is_moved):
        return known_program, unknown_program, out_unknown
    known_outs, residuals = known_program.jaxpr.outvars[: len(is_moved)], known_program.jaxpr.outvars[len(is_moved) :]
    passed = [Var(v.aval) for v in marked(known_outs, is_moved)]
    outs_unknown = [u or w for u, w in zip(out_unknown, wanted, strict=True)]
    outvars = merge(marked(out_unknown, outs_unknown), unknown_program.jaxpr.outvars, passed)
    known_jaxpr = Jaxpr(
        known_program.jaxpr.constvars,
        known_program.jaxpr.invars,
        [*marked(known_outs, is_moved, False), *marked(known_outs, is_moved), *residuals],
        known_program.jaxpr.eqns,
    )
    unknown_jaxpr = Jaxpr(unknown_program.jaxpr.constvars, [*passed, *unknown_program.jaxpr.invars], outvars, unknown_program.jaxpr.eqns)
    return ClosedJaxpr(known_jaxpr, known_program.consts), ClosedJaxpr(unknown_jaxpr, unknown_program.consts), outs_unknown


def chained(first: ClosedJaxpr, second: ClosedJaxpr, name: str) -> ClosedJaxpr:
    """Compose programs: `first` computes the first inputs of `second` from its own."""
    count, input_count = len(first.in_avals), len(first.out_avals)
    avals = [*first.in_avals, *second.in_avals[input_count:]]
    return trace_to_jaxpr(lambda *xs: eval_jaxpr(second, *eval_jaxpr(first, *xs[:count]), *xs[count:]), avals, name)

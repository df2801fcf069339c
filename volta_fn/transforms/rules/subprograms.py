"""Programs that the rules of control flow derive, cached on the original programs."""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.core.aval import ShapedArray
from volta_fn.core.dce import dce_jaxpr
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr, Var, program_cache
from volta_fn.transforms.linearize import partial_eval_jaxpr
from volta_fn.transforms.marks import marked, merge


@program_cache
def reordered(closed: ClosedJaxpr, inputs: Sequence[int], outputs: Sequence[int]) -> ClosedJaxpr:
    """Return the program of some outputs, with its inputs reordered."""
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
def split_program(closed: ClosedJaxpr, unknown: Sequence[bool], wanted: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Split a program like `partial_eval_jaxpr`, with more outputs unknown.

    The outputs in `wanted` are unknown even if they could be known. The known program returns those as its first residuals.
    """
    known, waiting, out_unknown = partial_eval_jaxpr(closed, unknown)
    moved = [w for w, u in zip(wanted, out_unknown, strict=True) if not u]
    if not any(moved):
        return known, waiting, out_unknown
    known_outs, residuals = known.jaxpr.outvars[: len(moved)], known.jaxpr.outvars[len(moved) :]
    passed = [Var(v.aval) for v in marked(known_outs, moved)]
    is_unknown = [u or w for u, w in zip(out_unknown, wanted, strict=True)]
    outvars = merge(marked(out_unknown, is_unknown), waiting.jaxpr.outvars, passed)
    known_jaxpr = Jaxpr(
        known.jaxpr.constvars,
        known.jaxpr.invars,
        [*marked(known_outs, moved, False), *marked(known_outs, moved), *residuals],
        known.jaxpr.eqns,
    )
    waiting_jaxpr = Jaxpr(waiting.jaxpr.constvars, [*passed, *waiting.jaxpr.invars], outvars, waiting.jaxpr.eqns)
    return ClosedJaxpr(known_jaxpr, known.consts), ClosedJaxpr(waiting_jaxpr, waiting.consts), is_unknown

"""Dead-code elimination: drop equations whose results are unused."""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr, Literal, Var, has_effects


def dce_jaxpr(closed: ClosedJaxpr, used_outputs: Sequence[bool] | None = None) -> ClosedJaxpr:
    """Drop dead equations, constants, and outputs unmarked in `used_outputs`."""
    jaxpr = closed.jaxpr
    outvars = jaxpr.outvars if used_outputs is None else [v for v, u in zip(jaxpr.outvars, used_outputs, strict=True) if u]
    live: set[Var] = {v for v in outvars if type(v) is Var}
    kept: list[Equation] = []
    for eqn in reversed(jaxpr.eqns):
        if any(v in live for v in eqn.outvars) or has_effects(eqn):
            kept.append(eqn)
            live.update(v for v in eqn.invars if type(v) is Var)
    kept.reverse()
    pairs = [(v, c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True) if v in live]
    return ClosedJaxpr(Jaxpr([v for v, _ in pairs], jaxpr.invars, outvars, kept), [c for _, c in pairs])


def prune_inputs(closed: ClosedJaxpr, candidates: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """Drop those of the candidate inputs that are unused; return which inputs stay."""
    jaxpr = closed.jaxpr
    used = {v for eqn in jaxpr.eqns for v in eqn.invars if type(v) is not Literal}
    used.update(v for v in jaxpr.outvars if type(v) is not Literal)
    stays = [not c or v in used for v, c in zip(jaxpr.invars, candidates, strict=True)]
    invars = [v for v, s in zip(jaxpr.invars, stays, strict=True) if s]
    return closed.replace(invars=invars), stays

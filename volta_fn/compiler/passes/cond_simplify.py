"""Conditionals that are known at compile time."""

from __future__ import annotations

from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr, Literal
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.control_flow.conditionals import cond_p


def choose_branches(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Replace conditionals on a known index, or of equal branches, by a call."""
    eqns = [_chosen(e) if e.primitive is cond_p else e for e in closed.eqns]
    if all(new is old for new, old in zip(eqns, closed.eqns, strict=True)):
        return closed
    jaxpr = closed.jaxpr
    return ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, eqns), closed.consts)


def _chosen(eqn: Equation) -> Equation:
    branches: tuple[ClosedJaxpr, ...] = eqn.params["branches"]
    index = eqn.invars[0]
    if all(b is branches[0] for b in branches):
        branch = branches[0]
    elif type(index) is Literal and 0 <= int(index.val.item()) < len(branches):
        branch = branches[int(index.val.item())]
    else:
        return eqn
    return Equation(jit_p, eqn.invars[1:], eqn.outvars, call_params(branch, "branch"), eqn.position)

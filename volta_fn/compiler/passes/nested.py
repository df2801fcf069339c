"""Control flow: the programs that it holds, and conditionals known in advance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Literal
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.control_flow.conditionals import cond_p


def simplify_nested(closed: ClosedJaxpr, simplify: Callable[[ClosedJaxpr], ClosedJaxpr]) -> ClosedJaxpr:
    """Apply `simplify` to the programs that a program's equations hold."""
    eqns = [_simplified(e, simplify) if e.primitive.holds_programs else e for e in closed.eqns]
    if all(new is old for new, old in zip(eqns, closed.eqns, strict=True)):
        return closed
    return closed.replace(eqns=eqns)


def _simplified(eqn: Equation, simplify: Callable[[ClosedJaxpr], ClosedJaxpr]) -> Equation:
    def apply(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return simplify(value)
        return tuple(map(apply, value)) if type(value) is tuple else value

    params = {k: apply(v) for k, v in eqn.params.items()}
    return eqn if _same(params, eqn.params) else eqn.replace(params=params)


def _same(new: dict[str, Any], old: dict[str, Any]) -> bool:
    return all(v == old[k] for k, v in new.items())  # programs compare by identity


def choose_branches(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Replace conditionals on a known index, or of equal branches, by a call."""
    eqns = [_chosen(e) if e.primitive is cond_p else e for e in closed.eqns]
    if all(new is old for new, old in zip(eqns, closed.eqns, strict=True)):
        return closed
    return closed.replace(eqns=eqns)


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

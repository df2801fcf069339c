"""Simplification of the programs that control flow holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr


def simplify_bodies(closed: ClosedJaxpr, simplify: Callable[[ClosedJaxpr], ClosedJaxpr]) -> ClosedJaxpr:
    """Apply `simplify` to the programs that a program's equations hold."""
    eqns = [_simplified(e, simplify) if e.primitive.holds_programs else e for e in closed.eqns]
    if all(new is old for new, old in zip(eqns, closed.eqns, strict=True)):
        return closed
    jaxpr = closed.jaxpr
    return ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, eqns), closed.consts)


def _simplified(eqn: Equation, simplify: Callable[[ClosedJaxpr], ClosedJaxpr]) -> Equation:
    def apply(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return simplify(value)
        return tuple(map(apply, value)) if isinstance(value, tuple) else value

    params = {k: apply(v) for k, v in eqn.params.items()}
    return eqn if _same(params, eqn.params) else eqn.replace(params=params)


def _same(new: dict[str, Any], old: dict[str, Any]) -> bool:
    return all(v == old[k] for k, v in new.items())  # programs compare by identity

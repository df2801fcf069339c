"""Inlining: calls are replaced by the bodies of the functions that they call."""

from __future__ import annotations

from collections.abc import Container

from volta_fn.core.array import Array
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Var, called_program
from volta_fn.core.primitive import Primitive


def inline_calls(closed: ClosedJaxpr, of: Primitive | None = None, kept: Container[Primitive] = ()) -> ClosedJaxpr:
    """Replace calls (all, or those `of` a primitive) except `kept` ones by bodies.

    A body has the call's values, but not the derivative that a call may have of its own.
    """

    def is_inlined(eqn: Equation) -> bool:
        primitive = eqn.primitive
        is_call = primitive.call_param is not None or primitive.expand is not None
        return is_call and of in (None, primitive) and primitive not in kept

    if not any(map(is_inlined, closed.eqns)):
        return closed
    consts: dict[Var, Array] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    rename: dict[Var, Atom] = {}
    eqns: list[Equation] = []

    def read(atom: Atom) -> Atom:
        return rename.get(atom, atom) if type(atom) is Var else atom

    def fresh(var: Var) -> Var:
        new = Var(var.aval)
        rename[var] = new
        return new

    # A stack of bodies being copied: (equations left, what to do after).
    stack: list[tuple[list[Equation], Equation | None, ClosedJaxpr | None]] = [(closed.eqns[::-1], None, None)]
    while stack:
        left, call, body = stack[-1]
        if not left:
            stack.pop()
            if call is not None and body is not None:
                rename.update(zip(call.outvars, [read(v) for v in body.jaxpr.outvars], strict=True))
            continue
        eqn = left.pop()
        if len(stack) == 1 and rename.keys().isdisjoint(eqn.invars) and not is_inlined(eqn):
            eqns.append(eqn)
            continue
        invars = [read(v) for v in eqn.invars]
        if not is_inlined(eqn):
            # The outermost program's variables keep their identity; those of inlined bodies are made afresh, as a body may be called twice.
            outvars = eqn.outvars if len(stack) == 1 else [fresh(v) for v in eqn.outvars]
            eqns.append(eqn.replace(invars=invars, outvars=outvars))
            continue
        inner: ClosedJaxpr = called_program(eqn)  # type: ignore[assignment]  # it is_inlined, so it has one
        rename.update(zip(inner.jaxpr.invars, invars, strict=True))
        for var, value in zip(inner.jaxpr.constvars, inner.consts, strict=True):
            consts[fresh(var)] = value
        stack.append((inner.eqns[::-1], eqn, inner))
    jaxpr = Jaxpr(list(consts), closed.jaxpr.invars, [read(v) for v in closed.jaxpr.outvars], eqns)
    return ClosedJaxpr(jaxpr, list(consts.values()))

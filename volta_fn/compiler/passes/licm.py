"""Loop-invariant code motion.

What is the same in every iteration is computed once, before the loop. Equations with effects stay, and so do barriers and calls of the
host's functions. Everything else raises nothing and always gives a value, so that it may even be computed for a loop that then makes no
iteration. The exception is a while loop, which might not end. Large results of small operands stay, too: they are cheap to make and would
take memory for as long as the loop runs.
"""

from __future__ import annotations

from typing import Any

from volta_fn.compiler.passes.effects import is_movable, terminates
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, program_cache
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.control_flow.loops import while_p
from volta_fn.primitives.control_flow.scan import scan_p

#: Elements from which on a result that is larger than its operands stays in the loop.
_INFLATED = 1024


def hoist_invariants(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Move loop-invariant equations before the loops of a program."""
    eqns: list[Equation] = []
    for eqn in closed.eqns:
        if eqn.primitive is scan_p and eqn.params["length"]:
            eqns += _out_of(eqn, [("jaxpr", "num_consts", True)])
        elif eqn.primitive is while_p:
            eqns += _out_of(eqn, [("cond_jaxpr", "cond_nconsts", True), ("body_jaxpr", "body_nconsts", False)])
        else:
            eqns.append(eqn)
    if len(eqns) == len(closed.eqns):
        return closed
    return closed.replace(eqns=eqns)


def _out_of(eqn: Equation, programs: list[tuple[str, str, bool]]) -> list[Equation]:
    """Return calls of the invariant equations, and the loop without them.

    Its programs are given by the names of their parameter and of that with the number of their consts, and by whether they run at least
    once.
    """
    calls: list[Equation] = []
    invars: list[Atom] = []
    params: dict[str, Any] = dict(eqn.params)
    start = 0
    for program, count, runs in programs:
        operands = eqn.invars[start : start + params[count]]
        start += params[count]
        invars += operands
        divided = _divided(params[program], len(operands), runs)
        if divided is None:
            continue
        before, params[program] = divided
        call = Equation(jit_p, operands, [Var(a) for a in before.out_avals], call_params(before, "invariant"), eqn.position)
        calls.append(call)
        invars += call.outvars
        params[count] += len(call.outvars)
    if not calls:
        return [eqn]
    return [*calls, eqn.replace(invars=[*invars, *eqn.invars[start:]], params=params)]


@program_cache
def _divided(body: ClosedJaxpr, consts: int, runs: bool) -> tuple[ClosedJaxpr, ClosedJaxpr] | None:
    """Split a body into the equations that its consts determine, and the rest.

    The rest takes the results of the former as further consts.
    """
    jaxpr = body.jaxpr
    moved = _invariant_eqns(body, consts, runs)
    if not moved:
        return None
    rest = [e for e in jaxpr.eqns if e not in moved]
    read = {v for e in rest for v in e.invars}.union(jaxpr.outvars)
    passed = [v for e in jaxpr.eqns if e in moved for v in e.outvars if v in read]
    given = jaxpr.invars[:consts]
    before = body.replace(invars=given, outvars=passed, eqns=[e for e in jaxpr.eqns if e in moved])
    return before, body.replace(invars=[*given, *passed, *jaxpr.invars[consts:]], eqns=rest)


def _invariant_eqns(body: ClosedJaxpr, consts: int, runs: bool) -> set[Equation]:
    """Return the equations to move: those worth it, and their operands."""
    fixed: set[Var] = {*body.jaxpr.constvars, *body.jaxpr.invars[:consts]}
    invariant: list[Equation] = []
    for eqn in body.eqns:
        if all(type(v) is Literal or v in fixed for v in eqn.invars) and is_movable(eqn) and (runs or terminates(eqn)):
            invariant.append(eqn)
            fixed.update(eqn.outvars)
    moved: set[Equation] = set()
    needed: set[Atom] = set()
    for eqn in reversed(invariant):
        if not _inflates(eqn) or any(v in needed for v in eqn.outvars):
            moved.add(eqn)
            needed.update(eqn.invars)
    return moved


def _inflates(eqn: Equation) -> bool:
    size = sum(v.aval.size for v in eqn.outvars)
    return size > _INFLATED and size > sum(v.aval.size for v in eqn.invars)

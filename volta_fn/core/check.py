"""The executable specification of jaxprs, which every transform and pass obeys."""

from __future__ import annotations

from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var, sub_jaxprs
from volta_fn.errors import JaxprError, VoltaError


def check_jaxpr(program: ClosedJaxpr | Jaxpr) -> None:
    """Raise `JaxprError` unless the program is well formed.

    Every variable is bound once, before its uses; every equation's results have the types that the primitive's abstract rule derives from
    its operands; the outputs are bound; nested programs are well formed too. The message names the equation and the user's line.

    >>> import volta_fn as vf
    >>> check_jaxpr(vf.make_jaxpr(vf.lax.sin)(1.0))
    """
    pending: list[ClosedJaxpr | Jaxpr] = [program]
    while pending:
        current = pending.pop()
        if isinstance(current, ClosedJaxpr):
            _check_constants(current)
            current = current.jaxpr
        _check_one(current)
        for eqn in current.eqns:
            pending.extend(sub_jaxprs(eqn.params))


def _check_constants(closed: ClosedJaxpr) -> None:
    if len(closed.consts) != len(closed.jaxpr.constvars):
        raise JaxprError(f"the program has {len(closed.jaxpr.constvars)} constant variables, but {len(closed.consts)} constants")
    for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        if (value.aval.shape, value.aval.dtype) != (var.aval.shape, var.aval.dtype):
            raise JaxprError(f"a constant of type {value.aval} stands for a variable of type {var.aval}")


def _check_one(jaxpr: Jaxpr) -> None:
    bound: set[Var] = set()
    for var in (*jaxpr.constvars, *jaxpr.invars):
        _bind(bound, var, "an input")
    for number, eqn in enumerate(jaxpr.eqns):
        where = f"equation {number} ({eqn.primitive}, from {eqn.source})"
        for atom in eqn.invars:
            _check_read(bound, atom, where)
        _check_types(eqn, where)
        for var in eqn.outvars:
            _bind(bound, var, where)
    for atom in jaxpr.outvars:
        _check_read(bound, atom, "the outputs")


def _bind(bound: set[Var], var: Var, where: str) -> None:
    if var in bound:
        raise JaxprError(f"{where} binds a variable of type {var.aval} that is bound already")
    bound.add(var)


def _check_read(bound: set[Var], atom: Atom, where: str) -> None:
    if not isinstance(atom, Literal) and atom not in bound:
        raise JaxprError(f"{where} reads a variable of type {atom.aval} that is not bound yet")


def _check_types(eqn: Equation, where: str) -> None:
    arity = eqn.primitive.arity
    if arity and len(eqn.invars) != arity:
        raise JaxprError(f"{where} has {len(eqn.invars)} operands, but its primitive takes {arity}")
    try:
        derived = eqn.primitive.abstract(*[v.aval for v in eqn.invars], **eqn.params)
    except VoltaError as error:
        raise JaxprError(f"{where} has operands that its primitive does not take: {error.args[0]}") from error
    avals = derived if eqn.primitive.multiple_results else (derived,)
    found = [(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
    if found != [(a.shape, a.dtype) for a in avals]:
        raise JaxprError(f"{where} binds {[v.aval for v in eqn.outvars]}, but its primitive gives {list(avals)}")

"""Constant folding: what depends on constants alone is computed once, while compiling, by the kernels that would compute it later."""

from __future__ import annotations

from volta_fn.compiler.passes.effects import is_movable
from volta_fn.compiler.passes.rewriting import on_cpu
from volta_fn.core.array import Array
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var
from volta_fn.core.trace import EVAL

#: Elements of the largest result that is kept in a program, and of the operands that it is computed from.
_RESULT_LIMIT, _OPERAND_LIMIT = 1024, 65536


def fold_constants(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with small values that do not depend on its inputs as constants."""
    known: dict[Atom, Array] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    folded: dict[Atom, Atom] = {}
    eqns: list[Equation] = []
    for eqn in closed.eqns:
        if not _is_known(eqn.invars, known) or not _is_foldable(eqn):
            eqns.append(eqn)
            continue
        operands = [v.val if type(v) is Literal else known[v] for v in eqn.invars]
        if any(v.size > _OPERAND_LIMIT or on_cpu(v) is None for v in operands):
            eqns.append(eqn)
            continue
        results = EVAL.process(eqn.primitive, operands, eqn.params)
        for var, value in zip(eqn.outvars, results if eqn.primitive.multiple_results else [results], strict=True):
            known[var] = value
            folded[var] = var if value.shape else Literal(value)
    if not folded:
        return closed
    eqns = [e.replace(invars=[folded.get(v, v) for v in e.invars]) if any(v in folded for v in e.invars) else e for e in eqns]
    outvars = [folded.get(v, v) for v in closed.jaxpr.outvars]
    constvars = [*closed.jaxpr.constvars, *[v for v, atom in folded.items() if type(v) is Var and atom is v]]
    return ClosedJaxpr(Jaxpr(constvars, closed.jaxpr.invars, outvars, eqns), [known[v] for v in constvars])


def _is_known(atoms: list[Atom], known: dict[Atom, Array]) -> bool:
    unknown = next((v for v in atoms if type(v) is Var and v not in known), None)
    return unknown is None


def _is_foldable(eqn: Equation) -> bool:
    """Whether the equation computes something small. Views of constants are no work, and filling an array would only make it larger."""
    primitive = eqn.primitive
    if not eqn.invars or primitive.partial_eval is not None or primitive.call_param is not None or primitive.expand is not None:
        return False
    if any(v.aval.size > _RESULT_LIMIT for v in eqn.outvars) or primitive.name == "broadcast_in_dim":
        return False
    return is_movable(eqn)

"""An estimate of a program's cost: floating-point operations, bytes of operands."""

from __future__ import annotations

import math

from volta_fn.core.jaxpr import ClosedJaxpr, Equation, sub_jaxprs


def cost_of(program: ClosedJaxpr) -> dict[str, float]:
    """Return the operations of a program, and the bytes of its inputs and outputs.

    A loop of unknown length counts as one iteration, and of the branches of a conditional the most expensive one counts.
    """
    moved = sum(a.nbytes for a in [*program.in_avals, *program.out_avals])
    return {"flops": float(_operations(program)), "bytes accessed": float(moved)}


def _operations(program: ClosedJaxpr) -> int:
    return sum(map(operations_of, program.eqns))


def operations_of(eqn: Equation) -> int:
    """Count the operations of an equation, those of its programs included."""
    name, params = eqn.primitive.name, eqn.params
    inside = [_operations(sub) for sub in sub_jaxprs(params)]
    if name == "cond":
        return max(inside, default=0)
    if inside:
        return sum(inside) * int(params.get("length", 1))
    size = sum(v.aval.size for v in eqn.outvars)
    if name == "dot_general":
        return 2 * size * math.prod(eqn.invars[0].aval.shape[a] for a in params["dimension_numbers"][0][0])
    if name == "conv_general_dilated":
        kernel = eqn.invars[1].aval
        features = kernel.shape[params["dimension_numbers"].rhs_spec[0]]
        return 2 * size * kernel.size // max(features, 1)
    if eqn.primitive.reduction is not None:
        return eqn.invars[0].aval.size
    return size if eqn.primitive.arity else 0

"""Which values of a program may differ between processes.

A result that a spec calls replicated must not; nor may what decides whether a collective runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn.core.axes import ProcessAxis
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Literal, sub_jaxprs
from volta_fn.errors import ArgumentError

#: The axes along which a value varies.
Variance = frozenset[Any]
_NOWHERE: Variance = frozenset()
#: Collectives whose results are the same for all members.
_COMBINING = frozenset(["psum", "pmax", "pmin", "all_gather"])


def variance_of(closed: ClosedJaxpr, inputs: Sequence[Variance]) -> list[Variance]:
    """Return the axes along which each output varies, from those of its inputs.

    Raises `ArgumentError` if a condition that varies along an axis decides about a collective over it.
    """
    jaxpr = closed.jaxpr
    found: dict[Any, Variance] = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Variance:
        return _NOWHERE if isinstance(atom, Literal) else found.get(atom, _NOWHERE)

    for eqn in jaxpr.eqns:
        found.update(zip(eqn.outvars, _of_equation(eqn, [read(atom) for atom in eqn.invars]), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _of_equation(eqn: Equation, operands: list[Variance]) -> Sequence[Variance]:
    params, name = eqn.params, eqn.primitive.name
    if name == "cond":
        return _of_cond(eqn, operands)
    if name == "scan":
        return _of_scan(params, operands)
    if name == "while":
        return _of_while(eqn, operands)
    inner = sub_jaxprs(params)
    if len(inner) == 1 and len(inner[0].jaxpr.invars) == len(operands) and len(inner[0].jaxpr.outvars) == len(eqn.outvars):
        return variance_of(inner[0], operands)
    axes = frozenset([axis for axis in params.get("axis_names", ()) if isinstance(axis, ProcessAxis)])
    together = name in _COMBINING and params["axis_index_groups"] is None
    if eqn.primitive.multiple_results and axes:  # reductions, whose operands are independent
        return [v - axes if together else v | axes for v in operands]
    varies = _union(operands)
    if axes and name != "pcast":
        varies = varies - axes if together else varies | axes
    return [varies] * len(eqn.outvars)


def _of_cond(eqn: Equation, operands: list[Variance]) -> list[Variance]:
    index, *arguments = operands
    branches = eqn.params["branches"]
    for branch in branches:
        _check_condition(eqn, index, branch)
    return [_union([index, *outs]) for outs in zip(*[variance_of(b, arguments) for b in branches], strict=True)]


def _of_scan(params: dict[str, Any], operands: list[Variance]) -> list[Variance]:
    consts, count = params["num_consts"], params["num_carry"]
    carry, rows = operands[consts : consts + count], operands[consts + count :]
    while True:
        outs = variance_of(params["jaxpr"], [*operands[:consts], *carry, *rows])
        grown = [a | b for a, b in zip(carry, outs[:count], strict=True)]
        if grown == carry:
            return [*carry, *outs[count:]]
        carry = grown


def _of_while(eqn: Equation, operands: list[Variance]) -> list[Variance]:
    params = eqn.params
    first, second = params["cond_nconsts"], params["body_nconsts"]
    carry = operands[first + second :]
    while True:
        (condition,) = variance_of(params["cond_jaxpr"], [*operands[:first], *carry])
        outs = variance_of(params["body_jaxpr"], [*operands[first : first + second], *carry])
        grown = [a | b | condition for a, b in zip(carry, outs, strict=True)]
        if grown == carry:
            break
        carry = grown
    for program in (params["cond_jaxpr"], params["body_jaxpr"]):
        _check_condition(eqn, condition, program)
    return carry


def _check_condition(eqn: Equation, condition: Variance, program: ClosedJaxpr) -> None:
    if both := condition & _axes_in(program):
        names = sorted([repr(axis.name) for axis in both])
        where = f" at {eqn.source}" if eqn.source is not None else ""
        raise ArgumentError(
            f"a {eqn.primitive}{where} runs a collective over {', '.join(names)} by a condition that differs between the processes along "
            "that axis: some would wait forever. Let all decide alike, as by lax.pmax of the condition"
        )


def _axes_in(closed: ClosedJaxpr) -> Variance:
    """Return the axes of the collectives in a program that wait for others."""
    own = [axis for eqn in closed.eqns if eqn.primitive.name not in ("axis_index", "pcast") for axis in eqn.params.get("axis_names", ())]
    return _union([frozenset(own), *[_axes_in(inner) for eqn in closed.eqns for inner in sub_jaxprs(eqn.params)]])


def _union(variances: Sequence[Variance]) -> Variance:
    return frozenset().union(*variances)

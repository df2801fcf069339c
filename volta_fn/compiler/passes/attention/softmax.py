"""Softmax along the last axis, and its derivative, recognised."""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.compiler.passes.attention.program import Program, number
from volta_fn.core.jaxpr import Atom, Equation, Var


def softmax_operand(program: Program, division: Equation) -> Var | None:
    """What a division makes the softmax of, if it does that."""
    top, bottom = division.invars
    exponential = program.maker(top, "exp")
    total = program.maker(program.behind(bottom, "reshape"), "reduce_sum")
    if exponential is None or total is None or total.invars[0] is not top or not _along_rows(total):
        return None
    difference = program.maker(exponential.invars[0], "sub")
    if difference is None:
        return None
    x, shift = difference.invars
    same = isinstance(x, Var) and x.aval.shape == division.outvars[0].aval.shape
    return x if same and isinstance(x, Var) and _is_largest(program, shift, x) else None


def _along_rows(eqn: Equation) -> bool:
    return eqn.params["axes"] == (eqn.invars[0].aval.ndim - 1,)


def _is_largest(program: Program, shift: Atom, x: Var) -> bool:
    """Whether a shift is the largest element of each row, or 0 where that is not finite."""
    shift = program.behind(shift, "reshape", "stop_gradient")
    chosen = program.maker(shift, "select_n")
    if chosen is not None and program.maker(chosen.invars[0], "is_finite") is not None:
        shift = program.behind(chosen.invars[2], "reshape")
    floor = program.maker(shift, "max")
    if floor is not None and number(floor.invars[1]) == -float("inf"):
        shift = floor.invars[0]
    largest = program.maker(shift, "reduce_max")
    return largest is not None and largest.invars[0] is x and _along_rows(largest)


class Derivative(NamedTuple):
    """``weights * (c - sum(weights * c))`` along rows: the result, and the equation that multiplies weights and the sum."""

    slopes: Var
    by_sum: Equation


def derivative(program: Program, weights: Var, product: Equation) -> Derivative | None:
    """The derivative in which an equation makes the product ``weights * c``."""
    (made,) = product.outvars
    for eqn in program.readers.get(weights, ()):
        if eqn.primitive.name == "mul" and eqn is not product:
            total = eqn.invars[1 if eqn.invars[0] is weights else 0]
            if _is_negated_sum(program, total, made):
                sums = [s for s in program.readers.get(made, ()) if s.primitive.name == "add" and eqn.outvars[0] in s.invars]
                return Derivative(sums[0].outvars[0], eqn) if len(sums) == 1 else None
    return None


def _is_negated_sum(program: Program, atom: Atom, made: Var) -> bool:
    while True:
        eqn = program.maker(atom, "reshape", "reduce_sum")
        if eqn is None:
            return False
        atom = eqn.invars[0]
        if eqn.primitive.name == "reduce_sum" and eqn.outvars[0].aval.size != atom.aval.size:
            negated = program.maker(atom, "neg")
            return _along_rows(eqn) and negated is not None and negated.invars[0] is made

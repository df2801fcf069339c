"""Replacing recognised attention by one equation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.compiler.ir.attention import attention_routine_p, result_avals
from volta_fn.compiler.passes.attention.match import Match, attends, match
from volta_fn.compiler.passes.attention.patterns import Lookup, Result
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dce import dce_jaxpr
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.primitives.attention import Axes, Form

#: Tells whether attention is worth its own routine: (types of q, k, v and the mask if there is one, form).
Profitability = Callable[[tuple[ShapedArray, ...], Form], bool]


def replace_attention(closed: ClosedJaxpr, worthwhile: Profitability) -> ClosedJaxpr:
    """Replace attention by an equation where that is worthwhile."""
    divisions = [eqn for eqn in closed.eqns if eqn.primitive.name == "div"]
    if not divisions:
        return closed
    program = Lookup(closed)
    #: By the position of a product with the values, the equations that replace it.
    new: dict[int, list[Equation]] = {}
    for division in divisions:
        found = match(program, division)
        if found is not None and attends(found) and worthwhile(tuple([a.aval for a in found.operands]), _form(found)):
            new[program.position(found.out.var)] = _equations(found)
    if not new:
        return closed
    return dce_jaxpr(closed.replace(eqns=[e for position, eqn in enumerate(closed.eqns) for e in new.get(position, [eqn])]))


def _form(found: Match) -> Form:
    logits = found.logits
    return Form(found.q.axes, found.k.axes, found.v.axes, None, logits.scale, logits.unseen, logits.causal, logits.mask is not None)


def _equations(found: Match) -> list[Equation]:
    form = _form(found)
    made = [Var(a) for a in result_avals(form, found.q.atom.aval, found.v.atom.aval)]
    forward = Equation(attention_routine_p, found.operands, made, {"form": form}, found.out.eqn.position)
    return [forward, *_viewed(made[0], form.q, found.out)]


def _viewed(var: Var, axes: Axes, result: Result) -> list[Equation]:
    """Return equations that give a result its axes and dtype in the old program."""
    eqns: list[Equation] = []

    def apply(name: str, x: Atom, **params: Any) -> Atom:
        primitive = PRIMITIVES[name]
        made = Var(primitive.result_avals((x.aval,), params))
        eqns.append(Equation(primitive, [x], [made], params, result.eqn.position))
        return made

    aval = result.var.aval
    x = apply("transpose", var, permutation=axes.order)
    swapped = (*range(aval.ndim - 2), aval.ndim - 1, aval.ndim - 2)
    shape = tuple([aval.shape[a] for a in swapped]) if result.transposed else aval.shape
    x = apply("reshape", x, new_sizes=shape)
    if result.transposed:
        x = apply("transpose", x, permutation=swapped)
    x = apply("convert_element_type", x, new_dtype=aval.dtype, weak_type=False)
    eqns[-1] = eqns[-1].replace(outvars=[result.var])
    return eqns

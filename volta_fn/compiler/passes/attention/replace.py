"""Replacing recognised attention by one equation, and its gradient by another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.compiler.ir.attention import attention_gradient_p, attention_p, result_avals
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
    """Replace attention and its gradient by equations, where that is worthwhile."""
    divisions = [eqn for eqn in closed.eqns if eqn.primitive.name == "div"]
    if not divisions:
        return closed
    program = Lookup(closed)
    replacing = _Replacing(program)
    for division in divisions:
        found = match(program, division)
        if found is not None and attends(found) and worthwhile(tuple([a.aval for a in found.operands]), _form(found)):
            replacing.add(found)
    return replacing.program()


def _form(found: Match) -> Form:
    logits = found.logits
    cotangent = None if found.cotangent is None else found.cotangent.axes
    axes = found.q.axes, found.k.axes, found.v.axes, cotangent
    return Form(*axes, logits.scale, logits.unseen, logits.causal, logits.mask is not None)


class _Replacing:
    def __init__(self, program: Lookup) -> None:
        self.old = program
        #: What replaces an equation of the old program.
        self.new: dict[int, list[Equation]] = {}

    def program(self) -> ClosedJaxpr:
        """Return the new program."""
        if not self.new:
            return self.old.closed
        jaxpr = self.old.closed.jaxpr
        eqns = [new for position, eqn in enumerate(jaxpr.eqns) for new in self.new.get(position, [eqn])]
        return dce_jaxpr(self.old.closed.replace(eqns=eqns))

    def add(self, found: Match) -> None:
        """Replace an attention, if its operands are computed early enough."""
        form = _form(found)
        operands = found.operands
        positions = [self.old.position(r.var) for r in found.gradients]
        first_gradient = min(positions, default=len(self.old.closed.eqns))
        forward_position = first_gradient if found.out is None else self.old.position(found.out.var)
        late = [self.old.position(a) for a in operands]
        cotangent = [] if found.cotangent is None else [found.cotangent.atom]
        if (
            forward_position > first_gradient
            or max(late) >= forward_position
            or max(map(self.old.position, cotangent), default=-1) >= first_gradient
            or not (found.out or positions)
        ):
            return
        origin = self.old.closed.eqns[min(forward_position, first_gradient)]
        made = [Var(a) for a in result_avals(form, found.q.atom.aval, found.v.atom.aval)]
        forward = [Equation(attention_p, operands, made, {"form": form._replace(cotangent=None)}, origin.position)]
        if found.out is not None:
            self.new[forward_position] = [*forward, *self.viewed(made[0], form.q, found, found.out)]
        if positions:
            gradients = [Var(m.atom.aval) for m in (found.q, found.k, found.v)]
            gradient = Equation(attention_gradient_p, [*operands, *made, *cotangent], gradients, {"form": form}, origin.position)
            new = [*([] if found.out else forward), gradient]
            results = zip((found.to_q, found.to_k, found.to_v), gradients, (found.q, found.k, found.v), strict=True)
            for result, var, matrix in results:
                if result is not None:
                    new += self.viewed(var, matrix.axes, found, result)
            self.new.update({position: [] for position in positions})
            self.new[first_gradient] = new

    def viewed(self, var: Var, axes: Axes, found: Match, result: Result) -> list[Equation]:
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

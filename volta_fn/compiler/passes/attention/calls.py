"""Calls of attention that a target has routines for, which are not expanded."""

from __future__ import annotations

import math
from typing import Any

from volta_fn.compiler.ir.attention import attention_gradient_routine_p, attention_routine_p, result_avals
from volta_fn.compiler.passes.attention.patterns import Lookup, matrix_of
from volta_fn.compiler.passes.attention.replace import Profitability
from volta_fn.compiler.passes.inline import inline_calls
from volta_fn.compiler.passes.nested import simplify_nested
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Var
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.primitives.attention import ROUTINE_CALLS, Axes, Form, attention_p


def keep_attention(closed: ClosedJaxpr, worthwhile: Profitability) -> ClosedJaxpr:
    """Replace worthwhile calls of attention by equations that routines compute.

    Routines read operands as they are before they are transposed. Other calls are inlined.
    """
    inlined = simplify_nested(inline_calls(closed, kept=ROUTINE_CALLS), lambda inner: keep_attention(inner, worthwhile))
    if not any(eqn.primitive in ROUTINE_CALLS for eqn in inlined.eqns):
        return inlined
    eqns: list[Equation] = []
    for eqn in inlined.eqns:
        fits = eqn.primitive in ROUTINE_CALLS and _is_supported(eqn) and worthwhile(_operand_avals(eqn), eqn.params["form"])
        eqns += _routine(eqn) if fits else [eqn]
    jaxpr = inlined.jaxpr
    return _lay_out(ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, eqns), inlined.consts))


def _operand_avals(eqn: Equation) -> tuple[ShapedArray, ...]:
    """Return the types of q, k, v and the mask."""
    return tuple([v.aval for v in eqn.invars[: 3 + eqn.params["form"].masked]])


def _is_supported(eqn: Equation) -> bool:
    return all(v.aval.dtype.name in ("float32", "float16", "bfloat16") for v in eqn.invars[:3])


def _routine(eqn: Equation) -> list[Equation]:
    """Return a call's equations; a routine's statistics have one axis of heads."""
    form: Form = eqn.params["form"]
    operands = eqn.invars[: 3 + form.masked]
    if eqn.primitive is attention_p:
        flat = Var(result_avals(form, operands[0].aval, operands[2].aval)[1])
        call = Equation(attention_routine_p, operands, [eqn.outvars[0], flat], {"form": form}, eqn.position)
        return [call, _apply("reshape", flat, eqn.outvars[1], eqn, new_sizes=eqn.outvars[1].aval.shape)]
    out, statistics, cotangent = eqn.invars[3 + form.masked :]
    shape: Shape = statistics.aval.shape
    flat = Var(statistics.aval.update(shape=(math.prod(shape[:-2]), *shape[-2:])))
    results = iter(eqn.outvars)
    gradients = [next(results) if moved else Var(x.aval) for x, moved in zip(operands[:3], eqn.params["moved"], strict=True)]
    gradient = Equation(attention_gradient_routine_p, [*operands, out, flat, cotangent], gradients, {"form": form}, eqn.position)
    return [_apply("reshape", statistics, flat, eqn, new_sizes=flat.aval.shape), gradient]


def _apply(name: str, x: Atom, out: Var, like: Equation, **params: Any) -> Equation:
    return Equation(PRIMITIVES[name], [x], [out], params, like.position)


def _lay_out(closed: ClosedJaxpr) -> ClosedJaxpr:
    if not any(eqn.primitive in (attention_routine_p, attention_gradient_routine_p) for eqn in closed.eqns):
        return closed
    eqns: list[Equation] = []
    jaxpr = closed.jaxpr
    for eqn in closed.eqns:
        if eqn.primitive in (attention_routine_p, attention_gradient_routine_p):
            program = Lookup(ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, eqns), closed.consts))
            eqns += _laid_out(program, eqn)
        else:
            eqns.append(eqn)
    return ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, eqns), closed.consts)


def _laid_out(program: Lookup, eqn: Equation) -> list[Equation]:
    form: Form = eqn.params["form"]
    q, k, v = (matrix_of(program, x, axes) for x, axes in zip(eqn.invars[:3], (form.q, form.k, form.v), strict=True))
    masks = eqn.invars[3 : 3 + form.masked]
    if eqn.primitive is attention_routine_p:
        changed = form._replace(q=q.axes, k=k.axes, v=v.axes)
        found = Var(result_avals(changed, q.atom.aval, v.atom.aval)[0])
        call = eqn.replace(invars=[q.atom, k.atom, v.atom, *masks], outvars=[found, eqn.outvars[1]], params={"form": changed})
        return [call, _view(found, q.axes, form.q, eqn.outvars[0], eqn)]
    result, statistics_, cotangent = eqn.invars[3 + form.masked :]
    assert form.cotangent is not None
    out_matrix, given = matrix_of(program, result, form.q), matrix_of(program, cotangent, form.cotangent)
    if out_matrix.axes != q.axes:  # it is laid out as q is
        return [eqn]
    changed = form._replace(q=q.axes, k=k.axes, v=v.axes, cotangent=given.axes)
    found_vars = [Var(m.atom.aval) for m in (q, k, v)]
    operands = [q.atom, k.atom, v.atom, *masks, out_matrix.atom, statistics_, given.atom]
    views = zip(found_vars, (q, k, v), (form.q, form.k, form.v), eqn.outvars, strict=True)
    call = eqn.replace(invars=operands, outvars=found_vars, params={"form": changed})
    return [call, *[_view(var, m.axes, axes, out, eqn) for var, m, axes, out in views]]


def _view(x: Var, axes: Axes, wanted: Axes, out: Var, like: Equation) -> Equation:
    """Transpose an array with some axes to others."""
    position = dict(zip(wanted.order, axes.order, strict=True))
    return _apply("transpose", x, out, like, permutation=tuple([position[d] for d in range(len(position))]))

"""The rules of attention: each call's expansion is derived from another's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr, Var, dce_jaxpr, inline_calls, program_cache
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.primitives.attention import Form, attention_gradient_p, attention_p, attention_params, attention_tangent_p
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.data_movement.movement import instantiate, stacked_in_front
from volta_fn.transforms.linearize import (
    jvp_jaxpr,
    jvp_rules,
    linear_marks,
    marked,
    nonzero_marks,
    per_operand,
    transpose_jaxpr,
    transpose_rules,
)
from volta_fn.transforms.rules.calls import jvp_of_call, transpose_of_call
from volta_fn.transforms.rules.jit import jit_call
from volta_fn.transforms.vmap import batch_jaxpr, batching_rules

#: Calls a derivative that no target has a routine for.
_EXPANSION = jit_call("attention")


@jvp_rules.register(attention_p)
def _attention_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
) -> tuple[Sequence[Array], list[Any]]:
    out, statistics = bind(attention_p, *primals, **attention_params(jaxpr, form))
    zeros = [Zero(x.aval.tangent_aval()) for x in (out, statistics)]
    nonzero = nonzero_marks(tangents[:3])  # of q, k and v; a mask has none
    if not any(nonzero):
        return (out, statistics), zeros
    body = _attention_tangent_program(jaxpr, nonzero)
    operands = (*primals, out, statistics, *[instantiate(t) for t in marked(tangents[:3], nonzero)])
    (tangent,) = bind(attention_tangent_p, *operands, **attention_params(body, form, tuple(nonzero)))
    return (out, statistics), [tangent, instantiate(zeros[1])]  # for recordings, in which all results have tangents


@jvp_rules.register(attention_tangent_p, attention_gradient_p)
def _derived_attention_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
) -> tuple[Sequence[Array], Sequence[Any]]:
    return jvp_of_call(_EXPANSION, jaxpr, primals, tangents)


@program_cache
def _attention_tangent_program(jaxpr: ClosedJaxpr, nonzero: Sequence[bool]) -> ClosedJaxpr:
    """Derive the expansion of the tangent.

    It is ``(q, k, v[, mask], result, statistics, *nonzero tangents) -> result's tangent``.
    """
    count = len(jaxpr.in_avals)
    derived, _ = jvp_jaxpr(jaxpr, [*nonzero, *[False] * (count - 3)], [True, False])
    flat = inline_calls(derived, jit_p)  # so that an equation is either known or linear
    pruned = dce_jaxpr(flat, [False, False, True, *[False] * (len(derived.out_avals) - 3)])
    inner = pruned.jaxpr
    unused = [Var(a) for a in jaxpr.out_avals]
    return ClosedJaxpr(
        Jaxpr(inner.constvars, [*inner.invars[:count], *unused, *inner.invars[count:]], inner.outvars, inner.eqns), pruned.consts
    )


@transpose_rules.register(attention_tangent_p)
def _attention_tangent_transpose(
    cotangents: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
) -> list[Any]:
    linear = linear_marks(args)
    if type(cotangents[0]) is Zero:
        return [None] * len(args)
    residuals = marked(args, linear, False)
    backward, has_cotangent = transpose_jaxpr(jaxpr, linear, [True])
    tangents = args[len(args) - sum(moved) :]
    if all(has_cotangent) and all(type(t) is Linear for t in tangents):
        results = bind(
            attention_gradient_p, *residuals, cotangents[0], **attention_params(backward, form._replace(cotangent=form.q), moved)
        )
    else:
        results = bind(jit_p, *residuals, cotangents[0], **call_params(backward, "attention_gradient"))
    return per_operand(results, linear, has_cotangent)


@transpose_rules.register(attention_gradient_p)
def _attention_gradient_transpose(
    cotangents: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
) -> list[Any]:
    return transpose_of_call(_EXPANSION, jaxpr, cotangents, args)


def _attention_batch_rule(primitive: Primitive) -> Any:
    def batch(
        axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
    ) -> tuple[Sequence[Array], list[int]]:
        """Batch a call: the examples count as heads."""
        body, _ = batch_jaxpr(jaxpr, axis, [True] * len(args), [True] * len(jaxpr.out_avals))
        cotangent = None if form.cotangent is None else form.cotangent.batched()
        stacked = form._replace(q=form.q.batched(), k=form.k.batched(), v=form.v.batched(), cotangent=cotangent)
        outs = bind(primitive, *stacked_in_front(axis, args, dims), **attention_params(body, stacked, moved))
        return outs, [0] * len(outs)

    return batch


batching_rules.update(
    {primitive: _attention_batch_rule(primitive) for primitive in (attention_p, attention_tangent_p, attention_gradient_p)}
)

"""The rules of primitives that call sub-programs: `jit`'s and attention's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn.compiler.passes.loops import inline_calls
from volta_fn.core.array import Array
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr, Var, dce_jaxpr, program_cache
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.primitives.call import Form, attention_gradient_p, attention_p, attention_params, attention_tangent_p, call_params, jit_p
from volta_fn.primitives.data_movement.joining import instantiate
from volta_fn.primitives.data_movement.movement import broadcast, moveaxis
from volta_fn.transforms.linearize import (
    LinearTrace,
    is_linear,
    is_nonzero,
    jvp_jaxpr,
    marked,
    merge,
    split_tangents,
    spread,
    transpose_jaxpr,
)
from volta_fn.transforms.rules.subprograms import split_call
from volta_fn.transforms.vmap import batch_jaxpr, to_front

# ------------------------------------------------------------------------------
# The rules of `jit`'s primitive: they transform the program, and keep the call.
# ------------------------------------------------------------------------------


def _call_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, name: str, donated: tuple[bool, ...]
) -> tuple[Sequence[Array], Sequence[Any]]:
    nonzero = is_nonzero(tangents)
    forward, out_nonzero = jvp_jaxpr(jaxpr, nonzero, False)
    return split_tangents(bind(jit_p, *primals, *marked(tangents, nonzero), **call_params(forward, name)), out_nonzero)


def _partial_eval(trace: LinearTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    unknown = [trace.is_unknown(a) for a in args]
    known, waiting, out_unknown = split_call(params["jaxpr"], unknown)
    flat = bind(jit_p, *marked(args, unknown, False), **call_params(known, params["name"]))
    residuals = flat[out_unknown.count(False) :]
    recorded = trace.record(jit_p, [*residuals, *marked(args, unknown)], call_params(waiting, params["name"]))
    return tuple(merge(out_unknown, recorded, flat))


def transpose_call(cotangents: Sequence[Any], args: Sequence[Any], jaxpr: ClosedJaxpr, name: str) -> list[Any]:
    """Return the cotangents of a call's operands by a call of the transposed program."""
    linear, nonzero = is_linear(args), is_nonzero(cotangents)
    backward, given = transpose_jaxpr(jaxpr, linear, nonzero)
    return spread(bind(jit_p, *marked(args, linear, False), *marked(cotangents, nonzero), **call_params(backward, name)), linear, given)


def _batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, jaxpr: ClosedJaxpr, name: str, donated: tuple[bool, ...]
) -> tuple[Sequence[Array], list[int | None]]:
    batched, stacked = batch_jaxpr(jaxpr, axis, [d is not None for d in dims])
    return bind(jit_p, *to_front(args, dims), **call_params(batched, name)), [0 if s else None for s in stacked]


jit_p.jvp = _call_jvp
jit_p.partial_eval = _partial_eval
jit_p.transpose = lambda cotangents, *args, jaxpr, name, donated: transpose_call(cotangents, args, jaxpr, name)
jit_p.batch = _batch


# ------------------------------------------------------------------------------
# The rules of attention: each call's expansion is derived from another's.
# ------------------------------------------------------------------------------


def _attention_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
) -> tuple[Sequence[Array], list[Any]]:
    out, statistics = bind(attention_p, *primals, **attention_params(jaxpr, form))
    zeros = [Zero(x.aval.at_least_vspace()) for x in (out, statistics)]
    nonzero = is_nonzero(tangents[:3])
    if not any(nonzero):
        return (out, statistics), zeros
    body = _tangent_program(jaxpr, nonzero)
    operands = (*primals, out, statistics, *[instantiate(t) for t in marked(tangents[:3], nonzero)])
    (tangent,) = bind(attention_tangent_p, *operands, **attention_params(body, form, tuple(nonzero)))
    return (out, statistics), [tangent, instantiate(zeros[1])]  # for recordings, in which all results have tangents


@program_cache
def _tangent_program(jaxpr: ClosedJaxpr, nonzero: Sequence[bool]) -> ClosedJaxpr:
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


def _transpose(cotangents: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]) -> list[Any]:
    linear = is_linear(args)
    if type(cotangents[0]) is Zero:
        return [None] * len(args)
    known = marked(args, linear, False)
    backward, given = transpose_jaxpr(jaxpr, linear, [True])
    tangents = args[len(args) - sum(moved) :]
    if all(given) and all(type(t) is Linear for t in tangents):
        found = bind(attention_gradient_p, *known, cotangents[0], **attention_params(backward, form._replace(cotangent=form.q), moved))
    else:
        found = bind(jit_p, *known, cotangents[0], **call_params(backward, "attention_gradient"))
    return spread(found, linear, given)


def _jvp_by_expansion(
    primals: Sequence[Array], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
) -> tuple[Sequence[Array], Sequence[Any]]:
    nonzero = is_nonzero(tangents)
    forward, out_nonzero = jvp_jaxpr(jaxpr, nonzero, False)
    found = bind(jit_p, *primals, *marked(tangents, nonzero), **call_params(forward, "attention"))
    return split_tangents(found, out_nonzero)


def _batch_rule(primitive: Primitive) -> Any:
    def batch(
        axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
    ) -> tuple[Sequence[Array], list[int]]:
        """Batch a call: the examples count as heads."""
        front = [broadcast(a, (axis.size,)) if d is None else moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]
        body, _ = batch_jaxpr(jaxpr, axis, [True] * len(args), [True] * len(jaxpr.out_avals))
        cotangent = None if form.cotangent is None else form.cotangent.batched()
        stacked = form._replace(q=form.q.batched(), k=form.k.batched(), v=form.v.batched(), cotangent=cotangent)
        found = bind(primitive, *front, **attention_params(body, stacked, moved))
        return found, [0] * len(found)

    return batch


for _primitive in (attention_p, attention_tangent_p, attention_gradient_p):
    _primitive.batch = _batch_rule(_primitive)
    _primitive.jvp = _jvp_by_expansion
attention_p.jvp = _attention_jvp
attention_tangent_p.transpose = _transpose
attention_gradient_p.transpose = lambda cotangents, *args, jaxpr, form, moved: transpose_call(cotangents, args, jaxpr, "attention")

"""The rules of `jit`'s primitive: they transform the program, and keep the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData
from volta_fn.core.trace import bind
from volta_fn.primitives.call import attention_gradient_p, attention_tangent_p, call_params, jit_p
from volta_fn.primitives.data_movement.movement import to_front
from volta_fn.transforms.linearize import (
    PartialEvalTrace,
    jvp_jaxpr,
    jvp_rules,
    linear_marks,
    marked,
    merge,
    nonzero_marks,
    partial_eval_rules,
    split_tangents,
    spread,
    transpose_jaxpr,
    transpose_rules,
)
from volta_fn.transforms.rules.residuals import split_call
from volta_fn.transforms.vmap import batch_jaxpr, batching_rules


@jvp_rules.register(jit_p, attention_tangent_p, attention_gradient_p)
def _call_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, name: str = "attention", **params: Any
) -> tuple[Sequence[Array], Sequence[Any]]:
    nonzero = nonzero_marks(tangents)
    forward, out_nonzero = jvp_jaxpr(jaxpr, nonzero, False)
    return split_tangents(bind(jit_p, *primals, *marked(tangents, nonzero), **call_params(forward, name)), out_nonzero)


@partial_eval_rules.register(jit_p)
def _jit_partial_eval(trace: PartialEvalTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    is_unknown = [trace.is_unknown(a) for a in args]
    known_program, unknown_program, out_unknown = split_call(params["jaxpr"], is_unknown)
    flat = bind(jit_p, *marked(args, is_unknown, False), **call_params(known_program, params["name"]))
    residuals = flat[out_unknown.count(False) :]
    recorded = trace.record(jit_p, [*residuals, *marked(args, is_unknown)], call_params(unknown_program, params["name"]))
    return tuple(merge(out_unknown, recorded, flat))


@transpose_rules.register(jit_p, attention_gradient_p)
def _call_transpose(cotangents: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, name: str = "attention", **params: Any) -> list[Any]:
    linear, nonzero = linear_marks(args), nonzero_marks(cotangents)
    backward, has_cotangent = transpose_jaxpr(jaxpr, linear, nonzero)
    return spread(
        bind(jit_p, *marked(args, linear, False), *marked(cotangents, nonzero), **call_params(backward, name)), linear, has_cotangent
    )


@batching_rules.register(jit_p)
def _jit_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, jaxpr: ClosedJaxpr, name: str, donated: tuple[bool, ...]
) -> tuple[Sequence[Array], list[int | None]]:
    batched, stacked = batch_jaxpr(jaxpr, axis, [d is not None for d in dims])
    return bind(jit_p, *to_front(args, dims), **call_params(batched, name)), [0 if s else None for s in stacked]

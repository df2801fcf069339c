"""The rules of `jit`'s primitive: each transform is applied to the sub-program, and the call stays a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData, Linear, Zero
from volta_fn.core.trace import bind
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.movement import moveaxis
from volta_fn.transforms.jvp import jvp_jaxpr
from volta_fn.transforms.linearize import LinearTrace, partial_eval_jaxpr
from volta_fn.transforms.transpose import transpose_jaxpr
from volta_fn.transforms.vmap import batch_jaxpr


def _jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, name: str, donated: tuple[bool, ...]
) -> tuple[Sequence[Array], Sequence[Any]]:
    nonzero = [type(t) is not Zero for t in tangents]
    forward, out_nonzero = jvp_jaxpr(jaxpr, nonzero, False)
    given = [t for t in tangents if type(t) is not Zero]
    flat = bind(jit_p, *primals, *given, **call_params(forward, name))
    outs, rates = flat[: len(out_nonzero)], iter(flat[len(out_nonzero) :])
    return outs, [next(rates) if nz else Zero(o.aval.at_least_vspace()) for nz, o in zip(out_nonzero, outs, strict=True)]


def _partial_eval(trace: LinearTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    unknown = [trace.is_unknown(a) for a in args]
    known_jaxpr, waiting_jaxpr, out_unknown = partial_eval_jaxpr(params["jaxpr"], unknown)
    known_args = [a for a, u in zip(args, unknown, strict=True) if not u]
    flat = bind(jit_p, *known_args, **call_params(known_jaxpr, params["name"]))
    count = out_unknown.count(False)
    known_outs, residuals = iter(flat[:count]), flat[count:]
    waiting_args = [*residuals, *[a for a, u in zip(args, unknown, strict=True) if u]]
    waiting_outs = iter(trace.record(jit_p, waiting_args, call_params(waiting_jaxpr, params["name"])))
    return tuple([next(waiting_outs) if u else next(known_outs) for u in out_unknown])


def _transpose(cotangents: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, name: str, donated: tuple[bool, ...]) -> list[Any]:
    linear = [type(a) is Linear for a in args]
    nonzero = [type(c) is not Zero for c in cotangents]
    backward, gives = transpose_jaxpr(jaxpr, linear, nonzero)
    known = [a for a, is_linear in zip(args, linear, strict=True) if not is_linear]
    flat = iter(bind(jit_p, *known, *[c for c in cotangents if type(c) is not Zero], **call_params(backward, name)))
    given = iter(gives)
    return [next(flat) if is_linear and next(given) else None for is_linear in linear]


def _batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, jaxpr: ClosedJaxpr, name: str, donated: tuple[bool, ...]
) -> tuple[Sequence[Array], list[int | None]]:
    stacked = [d is not None for d in dims]
    batched, out_stacked = batch_jaxpr(jaxpr, axis, stacked)
    front = [a if d is None else moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]
    return bind(jit_p, *front, **call_params(batched, name)), [0 if s else None for s in out_stacked]


jit_p.jvp = _jvp
jit_p.partial_eval = _partial_eval
jit_p.transpose = _transpose
jit_p.batch = _batch

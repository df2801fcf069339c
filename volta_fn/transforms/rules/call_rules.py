"""The rules of `jit`'s primitive: they transform the program, and keep the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData
from volta_fn.core.trace import bind
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.transforms.jvp import jvp_jaxpr
from volta_fn.transforms.linearize import LinearTrace, partial_eval_jaxpr
from volta_fn.transforms.marks import is_linear, is_nonzero, marked, merge, split_tangents, spread
from volta_fn.transforms.transpose import transpose_jaxpr
from volta_fn.transforms.vmap import batch_jaxpr, to_front


def _jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, name: str, donated: tuple[bool, ...]
) -> tuple[Sequence[Array], Sequence[Any]]:
    nonzero = is_nonzero(tangents)
    forward, out_nonzero = jvp_jaxpr(jaxpr, nonzero, False)
    return split_tangents(bind(jit_p, *primals, *marked(tangents, nonzero), **call_params(forward, name)), out_nonzero)


def _partial_eval(trace: LinearTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    unknown = [trace.is_unknown(a) for a in args]
    known, waiting, out_unknown = partial_eval_jaxpr(params["jaxpr"], unknown)
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


jit_p.jvp = _jvp
jit_p.partial_eval = _partial_eval
jit_p.transpose = lambda cotangents, *args, jaxpr, name, donated: transpose_call(cotangents, args, jaxpr, name)
jit_p.batch = _batch

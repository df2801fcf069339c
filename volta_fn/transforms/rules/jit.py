"""The rules of `jit`'s primitive: they transform the program, and keep the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData
from volta_fn.core.trace import bind
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.transforms.linearize import PartialEvalTrace, jvp_rules, marked, merge, partial_eval_rules, transpose_rules
from volta_fn.transforms.rules.calls import Call, batch_of_call, jvp_of_call, transpose_of_call
from volta_fn.transforms.rules.residuals import split_call
from volta_fn.transforms.vmap import batching_rules


def jit_call(name: str) -> Call:
    """Return what calls a derived program under a name.

    It donates nothing: other values of a transformed function may need the operands.
    """
    return lambda program, operands: bind(jit_p, *operands, **call_params(program, name))


@jvp_rules.register(jit_p)
def _jit_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, name: str, donated: tuple[bool, ...]
) -> tuple[Sequence[Array], Sequence[Any]]:
    return jvp_of_call(jit_call(name), jaxpr, primals, tangents)


@partial_eval_rules.register(jit_p)
def _jit_partial_eval(trace: PartialEvalTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    is_unknown = [trace.is_unknown(a) for a in args]
    known_program, unknown_program, out_unknown = split_call(params["jaxpr"], is_unknown)
    flat = bind(jit_p, *marked(args, is_unknown, False), **call_params(known_program, params["name"]))
    residuals = flat[out_unknown.count(False) :]
    recorded = trace.record(jit_p, [*residuals, *marked(args, is_unknown)], call_params(unknown_program, params["name"]))
    return tuple(merge(out_unknown, recorded, flat))


@transpose_rules.register(jit_p)
def _jit_transpose(cotangents: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, name: str, donated: tuple[bool, ...]) -> list[Any]:
    return transpose_of_call(jit_call(name), jaxpr, cotangents, args)


@batching_rules.register(jit_p)
def _jit_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, jaxpr: ClosedJaxpr, name: str, donated: tuple[bool, ...]
) -> tuple[Sequence[Array], list[int | None]]:
    return batch_of_call(jit_call(name), jaxpr, axis, args, dims)

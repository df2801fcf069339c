"""The rules of `while`, which cannot be transposed: it has no bound on iterations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, program_cache
from volta_fn.core.primitive import AxisData
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.errors import GradientError
from volta_fn.primitives.control_flow.loops import while_p
from volta_fn.primitives.data_movement.movement import instantiate, reshape, stacked_in_front, to_front
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.reduction import reduce_or
from volta_fn.transforms.linearize import (
    PartialEvalTrace,
    fixed_point,
    jvp_jaxpr,
    jvp_rules,
    marked,
    merge,
    nonzero_marks,
    partial_eval_rules,
    transpose_rules,
    with_zeros,
)
from volta_fn.transforms.rules.programs import paired_order, reordered, split_program, with_unused
from volta_fn.transforms.vmap import batch_jaxpr, batching_rules, stack_if


def _by_role(values: Sequence[Any], params: dict[str, Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Split a list of operands: constants of condition and body, and the carry."""
    start, end = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    return values[:start], values[start:end], values[end:]


def _bind_while(
    cond: ClosedJaxpr, body: ClosedJaxpr, cond_consts: Sequence[Array], body_consts: Sequence[Array], carry: Sequence[Array]
) -> Any:
    return bind(
        while_p, *cond_consts, *body_consts, *carry,
        cond_jaxpr=cond, body_jaxpr=body, cond_nconsts=len(cond_consts), body_nconsts=len(body_consts),
    )  # fmt: skip


@jvp_rules.register(while_p)
def _while_jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Sequence[Array], Sequence[Any]]:
    cond_consts, body_consts, carry = _by_role(primals, params)
    _, const_tangents, carry_tangents = _by_role(tangents, params)
    consts_nonzero = nonzero_marks(const_tangents)

    def step(marks: list[bool]) -> tuple[Any, Sequence[bool]]:
        return jvp_jaxpr(params["body_jaxpr"], [*consts_nonzero, *marks], marks)

    forward, nonzero = fixed_point(nonzero_marks(carry_tangents), step)
    const_directions = marked(const_tangents, consts_nonzero)
    carry_directions = [instantiate(t) for t in marked(carry_tangents, nonzero)]
    order = paired_order([len(body_consts), len(carry)], [len(const_directions), len(carry_directions)])
    body = reordered(forward, order, range(len(forward.out_avals)))
    cond = with_unused(params["cond_jaxpr"], [t.aval for t in carry_directions])
    flat = _bind_while(cond, body, cond_consts, [*body_consts, *const_directions], [*carry, *carry_directions])
    outs = flat[: len(carry)]
    return outs, with_zeros(flat[len(carry) :], nonzero, outs)


@partial_eval_rules.register(while_p)
def _while_partial_eval(trace: PartialEvalTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    """Run the loop for the known values; the recorded loop computes them again."""
    cond_unknown, consts_unknown, start_unknown = _by_role([trace.is_unknown(a) for a in args], params)

    def step(marks: list[bool]) -> tuple[Any, Sequence[bool]]:
        known_program, _, out = split_program(params["body_jaxpr"], [*consts_unknown, *marks], marks)
        return known_program, out

    known_program, is_unknown = fixed_point(start_unknown, step)
    known_cond, _, (cond_out_unknown,) = split_program(params["cond_jaxpr"], [*cond_unknown, *is_unknown], [False])
    recorded = trace.record(while_p, args, params)
    if cond_out_unknown or all(is_unknown):
        return recorded
    body = reordered(known_program, range(len(known_program.in_avals)), range(is_unknown.count(False)))
    cond = reordered(known_cond, range(len(known_cond.in_avals)), [0])
    operands = [marked(v, u, False) for v, u in zip(_by_role(args, params), (cond_unknown, consts_unknown, is_unknown), strict=True)]
    return tuple(merge(is_unknown, marked(recorded, is_unknown), _bind_while(cond, body, *operands)))


@transpose_rules.register(while_p)
def _while_transpose(cotangents: Sequence[Any], *args: Any, **params: Any) -> NoReturn:
    raise GradientError(
        "reverse-mode differentiation cannot pass a while_loop (or a fori_loop with traced bounds): the number of its iterations is "
        "unknown, so memory for the backward pass cannot be allocated. Use lax.scan, or lax.fori_loop with bounds that are Python "
        "integers; or forward mode (jvp, jacfwd); or give the function a custom_vjp."
    )


@batching_rules.register(while_p)
def _while_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any
) -> tuple[Sequence[Array], list[int | None]]:
    cond_consts, body_consts, carry = _by_role(args, params)
    cond_dims, body_dims, carry_dims = _by_role(dims, params)
    cond_stacked, body_stacked = [d is not None for d in cond_dims], [d is not None for d in body_dims]
    cond_front, body_front = to_front(cond_consts, cond_dims), to_front(body_consts, body_dims)

    def step(marks: list[bool]) -> tuple[Any, Sequence[bool]]:
        return batch_jaxpr(params["body_jaxpr"], axis, [*body_stacked, *marks], marks)

    body, stacked = fixed_point([d is not None for d in carry_dims], step)
    cond, (cond_out_stacked,) = batch_jaxpr(params["cond_jaxpr"], axis, [*cond_stacked, *stacked])
    if not cond_out_stacked:
        start = [stack_if(s, a, d, axis.size) for s, a, d in zip(stacked, carry, carry_dims, strict=True)]
        return _bind_while(cond, body, cond_front, body_front, start), [0 if s else None for s in stacked]
    all_stacked = [True] * len(carry)
    cond = batch_jaxpr(params["cond_jaxpr"], axis, [*cond_stacked, *all_stacked], [True])[0]
    body = batch_jaxpr(params["body_jaxpr"], axis, [*body_stacked, *all_stacked], all_stacked)[0]
    outs = _run_until_all_stop(cond, body, cond_front, body_front, stacked_in_front(axis, carry, carry_dims))
    return outs, [0] * len(outs)


def _run_until_all_stop(
    cond: ClosedJaxpr, body: ClosedJaxpr, cond_consts: Sequence[Array], body_consts: Sequence[Array], start: Sequence[Array]
) -> Sequence[Array]:
    """Loop until no example's condition holds, changing only examples that still run."""
    (running,) = eval_jaxpr(cond, *cond_consts, *start)
    avals = tuple([x.aval for x in (*cond_consts, *body_consts, running, *start)])
    any_running, masked = _masked(cond, body, len(cond_consts), len(body_consts), avals)
    return _bind_while(any_running, masked, [], [*cond_consts, *body_consts], [running, *start])[1:]


@program_cache
def _masked(
    cond: ClosedJaxpr, body: ClosedJaxpr, cond_const_count: int, body_const_count: int, avals: tuple[ShapedArray, ...]
) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """Return the condition that an example still runs, and the masked iteration.

    `avals` are the types of the consts of condition and body, of the mask of running examples, and of the carry.
    """
    end = cond_const_count + body_const_count

    def step(*flat: Array) -> list[Array]:
        cond_consts, body_consts, running, carry = flat[:cond_const_count], flat[cond_const_count:end], flat[end], flat[end + 1 :]
        new_carry = eval_jaxpr(body, *body_consts, *carry)
        carry_out = [
            select(reshape(running, (*running.shape, *(1,) * (old.ndim - 1))), new, old) for old, new in zip(carry, new_carry, strict=True)
        ]
        return [*eval_jaxpr(cond, *cond_consts, *carry_out), *carry_out]

    any_running = trace_to_jaxpr(lambda running, *_: [reduce_or(running, (0,))], avals[end:], "any")
    return any_running, trace_to_jaxpr(step, avals, "step")

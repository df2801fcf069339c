"""Run programs equation by equation, as `debug_nans` asks for.

`structured` gives the function of arrays for a primitive that holds programs. `steps` tells in which iterations of which loops it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from volta_fn.core.array import Array, from_host
from volta_fn.core.aval import ShapedArray
from volta_fn.core.device import Device
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import Primitive
from volta_fn.core.staging import Position, current_position, eval_jaxpr
from volta_fn.source import user_code_position


class Iteration(NamedTuple):
    """An iteration of a loop: primitive, number, how many there are, user's line.

    `length` is None for a `while`.
    """

    primitive: str
    number: int
    length: int | None
    position: Position | None


#: The iterations that run now, from the outermost loop to the innermost.
iterations: ContextVar[tuple[Iteration, ...]] = ContextVar("iterations", default=())


@contextmanager
def _within(iteration: Iteration) -> Iterator[None]:
    token = iterations.set((*iterations.get(), iteration))
    try:
        yield
    finally:
        iterations.reset(token)


#: Runs a program on arrays: ``(program, arrays) -> arrays``.
Runner = Callable[[ClosedJaxpr, Sequence[Array]], Sequence[Array]]


def structured(primitive: Primitive, params: dict[str, Any], device: Device) -> Callable[..., Any] | None:
    """Return how a primitive with programs runs equation by equation; None for others."""
    return structured_by(lambda program, args: eval_jaxpr(program, *args), primitive, params, device)


def structured_by(
    run: Runner, primitive: Primitive, params: dict[str, Any], device: Device, position: Position | None = None
) -> Callable[..., Any] | None:
    """Return how a primitive runs if `run` runs its programs; None if it has none.

    `position` is the user's line; by default the one that runs.
    """
    if primitive.name in _LOOPS:
        return lambda *args: _LOOPS[primitive.name](
            _Loop(run, device, position or current_position.get() or user_code_position()), args, **params
        )
    if primitive.call_param is not None:
        program: ClosedJaxpr = params[primitive.call_param]
        return lambda *args: tuple(run(program, args))
    return None


class _Loop(NamedTuple):
    """How programs run, where, and for which line of the user."""

    run: Runner
    device: Device
    position: Position | None


def _scan(
    loop: _Loop,
    args: Sequence[Array],
    *,
    jaxpr: ClosedJaxpr,
    length: int,
    reverse: bool,
    num_consts: int,
    num_carry: int,
    unroll: int,
) -> tuple[Array, ...]:
    consts, carry, xs = args[:num_consts], [*args[num_consts : num_consts + num_carry]], args[num_consts + num_carry :]
    rows = [np.asarray(x) for x in xs]
    ys: list[list[Array]] = [[] for _ in jaxpr.out_avals[num_carry:]]
    for number in reversed(range(length)) if reverse else range(length):
        with _within(Iteration("scan", number, length, loop.position)):
            taken = [from_host(row[number], x.aval.weak_type, loop.device) for row, x in zip(rows, xs, strict=True)]
            outs = loop.run(jaxpr, [*consts, *carry, *taken])
        carry = [*outs[:num_carry]]
        for stacked, y in zip(ys, outs[num_carry:], strict=True):
            stacked.append(y)
    return (*carry, *[_stacked(s, a, length, reverse, loop.device) for s, a in zip(ys, jaxpr.out_avals[num_carry:], strict=True)])


def _stacked(rows: Sequence[Array], aval: ShapedArray, length: int, reverse: bool, device: Device) -> Array:
    ordered = rows[::-1] if reverse else rows
    values = np.stack([np.asarray(y) for y in ordered]) if ordered else np.empty((0, *aval.shape), aval.dtype)
    return from_host(values.reshape(length, *aval.shape), aval.weak_type, device)


def _while(
    loop: _Loop, args: Sequence[Array], *, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr, cond_nconsts: int, body_nconsts: int
) -> tuple[Array, ...]:
    before = cond_nconsts + body_nconsts
    cond_consts, body_consts, carry = args[:cond_nconsts], args[cond_nconsts:before], [*args[before:]]
    number = 0
    while bool(loop.run(cond_jaxpr, [*cond_consts, *carry])[0]):
        with _within(Iteration("while_loop", number, None, loop.position)):
            carry = [*loop.run(body_jaxpr, [*body_consts, *carry])]
        number += 1
    return tuple(carry)


def _cond(loop: _Loop, args: Sequence[Array], *, branches: Sequence[ClosedJaxpr]) -> tuple[Array, ...]:
    index, *operands = args
    return tuple(loop.run(branches[min(max(int(index), 0), len(branches) - 1)], operands))


_LOOPS: dict[str, Callable[..., tuple[Array, ...]]] = {"scan": _scan, "while": _while, "cond": _cond}

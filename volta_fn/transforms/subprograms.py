"""What the rules of control flow do to sub-programs and to what belongs to their inputs. New programs are kept on the old ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dce import dce_jaxpr
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr, Var
from volta_fn.primitives.movement import broadcast, moveaxis
from volta_fn.transforms.linearize import partial_eval_jaxpr


def fixed_point(start: Sequence[bool], step: Callable[[list[bool]], tuple[Any, Sequence[bool]]]) -> tuple[Any, list[bool]]:
    """Repeat `step`, which gives a result and the parts of the carry that come out marked, until it marks no more than it was given."""
    marks = list(start)
    while True:
        result, out = step(marks)
        grown = [m or o for m, o in zip(marks, out, strict=True)]
        if grown == marks:
            return result, marks
        marks = grown


def chosen(values: Sequence[Any], marks: Sequence[bool], mark: bool = True) -> list[Any]:
    """The values so marked."""
    return [v for v, m in zip(values, marks, strict=True) if m is mark]


def stack_if(stacked: bool, value: Array, dim: int | None, size: int) -> Array:
    """A part of the carry with examples along its first dimension, if the carry has that part stacked."""
    if dim is not None:
        return moveaxis(value, dim, 0)
    return broadcast(value, (size,)) if stacked else value


def rearranged(closed: ClosedJaxpr, inputs: Sequence[int], outputs: Sequence[int]) -> ClosedJaxpr:
    """The program with its inputs in the order of these positions, and with those outputs."""
    key = ("rearranged", tuple(inputs), tuple(outputs))
    if key not in closed.cache:
        jaxpr = closed.jaxpr
        invars, outvars = [jaxpr.invars[i] for i in inputs], [jaxpr.outvars[i] for i in outputs]
        whole = ClosedJaxpr(Jaxpr(jaxpr.constvars, invars, outvars, jaxpr.eqns), closed.consts)
        closed.cache[key] = whole if len(outvars) == len(jaxpr.outvars) else dce_jaxpr(whole)
    return closed.cache[key]


def with_unused(closed: ClosedJaxpr, extra: Sequence[ShapedArray]) -> ClosedJaxpr:
    """The program with more inputs at the end, which it ignores, of these types."""
    jaxpr = closed.jaxpr
    key = ("with_unused", tuple(extra))
    if key not in closed.cache:
        invars = [*jaxpr.invars, *map(Var, extra)]
        closed.cache[key] = ClosedJaxpr(Jaxpr(jaxpr.constvars, invars, jaxpr.outvars, jaxpr.eqns), closed.consts)
    return closed.cache[key]


def split_program(
    closed: ClosedJaxpr, unknown: Sequence[bool], unknown_outputs: Sequence[bool]
) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """`partial_eval_jaxpr`, with the marked outputs given by the waiting program even if they are known (as residuals, first in order)."""
    key = ("split", tuple(unknown), tuple(unknown_outputs))
    if key not in closed.cache:
        closed.cache[key] = _split(closed, unknown, unknown_outputs)
    return closed.cache[key]


def _split(closed: ClosedJaxpr, unknown: Sequence[bool], wanted: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    known, waiting, out_unknown = partial_eval_jaxpr(closed, unknown)
    moved = [w and not u for w, u in zip(wanted, out_unknown, strict=True)]
    if not any(moved):
        return known, waiting, out_unknown
    count = out_unknown.count(False)
    known_outs, residuals = known.jaxpr.outvars[:count], known.jaxpr.outvars[count:]
    moved_known = [m for m, u in zip(moved, out_unknown, strict=True) if not u]
    stay = [v for v, m in zip(known_outs, moved_known, strict=True) if not m]
    move = [v for v, m in zip(known_outs, moved_known, strict=True) if m]
    fresh = [Var(v.aval) for v in move]
    given, passed = iter(waiting.jaxpr.outvars), iter(fresh)
    outvars = [next(given) if u else next(passed) for u, m in zip(out_unknown, moved, strict=True) if u or m]
    grown = [u or m for u, m in zip(out_unknown, moved, strict=True)]
    known_jaxpr = Jaxpr(known.jaxpr.constvars, known.jaxpr.invars, [*stay, *move, *residuals], known.jaxpr.eqns)
    waiting_jaxpr = Jaxpr(waiting.jaxpr.constvars, [*fresh, *waiting.jaxpr.invars], outvars, waiting.jaxpr.eqns)
    return ClosedJaxpr(known_jaxpr, known.consts), ClosedJaxpr(waiting_jaxpr, waiting.consts), grown

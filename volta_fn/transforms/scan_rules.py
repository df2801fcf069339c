"""The rules of `scan`. A property of the carry (being differentiated, unknown, stacked) that one step spreads to a part of it holds for
the whole loop, so each rule looks for the smallest set of parts that a step leaves as it is: a fixed point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from volta_fn.compiler.passes.inline import inline_calls
from volta_fn.core.array import Array
from volta_fn.core.dce import dce_jaxpr
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Jaxpr, Literal, has_effects
from volta_fn.core.primitive import AxisData, Linear, Zero
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.errors import GradientError
from volta_fn.primitives.arithmetic import add
from volta_fn.primitives.call import jit_p
from volta_fn.primitives.control_flow.scan import scan_p
from volta_fn.primitives.joining import instantiate
from volta_fn.primitives.movement import moveaxis
from volta_fn.transforms.jvp import jvp_jaxpr
from volta_fn.transforms.linearize import LinearTrace
from volta_fn.transforms.subprograms import chosen, fixed_point, rearranged, split_program, stack_if
from volta_fn.transforms.transpose import transpose_jaxpr
from volta_fn.transforms.vmap import batch_jaxpr


class _Parts(NamedTuple):
    """Something per operand of a scan, by the operand's role."""

    consts: Sequence[Any]
    carry: Sequence[Any]
    rows: Sequence[Any]

    @classmethod
    def of(cls, values: Sequence[Any], params: dict[str, Any]) -> _Parts:
        start, end = params["num_consts"], params["num_consts"] + params["num_carry"]
        return cls(values[:start], values[start:end], values[end:])


def _bind_scan(params: dict[str, Any], jaxpr: ClosedJaxpr, consts: Sequence[Array], carry: Sequence[Array], rows: Sequence[Array]) -> Any:
    return bind(scan_p, *consts, *carry, *rows, **_scan_params(params, jaxpr, len(consts), len(carry)))


def _scan_params(params: dict[str, Any], jaxpr: ClosedJaxpr, num_consts: int, num_carry: int) -> dict[str, Any]:
    return {**params, "jaxpr": jaxpr, "num_consts": num_consts, "num_carry": num_carry}


# Forward mode.


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Sequence[Array], Sequence[Any]]:
    closed, count = params["jaxpr"], params["num_carry"]
    outputs = len(closed.out_avals)
    nonzero = _Parts.of([type(t) is not Zero for t in tangents], params)

    def step(carry: list[bool]) -> tuple[Any, Sequence[bool]]:
        result = jvp_jaxpr(closed, [*nonzero.consts, *carry, *nonzero.rows], [*carry, *[False] * (outputs - count)])
        return result, result[1][:count]

    (forward, out_nonzero), carry_nonzero = fixed_point(nonzero.carry, step)
    values, rates = _Parts.of(primals, params), _Parts.of(tangents, params)
    given = _Parts(chosen(rates.consts, nonzero.consts), chosen(rates.carry, carry_nonzero), chosen(rates.rows, nonzero.rows))
    inputs = _paired([len(group) for group in values], [len(group) for group in given])
    body = rearranged(forward, inputs, _paired([count, outputs - count], [sum(carry_nonzero), sum(out_nonzero[count:])]))
    flat = _bind_scan(
        params, body, [*values.consts, *given.consts], [*values.carry, *map(instantiate, given.carry)], [*values.rows, *given.rows]
    )
    carried = count + sum(carry_nonzero)
    rows = flat[carried:]
    outs = [*flat[:count], *rows[: outputs - count]]
    found = iter([*flat[count:carried], *rows[outputs - count :]])
    return outs, [next(found) if nz else Zero(o.aval.at_least_vspace()) for nz, o in zip(out_nonzero, outs, strict=True)]


def _paired(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Positions that bring groups a, b, c, a', b', c' of these sizes into the order a, a', b, b', c, c'."""
    order: list[int] = []
    start, other = 0, sum(first)
    for size, size_other in zip(first, second, strict=True):
        order += [*range(start, start + size), *range(other, other + size_other)]
        start, other = start + size, other + size_other
    return order


# Partial evaluation: a loop of what is known, and a loop that waits, fed with the residuals of each step.


class _Split(NamedTuple):
    carry_unknown: list[bool]
    out_unknown: list[bool]
    #: From the known consts to the residuals that are the same in every step.
    invariant: ClosedJaxpr
    #: The known loop; after its own outputs it gives the residuals that must be stacked.
    known: ClosedJaxpr
    #: The waiting loop's body: ``(*invariant residuals, *unknown consts, *unknown carry, *residuals, *unknown rows)``.
    waiting: ClosedJaxpr
    #: For each residual that differs between steps: the known row that it is, or None if the known loop stacks it.
    rows: list[int | None]


def _partial_eval(trace: LinearTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    unknown = [trace.is_unknown(a) for a in args]
    split = _split(params, unknown)
    values, marks = _Parts.of(args, params), _Parts.of(unknown, params)
    consts, rows = chosen(values.consts, marks.consts, False), chosen(values.rows, marks.rows, False)
    flat: Sequence[Array] = ()
    if split.known.out_avals or any(map(has_effects, split.known.eqns)):
        flat = _bind_scan(params, split.known, consts, chosen(values.carry, split.carry_unknown, False), rows)
    count = split.out_unknown.count(False)
    stacked = iter(flat[count:])
    residuals = [next(stacked) if i is None else rows[i] for i in split.rows]
    waiting_consts = [*eval_jaxpr(split.invariant, *consts), *chosen(values.consts, marks.consts)]
    waiting_carry = chosen(values.carry, split.carry_unknown)
    operands = [*waiting_consts, *waiting_carry, *residuals, *chosen(values.rows, marks.rows)]
    recorded = trace.record(scan_p, operands, _scan_params(params, split.waiting, len(waiting_consts), len(waiting_carry)))
    known_outs, waiting_outs = iter(flat[:count]), iter(recorded)
    return tuple([next(waiting_outs) if u else next(known_outs) for u in split.out_unknown])


def _split(params: dict[str, Any], unknown: Sequence[bool]) -> _Split:
    closed = params["jaxpr"]
    key = ("scan_split", params["num_consts"], params["num_carry"], tuple(unknown))
    if key not in closed.cache:
        closed.cache[key] = _new_split(closed, params["num_carry"], _Parts.of(unknown, params))
    return closed.cache[key]


def _new_split(closed: ClosedJaxpr, count: int, unknown: _Parts) -> _Split:
    free = [False] * (len(closed.out_avals) - count)

    def step(carry: list[bool]) -> tuple[Any, Sequence[bool]]:
        result = split_program(closed, [*unknown.consts, *carry, *unknown.rows], [*carry, *free])
        return result, result[2][:count]

    (known, waiting, out_unknown), carry_unknown = fixed_point(unknown.carry, step)
    known = inline_calls(known, jit_p)
    consts, carry = unknown.consts.count(False), carry_unknown.count(False)
    outputs = out_unknown.count(False)
    invars, residuals = known.jaxpr.invars, known.jaxpr.outvars[outputs:]
    varying = _varying(known, consts)
    row_of: dict[Atom, int] = {v: i for i, v in enumerate(invars[consts + carry :])}
    invariant = [type(v) is Literal or v not in varying for v in residuals]
    stacked = [not i and v not in row_of for i, v in zip(invariant, residuals, strict=True)]
    same = _without_inputs(known, consts, varying, chosen(residuals, invariant))
    loop = dce_jaxpr(known, [*[True] * outputs, *stacked])
    # The waiting program takes (*residuals, *consts, *carry, *rows); its varying residuals become rows.
    places, first_row = range(len(residuals)), len(residuals) + sum(unknown.consts) + sum(carry_unknown)
    inputs = [
        *chosen(places, invariant), *range(len(residuals), first_row),
        *chosen(places, invariant, False), *range(first_row, len(waiting.in_avals)),
    ]  # fmt: skip
    body = rearranged(waiting, inputs, range(len(waiting.out_avals)))
    return _Split(carry_unknown, out_unknown, same, loop, body, [row_of.get(v) for v in chosen(residuals, invariant, False)])


def _varying(closed: ClosedJaxpr, consts: int) -> set[Atom]:
    """The variables that may differ between steps: those that depend on the carry, on a row or on an effect."""
    varying: set[Atom] = set(closed.jaxpr.invars[consts:])
    for eqn in closed.eqns:
        if has_effects(eqn) or any(v in varying for v in eqn.invars):
            varying.update(eqn.outvars)
    return varying


def _without_inputs(known: ClosedJaxpr, consts: int, varying: set[Atom], outvars: list[Atom]) -> ClosedJaxpr:
    """The part of the known program that gives these outputs, which are the same in every step."""
    jaxpr = known.jaxpr
    eqns = [e for e in jaxpr.eqns if not has_effects(e) and not any(v in varying for v in e.outvars)]
    return dce_jaxpr(ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars[:consts], outvars, eqns), known.consts))


# Reverse mode.


def _transpose(cotangents: Sequence[Any], *args: Any, **params: Any) -> list[Any]:
    """The loop backwards: it carries the cotangents of the carry and the sums of those of the linear consts."""
    closed, count = params["jaxpr"], params["num_carry"]
    linear, values = _Parts.of([type(a) is Linear for a in args], params), _Parts.of(args, params)
    ys_nonzero = [type(c) is not Zero for c in cotangents[count:]]
    backward, const_gives, row_gives = _backward_body(params, linear, ys_nonzero)
    sums = chosen(chosen(closed.in_avals[: params["num_consts"]], linear.consts), const_gives)
    carry = [*[instantiate(Zero(a)) for a in sums], *map(instantiate, cotangents[:count])]
    rows = [*chosen(values.rows, linear.rows, False), *chosen(cotangents[count:], ys_nonzero)]
    turned = {**params, "reverse": not params["reverse"]}
    flat = _bind_scan(turned, backward, chosen(values.consts, linear.consts, False), carry, rows)
    found_sums, found_rows = iter(flat[: len(sums)]), iter(flat[len(sums) + count :])
    gives_const, gives_row = iter(const_gives), iter(row_gives)
    return [
        *[next(found_sums) if is_linear and next(gives_const) else None for is_linear in linear.consts],
        *flat[len(sums) : len(sums) + count],
        *[next(found_rows) if is_linear and next(gives_row) else None for is_linear in linear.rows],
    ]


def _backward_body(params: dict[str, Any], linear: _Parts, ys_nonzero: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool], list[bool]]:
    closed: ClosedJaxpr = params["jaxpr"]
    key = ("scan_transpose", params["num_consts"], params["num_carry"], tuple(linear.consts), tuple(linear.rows), tuple(ys_nonzero))
    if key not in closed.cache:
        closed.cache[key] = _new_backward_body(closed, params, linear, ys_nonzero)
    return closed.cache[key]


def _new_backward_body(
    closed: ClosedJaxpr, params: dict[str, Any], linear: _Parts, ys_nonzero: Sequence[bool]
) -> tuple[ClosedJaxpr, list[bool], list[bool]]:
    count = params["num_carry"]
    avals = _Parts.of(closed.in_avals, params)
    for aval in avals.carry:
        if aval.at_least_vspace().dtype != aval.dtype:
            raise GradientError(f"scan: the carry holds {aval}, which cannot be linear; linearize the function before transposing it")
    transposed, gives = transpose_jaxpr(closed, [*linear.consts, *[True] * count, *linear.rows], [*[True] * count, *ys_nonzero])
    consts, sums = linear.consts.count(False), sum(linear.consts)
    const_gives, carry_gives, row_gives = gives[:sums], gives[sums : sums + count], gives[sums + count :]
    accumulated = chosen(chosen(avals.consts, linear.consts), const_gives)
    residuals = linear.rows.count(False)

    def run(*flat: Array) -> list[Array]:
        known, rest = flat[:consts], flat[consts:]
        totals, cts, rows = rest[: len(accumulated)], rest[len(accumulated) : len(accumulated) + count], rest[len(accumulated) + count :]
        outs = iter(eval_jaxpr(transposed, *known, *rows[:residuals], *cts, *rows[residuals:]))
        grown = [add(total, next(outs)) for total in totals]
        carried = [next(outs) if given else instantiate(Zero(a)) for given, a in zip(carry_gives, avals.carry, strict=True)]
        return [*grown, *carried, *outs]

    y_avals = [a.update(weak_type=False) for a in chosen(closed.out_avals[count:], ys_nonzero)]
    inputs = [*chosen(avals.consts, linear.consts, False), *accumulated, *avals.carry, *chosen(avals.rows, linear.rows, False), *y_avals]
    return trace_to_jaxpr(run, inputs, "backward"), const_gives, row_gives


# Batching.


def _batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any) -> tuple[Sequence[Array], list[int | None]]:
    closed, count = params["jaxpr"], params["num_carry"]
    free = [False] * (len(closed.out_avals) - count)
    stacked = _Parts.of([d is not None for d in dims], params)

    def step(carry: list[bool]) -> tuple[Any, Sequence[bool]]:
        result = batch_jaxpr(closed, axis, [*stacked.consts, *carry, *stacked.rows], [*carry, *free])
        return result, result[1][:count]

    (body, out_stacked), carry_stacked = fixed_point(stacked.carry, step)
    values, places = _Parts.of(args, params), _Parts.of(dims, params)
    consts = [a if d is None else moveaxis(a, d, 0) for a, d in zip(values.consts, places.consts, strict=True)]
    carry = [stack_if(s, a, d, axis.size) for s, a, d in zip(carry_stacked, values.carry, places.carry, strict=True)]
    rows = [a if d is None else moveaxis(a, d, 1) for a, d in zip(values.rows, places.rows, strict=True)]
    outs = _bind_scan(params, body, consts, carry, rows)
    places_out = [0] * count + [1] * (len(outs) - count)
    return outs, [p if s else None for p, s in zip(places_out, out_stacked, strict=True)]


scan_p.jvp = _jvp
scan_p.partial_eval = _partial_eval
scan_p.transpose = _transpose
scan_p.batch = _batch

"""The rules of `scan`.

A property of a value in the carry (differentiated, unknown or stacked) must hold for all iterations. So each rule looks for
the smallest set of such values that an iteration does not extend: a fixed point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Jaxpr, Literal, dce_jaxpr, has_effects, inline_calls, program_cache
from volta_fn.core.primitive import AxisData, Zero
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.errors import GradientError
from volta_fn.primitives.call import jit_p
from volta_fn.primitives.control_flow.scan import scan_p
from volta_fn.primitives.data_movement.movement import instantiate, moveaxis, to_front
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.transforms.linearize import (
    PartialEvalTrace,
    fixed_point,
    jvp_jaxpr,
    jvp_rules,
    linear_marks,
    marked,
    merge,
    nonzero_marks,
    partial_eval_rules,
    per_operand,
    transpose_jaxpr,
    transpose_rules,
    with_zeros,
)
from volta_fn.transforms.rules.programs import paired_order, reordered, split_program
from volta_fn.transforms.vmap import batch_jaxpr, batching_rules, stack_if


class _Operands(NamedTuple):
    """A list with an entry per operand of a scan, split by role."""

    consts: Sequence[Any]
    carry: Sequence[Any]
    rows: Sequence[Any]

    @classmethod
    def of(cls, values: Sequence[Any], params: dict[str, Any]) -> _Operands:
        return cls.split(values, params["num_consts"], params["num_carry"])

    @classmethod
    def split(cls, values: Sequence[Any], num_consts: int, num_carry: int) -> _Operands:
        end = num_consts + num_carry
        return cls(values[:num_consts], values[num_consts:end], values[end:])


def _bind_scan(params: dict[str, Any], jaxpr: ClosedJaxpr, consts: Sequence[Array], carry: Sequence[Array], rows: Sequence[Array]) -> Any:
    return bind(scan_p, *consts, *carry, *rows, **_scan_params(params, jaxpr, len(consts), len(carry)))


def _scan_params(params: dict[str, Any], jaxpr: ClosedJaxpr, num_consts: int, num_carry: int) -> dict[str, Any]:
    return {**params, "jaxpr": jaxpr, "num_consts": num_consts, "num_carry": num_carry}


# Forward mode.


@jvp_rules.register(scan_p)
def _scan_jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Sequence[Array], Sequence[Any]]:
    closed, count = params["jaxpr"], params["num_carry"]
    outputs = len(closed.out_avals)
    nonzero = _Operands.of(nonzero_marks(tangents), params)

    def step(carry: list[bool]) -> tuple[Any, Sequence[bool]]:
        result = jvp_jaxpr(closed, [*nonzero.consts, *carry, *nonzero.rows], [*carry, *[False] * (outputs - count)])
        return result, result[1][:count]

    (forward, out_nonzero), carry_nonzero = fixed_point(nonzero.carry, step)
    values = _Operands.of(primals, params)
    marks = nonzero._replace(carry=carry_nonzero)
    in_tangents = _Operands(*[marked(t, m) for t, m in zip(_Operands.of(tangents, params), marks, strict=True)])
    inputs = paired_order([len(group) for group in values], [len(group) for group in in_tangents])
    body = reordered(forward, inputs, paired_order([count, outputs - count], [sum(carry_nonzero), sum(out_nonzero[count:])]))
    flat = _bind_scan(
        params,
        body,
        [*values.consts, *in_tangents.consts],
        [*values.carry, *map(instantiate, in_tangents.carry)],
        [*values.rows, *in_tangents.rows],
    )
    carried = count + sum(carry_nonzero)
    rows = flat[carried:]
    outs = [*flat[:count], *rows[: outputs - count]]
    return outs, with_zeros([*flat[count:carried], *rows[outputs - count :]], out_nonzero, outs)


# Partial evaluation: a known loop, and an unknown loop that reads the residuals of each iteration.


class _Split(NamedTuple):
    """The two loops that a scan is split into, and how residuals connect them."""

    carry_unknown: list[bool]
    out_unknown: list[bool]
    #: From the known consts to the residuals that are the same in every iteration.
    invariants: ClosedJaxpr
    #: The known loop's body; after its own outputs it returns the residuals that must be stacked.
    known_body: ClosedJaxpr
    #: The unknown loop's body: ``(*invariant residuals, *unknown consts, *unknown carry, *residuals, *unknown rows)``.
    unknown_body: ClosedJaxpr
    #: For each residual that varies between iterations: the known row that it is, or None if the known loop stacks it.
    residual_rows: list[int | None]


@partial_eval_rules.register(scan_p)
def _scan_partial_eval(trace: PartialEvalTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    is_unknown = _Operands.of(tuple([trace.is_unknown(a) for a in args]), params)
    split = _split_body(params["jaxpr"], params["num_carry"], is_unknown)
    values = _Operands.of(args, params)
    consts, rows = marked(values.consts, is_unknown.consts, False), marked(values.rows, is_unknown.rows, False)
    flat: Sequence[Array] = ()
    if split.known_body.out_avals or any(map(has_effects, split.known_body.eqns)):
        flat = _bind_scan(params, split.known_body, consts, marked(values.carry, split.carry_unknown, False), rows)
    stacked = iter(flat[split.out_unknown.count(False) :])
    residuals = [next(stacked) if i is None else rows[i] for i in split.residual_rows]
    unknown_consts = [*eval_jaxpr(split.invariants, *consts), *marked(values.consts, is_unknown.consts)]
    unknown_carry = marked(values.carry, split.carry_unknown)
    operands = [*unknown_consts, *unknown_carry, *residuals, *marked(values.rows, is_unknown.rows)]
    recorded = trace.record(scan_p, operands, _scan_params(params, split.unknown_body, len(unknown_consts), len(unknown_carry)))
    return tuple(merge(split.out_unknown, recorded, flat))


@program_cache
def _split_body(closed: ClosedJaxpr, count: int, is_unknown: _Operands) -> _Split:
    """Split a scan's body, whose first `count` outputs are the carry."""
    not_forced = [False] * (len(closed.out_avals) - count)

    def step(carry: list[bool]) -> tuple[Any, Sequence[bool]]:
        result = split_program(closed, [*is_unknown.consts, *carry, *is_unknown.rows], [*carry, *not_forced])
        return result, result[2][:count]

    (known_program, unknown_program, out_unknown), carry_unknown = fixed_point(is_unknown.carry, step)
    known_program = inline_calls(known_program, jit_p)  # so that invariant equations inside calls are found
    consts, carry = is_unknown.consts.count(False), carry_unknown.count(False)
    outputs = out_unknown.count(False)
    invars, residuals = known_program.jaxpr.invars, known_program.jaxpr.outvars[outputs:]
    varying = _varying(known_program, consts)
    row_of: dict[Atom, int] = {v: i for i, v in enumerate(invars[consts + carry :])}
    is_invariant = [type(v) is Literal or v not in varying for v in residuals]
    is_stacked = [not i and v not in row_of for i, v in zip(is_invariant, residuals, strict=True)]
    invariants = _invariant_program(known_program, consts, varying, marked(residuals, is_invariant))
    known_body = dce_jaxpr(known_program, [*[True] * outputs, *is_stacked])
    # The unknown program takes (*residuals, *consts, *carry, *rows); its varying residuals become rows.
    positions, first_row = range(len(residuals)), len(residuals) + sum(is_unknown.consts) + sum(carry_unknown)
    inputs = [
        *marked(positions, is_invariant), *range(len(residuals), first_row),
        *marked(positions, is_invariant, False), *range(first_row, len(unknown_program.in_avals)),
    ]  # fmt: skip
    unknown_body = reordered(unknown_program, inputs, range(len(unknown_program.out_avals)))
    residual_rows = [row_of.get(v) for v in marked(residuals, is_invariant, False)]
    return _Split(carry_unknown, out_unknown, invariants, known_body, unknown_body, residual_rows)


def _varying(closed: ClosedJaxpr, consts: int) -> set[Atom]:
    """Return the variables that may vary; the first `consts` inputs do not."""
    varying: set[Atom] = set(closed.jaxpr.invars[consts:])
    for eqn in closed.eqns:
        if has_effects(eqn) or any(v in varying for v in eqn.invars):
            varying.update(eqn.outvars)
    return varying


def _invariant_program(known_program: ClosedJaxpr, consts: int, varying: set[Atom], outvars: list[Atom]) -> ClosedJaxpr:
    """Return the program of outputs that depend on the first `consts` inputs alone."""
    jaxpr = known_program.jaxpr
    eqns = [e for e in jaxpr.eqns if not has_effects(e) and not any(v in varying for v in e.outvars)]
    return dce_jaxpr(ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars[:consts], outvars, eqns), known_program.consts))


# Reverse mode.


@transpose_rules.register(scan_p)
def _scan_transpose(cotangents: Sequence[Any], *args: Any, **params: Any) -> list[Any]:
    """Run the loop backwards, carrying cotangents, and sums of those of the consts."""
    closed, count = params["jaxpr"], params["num_carry"]
    linear, values = _Operands.of(tuple(linear_marks(args)), params), _Operands.of(args, params)
    ys_nonzero = nonzero_marks(cotangents[count:])
    backward = _backward_body(closed, linear, ys_nonzero)
    carry = [*[instantiate(Zero(a)) for a in backward.sums], *map(instantiate, cotangents[:count])]
    rows = [*marked(values.rows, linear.rows, False), *marked(cotangents[count:], ys_nonzero)]
    opposite = {**params, "reverse": not params["reverse"]}
    flat = _bind_scan(opposite, backward.body, marked(values.consts, linear.consts, False), carry, rows)
    sum_count = len(backward.sums)
    return [
        *per_operand(flat[:sum_count], linear.consts, backward.const_has_cotangent),
        *flat[sum_count : sum_count + count],
        *per_operand(flat[sum_count + count :], linear.rows, backward.row_has_cotangent),
    ]


class _Backward(NamedTuple):
    """The body of a backward loop.

    It takes the consts that are not linear; sums, and cotangents of the carry; the rows that are not linear, and the nonzero cotangents
    of y. It returns the next sums, cotangents of the carry, and those of rows.
    """

    body: ClosedJaxpr
    #: The types of the sums over all iterations, which are the cotangents of linear consts.
    sums: list[ShapedArray]
    #: The linear consts, and the linear rows, that have a cotangent.
    const_has_cotangent: Sequence[bool]
    row_has_cotangent: Sequence[bool]


@program_cache
def _backward_body(closed: ClosedJaxpr, linear: _Operands, ys_nonzero: Sequence[bool]) -> _Backward:
    count = len(linear.carry)
    avals = _Operands.split(closed.in_avals, len(linear.consts), count)
    for aval in avals.carry:
        if aval.tangent_aval().dtype != aval.dtype:
            raise GradientError(f"scan: the carry holds {aval}, which cannot be linear; linearize the function before transposing it")
    transposed, marks = transpose_jaxpr(closed, [*linear.consts, *[True] * count, *linear.rows], [*[True] * count, *ys_nonzero])
    has_cotangent = _Operands.split(marks, sum(linear.consts), count)  # of the linear operands
    sums = marked(marked(avals.consts, linear.consts), has_cotangent.consts)
    const_count, row_count = linear.consts.count(False), linear.rows.count(False)

    def run(*flat: Array) -> list[Array]:
        consts = flat[:const_count]
        totals, cts, rows = _Operands.split(flat[const_count:], len(sums), count)
        outs = iter(eval_jaxpr(transposed, *consts, *rows[:row_count], *cts, *rows[row_count:]))
        new_totals = [add(total, next(outs)) for total in totals]
        new_cts = [next(outs) if h else instantiate(Zero(a)) for h, a in zip(has_cotangent.carry, avals.carry, strict=True)]
        return [*new_totals, *new_cts, *outs]

    y_avals = [a.update(weak_type=False) for a in marked(closed.out_avals[count:], ys_nonzero)]
    inputs = [*marked(avals.consts, linear.consts, False), *sums, *avals.carry, *marked(avals.rows, linear.rows, False), *y_avals]
    return _Backward(trace_to_jaxpr(run, inputs, "backward"), sums, has_cotangent.consts, has_cotangent.rows)


# Batching.


@batching_rules.register(scan_p)
def _scan_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any
) -> tuple[Sequence[Array], list[int | None]]:
    closed, count = params["jaxpr"], params["num_carry"]
    not_forced = [False] * (len(closed.out_avals) - count)
    stacked = _Operands.of([d is not None for d in dims], params)

    def step(carry: list[bool]) -> tuple[Any, Sequence[bool]]:
        result = batch_jaxpr(closed, axis, [*stacked.consts, *carry, *stacked.rows], [*carry, *not_forced])
        return result, result[1][:count]

    (body, out_stacked), carry_stacked = fixed_point(stacked.carry, step)
    values, dims_of = _Operands.of(args, params), _Operands.of(dims, params)
    carry = [stack_if(s, a, d, axis.size) for s, a, d in zip(carry_stacked, values.carry, dims_of.carry, strict=True)]
    rows = [a if d is None else moveaxis(a, d, 1) for a, d in zip(values.rows, dims_of.rows, strict=True)]
    outs = _bind_scan(params, body, to_front(values.consts, dims_of.consts), carry, rows)
    return outs, [(0 if i < count else 1) if s else None for i, s in enumerate(out_stacked)]

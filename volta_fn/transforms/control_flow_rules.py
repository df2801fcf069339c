"""The rules of control flow: `scan`, `while_loop` and `cond`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Literal, Var, dce_jaxpr, has_effects, inline_calls, program_cache, reads_of
from volta_fn.core.primitive import AxisData, Zero
from volta_fn.core.refs import Ref, read_all, write_all
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import Tracer, bind
from volta_fn.dtypes import INEXACT
from volta_fn.errors import GradientError
from volta_fn.primitives.call import jit_p, stop_gradient
from volta_fn.primitives.data_movement.movement import broadcast_in_dim, instantiate, moveaxis, reshape, stacked_in_front, to_front
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.primitives.elementwise.selection import eq, select, select_n
from volta_fn.primitives.loops import cond_p, while_p
from volta_fn.primitives.reduction import reduce_or
from volta_fn.primitives.scan import scan_p
from volta_fn.transforms.call_rules import narrow_programs, paired_order, reordered, with_inputs, with_unused
from volta_fn.transforms.differentiation import (
    BackwardProgram,
    PartialEvalTrace,
    dce_rules,
    eliminate_dead_code,
    fixed_point,
    jvp_jaxpr,
    jvp_rules,
    linear_marks,
    marked,
    merge,
    nonzero_marks,
    partial_eval_forced,
    partial_eval_rules,
    per_operand,
    split_tangents,
    transpose_jaxpr,
    transpose_rules,
    with_zeros,
)
from volta_fn.transforms.vmap import batch_jaxpr, batching_rules, stack_if

# Dead-code elimination: control flow without the results that nothing uses, and what only they need.

Marks = tuple[bool, ...]


@dce_rules.register(cond_p)
def _cond_dce(params: dict[str, Any], used: Marks) -> tuple[Sequence[bool], Marks, dict[str, Any]]:
    first, *others = params["branches"]
    reads, narrowed = narrow_programs(first, others, used)
    return [True, *reads], used, params if narrowed is None else {**params, "branches": narrowed}


@dce_rules.register(scan_p)
def _scan_dce(params: dict[str, Any], used: Marks) -> tuple[Marks, Marks, dict[str, Any]]:
    consts, count = params["num_consts"], params["num_carry"]
    operands, results, program = _narrow_scan_body(params["jaxpr"], consts, count, used)
    is_same = program is params["jaxpr"]
    return operands, results, params if is_same else _scan_params(params, program, sum(operands[:consts]), sum(results[:count]))


@program_cache
def _narrow_scan_body(body: ClosedJaxpr, consts: int, count: int, used: Marks) -> tuple[Marks, Marks, ClosedJaxpr]:
    ys = used[count:]

    def step(carry: Sequence[bool]) -> tuple[ClosedJaxpr, Marks]:
        program = eliminate_dead_code(body, (*carry, *ys))
        return program, reads_of(program)[consts : consts + count]

    program, carry = fixed_point(used[:count], step)
    reads = reads_of(program)
    operands = (*reads[:consts], *carry, *reads[consts + count :])
    return operands, (*carry, *ys), with_inputs(program, operands)


@dce_rules.register(while_p)
def _while_dce(params: dict[str, Any], used: Marks) -> tuple[Marks, Marks, dict[str, Any]]:
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    first, second = params["cond_nconsts"], params["body_nconsts"]
    operands, carry, cond_program, body_program = _narrow_while_programs(body, cond, first, second, used)
    is_same = cond_program is cond and body_program is body
    counts = {"cond_nconsts": sum(operands[:first]), "body_nconsts": sum(operands[first : first + second])}
    return operands, carry, params if is_same else {"cond_jaxpr": cond_program, "body_jaxpr": body_program, **counts}


@program_cache
def _narrow_while_programs(
    body: ClosedJaxpr, cond: ClosedJaxpr, first: int, second: int, used: Marks
) -> tuple[Marks, Marks, ClosedJaxpr, ClosedJaxpr]:
    condition = eliminate_dead_code(cond)
    tested = reads_of(condition)

    def step(carry: Sequence[bool]) -> tuple[ClosedJaxpr, Marks]:
        program = eliminate_dead_code(body, carry)
        return program, reads_of(program)[second:]

    program, carry = fixed_point([a or b for a, b in zip(used, tested[first:], strict=True)], step)
    reads = reads_of(program)[:second]
    return (
        (*tested[:first], *reads, *carry), tuple(carry),
        with_inputs(condition, (*tested[:first], *carry)), with_inputs(program, (*reads, *carry)),
    )  # fmt: skip


# The rules of `scan`.
#
# A property of a value in the carry (differentiated, unknown or stacked) must hold for all iterations. So each rule looks for
# the smallest set of such values that an iteration does not extend: a fixed point.


class _Operands(NamedTuple):
    """A list with an entry per operand of a scan, split by role."""

    consts: Sequence[Any]
    carry: Sequence[Any]
    rows: Sequence[Any]

    @classmethod
    def of(cls, values: Sequence[Any], params: dict[str, Any]) -> _Operands:
        return cls.split(tuple(values), params["num_consts"], params["num_carry"])  # tuples, since marks are keys of caches

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
    split, flat, operands, unknown_params = _split_scan(args, [trace.is_unknown(a) for a in args], params)
    return tuple(merge(split.out_unknown, trace.record(scan_p, operands, unknown_params), flat))


def _split_scan(
    args: Sequence[Any], is_unknown: Sequence[bool], params: dict[str, Any]
) -> tuple[_Split, Sequence[Array], list[Any], dict[str, Any]]:
    """Split a scan, and run its known loop.

    Returns the split, the known outputs, and the operands and parameters of the unknown loop.
    """
    unknown = _Operands.of(is_unknown, params)
    split = _split_body(params["jaxpr"], params["num_carry"], unknown)
    values = _Operands.of(args, params)
    consts, rows = marked(values.consts, unknown.consts, False), marked(values.rows, unknown.rows, False)
    flat: Sequence[Array] = ()
    if split.known_body.out_avals or any(map(has_effects, split.known_body.eqns)):
        flat = _bind_scan(params, split.known_body, consts, marked(values.carry, split.carry_unknown, False), rows)
    known_count = split.out_unknown.count(False)
    stacked = iter(flat[known_count:])
    residuals = [next(stacked) if i is None else rows[i] for i in split.residual_rows]
    unknown_consts = [*eval_jaxpr(split.invariants, *consts), *marked(values.consts, unknown.consts)]
    unknown_carry = marked(values.carry, split.carry_unknown)
    operands = [*unknown_consts, *unknown_carry, *residuals, *marked(values.rows, unknown.rows)]
    return split, flat[:known_count], operands, _scan_params(params, split.unknown_body, len(unknown_consts), len(unknown_carry))


@program_cache
def _split_body(closed: ClosedJaxpr, carry_count: int, is_unknown: _Operands) -> _Split:
    """Split a scan's body, whose first `carry_count` outputs are the carry."""
    not_forced = [False] * (len(closed.out_avals) - carry_count)

    def step(carry: list[bool]) -> tuple[Any, Sequence[bool]]:
        result = partial_eval_forced(closed, [*is_unknown.consts, *carry, *is_unknown.rows], [*carry, *not_forced])
        return result, result[2][:carry_count]

    (known_program, unknown_program, out_unknown), carry_unknown = fixed_point(is_unknown.carry, step)
    known_program = inline_calls(known_program, jit_p)  # so that invariant equations inside calls are found
    consts, carry = is_unknown.consts.count(False), carry_unknown.count(False)
    outputs = out_unknown.count(False)
    invars, residuals = known_program.jaxpr.invars, known_program.jaxpr.outvars[outputs:]
    # What may vary: the first `consts` inputs do not.
    varying: set[Atom] = set(known_program.jaxpr.invars[consts:])
    for eqn in known_program.eqns:
        if has_effects(eqn) or any(v in varying for v in eqn.invars):
            varying.update(eqn.outvars)
    row_of: dict[Atom, int] = {v: i for i, v in enumerate(invars[consts + carry :])}
    is_invariant = [type(v) is Literal or v not in varying for v in residuals]
    is_stacked = [not i and v not in row_of for i, v in zip(is_invariant, residuals, strict=True)]
    jaxpr = known_program.jaxpr
    eqns = [e for e in jaxpr.eqns if not has_effects(e) and not any(v in varying for v in e.outvars)]
    invariants = dce_jaxpr(known_program.replace(invars=jaxpr.invars[:consts], outvars=marked(residuals, is_invariant), eqns=eqns))
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


# Reverse mode.


@transpose_rules.register(scan_p)
def _scan_transpose(cotangents: Sequence[Any], *args: Any, **params: Any) -> list[Any]:
    is_linear = linear_marks(args)
    linear = _Operands.of(is_linear, params)
    # Linearization leaves loops whose carry is linear; one of a custom_jvp rule, which is transposed as written, may have a counter.
    if all(linear.carry) or all(_split_body(params["jaxpr"], params["num_carry"], linear).carry_unknown):
        return _transposed_loop(cotangents, args, params)
    split, _, operands, linear_params = _split_scan(args, is_linear, params)
    results = _Operands.of(_transposed_loop(marked(cotangents, split.out_unknown), operands, linear_params), linear_params)
    residuals = len(results.consts) - sum(linear.consts), len(results.rows) - sum(linear.rows)
    cotangents_in_order = iter([*results.consts[residuals[0] :], *results.carry, *results.rows[residuals[1] :]])
    return [next(cotangents_in_order) if mark else None for mark in (*linear.consts, *split.carry_unknown, *linear.rows)]


def _transposed_loop(cotangents: Sequence[Any], args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Run the loop backwards, carrying cotangents, and totals of those of the consts."""
    closed, count = params["jaxpr"], params["num_carry"]
    linear, values = _Operands.of(linear_marks(args), params), _Operands.of(args, params)
    ys_nonzero = nonzero_marks(cotangents[count:])
    backward = _backward_body(closed, linear, ys_nonzero)
    carry = [*[instantiate(Zero(a)) for a in backward.totals], *map(instantiate, cotangents[:count]), *read_all(backward.refs)]
    rows = [*marked(values.rows, linear.rows, False), *marked(cotangents[count:], ys_nonzero)]
    opposite = {**params, "reverse": not params["reverse"]}
    flat = _bind_scan(opposite, backward.body, marked(values.consts, linear.consts, False), carry, rows)
    total_count, carry_count = len(backward.totals), len(carry)
    write_all(backward.refs, flat[total_count + count : carry_count])
    return [
        *per_operand(flat[:total_count], linear.consts, backward.const_has_cotangent),
        *flat[total_count : total_count + count],
        *per_operand(flat[carry_count:], linear.rows, backward.row_has_cotangent),
    ]


class _BackwardLoop(NamedTuple):
    """The body of a backward loop.

    It takes the consts that are not linear; totals, cotangents of the carry, and values of references; the rows that are not linear, and
    the nonzero cotangents of y. It returns the next totals, cotangents of the carry, values of references, and cotangents of rows.
    """

    body: ClosedJaxpr
    #: The types of the totals over all iterations, which are the cotangents of linear consts.
    totals: list[ShapedArray]
    #: The linear consts, and the linear rows, that have a cotangent.
    const_has_cotangent: Sequence[bool]
    row_has_cotangent: Sequence[bool]
    #: The references that users' backward rules read and write.
    refs: list[Ref]


@program_cache
def _backward_body(closed: ClosedJaxpr, linear: _Operands, ys_nonzero: Sequence[bool]) -> _BackwardLoop:
    count = len(linear.carry)
    avals = _Operands.split(closed.in_avals, len(linear.consts), count)
    is_linear, ct_nonzero = [*linear.consts, *[True] * count, *linear.rows], [*[True] * count, *ys_nonzero]
    # Where iterations read a few elements of a const (gather, slice), the body adds to those elements of the total, so that no iteration
    # makes an array of the const's size.
    reads = {e.invars[0] for e in closed.eqns if e.primitive.accumulate is not None}
    with_totals = [position for position, mark in enumerate(linear.consts) if mark and closed.invars[position] in reads]
    transposed, marks, refs = transpose_jaxpr(closed, is_linear, ct_nonzero, tuple(with_totals))
    has_cotangent = _Operands.split(marks, sum(linear.consts), count)  # of the linear operands
    total_avals = marked(marked(avals.consts, linear.consts), has_cotangent.consts)
    positions = marked(marked(range(len(linear.consts)), linear.consts), has_cotangent.consts)
    is_added = [position in with_totals for position in positions]
    const_count, row_count = linear.consts.count(False), linear.rows.count(False)

    def run(*flat: Array) -> list[Array]:
        consts = flat[:const_count]
        totals, carry, rows = _Operands.split(flat[const_count:], len(total_avals), count + len(refs))
        cts, values = carry[:count], carry[count:]
        flat_outs = eval_jaxpr(transposed, *consts, *rows[:row_count], *cts, *rows[row_count:], *marked(totals, is_added), *values)
        outs, last = iter(flat_outs[: len(flat_outs) - len(refs)]), flat_outs[len(flat_outs) - len(refs) :]
        new_totals = [next(outs) if mark else add(total, next(outs)) for total, mark in zip(totals, is_added, strict=True)]
        new_cts = [next(outs) if h else instantiate(Zero(a)) for h, a in zip(has_cotangent.carry, avals.carry, strict=True)]
        return [*new_totals, *new_cts, *last, *outs]

    y_avals = [a.update(weak_type=False) for a in marked(closed.out_avals[count:], ys_nonzero)]
    carry_avals = [*total_avals, *avals.carry, *[r.aval for r in refs]]
    inputs = [*marked(avals.consts, linear.consts, False), *carry_avals, *marked(avals.rows, linear.rows, False), *y_avals]
    return _BackwardLoop(trace_to_jaxpr(run, inputs, "backward"), total_avals, has_cotangent.consts, has_cotangent.rows, refs)


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


# The rules of `while`, which cannot be transposed: it has no bound on iterations.


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
    # With effects, as in JAX: residuals of each iteration cannot be saved, since the number of iterations is unknown.
    cond_unknown, consts_unknown, start_unknown = _by_role([trace.is_unknown(a) for a in args], params)

    def step(marks: list[bool]) -> tuple[Any, Sequence[bool]]:
        known_program, _, out = partial_eval_forced(params["body_jaxpr"], [*consts_unknown, *marks], marks)
        return known_program, out

    known_program, is_unknown = fixed_point(start_unknown, step)
    known_cond, _, (cond_out_unknown,) = partial_eval_forced(params["cond_jaxpr"], [*cond_unknown, *is_unknown], [False])
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
    # What no iteration changes is the same for examples that stop and for those that go on.
    ends = params["body_jaxpr"].outvars, params["body_jaxpr"].invars[len(body_consts) :]
    is_constant = [not s and out is start for s, out, start in zip(stacked, *ends, strict=True)]
    constants, all_stacked = marked(carry, is_constant), [True] * is_constant.count(False)
    cond_marks, body_marks = [[*marks, *[False] * len(constants), *all_stacked] for marks in (cond_stacked, body_stacked)]
    cond = batch_jaxpr(_with_constants(params["cond_jaxpr"], is_constant, False), axis, cond_marks, [True])[0]
    body = batch_jaxpr(_with_constants(params["body_jaxpr"], is_constant, True), axis, body_marks, all_stacked)[0]
    start = stacked_in_front(axis, marked(carry, is_constant, False), marked(carry_dims, is_constant, False))
    cond_front, body_front = [*cond_front, *constants], [*body_front, *constants]
    if axis.size == 1:  # the only example runs in every iteration: nothing is masked, so that bodies update arrays in place
        outs = _bind_while(_of_the_only(cond), body, cond_front, body_front, start)
    else:
        outs = _run_until_all_stop(cond, body, cond_front, body_front, start)
    return merge(is_constant, constants, outs), [None if c else 0 for c in is_constant]


@program_cache
def _with_constants(closed: ClosedJaxpr, is_constant: Sequence[bool], is_body: bool) -> ClosedJaxpr:
    """Return a condition or body that takes some of the carry as its last constants."""
    count = len(closed.invars) - len(is_constant)
    consts, carry = closed.invars[:count], closed.invars[count:]
    outvars = marked(closed.outvars, is_constant, False) if is_body else closed.outvars
    return closed.replace(invars=[*consts, *marked(carry, is_constant), *marked(carry, is_constant, False)], outvars=outvars)


@program_cache
def _of_the_only(cond: ClosedJaxpr) -> ClosedJaxpr:
    """Return a condition of a single example as one without a dimension of examples."""
    return trace_to_jaxpr(lambda *flat: [reshape(eval_jaxpr(cond, *flat)[0], ())], tuple(cond.in_avals), "cond")


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


# The rules of `cond`: derived branches take and return the same types.

Branches = tuple[ClosedJaxpr, ...]
#: (branch, marks to force on its outputs) -> (derived branch, marks of its outputs)
Derive = Callable[[ClosedJaxpr, list[bool]], tuple[ClosedJaxpr, list[bool]]]


def _union(marks_of_branches: Sequence[Sequence[bool]]) -> list[bool]:
    """Mark what is marked in any branch."""
    return [any(marks) for marks in zip(*marks_of_branches, strict=True)]


def _derived(branches: Branches, derive: Derive) -> tuple[Branches, list[bool]]:
    """Derive all branches, with an output marked in all of them if it is in any."""
    not_forced = [False] * len(branches[0].out_avals)
    forced = _union([derive(b, not_forced)[1] for b in branches])
    return tuple([derive(b, forced)[0] for b in branches]), forced


@jvp_rules.register(cond_p)
def _cond_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, branches: Branches) -> tuple[Sequence[Array], Sequence[Any]]:
    nonzero = nonzero_marks(tangents[1:])
    forward, out_nonzero = _derived(branches, lambda b, forced: jvp_jaxpr(b, nonzero, forced))
    return split_tangents(bind(cond_p, *primals, *marked(tangents[1:], nonzero), branches=forward), out_nonzero)


@partial_eval_rules.register(cond_p)
def _cond_partial_eval(trace: PartialEvalTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    index, operands = args[0], args[1:]
    if trace.is_unknown(index):
        return trace.record(cond_p, args, params)
    is_unknown = [trace.is_unknown(a) for a in operands]
    known_branches, unknown_branches, out_unknown = _split_branches(params["branches"][0], params["branches"][1:], is_unknown)
    flat = bind(cond_p, index, *marked(operands, is_unknown, False), branches=known_branches)
    residuals = flat[out_unknown.count(False) :]
    recorded = trace.record(cond_p, [index, *residuals, *marked(operands, is_unknown)], {"branches": unknown_branches})
    return tuple(merge(out_unknown, recorded, flat))


@program_cache
def _split_branches(first: ClosedJaxpr, others: Branches, is_unknown: Sequence[bool]) -> tuple[Branches, Branches, list[bool]]:
    """Split every branch, with equal unknown outputs and types of residuals."""
    branches = (first, *others)
    not_forced = [False] * len(first.out_avals)
    out_unknown = _union([partial_eval_forced(b, is_unknown, not_forced)[2] for b in branches])
    splits = [partial_eval_forced(b, is_unknown, out_unknown) for b in branches]
    count = out_unknown.count(False)
    # The fewest types that have room for the residuals of any one branch.
    counts: Counter[ShapedArray] = Counter()
    for known_program, _, _ in splits:
        counts |= Counter([v.aval.strip_weak_type() for v in known_program.jaxpr.outvars[count:]])
    slots = list(counts.elements())
    pairs = [_with_slots(known_program, unknown_program, count, slots) for known_program, unknown_program, _ in splits]
    return tuple([p[0] for p in pairs]), tuple([p[1] for p in pairs]), out_unknown


def _with_slots(
    known_program: ClosedJaxpr, unknown_program: ClosedJaxpr, count: int, slots: Sequence[ShapedArray]
) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """Assign a branch's residuals to slots; the known program fills others with zeros.

    The residuals are the known program's outputs from `count` on.
    """
    residuals = known_program.jaxpr.outvars[count:]
    unassigned = list(range(len(residuals)))
    #: For each slot, the position of a residual, or None.
    assignment: list[int | None] = []
    for slot in slots:
        position = next((i for i in unassigned if residuals[i].aval.strip_weak_type() is slot), None)
        assignment.append(position)
        if position is not None:
            unassigned.remove(position)

    def run(*args: Array) -> list[Array]:
        outs = eval_jaxpr(known_program, *args)
        return [*outs[:count], *[instantiate(Zero(s)) if i is None else outs[count + i] for i, s in zip(assignment, slots, strict=True)]]

    jaxpr = unknown_program.jaxpr
    inputs = [Var(s) if i is None else jaxpr.invars[i] for i, s in zip(assignment, slots, strict=True)]
    with_slots = unknown_program.replace(invars=[*inputs, *jaxpr.invars[len(residuals) :]])
    return trace_to_jaxpr(run, known_program.in_avals, "known"), with_slots


@transpose_rules.register(cond_p)
def _cond_transpose(cotangents: Sequence[Any], index: Any, *operands: Any, branches: Branches) -> list[Any]:
    linear, nonzero = linear_marks(operands), nonzero_marks(cotangents)
    backward, has_cotangent, refs = _transpose_branches(branches[0], branches[1:], linear, nonzero)
    values = marked(operands, linear, False)
    flat = bind(cond_p, index, *values, *marked(cotangents, nonzero), *read_all(refs), branches=backward)
    count = sum(has_cotangent)
    write_all(refs, flat[count:])
    return [None, *per_operand(flat[:count], linear, has_cotangent)]


@program_cache
def _transpose_branches(
    first: ClosedJaxpr, others: Branches, linear: Sequence[bool], nonzero: Sequence[bool]
) -> tuple[Branches, list[bool], list[Ref]]:
    """Return backward programs of the branches that agree in their results.

    Returns also which linear operands have cotangents, and the references that the programs read and write.
    """
    backwards = [transpose_jaxpr(b, linear, nonzero) for b in (first, *others)]
    has_cotangent = _union([b.has_cotangent for b in backwards])
    refs = [*dict.fromkeys(r for b in backwards for r in b.refs)]
    avals = marked(first.in_avals, linear)
    return tuple([_with_required_results(b, has_cotangent, avals, refs) for b in backwards]), has_cotangent, refs


def _with_required_results(
    backward: BackwardProgram, required: Sequence[bool], avals: Sequence[ShapedArray], refs: Sequence[Ref]
) -> ClosedJaxpr:
    """Let a backward program return zeros for cotangents that it does not compute.

    It takes and returns the values of all `refs`.
    """
    program, computed, used = backward
    if list(computed) == list(required) and used == list(refs):
        return program
    count = len(program.in_avals) - len(used)

    def run(*args: Array) -> list[Array]:
        values = dict(zip(refs, args[count:], strict=True))
        outs = eval_jaxpr(program, *args[:count], *[values[r] for r in used])
        values.update(zip(used, outs[sum(computed) :], strict=True))
        cotangents = merge(computed, outs[: sum(computed)], map(Zero, marked(avals, computed, False)))
        return [*[instantiate(ct) for ct in marked(cotangents, required)], *values.values()]

    return trace_to_jaxpr(run, [*program.in_avals[:count], *[r.aval for r in refs]], "backward")


@batching_rules.register(cond_p)
def _cond_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, branches: Branches
) -> tuple[Sequence[Array], list[int | None]]:
    front = to_front(args, dims)
    stacked = [d is not None for d in dims[1:]]
    if dims[0] is not None:
        # A branch gets the examples of other branches as constants: their derivatives may be infinite, and zero times infinity is NaN.
        # Operands that are the same for all examples stay as they are; as constants for some examples they would have to be stacked.
        index, operands = front[0], front[1:]
        sources = _sources(branches, stacked)
        forced = [source is None for source in sources]
        results = []
        for number, branch in enumerate(branches):
            mask = eq(index, np.asarray(number, index.dtype))
            branch_operands = [_constant_unless(mask, x) if s else x for x, s in zip(operands, stacked, strict=True)]
            results.append(eval_jaxpr(batch_jaxpr(branch, axis, stacked, forced)[0], *branch_operands))
        outs = [
            select_n(reshape(index, (axis.size, *(1,) * (cases[0].ndim - 1))), *cases) if source is None else operands[source]
            for source, cases in zip(sources, zip(*results, strict=True), strict=True)
        ]
        return outs, [0 if source is None else None for source in sources]
    batched, out_stacked = _derived(branches, lambda b, forced: batch_jaxpr(b, axis, stacked, forced))
    return bind(cond_p, *front, branches=batched), [0 if s else None for s in out_stacked]


def _sources(branches: Branches, stacked: Sequence[bool]) -> list[int | None]:
    """Return the number of the operand that each result is in all branches, or None.

    It is None for an operand that is not the same for all examples.
    """
    numbers = [{v: n for n, v in enumerate(b.invars) if not stacked[n]} for b in branches]
    operands = [[of.get(v) for of, v in zip(numbers, outs, strict=True)] for outs in zip(*[b.outvars for b in branches], strict=True)]
    return [of[0] if len(set(of)) == 1 else None for of in operands]


def _constant_unless(mask: Array, operand: Array) -> Array:
    """Return an operand whose examples are constants, except those in the mask."""
    if operand.dtype not in INEXACT or not isinstance(operand, Tracer):  # nothing is differentiated
        return operand
    return select_n(broadcast_in_dim(mask, operand.shape, (0,)), stop_gradient(operand), operand)

"""The rules of primitives that call sub-programs, for every transform.

These are the rules of `jit`, attention, `scan`, `while` and `cond`. The programs that they derive are cached on the original programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var, dce_jaxpr, has_effects, inline_calls, program_cache
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import Tracer, bind
from volta_fn.dtypes import INEXACT
from volta_fn.errors import GradientError
from volta_fn.primitives.call import (
    Form,
    attention_gradient_p,
    attention_p,
    attention_params,
    attention_tangent_p,
    call_params,
    jit_p,
    stop_gradient,
)
from volta_fn.primitives.control_flow.loops import cond_p, while_p
from volta_fn.primitives.control_flow.scan import scan_p
from volta_fn.primitives.data_movement.movement import (
    broadcast_in_dim,
    broadcast_in_dim_p,
    instantiate,
    moveaxis,
    reshape,
    stacked_in_front,
    to_front,
)
from volta_fn.primitives.elementwise import arithmetic, selection
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.primitives.elementwise.selection import eq, select, select_n
from volta_fn.primitives.reduction import reduce_or
from volta_fn.transforms.linearize import (
    PartialEvalTrace,
    fixed_point,
    jvp_jaxpr,
    jvp_rules,
    linear_marks,
    marked,
    merge,
    nonzero_marks,
    partial_eval_jaxpr,
    partial_eval_rules,
    split_tangents,
    spread,
    transpose_jaxpr,
    transpose_rules,
    with_zeros,
)
from volta_fn.transforms.vmap import batch_jaxpr, batching_rules, stack_if

# Programs that the rules of control flow derive, cached on the original programs.


@program_cache
def reordered(closed: ClosedJaxpr, inputs: Sequence[int], outputs: Sequence[int]) -> ClosedJaxpr:
    """Return the program of some outputs, with reordered inputs."""
    jaxpr = closed.jaxpr
    invars, outvars = [jaxpr.invars[i] for i in inputs], [jaxpr.outvars[i] for i in outputs]
    program = closed.replace(invars=invars, outvars=outvars)
    return program if len(outvars) == len(jaxpr.outvars) else dce_jaxpr(program)


@program_cache
def with_unused(closed: ClosedJaxpr, extra: Sequence[ShapedArray]) -> ClosedJaxpr:
    """Return the program with more inputs at the end, which it ignores."""
    jaxpr = closed.jaxpr
    invars = [*jaxpr.invars, *map(Var, extra)]
    return closed.replace(invars=invars)


@program_cache
def split_program(closed: ClosedJaxpr, is_unknown: Sequence[bool], wanted: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Split a program like `partial_eval_jaxpr`, with more outputs unknown.

    The outputs in `wanted` are unknown even if they could be known. The known program returns those as its first residuals.
    """
    known_program, unknown_program, out_unknown = partial_eval_jaxpr(closed, is_unknown)
    is_moved = [w for w, u in zip(wanted, out_unknown, strict=True) if not u]
    if not any(is_moved):
        return known_program, unknown_program, out_unknown
    known_outs, residuals = known_program.jaxpr.outvars[: len(is_moved)], known_program.jaxpr.outvars[len(is_moved) :]
    passed = [Var(v.aval) for v in marked(known_outs, is_moved)]
    outs_unknown = [u or w for u, w in zip(out_unknown, wanted, strict=True)]
    outvars = merge(marked(out_unknown, outs_unknown), unknown_program.jaxpr.outvars, passed)
    known_jaxpr = Jaxpr(
        known_program.jaxpr.constvars,
        known_program.jaxpr.invars,
        [*marked(known_outs, is_moved, False), *marked(known_outs, is_moved), *residuals],
        known_program.jaxpr.eqns,
    )
    unknown_jaxpr = Jaxpr(unknown_program.jaxpr.constvars, [*passed, *unknown_program.jaxpr.invars], outvars, unknown_program.jaxpr.eqns)
    return ClosedJaxpr(known_jaxpr, known_program.consts), ClosedJaxpr(unknown_jaxpr, unknown_program.consts), outs_unknown


def chained(first: ClosedJaxpr, second: ClosedJaxpr, name: str) -> ClosedJaxpr:
    """Compose programs: `first` computes the first inputs of `second` from its own."""
    count, input_count = len(first.in_avals), len(first.out_avals)
    avals = [*first.in_avals, *second.in_avals[input_count:]]
    return trace_to_jaxpr(lambda *xs: eval_jaxpr(second, *eval_jaxpr(first, *xs[:count]), *xs[count:]), avals, name)


# Residuals of calls: those that follow cheaply from others are not saved.
#
# The derivative of ``tanh`` needs ``1 - y**2``, and a product with `y` needs `y` itself. To save both would double what passes between
# the program of the values and that of the derivative, so the latter computes the first of the second again.

#: Operations on elements that take no longer than loading their result.
_CHEAP = frozenset(
    [f.primitive for f in (arithmetic.neg, arithmetic.abs, arithmetic.add, arithmetic.sub, arithmetic.mul, arithmetic.max, arithmetic.min)]
    + [f.primitive for f in (selection.eq, selection.ne, selection.lt, selection.le, selection.gt, selection.ge)]
    + [f.primitive for f in (selection.bitwise_and, selection.bitwise_or, selection.bitwise_not)]
    + [selection.select_n_p, broadcast_in_dim_p, arithmetic.integer_pow_p]
)
#: The most operations that lead to a value that is computed again.
_MOST_OPERATIONS = 6
#: The largest exponent among them.
_LARGEST_POWER = 4


@program_cache
def split_call(closed: ClosedJaxpr, is_unknown: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Split a program like `partial_eval_jaxpr`, with fewer residuals."""
    known_program, unknown_program, out_unknown = partial_eval_jaxpr(closed, is_unknown)
    jaxpr, count = known_program.jaxpr, out_unknown.count(False)
    outputs, residuals = jaxpr.outvars[:count], jaxpr.outvars[count:]
    derivation = _Derivation(known_program, outputs, residuals)
    if not derivation.again:
        return known_program, unknown_program, out_unknown
    saved = list(derivation.saved)
    again = ClosedJaxpr(Jaxpr([], saved, residuals, [e for e in known_program.eqns if id(e) in derivation.again]), [])
    return dce_jaxpr(known_program.replace(outvars=[*outputs, *saved])), chained(again, unknown_program, "derivative"), out_unknown


class _Derivation:
    """The residuals to save, and the equations that derive the others from these."""

    def __init__(self, known_program: ClosedJaxpr, outputs: Sequence[Atom], residuals: Sequence[Atom]) -> None:
        self.makers = {v: e for e in known_program.eqns for v in e.outvars}
        self.outputs = {v for v in outputs if type(v) is Var}
        self.saved: dict[Var, None] = {}
        self.again: set[int] = set()
        order = {v: number for number, v in enumerate(self.makers)}
        variables = {v for v in residuals if type(v) is Var}
        # Producers are decided on before their consumers.
        for var in sorted(variables, key=lambda v: order.get(v, -1)):
            self._decide(var)

    def _decide(self, var: Var) -> None:
        """Save a residual, unless it follows from saved ones and at most one output."""
        equations: dict[int, Equation] = {}
        leaves: dict[Var, None] = {}
        stack: list[Var] = [var]
        while stack:
            at = stack.pop()
            if at in self.saved or (at in self.outputs and at is not var):
                leaves[at] = None
                continue
            eqn = self.makers.get(at)
            if eqn is None or not _is_cheap(eqn) or len(equations) >= _MOST_OPERATIONS:
                self.saved[var] = None
                return
            equations[id(eqn)] = eqn
            stack += [v for v in eqn.invars if type(v) is Var]
        unsaved = [v for v in leaves if v not in self.saved]
        if len(unsaved) > 1 or any(v.aval.nbytes > var.aval.nbytes for v in unsaved):
            self.saved[var] = None
            return
        self.saved |= dict.fromkeys(unsaved)
        self.again |= equations.keys()


def _is_cheap(eqn: Equation) -> bool:
    return eqn.primitive in _CHEAP and (eqn.primitive is not arithmetic.integer_pow_p or 0 <= eqn.params["y"] <= _LARGEST_POWER)


# The rules of `jit`'s primitive: they transform the program, and keep the call.


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


# The rules of attention: each call's expansion is derived from another's.


@jvp_rules.register(attention_p)
def _attention_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
) -> tuple[Sequence[Array], list[Any]]:
    out, statistics = bind(attention_p, *primals, **attention_params(jaxpr, form))
    zeros = [Zero(x.aval.tangent_aval()) for x in (out, statistics)]
    nonzero = nonzero_marks(tangents[:3])
    if not any(nonzero):
        return (out, statistics), zeros
    body = _attention_tangent_program(jaxpr, nonzero)
    operands = (*primals, out, statistics, *[instantiate(t) for t in marked(tangents[:3], nonzero)])
    (tangent,) = bind(attention_tangent_p, *operands, **attention_params(body, form, tuple(nonzero)))
    return (out, statistics), [tangent, instantiate(zeros[1])]  # for recordings, in which all results have tangents


@program_cache
def _attention_tangent_program(jaxpr: ClosedJaxpr, nonzero: Sequence[bool]) -> ClosedJaxpr:
    """Derive the expansion of the tangent.

    It is ``(q, k, v[, mask], result, statistics, *nonzero tangents) -> result's tangent``.
    """
    count = len(jaxpr.in_avals)
    derived, _ = jvp_jaxpr(jaxpr, [*nonzero, *[False] * (count - 3)], [True, False])
    flat = inline_calls(derived, jit_p)  # so that an equation is either known or linear
    pruned = dce_jaxpr(flat, [False, False, True, *[False] * (len(derived.out_avals) - 3)])
    inner = pruned.jaxpr
    unused = [Var(a) for a in jaxpr.out_avals]
    return ClosedJaxpr(
        Jaxpr(inner.constvars, [*inner.invars[:count], *unused, *inner.invars[count:]], inner.outvars, inner.eqns), pruned.consts
    )


@transpose_rules.register(attention_tangent_p)
def _attention_tangent_transpose(
    cotangents: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
) -> list[Any]:
    linear = linear_marks(args)
    if type(cotangents[0]) is Zero:
        return [None] * len(args)
    residuals = marked(args, linear, False)
    backward, has_cotangent = transpose_jaxpr(jaxpr, linear, [True])
    tangents = args[len(args) - sum(moved) :]
    if all(has_cotangent) and all(type(t) is Linear for t in tangents):
        results = bind(
            attention_gradient_p, *residuals, cotangents[0], **attention_params(backward, form._replace(cotangent=form.q), moved)
        )
    else:
        results = bind(jit_p, *residuals, cotangents[0], **call_params(backward, "attention_gradient"))
    return spread(results, linear, has_cotangent)


def _attention_batch_rule(primitive: Primitive) -> Any:
    def batch(
        axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
    ) -> tuple[Sequence[Array], list[int]]:
        """Batch a call: the examples count as heads."""
        body, _ = batch_jaxpr(jaxpr, axis, [True] * len(args), [True] * len(jaxpr.out_avals))
        cotangent = None if form.cotangent is None else form.cotangent.batched()
        stacked = form._replace(q=form.q.batched(), k=form.k.batched(), v=form.v.batched(), cotangent=cotangent)
        outs = bind(primitive, *stacked_in_front(axis, args, dims), **attention_params(body, stacked, moved))
        return outs, [0] * len(outs)

    return batch


batching_rules.update(
    {primitive: _attention_batch_rule(primitive) for primitive in (attention_p, attention_tangent_p, attention_gradient_p)}
)


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
        start, end = params["num_consts"], params["num_consts"] + params["num_carry"]
        return cls(values[:start], values[start:end], values[end:])


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
    inputs = _paired([len(group) for group in values], [len(group) for group in in_tangents])
    body = reordered(forward, inputs, _paired([count, outputs - count], [sum(carry_nonzero), sum(out_nonzero[count:])]))
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


def _paired(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return positions that order groups a, b, a', b' of these sizes as a, a', b, b'."""
    order: list[int] = []
    start, other = 0, sum(first)
    for size, size_other in zip(first, second, strict=True):
        order += [*range(start, start + size), *range(other, other + size_other)]
        start, other = start + size, other + size_other
    return order


# Partial evaluation: a known loop, and an unknown loop that reads the residuals of each iteration.


class _Split(NamedTuple):
    carry_unknown: list[bool]
    out_unknown: list[bool]
    #: From the known consts to the residuals that are the same in every iteration.
    invariant: ClosedJaxpr
    #: The known loop; after its own outputs it returns the residuals that must be stacked.
    known_loop: ClosedJaxpr
    #: The unknown loop's body: ``(*invariant residuals, *unknown consts, *unknown carry, *residuals, *unknown rows)``.
    unknown_body: ClosedJaxpr
    #: For each residual that differs between iterations: the known row that it is, or None if the known loop stacks it.
    rows: list[int | None]


@partial_eval_rules.register(scan_p)
def _scan_partial_eval(trace: PartialEvalTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    is_unknown = [trace.is_unknown(a) for a in args]
    split = _split_body(params["jaxpr"], params["num_carry"], _Operands.of(tuple(is_unknown), params))
    values, marks = _Operands.of(args, params), _Operands.of(is_unknown, params)
    consts, rows = marked(values.consts, marks.consts, False), marked(values.rows, marks.rows, False)
    flat: Sequence[Array] = ()
    if split.known_loop.out_avals or any(map(has_effects, split.known_loop.eqns)):
        flat = _bind_scan(params, split.known_loop, consts, marked(values.carry, split.carry_unknown, False), rows)
    stacked = iter(flat[split.out_unknown.count(False) :])
    residuals = [next(stacked) if i is None else rows[i] for i in split.rows]
    unknown_consts = [*eval_jaxpr(split.invariant, *consts), *marked(values.consts, marks.consts)]
    unknown_carry = marked(values.carry, split.carry_unknown)
    operands = [*unknown_consts, *unknown_carry, *residuals, *marked(values.rows, marks.rows)]
    recorded = trace.record(scan_p, operands, _scan_params(params, split.unknown_body, len(unknown_consts), len(unknown_carry)))
    return tuple(merge(split.out_unknown, recorded, flat))


@program_cache
def _split_body(closed: ClosedJaxpr, count: int, is_unknown: _Operands) -> _Split:
    free = [False] * (len(closed.out_avals) - count)

    def step(carry: list[bool]) -> tuple[Any, Sequence[bool]]:
        result = split_program(closed, [*is_unknown.consts, *carry, *is_unknown.rows], [*carry, *free])
        return result, result[2][:count]

    (known_program, unknown_program, out_unknown), carry_unknown = fixed_point(is_unknown.carry, step)
    known_program = inline_calls(known_program, jit_p)
    consts, carry = is_unknown.consts.count(False), carry_unknown.count(False)
    outputs = out_unknown.count(False)
    invars, residuals = known_program.jaxpr.invars, known_program.jaxpr.outvars[outputs:]
    varying = _varying(known_program, consts)
    row_of: dict[Atom, int] = {v: i for i, v in enumerate(invars[consts + carry :])}
    invariant = [type(v) is Literal or v not in varying for v in residuals]
    stacked = [not i and v not in row_of for i, v in zip(invariant, residuals, strict=True)]
    same = _without_inputs(known_program, consts, varying, marked(residuals, invariant))
    loop = dce_jaxpr(known_program, [*[True] * outputs, *stacked])
    # The unknown program takes (*residuals, *consts, *carry, *rows); its varying residuals become rows.
    positions, first_row = range(len(residuals)), len(residuals) + sum(is_unknown.consts) + sum(carry_unknown)
    inputs = [
        *marked(positions, invariant), *range(len(residuals), first_row),
        *marked(positions, invariant, False), *range(first_row, len(unknown_program.in_avals)),
    ]  # fmt: skip
    body = reordered(unknown_program, inputs, range(len(unknown_program.out_avals)))
    return _Split(carry_unknown, out_unknown, same, loop, body, [row_of.get(v) for v in marked(residuals, invariant, False)])


def _varying(closed: ClosedJaxpr, consts: int) -> set[Atom]:
    """Return the variables that may differ between iterations."""
    varying: set[Atom] = set(closed.jaxpr.invars[consts:])
    for eqn in closed.eqns:
        if has_effects(eqn) or any(v in varying for v in eqn.invars):
            varying.update(eqn.outvars)
    return varying


def _without_inputs(known_program: ClosedJaxpr, consts: int, varying: set[Atom], outvars: list[Atom]) -> ClosedJaxpr:
    """Return the program of outputs that depend on the constants alone."""
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
    backward, const_given, row_given = _backward_body(closed, linear, ys_nonzero)
    sums = marked(marked(closed.in_avals[: params["num_consts"]], linear.consts), const_given)
    carry = [*[instantiate(Zero(a)) for a in sums], *map(instantiate, cotangents[:count])]
    rows = [*marked(values.rows, linear.rows, False), *marked(cotangents[count:], ys_nonzero)]
    backwards = {**params, "reverse": not params["reverse"]}
    flat = _bind_scan(backwards, backward, marked(values.consts, linear.consts, False), carry, rows)
    return [
        *spread(flat[: len(sums)], linear.consts, const_given),
        *flat[len(sums) : len(sums) + count],
        *spread(flat[len(sums) + count :], linear.rows, row_given),
    ]


@program_cache
def _backward_body(closed: ClosedJaxpr, linear: _Operands, ys_nonzero: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool], list[bool]]:
    start, count = len(linear.consts), len(linear.carry)
    avals = _Operands(closed.in_avals[:start], closed.in_avals[start : start + count], closed.in_avals[start + count :])
    for aval in avals.carry:
        if aval.tangent_aval().dtype != aval.dtype:
            raise GradientError(f"scan: the carry holds {aval}, which cannot be linear; linearize the function before transposing it")
    transposed, has_cotangent = transpose_jaxpr(closed, [*linear.consts, *[True] * count, *linear.rows], [*[True] * count, *ys_nonzero])
    consts, sums = linear.consts.count(False), sum(linear.consts)
    const_given, carry_given, row_given = has_cotangent[:sums], has_cotangent[sums : sums + count], has_cotangent[sums + count :]
    accumulated = marked(marked(avals.consts, linear.consts), const_given)
    residuals = linear.rows.count(False)

    def run(*flat: Array) -> list[Array]:
        residual_consts, rest = flat[:consts], flat[consts:]
        totals, cts, rows = rest[: len(accumulated)], rest[len(accumulated) : len(accumulated) + count], rest[len(accumulated) + count :]
        outs = iter(eval_jaxpr(transposed, *residual_consts, *rows[:residuals], *cts, *rows[residuals:]))
        grown = [add(total, next(outs)) for total in totals]
        carried = [next(outs) if nz else instantiate(Zero(a)) for nz, a in zip(carry_given, avals.carry, strict=True)]
        return [*grown, *carried, *outs]

    y_avals = [a.update(weak_type=False) for a in marked(closed.out_avals[count:], ys_nonzero)]
    inputs = [*marked(avals.consts, linear.consts, False), *accumulated, *avals.carry, *marked(avals.rows, linear.rows, False), *y_avals]
    return trace_to_jaxpr(run, inputs, "backward"), const_given, row_given


# Batching.


@batching_rules.register(scan_p)
def _scan_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any
) -> tuple[Sequence[Array], list[int | None]]:
    closed, count = params["jaxpr"], params["num_carry"]
    free = [False] * (len(closed.out_avals) - count)
    stacked = _Operands.of([d is not None for d in dims], params)

    def step(carry: list[bool]) -> tuple[Any, Sequence[bool]]:
        result = batch_jaxpr(closed, axis, [*stacked.consts, *carry, *stacked.rows], [*carry, *free])
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
    carried = [instantiate(t) for t in marked(carry_tangents, nonzero)]
    start, end = len(body_consts), len(body_consts) + len(carry)
    order = [
        *range(start),
        *range(end, end + len(const_directions)),
        *range(start, end),
        *range(end + len(const_directions), end + len(const_directions) + len(carried)),
    ]
    body = reordered(forward, order, range(len(forward.out_avals)))
    cond = with_unused(params["cond_jaxpr"], [t.aval for t in carried])
    flat = _bind_while(cond, body, cond_consts, [*body_consts, *const_directions], [*carry, *carried])
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
    stops, _, (stops_unknown,) = split_program(params["cond_jaxpr"], [*cond_unknown, *is_unknown], [False])
    recorded = trace.record(while_p, args, params)
    if stops_unknown or all(is_unknown):
        return recorded
    body = reordered(known_program, range(len(known_program.in_avals)), range(is_unknown.count(False)))
    cond = reordered(stops, range(len(stops.in_avals)), [0])
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
    cond, (differs,) = batch_jaxpr(params["cond_jaxpr"], axis, [*cond_stacked, *stacked])
    if not differs:
        start = [stack_if(s, a, d, axis.size) for s, a, d in zip(stacked, carry, carry_dims, strict=True)]
        return _bind_while(cond, body, cond_front, body_front, start), [0 if s else None for s in stacked]
    everything = [True] * len(carry)
    cond = batch_jaxpr(params["cond_jaxpr"], axis, [*cond_stacked, *everything], [True])[0]
    body = batch_jaxpr(params["body_jaxpr"], axis, [*body_stacked, *everything], everything)[0]
    outs = _run_until_all_stop(cond, body, cond_front, body_front, stacked_in_front(axis, carry, carry_dims))
    return outs, [0] * len(outs)


def _run_until_all_stop(
    cond: ClosedJaxpr, body: ClosedJaxpr, cond_consts: Sequence[Array], body_consts: Sequence[Array], start: Sequence[Array]
) -> Sequence[Array]:
    """Loop until no example's condition holds, changing only examples that still run."""
    (running,) = eval_jaxpr(cond, *cond_consts, *start)
    count, end = len(cond_consts), len(cond_consts) + len(body_consts)
    avals = tuple([x.aval for x in (*cond_consts, *body_consts, running, *start)])
    any_running, masked = _masked(cond, body, count, end, avals)
    return _bind_while(any_running, masked, [], [*cond_consts, *body_consts], [running, *start])[1:]


@program_cache
def _masked(cond: ClosedJaxpr, body: ClosedJaxpr, count: int, end: int, avals: tuple[ShapedArray, ...]) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """Return the condition that an example still runs, and the masked iteration."""

    def step(*flat: Array) -> list[Array]:
        consts, body_values, running, carry = flat[:count], flat[count:end], flat[end], flat[end + 1 :]
        new_carry = eval_jaxpr(body, *body_values, *carry)
        carry_out = [
            select(reshape(running, (*running.shape, *(1,) * (old.ndim - 1))), new, old) for old, new in zip(carry, new_carry, strict=True)
        ]
        return [*eval_jaxpr(cond, *consts, *carry_out), *carry_out]

    any_running = trace_to_jaxpr(lambda running, *_: [reduce_or(running, (0,))], avals[end:], "any")
    return any_running, trace_to_jaxpr(step, avals, "step")


# The rules of `cond`: derived branches take and return the same types.

Branches = tuple[ClosedJaxpr, ...]
#: (branch, marks to force on its outputs) -> (derived branch, marks of its outputs)
Derive = Callable[[ClosedJaxpr, list[bool]], tuple[ClosedJaxpr, list[bool]]]


def _any(rows: Sequence[Sequence[bool]]) -> list[bool]:
    """Combine rows of marks by `or`."""
    return [any(column) for column in zip(*rows, strict=True)]


def _derived(branches: Branches, derive: Derive) -> tuple[Branches, list[bool]]:
    """Derive all branches, with an output marked in all of them if it is in any."""
    free = [False] * len(branches[0].out_avals)
    forced = _any([derive(b, free)[1] for b in branches])
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
    free = [False] * len(first.out_avals)
    out_unknown = _any([split_program(b, is_unknown, free)[2] for b in branches])
    splits = [split_program(b, is_unknown, out_unknown) for b in branches]
    count = out_unknown.count(False)
    slots = _residual_slots([[v.aval for v in known_program.jaxpr.outvars[count:]] for known_program, _, _ in splits])
    pairs = [_with_slots(known_program, unknown_program, count, slots) for known_program, unknown_program, _ in splits]
    return tuple([p[0] for p in pairs]), tuple([p[1] for p in pairs]), out_unknown


def _residual_slots(types: Sequence[Sequence[ShapedArray]]) -> list[ShapedArray]:
    """Return types in which any branch's residuals fit; only one branch runs."""
    most: Counter[ShapedArray] = Counter()
    for avals in types:
        most |= Counter([a.strip_weak_type() for a in avals])
    return list(most.elements())


def _with_slots(
    known_program: ClosedJaxpr, unknown_program: ClosedJaxpr, count: int, slots: Sequence[ShapedArray]
) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """Assign a branch's residuals to slots; the known program fills others with zeros."""
    residuals = known_program.jaxpr.outvars[count:]
    free = list(range(len(residuals)))
    assigned: list[int | None] = []
    for slot in slots:
        assigned.append(next((i for i in free if residuals[i].aval.strip_weak_type() is slot), None))
        if assigned[-1] is not None:
            free.remove(assigned[-1])

    def run(*args: Array) -> list[Array]:
        outs = eval_jaxpr(known_program, *args)
        return [*outs[:count], *[instantiate(Zero(s)) if i is None else outs[count + i] for i, s in zip(assigned, slots, strict=True)]]

    jaxpr = unknown_program.jaxpr
    inputs = [Var(s) if i is None else jaxpr.invars[i] for i, s in zip(assigned, slots, strict=True)]
    waits = Jaxpr(jaxpr.constvars, [*inputs, *jaxpr.invars[len(residuals) :]], jaxpr.outvars, jaxpr.eqns)
    return trace_to_jaxpr(run, known_program.in_avals, "known"), ClosedJaxpr(waits, unknown_program.consts)


@transpose_rules.register(cond_p)
def _cond_transpose(cotangents: Sequence[Any], index: Any, *operands: Any, branches: Branches) -> list[Any]:
    linear, nonzero = linear_marks(operands), nonzero_marks(cotangents)
    backward, has_cotangent = _transpose_branches(branches[0], branches[1:], linear, nonzero)
    flat = bind(cond_p, index, *marked(operands, linear, False), *marked(cotangents, nonzero), branches=backward)
    return [None, *spread(flat, linear, has_cotangent)]


@program_cache
def _transpose_branches(
    first: ClosedJaxpr, others: Branches, linear: Sequence[bool], nonzero: Sequence[bool]
) -> tuple[Branches, list[bool]]:
    pairs = [transpose_jaxpr(b, linear, nonzero) for b in (first, *others)]
    has_cotangent = _any([g for _, g in pairs])
    avals = marked(first.in_avals, linear)
    return tuple([_with_required_cotangents(backward, computed, has_cotangent, avals) for backward, computed in pairs]), has_cotangent


def _with_required_cotangents(
    backward: ClosedJaxpr, computed: Sequence[bool], required: Sequence[bool], avals: Sequence[ShapedArray]
) -> ClosedJaxpr:
    """Add zeros to a backward program for wanted cotangents that it does not compute."""
    if list(computed) == list(required):
        return backward

    def run(*args: Array) -> list[Array]:
        cotangents = merge(computed, eval_jaxpr(backward, *args), map(Zero, marked(avals, computed, False)))
        return [instantiate(ct) for ct in marked(cotangents, required)]

    return trace_to_jaxpr(run, backward.in_avals, "backward")


@batching_rules.register(cond_p)
def _cond_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, branches: Branches
) -> tuple[Sequence[Array], list[int | None]]:
    front = to_front(args, dims)
    stacked = [d is not None for d in dims[1:]]
    if dims[0] is not None:
        return _select_branch(axis, front, stacked, branches)
    batched, out_stacked = _derived(branches, lambda b, forced: batch_jaxpr(b, axis, stacked, forced))
    return bind(cond_p, *front, branches=batched), [0 if s else None for s in out_stacked]


def _select_branch(
    axis: AxisData, args: Sequence[Array], stacked: Sequence[bool], branches: Branches
) -> tuple[list[Array], list[int | None]]:
    """Run all branches for all examples, and select each example's branch.

    Of the examples of other branches, a branch gets constants: their derivatives may be infinite, and zero times that is NaN. Operands
    that are the same for all examples stay as they are, since these would have to be repeated.
    """
    index, operands = args[0], args[1:]
    everything = [True] * len(branches[0].out_avals)
    results = []
    for number, branch in enumerate(branches):
        chosen = eq(index, np.asarray(number, index.dtype))
        branch_operands = [_constant_unless(chosen, x) if s else x for x, s in zip(operands, stacked, strict=True)]
        results.append(eval_jaxpr(batch_jaxpr(branch, axis, stacked, everything)[0], *branch_operands))
    outs = [select_n(reshape(index, (axis.size, *(1,) * (cases[0].ndim - 1))), *cases) for cases in zip(*results, strict=True)]
    return outs, [0] * len(outs)


def _constant_unless(chosen: Array, operand: Array) -> Array:
    """Return an operand whose examples are constants, except the chosen ones."""
    if operand.dtype not in INEXACT or not isinstance(operand, Tracer):
        return operand
    mask = broadcast_in_dim(chosen, operand.shape, (0,))
    return select_n(mask, stop_gradient(operand), operand)

"""The rules of calls.

Programs derived from the called one, residuals that follow cheaply from others, and calls of `jit` and attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import is_
from typing import Any

from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var, dce_jaxpr, inline_calls, program_cache, reads_of
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.primitives.call import Form, attention_gradient_p, attention_p, attention_params, attention_tangent_p, call_params, jit_p
from volta_fn.primitives.data_movement.movement import broadcast_in_dim_p, instantiate, stacked_in_front, to_front
from volta_fn.primitives.elementwise import arithmetic, selection
from volta_fn.transforms.differentiation import (
    PartialEvalTrace,
    dce_rules,
    eliminate_dead_code,
    jvp_jaxpr,
    jvp_rules,
    linear_marks,
    marked,
    merge,
    nonzero_marks,
    partial_eval_jaxpr,
    partial_eval_rules,
    per_operand,
    split_tangents,
    transpose_jaxpr,
    transpose_rules,
)
from volta_fn.transforms.vmap import batch_jaxpr, batching_rules

# How rules split, reorder and compose programs, mostly cached on the originals.


@program_cache
def reordered(closed: ClosedJaxpr, inputs: Sequence[int], outputs: Sequence[int]) -> ClosedJaxpr:
    """Return the program of some outputs, with reordered inputs."""
    jaxpr = closed.jaxpr
    invars, outvars = [jaxpr.invars[i] for i in inputs], [jaxpr.outvars[i] for i in outputs]
    program = closed.replace(invars=invars, outvars=outvars)
    return program if len(outvars) == len(jaxpr.outvars) else dce_jaxpr(program)


def paired_order(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return positions that order groups a, b, a', b' of these sizes as a, a', b, b'."""
    order: list[int] = []
    start, second_start = 0, sum(first)
    for size, second_size in zip(first, second, strict=True):
        order += [*range(start, start + size), *range(second_start, second_start + second_size)]
        start, second_start = start + size, second_start + second_size
    return order


@program_cache
def with_unused(closed: ClosedJaxpr, extra: Sequence[ShapedArray]) -> ClosedJaxpr:
    """Return the program with more inputs at the end, which it ignores."""
    return closed.replace(invars=[*closed.invars, *map(Var, extra)])


@program_cache
def narrow_programs(
    first: ClosedJaxpr, others: Sequence[ClosedJaxpr], used: Sequence[bool]
) -> tuple[list[bool], tuple[ClosedJaxpr, ...] | None]:
    """Drop the dead code of programs of equal types, if outputs are `used` alike.

    Returns which inputs any of them reads, and the programs of those; None if nothing is dropped.
    """
    programs = [eliminate_dead_code(p, used) for p in (first, *others)]
    reads = [any(column) for column in zip(*map(reads_of, programs), strict=True)]
    narrowed = tuple([with_inputs(p, reads) for p in programs])
    return reads, None if all(map(is_, narrowed, (first, *others))) else narrowed


def with_inputs(closed: ClosedJaxpr, marks: Sequence[bool]) -> ClosedJaxpr:
    """Return the program of the marked inputs, the others of which it does not read."""
    return closed if all(marks) else closed.replace(invars=marked(closed.invars, marks))


def compose(first: ClosedJaxpr, second: ClosedJaxpr, name: str) -> ClosedJaxpr:
    """Compose programs: `first` computes the first inputs of `second` from its own."""
    count, input_count = len(first.in_avals), len(first.out_avals)
    avals = [*first.in_avals, *second.in_avals[input_count:]]
    return trace_to_jaxpr(lambda *xs: eval_jaxpr(second, *eval_jaxpr(first, *xs[:count]), *xs[count:]), avals, name)


# Residuals of calls: those that follow cheaply from others are not saved.
#
# The derivative of ``tanh`` needs ``1 - y**2``, and a product with `y` needs `y` itself. To save both would double what passes from the
# program of the values to that of the derivative, so the latter recomputes the first from the second.

#: Operations on elements that take no longer than loading their result.
_CHEAP = frozenset(
    [f.primitive for f in (arithmetic.neg, arithmetic.abs, arithmetic.add, arithmetic.sub, arithmetic.mul, arithmetic.max, arithmetic.min)]
    + [f.primitive for f in (selection.eq, selection.ne, selection.lt, selection.le, selection.gt, selection.ge)]
    + [f.primitive for f in (selection.bitwise_and, selection.bitwise_or, selection.bitwise_not)]
    + [selection.select_n_p, broadcast_in_dim_p, arithmetic.integer_pow_p]
)
#: The most operations by which a value is recomputed, and the largest exponent among them.
_MOST_OPERATIONS = 6
_LARGEST_POWER = 4


@program_cache
def partial_eval_recomputing(closed: ClosedJaxpr, is_unknown: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Split as `partial_eval_jaxpr`, and recompute residuals that follow from others."""
    known_program, unknown_program, out_unknown = partial_eval_jaxpr(closed, is_unknown)
    jaxpr, count = known_program.jaxpr, out_unknown.count(False)
    outputs, residuals = jaxpr.outvars[:count], jaxpr.outvars[count:]
    choice = _SavedResiduals(known_program, outputs, residuals)
    if not choice.recomputed:
        return known_program, unknown_program, out_unknown
    saved = list(choice.saved)
    equations = [e for e in known_program.eqns if id(e) in choice.recomputed]
    recomputation = known_program.replace(consts=[], constvars=[], invars=saved, outvars=residuals, eqns=equations)
    return dce_jaxpr(known_program.replace(outvars=[*outputs, *saved])), compose(recomputation, unknown_program, "derivative"), out_unknown


class _SavedResiduals:
    """The residuals to save, and the equations by which the others are recomputed.

    The caller keeps outputs alive anyway: one, no larger than a residual, may be saved in its place, so that what is saved never grows.

    Attributes:
        saved: the residuals to save, and outputs that others are recomputed from.
        recomputed: the `id` of each equation that the unknown program repeats.
    """

    def __init__(self, known_program: ClosedJaxpr, outputs: Sequence[Atom], residuals: Sequence[Atom]) -> None:
        self.producers = {v: e for e in known_program.eqns for v in e.outvars}
        self.outputs = {v for v in outputs if type(v) is Var}
        self.saved: dict[Var, None] = {}
        self.recomputed: set[int] = set()
        order = {v: number for number, v in enumerate(self.producers)}
        variables = {v for v in residuals if type(v) is Var}
        # In the order of the program, so that what a residual may be recomputed from is decided first.
        for var in sorted(variables, key=lambda v: order.get(v, -1)):
            equations = self._recompute_or_none(var)
            if equations is None:
                self.saved[var] = None
            else:
                self.recomputed |= equations

    def _recompute_or_none(self, var: Var) -> set[int] | None:
        """Return the equations that recompute a residual from what is saved, or None."""
        equations: set[int] = set()
        sources: dict[Var, None] = {}
        stack: list[Var] = [var]
        while stack:
            value = stack.pop()
            if value in self.saved or (value in self.outputs and value is not var):
                sources[value] = None
                continue
            eqn = self.producers.get(value)
            if eqn is None or not _is_cheap(eqn) or len(equations) >= _MOST_OPERATIONS:
                return None
            equations.add(id(eqn))
            stack += [v for v in eqn.invars if type(v) is Var]
        unsaved = [v for v in sources if v not in self.saved]
        if len(unsaved) > 1 or any(v.aval.nbytes > var.aval.nbytes for v in unsaved):
            return None
        self.saved |= dict.fromkeys(unsaved)
        return equations


def _is_cheap(eqn: Equation) -> bool:
    return eqn.primitive in _CHEAP and (eqn.primitive is not arithmetic.integer_pow_p or 0 <= eqn.params["y"] <= _LARGEST_POWER)


# The rules that calls share: derive a program, and call that instead.

#: (program, operands) -> results: binds the primitive that calls a derived program.
Call = Callable[[ClosedJaxpr, Sequence[Any]], Sequence[Array]]


def jvp_of_call(
    call: Call, closed: ClosedJaxpr, primals: Sequence[Array], tangents: Sequence[Any]
) -> tuple[Sequence[Array], Sequence[Any]]:
    """Call the program that also computes tangents."""
    nonzero = nonzero_marks(tangents)
    forward, out_nonzero = jvp_jaxpr(closed, nonzero, False)
    return split_tangents(call(forward, [*primals, *marked(tangents, nonzero)]), out_nonzero)


def transpose_of_call(call: Call, closed: ClosedJaxpr, cotangents: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Call the backward program, of the values that are not linear and the cotangents."""
    linear, nonzero = linear_marks(args), nonzero_marks(cotangents)
    backward = transpose_jaxpr(closed, linear, nonzero)
    results = backward.run(call, [*marked(args, linear, False), *marked(cotangents, nonzero)])
    return per_operand(results, linear, backward.has_cotangent)


def batch_of_call(
    call: Call, closed: ClosedJaxpr, axis: AxisData, args: Sequence[Array], dims: Sequence[int | None]
) -> tuple[Sequence[Array], list[int | None]]:
    """Call the program of stacked inputs."""
    batched, out_stacked = batch_jaxpr(closed, axis, [d is not None for d in dims])
    return call(batched, to_front(args, dims)), [0 if s else None for s in out_stacked]


def dce_of_call(params: dict[str, Any], used: Sequence[bool], **changes: Any) -> tuple[Sequence[bool], Sequence[bool], dict[str, Any]]:
    """Return marks of operands and results, and parameters, without dead code."""
    reads, narrowed = narrow_programs(params["jaxpr"], (), used)
    return reads, used, params if narrowed is None else {**params, "jaxpr": narrowed[0], **changes}


# The rules of `jit`'s primitive: they transform the program, and keep the call.


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
    known_program, unknown_program, out_unknown = partial_eval_recomputing(params["jaxpr"], is_unknown)
    inputs = marked(args, is_unknown, False)
    flat = bind(jit_p, *inputs, **call_params(known_program, params["name"]))
    arguments: dict[Any, Array] = dict(zip(known_program.invars, inputs, strict=True))  # as results, residuals would be copies of these
    residuals = [arguments.get(v, r) for v, r in zip(known_program.outvars, flat, strict=True)][out_unknown.count(False) :]
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


dce_rules[jit_p] = partial(dce_of_call, donated=())


# The rules of attention: each call's expansion is derived from another's.

#: Calls a derivative that no target has a routine for.
_EXPANSION = jit_call("attention")


@jvp_rules.register(attention_p)
def _attention_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
) -> tuple[Sequence[Array], list[Any]]:
    out, statistics = bind(attention_p, *primals, **attention_params(jaxpr, form))
    zeros = [Zero(x.aval.tangent_aval()) for x in (out, statistics)]
    nonzero = nonzero_marks(tangents[: 3 + form.biased])  # of q, k, v and the bias; masks have none
    if not any(nonzero):
        return (out, statistics), zeros
    body = _attention_tangent_program(jaxpr, nonzero)
    operands = (*primals, out, statistics, *[instantiate(t) for t in marked(tangents[: len(nonzero)], nonzero)])
    (tangent,) = bind(attention_tangent_p, *operands, **attention_params(body, form, tuple(nonzero)))
    return (out, statistics), [tangent, instantiate(zeros[1])]  # since `eager` records a call only if all its results have tangents


@jvp_rules.register(attention_tangent_p, attention_gradient_p)
def _derived_attention_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
) -> tuple[Sequence[Array], Sequence[Any]]:
    return jvp_of_call(_EXPANSION, jaxpr, primals, tangents)


@program_cache
def _attention_tangent_program(jaxpr: ClosedJaxpr, nonzero: Sequence[bool]) -> ClosedJaxpr:
    """Derive the expansion of the tangent.

    It is ``(q, k, v[, bias], *masks, result, statistics, *nonzero tangents) -> result's tangent``.
    """
    count = len(jaxpr.in_avals)
    derived, _ = jvp_jaxpr(jaxpr, [*nonzero, *[False] * (count - len(nonzero))], [True, False])
    flat = inline_calls(derived, jit_p)  # so that an equation is either known or linear
    pruned = dce_jaxpr(flat, [False, False, True, *[False] * (len(derived.out_avals) - 3)])
    inner = pruned.jaxpr
    unused = [Var(a) for a in jaxpr.out_avals]
    return pruned.replace(invars=[*inner.invars[:count], *unused, *inner.invars[count:]])


@transpose_rules.register(attention_tangent_p)
def _attention_tangent_transpose(
    cotangents: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
) -> list[Any]:
    linear = linear_marks(args)
    if type(cotangents[0]) is Zero:
        return [None] * len(args)
    residuals = marked(args, linear, False)
    backward, has_cotangent, _ = transpose_jaxpr(jaxpr, linear, [True])
    tangents = args[len(args) - sum(moved) :]
    if all(has_cotangent) and all(type(t) is Linear for t in tangents):
        results = bind(
            attention_gradient_p, *residuals, cotangents[0], **attention_params(backward, form._replace(cotangent=form.q), moved)
        )
    else:
        results = bind(jit_p, *residuals, cotangents[0], **call_params(backward, "attention_gradient"))
    return per_operand(results, linear, has_cotangent)


@transpose_rules.register(attention_gradient_p)
def _attention_gradient_transpose(
    cotangents: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
) -> list[Any]:
    return transpose_of_call(_EXPANSION, jaxpr, cotangents, args)


def _attention_batch_rule(primitive: Primitive) -> Any:
    def batch(
        axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...]
    ) -> tuple[Sequence[Array], list[int]]:
        """Batch a call: the examples count as heads.

        Masks that all examples share remain as they are; so does such a bias, unless it has a gradient for each example.
        """
        shared = range(3 if not any(moved[3:]) else 4, form.operands)
        batched = [dims[i] is not None or i not in shared for i in range(len(args))]
        body, _ = batch_jaxpr(jaxpr, axis, batched, [True] * len(jaxpr.out_avals))
        cotangent = None if form.cotangent is None else form.cotangent.batched()
        stacked = form._replace(q=form.q.batched(), k=form.k.batched(), v=form.v.batched(), cotangent=cotangent)
        in_front = iter(stacked_in_front(axis, marked(args, batched), marked(dims, batched)))
        operands = [next(in_front) if is_batched else arg for arg, is_batched in zip(args, batched, strict=True)]
        outs = bind(primitive, *operands, **attention_params(body, stacked, moved))
        return outs, [0] * len(outs)

    return batch


batching_rules.update(
    {primitive: _attention_batch_rule(primitive) for primitive in (attention_p, attention_tangent_p, attention_gradient_p)}
)

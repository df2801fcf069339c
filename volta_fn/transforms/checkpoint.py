"""`checkpoint` (also `remat`): computing intermediate values a second time in the backward pass instead of keeping them.

A *policy* says which of them are kept after all. It is asked for each equation, as ``policy(primitive, *operand_avals, **params)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from volta_fn import tree
from volta_fn.compiler.passes.inline import inline_calls
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dce import dce_jaxpr, prune_inputs
from volta_fn.core.flatten import check_callable, positional_index
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Var
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import EVAL, bind, current_trace
from volta_fn.primitives.barriers import optimization_barrier_p
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.movement import moveaxis
from volta_fn.transforms.custom_call import Programs, static_key
from volta_fn.transforms.jvp import jvp_jaxpr
from volta_fn.transforms.linearize import LinearTrace, partial_eval_jaxpr
from volta_fn.transforms.subprograms import chosen
from volta_fn.transforms.transpose import transpose_jaxpr
from volta_fn.transforms.vmap import batch_jaxpr

Policy = Callable[..., bool]


def checkpoint(
    fun: Callable[..., Any],
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
) -> Callable[..., Any]:
    """A function like `fun` whose intermediate values are not kept for the backward pass, but computed again there.

    Like `jit` it traces `fun` once per types of arguments, so `fun` must be pure. Effects such as `debug.print` are not repeated.

    Args:
        fun: a function of pytrees of arrays.
        prevent_cse: keep the compiler from merging the second computation with the first, which would undo the saving.
        policy: which values to keep (default: none); see `checkpoint_policies`.
        static_argnums: arguments that are not arrays.

    >>> import volta_fn as vf
    >>> cube = vf.checkpoint(lambda x: x * x * x)
    >>> vf.grad(cube)(vf.numpy.float32(2.0))
    Array(12., dtype=float32)
    """
    check_callable(fun, "checkpoint")
    programs = Programs(fun)
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)

    @functools.wraps(fun)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if current_trace() is EVAL:
            return fun(*args, **kwargs)
        static = [positional_index(i, len(args), "checkpoint") for i in numbers]
        dynamic = [i for i in range(len(args)) if i not in static]
        leaves, in_tree = tree.flatten(([args[i] for i in dynamic], kwargs))
        values = [as_value(x) for x in leaves]

        def call(flat: Sequence[Array]) -> Any:
            given, named = tree.unflatten(in_tree, flat)
            merged = dict(zip(dynamic, given, strict=True))
            return fun(*[merged.get(i, arg) for i, arg in enumerate(args)], **named)

        traced = programs.trace(call, values, (in_tree, static_key([args[i] for i in static])))
        outs = bind(checkpoint_p, *traced.captured, *values, jaxpr=traced.jaxpr, policy=policy, prevent_cse=prevent_cse)
        return tree.unflatten(traced.out_tree, outs)

    return checkpointed


remat = checkpoint


def _abstract(*avals: ShapedArray, jaxpr: ClosedJaxpr, policy: Policy | None, prevent_cse: bool) -> tuple[ShapedArray, ...]:
    return tuple(jaxpr.out_avals)


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, **settings: Any) -> tuple[Sequence[Array], list[Any]]:
    nonzero = [type(t) is not Zero for t in tangents]
    forward, out_nonzero = jvp_jaxpr(jaxpr, nonzero, False)
    flat = bind(checkpoint_p, *primals, *[t for t in tangents if type(t) is not Zero], jaxpr=forward, **settings)
    outs, rates = flat[: len(out_nonzero)], iter(flat[len(out_nonzero) :])
    return outs, [next(rates) if nz else Zero(o.aval.at_least_vspace()) for nz, o in zip(out_nonzero, outs, strict=True)]


def _partial_eval(trace: LinearTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    """Run what is known for its outputs and the values that the policy keeps; what waits starts from the inputs and those values."""
    unknown = [trace.is_unknown(a) for a in args]
    split = _split(params["jaxpr"], params["policy"], unknown)
    known_args = chosen(args, unknown, False)
    flat = bind(checkpoint_p, *known_args, **{**params, "jaxpr": split.known})
    count = split.out_unknown.count(False)
    known_outs, kept = iter(flat[:count]), flat[count:]
    operands = [*kept, *chosen([*known_args, *chosen(args, unknown)], split.reads)]
    waiting = iter(trace.record(checkpoint_p, operands, {**params, "jaxpr": split.waiting}))
    return tuple([next(waiting) if u else next(known_outs) for u in split.out_unknown])


class _Split(NamedTuple):
    #: From the known inputs to the known outputs and the values that are kept.
    known: ClosedJaxpr
    #: From the kept values, and those of (*known inputs, *unknown inputs) that it `reads`, to the unknown outputs.
    waiting: ClosedJaxpr
    reads: list[bool]
    out_unknown: list[bool]


def _split(closed: ClosedJaxpr, policy: Policy | None, unknown: Sequence[bool]) -> _Split:
    key = ("checkpoint", policy, tuple(unknown))
    if key not in closed.cache:
        closed.cache[key] = _new_split(closed, policy, unknown)
    return closed.cache[key]


def _new_split(closed: ClosedJaxpr, policy: Policy | None, unknown: Sequence[bool]) -> _Split:
    """The waiting program needs residuals of the known one; it gets those that are kept, and computes the others from the inputs."""
    known, waiting, out_unknown = partial_eval_jaxpr(closed, unknown)
    known = inline_calls(known, jit_p)  # the policy is asked for the equations in calls, too
    count = out_unknown.count(False)
    known_outs, residuals = known.jaxpr.outvars[:count], known.jaxpr.outvars[count:]
    is_kept = [_keeps(policy, e) for e in known.eqns]
    kept = [v for e in chosen(known.eqns, is_kept) for v in e.outvars]
    repeated = _part(known, [*kept, *known.jaxpr.invars], residuals, chosen(known.eqns, is_kept, False))
    may_go = [True] * len(repeated.in_avals) + [False] * sum(unknown)
    rest, reads = prune_inputs(dce_jaxpr(_chained(repeated, waiting)), may_go)
    used = chosen(kept, reads[: len(kept)])
    first = _part(known, known.jaxpr.invars, [*known_outs, *used], known.eqns)
    return _Split(first, rest, reads[len(kept) :], out_unknown)


def _keeps(policy: Policy | None, eqn: Equation) -> bool:
    """Whether the results of an equation are kept; those of an effect are, since it happens once."""
    return eqn.primitive.effectful or (policy is not None and policy(eqn.primitive, *[v.aval for v in eqn.invars], **eqn.params))


def _part(closed: ClosedJaxpr, invars: list[Var], outvars: list[Atom], eqns: list[Equation]) -> ClosedJaxpr:
    """The program of some of a program's variables and equations."""
    return dce_jaxpr(ClosedJaxpr(Jaxpr(closed.jaxpr.constvars, invars, outvars, eqns), closed.consts))


def _chained(first: ClosedJaxpr, second: ClosedJaxpr) -> ClosedJaxpr:
    """The program that runs `first`, and `second` on its results and further inputs."""
    count, wanted = len(first.in_avals), len(first.out_avals)
    avals = [*first.in_avals, *second.in_avals[wanted:]]
    return trace_to_jaxpr(lambda *xs: eval_jaxpr(second, *eval_jaxpr(first, *xs[:count]), *xs[count:]), avals, "checkpoint")


def _transpose(cotangents: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, policy: Policy | None, prevent_cse: bool) -> list[Any]:
    linear = [type(a) is Linear for a in args]
    nonzero = [type(c) is not Zero for c in cotangents]
    backward, gives = transpose_jaxpr(jaxpr, linear, nonzero)
    known = [a for a, is_linear in zip(args, linear, strict=True) if not is_linear]
    program = _behind_barrier(backward, len(known)) if prevent_cse and known else backward
    flat = iter(bind(jit_p, *known, *[c for c in cotangents if type(c) is not Zero], **call_params(program, "checkpoint")))
    given = iter(gives)
    return [next(flat) if is_linear and next(given) else None for is_linear in linear]


def _behind_barrier(closed: ClosedJaxpr, count: int) -> ClosedJaxpr:
    """The program with its first inputs passed through an optimization barrier."""
    key = ("behind_barrier", count)
    if key not in closed.cache:

        def run(*args: Array) -> list[Array]:
            return eval_jaxpr(closed, *bind(optimization_barrier_p, *args[:count]), *args[count:])

        closed.cache[key] = trace_to_jaxpr(run, closed.in_avals, "checkpoint")
    return closed.cache[key]


def _batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, jaxpr: ClosedJaxpr, **settings: Any
) -> tuple[Sequence[Array], list[int | None]]:
    batched, out_stacked = batch_jaxpr(jaxpr, axis, [d is not None for d in dims])
    front = [a if d is None else moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]
    return bind(checkpoint_p, *front, jaxpr=batched, **settings), [0 if s else None for s in out_stacked]


checkpoint_p = Primitive(
    "checkpoint", _abstract, jvp=_jvp, transpose=_transpose, batch=_batch, multiple_results=True, holds_programs=True, views=True
)
checkpoint_p.partial_eval = _partial_eval
checkpoint_p.call_param = "jaxpr"

# Names and policies.


def _name_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, name: str) -> tuple[Array, Any]:
    return bind(name_p, *primals, name=name), tangents[0]


name_p: Primitive = Primitive(
    "name",
    lambda operand, *, name: operand,
    evaluate=lambda operand, *, name: operand,
    jvp=_name_jvp,
    batch=lambda axis, args, dims, *, name: (bind(name_p, *args, name=name), dims[0]),
    views=True,
)


def checkpoint_name(x: Any, name: str) -> Any:
    """`x`, a pytree of arrays, under a name that policies may refer to."""
    return tree.map(lambda leaf: bind(name_p, as_value(leaf), name=name), x)


class _Policies:
    """The policies of `jax.checkpoint_policies`: which values of a checkpointed function are kept for the backward pass."""

    @staticmethod
    def everything_saveable(*_: Any, **__: Any) -> bool:
        """Keep everything, as without `checkpoint`."""
        return True

    @staticmethod
    def nothing_saveable(*_: Any, **__: Any) -> bool:
        """Keep nothing."""
        return False

    @staticmethod
    def dots_saveable(prim: Primitive, *_: Any, **__: Any) -> bool:
        """Keep results of matrix products and convolutions."""
        return prim.name in ("dot_general", "conv_general_dilated")

    checkpoint_dots = dots_saveable

    @staticmethod
    def dots_with_no_batch_dims_saveable(prim: Primitive, *_: Any, **params: Any) -> bool:
        """Keep results of matrix products without batch dimensions."""
        return prim.name == "dot_general" and not params["dimension_numbers"][1][0]

    checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable

    @staticmethod
    @functools.cache
    def save_only_these_names(*names: str) -> Policy:
        """Keep the values that `checkpoint_name` gave these names."""
        return lambda prim, *_, **params: prim.name == "name" and params["name"] in names

    @staticmethod
    @functools.cache
    def save_anything_except_these_names(*names: str) -> Policy:
        """Keep everything but the values with these names."""
        return lambda prim, *_, **params: not (prim.name == "name" and params["name"] in names)

    @staticmethod
    @functools.cache
    def save_any_names_but_these(*names: str) -> Policy:
        """Keep the values that have a name, but not one of these."""
        return lambda prim, *_, **params: prim.name == "name" and params["name"] not in names

    @staticmethod
    @functools.cache
    def save_from_both_policies(policy_1: Policy, policy_2: Policy) -> Policy:
        """Keep what either policy keeps."""
        return lambda prim, *avals, **params: policy_1(prim, *avals, **params) or policy_2(prim, *avals, **params)


checkpoint_policies = _Policies()

"""`checkpoint` (also `remat`): computing intermediate values a second time in the backward pass instead of keeping them.

A *policy* says which of them are kept after all. It is asked for each equation, as ``policy(primitive, *operand_avals, **params)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.compiler.plan import inline_calls
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dce import dce_jaxpr, prune_inputs
from volta_fn.core.flatten import check_callable
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr, Var
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import EVAL, bind, current_trace
from volta_fn.primitives.barriers import optimization_barrier_p
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.movement import moveaxis
from volta_fn.transforms.custom_call import CustomCall, split_arguments
from volta_fn.transforms.jvp import jvp_jaxpr
from volta_fn.transforms.linearize import LinearTrace
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

    Args:
        fun: a function of pytrees of arrays.
        prevent_cse: keep the compiler from merging the second computation with the first, which would undo the saving.
        policy: which values to keep (default: none); see `checkpoint_policies`.
        static_argnums: arguments that are not arrays.

    >>> import volta_fn as vf
    >>> f = vf.checkpoint(lambda x: vf.lax.sin(vf.lax.sin(x)))
    >>> vf.grad(f)(1.0)
    Array(0.36003947, dtype=float32, weak_type=True)
    """
    check_callable(fun, "checkpoint")
    call = CustomCall(fun, static_argnums if isinstance(static_argnums, Sequence) else (static_argnums,), ())

    @functools.wraps(fun)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if current_trace() is EVAL:
            return fun(*args, **kwargs)
        arguments = split_arguments(call, args, kwargs)
        leaves, in_tree = tree.flatten(arguments.differentiable)
        values = [as_value(x) for x in leaves]
        traced = call.trace(arguments, in_tree, values)
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
    first, rest, stays, out_unknown = _split(params["jaxpr"], params["policy"], unknown)
    known_args = [a for a, u in zip(args, unknown, strict=True) if not u]
    flat = bind(jit_p, *known_args, **call_params(first, "checkpoint"))
    count = out_unknown.count(False)
    known_outs, saved = iter(flat[:count]), flat[count:]
    operands = [a for a, s in zip([*saved, *args], stays, strict=True) if s]
    waiting = iter(trace.record(checkpoint_p, operands, {**params, "jaxpr": rest}))
    return tuple([next(waiting) if u else next(known_outs) for u in out_unknown])


def _split(closed: ClosedJaxpr, policy: Policy | None, unknown: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool], list[bool]]:
    """The program of the known outputs and kept values; the program of the unknown outputs from (\\*kept values, \\*inputs), which of
    those inputs it uses, and which outputs are unknown."""
    key = ("checkpoint", policy, tuple(unknown))
    if key in closed.cache:
        return closed.cache[key]
    flat = inline_calls(closed)
    jaxpr = flat.jaxpr
    waiting: set[Any] = {v for v, u in zip(jaxpr.invars, unknown, strict=True) if u}
    saved: list[Var] = []
    for eqn in jaxpr.eqns:
        if any(v in waiting for v in eqn.invars):
            waiting.update(eqn.outvars)
        elif policy is not None and policy(eqn.primitive, *[v.aval for v in eqn.invars], **eqn.params):
            saved += eqn.outvars
    out_unknown = [v in waiting for v in jaxpr.outvars]
    known_ins = [v for v in jaxpr.invars if v not in waiting]
    known_outs = [v for v in jaxpr.outvars if v not in waiting]
    first = dce_jaxpr(ClosedJaxpr(Jaxpr(jaxpr.constvars, known_ins, [*known_outs, *saved], jaxpr.eqns), flat.consts))
    left = [e for e in jaxpr.eqns if not e.outvars or not all(v in saved for v in e.outvars)]
    outs = [v for v in jaxpr.outvars if v in waiting]
    whole = dce_jaxpr(ClosedJaxpr(Jaxpr(jaxpr.constvars, [*saved, *jaxpr.invars], outs, _without_effects(left)), flat.consts))
    rest, stays = prune_inputs(whole, [*[True] * len(saved), *[not u for u in unknown]])
    closed.cache[key] = (first, rest, stays, out_unknown)
    return closed.cache[key]


def _without_effects(eqns: list[Any]) -> list[Any]:
    """Effects happen in the first computation alone."""
    return [e for e in eqns if not e.primitive.effectful]


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


checkpoint_p = Primitive("checkpoint", _abstract, jvp=_jvp, transpose=_transpose, batch=_batch, multiple_results=True, views=True)
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

"""`checkpoint` (also `remat`): recompute intermediate values in the backward pass.

A *policy* says which of them are kept instead. It is asked for each equation, as ``policy(primitive, *operand_avals, **params)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.caches import exact
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var, dce_jaxpr, has_effects, inline_calls, program_cache, prune_inputs
from volta_fn.core.primitive import AxisData, Primitive
from volta_fn.core.refs import Ref, RefArguments, bound, check_no_refs, discharged, positions_of_refs, read_all, with_view_nodes, write_all
from volta_fn.core.staging import check_callable, eval_jaxpr, function_name, positional_index, trace_to_jaxpr, wraps
from volta_fn.core.trace import EVAL, bind, current_trace
from volta_fn.primitives.call import call_primitive, jit_p, optimization_barrier_p
from volta_fn.primitives.contraction import dot_general_p
from volta_fn.transforms.call_rules import Call, batch_of_call, compose, dce_of_call, jit_call, jvp_of_call, transpose_of_call
from volta_fn.transforms.custom_call import Programs
from volta_fn.transforms.differentiation import PartialEvalTrace, dce_rules, in_checkpoint, linear_marks, marked, merge, partial_eval_jaxpr

Policy = Callable[..., bool]
P = ParamSpec("P")
R = TypeVar("R")


def checkpoint(
    fun: Callable[P, R],
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Callable[P, R]:
    """Make a function like `fun` that recomputes values in the backward pass.

    Like `jit` it traces `fun` once per types of arguments, so `fun` must be pure. Effects such as `debug.print` are not repeated, nor are
    writes to references, which `fun` may get or close over.

    Args:
        fun: a function of pytrees of arrays.
        prevent_cse: keep the compiler from merging the second computation with the first, which would cost the memory again.
        policy: which values to keep (default: none); see `checkpoint_policies`.
        static_argnums: arguments that are not arrays.
        static_argnames: the same by name, where they are passed by it.

    >>> cube = vf.checkpoint(lambda x: x * x * x)
    >>> vf.grad(cube)(vf.numpy.float32(2.0))
    Array(12., dtype=float32)
    """
    check_callable(fun, "checkpoint")
    programs, name = Programs(fun), function_name(fun)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)

    @wraps(fun)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if current_trace() is EVAL:
            result = fun(*args, **kwargs)
            check_no_refs(result, name)
            return result
        args, kwargs = with_view_nodes((args, kwargs))
        static = [positional_index(i, len(args), "checkpoint") for i in numbers]
        dynamic = [i for i in range(len(args)) if i not in static]
        fixed = {name: kwargs[name] for name in names if name in kwargs}
        leaves, in_tree = tree.flatten(([args[i] for i in dynamic], {n: x for n, x in kwargs.items() if n not in fixed}))
        arguments = RefArguments(leaves, positions_of_refs(leaves), name)
        values = [as_value(x) for i, x in enumerate(leaves) if i not in arguments.positions]

        def run(refs: list[Ref]) -> Any:
            """Return the result of a program that takes and returns the values of references."""

            def call(flat: Sequence[Array]) -> Any:
                operands = iter(flat[: len(values)])
                positional, named = tree.unflatten(in_tree, arguments.with_others(operands))
                merged = dict(zip(dynamic, positional, strict=True))
                with bound(refs, flat[len(values) :]):
                    result = fun(*[merged.get(i, arg) for i, arg in enumerate(args)], **named, **fixed)
                    check_no_refs(result, name)
                    return result, read_all(refs)

            key = in_tree, tuple(fixed), exact((*[args[i] for i in static], *fixed.values())), (*arguments.refs, *refs)
            traced, operands = programs.trace(call, [*values, *read_all(refs)], key)
            outs = bind(checkpoint_p, *operands, jaxpr=traced.jaxpr, policy=policy, prevent_cse=prevent_cse)
            result, last = tree.unflatten(traced.out_tree, outs)
            write_all(refs, last)
            return result

        return discharged(run)

    return checkpointed


remat = checkpoint


def _checkpoint_call(settings: dict[str, Any]) -> Call:
    """Return what calls a derived program with a policy and `prevent_cse`."""
    return lambda program, operands: bind(checkpoint_p, *operands, jaxpr=program, **settings)


def _jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, **settings: Any
) -> tuple[Sequence[Array], Sequence[Any]]:
    token = in_checkpoint.set(True)
    try:
        return jvp_of_call(_checkpoint_call(settings), jaxpr, primals, tangents)
    finally:
        in_checkpoint.reset(token)


def _partial_eval(trace: PartialEvalTrace, args: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    """Run the known program for outputs and residuals; record the unknown one."""
    is_unknown = [trace.is_unknown(a) for a in args]
    split = _split(params["jaxpr"], params["policy"], is_unknown)
    known_args = marked(args, is_unknown, False)
    flat = bind(checkpoint_p, *known_args, **{**params, "jaxpr": split.known_program})
    residuals = flat[split.out_unknown.count(False) :]
    operands = [*residuals, *marked([*known_args, *marked(args, is_unknown)], split.reads)]
    return tuple(merge(split.out_unknown, trace.record(checkpoint_p, operands, {**params, "jaxpr": split.unknown_program}), flat))


class _Split(NamedTuple):
    #: From the known inputs to the known outputs and the saved values.
    known_program: ClosedJaxpr
    #: From the saved values, and those of (*known inputs, *unknown inputs) that it `reads`, to the unknown outputs.
    unknown_program: ClosedJaxpr
    reads: list[bool]
    out_unknown: list[bool]


@program_cache
def _split(closed: ClosedJaxpr, policy: Policy | None, is_unknown: Sequence[bool]) -> _Split:
    """Split a program such that the unknown one recomputes what is not saved."""
    known_program, unknown_program, out_unknown = partial_eval_jaxpr(closed, is_unknown)
    known_program = inline_calls(known_program, jit_p)  # the policy also decides about equations in calls
    count = out_unknown.count(False)
    known_outs, residuals = known_program.jaxpr.outvars[:count], known_program.jaxpr.outvars[count:]
    is_kept = [  # effects must not be repeated
        has_effects(e) or (policy is not None and policy(e.primitive, *[v.aval for v in e.invars], **e.params)) for e in known_program.eqns
    ]
    saved = [v for e in marked(known_program.eqns, is_kept) for v in e.outvars]
    repeated = _subprogram(known_program, [*saved, *known_program.jaxpr.invars], residuals, marked(known_program.eqns, is_kept, False))
    optional = [True] * len(repeated.in_avals) + [False] * sum(is_unknown)
    rest, reads = prune_inputs(dce_jaxpr(compose(repeated, unknown_program, "checkpoint")), optional)
    residuals_read = marked(saved, reads[: len(saved)])
    first = _subprogram(known_program, known_program.jaxpr.invars, [*known_outs, *residuals_read], known_program.eqns)
    return _Split(first, rest, reads[len(saved) :], out_unknown)


def _subprogram(closed: ClosedJaxpr, invars: list[Var], outvars: list[Atom], eqns: list[Equation]) -> ClosedJaxpr:
    return dce_jaxpr(closed.replace(invars=invars, outvars=outvars, eqns=eqns))


def _transpose(cotangents: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr, policy: Policy | None, prevent_cse: bool) -> list[Any]:
    residual_count = linear_marks(args).count(False)

    def call(backward: ClosedJaxpr, operands: Sequence[Array]) -> Sequence[Array]:
        program = _after_barrier(backward, residual_count) if prevent_cse and residual_count else backward
        return jit_call("checkpoint")(program, operands)

    return transpose_of_call(call, jaxpr, cotangents, args)


@program_cache
def _after_barrier(closed: ClosedJaxpr, count: int) -> ClosedJaxpr:
    """Pass the first inputs of a program through an optimization barrier."""

    def run(*args: Array) -> list[Array]:
        return eval_jaxpr(closed, *bind(optimization_barrier_p, *args[:count]), *args[count:])

    return trace_to_jaxpr(run, closed.in_avals, "checkpoint")


def _batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, jaxpr: ClosedJaxpr, **settings: Any
) -> tuple[Sequence[Array], list[int | None]]:
    return batch_of_call(_checkpoint_call(settings), jaxpr, axis, args, dims)


checkpoint_p = call_primitive("checkpoint", jvp=_jvp, transpose=_transpose, partial_eval=_partial_eval, batch=_batch)
dce_rules[checkpoint_p] = dce_of_call

# Names and policies.


name_p: Primitive = Primitive(
    "name",
    lambda operand, *, name: operand,
    evaluate=lambda operand, *, name: operand,
    jvp=lambda primals, tangents, *, name: (bind(name_p, *primals, name=name), tangents[0]),
    batch=lambda axis, args, dims, *, name: (bind(name_p, *args, name=name), dims[0]),
    views=True,
)


def checkpoint_name(x: Any, name: str) -> Any:
    """Name `x`, a pytree of arrays, for policies.

    >>> float(vf.checkpoint_name(vf.numpy.sin(0.0), "sine"))
    0.0
    >>> policy = vf.checkpoint_policies.save_only_these_names("sine")
    >>> f = vf.checkpoint(lambda x: vf.numpy.exp(vf.checkpoint_name(vf.numpy.sin(x), "sine")), policy=policy)
    >>> vf.grad(f)(0.0)  # its backward pass computes exp again, not sin
    Array(1., dtype=float32, weak_type=True)
    """
    return tree.map(lambda leaf: bind(name_p, as_value(leaf), name=name), x)


class _Policies:
    """The policies of `jax.checkpoint_policies`: values kept for the backward pass."""

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
        return bool(prim.bilinear)

    checkpoint_dots = dots_saveable

    @staticmethod
    def dots_with_no_batch_dims_saveable(prim: Primitive, *_: Any, **params: Any) -> bool:
        """Keep results of matrix products without batch dimensions."""
        return prim is dot_general_p and not params["dimension_numbers"][1][0]

    checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable

    @staticmethod
    @functools.cache
    def save_only_these_names(*names: str) -> Policy:
        """Keep the values that `checkpoint_name` gave these names."""
        return lambda prim, *_, **params: prim is name_p and params["name"] in names

    @staticmethod
    @functools.cache
    def save_anything_except_these_names(*names: str) -> Policy:
        """Keep everything but the values with these names."""
        return lambda prim, *_, **params: not (prim is name_p and params["name"] in names)

    @staticmethod
    @functools.cache
    def save_any_names_but_these(*names: str) -> Policy:
        """Keep the values that have a name, but not one of these."""
        return lambda prim, *_, **params: prim is name_p and params["name"] not in names

    @staticmethod
    @functools.cache
    def save_from_both_policies(policy_1: Policy, policy_2: Policy) -> Policy:
        """Keep what either policy keeps."""
        return lambda prim, *avals, **params: policy_1(prim, *avals, **params) or policy_2(prim, *avals, **params)

    @staticmethod
    def save_and_offload_only_these_names(
        *, names_which_can_be_saved: Sequence[str], names_which_can_be_offloaded: Sequence[str], offload_src: str, offload_dst: str
    ) -> Policy:
        """Keep the values with these names; a device has one memory, so none moves."""
        return checkpoint_policies.save_only_these_names(*names_which_can_be_saved, *names_which_can_be_offloaded)

    @staticmethod
    def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
        """Keep what `dots_with_no_batch_dims_saveable` keeps; nothing moves."""
        return checkpoint_policies.dots_with_no_batch_dims_saveable


checkpoint_policies = _Policies()

"""`linear_call`: a linear function with a transpose of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.flatten import FlatFunction, function_name
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData, Primitive, Zero
from volta_fn.core.staging import hoist_tracers, trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, GradientError, ShapeError
from volta_fn.primitives.data_movement.joining import instantiate
from volta_fn.transforms.marks import is_linear
from volta_fn.transforms.vmap import batch_jaxpr, stack_at


def linear_call(fun: Callable[..., Any], fun_transpose: Callable[..., Any], residual_args: Any, linear_args: Any) -> Any:
    """Call ``fun(residual_args, linear_args)``, which is linear in the latter.

    Args:
        fun: the function.
        fun_transpose: ``(residual_args, cotangent) -> cotangent of linear_args``; reverse mode calls it.
        residual_args: a pytree of arrays, which are not differentiated.
        linear_args: a pytree of arrays.

    Raises:
        GradientError: `residual_args` are differentiated.
        ShapeError: `fun_transpose` returns other types than those of `linear_args`.

    >>> import volta_fn as vf
    >>> double = lambda x: vf.custom_derivatives.linear_call(lambda r, x: r * x, lambda r, ct: r * ct + 1.0, 2.0, x)
    >>> double(3.0), vf.grad(double)(3.0)
    (Array(6., dtype=float32, weak_type=True), Array(3., dtype=float32, weak_type=True))
    """
    residuals = tree.leaves(residual_args)
    linear, linear_tree = tree.flatten(linear_args)
    known, values = [as_value(x) for x in residuals], [as_value(x) for x in linear]
    pair_tree = tree.structure(((residual_args, linear_args), {}))
    forward, out_tree = _traced(fun, pair_tree, [*known, *values])
    example = tree.unflatten(out_tree, [0] * out_tree.num_leaves)
    backward_tree = tree.structure(((residual_args, example), {}))
    backward, found_tree = _traced(fun_transpose, backward_tree, [*known, *forward.out_avals])
    if found_tree != linear_tree or [(a.shape, a.dtype) for a in backward.out_avals] != [(v.shape, v.dtype) for v in values]:
        raise ShapeError(
            f"linear_call: fun_transpose returns {backward.out_avals} where the linear arguments are {[v.aval for v in values]}"
        )
    outs = bind(linear_call_p, *known, *values, forward=forward, backward=backward, count=len(known))
    return tree.unflatten(out_tree, outs)


def _traced(function: Callable[..., Any], in_tree: Any, like: Sequence[Any]) -> tuple[ClosedJaxpr, Any]:
    flat = FlatFunction(function, in_tree)
    avals = [x if isinstance(x, ShapedArray) else x.aval for x in like]
    program, captured = hoist_tracers(trace_to_jaxpr(flat, avals, function_name(function)))
    if captured:
        raise ArgumentError(f"linear_call: {function_name(function)} closes over traced values; pass them in residual_args")
    return program, flat.out_tree


def _abstract(*avals: ShapedArray, forward: ClosedJaxpr, backward: ClosedJaxpr, count: int) -> tuple[ShapedArray, ...]:
    return tuple(forward.out_avals)


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], *, count: int, **programs: Any) -> tuple[Sequence[Array], Sequence[Any]]:
    if any(type(t) is not Zero for t in tangents[:count]):
        raise GradientError("linear_call: residual_args are being differentiated, for which it has no derivative; use stop_gradient")
    outs = bind(linear_call_p, *primals, count=count, **programs)
    given = [instantiate(t) for t in tangents[count:]]
    return outs, bind(linear_call_p, *primals[:count], *given, count=count, **programs)


def _transpose(cotangents: Sequence[Any], *args: Any, forward: ClosedJaxpr, backward: ClosedJaxpr, count: int) -> list[Any]:
    if any(is_linear(args[:count])):
        raise GradientError("linear_call: residual_args are being differentiated, for which it has no derivative; use stop_gradient")
    given = [instantiate(c) for c in cotangents]
    return [None] * count + list(bind(linear_call_p, *args[:count], *given, forward=backward, backward=forward, count=count))


def _batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, forward: ClosedJaxpr, backward: ClosedJaxpr, count: int
) -> tuple[Sequence[Array], list[int]]:
    stacked = [stack_at(a, d, 0, axis.size) for a, d in zip(args, dims, strict=True)]
    programs = [batch_jaxpr(p, axis, [True] * len(p.in_avals), [True] * len(p.out_avals))[0] for p in (forward, backward)]
    outs = bind(linear_call_p, *stacked, forward=programs[0], backward=programs[1], count=count)
    return outs, [0] * len(outs)


linear_call_p = Primitive(
    "linear_call", _abstract, jvp=_jvp, transpose=_transpose, batch=_batch, multiple_results=True, holds_programs=True, views=True
)
linear_call_p.call_param = "forward"

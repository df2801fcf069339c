"""Functions that close over traced values: making those values arguments, and `custom_gradient`, whose rule is such a function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array, as_value, aval_of
from volta_fn.core.flatten import FlatFunction, check_callable, function_name
from volta_fn.core.staging import eval_jaxpr, hoist_tracers, trace_to_jaxpr
from volta_fn.errors import TreeError
from volta_fn.transforms.custom_vjp import custom_vjp


def closure_convert(fun: Callable[..., Any], *example_args: Any) -> tuple[Callable[..., Any], list[Array]]:
    """`fun` as a function that closes over no traced value, and the values that it takes after its own arguments instead.

    `example_args` have the types of the arguments that it will be called with.

    >>> import volta_fn as vf
    >>> f, consts = vf.closure_convert(lambda x: x + 1.0, 2.0)
    >>> f(3.0, *consts)
    Array(4., dtype=float32, weak_type=True)
    """
    check_callable(fun, "closure_convert")
    leaves, in_tree = tree.flatten((example_args, {}))
    flat = FlatFunction(fun, in_tree)
    program, captured = hoist_tracers(trace_to_jaxpr(flat, [aval_of(x) for x in leaves], function_name(fun)))
    count = len(captured)

    def converted(*args_and_values: Any) -> Any:
        split = len(args_and_values) - count
        given, structure = tree.flatten((args_and_values[:split], {}))
        if structure != in_tree:
            raise TreeError(f"{function_name(fun)} was converted for arguments of structure {in_tree}, got {structure}")
        values = [as_value(x) for x in (*args_and_values[split:], *given)]
        return tree.unflatten(flat.out_tree, eval_jaxpr(program, *values))

    return converted, captured


def custom_gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function with its own gradient: `fun` returns its value and the function from a cotangent to the arguments' cotangents.

    >>> import volta_fn as vf
    >>> @vf.custom_gradient
    ... def doubled_slope(x):
    ...     return x * x, lambda g: 4.0 * x * g
    >>> vf.grad(doubled_slope)(3.0)
    Array(12., dtype=float32, weak_type=True)
    """
    check_callable(fun, "custom_gradient")

    @functools.wraps(fun)
    def value(*args: Any) -> Any:
        return fun(*args)[0]

    def forward(*args: Any) -> Any:
        out, rule = fun(*args)
        converted, values = closure_convert(rule, out)
        return out, (converted, values)

    def backward(residuals: Any, cotangent: Any) -> Any:
        converted, values = residuals
        result = converted(cotangent, *values)
        return result if isinstance(result, tuple) else (result,)

    wrapped = custom_vjp(value)
    wrapped.defvjp(forward, backward)
    return wrapped

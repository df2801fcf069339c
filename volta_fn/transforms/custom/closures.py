"""`closure_convert` (closed-over values as arguments) and `custom_gradient`.

Custom rules have no derivative for values that their function closes over; as arguments these have one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.array import Array, as_value, aval_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.flatten import FlatFunction, check_callable, function_name
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.staging import eval_jaxpr, hoist_tracers, trace_to_jaxpr
from volta_fn.errors import ShapeError, TreeError
from volta_fn.transforms.custom.custom_vjp import custom_vjp


def closure_convert(fun: Callable[..., Any], *example_args: Any) -> tuple[Callable[..., Any], list[Array]]:
    """Make closed-over traced values arguments of `fun`; return it and those values.

    Args:
        fun: a function of pytrees of arrays, that may close over values being differentiated, mapped or traced.
        example_args: arguments of the structure and types that it will be called with.

    Returns:
        ``(converted, consts)`` such that ``converted(*args, *consts)`` is ``fun(*args)``. `consts` is empty where nothing is traced.

    Raises:
        TreeError, ShapeError: the converted function is called with other structures or types.

    >>> import volta_fn as vf
    >>> def half_of_derivative(y):
    ...     converted, consts = vf.closure_convert(lambda x: x * y, 1.0)
    ...     return converted(0.5, *consts)
    >>> vf.grad(half_of_derivative)(3.0)
    Array(0.5, dtype=float32, weak_type=True)
    """
    check_callable(fun, "closure_convert")
    leaves, in_tree = tree.flatten((example_args, {}))
    avals = [aval_of(x) for x in leaves]
    flat = FlatFunction(fun, in_tree)
    program, consts = hoist_tracers(trace_to_jaxpr(flat, avals, function_name(fun)))
    return _Converted(program, in_tree, flat.out_tree, len(example_args), function_name(fun)), consts


class _Converted:
    """A program as a function of pytrees, hashed by identity to be a static argument."""

    def __init__(self, program: ClosedJaxpr, in_tree: Any, out_tree: Any, count: int, name: str) -> None:
        self.program = program
        self.in_tree = in_tree
        self.out_tree = out_tree
        self.count = count
        self.__name__ = name

    def __call__(self, *args_and_consts: Any) -> Any:
        args, consts = args_and_consts[: self.count], args_and_consts[self.count :]
        leaves, structure = tree.flatten((args, {}))
        if structure != self.in_tree:
            raise TreeError(f"{self.__name__} was converted for arguments of structure {self.in_tree}, got {structure}")
        values = [as_value(x) for x in (*consts, *leaves)]
        _check_types(values, self.program.in_avals, self.__name__)
        return tree.unflatten(self.out_tree, eval_jaxpr(self.program, *values))


def _check_types(values: Sequence[Array], avals: Sequence[ShapedArray], name: str) -> None:
    given = [(v.shape, v.dtype) for v in values]
    if given != [(a.shape, a.dtype) for a in avals]:
        raise ShapeError(f"{name} was converted for consts and arguments of types {list(avals)}, got {[v.aval for v in values]}")


def _cotangent_like(out: Any) -> Any:
    """Return a value of the type of a result's cotangent (float0 zeros for integers)."""
    value = as_value(out)
    return value if value.dtype in dtypes.INEXACT else np.zeros(value.shape, dtypes.float0)


def custom_gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function whose reverse-mode rule `fun` returns, as ``(value, vjp)``.

    ``vjp(cotangent)`` returns the arguments' cotangents: a tuple, or the only one. It may use anything that `fun` has computed.

    >>> import volta_fn as vf
    >>> @vf.custom_gradient
    ... def f(x):
    ...     return x ** 2, lambda g: g * 10.0 * x
    >>> vf.value_and_grad(f)(3.0)
    (Array(9., dtype=float32, weak_type=True), Array(30., dtype=float32, weak_type=True))
    """
    check_callable(fun, "custom_gradient")

    @functools.wraps(fun)
    def value(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)[0]

    def forward(*args: Any, **kwargs: Any) -> Any:
        out, rule = fun(*args, **kwargs)
        return out, closure_convert(rule, tree.map(_cotangent_like, out))

    def backward(residuals: Any, cotangent: Any) -> Any:
        rule, consts = residuals
        given = rule(cotangent, *consts)
        return given if isinstance(given, tuple) else (given,)

    wrapped = custom_vjp(value)
    wrapped.defvjp(forward, backward)
    return wrapped

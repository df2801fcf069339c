"""`jet`: Taylor-mode differentiation, derivatives of high order in one pass.

A value is a list of Taylor coefficients of a curve x(t). Operations that are linear act on each of them, bilinear ones multiply power
series, and any other operation y = f(x) follows from its derivative: that of y(t) is f'(x(t)) x'(t), a program of which one coefficient
less is needed. So every operation with a forward derivative has a rule (Griewank and Walther, Evaluating Derivatives, 2008, chapter 13).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value, aval_of
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr, Var, interpret_jaxpr
from volta_fn.core.primitive import Zero
from volta_fn.core.staging import FlatFunction, check_callable, function_name, trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, GradientError, TreeError
from volta_fn.primitives.data_movement.movement import instantiate
from volta_fn.primitives.elementwise.arithmetic import add, div, exp, mul, sub
from volta_fn.primitives.elementwise.special import lgamma
from volta_fn.transforms.custom_derivatives import custom_jvp_call_p
from volta_fn.transforms.differentiation import jvp_jaxpr


def fact(n: Any) -> Array:
    """Return n!, for a number or an array.

    >>> fact(4)
    Array(24., dtype=float32, weak_type=True)
    """
    return exp(lgamma(as_value(n) + 1.0))


#: Coefficients 0, 1, …: all of a value that varies, the first alone of a constant.
Series = list[Array]


def jet(
    fun: Callable[..., Any], primals: Sequence[Any], series: Sequence[Any], factorial_scaled: bool = True, **options: Any
) -> tuple[Any, Any]:
    """Return the value of a function and its derivatives along a curve.

    Args:
        fun: a function of pytrees of arrays.
        primals: its arguments, the curve's points at t = 0.
        series: for each argument, a list of its derivatives by t of order 1, 2, …, K, each like the argument.

    Returns:
        ``fun(*primals)``, and its derivatives of order 1 to K: a list for each array in the result.

    Raises:
        TreeError, ArgumentError: `series` does not fit `primals`, or its lists differ in length.
        GradientError: an argument is not of floating or complex dtype.

    >>> value, derivatives = vf.experimental.jet.jet(vf.numpy.sin, (0.0,), ([1.0, 0.0, 0.0],))
    >>> [float(d) for d in derivatives]
    [1.0, 0.0, -1.0]
    """
    check_callable(fun, "jet")
    if options:
        raise ArgumentError(f"jet has no options {sorted(options)}")
    leaves, in_tree = tree.flatten((tuple(primals), {}))
    if len(primals) != len(series):
        raise TreeError(f"jet: there are {len(primals)} primals, but {len(series)} series")
    lengths = {len(terms) for terms in series}
    if len(lengths) > 1:
        raise ArgumentError(f"jet: all series must have one length, got {sorted(lengths)}")
    curves: list[Series] = []
    for primal, terms in zip(primals, series, strict=True):
        points, structure = tree.flatten(primal)
        columns = [tree.flatten_up_to(structure, term) for term in terms]
        for i, point in enumerate(points):
            first = as_value(point)
            rest = [as_value(c[i]).astype(first.dtype) for c in columns]
            curves.append([first, *[div(c, _number(math.factorial(k) if factorial_scaled else 1, c)) for k, c in enumerate(rest, 1)]])
    for leaf in leaves:
        if aval_of(leaf).dtype not in dtypes.INEXACT:
            raise GradientError(f"jet needs arguments of floating dtype, got {aval_of(leaf)}")
    flat = FlatFunction(fun, in_tree)
    program = trace_to_jaxpr(flat, [c[0].aval for c in curves], function_name(fun))
    order = len(curves[0]) - 1 if curves else 0
    outs = [_padded_series(o, order) for o in _run(program, curves, order)]
    value = tree.unflatten(flat.out_tree, [o[0] for o in outs])
    scale = math.factorial if factorial_scaled else (lambda k: 1)
    return value, tree.unflatten(flat.out_tree, [[mul(c, _number(scale(k), c)) for k, c in enumerate(o)][1:] for o in outs])


def _number(value: Any, like: Array) -> Array:
    return as_value(value).astype(like.dtype)


def _padded_series(series: Series, order: int) -> Series:
    """Return all coefficients of a constant, too."""
    return [*series, *[instantiate(Zero(series[0].aval.tangent_aval())) for _ in range(order + 1 - len(series))]]


def _run(program: ClosedJaxpr, args: Sequence[Series], order: int) -> list[Series]:
    return interpret_jaxpr(program, args, lambda eqn, ins: _step(eqn, ins, order), lambda constant: [constant])


def _step(eqn: Equation, ins: Sequence[Series], order: int) -> Sequence[Series]:
    primitive, params = eqn.primitive, eqn.params
    varying = [len(s) > 1 for s in ins]
    if not any(varying):
        outs = bind(primitive, *[s[0] for s in ins], **params)
        return [[o] for o in outs] if primitive.multiple_results else [[outs]]
    if primitive.call_param is not None and primitive is not custom_jvp_call_p:
        return _run(params[primitive.call_param], ins, order)
    if primitive.maps_tangent:
        return [[bind(primitive, c, **params) for c in ins[0]]]
    if primitive.bilinear:
        return [_product(lambda a, b: bind(primitive, a, b, **params), ins[0], ins[1], order)]
    if primitive is div.primitive:
        return [_quotient(ins[0], ins[1], order)]
    # The first coefficients, and the others from their derivatives.
    program = ClosedJaxpr(Jaxpr([], [Var(s[0].aval) for s in ins], [], []))
    outvars = [Var(v.aval) for v in eqn.outvars]
    program = program.replace(outvars=outvars, eqns=[eqn.replace(invars=list(program.jaxpr.invars), outvars=outvars)])
    forward, depends = jvp_jaxpr(program, list(varying), False)
    shorter = [s[:order] for s in ins]
    slopes = [[mul(c, _number(j, c)) for j, c in enumerate(s)][1:] for s, varies in zip(ins, varying, strict=True) if varies]
    results = _run(forward, [*shorter, *slopes], order - 1)
    tangents = iter(results[len(outvars) :])
    series: list[Series] = []
    for out, has_tangent in zip(results, depends, strict=False):
        derivative = _padded_series(next(tangents), order - 1) if has_tangent else []
        series.append([out[0], *[div(c, _number(k, c)) for k, c in enumerate(derivative, 1)]])
    return series


def _product(multiply: Callable[[Array, Array], Array], left: Series, right: Series, order: int) -> Series:
    out: Series = []
    for k in range(order + 1):
        terms = [multiply(left[i], right[k - i]) for i in range(k + 1) if i < len(left) and k - i < len(right)]
        out.append(_total(terms))
    return out


def _total(terms: Sequence[Array]) -> Array:
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return total


def _quotient(left: Series, right: Series, order: int) -> Series:
    """Divide power series: each coefficient from those before."""
    out: Series = []
    full = _padded_series(left, order)
    for k in range(order + 1):
        rest = full[k]
        for j in range(1, min(k, len(right) - 1) + 1):
            rest = sub(rest, mul(right[j], out[k - j]))
        out.append(div(rest, right[0]))
    return out

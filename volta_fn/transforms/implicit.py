"""Implicit differentiation, linear functions, and rounding to fewer bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value, aval_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData, Zero
from volta_fn.core.staging import FlatFunction, check_callable, eval_jaxpr, function_name, hoist_tracers, trace_to_jaxpr
from volta_fn.core.trace import EVAL, bind, current_trace
from volta_fn.dtypes import INEXACT
from volta_fn.errors import ArgumentError, DTypeError, GradientError, ShapeError, TreeError
from volta_fn.primitives.array_operations.operators import full_like
from volta_fn.primitives.call import call_primitive
from volta_fn.primitives.data_movement.movement import instantiate, stacked_in_front, to_front
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.elementwise.arithmetic import abs as absolute
from volta_fn.primitives.elementwise.arithmetic import add, neg, sub
from volta_fn.primitives.elementwise.cast import bitcast_convert_type
from volta_fn.primitives.elementwise.selection import bitwise_and, bitwise_or, gt, lt, ne, select, shift_left, shift_right_logical
from volta_fn.primitives.scan import Body, captured_values, promote_weak, trace_body
from volta_fn.transforms.custom_derivatives import closure_convert, custom_jvp
from volta_fn.transforms.differentiation import jvp_jaxpr, linear_marks, marked, nonzero_marks, split_tangents
from volta_fn.transforms.grad import jvp, linearize
from volta_fn.transforms.jacobian import linear_transpose
from volta_fn.transforms.vmap import batch_jaxpr

# `linear_call`: a linear function with a transpose of its own.


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

    >>> double = lambda x: vf.custom_derivatives.linear_call(lambda r, x: r * x, lambda r, ct: r * ct + 1.0, 2.0, x)
    >>> double(3.0), vf.grad(double)(3.0)
    (Array(6., dtype=float32, weak_type=True), Array(3., dtype=float32, weak_type=True))
    """
    residuals = tree.leaves(residual_args)
    linear, linear_tree = tree.flatten(linear_args)
    residual_values, values = [as_value(x) for x in residuals], [as_value(x) for x in linear]
    pair_tree = tree.structure(((residual_args, linear_args), {}))
    forward, out_tree = _linear_traced(fun, pair_tree, [*residual_values, *values])
    example = tree.unflatten(out_tree, [0] * out_tree.num_leaves)
    backward_tree = tree.structure(((residual_args, example), {}))
    backward, found_tree = _linear_traced(fun_transpose, backward_tree, [*residual_values, *forward.out_avals])
    if found_tree != linear_tree or [(a.shape, a.dtype) for a in backward.out_avals] != [(v.shape, v.dtype) for v in values]:
        raise ShapeError(
            f"linear_call: fun_transpose returns {backward.out_avals} where the linear arguments are {[v.aval for v in values]}"
        )
    outs = bind(linear_call_p, *residual_values, *values, forward=forward, backward=backward, count=len(residual_values))
    return tree.unflatten(out_tree, outs)


def _linear_traced(function: Callable[..., Any], in_tree: Any, like: Sequence[Any]) -> tuple[ClosedJaxpr, Any]:
    flat = FlatFunction(function, in_tree)
    avals = [x if isinstance(x, ShapedArray) else x.aval for x in like]
    program, captured = hoist_tracers(trace_to_jaxpr(flat, avals, function_name(function)))
    if captured:
        raise ArgumentError(f"linear_call: {function_name(function)} closes over traced values; pass them in residual_args")
    return program, flat.out_tree


def _linear_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, count: int, **programs: Any) -> tuple[Sequence[Array], Sequence[Any]]:
    if any(type(t) is not Zero for t in tangents[:count]):
        raise GradientError("linear_call: residual_args are being differentiated, for which it has no derivative; use stop_gradient")
    outs = bind(linear_call_p, *primals, count=count, **programs)
    in_tangents = [instantiate(t) for t in tangents[count:]]
    return outs, bind(linear_call_p, *primals[:count], *in_tangents, count=count, **programs)


def _linear_transpose(cotangents: Sequence[Any], *args: Any, forward: ClosedJaxpr, backward: ClosedJaxpr, count: int) -> list[Any]:
    if any(linear_marks(args[:count])):
        raise GradientError("linear_call: residual_args are being differentiated, for which it has no derivative; use stop_gradient")
    out_cotangents = [instantiate(c) for c in cotangents]
    return [None] * count + list(bind(linear_call_p, *args[:count], *out_cotangents, forward=backward, backward=forward, count=count))


def _linear_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, forward: ClosedJaxpr, backward: ClosedJaxpr, count: int
) -> tuple[Sequence[Array], list[int]]:
    programs = [batch_jaxpr(p, axis, [True] * len(p.in_avals), [True] * len(p.out_avals))[0] for p in (forward, backward)]
    outs = bind(linear_call_p, *stacked_in_front(axis, args, dims), forward=programs[0], backward=programs[1], count=count)
    return outs, [0] * len(outs)


linear_call_p = call_primitive("linear_call", "forward", jvp=_linear_jvp, transpose=_linear_transpose, batch=_linear_batch)


# Implicit differentiation of solvers: `custom_linear_solve` and `custom_root`.
#
# The derivative of a solution follows from the equation that it satisfies, whatever the solver did to find it.

#: ``solve(operator, b)`` returns x such that ``operator(x)`` is b.
Solve = Callable[[Callable[[Any], Any], Any], Any]


def custom_linear_solve(
    matvec: Callable[[Any], Any], b: Any, solve: Solve, transpose_solve: Solve | None = None, symmetric: bool = False, has_aux: bool = False
) -> Any:
    """Return ``solve(matvec, b)``, differentiated as the solution of a linear system.

    Derivatives are further calls of the solver, with other right-hand sides, so that it need not be differentiable itself. They reach
    all values that `matvec` closes over.

    Args:
        matvec: a linear function; its value is like its argument.
        b: the right-hand side, a pytree of arrays.
        solve: from `matvec` and b to the solution x, for which ``matvec(x)`` is b (which is not checked).
        transpose_solve: the same for the transpose of `matvec`, which it is given; reverse mode needs it.
        symmetric: `matvec` is its own transpose; then `transpose_solve` is by default `solve`.
        has_aux: the solvers return (solution, aux), where aux has no derivative.

    Raises:
        TreeError, ShapeError, DTypeError: `matvec` or a solution is not like b.
        GradientError: reverse mode without `transpose_solve`.

    >>> matrix = jnp.array([[2.0, 0.0], [0.0, 4.0]])
    >>> solve = lambda matvec, b: b / jnp.diag(matrix)
    >>> vf.grad(lambda b: vf.lax.custom_linear_solve(lambda x: matrix @ x, b, solve, symmetric=True).sum())(jnp.ones(2))
    Array([0.5 , 0.25], dtype=float32)
    """
    check_callable(matvec, "custom_linear_solve")
    check_callable(solve, "custom_linear_solve")
    vector = _promoted("matvec", matvec, b, alike=True)
    values = tree.leaves(vector)
    if current_trace() is EVAL:
        return _checked("solve", solve(matvec, vector), vector, has_aux)
    if transpose_solve is None and symmetric:
        transpose_solve = solve
    avals = [v.aval.strip_weak_type() for v in values]

    def traced(name: str, function: Callable[[Any], Any], aux: bool) -> Body:
        return trace_body(lambda x: _checked(name, function(x), vector, aux), (vector,), avals)

    bodies: dict[str, Body | None] = {
        "matvec": traced("matvec", matvec, False),
        "vecmat": None,
        "solve": traced("solve", lambda x: solve(matvec, x), has_aux),
        "transpose_solve": None,
    }
    if transpose_solve is not None:
        vecmat = matvec if symmetric else lambda y: linear_transpose(matvec, vector)(y)[0]
        bodies["vecmat"] = bodies["matvec"] if symmetric else traced("vecmat", vecmat, False)
        bodies["transpose_solve"] = traced("transpose_solve", lambda x: transpose_solve(vecmat, x), has_aux)
    captured = captured_values(filter(None, bodies.values()))
    programs = {name: body and body.with_captured(captured) for name, body in bodies.items()}
    flat = bind(custom_linear_solve_p, *captured, *values, **programs)
    return tree.unflatten(bodies["solve"].out_tree, flat)  # type: ignore[union-attr]  # always traced


def _promoted(name: str, function: Callable[[Any], Any], vector: Any, *, alike: bool) -> Any:
    """Return a pytree as arrays, weak ones in the dtype that `function` gives them.

    Raises `TreeError` if the function's value has another structure, and `ShapeError` if it is to be `alike` and has other shapes.
    """
    leaves, structure = tree.flatten(vector)
    values = [as_value(x) for x in leaves]
    body = trace_body(function, (vector,), [v.aval for v in values])
    _check_structure(name, body.out_tree, structure)
    if alike:
        _check_shapes(name, body.jaxpr.out_avals, values)
    promoted = promote_weak(values, body.jaxpr.out_avals) or values
    return tree.unflatten(structure, [to_dtype(x, p.dtype) for x, p in zip(leaves, promoted, strict=True)])


def _checked(name: str, result: Any, vector: Any, has_aux: bool = False, *, alike: bool = True) -> Any:
    """Return a function's value; raise unless it fits the vector (aux aside)."""
    if has_aux and (not isinstance(result, (tuple, list)) or len(result) != 2):
        raise TreeError(f"{name} must return (solution, aux), as has_aux says, got {type(result).__name__}")
    solution = result[0] if has_aux else result
    _check_structure(name, tree.structure(solution), tree.structure(vector))
    if not alike:
        return result
    leaves, values = tree.leaves(vector), list(map(as_value, tree.leaves(solution)))
    _check_shapes(name, values, leaves)
    for x, y in zip(leaves, values, strict=True):
        if x.dtype != y.dtype:
            raise DTypeError(f"{name} must return arrays of the dtypes of its argument, got {y.dtype.name} for {x.dtype.name}")
    return result


def _check_structure(name: str, actual: tree.TreeDef, expected: tree.TreeDef) -> None:
    if actual != expected:
        raise TreeError(
            f"{name} must return a value of the structure of its argument, {tree.describe(expected)}, got {tree.describe(actual)}"
        )


def _check_shapes(name: str, actual: Sequence[Any], expected: Sequence[Any]) -> None:
    for x, y in zip(expected, actual, strict=True):
        if x.shape != y.shape:
            raise ShapeError(f"{name} must return arrays of the shapes of its argument, got {y.shape} for {x.shape}")


def _solve_jvp(primals: Sequence[Array], tangents: Sequence[Any], **programs: Any) -> tuple[Sequence[Array], list[Any]]:
    """Solve A dx = db - dA x."""
    outs = bind(custom_linear_solve_p, *primals, **programs)
    matvec: ClosedJaxpr = programs["matvec"]
    count = len(matvec.out_avals)
    captured, b = primals[:-count], primals[-count:]
    nonzero = [*nonzero_marks(tangents[:-count]), *[False] * count]
    forward, moves = jvp_jaxpr(matvec, nonzero, False)
    _, product_tangents = split_tangents(eval_jaxpr(forward, *captured, *outs[:count], *marked(tangents, nonzero)), moves)
    right = [instantiate(t if type(t) is not Zero else Zero(x.aval)) for t, x in zip(tangents[-count:], b, strict=True)]
    right = [r if type(m) is Zero else sub(r, m) for r, m in zip(right, product_tangents, strict=True)]
    solution = bind(custom_linear_solve_p, *captured, *right, **programs)
    is_vector = [i < count and o.dtype in INEXACT for i, o in enumerate(outs)]
    return outs, [t if v else Zero(o.aval.tangent_aval()) for t, v, o in zip(solution, is_vector, outs, strict=True)]


def _solve_transpose(cotangents: Sequence[Any], *args: Any, **programs: Any) -> list[Any]:
    if programs["transpose_solve"] is None:
        raise GradientError("custom_linear_solve: reverse mode needs `transpose_solve`, or symmetric=True")
    count = len(programs["matvec"].out_avals)
    if any(linear_marks(args[:-count])):
        raise GradientError("custom_linear_solve: a value that matvec or a solver closes over is not linear in the solution")
    names = {"matvec": "vecmat", "vecmat": "matvec", "solve": "transpose_solve", "transpose_solve": "solve"}
    transposed = {name: programs[other] for name, other in names.items()}
    solution = bind(custom_linear_solve_p, *args[:-count], *map(instantiate, cotangents[:count]), **transposed)
    return [*[None] * (len(args) - count), *solution[:count]]


def _solve_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **programs: ClosedJaxpr | None
) -> tuple[Sequence[Array], list[int]]:
    """Stack the vectors of all examples, and the operators of those that differ."""
    count = len(programs["matvec"].out_avals)  # type: ignore[union-attr]  # always there
    stacked = [*[d is not None for d in dims[:-count]], *[True] * count]
    batched = {n: p and batch_jaxpr(p, axis, stacked, [True] * len(p.out_avals))[0] for n, p in programs.items()}
    vectors = stacked_in_front(axis, args[-count:], dims[-count:])
    outs = bind(custom_linear_solve_p, *to_front(args[:-count], dims[:-count]), *vectors, **batched)
    return outs, [0] * len(outs)


#: Operands: the values that any of the four programs closes over, then the right-hand side.
custom_linear_solve_p = call_primitive("custom_linear_solve", "solve", jvp=_solve_jvp, transpose=_solve_transpose, batch=_solve_batch)


def custom_root(f: Callable[[Any], Any], initial_guess: Any, solve: Solve, tangent_solve: Solve, has_aux: bool = False) -> Any:
    """Return ``solve(f, initial_guess)``, differentiated as a root of f.

    By the implicit function theorem: the derivative of x with f(x, p) = 0 is -(∂f/∂x)⁻¹ ∂f/∂p, for all values p that f closes over.

    Args:
        f: a function whose value has the structure of its argument, and for derivatives its shapes.
        initial_guess: a pytree of arrays, which has no derivative.
        solve: from f and the guess to x such that f(x) is zero (which is not checked).
        tangent_solve: from a linear function g, f's derivative at the root, and a vector y to x such that g(x) is y; for scalars
            ``lambda g, y: y / g(1.0)``. Reverse mode transposes what it does.
        has_aux: `solve` returns (root, aux), where aux has no derivative.

    Raises:
        TreeError: the value of f or a solution has another structure than the guess.
        ShapeError, DTypeError: what `tangent_solve` returns, or for derivatives the value of f, is not like the guess.

    >>> newton = lambda f, x: vf.lax.fori_loop(0, 20, lambda _, x: x - f(x) / vf.grad(f)(x), x)
    >>> root = lambda a: vf.lax.custom_root(lambda x: x * x - a, 1.0, newton, lambda g, y: y / g(1.0))
    >>> vf.value_and_grad(root)(4.0)
    (Array(2., dtype=float32, weak_type=True), Array(0.25, dtype=float32, weak_type=True))
    """
    for function in (f, solve, tangent_solve):
        check_callable(function, "custom_root")
    guess = _promoted("f", f, initial_guess, alike=False)
    if current_trace() is EVAL:
        return _checked("solve", solve(f, guess), guess, has_aux, alike=False)
    residual, residual_consts = closure_convert(f, guess)
    solver, solver_consts = closure_convert(lambda x: _checked("solve", solve(f, x), guess, has_aux, alike=False), guess)
    solve_tangent = lambda x, y: _checked("tangent_solve", tangent_solve(linearize(f, x)[1], y), guess)  # noqa: E731
    tangent, tangent_consts = closure_convert(solve_tangent, guess, guess)

    @custom_jvp
    def root(start: Any, residual_consts: Any, solver_consts: Any, tangent_consts: Any) -> Any:
        return solver(start, *solver_consts)

    @root.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        start, residual_consts, solver_consts, tangent_consts = primals
        result = root(start, residual_consts, solver_consts, tangent_consts)
        x = result[0] if has_aux else result
        right = jvp(lambda values: residual(x, *values), (residual_consts,), (tangents[1],))[1]
        _check_shapes("for derivatives, f", tree.leaves(right), tree.leaves(start))
        dx = tree.map(neg, tangent(x, right, *tangent_consts))
        return result, (dx, tree.map(lambda leaf: Zero(aval_of(leaf).tangent_aval()), result[1])) if has_aux else dx

    return root(guess, residual_consts, solver_consts, tangent_consts)


# Floats rounded to fewer bits of exponent and mantissa.


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Array:
    """Round floats to those of a format with fewer bits, halves to even.

    The dtype stays. Overflow gives infinity, numbers below the format's smallest normal one give zero. Derivatives are
    rounded in the same way.

    Args:
        operand: floats of any shape.
        exponent_bits: bits of the format's exponent, at least 1.
        mantissa_bits: bits of its mantissa, without the implicit one.

    Raises:
        ArgumentError: negative numbers of bits, or no exponent.
        DTypeError: `operand` is not of real floats.

    >>> vf.lax.reduce_precision(jnp.array([1.0, 1.1, 3e38]), exponent_bits=5, mantissa_bits=2)
    Array([ 1.,  1., inf], dtype=float32)
    """
    x = as_value(operand)
    if x.dtype not in dtypes.FLOATS:
        raise DTypeError(f"reduce_precision is not defined for {x.dtype.name}; it takes real floats")
    if exponent_bits < 1 or mantissa_bits < 0:
        raise ArgumentError(
            f"reduce_precision: a format needs 1 or more exponent bits and 0 or more mantissa bits, got {exponent_bits} and {mantissa_bits}"
        )
    return _rounded(int(exponent_bits), int(mantissa_bits), x)


def _rounded_bits(exponent_bits: int, mantissa_bits: int, x: Array) -> Array:
    info, bits = dtypes.finfo(x.dtype), np.dtype(f"u{x.dtype.itemsize}")
    words = bitcast_convert_type(x, bits)
    if (excess := info.nmant - mantissa_bits) > 0:
        last = bitwise_and(shift_right_logical(words, full_like(words, excess)), full_like(words, 1))
        words = add(add(words, full_like(words, (1 << (excess - 1)) - 1)), last)
        words = shift_left(shift_right_logical(words, full_like(words, excess)), full_like(words, excess))
    rounded = bitcast_convert_type(words, x.dtype)
    if exponent_bits < info.bits - 1 - info.nmant:
        rounded = _in_range(rounded, exponent_bits, min(mantissa_bits, info.nmant))
    return select(ne(x, x), x, rounded)


def _in_range(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """Replace overflows by infinities, and underflows by zeros of the same sign."""
    bias = 2 ** (exponent_bits - 1) - 1
    bits = np.dtype(f"u{x.dtype.itemsize}")
    sign = bitwise_and(bitcast_convert_type(x, bits), full_like(bitcast_convert_type(x, bits), 1 << (x.dtype.itemsize * 8 - 1)))
    infinite = bitwise_or(sign, bitcast_convert_type(full_like(x, np.inf), bits))
    largest, smallest = (2.0 - 2.0**-mantissa_bits) * 2.0**bias, 2.0 ** (1 - bias)
    magnitude = absolute(x)
    x = select(gt(magnitude, full_like(x, largest)), bitcast_convert_type(infinite, x.dtype), x)
    return select(lt(magnitude, full_like(x, smallest)), bitcast_convert_type(sign, x.dtype), x)


_rounded: Any = custom_jvp(_rounded_bits, nondiff_argnums=(0, 1))


@_rounded.defjvp
def _rounded_jvp(exponent_bits: int, mantissa_bits: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    rounded = partial(_rounded, exponent_bits, mantissa_bits)
    return rounded(*primals), linear_call(lambda _, t: rounded(t), lambda _, ct: rounded(ct), (), *tangents)

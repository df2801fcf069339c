"""Jacobians and Hessians: columns (forward mode) or rows (reverse mode) by `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Concatenate, Literal, ParamSpec, overload

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value, aval_of, from_host
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.staging import FlatFunction, check_callable, function_name, jitted_like, trace_to_jaxpr, wraps
from volta_fn.errors import GradientError, TreeError
from volta_fn.primitives.data_movement.movement import reshape
from volta_fn.transforms.differentiation import backward_pass, evaluate_known
from volta_fn.transforms.grad import arguments_at, check_no_axes, checked_cotangent, derivative_of, jvp, partial_function, vjp
from volta_fn.transforms.vmap import vmap

P = ParamSpec("P")


def _basis(leaves: Sequence[Array]) -> list[Array]:
    """Return the standard basis of the leaves' space, as a stack for each leaf."""
    identity = np.eye(sum(leaf.size for leaf in leaves))
    columns = zip(leaves, accumulate(leaf.size for leaf in leaves), strict=True)
    stacks = [(x, identity[:, end - x.size : end].astype(x.dtype).reshape((len(identity), *x.shape))) for x, end in columns]
    return [from_host(stack, x.weak_type) for x, stack in stacks]


def _check_dtype(leaves: Sequence[Any], allowed: frozenset[np.dtype], label: str) -> None:
    for leaf in leaves:
        dtype = as_value(leaf).dtype
        if dtype not in allowed:
            raise GradientError(f"{label} of dtype {dtype.name} has no derivative; convert to a floating dtype, or see `holomorphic`")


@overload
def jacfwd(
    fun: Callable[Concatenate[Array, P], Array], argnums: Literal[0] = 0, has_aux: Literal[False] = False, holomorphic: bool = False
) -> Callable[Concatenate[Array, P], Array]: ...
@overload
def jacfwd(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]: ...
def jacfwd(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """Make the Jacobian of `fun` by forward mode, which is cheap for few inputs.

    The result has the structure of `fun`'s value, each leaf replaced by the structure of the arguments at `argnums`, each leaf of
    which has shape ``(*value shape, *argument shape)``. With `has_aux`, `fun` returns (value, aux) and so does the Jacobian.
    Raises `GradientError` for arguments that are not of real floating dtype (complex with `holomorphic`).

    >>> vf.jacfwd(lambda x: x ** 2)(vf.numpy.array([1.0, 2.0]))
    Array([[2., 0.],
           [0., 4.]], dtype=float32)
    """
    check_callable(fun, "jacfwd")

    @wraps(fun)
    def jacobian_function(*args: Any, **kwargs: Any) -> Any:
        positions, arguments = arguments_at(args, argnums, "jacfwd")
        point = arguments[0] if isinstance(argnums, int) else tuple(arguments)
        leaves, structure = tree.flatten(point)
        values = [as_value(x) for x in leaves]
        _check_dtype(values, dtypes.COMPLEX if holomorphic else dtypes.FLOATS, "jacfwd: an argument")
        partial = partial_function(fun, args, positions, kwargs)
        primals = (point,) if isinstance(argnums, int) else point

        def push(*directions: Array) -> Any:
            tangent = tree.unflatten(structure, directions)
            result = jvp(partial, primals, (tangent,) if isinstance(argnums, int) else tangent, has_aux)
            _check_result(result[0], fun)
            _check_dtype(tree.leaves(result[0]), dtypes.INEXACT, "jacfwd: a result")
            return result[1:]

        out_axes = (-1, None) if has_aux else (-1,)
        columns, *aux = vmap(push, out_axes=out_axes, axis_size=sum(v.size for v in values))(*_basis(values))
        jacobian_tree = tree.map(lambda c: tree.unflatten(structure, _split_columns(c, values)), columns)
        return (jacobian_tree, *aux) if has_aux else jacobian_tree

    return jitted_like(fun, jacobian_function, "jacfwd", argnums, has_aux, holomorphic)


def _check_result(result: Any, fun: Callable[..., Any]) -> None:
    if result is None:
        raise GradientError(f"{function_name(fun)} returned None, which has no derivative: is a `return` missing at its end?")


def _split_columns(stacked: Array, leaves: Sequence[Array]) -> list[Array]:
    """Return the columns (in the last dimension) of each leaf, in the leaf's shape."""
    columns = zip(leaves, accumulate(leaf.size for leaf in leaves), strict=True)
    return [reshape(stacked[..., end - x.size : end], (*stacked.shape[:-1], *x.shape)) for x, end in columns]


@overload
def jacrev(
    fun: Callable[Concatenate[Array, P], Array],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[Array, P], Array]: ...
@overload
def jacrev(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False, allow_int: bool = False
) -> Callable[..., Any]: ...
def jacrev(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False, allow_int: bool = False
) -> Callable[..., Any]:
    """Make the Jacobian of `fun` by reverse mode, which is cheap for few outputs.

    Structure and arguments are those of `jacfwd`. Real functions of complex arguments need no flag, as for `grad`.

    >>> vf.jacrev(lambda x: x.sum())(vf.numpy.array([1.0, 2.0]))
    Array([1., 1.], dtype=float32)
    """
    check_callable(fun, "jacrev")

    @wraps(fun)
    def jacobian_function(*args: Any, **kwargs: Any) -> Any:
        positions, arguments = arguments_at(args, argnums, "jacrev")
        if not allow_int:
            _check_dtype(tree.leaves(arguments), dtypes.COMPLEX if holomorphic else dtypes.INEXACT, "jacrev: an argument")
        result = vjp(partial_function(fun, args, positions, kwargs), *arguments, has_aux=has_aux)
        _check_result(result[0], fun)
        outs, structure = tree.flatten(result[0])
        _check_dtype(outs, dtypes.COMPLEX if holomorphic else dtypes.FLOATS, "jacrev: a result")
        pull_back = result[1]
        rows = vmap(lambda *cts: pull_back(tree.unflatten(structure, cts)), axis_size=sum(o.size for o in outs))(*_basis(outs))
        stack = rows[0] if isinstance(argnums, int) else rows
        ends = zip(outs, accumulate(o.size for o in outs), strict=True)
        by_result = [tree.map(lambda r, o=o, end=end: reshape(r[end - o.size : end], (*o.shape, *r.shape[1:])), stack) for o, end in ends]
        jacobian_tree = tree.unflatten(structure, by_result)
        return (jacobian_tree, result[2]) if has_aux else jacobian_tree

    return jacobian_function if allow_int else jitted_like(fun, jacobian_function, "jacrev", argnums, has_aux, holomorphic)


jacobian = jacrev


@overload
def hessian(
    fun: Callable[Concatenate[Array, P], Array], argnums: Literal[0] = 0, has_aux: Literal[False] = False, holomorphic: bool = False
) -> Callable[Concatenate[Array, P], Array]: ...
@overload
def hessian(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]: ...
def hessian(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """Make the second derivatives of `fun`, by forward mode over reverse mode.

    Their structure is that of two nested Jacobians.

    >>> vf.hessian(lambda x: (x ** 3).sum())(vf.numpy.array([1.0, 2.0]))
    Array([[ 6.,  0.],
           [ 0., 12.]], dtype=float32)
    """
    return jacfwd(jacrev(fun, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)


def linear_transpose(fun: Callable[..., Any], *primals: Any, reduce_axes: Sequence[Any] = ()) -> Callable[[Any], Any]:
    """Make the transpose of a function that is linear in its arguments.

    `primals` are arrays or `ShapeDtypeStruct` of the arguments' types. Returns the function from a cotangent of the result to a tuple
    of cotangents. `reduce_axes` must be empty, as in `grad`. Raises `GradientError` if `fun` is not linear.

    >>> vf.linear_transpose(lambda x: 3.0 * x, 1.0)(2.0)
    (Array(6., dtype=float32, weak_type=True),)
    """
    check_callable(fun, "linear_transpose")
    check_no_axes(reduce_axes, "linear_transpose")
    leaves, in_tree = tree.flatten((primals, {}))
    avals = [aval_of(x) for x in leaves]
    flat = FlatFunction(fun, in_tree)
    name = function_name(fun)
    program = evaluate_known(trace_to_jaxpr(flat, avals, name), name)
    return Transposed(in_tree, flat.out_tree, program)


class Transposed:
    """The function that `linear_transpose` returns, a pytree of closed-over values."""

    def __init__(self, in_tree: Any, out_tree: Any, program: ClosedJaxpr) -> None:
        self._in_tree, self._out_tree, self._program = in_tree, out_tree, program

    def __call__(self, cotangent: Any) -> Any:
        """Return cotangents of the arguments from one of the result."""
        leaves, structure = tree.flatten(cotangent)
        if structure != self._out_tree:
            raise TreeError(f"linear_transpose: the cotangent has structure {structure}, but the function returns {self._out_tree}")
        pairs = zip(leaves, self._program.out_avals, strict=True)
        cts = [checked_cotangent(ct, aval) if aval.dtype in dtypes.INEXACT else as_value(ct) for ct, aval in pairs]
        count = len(self._program.in_avals)
        results = backward_pass(self._program, [True] * count, [None] * count, cts)
        args, _ = tree.unflatten(self._in_tree, map(derivative_of, results, self._program.in_avals))
        return args


tree.register_pytree_node(
    Transposed,
    lambda function: (function._program.consts, (function._in_tree, function._out_tree, function._program.jaxpr)),
    lambda static, consts: Transposed(static[0], static[1], ClosedJaxpr(static[2], consts)),
)

"""Forward derivatives: `jvp`, and `linearize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, overload

from volta_fn import dtypes, tree
from volta_fn.core.array import as_value, aval_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.flatten import check_callable, function_name
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.jitted import jitted_like
from volta_fn.core.primitive import Zero
from volta_fn.core.staging import eval_jaxpr
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.primitives.data_movement.joining import instantiate
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.transforms.grad import AuxFunction, Linearized, Signature, float0_zeros, structure_error
from volta_fn.transforms.jvp import jvp_flat
from volta_fn.transforms.marks import marked, with_zeros

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Any)
Aux = TypeVar("Aux")


@overload
def jvp(fun: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[False] = False) -> tuple[R, R]: ...
@overload
def jvp(fun: Callable[..., tuple[R, Aux]], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[True]) -> tuple[R, R, Aux]: ...
@overload
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool) -> Any: ...
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """Return ``fun(*primals)`` and its derivative along `tangents`.

    Returns ``(value, tangent)``, or ``(value, tangent, aux)`` with `has_aux`. Raises `TreeError`, `ShapeError` or `DTypeError` if a
    tangent does not fit its primal.

    >>> import volta_fn as vf
    >>> vf.jvp(lambda x: x * x, (3.0,), (1.0,))
    (Array(9., dtype=float32, weak_type=True), Array(6., dtype=float32, weak_type=True))
    """
    check_callable(fun, "jvp")

    def with_tangents(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        leaves, in_tree = tree.flatten((primals, {}))
        directions, tangent_tree = tree.flatten((tangents, {}))
        if in_tree != tangent_tree:
            raise structure_error("jvp: tangents have the structure of the primals", tree.structure(primals), tree.structure(tangents))
        values = [as_value(x) for x in leaves]
        given = [_checked_tangent(t, v.aval) for t, v in zip(directions, values, strict=True)]
        run = AuxFunction(fun, in_tree, has_aux, "jvp")
        outs, out_tangents = jvp_flat(run, values, given, function_name(fun))
        results, aux = run.split(outs)
        found = [instantiate(t) for t in out_tangents[: len(results)] if t.aval.dtype != dtypes.float0]
        return tree.unflatten(run.flat.out_tree, results), found, aux

    arguments = tuple(primals), tuple(tangents)
    # Empty tangents are arrays of NumPy, which no program takes or returns.
    if not any(getattr(t, "dtype", None) == dtypes.float0 for t in tree.leaves(arguments[1])):
        with_tangents = jitted_like(fun, with_tangents, "jvp", has_aux, same_arguments=False)
    value, found, aux = with_tangents(*arguments)
    rest = iter(found)
    tangent = tree.map(lambda v: next(rest) if v.dtype in dtypes.INEXACT else float0_zeros(v.shape), value)
    return (value, tangent, aux) if has_aux else (value, tangent)


def public_tangent(tangent: Any) -> Any:
    """Return a tangent as an array, with zeros for a `Zero` (float0 for integers)."""
    if type(tangent) is Zero and tangent.aval.dtype == dtypes.float0:
        return float0_zeros(tangent.aval.shape)
    return instantiate(tangent)


def _checked_tangent(tangent: Any, aval: ShapedArray) -> Any:
    expected = aval.at_least_vspace()
    if expected.dtype == dtypes.float0:
        if getattr(tangent, "dtype", None) != dtypes.float0:
            raise DTypeError(
                f"the tangent of an array of dtype {aval.dtype.name} has dtype float0 (numpy.zeros(shape, volta_fn.dtypes.float0)), "
                f"got {tangent!r:.60}"
            )
        return Zero(expected)
    value = as_value(tangent)
    if value.shape != aval.shape:
        raise ShapeError(f"a tangent has shape {value.shape}, but its primal has shape {aval.shape}")
    if value.dtype != aval.dtype:
        if not value.weak_type and not aval.weak_type:
            raise DTypeError(f"a tangent has dtype {value.dtype.name}, but its primal has dtype {aval.dtype.name}")
        value = convert_element_type(value, aval.dtype)
    return value


@overload
def linearize(fun: Callable[..., R], *primals: Any, has_aux: Literal[False] = False) -> tuple[R, Callable[..., R]]: ...
@overload
def linearize(fun: Callable[..., tuple[R, Aux]], *primals: Any, has_aux: Literal[True]) -> tuple[R, Callable[..., R], Aux]: ...
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return ``fun(*primals)`` and the linear function that approximates `fun` there.

    It costs one evaluation of `fun`; a call of the linear function costs the derivative's own work only. The linear function is a pytree
    of values that the evaluation saved, so a jitted function may return it and another may take it.

    >>> import volta_fn as vf
    >>> y, push = vf.linearize(lambda x: x ** 3, 2.0)
    >>> push(1.0)
    Array(12., dtype=float32, weak_type=True)
    """
    check_callable(fun, "linearize")
    linearized = Linearized(fun, *tree.flatten((primals, {})), has_aux, "linearize")
    return linearized.result(PushForward(linearized.signature, linearized.program), has_aux)


class PushForward:
    """The linear function that `linearize` returns."""

    def __init__(self, signature: Signature, program: ClosedJaxpr) -> None:
        self._signature, self._program = signature, program

    def __call__(self, *tangents: Any) -> Any:
        """Return the directional derivative along `tangents`.

        Raises `TreeError`, `ShapeError` or `DTypeError` if they do not fit the arguments.
        """
        signature = self._signature
        leaves, structure = tree.flatten((tangents, {}))
        if structure != signature.in_tree:
            raise structure_error("the linearized function takes tangents of the structure of (args, kwargs)", signature.in_tree, structure)
        given = [_checked_tangent(t, a) for t, a in zip(leaves, signature.in_avals, strict=True)]
        for tangent, aval in zip(leaves, signature.in_avals, strict=True):
            dtype = aval_of(tangent).dtype
            if aval.dtype in dtypes.INEXACT and dtype not in dtypes.INEXACT:
                raise DTypeError(f"the linearized function got a tangent of dtype {dtype.name} for an argument of type {aval}")
        found = eval_jaxpr(self._program, *marked(given, signature.nonzero))
        results = with_zeros(found, signature.depends, signature.out_avals)
        return tree.unflatten(signature.out_tree, map(public_tangent, results))


tree.register_pytree_node(
    PushForward,
    lambda function: (function._program.consts, (function._signature, function._program.jaxpr)),
    lambda static, saved: PushForward(static[0], ClosedJaxpr(static[1], saved)),
)

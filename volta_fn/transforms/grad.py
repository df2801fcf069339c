"""Reverse mode: `vjp`, `grad`, `value_and_grad`, and the forward pair `jvp` and `linearize`, on functions of pytrees."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.flatten import FlatFunction, check_callable, function_name, positional_index
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import Zero
from volta_fn.core.staging import eval_jaxpr
from volta_fn.errors import ArgumentError, DTypeError, GradientError, ShapeError, TreeError
from volta_fn.primitives.cast import convert_element_type
from volta_fn.primitives.joining import instantiate
from volta_fn.transforms.eager import gradient_flat, linearize_eagerly
from volta_fn.transforms.jvp import jvp_flat
from volta_fn.transforms.transpose import pull_back


def float0_zeros(shape: tuple[int, ...]) -> np.ndarray:
    """The only tangent of an integer array: no information, dtype `float0`."""
    return np.zeros(shape, dtypes.float0)


class _AuxFunction:
    """A function of flat arrays made from one of pytrees; with `has_aux`, auxiliary results travel behind the outputs."""

    def __init__(self, function: Callable[..., Any], in_tree: Any, has_aux: bool, transform: str) -> None:
        self.has_aux = has_aux
        self.transform = transform
        self.flat = FlatFunction(self._without_aux(function) if has_aux else function, in_tree)
        self.aux_leaves: list[Any] = []
        self.aux_tree: Any = None

    def _without_aux(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def result_only(*args: Any, **kwargs: Any) -> Any:
            pair = function(*args, **kwargs)
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise ArgumentError(
                    f"{self.transform} with has_aux=True needs a function that returns (result, aux), got {type(pair).__name__}"
                )
            result, aux = pair
            self.aux_leaves, self.aux_tree = tree.flatten(aux)
            return result

        return result_only

    def __call__(self, *xs: Array) -> list[Array]:
        outs = self.flat(*xs)
        return [*outs, *[a for a in self.aux_leaves if isinstance(a, Array)]]

    def split(self, results: Sequence[Any]) -> tuple[list[Any], Any]:
        """Flat results as the outputs and the auxiliary pytree (whose leaves that are no arrays pass through)."""
        count = self.flat.out_tree.num_leaves
        rest = iter(results[count:])
        aux = tree.unflatten(self.aux_tree, [next(rest) if isinstance(a, Array) else a for a in self.aux_leaves]) if self.has_aux else None
        return list(results[:count]), aux


class _Signature(NamedTuple):
    """What a derivative goes between: structures and types of arguments and results, and which of them it concerns."""

    in_tree: Any
    out_tree: Any
    in_avals: tuple[ShapedArray, ...]
    out_avals: tuple[ShapedArray, ...]
    #: Arguments that have tangents.
    nonzero: tuple[bool, ...]
    #: Results that depend on those.
    depends: tuple[bool, ...]

    def pull_back(self, program: ClosedJaxpr, cotangents: Sequence[Any]) -> Any:
        """Cotangents of the arguments (arrays; float0 zeros for integers), as a tuple, from those of the results."""
        given = [ct for ct, d in zip(cotangents, self.depends, strict=True) if d]
        found = iter(pull_back(program, given))
        leaves = [instantiate(next(found)) if nz else float0_zeros(a.shape) for nz, a in zip(self.nonzero, self.in_avals, strict=True)]
        return tree.unflatten(self.in_tree, leaves)[0]


class _Linearized:
    """What differentiation of a function at a point leaves: outputs, and the linear program of its derivative."""

    __slots__ = ("aux", "outs", "program", "signature")

    def __init__(self, function: Callable[..., Any], leaves: Sequence[Any], in_tree: Any, has_aux: bool, transform: str) -> None:
        values = [as_value(x) for x in leaves]
        run = _AuxFunction(function, in_tree, has_aux, transform)
        in_avals = tuple([v.aval for v in values])
        nonzero = tuple([a.dtype in dtypes.INEXACT for a in in_avals])
        outs, program, depends = linearize_eagerly(run, values, nonzero, function_name(function))
        self.outs, self.aux = run.split(outs)
        own = tuple(depends[: len(self.outs)])
        self.signature = _Signature(in_tree, run.flat.out_tree, in_avals, tuple([o.aval for o in self.outs]), nonzero, own)
        self.program = _drop_outputs(program, sum(own))

    def result(self) -> Any:
        """The function's value, as a pytree."""
        return tree.unflatten(self.signature.out_tree, self.outs)


def _drop_outputs(program: ClosedJaxpr, count: int) -> ClosedJaxpr:
    """The program with only its first `count` outputs (aux results need no derivative)."""
    del program.jaxpr.outvars[count:]
    return program


class VJP:
    """The function from cotangents of a result to cotangents of the arguments, as `vjp` returns it.

    It is a pytree of the values that the forward pass saved, so a jitted function may return it and another take it.
    """

    def __init__(self, signature: _Signature, program: ClosedJaxpr) -> None:
        self._signature = signature
        self._program = program

    def __call__(self, cotangent: Any) -> Any:
        """Cotangents of the arguments, as a tuple. Raises `TreeError`, `ShapeError` or `DTypeError` if the cotangent does not fit."""
        signature = self._signature
        leaves, structure = tree.flatten(cotangent)
        if structure != signature.out_tree:
            raise TreeError(f"the cotangent has structure {structure}, but the function returned {signature.out_tree}")
        cts = [checked_cotangent(ct, aval) for ct, aval in zip(leaves, signature.out_avals, strict=True)]
        return signature.pull_back(self._program, cts)


tree.register_pytree_node(
    VJP,
    lambda function: (function._program.consts, (function._signature, function._program.jaxpr)),
    lambda static, saved: VJP(static[0], ClosedJaxpr(static[1], saved)),
)


def checked_cotangent(ct: Any, aval: ShapedArray) -> Any:
    """A cotangent that a user gave for a result, as an array (a `Zero` for integers); `ShapeError` or `DTypeError` if it does not fit."""
    expected = aval.at_least_vspace()
    if expected.dtype == dtypes.float0:
        return Zero(expected)
    value = as_value(ct)
    if value.shape != aval.shape:
        raise ShapeError(f"a cotangent has shape {value.shape}, but the result it belongs to has shape {aval.shape}")
    if value.dtype != aval.dtype:
        if not value.weak_type:
            raise DTypeError(f"a cotangent has dtype {value.dtype.name}, but the result it belongs to has dtype {aval.dtype.name}")
        value = convert_element_type(value, aval.dtype)
    return value


def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of ``fun(*primals)`` and its vector-Jacobian product, the function that reverse mode is made of.

    Returns ``(value, vjp_fun)``, or ``(value, vjp_fun, aux)`` with `has_aux`; ``vjp_fun(cotangent)`` gives one cotangent per argument.

    >>> import volta_fn as vf
    >>> y, pull_back = vf.vjp(lambda x: x * x, 3.0)
    >>> pull_back(1.0)
    (Array(6., dtype=float32, weak_type=True),)
    """
    check_callable(fun, "vjp")
    linearized = _Linearized(fun, *tree.flatten((primals, {})), has_aux, "vjp")
    value = linearized.result()
    pull = VJP(linearized.signature, linearized.program)
    return (value, pull, linearized.aux) if has_aux else (value, pull)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """A function that gives both ``fun``'s value, a scalar, and its gradient by the arguments at `argnums`.

    Args:
        fun: a function whose result is a scalar, or with `has_aux` a pair (scalar, anything).
        argnums: which positional arguments to differentiate by; an int gives one gradient, a sequence a tuple of them.
        holomorphic: differentiate a complex function of complex arguments. A real function of complex arguments needs no flag: its
            gradient by z = x + iy is df/dx - i df/dy, whose conjugate is the direction of steepest ascent.
        allow_int: accept integer arguments, whose gradients are zeros of dtype `float0`.

    Raises:
        GradientError: the result is not a real scalar, or an argument is not of floating or complex dtype.

    >>> import volta_fn as vf
    >>> vf.value_and_grad(lambda x: x ** 2)(3.0)
    (Array(9., dtype=float32, weak_type=True), Array(6., dtype=float32, weak_type=True))
    """
    check_callable(fun, "value_and_grad")
    name = function_name(fun)

    @functools.wraps(fun)
    def with_gradient(*args: Any, **kwargs: Any) -> Any:
        numbers = [positional_index(i, len(args), "grad") for i in ((argnums,) if isinstance(argnums, int) else argnums)]
        chosen = [args[i] for i in numbers]
        leaves, in_tree = tree.flatten((tuple(chosen), {}))
        _check_inputs(leaves, chosen, name, holomorphic, allow_int)
        values = [as_value(x) for x in leaves]
        nonzero = [v.dtype in dtypes.INEXACT for v in values]
        run = _AuxFunction(partial_function(fun, args, numbers, kwargs), in_tree, has_aux, "grad")
        outs, found = gradient_flat(run, values, nonzero, name, lambda outs: _check_output(outs, run.flat.out_tree, name, holomorphic))
        (value,), aux = run.split(outs)
        cotangents = iter(found)
        rates = [instantiate(next(cotangents)) if nz else float0_zeros(v.shape) for nz, v in zip(nonzero, values, strict=True)]
        gradient = tree.unflatten(in_tree, rates)[0]
        gradient = gradient[0] if isinstance(argnums, int) else gradient
        return ((value, aux), gradient) if has_aux else (value, gradient)

    return with_gradient


def partial_function(fun: Callable[..., Any], args: Sequence[Any], numbers: Sequence[int], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """`fun` as a function of the arguments at `numbers` alone."""
    if list(numbers) == list(range(len(args))) and not kwargs:
        return fun

    def partial(*chosen: Any) -> Any:
        merged = list(args)
        for i, value in zip(numbers, chosen, strict=True):
            merged[i] = value
        return fun(*merged, **kwargs)

    partial.__name__ = function_name(fun)
    return partial


def _check_inputs(leaves: Sequence[Any], chosen: Sequence[Any], name: str, holomorphic: bool, allow_int: bool) -> None:
    for leaf in leaves:
        if holomorphic or not isinstance(leaf, Array) or not leaf.aval.is_float:
            break
    else:
        return
    for path, leaf in tree.leaves_with_path(list(chosen)):
        dtype = as_value(leaf).dtype
        where = f"argument {path[0].idx}{tree.keystr(path[1:])} of {name}" if path else name
        if holomorphic and dtype not in dtypes.COMPLEX:
            raise GradientError(f"grad with holomorphic=True needs complex inputs, but {where} has dtype {dtype.name}")
        if dtype not in dtypes.INEXACT and not allow_int:
            raise GradientError(
                f"grad needs inputs of floating dtype, but {where} has dtype {dtype.name}. Convert it with .astype(float), "
                "choose other arguments with argnums, or pass allow_int=True to get an empty gradient."
            )


def _check_output(outs: Sequence[Array], out_tree: tree.TreeDef, name: str, holomorphic: bool) -> None:
    if out_tree != _LEAF:
        raise GradientError(
            f"grad needs a function with one scalar result, but {name} returned a structure {out_tree}. "
            "Return (loss, aux) and pass has_aux=True to get other values out."
        )
    aval = outs[0].aval
    if aval.is_float and not aval.shape and not holomorphic:
        return
    if aval.shape:
        raise GradientError(
            f"grad needs a function with a scalar result, but {name} returned an array of shape {aval.shape}. "
            "Reduce it with .sum() or .mean(), or use jacrev or vjp for the derivative of an array."
        )
    if aval.dtype not in dtypes.INEXACT:
        raise GradientError(f"grad needs a real scalar result, but {name} returned dtype {aval.dtype.name}")
    if (aval.dtype in dtypes.COMPLEX) != holomorphic:
        raise GradientError(
            f"{name} returned dtype {aval.dtype.name}: grad needs a real result, or with holomorphic=True a complex one. "
            "Take the real part or absolute value, or use vjp."
        )


_LEAF = tree.structure(0)


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """The gradient of a scalar function; arguments and errors as for `value_and_grad`.

    >>> import volta_fn as vf
    >>> vf.grad(vf.numpy.tanh)(2.0)
    Array(0.07065082, dtype=float32, weak_type=True)
    """
    check_callable(fun, "grad")
    value_and_gradient = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int)

    @functools.wraps(fun)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, grads = value_and_gradient(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return gradient


def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """The value of ``fun(*primals)`` and its directional derivative along `tangents` (Jacobian-vector product).

    Returns ``(value, tangent)``, or ``(value, tangent, aux)`` with `has_aux`. Raises `TreeError`, `ShapeError` or `DTypeError` if a
    tangent does not fit its primal.

    >>> import volta_fn as vf
    >>> vf.jvp(lambda x: x * x, (3.0,), (1.0,))
    (Array(9., dtype=float32, weak_type=True), Array(6., dtype=float32, weak_type=True))
    """
    check_callable(fun, "jvp")
    leaves, in_tree = tree.flatten((tuple(primals), {}))
    rates, rate_tree = tree.flatten((tuple(tangents), {}))
    if in_tree != rate_tree:
        raise TreeError(f"primals have structure {in_tree} but tangents {rate_tree}")
    values = [as_value(x) for x in leaves]
    given = [_checked_tangent(t, v.aval) for t, v in zip(rates, values, strict=True)]
    run = _AuxFunction(fun, in_tree, has_aux, "jvp")
    outs, out_rates = jvp_flat(run, values, given, function_name(fun))
    results, aux = run.split(outs)
    value = tree.unflatten(run.flat.out_tree, results)
    rate = tree.unflatten(run.flat.out_tree, [public_tangent(t) for t in out_rates[: len(results)]])
    return (value, rate, aux) if has_aux else (value, rate)


def public_tangent(tangent: Any) -> Any:
    """A tangent as users see it: an array, of zeros (of dtype `float0`, for integers) in place of a `Zero`."""
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


def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of ``fun(*primals)`` and the linear function of tangents that approximates it there.

    Costs one evaluation of `fun`; each call of the linear function then costs no more than the derivative's own work.

    >>> import volta_fn as vf
    >>> y, push = vf.linearize(lambda x: x ** 3, 2.0)
    >>> push(1.0)
    Array(12., dtype=float32, weak_type=True)
    """
    check_callable(fun, "linearize")
    linearized = _Linearized(fun, *tree.flatten((primals, {})), has_aux, "linearize")
    signature, program = linearized.signature, linearized.program

    def push_forward(*tangents: Any) -> Any:
        """The directional derivative along `tangents`."""
        leaves, structure = tree.flatten((tangents, {}))
        if structure != signature.in_tree:
            raise TreeError(f"the linearized function takes tangents of structure {signature.in_tree}, got {structure}")
        checked = [_checked_tangent(t, a) for t, a in zip(leaves, signature.in_avals, strict=True)]
        found = iter(eval_jaxpr(program, *[t for t, nz in zip(checked, signature.nonzero, strict=True) if nz]))
        pairs = zip(signature.depends, signature.out_avals, strict=True)
        rates = [next(found) if d else public_tangent(Zero(a.at_least_vspace())) for d, a in pairs]
        return tree.unflatten(signature.out_tree, rates)

    value = linearized.result()
    return (value, push_forward, linearized.aux) if has_aux else (value, push_forward)

"""Callbacks: calls of Python functions from running programs.

`pure_callback` is for values, `debug_callback` for effects such as printing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value, from_host
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import AxisData, Primitive
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, CallbackError
from volta_fn.primitives.control_flow.scan import scan
from volta_fn.primitives.data_movement.movement import broadcast, no_derivative, to_front, zero_jvp

Avals = tuple[ShapedArray, ...]
_ARRAYS = (Array, np.ndarray, np.generic, bool, int, float, complex)
VMAP_METHODS = ("sequential", "expand_dims", "broadcast_all", "legacy_vectorized")


def _call(callback: Callable[..., Any], args: Sequence[Any], name: str) -> Any:
    try:
        return callback(*args)
    except Exception as error:
        raise CallbackError(f"{name} raised {type(error).__name__}: {error}") from error


# pure_callback


class HostFunction:
    """A user's function on flat lists of NumPy arrays."""

    def __init__(self, function: Callable[..., Any], in_tree: Any, out_tree: Any) -> None:
        self.function = function
        self.in_tree = in_tree
        self.out_tree = out_tree
        self.name = f"the callback {getattr(function, '__name__', function)!s}"
        self.eager_kernels: dict[Any, Any] = {}

    def __call__(self, *leaves: np.ndarray) -> list[Any]:
        args, kwargs = tree.unflatten(self.in_tree, [from_host(x) for x in leaves])
        result = _call(functools.partial(self.function, **kwargs), args, self.name)
        outs, structure = tree.flatten(result)
        if structure != self.out_tree:
            raise CallbackError(f"{self.name} was to return a result of structure {self.out_tree}, but returned {structure}")
        return outs


def _evaluate(*operands: np.ndarray, callback: HostFunction, result_avals: Avals, vmap_method: str | None) -> tuple[np.ndarray, ...]:
    results = callback(*operands)
    outs = [_checked_result(r, a) for r, a in zip(results, result_avals, strict=True)]
    for out, aval in zip(outs, result_avals, strict=True):
        if out.shape != aval.shape or out.dtype != aval.dtype:
            raise CallbackError(
                f"{callback.name} was to return an array of shape {aval.shape} and dtype {aval.dtype.name}, "
                f"but returned shape {out.shape} and dtype {out.dtype.name}"
            )
    return tuple([np.array(o) for o in outs])


def _checked_result(result: Any, aval: ShapedArray) -> np.ndarray:
    """Convert a result to a NumPy array.

    A Python number takes the promised dtype if it would in an operation with such an array.
    """
    if type(result) not in (int, float, complex):
        return np.asarray(result)
    combined, _ = dtypes.promote((aval.dtype, False), dtypes.scalar_dtype(result))
    return np.asarray(result, aval.dtype if combined == aval.dtype else None)


def _batch(
    axis: AxisData,
    args: Sequence[Array],
    dims: Sequence[int | None],
    *,
    callback: HostFunction,
    result_avals: Avals,
    vmap_method: str | None,
) -> tuple[Sequence[Array], list[int]]:
    if vmap_method is None:
        raise ArgumentError(f"{callback.name} is called under vmap: say how with pure_callback(..., vmap_method=…), one of {VMAP_METHODS}")
    settings: dict[str, Any] = {"callback": callback, "vmap_method": vmap_method}
    front = to_front(args, dims)
    stacked = [d is not None for d in dims]
    if vmap_method == "sequential":
        outs = _one_by_one(front, stacked, axis.size, functools.partial(bind, pure_callback_p, result_avals=result_avals, **settings))
    else:
        fill = axis.size if vmap_method == "broadcast_all" else 1
        operands = [
            a if s else (broadcast(a, (fill,)) if vmap_method != "legacy_vectorized" else a) for a, s in zip(front, stacked, strict=True)
        ]
        stacked_avals = tuple([a.update(shape=(axis.size, *a.shape)) for a in result_avals])
        outs = bind(pure_callback_p, *operands, result_avals=stacked_avals, **settings)
    return outs, [0] * len(outs)


def _one_by_one(args: Sequence[Array], stacked: Sequence[bool], size: int, call: Callable[..., Any]) -> Sequence[Array]:
    """Call a function per row of the stacked arguments; stack the results."""
    rows = [a for a, s in zip(args, stacked, strict=True) if s]

    def call_row(row: Any) -> Any:
        entries = iter(row)
        return call(*[next(entries) if s else a for a, s in zip(args, stacked, strict=True)])

    return scan(lambda carry, row: (carry, call_row(row)), None, tuple(rows), length=size)[1]


pure_callback_p = Primitive(
    "pure_callback",
    lambda *avals, callback, result_avals, vmap_method: result_avals,
    evaluate=_evaluate,
    jvp=no_derivative(
        "{callback.name} is a pure_callback, whose derivative is unknown. "
        "Give the function around it a custom_jvp or custom_vjp, or put stop_gradient on its arguments."
    ),
    batch=_batch,
    multiple_results=True,
)


def pure_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, sharding: None = None, vmap_method: str | None = None, **kwargs: Any
) -> Any:
    """Call a pure Python function of arrays from a program.

    It may run any number of times, or never if its result is unused.

    Args:
        callback: called with arrays in the structure of `args` and `kwargs`.
        result_shape_dtypes: a pytree of objects with `shape` and `dtype`, which the result must match.
        vmap_method: what `vmap` does: "sequential" calls once per example, "expand_dims" once with unmapped arguments given a leading
            dimension of 1, "broadcast_all" once with all arguments stacked.

    Raises:
        CallbackError: the function raised, or its result does not match.
        GradientError: it is differentiated.

    >>> import numpy as np, volta_fn as vf
    >>> vf.jit(lambda x: vf.pure_callback(lambda v: np.sort(v), x, x))(vf.numpy.array([3, 1, 2]))
    Array([1, 2, 3], dtype=int32)
    """
    if vmap_method is not None and vmap_method not in VMAP_METHODS:
        raise ArgumentError(f"vmap_method must be one of {VMAP_METHODS}, got {vmap_method!r}")
    host, avals, values = _host_call(callback, result_shape_dtypes, args, kwargs)
    outs = bind(pure_callback_p, *values, callback=host, result_avals=avals, vmap_method=vmap_method)
    return tree.unflatten(host.out_tree, outs)


def _host_call(
    callback: Callable[..., Any], result_shape_dtypes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[HostFunction, Avals, list[Array]]:
    """Return a callback on flat lists, the types of its results, and its operands."""
    leaves, in_tree = tree.flatten((args, kwargs))
    result_types, out_tree = tree.flatten(result_shape_dtypes)
    avals = tuple([ShapedArray(tuple(w.shape), dtypes.as_dtype(w.dtype)) for w in result_types])
    return HostFunction(callback, in_tree, out_tree), avals, [as_value(x) for x in leaves]


# io_callback


def _io_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, callback: HostFunction, result_avals: Avals, ordered: bool
) -> tuple[Sequence[Array], list[int]]:
    if ordered:
        raise ArgumentError(f"{callback.name} is an ordered io_callback, so vmap cannot map it: the examples have no order")
    front = to_front(args, dims)
    one = functools.partial(bind, io_callback_p, callback=callback, result_avals=result_avals, ordered=False)
    outs = _one_by_one(front, [d is not None for d in dims], axis.size, one)
    return outs, [0] * len(outs)


io_callback_p = Primitive(
    "io_callback",
    lambda *avals, callback, result_avals, ordered: result_avals,
    evaluate=lambda *operands, callback, result_avals, ordered: _evaluate(
        *operands, callback=callback, result_avals=result_avals, vmap_method=None
    ),
    jvp=no_derivative("{callback.name} is an io_callback, which has no derivative; put stop_gradient on its arguments"),
    batch=_io_batch,
    multiple_results=True,
    effectful=True,
)


def io_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, sharding: None = None, ordered: bool = False, **kwargs: Any
) -> Any:
    """Call a Python function with effects from a program.

    It runs once per execution of the call, in program order, even if its result is unused.

    Args:
        callback: called with arrays in the structure of `args` and `kwargs`.
        result_shape_dtypes: a pytree of objects with `shape` and `dtype`, which the result must match.
        ordered: whether the order matters; then `vmap` raises `ArgumentError`, else it calls once for each example.

    Raises:
        CallbackError: the function raised, or its result does not match.
        GradientError: it is differentiated.

    >>> import volta_fn as vf
    >>> seen = []
    >>> vf.jit(lambda x: vf.experimental.io_callback(lambda v: seen.append(int(v)), None, x, ordered=True))(3)
    >>> seen
    [3]
    """
    host, avals, values = _host_call(callback, result_shape_dtypes, args, kwargs)
    outs = bind(io_callback_p, *values, callback=host, result_avals=avals, ordered=bool(ordered))
    return tree.unflatten(host.out_tree, outs)


# debug_callback


def _debug_evaluate(*operands: np.ndarray, callback: Callable[..., Any]) -> tuple[()]:
    callback(*operands)
    return ()


class _PerExample:
    """A callback called once per example of operands stacked along axis 0."""

    def __init__(self, callback: Callable[..., Any], stacked: Sequence[bool], size: int) -> None:
        self.callback = callback
        self.stacked = stacked
        self.size = size
        self.eager_kernels: dict[Any, Any] = {}

    def __call__(self, *operands: np.ndarray) -> None:
        for i in range(self.size):
            self.callback(*[x[i] if s else x for x, s in zip(operands, self.stacked, strict=True)])


def _debug_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, callback: Callable[..., Any]
) -> tuple[tuple[()], tuple[()]]:
    front = to_front(args, dims)
    bind(debug_callback_p, *front, callback=_PerExample(callback, [d is not None for d in dims], axis.size))
    return (), ()


debug_callback_p = Primitive(
    "debug_callback",
    lambda *avals, callback: (),
    evaluate=_debug_evaluate,
    jvp=zero_jvp,
    batch=_debug_batch,
    multiple_results=True,
    effectful=True,
)


def debug_callback(callback: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Call a Python function with the run-time values of `args` and `kwargs`.

    Its result is ignored. Calls happen in program order, whether or not `ordered` asks for it; under `vmap` once per example; under
    differentiation with the primal values. Arguments other than arrays are passed as they are.
    """
    leaves, in_tree = tree.flatten((args, kwargs))
    is_array = [isinstance(x, _ARRAYS) for x in leaves]

    def host(*values: np.ndarray) -> None:
        arrays = iter(values)
        stacked = [from_host(np.asarray(next(arrays))) if a else x for x, a in zip(leaves, is_array, strict=True)]
        positional, named = tree.unflatten(in_tree, stacked)
        _call(functools.partial(callback, **named), positional, f"the callback {getattr(callback, '__name__', callback)!s}")

    host.eager_kernels = {}  # type: ignore[attr-defined]  # as those of `HostFunction`
    bind(debug_callback_p, *[as_value(x) for x, a in zip(leaves, is_array, strict=True) if a], callback=host)

"""`make_jaxpr`, `eval_shape` and `reduce_precision`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.array import Array, as_value, aval_of
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.core.named_axes import bound_axis
from volta_fn.core.staging import FlatFunction, argument_labels, check_callable, function_name, trace_to_jaxpr, wraps
from volta_fn.errors import ArgumentError, DTypeError
from volta_fn.primitives.array_operations.operators import full_like
from volta_fn.primitives.elementwise.arithmetic import abs as absolute
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.primitives.elementwise.cast import bitcast_convert_type
from volta_fn.primitives.elementwise.selection import bitwise_and, bitwise_or, gt, lt, ne, select, shift_left, shift_right_logical
from volta_fn.transforms.custom_derivatives import custom_jvp
from volta_fn.transforms.implicit import linear_call

# `make_jaxpr` and `eval_shape`: trace functions without running them.


def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[Any, int]] | None = None,
    return_shape: bool = False,
) -> Callable[..., Any]:
    """Make a function that returns the program of `fun` as a `ClosedJaxpr`.

    Arguments may be arrays or `ShapeDtypeStruct`; those at `static_argnums` are constants. `axis_env` has the names and sizes of axes
    for collectives. With `return_shape` the result is a pair of the program and the shapes and dtypes of the results.

    >>> import volta_fn as vf
    >>> vf.make_jaxpr(lambda x: vf.lax.sin(x) * 2.0)(1.0)
    { lambda ; a:f32[]. let
        b:f32[] = sin a
        c:f32[] = mul b 2.0:f32[]
      in (c,) }
    """
    check_callable(fun, "make_jaxpr")
    static = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)

    @wraps(fun)
    def to_jaxpr(*args: Any, **kwargs: Any) -> Any:
        """Return the program for arguments like these."""
        fixed = {i % len(args): args[i] for i in static}
        dynamic = [a for i, a in enumerate(args) if i not in fixed]

        @wraps(fun)
        def of_dynamic(*values: Any, **named: Any) -> Any:
            rest = iter(values)
            return fun(*[fixed[i] if i in fixed else next(rest) for i in range(len(args))], **named)

        with ExitStack() as axes:
            for name, size in axis_env or ():
                axes.enter_context(bound_axis(name, size))
            closed, shapes = _trace(of_dynamic if fixed else fun, dynamic, kwargs)
        return (closed, shapes) if return_shape else closed

    to_jaxpr.__name__ = f"make_jaxpr({function_name(fun)})"
    to_jaxpr.__qualname__ = f"make_jaxpr({getattr(fun, '__qualname__', function_name(fun))})"
    return to_jaxpr


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the shapes and dtypes of ``fun(*args, **kwargs)`` without computing it.

    The result is a pytree of `ShapeDtypeStruct`. Results that are themselves of this class are returned as they are.

    >>> import volta_fn as vf
    >>> vf.eval_shape(lambda x: x.sum(0), vf.ShapeDtypeStruct((1000, 3), "float32"))
    ShapeDtypeStruct(shape=(3,), dtype=float32)
    """
    check_callable(fun, "eval_shape")
    results: list[Any] = []
    structure: Any = None

    @wraps(fun)
    def of_arrays(*args: Any, **kwargs: Any) -> list[Any]:
        nonlocal structure
        leaves, structure = tree.flatten(fun(*args, **kwargs))
        results[:] = [leaf if isinstance(leaf, ShapeDtypeStruct) else None for leaf in leaves]
        return [leaf for leaf, shape in zip(leaves, results, strict=True) if shape is None]

    shapes = iter(_trace(of_arrays, args, kwargs)[1])
    return tree.unflatten(structure, [next(shapes) if shape is None else shape for shape in results])


def _trace(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return a function's program, and the shapes and dtypes of its results."""
    leaves, in_tree = tree.flatten((tuple(args), kwargs))
    flat = FlatFunction(fun, in_tree)
    labels = argument_labels(fun, in_tree, len(leaves))
    closed = trace_to_jaxpr(flat, [aval_of(x) for x in leaves], function_name(fun), labels)
    return closed, tree.unflatten(flat.out_tree, [ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in closed.out_avals])


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

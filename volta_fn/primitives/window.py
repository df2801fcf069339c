"""Reductions over sliding windows.

Pooling is a window's sum or extremum. Sums are linear, and their transpose is a window's sum again. The derivative of a maximum is the
tangent of its *winner*, the first element of the window that equals it; `select_and_gather_add` fetches that tangent and
`select_and_scatter_add`, its transpose, sends a cotangent back to it. Both are linear in the array that they move and piecewise constant in
the one that decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value, number_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES, Linear, Primitive, Reduction, Zero, reduction_of
from volta_fn.core.trace import bind
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.primitives.convolution import (
    Ints,
    canonical_ints,
    canonical_padding,
    counts_of_windows,
    dilated,
    padtype_to_pads,
    without_cut,
)
from volta_fn.primitives.data_movement.movement import (
    batch_in_front,
    broadcast,
    linear_jvp,
    linear_primitive,
    no_tangents,
)
from volta_fn.primitives.data_movement.slicing import pad, slice
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.reduction import reduce_max, reduce_min, reduce_sum_p
from volta_fn.primitives.scan import Combination, flat_arrays

#: The batching rule: the same windows over operands with another axis in front.
_BATCH = batch_in_front(
    lambda size, **params: {
        name: value if name == "select" else (((0, 0) if name == "padding" else 1), *value) for name, value in params.items()
    }
)


# Windows reduced.


def _abstract(name: str, allowed: frozenset[np.dtype]) -> Callable[..., ShapedArray]:
    def abstract(operand: ShapedArray, **geometry: Any) -> ShapedArray:
        if operand.dtype not in allowed:
            raise dtypes.dtype_error(name, operand.dtype, allowed)
        return operand.update(shape=counts_of_windows(operand.shape, geometry))

    return abstract


def _sum_transpose(ct: Array, operand: Linear, **geometry: Any) -> list[Array]:
    """Sum the cotangents of all windows that an element is in."""
    # They are windows over the dilated cotangent, with strides and dilation exchanged.
    taps, strides, bases = geometry["window_dimensions"], geometry["window_strides"], geometry["base_dilation"]
    pads = []
    for size, count, k, stride, (low, _), base, dilation in zip(
        operand.shape, ct.shape, taps, strides, geometry["padding"], bases, geometry["window_dilation"], strict=True
    ):
        reach = dilated(k, dilation)
        before = reach - 1 - low
        pads.append((before, dilated(size, base) - 1 + reach - dilated(count, stride) - before))
    swapped = {"window_strides": bases, "base_dilation": strides, "padding": tuple(pads)}
    return [bind(reduce_window_sum_p, ct, **{**geometry, **swapped})]


reduce_window_sum_p = linear_primitive(
    "reduce_window_sum",
    _abstract("reduce_window_sum", dtypes.NUMBERS),
    None,
    _BATCH,
    _sum_transpose,
    views=False,
    combines=reduce_sum_p.reduction,
)


def _extremum(name: str, winner: str, combines: Reduction | None) -> Primitive:
    def jvp(primals: Sequence[Array], tangents: Sequence[Any], **geometry: Any) -> tuple[Array, Any]:
        (operand,), (tangent,) = primals, tangents
        out = bind(primitive, operand, **geometry)
        if type(tangent) is Zero:
            return no_tangents(out)
        return out, bind(select_and_gather_add_p, tangent, operand, select=winner, **geometry)

    primitive = Primitive(name, _abstract(name, dtypes.REALS | dtypes.BOOL), jvp=jvp, batch=_BATCH, combines=combines)
    return primitive


reduce_window_max_p = _extremum("reduce_window_max", "ge", reduce_max.primitive.reduction)
reduce_window_min_p = _extremum("reduce_window_min", "le", reduce_min.primitive.reduction)


# Tangents to and from the winners.


def _moves(
    name: str,
    moved_shape: Callable[[ShapedArray, Ints], Ints],
    result_shape: Callable[[ShapedArray, Ints], Ints],
    transpose: Callable[..., Any],
) -> Primitive:
    """Declare a primitive that moves its first operand by winners in its second.

    It is linear in the first and constant in the second.
    """

    def abstract(moved: ShapedArray, operand: ShapedArray, *, select: str, **geometry: Any) -> ShapedArray:
        counts = counts_of_windows(operand.shape, geometry)
        expected = moved_shape(operand, counts)
        if moved.shape != expected:
            raise ShapeError(
                f"{name}: for an operand of shape {operand.shape} the first argument must have shape {expected}, got {moved.shape}"
            )
        return ShapedArray(result_shape(operand, counts), moved.dtype)

    return Primitive(name, abstract, jvp=linear_jvp(0), transpose=transpose, batch=_BATCH)


select_and_gather_add_p: Primitive = _moves(
    "select_and_gather_add",
    lambda operand, counts: operand.shape,
    lambda operand, counts: counts,
    lambda ct, moved, operand, **params: [bind(select_and_scatter_add_p, ct, operand, **params), None],
)
select_and_scatter_add_p: Primitive = _moves(
    "select_and_scatter_add",
    lambda operand, counts: counts,
    lambda operand, counts: operand.shape,
    lambda ct, moved, operand, **params: [bind(select_and_gather_add_p, ct, operand, **params), None],
)


# The function that users call.


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Reduce every window of `operand` with `computation`, from `init_value`.

    `computation` is a function of two arrays that treats elements alike. Of a pytree of arrays of one shape, with a pytree of initial
    values, the elements are reduced together: `computation` takes two such pytrees to one. Windows have `window_dimensions` elements at a
    distance of `window_dilation`, and begin every `window_strides` elements (None: 1) of the operand, whose elements `base_dilation`
    spreads and which `padding` extends: a (low, high) pair per dimension, or "SAME", "SAME_LOWER" or "VALID", which ignore
    `base_dilation`, as in JAX. Holes and padding count for nothing. `lax.add`, `lax.max` and `lax.min` are fast, as pooling needs them;
    any other computation combines slices, one per element of the window. All are differentiable; the derivative of a maximum goes to the
    first element of the window that equals it.

    Raises `ShapeError` for a geometry that does not fit the operand and for operands of several shapes, `DTypeError` if `init_value` is of
    another dtype, `ArgumentError` if there are no operands, and what `reduce` raises for a `computation` of other results.

    >>> x = vf.numpy.array([3.0, 1.0, 4.0, 1.0])
    >>> vf.lax.reduce_window(x, -vf.numpy.inf, vf.lax.max, (2,), (2,))
    Array([3., 4.], dtype=float32)

    The largest of each window and where it is:

    >>> def larger(a, b):
    ...     first = a[0] >= b[0]
    ...     return vf.lax.select(first, a[0], b[0]), vf.lax.select(first, a[1], b[1])
    >>> vf.lax.reduce_window((x, vf.numpy.arange(4)), (-vf.numpy.inf, -1), larger, (2,), (2,))
    (Array([3., 4.], dtype=float32), Array([0, 2], dtype=int32))
    """
    values, structure = flat_arrays("reduce_window", operand)
    value, *others = values
    if any(v.shape != value.shape for v in others):
        raise ShapeError(f"reduce_window: the operands must have one shape, got {', '.join(str(v.shape) for v in values)}")
    primitive = None if others else getattr(computation, "primitive", None)
    fast = next((p for p, allowed in _FAST if primitive is PRIMITIVES[reduction_of(p.name).step] and value.dtype in allowed), None)
    inits = [
        _initial(init, v, fast)
        for init, v in zip(tree.flatten_up_to(structure, init_value, "reduce_window: init_value"), values, strict=True)
    ]
    taps = canonical_ints(window_dimensions, value.ndim, "reduce_window: window_dimensions")
    strides = canonical_ints(window_strides, value.ndim, "reduce_window: window_strides")
    bases = canonical_ints(base_dilation, value.ndim, "reduce_window: base_dilation")
    dilations = canonical_ints(window_dilation, value.ndim, "reduce_window: window_dilation")
    reach = list(map(dilated, taps, dilations))
    pads = canonical_padding(padtype_to_pads(value.shape, reach, strides, padding), value.ndim, "reduce_window: padding")
    (value, *others), (pads, *_) = zip(*[without_cut(v, tuple(range(v.ndim)), pads, bases) for v in values], strict=True)
    geometry = {"window_dimensions": taps, "window_strides": strides, "padding": pads, "base_dilation": bases, "window_dilation": dilations}
    if fast:
        out = bind(fast, value, **geometry)
        is_identity = _is_constant(inits[0], reduction_of(fast.name).start(value.dtype))
        return tree.unflatten(structure, [out if is_identity else computation(out, inits[0])])
    combine = Combination("reduce_window", computation, structure)
    outs = _folded([value, *others], inits, combine, geometry)
    return tree.unflatten(combine.structure, outs)


#: Primitives that reduce windows, for computations that are their steps, and the dtypes that they take.
_FAST = (
    (reduce_window_sum_p, dtypes.NUMBERS),
    (reduce_window_max_p, dtypes.REALS | dtypes.BOOL),
    (reduce_window_min_p, dtypes.REALS | dtypes.BOOL),
)


def _initial(init_value: Any, operand: Array, fast: Primitive | None) -> Array:
    init = as_value(init_value)
    if fast and init.dtype in dtypes.FLOATS and operand.dtype in dtypes.INTEGERS and not init.shape:
        identity = reduction_of(fast.name).start
        if _is_constant(init, identity(init.dtype)):  # such as -inf
            return as_value(np.asarray(identity(operand.dtype), operand.dtype))
    if init.shape:
        raise ShapeError(f"reduce_window: init_value must be a scalar, got shape {init.shape}")
    if init.weak_type and dtypes.promote((init.dtype, True), (operand.dtype, False))[0] == operand.dtype:
        if isinstance(init, ConcreteArray):  # which stays constant when operations are traced
            number = number_of(init)
            init_value = np.asarray(init if number is None else number)
        init = convert_element_type(init_value, operand.dtype)
    if init.dtype != operand.dtype:
        raise DTypeError(
            f"reduce_window: init_value is {init.dtype.name} but operand is {operand.dtype.name}; give init_value operand's dtype, "
            f"as in numpy.asarray(value, '{operand.dtype.name}')"
        )
    return init


def _is_constant(init: Array, value: Any) -> bool:
    """Return True if `init` is known to be `value`."""
    return isinstance(init, ConcreteArray) and bool(np.asarray(init) == np.asarray(value, init.dtype))


def _folded(operands: Sequence[Array], inits: Sequence[Array], combine: Combination, geometry: dict[str, Any]) -> list[Array]:
    """Combine strided slices of the padded operands, in row-major order."""
    shape = operands[0].shape
    counts = counts_of_windows(shape, geometry)
    config = [(low, high, base - 1) for (low, high), base in zip(geometry["padding"], geometry["base_dilation"], strict=True)]
    padded = [pad(operand, init, config) for operand, init in zip(operands, inits, strict=True)]
    is_element = pad(np.ones(shape, bool), False, config) if any(map(any, config)) else None
    outs = [broadcast(init, counts) for init in inits]
    if 0 in counts:
        return outs
    for taps in itertools.product(*map(range, geometry["window_dimensions"])):
        steps = geometry["window_strides"]
        starts = [k * d for k, d in zip(taps, geometry["window_dilation"], strict=True)]
        limits = [start + (n - 1) * s + 1 for start, n, s in zip(starts, counts, steps, strict=True)]
        combined = combine(outs, [slice(p, starts, limits, steps) for p in padded])
        if is_element is not None:
            mask = slice(is_element, starts, limits, steps)
            combined = [select(mask, new, old) for new, old in zip(combined, outs, strict=True)]
        outs = combined
    return outs

"""Reductions: primitives that combine the elements along some axes.

`reduction` declares one. Every target derives kernels from the declaration (`volta_fn.core.primitive.Reduction`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.primitive import PRIMITIVES, AxisData, Primitive, Reduction, RuleOf, Zero
from volta_fn.core.trace import bind, current_trace
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.primitives.data_movement.movement import broadcast_in_dim, canonical_axes, linear_primitive, reshape, transpose_p
from volta_fn.primitives.elementwise.cast import convert_element_type_p, in_wider_dtype
from volta_fn.settings import current as settings

Axes = tuple[int, ...]
_HALVES = (np.dtype(np.float16), dtypes.bfloat16)


class Reducer(Protocol):
    """A function that applies a reduction primitive, its attribute."""

    primitive: Primitive

    def __call__(self, operand: Any, axes: Sequence[int]) -> Array:
        """Combine the elements along `axes`."""


def reduction(
    name: str,
    combination: Reduction,
    *,
    operands: frozenset[np.dtype],
    tangent: Callable[[Array, Array, Array, Axes], Array] | None = None,
    doc: str = "",
) -> Reducer:
    """Declare a reduction primitive and return the function that applies it.

    Args:
        name: the primitive's name, as `jax.lax` has it.
        combination: its step, identity, and how it accumulates.
        operands: the dtypes allowed.
        tangent: ``(operand's tangent, operand, result, axes) -> result's tangent``; None where it is zero.
        doc: the function's docstring.
    """

    def jvp(primals: Sequence[Array], tangents: Sequence[Any], *, axes: Axes) -> tuple[Array, Any]:
        (operand,), (operand_tangent,) = primals, tangents
        out = bind(primitive, operand, axes=axes)
        if tangent is None or type(operand_tangent) is Zero or not operand.size:
            return out, Zero(out.aval.tangent_aval())
        return out, tangent(operand_tangent, operand, out, axes)

    primitive = Primitive(
        name, _abstract(name, operands), evaluate=_evaluate(combination), jvp=jvp, batch=RuleOf(_batch), reduction=combination
    )

    def reduce(operand: Any, axes: Sequence[int]) -> Array:
        value = as_value(operand)
        try:
            return bind(primitive, value, axes=canonical_axes(tuple(axes), value.ndim))
        except DTypeError as error:
            return in_wider_dtype(name, lambda wide: reduce(wide, axes), [value], error)

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__module__ = sys._getframe(1).f_globals["__name__"]  # where pickled functions are found again
    reduce.__doc__ = doc or f"The elements along `axes` combined by {combination.step}."
    function: Any = reduce
    function.primitive = primitive
    return cast("Reducer", function)


def _reduced_shape(operand: ShapedArray | np.ndarray, axes: Axes) -> Shape:
    return tuple([n for i, n in enumerate(operand.shape) if i not in axes])


def _abstract(name: str, allowed: frozenset[np.dtype]) -> Callable[..., ShapedArray]:
    def abstract(operand: ShapedArray, *, axes: Axes) -> ShapedArray:
        if operand.dtype not in allowed:
            raise dtypes.dtype_error(name, operand.dtype, allowed)
        if any(not 0 <= a < operand.ndim for a in axes) or len(set(axes)) != len(axes):
            raise ShapeError(f"{name} axes {axes} do not fit an array of shape {operand.shape}")
        return operand.update(shape=_reduced_shape(operand, axes))

    return abstract


def _batch(primitive: Primitive) -> Callable[..., Any]:
    def batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, axes: Axes) -> tuple[Array, int]:
        dim = dims[0] or 0
        shifted = tuple([a + (a >= dim) for a in axes])
        return bind(primitive, args[0], axes=shifted), dim - sum(a < dim for a in shifted)

    return batch


def _evaluate(combination: Reduction) -> Callable[..., np.ndarray]:
    """Return the evaluation rule, which reduces by the step's ufunc.

    Without one, or where rounding errors would add up, halves are combined.
    """

    def evaluate(operand: np.ndarray, *, axes: Axes) -> np.ndarray:
        if 0 in [operand.shape[a] for a in axes]:
            return np.full(_reduced_shape(operand, axes), combination.start(operand.dtype))
        if all(operand.shape[a] == 1 for a in axes):  # NumPy would add -0.0 to 0.0, and multiply an infinite complex number by 1
            return operand.reshape(_reduced_shape(operand, axes)).copy()
        step: Any = PRIMITIVES[combination.step].evaluate
        wide = operand.astype(combination.accumulator(operand.dtype), copy=False)
        if step is np.add and wide.dtype in dtypes.INEXACT:
            reduced = _sum(wide, axes)
        elif isinstance(step, np.ufunc) and (step in (np.add, np.multiply) or not combination.rounds):
            reduced = step.reduce(wide, axis=axes, dtype=wide.dtype)
        else:
            other_axes = [i for i in range(wide.ndim) if i not in axes]
            values = wide.transpose(*axes, *other_axes).reshape(
                math.prod([wide.shape[a] for a in axes]), *[wide.shape[i] for i in other_axes]
            )
            while len(values) > 1:
                half, odd = divmod(len(values), 2)
                paired = step(values[:half], values[half : 2 * half])
                values = np.concatenate([paired, values[-1:]]) if odd else paired
            reduced = values[0]
        return reduced.astype(operand.dtype, copy=False)

    return evaluate


#: The rows of a block of a sum, whose rounding errors add up.
_BLOCK = 32


def _sum(x: np.ndarray, axes: Axes) -> np.ndarray:
    """Sum along axes, those that are last in memory first."""
    # NumPy sums contiguous axes pairwise, but the rows of others sequentially, so that their rounding errors add up.
    order = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis])) if not x.flags.c_contiguous else [*range(x.ndim)]
    total, remaining = x.transpose(order), [axis for axis in order if axis not in axes]
    outer = order.index(remaining[-1]) + 1 if remaining else 0
    if outer < x.ndim:
        outer = outer if total.flags.c_contiguous else x.ndim - 1
        total = np.add.reduce(total, axis=tuple(range(outer, x.ndim)))
    for i in reversed(range(outer)):
        if order[i] in axes:
            total = _sum_of_rows(np.moveaxis(total, i, 0))
    return total if remaining == sorted(remaining) else total.transpose(np.argsort(remaining))


def _sum_of_rows(rows: np.ndarray) -> np.ndarray:
    """Sum along the first axis in blocks."""
    # The rows of a block are far apart, so that NumPy's loops are as long as can be.
    total: np.ndarray
    if len(rows) <= _BLOCK:
        total = np.add.reduce(rows, axis=0)
        return total
    covered = len(rows) // _BLOCK * _BLOCK
    total = _sum_of_rows(np.add.reduce(rows[:covered].reshape(_BLOCK, len(rows) // _BLOCK, *rows.shape[1:]), axis=0))
    return total if covered == len(rows) else total + np.add.reduce(rows[covered:], axis=0)


def repeated(reduced: Array, shape: Shape, axes: Axes) -> Array:
    """Repeat `reduced` along the axes that the reduction of `shape` removed."""
    return broadcast_in_dim(reduced, shape, [i for i in range(len(shape)) if i not in axes])


def lowest(dtype: np.dtype) -> Any:
    """Return the identity of `max`: -inf or the least number, or False."""
    if dtype in dtypes.INTEGERS | dtypes.STORAGE_INTEGERS:
        return dtypes.iinfo(dtype).min
    if dtype in dtypes.STORAGE_FLOATS:
        return -np.inf if _has_infinity(dtype) else dtypes.finfo(dtype).min
    return False if dtype in dtypes.BOOL else -np.inf


def highest(dtype: np.dtype) -> Any:
    """Return the identity of `min`: inf or the greatest number, or True."""
    if dtype in dtypes.INTEGERS | dtypes.STORAGE_INTEGERS:
        return dtypes.iinfo(dtype).max
    if dtype in dtypes.STORAGE_FLOATS:
        return np.inf if _has_infinity(dtype) else dtypes.finfo(dtype).max
    return True if dtype in dtypes.BOOL else np.inf


def _has_infinity(dtype: np.dtype) -> bool:
    return bool(np.isinf(np.float32(np.inf).astype(dtype).astype(np.float32)))


def _all_ones(dtype: np.dtype) -> Any:
    return True if dtype in dtypes.BOOL else dtypes.iinfo(dtype).max if dtype in dtypes.UNSIGNED else -1


# sum, which is linear


_sum_type = _abstract("reduce_sum", dtypes.NUMBERS)


def _sum_abstract(operand: ShapedArray, *, axes: Axes) -> ShapedArray:
    aval = _sum_type(operand, axes=axes)
    if not settings.allow_f16_reductions and operand.dtype in _HALVES and aval.size != operand.size:
        raise DTypeError(f"reduce_sum of {operand} is not allowed, as jax_allow_f16_reductions is off: convert to float32 first")
    return aval


_SUM = Reduction("add", lambda dtype: 0, rounds=True)

reduce_sum_p = linear_primitive(
    "reduce_sum",
    _sum_abstract,
    _evaluate(_SUM),
    RuleOf(_batch),
    lambda ct, operand, *, axes: [repeated(ct, operand.shape, axes)],
    views=False,
    reduction=_SUM,
)


def reduce_sum(operand: Any, axes: Sequence[int], *, out_sharding: Any = None) -> Array:
    """Return the sum of the elements along `axes`.

    float16 and bfloat16 accumulate in float32. `out_sharding` is how the result is split between devices.

    >>> vf.lax.reduce_sum(vf.numpy.ones((2, 3)), (1,))
    Array([3., 3.], dtype=float32)
    """
    if out_sharding is not None:
        return constrained(reduce_sum(operand, axes), out_sharding)
    value = as_value(operand)
    reduced_axes = canonical_axes(tuple(axes), value.ndim)
    if not reduced_axes:
        return value
    try:
        return current_trace().process(reduce_sum_p, (value,), {"axes": reduced_axes})
    except DTypeError as error:
        return in_wider_dtype("reduce_sum", lambda wide: reduce_sum(wide, axes), [value], error)


# product


def _product_rule(tangent: Array, operand: Array, out: Array, axes: Axes) -> Array:
    """Apply the product rule by halving, without division by zeros."""
    other_axes = [i for i in range(operand.ndim) if i not in axes]
    shape = (*[operand.shape[i] for i in other_axes], -1)
    values, tangents = (reshape(bind(transpose_p, v, permutation=(*other_axes, *axes)), shape) for v in (operand, tangent))
    while values.shape[-1] > 1:
        values, tangents = _halve(values, tangents)
    return reshape(tangents, out.shape)


def _halve(values: Array, tangents: Array) -> tuple[Array, Array]:
    """Multiply neighbours along the last axis, by the product rule."""
    size, axis = values.shape[-1], values.ndim - 1
    half, odd = divmod(size, 2)
    mul, add, join = PRIMITIVES["mul"], PRIMITIVES["add"], PRIMITIVES["concatenate"]

    def cut(x: Array, start: int, limit: int) -> Array:
        starts, limits = (0,) * axis, x.shape[:-1]
        return bind(PRIMITIVES["slice"], x, start_indices=(*starts, start), limit_indices=(*limits, limit), strides=None)

    left, right = cut(values, 0, half), cut(values, half, 2 * half)
    product = bind(mul, left, right)
    tangent = bind(add, bind(mul, cut(tangents, 0, half), right), bind(mul, left, cut(tangents, half, 2 * half)))
    if not odd:
        return product, tangent
    return tuple([bind(join, x, cut(all_, size - 1, size), dimension=axis) for x, all_ in ((product, values), (tangent, tangents))])


reduce_prod: Reducer = reduction(
    "reduce_prod",
    Reduction("mul", lambda dtype: 1, rounds=True),
    operands=dtypes.NUMBERS,
    tangent=_product_rule,
    doc="""The product of the elements along `axes`.

    >>> vf.lax.reduce_prod(vf.numpy.array([[1, 2], [4, 3]]), (1,))
    Array([ 2, 12], dtype=int32)
    """,
)


# maximum and minimum


def _shared_equally(tangent: Array, operand: Array, out: Array, axes: Axes) -> Array:
    """Return the mean tangent of the elements that equal the extremum."""
    is_extremum = bind(PRIMITIVES["eq"], operand, repeated(out, operand.shape, axes))
    dtype = dtypes.accumulator(operand.dtype)  # the count and the sum may exceed float16
    weights, wide = (bind(convert_element_type_p, x, new_dtype=dtype, weak_type=False) for x in (is_extremum, tangent))
    total = bind(reduce_sum_p, bind(PRIMITIVES["mul"], wide, weights), axes=axes)
    mean = bind(PRIMITIVES["div"], total, bind(reduce_sum_p, weights, axes=axes))
    return bind(convert_element_type_p, mean, new_dtype=operand.dtype, weak_type=False)


reduce_max: Reducer = reduction(
    "reduce_max",
    Reduction("max", lowest, idempotent=True),
    operands=dtypes.ALL,
    tangent=_shared_equally,
    doc="""The largest element along `axes`; NaN if there is one; -inf (or the smallest integer) of no elements.

    >>> vf.lax.reduce_max(vf.numpy.array([[1, 2], [4, 3]]), (1,))
    Array([2, 4], dtype=int32)
    """,
)
reduce_min: Reducer = reduction(
    "reduce_min",
    Reduction("min", highest, idempotent=True),
    operands=dtypes.ALL,
    tangent=_shared_equally,
    doc="""The smallest element along `axes`; NaN if there is one; inf (or the largest integer) of no elements.

    >>> vf.lax.reduce_min(vf.numpy.array([[1, 2], [4, 3]]), (1,))
    Array([1, 3], dtype=int32)
    """,
)


# logic


reduce_and: Reducer = reduction(
    "reduce_and",
    Reduction("and", _all_ones, idempotent=True),
    operands=dtypes.BOOL | dtypes.INTEGERS,
    doc="""Bitwise (for bool: logical) "and" of the elements along `axes`.

    >>> vf.lax.reduce_and(vf.numpy.array([[True, False], [True, True]]), (1,))
    Array([False,  True], dtype=bool)
    """,
)
reduce_or: Reducer = reduction(
    "reduce_or",
    Reduction("or", lambda dtype: 0, idempotent=True),
    operands=dtypes.BOOL | dtypes.INTEGERS,
    doc="""Bitwise (for bool: logical) "or" of the elements along `axes`.

    >>> vf.lax.reduce_or(vf.numpy.array([[True, False], [False, False]]), (1,))
    Array([ True, False], dtype=bool)
    """,
)
reduce_xor: Reducer = reduction(
    "reduce_xor",
    Reduction("xor", lambda dtype: 0),
    operands=dtypes.BOOL | dtypes.INTEGERS,
    doc="""Bitwise (for bool: logical) "exclusive or" of the elements along `axes`.

    >>> vf.lax.reduce_xor(vf.numpy.array([5, 3]), (0,))
    Array(6, dtype=int32)
    """,
)

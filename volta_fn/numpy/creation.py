"""Creation of arrays: from data, filled with a value, as ranges, from files."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self, overload

import numpy as np

from volta_fn import dtypes, errors, lax, tree
from volta_fn.core.arrays.array import Array, ConcreteArray, alias, array_spec, as_value, brief, from_host, unmasked, wrap
from volta_fn.core.arrays.memory import beside, constrained, device_put, dlpack_values, split_like
from volta_fn.core.aval import ShapedArray, as_integer, canonical_shape
from volta_fn.core.devices.device import Device, find_device
from volta_fn.core.dimension import is_symbolic, max_dim
from volta_fn.core.trace import EVAL, Tracer, bind, concrete_or_raise, current_trace, is_concrete
from volta_fn.errors import ArgumentError, ArgumentTypeError, CorruptFileError, ExportError, OutOfMemoryError, ShapeError, VoltaError
from volta_fn.jit.fused import fused, fused_by_results
from volta_fn.numpy.arguments import axis_of, dtype_or, full_like_scalar, operand, promote_inexact
from volta_fn.primitives.data_movement.movement import broadcast_in_dim_p, broadcast_to, moveaxis
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.elementwise.cast import ROUNDED_FROM_FLOAT32
from volta_fn.settings import current as settings
from volta_fn.source import is_called_by_user

_STEP_ADVICE = "The length of the result depends on it: compute it outside the traced function or make it a static argument."


def array(
    object: Any,
    dtype: Any = None,
    copy: bool = True,
    order: str | None = None,
    ndmin: int = 0,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Create an array from an array, a scalar, or nested lists and tuples of these.

    Without `dtype`, Python's floats become float32, ints int32, complex numbers complex64; arrays keep their dtype, and mixtures are
    promoted. With `copy` (not in `asarray`) the result outlives a donated or deleted original; both may share memory until then.

    >>> jnp.array([[1, 2], [3, 4.5]])
    Array([[1. , 2. ],
           [3. , 4.5]], dtype=float32)
    >>> jnp.array([1, 2], dtype="uint8").dtype
    dtype('uint8')

    Raises `ShapeError` for ragged nests and `ArgumentTypeError` for elements that are no numbers.
    """
    if order not in (None, "C", "K", "A"):
        raise ArgumentError(f"array: order must be 'C', 'K', 'A' or None, got {order!r}; arrays have no column-major layout")
    result = _from_object(object, None if dtype is None else dtypes.as_dtype(dtype))
    if settings.permissive and not result.shape and result is not object and is_called_by_user(_CREATION):
        result = _traced_scalar(result)
    result = lax.broadcast_to_rank(result, ndmin) if result.ndim < ndmin else result
    result = result if device is None else device_put(result, device)
    if copy and result is object and isinstance(result, ConcreteArray):
        return constrained(alias(result), out_sharding)
    return constrained(result, out_sharding)


def asarray(
    a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None, device: Any = None, out_sharding: Any = None
) -> Array:
    """Convert `a` to an array; an array of that dtype is returned unchanged.

    >>> jnp.asarray((1, 2, 3))
    Array([1, 2, 3], dtype=int32)

    With `copy=False` it raises `ArgumentError` for anything else, which has to be copied; `from_dlpack` shares the memory of other
    libraries' arrays.
    """
    result = array(a, dtype, bool(copy), order=order, device=device)
    if copy is False and result is not a and not settings.permissive:  # JAX copies anyway
        raise ArgumentError(f"asarray: copy=False, but {type(a).__name__} to {result.aval} takes a copy; from_dlpack may share the memory")
    return constrained(result, out_sharding)


#: The packages of `array` and of the functions that call it for the user: with `extend` for arrays of random keys.
_CREATION = frozenset({"numpy", "extend"})


def _traced_scalar(value: Array) -> Array:
    """Return a scalar as a value of the function that is being traced, as in JAX.

    JAX's libraries ask by ``ones(())`` whether they are traced. A counter that begins with ``jnp.array(0)`` is traced from the beginning,
    so that a program which captures it before it changes has the structure of one which captures it afterwards.
    """
    if current_trace() is EVAL or not is_concrete(value):
        return value
    traced: Array = bind(broadcast_in_dim_p, value, shape=(), broadcast_dimensions=())
    return traced


def _from_object(value: Any, dtype: np.dtype | None) -> Array:
    if hasattr(value, "__jax_array__"):
        value = value.__jax_array__()
    if isinstance(value, (list, tuple, range)):
        return _from_sequence(list(value), dtype)
    if isinstance(value, Array):
        return value if dtype is None else lax.convert_element_type(value, dtype)
    if isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
        return as_value(value) if dtype is None else _checked_scalars(value, dtype)
    values = np.asarray(unmasked(value))
    if values.dtype.kind in "OUSMmV" and values.dtype not in dtypes.STORED:
        remedy = _encoding(value, values)
        raise ArgumentTypeError(f"array: {brief(value)} of type {type(value).__name__} is not an array of numbers{remedy}")
    return from_host(values) if dtype is None else lax.convert_element_type(values, dtype)


def _encoding(value: Any, values: np.ndarray) -> str:
    """Return the remedy for an object that is no array of numbers, or nothing."""
    if isinstance(value, (str, bytes)) or values.dtype.kind in "US":
        return ". Encode text as numbers first: class numbers, or the indices of a tokenizer"
    if isinstance(value, (set, frozenset, dict)):
        return f". Its order is not that of an array: make a list of {'its values' if isinstance(value, dict) else 'it, sorted'}"
    if not values.shape:
        return "; collect an iterator first: list(x)" if hasattr(value, "__next__") else ""
    if (columns := getattr(value, "dtypes", None)) is not None and hasattr(value, "columns"):  # a DataFrame
        text = [str(name) for name, dtype in zip(value.columns, columns, strict=False) if getattr(dtype, "kind", "O") in "OUSMm"]
        return f". Columns of other things: {', '.join(text)}; encode them, or select the others"
    return ". If all of its elements are numbers, write x.astype(float)" if values.dtype.kind == "O" else ""


def _checked_scalars(value: Any, dtype: np.dtype) -> Array:
    """Convert Python scalars to a dtype; raise for one that does not fit."""
    if dtype in ROUNDED_FROM_FLOAT32 and (values := np.asarray(value)).dtype.kind in "biuf":
        return lax.convert_element_type(values, dtype)
    try:
        values = np.asarray(value, dtype)
    except (OverflowError, ValueError) as error:  # the latter of NaN
        kind = errors.IntegerOverflowError if isinstance(error, OverflowError) else ArgumentError
        raise kind(f"array: the number {value} does not fit {dtype.name}") from None
    except TypeError:
        raise ArgumentTypeError(f"array: the complex number {value} is none of {dtype.name}; pass its real part") from None
    return from_host(values)


def _from_sequence(value: Sequence[Any], dtype: np.dtype | None) -> Array:
    leaves = tree.leaves(value, is_leaf=lambda node: not isinstance(node, (list, tuple)))
    for leaf in {type(leaf): leaf for leaf in leaves}.values():
        unmasked(leaf)
    if any(isinstance(leaf, Array) or hasattr(leaf, "__jax_array__") for leaf in leaves):
        # Arrays and tracers are stacked level by level, after all levels have decided the dtype: a row of Python's numbers has none.
        if dtype is None:
            dtype, _ = dtypes.promote(*[(p.dtype, p.weak_type) for p in [_from_object(leaf, None) for leaf in leaves]])
        items = [_from_object(item, dtype) for item in value]
        shapes = {p.shape for p in items}
        if len(shapes) > 1:
            raise ShapeError(f"array: the items of a sequence have different shapes: {sorted(shapes)}")
        return lax.stack(items)
    try:
        values = np.asarray(value)
    except VoltaError:  # of an element, which says more
        raise
    except ValueError as error:
        raise ShapeError(f"array: the nested sequences have different lengths or mix scalars with sequences: {error}") from None
    if values.dtype.kind in "OUSMm":
        raise _not_numbers(leaves)
    if not leaves:
        return from_host(values.astype(dtype_or(dtype, dtypes.default(np.dtype(np.float32)))))
    if dtype is None:
        dtype, _ = dtypes.promote(*[dtypes.dtype_and_weak_type(leaf) for leaf in _distinct_types(leaves)])
    return _checked_scalars(value, dtype)


def _distinct_types(leaves: Sequence[Any]) -> list[Any]:
    """Return leaves that decide the dtype: one per type, and the extreme integers."""
    samples = {type(leaf) if not hasattr(leaf, "dtype") else (type(leaf), leaf.dtype): leaf for leaf in leaves}
    integers = [leaf for leaf in leaves if type(leaf) is int]
    extremes = [min(integers), max(integers)] if integers else []
    return [*samples.values(), *extremes]


def _not_numbers(leaves: Sequence[Any]) -> Exception:
    numbers = (bool, int, float, complex, np.generic, np.ndarray)
    too_big = next((leaf for leaf in leaves if isinstance(leaf, int) and not -(2**63) <= leaf < 2**64), None)
    if too_big is not None:
        return errors.IntegerOverflowError(f"array: the integer {too_big} does not fit 64 bits")
    wrong = next((leaf for leaf in leaves if not isinstance(leaf, numbers)), leaves)
    remedy = ". Encode text as numbers first: class numbers, or the indices of a tokenizer" if isinstance(wrong, (str, bytes)) else ""
    remedy = "; write float('nan') for a missing number" if wrong is None else remedy
    return ArgumentTypeError(f"array: {brief(wrong)} of type {type(wrong).__name__} is not a number or an array of numbers{remedy}")


@fused
def astype(x: Any, dtype: Any, /, *, copy: bool = False, device: Any = None) -> Array:
    """Convert `x` to a dtype (None: float32); complex to real drops imaginary parts.

    >>> jnp.astype(jnp.array([0.0, 1.7]), bool)
    Array([False,  True], dtype=bool)
    """
    result = lax.convert_element_type(operand("astype", "x", x), dtype_or(dtype, dtypes.default(np.dtype(np.float32))))
    return result if device is None else device_put(result, device)


def copy(a: Any, order: str | None = None) -> Array:
    """Return an equal array that outlives `a` when `a` is donated or deleted.

    >>> x = vf.numpy.arange(3)
    >>> y = x.copy()
    >>> x.delete()
    >>> y
    Array([0, 1, 2], dtype=int32)
    """
    return alias(a) if type(a) is ConcreteArray and order is None else array(a, order=order)


def _filling(value: Any, dtype: Any, device: Any) -> Array:
    """Return a fill value as an array.

    Floats become integers by `astype`, and so do integers that do not fit in JAX's mode.
    """
    if (
        type(value) in ((float, int) if settings.permissive else (float,))
        and dtype is not None
        and dtypes.as_dtype(dtype) in dtypes.INTEGERS
    ):
        value = lax.convert_element_type(value, dtype)
    return array(value, dtype, device=device if isinstance(device, (str, Device)) else None)


def _split(filled: Array, device: Any) -> Array:
    """Place an array by a sharding: `_filling` has placed its value by anything else."""
    return filled if device is None or isinstance(device, (str, Device)) else device_put(filled, device)


def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Array:
    """Create an array of `shape` filled with `fill_value`, which broadcasts to it.

    >>> jnp.full((2, 2), 7, "int8")
    Array([[7, 7],
           [7, 7]], dtype=int8)
    """
    value = broadcast_to(_filling(fill_value, dtype, device), canonical_shape(shape))
    if settings.permissive and not value.shape:
        value = _traced_scalar(value)
    return constrained(_split(value, device), out_sharding)


def zeros(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Array:
    """Create an array of zeros, float32 by default.

    >>> jnp.zeros(3)
    Array([0., 0., 0.], dtype=float32)

    Of dtype `float0`, that of tangents of integers, they are a NumPy array.
    """
    if dtype is not None and dtype == dtypes.float0:
        return np.zeros(canonical_shape(shape), dtypes.float0)  # type: ignore[return-value]
    return constrained(full(shape, 0, dtype_or(dtype, dtypes.default(np.dtype(np.float32))), device=device), out_sharding)


def ones(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Array:
    """Create an array of ones, float32 by default.

    >>> jnp.ones((1, 2), int)
    Array([[1, 1]], dtype=int32)
    """
    return constrained(full(shape, 1, dtype_or(dtype, dtypes.default(np.dtype(np.float32))), device=device), out_sharding)


def empty(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Array:
    """Create an array of zeros; no memory is left uninitialised."""
    return constrained(zeros(shape, dtype, device=device), out_sharding)


@fused
def full_like(a: Any, fill_value: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None) -> Array:
    """Create an array like `a` (or of `dtype` and `shape`) filled with `fill_value`.

    It is on the device of `a`, unless `device` is another one.

    >>> jnp.full_like(jnp.zeros(2), 3)
    Array([3., 3.], dtype=float32)
    """
    like = a if hasattr(a, "shape") and hasattr(a, "dtype") else operand("full_like", "a", a)
    weak = dtype is None and getattr(like, "weak_type", False)
    size = like.shape if shape is None else canonical_shape(shape)
    value = _filling(fill_value, dtype_or(dtype, dtypes.as_dtype(like.dtype)), device)
    if device is out_sharding is None:
        value = beside(value, like)
    filled = _split(broadcast_to(lax.convert_element_type(value, value.dtype, weak), size), device)
    return split_like(filled, like) if device is out_sharding is None and size == like.shape else constrained(filled, out_sharding)


@fused
def zeros_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None) -> Array:
    """Create zeros of `a`'s shape and dtype.

    >>> jnp.zeros_like(jnp.array([1, 2]))
    Array([0, 0], dtype=int32)
    """
    return constrained(full_like(a, 0, dtype, shape, device=device), out_sharding)


@fused
def ones_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None) -> Array:
    """Create ones of `a`'s shape and dtype.

    >>> jnp.ones_like(jnp.array([1, 2]))
    Array([1, 1], dtype=int32)
    """
    return constrained(full_like(a, 1, dtype, shape, device=device), out_sharding)


def empty_like(prototype: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Array:
    """Create zeros of `prototype`'s shape and dtype; no memory is left uninitialised."""
    return full_like(prototype, 0, dtype, shape, device=device)


@fused_by_results
def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Array:
    """Return the numbers from `start` (default 0) up to, excluding, `stop`, by `step`.

    >>> jnp.arange(1, 7, 2)
    Array([1, 3, 5], dtype=int32)

    The bounds must be known while tracing, for they give the length.
    """
    bounds = [concrete_or_raise(v, "a bound of arange", _STEP_ADVICE) for v in (start, stop, step) if v is not None]
    if any(np.iscomplexobj(b) for b in bounds):
        raise ArgumentError(f"arange: complex numbers have no order, got {bounds}; count real ones and multiply them by the step")
    if any(np.ndim(b) for b in bounds):
        raise ArgumentError(f"arange: start, stop and step must be scalars, got {bounds}")
    result_dtype = dtype_or(dtype, dtypes.promote(*map(dtypes.dtype_and_weak_type, bounds))[0])
    low, high = (0, start) if stop is None else (start, stop)
    by = 1 if step is None else step
    if by == 0:
        raise ArgumentError("arange: step must not be zero")
    if is_symbolic((low, high, by)):
        return _symbolic_arange(low, high, by, result_dtype)
    if result_dtype in dtypes.INTEGERS and all(isinstance(v, int) for v in (low, high, by)):
        numbers = range(low, high, by)
        for bound in (numbers[0], numbers[-1]) if len(numbers) and not settings.permissive else ():
            _checked_scalars(bound, result_dtype)
        ramp = lax.iota(result_dtype, len(numbers))
        if numbers.step != 1:
            ramp = lax.mul(ramp, as_value(np.asarray(numbers.step).astype(result_dtype)))
        if numbers.start:
            ramp = lax.add(ramp, as_value(np.asarray(numbers.start).astype(result_dtype)))
        return constrained(ramp if device is None else device_put(ramp, device), out_sharding)
    values = np.arange(*(np.asarray(v).item() for v in (low, high, by)))
    return constrained(array(values.astype(result_dtype), device=device), out_sharding)


def _symbolic_arange(low: Any, high: Any, by: Any, dtype: np.dtype) -> Array:
    if not isinstance(by, int) and not is_symbolic((by,)):
        raise ArgumentError(f"arange: with symbolic bounds the step must be an integer, got {by}")
    count = max_dim(-((low - high) // by), 0)
    return lax.add(lax.mul(lax.iota(dtype, count), to_dtype(as_value(by), dtype)), to_dtype(as_value(low), dtype))


@overload
def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: Literal[False] = False, dtype: Any = None, axis: int = 0,
    *, device: Any = None,
) -> Array: ...  # fmt: skip
@overload
def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, *, retstep: Literal[True], dtype: Any = None, axis: int = 0,
    device: Any = None,
) -> tuple[Array, Array]: ...  # fmt: skip
@fused_by_results
def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None, axis: int = 0,
    *, device: Any = None,
) -> Any:  # fmt: skip
    """Return `num` evenly spaced numbers from `start` to `stop`.

    `stop` is included if `endpoint`. The numbers lie along a new dimension at `axis`. With `retstep` the result is the pair (numbers,
    spacing).

    >>> jnp.linspace(0, 1, 5)
    Array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    count = as_integer(concrete_or_raise(num, "argument num of linspace", _STEP_ADVICE), "linspace: num")
    if count < 0:
        raise ArgumentError(f"linspace: num must not be negative, got {count}")
    low, high = _promote_for("linspace", dtype, start, stop)
    result_dtype = dtype_or(dtype, low.dtype)
    shape = lax.broadcast_shapes(low.shape, high.shape)
    low, high = (lax.expand_dims(broadcast_to(v, shape), (0,)) for v in (low, high))
    gaps = count - 1 if endpoint else count
    ramp = lax.reshape(lax.iota(_index_dtype(low.dtype), count), (count, *(1,) * len(shape)))
    numbers = to_dtype(_between(low, high, ramp, max_dim(gaps, 1)), low.dtype)
    ends = [low, high] if endpoint else [low]
    if count >= len(ends):
        numbers = lax.concatenate([low, lax.slice_in_dim(numbers, 1, count - len(ends) + 1), *ends[1:]], 0)
    if result_dtype in dtypes.INTEGERS:
        numbers = lax.floor(_near_integers(numbers, lax.max(lax.abs(low), lax.abs(high)), 4, 1 / 16))
    dim = axis_of("linspace", axis, len(shape) + 1)
    numbers = lax.convert_element_type(moveaxis(numbers, 0, dim), result_dtype)
    numbers = numbers if device is None else device_put(numbers, device)
    step = lax.reshape((high - low) / gaps, shape) if gaps > 0 else full_like_scalar(low, math.nan)
    return (numbers, step) if retstep else numbers


def _between(low: Array, high: Array, ramp: Array, gaps: Any) -> Array:
    """Return the numbers that divide a range into gaps.

    Floats of 16 bits are computed in float32, and so returned. Whole steps are exact, since products and sums of whole numbers are. Ends
    beyond 2⁶⁴ are scaled by 2⁻⁶⁴, so that products with the numbers of gaps do not overflow.
    """
    low, high, ramp = [to_dtype(v, dtypes.promote_types(low.dtype, np.dtype(np.float32))) for v in (low, high, ramp)]
    size = lax.max(lax.abs(low), lax.abs(high))
    large = lax.gt(size, full_like_scalar(size, 2.0**64))
    scale = lax.select(large, full_like_scalar(size, 2.0**-64), full_like_scalar(size, 1.0))
    return (low * scale * (gaps - ramp) + high * scale * ramp) / gaps / scale


def _near_integers(x: Array, size: Any, steps: Any, most: float) -> Array:
    """Return numbers, and integers where they differ from one by rounding errors.

    Those are some units in the last place of `size`, and no more than `most`; else an integer would be cut to the one before it.
    """
    nearest = lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
    slack = lax.min(size * (steps * float(dtypes.finfo(x.dtype).eps)), full_like_scalar(x, most))
    return lax.select(lax.le(lax.abs(lax.sub(x, nearest)), broadcast_to(slack, x.shape)), nearest, x)


def _promote_for(function: str, dtype: Any, *values: Any) -> list[Array]:
    """Return values in their common inexact dtype, of 64 bits if `dtype` needs them."""
    arrays = promote_inexact(function, *values)
    wide = dtypes.to_inexact(dtypes.as_dtype("float32" if dtype is None else dtype))
    if wide not in dtypes.WIDE_NUMBERS.values():
        return arrays
    return [lax.convert_element_type(a, dtypes.promote_types(a.dtype, wide)) for a in arrays]


def _index_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype that holds indices exactly before conversion to `dtype`."""
    return np.dtype(np.float64) if dtype in (np.dtype(np.float64), np.dtype(np.complex128)) else np.dtype(np.float32)


@fused_by_results
def logspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0) -> Array:
    """Return `num` numbers from base**start to base**stop, evenly spaced in exponent.

    >>> jnp.logspace(0, 2, 3).round(3)
    Array([  1.,  10., 100.], dtype=float32)
    """
    low, high = _promote_for("logspace", dtype, start, stop)
    exponents = linspace(low, high, num, endpoint, axis=axis)
    bases, exponents = promote_inexact("logspace", *_promote_for("logspace", dtype, base), exponents)
    return _powers(lax.pow(bases, exponents), exponents, dtype)


def _powers(values: Array, exponents: Array, dtype: Any) -> Array:
    """Return powers in a dtype; for integers, the nearest where they almost are one."""
    if dtype is not None and dtypes.as_dtype(dtype) in dtypes.INTEGERS:
        values = _near_integers(values, lax.abs(values), 4 * (1 + lax.abs(exponents)), 1 / 4)
    return lax.convert_element_type(values, dtype_or(dtype, values.dtype))


@fused_by_results
def geomspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0) -> Array:
    """Return `num` numbers from `start` to `stop` in a geometric progression.

    >>> jnp.geomspace(1, 8, 4)
    Array([1., 2., 4., 8.], dtype=float32)
    """
    low, high = _promote_for("geomspace", dtype, start, stop)
    sign = lax.sign(low)
    exponents = linspace(lax.log2(lax.div(low, sign)), lax.log2(lax.div(high, sign)), num, endpoint, axis=axis)
    dim = axis_of("geomspace", axis, exponents.ndim)
    sign = lax.expand_dims(broadcast_to(sign, exponents.shape[:dim] + exponents.shape[dim + 1 :]), (dim,))
    result = lax.mul(sign, lax.exp2(exponents))
    for value, at in ((high, num - 1), (low, 0)) if endpoint else ((low, 0),):  # powers of logarithms are inexact
        ends = lax.expand_dims(broadcast_to(value, result.shape[:dim] + result.shape[dim + 1 :]), (dim,))
        is_end = lax.eq(lax.broadcasted_iota(np.int32, result.shape, dim), np.int32(at))
        result = lax.select(is_end, broadcast_to(ends, result.shape), result)
    return _powers(result, exponents, dtype)


@fused_by_results
def eye(N: int, M: int | None = None, k: Any = 0, dtype: Any = None, *, device: Any = None) -> Array:
    """Create the N×M matrix with ones on the k-th diagonal and zeros elsewhere.

    >>> jnp.eye(2)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    rows, columns = canonical_shape((N, N if M is None else M), "eye: the size")
    index = dtypes.index_dtype(rows + columns)
    i, j = (lax.broadcasted_iota(index, (rows, columns), d) for d in (0, 1))
    result = lax.convert_element_type(
        lax.eq(lax.add(i, diagonal_offset(k, rows, columns)), j), dtype_or(dtype, dtypes.default(np.dtype(np.float32)))
    )
    return result if device is None else device_put(result, device)


def diagonal_offset(k: Any, rows: int, columns: int) -> Array:
    """Return a diagonal's offset, limited to the corners of the matrix."""
    index = dtypes.index_dtype(rows + columns)
    if isinstance(k, Tracer) and k.dtype in dtypes.INTEGERS and not k.shape:
        return lax.convert_element_type(lax.clamp(k.dtype.type(-rows), k, k.dtype.type(columns)), index)
    if is_symbolic((k, rows, columns)):  # an offset beyond the corners has the same effect as they have
        return to_dtype(as_value(as_integer(k, "k")), index)
    return as_value(index.type(max(-rows, min(as_integer(k, "k"), columns))))


def identity(n: int, dtype: Any = None) -> Array:
    """Create the n×n identity matrix.

    >>> jnp.identity(2)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    return eye(n, dtype=dtype)


def fromiter(iter: Any, dtype: Any, count: int = -1) -> Array:
    """Create an array from the first `count` items (-1: all) of an iterable.

    >>> jnp.fromiter(range(3), "int32")
    Array([0, 1, 2], dtype=int32)
    """
    return array(np.fromiter(iter, dtypes.as_dtype(dtype), count))


def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0) -> Array:
    """Create an array from the bytes of a buffer."""
    return array(np.frombuffer(buffer, dtypes.as_dtype(dtype), count, offset))


def from_dlpack(x: Any, /, *, device: str | Device | None = None, copy: bool | None = None) -> Array:
    """Create an array in the memory of another library's array, through DLPack.

    Args:
        x: an array with the method `__dlpack__`: NumPy's, PyTorch's, JAX's, ….
        device: where the result is; by default where `x` is. An array elsewhere is copied.
        copy: True copies always, False never; by default, where it is needed.

    Without a copy the result changes when its memory is written to: do not change `x` while the result is in use.

    >>> import numpy as np
    >>> x = np.arange(3.0)
    >>> y = jnp.from_dlpack(x)
    >>> np.shares_memory(x, y)
    True

    Raises `ExportError` if the memory cannot be shared, or not without the copy that `copy=False` forbids.
    """
    target = None if device is None else find_device(device)
    if isinstance(x, ConcreteArray):
        if copy is False and target not in (None, x.device):
            raise ExportError(f"from_dlpack: copy=False, but x is on {x.device}, not on {target}")
        return array(x, copy=copy is not False, device=target)
    home = find_device("cpu")
    if copy is False and target not in (None, home):
        raise ExportError(f"from_dlpack: copy=False, but x is not on {target}")
    values = dlpack_values(x, copy, to_host=target is not None)
    if target not in (None, home):
        return from_host(values, device=target)
    return wrap(home.backend.put(values), array_spec(ShapedArray(values.shape, values.dtype, False), home))


# NumPy's files, and arrays as text.

#: How many times its compressed size, and how many bytes, an array of an archive may have.
_EXPANSION, _ANY_EXPANSION = 64, 1 << 28


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """Load an .npy file's array or an .npz archive; arguments as of `numpy.load`.

    Raises `CorruptFileError` for a file that NumPy cannot read, and for pickles, unless the caller passes `allow_pickle`;
    `OutOfMemoryError` for an array without room. The arrays of an archive are read when they are asked for, with the same errors. One that
    claims more than 64 times its compressed size, and more than 256 MiB, is refused: read such an archive, if you trust it, by NumPy.
    """
    try:
        loaded = _loaded(file, *args, **kwargs)
    except MemoryError as error:
        raise OutOfMemoryError(f"numpy.load: there is no room for what {file!r:.200} says that it holds: {error}") from error
    except Exception as error:
        if (isinstance(error, OSError) and error.errno is not None) or isinstance(error, TypeError):  # no file, or a mistake in the call
            raise
        raise CorruptFileError(f"numpy.load cannot read {file!r:.200}: {error}") from error
    if isinstance(loaded, np.lib.npyio.NpzFile):
        return Archive(loaded)
    return array(_with_bfloat16(loaded)) if isinstance(loaded, np.ndarray) else loaded


def _loaded(file: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `numpy.load`, which leaves the file of a damaged archive open."""
    if hasattr(file, "read"):
        return np.load(file, *args, **kwargs)
    with contextlib.ExitStack() as stack:
        stream: Any = stack.enter_context(open(os.fspath(file), "rb"))
        if stream.read(2) != b"PK":
            return np.load(file, *args, **kwargs)
        stream.seek(0)
        loaded = np.load(stream, *args, **kwargs)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            loaded.fid = stream  # the archive closes it
            stack.pop_all()
        return loaded


def _with_bfloat16(loaded: np.ndarray) -> np.ndarray:
    return loaded.view(dtypes.bfloat16) if loaded.dtype == np.dtype("V2") else loaded  # what NumPy's files make of bfloat16


class Archive(Mapping[str, Any]):
    """The arrays of an .npz archive by name, as `load` returns them.

    Each is read when it is asked for, and is a NumPy array. Close the archive, or use it as a context.
    """

    def __init__(self, archive: Any) -> None:
        self._archive = archive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._archive.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._archive)

    def __len__(self) -> int:
        return len(self._archive)

    def __contains__(self, name: object) -> bool:
        return name in self._archive

    def __repr__(self) -> str:
        return repr(self._archive)

    def __getitem__(self, name: str) -> Any:
        """Return an array.

        Raises `KeyError` if there is none of the name, `CorruptFileError` if it is damaged or claims too much, and `OutOfMemoryError`.
        """
        try:
            if name in self._archive:
                self._check_size(name)
            member = self._archive[name]
        except (KeyError, CorruptFileError):
            raise
        except MemoryError as error:
            raise OutOfMemoryError(f"numpy.load: there is no room for {name!r}: {error}") from error
        except Exception as error:
            raise CorruptFileError(f"numpy.load cannot read {name!r} of an archive: {error}") from error
        return _with_bfloat16(member) if isinstance(member, np.ndarray) else member

    def _check_size(self, name: str) -> None:
        """Compare the sizes that an array's header and the directory claim."""
        directory = self._archive.zip
        info = directory.NameToInfo.get(name) or directory.getinfo(f"{name}.npy")
        most = max(_EXPANSION * info.compress_size, _ANY_EXPANSION)
        if info.file_size > most:
            raise CorruptFileError(
                f"numpy.load: {name!r} of an archive claims {info.file_size} bytes, more than the {most} that it may have"
            )
        with directory.open(info) as file:
            if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
                return
        with directory.open(info) as file:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0}.get(version, np.lib.format.read_array_header_2_0)
            shape, _, dtype = read(file)
            size = math.prod(shape) * dtype.itemsize
            if not dtype.hasobject and file.tell() + size != info.file_size:
                raise CorruptFileError(f"numpy.load: {name!r} of an archive claims {size} bytes of elements, in a file of {info.file_size}")


def save(file: Any, arr: Any, allow_pickle: bool = False) -> None:
    """Write an array to an .npy file; `ArgumentTypeError` for dtypes of storage."""
    np.save(file, _writable(arr), allow_pickle=allow_pickle)


def savez(file: Any, *args: Any, **kwds: Any) -> None:
    """Write arrays, by position or by name, to an .npz archive; see `save`."""
    named: dict[str, Any] = {name: _writable(a) for name, a in kwds.items()}
    np.savez(file, *map(_writable, args), **named)


def _writable(x: Any) -> np.ndarray:
    values = np.asarray(x)
    if values.dtype in dtypes.STORAGE:
        raise ArgumentTypeError(f"NumPy's files have no dtype {values.dtype.name}, which no one could load; use io.Checkpointer")
    return values


def fromfile(file: Any, dtype: Any = float, count: int = -1, sep: str = "", offset: int = 0) -> Array:
    """Read an array from the bytes (with `sep`, the text) of a file."""
    return array(np.fromfile(file, dtypes.as_dtype(dtype), count, sep, offset))


def fromstring(string: str, dtype: Any = float, count: int = -1, *, sep: str) -> Array:
    """Read an array from the numbers in a text, separated by `sep`.

    >>> jnp.fromstring("1 2 3", dtype=int, sep=" ")
    Array([1, 2, 3], dtype=int32)
    """
    return array(np.fromstring(string, dtypes.as_dtype(dtype), count, sep=sep))


get_printoptions = np.get_printoptions
printoptions = np.printoptions
set_printoptions = np.set_printoptions


def array_repr(arr: Array, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None) -> str:
    """Return what `repr` returns, with other print options."""
    with _options(max_line_width, precision, suppress_small):
        return repr(arr)


def array_str(a: Array, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None) -> str:
    """Return what `str` returns, with other print options.

    >>> jnp.array_str(jnp.array([1.23456]), precision=2)
    '[1.23]'
    """
    with _options(max_line_width, precision, suppress_small):
        return str(a)


def _options(width: int | None, precision: int | None, suppress: bool | None) -> Any:
    options: dict[str, Any] = {"linewidth": width, "precision": precision, "suppress": suppress}
    return np.printoptions(**{name: value for name, value in options.items() if value is not None})

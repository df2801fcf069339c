"""Joining and padding: concatenate, pad. Linear in every array operand."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.primitive import PRIMITIVES, AxisData, Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.primitives.data_movement.indexing import slice, slice_p
from volta_fn.primitives.data_movement.movement import broadcast, canonical_axis, moveaxis, reshape
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.reduction import reduce_sum

Ints = tuple[int, ...]
PaddingConfig = tuple[tuple[int, int, int], ...]


def instantiate(tangent: Any) -> Array:
    """Return a tangent as an array: zeros where it is a symbolic zero."""
    if type(tangent) is Zero:
        return broadcast(as_value(np.zeros((), tangent.aval.dtype)), tangent.aval.shape)
    return tangent


# concatenate


def _concatenate_abstract(*operands: ShapedArray, dimension: int) -> ShapedArray:
    first = operands[0]
    for other in operands[1:]:
        if other.dtype != first.dtype:
            raise DTypeError(f"concatenate needs one dtype, got {', '.join(map(str, operands))}")
        same = all(a == b for i, (a, b) in enumerate(zip(first.shape, other.shape, strict=False)) if i != dimension)
        if other.ndim != first.ndim or not same:
            raise ShapeError(
                f"concatenate along dimension {dimension} needs shapes that agree elsewhere, "
                f"got {', '.join(str(o.shape) for o in operands)}. "
                "Join along another dimension, pad or cut the arrays, or join those of equal shapes along a new one with stack."
            )
    shape = list(first.shape)
    shape[dimension] = sum(o.shape[dimension] for o in operands)
    return ShapedArray(tuple(shape), first.dtype, all(o.weak_type for o in operands))


def _concatenate_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, dimension: int) -> tuple[Array, Any]:
    out = bind(concatenate_p, *primals, dimension=dimension)
    if all(type(t) is Zero for t in tangents):
        return out, Zero(out.aval.at_least_vspace())
    return out, bind(concatenate_p, *map(instantiate, tangents), dimension=dimension)


def _concatenate_transpose(ct: Any, *operands: Any, dimension: int) -> list[Any]:
    results: list[Any] = []
    start = 0
    for operand in operands:
        limit = start + operand.shape[dimension]
        if type(operand) is Linear:
            starts, limits = [0] * ct.ndim, list(ct.shape)
            starts[dimension], limits[dimension] = start, limit
            results.append(slice(ct, starts, limits))
        else:
            results.append(None)
        start = limit
    return results


def _concatenate_batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, dimension: int) -> tuple[Array, int]:
    stacked = [broadcast(a, (axis.size,)) if d is None else moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]
    return bind(concatenate_p, *stacked, dimension=dimension + 1), 0


concatenate_p = Primitive(
    "concatenate",
    _concatenate_abstract,
    evaluate=lambda *operands, dimension, out=None: np.concatenate(operands, dimension, out),
    jvp=_concatenate_jvp,
    transpose=_concatenate_transpose,
    batch=_concatenate_batch,
)


def concatenate(operands: Sequence[Any], dimension: int) -> Array:
    """Join arrays along an existing dimension.

    Their dtypes and other dimensions must agree.

    >>> import volta_fn as vf
    >>> vf.lax.concatenate([vf.numpy.zeros(2), vf.numpy.ones(1)], 0)
    Array([0., 0., 1.], dtype=float32)
    """
    values = [as_value(o) for o in operands]
    if not values:
        raise ShapeError("concatenate needs at least one array")
    if not values[0].shape:
        raise ShapeError("zero-dimensional arrays cannot be concatenated; stack them instead")
    dim = canonical_axis(dimension, values[0].ndim, "dimension")
    return values[0] if len(values) == 1 else bind(concatenate_p, *values, dimension=dim)


# pad


def _pad_abstract(operand: ShapedArray, padding_value: ShapedArray, *, padding_config: PaddingConfig) -> ShapedArray:
    if operand.dtype != padding_value.dtype or padding_value.shape:
        raise DTypeError(f"pad needs a zero-dimensional padding value of dtype {operand.dtype.name}, got {padding_value}")
    if len(padding_config) != operand.ndim or any(interior < 0 for _, _, interior in padding_config):
        raise ShapeError(f"pad needs (low, high, interior >= 0) per dimension of {operand}, got {padding_config}")
    sizes = [lo + hi + max(n + (n - 1) * interior, 0) for n, (lo, hi, interior) in zip(operand.shape, padding_config, strict=True)]
    if any(s < 0 for s in sizes):
        raise ShapeError(f"padding {padding_config} cuts more than the shape {operand.shape} has")
    return ShapedArray(tuple(sizes), operand.dtype, operand.weak_type and padding_value.weak_type)


@lru_cache(maxsize=1024)
def _pad_slices(shape: Shape, padding_config: PaddingConfig) -> tuple[Shape, tuple[builtins.slice, ...], tuple[builtins.slice, ...]]:
    """Return the result's shape, and the operand's slice and its offset in it."""
    sizes, source, target = [], [], []
    for n, (lo, hi, interior) in zip(shape, padding_config, strict=True):
        step = interior + 1
        size = lo + hi + max(n + (n - 1) * interior, 0)
        first = max(0, -(-max(-lo, 0) // step))
        last = min(n, max(-(-(size - lo) // step), 0)) if n else 0
        sizes.append(size)
        source.append(np.s_[first : max(first, last)])
        begin = lo + first * step
        target.append(np.s_[begin : begin + (max(last - first, 1) - 1) * step + 1 : step] if last > first else np.s_[0:0])
    return tuple(sizes), tuple(source), tuple(target)


def _pad_evaluate(
    operand: np.ndarray, padding_value: np.ndarray, *, padding_config: PaddingConfig, out: np.ndarray | None = None
) -> np.ndarray:
    shape, source, target = _pad_slices(operand.shape, padding_config)
    out = np.empty(shape, operand.dtype) if out is None else out
    out[...] = padding_value
    out[target] = operand[source]
    return out


def _pad_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, padding_config: PaddingConfig) -> tuple[Array, Any]:
    out = bind(pad_p, *primals, padding_config=padding_config)
    if all(type(t) is Zero for t in tangents):
        return out, Zero(out.aval.at_least_vspace())
    return out, bind(pad_p, *map(instantiate, tangents), padding_config=padding_config)


def _pad_transpose(ct: Any, operand: Any, padding_value: Any, *, padding_config: PaddingConfig) -> list[Any]:
    inner = None
    if type(operand) is Linear or type(padding_value) is Linear:
        inner = _unpad(ct, padding_config)
    ct_value = None
    if type(padding_value) is Linear:
        everything = reduce_sum(ct, range(ct.ndim))
        ct_value = bind(PRIMITIVES["sub"], everything, reduce_sum(inner, range(ct.ndim)))
    return [inner if type(operand) is Linear else None, ct_value]


def _unpad(ct: Array, padding_config: PaddingConfig) -> Array:
    """Return the elements of a padded array that came from the operand.

    They are zero where the padding cut them off.
    """
    cut = pad(ct, np.zeros((), ct.dtype), [(-lo, -hi, 0) for lo, hi, _ in padding_config])
    return slice(cut, [0] * cut.ndim, cut.shape, [interior + 1 for _, _, interior in padding_config])


def _pad_batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, padding_config: PaddingConfig) -> tuple[Array, int]:
    (operand, value), (dim, value_dim) = args, dims
    if value_dim is None:
        front = moveaxis(operand, dim or 0, 0)
        return bind(pad_p, front, value, padding_config=((0, 0, 0), *padding_config)), 0
    stacked = broadcast(operand, (axis.size,)) if dim is None else moveaxis(operand, dim, 0)
    config = ((0, 0, 0), *padding_config)
    padded = bind(pad_p, stacked, as_value(np.zeros((), operand.dtype)), padding_config=config)
    mask = bind(pad_p, broadcast(as_value(np.True_), stacked.shape), as_value(np.False_), padding_config=config)
    fill = reshape(value, (axis.size, *(1,) * (padded.ndim - 1)))
    return bind(PRIMITIVES["select_n"], mask, fill, padded), 0


pad_p = Primitive("pad", _pad_abstract, evaluate=_pad_evaluate, jvp=_pad_jvp, transpose=_pad_transpose, batch=_pad_batch)


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Array:
    """Pad `operand` with elements of `padding_value` before, after and between.

    The configuration is (low, high, interior) per dimension; negative numbers cut.

    >>> import volta_fn as vf
    >>> vf.lax.pad(vf.numpy.array([1, 2]), vf.numpy.array(0), [(1, 2, 1)])
    Array([0, 1, 0, 2, 0, 0], dtype=int32)
    """
    value = as_value(operand)
    fill = as_value(padding_value)
    if fill.weak_type and fill.dtype != value.dtype:
        fill = convert_element_type(fill, value.dtype, weak_type=True)
    config = tuple([(int(lo), int(hi), int(interior)) for lo, hi, interior in padding_config])
    if not any(any(c) for c in config) and len(config) == value.ndim and fill.dtype == value.dtype and not fill.shape:
        return value
    return bind(pad_p, value, fill, padding_config=config)


def _slice_transpose(ct: Any, operand: Linear, *, start_indices: Ints, limit_indices: Ints, strides: Ints | None) -> list[Any]:
    steps = strides or (1,) * operand.ndim
    config = []
    for size, cut, start, step in zip(operand.shape, ct.shape, start_indices, steps, strict=True):
        covered = start + (cut - 1) * step + 1 if cut else start
        config.append((start, size - covered, step - 1))
    return [pad(ct, np.zeros((), operand.dtype), config)]


slice_p.transpose = _slice_transpose

"""Argument checks, picking of the labels' scores, and reductions of losses."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import FLOATS, INTEGERS, accumulator
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.numpy.arguments import promote_inexact
from volta_fn.primitives.array_operations.index_checks import check_indices
from volta_fn.primitives.data_movement.movement import canonical_axis

Reduction = Literal["mean", "sum", "none"]


def real_operands(loss: str, *values: Any) -> tuple[np.dtype, list[Array]]:
    """Return the dtype of the result, and the arguments widened to compute in.

    Integers and booleans become floats. Raises `DTypeError` for complex numbers, which have no order.
    """
    arrays = promote_inexact(loss, *values)
    dtype = arrays[0].dtype
    if dtype not in FLOATS:
        raise DTypeError(f"{loss}: real numbers are needed, got {dtype.name}; take the real and imaginary parts, or the absolute values")
    wide = accumulator(dtype)
    return dtype, arrays if wide == dtype else [a.astype(wide) for a in arrays]


def check_pair(loss: str, first: Array, second: Array) -> None:
    """Check that two arrays have one shape, or that the second is 0-d."""
    if second.ndim and first.shape != second.shape:
        raise ShapeError(f"{loss}: predictions and targets need the same shape, got {first.shape} and {second.shape}; reshape one of them")


def check_broadcasts(loss: str, name: str, value: Array, shape: tuple[int, ...]) -> None:
    """Check that an argument broadcasts to a shape."""
    sizes = zip(reversed(value.shape), reversed(shape), strict=False)
    if value.ndim > len(shape) or any(size not in (1, wanted) for size, wanted in sizes):
        raise ShapeError(f"{loss}: {name} of shape {value.shape} does not broadcast to {shape}")


def reduced(loss: str, values: Array, reduction: str, dtype: np.dtype) -> Array:
    """Reduce values to their mean (NaN of none) or sum, or keep them."""
    if reduction == "mean":
        return vnp.mean(values).astype(dtype)
    if reduction == "sum":
        return vnp.sum(values).astype(dtype)
    check_reduction(loss, reduction)
    return values.astype(dtype)


def check_reduction(loss: str, reduction: str, also: tuple[str, ...] = ()) -> None:
    """Check the name of a reduction."""
    known = ("mean", "sum", "none", *also)
    if reduction not in known:
        raise ArgumentError(f"{loss}: reduction is one of {', '.join(known)}, got {reduction!r}")


def class_axis(loss: str, scores: Array, axis: int | None) -> int:
    """Return the axis of classes, by default PyTorch's: 1, or 0 if there is no other."""
    if scores.ndim == 0:
        raise ShapeError(f"{loss}: an axis of classes is needed, got a 0-d array")
    dim = canonical_axis(min(1, scores.ndim - 1) if axis is None else axis, scores.ndim)
    if scores.shape[dim] == 0:
        raise ShapeError(f"{loss}: there are no classes along axis {dim} of shape {scores.shape}")
    return dim


def class_labels(loss: str, labels: Any, shape: tuple[int, ...], dim: int) -> Array:
    """Return class numbers as signed integers, after a check of their shape.

    Those of uint32 beyond int32 become its greatest number, which is no class either, since not every device has int64.
    """
    numbers = as_value(labels)
    expected = (*shape[:dim], *shape[dim + 1 :])
    if numbers.dtype not in INTEGERS:
        raise DTypeError(f"{loss}: class numbers are integers, got {numbers.aval}")
    if numbers.shape != expected:
        fitting = [axis for axis in range(len(shape)) if numbers.shape == (*shape[:axis], *shape[axis + 1 :])]
        remedy = f"; if classes are along axis {fitting[-1]}, say axis={fitting[-1] - len(shape)}" if fitting else ""
        raise ShapeError(
            f"{loss}: scores of shape {shape} with classes along axis {dim} need labels of shape {expected}, got {numbers.shape}{remedy}"
        )
    if numbers.dtype == np.uint32:
        numbers = vnp.minimum(numbers, np.uint32(2**31 - 1))
    return numbers.astype("int64" if numbers.dtype.itemsize == 8 else "int32")


def check_classes(loss: str, labels: Array, classes: int, ignored: int | None = None) -> None:
    """Raise `OutOfBoundsError` for a known label that is no class, and not `ignored`."""
    check_indices(labels, 0, classes, f"{loss}: the label {{}} is none of the {classes} classes 0 to {classes - 1}", ignored)


def pick(scores: Array, labels: Array, dim: int) -> tuple[Array, Array]:
    """Return each label's score and a factor of 1.

    For a label that is no class, the score is that of class 0 and the factor NaN.
    """
    known = (labels >= 0) & (labels < scores.shape[dim])
    index = vnp.expand_dims(vnp.where(known, labels, 0), dim)
    chosen = vnp.squeeze(vnp.take_along_axis(scores, index, dim), dim)
    return chosen, vnp.where(known, vnp.ones((), scores.dtype), np.nan)

"""The cross entropy of a linear layer's results, without storing them all.

The logits of a language model are its largest array: one number for each token and each word of the vocabulary. The loss depends on three
numbers of a row of logits: their logsumexp, the label's logit, and (for smoothed labels) their mean. They are computed chunk by chunk of
the classes with a running logsumexp, and gradients compute each chunk's logits again, as in Cut Cross-Entropy (Wijmans et al. 2024) and
Liger Kernel (Hsu et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.dtypes import BOOL, FLOATS, accumulator
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.losses.classification import Reduction, check_classes, check_reduction, class_labels
from volta_fn.transforms.custom_derivatives import custom_vjp

__all__ = ["linear_cross_entropy"]

#: Logits of a chunk, at least and at most where rows are few enough, and classes of a chunk of many rows.
_ALL_AT_ONCE, _CHUNK, _FEWEST_CLASSES = 1 << 20, 1 << 22, 512


def linear_cross_entropy(
    x: Any,
    weight: Any,
    labels: Any,
    bias: Any = None,
    *,
    axis: int = 1,
    ignore_index: int | None = -100,
    where: Any = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    logits_soft_cap: float | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Return the cross entropy of the logits ``x @ weight + bias`` and labels.

    It is ``cross_entropy(x @ weight + bias, labels, axis=-1)`` in the memory of some chunks of logits. Gradients compute these again, which
    takes the time of one more product. There is no forward-mode derivative. float16 and bfloat16 have logits in float32.

    Args:
        x: floats of shape (…, features).
        weight: of the dtype of `x` and shape (features, classes), as `nn.Linear` has it.
        labels: class numbers, of shape (…). Known numbers that are no class raise; in a compiled program they give NaN.
        bias: of shape (classes,), or None.
        axis: the axis of classes in `weight`: 0 for (classes, features), the layout of embeddings and of PyTorch.
        ignore_index: labels of this number do not count; None for no such number.
        where: bool, of the shape of the labels; False: an example does not count.
        label_smoothing: the fraction of each label's probability that is spread evenly over all classes (Szegedy et al. 2016).
        z_loss: the factor of the squared logsumexp, which is added to each loss (Chowdhery et al. 2022, 5).
        logits_soft_cap: bounds logits smoothly: x becomes ``cap tanh(x / cap)`` (Gemma 2, 2024).
        reduction: "mean" over the examples that count (NaN of none); "sum"; "none" for one loss an example, 0 for others.

    Returns the loss in the dtype of `x`.

    Raises:
        ShapeError: the shapes do not fit.
        DTypeError: `x` and `weight` are not floats of one dtype, labels are not integers, or `where` is not bool.
        OutOfBoundsError: a known class number is no class.
        ArgumentError: another reduction or axis, smoothing outside [0, 1], or a bound that is not positive.

    >>> x, weight = vf.numpy.array([[1.0, 0.0], [0.0, 2.0]]), vf.numpy.array([[2.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> vf.nn.linear_cross_entropy(x, weight, vf.numpy.array([0, 1]), reduction="none").round(4)
    Array([0.2395, 2.2395], dtype=float32)
    """
    check_reduction("linear_cross_entropy", reduction)
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"linear_cross_entropy: label_smoothing is between 0 and 1, got {label_smoothing!r}")
    if axis not in (0, 1):
        raise ArgumentError(f"linear_cross_entropy: the classes are axis 0 or 1 of weight, got axis={axis!r}")
    if logits_soft_cap is not None and not logits_soft_cap > 0:
        raise ArgumentError(f"linear_cross_entropy: logits_soft_cap is None or a positive number, got {logits_soft_cap!r}")
    rows, matrix, offset = as_value(x), as_value(weight), None if bias is None else as_value(bias)
    _check(rows, matrix, offset, axis)
    classes = matrix.shape[axis]
    numbers = class_labels("linear_cross_entropy", labels, (*rows.shape[:-1], classes), rows.ndim - 1)
    counted = _counted(numbers, ignore_index, where)
    check_classes("linear_cross_entropy", numbers, classes, ignore_index)
    flat = rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1])
    head = _Head(axis, _chunk_size(flat.shape[0], classes), float(logits_soft_cap or 0.0), label_smoothing > 0)
    logsumexp, score, mean = _statistics(head, flat, matrix, offset, numbers.reshape(-1))
    values = logsumexp - (1 - label_smoothing) * score
    if label_smoothing:
        values = values - label_smoothing * mean
    if z_loss:
        values = values + z_loss * logsumexp * logsumexp
    values = values.reshape(numbers.shape)
    if counted is not None:
        values = vnp.where(counted, values, 0.0)
    if reduction == "mean":
        values = values.sum() / (numbers.size if counted is None else counted.sum())
    elif reduction == "sum":
        values = values.sum()
    return values.astype(rows.dtype)


def _counted(labels: Array, ignore_index: int | None, where: Any) -> Array | None:
    """Return which examples count; None for all."""
    counted = None if ignore_index is None else labels != ignore_index
    if where is None:
        return counted
    chosen = as_value(where)
    if chosen.dtype not in BOOL:
        raise DTypeError(f"linear_cross_entropy: where is bool, got {chosen.aval}")
    if chosen.shape != labels.shape:
        raise ShapeError(f"linear_cross_entropy: where has the shape of the labels, {labels.shape}, got {chosen.shape}")
    return chosen if counted is None else counted & chosen


def _check(x: Array, weight: Array, bias: Array | None, axis: int) -> None:
    if x.dtype not in FLOATS or weight.dtype != x.dtype:
        raise DTypeError(f"linear_cross_entropy: x and weight are floats of one dtype, got {x.dtype.name} and {weight.dtype.name}")
    if weight.ndim != 2 or not x.ndim or x.shape[-1] != weight.shape[1 - axis]:
        layout, other = ("(features, classes)", 0) if axis else ("(classes, features)", 1)
        raise ShapeError(
            f"linear_cross_entropy: x (…, features) and weight {layout} are needed, got {x.shape} and {weight.shape}; for the other "
            f"layout, say axis={other}"
        )
    if bias is not None and bias.shape != (weight.shape[axis],):
        raise ShapeError(f"linear_cross_entropy: {weight.shape[axis]} classes need a bias of that shape, got {bias.shape}")


def _chunk_size(rows: int, classes: int) -> int:
    """Return how many classes a chunk has."""
    if rows * classes <= _ALL_AT_ONCE:
        return classes
    return min(classes, max(_FEWEST_CLASSES, _CHUNK // rows))


# The statistics of rows of logits, and their derivatives.


class _Head(NamedTuple):
    """How logits follow from rows, and are divided.

    Attributes:
        axis: the axis of classes in the weight.
        chunk: the classes of a chunk; the last one repeats some of those before it if it would be shorter.
        softcap: the bound of logits; 0: none.
        has_mean: whether the mean of logits is asked for.
    """

    axis: int
    chunk: int
    softcap: float
    has_mean: bool


class _Chunk(NamedTuple):
    """A chunk of classes.

    Attributes:
        start: the first one.
        is_new: which of them no chunk before has.
        weight: their part of the weight.
        logits: of all rows.
    """

    start: Array
    is_new: Array
    weight: Array
    logits: Array


def _over_chunks(head: _Head, classes: int, step: Callable[[Any, Any], Any], carry: Any) -> Any:
    """Return ``carry = step(carry, number)`` after all chunks."""
    count = -(-classes // max(head.chunk, 1))
    if count <= 1:
        return step(carry, 0) if count else carry
    return lax.fori_loop(0, count, lambda number, carried: step(carried, number), carry)


def _chunk_of(head: _Head, x: Array, weight: Array, bias: Array | None, number: Any) -> _Chunk:
    classes = weight.shape[head.axis]
    first = vnp.asarray(number, "int32") * head.chunk
    start = vnp.minimum(first, classes - head.chunk)
    part = lax.dynamic_slice_in_dim(weight, start, head.chunk, head.axis)
    wide = accumulator(x.dtype)
    logits = lax.dot_general(x, part, (((1,), (1 - head.axis,)), ((), ())), preferred_element_type=wide)
    if bias is not None:
        logits = logits + lax.dynamic_slice_in_dim(bias, start, head.chunk, 0).astype(wide)
    return _Chunk(start, start + vnp.arange(head.chunk, dtype="int32") >= first, part, _bounded(head, logits))


def _bounded(head: _Head, logits: Array) -> Array:
    return vnp.tanh(logits / head.softcap) * head.softcap if head.softcap else logits


def _forward(head: _Head, x: Array, weight: Array, bias: Array | None, labels: Array) -> tuple[Array, Array, Array]:
    classes, wide = weight.shape[head.axis], accumulator(x.dtype)
    zeros = vnp.zeros(x.shape[:1], wide)

    def step(carry: tuple[Array, Array, Array], number: Any) -> tuple[Array, Array, Array]:
        top, total, summed = carry
        chunk = _chunk_of(head, x, weight, bias, number)
        new = vnp.maximum(top, chunk.logits.max(-1))
        terms = vnp.where(chunk.is_new, vnp.exp(chunk.logits - new[:, None]), 0.0).sum(-1)
        if head.has_mean:
            summed = summed + vnp.where(chunk.is_new, chunk.logits, 0.0).sum(-1)
        return new, total * vnp.exp(top - new) + terms, summed

    least = vnp.full(x.shape[:1], -float(np.finfo(wide).max), wide)  # from which a logit of -inf still differs by -inf
    top, total, summed = _over_chunks(head, classes, step, (least, zeros, zeros))
    return top + vnp.log(total), _score(head, x, weight, bias, labels), summed / max(classes, 1)


def _score(head: _Head, x: Array, weight: Array, bias: Array | None, labels: Array) -> Array:
    """Return the logits of the labels; NaN for numbers that are no class."""
    classes, wide = weight.shape[head.axis], accumulator(x.dtype)
    if not classes:
        return vnp.full(x.shape[:1], math.nan, wide)
    numbers = vnp.clip(labels, 0, classes - 1)
    columns = vnp.take(weight, numbers, axis=head.axis)
    score = (x.astype(wide) * (columns.T if head.axis else columns).astype(wide)).sum(-1)
    if bias is not None:
        score = score + vnp.take(bias, numbers).astype(wide)
    return vnp.where(numbers == labels, _bounded(head, score), math.nan)


def _residuals(head: _Head, x: Array, weight: Array, bias: Array | None, labels: Array) -> Any:
    results = _forward(head, x, weight, bias, labels)
    return results, (x, weight, bias, labels, results[0])


def _backward(head: _Head, residuals: Any, cotangents: Any) -> tuple[Any, ...]:
    x, weight, bias, labels, logsumexp = residuals
    to_logsumexp, to_score, to_mean = (c[:, None] for c in cotangents)
    classes, axis = weight.shape[head.axis], head.axis

    def step(carry: tuple[Array, Array, Array | None], number: Any) -> tuple[Array, Array, Array | None]:
        to_x, to_weight, to_bias = carry
        chunk = _chunk_of(head, x, weight, bias, number)
        slopes = vnp.exp(chunk.logits - logsumexp[:, None]) * to_logsumexp
        slopes = slopes + vnp.where(chunk.start + vnp.arange(head.chunk, dtype="int32") == labels[:, None], to_score, 0.0)
        if head.has_mean:
            slopes = slopes + to_mean / classes
        if head.softcap:
            slopes = slopes * (1 - (chunk.logits / head.softcap) ** 2)
        if to_bias is not None:
            to_bias = lax.dynamic_update_slice_in_dim(to_bias, slopes.sum(0).astype(to_bias.dtype), chunk.start, 0)
        slopes = slopes.astype(x.dtype)
        factors = (x, slopes) if axis else (slopes, x)
        part = lax.dot_general(*factors, (((0,), (0,)), ((), ())), preferred_element_type=accumulator(x.dtype))
        to_weight = lax.dynamic_update_slice_in_dim(to_weight, part.astype(weight.dtype), chunk.start, axis)
        new = vnp.where(chunk.is_new if axis else chunk.is_new[:, None], chunk.weight, 0)
        to_x = to_x + lax.dot_general(slopes, new, (((1,), (axis,)), ((), ())), preferred_element_type=accumulator(x.dtype))
        return to_x, to_weight, to_bias

    carry = vnp.zeros(x.shape, accumulator(x.dtype)), vnp.zeros_like(weight), None if bias is None else vnp.zeros_like(bias)
    to_x, to_weight, to_bias = _over_chunks(head, classes, step, carry)
    return to_x.astype(x.dtype), to_weight, to_bias, None


_statistics: Any = custom_vjp(_forward, nondiff_argnums=(0,))
_statistics.defvjp(_residuals, _backward)

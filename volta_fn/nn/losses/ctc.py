"""Connectionist temporal classification, a loss for unaligned label sequences.

A *path* assigns a class to every frame. Merging its repeated classes and dropping *blanks* gives the labels that it spells. The loss is
minus the logarithm of the total probability of all paths that spell the target (Graves et al. 2006). Dynamic programming over the
*extended target* computes it: a blank before, after and between the labels, so that element 2i + 1 is label i.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import INTEGERS
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.losses.common import Reduction, check_reduction, real_operands, reduced
from volta_fn.transforms.custom.custom_jvp import custom_jvp

__all__ = ["ctc_loss"]


def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    *,
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
) -> Array:
    """Return minus the log-probability of the targets, over all alignments.

    The gradient is with respect to the log-probabilities. (PyTorch's assumes that they come from log_softmax; through log_softmax both
    are equal.) Targets that no path can spell have infinite loss and zero gradient.

    Args:
        log_probs: log_softmax of scores, shape (T, N, C): frames, sequences, classes; or (T, C) for one sequence.
        targets: class numbers without blanks, shape (N, S), or (S,) for one sequence; values past a target's length do not matter.
        input_lengths: how many of the T frames are the sequence's own, shape (N,) or ().
        target_lengths: how many of the S labels are, likewise.
        blank: the class number of blanks.
        reduction: "mean" divides each loss by its target's length (at least 1) and averages over the batch (NaN of none); "sum";
            "none" for each sequence by itself.
        zero_infinity: whether infinite losses, of targets too long for their frames, become 0.

    A label that is no class, or a length that is negative or beyond T or S, gives NaN, since compiled programs cannot raise.

    Raises:
        ShapeError: the shapes do not fit. DTypeError: labels or lengths that are not integers.
        ArgumentError: another reduction, or a blank that is no class.

    >>> even = vf.numpy.log(vf.numpy.full((3, 1, 2), 0.5))
    >>> loss = vf.nn.ctc_loss(even, vf.numpy.array([[1]]), vf.numpy.array([3]), vf.numpy.array([1]))
    >>> vf.numpy.exp(-loss)  # 6 of the 8 paths of three frames spell "1": 100 010 001 110 011 111
    Array(0.75, dtype=float32)
    """
    check_reduction("ctc_loss", reduction)
    dtype, (scores,) = real_operands("ctc_loss", log_probs)
    numbers = [
        _integers(name, v) for name, v in (("targets", targets), ("input_lengths", input_lengths), ("target_lengths", target_lengths))
    ]
    labels, frames, lengths = numbers
    _check_shapes(scores, labels, frames, lengths, blank)
    single = scores.ndim == 2
    if single:
        scores, labels, frames, lengths = scores[:, None], labels[None], frames[None], lengths[None]
    losses, _ = _losses(scores, labels, frames, lengths, blank)
    if zero_infinity:
        losses = vnp.where(losses == math.inf, 0.0, losses)
    if reduction == "mean":
        losses = losses / vnp.maximum(lengths, 1)
    return reduced("ctc_loss", losses[0] if single else losses, reduction, dtype)


def forward_probabilities(scores: Array, labels: Array, frames: Array, lengths: Array, blank: int) -> tuple[Array, Array]:
    """Return each sequence's loss, and the log-probabilities after each frame.

    Log-probabilities of classes have shape (T, N, C), the result (T, N, 2S + 1): of having spelt the extended target up to each element.
    """
    labels = _integers("labels", labels)
    _check_shapes(scores, labels, frames, lengths, blank)
    return _losses(scores, labels, frames, lengths, blank, keep=True)


def _integers(name: str, values: Any) -> Array:
    array = as_value(values)
    if array.dtype not in INTEGERS:
        raise DTypeError(f"ctc_loss: {name} are integers, got {array.aval}")
    if array.dtype.itemsize == 8 or array.dtype == np.uint32:  # numbers beyond int32 must stay out of range
        array = vnp.clip(array, max(np.iinfo(array.dtype).min, -(2**31)), 2**31 - 1)
    return array.astype("int32")


def _check_shapes(scores: Array, labels: Array, frames: Array, lengths: Array, blank: int) -> None:
    if scores.ndim not in (2, 3):
        raise ShapeError(f"ctc_loss: log_probs have shape (T, N, C) or (T, C), got {scores.shape}")
    batch, classes = scores.shape[1:-1], scores.shape[-1]
    if labels.ndim != scores.ndim - 1 or labels.shape[:-1] != batch:
        expected = ", ".join([*map(str, batch), "S"]) + "," * (not batch)
        raise ShapeError(f"ctc_loss: log_probs {scores.shape} need targets of shape ({expected}), got {labels.shape}")
    if not frames.shape == lengths.shape == batch:
        raise ShapeError(f"ctc_loss: log_probs {scores.shape} need lengths of shape {batch}, got {frames.shape} and {lengths.shape}")
    if not 0 <= blank < classes:
        raise ArgumentError(f"ctc_loss: blank={blank} is none of {classes} classes")


def _losses(scores: Array, labels: Array, frames: Array, lengths: Array, blank: int, keep: bool = False) -> tuple[Array, Any]:
    """Return the loss of each sequence, and all states of the scan if `keep`.

    The state of the scan is the log-probability of having spelt the extended target up to each element. Before the first frame
    all weight is on the first blank, from which the first frame may continue to the first label.
    """
    steps, count, classes = scores.shape
    size = labels.shape[1]
    used = vnp.arange(size) < lengths[:, None]
    known = vnp.all(~used | ((labels >= 0) & (labels < classes)), 1)
    legal = known & (frames >= 0) & (frames <= steps) & (lengths >= 0) & (lengths <= size)
    safe = vnp.where(used & known[:, None], labels, blank)
    extended = vnp.full((count, 2 * size + 1), blank, "int32").at[:, 1::2].set(safe)
    # A blank between two labels may be left out, unless they are equal: they would merge.
    skips = (extended != _shifted(extended, 2, blank)) & (extended != blank)

    def step(state: Array, frame: tuple[Array, Array]) -> tuple[Array, Any]:
        row, index = frame
        skipped = vnp.where(skips, _shifted(state, 2, -math.inf), -math.inf)
        reached = _log_sum(vnp.stack([state, _shifted(state, 1, -math.inf), skipped]))
        spelt = reached + vnp.take_along_axis(row, extended, 1)
        state = vnp.where((index < frames)[:, None], spelt, state)
        return state, state if keep else None

    start = vnp.full((count, 2 * size + 1), -math.inf, scores.dtype).at[:, 0].set(0.0)
    final, states = lax.scan(step, start, (scores, vnp.arange(steps)))
    # A path ends at the last label or at the blank after it.
    last = vnp.take_along_axis(final, vnp.clip(2 * lengths, 0, 2 * size)[:, None], 1)
    label = vnp.take_along_axis(final, vnp.clip(2 * lengths - 1, 0, 2 * size)[:, None], 1)
    ends = vnp.stack([last, vnp.where(lengths[:, None] > 0, label, -math.inf)])
    return vnp.where(legal, -_log_sum(ends)[:, 0], math.nan), states


def _shifted(x: Array, by: int, fill: float) -> Array:
    """Shift rows to the right, and fill on the left."""
    return vnp.pad(x, ((0, 0), (by, 0)), constant_values=fill)[:, :-by]


@custom_jvp
def _log_sum(x: Array) -> Array:
    """Return log(sum(exp(x))) over the first axis; the gradient of -inf is 0."""
    top = vnp.max(x, 0)
    top = vnp.where(top == -math.inf, 0.0, top)
    return top + vnp.log(vnp.sum(vnp.exp(x - top), 0))


@_log_sum.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    out = _log_sum(x)
    weights = vnp.exp(x - vnp.where(out == -math.inf, 0.0, out))
    return out, vnp.sum(weights * tangent, 0)

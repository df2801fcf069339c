"""Non-maximum suppression: dropping boxes that overlap with better ones.

The boxes are sorted by their scores. A loop takes the best box that remains, keeps it and drops those that overlap with it, so that it
makes one pass over the boxes for each box that is kept, on the device, and needs no matrix of all pairs.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.trace import concrete_or_raise
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit import jit
from volta_fn.numpy.arguments import INDEX, narrowed, operand, promote_inexact, wide
from volta_fn.vision.ops.boxes import Edges, as_boxes, edges, intersection

__all__ = ["batched_nms", "nms", "soft_nms"]

_SIZE_ADVICE = "Give max_output_size inside traced functions: results are then padded to it."


@overload
def nms(
    boxes: Any, scores: Any, iou_threshold: Any, *, max_output_size: None = None, score_threshold: Any = None, fill_value: int = -1
) -> Array: ...
@overload
def nms(
    boxes: Any, scores: Any, iou_threshold: Any, *, max_output_size: int, score_threshold: Any = None, fill_value: int = -1
) -> tuple[Array, Array]: ...
def nms(
    boxes: Any,
    scores: Any,
    iou_threshold: Any,
    *,
    max_output_size: int | None = None,
    score_threshold: Any = None,
    fill_value: int = -1,
) -> Array | tuple[Array, Array]:
    """Return the indices of boxes that overlap with no better one, best first.

    Args:
        boxes: an array of shape (N, 4), of the format "xyxy".
        scores: N numbers; boxes of equal scores are in their order.
        iou_threshold: a box is dropped if its IoU with a box that is kept is larger.
        max_output_size: the most boxes that are kept.
        score_threshold: boxes whose score is not larger are dropped; None keeps all.
        fill_value: stands for indices that are missing.

    Without `max_output_size`, the int32 indices are as many as boxes are kept, which takes a wait for the device and is an error under
    `jit`. With it, the result is a pair: `max_output_size` indices, of which the last ones may be `fill_value`, and the number of boxes
    that are kept.

    Raises `ShapeError` for other shapes and `ConcretizationError` if the number of indices would depend on traced values.

    >>> boxes = vf.numpy.array([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 5.0], [9.0, 9.0, 12.0, 12.0]])
    >>> vf.vision.ops.nms(boxes, vf.numpy.array([0.5, 0.9, 0.7]), 0.5)
    Array([1, 2], dtype=int32)
    >>> vf.vision.ops.nms(boxes, vf.numpy.array([0.5, 0.9, 0.7]), 0.5, max_output_size=3)
    (Array([ 1,  2, -1], dtype=int32), Array(2, dtype=int32))
    """
    box, score = _arguments("nms", boxes, scores)
    return _nms("nms", box, score, None, iou_threshold, max_output_size, score_threshold, fill_value)


@overload
def batched_nms(
    boxes: Any,
    scores: Any,
    idxs: Any,
    iou_threshold: Any,
    *,
    max_output_size: None = None,
    score_threshold: Any = None,
    fill_value: int = -1,
) -> Array: ...
@overload
def batched_nms(
    boxes: Any, scores: Any, idxs: Any, iou_threshold: Any, *, max_output_size: int, score_threshold: Any = None, fill_value: int = -1
) -> tuple[Array, Array]: ...
def batched_nms(
    boxes: Any,
    scores: Any,
    idxs: Any,
    iou_threshold: Any,
    *,
    max_output_size: int | None = None,
    score_threshold: Any = None,
    fill_value: int = -1,
) -> Array | tuple[Array, Array]:
    """Return what `nms` returns, where only boxes of one class drop each other.

    `idxs` are N integers, the boxes' classes (or images, or levels of a pyramid). The other arguments are those of `nms`. Images of equally
    many boxes are rather batched by `vmap`, so that each has a count of its own.

    >>> boxes = vf.numpy.array([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 5.0], [0.0, 0.0, 4.0, 4.0]])
    >>> vf.vision.ops.batched_nms(boxes, vf.numpy.array([0.5, 0.9, 0.7]), vf.numpy.array([0, 0, 1]), 0.5)
    Array([1, 2], dtype=int32)
    """
    box, score = _arguments("batched_nms", boxes, scores)
    classes = operand("batched_nms", "idxs", idxs)
    if classes.shape != score.shape:
        raise ShapeError(f"batched_nms: idxs are of the shape of the scores, {score.shape}, got {classes.shape}")
    return _nms("batched_nms", box, score, classes, iou_threshold, max_output_size, score_threshold, fill_value)


def _arguments(function: str, boxes: Any, scores: Any) -> tuple[Array, Array]:
    box, score = as_boxes(function, boxes), operand(function, "scores", scores)
    if box.ndim != 2 or score.shape != box.shape[:1]:
        raise ShapeError(f"{function}: boxes are of shape (N, 4) and scores of shape (N,), got {box.shape} and {score.shape}; vmap batches")
    (box,), (score,) = promote_inexact(function, box), promote_inexact(function, score)
    return wide(box), score


def _nms(
    function: str, boxes: Array, scores: Array, classes: Array | None, overlap: Any, size: int | None, least: Any, fill_value: int
) -> Array | tuple[Array, Array]:
    if size is not None and size < 0:
        raise ArgumentError(f"{function}: max_output_size is not negative, got {size}")
    if size is None:
        concrete_or_raise(boxes, f"{function}: the number of boxes that are kept depends on the boxes", _SIZE_ADVICE)
        concrete_or_raise(scores, f"{function}: the number of boxes that are kept depends on the scores", _SIZE_ADVICE)
    indices, count = _select(boxes, scores, classes, overlap, least, boxes.shape[0] if size is None else size, fill_value)
    if size is not None:
        return indices, count
    return indices[: int(concrete_or_raise(count, f"{function}: the number of boxes that are kept", _SIZE_ADVICE))]


@jit(static_argnames=("size", "fill_value"))
def _select(
    boxes: Array, scores: Array, classes: Array | None, overlap: Any, least: Any, size: int, fill_value: int
) -> tuple[Array, Array]:
    total = boxes.shape[0]
    if total == 0 or size == 0:
        return vnp.full(size, fill_value, INDEX), vnp.zeros((), INDEX)
    order = vnp.argsort(scores, descending=True, stable=True)
    box, positions = edges(boxes[order]), vnp.arange(total, dtype=INDEX)
    area = box.area
    label = None if classes is None else classes[order]
    alive = vnp.ones(total, bool) if least is None else scores[order] > least

    def has_next(state: tuple[Array, ...]) -> Array:
        _, count, best, _ = state
        return (best < total) & (count < size)

    def keep_best(state: tuple[Array, ...]) -> tuple[Array, ...]:
        alive, count, best, selected = state
        common = intersection(box, Edges(*[edge[best] for edge in box]))
        drops = common / (area + area[best] - common) > overlap
        if label is not None:
            drops &= label == label[best]
        alive = alive & ~drops & (positions > best)
        return alive, count + 1, first(alive), selected.at[count].set(order[best].astype(INDEX))

    def first(alive: Array) -> Array:
        return vnp.min(vnp.where(alive, positions, total))

    start = (alive, vnp.zeros((), INDEX), first(alive), vnp.full(size, fill_value, INDEX))
    _, count, _, selected = lax.while_loop(has_next, keep_best, start)
    return selected, count


def soft_nms(
    boxes: Any,
    scores: Any,
    *,
    max_output_size: int,
    method: Literal["gaussian", "linear"] = "gaussian",
    sigma: float = 0.5,
    iou_threshold: float = 0.3,
    score_threshold: float = 0.001,
    fill_value: int = -1,
) -> tuple[Array, Array, Array]:
    """Select boxes as `nms` does, but lower the scores of those that overlap.

    Args:
        boxes, scores: arrays of shape (N, 4) and (N,); scores are not negative.
        max_output_size: the most boxes that are kept.
        method: a box that overlaps by an IoU of u with a box that is kept has its score multiplied by ``exp(-u² / sigma)``
            ("gaussian"), or by ``1 - u`` where u exceeds `iou_threshold` ("linear").
        sigma, iou_threshold: the constants of the two methods.
        score_threshold: boxes whose score falls to this or below are dropped.
        fill_value: stands for indices that are missing.

    Returns `max_output_size` indices, their scores when they were taken (0 where missing), and the number of boxes that are kept
    (Bodla et al. 2017).

    >>> boxes = vf.numpy.array([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 4.0]])
    >>> vf.vision.ops.soft_nms(boxes, vf.numpy.array([0.5, 0.9]), max_output_size=2)[0]
    Array([1, 0], dtype=int32)
    """
    if method not in ("gaussian", "linear"):
        raise ArgumentError(f"soft_nms: method is 'gaussian' or 'linear', got {method!r}")
    if max_output_size < 0 or not sigma > 0:
        raise ArgumentError(f"soft_nms: max_output_size is not negative and sigma positive, got {max_output_size} and {sigma}")
    box, score = _arguments("soft_nms", boxes, scores)
    indices, taken, count = _select_softly(
        box, wide(score), sigma, iou_threshold, score_threshold, method=method, size=max_output_size, fill_value=fill_value
    )
    return indices, narrowed(taken, score), count


@jit(static_argnames=("method", "size", "fill_value"))
def _select_softly(
    boxes: Array, scores: Array, sigma: Any, overlap: Any, least: Any, *, method: str, size: int, fill_value: int
) -> tuple[Array, Array, Array]:
    if boxes.shape[0] == 0 or size == 0:
        return vnp.full(size, fill_value, INDEX), vnp.zeros(size, scores.dtype), vnp.zeros((), INDEX)
    box, positions = edges(boxes), vnp.arange(boxes.shape[0], dtype=INDEX)
    area = box.area

    def has_next(state: tuple[Array, ...]) -> Array:
        rest, count, _, _ = state
        return (vnp.max(rest) > least) & (count < size)

    def keep_best(state: tuple[Array, ...]) -> tuple[Array, ...]:
        rest, count, selected, taken = state
        best = vnp.argmax(rest)
        common = intersection(box, Edges(*[edge[best] for edge in box]))
        union = area + area[best] - common
        iou = vnp.where(union > 0, common / vnp.where(union > 0, union, 1), 0)
        factor = vnp.exp(-(iou**2) / sigma) if method == "gaussian" else vnp.where(iou > overlap, 1 - iou, 1)
        selected, taken = selected.at[count].set(best.astype(INDEX)), taken.at[count].set(rest[best])
        return vnp.where(positions == best, -np.inf, rest * factor), count + 1, selected, taken

    start = (scores, vnp.zeros((), INDEX), vnp.full(size, fill_value, INDEX), vnp.zeros(size, scores.dtype))
    _, count, selected, taken = lax.while_loop(has_next, keep_best, start)
    return selected, taken, count

"""Boxes: formats, areas, overlaps and losses; anchors; suppression of overlaps.

A box is the last axis of an array, four numbers; "xyxy" are its left, upper, right and lower edges. Axes before it are batches. Areas and
overlaps of integers and of 16-bit floats are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import check_option
from volta_fn.core.trace import concrete_or_raise
from volta_fn.dtypes import COMPLEX, INEXACT
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.jit import jit
from volta_fn.numpy.arguments import INDEX, narrowed, operand, promote_inexact, wide
from volta_fn.numpy.indexing import nonzero

__all__ = [
    "batched_nms", "box_area", "box_convert", "box_iou", "clip_boxes_to_image", "complete_box_iou", "complete_box_iou_loss", "decode_boxes",
    "distance_box_iou", "distance_box_iou_loss", "encode_boxes", "generalized_box_iou", "generalized_box_iou_loss", "generate_anchors",
    "grid_anchors", "masks_to_boxes", "nms", "remove_small_boxes", "soft_nms",
]  # fmt: skip

Format = Literal["xyxy", "xywh", "cxcywh"]
Reduction = Literal["none", "mean", "sum"]


def as_boxes(function: str, boxes: Any, argument: str = "boxes") -> Array:
    """Return boxes as an array, after a check of their last axis."""
    value = operand(function, argument, boxes)
    if value.ndim < 1 or value.shape[-1] != 4:
        raise ShapeError(f"{function}: {argument} are of shape (…, 4), got {value.shape}")
    if value.dtype in COMPLEX or value.dtype == np.bool_:
        raise DTypeError(f"{function}: {argument} are real numbers, got {value.dtype.name}")
    return value


class Edges(NamedTuple):
    """The edges of boxes, an array each."""

    left: Array
    top: Array
    right: Array
    bottom: Array

    @property
    def area(self) -> Array:
        """The product of width and height."""
        return (self.right - self.left) * (self.bottom - self.top)


def edges(boxes: Array) -> Edges:
    """Split boxes of the format "xyxy"."""
    return Edges(*[boxes[..., i] for i in range(4)])


def intersection(a: Edges, b: Edges) -> Array:
    """Return the areas that boxes have in common, 0 for boxes apart."""
    width = vnp.minimum(a.right, b.right) - vnp.maximum(a.left, b.left)
    height = vnp.minimum(a.bottom, b.bottom) - vnp.maximum(a.top, b.top)
    return vnp.maximum(width, 0) * vnp.maximum(height, 0)


# Formats, areas and images.


def box_convert(boxes: Any, in_fmt: Format, out_fmt: Format) -> Array:
    """Convert boxes to another format.

    Args:
        boxes: an array of shape (…, 4).
        in_fmt, out_fmt: "xyxy" (left, top, right, bottom), "xywh" (left, top, width, height) or "cxcywh" (centre, width, height).

    Integers stay integers between "xyxy" and "xywh"; centres are floats. Raises `ArgumentError` for other formats.

    >>> vf.vision.ops.box_convert(vf.numpy.array([[1, 2, 5, 8]]), "xyxy", "cxcywh")
    Array([[3., 5., 4., 6.]], dtype=float32)
    """
    value = as_boxes("box_convert", boxes)
    if not {in_fmt, out_fmt} <= {"xyxy", "xywh", "cxcywh"}:
        raise ArgumentError(f"box_convert: a format is 'xyxy', 'xywh' or 'cxcywh', got {in_fmt!r} and {out_fmt!r}")
    if in_fmt == out_fmt:
        return value
    if "cxcywh" in (in_fmt, out_fmt):
        (value,) = promote_inexact("box_convert", value)
    return _from_edges(_to_edges(value, in_fmt, "box_convert"), out_fmt)


def _to_edges(boxes: Array, fmt: Format, function: str) -> Edges:
    first, second, third, fourth = (boxes[..., i] for i in range(4))
    if fmt == "xyxy":
        return Edges(first, second, third, fourth)
    if fmt == "xywh":
        return Edges(first, second, first + third, second + fourth)
    if fmt == "cxcywh":
        return Edges(first - third / 2, second - fourth / 2, first + third / 2, second + fourth / 2)
    raise ArgumentError(f"{function}: a format is 'xyxy', 'xywh' or 'cxcywh', got {fmt!r}")


def _from_edges(box: Edges, fmt: Format) -> Array:
    if fmt == "xyxy":
        return vnp.stack(box, -1)
    width, height = box.right - box.left, box.bottom - box.top
    if fmt == "xywh":
        return vnp.stack([box.left, box.top, width, height], -1)
    return vnp.stack([(box.left + box.right) / 2, (box.top + box.bottom) / 2, width, height], -1)


def box_area(boxes: Any, fmt: Format = "xyxy") -> Array:
    """Return the areas of boxes, of shape (…).

    16-bit floats become float32, whose range holds the products; integers are multiplied in their own dtype, at least int32.

    >>> vf.vision.ops.box_area(vf.numpy.array([[0.0, 0.0, 2.0, 3.0]]))
    Array([6.], dtype=float32)
    """
    value = as_boxes("box_area", boxes)
    if value.dtype not in INEXACT and value.dtype.itemsize < 4:
        value = value.astype(np.int32)
    return _to_edges(wide(value), fmt, "box_area").area


def clip_boxes_to_image(boxes: Any, size: Sequence[int]) -> Array:
    """Clip boxes of the format "xyxy" to an image of ``size = (height, width)``.

    >>> vf.vision.ops.clip_boxes_to_image(vf.numpy.array([[-3.0, 2.0, 50.0, 8.0]]), (10, 20))
    Array([[ 0.,  2., 20.,  8.]], dtype=float32)
    """
    value = as_boxes("clip_boxes_to_image", boxes)
    height, width = size
    return vnp.clip(value, 0, vnp.asarray([width, height, width, height], value.dtype))


def remove_small_boxes(boxes: Any, min_size: float, *, size: int | None = None, fill_value: int = -1) -> Array:
    """Return the indices of boxes whose width and height are at least `min_size`.

    `boxes` are of shape (N, 4). The number of indices depends on the boxes; in a traced function, `size` says how many are returned, and
    `fill_value` stands for those that are missing.

    >>> vf.vision.ops.remove_small_boxes(vf.numpy.array([[0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 9.0, 1.0]]), 2)
    Array([0], dtype=int32)
    """
    box = edges(as_boxes("remove_small_boxes", boxes))
    large = (box.right - box.left >= min_size) & (box.bottom - box.top >= min_size)
    if large.ndim != 1:
        raise ShapeError(f"remove_small_boxes: boxes are of shape (N, 4), got {(*large.shape, 4)}; vmap takes batches")
    return nonzero(large, size=size, fill_value=fill_value)[0]


def masks_to_boxes(masks: Any) -> Array:
    """Return the smallest boxes around masks, float32 of shape (…, 4).

    `masks` are of shape (…, height, width); anything but 0 belongs to a mask. The right and lower edges are the last pixel's numbers, as in
    torchvision. The box of an empty mask is (0, 0, 0, 0).

    >>> vf.vision.ops.masks_to_boxes(vf.numpy.eye(3)[None, :2])
    Array([[0., 0., 1., 1.]], dtype=float32)
    """
    value = operand("masks_to_boxes", "masks", masks)
    if value.ndim < 2:
        raise ShapeError(f"masks_to_boxes: masks are of shape (…, height, width), got {value.shape}")
    inside = value != 0
    sides = []
    for axis in (-2, -1):
        line = vnp.any(inside, axis)
        numbers = vnp.arange(line.shape[-1], dtype=np.int32)
        low, high = vnp.where(line, numbers, line.shape[-1]), vnp.where(line, numbers, -1)
        sides.append([vnp.min(low, -1, initial=line.shape[-1]), vnp.max(high, -1, initial=-1)])
    (left, right), (top, bottom) = sides
    boxes = vnp.stack([left, top, right, bottom], -1)
    return vnp.where(vnp.any(inside, (-2, -1))[..., None], boxes, 0).astype(np.float32)


# Overlaps of all pairs of boxes.


def box_iou(boxes1: Any, boxes2: Any, fmt: Format = "xyxy") -> Array:
    """Return the intersection over union of all pairs of boxes.

    Args:
        boxes1, boxes2: arrays of shape (…, N, 4) and (…, M, 4).
        fmt: the format of both, as for `box_convert`.

    Returns floats of shape (…, N, M): NaN for two boxes without area.

    >>> vf.vision.ops.box_iou(vf.numpy.array([[0.0, 0.0, 2.0, 2.0]]), vf.numpy.array([[1.0, 0.0, 3.0, 2.0], [5.0, 5.0, 6.0, 6.0]]))
    Array([[0.33333334, 0.        ]], dtype=float32)
    """
    first, second, like = _pairs("box_iou", boxes1, boxes2, fmt)
    return narrowed(_overlap(first, second)[0], like)


def generalized_box_iou(boxes1: Any, boxes2: Any) -> Array:
    """Return the generalized IoU of all pairs of boxes (Rezatofighi et al. 2019).

    It is the IoU less the share of the smallest box around both that neither covers, from -1 to 1. Shapes are those of `box_iou`.

    >>> vf.vision.ops.generalized_box_iou(vf.numpy.array([[0.0, 0.0, 1.0, 1.0]]), vf.numpy.array([[3.0, 0.0, 4.0, 1.0]]))
    Array([[-0.5]], dtype=float32)
    """
    first, second, like = _pairs("generalized_box_iou", boxes1, boxes2)
    iou, union = _overlap(first, second)
    hull = _hull(first, second)
    area = vnp.maximum(hull.right - hull.left, 0) * vnp.maximum(hull.bottom - hull.top, 0)
    return narrowed(iou - (area - union) / area, like)


def distance_box_iou(boxes1: Any, boxes2: Any, eps: float = 1e-7) -> Array:
    """Return the distance IoU of all pairs of boxes (Zheng et al. 2020).

    It is the IoU less the squared distance of the centres, relative to the diagonal of the smallest box around both, to whose square `eps`
    is added. Shapes are those of `box_iou`.

    >>> vf.vision.ops.distance_box_iou(vf.numpy.array([[0.0, 0.0, 1.0, 1.0]]), vf.numpy.array([[2.0, 0.0, 3.0, 1.0]]))
    Array([[-0.4]], dtype=float32)
    """
    first, second, like = _pairs("distance_box_iou", boxes1, boxes2)
    return narrowed(_overlap(first, second)[0] - _distance(first, second, eps), like)


def complete_box_iou(boxes1: Any, boxes2: Any, eps: float = 1e-7) -> Array:
    """Return the complete IoU of all pairs of boxes (Zheng et al. 2020).

    It is the distance IoU less a measure of how much the ratios of width to height differ, whose factor is not differentiated. Shapes are
    those of `box_iou`.

    >>> vf.vision.ops.complete_box_iou(vf.numpy.array([[0.0, 0.0, 1.0, 1.0]]), vf.numpy.array([[0.0, 0.0, 1.0, 1.0]]))
    Array([[1.]], dtype=float32)
    """
    first, second, like = _pairs("complete_box_iou", boxes1, boxes2)
    iou = _overlap(first, second)[0]
    return narrowed(iou - _distance(first, second, eps) - _ratio_term(first, second, iou, eps), like)


def _pairs(function: str, boxes1: Any, boxes2: Any, fmt: Format = "xyxy") -> tuple[Edges, Edges, Array]:
    """Return edges that broadcast to all pairs, and an array of the result's dtype."""
    first, second = promote_inexact(function, as_boxes(function, boxes1, "boxes1"), as_boxes(function, boxes2, "boxes2"))
    if first.ndim < 2 or second.ndim < 2:
        raise ShapeError(f"{function}: boxes are of shape (…, N, 4) and (…, M, 4), got {first.shape} and {second.shape}")
    rows, columns = first[..., :, None, :], second[..., None, :, :]
    return _to_edges(wide(rows), fmt, function), _to_edges(wide(columns), fmt, function), first


def _overlap(a: Edges, b: Edges) -> tuple[Array, Array]:
    """Return the intersection over union, and the union."""
    common = intersection(a, b)
    union = a.area + b.area - common
    return common / union, union


def _hull(a: Edges, b: Edges) -> Edges:
    """Return the smallest box around two."""
    low = vnp.minimum(a.left, b.left), vnp.minimum(a.top, b.top)
    return Edges(*low, vnp.maximum(a.right, b.right), vnp.maximum(a.bottom, b.bottom))


def _distance(a: Edges, b: Edges, eps: float) -> Array:
    """Return the squared distance of the centres by that of the hull's corners."""
    hull = _hull(a, b)
    diagonal = (hull.right - hull.left) ** 2 + (hull.bottom - hull.top) ** 2 + eps
    x = (a.left + a.right) / 2 - (b.left + b.right) / 2
    y = (a.top + a.bottom) / 2 - (b.top + b.bottom) / 2
    return (x**2 + y**2) / diagonal


def _ratio_term(a: Edges, b: Edges, iou: Array, eps: float) -> Array:
    """Return the penalty of different ratios of width to height."""
    first, second = (vnp.arctan((box.right - box.left) / (box.bottom - box.top)) for box in (a, b))
    v = (4 / math.pi**2) * (first - second) ** 2
    return lax.stop_gradient(v / (1 - iou + v + eps)) * v


# Losses of the overlaps of corresponding boxes.


def generalized_box_iou_loss(boxes1: Any, boxes2: Any, reduction: Reduction = "none", eps: float = 1e-7) -> Array:
    """Return 1 minus the generalized IoU of corresponding boxes.

    Args:
        boxes1, boxes2: arrays of shape (…, 4), of the format "xyxy".
        reduction: "none" for shape (…), "mean" (of no boxes: 0) or "sum".
        eps: is added to denominators.

    >>> vf.vision.ops.generalized_box_iou_loss(vf.numpy.array([[0.0, 0.0, 1.0, 1.0]]), vf.numpy.array([[3.0, 0.0, 4.0, 1.0]]))
    Array([1.5], dtype=float32)
    """
    first, second, like = _corresponding("generalized_box_iou_loss", boxes1, boxes2)
    iou, union = _stable_overlap(first, second, eps)
    area = _hull(first, second).area
    return _reduced("generalized_box_iou_loss", 1 - iou + (area - union) / (area + eps), reduction, like)


def distance_box_iou_loss(boxes1: Any, boxes2: Any, reduction: Reduction = "none", eps: float = 1e-7) -> Array:
    """Return 1 minus the distance IoU of corresponding boxes.

    Arguments are those of `generalized_box_iou_loss`.

    >>> vf.vision.ops.distance_box_iou_loss(vf.numpy.array([[0.0, 0.0, 1.0, 1.0]]), vf.numpy.array([[2.0, 0.0, 3.0, 1.0]]), "sum")
    Array(1.4, dtype=float32)
    """
    first, second, like = _corresponding("distance_box_iou_loss", boxes1, boxes2)
    iou, _ = _stable_overlap(first, second, eps)
    return _reduced("distance_box_iou_loss", 1 - iou + _distance(first, second, eps), reduction, like)


def complete_box_iou_loss(boxes1: Any, boxes2: Any, reduction: Reduction = "none", eps: float = 1e-7) -> Array:
    """Return 1 minus the complete IoU of corresponding boxes.

    Arguments are those of `generalized_box_iou_loss`.

    >>> vf.vision.ops.complete_box_iou_loss(vf.numpy.array([[0.0, 0.0, 1.0, 1.0]]), vf.numpy.array([[2.0, 0.0, 3.0, 1.0]]), "mean")
    Array(1.4, dtype=float32)
    """
    first, second, like = _corresponding("complete_box_iou_loss", boxes1, boxes2)
    iou, _ = _stable_overlap(first, second, eps)
    loss = 1 - iou + _distance(first, second, eps) + _ratio_term(first, second, iou, eps)
    return _reduced("complete_box_iou_loss", loss, reduction, like)


def _corresponding(function: str, boxes1: Any, boxes2: Any) -> tuple[Edges, Edges, Array]:
    first, second = promote_inexact(function, as_boxes(function, boxes1, "boxes1"), as_boxes(function, boxes2, "boxes2"))
    if first.shape != second.shape:
        raise ShapeError(f"{function}: boxes1 and boxes2 need the same shape, got {first.shape} and {second.shape}")
    return edges(wide(first)), edges(wide(second)), first


def _stable_overlap(a: Edges, b: Edges, eps: float) -> tuple[Array, Array]:
    """Return the intersection over union plus `eps`, and the union."""
    common = intersection(a, b)
    union = a.area + b.area - common
    return common / (union + eps), union


def _reduced(function: str, loss: Array, reduction: Reduction, like: Array) -> Array:
    check_option(reduction, f"{function}: reduction", ("none", "mean", "sum"))
    if reduction == "none":
        return narrowed(loss, like)
    total = vnp.sum(loss)
    return narrowed(total / max(loss.size, 1) if reduction == "mean" else total, like)


# Anchors.


def generate_anchors(sizes: Sequence[float], aspect_ratios: Sequence[float], dtype: Any = np.float32) -> Array:
    """Return anchors around (0, 0) of all ratios and sizes, of shape (R * S, 4).

    Args:
        sizes: S numbers: the square roots of the areas.
        aspect_ratios: R numbers: height by width.
        dtype: that of the result.

    The edges are rounded to whole numbers, and sizes vary fastest, as in torchvision's `AnchorGenerator`. Raises `ArgumentError` for
    numbers that are not positive.

    >>> vf.vision.ops.generate_anchors((32,), (0.5, 1.0))
    Array([[-23., -11.,  23.,  11.],
           [-16., -16.,  16.,  16.]], dtype=float32)
    """
    scales, ratios = np.asarray(sizes, np.float64), np.asarray(aspect_ratios, np.float64)
    if scales.ndim != 1 or ratios.ndim != 1 or not (np.all(scales > 0) and np.all(ratios > 0)):
        raise ArgumentError(f"generate_anchors: sizes and aspect_ratios are rows of positive numbers, got {sizes!r} and {aspect_ratios!r}")
    heights = np.outer(np.sqrt(ratios), scales).ravel()
    widths = np.outer(1 / np.sqrt(ratios), scales).ravel()
    return vnp.asarray(np.round(np.stack([-widths, -heights, widths, heights], 1) / 2), dtype)


def grid_anchors(base_anchors: Any, grid_size: Sequence[int], stride: Sequence[int] | int) -> Array:
    """Return anchors moved to every cell of a grid, of shape (H * W * A, 4).

    Args:
        base_anchors: A boxes around (0, 0), of shape (A, 4).
        grid_size: (H, W), the size of a feature map.
        stride: the pixels of the image from cell to cell: (vertical, horizontal), or a number for both.

    Cells are in the order of a feature map's rows, and their anchors follow each other. Raises `ShapeError` for other shapes.

    >>> vf.vision.ops.grid_anchors(vf.numpy.array([[-1.0, -1.0, 1.0, 1.0]]), (1, 2), 8)
    Array([[-1., -1.,  1.,  1.],
           [ 7., -1.,  9.,  1.]], dtype=float32)
    """
    anchors = as_boxes("grid_anchors", base_anchors, "base_anchors")
    if anchors.ndim != 2:
        raise ShapeError(f"grid_anchors: base_anchors are of shape (A, 4), got {anchors.shape}")
    height, width = grid_size
    down, right = (stride, stride) if isinstance(stride, int) else stride
    y, x = np.meshgrid(np.arange(height) * down, np.arange(width) * right, indexing="ij")
    shifts = np.stack([x, y, x, y], -1).reshape(-1, 1, 4)
    return (vnp.asarray(shifts, anchors.dtype) + anchors).reshape(-1, 4)


def encode_boxes(reference_boxes: Any, proposals: Any, weights: Sequence[float] = (1.0, 1.0, 1.0, 1.0)) -> Array:
    """Return boxes relative to proposals (Girshick et al. 2014).

    Args:
        reference_boxes: boxes of shape (…, 4), usually the truth.
        proposals: boxes of a shape that broadcasts with it, usually anchors.
        weights: factors of the four numbers.

    The numbers are the moves of the centre by the proposal's width and height, and the logarithms of the ratios of widths and heights.
    Boxes are of the format "xyxy". `decode_boxes` is the inverse.

    >>> vf.vision.ops.encode_boxes(vf.numpy.array([[0.0, 0.0, 4.0, 4.0]]), vf.numpy.array([[2.0, 0.0, 6.0, 4.0]]))
    Array([[-0.5,  0. ,  0. ,  0. ]], dtype=float32)
    """
    name = "encode_boxes"
    boxes, anchors = promote_inexact(name, as_boxes(name, reference_boxes, "reference_boxes"), as_boxes(name, proposals, "proposals"))
    box, anchor = (box_convert(wide(x), "xyxy", "cxcywh") for x in (boxes, anchors))
    moves = (box[..., :2] - anchor[..., :2]) / anchor[..., 2:]
    ratios = vnp.log(box[..., 2:] / anchor[..., 2:])
    return narrowed(vnp.concatenate([moves, ratios], -1) * _factors(name, weights, box), boxes)


def decode_boxes(
    codes: Any, boxes: Any, weights: Sequence[float] = (1.0, 1.0, 1.0, 1.0), bbox_xform_clip: float = math.log(1000 / 16)
) -> Array:
    """Return the boxes that codes relative to other boxes stand for.

    Args:
        codes: an array of shape (…, 4), as of `encode_boxes`.
        boxes: the boxes that they are relative to, of a shape that broadcasts with it.
        weights: as for `encode_boxes`.
        bbox_xform_clip: the largest logarithm of a ratio, so that the exponential stays finite.

    >>> vf.vision.ops.decode_boxes(vf.numpy.array([[-0.5, 0.0, 0.0, 0.0]]), vf.numpy.array([[2.0, 0.0, 6.0, 4.0]]))
    Array([[0., 0., 4., 4.]], dtype=float32)
    """
    name = "decode_boxes"
    numbers, anchors = promote_inexact(name, as_boxes(name, codes, "codes"), as_boxes(name, boxes))
    anchor = box_convert(wide(anchors), "xyxy", "cxcywh")
    code = wide(numbers) / _factors(name, weights, anchor)
    centre = code[..., :2] * anchor[..., 2:] + anchor[..., :2]
    size = vnp.exp(vnp.minimum(code[..., 2:], bbox_xform_clip)) * anchor[..., 2:]
    return narrowed(box_convert(vnp.concatenate([centre, size], -1), "cxcywh", "xyxy"), numbers)


def _factors(function: str, weights: Sequence[float], like: Array) -> Array:
    numbers = np.asarray(weights, np.float64)
    if numbers.shape != (4,) or not np.all(numbers > 0):
        raise ArgumentError(f"{function}: weights are four positive numbers, got {weights!r}")
    return vnp.asarray(numbers, like.dtype)


# Suppression.
#
# The boxes are sorted by their scores. A loop takes the best box that remains, keeps it and drops those that overlap with it, so that it
# makes one pass over the boxes for each box that is kept, on the device, and needs no matrix of all pairs.

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
    check_option(method, "soft_nms: method", ("gaussian", "linear"))
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
        is_out = (positions == best) | (rest == -np.inf)  # whose score, times 0, would be NaN
        return vnp.where(is_out, -np.inf, rest * factor), count + 1, selected, taken

    start = (scores, vnp.zeros((), INDEX), vnp.full(size, fill_value, INDEX), vnp.zeros(size, scores.dtype))
    _, count, selected, taken = lax.while_loop(has_next, keep_best, start)
    return selected, taken, count

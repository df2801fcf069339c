"""Boxes: their formats, areas and overlaps, and losses of overlaps.

A box is the last axis of an array, four numbers; "xyxy" are its left, upper, right and lower edges. Axes before it are batches. Areas and
overlaps of integers and of 16-bit floats are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.dtypes import COMPLEX, INEXACT
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.numpy.arguments import narrowed, operand, promote_inexact, wide
from volta_fn.numpy.indexing import nonzero

__all__ = [
    "box_area", "box_convert", "box_iou", "clip_boxes_to_image", "complete_box_iou", "complete_box_iou_loss", "distance_box_iou",
    "distance_box_iou_loss", "generalized_box_iou", "generalized_box_iou_loss", "masks_to_boxes", "remove_small_boxes",
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
    if reduction not in ("none", "mean", "sum"):
        raise ArgumentError(f"{function}: reduction is 'none', 'mean' or 'sum', got {reduction!r}")
    if reduction == "none":
        return narrowed(loss, like)
    total = vnp.sum(loss)
    return narrowed(total / max(loss.size, 1) if reduction == "mean" else total, like)

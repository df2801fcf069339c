"""Anchors, from which a detector starts, and boxes encoded relative to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.arguments import narrowed, promote_inexact, wide
from volta_fn.vision.ops.boxes import as_boxes, box_convert

__all__ = ["decode_boxes", "encode_boxes", "generate_anchors", "grid_anchors"]


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

"""Boxes against formulas written out in NumPy, box by box."""

from __future__ import annotations

import math

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.test_util import check_grads
from volta_fn.vision import ops

Numbers = np.ndarray
RANDOM = np.random.default_rng(0)


def boxes(*shape: int, seed: int = 0) -> Numbers:
    """Boxes that overlap often."""
    random = np.random.default_rng(seed)
    corner = random.uniform(0, 10, (*shape, 2))
    return np.concatenate([corner, corner + random.uniform(0.5, 8, (*shape, 2))], -1).astype(np.float32)


def overlap(a: Numbers, b: Numbers) -> tuple[float, float]:
    """IoU and union of two boxes."""
    common = max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    return common / union, union


def hull(a: Numbers, b: Numbers) -> tuple[float, float]:
    """Width and height of the smallest box around two."""
    return max(a[2], b[2]) - min(a[0], b[0]), max(a[3], b[3]) - min(a[1], b[1])


def generalized(a: Numbers, b: Numbers) -> float:
    iou, union = overlap(a, b)
    area = math.prod(hull(a, b))
    return iou - (area - union) / area


def distance(a: Numbers, b: Numbers) -> float:
    centres = [(box[:2] + box[2:]) / 2 for box in (a, b)]
    return overlap(a, b)[0] - float(((centres[0] - centres[1]) ** 2).sum()) / sum(side**2 for side in hull(a, b))


def complete(a: Numbers, b: Numbers) -> float:
    angles = [math.atan((box[2] - box[0]) / (box[3] - box[1])) for box in (a, b)]
    v = 4 / math.pi**2 * (angles[0] - angles[1]) ** 2
    return distance(a, b) - v * v / (1 - overlap(a, b)[0] + v + 1e-30)


MEASURES = {
    "box_iou": lambda a, b: overlap(a, b)[0],
    "generalized_box_iou": generalized,
    "distance_box_iou": distance,
    "complete_box_iou": complete,
}


@pytest.mark.parametrize("name", MEASURES)
def test_overlaps_of_all_pairs(name):
    first, second = boxes(2, 7), boxes(2, 5, seed=1)
    wanted = np.array(
        [
            [[MEASURES[name](a.astype(float), b.astype(float)) for b in columns] for a in rows]
            for rows, columns in zip(first, second, strict=True)
        ]
    )
    function = getattr(ops, name)
    for result in (function(first, second), vf.jit(function)(first, second), vf.vmap(function)(first, second)):
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)
    assert function(first[0, :0], second[0]).shape == (0, 5)
    half = function(first.astype(np.float16), second.astype(np.float16))
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, wanted, atol=1e-2)


@pytest.mark.parametrize("name", ["generalized_box_iou", "distance_box_iou", "complete_box_iou"])
def test_losses_are_1_minus_the_overlap(name):
    first, second = boxes(30), boxes(30, seed=1)
    wanted = np.array([1 - MEASURES[name](a.astype(float), b.astype(float)) for a, b in zip(first, second, strict=True)])
    loss = getattr(ops, f"{name}_loss")
    np.testing.assert_allclose(loss(first, second), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss(first, second, "sum"), wanted.sum(), rtol=1e-5)
    np.testing.assert_allclose(loss(first, second, reduction="mean"), wanted.mean(), rtol=1e-5)
    assert float(loss(first[:0], second[:0], "mean")) == 0
    with pytest.raises(ArgumentError, match="reduction"):
        loss(first, second, "median")
    with pytest.raises(ShapeError, match="same shape"):
        loss(first, second[:3])


@pytest.mark.wide
@pytest.mark.parametrize("name", ["generalized_box_iou_loss", "distance_box_iou_loss"])
def test_losses_have_derivatives(name):
    first, second = boxes(6).astype(np.float64), boxes(6, seed=1).astype(np.float64)
    check_grads(getattr(ops, name), (first, second), order=1)


def test_the_factor_of_the_complete_loss_is_a_constant():
    """The derivative is that of the formula with the factor as a number, computed from differences."""
    a, b, step = boxes(1)[0].astype(float), boxes(1, seed=3)[0].astype(float), 1e-6
    iou = overlap(a, b)[0]

    def angle(box: Numbers) -> float:
        return math.atan((box[2] - box[0]) / (box[3] - box[1]))

    v = 4 / math.pi**2 * (angle(a) - angle(b)) ** 2
    factor = v / (1 - iou + v)

    def loss(x: Numbers) -> float:
        return 1 - distance(x, b) + factor * 4 / math.pi**2 * (angle(x) - angle(b)) ** 2

    wanted = [(loss(a + step * row) - loss(a - step * row)) / (2 * step) for row in np.eye(4)]
    gradient = vf.grad(lambda x: ops.complete_box_iou_loss(x, b.astype(np.float32)))(a.astype(np.float32))
    np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=1e-5)


def test_formats():
    xyxy = np.array([[1.0, 2.0, 5.0, 10.0]], np.float32)
    forms = {"xyxy": xyxy, "xywh": [[1, 2, 4, 8]], "cxcywh": [[3, 6, 4, 8]]}
    for source, values in forms.items():
        for target, wanted in forms.items():
            np.testing.assert_array_equal(ops.box_convert(np.float32(values), source, target), wanted)
        np.testing.assert_array_equal(ops.box_area(np.float32(values), source), [32])
        np.testing.assert_allclose(ops.box_iou(np.float32(values), np.float32(values), source), [[1]])
    whole = ops.box_convert(xyxy.astype(np.int32), "xyxy", "xywh")
    assert whole.dtype == np.int32
    assert ops.box_convert(xyxy.astype(np.int32), "xywh", "cxcywh").dtype == np.float32
    with pytest.raises(ArgumentError, match="'xyxy', 'xywh' or 'cxcywh'"):
        ops.box_convert(xyxy, "xyxy", "yxyx")


def test_areas_exceed_narrow_dtypes():
    side = np.array([[0, 0, 300, 400]])
    for dtype, result in (("float16", "float32"), ("int16", "int32"), ("uint16", "int32"), ("float32", "float32")):
        area = ops.box_area(side.astype(dtype))
        assert area.dtype == np.dtype(result)
        np.testing.assert_array_equal(area, [120000])


def test_clipping():
    values = np.array([[-5.0, 3.0, 30.0, 9.0], [25.0, -1.0, 40.0, 50.0]], np.float32)
    np.testing.assert_array_equal(ops.clip_boxes_to_image(values, (8, 20)), [[0, 3, 20, 8], [20, 0, 20, 8]])


def test_small_boxes():
    values = np.array([[0, 0, 5, 5], [0, 0, 1, 9], [2, 2, 4, 4], [0, 0, 9, 1.9]], np.float32)
    np.testing.assert_array_equal(ops.remove_small_boxes(values, 2), [0, 2])
    traced = vf.jit(lambda x: ops.remove_small_boxes(x, 2, size=3))(values)
    np.testing.assert_array_equal(traced, [0, 2, -1])
    with pytest.raises(ShapeError, match="vmap"):
        ops.remove_small_boxes(values[None], 2)


def test_boxes_around_masks():
    masks = np.zeros((3, 6, 8), np.uint8)
    masks[0, 2:5, 3] = 1
    masks[1, 0, 0] = masks[1, 5, 7] = 2
    np.testing.assert_array_equal(ops.masks_to_boxes(masks), [[3, 2, 3, 4], [0, 0, 7, 5], [0, 0, 0, 0]])
    np.testing.assert_array_equal(vf.vmap(ops.masks_to_boxes)(masks), ops.masks_to_boxes(masks))


def test_what_is_no_box_is_refused():
    with pytest.raises(ShapeError, match=r"\(…, 4\), got \(3, 5\)"):
        ops.box_area(np.zeros((3, 5), np.float32))
    with pytest.raises(DTypeError, match="real"):
        ops.box_area(np.zeros((3, 4), np.complex64))
    with pytest.raises(ShapeError, match="N, 4"):
        ops.box_iou(np.zeros(4, np.float32), np.zeros((1, 4), np.float32))

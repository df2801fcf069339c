"""Pooling of regions against loops over bins, samples and pixels in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.test_util import check_grads
from volta_fn.vision import ops

SIZE = (2, 3)
SCALE = 0.5
#: Boxes inside, across the edges, outside, narrow, turned inside out, and larger than the map.
BOXES = np.array(
    [
        [0, 1, 2, 9, 12],
        [1, -6, 3, 8, 20],
        [0, 30, 30, 40, 40],
        [1, 5, 5, 5.1, 9],
        [0, 9, 8, 3, 2],
        [1, -9, -9, 60, 50],
        [0, 3.3, 1.7, 8.4, 6.2],
    ],
    np.float32,
)
CHANNELS, HEIGHT, WIDTH = 12, 7, 9
MAPS = np.random.default_rng(0).normal(size=(2, CHANNELS, HEIGHT, WIDTH)).astype(np.float32)


def bilinear(image: np.ndarray, y: float, x: float) -> float:
    """Interpolate an image between its pixels; 0 more than a pixel outside."""
    if not (-1 <= y <= HEIGHT and -1 <= x <= WIDTH):
        return 0.0
    y, x = min(max(y, 0), HEIGHT - 1), min(max(x, 0), WIDTH - 1)
    low, left = math.floor(y), math.floor(x)
    down, right = min(low + 1, HEIGHT - 1), min(left + 1, WIDTH - 1)
    v, u = y - low, x - left
    return (1 - v) * ((1 - u) * image[low, left] + u * image[low, right]) + v * ((1 - u) * image[down, left] + u * image[down, right])


def aligned_bins(box: np.ndarray, ratio: int, aligned: bool, least: float) -> Callable[[np.ndarray, int, int], float]:
    """Return the mean of samples of one bin of an image."""
    left, top, right, bottom = box * SCALE - (0.5 if aligned else 0)
    height, width = max(bottom - top, least), max(right - left, least)
    step = height / SIZE[0], width / SIZE[1]
    rows, columns = [ratio if ratio > 0 else max(math.ceil(s), 0) for s in step]

    def mean(image: np.ndarray, i: int, j: int) -> float:
        ys = [top + i * step[0] + (k + 0.5) * step[0] / rows for k in range(rows)]
        xs = [left + j * step[1] + (k + 0.5) * step[1] / columns for k in range(columns)]
        values = [bilinear(image, y, x) for y in ys for x in xs]
        return sum(values) / max(len(values), 1)

    return mean


def pixel_bins(box: np.ndarray, extra: int, reduce: Callable[[np.ndarray], float]) -> Callable[[np.ndarray, int, int], float]:
    """Return a function that evaluates another at the pixels of one bin."""
    left, top, right, bottom = [math.floor(abs(x) + 0.5) * (1 if x >= 0 else -1) for x in box * SCALE]
    height, width = max(bottom - top + extra, 1) / SIZE[0], max(right - left + extra, 1) / SIZE[1]

    def value(image: np.ndarray, i: int, j: int) -> float:
        rows = slice(*[min(max(n + top, 0), HEIGHT) for n in (math.floor(i * height), math.ceil((i + 1) * height))])
        columns = slice(*[min(max(n + left, 0), WIDTH) for n in (math.floor(j * width), math.ceil((j + 1) * width))])
        pixels = image[rows, columns]
        return reduce(pixels) if pixels.size else 0.0

    return value


def every_bin(bins: Callable[[np.ndarray], Callable[[np.ndarray, int, int], float]], position_sensitive: bool = False) -> np.ndarray:
    maps, (height, width) = MAPS.astype(float), SIZE
    channels = CHANNELS // (height * width) if position_sensitive else CHANNELS
    result = np.zeros((len(BOXES), channels, height, width))
    for k, box in enumerate(BOXES):
        value = bins(box[1:].astype(float))
        for c, i, j in np.ndindex(channels, height, width):
            source = (c * height + i) * width + j if position_sensitive else c
            result[k, c, i, j] = value(maps[int(box[0]), source], i, j)
    return result


def agrees(function: Callable[..., vf.Array], wanted: np.ndarray) -> None:
    """Values are those wanted, traced, by vmap and in half precision too."""
    for result in (function(MAPS, BOXES), vf.jit(function)(MAPS, BOXES)):
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
    twice = vf.vmap(function)(np.stack([MAPS, -MAPS]), np.stack([BOXES, BOXES]))
    np.testing.assert_allclose(twice[0], wanted, rtol=1e-4, atol=1e-5)
    half = function(MAPS.astype(np.float16), BOXES)
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, wanted, atol=2e-3)
    assert function(MAPS, BOXES[:0]).shape == (0, *wanted.shape[1:])


@pytest.mark.parametrize("ratio", [2, 0])
@pytest.mark.parametrize("aligned", [False, True])
def test_roi_align(ratio, aligned):
    wanted = every_bin(lambda box: aligned_bins(box, ratio, aligned, -np.inf if aligned else 1))
    agrees(lambda x, b: ops.roi_align(x, b, SIZE, SCALE, ratio, aligned), wanted)


@pytest.mark.parametrize("ratio", [2, 0])
def test_ps_roi_align(ratio):
    wanted = every_bin(lambda box: aligned_bins(box, ratio, True, -np.inf), position_sensitive=True)
    agrees(lambda x, b: ops.ps_roi_align(x, b, SIZE, SCALE, ratio), wanted)


def test_roi_pool():
    agrees(lambda x, b: ops.roi_pool(x, b, SIZE, SCALE), every_bin(lambda box: pixel_bins(box, 1, np.max)))


def test_ps_roi_pool():
    agrees(lambda x, b: ops.ps_roi_pool(x, b, SIZE, SCALE), every_bin(lambda box: pixel_bins(box, 0, np.mean), position_sensitive=True))


@pytest.mark.wide
@pytest.mark.parametrize("name", ["roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool"])
@pytest.mark.parametrize("ratio", [1, 0])
def test_derivatives_by_the_maps(name, ratio):
    options = {"sampling_ratio": ratio} if name.endswith("align") else {}

    def pooled(x):
        return getattr(ops, name)(x, BOXES[:4].astype(np.float64), SIZE, SCALE, **options)

    check_grads(pooled, (MAPS[:, :6, :, :].astype(np.float64),), order=1)
    check_grads(vf.jit(pooled), (MAPS[:, :6, :, :].astype(np.float64),), order=1, modes=["rev"])


def test_boxes_have_no_derivatives():
    gradient = vf.grad(lambda b: vf.numpy.sum(ops.roi_align(MAPS, b, SIZE, SCALE, 2)))(BOXES)
    np.testing.assert_array_equal(gradient, np.zeros_like(BOXES))


def test_the_first_of_equal_pixels_gets_the_derivative():
    flat = np.ones((1, 1, 4, 4), np.float32)
    gradient = vf.grad(lambda x: vf.numpy.sum(ops.roi_pool(x, np.float32([[0, 0, 0, 3, 3]]), 1)))(flat)
    np.testing.assert_array_equal(gradient, np.eye(1, 16).reshape(1, 1, 4, 4))


def test_boxes_of_each_map():
    parts = [BOXES[BOXES[:, 0] == i, 1:] for i in (0, 1)]
    together = np.concatenate([BOXES[BOXES[:, 0] == i] for i in (0, 1)])
    np.testing.assert_array_equal(ops.roi_align(MAPS, parts, 2, SCALE, 2), ops.roi_align(MAPS, together, 2, SCALE, 2))
    with pytest.raises(ShapeError, match="sequence of 2 arrays"):
        ops.roi_align(MAPS, parts[:1], 2)


def test_bad_arguments():
    with pytest.raises(ShapeError, match=r"\(N, C, H, W\)"):
        ops.roi_align(MAPS[0], BOXES, 2)
    with pytest.raises(DTypeError, match="floats"):
        ops.roi_align(MAPS.astype(np.int32), BOXES, 2)
    with pytest.raises(ShapeError, match=r"\(K, 5\)"):
        ops.roi_pool(MAPS, BOXES[:, 1:], 2)
    with pytest.raises(ArgumentError, match="output_size"):
        ops.roi_align(MAPS, BOXES, (2, 0))
    with pytest.raises(ShapeError, match="multiple of the 5 \\* 1 bins"):
        ops.ps_roi_pool(MAPS, BOXES, (5, 1))

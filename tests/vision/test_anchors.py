"""Anchors and the coding of boxes against their formulas."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.vision.test_boxes import boxes
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.vision import ops


def test_anchors_have_their_areas_and_ratios():
    anchors = np.asarray(ops.generate_anchors((100, 200), (0.5, 1.0, 2.0)))
    assert anchors.shape == (6, 4)
    width, height = anchors[:, 2] - anchors[:, 0], anchors[:, 3] - anchors[:, 1]
    np.testing.assert_allclose(width * height, np.tile([100.0, 200.0], 3) ** 2, rtol=0.03)
    np.testing.assert_allclose(height / width, np.repeat([0.5, 1, 2], 2), rtol=0.03)
    np.testing.assert_array_equal(anchors, np.round(anchors))
    np.testing.assert_array_equal(anchors[:, :2], -anchors[:, 2:])
    with pytest.raises(ArgumentError, match="positive"):
        ops.generate_anchors((0,), (1,))


def test_grids():
    base = np.array([[-1.0, -2, 1, 2], [-3, -3, 3, 3]], np.float32)
    grid = np.asarray(ops.grid_anchors(base, (3, 5), (10, 4))).reshape(3, 5, 2, 4)
    for i in range(3):
        for j in range(5):
            np.testing.assert_array_equal(grid[i, j], base + np.float32([4 * j, 10 * i, 4 * j, 10 * i]))
    with pytest.raises(ShapeError, match=r"\(A, 4\)"):
        ops.grid_anchors(base[0], (3, 5), 2)


def test_encoding_follows_the_paper():
    truth, anchor = boxes(20).astype(float), boxes(20, seed=1).astype(float)
    (w, h), (anchor_w, anchor_h) = [(b[:, 2:] - b[:, :2]).T for b in (truth, anchor)]
    (x, y), (anchor_x, anchor_y) = [((b[:, 2:] + b[:, :2]) / 2).T for b in (truth, anchor)]
    wanted = [10 * (x - anchor_x) / anchor_w, 10 * (y - anchor_y) / anchor_h, 5 * np.log(w / anchor_w), 5 * np.log(h / anchor_h)]
    codes = ops.encode_boxes(truth.astype(np.float32), anchor.astype(np.float32), (10, 10, 5, 5))
    np.testing.assert_allclose(codes, np.stack(wanted, 1), rtol=1e-4, atol=1e-4)
    decoded = vf.jit(lambda c, b: ops.decode_boxes(c, b, (10, 10, 5, 5)))(codes, anchor.astype(np.float32))
    np.testing.assert_allclose(decoded, truth, rtol=1e-4, atol=1e-4)


def test_large_ratios_are_clipped():
    box = np.array([[0.0, 0.0, 1.0, 1.0]], np.float32)
    decoded = np.asarray(ops.decode_boxes(np.float32([[0, 0, 1000, 2]]), box))
    np.testing.assert_allclose(decoded[0, 2] - decoded[0, 0], 1000 / 16, rtol=1e-5)
    np.testing.assert_allclose(decoded[0, 3] - decoded[0, 1], np.exp(2), rtol=1e-5)
    with pytest.raises(ArgumentError, match="four positive"):
        ops.decode_boxes(box, box, (1, 1, 0, 1))

"""Suppression against the loop of its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta_fn as vf
from tests.vision.test_boxes import boxes, overlap
from volta_fn.errors import ArgumentError, ConcretizationError, ShapeError
from volta_fn.vision import ops


def greedy(box: np.ndarray, scores: np.ndarray, limit: float, classes: np.ndarray | None = None, least: float = -np.inf) -> list[int]:
    """Return the boxes that overlap with no better one that is kept."""
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        rivals = [j for j in kept if classes is None or classes[i] == classes[j]]
        if scores[i] > least and all(not overlap(box[i], box[j])[0] > limit for j in rivals):
            kept.append(int(i))
    return kept


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.sampled_from([0.0, 0.3, 0.5, 0.9]), st.integers(0, 10_000))
def test_kept_boxes(count, limit, seed):
    box, scores = boxes(count, seed=seed), np.random.default_rng(seed).integers(0, 20, count).astype(np.float32)
    classes = np.random.default_rng(seed + 1).integers(0, 3, count)
    np.testing.assert_array_equal(ops.nms(box, scores, limit), greedy(box, scores, limit))
    np.testing.assert_array_equal(ops.batched_nms(box, scores, classes, limit), greedy(box, scores, limit, classes))
    np.testing.assert_array_equal(ops.nms(box, scores, limit, score_threshold=7), greedy(box, scores, limit, least=7))


def test_many_boxes():
    box, scores = boxes(300), np.random.default_rng(1).uniform(size=300).astype(np.float32)
    wanted = greedy(box, scores, 0.2)
    assert 5 < len(wanted) < 200
    np.testing.assert_array_equal(ops.nms(box, scores, 0.2), wanted)


def test_padding_under_jit_and_vmap():
    box, scores = boxes(3, 12), np.random.default_rng(2).uniform(size=(3, 12)).astype(np.float32)

    def select(b, s):
        return ops.nms(b, s, 0.3, max_output_size=8)

    together = vf.jit(vf.vmap(select))(box, scores)
    for i in range(3):
        kept = greedy(box[i], scores[i], 0.3)[:8]
        for indices, count in (vf.jit(select)(box[i], scores[i]), [x[i] for x in together]):
            assert int(count) == len(kept)
            np.testing.assert_array_equal(indices, [*kept, *[-1] * (8 - len(kept))])
    first, count = ops.nms(box[0], scores[0], 0.3, max_output_size=2, fill_value=99)
    np.testing.assert_array_equal(first, greedy(box[0], scores[0], 0.3)[:2])
    assert int(count) == 2
    with pytest.raises(ConcretizationError, match="max_output_size"):
        vf.jit(lambda b, s: ops.nms(b, s, 0.3))(box[0], scores[0])


def test_no_boxes_and_boxes_without_area():
    none = np.zeros((0, 4), np.float32)
    assert ops.nms(none, np.zeros(0, np.float32), 0.5).shape == (0,)
    indices, count = ops.nms(none, np.zeros(0, np.float32), 0.5, max_output_size=2)
    np.testing.assert_array_equal(indices, [-1, -1])
    assert int(count) == 0
    assert ops.nms(boxes(3), np.ones(3, np.float32), 0.5, max_output_size=0)[0].shape == (0,)
    points = np.ones((3, 4), np.float32)  # their IoU, 0 / 0, is not larger than the threshold
    np.testing.assert_array_equal(ops.nms(points, np.float32([1, 3, 2]), 0.5), [1, 2, 0])


def test_half_precision_compares_in_single():
    box, scores = boxes(60), np.random.default_rng(4).permutation(60).astype(np.float16)
    rounded = box.astype(np.float16)
    np.testing.assert_array_equal(ops.nms(rounded, scores, 0.4), greedy(rounded.astype(np.float32), scores, 0.4))


def soft(box: np.ndarray, scores: np.ndarray, size: int, factor: object, least: float) -> tuple[list[int], list[float]]:
    rest, kept, taken = scores.astype(float).copy(), [], []
    while len(kept) < size and rest.max() > least:
        best = int(rest.argmax())
        kept.append(best)
        taken.append(rest[best])
        rest *= [factor(overlap(box[best], other)[0]) for other in box]  # type: ignore[operator]
        rest[kept] = -np.inf
    return kept, taken


@pytest.mark.parametrize("method", ["gaussian", "linear"])
def test_soft_suppression(method):
    box, scores = boxes(25), np.random.default_rng(3).uniform(0.1, 1, 25).astype(np.float32)
    factors = {"gaussian": lambda u: math.exp(-(u**2) / 0.4), "linear": lambda u: 1 - u if u > 0.2 else 1.0}
    kept, taken = soft(box, scores, 20, factors[method], 0.3)
    assert 5 < len(kept) < 20
    select = vf.jit(lambda b, s: ops.soft_nms(b, s, max_output_size=20, method=method, sigma=0.4, iou_threshold=0.2, score_threshold=0.3))
    indices, values, count = select(box, scores)
    assert int(count) == len(kept)
    np.testing.assert_array_equal(indices, [*kept, *[-1] * (20 - len(kept))])
    np.testing.assert_allclose(values, [*taken, *[0] * (20 - len(kept))], rtol=1e-5)


def test_bad_arguments():
    box, scores = boxes(3), np.ones(3, np.float32)
    with pytest.raises(ShapeError, match=r"\(N, 4\) and scores of shape \(N,\)"):
        ops.nms(box, scores[:2], 0.5)
    with pytest.raises(ShapeError, match="idxs"):
        ops.batched_nms(box, scores, np.zeros(2, np.int32), 0.5)
    with pytest.raises(ArgumentError, match="not negative"):
        ops.nms(box, scores, 0.5, max_output_size=-1)
    with pytest.raises(ArgumentError, match="'gaussian' or 'linear'"):
        ops.soft_nms(box, scores, max_output_size=1, method="hard")


@pytest.mark.parametrize("method", ["gaussian", "linear"])
def test_soft_suppression_of_equal_boxes(method):
    """The score of a box that overlaps with all of a chosen one is multiplied by 0."""
    box = np.array([[0, 0, 4, 4], [0, 0, 4, 4], [0, 0, 4, 4], [9, 9, 12, 12]], np.float32)
    before = np.array([0.9, 0.5, 0.3, 0.4], np.float32)
    selected, scores = ops.soft_nms(box, before, max_output_size=4, method=method, score_threshold=-1.0)[:2]
    assert sorted(np.asarray(selected).tolist()) == [0, 1, 2, 3]
    assert np.isfinite(np.asarray(scores)).all()

"""The area under the curve against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.narrow_devices import FLOAT
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.nn.metrics import roc_auc

sklearn = pytest.importorskip("sklearn.metrics")
rng = np.random.default_rng(0)


@pytest.mark.parametrize("levels", [2, 5, 1000])
@pytest.mark.parametrize("size", [2, 17, 400])
def test_matches_scikit_learn_whatever_the_ties(size, levels):
    scores = (rng.integers(0, levels, size=size) / levels).astype(np.float32)
    labels = np.where(np.arange(size) < 2, [0, 1] * (size // 2) + [0] * (size % 2), rng.random(size) < scores).astype(np.int32)
    expected = sklearn.roc_auc_score(labels, scores)
    np.testing.assert_allclose(roc_auc(scores, labels), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(vf.jit(roc_auc)(scores.astype(FLOAT), labels == 1), expected, rtol=1e-6, atol=1e-7)


def test_is_exact_for_many_examples():
    scores = rng.random(100_000).astype(np.float32).round(4)
    labels = rng.random(100_000) < 0.02
    np.testing.assert_allclose(roc_auc(scores, labels), sklearn.roc_auc_score(labels, scores), rtol=1e-6)


@pytest.mark.wide
def test_infinite_scores_have_their_place():
    assert roc_auc(np.array([-np.inf, np.inf, 0.0]), np.array([0, 1, 0])) == 1


@pytest.mark.wide
def test_what_no_number_can_say_is_nan():
    assert np.isnan(roc_auc(np.array([0.1, 0.2]), np.array([1, 1]))) and np.isnan(roc_auc(np.array([0.1, 0.2]), np.array([0, 0])))
    assert np.isnan(roc_auc(np.array([0.1, np.nan]), np.array([1, 0]))) and np.isnan(roc_auc(np.zeros(0), np.zeros(0)))


@pytest.mark.wide
def test_vmap_is_a_loop():
    scores, labels = rng.random((3, 20)), rng.random((3, 20)) < 0.5
    each = [roc_auc(s, y) for s, y in zip(scores, labels, strict=True)]
    np.testing.assert_allclose(vf.vmap(roc_auc)(scores, labels), each, rtol=1e-6)


@pytest.mark.wide
def test_wrong_arguments_are_named():
    with pytest.raises(ShapeError, match=r"one shape \(N,\)"):
        roc_auc(np.zeros((2, 2)), np.zeros((2, 2)))
    with pytest.raises(ShapeError, match=r"one shape \(N,\)"):
        roc_auc(np.zeros(3), np.zeros(2))
    with pytest.raises(DTypeError, match="real numbers"):
        roc_auc(np.zeros(3, complex), np.zeros(3))

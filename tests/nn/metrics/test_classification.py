"""Accuracy, top-k accuracy, perplexity and ROC AUC against scikit-learn, with ties, weights, NaN and empty batches."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.narrow_devices import FLOAT
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn import metrics
from volta_fn.nn.metrics import roc_auc

sklearn = pytest.importorskip("sklearn.metrics")
rng = np.random.default_rng(0)
SCORES = rng.normal(size=(50, 7)).astype(np.float32)
LABELS = rng.integers(0, 7, size=50, dtype=np.int32)
WEIGHT = rng.uniform(0, 2, size=50).astype(np.float32)


@pytest.mark.parametrize("weight", [None, WEIGHT, WEIGHT > 1])
def test_accuracy_matches_scikit_learn(weight):
    guess = SCORES.argmax(1).astype(np.int32)
    expected = sklearn.accuracy_score(LABELS, guess, sample_weight=weight)
    for predictions in (SCORES, guess, guess.astype(np.uint8)):
        np.testing.assert_allclose(metrics.accuracy(predictions, LABELS, weight=weight), expected, rtol=1e-6)
    assert vf.jit(lambda x: metrics.accuracy(x, LABELS))(SCORES) == metrics.accuracy(SCORES, LABELS)


@pytest.mark.parametrize("k", [1, 2, 5, 7])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_top_k_accuracy_matches_scikit_learn(k, weight):
    expected = 1.0 if k == 7 else sklearn.top_k_accuracy_score(LABELS, SCORES, k=k, labels=range(7), sample_weight=weight)
    np.testing.assert_allclose(metrics.top_k_accuracy(SCORES, LABELS, k, weight=weight), expected, rtol=1e-6)


def test_equal_scores_are_no_way_to_be_right():
    assert metrics.top_k_accuracy(np.zeros((7, 7), np.float32), np.arange(7, dtype=np.int32), 2) == np.float32(2 / 7)
    assert metrics.accuracy(np.zeros((7, 7), np.float32), np.arange(7, dtype=np.int32)) == np.float32(1 / 7)


@pytest.mark.wide
def test_the_axis_of_classes():
    images, labels = rng.normal(size=(2, 3, 4, 5)), rng.integers(0, 3, size=(2, 4, 5))
    last = np.moveaxis(images, 1, -1)
    assert metrics.accuracy(images, labels) == metrics.accuracy(last, labels, axis=-1)
    assert metrics.top_k_accuracy(images, labels, 2) == metrics.top_k_accuracy(last, labels, 2, axis=-1)
    assert metrics.accuracy(SCORES[0], LABELS[0]) in (0, 1)


@pytest.mark.wide
def test_scores_with_nan_are_wrong():
    scores = np.where(np.arange(50)[:, None] < 25, np.nan, np.eye(7)[LABELS])
    for label in (LABELS, np.where(np.arange(50) < 25, -1, LABELS)):
        assert metrics.accuracy(scores, label) == 0.5 and metrics.top_k_accuracy(scores, label, 1) == 0.5


@pytest.mark.wide
def test_of_nothing():
    assert np.isnan(metrics.accuracy(SCORES[:0], LABELS[:0])) and np.isnan(metrics.top_k_accuracy(SCORES[:0], LABELS[:0]))
    assert np.isnan(metrics.accuracy(SCORES, LABELS, weight=np.zeros(50)))


@pytest.mark.wide
def test_perplexity_is_of_the_mean_log_loss():
    probabilities = np.asarray(nn.softmax(SCORES.astype(np.float64)))
    expected = np.exp(sklearn.log_loss(LABELS, probabilities, labels=range(7)))
    np.testing.assert_allclose(metrics.perplexity(SCORES, LABELS), expected, rtol=1e-5)
    padded = np.where(np.arange(50) < 20, LABELS, -100)
    np.testing.assert_allclose(metrics.perplexity(SCORES, padded), metrics.perplexity(SCORES[:20], LABELS[:20]), rtol=1e-6)


def test_vmap():
    batches, labels = SCORES.reshape(5, 10, 7), LABELS.reshape(5, 10)
    for metric in (metrics.accuracy, lambda x, y: metrics.top_k_accuracy(x, y, 3), metrics.perplexity):
        each = [metric(x, y) for x, y in zip(batches, labels, strict=True)]
        np.testing.assert_allclose(vf.vmap(metric)(batches, labels), each, rtol=1e-6)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: metrics.accuracy(SCORES, LABELS[:3]), ShapeError, r"labels of shape \(50,\)"),
        (lambda: metrics.accuracy(LABELS[:3], LABELS), ShapeError, "same shape"),
        (lambda: metrics.accuracy(SCORES[:, 0], LABELS), DTypeError, "one axis more"),
        (lambda: metrics.accuracy(SCORES, WEIGHT), DTypeError, "integers"),
        (lambda: metrics.accuracy(SCORES, LABELS, weight=WEIGHT[:3]), ShapeError, "weight"),
        (lambda: metrics.top_k_accuracy(SCORES, LABELS, 0), ArgumentError, "from 1 to 7"),
        (lambda: metrics.top_k_accuracy(SCORES, LABELS, 8), ArgumentError, "from 1 to 7"),
    ],
)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("levels", [2, 5, 1000])
@pytest.mark.parametrize("size", [2, 17, 400])
def test_roc_auc_matches_scikit_learn_with_ties(size, levels):
    scores = (rng.integers(0, levels, size=size) / levels).astype(np.float32)
    labels = np.where(np.arange(size) < 2, [0, 1] * (size // 2) + [0] * (size % 2), rng.random(size) < scores).astype(np.int32)
    expected = sklearn.roc_auc_score(labels, scores)
    np.testing.assert_allclose(roc_auc(scores, labels), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(vf.jit(roc_auc)(scores.astype(FLOAT), labels == 1), expected, rtol=1e-6, atol=1e-7)


def test_roc_auc_is_exact_for_many_examples():
    scores = rng.random(100_000).astype(np.float32).round(4)
    labels = rng.random(100_000) < 0.02
    np.testing.assert_allclose(roc_auc(scores, labels), sklearn.roc_auc_score(labels, scores), rtol=1e-6)


@pytest.mark.wide
def test_roc_auc_of_infinite_scores():
    assert roc_auc(np.array([-np.inf, np.inf, 0.0]), np.array([0, 1, 0])) == 1


@pytest.mark.wide
def test_undefined_roc_auc_is_nan():
    assert np.isnan(roc_auc(np.array([0.1, 0.2]), np.array([1, 1]))) and np.isnan(roc_auc(np.array([0.1, 0.2]), np.array([0, 0])))
    assert np.isnan(roc_auc(np.array([0.1, np.nan]), np.array([1, 0]))) and np.isnan(roc_auc(np.zeros(0), np.zeros(0)))


@pytest.mark.wide
def test_roc_auc_under_vmap_is_a_loop():
    scores, labels = rng.random((3, 20)), rng.random((3, 20)) < 0.5
    each = [roc_auc(s, y) for s, y in zip(scores, labels, strict=True)]
    np.testing.assert_allclose(vf.vmap(roc_auc)(scores, labels), each, rtol=1e-6)


@pytest.mark.wide
def test_wrong_arguments_of_roc_auc_are_named():
    with pytest.raises(ShapeError, match=r"one shape \(N,\)"):
        roc_auc(np.zeros((2, 2)), np.zeros((2, 2)))
    with pytest.raises(ShapeError, match=r"one shape \(N,\)"):
        roc_auc(np.zeros(3), np.zeros(2))
    with pytest.raises(DTypeError, match="real numbers"):
        roc_auc(np.zeros(3, complex), np.zeros(3))

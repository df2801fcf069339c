"""The confusion matrix, precision, recall and F1 against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn import metrics

sklearn = pytest.importorskip("sklearn.metrics")
rng = np.random.default_rng(0)
TRUTH, GUESS = rng.integers(0, 4, size=(2, 60), dtype=np.int32)
YES, SAID = rng.integers(0, 2, size=(2, 60), dtype=np.int32)
WEIGHT = rng.uniform(size=60).astype(np.float32)


def test_the_matrix_matches_scikit_learn():
    matrix = metrics.confusion_matrix(GUESS, TRUTH, 5)
    assert matrix.dtype == np.int32
    np.testing.assert_array_equal(matrix, sklearn.confusion_matrix(TRUTH, GUESS, labels=range(5)))
    weighted = sklearn.confusion_matrix(TRUTH, GUESS, labels=range(5), sample_weight=WEIGHT)
    np.testing.assert_allclose(metrics.confusion_matrix(GUESS, TRUTH, 5, weight=WEIGHT), weighted, rtol=1e-6)
    np.testing.assert_array_equal(vf.jit(lambda g, t: metrics.confusion_matrix(g, t, 5))(GUESS, TRUTH), matrix)


def test_matrices_of_batches_add_up_and_the_greatest_score_is_the_prediction():
    matrices = vf.vmap(lambda g, t: metrics.confusion_matrix(g, t, 4))(
        np.eye(4, dtype=np.float32)[GUESS].reshape(6, 10, 4), TRUTH.reshape(6, 10)
    )
    np.testing.assert_array_equal(matrices.sum(0), metrics.confusion_matrix(GUESS, TRUTH, 4))


@pytest.mark.wide
def test_numbers_that_are_no_class_are_not_counted():
    matrix = metrics.confusion_matrix(np.array([0, 1, 2, -1, 1]), np.array([0, -100, 1, 1, 1]), 2)
    assert np.asarray(matrix).tolist() == [[1, 0], [0, 1]]
    spoilt = metrics.confusion_matrix(np.array([[np.nan, 1.0], [1.0, 0.0]]), np.array([1, 0]), 2)
    assert np.asarray(spoilt).tolist() == [[1, 0], [0, 0]]
    assert np.asarray(metrics.confusion_matrix(GUESS[:0], TRUTH[:0], 2)).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("average", ["micro", "macro", "weighted", None])
@pytest.mark.parametrize("zero_division", [0.0, 1.0])
def test_scores_match_scikit_learn(average, zero_division):
    options = {"average": average, "zero_division": zero_division}
    expected = sklearn.precision_recall_fscore_support(TRUTH, GUESS, labels=range(6), **options)
    got = metrics.classification_scores(metrics.confusion_matrix(GUESS, TRUTH, 6), **options)
    np.testing.assert_allclose(np.array(got[:3]), np.array(expected[:3]), rtol=1e-6)
    np.testing.assert_array_equal(got.support, [*np.bincount(TRUTH), 0, 0] if average is None else 60)
    for function, value in zip((metrics.precision, metrics.recall, metrics.f1_score), got, strict=False):
        np.testing.assert_array_equal(function(GUESS, TRUTH, 6, **options), value)


def test_two_classes_match_scikit_learn():
    for ours, theirs in ((metrics.precision, "precision"), (metrics.recall, "recall"), (metrics.f1_score, "f1")):
        np.testing.assert_allclose(ours(SAID, YES), getattr(sklearn, f"{theirs}_score")(YES, SAID), rtol=1e-6)
        assert ours(SAID == 1, YES == 1) == ours(SAID, YES)


@pytest.mark.wide
def test_zero_division_may_be_seen():
    nothing = np.zeros(3, int)
    assert metrics.precision(nothing, nothing) == 0
    assert np.isnan(metrics.f1_score(nothing, nothing, zero_division=np.nan))


@pytest.mark.wide
@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: metrics.confusion_matrix(GUESS, TRUTH, 0), ArgumentError, "positive integer"),
        (lambda: metrics.confusion_matrix(GUESS, TRUTH, 4, weight=WEIGHT[:3]), ShapeError, "weight"),
        (lambda: metrics.precision(GUESS, TRUTH, 4), ShapeError, "two classes, got 4"),
        (lambda: metrics.recall(GUESS, TRUTH, 4, "mean"), ArgumentError, "average is"),
        (lambda: metrics.classification_scores(np.ones((2, 3))), ShapeError, "square"),
    ],
)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()

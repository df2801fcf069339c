"""Metrics of scores, probabilities and agreement against their definitions in NumPy float64."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn import metrics

RNG = np.random.default_rng(1)
LABELS = RNG.integers(0, 2, 200)
#: Scores with many ties.
SCORES = np.round(RNG.normal(size=200) + LABELS, 1).astype("float32")
CLASSES = RNG.integers(0, 4, 300)
GUESSES = np.where(RNG.random(300) < 0.6, CLASSES, RNG.integers(0, 4, 300))


def points() -> list[tuple[float, int, int]]:
    """Return for each distinct score, from the highest: it, and the positive and negative examples that score no less."""
    return [
        (float(s), int(LABELS[s <= SCORES].sum()), int((1 - LABELS[s <= SCORES]).sum())) for s in sorted(set(SCORES.tolist()), reverse=True)
    ]


def test_average_precision_sums_the_steps_of_recall() -> None:
    total, area, before = LABELS.sum(), 0.0, 0
    for _, hits, misses in points():
        area += (hits - before) / total * hits / (hits + misses)
        before = hits
    np.testing.assert_allclose(metrics.average_precision(SCORES, LABELS), area, rtol=1e-6)
    np.testing.assert_allclose(vf.jit(metrics.average_precision)(SCORES, LABELS), area, rtol=1e-6)


def test_curves_have_the_points_of_each_threshold() -> None:
    total = LABELS.sum()
    roc, curve = metrics.roc_curve(SCORES, LABELS), metrics.precision_recall_curve(SCORES, LABELS)
    at = {float(s): i for i, s in enumerate(np.asarray(roc.thresholds))}
    for score, hits, misses in points():
        i = at[score]
        np.testing.assert_allclose(
            (roc.true_positive_rate[i], roc.false_positive_rate[i]), (hits / total, misses / (200 - total)), rtol=1e-6
        )
        np.testing.assert_allclose((curve.precision[i], curve.recall[i]), (hits / (hits + misses), hits / total), rtol=1e-6)
    assert (float(roc.false_positive_rate[0]), float(roc.true_positive_rate[0]), float(curve.precision[0]), float(curve.recall[0])) == (
        0.0,
        0.0,
        1.0,
        0.0,
    )
    np.testing.assert_allclose(np.trapezoid(roc.true_positive_rate, roc.false_positive_rate), metrics.roc_auc(SCORES, LABELS), rtol=1e-5)


def test_no_positive_examples_give_nan() -> None:
    assert np.isnan(float(metrics.average_precision(jnp.ones(3), jnp.zeros(3))))
    assert np.isnan(float(metrics.average_precision(jnp.array([jnp.nan, 1.0]), jnp.array([0, 1]))))


def test_log_loss_is_the_mean_surprise() -> None:
    p = RNG.dirichlet(np.ones(4), 300).astype("float32")
    expected = -np.log(p[np.arange(300), CLASSES].astype("float64"))
    np.testing.assert_allclose(metrics.log_loss(p, CLASSES), expected.mean(), rtol=1e-5)
    weight = RNG.random(300).astype("float32")
    np.testing.assert_allclose(metrics.log_loss(p, CLASSES, weight=weight), np.average(expected, weights=weight), rtol=1e-5)
    two = p[:, 0]
    expected = -np.log(np.where(CLASSES > 1, two, 1 - two))
    np.testing.assert_allclose(metrics.log_loss(two, CLASSES > 1), expected.mean(), rtol=1e-5)


def test_the_log_loss_of_a_certain_mistake_is_finite() -> None:
    assert float(metrics.log_loss(jnp.array([1.0]), jnp.array([0]))) == pytest.approx(-np.log(np.finfo("float32").eps))


def test_briers_score() -> None:
    p = RNG.random(200).astype("float32")
    np.testing.assert_allclose(metrics.brier_score(p, LABELS), ((p - LABELS) ** 2).mean(), rtol=1e-5)


def counts() -> np.ndarray:
    matrix = np.zeros((4, 4))
    np.add.at(matrix, (CLASSES, GUESSES), 1)
    return matrix


def test_balanced_accuracy_leaves_out_classes_without_examples() -> None:
    matrix = counts()
    expected = (np.diag(matrix) / matrix.sum(1)).mean()
    np.testing.assert_allclose(metrics.balanced_accuracy(GUESSES, CLASSES, 4), expected, rtol=1e-5)
    np.testing.assert_allclose(metrics.balanced_accuracy(GUESSES, CLASSES, 7), expected, rtol=1e-5)


def test_the_correlation_is_that_of_one_hot_vectors() -> None:
    x, y = np.eye(4)[GUESSES], np.eye(4)[CLASSES]
    covariance = [((a - a.mean(0)) * (b - b.mean(0))).sum() for a, b in ((x, y), (x, x), (y, y))]
    np.testing.assert_allclose(
        metrics.matthews_corrcoef(GUESSES, CLASSES, 4), covariance[0] / np.sqrt(covariance[1] * covariance[2]), rtol=1e-5
    )
    assert float(metrics.matthews_corrcoef(jnp.zeros(3, "int32"), jnp.array([0, 1, 1]))) == 0.0


def test_kappa_is_the_agreement_beyond_chance() -> None:
    shares = counts() / 300
    chance = (shares.sum(0) * shares.sum(1)).sum()
    np.testing.assert_allclose(metrics.cohen_kappa(GUESSES, CLASSES, 4), (np.trace(shares) - chance) / (1 - chance), rtol=1e-5)


@pytest.mark.parametrize("average", [None, "macro", "weighted", "micro"])
def test_jaccards_score_is_intersection_over_union(average: str | None) -> None:
    each = np.array([((c == GUESSES) & (c == CLASSES)).sum() / ((c == GUESSES) | (c == CLASSES)).sum() for c in range(4)])
    support = np.bincount(CLASSES)
    right = (GUESSES == CLASSES).sum()
    expected = {None: each, "macro": each.mean(), "weighted": np.average(each, weights=support), "micro": right / (600 - right)}[average]
    np.testing.assert_allclose(metrics.jaccard_score(GUESSES, CLASSES, 4, average), expected, rtol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, np.nan])
def test_jaccards_score_of_absent_classes(value: float) -> None:
    zeros = jnp.zeros(3, "int32")
    np.testing.assert_allclose(metrics.jaccard_score(zeros, zeros, 3, None, zero_division=value), [1, value, value])
    np.testing.assert_allclose(metrics.jaccard_score(zeros, zeros, 3, "macro", zero_division=value), (1 + 2 * value) / 3, rtol=1e-6)


def test_other_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="average is binary, micro"):
        metrics.jaccard_score(GUESSES, CLASSES, 4, "mean")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="one shape"):
        metrics.average_precision(jnp.ones((2, 2)), jnp.ones((2, 2)))
    with pytest.raises(DTypeError, match="integers"):
        metrics.log_loss(jnp.ones((2, 2)), jnp.ones(2))


def test_matthews_correlation_of_one_class_is_exactly_0():
    """The shares of one class add up to a number beside 1."""
    rng = np.random.default_rng(0)
    for count in range(2, 150):
        labels = jnp.asarray(rng.integers(0, 3, count), "int32")
        for pair in ((jnp.zeros_like(labels), labels), (labels, jnp.ones_like(labels))):
            assert float(metrics.matthews_corrcoef(*pair, 3)) == 0.0

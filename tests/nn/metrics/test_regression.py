"""Metrics of regression against their formulas in NumPy float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn import metrics

RNG = np.random.default_rng(0)
TARGETS = RNG.normal(size=(50, 3)) + np.array([0.0, 5.0, -2.0])
GUESSES = TARGETS + RNG.normal(scale=0.5, size=(50, 3))
WEIGHT = RNG.uniform(0, 2, size=50) * (np.arange(50) % 4 > 0)


def mean(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.average(x, axis=0, weights=w)


def r2(p: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    return 1 - mean((y - p) ** 2, w) / mean((y - mean(y, w)) ** 2, w)


EXPECTED: dict[str, Callable[..., np.ndarray]] = {
    "mean_squared_error": lambda p, y, w: mean((p - y) ** 2, w),
    "root_mean_squared_error": lambda p, y, w: np.sqrt(mean((p - y) ** 2, w)),
    "mean_absolute_error": lambda p, y, w: mean(abs(p - y), w),
    "mean_absolute_percentage_error": lambda p, y, w: mean(abs(p - y) / abs(y), w),
    "r2_score": r2,
    "explained_variance_score": lambda p, y, w: r2(p - mean(p - y, w), y, w),
}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_follow_their_formulas(name: str, weighted: bool) -> None:
    metric, options = getattr(metrics, name), {"weight": jnp.asarray(WEIGHT)} if weighted else {}
    expected = EXPECTED[name](GUESSES, TARGETS, WEIGHT if weighted else np.ones(50))
    p, y = jnp.asarray(GUESSES, "float32"), jnp.asarray(TARGETS, "float32")
    options = {k: v.astype("float32") for k, v in options.items()}
    np.testing.assert_allclose(metric(p, y, multioutput="raw_values", **options), expected, rtol=2e-5)
    np.testing.assert_allclose(metric(p, y, **options), expected.mean(), rtol=2e-5)
    np.testing.assert_allclose(vf.jit(metric)(p[:, 0], y[:, 0], **options), expected[0], rtol=2e-5)


def test_the_median_and_the_maximum() -> None:
    p, y = jnp.asarray(GUESSES, "float32"), jnp.asarray(TARGETS, "float32")
    np.testing.assert_allclose(
        metrics.median_absolute_error(p, y, multioutput="raw_values"), np.median(abs(GUESSES - TARGETS), 0), rtol=1e-5
    )
    np.testing.assert_allclose(metrics.max_error(p, y), abs(GUESSES - TARGETS).max(), rtol=1e-5)


@pytest.mark.parametrize(("p", "y", "expected"), [([1.0, 1.0], [1.0, 1.0], 1.0), ([1.0, 2.0], [1.0, 1.0], 0.0), ([1.0], [1.0], np.nan)])
def test_the_score_of_equal_targets_is_that_of_scikit_learn(p: list[float], y: list[float], expected: float) -> None:
    np.testing.assert_equal(float(metrics.r2_score(jnp.array(p), jnp.array(y))), expected)


def test_the_score_has_the_predictions_first() -> None:
    p, y = jnp.array([1.0, 2.0, 2.0]), jnp.array([1.0, 2.0, 3.0])
    assert float(metrics.r2_score(p, y)) == 0.5
    assert float(metrics.r2_score(y, p)) == pytest.approx(-0.5)


def test_half_precision_is_computed_in_float32() -> None:
    p = jnp.full(4096, 300.0, "float16")
    assert float(metrics.mean_squared_error(p, p * 0)) == 90000.0


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((jnp.ones((4, 1)), jnp.ones(4)), {}, ShapeError, "need the same shape"),
        ((jnp.array(1.0), jnp.array(1.0)), {}, ShapeError, "a scalar"),
        ((jnp.ones(4), jnp.ones(4)), {"weight": jnp.ones(3)}, ShapeError, r"weight of shape \(4,\)"),
        ((jnp.ones(4), jnp.ones(4)), {"multioutput": "sum"}, ArgumentError, "uniform_average"),
        ((jnp.ones(4) * 1j, jnp.ones(4)), {}, DTypeError, "real numbers"),
    ],
)
def test_other_arguments_are_refused(arguments: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        metrics.mean_squared_error(*arguments, **options)


def test_no_examples_give_nan() -> None:
    assert np.isnan(float(metrics.mean_squared_error(jnp.zeros(0), jnp.zeros(0))))

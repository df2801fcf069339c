"""The estimators follow scikit-learn's rules, by its own checks."""

from __future__ import annotations

import pickle
import warnings

import estimators
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

#: Checks that compare to 1e-7: the last digits of a row of a float32 product depend on the rows beside it.
ROUNDING = dict.fromkeys(["check_methods_sample_order_invariance", "check_methods_subset_invariance"], "computes in float32")


@pytest.mark.parametrize("kind", [estimators.VoltaClassifier, estimators.VoltaRegressor])
def test_scikit_learns_checks_pass(kind: type) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks provoke warnings of scikit-learn
        results = check_estimator(kind(epochs=40, learning_rate=0.01), expected_failed_checks=ROUNDING, on_fail=None, on_skip=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert failed == {}
    assert sum(result["status"] == "passed" for result in results) > 40


def test_targets_keep_their_shape_and_fits_repeat() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3))
    y = np.stack([x[:, 0] + x[:, 1], 100 * x[:, 2]], 1)
    regressor = estimators.VoltaRegressor(epochs=150, learning_rate=0.01, random_state=1).fit(x, y)
    assert regressor.predict(x).shape == (50, 2)
    assert regressor.score(x, y) > 0.9
    np.testing.assert_array_equal(clone(regressor).fit(x, y).predict(x), regressor.predict(x))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(regressor)).predict(x), regressor.predict(x))
    assert regressor.loss_curve_.shape == (150,) and regressor.loss_curve_[-1] < regressor.loss_curve_[0]


def test_the_program_runs(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    results = estimators.main(["--quick", "--out", str(tmp_path)])
    assert results["accuracy"] > 0.7 and results["r2"] > 0.3
    assert "three folds" in capsys.readouterr().out

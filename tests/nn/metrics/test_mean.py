"""Running means, merged and updated, under scan and jit."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.nn.metrics import Mean

rng = np.random.default_rng(0)
VALUES, WEIGHT = rng.normal(size=(6, 8)).astype(np.float32), rng.uniform(size=(6, 8)).astype(np.float32)


def test_means_of_batches_merge():
    mean = Mean.init()
    assert np.isnan(mean.value)
    for values, weight in zip(VALUES, WEIGHT, strict=True):
        mean = mean.update(values, weight)
    np.testing.assert_allclose(mean.value, np.average(VALUES, weights=WEIGHT), rtol=1e-5)
    merged = Mean.init().update(VALUES[:2]).merge(Mean.init().update(VALUES[2:]))
    np.testing.assert_allclose(merged.value, VALUES.mean(), rtol=1e-5)


def test_means_of_batches_count_by_their_sizes():
    mean = Mean.init().update(VALUES[:1].mean(), 8).update(VALUES[1:].mean(), 40)
    np.testing.assert_allclose(mean.value, VALUES.mean(), rtol=1e-5)


@pytest.mark.wide
def test_values_may_be_arrays():
    mean = Mean.init((8,), "float64").update(VALUES, np.arange(6)).update(VALUES[0])
    assert mean.value.dtype == np.float64
    np.testing.assert_allclose(mean.value, (np.arange(6) @ VALUES + VALUES[0]) / 16, rtol=1e-6)


def test_scan_carries_a_mean():
    final, _ = vf.lax.scan(lambda mean, values: (mean.update(values), None), Mean.init(), VALUES)
    np.testing.assert_allclose(final.value, VALUES.mean(), rtol=1e-5)
    assert vf.jit(Mean.update)(Mean.init(), VALUES).value.dtype == np.float32


@pytest.mark.wide
def test_values_of_weight_zero_are_left_out_and_other_nans_stay():
    values = np.array([1.0, np.nan, 3.0])
    assert Mean.init().update(values, values == values).value == 2
    assert np.isnan(Mean.init().update(values).value)


def test_half_precision_is_summed_in_float32():
    assert Mean.init(dtype="float32").update(np.full(5000, 100, np.float16)).value == 100


def test_wrong_arguments_are_named():
    with pytest.raises(ShapeError, match=r"values end in the shape \(8,\)"):
        Mean.init((8,)).update(VALUES[:, :3])
    with pytest.raises(ShapeError, match="need weights of shape"):
        Mean.init().update(VALUES, WEIGHT[0])
    with pytest.raises(DTypeError, match="real numbers"):
        Mean.init().update(VALUES.astype(np.complex64))

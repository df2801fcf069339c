"""NaN and empty batches in layers, optimizers and data; `tests/nn/test_every_layer.py` has the laws of all layers."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.test_every_layer import KEY, batch
from tests.optim.test_optimizers import OPTIMIZERS
from volta_fn import data, nn, optim, tree
from volta_fn.errors import DataError


def test_batch_norm_in_training_spreads_nan_over_its_channel_and_state() -> None:
    layer, state = nn.BatchNorm1d.init(2)
    x = batch((2,), 4)
    x[1, 0] = np.nan
    y, new = layer(x, state, training=True)
    assert np.isnan(y[:, 0]).all() and np.isfinite(y[:, 1]).all()
    assert np.isnan(new.mean).tolist() == [True, False]


PARAMS = {"matrix": np.full((2, 3), 2.0, np.float32), "deep": {"bias": np.ones(3, np.float32), "gap": None}}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nan_gradients_reach_the_parameters_or_are_left_out(name: str) -> None:
    """No optimizer makes a number of NaN: an update where the gradient is NaN is NaN, or nothing at all."""
    optimizer = OPTIMIZERS[name](optim)
    bad = tree.map(lambda p: p * 0 + np.float32(np.nan), PARAMS)
    updates, _ = optimizer.update(bad, optimizer.init(PARAMS), PARAMS)
    values = np.concatenate([np.ravel(u) for u in tree.leaves(updates)])
    assert np.all(np.isnan(values) | (values == 0))


def test_a_step_of_nan_can_be_left_out() -> None:
    optimizer = optim.apply_if_finite(optim.adam(0.1), max_consecutive_errors=2)
    state = optimizer.init(PARAMS)
    updates, after = optimizer.update(tree.map(lambda p: p * np.float32(np.nan), PARAMS), state, PARAMS)
    assert not any(np.any(u) for u in tree.leaves(updates))
    assert int(after.notfinite_count) == 1
    assert tree.all(tree.map(np.array_equal, after.inner_state, state.inner_state))


def test_a_mean_over_an_empty_batch_is_nan_and_its_gradient_too() -> None:
    """As in NumPy and PyTorch; a sum has a gradient of zero."""
    layer, x, labels = nn.Linear.init(KEY, 4, 3), batch((4,), 0), np.zeros(0, np.int32)
    value, gradient = vf.value_and_grad(lambda layer: nn.cross_entropy(layer(x), labels, reduction="sum"))(layer)
    assert value == 0 and not np.any(gradient.weight)
    assert np.isnan(nn.cross_entropy(layer(x), labels))


def test_loaders_have_no_empty_batches() -> None:
    with pytest.raises(DataError, match="0 examples"):
        data.DataLoader(data.ArrayDataset(np.zeros((0, 3))), 4)

"""Batches with NaN in them, and batches of nothing, through every layer and every optimizer: what comes out is what was documented.

A NaN in one example spoils that example's output, and no other's; only what mixes examples, batch norm in training, spreads it. An empty
batch gives an empty output and gradients of zero. The losses' part of this stands with the losses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.optim.test_optimizers import OPTIMIZERS
from volta_fn import data, nn, optim, random, tree
from volta_fn.errors import DataError

KEY = random.key(0)


def plain(layer: Any, x: Any) -> Any:
    return layer(x)


def stateful(made: tuple[Any, Any]) -> tuple[Any, Callable[..., Any]]:
    """A layer with state, and how to call it for its output alone."""
    layer, state = made
    return layer, lambda layer, x: layer(x, state)[0]


def transposed(layer: Any, x: Any) -> Any:
    """A layer over (time, batch, features) as one whose batch comes first."""
    return layer(x.swapaxes(0, 1))[0].swapaxes(0, 1)


def decoded(layer: Any, x: Any) -> Any:
    return layer(x, x)


#: (the shape of an example, a layer, how it is called)
LAYERS: dict[str, tuple[tuple[int, ...], Any, Callable[..., Any]]] = {
    "Linear": ((4,), nn.Linear.init(KEY, 4, 3), plain),
    "Bilinear": ((4,), nn.Bilinear.init(KEY, 4, 4, 3), decoded),
    "PReLU": ((4, 3), nn.PReLU.init(4), plain),
    "Flatten": ((2, 3), nn.Flatten(), plain),
    "Dropout": ((4,), nn.Dropout.init(0.5), plain),
    "Dropout2d": ((4, 2, 2), nn.Dropout2d.init(0.5), plain),
    "LayerNorm": ((4,), nn.LayerNorm.init(4), plain),
    "RMSNorm": ((4,), nn.RMSNorm.init(4), plain),
    "GroupNorm": ((4, 3), nn.GroupNorm.init(2, 4), plain),
    "MultiHeadAttention": ((5, 4), nn.MultiHeadAttention.init(KEY, 4, 2), plain),
    "FeedForward": ((5, 4), nn.FeedForward.init(KEY, 4, 8), plain),
    "TransformerEncoder": ((5, 4), nn.TransformerEncoder.init(KEY, 2, 4, 2, 8), plain),
    "TransformerDecoder": ((5, 4), nn.TransformerDecoder.init(KEY, 2, 4, 2, 8), decoded),
    "LearnedPositions": ((5, 4), nn.LearnedPositions.init(KEY, 5, 4), plain),
    "SinusoidalPositions": ((5, 4), nn.SinusoidalPositions(), plain),
    "PixelShuffle": ((4, 2, 2), nn.PixelShuffle.init(2), plain),
    "PixelUnshuffle": ((1, 4, 4), nn.PixelUnshuffle.init(2), plain),
    "Upsample": ((2, 4, 4), nn.Upsample.init(scale_factor=2, mode="bilinear"), plain),
    "GlobalAvgPool": ((2, 4, 4), nn.GlobalAvgPool(), plain),
    "GlobalMaxPool": ((2, 4, 4), nn.GlobalMaxPool(), plain),
    "WeightNorm": ((4,), nn.WeightNorm.init(nn.Linear.init(KEY, 4, 3)), plain),
    "SpectralNorm": ((4,), *stateful(nn.SpectralNorm.init(KEY, nn.Linear.init(KEY, 4, 3)))),
}
for rank, sizes in enumerate([(6,), (6, 5), (6, 5, 4)], 1):
    for pool in ("AvgPool", "MaxPool"):
        LAYERS[f"{pool}{rank}d"] = ((2, *sizes), getattr(nn, f"{pool}{rank}d").init(2), plain)
        LAYERS[f"Adaptive{pool}{rank}d"] = ((2, *sizes), getattr(nn, f"Adaptive{pool}{rank}d").init(2), plain)
    for conv in ("Conv", "ConvTranspose"):
        LAYERS[f"{conv}{rank}d"] = ((2, *sizes), getattr(nn, f"{conv}{rank}d").init(KEY, 2, 3, 3), plain)
    LAYERS[f"InstanceNorm{rank}d"] = ((2, *sizes), getattr(nn, f"InstanceNorm{rank}d").init(2), plain)
    LAYERS[f"BatchNorm{rank}d"] = ((2, *sizes), *stateful(getattr(nn, f"BatchNorm{rank}d").init(2)))
for name in ("RNN", "GRU", "LSTM"):
    LAYERS[name] = ((5, 4), getattr(nn, name).init(KEY, 4, 3), transposed)
    LAYERS[f"{name}Cell"] = ((4,), getattr(nn, f"{name}Cell").init(KEY, 4, 3), lambda layer, x: tree.leaves(layer(x))[0])


def test_every_layer_is_here() -> None:
    wrappers = {"Module", "Sequential", "Lambda", "Identity", "Summary", "Embedding", "Dropout1d", "Dropout3d"}
    wrappers |= {"TransformerEncoderLayer", "TransformerDecoderLayer"}  # the stacks hold them
    layers = {name for name, value in vars(nn).items() if isinstance(value, type) and issubclass(value, nn.Module)}
    assert layers - wrappers <= set(LAYERS)


def batch(shape: tuple[int, ...], count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, *shape)).astype(np.float32)


@pytest.mark.parametrize("name", LAYERS)
def test_nan_spoils_its_own_example_alone(name: str) -> None:
    shape, layer, call = LAYERS[name]
    x = batch(shape, 3)
    clean = np.asarray(call(layer, x))
    x[1].flat[0] = np.nan
    spoilt = np.asarray(call(layer, x))
    assert np.isnan(spoilt[1]).any()
    np.testing.assert_array_equal(spoilt[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("name", LAYERS)
def test_empty_batches_give_empty_outputs_and_no_gradient(name: str) -> None:
    shape, layer, call = LAYERS[name]
    wanted = call(layer, batch(shape, 2))
    out, pull_back = vf.vjp(call, layer, vf.numpy.asarray(batch(shape, 0)))
    assert (out.shape, out.dtype) == ((0, *wanted.shape[1:]), wanted.dtype)
    by_layer, by_x = pull_back(out)
    assert by_x.shape == (0, *shape)
    assert all(not np.any(leaf) for leaf in tree.leaves(by_layer))


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

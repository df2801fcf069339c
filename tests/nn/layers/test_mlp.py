"""MLP against the same layers in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn.errors import ArgumentError, ShapeError

KEY = vf.random.key(0)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_layers_and_activations_alternate(depth):
    mlp = nn.MLP.init(KEY, 3, 2, 5, depth, nn.tanh, nn.sigmoid, use_bias=False)
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    expected = x
    for i, layer in enumerate(mlp.layers):
        assert (layer.bias is None) == (i < depth)
        expected = expected @ np.asarray(layer.weight)
        expected = np.tanh(expected) if i < depth else 1 / (1 + np.exp(-expected - np.asarray(layer.bias)))
    assert len(mlp.layers) == depth + 1
    np.testing.assert_allclose(mlp(x), expected, rtol=1e-5)
    np.testing.assert_allclose(mlp(x[0]), expected[0], rtol=1e-5)


def test_scalars_have_no_axis():
    mlp = nn.MLP.init(KEY, "scalar", "scalar", 4, 1, dtype="float16")
    assert mlp(vf.numpy.ones((), "float16")).shape == () and mlp(vf.numpy.ones(7, "float16")).shape == (7,)
    assert mlp(vf.numpy.ones(7, "float16")).dtype == "float16"
    assert mlp(3.0).shape == vf.grad(mlp)(3.0).shape == ()


def test_bad_arguments_are_refused():
    for arguments in ((-1, 2, 3, 1), (1, 2, 3, 1.5), ("vector", 2, 3, 1)):
        with pytest.raises(ArgumentError):
            nn.MLP.init(KEY, *arguments)
    for x in (1.0, np.ones(4, "float32")):
        with pytest.raises(ShapeError):
            nn.MLP.init(KEY, 3, 2, 5, 1)(x)

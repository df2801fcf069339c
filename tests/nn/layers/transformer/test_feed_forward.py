"""FeedForward by its definition."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.layers.transformer.oracle import check_against_torch, filled, of_linear
from tests.nn.torch_oracle import DTYPES, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError

KEY = vf.random.key(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gated", [False, True])
def test_agrees_with_torch(dtype, gated):
    ours = nn.FeedForward.init(KEY, 6, 9, activation=nn.silu, gated=gated, dtype=dtype)
    modules = {name: torch.nn.Linear(9 if name == "linear2" else 6, 6 if name == "linear2" else 9) for name in ours.children()}
    modules = {name: module for name, module in modules.items() if getattr(ours, name) is not None and name != "dropout"}
    of_layer = lambda layer: {k: v for name in modules for k, v in of_linear(name, getattr(layer, name)).items()}
    theirs = filled(torch.nn.ModuleDict(modules), of_layer(ours))
    silu = torch.nn.functional.silu

    def run(x):
        up = modules["linear1"](x)
        return modules["linear2"](silu(modules["gate"](x)) * up if gated else silu(up))

    check_against_torch(lambda layer, x: layer(x), run, ours, [numbers((2, 5, 6), dtype)], of_layer, theirs)


def test_defaults_and_dropout():
    layer = nn.FeedForward.init(KEY, 6, dropout=0.5)
    assert layer.linear1.weight.shape == (6, 24) and layer.gate is None
    x = numbers((4, 6), "float32")
    hidden = np.maximum(layer.linear1(x), 0)
    np.testing.assert_allclose(layer(x), layer.linear2(hidden), rtol=1e-6)
    dropped = layer.dropout(hidden, key=KEY, training=True)
    np.testing.assert_array_equal(layer(x, key=KEY, training=True), layer.linear2(dropped))
    with pytest.raises(ArgumentTypeError, match="key"):
        layer(x, training=True)
    assert layer(x[:0]).shape == (0, 6)


def test_bad_arguments():
    with pytest.raises(ShapeError):
        nn.FeedForward.init(KEY, 6)(np.ones((2, 5), np.float32))
    with pytest.raises(ArgumentError):
        nn.FeedForward.init(KEY, -6)
    with pytest.raises(ArgumentError):
        nn.FeedForward.init(KEY, 6, dropout=3.0)

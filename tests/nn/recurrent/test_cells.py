"""Recurrent cells against PyTorch's: carries and gradients."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.recurrent.oracle import check_against_torch, of_cell, random_carry, torch_twin
from tests.nn.torch_oracle import DTYPES, numbers
from volta_fn import nn
from volta_fn.errors import ArgumentError, ShapeError

CELLS = [nn.RNNCell, nn.LSTMCell, nn.GRUCell]
cells = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.__name__)


@cells
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_agrees_with_torch(cell, dtype, bias):
    ours = cell.init(vf.random.key(0), 3, 4, bias=bias, dtype=dtype)
    theirs = torch_twin(ours)
    for carry in (None, random_carry(ours, (2, 4), dtype)):
        theirs.zero_grad()
        check_against_torch(ours, theirs, theirs, numbers((2, 3), dtype), carry, of_cell)


def test_relu():
    ours = nn.RNNCell.init(vf.random.key(0), 3, 4, nonlinearity="relu")
    theirs = torch_twin(ours)
    check_against_torch(ours, theirs, theirs, numbers((5, 3), "float32"), random_carry(ours, (5, 4), "float32"), of_cell)


@cells
def test_first_weights_are_small(cell):
    weights = np.concatenate([np.ravel(w) for w in vf.tree.leaves(cell.init(vf.random.key(0), 30, 25))])
    assert 0.19 < np.abs(weights).max() <= 0.2
    assert abs(weights.std() - 0.2 / 3**0.5) < 0.005


@cells
def test_any_leading_axes(cell):
    layer = cell.init(vf.random.key(0), 3, 4)
    x = numbers((2, 5, 3), "float32")
    for many, one in zip(vf.tree.leaves(layer(x)), vf.tree.leaves(layer(x[1, 2])), strict=True):
        assert many.shape == (2, 5, 4)
        np.testing.assert_allclose(many[1, 2], one, rtol=1e-6, atol=1e-7)
    assert vf.tree.leaves(layer(np.zeros((0, 3), np.float32)))[0].shape == (0, 4)


@cells
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(cell, dtype):
    exact = cell.init(vf.random.key(0), 3, 4)
    half = vf.tree.map(lambda w: w.astype(dtype), exact)
    x = numbers((2, 3), "float32")
    for mine, wanted in zip(vf.tree.leaves(half(vf.numpy.asarray(x, dtype))), vf.tree.leaves(exact(x)), strict=True):
        assert mine.dtype.name == dtype
        np.testing.assert_allclose(mine.astype("float32"), wanted, atol=2e-2)


@cells
def test_transforms(cell):
    layer = cell.init(vf.random.key(0), 3, 4)
    x, carry = numbers((5, 3), "float32"), random_carry(layer, (5, 4), "float32")
    wanted = layer(x, carry)
    for call in (vf.jit(lambda layer, *a: layer(*a)), vf.vmap(lambda layer, *a: layer(*a), (None, 0, 0))):
        for mine, plain in zip(vf.tree.leaves(call(layer, x, carry)), vf.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.wide
@cells
def test_wider_carries_make_wider_results(cell):
    layer = cell.init(vf.random.key(0), 3, 4)
    carry = random_carry(layer, (2, 4), "float64")
    assert {array.dtype.name for array in vf.tree.leaves(layer(numbers((2, 3), "float32"), carry))} == {"float64"}


def test_bad_arguments():
    lstm, gru = nn.LSTMCell.init(vf.random.key(0), 3, 4), nn.GRUCell.init(vf.random.key(0), 3, 4)
    x, h = np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)
    with pytest.raises(ShapeError, match="size 3 along axis -1"):
        lstm(h)
    for bad in (h, (h,), (h, h, h), (h, x)):
        with pytest.raises(ShapeError, match=r"LSTMCell: the carry needs shape \(\(2, 4\), \(2, 4\)\)"):
            lstm(x, bad)
    for bad in ((h, h), (h,), x):
        with pytest.raises(ShapeError, match=r"GRUCell: the carry needs shape \(2, 4\)"):
            gru(x, bad)
    with pytest.raises(ArgumentError, match="nonlinearity"):
        nn.RNNCell.init(vf.random.key(0), 3, 4, nonlinearity="sigmoid")
    with pytest.raises(ArgumentError, match="hidden_size"):
        nn.GRUCell.init(vf.random.key(0), 3, -4)

"""Dropout and its channel forms: what is kept is scaled, the rest zero, in the right proportion; nothing is drawn needlessly."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

KEY = vf.random.key(0)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_drops_the_right_share_and_scales_the_rest(p):
    x = np.random.default_rng(0).normal(size=(100, 200)).astype(np.float32)
    out = np.asarray(nn.Dropout.init(p)(x, key=KEY, training=True))
    retained = out != 0
    np.testing.assert_allclose(out[retained], x[retained] / (1 - p), rtol=1e-6)
    assert abs(retained.mean() - (1 - p)) < 4 * np.sqrt(p * (1 - p) / x.size)


@pytest.mark.parametrize("p", [0, 0.0, 0.3, 1.0, 1])
def test_gives_its_input_back_unless_training(p):
    x = np.arange(1.0, 7.0, dtype=np.float32)
    np.testing.assert_array_equal(nn.Dropout.init(p)(x), x)
    np.testing.assert_array_equal(nn.Dropout.init(p)(x, key=KEY), x)


def test_nothing_and_everything_need_no_key():
    x = np.array([1.0, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(nn.Dropout.init(0.0)(x, training=True), x)
    np.testing.assert_array_equal(nn.Dropout.init(1.0)(x, training=True), np.zeros(3))


@pytest.mark.parametrize(("layer", "rank"), [(nn.Dropout1d, 1), (nn.Dropout2d, 2), (nn.Dropout3d, 3)])
def test_channel_forms_drop_channels(layer, rank):
    x = np.ones((20, 50, *(2, 3, 4)[:rank]), np.float32)
    out = np.asarray(layer.init(0.4)(x, key=KEY, training=True)).reshape(20, 50, -1)
    assert (out == out[..., :1]).all()
    assert set(np.unique(out)) == {np.float32(0), np.float32(1 / np.float32(0.6))}
    assert abs((out[..., 0] == 0).mean() - 0.4) < 4 * np.sqrt(0.24 / 1000)
    assert layer.init(0.4)(x[:0], key=KEY, training=True).shape == (0, *x.shape[1:])


def test_same_key_same_mask_other_key_other_mask():
    drop, x = nn.Dropout.init(0.5), np.ones(100, np.float32)
    first, again = (drop(x, key=KEY, training=True) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(drop(x, key=vf.random.key(1), training=True)) != np.asarray(first)).any()
    jitted = vf.jit(lambda key, x: drop(x, key=key, training=True))(KEY, x)
    np.testing.assert_array_equal(jitted, first)


def test_gradient_is_the_mask():
    drop, x = nn.Dropout.init(0.5), np.full(50, 3.0, np.float32)
    gradient = vf.grad(lambda x: drop(x, key=KEY, training=True).sum())(x)
    np.testing.assert_array_equal(gradient, drop(np.ones(50, np.float32), key=KEY, training=True))


def test_vmap_over_keys_draws_anew():
    masks = np.asarray(vf.vmap(lambda key: nn.Dropout.init(0.5)(np.ones(64, np.float32), key=key, training=True))(vf.random.split(KEY, 3)))
    assert len({tuple(mask) for mask in masks}) == 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_keeps_the_dtype(dtype):
    x = vf.numpy.ones((4, 4), dtype)
    for p in (0.0, 0.5, 1.0):
        assert nn.Dropout.init(p)(x, key=KEY, training=True).dtype == dtype


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), "half", True, None])
def test_bad_probability(p):
    with pytest.raises(ArgumentError, match="p is a probability"):
        nn.Dropout.init(p)


def test_bad_calls():
    with pytest.raises(ArgumentTypeError, match="key=key"):
        nn.Dropout.init(0.5)(np.ones(3, np.float32), training=True)
    with pytest.raises(DTypeError, match="got i32"):
        nn.Dropout.init(0.5)(np.ones(3, np.int32))
    with pytest.raises(ShapeError, match=r"\(N, C, H, W\)"):
        nn.Dropout2d.init(0.5)(np.ones((3, 4, 5), np.float32))

"""The randomised leaky ReLU: PyTorch's outside of training, slopes between the bounds in training, errors."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError

X = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)


def test_the_slope_is_the_mean_outside_of_training():
    torch = pytest.importorskip("torch")
    theirs = torch.nn.RReLU(0.1, 0.4).eval()(torch.tensor(X))
    np.testing.assert_allclose(nn.RReLU.init(0.1, 0.4)(X), theirs.numpy(), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_slopes_are_uniform_between_the_bounds_in_training(dtype):
    layer, x = nn.RReLU.init(0.125, 0.5), vf.numpy.asarray(X, dtype)
    out = layer(x, key=vf.random.key(1), training=True)
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(out)[X >= 0], np.asarray(x)[X >= 0])
    below = X < -0.1  # float16 products of smaller numbers round by more
    slopes = np.asarray(out)[below].astype(float) / np.asarray(x)[below].astype(float)
    assert slopes.min() >= 0.1249 and slopes.max() <= 0.5003 and np.ptp(slopes) > 0.37
    assert abs(slopes.mean() - 0.3125) < 0.015  # five standard deviations
    assert not np.array_equal(out, layer(x, key=vf.random.key(2), training=True))


def test_wrong_calls_are_explained():
    with pytest.raises(ArgumentError, match="lower must be at most upper"):
        nn.RReLU.init(0.5, 0.1)
    with pytest.raises(ArgumentTypeError, match="key=key"):
        nn.RReLU.init()(X, training=True)
    with pytest.raises(DTypeError):
        nn.RReLU.init()(np.ones(3, np.int32))

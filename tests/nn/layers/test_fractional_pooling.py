"""Fractional max pooling against PyTorch's, with its random numbers."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

SIZES = (9, 8, 7)
CASES = [
    (2, 2, {"output_size": (5, 3)}),
    (2, (3, 1), {"output_ratio": (0.3, 0.7)}),
    (2, 4, {"output_size": 1}),
    (3, (2, 3, 2), {"output_size": (4, 5, 3)}),
    (3, 2, {"output_ratio": 0.5}),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rank", "kernel", "options"), CASES)
def test_agrees_with_torch(rank, kernel, options, dtype):
    x, name = numbers((2, 3, *SIZES[:rank]), dtype), f"FractionalMaxPool{rank}d"
    samples = np.random.default_rng(1).uniform(size=(2, 3, rank)).astype(dtype)
    layer = getattr(nn, name).init(kernel, return_indices=True, **options)
    oracle = getattr(torch.nn, name)(kernel, return_indices=True, _random_samples=torch.tensor(samples), **options)
    compare(nn.Lambda(lambda x: layer(x, random_samples=samples)[0]), lambda x: oracle(x)[0], x)
    np.testing.assert_array_equal(layer(x, random_samples=samples)[1], oracle(torch.tensor(x))[1])


def test_windows_are_drawn_by_the_key_for_each_channel():
    """Each row increases, so that its maxima are the ends of windows."""
    layer = nn.FractionalMaxPool2d.init(2, (1, 8))
    x = np.broadcast_to(np.arange(20, dtype=np.float32), (4, 5, 2, 20))
    ends = np.asarray(layer(x, key=vf.random.key(0)), int)[:, :, 0]
    assert len(np.unique(ends.reshape(20, 8), axis=0)) > 3
    np.testing.assert_array_equal(ends[..., [0, -1]], np.broadcast_to([1, 19], (4, 5, 2)))
    assert set(np.unique(np.diff(ends))) == {2, 3}  # 18 steps divided by 7 windows
    np.testing.assert_array_equal(vf.jit(layer)(x, key=vf.random.key(0))[:, :, 0], ends)
    assert (np.asarray(layer(x, key=vf.random.key(1)), int)[:, :, 0] != ends).any()
    assert layer(x.astype(vf.numpy.bfloat16), key=vf.random.key(0)).dtype == "bfloat16"


@pytest.mark.parametrize(
    "options", [{}, {"output_size": 2, "output_ratio": 0.5}, {"output_size": 0}, {"output_ratio": 1.0}, {"output_ratio": (0.5,)}]
)
def test_bad_arguments(options):
    with pytest.raises(ArgumentError, match="output_"):
        nn.FractionalMaxPool2d.init(2, **options)


def test_bad_inputs():
    layer, x = nn.FractionalMaxPool2d.init(2, 3), np.ones((1, 1, 4, 4), np.float32)
    with pytest.raises(ArgumentTypeError, match="key=key"):
        layer(x)
    with pytest.raises(ArgumentTypeError, match="key=key"):
        layer(x, key=vf.random.key(0), random_samples=np.zeros(2))
    with pytest.raises(DTypeError, match="floats"):
        layer(x, random_samples=np.zeros(2, int))
    with pytest.raises(DTypeError, match="got i32"):
        layer(x.astype(np.int32), key=vf.random.key(0))
    with pytest.raises(ShapeError, match="broadcast"):
        layer(x, random_samples=np.zeros((1, 1, 3), np.float32))
    with pytest.raises(ShapeError, match="hold no"):
        layer(x[:, :, :3], key=vf.random.key(0))
    for sample in (1.0, -0.1, np.nan):
        with pytest.raises(ArgumentError, match="less than 1"):
            layer(x, random_samples=np.full(2, sample, np.float32))

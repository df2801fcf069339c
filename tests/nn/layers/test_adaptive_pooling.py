"""Adaptive pooling against PyTorch's, and global pooling."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, assert_near, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

KINDS = ["Avg", "Max"]
CASES = [(1, 4), (2, 2), (2, (3, 5)), (2, (None, 3)), (2, 1), (2, (13, 3)), (3, (2, 3, 4))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rank", "size"), CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_torch(kind, rank, size, dtype):
    name = f"Adaptive{kind}Pool{rank}d"
    compare(getattr(nn, name).init(size), getattr(torch.nn, name)(size), numbers((2, 3, *(8, 7, 6)[:rank]), dtype))


@pytest.mark.wide
@pytest.mark.parametrize("kind", KINDS)
def test_all_small_sizes(kind):
    for length in range(1, 9):
        x = numbers((1, 2, length), "float64", length)
        for size in range(1, 11):
            expected = getattr(torch.nn, f"Adaptive{kind}Pool1d")(size)(torch.tensor(x))
            assert_near(getattr(nn, f"Adaptive{kind}Pool1d").init(size)(x), expected, "float64", f"{length} to {size}")


def test_max_gradient_goes_to_the_first_of_equals():
    x = np.random.default_rng(0).integers(0, 2, size=(4, 3, 7, 5)).astype(np.float64)
    compare(nn.AdaptiveMaxPool2d.init((3, 2)), torch.nn.AdaptiveMaxPool2d((3, 2)), x)


def test_infinities_stay_in_their_windows():
    x = np.array([[[np.inf, 1.0, 1.0, 1.0, np.nan]]], np.float32)
    np.testing.assert_array_equal(nn.AdaptiveAvgPool1d.init(3)(x), [[[np.inf, 1.0, np.nan]]])
    np.testing.assert_array_equal(nn.AdaptiveMaxPool1d.init(3)(x), [[[np.inf, 1.0, np.nan]]])


@pytest.mark.parametrize("keepdims", [False, True])
def test_global_pools(keepdims):
    x = numbers((2, 3, 4, 5), "float64")
    compare(nn.GlobalAvgPool.init(keepdims=keepdims), lambda x: x.mean((2, 3), keepdim=keepdims), x)
    compare(nn.GlobalMaxPool.init(keepdims=keepdims), lambda x: x.amax((2, 3), keepdim=keepdims), x)


@pytest.mark.wide
@pytest.mark.parametrize("layer", [nn.GlobalMaxPool.init(), nn.AdaptiveMaxPool1d.init(2)])
def test_max_of_integers_and_truth_values(layer):
    for dtype in (np.int8, np.uint8, np.int64, np.bool_):
        out = layer(np.array([[[0, 1, 1]]]).astype(dtype))
        assert out.dtype == dtype
        assert bool((out == np.ones(1, dtype)).all())


@pytest.mark.parametrize("layer", [nn.GlobalAvgPool.init(), nn.AdaptiveAvgPool2d.init((2, 3))])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_means_in_half_precision_sum_in_float32(layer, dtype):
    out = layer(vf.numpy.full((1, 1, 64, 64), 100.0, dtype))
    assert out.dtype == dtype
    assert bool((out == 100).all())


@pytest.mark.parametrize(
    "layer", [nn.AdaptiveAvgPool2d.init((3, 2)), nn.AdaptiveMaxPool2d.init((3, 2)), nn.GlobalAvgPool.init(), nn.GlobalMaxPool.init()]
)
def test_under_transforms_and_empty(layer):
    x = numbers((3, 2, 4, 4), "float32")
    assert_near(vf.jit(lambda layer, x: layer(x))(layer, x), layer(x), "float32")
    assert_near(vf.vmap(lambda one: layer(one[None])[0])(x), layer(x), "float32")
    assert layer(x[:0]).shape == (0, *layer(x).shape[1:])
    assert layer(x[:, :0]).shape == (3, 0, *layer(x).shape[2:])


@pytest.mark.parametrize("size", [0, -1, (2, 3, 4), "2", 1.5])
def test_bad_arguments(size):
    with pytest.raises(ArgumentError, match="output_size"):
        nn.AdaptiveAvgPool2d.init(size)


def test_bad_inputs():
    with pytest.raises(ShapeError, match="batch axis"):
        nn.AdaptiveAvgPool2d.init(1)(np.ones((3, 4, 4), np.float32))
    with pytest.raises(ShapeError, match=r"\(N, C, \*spatial\)"):
        nn.GlobalAvgPool.init()(np.ones((3, 4), np.float32))
    for layer in (nn.AdaptiveAvgPool1d.init(1), nn.GlobalMaxPool.init()):
        with pytest.raises(ShapeError, match="nothing to pool"):
            layer(np.ones((3, 4, 0), np.float32))
    with pytest.raises(DTypeError, match="got i32"):
        nn.GlobalAvgPool.init()(np.ones((1, 1, 2), np.int32))
    with pytest.raises(DTypeError, match="got c64"):
        nn.AdaptiveMaxPool1d.init(1)(np.ones((1, 1, 2), np.complex64))

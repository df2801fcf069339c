"""Unpooling against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import DTypeError, OutOfBoundsError, ShapeError

SIZES = (9, 8, 7)
CASES = [(1, 3, None, 0), (2, (3, 2), (3, 3), (0, 1)), (2, 4, 4, 2), (3, 2, None, 0)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_output_size", [False, True])
@pytest.mark.parametrize(("rank", "kernel", "stride", "padding"), CASES)
def test_agrees_with_torch(rank, kernel, stride, padding, with_output_size, dtype):
    """By the default size, in which PyTorch's indices may lie elsewhere, and by that of the pooling's input."""
    x = numbers((2, 3, *SIZES[:rank]), dtype)
    pool = getattr(torch.nn, f"MaxPool{rank}d")(kernel, stride, padding, return_indices=True)
    maxima, indices = pool(torch.tensor(x))
    layer, oracle = (getattr(library, f"MaxUnpool{rank}d") for library in (nn, torch.nn))
    size = x.shape if with_output_size else None
    if not with_output_size:  # random indices without repetitions
        total = np.prod(oracle(kernel, stride, padding)(maxima, torch.zeros_like(indices)).shape[2:])
        drawn = np.random.default_rng(0).permuted(np.tile(np.arange(total), (2, 3, 1)), axis=2)[..., : np.prod(indices.shape[2:])]
        indices = torch.tensor(drawn.reshape(indices.shape))
    ours = layer.init(kernel, stride, padding)
    theirs = oracle(kernel, stride, padding)
    compare(nn.Lambda(lambda x: ours(x, indices.numpy(), size)), lambda x: theirs(x, indices, size), maxima.numpy())


def test_output_size_may_have_all_axes_or_the_spatial_ones():
    x = numbers((1, 1, 5), "float32")
    maxima, indices = nn.MaxPool1d.init(2, return_indices=True)(x)
    unpool = nn.MaxUnpool1d.init(2)
    np.testing.assert_array_equal(unpool(maxima, indices, (5,)), unpool(maxima, indices, x.shape))
    jitted = vf.jit(unpool, static_argnums=2)(maxima, indices, (5,))
    np.testing.assert_array_equal(jitted, unpool(maxima, indices, (5,)))


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "complex64"])
def test_other_dtypes(dtype):
    out = nn.MaxUnpool1d.init(2)(vf.numpy.ones((1, 1, 2), dtype), np.array([[[1, 2]]], np.uint8))
    assert out.dtype == dtype
    assert out.astype("float32").tolist() == [[[0, 1, 1, 0]]]


def test_bad_inputs():
    unpool, ones = nn.MaxUnpool1d.init(2), np.ones((1, 1, 2), np.float32)
    with pytest.raises(DTypeError, match="integers"):
        unpool(ones, ones)
    with pytest.raises(ShapeError, match="each element needs an index"):
        unpool(ones, np.zeros((1, 1, 3), int))
    for size in ((6,), (2,), (4, 4), (4.0,)):
        with pytest.raises(ShapeError, match="output_size"):
            unpool(ones, np.zeros((1, 1, 2), int), size)
    for index in (4, -1):
        with pytest.raises(OutOfBoundsError, match=f"index {index} lies outside"):
            unpool(ones, np.full((1, 1, 2), index))

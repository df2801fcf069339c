"""Positions of maxima against PyTorch's, of every max pooling."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, assert_near, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ShapeError

SIZES = (9, 8, 7)
CASES = {
    "plain": ("MaxPool1d", 3, {}),
    "padded": ("MaxPool2d", 3, {"stride": 2, "padding": 1}),
    "rectangular": ("MaxPool2d", (3, 2), {"stride": (1, 3), "padding": (1, 0)}),
    "dilated": ("MaxPool2d", (2, 3), {"dilation": (3, 2), "padding": (0, 1), "stride": 1}),
    "ceil": ("MaxPool3d", 2, {"ceil_mode": True}),
    "ceil, last window in the padding": ("MaxPool1d", 2, {"stride": 3, "padding": 1, "ceil_mode": True}),
    "adaptive": ("AdaptiveMaxPool1d", 4, {}),
    "adaptive, an axis as it is": ("AdaptiveMaxPool2d", (None, 3), {}),
    "adaptive volume": ("AdaptiveMaxPool3d", (2, 3, 7), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_agree_with_torch(case):
    """Equal elements are frequent, and the first counts."""
    name, argument, options = CASES[case]
    x = np.random.default_rng(0).integers(0, 4, (2, 3, *SIZES[: int(name[-2])])).astype("float32")
    maxima, positions = getattr(nn, name).init(argument, return_indices=True, **options)(x)
    expected, indices = getattr(torch.nn, name)(argument, return_indices=True, **options)(torch.tensor(x))
    assert_near(maxima, expected, "float32")
    assert positions.dtype in ("int32", "int64")
    np.testing.assert_array_equal(positions, indices)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["padded", "adaptive volume"])
def test_gradients_of_the_maxima_are_those_without_positions(case, dtype):
    name, argument, options = CASES[case]
    pool = getattr(nn, name).init(argument, return_indices=True, **options)
    x = numbers((2, 3, *SIZES[: int(name[-2])]), dtype)
    compare(nn.Lambda(lambda x: pool(x)[0]), getattr(torch.nn, name)(argument, **options), x)


def test_first_of_infinities_and_nan():
    x = np.array([[[-np.inf, -np.inf, 1.0, np.nan, np.inf, np.inf]]], np.float32)
    assert nn.MaxPool1d.init(2, return_indices=True)(x)[1].tolist() == [[[0, 3, 4]]]


def test_under_transforms_integers_and_empty():
    pool, x = nn.MaxPool2d.init(2, padding=1, return_indices=True), numbers((3, 2, 4, 4), "float32")
    positions = pool(x)[1]
    np.testing.assert_array_equal(vf.jit(lambda x: pool(x)[1])(x), positions)
    np.testing.assert_array_equal(vf.vmap(lambda one: pool(one[None])[1][0])(x), positions)
    assert pool(x[:0])[1].shape == (0, 2, 3, 3)
    assert nn.AdaptiveMaxPool1d.init(1, return_indices=True)(np.array([[[1, 5, 5]]], np.uint8))[1].tolist() == [[[1]]]


def test_windows_without_elements_have_no_positions():
    with pytest.raises(ShapeError, match="no element"):
        nn.MaxPool1d.init(2, dilation=5, padding=3, return_indices=True)(np.ones((1, 1, 2), np.float32))

"""Fold and Unfold against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, ShapeError

CASES = [
    ((5, 6), {"kernel_size": 2}),
    ((5, 6), {"kernel_size": (3, 2), "padding": (1, 0), "stride": (2, 1)}),
    ((7, 6), {"kernel_size": 2, "dilation": (3, 2), "padding": 2, "stride": 2}),
    ((4, 4), {"kernel_size": 1, "stride": 3}),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "options"), CASES)
def test_agrees_with_torch(size, options, dtype):
    x = numbers((2, 3, *size), dtype)
    unfold = nn.Unfold.init(**options)
    compare(unfold, torch.nn.Unfold(**options), x)
    columns = np.asarray(unfold(x))
    compare(nn.Fold.init(size, **options), torch.nn.Fold(size, **options), columns)


def test_infinities_stay_in_their_windows():
    x = np.zeros((1, 1, 3, 3), "float32")
    x[0, 0, 0, 0] = np.inf
    columns = nn.Unfold.init(2)(x)
    assert np.isfinite(columns[0, :, 1:]).all() and np.isinf(columns[0, 0, 0])
    assert nn.Unfold.init(2)(vf.numpy.ones((1, 1, 3, 3), "int32")).dtype == "int32"


def test_bad_arguments_are_refused():
    with pytest.raises(ArgumentError):
        nn.Unfold.init((1, 2, 3))
    for call in (
        lambda: nn.Unfold.init(4)(np.ones((1, 1, 3, 3), "float32")),
        lambda: nn.Fold.init(4, 2)(np.ones((1, 4, 8), "float32")),
        lambda: nn.Fold.init(4, 2)(np.ones((1, 3, 9), "float32")),
        lambda: nn.Fold.init(2, 4)(np.ones((1, 16, 1), "float32")),
    ):
        with pytest.raises(ShapeError):
            call()

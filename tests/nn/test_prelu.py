"""PReLU against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, ShapeError


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "count"), [((4,), 1), ((), 1), ((5, 3), 1), ((5, 3), 3), ((2, 3, 4), 3), ((2, 3, 4, 2), 3), ((0, 3, 4), 3)]
)
def test_agrees_with_torch(shape, count, dtype):
    layer = nn.PReLU(vf.numpy.asarray(numbers((count,), dtype, seed=2)))
    x = np.asarray(numbers(shape, dtype))
    x[x > 1] = 0  # where the slope is the negative side's
    compare(layer, lambda x, weight: torch.nn.functional.prelu(x, weight), x)


def test_infinities_and_nan():
    x = vf.numpy.array([np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(nn.PReLU.init()(x), [np.inf, -np.inf, np.nan])
    gradient = vf.grad(lambda layer: layer(vf.numpy.array([np.inf, -2.0])).sum())(nn.PReLU.init())
    np.testing.assert_array_equal(gradient.weight, [-2.0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype):
    out = nn.PReLU.init(2, 0.5, dtype=dtype)(vf.numpy.array([[-3.0, 2.0]], dtype))
    assert out.dtype == dtype
    assert out.tolist() == [[-1.5, 2.0]]


def test_under_transforms():
    layer, x = nn.PReLU.init(3), numbers((3, 3, 3), "float32")
    expected = np.where(x > 0, x, x / 4)
    np.testing.assert_array_equal(vf.jit(lambda layer, x: layer(x))(layer, x), expected)
    np.testing.assert_array_equal(vf.vmap(layer)(x), expected)
    assert nn.summary(nn.Sequential(layer), x[0]).parameters == 3


@pytest.mark.parametrize("count", [0, -1, True, 1.0])
def test_bad_counts(count):
    with pytest.raises(ArgumentError, match="num_parameters is a whole number, 1 or more"):
        nn.PReLU.init(count)


def test_bad_inputs():
    with pytest.raises(ShapeError, match=r"3 slopes need size 3 along axis 1, got shape \(3,\)"):
        nn.PReLU.init(3)(vf.numpy.ones(3))
    with pytest.raises(DTypeError, match="PReLU"):
        nn.PReLU.init()(vf.numpy.arange(3))

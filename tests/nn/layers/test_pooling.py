"""Max and average pooling of one, two and three axes against PyTorch's."""

from __future__ import annotations

import math

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, assert_near, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

SIZES = (9, 8, 7)
MAX_CASES = {
    "plain": (1, 3, {}),
    "padded": (2, 3, {"stride": 2, "padding": 1}),
    "rectangular": (2, (3, 2), {"stride": (1, 3), "padding": (1, 0)}),
    "dilated": (2, (2, 3), {"dilation": (3, 2), "padding": (0, 1), "stride": 1}),
    "ceil": (2, 2, {"ceil_mode": True}),
    "ceil, last window in the padding": (1, 2, {"stride": 3, "padding": 1, "ceil_mode": True}),
    "volume": (3, (2, 3, 2), {"stride": 2, "padding": 1, "ceil_mode": True}),
}
AVG_CASES = {
    "plain": (1, 3, {}),
    "padded": (2, 3, {"stride": 2, "padding": 1}),
    "padding not counted": (2, 3, {"stride": 2, "padding": 1, "count_include_pad": False}),
    "rectangular": (2, (3, 2), {"stride": (1, 3), "padding": (1, 0)}),
    "ceil": (2, (4, 3), {"stride": 3, "padding": (2, 1), "ceil_mode": True}),
    "ceil, padding not counted": (2, (4, 3), {"stride": 3, "padding": (2, 1), "ceil_mode": True, "count_include_pad": False}),
    "volume": (3, (2, 3, 2), {"stride": 2, "padding": 1, "ceil_mode": True}),
}
CASES = [("Max", case) for case in MAX_CASES] + [("Avg", case) for case in AVG_CASES]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "case"), CASES)
def test_agrees_with_torch(kind, case, dtype):
    rank, kernel, options = (MAX_CASES if kind == "Max" else AVG_CASES)[case]
    oracle = getattr(torch.nn, f"{kind}Pool{rank}d")(kernel, **options)
    compare(getattr(nn, f"{kind}Pool{rank}d").init(kernel, **options), oracle, numbers((2, 3, *SIZES[:rank]), dtype))


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["Max", "Avg"])
def test_all_small_geometries(kind):
    """Sizes of outputs, and which elements count, for every size, kernel, stride and padding up to 5."""
    for size in range(1, 6):
        x = numbers((1, 1, size), "float64", size)
        for kernel in range(1, 6):
            for stride in range(1, 5):
                for padding in range(kernel // 2 + 1):
                    if size + 2 * padding < kernel:
                        continue
                    for ceil in (False, True):
                        options = {"stride": stride, "padding": padding, "ceil_mode": ceil}
                        expected = getattr(torch.nn, f"{kind}Pool1d")(kernel, **options)(torch.tensor(x))
                        layer = getattr(nn, f"{kind}Pool1d").init(kernel, **options)
                        assert_near(layer(x), expected, "float64", f"{size} {kernel} {options}")


def test_max_gradient_goes_to_the_first_of_equals():
    gradient = vf.grad(lambda x: nn.MaxPool1d.init(2)(x).sum())(np.ones((1, 1, 4), np.float32))
    np.testing.assert_array_equal(gradient, [[[1, 0, 1, 0]]])
    compare(nn.MaxPool2d.init(3, stride=1), torch.nn.MaxPool2d(3, stride=1), np.zeros((1, 1, 4, 4)))


def test_max_of_negative_numbers_infinities_and_nan():
    """Padding is never a maximum, however small the elements; NaN is one."""
    x = np.array([[[-(2.0**100), -np.inf, -np.inf, -np.inf, np.nan, 1.0]]], np.float32)
    np.testing.assert_array_equal(nn.MaxPool1d.init(2, padding=1)(x), [[[-(2.0**100), -np.inf, np.nan, 1.0]]])


def test_max_of_integers_and_truth_values():
    x = np.array([[[-3, -2, 5, 1]]])
    for dtype in (np.int8, np.int32, np.uint8):
        out = nn.MaxPool1d.init(2)(x.astype(dtype))
        assert out.dtype == dtype
        np.testing.assert_array_equal(out, [[[x.astype(dtype)[0, 0, :2].max(), 5]]])
    np.testing.assert_array_equal(nn.MaxPool1d.init(2)(np.array([[[False, True, False, False]]])), [[[True, False]]])


@pytest.mark.parametrize("kind", ["Max", "Avg"])
@pytest.mark.parametrize("size", range(1, 8))
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_same_padding_divides_sizes_by_the_stride(kind, size, stride):
    layer = getattr(nn, f"{kind}Pool1d").init(3, stride=stride, padding="same")
    assert layer(np.ones((1, 1, size), np.float32)).shape == (1, 1, math.ceil(size / stride))


@pytest.mark.wide
def test_pairs_pad_the_ends_differently():
    x = numbers((1, 1, 5), "float64")
    padded = torch.nn.functional.pad(torch.tensor(x), (1, 0))
    assert_near(nn.AvgPool1d.init(2, padding=((1, 0),))(x), torch.nn.AvgPool1d(2)(padded), "float64")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_means_in_half_precision_sum_in_float32(dtype):
    x = vf.numpy.full((1, 1, 4096), 1.0, dtype)
    out = nn.AvgPool1d.init(4096)(x)
    assert (out.dtype, float(out[0, 0, 0])) == (dtype, 1.0)
    large = vf.numpy.full((1, 1, 4), 60000.0, "float16")
    assert float(nn.AvgPool1d.init(4)(large)[0, 0, 0]) == 60000 - 60000 % 32


@pytest.mark.parametrize("layer", [nn.MaxPool2d.init(2, padding=1), nn.AvgPool2d.init(2, padding=1)])
def test_under_transforms_and_empty(layer):
    x = numbers((3, 2, 4, 4), "float32")
    np.testing.assert_array_equal(vf.jit(lambda layer, x: layer(x))(layer, x), layer(x))
    np.testing.assert_array_equal(vf.vmap(lambda one: layer(one[None])[0])(x), layer(x))
    assert layer(x[:0]).shape == (0, 2, 3, 3)
    assert vf.grad(lambda x: layer(x).sum())(x[:0]).shape == (0, 2, 4, 4)


@pytest.mark.parametrize("pool", [nn.MaxPool2d, nn.AvgPool2d])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": 0}, "kernel_size"),
        ({"stride": 0}, "stride"),
        ({"padding": 2}, "more than half"),
        ({"padding": ((0, 2), (0, 0))}, "more than half"),
        ({"padding": -1}, "padding"),
        ({"kernel_size": (2, 2, 2)}, "2 such numbers"),
    ],
)
def test_bad_arguments(pool, options, message):
    with pytest.raises(ArgumentError, match=message):
        pool.init(**{"kernel_size": 3, **options})


def test_bad_inputs():
    with pytest.raises(ShapeError, match="batch axis"):
        nn.MaxPool2d.init(2)(np.ones((3, 4, 4), np.float32))
    with pytest.raises(ShapeError, match="windows reach over 3 elements of spatial axis 0"):
        nn.AvgPool1d.init(3)(np.ones((1, 1, 2), np.float32))
    with pytest.raises(DTypeError, match="got i32"):
        nn.AvgPool1d.init(2)(np.ones((1, 1, 2), np.int32))
    with pytest.raises(DTypeError, match="got c64"):
        nn.MaxPool1d.init(2)(np.ones((1, 1, 2), np.complex64))

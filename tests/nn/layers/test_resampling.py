"""PixelShuffle, PixelUnshuffle and Upsample against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, assert_near, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

SIZES = (5, 4, 3)
CASES = {
    "nearest": (2, {"scale_factor": 2}),
    "nearest, each axis": (2, {"scale_factor": (3, 2)}),
    "nearest, broken": (2, {"scale_factor": 1.7}),
    "nearest, size": (1, {"size": 12}),
    "nearest, smaller": (2, {"size": (2, 3)}),
    "nearest, 3d": (3, {"scale_factor": 2}),
    "linear": (1, {"scale_factor": 2, "mode": "linear"}),
    "bilinear": (2, {"scale_factor": 2, "mode": "bilinear"}),
    "bilinear, broken": (2, {"scale_factor": (1.5, 2.3), "mode": "bilinear"}),
    "bilinear, smaller": (2, {"scale_factor": 0.5, "mode": "bilinear"}),
    "bilinear, size": (2, {"size": (7, 3), "mode": "bilinear"}),
    "bilinear, corners": (2, {"size": (7, 3), "mode": "bilinear", "align_corners": True}),
    "bilinear, one element": (2, {"size": 1, "mode": "bilinear", "align_corners": True}),
    "trilinear": (3, {"scale_factor": 2, "mode": "trilinear", "align_corners": True}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_upsample_agrees_with_torch(case, dtype):
    rank, options = CASES[case]
    oracle = torch.nn.Upsample(**options)
    compare(nn.Upsample.init(**options), oracle, numbers((2, 3, *SIZES[:rank]), dtype))


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["nearest", "linear", "aligned"])
def test_all_small_sizes(mode):
    options = {"mode": "linear", "align_corners": mode == "aligned"} if mode != "nearest" else {}
    for size in range(1, 8):
        x = numbers((1, 1, size), "float64", size)
        for out in range(1, 16):
            expected = torch.nn.functional.interpolate(torch.tensor(x), out, **options)
            assert_near(nn.Upsample.init(out, **options)(x), expected, "float64", f"{size} to {out}")


@pytest.mark.wide
@pytest.mark.parametrize("factor", [1, 2, 4])
def test_pixel_shuffle_and_unshuffle_agree_with_torch(factor):
    x = numbers((2, 3 * factor**2, 2, 5), "float64")
    compare(nn.PixelShuffle.init(factor), torch.nn.PixelShuffle(factor), x)
    shuffled = nn.PixelShuffle.init(factor)(x)
    np.testing.assert_array_equal(nn.PixelUnshuffle.init(factor)(shuffled), x)
    compare(nn.PixelUnshuffle.init(factor), torch.nn.PixelUnshuffle(factor), np.asarray(shuffled))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "bool"])
def test_nearest_keeps_any_dtype(dtype):
    x = vf.numpy.asarray(numbers((1, 4, 2, 2), "float32") > 0).astype(dtype)
    for layer in (nn.Upsample.init(scale_factor=2), nn.Upsample.init(5), nn.PixelShuffle.init(2), nn.PixelUnshuffle.init(2)):
        assert layer(x).dtype == dtype
    np.testing.assert_array_equal(nn.Upsample.init(scale_factor=2)(x)[..., ::2, ::2], x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_float32_rounded(dtype):
    layer, x = nn.Upsample.init(scale_factor=2, mode="bilinear"), vf.numpy.asarray(numbers((1, 2, 3, 4), "float32")).astype(dtype)
    np.testing.assert_array_equal(layer(x), layer(x.astype("float32")).astype(dtype))
    assert layer(x).dtype == dtype


@pytest.mark.parametrize("options", [{"scale_factor": 2}, {"size": 3}, {"size": (5, 6), "mode": "bilinear"}])
def test_under_transforms_and_empty(options):
    layer, x = nn.Upsample.init(**options), numbers((3, 2, 4, 4), "float32")
    assert_near(vf.jit(lambda layer, x: layer(x))(layer, x), layer(x), "float32")
    assert_near(vf.vmap(lambda one: layer(one[None])[0])(x), layer(x), "float32")
    assert layer(x[:0]).shape == (0, *layer(x).shape[1:])
    assert nn.PixelShuffle.init(1)(x[:0]).shape == x[:0].shape
    assert nn.PixelUnshuffle.init(2)(x[:0]).shape == (0, 8, 2, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "size or scale_factor"),
        ({"size": 3, "scale_factor": 2}, "not both"),
        ({"size": 0}, "size"),
        ({"size": (2, 1.5)}, "size"),
        ({"scale_factor": -1.0}, "scale_factor"),
        ({"scale_factor": float("nan")}, "scale_factor"),
        ({"scale_factor": 2, "mode": "cubic"}, "mode must be 'nearest', 'nearest-exact'"),
        ({"scale_factor": 2, "align_corners": True}, "align_corners"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ArgumentError, match=message):
        nn.Upsample.init(**options)
    for layer in (nn.PixelShuffle, nn.PixelUnshuffle):
        with pytest.raises(ArgumentError, match="factor"):
            layer.init(0)


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (nn.PixelShuffle.init(2), (1, 6, 4, 4), "multiple of 2²"),
        (nn.PixelShuffle.init(2), (4, 4, 4), "batch axis"),
        (nn.PixelUnshuffle.init(3), (1, 1, 6, 4), "multiples of 3"),
        (nn.Upsample.init(scale_factor=2, mode="bilinear"), (1, 2, 3), r"\(N, C, H, W\)"),
        (nn.Upsample.init(scale_factor=(2, 3)), (1, 2, 3), "one number per axis"),
        (nn.Upsample.init(scale_factor=2), (1, 2, 0), "each needs elements"),
        (nn.Upsample.init(scale_factor=0.2), (1, 2, 4), "each needs elements"),
    ],
)
def test_bad_inputs(layer, shape, message):
    with pytest.raises(ShapeError, match=message):
        layer(np.ones(shape, np.float32))


def test_linear_modes_want_floats():
    with pytest.raises(DTypeError, match="got i32"):
        nn.Upsample.init(2, mode="linear")(np.ones((1, 1, 2), np.int32))

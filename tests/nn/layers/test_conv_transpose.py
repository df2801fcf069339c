"""ConvTranspose1d, ConvTranspose2d and ConvTranspose3d against PyTorch's."""

from __future__ import annotations

import math

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, assert_near, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, ShapeError

LAYERS = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
F = torch.nn.functional
FUNCTIONS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
SIZES = (5, 4, 3)
CASES = {
    "plain": (1, 3, {}),
    "strided": (2, (3, 2), {"stride": (2, 3), "padding": (1, 0)}),
    "with output padding": (2, 3, {"stride": 2, "padding": 1, "output_padding": 1}),
    "output padding by dilation": (1, 3, {"dilation": 3, "output_padding": 2}),
    "dilated": (2, 2, {"dilation": (2, 3), "padding": (1, 2)}),
    "grouped": (2, 3, {"groups": 2, "padding": 1, "stride": 2}),
    "depthwise": (1, 4, {"groups": 4, "stride": 2}),
    "cut beyond the kernel": (1, 1, {"stride": 3, "padding": 2}),
    "without bias": (2, 3, {"bias": False}),
    "volume": (3, (2, 3, 1), {"stride": (1, 2, 2), "padding": (1, 1, 0)}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_torch(case, dtype):
    rank, kernel, options = CASES[case]
    layer = LAYERS[rank].init(vf.random.key(0), 4, 8, kernel, **options, dtype=dtype)
    plain = {name: value for name, value in options.items() if name != "bias"}
    compare(layer, lambda x, weight, bias=None: FUNCTIONS[rank](x, weight, bias, **plain), numbers((2, 4, *SIZES[:rank]), dtype))


@pytest.mark.wide
def test_is_the_input_gradient_of_the_convolution():
    conv = nn.Conv2d.init(vf.random.key(0), 6, 4, 3, stride=2, padding=((1, 0), (0, 2)), groups=2, bias=False, dtype="float64")
    undo = nn.ConvTranspose2d(conv.weight, stride=2, padding=((1, 0), (0, 2)), groups=2)
    cotangent = numbers((2, 4, 5, 6), "float64")
    out = undo(cotangent)
    _, pull = vf.vjp(conv, np.zeros(out.shape))
    assert_near(out, pull(vf.numpy.asarray(cotangent))[0], "float64")


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_same_padding_multiplies_sizes_by_the_stride(kernel, stride, dilation):
    layer = nn.ConvTranspose1d.init(vf.random.key(0), 2, 3, kernel, stride=stride, dilation=dilation, padding="same", bias=False)
    x = numbers((1, 2, 4), "float32")
    jax = pytest.importorskip("jax")
    weight = np.asarray(layer.weight)[..., ::-1].transpose(2, 0, 1)
    expected = jax.lax.conv_transpose(x, weight, (stride,), "SAME", (dilation,), ("NCH", "HIO", "NCH"))
    assert layer(x).shape == (1, 3, 4 * stride)
    assert_near(layer(x), np.asarray(expected), "float32")


def test_initial_parameters_are_distributed_as_torchs():
    layer = nn.ConvTranspose2d.init(vf.random.key(0), 32, 64, 3, groups=2)
    oracle = torch.nn.ConvTranspose2d(32, 64, 3, groups=2)
    assert (layer.weight.shape, layer.bias.shape) == (tuple(oracle.weight.shape), tuple(oracle.bias.shape))
    bound = 1 / math.sqrt(32 * 9)
    for ours, theirs in ((layer.weight, oracle.weight), (layer.bias, oracle.bias)):
        assert 0.9 * bound < float(abs(ours).max()) <= bound
        assert 0.9 * bound < float(theirs.detach().abs().max()) <= bound


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_float32_rounded(dtype):
    layer = nn.ConvTranspose2d.init(vf.random.key(0), 3, 4, 3, stride=2, dtype=dtype)
    x = vf.numpy.asarray(numbers((2, 3, 5, 5), "float32")).astype(dtype)
    wide = vf.tree.map(lambda leaf: leaf.astype("float32"), layer)
    assert layer(x).dtype == dtype
    np.testing.assert_allclose(layer(x).astype("float32"), wide(x.astype("float32")), rtol=0.02, atol=0.02)


def test_under_transforms_and_empty():
    layer = nn.ConvTranspose2d.init(vf.random.key(0), 2, 4, 3, stride=2, groups=2)
    x = numbers((3, 2, 4, 4), "float32")
    assert_near(vf.jit(lambda layer, x: layer(x))(layer, x), layer(x), "float32")
    assert_near(vf.vmap(lambda one: layer(one[None])[0])(x), layer(x), "float32")
    assert layer(x[:0]).shape == (0, 4, 9, 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_padding": 1}, "less than stride"),
        ({"output_padding": -1}, "output_padding"),
        ({"padding": "same", "stride": 2, "output_padding": 1}, "without output_padding"),
        ({"padding": "full"}, "padding"),
        ({"groups": 3}, "multiples of groups"),
        ({"stride": (1, 2, 3)}, "stride"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ArgumentError, match=message):
        nn.ConvTranspose2d.init(vf.random.key(0), 4, 8, 3, **options)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((4, 8, 8), "a single example needs a batch axis"),
        ((1, 3, 8, 8), "needs 4 channels"),
        ((1, 4, 1, 8), "leaves no output of 1 elements along spatial axis 0"),
    ],
)
def test_bad_inputs(shape, message):
    with pytest.raises(ShapeError, match=message):
        nn.ConvTranspose2d.init(vf.random.key(0), 4, 8, 3, padding=2)(np.ones(shape, np.float32))

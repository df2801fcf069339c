"""Conv1d, Conv2d and Conv3d against PyTorch's."""

from __future__ import annotations

import math

import numpy as np
import pytest

import volta_fn as vf
from tests.narrow_devices import FLOAT
from tests.nn.torch_oracle import DTYPES, assert_near, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, ShapeError

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
FUNCTIONS = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
SIZES = (9, 8, 7)
CASES = {
    "plain": (1, 3, {}),
    "strided": (2, (3, 2), {"stride": (2, 1), "padding": (1, 2)}),
    "dilated": (2, 2, {"dilation": (2, 3), "padding": 3}),
    "grouped": (2, 3, {"groups": 2, "padding": 1, "stride": 2}),
    "depthwise": (1, 4, {"groups": 4, "dilation": 2}),
    "without bias": (2, 3, {"bias": False}),
    "same": (2, (3, 4), {"padding": "same", "dilation": (2, 1)}),
    "valid": (1, 3, {"padding": "valid", "stride": 2}),
    "volume": (3, (2, 3, 1), {"stride": (1, 2, 2), "padding": (1, 1, 0)}),
}


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")  # PyTorch's, of its own speed
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_torch(case, dtype):
    rank, kernel, options = CASES[case]
    conv = CONVS[rank].init(vf.random.key(0), 4, 8, kernel, **options, dtype=dtype)
    plain = {name: value for name, value in options.items() if name != "bias"}
    compare(conv, lambda x, weight, bias=None: FUNCTIONS[rank](x, weight, bias, **plain), numbers((2, 4, *SIZES[:rank]), dtype))


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize(("rank", "padding"), [(1, 2), (2, (2, 1)), (2, "same")])
def test_padding_modes(mode, rank, padding):
    conv = CONVS[rank].init(vf.random.key(1), 2, 3, 4, padding=padding, padding_mode=mode, dtype=FLOAT)
    oracle = getattr(torch.nn, f"Conv{rank}d")(2, 3, 4, padding=padding, padding_mode=mode, dtype=getattr(torch, FLOAT))
    compare(conv, lambda x, **parameters: torch.func.functional_call(oracle, parameters, (x,)), numbers((2, 2, *SIZES[:rank]), FLOAT))


def test_pairs_pad_the_ends_differently():
    conv = nn.Conv2d.init(vf.random.key(0), 2, 3, 2, padding=((1, 0), (0, 2)), dtype=FLOAT)
    x = numbers((1, 2, 4, 4), FLOAT)
    compare(conv, lambda x, weight, bias: FUNCTIONS[2](torch.nn.functional.pad(x, (0, 2, 1, 0)), weight, bias), x)


@pytest.mark.parametrize("size", range(1, 8))
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_same_padding_divides_sizes_by_the_stride(size, stride):
    conv = nn.Conv1d.init(vf.random.key(0), 1, 1, 3, stride=stride, padding="same")
    assert conv(np.ones((1, 1, size), np.float32)).shape == (1, 1, math.ceil(size / stride))


def test_kernel_larger_than_the_unpadded_input():
    conv = nn.Conv2d.init(vf.random.key(0), 1, 1, 5, padding=2, dtype=FLOAT)
    compare(conv, lambda x, weight, bias: FUNCTIONS[2](x, weight, bias, padding=2), numbers((1, 1, 2, 3), FLOAT))


def test_initial_parameters_are_distributed_as_torchs():
    conv = nn.Conv2d.init(vf.random.key(0), 32, 64, 3, groups=2)
    assert (conv.weight.shape, conv.bias.shape) == ((64, 16, 3, 3), (64,))
    oracle = torch.nn.Conv2d(32, 64, 3, groups=2)
    bound = 1 / math.sqrt(16 * 9)
    for ours, theirs in ((conv.weight, oracle.weight), (conv.bias, oracle.bias)):
        assert float(abs(ours).max()) <= bound
        assert float(abs(ours).max()) > 0.95 * bound
        assert float(theirs.detach().abs().max()) <= bound
    assert float(conv.weight.std()) == pytest.approx(float(oracle.weight.detach().std()), rel=0.03)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_float32_rounded(dtype):
    conv = nn.Conv2d.init(vf.random.key(0), 3, 4, 3, padding=1, dtype=dtype)
    x = vf.numpy.asarray(numbers((2, 3, 5, 5), "float32")).astype(dtype)
    wide = vf.tree.map(lambda leaf: leaf.astype("float32"), conv)
    out = conv(x)
    assert out.dtype == dtype
    np.testing.assert_allclose(out.astype("float32"), wide(x.astype("float32")), rtol=0.02, atol=0.02)


def test_under_transforms():
    conv = nn.Conv2d.init(vf.random.key(0), 2, 4, 3, padding=1)
    x = numbers((5, 2, 6, 6), "float32")
    expected = conv(x)
    assert_near(vf.jit(lambda conv, x: conv(x))(conv, x), expected, "float32")
    assert_near(vf.vmap(lambda one: conv(one[None])[0])(x), expected, "float32")
    many = vf.vmap(lambda key: nn.Conv2d.init(key, 2, 4, 3, padding=1))(vf.random.split(vf.random.key(1), 3))
    out = vf.vmap(lambda conv: conv(x))(many)
    for i in range(3):
        assert_near(out[i], vf.tree.map(lambda leaf, i=i: leaf[i], many)(x), "float32")


def test_empty_batch():
    conv = nn.Conv2d.init(vf.random.key(0), 2, 4, 3)
    x = np.zeros((0, 2, 6, 6), np.float32)
    assert conv(x).shape == (0, 4, 4, 4)
    gradient = vf.grad(lambda conv: conv(x).sum())(conv)
    assert not gradient.weight.any()


def test_hyper_parameters_in_short_forms():
    conv = nn.Conv2d(vf.numpy.ones((1, 1, 3, 3)), stride=2, padding=[1, 2])
    assert (conv.stride, conv.padding, conv.dilation) == ((2, 2), ((1, 1), (2, 2)), (1, 1))
    assert conv.replace(dilation=3).dilation == (3, 3)
    assert (
        repr(conv)
        == "Conv2d(weight: f32[1,1,3,3], stride=(2, 2), padding=((1, 1), (2, 2)), dilation=(1, 1), groups=1, padding_mode='zeros')"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": 0}, "kernel_size is an integer of at least 1"),
        ({"kernel_size": (3, 3, 3)}, "2 such numbers"),
        ({"stride": 0}, "stride"),
        ({"stride": 1.5}, "stride"),
        ({"dilation": (1, 0)}, "dilation"),
        ({"padding": -1}, "padding"),
        ({"padding": "full"}, '"same" or "valid"'),
        ({"padding": ((1, 2, 3), (1, 2, 3))}, "pairs"),
        ({"groups": 3}, "multiples of groups=3"),
        ({"groups": 0}, "groups=0"),
        ({"in_channels": -4}, "in_channels"),
        ({"padding_mode": "mirror"}, "padding_mode"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ArgumentError, match=message):
        nn.Conv2d.init(vf.random.key(0), **{"in_channels": 4, "out_channels": 8, "kernel_size": 3, **options})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((4, 8, 8), r"axes \(N, C, H, W\), got shape \(4, 8, 8\); a single example needs a batch axis"),
        ((1, 3, 8, 8), "needs 4 channels along axis 1"),
        ((1, 4, 8, 2), "reaches over 3 elements of spatial axis 1, where the padded input has 0 \\+ 2 \\+ 0"),
        ((1, 4), "axes"),
    ],
)
def test_bad_inputs(shape, message):
    with pytest.raises(ShapeError, match=message):
        nn.Conv2d.init(vf.random.key(0), 4, 8, 3)(np.ones(shape, np.float32))


def test_weight_of_wrong_rank():
    with pytest.raises(ShapeError, match="weight has 4 axes"):
        nn.Conv2d(vf.numpy.ones((1, 1, 3)))

"""LocalResponseNorm, LPPool, ChannelShuffle and AlphaDropout against PyTorch's and by their means."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, compare, numbers, torch
from volta_fn import nn
from volta_fn.dtypes import as_dtype
from volta_fn.errors import ArgumentError, DTypeError, ShapeError


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_local_response_norm_agrees_with_torch(size, dtype):
    arguments = (size, 0.5, 0.6, 1.5)
    compare(nn.LocalResponseNorm.init(*arguments), torch.nn.LocalResponseNorm(*arguments), numbers((2, 4, 3, 2), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rank", "arguments"), [(1, (2.0, 2)), (1, (3.0, 3, 2)), (2, (2.0, (2, 3), 1)), (2, (1.0, 2, 2, True)), (3, (2.0, 2))]
)
def test_power_pooling_agrees_with_torch(rank, arguments, dtype):
    layer, oracle = (getattr(library, f"LPPool{rank}d") for library in (nn, torch.nn))
    compare(layer.init(*arguments), oracle(*arguments), np.abs(numbers((2, 3, *(5, 4, 3)[:rank]), dtype)) + 0.1)


def test_channel_shuffle_agrees_with_torch():
    x = numbers((2, 6, 3), "float32")
    for groups in (1, 2, 3, 6):
        expected = torch.nn.ChannelShuffle(groups)(torch.tensor(x)[..., None])[..., 0]
        np.testing.assert_array_equal(nn.ChannelShuffle.init(groups)(x), expected)


@pytest.mark.parametrize("kind", ["AlphaDropout", "FeatureAlphaDropout"])
def test_alpha_dropout_preserves_mean_and_variance(kind):
    x = nn.selu(vf.random.normal(vf.random.key(1), (300, 300)))
    out = np.asarray(getattr(nn, kind).init(0.3)(x, key=vf.random.key(0), training=True))
    assert abs(out.mean()) < 0.03 and abs(out.std() - 1) < 0.03  # selu's own are 0 and 1; six standard deviations of 90,000 draws
    wide = getattr(nn, kind).init(0.5)(vf.numpy.ones((2, 8, 4)), key=vf.random.key(0), training=True)
    per_channel = [len(np.unique(row)) for row in np.asarray(wide).reshape(16, 4)]
    assert (max(per_channel) == 1) == (kind == "FeatureAlphaDropout")
    np.testing.assert_array_equal(getattr(nn, kind).init(1.0)(x, training=True), 0)
    assert getattr(nn, kind).init(0.3)(x) is x


def test_bad_arguments_are_refused():
    for make in (lambda: nn.LocalResponseNorm.init(0), lambda: nn.LPPool1d.init(0.0, 2), lambda: nn.ChannelShuffle.init(0)):
        with pytest.raises(ArgumentError):
            make()
    for call in (
        lambda: nn.LocalResponseNorm.init(2)(np.ones((2, 3), "float32")),
        lambda: nn.ChannelShuffle.init(2)(np.ones((2, 3), "float32")),
        lambda: nn.LPPool2d.init(2, 2)(np.ones((2, 3, 4), "float32")),
    ):
        with pytest.raises(ShapeError):
            call()


@pytest.mark.parametrize(("dtype", "rtol"), [("float16", 1e-3), ("bfloat16", 8e-3)])
def test_norms_in_half_precision_have_powers_in_float32(dtype: str, rtol: float) -> None:
    x = np.array([[[300.0, 400.0, 1e-4, 2e-4]]]).astype(as_dtype(dtype))
    norms = nn.LPPool1d.init(2, 2)(x)
    assert norms.dtype == x.dtype
    exact = np.sqrt((x.astype(np.float64) ** 2).reshape(2, 2).sum(1))
    np.testing.assert_allclose(np.asarray(norms, np.float64).ravel(), exact, rtol=rtol)


def test_norms_of_integers_are_refused() -> None:
    with pytest.raises(DTypeError, match="LPPool1d"):
        nn.LPPool1d.init(2, 2)(np.ones((1, 1, 4), np.int32))

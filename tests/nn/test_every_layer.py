"""Every layer against laws that all layers obey: a row in `LAYERS` is all that a new layer needs.

A NaN in one example makes that example's output NaN, and no other's. An empty batch gives an empty output and zero gradients. A compiled
call and a call of one example at a time give the same output. Forward and reverse mode agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn, random, tree
from volta_fn.primitives.call import CAUSAL

KEY = random.key(0)


def plain(layer: Any, x: Any) -> Any:
    return layer(x)


def stateful(pair: tuple[Any, Any]) -> tuple[Any, Callable[..., Any]]:
    """Return a layer with state, and a function that calls it for its output alone."""
    layer, state = pair
    return layer, lambda layer, x: layer(x, state)[0]


def outputs(layer: Any, x: Any) -> Any:
    """Return a recurrent layer's outputs, without its carry."""
    return layer(x)[0]


def decoded(layer: Any, x: Any) -> Any:
    return layer(x, x)


def unpooled(layer: Any, x: Any) -> Any:
    """Pool and unpool, since a layer by itself needs positions."""
    pool = getattr(nn, type(layer).__name__.replace("Unpool", "Pool"))
    return layer(*pool.init(layer.kernel_size, return_indices=True)(x), x.shape)


#: Of language models' layers.
CONFIG = nn.CausalLMConfig(
    model_type="mixtral", vocab_size=8, hidden_size=4, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2, num_experts=3,
    num_experts_per_tok=2, norm_topk_prob=True, initializer_range=0.5,
)  # fmt: skip
SAMPLES = np.array([0.1, 0.7, 0.4], np.float32)
#: (the shape of an example, a layer, how it is called)
LAYERS: dict[str, tuple[tuple[int, ...], Any, Callable[..., Any]]] = {
    "Linear": ((4,), nn.Linear.init(KEY, 4, 3), plain),
    "MLP": ((4,), nn.MLP.init(KEY, 4, 3, 5, 2), plain),
    "Bilinear": ((4,), nn.Bilinear.init(KEY, 4, 4, 3), decoded),
    "PReLU": ((4, 3), nn.PReLU.init(4), plain),
    "RReLU": ((4, 3), nn.RReLU.init(), plain),
    "Flatten": ((2, 3), nn.Flatten(), plain),
    "Dropout": ((4,), nn.Dropout.init(0.5), plain),
    "Dropout2d": ((4, 2, 2), nn.Dropout2d.init(0.5), plain),
    "LayerNorm": ((4,), nn.LayerNorm.init(4), plain),
    "RMSNorm": ((4,), nn.RMSNorm.init(4), plain),
    "GroupNorm": ((4, 3), nn.GroupNorm.init(2, 4), plain),
    "MultiHeadAttention": ((5, 4), nn.MultiHeadAttention.init(KEY, 4, 2), plain),
    "FeedForward": ((5, 4), nn.FeedForward.init(KEY, 4, 8), plain),
    "TransformerEncoder": ((5, 4), nn.TransformerEncoder.init(KEY, 2, 4, 2, 8), plain),
    "TransformerDecoder": ((5, 4), nn.TransformerDecoder.init(KEY, 2, 4, 2, 8), decoded),
    "TransformerDecoder without memory": ((5, 4), nn.TransformerDecoder.init(KEY, 2, 4, 2, 8, cross_attention=False), plain),
    "Projection": ((4,), nn.Projection.init(KEY, 4, 3, bias=True), plain),
    "LoRA": ((4,), nn.LoRA.init(KEY, nn.Linear.init(KEY, 4, 3), 2).replace(lora_B=vf.numpy.ones((3, 2))), plain),
    "RMSNormPlusOne": ((4,), nn.RMSNormPlusOne(vf.numpy.zeros(4), (4,), 1e-6), plain),
    "DecoderMLP": ((5, 4), nn.DecoderMLP.init(KEY, CONFIG), plain),
    "DecoderAttention": ((5, 4), nn.DecoderAttention.init(KEY, CONFIG), lambda layer, x: layer(x, None, lambda slots: ([], CAUSAL))[0]),
    "SparseMLP": ((5, 4), nn.SparseMLP.init(KEY, CONFIG), lambda layer, x: layer(x)[0]),
    "LearnedPositions": ((5, 4), nn.LearnedPositions.init(KEY, 5, 4), plain),
    "SinusoidalPositions": ((5, 4), nn.SinusoidalPositions(), plain),
    "PixelShuffle": ((4, 2, 2), nn.PixelShuffle.init(2), plain),
    "PixelUnshuffle": ((1, 4, 4), nn.PixelUnshuffle.init(2), plain),
    "ChannelShuffle": ((4, 3), nn.ChannelShuffle.init(2), plain),
    "Unfold": ((2, 4, 5), nn.Unfold.init((2, 3), padding=1, stride=2), plain),
    "Fold": ((12, 4), nn.Fold.init((5, 5), (2, 3), stride=2), plain),
    "LocalResponseNorm": ((4, 3), nn.LocalResponseNorm.init(3), plain),
    "AlphaDropout": ((4,), nn.AlphaDropout.init(0.5), plain),
    "FeatureAlphaDropout": ((4, 2), nn.FeatureAlphaDropout.init(0.5), plain),
    "Upsample": ((2, 4, 4), nn.Upsample.init(scale_factor=2, mode="bilinear"), plain),
    "GlobalAvgPool": ((2, 4, 4), nn.GlobalAvgPool(), plain),
    "GlobalMaxPool": ((2, 4, 4), nn.GlobalMaxPool(), plain),
    "FractionalMaxPool2d": ((2, 6, 5), nn.FractionalMaxPool2d.init(2, 3), lambda layer, x: layer(x, random_samples=SAMPLES[:2])),
    "FractionalMaxPool3d": ((2, 6, 5, 4), nn.FractionalMaxPool3d.init(2, 2), lambda layer, x: layer(x, random_samples=SAMPLES)),
    "AdaptiveLogSoftmaxWithLoss": (
        (4,),
        nn.AdaptiveLogSoftmaxWithLoss.init(KEY, 4, 7, (2, 4), 2.0),
        lambda layer, x: layer.log_prob(x),
    ),
    "WeightNorm": ((4,), nn.WeightNorm.init(nn.Linear.init(KEY, 4, 3)), plain),
    "SpectralNorm": ((4,), *stateful(nn.SpectralNorm.init(KEY, nn.Linear.init(KEY, 4, 3)))),
}
for rank, sizes in enumerate([(6,), (6, 5), (6, 5, 4)], 1):
    for pool in ("AvgPool", "MaxPool"):
        LAYERS[f"{pool}{rank}d"] = ((2, *sizes), getattr(nn, f"{pool}{rank}d").init(2), plain)
        LAYERS[f"Adaptive{pool}{rank}d"] = ((2, *sizes), getattr(nn, f"Adaptive{pool}{rank}d").init(2), plain)
    LAYERS[f"MaxUnpool{rank}d"] = ((2, *sizes), getattr(nn, f"MaxUnpool{rank}d").init(2), unpooled)
    for pad in ("Circular", "Constant", "Reflection", "Replication", "Zero"):
        LAYERS[f"{pad}Pad{rank}d"] = ((2, *sizes), getattr(nn, f"{pad}Pad{rank}d").init(2), plain)
    LAYERS[f"LPPool{rank}d"] = ((2, *sizes), getattr(nn, f"LPPool{rank}d").init(2, 2), plain)
    for conv in ("Conv", "ConvTranspose"):
        LAYERS[f"{conv}{rank}d"] = ((2, *sizes), getattr(nn, f"{conv}{rank}d").init(KEY, 2, 3, 3), plain)
    LAYERS[f"InstanceNorm{rank}d"] = ((2, *sizes), getattr(nn, f"InstanceNorm{rank}d").init(2), plain)
    LAYERS[f"BatchNorm{rank}d"] = ((2, *sizes), *stateful(getattr(nn, f"BatchNorm{rank}d").init(2)))
for name in ("RNN", "GRU", "LSTM"):
    LAYERS[name] = ((5, 4), getattr(nn, name).init(KEY, 4, 3), outputs)
    LAYERS[f"{name}Cell"] = ((4,), getattr(nn, f"{name}Cell").init(KEY, 4, 3), lambda layer, x: tree.leaves(layer(x))[0])


def test_every_layer_has_a_row() -> None:
    wrappers = {"Module", "Sequential", "Lambda", "Identity", "Summary", "Embedding", "GPT", "Dropout1d", "Dropout3d"}
    wrappers |= {"TransformerEncoderLayer", "TransformerDecoderLayer"}  # the stacks contain them
    wrappers |= {"CausalLM", "Decoder", "DecoderLayer", "StackedLayers", "Experts"}  # of tokens, and what they contain
    layers = {name for name in dir(nn) if isinstance(value := getattr(nn, name), type) and issubclass(value, nn.Module)}
    assert layers - wrappers <= set(LAYERS)


def batch(shape: tuple[int, ...], count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, *shape)).astype(np.float32)


@pytest.mark.parametrize("name", LAYERS)
def test_nan_stays_in_its_example(name: str) -> None:
    shape, layer, call = LAYERS[name]
    x = batch(shape, 3)
    clean = np.asarray(call(layer, x))
    x[1].flat[0] = np.nan
    with_nan = np.asarray(call(layer, x))
    assert np.isnan(with_nan[1]).any()
    np.testing.assert_array_equal(with_nan[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("name", LAYERS)
def test_empty_batches_give_empty_outputs_and_no_gradient(name: str) -> None:
    shape, layer, call = LAYERS[name]
    wanted = call(layer, batch(shape, 2))
    out, pull_back = vf.vjp(call, layer, vf.numpy.asarray(batch(shape, 0)))
    assert (out.shape, out.dtype) == ((0, *wanted.shape[1:]), wanted.dtype)
    by_layer, by_x = pull_back(out)
    assert by_x.shape == (0, *shape)
    assert all(not np.any(leaf) for leaf in tree.leaves(by_layer))


@pytest.mark.parametrize("name", LAYERS)
def test_jit_and_vmap_agree_with_a_batch(name: str) -> None:
    shape, layer, call = LAYERS[name]
    x = vf.numpy.asarray(batch(shape, 3))
    expected = call(layer, x)
    np.testing.assert_allclose(vf.jit(call)(layer, x), expected, rtol=1e-5, atol=1e-6)
    single = vf.vmap(lambda example: call(layer, example[None])[0])
    np.testing.assert_allclose(single(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_forward_and_reverse_mode_agree(name: str) -> None:
    shape, layer, call = LAYERS[name]
    x = vf.numpy.asarray(batch(shape, 2))
    tangents = tree.map(lambda leaf: vf.numpy.asarray(np.random.default_rng(1).normal(size=leaf.shape), leaf.dtype), (layer, x))
    out, tangent = vf.jvp(call, (layer, x), tangents)
    cotangent = vf.numpy.asarray(np.random.default_rng(2).normal(size=out.shape), out.dtype)
    cotangents = vf.vjp(call, layer, x)[1](cotangent)
    products = [float(vf.numpy.vdot(a, b)) for a, b in zip(tree.leaves(tangents), tree.leaves(cotangents), strict=True)]
    np.testing.assert_allclose(sum(products), float(vf.numpy.vdot(tangent, cotangent)), rtol=1e-3, atol=1e-4)

"""Encoder layers and stacks against PyTorch's: outputs and gradients; language models with a cache."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.layers.transformer.oracle import check_against_torch, filled, of_layer, of_stack, shaken
from tests.nn.torch_oracle import DTYPES, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError

KEY = vf.random.key(0)
REAL = np.arange(5) < np.array([[5], [3]])
LLAMA = {"norm": nn.RMSNorm.init, "norm_first": True, "bias": False, "activation": nn.silu, "gated": True}


def exact_gelu(x):
    """PyTorch's "gelu"."""
    return nn.gelu(x, approximate=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_layer_agrees_with_torch(dtype, norm_first, masked):
    ours = shaken(nn.TransformerEncoderLayer.init(KEY, 8, 4, 12, norm_first=norm_first, activation=exact_gelu, dtype=dtype))
    theirs = filled(torch.nn.TransformerEncoderLayer(8, 4, 12, activation="gelu", norm_first=norm_first, batch_first=True), of_layer(ours))
    options = {"key_mask": REAL, "mask": np.tri(5, dtype=bool)} if masked else {}
    their_options = {"src_key_padding_mask": torch.tensor(~REAL), "src_mask": torch.tensor(~np.tri(5, dtype=bool))} if masked else {}
    run = lambda x: theirs(x, **their_options)
    check_against_torch(lambda layer, x: layer(x, **options), run, ours, [numbers((2, 5, 8), dtype)], of_layer, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm_first", [False, True])
def test_stack_agrees_with_torch(dtype, norm_first):
    ours = shaken(nn.TransformerEncoder.init(KEY, 2, 8, 4, 12, norm_first=norm_first, final_norm=True, dtype=dtype))
    layer = torch.nn.TransformerEncoderLayer(8, 4, 12, norm_first=norm_first, batch_first=True)
    theirs = filled(torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(8), enable_nested_tensor=False), of_stack(ours))
    check_against_torch(lambda stack, x: stack(x), theirs, ours, [numbers((2, 5, 8), dtype)], of_stack, theirs)


def test_dropout_is_used_at_every_position():
    x, key = numbers((2, 5, 8), "float32"), vf.random.key(1)
    layer = shaken(nn.TransformerEncoderLayer.init(KEY, 8, 4, 12, dropout=0.5))
    off = nn.Dropout.init(0.0)
    none = layer.replace(dropout=off, self_attn=layer.self_attn.replace(dropout=off), feed_forward=layer.feed_forward.replace(dropout=off))
    wanted = none(x)
    np.testing.assert_array_equal(layer(x), wanted)
    np.testing.assert_array_equal(none(x, training=True), wanted)
    on = nn.Dropout.init(0.5)
    for one in (
        none.replace(dropout=on),
        none.replace(self_attn=none.self_attn.replace(dropout=on)),
        none.replace(feed_forward=none.feed_forward.replace(dropout=on)),
    ):
        assert np.abs(one(x, key=key, training=True) - wanted).max() > 0.01
    nothing_added = none.replace(dropout=nn.Dropout.init(1.0))(x, key=key, training=True)
    np.testing.assert_allclose(nothing_added, layer.norm2(layer.norm1(x)), rtol=1e-5, atol=1e-6)
    with pytest.raises(ArgumentTypeError, match="key"):
        layer(x, training=True)


def test_layers_of_a_stack_draw_different_numbers():
    x = numbers((2, 5, 8), "float32")
    layer = nn.TransformerEncoderLayer.init(KEY, 8, 4, 12, dropout=0.5, norm_first=True)
    stack = nn.TransformerEncoder((layer, layer))
    first, second = vf.random.split(vf.random.key(1))
    step = layer(layer(x, key=first, training=True), key=second, training=True)
    np.testing.assert_array_equal(stack(x, key=vf.random.key(1), training=True), step)


def test_rematerialisation_changes_no_numbers():
    x = numbers((2, 5, 8), "float32")
    stack = shaken(nn.TransformerEncoder.init(KEY, 2, 8, 4, 12, dropout=0.3))
    loss = lambda stack, x: (stack(x, is_causal=True, key=vf.random.key(1), training=True) ** 2).sum()
    again = stack.replace(remat=True)
    wanted, actual = vf.jit(vf.grad(loss))(stack, x), vf.jit(vf.grad(loss))(again, x)
    for a, b in zip(vf.tree.leaves(actual), vf.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    jaxpr = str(vf.make_jaxpr(vf.grad(loss))(again, x))
    assert jaxpr.count("checkpoint[") >= 2


@pytest.mark.parametrize("form", [{}, {**LLAMA, "num_kv_heads": 2, "rotary_base": 1e4}], ids=["GPT", "Llama"])
def test_decoding_with_a_cache(form):
    x = numbers((2, 5, 8), "float32")
    model = shaken(nn.TransformerEncoder.init(KEY, 2, 8, 4, 12, **form))
    wanted = model(x, is_causal=True)
    step = vf.jit(lambda model, row, cache: model(row, cache=cache))
    cache, actual = model.init_cache(2, 5), []
    for t in range(5):
        y, cache = step(model, x[:, t : t + 1], cache)
        actual.append(y)
    np.testing.assert_allclose(vf.numpy.concatenate(actual, 1), wanted, rtol=1e-4, atol=1e-5)


def test_transforms_dtypes_and_empty_batches():
    x = numbers((3, 5, 8), "float32")
    model = nn.TransformerEncoder.init(KEY, 2, 8, 4, 12, norm_first=True)
    wanted = model(x)
    for actual in (vf.jit(lambda m, x: m(x))(model, x), vf.vmap(lambda x: model(x))(x)):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
    assert model(x[:0]).shape == (0, 5, 8)
    for dtype in ("float16", "bfloat16"):
        half = vf.tree.map(lambda w, dtype=dtype: w.astype(dtype), model)
        y = half(vf.numpy.asarray(x, dtype))
        assert y.dtype.name == dtype
        np.testing.assert_allclose(y.astype("float32"), wanted, atol=0.1)


def test_many_models_at_once():
    keys, x = vf.random.split(KEY, 3), numbers((2, 5, 8), "float32")
    make = lambda key: nn.TransformerEncoder.init(key, 2, 8, 4, 12, norm_first=True)
    result = vf.vmap(lambda model: model(x))(vf.vmap(make)(keys))
    np.testing.assert_allclose(result[1], make(keys[1])(x), rtol=1e-4, atol=1e-5)


def test_sits_in_a_sequential():
    model = nn.Sequential(nn.SinusoidalPositions(), nn.TransformerEncoder.init(KEY, 1, 8, 2, 12), nn.relu)
    assert model(np.ones((2, 5, 8), np.float32), key=KEY, training=True).shape == (2, 5, 8)


def test_bad_arguments():
    x = np.ones((2, 5, 8), np.float32)
    stack = nn.TransformerEncoder.init(KEY, 2, 8, 4, 12)
    assert stack.norm is None and nn.TransformerEncoder.init(KEY, 2, 8, 4, 12, norm_first=True).norm is not None
    with pytest.raises(ArgumentError, match="1 caches for 2 layers"):
        stack(x, cache=stack.init_cache(2, 5)[:1])
    with pytest.raises(ShapeError):
        stack(x[..., :4])
    with pytest.raises(ArgumentError):
        nn.TransformerEncoder.init(KEY, 2, 8, 3, 12)
    with pytest.raises(ArgumentError, match="num_layers"):
        nn.TransformerEncoder.init(KEY, -1, 8, 4, 12)
    with pytest.raises(ArgumentError):
        nn.TransformerEncoderLayer.init(KEY, 8, 4, 12, dropout=2.0)

"""Decoder layers and stacks against PyTorch's: outputs and gradients; decoding with a cache."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.layers.transformer.oracle import check_against_torch, filled, of_layer, of_stack, shaken
from tests.nn.torch_oracle import DTYPES, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, ShapeError

KEY = vf.random.key(0)
REAL = np.arange(6) < np.array([[6], [3]])
CAUSAL = torch.tensor(~np.tri(5, dtype=bool))
X, MEMORY = numbers((2, 5, 8), "float32", 0), numbers((2, 6, 8), "float32", 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm_first", [False, True])
def test_layer_agrees_with_torch(dtype, norm_first):
    ours = shaken(nn.TransformerDecoderLayer.init(KEY, 8, 4, 12, norm_first=norm_first, dtype=dtype))
    theirs = filled(torch.nn.TransformerDecoderLayer(8, 4, 12, norm_first=norm_first, batch_first=True), of_layer(ours))
    run = lambda x, memory: theirs(x, memory, tgt_mask=CAUSAL, memory_key_padding_mask=torch.tensor(~REAL))
    call = lambda layer, x, memory: layer(x, memory, is_causal=True, memory_key_mask=REAL)
    check_against_torch(call, run, ours, [X.astype(dtype), MEMORY.astype(dtype)], of_layer, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm_first", [False, True])
def test_stack_agrees_with_torch(dtype, norm_first):
    ours = shaken(nn.TransformerDecoder.init(KEY, 2, 8, 4, 12, norm_first=norm_first, final_norm=True, dtype=dtype))
    layer = torch.nn.TransformerDecoderLayer(8, 4, 12, norm_first=norm_first, batch_first=True)
    theirs = filled(torch.nn.TransformerDecoder(layer, 2, torch.nn.LayerNorm(8)), of_stack(ours))
    mask = np.random.default_rng(3).random((5, 6)) < 0.7
    mask[:, 0] = True
    run = lambda x, memory: theirs(x, memory, memory_mask=torch.tensor(~mask))
    call = lambda stack, x, memory: stack(x, memory, memory_mask=mask)
    check_against_torch(call, run, ours, [X.astype(dtype), MEMORY.astype(dtype)], of_stack, theirs)


@pytest.mark.parametrize("form", [{}, {"num_kv_heads": 2, "rotary_base": 1e4, "norm_first": True}], ids=["plain", "rotary"])
def test_decoding_with_a_cache(form):
    model = shaken(nn.TransformerDecoder.init(KEY, 2, 8, 4, 12, **form))
    wanted = model(X, MEMORY, is_causal=True, memory_key_mask=REAL)
    step = vf.jit(lambda model, row, cache: model(row, cache=cache, memory_key_mask=REAL))
    cache, actual = model.init_cache(MEMORY, 5), []
    for t in range(5):
        y, cache = step(model, X[:, t : t + 1], cache)
        actual.append(y)
    np.testing.assert_allclose(vf.numpy.concatenate(actual, 1), wanted, rtol=1e-4, atol=1e-5)


def test_rematerialisation_dropout_and_vmap():
    model = shaken(nn.TransformerDecoder.init(KEY, 2, 8, 4, 12, dropout=0.3))
    loss = lambda model, x, m: (model(x, m, is_causal=True, key=vf.random.key(1), training=True) ** 2).sum()
    wanted, actual = vf.grad(loss)(model, X, MEMORY), vf.jit(vf.grad(loss))(model.replace(remat=True), X, MEMORY)
    for a, b in zip(vf.tree.leaves(actual), vf.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model(X, MEMORY), model(X, MEMORY, key=KEY))
    mapped = vf.vmap(lambda x, m: model(x, m))(X, MEMORY)
    np.testing.assert_allclose(mapped, model(X, MEMORY), rtol=1e-4, atol=1e-5)
    assert model(X[:0], MEMORY[:0]).shape == (0, 5, 8)


@pytest.mark.parametrize("form", [{}, {"num_kv_heads": 2, "rotary_base": 1e4, "norm_first": True}], ids=["plain", "rotary"])
def test_without_memory_it_is_the_decoder_of_a_language_model(form):
    """It is a causal encoder, causal by itself; with a cache, too."""
    model = shaken(nn.TransformerDecoder.init(KEY, 2, 8, 4, 12, cross_attention=False, **form))
    encoder = nn.TransformerEncoder.init(KEY, 2, 8, 4, 12, **form)
    layers = [
        blank.replace(self_attn=layer.self_attn, feed_forward=layer.feed_forward, norm1=layer.norm1, norm2=layer.norm3)
        for blank, layer in zip(encoder.layers, model.layers, strict=True)
    ]
    encoder = encoder.replace(layers=tuple(layers), norm=model.norm)
    expected = encoder(X, is_causal=True)
    np.testing.assert_array_equal(model(X), expected)
    np.testing.assert_array_equal(model(X, is_causal=False), encoder(X))
    np.testing.assert_allclose(model(X[:, :3]), expected[:, :3], rtol=1e-5, atol=1e-6)
    first, cache = model(X[:, :3], cache=model.init_cache(2, 5))
    rest, _ = vf.jit(lambda model, x, cache: model(x, cache=cache))(model, X[:, 3:], cache)
    np.testing.assert_allclose(vf.numpy.concatenate([first, rest], 1), expected, rtol=1e-4, atol=1e-5)
    assert nn.parameter_count(model) == nn.parameter_count(encoder)
    with pytest.raises(ArgumentError, match="cross_attention=False, so it reads no memory"):
        model(X, MEMORY)


def test_bad_arguments():
    model = nn.TransformerDecoder.init(KEY, 1, 8, 4, 12)
    cache = model.init_cache(MEMORY, 5)
    for arguments in ((X,), (X, MEMORY)):
        with pytest.raises(ArgumentError, match="either a memory is given or a cache, .* cross_attention=False"):
            model(*arguments, cache=cache if len(arguments) == 2 else None)
    with pytest.raises(ShapeError):
        model(X, MEMORY[:1])
    with pytest.raises(ShapeError):
        model(X, MEMORY[..., :4])
    with pytest.raises(ArgumentError, match="2 caches for 1 layers"):
        model(X, cache=cache * 2)

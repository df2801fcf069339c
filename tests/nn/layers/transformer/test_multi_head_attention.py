"""MultiHeadAttention against PyTorch's: outputs and gradients; masks, grouped queries, dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.layers.transformer.oracle import check_against_torch, filled, of_attention, shaken
from tests.nn.torch_oracle import DTYPES, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

KEY = vf.random.key(0)
REAL = np.arange(6) < np.array([[6], [3]])
MASK = np.random.default_rng(3).random((2, 4, 5, 6)) < 0.7
MASK[..., 0] = True
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}, {}),
    "mask": ({}, {"mask": MASK}, {"attn_mask": ~MASK.reshape(8, 5, 6)}),
    "float mask": ({}, {"mask": MASK[0, 0] * 0.5}, {"attn_mask": MASK[0, 0] * 0.5}),
    "padding": ({}, {"key_mask": REAL}, {"key_padding_mask": ~REAL}),
    "both": ({}, {"key_mask": REAL, "mask": MASK[0, 0]}, {"key_padding_mask": ~REAL, "attn_mask": ~MASK[0, 0]}),
    "causal": ({}, {"is_causal": True}, {"attn_mask": ~np.tri(5, 6, dtype=bool)}),
    "no bias": ({"bias": False}, {}, {}),
    "other sizes": ({"kdim": 6, "vdim": 7}, {}, {}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_torch(case, dtype):
    form, options, their_options = CASES[case]
    ours = shaken(nn.MultiHeadAttention.init(KEY, 8, 4, **form, dtype=dtype))
    theirs = filled(torch.nn.MultiheadAttention(8, 4, **form, batch_first=True), of_attention(ours))
    cast = lambda value: value.astype(dtype) if isinstance(value, np.ndarray) and value.dtype == float else value
    options = {name: cast(value) for name, value in options.items()}
    their_options = {name: torch.tensor(cast(value)) for name, value in their_options.items()}
    kdim, vdim = form.get("kdim", 8), form.get("vdim", 8)
    inputs = [numbers(shape, dtype, i) for i, shape in enumerate([(2, 5, 8), (2, 6, kdim), (2, 6, vdim)])]
    run = lambda *x: theirs(*x, need_weights=False, **their_options)[0]
    check_against_torch(lambda mha, *x: mha(*x, **options), run, ours, inputs, of_attention, theirs)


def test_self_attention_agrees_with_torch():
    ours = shaken(nn.MultiHeadAttention.init(KEY, 8, 2))
    theirs = filled(torch.nn.MultiheadAttention(8, 2, batch_first=True), of_attention(ours))
    run = lambda x: theirs(x, x, x, need_weights=False)[0]
    check_against_torch(lambda mha, x: mha(x), run, ours, [numbers((2, 5, 8), "float32")], of_attention, theirs)


def test_first_weights_are_those_of_torch():
    torch.manual_seed(0)
    for form in ({}, {"kdim": 80, "vdim": 120}):
        ours, theirs = nn.MultiHeadAttention.init(KEY, 256, 4, **form), torch.nn.MultiheadAttention(256, 4, **form)
        for name, wanted in theirs.named_parameters():
            actual = of_attention(ours)[name]
            assert actual.std() == pytest.approx(wanted.std(correction=0).item(), rel=0.02), name  # four standard errors


def test_grouped_queries_share_keys_and_values():
    grouped = shaken(nn.MultiHeadAttention.init(KEY, 8, 4, num_kv_heads=2))
    repeat = lambda layer: nn.Linear(
        *[np.repeat(a.reshape(*a.shape[:-1], 2, 2), 2, -2).reshape(*a.shape[:-1], 8) for a in layer_arrays(layer)]
    )
    layer_arrays = lambda layer: (np.asarray(layer.weight), np.asarray(layer.bias))
    full = grouped.replace(k_proj=repeat(grouped.k_proj), v_proj=repeat(grouped.v_proj), num_kv_heads=4)
    x = numbers((2, 5, 8), "float32")
    np.testing.assert_allclose(grouped(x, is_causal=True), full(x, is_causal=True), rtol=1e-5, atol=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_positions_rotate_queries_and_keys(interleaved):
    mha = shaken(nn.MultiHeadAttention.init(KEY, 8, 2, rotary_base=100.0, rotary_interleaved=interleaved))
    x = numbers((2, 5, 8), "float32")
    heads = lambda y: np.asarray(y).reshape(2, 5, 2, 4).swapaxes(1, 2)
    q, k = (nn.apply_rotary(heads(layer(x)), np.arange(5), 100.0, interleaved) for layer in (mha.q_proj, mha.k_proj))
    attended = np.asarray(nn.scaled_dot_product_attention(q, k, heads(mha.v_proj(x))))
    wanted = mha.out_proj(attended.swapaxes(1, 2).reshape(2, 5, 8))
    np.testing.assert_allclose(mha(x), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mha(x, positions=np.arange(5) + 30), wanted, rtol=1e-4, atol=1e-5)
    moved = mha(x, positions=np.stack([np.arange(5), 3 * np.arange(5)]))
    np.testing.assert_allclose(moved[0], wanted[0], rtol=1e-5, atol=1e-6)
    assert np.abs(moved[1] - wanted[1]).max() > 1e-3


def test_dropout_acts_on_the_weights_in_training():
    x, key = numbers((2, 5, 8), "float32"), vf.random.key(5)
    mha = shaken(nn.MultiHeadAttention.init(KEY, 8, 4, dropout=0.5))
    plain = mha.replace(dropout=nn.Dropout.init(0.0))
    np.testing.assert_array_equal(mha(x), plain(x))
    np.testing.assert_array_equal(mha(x, key=key), plain(x))
    dropped = mha(x, key=key, training=True)
    assert not np.allclose(dropped, plain(x))
    np.testing.assert_array_equal(dropped, vf.jit(lambda m, x, k: m(x, key=k, training=True))(mha, x, key))
    all_gone = mha.replace(dropout=nn.Dropout.init(1.0))(x, key=key, training=True)
    np.testing.assert_allclose(all_gone, np.broadcast_to(mha.out_proj.bias, x.shape), rtol=1e-6)
    keys = vf.random.split(key, 2000)
    mean = vf.vmap(lambda k: mha(x, key=k, training=True))(keys).mean(0)
    np.testing.assert_allclose(mean, plain(x), atol=0.08)
    with pytest.raises(ArgumentTypeError, match="key"):
        mha(x, training=True)


def test_a_context_projected_once():
    mha = shaken(nn.MultiHeadAttention.init(KEY, 8, 4, num_kv_heads=2, kdim=6, vdim=7))
    x, context, values = (numbers(shape, "float32", i) for i, shape in enumerate([(2, 5, 8), (2, 6, 6), (2, 6, 7)]))
    keys_values = mha.project(context, values)
    assert keys_values.keys.shape == (2, 2, 6, 2)
    np.testing.assert_array_equal(mha(x, keys_values, key_mask=REAL), mha(x, context, values, key_mask=REAL))


def test_transforms_other_axes_and_empty_batches():
    mha, x = shaken(nn.MultiHeadAttention.init(KEY, 8, 4)), numbers((3, 5, 8), "float32")
    wanted = mha(x, is_causal=True)
    call = lambda mha, x: mha(x, is_causal=True)
    for actual in (vf.jit(call)(mha, x), vf.vmap(call, (None, 0))(mha, x), call(mha, x[:, None])[:, 0]):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)
    assert mha(x[:0]).shape == (0, 5, 8) and mha(x[:, :0]).shape == (3, 0, 8)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype):
    exact, x = nn.MultiHeadAttention.init(KEY, 8, 4), numbers((3, 5, 8), "float32")
    half = vf.tree.map(lambda w: w.astype(dtype), exact)
    result = half(vf.numpy.asarray(x, dtype), is_causal=True)
    assert result.dtype.name == dtype
    np.testing.assert_allclose(result.astype("float32"), exact(x, is_causal=True), atol=3e-2)
    assert exact(vf.numpy.asarray(x, dtype), x).dtype.name == "float32"


def test_sits_in_a_sequential():
    model = nn.Sequential(nn.MultiHeadAttention.init(KEY, 8, 2, dropout=0.5), nn.relu)
    assert model(np.ones((2, 5, 8), np.float32), key=KEY, training=True).shape == (2, 5, 8)


@pytest.mark.wide
def test_bad_arguments():
    x = np.ones((2, 5, 8), np.float32)
    mha, rotary = nn.MultiHeadAttention.init(KEY, 8, 4), nn.MultiHeadAttention.init(KEY, 8, 4, rotary_base=1e4)
    for heads, groups in ((3, None), (4, 3), (0, None), (4, 0)):
        with pytest.raises(ArgumentError, match="must divide"):
            nn.MultiHeadAttention.init(KEY, 8, heads, num_kv_heads=groups)
    with pytest.raises(ArgumentError):
        nn.MultiHeadAttention.init(KEY, 8, 4, dropout=-0.1)
    for bad in (x[..., :6], x[0, 0]):
        with pytest.raises(ShapeError):
            mha(bad)
    with pytest.raises(ShapeError, match="do not fit"):
        mha(x, x[:1])
    with pytest.raises(ShapeError, match="context"):
        mha(x, x, x[:, :3])
    with pytest.raises(ShapeError, match="must broadcast"):
        mha(x, mask=np.ones((4, 4), bool))
    with pytest.raises(ShapeError, match=r"key_mask needs shape \(2, 5\)"):
        mha(x, key_mask=np.ones(5, bool))
    with pytest.raises(DTypeError, match="key_mask is bool"):
        mha(x, key_mask=np.ones((2, 5)))
    with pytest.raises(ArgumentError, match="self-attention"):
        rotary(x, x)
    with pytest.raises(ArgumentError, match="self-attention"):
        mha(x, x, cache=mha.init_cache(2, 5))
    with pytest.raises(ArgumentError, match="leave values out"):
        mha(x, mha.project(x), x)
    with pytest.raises(ArgumentError, match="even number"):
        nn.MultiHeadAttention.init(KEY, 12, 4, rotary_base=1e4)
    with pytest.raises(ArgumentError, match="rotary_base"):
        mha(x, positions=np.arange(5))
    with pytest.raises(ShapeError):
        rotary(x, positions=np.arange(4))

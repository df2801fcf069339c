"""Decoding in chunks with a cache agrees with one causal pass."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.layers.transformer.oracle import shaken
from tests.nn.torch_oracle import numbers
from volta_fn import nn
from volta_fn.errors import ShapeError

KEY = vf.random.key(0)
FORMS = {"plain": {}, "grouped": {"num_kv_heads": 2}, "rotary": {"rotary_base": 100.0, "num_kv_heads": 1}}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
X = numbers((2, 7, 8), "float32")


def attention(form):
    """Return a layer of that form, with parameters all different from 0."""
    return shaken(nn.MultiHeadAttention.init(KEY, 8, 4, **form))


@forms
@pytest.mark.parametrize("chunks", [[7], [1] * 7, [4, 1, 2]], ids=str)
def test_chunks_agree_with_the_full_sequence(form, chunks):
    mha = attention(form)
    cache, result = mha.init_cache(2, 9), []
    for chunk in np.split(X, np.cumsum(chunks)[:-1], axis=1):
        y, cache = mha(chunk, cache=cache)
        result.append(y)
    np.testing.assert_allclose(vf.numpy.concatenate(result, 1), mha(X, is_causal=True), rtol=1e-5, atol=1e-6)
    assert int(cache.length) == 7 and cache.max_length == 9


@forms
def test_in_jit_scan_and_vmap(form):
    mha = attention(form)

    def decode(mha, rows):
        def step(cache, row):
            y, cache = mha(row[..., None, :], cache=cache)
            return cache, y[..., 0, :]

        return vf.lax.scan(step, mha.init_cache(rows.shape[:-2], 7), rows.swapaxes(0, -2))[1].swapaxes(0, -2)

    wanted = mha(X, is_causal=True)
    np.testing.assert_allclose(vf.jit(decode)(mha, X), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(vf.vmap(decode, (None, 0))(mha, X), wanted, rtol=1e-5, atol=1e-6)


def test_sequences_of_several_lengths_under_vmap():
    mha = attention({"rotary_base": 100.0})
    call = lambda x, length, more: mha(more, cache=mha(x, cache=mha.init_cache((), 9))[1]._replace(length=length))[0]
    result = vf.vmap(call)(X[:, :5], np.array([5, 3], np.int32), X[:, 5:6])
    np.testing.assert_allclose(result[0], mha(X[0, :6], is_causal=True)[5:], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result[1], mha(X[1][[0, 1, 2, 5]], is_causal=True)[3:], rtol=1e-5, atol=1e-6)


def test_padding_on_the_left():
    mha = attention({})
    real = np.array([[True] * 9, [False] * 3 + [True] * 6])
    _, cache = mha(X[:, :6], cache=mha.init_cache(2, 9), key_mask=real)
    y, _ = mha(X[:, 6:], cache=cache, key_mask=real)
    np.testing.assert_allclose(y[1], mha(X[1:, 3:], is_causal=True)[0, 3:], rtol=1e-5, atol=1e-6)


def test_gradients_go_through_the_cache():
    mha = attention({"rotary_base": 100.0})

    def by_chunks(mha, x):
        first, cache = mha(x[:, :4], cache=mha.init_cache(2, 7))
        second, _ = mha(x[:, 4:], cache=cache)
        return (first**2).sum() + (second**2).sum()

    full = vf.grad(lambda mha, x: (mha(x, is_causal=True) ** 2).sum(), (0, 1))(mha, X)
    for mine, wanted in zip(vf.tree.leaves(vf.grad(by_chunks, (0, 1))(mha, X)), vf.tree.leaves(full), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5)


def test_too_many_positions_give_nan():
    mha = attention({})
    with pytest.raises(ShapeError, match="do not fit a cache"):
        mha(X, cache=mha.init_cache(2, 6))
    with pytest.raises(ShapeError, match="do not fit a cache"):
        mha(X, cache=mha.init_cache(3, 7))
    _, cache = mha(X[:, :5], cache=mha.init_cache(2, 6))
    y, cache = mha(X[:, 5:6], cache=cache)
    assert np.isfinite(y).all()
    y, _ = vf.jit(lambda x, cache: mha(x, cache=cache))(X[:, 6:], cache)
    assert np.isnan(y).all()


def test_a_cache_of_another_dtype():
    mha = attention({})
    y, cache = mha(X, cache=mha.init_cache(2, 7, dtype="bfloat16"))
    assert cache.keys.dtype.name == "bfloat16" and y.dtype.name == "float32"
    np.testing.assert_allclose(y, mha(X, is_causal=True), atol=0.1)


def test_attend_always_returns_a_pair():
    mha = attention({})
    y, none = mha.attend(X, is_causal=True)
    z, cache = mha.attend(X, cache=mha.init_cache(2, 9))
    assert none is None and cache.length == 7
    np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-6)  # sums over masked keys in another order

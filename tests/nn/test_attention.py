"""dot_product_attention against JAX's, for every option, with gradients."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

RNG = np.random.default_rng(0)
B, T, S, N, K, H = 2, 5, 6, 4, 2, 8
Q = RNG.normal(size=(B, T, N, H)).astype(np.float32)
KEY = RNG.normal(size=(B, S, K, H)).astype(np.float32)
VALUE = RNG.normal(size=(B, S, K, H)).astype(np.float32)
BIAS = RNG.normal(size=(B, N, T, S)).astype(np.float32)
MASK = RNG.random((B, 1, T, S)) < 0.7
OPTIONS = [
    {},
    {"scale": 0.3},
    {"is_causal": True},
    {"bias": BIAS},
    {"bias": BIAS[:1, :1]},
    {"mask": MASK},
    {"mask": np.broadcast_to(MASK, (B, N, T, S)), "bias": BIAS},
    {"local_window_size": 1},
    {"local_window_size": np.int64(1)},
    {"local_window_size": (np.int32(1), np.uint8(2)), "is_causal": True},
    {"local_window_size": (1, 2), "is_causal": True},
    {"local_window_size": (0, 2**31 - 1)},
    {"local_window_size": (2**40, 0)},
    {"local_window_size": (-(2**40), 1)},
    {"query_seq_lengths": np.array([3, 5], np.int32)},
    {"key_value_seq_lengths": np.array([6, 2], np.int32)},
    {"query_seq_lengths": np.array([3, 5], np.int32), "key_value_seq_lengths": np.array([6, 2], np.int32)},
]


def oracle(q, k, v, bias=0.0, mask=True, scale=None, is_causal=False, query_seq_lengths=None, key_value_seq_lengths=None, window=None):
    """Compute attention by its definition, one head after the other."""
    out, residual = np.zeros(q.shape), np.zeros(q.shape[:3])
    rows, columns = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])[None, :]
    bias, mask = np.broadcast_to(bias, (B, N, T, S)), np.broadcast_to(mask, (B, N, T, S))
    left, right = (window, window) if isinstance(window, (int, np.integer)) else window or (99, 99)
    for b, n in np.ndindex(B, N):
        group = n // (N // K)
        seen = mask[b, n] & (columns >= rows - left) & (columns <= rows + right)
        seen &= (columns <= rows) | (not is_causal)
        if query_seq_lengths is not None:
            seen &= rows < query_seq_lengths[b]
        if key_value_seq_lengths is not None:
            seen &= columns < key_value_seq_lengths[b]
        logits = q[b, :, n] @ k[b, :, group].T * (H**-0.5 if scale is None else scale) + bias[b, n]
        logits = np.where(seen, logits, -2e38)
        largest = logits.max(1, keepdims=True)
        terms = np.exp(logits - largest)
        out[b, :, n] = terms / terms.sum(1, keepdims=True) @ v[b, :, group]
        residual[b, :, n] = np.log(terms.sum(1)) + largest[:, 0]
        if query_seq_lengths is not None:
            out[b, query_seq_lengths[b] :, n] = 0
    return out, residual


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
def test_every_option(options):
    arguments = {"window" if k == "local_window_size" else k: v for k, v in options.items()}
    value, residual = oracle(Q, KEY, VALUE, **arguments)
    ours, rest = nn.dot_product_attention(Q, KEY, VALUE, **options, return_residual=True)
    np.testing.assert_allclose(ours, value, rtol=1e-5, atol=2e-6)
    some = np.abs(residual) < 1e30  # rows that see nothing are as low as float32 goes
    np.testing.assert_allclose(np.asarray(rest)[some], residual[some], rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(nn.dot_product_attention(Q, KEY, VALUE, **options), ours)


MANY = {"is_causal": True, "bias": BIAS, "mask": MASK, "return_residual": True}


@pytest.mark.parametrize("options", [{}, MANY], ids=["plain", "many"])
def test_matches_jax(options):
    jax = pytest.importorskip("jax")
    theirs = jax.jit(lambda: jax.nn.dot_product_attention(Q, KEY, VALUE, **options))()
    ours = nn.dot_product_attention(Q, KEY, VALUE, **options)
    for mine, other in zip(ours, theirs, strict=True) if "return_residual" in options else [(ours, theirs)]:
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=2e-6)


@pytest.mark.wide
@pytest.mark.parametrize("options", [{}, {"is_causal": True, "bias": BIAS}, {"mask": MASK}], ids=["plain", "causal", "mask"])
def test_gradients_match_differences(options):
    wide = {k: v.astype(float) if k == "bias" else v for k, v in options.items()}
    weights = RNG.normal(size=Q.shape)
    arrays = [x.astype(float) for x in (Q, KEY, VALUE)]
    directions = [RNG.normal(size=x.shape) for x in arrays]
    slopes = vf.grad(lambda *a: (nn.dot_product_attention(*a, **wide) * weights).sum(), (0, 1, 2))(*arrays)
    ends = [oracle(*[x + s * 1e-6 * d for x, d in zip(arrays, directions, strict=True)], **wide)[0] for s in (1, -1)]
    difference = ((ends[0] - ends[1]) * weights).sum() / 2e-6
    np.testing.assert_allclose(sum((g * d).sum() for g, d in zip(slopes, directions, strict=True)), difference, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_computes_in_float32(dtype):
    q, k, v = (x.astype(dtype) for x in (Q, KEY, VALUE))
    exact, _ = oracle(*[x.astype(float) for x in (q, k, v)])
    ours = nn.dot_product_attention(q, k, v)
    assert ours.dtype == dtype
    eps = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(ours).astype(float), exact, rtol=2 * eps, atol=2 * eps)


def test_without_a_batch():
    ours = nn.dot_product_attention(Q[0], KEY[0], VALUE[0], is_causal=True)
    np.testing.assert_allclose(ours, nn.dot_product_attention(Q, KEY, VALUE, is_causal=True)[0], rtol=1e-6, atol=1e-7)
    mapped = vf.vmap(nn.dot_product_attention)(Q, KEY, VALUE)
    np.testing.assert_allclose(mapped, nn.dot_product_attention(Q, KEY, VALUE), rtol=1e-5, atol=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: nn.dot_product_attention(Q, KEY[:, :, :1], VALUE), ShapeError, "groups"),
        (lambda: nn.dot_product_attention(Q[:, :, :3], KEY, VALUE), ShapeError, "groups dividing heads"),
        (lambda: nn.dot_product_attention(Q, KEY[:1], VALUE[:1]), ShapeError, r"\(1, 6, 2, 8\)"),
        (lambda: nn.dot_product_attention(Q, KEY.astype(np.float16), VALUE), DTypeError, "float16"),
        (lambda: nn.dot_product_attention(Q, KEY, VALUE, mask=np.ones((B, 1, T, S))), DTypeError, "bias"),
        (lambda: nn.dot_product_attention(Q, KEY, VALUE, implementation="magic"), ArgumentError, "magic"),
        (lambda: nn.dot_product_attention(Q, KEY, VALUE, local_window_size=1.5), ArgumentError, "local_window_size .* got 1.5"),
        (lambda: nn.dot_product_attention(Q, KEY, VALUE, local_window_size=(1, 2, 3)), ArgumentError, "local_window_size"),
    ],
)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()

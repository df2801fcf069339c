"""Attention of bfloat16 by products of pairs: float64's, but for the rounding of weights and of the result."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn.targets.cpu import attention

pytest.importorskip("llvmlite")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys", "heads", "shared", "width"),
    [(70, 70, 2, 1, 64), (33, 301, 4, 2, 32), (129, 128, 1, 1, 80), (45, 51, 2, 1, 10), (40, 37, 2, 2, 7), (600, 600, 1, 1, 16)],
)
def test_outputs(queries: int, keys: int, heads: int, shared: int, width: int, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "FEWEST_QUERIES", 1)
    monkeypatch.setattr(attention, "FEWEST_LOGITS", 1)
    monkeypatch.setenv("VOLTA_CACHE_DIR", "")  # where programs are known by what was traced
    vf.clear_caches()
    rng = np.random.default_rng(0)
    q = rng.normal(size=(2, queries, heads, width)).astype(BFLOAT16)
    k, v = (rng.normal(size=(2, keys, heads // shared, width)).astype(BFLOAT16) for _ in range(2))
    out = vf.jit(lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=causal))(q, k, v)
    vf.clear_caches()
    assert out.dtype == BFLOAT16
    x, y, z = (a.astype(np.float64) for a in (q, np.repeat(k, shared, 2), np.repeat(v, shared, 2)))
    logits = np.einsum("bqhd,bkhd->bhqk", x, y) / np.sqrt(width)
    if causal:
        logits = np.where(np.tril(np.ones((queries, keys), bool)), logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bhqk,bkhd->bqhd", weights, z)
    # Each weight is rounded by a part in 2**8 at most, half of that to the nearest; and so is the result.
    bound = (np.einsum("bhqk,bkhd->bqhd", weights, np.abs(z)) + np.abs(expected)) * 2.0**-8
    assert (np.abs(np.asarray(out).astype(np.float64) - expected) <= bound + 1e-6).all()

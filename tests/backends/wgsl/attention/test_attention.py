"""Attention in WGSL, against the composite's evaluation and gradients in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backends.wgsl.running import facts, run_routine
from volta_fn.backends.wgsl.attention import attention_of, backward, forward
from volta_fn.backends.wgsl.facts import Facts


def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray, d: np.ndarray, seen: np.ndarray, scale: float) -> list[np.ndarray]:
    """The result, and the gradients, by their definition."""
    each = q.shape[1] // k.shape[1]
    keys, values = np.repeat(k, each, 1), np.repeat(v, each, 1)
    logits = np.where(seen, q @ keys.swapaxes(2, 3) * scale, -0.7 * np.finfo(np.float32).max)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = weights @ values
    slopes = np.where(seen, weights * (d @ values.swapaxes(2, 3) - (d * out).sum(-1, keepdims=True)), 0) * scale
    to_k, to_v = slopes.swapaxes(2, 3) @ q, weights.swapaxes(2, 3) @ d
    together = [x.reshape(x.shape[0], k.shape[1], each, *x.shape[2:]).sum(2) for x in (to_k, to_v)]
    return [out, slopes @ keys, *together]


#: Batch, heads, groups, T, S, features, value features; and what is seen.
CASES = [((2, 4, 2, 40, 40, 16, 16), "causal"), ((1, 2, 2, 33, 70, 20, 40), "masked")]


@pytest.mark.parametrize(("sizes", "kind"), CASES)
def test_attention_and_its_gradients(sizes: tuple[int, ...], kind: str) -> None:
    check(sizes, kind, np.float32, 1e-5)


def test_halves_that_do_not_fill_words() -> None:
    check((1, 1, 1, 5, 7, 10, 6), "both", np.float16, 4e-3)


def check(sizes: tuple[int, ...], kind: str, dtype: Any, tolerance: float) -> None:
    """Compare results and gradients, relative to the largest of each."""
    batch, heads, groups, t, s, width, v_width = sizes
    rng, plain = np.random.default_rng(0), Facts(float64=facts().float64, int64=facts().int64)
    shapes = (batch, heads, t, width), (batch, groups, s, width), (batch, groups, s, v_width), (batch, heads, t, v_width)
    q, k, v, d = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    mask = rng.random((1, heads, t, s)) < 0.5
    mask[0, 0, 0] = False  # a query that sees nothing weighs all keys alike
    masked, causal = kind in ("masked", "both"), kind in ("causal", "both")
    seen = mask if masked else np.ones((t, s), np.bool_)
    seen = seen & (np.arange(s) <= np.arange(t)[:, None]) if causal else seen
    scale = width**-0.5
    a = attention_of(q.shape, k.shape, v.shape, q.dtype, scale, causal=causal, mask=mask.shape if masked else None)
    operands = [q, k, v, *([mask] if masked else [])]
    out, statistics = run_routine(forward(a, plain), operands, [(d.shape, dtype), ((batch * heads, t, 2), np.float32)])
    routine = backward(a, plain)
    assert all(len(dispatch.buffers) <= plain.buffers for dispatch in routine.dispatches)
    gradients = run_routine(routine, [*operands, out, statistics, d], [(x.shape, dtype) for x in (q, k, v)])
    wanted = expected(*(x.astype(np.float64) for x in (q, k, v, d)), seen, scale)
    for name, x, y in zip(("out", "q", "k", "v"), [out, *gradients], wanted, strict=True):
        assert np.abs(x.astype(np.float64) - y).max() <= tolerance * max(np.abs(y).max(), 1), name

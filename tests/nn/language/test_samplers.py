"""Filters and samplers of tokens beside sorts written in NumPy, and frequencies beside probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

RNG = np.random.default_rng(3)
LOGITS = (RNG.standard_normal((2, 3, 20)) * 2).astype(np.float32)


def probabilities(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def top_p(row: np.ndarray, p: float) -> np.ndarray:
    """Return which tokens stay: from the most probable on, until their sum reaches p."""
    retained, total = np.zeros(row.shape, bool), 0.0
    for token in np.argsort(-row, kind="stable"):
        if total >= p and retained.any():
            break
        retained[token] = True
        total += probabilities(row)[token]
    return retained


def check(filtered: Any, retained: np.ndarray, logits: np.ndarray = LOGITS) -> None:
    out = np.asarray(filtered)
    np.testing.assert_array_equal(np.isfinite(out), retained)
    np.testing.assert_array_equal(out[retained], logits[retained])


@pytest.mark.parametrize("k", [1, 3, 20, 50])
def test_top_k(k: int) -> None:
    ranks = np.argsort(np.argsort(-LOGITS, -1, kind="stable"), -1)
    check(nn.top_k_filter(vnp.asarray(LOGITS), k), ranks < k)
    ties = nn.top_k_filter(vnp.ones(4), 2)
    np.testing.assert_array_equal(np.isfinite(np.asarray(ties)), [True, True, False, False])


@pytest.mark.parametrize("p", [0.0, 0.3, 0.9, 1.0])
def test_top_p(p: float) -> None:
    retained = np.array([[top_p(row, p) for row in rows] for rows in LOGITS])
    if p == 1.0:
        retained[:] = True
    check(vf.jit(lambda x: nn.top_p_filter(x, p))(vnp.asarray(LOGITS)), retained)


@pytest.mark.parametrize("p", [0.0, 0.2, 1.0])
def test_min_p(p: float) -> None:
    share = probabilities(LOGITS)
    check(nn.min_p_filter(vnp.asarray(LOGITS), p), share >= p * share.max(-1, keepdims=True))


def test_repetition_penalty() -> None:
    seen = RNG.random(LOGITS.shape) < 0.4
    expected = np.where(seen, np.where(LOGITS > 0, LOGITS / 1.3, LOGITS * 1.3), LOGITS)
    out = nn.penalize_repetition(vnp.asarray(LOGITS), vnp.asarray(seen), 1.3)
    np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 4},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.5, "top_k": 6, "top_p": 0.7},
        {"top_k": 5, "min_p": 0.2},
        {"repetition_penalty": 2.0, "top_k": 3},
    ],
)
def test_frequencies_are_the_filtered_probabilities(options: dict[str, Any]) -> None:
    logits = LOGITS[0, 0]
    seen = np.arange(20) % 2 == 0
    sampler = nn.Sampler(**options)
    expected = probabilities(np.asarray(sampler.filtered(vnp.asarray(logits), vnp.asarray(seen))))
    rows, marks = (vnp.broadcast_to(vnp.asarray(x), (20000, 20)) for x in (logits, seen))
    tokens = np.asarray(vf.jit(sampler)(rows, vf.random.key(5), marks))
    counts = np.bincount(tokens, minlength=20)
    assert not counts[expected == 0].any()
    spread = np.sqrt(20000 * expected * (1 - expected))
    assert (np.abs(counts - 20000 * expected) <= 5 * spread + 1e-9).all()


def test_order_of_the_filters() -> None:
    """Temperature first: it decides what reaches p. Then k, p of what is left, and min_p."""
    logits = LOGITS[1, 1]
    hot = logits / 0.5
    retained = np.argsort(np.argsort(-hot)) < 8
    first = np.where(retained, hot, -np.inf).astype(np.float32)
    second = np.where(top_p(first, 0.9), first, -np.inf)
    share = probabilities(second)
    expected = np.where(share >= 0.05 * share.max(), second, -np.inf)
    out = nn.Sampler(temperature=0.5, top_k=8, top_p=0.9, min_p=0.05).filtered(vnp.asarray(logits))
    np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-6)


def test_temperature_zero_and_greedy() -> None:
    expected = LOGITS.argmax(-1)
    for out in (nn.greedy(vnp.asarray(LOGITS)), nn.Sampler(temperature=0.0)(vnp.asarray(LOGITS), None)):
        assert out.dtype.name == "int32"
        np.testing.assert_array_equal(np.asarray(out), expected)
    seen = np.zeros(LOGITS.shape, bool)
    np.put_along_axis(seen, expected[..., None], True, -1)
    other = nn.Sampler(temperature=0.0, repetition_penalty=1e6)(vnp.asarray(LOGITS), None, vnp.asarray(seen))
    assert (np.asarray(other) != expected).all()
    retained = np.asarray(nn.Sampler(temperature=0.0).filtered(vnp.asarray(LOGITS)))
    np.testing.assert_array_equal(np.isfinite(retained).sum(-1), 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes_and_shapes(dtype: str) -> None:
    logits = vnp.asarray(LOGITS).astype(dtype)
    assert nn.top_p_filter(logits, 0.5).dtype.name == ("float64" if dtype == "float64" else "float32")
    assert nn.Sampler(top_k=3, top_p=0.5)(logits, vf.random.key(0)).shape == (2, 3)
    assert nn.Sampler(top_k=3)(logits[:0], vf.random.key(0)).shape == (0, 3)
    assert nn.greedy(logits[0, 0]).shape == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ],
)
def test_numbers_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        nn.Sampler(**options)


def test_bad_arrays() -> None:
    with pytest.raises(DTypeError, match="floats"):
        nn.greedy(vnp.arange(3))
    with pytest.raises(ShapeError, match="at least one token"):
        nn.greedy(vnp.zeros((2, 0)))
    with pytest.raises(ShapeError, match="has the shape"):
        nn.penalize_repetition(vnp.zeros(3), vnp.zeros(2, bool), 2.0)
    with pytest.raises(DTypeError, match="bool"):
        nn.penalize_repetition(vnp.zeros(3), vnp.zeros(3), 2.0)
    with pytest.raises(ArgumentError, match="above 0"):
        nn.penalize_repetition(vnp.zeros(3), vnp.zeros(3, bool), 0)
    with pytest.raises(ArgumentError, match="at least 1"):
        nn.top_k_filter(vnp.zeros(3), 0)


def test_all_tokens_reach_probability_1() -> None:
    """The sum of many probabilities is 1 by rounding before the last of them."""
    logits = np.concatenate([[0.0], np.full(5000, -20.0)]).astype(np.float32)
    assert np.isfinite(nn.top_p_filter(vnp.asarray(logits), 1.0)).all()
    np.testing.assert_array_equal(nn.Sampler(top_p=1.0, top_k=4000).filtered(logits), nn.Sampler(top_k=4000).filtered(logits))


@pytest.mark.parametrize("temperature", [1e-37, 1e-39, 1e-45, 1e-60])
def test_the_greatest_logit_is_chosen_at_temperatures_that_logits_cannot_be_divided_by(temperature: float) -> None:
    logits = vnp.array([[1.0, 2.0, 0.5], [-3.0, -2.0, -1.0]])
    for sampler in (
        nn.Sampler(temperature=temperature),
        nn.Sampler(temperature=temperature, top_k=2),
        nn.Sampler(temperature=temperature, top_p=0.9),
    ):
        assert sampler(logits, vf.random.key(0)).tolist() == [1, 2]
        np.testing.assert_array_equal(np.isfinite(sampler.filtered(logits)), [[False, True, False], [False, False, True]])

"""Sparse layers beside a sum over all experts, token by token, and the balancing loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.language.layers import Experts


def experts_of(count: int) -> Experts:
    config = nn.CausalLMConfig(
        model_type="qwen3_moe", vocab_size=8, hidden_size=6, intermediate_size=5, num_hidden_layers=1, num_attention_heads=2,
        num_experts=count, num_experts_per_tok=1, initializer_range=0.5,
    )  # fmt: skip
    return Experts.init(vf.random.key(0), config)


def oracle(experts: Experts, x: np.ndarray, indices: np.ndarray, weights: np.ndarray) -> np.ndarray:
    gate_up, down = (np.asarray(w, np.float64) for w in (experts.gate_up_proj, experts.down_proj))
    out = np.zeros(x.shape)
    for token in range(x.shape[0]):
        for e, weight in zip(indices[token], weights[token], strict=True):
            gate, up = np.split(gate_up[e] @ x[token], 2)
            out[token] += weight * (down[e] @ (gate / (1 + np.exp(-gate)) * up))
    return out


@pytest.mark.parametrize("how", ["random", "all to one", "first and last"])
@pytest.mark.parametrize(("tokens", "top_k", "count"), [(1, 1, 3), (1, 2, 4), (9, 2, 4), (40, 3, 5), (33, 1, 2), (0, 2, 4), (5, 1, 1)])
def test_results(tokens: int, top_k: int, count: int, how: str) -> None:
    rng = np.random.default_rng(tokens)
    x = rng.standard_normal((tokens, 6)).astype(np.float32)
    indices = np.array([rng.permutation(count)[:top_k] for _ in range(tokens)], np.int32).reshape(tokens, top_k)
    if how == "all to one":
        indices[:] = (np.arange(top_k) + count - 1) % count
    if how == "first and last":
        indices[:] = np.where(np.arange(top_k) % 2, 0, count - 1)
    weights = rng.random((tokens, top_k)).astype(np.float32)
    experts = experts_of(count)
    out = vf.jit(lambda e, *args: e(*args))(experts, vnp.asarray(x), vnp.asarray(indices), vnp.asarray(weights))
    np.testing.assert_allclose(np.asarray(out), oracle(experts, x, indices, weights), rtol=1e-4, atol=1e-5)


def test_gradients() -> None:
    """Those of a dense sum over all experts, in which the others have weight 0."""
    rng = np.random.default_rng(1)
    experts = experts_of(4)
    x = vnp.asarray(rng.standard_normal((13, 6)).astype(np.float32))
    indices = vnp.asarray(np.array([rng.permutation(4)[:2] for _ in range(13)], np.int32))
    weights = vnp.asarray(rng.random((13, 2)).astype(np.float32))

    def dense(experts: Experts, x: Any, weights: Any) -> Any:
        gate, up = vnp.split(vnp.einsum("th,efh->tef", x, experts.gate_up_proj), 2, -1)
        out = vnp.einsum("tef,edf->ted", nn.silu(gate) * up, experts.down_proj)
        shares = (nn.one_hot(indices, 4) * weights[..., None]).sum(1)
        return (vnp.sin(shares[..., None] * out).sum(1) ** 2).sum(), (shares[..., None] * out).sum(1)

    def loss(run: Any) -> Any:
        return lambda *args: vnp.sum(vnp.sin(run(*args)) ** 2)

    sparse = vf.grad(loss(lambda e, x, w: e(x, indices, w)), argnums=(0, 1, 2))(experts, x, weights)
    full = vf.grad(loss(lambda e, x, w: dense(e, x, w)[1]), argnums=(0, 1, 2))(experts, x, weights)
    for a, b in zip(vf.tree.leaves(sparse), vf.tree.leaves(full), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-5)


def test_load_balancing_loss() -> None:
    rng = np.random.default_rng(2)
    logits = rng.standard_normal((2, 3, 5, 4))
    mask = rng.random((3, 5)) < 0.7
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = np.zeros(4)
    means = np.zeros(4)
    for index in np.ndindex(2, 3, 5):
        if mask[index[1:]]:
            chosen[np.argsort(-logits[index])[:2]] += 1
            means += probabilities[index]
    total = 2 * mask.sum()
    expected = 4 * (chosen / total * means / total).sum()
    value = nn.load_balancing_loss([vnp.asarray(x, "float32") for x in logits], 2, vnp.asarray(mask))
    np.testing.assert_allclose(float(value), expected, rtol=1e-5)


def test_router_logits_of_a_model_give_the_loss() -> None:
    config = nn.CausalLMConfig.from_json(
        {"model_type": "mixtral", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4, "sliding_window": None}
    )  # fmt: skip
    model = nn.CausalLM.init(vf.random.key(0), config)
    tokens = vnp.array([[1, 2, 3]])

    def loss(model: nn.CausalLM) -> Any:
        hidden, _, routers = model.hidden(tokens)
        return vnp.mean(model.logits(hidden) ** 2) + 0.01 * nn.load_balancing_loss(routers, config.num_experts_per_tok)

    gradient = vf.grad(loss)(model)
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in vf.tree.leaves(gradient))
    assert float(vnp.abs(gradient.model.layers[0].mlp.gate.weight).max()) > 0


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="at least one layer"):
        nn.load_balancing_loss([], 1)
    with pytest.raises(ArgumentError, match="between 1 and 4"):
        nn.load_balancing_loss([vnp.zeros((2, 4))], 5)
    with pytest.raises(ShapeError, match="one shape"):
        nn.load_balancing_loss([vnp.zeros((2, 4)), vnp.zeros((3, 4))], 1)
    with pytest.raises(ShapeError, match="the mask"):
        nn.load_balancing_loss([vnp.zeros((2, 4))], 1, vnp.ones(3, bool))


def test_experts_that_no_token_chose_add_nothing_even_if_they_overflow() -> None:
    """Blocks of quantised experts are filled up with other tokens, whose results are dropped."""
    gate_up = np.ones((2, 8, 4), np.float32)
    gate_up[1] *= 1e25
    experts = nn.quantize(Experts(vnp.asarray(gate_up), vnp.ones((2, 4, 4))), "int8")
    x = np.ones((5, 4), np.float32)
    out = experts(vnp.asarray(x), vnp.zeros((5, 1), "int32"), vnp.ones((5, 1)))
    np.testing.assert_allclose(out, oracle(Experts(gate_up[:1], np.ones((1, 4, 4))), x, np.zeros((5, 1), int), np.ones((5, 1))), rtol=0.02)


@pytest.mark.wide
def test_load_balancing_loss_keeps_float64() -> None:
    logits = np.random.default_rng(0).normal(size=(7, 3))
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = np.zeros((7, 3))
    np.put_along_axis(chosen, np.argsort(-shares, -1)[:, :2], 1.0, -1)
    for mask in (None, np.ones(7, bool)):
        value = nn.load_balancing_loss([vnp.asarray(logits, "float64")], 2, mask)
        assert value.dtype == "float64"
        np.testing.assert_allclose(value, 3 * (chosen.mean(0) * shares.mean(0)).sum(), rtol=1e-14)

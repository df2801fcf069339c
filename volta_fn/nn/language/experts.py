"""Sparse layers: a router chooses some of many experts for each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from volta_fn import lax, random, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.dtypes import accumulator
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.activations import one_hot, sigmoid
from volta_fn.nn.language.config import CausalLMConfig
from volta_fn.nn.language.layers import DecoderMLP, Projection, activation
from volta_fn.nn.module import Module, static
from volta_fn.scipy.special.exponential import softmax

__all__ = ["Experts", "SparseMLP", "load_balancing_loss"]


#: Products of rows in groups with the transposes of their matrices.
_TRANSPOSED = lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), (0,), (0,))


class Experts(Module):
    """Gated feed-forward layers, of which each token passes some.

    `gate_up_proj` has shape (experts, 2 inner, hidden), `down_proj` (experts, hidden, inner).
    Both may be quantised (`nn.quantize`).
    """

    gate_up_proj: Array
    down_proj: Array
    hidden_act: str = static(default="silu")

    @classmethod
    def init(cls, key: Any, config: CausalLMConfig) -> Self:
        """Create the experts with the config's initial weights."""
        inner = config.intermediate_size if config.moe_intermediate_size is None else config.moe_intermediate_size
        first, second = random.split(key)
        shapes = (config.num_experts, 2 * inner, config.hidden_size), (config.num_experts, config.hidden_size, inner)
        gate_up, down = (
            (random.normal(k, shape, config.dtype) * config.initializer_range).astype(config.dtype)
            for k, shape in zip((first, second), shapes, strict=True)
        )
        return cls(gate_up, down, config.hidden_act)

    def __call__(self, x: Array, indices: Array, weights: Array) -> Array:
        """Return the weighted sum of the results of each token's experts.

        Tokens are sorted by expert and cut into blocks of one expert each (Gale et al. 2022), so that no token is dropped and only the
        chosen experts are computed, whatever the router does. `lax.ragged_dot` does so, except for quantised weights.

        Args:
            x: tokens, of shape (T, hidden).
            indices: the experts of each token, integers of shape (T, k).
            weights: of the experts' results, of shape (T, k).
        """
        tokens, chosen = indices.shape
        if tokens * chosen == 0:
            return vnp.zeros_like(x)
        if not (isinstance(self.gate_up_proj, Array) and isinstance(self.down_proj, Array)):
            return self._by_blocks(x, indices, weights)
        flat = indices.reshape(-1)
        order = vnp.argsort(flat, stable=True)
        sizes = vnp.bincount(flat, length=self.gate_up_proj.shape[0])
        gate, up = vnp.split(lax.ragged_dot_general(x[order // chosen], self.gate_up_proj, sizes, _TRANSPOSED), 2, -1)
        results = lax.ragged_dot_general(activation(self.hidden_act)(gate) * up, self.down_proj, sizes, _TRANSPOSED)
        by_token = results[vnp.argsort(order)].reshape(tokens, chosen, -1)
        return (by_token * weights[..., None].astype(by_token.dtype)).sum(1).astype(x.dtype)

    def _by_blocks(self, x: Array, indices: Array, weights: Array) -> Array:
        """Return the same of quantised weights, whose products are of one matrix each."""
        tokens, chosen = indices.shape
        experts = self.gate_up_proj.shape[0]
        block = _block_size(tokens * chosen, experts)
        flat = indices.reshape(-1)
        order = vnp.argsort(flat, stable=True)
        sizes = vnp.bincount(flat, length=experts)
        blocks = (sizes + block - 1) // block
        ends = vnp.cumsum(blocks)
        count = min(tokens * chosen, tokens * chosen // block + experts)  # no more blocks, however tokens are distributed
        expert = vnp.minimum(vnp.searchsorted(ends, vnp.arange(count), side="right"), experts - 1)
        first = vnp.cumsum(sizes) - sizes  # where an expert's tokens begin in `order`
        row = (vnp.arange(count) - (ends - blocks)[expert])[:, None] * block + vnp.arange(block)  # within the expert's tokens
        used = (row < sizes[expert][:, None]) & (vnp.arange(count) < ends[-1])[:, None]
        entry = order[vnp.clip(first[expert][:, None] + row, 0, tokens * chosen - 1)]
        act = activation(self.hidden_act)

        def step(carry: None, inputs: tuple[Array, Array]) -> tuple[None, Array]:
            index, rows = inputs
            weights = (self.gate_up_proj, self.down_proj)
            gate_up, down = tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, index, 0, keepdims=False), weights)
            gate, up = vnp.split(rows @ gate_up.T, 2, -1)
            return carry, (act(gate) * up) @ down.T

        _, results = lax.scan(step, None, (expert, x[entry // chosen]))
        scaled = results * vnp.where(used, weights.reshape(-1)[entry], 0)[..., None].astype(results.dtype)
        return vnp.zeros_like(x).at[(entry // chosen).reshape(-1)].add(scaled.reshape(-1, x.shape[-1]))


def _block_size(entries: int, experts: int) -> int:
    """Return how many tokens a block has: a power of two near the mean per expert."""
    return 1 if entries <= experts else min(1 << (entries // experts).bit_length() - 1, 128)


class SparseMLP(Module):
    """A router, its experts, and an optional expert that sees every token.

    The router's softmax chooses the experts of the greatest probabilities (Shazeer et al. 2017), which weigh their results.
    """

    gate: Projection
    experts: Experts
    shared_expert: DecoderMLP | None = None
    shared_expert_gate: Projection | None = None
    top_k: int = static(default=2)
    normalize: bool = static(default=False)

    @classmethod
    def init(cls, key: Any, config: CausalLMConfig) -> Self:
        """Create the layer with the config's initial weights."""
        keys = random.split(key, 4)
        inner, std, dtype = config.shared_expert_intermediate_size, config.initializer_range, config.dtype
        gate = Projection.init(keys[0], config.hidden_size, config.num_experts, std=std, dtype=dtype)
        experts = Experts.init(keys[1], config)
        shared = DecoderMLP.init(keys[2], config, inner) if inner else None
        shared_gate = Projection.init(keys[3], config.hidden_size, 1, std=std, dtype=dtype) if inner else None
        return cls(gate, experts, shared, shared_gate, config.num_experts_per_tok, config.norm_topk_prob)

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Return the result, of the shape of `x`, and the router's logits (…, experts)."""
        rows = x.reshape(-1, x.shape[-1])
        logits = self.gate(rows)
        weights, indices = lax.top_k(softmax(logits.astype(accumulator(logits.dtype)), -1), self.top_k)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdims=True)
        out = self.experts(rows, indices, weights)
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            out = out + sigmoid(self.shared_expert_gate(rows)) * self.shared_expert(rows)
        return out.reshape(x.shape), logits.reshape(*x.shape[:-1], logits.shape[-1])


def load_balancing_loss(router_logits: Sequence[Any], top_k: int, mask: Any = None) -> Array:
    """Return how unequally routers use their experts: `top_k` if equally, more if not.

    It is experts · Σₑ fₑ Pₑ, of the fraction fₑ of tokens that expert e sees and the mean Pₑ of its probability, over all layers together
    (Fedus et al. 2021, equations 4 to 6; with `top_k` experts per token, as in Mixtral). Training adds it, times a small number, to the
    loss.

    Args:
        router_logits: the logits of each sparse layer, of shape (…, experts).
        top_k: how many experts see a token.
        mask: bool of shape (…), False for padding.

    Raises:
        ArgumentError: there are no layers, or more experts per token than experts. ShapeError: shapes that differ.

    >>> nn.load_balancing_loss([jnp.zeros((1, 4, 2))], 2)
    Array(2., dtype=float32)
    """
    layers = [as_value(x) for x in router_logits]
    if not layers:
        raise ArgumentError("load_balancing_loss: logits of at least one layer are needed, got none")
    shape = layers[0].shape
    if any(x.shape != shape for x in layers) or not shape:
        raise ShapeError(f"load_balancing_loss: layers' logits have one shape (…, experts), got {[x.shape for x in layers]}")
    if not 0 < top_k <= shape[-1]:
        raise ArgumentError(f"load_balancing_loss: top_k is between 1 and {shape[-1]}, got {top_k}")
    probabilities = softmax(vnp.stack(layers).astype("float32"), -1)
    _, indices = lax.top_k(probabilities, top_k)
    seen = one_hot(indices, shape[-1]).sum(-2)
    valid = vnp.ones(shape[:-1]) if mask is None else as_value(mask).astype("float32")
    if valid.shape != shape[:-1]:
        raise ShapeError(f"load_balancing_loss: the mask has shape {shape[:-1]}, got {valid.shape}")
    axes = tuple(range(len(shape)))
    total = vnp.maximum(valid.sum() * len(layers), 1)
    fractions, means = ((x * valid[..., None]).sum(axes) / total for x in (seen, probabilities))
    return shape[-1] * (fractions * means).sum()

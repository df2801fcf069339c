"""Transformer layers that write one sequence while they read another, the memory: the second half of translation and the like."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from volta_fn import random
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.nn.activations import relu
from volta_fn.nn.layers.common import split_key
from volta_fn.nn.layers.dropout import Dropout
from volta_fn.nn.layers.layer_norm import LayerNorm
from volta_fn.nn.module import Module, static
from volta_fn.nn.transformer.base import Stack, residual
from volta_fn.nn.transformer.feed_forward import FeedForward
from volta_fn.nn.transformer.kv_cache import KeysValues, KVCache
from volta_fn.nn.transformer.multi_head_attention import MultiHeadAttention

__all__ = ["DecoderCache", "TransformerDecoder", "TransformerDecoderLayer"]


class DecoderCache(NamedTuple):
    """What a decoder layer keeps from step to step: its places so far, and the memory's keys and values, which stay."""

    own: KVCache
    memory: KeysValues


class TransformerDecoderLayer(Module):
    """Self-attention, attention to a memory, then `FeedForward`, each with a residual connection and a norm (Vaswani et al. 2017).

    PyTorch's `multihead_attn` is `cross_attn`, its `linear1` and `linear2` are those of `feed_forward`. See `TransformerEncoderLayer` for
    the norms, `MultiHeadAttention` for what masks mean.

    >>> import volta_fn as vf
    >>> layer = vf.nn.TransformerDecoderLayer.init(vf.random.key(0), 16, 4, 32)
    >>> layer(vf.numpy.ones((2, 5, 16)), vf.numpy.ones((2, 7, 16)), is_causal=True).shape
    (2, 5, 16)
    """

    self_attn: MultiHeadAttention
    cross_attn: MultiHeadAttention
    feed_forward: FeedForward
    norm1: Module
    norm2: Module
    norm3: Module
    dropout: Dropout = Dropout(0.0)
    norm_first: bool = static(default=False)

    @classmethod
    def init(
        cls,
        key: Any,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        *,
        dropout: float = 0.1,
        activation: Callable[[Any], Any] = relu,
        norm_first: bool = False,
        bias: bool = True,
        norm: Callable[..., Any] = LayerNorm.init,
        gated: bool = False,
        num_kv_heads: int | None = None,
        rotary_base: float | None = None,
        rotary_interleaved: bool = False,
        dtype: Any = "float32",
    ) -> Self:
        """Weights as those of `MultiHeadAttention` and `FeedForward`; the arguments are those of `TransformerEncoderLayer.init`.

        Rotary positions are those of the self-attention. Raises `ArgumentError` for sizes that do not fit.
        """
        first, second, third = random.split(key, 3)
        shared: dict[str, Any] = {"num_kv_heads": num_kv_heads, "bias": bias, "dropout": dropout, "dtype": dtype}
        own = MultiHeadAttention.init(first, d_model, nhead, rotary_base=rotary_base, rotary_interleaved=rotary_interleaved, **shared)
        cross = MultiHeadAttention.init(second, d_model, nhead, **shared)
        feed_forward = FeedForward.init(
            third, d_model, dim_feedforward, activation=activation, gated=gated, bias=bias, dropout=dropout, dtype=dtype
        )
        first_norm, second_norm, third_norm = (norm(d_model, dtype=dtype) for _ in range(3))
        return cls(own, cross, feed_forward, first_norm, second_norm, third_norm, Dropout.init(dropout), norm_first)

    def init_cache(self, memory: Any, max_length: int, *, dtype: Any = None) -> DecoderCache:
        """An empty cache for sequences of at most `max_length` places that are written while `memory`, (…, S, d_model), is read."""
        value = as_value(memory)
        known = self.cross_attn.project(value)
        return DecoderCache(self.self_attn.init_cache(value.shape[:-2], max_length, dtype=dtype), known)

    def __call__(
        self,
        x: Any,
        memory: Any = None,
        *,
        mask: Any = None,
        key_mask: Any = None,
        memory_mask: Any = None,
        memory_key_mask: Any = None,
        is_causal: bool = False,
        positions: Any = None,
        cache: DecoderCache | None = None,
        key: Any = None,
        training: bool = False,
    ) -> Any:
        """The layer's output; with a cache the pair of that and the new cache.

        Args:
            x: shape (…, T, d_model).
            memory: shape (…, S, d_model); left out with a cache, which knows it.
            mask, key_mask, is_causal, positions: of the self-attention, see `MultiHeadAttention`.
            memory_mask, memory_key_mask: `mask` and `key_mask` of the attention to the memory.
            cache: what `init_cache` or the last call returned.
            key: of the dropout; needed if there is some, in training.
            training: whether to drop.

        Raises:
            ShapeError, DTypeError: the arrays do not fit. ArgumentError: arguments exclude each other, or one is missing.
            ArgumentTypeError: the key is missing.
        """
        if (memory is None) == (cache is None):
            raise ArgumentError("TransformerDecoderLayer: either a memory is given or a cache, which init_cache made with the memory")
        own, read = (None, memory) if cache is None else (cache.own, cache.memory)
        for_own, for_memory, for_feed_forward, *for_sums = split_key(key, 6)
        drops = [functools.partial(self.dropout, key=k, training=training) for k in for_sums]
        shown: dict[str, Any] = {"mask": mask, "key_mask": key_mask, "is_causal": is_causal, "positions": positions, "cache": own}

        def gather(h: Array) -> tuple[Array, KVCache | None]:
            return self.self_attn.attend(h, **shown, key=for_own, training=training)

        def recall(h: Array) -> tuple[Array, None]:
            return self.cross_attn(h, read, mask=memory_mask, key_mask=memory_key_mask, key=for_memory, training=training), None

        def digest(h: Array) -> tuple[Array, None]:
            return self.feed_forward(h, key=for_feed_forward, training=training), None

        y, new = residual(as_value(x), gather, self.norm1, drops[0], self.norm_first)
        y, _ = residual(y, recall, self.norm2, drops[1], self.norm_first)
        y, _ = residual(y, digest, self.norm3, drops[2], self.norm_first)
        return y if cache is None or new is None else (y, cache._replace(own=new))


class TransformerDecoder(Stack):
    """Layers on top of each other, and a last norm.

    With `remat` the layers' intermediate values are computed again in the backward pass instead of kept, see `checkpoint`.

    >>> import volta_fn as vf
    >>> decoder = vf.nn.TransformerDecoder.init(vf.random.key(0), 2, 16, 4, 32)
    >>> x, memory = vf.numpy.ones((2, 5, 16)), vf.numpy.ones((2, 7, 16))
    >>> decoder(x, memory, is_causal=True).shape
    (2, 5, 16)
    >>> cache = decoder.init_cache(memory, max_length=5)
    >>> y, cache = decoder(x[:, :1], cache=cache)
    """

    layer = TransformerDecoderLayer

    def init_cache(self, memory: Any, max_length: int, *, dtype: Any = None) -> tuple[DecoderCache, ...]:
        """An empty cache for each layer, for sequences of at most `max_length` places and that memory, (…, S, d_model)."""
        return tuple([layer.init_cache(memory, max_length, dtype=dtype) for layer in self.layers])

    def __call__(
        self,
        x: Any,
        memory: Any = None,
        *,
        mask: Any = None,
        key_mask: Any = None,
        memory_mask: Any = None,
        memory_key_mask: Any = None,
        is_causal: bool = False,
        positions: Any = None,
        cache: Sequence[DecoderCache] | None = None,
        key: Any = None,
        training: bool = False,
    ) -> Any:
        """The last layer's output, normalised; with a cache (one for each layer) the pair of that and the new cache.

        The arguments are those of `TransformerDecoderLayer`.
        """
        arrays = {"memory": memory, "mask": mask, "key_mask": key_mask, "positions": positions}
        arrays |= {"memory_mask": memory_mask, "memory_key_mask": memory_key_mask}
        return self._run(x, arrays, {"is_causal": is_causal, "training": training}, cache, key)

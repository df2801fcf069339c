"""Transformer decoders: layers that write a sequence and read another, the memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from volta_fn.core.array import as_value
from volta_fn.errors import ArgumentError
from volta_fn.nn.layers.common import split_key
from volta_fn.nn.layers.dropout import Dropout
from volta_fn.nn.module import Module, static
from volta_fn.nn.transformer.base import Stack, TransformerLayer, residual
from volta_fn.nn.transformer.feed_forward import FeedForward
from volta_fn.nn.transformer.kv_cache import KeysValues, KVCache
from volta_fn.nn.transformer.multi_head_attention import MultiHeadAttention

__all__ = ["DecoderCache", "TransformerDecoder", "TransformerDecoderLayer"]


class DecoderCache(NamedTuple):
    """The cache of the self-attention, and the memory's keys and values."""

    own: KVCache
    memory: KeysValues


class TransformerDecoderLayer(TransformerLayer):
    """Self-attention, attention to a memory, and `FeedForward`.

    Each has a residual connection and a norm (Vaswani et al. 2017). PyTorch's `multihead_attn` is `cross_attn`, its `linear1` and
    `linear2` are those of `feed_forward`. See `MultiHeadAttention` for the meaning of masks.

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

    _has_memory = True

    def init_cache(self, memory: Any, max_length: int, *, dtype: Any = None) -> DecoderCache:
        """Return an empty cache for sequences of at most `max_length` positions.

        `memory`, of shape (…, S, d_model), is what the sequences read.
        """
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
        """Return the layer's output; with a cache, paired with the new cache.

        Args:
            x: shape (…, T, d_model).
            memory: shape (…, S, d_model); omitted with a cache, which contains it.
            mask, key_mask, is_causal, positions: those of the self-attention, see `MultiHeadAttention`.
            memory_mask, memory_key_mask: `mask` and `key_mask` of the attention to the memory.
            cache: the one that `init_cache` or the last call returned.
            key: of the dropout; needed if there is dropout, in training.
            training: whether to drop.

        Raises:
            ShapeError, DTypeError: the arrays do not fit. ArgumentError: arguments exclude each other, or one is missing.
            ArgumentTypeError: the key is missing.
        """
        if (memory is None) == (cache is None):
            raise ArgumentError("TransformerDecoderLayer: either a memory is given or a cache, which init_cache made with the memory")
        own, read = (None, memory) if cache is None else (cache.own, cache.memory)
        keys = split_key(key, 6)
        options: dict[str, Any] = {"mask": mask, "key_mask": key_mask, "is_causal": is_causal, "positions": positions, "cache": own}
        attend = functools.partial(self.self_attn, **options, key=keys[0], training=training)
        options = {"context": read, "mask": memory_mask, "key_mask": memory_key_mask}
        attend_to_memory = functools.partial(self.cross_attn, **options, key=keys[1], training=training)
        feed_forward = functools.partial(self.feed_forward, key=keys[2], training=training)
        y, new = residual(self, as_value(x), attend, self.norm1, keys[3], training)
        y, _ = residual(self, y, attend_to_memory, self.norm2, keys[4], training)
        y, _ = residual(self, y, feed_forward, self.norm3, keys[5], training)
        return y if cache is None else (y, cache._replace(own=new))


class TransformerDecoder(Stack):
    """A stack of `TransformerDecoderLayer` and a last norm.

    With `remat` the backward pass recomputes the layers' intermediate values instead of storing them, see `checkpoint`.

    >>> decoder = vf.nn.TransformerDecoder.init(vf.random.key(0), 2, 16, 4, 32)
    >>> x, memory = vf.numpy.ones((2, 5, 16)), vf.numpy.ones((2, 7, 16))
    >>> decoder(x, memory, is_causal=True).shape
    (2, 5, 16)
    >>> cache = decoder.init_cache(memory, max_length=5)
    >>> y, cache = decoder(x[:, :1], cache=cache)
    """

    layer = TransformerDecoderLayer

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
        """Return the output; with a cache for each layer, paired with the new ones.

        The arguments are those of `TransformerDecoderLayer`.
        """
        arrays = {"memory": memory, "mask": mask, "key_mask": key_mask, "positions": positions}
        arrays |= {"memory_mask": memory_mask, "memory_key_mask": memory_key_mask}
        return self._run(x, arrays, {"is_causal": is_causal, "training": training}, cache, key)

"""Transformer encoders; with `is_causal`, language models such as GPT and Llama."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from volta_fn.core.array import as_value
from volta_fn.nn.layers.common import split_key
from volta_fn.nn.layers.dropout import Dropout
from volta_fn.nn.module import Module, static
from volta_fn.nn.transformer.base import Stack, TransformerLayer, residual
from volta_fn.nn.transformer.feed_forward import FeedForward
from volta_fn.nn.transformer.kv_cache import KVCache
from volta_fn.nn.transformer.multi_head_attention import MultiHeadAttention

__all__ = ["TransformerEncoder", "TransformerEncoderLayer"]


class TransformerEncoderLayer(TransformerLayer):
    """Self-attention and `FeedForward`, with residual connections and norms.

    See Vaswani et al. (2017). Inputs are (batch, time, d_model). PyTorch's `linear1` and `linear2` are those of `feed_forward`; see
    `MultiHeadAttention` for `self_attn` and for the meaning of masks.

    >>> layer = vf.nn.TransformerEncoderLayer.init(vf.random.key(0), 16, 4, 32, norm_first=True)
    >>> layer(vf.numpy.ones((2, 5, 16)), key=vf.random.key(1), training=True).shape
    (2, 5, 16)
    """

    self_attn: MultiHeadAttention
    feed_forward: FeedForward
    norm1: Module
    norm2: Module
    dropout: Dropout = Dropout(0.0)
    norm_first: bool = static(default=False)

    def init_cache(self, batch: int | tuple[int, ...], max_length: int, *, dtype: Any = None) -> KVCache:
        """Return an empty cache for `batch` sequences of up to `max_length` positions."""
        return self.self_attn.init_cache(batch, max_length, dtype=dtype)

    def __call__(
        self,
        x: Any,
        *,
        mask: Any = None,
        key_mask: Any = None,
        is_causal: bool = False,
        positions: Any = None,
        cache: KVCache | None = None,
        key: Any = None,
        training: bool = False,
    ) -> Any:
        """Return the layer's output; with a cache, paired with the new cache.

        Args:
            x: shape (…, T, d_model).
            mask, key_mask, is_causal, positions, cache: those of the self-attention, see `MultiHeadAttention`.
            key: of the dropout; needed if there is dropout, in training.
            training: whether to drop.

        Raises:
            ShapeError, DTypeError: the arrays do not fit. ArgumentError: arguments exclude each other.
            ArgumentTypeError: the key is missing.
        """
        keys = split_key(key, 4)
        options: dict[str, Any] = {"mask": mask, "key_mask": key_mask, "is_causal": is_causal, "positions": positions, "cache": cache}
        attend = functools.partial(self.self_attn, **options, key=keys[0], training=training)
        feed_forward = functools.partial(self.feed_forward, key=keys[1], training=training)
        y, new = residual(self, as_value(x), attend, self.norm1, keys[2], training)
        y, _ = residual(self, y, feed_forward, self.norm2, keys[3], training)
        return y if cache is None else (y, new)


class TransformerEncoder(Stack):
    """A stack of `TransformerEncoderLayer` and a last norm.

    With `remat` the backward pass recomputes the layers' intermediate values instead of storing them, see `checkpoint`.

    >>> encoder = vf.nn.TransformerEncoder.init(vf.random.key(0), 2, 16, 4, 32, norm_first=True)
    >>> encoder(vf.numpy.ones((2, 5, 16)), is_causal=True).shape
    (2, 5, 16)
    """

    layer = TransformerEncoderLayer

    def __call__(
        self,
        x: Any,
        *,
        mask: Any = None,
        key_mask: Any = None,
        is_causal: bool = False,
        positions: Any = None,
        cache: Sequence[KVCache] | None = None,
        key: Any = None,
        training: bool = False,
    ) -> Any:
        """Return the output; with a cache for each layer, paired with the new ones.

        The arguments are those of `TransformerEncoderLayer`.
        """
        arrays = {"mask": mask, "key_mask": key_mask, "positions": positions}
        return self._run(x, arrays, {"is_causal": is_causal, "training": training}, cache, key)

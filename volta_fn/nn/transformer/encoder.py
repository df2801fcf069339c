"""Transformer layers that read one sequence, and stacks of them: encoders, and with `is_causal` language models such as GPT and Llama."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

from volta_fn import random
from volta_fn.core.array import Array, as_value
from volta_fn.nn.activations import relu
from volta_fn.nn.layers.common import split_key
from volta_fn.nn.layers.dropout import Dropout
from volta_fn.nn.layers.layer_norm import LayerNorm
from volta_fn.nn.module import Module, static
from volta_fn.nn.transformer.base import Stack, residual
from volta_fn.nn.transformer.feed_forward import FeedForward
from volta_fn.nn.transformer.kv_cache import KVCache
from volta_fn.nn.transformer.multi_head_attention import MultiHeadAttention

__all__ = ["TransformerEncoder", "TransformerEncoderLayer"]


class TransformerEncoderLayer(Module):
    """Self-attention, then `FeedForward`, each with a residual connection and a norm (Vaswani et al. 2017).

    Inputs are (batch, time, d_model). After each residual sum comes the norm (post-norm), or with `norm_first` before each part (pre-norm,
    Xiong et al. 2020). PyTorch's `linear1` and `linear2` are those of `feed_forward`; see `MultiHeadAttention` for `self_attn` and for
    what masks mean.

    >>> import volta_fn as vf
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
        """Weights as those of `MultiHeadAttention` and `FeedForward`.

        Args:
            key: of the random weights.
            d_model: features of input and output, a multiple of `nhead`.
            nhead: heads of the attention.
            dim_feedforward: features inside the feed-forward part.
            dropout: the share that is dropped in training, of attention weights, of the features inside the feed-forward part, and of
                what both parts add.
            activation: that of the feed-forward part.
            norm_first: whether the norms come before the parts instead of after the sums.
            bias: whether the matrix products have biases.
            norm: builds a norm when called ``norm(d_model, dtype=dtype)``, such as `nn.RMSNorm.init`.
            gated: whether the feed-forward part has a gate.
            num_kv_heads: heads of keys and values (default: nhead).
            rotary_base: the base of rotary positions; None for none.
            rotary_interleaved: how features pair up for rotary positions.
            dtype: of the parameters.

        Raises:
            ArgumentError: sizes are no natural numbers, or one does not divide the other.

        >>> import volta_fn as vf
        >>> llama = {"norm": vf.nn.RMSNorm.init, "norm_first": True, "bias": False, "activation": vf.nn.silu, "gated": True}
        >>> layer = vf.nn.TransformerEncoderLayer.init(vf.random.key(0), 16, 4, 32, num_kv_heads=2, rotary_base=10000.0, **llama)
        """
        first, second = random.split(key)
        attention = MultiHeadAttention.init(
            first,
            d_model,
            nhead,
            num_kv_heads=num_kv_heads,
            bias=bias,
            dropout=dropout,
            rotary_base=rotary_base,
            rotary_interleaved=rotary_interleaved,
            dtype=dtype,
        )
        feed_forward = FeedForward.init(
            second, d_model, dim_feedforward, activation=activation, gated=gated, bias=bias, dropout=dropout, dtype=dtype
        )
        return cls(attention, feed_forward, norm(d_model, dtype=dtype), norm(d_model, dtype=dtype), Dropout.init(dropout), norm_first)

    def init_cache(self, batch: int | tuple[int, ...], max_length: int, *, dtype: Any = None) -> KVCache:
        """An empty cache for `batch` sequences of at most `max_length` places."""
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
        """The layer's output; with a cache the pair of that and the new cache.

        Args:
            x: shape (…, T, d_model).
            mask, key_mask, is_causal, positions, cache: of the self-attention, see `MultiHeadAttention`.
            key: of the dropout; needed if there is some, in training.
            training: whether to drop.

        Raises:
            ShapeError, DTypeError: the arrays do not fit. ArgumentError: arguments exclude each other.
            ArgumentTypeError: the key is missing.
        """
        for_attention, for_feed_forward, *for_sums = split_key(key, 4)
        drops = [functools.partial(self.dropout, key=k, training=training) for k in for_sums]
        shown: dict[str, Any] = {"mask": mask, "key_mask": key_mask, "is_causal": is_causal, "positions": positions, "cache": cache}

        def gather(h: Array) -> tuple[Array, KVCache | None]:
            return self.self_attn.attend(h, **shown, key=for_attention, training=training)

        def digest(h: Array) -> tuple[Array, None]:
            return self.feed_forward(h, key=for_feed_forward, training=training), None

        y, new = residual(as_value(x), gather, self.norm1, drops[0], self.norm_first)
        y, _ = residual(y, digest, self.norm2, drops[1], self.norm_first)
        return y if new is None else (y, new)


class TransformerEncoder(Stack):
    """Layers on top of each other, and a last norm.

    With `remat` the layers' intermediate values are computed again in the backward pass instead of kept, see `checkpoint`.

    >>> import volta_fn as vf
    >>> encoder = vf.nn.TransformerEncoder.init(vf.random.key(0), 2, 16, 4, 32, norm_first=True)
    >>> encoder(vf.numpy.ones((2, 5, 16)), is_causal=True).shape
    (2, 5, 16)
    """

    layer = TransformerEncoderLayer

    def init_cache(self, batch: int | tuple[int, ...], max_length: int, *, dtype: Any = None) -> tuple[KVCache, ...]:
        """An empty cache for each layer, for `batch` sequences of at most `max_length` places."""
        return tuple([layer.init_cache(batch, max_length, dtype=dtype) for layer in self.layers])

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
        """The last layer's output, normalised; with a cache (one for each layer) the pair of that and the new cache.

        The arguments are those of `TransformerEncoderLayer`.
        """
        arrays = {"mask": mask, "key_mask": key_mask, "positions": positions}
        return self._run(x, arrays, {"is_causal": is_causal, "training": training}, cache, key)

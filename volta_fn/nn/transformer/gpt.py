"""GPT: a causal decoder of tokens, a language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from volta_fn import numpy as vnp
from volta_fn import random
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ShapeError
from volta_fn.nn.activations import gelu
from volta_fn.nn.layers.arguments import split_key
from volta_fn.nn.layers.dropout import Dropout
from volta_fn.nn.layers.linear import Embedding
from volta_fn.nn.module import Module
from volta_fn.nn.transformer.layers import TransformerEncoder
from volta_fn.nn.transformer.multi_head_attention import KVCache, LearnedPositions

__all__ = ["GPT"]


class GPT(Module):
    """A language model like GPT-2 (Radford et al. 2019): logits of each next token.

    Token and position embeddings, pre-norm transformer layers that see earlier positions only, and an output layer that shares the tokens'
    table. The loss is ``nn.cross_entropy(logits, next_tokens, axis=-1)``.

    >>> gpt = vf.nn.GPT.init(vf.random.key(0), 50, 16, num_layers=2, d_model=8, nhead=2)
    >>> tokens = vf.numpy.array([[1, 2, 3]])
    >>> gpt(tokens).shape
    (1, 3, 50)

    Step by step, with the keys and values of earlier positions in a cache:

    >>> logits, cache = gpt(tokens, cache=gpt.init_cache(1))
    >>> logits, cache = gpt(vf.numpy.argmax(logits[:, -1:], -1), cache=cache)
    >>> logits.shape
    (1, 1, 50)
    """

    tokens: Embedding
    positions: LearnedPositions
    dropout: Dropout
    layers: TransformerEncoder

    @classmethod
    def init(
        cls,
        key: Any,
        vocabulary_size: int,
        max_length: int,
        *,
        num_layers: int = 12,
        d_model: int = 768,
        nhead: int = 12,
        dim_feedforward: int | None = None,
        dropout: float = 0.1,
        activation: Any = gelu,
        dtype: Any = "float32",
        **options: Any,
    ) -> Self:
        """Create the model with GPT-2's initial weights, by default of its smallest size.

        Args:
            key: of the random weights.
            vocabulary_size, max_length: the number of tokens, and of positions.
            num_layers, d_model, nhead: layers, features and heads of attention.
            dim_feedforward: features inside the feed-forward layers (default: four times `d_model`).
            dropout, activation, dtype: those of `TransformerEncoderLayer`.
            options: other arguments of `TransformerEncoder.init`.

        Raises `ArgumentError` for sizes that are negative, no integers, or do not divide one another.
        """
        for_tokens, for_positions, for_layers = random.split(key, 3)
        tokens = Embedding.init(for_tokens, vocabulary_size, d_model, dtype=dtype)
        options = {"dropout": dropout, "activation": activation, "norm_first": True, "dtype": dtype} | options
        wide = 4 * d_model if dim_feedforward is None else dim_feedforward
        return cls(
            tokens.replace(weight=tokens.weight * 0.02),
            LearnedPositions.init(for_positions, max_length, d_model, dtype=dtype),
            Dropout.init(dropout),
            TransformerEncoder.init(for_layers, num_layers, d_model, nhead, wide, **options),
        )

    def init_cache(self, batch: int | tuple[int, ...], max_length: int | None = None, *, dtype: Any = None) -> tuple[KVCache, ...]:
        """Return an empty cache for `batch` sequences (by default of the greatest length)."""
        longest = self.positions.weight.shape[0] if max_length is None else max_length
        caches: tuple[KVCache, ...] = self.layers.init_cache(batch, longest, dtype=dtype)
        return caches

    def __call__(
        self, tokens: Any, *, key_mask: Any = None, cache: Sequence[KVCache] | None = None, key: Any = None, training: bool = False
    ) -> Any:
        """Return the logits of each next token; with a cache, paired with the new one.

        Args:
            tokens: integers of shape (…, T).
            key_mask: shape (…, T), False for padding.
            cache: what `init_cache` or the last call returned; `tokens` are those that follow.
            key: of the dropout; needed if there is dropout, in training.
            training: whether to drop.

        Returns:
            Shape (…, T, vocabulary_size).

        Raises:
            ShapeError: more tokens than positions, or arrays that do not fit. DTypeError: the tokens are not integers.
            ArgumentTypeError: the key is missing.
        """
        numbers = as_value(tokens)
        if numbers.ndim == 0:
            raise ShapeError("GPT: tokens have shape (…, T), got a single one")
        for_dropout, for_layers = split_key(key, 2)
        known = None if cache is None else cache[0].length + vnp.arange(numbers.shape[-1])
        x = self.dropout(self.positions(self.tokens(numbers), known), key=for_dropout, training=training)
        causal = {"is_causal": True} if cache is None else {"cache": cache}
        out = self.layers(x, key_mask=key_mask, key=for_layers, training=training, **causal)
        hidden, caches = (out, None) if cache is None else out
        logits: Array = self.tokens.attend(hidden)
        return logits if cache is None else (logits, caches)

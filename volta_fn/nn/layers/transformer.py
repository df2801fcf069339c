"""Transformer encoders and decoders, and GPT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

from volta_fn import numpy as vnp
from volta_fn import random
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.activations import gelu, relu
from volta_fn.nn.layers.arguments import check_sizes, split_key
from volta_fn.nn.layers.containers import Dropout
from volta_fn.nn.layers.linear import Embedding, Linear
from volta_fn.nn.layers.multi_head_attention import KeysValues, KVCache, LearnedPositions, MultiHeadAttention
from volta_fn.nn.layers.normalization import LayerNorm
from volta_fn.nn.module import Module, static
from volta_fn.transforms.checkpoint import checkpoint

__all__ = [
    "GPT",
    "DecoderCache",
    "FeedForward",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

# The feed-forward sublayer of transformers, applied to each position separately.


class FeedForward(Module):
    """linear2(activation(linear1(x))), optionally gated (Shazeer 2020).

    The gated form is linear2(activation(gate(x)) * linear1(x)). With `nn.silu` it is SwiGLU; Llama's w1, w3 and w2 are `gate`, `linear1`
    and `linear2`. Dropout applies to the input of `linear2`.

    >>> layer = vf.nn.FeedForward.init(vf.random.key(0), 8, 32, activation=vf.nn.silu, gated=True, bias=False)
    >>> layer
    FeedForward(  # 768 parameters
      linear1: Linear(weight: f32[8,32])  # 256
      linear2: Linear(weight: f32[32,8])  # 256
      gate: Linear(weight: f32[8,32])  # 256
      dropout: Dropout(p=0.0)
      activation=silu
    )
    >>> layer(vf.numpy.ones((2, 5, 8))).shape
    (2, 5, 8)
    """

    linear1: Linear
    linear2: Linear
    gate: Linear | None = None
    activation: Callable[[Any], Any] = static(default=relu)
    dropout: Dropout = Dropout(0.0)

    @classmethod
    def init(
        cls,
        key: Any,
        embed_dim: int,
        hidden_dim: int | None = None,
        *,
        activation: Callable[[Any], Any] = relu,
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        dtype: Any = "float32",
    ) -> Self:
        """Create the layer with the initial weights of `Linear`.

        Args:
            key: of the random weights.
            embed_dim: features of input and output.
            hidden_dim: hidden features (default: 4 * embed_dim).
            activation: a function of arrays.
            gated: whether the activation's result is a factor of `linear1`'s, as in GLU.
            bias: whether the products have biases.
            dropout: the probability of dropping a hidden feature in training.
            dtype: of the parameters.
        """
        hidden = 4 * embed_dim if hidden_dim is None else hidden_dim
        first, second, third = random.split(key, 3)
        up = Linear.init(first, embed_dim, hidden, bias=bias, dtype=dtype)
        down = Linear.init(second, hidden, embed_dim, bias=bias, dtype=dtype)
        gate = Linear.init(third, embed_dim, hidden, bias=bias, dtype=dtype) if gated else None
        return cls(up, down, gate, activation, Dropout.init(dropout))

    def __call__(self, x: Any, *, key: Any = None, training: bool = False) -> Array:
        """Return the result, of the shape of `x`, (…, embed_dim).

        Raises `ArgumentTypeError` if a key for the dropout is missing in training.
        """
        up = self.linear1(x)
        hidden = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        return self.linear2(self.dropout(hidden, key=key, training=training))


# Base classes of transformer layers and of stacks of them.


class TransformerLayer(Module):
    """Base of encoder and decoder layers, which declare sublayers and norms."""

    _has_memory: ClassVar[bool] = False

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
        """Create the layer, with weights as in `MultiHeadAttention` and `FeedForward`.

        Args:
            key: of the random weights.
            d_model: features of input and output, a multiple of `nhead`.
            nhead: heads of the attention.
            dim_feedforward: features inside the feed-forward sublayer.
            dropout: the probability of dropping attention weights, features inside the feed-forward sublayer, and outputs of sublayers.
            activation: that of the feed-forward sublayer.
            norm_first: whether norms come before the sublayers (pre-norm, Xiong et al. 2020) or after the residual sums (post-norm).
            bias: whether the matrix products have biases.
            norm: creates a norm when called ``norm(d_model, dtype=dtype)``, such as `nn.RMSNorm.init`.
            gated: whether the feed-forward sublayer has a gate.
            num_kv_heads: heads of keys and values (default: nhead).
            rotary_base: the base of rotary positions in self-attention; None for no rotary positions.
            rotary_interleaved: how features pair up for rotary positions.
            dtype: of the parameters.

        Raises:
            ArgumentError: sizes are negative or not integers, or do not divide one another.

        >>> llama = {"norm": vf.nn.RMSNorm.init, "norm_first": True, "bias": False, "activation": vf.nn.silu, "gated": True}
        >>> layer = vf.nn.TransformerEncoderLayer.init(vf.random.key(0), 16, 4, 32, num_kv_heads=2, rotary_base=10000.0, **llama)
        """
        count = 3 if cls._has_memory else 2
        keys = random.split(key, count)
        shared: dict[str, Any] = {"bias": bias, "dropout": dropout, "dtype": dtype}
        heads = {"num_kv_heads": num_kv_heads, **shared}
        rotary: dict[str, Any] = {"rotary_base": rotary_base, "rotary_interleaved": rotary_interleaved}
        self_attn = MultiHeadAttention.init(keys[0], d_model, nhead, **rotary, **heads)
        cross_attn = [MultiHeadAttention.init(keys[1], d_model, nhead, **heads)] if cls._has_memory else []
        feed_forward = FeedForward.init(keys[-1], d_model, dim_feedforward, activation=activation, gated=gated, **shared)
        norms = [norm(d_model, dtype=dtype) for _ in range(count)]
        create: Any = cls
        return create(self_attn, *cross_attn, feed_forward, *norms, Dropout.init(dropout), norm_first)

    def _residual(
        self: Any, x: Array, sublayer: Callable[..., Any], norm: Any, keys: Sequence[Any], training: bool, **options: Any
    ) -> tuple[Array, Any]:
        """Return x + dropout(sublayer(x)) with a norm, and the new cache or None.

        `keys` are those of the sublayer and of the dropout.
        """
        out = sublayer(norm(x) if self.norm_first else x, **options, key=keys[0], training=training)
        out, cache = out if isinstance(out, tuple) else (out, None)
        total = x + self.dropout(out, key=keys[1], training=training)
        return total if self.norm_first else norm(total), cache


class Stack(Module):
    """A stack of transformer layers and a last norm."""

    layers: Sequence[Any]
    norm: Module | None = None
    remat: bool = static(default=False)

    layer: ClassVar[Any]

    @classmethod
    def init(
        cls,
        key: Any,
        num_layers: int,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        *,
        norm_first: bool = False,
        norm: Callable[..., Any] = LayerNorm.init,
        final_norm: bool | None = None,
        remat: bool = False,
        dtype: Any = "float32",
        **options: Any,
    ) -> Self:
        """Create the layers, each with its own key.

        Args:
            key, d_model, nhead, dim_feedforward, norm_first, norm, dtype: those of the layers.
            num_layers: the number of layers.
            final_norm: whether there is a last norm (default: if `norm_first`, which leaves the sums without norms).
            remat: whether the backward pass recomputes the layers' intermediate values instead of storing them, see `checkpoint`.
            options: other arguments of the layers' `init`.

        Raises:
            ArgumentError: sizes are negative or not integers, or do not divide one another.
        """
        check_sizes(cls.__name__, num_layers=num_layers)
        options |= {"norm_first": norm_first, "norm": norm, "dtype": dtype}
        layers = [cls.layer.init(k, d_model, nhead, dim_feedforward, **options) for k in random.split(key, num_layers)]
        last = norm_first if final_norm is None else final_norm
        return cls(tuple(layers), norm(d_model, dtype=dtype) if last else None, remat)

    def init_cache(self, *args: Any, **options: Any) -> tuple[Any, ...]:
        """Return an empty cache for each layer; arguments are those of its `init_cache`."""
        return tuple([layer.init_cache(*args, **options) for layer in self.layers])

    def _run(self, x: Any, arrays: dict[str, Any], flags: dict[str, bool | None], cache: Sequence[Any] | None, key: Any) -> Any:
        """Return the output; with caches, one per layer, paired with the new ones.

        `arrays` are the layers' options that hold arrays or None, `flags` those that are booleans or None.
        """
        count = len(self.layers)
        if cache is not None and len(cache) != count:
            raise ArgumentError(f"{type(self).__name__}: {len(cache)} caches for {count} layers; init_cache makes one for each")
        y: Array = as_value(x)
        call = _call_remat if self.remat else _call
        settings, new_caches = tuple(flags.items()), []
        for layer, layer_cache, k in zip(self.layers, cache or [None] * count, split_key(key, count), strict=True):
            y, new = call(layer, y, arrays | {"cache": layer_cache, "key": k}, settings)
            new_caches.append(new)
        y = y if self.norm is None else self.norm(y)
        return y if cache is None else (y, tuple(new_caches))


def _call(layer: Any, x: Array, arrays: dict[str, Any], flags: tuple[tuple[str, bool | None], ...]) -> tuple[Array, Any]:
    """Return a layer's output and its new cache, or None."""
    out = layer(x, **arrays, **dict(flags))
    return (out, None) if arrays["cache"] is None else out


_call_remat = checkpoint(_call, static_argnums=(3,))


# Transformer encoders; with `is_causal`, language models such as GPT and Llama.


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
        y, new = self._residual(as_value(x), self.self_attn, self.norm1, keys[::2], training, **options)
        y, _ = self._residual(y, self.feed_forward, self.norm2, keys[1::2], training)
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


# Transformer decoders: layers that write a sequence and read another, the memory.


class DecoderCache(NamedTuple):
    """The cache of the self-attention, and a memory's keys and values."""

    self_attn: KVCache
    memory: KeysValues | None


class TransformerDecoderLayer(TransformerLayer):
    """Self-attention, attention to a memory, and `FeedForward`.

    Each has a residual connection and a norm (Vaswani et al. 2017). PyTorch's `multihead_attn` is `cross_attn`, its `linear1` and
    `linear2` are those of `feed_forward`. See `MultiHeadAttention` for the meaning of masks.

    >>> layer = vf.nn.TransformerDecoderLayer.init(vf.random.key(0), 16, 4, 32)
    >>> layer(vf.numpy.ones((2, 5, 16)), vf.numpy.ones((2, 7, 16)), is_causal=True).shape
    (2, 5, 16)
    """

    self_attn: MultiHeadAttention
    cross_attn: MultiHeadAttention | None
    feed_forward: FeedForward
    norm1: Module
    norm2: Module | None
    norm3: Module
    dropout: Dropout = Dropout(0.0)
    norm_first: bool = static(default=False)

    _has_memory = True

    @classmethod
    def init(cls, key: Any, d_model: int, nhead: int, dim_feedforward: int = 2048, *, cross_attention: bool = True, **options: Any) -> Self:
        """Create the layer, with or without attention to a memory.

        Args:
            key, d_model, nhead, dim_feedforward: those of `TransformerEncoderLayer.init`.
            cross_attention: whether the layer reads a memory. Without, `cross_attn` and `norm2` are None, and the layer is that of a
                language model's decoder: causal, unless a call says otherwise.
            options: other arguments of `TransformerEncoderLayer.init`.

        Raises:
            ArgumentError: sizes are negative or not integers, or do not divide one another.
        """
        layer = super().init(key, d_model, nhead, dim_feedforward, **options)
        return layer if cross_attention else layer.replace(cross_attn=None, norm2=None)

    def init_cache(self, memory: Any, max_length: int, *, dtype: Any = None) -> DecoderCache:
        """Return an empty cache for sequences of at most `max_length` positions.

        `memory`, of shape (…, S, d_model), is what the sequences read. A layer that reads none takes the batch's size instead, an integer
        or a tuple.
        """
        if self.cross_attn is None:
            return DecoderCache(self.self_attn.init_cache(memory, max_length, dtype=dtype), None)
        value = as_value(memory)
        keys_values = self.cross_attn.project(value)
        return DecoderCache(self.self_attn.init_cache(value.shape[:-2], max_length, dtype=dtype), keys_values)

    def __call__(
        self,
        x: Any,
        memory: Any = None,
        *,
        mask: Any = None,
        key_mask: Any = None,
        memory_mask: Any = None,
        memory_key_mask: Any = None,
        is_causal: bool | None = None,
        positions: Any = None,
        cache: DecoderCache | None = None,
        key: Any = None,
        training: bool = False,
    ) -> Any:
        """Return the layer's output; with a cache, paired with the new cache.

        Args:
            x: shape (…, T, d_model).
            memory: shape (…, S, d_model); omitted with a cache, which contains it, and of a layer without `cross_attn`.
            mask, key_mask, is_causal, positions: those of the self-attention, see `MultiHeadAttention`; a layer without `cross_attn` is
                causal by default.
            memory_mask, memory_key_mask: `mask` and `key_mask` of the attention to the memory.
            cache: the one that `init_cache` or the last call returned.
            key: of the dropout; needed if there is dropout, in training.
            training: whether to drop.

        Raises:
            ShapeError, DTypeError: the arrays do not fit. ArgumentError: arguments exclude each other, or one is missing.
            ArgumentTypeError: the key is missing.
        """
        self._check_memory(memory, cache)
        self_cache, read = (None, memory) if cache is None else (cache.self_attn, cache.memory)
        keys = split_key(key, 6)
        is_causal = self.cross_attn is None if is_causal is None else is_causal
        options: dict[str, Any] = {"mask": mask, "key_mask": key_mask, "is_causal": is_causal, "positions": positions, "cache": self_cache}
        y, new = self._residual(as_value(x), self.self_attn, self.norm1, keys[::3], training, **options)
        if self.cross_attn is not None:
            options = {"context": read, "mask": memory_mask, "key_mask": memory_key_mask}
            y, _ = self._residual(y, self.cross_attn, self.norm2, keys[1::3], training, **options)
        y, _ = self._residual(y, self.feed_forward, self.norm3, keys[2::3], training)
        return y if cache is None else (y, cache._replace(self_attn=new))

    def _check_memory(self, memory: Any, cache: DecoderCache | None) -> None:
        if self.cross_attn is None and memory is not None:
            raise ArgumentError("TransformerDecoderLayer: it was created with cross_attention=False, so it reads no memory")
        if self.cross_attn is not None and (memory is None) == (cache is None):
            raise ArgumentError(
                "TransformerDecoderLayer: either a memory is given or a cache, which init_cache made with the memory; the decoder of a "
                "language model, which reads none, is created with cross_attention=False"
            )


class TransformerDecoder(Stack):
    """A stack of `TransformerDecoderLayer` and a last norm.

    With ``cross_attention=False`` it reads no memory: it is the decoder of a language model, and causal.

    With `remat` the backward pass recomputes the layers' intermediate values instead of storing them, see `checkpoint`.

    >>> decoder = vf.nn.TransformerDecoder.init(vf.random.key(0), 2, 16, 4, 32)
    >>> x, memory = vf.numpy.ones((2, 5, 16)), vf.numpy.ones((2, 7, 16))
    >>> decoder(x, memory, is_causal=True).shape
    (2, 5, 16)
    >>> cache = decoder.init_cache(memory, max_length=5)
    >>> y, cache = decoder(x[:, :1], cache=cache)

    Without a memory:

    >>> decoder = vf.nn.TransformerDecoder.init(vf.random.key(0), 2, 16, 4, 32, cross_attention=False)
    >>> decoder(x).shape
    (2, 5, 16)
    >>> y, cache = decoder(x[:, :1], cache=decoder.init_cache(2, max_length=5))
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
        is_causal: bool | None = None,
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
        positions = None if cache is None else cache[0].length + vnp.arange(numbers.shape[-1])
        x = self.dropout(self.positions(self.tokens(numbers), positions), key=for_dropout, training=training)
        causal = {"is_causal": True} if cache is None else {"cache": cache}
        out = self.layers(x, key_mask=key_mask, key=for_layers, training=training, **causal)
        hidden, caches = (out, None) if cache is None else out
        logits: Array = self.tokens.attend(hidden)
        return logits if cache is None else (logits, caches)

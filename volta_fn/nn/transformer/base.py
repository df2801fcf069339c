"""Base classes of transformer layers and of stacks of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from volta_fn import random
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.nn.activations import relu
from volta_fn.nn.layers.common import check_sizes, split_key
from volta_fn.nn.layers.dropout import Dropout
from volta_fn.nn.layers.layer_norm import LayerNorm
from volta_fn.nn.module import Module, static
from volta_fn.nn.transformer.feed_forward import FeedForward
from volta_fn.nn.transformer.multi_head_attention import MultiHeadAttention
from volta_fn.transforms.checkpoint import checkpoint


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


def residual(layer: Any, x: Array, sublayer: Callable[[Array], Any], norm: Any, key: Any, training: bool) -> tuple[Array, Any]:
    """Return x + dropout(sublayer(x)) with a norm, and the new cache or None."""
    out = sublayer(norm(x) if layer.norm_first else x)
    out, cache = out if isinstance(out, tuple) else (out, None)
    total = x + layer.dropout(out, key=key, training=training)
    return total if layer.norm_first else norm(total), cache


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

    def _run(self, x: Any, arrays: dict[str, Any], flags: dict[str, bool], cache: Sequence[Any] | None, key: Any) -> Any:
        """Return the output; with caches, one per layer, paired with the new ones.

        `arrays` are the layers' options that hold arrays or None, `flags` those that are booleans.
        """
        count = len(self.layers)
        if cache is not None and len(cache) != count:
            raise ArgumentError(f"{type(self).__name__}: {len(cache)} caches for {count} layers; init_cache makes one for each")
        y: Array = as_value(x)
        call = _call_remat if self.remat else _call
        settings, new_caches = tuple(flags.items()), []
        for layer, own, k in zip(self.layers, cache or [None] * count, split_key(key, count), strict=True):
            y, new = call(layer, y, arrays | {"cache": own, "key": k}, settings)
            new_caches.append(new)
        y = y if self.norm is None else self.norm(y)
        return y if cache is None else (y, tuple(new_caches))


def _call(layer: Any, x: Array, arrays: dict[str, Any], flags: tuple[tuple[str, bool], ...]) -> tuple[Array, Any]:
    """Return a layer's output and its new cache, or None."""
    out = layer(x, **arrays, **dict(flags))
    return (out, None) if arrays["cache"] is None else out


_call_remat = checkpoint(_call, static_argnums=(3,))

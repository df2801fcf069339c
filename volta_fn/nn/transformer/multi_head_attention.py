"""Attention as a layer."""

from __future__ import annotations

import functools
import math
from typing import Any, Self

from volta_fn import numpy as vnp
from volta_fn import random
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import BOOL, result_type
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.layers.common import check_features, check_sizes
from volta_fn.nn.layers.dropout import Dropout
from volta_fn.nn.layers.linear import Linear
from volta_fn.nn.module import Module, static
from volta_fn.nn.transformer.kv_cache import KeysValues, KVCache
from volta_fn.nn.transformer.positions import apply_rotary
from volta_fn.nn.transformer.scaled_dot_product import causal_mask, masked_attention

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(Module):
    """Computes softmax(q kᵀ / √features) v for several heads (Vaswani et al. 2017).

    Inputs are (batch, time, embed_dim). `q_proj`, `k_proj`, `v_proj` and `out_proj` are `Linear`. PyTorch's `in_proj_weight` stacks the
    transposed weights of the first three, its `in_proj_bias` their biases. Unlike in PyTorch the batch always comes first, and a mask is
    True where a query MAY attend to a key, as in `jax.nn.dot_product_attention`.

    With fewer `num_kv_heads` than `num_heads` each head of keys and values serves several heads of queries (Ainslie et al. 2023). With a
    `rotary_base` queries and keys are rotated by `apply_rotary`.

    >>> mha = vf.nn.MultiHeadAttention.init(vf.random.key(0), 16, 4)
    >>> x, memory = vf.numpy.ones((2, 5, 16)), vf.numpy.ones((2, 7, 16))
    >>> mha(x, is_causal=True).shape, mha(x, memory).shape
    ((2, 5, 16), (2, 5, 16))

    Step-by-step decoding, which also works in `jit` and `scan`, has the same result as one causal pass over all positions:

    >>> cache = mha.init_cache(2, max_length=8)
    >>> y, cache = mha(x[:, :4], cache=cache)
    >>> y, cache = mha(x[:, 4:], cache=cache)
    >>> vf.numpy.allclose(y, mha(x, is_causal=True)[:, 4:], atol=1e-6).item()
    True
    """

    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    out_proj: Linear
    num_heads: int = static()
    num_kv_heads: int = static()
    dropout: Dropout = Dropout(0.0)
    rotary_base: float | None = static(default=None)
    rotary_interleaved: bool = static(default=False)

    @classmethod
    def init(
        cls,
        key: Any,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        rotary_base: float | None = None,
        rotary_interleaved: bool = False,
        dtype: Any = "float32",
    ) -> Self:
        """Create the layer with Xavier's uniform weights, as PyTorch's, and biases 0.

        The projections of one input count as one matrix.

        Args:
            key: of the random weights.
            embed_dim: features of queries and output, a multiple of `num_heads`.
            num_heads: the heads of queries.
            num_kv_heads: the heads of keys and values, a divisor of `num_heads` (default: as many).
            kdim: features of the keys' input (default: embed_dim).
            vdim: features of the values' input (default: embed_dim).
            bias: whether the four products have biases.
            dropout: the probability of dropping an attention weight in training.
            rotary_base: the base of rotary positions (10000 is usual); None for none.
            rotary_interleaved: how features pair up for rotary positions, see `apply_rotary`.
            dtype: of the parameters.

        Raises:
            ArgumentError: sizes are negative or not integers, or do not divide one another.
        """
        groups = num_heads if num_kv_heads is None else num_kv_heads
        inputs = [embed_dim, embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim]
        check_sizes("MultiHeadAttention", embed_dim=embed_dim, num_heads=num_heads, num_kv_heads=groups, kdim=inputs[1], vdim=inputs[2])
        if not num_heads or not groups or embed_dim % num_heads or num_heads % groups:
            raise ArgumentError(
                f"MultiHeadAttention: num_heads must divide embed_dim and num_kv_heads num_heads, got {embed_dim}, {num_heads}, {groups}"
            )
        if rotary_base is not None and embed_dim // num_heads % 2:
            raise ArgumentError(
                f"MultiHeadAttention: rotary positions need an even number of features per head, got {embed_dim // num_heads}"
            )
        narrow = embed_dim // num_heads * groups
        widths = [embed_dim, narrow, narrow]
        fans = [sum(widths)] * 3 if inputs == [embed_dim] * 3 else widths
        keys = random.split(key, 4)
        q, k, v = (_xavier(keys[i], inputs[i], widths[i], fans[i], bias, dtype) for i in range(3))
        out = Linear.init(keys[3], embed_dim, embed_dim, bias=False, dtype=dtype)
        out = out.replace(bias=vnp.zeros(embed_dim, dtype) if bias else None)
        return cls(q, k, v, out, num_heads, groups, Dropout.init(dropout), rotary_base, rotary_interleaved)

    def init_cache(self, batch: int | tuple[int, ...], max_length: int, *, dtype: Any = None) -> KVCache:
        """Return an empty cache for `batch` sequences of up to `max_length` positions."""
        check_sizes("MultiHeadAttention.init_cache", max_length=max_length)
        lead = (batch,) if isinstance(batch, int) else tuple(batch)
        weight = self.k_proj.weight
        features = weight.shape[1] // self.num_kv_heads
        return KVCache.empty(lead, self.num_kv_heads, max_length, features, weight.dtype if dtype is None else dtype)

    def project(self, context: Any, values: Any = None) -> KeysValues:
        """Return the keys and values of a context, for repeated calls that attend to it.

        Args:
            context: shape (…, S, kdim).
            values: shape (…, S, vdim) (default: the context).
        """
        keys = as_value(context)
        rows = keys if values is None else as_value(values)
        if keys.ndim < 2 or keys.shape[:-1] != rows.shape[:-1]:
            raise ShapeError(
                f"MultiHeadAttention: a context (…, S, kdim) and values (…, S, vdim) are needed, got {keys.shape}, {rows.shape}"
            )
        return KeysValues(self._heads(self.k_proj(keys), self.num_kv_heads), self._heads(self.v_proj(rows), self.num_kv_heads))

    def __call__(
        self,
        x: Any,
        context: Any = None,
        values: Any = None,
        *,
        mask: Any = None,
        key_mask: Any = None,
        is_causal: bool = False,
        positions: Any = None,
        cache: KVCache | None = None,
        key: Any = None,
        training: bool = False,
    ) -> Any:
        """Return the attention of each position of `x` to the context.

        Args:
            x: the queries' input, shape (…, T, embed_dim).
            context: the keys' input, shape (…, S, kdim), or what `project` made of it (default: `x`, self-attention).
            values: the values' input, shape (…, S, vdim) (default: the context).
            mask: bool, True where a query may attend to a key, or float, added to the logits; broadcasts to (…, heads, T, S).
            key_mask: bool, shape (…, S), True for keys that are no padding (PyTorch's `key_padding_mask` is its opposite).
            is_causal: query t attends to the keys up to t only.
            positions: those of `x`, for rotary positions; they broadcast to (…, T) (default: 0, 1, …, or those after the cache's).
            cache: keys and values of previous positions (self-attention only). It implies `is_causal`; S is then its max_length.
            key: of the dropout; needed if there is dropout, in training.
            training: whether to drop.

        Returns:
            Shape (…, T, embed_dim); with a cache the pair of that and the new cache.

        Raises:
            ShapeError, DTypeError: the arrays do not fit. ArgumentError: arguments exclude each other.
            ArgumentTypeError: the key is missing.
        """
        value = as_value(x)
        if value.ndim < 2:
            raise ShapeError(f"MultiHeadAttention: the input has shape (…, T, {self.q_proj.weight.shape[0]}), got {value.shape}")
        check_features("MultiHeadAttention", value, self.q_proj.weight.shape[0])
        self._check_options(context, values, positions, cache)
        q = self._heads(self.q_proj(value), self.num_heads)
        known = context if isinstance(context, KeysValues) else self.project(value if context is None else context, values)
        start = 0 if cache is None else cache.length
        if self.rotary_base is not None:
            indices = vnp.arange(value.shape[-2]) + start if positions is None else as_value(positions)
            q, k = (_rotate(rows, indices, self.rotary_base, self.rotary_interleaved) for rows in (q, known.keys))
            known = KeysValues(k, known.values)
        if cache is not None:
            cache = cache.append(known)
            known = KeysValues(cache.keys, cache.values)
        q, k, v = _fitting(q, *known)
        masks = [] if mask is None else [as_value(mask)]
        if key_mask is not None:
            masks.append(_for_heads(key_mask, k))
        if cache is not None:
            masks.append(causal_mask(q.shape[-2], k.shape[-2], offset=start))
        drop = functools.partial(self.dropout, key=key, training=training) if training and self.dropout.p != 0 else None
        out = masked_attention(q, k, v, masks, drop=drop, is_causal=is_causal and cache is None)
        y = self.out_proj(out.swapaxes(-2, -3).reshape(value.shape))
        return y if cache is None else (y, cache)

    def attend(self, x: Any, context: Any = None, values: Any = None, **options: Any) -> tuple[Array, KVCache | None]:
        """Call the module; return the result and the new cache (None without one)."""
        found = self(x, context, values, **options)
        return found if options.get("cache") is not None else (found, None)

    def _check_options(self, context: Any, values: Any, positions: Any, cache: Any) -> None:
        if context is not None and (cache is not None or self.rotary_base is not None):
            raise ArgumentError("MultiHeadAttention: caches and rotary positions are for self-attention; leave the context out")
        if positions is not None and self.rotary_base is None:
            raise ArgumentError("MultiHeadAttention: positions are given, but there is no rotary_base")
        if values is not None and isinstance(context, KeysValues):
            raise ArgumentError("MultiHeadAttention: the projected context has values of its own; leave values out")

    @staticmethod
    def _heads(x: Array, count: int) -> Array:
        """Reshape (…, T, count * features) to (…, count, T, features)."""
        return x.reshape(*x.shape[:-1], count, x.shape[-1] // count).swapaxes(-2, -3)


def _rotate(rows: Array, indices: Array, base: float, interleaved: bool) -> Array:
    """Rotate queries or keys by their positions, which are the same for all heads."""
    for_heads = indices[..., None, :] if indices.ndim > 1 else indices
    return apply_rotary(rows, for_heads, base, interleaved)


def _fitting(q: Array, k: Array, v: Array) -> list[Array]:
    """Return queries, keys and values in one dtype, after a check of their shapes."""
    if (*q.shape[:-3], q.shape[-1]) != (*k.shape[:-3], k.shape[-1]) or q.shape[-3] % max(k.shape[-3], 1):
        raise ShapeError(
            f"MultiHeadAttention: queries (…, heads, T, features) {q.shape} and keys (…, groups, S, features) {k.shape} do not fit"
        )
    dtype = result_type(q, k, v)
    return [x.astype(dtype) for x in (q, k, v)]


def _for_heads(key_mask: Any, keys: Array) -> Array:
    """Return a mask of keys as one that broadcasts to (…, heads, T, S)."""
    real = as_value(key_mask)
    if real.dtype not in BOOL:
        raise DTypeError(f"MultiHeadAttention: key_mask is bool, True for keys that are no padding, got {real.aval}")
    if real.shape != (*keys.shape[:-3], keys.shape[-2]):
        raise ShapeError(f"MultiHeadAttention: key_mask needs shape {(*keys.shape[:-3], keys.shape[-2])}, got {real.shape}")
    return real[..., None, None, :]


def _xavier(key: Any, size: int, width: int, fan_out: int, bias: bool, dtype: Any) -> Linear:
    bound = math.sqrt(6 / max(size + fan_out, 1))
    return Linear(random.uniform(key, (size, width), dtype, -bound, bound), vnp.zeros(width, dtype) if bias else None)

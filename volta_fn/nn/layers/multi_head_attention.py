"""Attention as a layer, encodings of positions, and caches of keys and values."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from volta_fn import lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import broadcasts_to
from volta_fn.dtypes import BOOL, FLOATS, accumulator, as_dtype, result_type
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.attention import attend, least_logit
from volta_fn.nn.layers.arguments import check_features, check_sizes
from volta_fn.nn.layers.containers import Dropout
from volta_fn.nn.layers.linear import Embedding, Linear
from volta_fn.nn.module import Module, static
from volta_fn.primitives.array_operations.array_indexing import check_indices

__all__ = [
    "KVCache",
    "KeysValues",
    "LearnedPositions",
    "MultiHeadAttention",
    "SinusoidalPositions",
    "apply_rotary",
    "causal_mask",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
]

# Encodings of positions, since attention itself ignores the order of its inputs.
#
# A position is the index of an input in its sequence. Sinusoidal and learned positions are vectors added to the inputs. Rotary positions
# rotate queries and keys, so that their products depend on differences of positions.


def _angles(positions: Any, features: int, base: float, dtype: np.dtype) -> Array:
    """Return positions / base**(2 i / features) for each pair i of features."""
    if not base > 0:
        raise ArgumentError(f"positions: the base is a number above 0, got {base}")
    rates = np.power(float(base), -np.arange(0, features, 2) / max(features, 1)).astype(dtype)
    return vnp.asarray(positions, dtype)[..., None] * rates


def sinusoidal_positions(positions: Any, features: int, *, base: float = 10000.0, dtype: Any = "float32") -> Array:
    """Return sines and cosines of positions at ever lower frequencies.

    See Vaswani et al. (2017). Feature 2i is sin(p / base**(2i / features)) at position p, feature 2i + 1 the cosine of the same.

    Args:
        positions: numbers, of any shape.
        features: how many features a position gets.
        base: the longest wavelength is 2π base.
        dtype: of the result; float16 and bfloat16 compute in float32.

    Returns:
        Shape (*positions.shape, features).

    Raises:
        ArgumentError, DTypeError: `features` is negative or no integer, the base not above 0, or the dtype not float.

    >>> vf.nn.sinusoidal_positions(vf.numpy.arange(2), 4).round(3)
    Array([[0.   , 1.   , 0.   , 1.   ],
           [0.841, 0.54 , 0.01 , 1.   ]], dtype=float32)
    """
    check_sizes("sinusoidal_positions", features=features)
    target = as_dtype(dtype)
    if target not in FLOATS:
        raise DTypeError(f"sinusoidal_positions: a float dtype is needed, got {target.name}")
    angles = _angles(positions, features, base, accumulator(target))
    waves = vnp.stack([vnp.sin(angles), vnp.cos(angles)], -1)
    return waves.reshape(*angles.shape[:-1], 2 * angles.shape[-1])[..., :features].astype(target)


def apply_rotary(x: Any, positions: Any, base: float = 10000.0, interleaved: bool = False) -> Array:
    """Rotate pair i of features by position / base**(2 i / features) (Su et al. 2021).

    Args:
        x: queries or keys, shape (…, T, features), features even. float16 and bfloat16 compute in float32.
        positions: numbers that broadcast to (…, T).
        base: the slowest rotation takes 2π base positions.
        interleaved: pairs are neighbours, features (2i, 2i + 1), as in the paper and in Meta's Llama; otherwise (i, i + features / 2), as
            in GPT-NeoX and Hugging Face's Llama.

    Raises:
        ShapeError: the number of features is odd, or the positions do not fit. DTypeError: `x` is not float.
        ArgumentError: the base is not above 0.

    >>> q = vf.numpy.ones((2, 4, 5, 8))
    >>> vf.nn.apply_rotary(q, vf.numpy.arange(5)).shape
    (2, 4, 5, 8)
    """
    value, indices = as_value(x), positions if isinstance(positions, np.ndarray) else as_value(positions)
    if value.dtype not in FLOATS:
        raise DTypeError(f"apply_rotary: x is float, got {value.aval}")
    lead, features = value.shape[:-1], value.shape[-1] if value.ndim else 1
    if features % 2 or not broadcasts_to(indices.shape, lead):
        raise ShapeError(
            f"apply_rotary: x (…, T, features) with an even number of features and positions that broadcast to (…, T) are needed, got "
            f"{value.shape} and {indices.shape}"
        )
    angles = _angles(indices, features, base, accumulator(value.dtype))
    return rotate_pairs(value, vnp.cos(angles), vnp.sin(angles), interleaved)


def rotate_pairs(x: Array, cos: Array, sin: Array, interleaved: bool = False) -> Array:
    """Rotate pairs of the first features by angles whose cosines and sines are given.

    Those have shapes that broadcast to (…, T, pairs); features beyond the pairs stay as they are. Pairs are those of `apply_rotary`.
    """
    lead, count = x.shape[:-1], cos.shape[-1]
    rotated, rest = (x, None) if 2 * count == x.shape[-1] else (x[..., : 2 * count], x[..., 2 * count :])
    pairs = rotated.reshape(*lead, *((count, 2) if interleaved else (2, count)))
    axis = -1 if interleaved else -2
    first, second = (lax.index_in_dim(pairs, i, axis, keepdims=False) for i in range(2))
    turned = vnp.stack([first * cos - second * sin, first * sin + second * cos], axis).reshape(rotated.shape).astype(x.dtype)
    return turned if rest is None else vnp.concatenate([turned, rest], -1)


class SinusoidalPositions(Module):
    """Adds `sinusoidal_positions` to its input.

    It has no parameters and no maximum length.

    >>> vf.nn.SinusoidalPositions()(vf.numpy.zeros((2, 5, 8))).shape
    (2, 5, 8)
    """

    base: float = static(default=10000.0)

    def __call__(self, x: Any, positions: Any = None) -> Array:
        """Return x plus the vectors of its positions.

        Args:
            x: shape (…, T, features).
            positions: numbers that broadcast to (…, T) (default: 0, 1, …, T - 1).

        Raises:
            ShapeError: `x` has fewer than two axes, or the positions do not fit.
        """
        value, indices = _checked("SinusoidalPositions", x, positions)
        return value + sinusoidal_positions(indices, value.shape[-1], base=self.base, dtype=value.dtype)


class LearnedPositions(Module):
    """Adds a learnt vector for each position; `weight` is (max_length, features).

    Known positions outside the table, negative ones among them, raise; in compiled programs they give NaN, or raise with
    VOLTA_CHECK_INDICES=1.

    >>> positions = vf.nn.LearnedPositions.init(vf.random.key(0), 16, 8)
    >>> positions(vf.numpy.zeros((2, 5, 8))).shape
    (2, 5, 8)
    """

    weight: Array

    @classmethod
    def init(cls, key: Any, max_length: int, features: int, *, std: float = 0.02, dtype: Any = "float32") -> Self:
        """Create normal vectors of standard deviation `std`, by default that of GPT-2.

        Raises `ArgumentError` for sizes that are negative or not integers.
        """
        check_sizes("LearnedPositions", max_length=max_length, features=features)
        if std < 0:
            raise ArgumentError(f"LearnedPositions: the standard deviation is at least 0, got {std}")
        return cls(random.normal(key, (max_length, features), dtype) * std)

    def __call__(self, x: Any, positions: Any = None) -> Array:
        """Return x plus the vectors of its positions.

        Args:
            x: shape (…, T, features).
            positions: integers that broadcast to (…, T) (default: 0, 1, …, T - 1, at most max_length of them).

        Raises:
            ShapeError: the shapes do not fit. DTypeError: the positions are not integers.
        """
        value, indices = _checked("LearnedPositions", x, positions)
        check_features("LearnedPositions", value, self.weight.shape[1])
        if positions is None and value.shape[-2] > self.weight.shape[0]:
            raise ShapeError(f"LearnedPositions: {value.shape[-2]} positions, but the table has {self.weight.shape[0]}")
        size = self.weight.shape[0]
        message = f"LearnedPositions: position {{}} is outside the table of {size}, numbered from 0; give those of padding any number in it"
        check_indices(indices, 0, size, message)
        return value + Embedding(self.weight)(indices)


def _checked(name: str, x: Any, positions: Any) -> tuple[Array, Array]:
    """Return the input and its positions as arrays, after a check of their shapes."""
    value = as_value(x)
    if value.ndim < 2:
        raise ShapeError(f"{name}: the input has shape (…, T, features), got {value.shape}")
    indices = vnp.arange(value.shape[-2]) if positions is None else as_value(positions)
    lead = value.shape[:-1]
    if not broadcasts_to(indices.shape, lead):
        raise ShapeError(f"{name}: positions must broadcast to (…, T) = {lead}, got shape {indices.shape}")
    return value, indices


# Attention in PyTorch's layout, (…, heads, T, features), and its masks.
#
# A mask is bool, True where a query may attend to a key, or float, added to the logits. It broadcasts to (…, heads, T, S), with T queries
# and S keys.


def causal_mask(length: int, key_length: int | None = None, *, offset: Any = 0) -> Array:
    """Return a bool mask (length, key_length): query t sees keys up to t + offset.

    Args:
        length: the number of queries.
        key_length: the number of keys (default: as many).
        offset: the index of the first query's key, an integer, which may be traced.

    >>> vf.nn.causal_mask(3)
    Array([[ True, False, False],
           [ True,  True, False],
           [ True,  True,  True]], dtype=bool)
    """
    keys = vnp.arange(length if key_length is None else key_length)
    return keys[None, :] <= vnp.arange(length)[:, None] + offset


def scaled_dot_product_attention(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
    key: Any = None,
) -> Array:
    """Compute softmax(scale q kᵀ + mask) v for each head, in PyTorch's layout.

    See Vaswani et al. (2017). It equals `dot_product_attention` except for the layout and the dropout. A query that may attend to no key
    weights all equally.

    Args:
        q: shape (…, heads, T, features), or (T, features).
        k: shape (…, heads, S, features), with the same leading axes.
        v: shape (…, heads, S, value features).
        attn_mask: bool, True where a query may attend to a key, or float, added to the logits; broadcasts to (…, heads, T, S).
        dropout_p: the probability of dropping a weight; 0 except in training.
        is_causal: query t attends only to keys up to t, and only where the mask allows it.
        scale: factor of the logits (default 1 / sqrt(features)).
        enable_gqa: `k` and `v` may have fewer heads, each of which serves as many of q's, next to one another (grouped queries).
        key: of the dropout; needed if there is dropout.

    Returns:
        Shape (…, heads, T, value features).

    Raises:
        ShapeError, DTypeError: the shapes or dtypes do not fit. ArgumentError: `dropout_p` is no probability.
        ArgumentTypeError: the key is missing.

    >>> q = vf.numpy.ones((2, 4, 5, 8))
    >>> vf.nn.scaled_dot_product_attention(q, q, q, is_causal=True).shape
    (2, 4, 5, 8)
    """
    q, k, v = as_value(q), as_value(k), as_value(v)
    _check(q, k, v, enable_gqa)
    masks = [] if attn_mask is None else [as_value(attn_mask)]
    dropout = Dropout.init(dropout_p)
    drop = None if dropout_p == 0 else functools.partial(dropout, key=key, training=True)
    run = functools.partial(masked_attention, masks=masks, scale=scale, drop=drop, is_causal=is_causal)
    return run(q[None], k[None], v[None])[0] if q.ndim == 2 else run(q, k, v)


def masked_attention(
    q: Array,
    k: Array,
    v: Array,
    masks: Sequence[Array],
    *,
    scale: Any = None,
    drop: Callable[[Array], Array] | None = None,
    is_causal: bool = False,
) -> Array:
    """Compute attention under several masks, after a check; the weights pass `drop`."""
    lead = q.shape[:-3]
    shape = (*q.shape[:-1], k.shape[-2])
    q, k, v = (x.reshape(math.prod(lead), *x.shape[-3:]) for x in (q, k, v))
    bias, conditions = None, []
    for mask in masks:
        fitted = _fit(mask, shape)
        if mask.dtype in BOOL:
            conditions.append(fitted)
        else:
            bias = fitted if bias is None else bias + fitted
    if bias is not None:
        wide = accumulator(q.dtype)
        bias = vnp.maximum(bias.astype(vnp.promote_types(bias.dtype, wide)), least_logit(wide))
    out = attend(q, k, v, bias, conditions, scale, drop, is_causal)
    return out.reshape(*lead, *out.shape[1:])


def _fit(mask: Array, shape: tuple[int, ...]) -> Array:
    """Reshape a mask for attention whose leading axes are merged into one."""
    if mask.dtype not in BOOL | FLOATS:
        raise DTypeError(f"attention: a mask is bool (True: may attend) or float (added to the logits), got {mask.aval}")
    if not broadcasts_to(mask.shape, shape):
        raise ShapeError(f"attention: a mask must broadcast to (…, heads, T, S) = {shape}, got shape {mask.shape}")
    if mask.ndim <= 3 or len(shape) == 4:
        return mask
    full = vnp.broadcast_to(mask, (*shape[:-3], *mask.shape[-3:]))
    return full.reshape(math.prod(shape[:-3]), *mask.shape[-3:])


def _check(q: Array, k: Array, v: Array, grouped: bool) -> None:
    fits = q.ndim == k.ndim == v.ndim >= 2 and q.shape[-1] == k.shape[-1] and k.shape[:-1] == v.shape[:-1]
    if fits and q.ndim > 2:
        heads, groups = q.shape[-3], k.shape[-3]
        fits = q.shape[:-3] == k.shape[:-3] and (heads == groups or (grouped and groups > 0 and heads % groups == 0))
    if not fits:
        raise ShapeError(
            "scaled_dot_product_attention: q (…, heads, T, features), k (…, heads, S, features) and v (…, heads, S, value features) are "
            f"needed, with enable_gqa=True also k and v with heads that divide q's; got {q.shape}, {k.shape}, {v.shape}"
        )
    if not q.dtype == k.dtype == v.dtype:
        names = ", ".join(x.dtype.name for x in (q, k, v))
        raise DTypeError(f"scaled_dot_product_attention: q, k and v have dtypes {names}; convert them to one")


# Caches of keys and values, for attention in step-by-step decoding.


class KeysValues(NamedTuple):
    """Keys and values for each head, as `project` computes: (…, groups, S, features)."""

    keys: Array
    values: Array


class KVCache(NamedTuple):
    """Keys and values of a sequence's first `length` positions, with room for more.

    It is a pytree of arrays of constant shapes: `keys` and `values` have shape (…, groups, max_length, features), `length` is an int32
    scalar. More positions than there is room for make the values NaN, which is visible even in compiled programs.
    """

    keys: Array
    values: Array
    length: Array

    @classmethod
    def empty(cls, batch: tuple[int, ...], groups: int, max_length: int, features: int, dtype: Any) -> KVCache:
        """Return a cache with room for `max_length` positions."""
        room = vnp.zeros((*batch, groups, max_length, features), dtype)
        return cls(room, room, vnp.zeros((), "int32"))

    @property
    def max_length(self) -> int:
        """The number of positions that there is room for."""
        return self.keys.shape[-2]

    def append(self, new: KeysValues) -> KVCache:
        """Append keys and values; raise `ShapeError` if they cannot fit."""
        count = new.keys.shape[-2]
        room = (*self.keys.shape[:-2], count, self.keys.shape[-1])
        if new.keys.shape != room or count > self.max_length:
            raise ShapeError(f"KVCache: keys of shape {new.keys.shape} do not fit a cache of shape {self.keys.shape}")
        values = vnp.where(self.length + count <= self.max_length, new.values, vnp.nan)
        keys, values = (
            lax.dynamic_update_slice_in_dim(old, now.astype(old.dtype), self.length, -2)
            for old, now in ((self.keys, new.keys), (self.values, values))
        )
        return KVCache(keys, values, self.length + count)


# Attention as a layer.


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
        weight = _weight(self.k_proj)
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
        features = _weight(self.q_proj).shape[0]
        if value.ndim < 2:
            raise ShapeError(f"MultiHeadAttention: the input has shape (…, T, {features}), got {value.shape}")
        check_features("MultiHeadAttention", value, features)
        self._check_options(context, values, positions, cache)
        q = self._heads(self.q_proj(value), self.num_heads)
        keys_values = context if isinstance(context, KeysValues) else self.project(value if context is None else context, values)
        start = 0 if cache is None else cache.length
        if self.rotary_base is not None:
            indices = vnp.arange(value.shape[-2]) + start if positions is None else as_value(positions)
            indices = indices[..., None, :] if indices.ndim > 1 else indices  # the same for all heads
            q, k = (apply_rotary(rows, indices, self.rotary_base, self.rotary_interleaved) for rows in (q, keys_values.keys))
            keys_values = KeysValues(k, keys_values.values)
        if cache is not None:
            cache = cache.append(keys_values)
            keys_values = KeysValues(cache.keys, cache.values)
        q, k, v = _fitting(q, *keys_values)
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
        result = self(x, context, values, **options)
        return result if options.get("cache") is not None else (result, None)

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


def _weight(projection: Any) -> Any:
    """Return a projection's weight, or that of the one that an adapter wraps."""
    return getattr(projection, "layer", projection).weight


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

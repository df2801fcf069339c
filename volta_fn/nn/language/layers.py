"""Layers of decoders, and the keys and values of earlier tokens."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from volta_fn import lax, random, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import check_option
from volta_fn.dtypes import accumulator, as_dtype
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.activations import gelu, one_hot, relu, sigmoid, silu
from volta_fn.nn.attention import LogitOptions, attention_with_statistics
from volta_fn.nn.language.config import CausalLMConfig, RopeParameters
from volta_fn.nn.layers.arguments import check_features, check_sizes
from volta_fn.nn.layers.multi_head_attention import KeysValues, rotate_pairs
from volta_fn.nn.layers.normalization import LayerNorm, RMSNorm
from volta_fn.nn.module import Module, static
from volta_fn.nn.quantized_array import WeightArray
from volta_fn.numpy.arguments import promote_inexact, wide
from volta_fn.primitives.call import Window
from volta_fn.primitives.contraction import product_dtype
from volta_fn.scipy.special.exponential import softmax

__all__ = [
    "CausalLMCache", "DecoderAttention", "DecoderMLP", "Experts", "FullCache", "PagedCache", "Projection", "RMSNormPlusOne", "RollingCache",
    "Rotation", "SparseMLP", "load_balancing_loss", "rotary_rotation",
]  # fmt: skip


# Keys and values of earlier tokens: all, those of a window, or in pages.
#
# A cache numbers its *slots*: the tokens that a batch was given, padding included, have the slots 0, 1, 2, … in all rows. A row that is
# shorter than others is padded on the left; its `start` is the slot of its first token, whose position is 0.


class Placement(NamedTuple):
    """Where a cache puts new tokens.

    Attributes:
        length: slots in use before, an int32 scalar; of shape (batch,) for pages.
        added: how many of the new tokens are no padding, likewise.
        table: the pages of each row, int32 of shape (batch, pages); negative for none. None without pages.
        window: how many tokens a token sees in this layer; None for all.
    """

    length: Array
    added: Array
    table: Array | None = None
    window: Any = None


def _zeros(*shape: int, dtype: str) -> tuple[Array, Array]:
    """Return the keys and values of an empty cache, in memory of their own each."""
    return vnp.zeros(shape, dtype), vnp.zeros(shape, dtype)


class FullCache(NamedTuple):
    """Keys and values of one layer by slot, of shape (batch, groups, slots, features)."""

    keys: Array
    values: Array

    @classmethod
    def empty(cls, batch: int, groups: int, slots: int, features: int, dtype: str) -> Self:
        """Return a cache with room for `slots` tokens."""
        return cls(*_zeros(batch, groups, slots, features, dtype=dtype))

    def update(self, new: KeysValues, placement: Placement) -> tuple[FullCache, KeysValues, Array]:
        """Write the keys and values of new tokens to the next slots.

        Padding, which comes last, is written too: its slots hide it, and later tokens overwrite it.

        Returns:
            The new cache, the keys and values to attend to, and the slot of each of them. Values are NaN where there is no room, which is
            visible even in compiled programs.

        Raises:
            ShapeError: more tokens than slots.
        """
        length, added, slots = placement.length, new.keys.shape[2], self.keys.shape[2]
        if added > slots:
            raise ShapeError(f"FullCache: {added} tokens do not fit {slots} slots")
        values = vnp.where(length + added <= slots, new.values, vnp.nan)
        keys, values = (
            lax.dynamic_update_slice_in_dim(old, now.astype(old.dtype), length, 2)
            for old, now in ((self.keys, new.keys), (self.values, values))
        )
        return FullCache(keys, values), KeysValues(keys, values), vnp.arange(slots)


class RollingCache(NamedTuple):
    """Keys and values of the last tokens alone: a ring of slots.

    Slot s is at index s mod its size. A ring of the size of its layer's window has room for any number of tokens; a smaller one, of a text
    that is still shorter than the window, must grow before it is full.
    """

    keys: Array
    values: Array

    @classmethod
    def empty(cls, batch: int, groups: int, slots: int, features: int, dtype: str) -> Self:
        """Return a ring of so many slots."""
        return cls(*_zeros(batch, groups, slots, features, dtype=dtype))

    def update(self, new: KeysValues, placement: Placement) -> tuple[RollingCache, KeysValues, Array]:
        """Write new keys and values over the oldest; arguments are those of `FullCache`.

        Returns:
            The new cache, the keys and values to attend to, and the slot of each; negative for none. Values are NaN where the ring is
            smaller than the window and there is no room.
        """
        length, size, added = placement.length, self.keys.shape[2], new.keys.shape[2]
        indices = vnp.arange(size)
        if placement.window is not None:
            has_room = (size >= placement.window) | (length + placement.added <= size)
            new = new._replace(values=vnp.where(has_room, new.values, vnp.nan))
        if added == 1:  # a step: what the token overwrites is out of its sight
            keys, values = (
                lax.dynamic_update_slice_in_dim(old, now.astype(old.dtype), length % size, 2) for old, now in zip(self, new, strict=True)
            )
            return RollingCache(keys, values), KeysValues(keys, values), length - (length - indices) % size
        before = length - 1 - (length - 1 - indices) % size
        last = length + placement.added - 1
        after = last - (last - indices) % size  # the slot that each index holds afterwards
        source = vnp.clip(after - length, 0, max(added - 1, 0))
        arrays = []
        for old, now in zip(self, new, strict=True):
            latest = vnp.take(now.astype(old.dtype), source, axis=2) if added else old
            arrays.append(vnp.where((after >= length)[:, None], latest, old))
        attended = [vnp.concatenate([old, now.astype(old.dtype)], 2) for old, now in zip(self, new, strict=True)]
        return RollingCache(*arrays), KeysValues(*attended), vnp.concatenate([before, length + vnp.arange(added)])


class PagedCache(NamedTuple):
    """Keys and values of one layer in pages that rows take from a pool.

    Slot s of a row is at index s mod page size of the page that its table has at s // page size (Kwon et al. 2023), so that rows of any
    lengths take no more memory than they have tokens, rounded up to pages. Arrays have shape (pages, groups, page size, features).
    """

    keys: Array
    values: Array

    @classmethod
    def empty(cls, pages: int, groups: int, page_size: int, features: int, dtype: str) -> Self:
        """Return a pool of pages."""
        return cls(*_zeros(pages, groups, page_size, features, dtype=dtype))

    def update(self, new: KeysValues, placement: Placement) -> tuple[PagedCache, KeysValues, Array]:
        """Write new keys and values to the rows' pages.

        Padding, and tokens beyond the pages of a row, are not written.

        Returns:
            The new pool, the keys and values of all slots of the tables, and the slot of each. Values are 0 where a row has no token: other
            rows' there may be NaN, which a weight of 0 does not hide.
        """
        pool, _, page_size, features = self.keys.shape
        batch, groups, added, _ = new.keys.shape
        assert placement.table is not None
        table, length = placement.table, vnp.broadcast_to(placement.length, (batch,))
        slots = length[:, None] + vnp.arange(added)
        column = slots // page_size
        page = vnp.take_along_axis(table, vnp.minimum(column, table.shape[1] - 1), 1)
        counts = vnp.arange(added) < vnp.broadcast_to(placement.added, (batch,))[:, None]
        page = vnp.where(counts & (page >= 0) & (column < table.shape[1]), page, pool)  # beyond the pool: dropped
        written, read = [], []
        for old, now in zip(self, new, strict=True):
            rows = now.astype(old.dtype).transpose(0, 2, 1, 3)
            array = old.at[page, :, slots % page_size].set(rows, mode="drop")
            gathered = vnp.take(array, vnp.maximum(table, 0), axis=0).transpose(0, 2, 1, 3, 4)
            written.append(array)
            read.append(gathered.reshape(batch, groups, table.shape[1] * page_size, features))
        all_slots, (keys, values) = vnp.arange(table.shape[1] * page_size), read
        has_token = vnp.repeat(table >= 0, page_size, axis=1) & (all_slots < (length + placement.added)[:, None])
        return PagedCache(*written), KeysValues(keys, vnp.where(has_token[:, None, :, None], values, 0)), all_slots


class CausalLMCache(NamedTuple):
    """The caches of all layers, and what they have in common.

    Attributes:
        layers: one for each layer.
        length: how many slots are in use, an int32 scalar; of shape (batch,) for pages.
        start: the slot of each row's first token, int32 of shape (batch,); None for 0.
        table: the pages of each row, see `Placement`; None without pages.
    """

    layers: tuple[FullCache | RollingCache | PagedCache, ...]
    length: Array
    start: Array | None
    table: Array | None = None

    @property
    def slots(self) -> int | None:
        """How many tokens there is room for; None if no layer has a `FullCache`."""
        return next((layer.keys.shape[2] for layer in self.layers if isinstance(layer, FullCache)), None)

    def grow(self, slots: int, window: int | None = None) -> CausalLMCache:
        """Return a cache with room for `slots` tokens, or more if it has more.

        Rings grow to `window`, the config's `sliding_window`, at most.
        """
        return self._replace(layers=tuple([_grown(layer, slots, window) for layer in self.layers]))


def _grown(layer: FullCache | RollingCache | PagedCache, slots: int, window: int | None) -> FullCache | RollingCache | PagedCache:
    """Return a layer's cache with room for more tokens, if it has fewer slots."""
    if isinstance(layer, PagedCache):
        return layer
    size = min(slots, window) if isinstance(layer, RollingCache) and window is not None else slots
    more = size - layer.keys.shape[2]
    if more <= 0:
        return layer
    return type(layer)(*[vnp.pad(x, ((0, 0), (0, 0), (0, more), (0, 0))) for x in layer])


# Rotary positions.


class Rotation(NamedTuple):
    """Cosines and sines of the angles of pairs of features, of shape (…, T, pairs)."""

    cos: Array
    sin: Array


def rotary_rotation(
    positions: Any, rope: RopeParameters, head_dim: int, max_position_embeddings: int, *, dtype: Any = "float32"
) -> Rotation:
    """Return the rotation of each position.

    Args:
        positions: integers of shape (…, T).
        rope: the kind of positions.
        head_dim: features of a head; `rope.partial_rotary_factor` tells how many are rotated.
        max_position_embeddings: the model's, at which "dynamic" positions begin to stretch.
        dtype: of the cosines and sines, float32 or float64.

    The frequencies of "dynamic" and "longrope" positions depend on the greatest position of the call, as in Hugging Face's models: keys in
    a cache remain rotated as they were.

    Raises:
        ArgumentError: an odd number of rotated features, or factors that are not one for each pair of them.
        ShapeError: the positions are a single number.

    >>> rotation = nn.rotary_rotation(jnp.arange(3), nn.RopeParameters(partial_rotary_factor=0.5), 8, 2048)
    >>> rotation.cos.shape
    (3, 2)
    """
    indices = as_value(positions)
    if indices.ndim == 0:
        raise ShapeError("rotary_rotation: positions have shape (…, T), got a single one")
    features = int(head_dim * rope.partial_rotary_factor)
    if features % 2:
        raise ArgumentError(
            f"rotary_rotation: pairs of features are rotated, but {rope.partial_rotary_factor} of {head_dim} are {features}"
        )
    kind = as_dtype(dtype)
    frequencies, factor = _frequencies(rope, features, max_position_embeddings, indices, kind)
    angles = indices.astype(kind)[..., None] * frequencies
    cos, sin = vnp.cos(angles), vnp.sin(angles)
    return Rotation(cos, sin) if factor == 1 else Rotation(cos * factor, sin * factor)


def _frequencies(rope: RopeParameters, features: int, longest: int, positions: Array, dtype: np.dtype) -> tuple[Any, float]:
    """Return the angle by which each pair turns from one position to the next.

    Also returns a factor of rotated features.
    """
    exponents = np.arange(0, features, 2) / max(features, 1)
    plain = rope.rope_theta**-exponents
    match rope.rope_type:
        case "linear":
            return (plain / _factor(rope)).astype(dtype), 1.0
        case "llama3":
            return _llama3(rope, plain).astype(dtype), 1.0
        case "yarn":
            return _yarn(rope, features, plain).astype(dtype), _yarn_attention_factor(rope)
        case "dynamic" if positions.size:
            return _dynamic(rope, features, exponents.astype(dtype), longest, positions), 1.0
        case "longrope" if positions.size:
            return _longrope(rope, plain, positions, dtype), _longrope_attention_factor(rope, longest)
    return plain.astype(dtype), 1.0


def _factor(rope: RopeParameters) -> float:
    return 1.0 if rope.factor is None else rope.factor


def _original_length(rope: RopeParameters) -> int:
    return rope.original_max_position_embeddings or 1


def _llama3(rope: RopeParameters, plain: np.ndarray) -> np.ndarray:
    """Stretch long wavelengths, leave short ones, and interpolate between (Llama 3.1)."""
    turns = _original_length(rope) * plain / (2 * math.pi)  # within the original length
    low, high = rope.low_freq_factor, rope.high_freq_factor
    stretched = plain / _factor(rope)
    if low == high:
        return np.where(turns < low, stretched, plain)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - share) * stretched + share * plain


def llama3_factors(rope: RopeParameters, features: int) -> np.ndarray:
    """Return the factors of wavelengths of "llama3" positions, one for each pair."""
    plain = rope.rope_theta ** -(np.arange(0, features, 2) / max(features, 1))
    return plain / _llama3(rope, plain)


def _yarn(rope: RopeParameters, features: int, plain: np.ndarray) -> np.ndarray:
    """Stretch pairs that turn seldom within the original length (Peng et al. 2023)."""

    def pair_of(turns: float) -> float:
        """Return the index of the pair, a fraction, that turns so often."""
        return features * math.log(_original_length(rope) / (turns * 2 * math.pi)) / (2 * math.log(rope.rope_theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, features - 1)
    width = high - low if high != low else 0.001
    stretched_share = np.clip((np.arange(features // 2) - low) / width, 0, 1)
    return plain / _factor(rope) * stretched_share + plain * (1 - stretched_share)


def _yarn_attention_factor(rope: RopeParameters) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def scale(factor: float, slope: float = 1.0) -> float:
        return 1.0 if factor <= 1 else 0.1 * slope * math.log(factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return scale(_factor(rope), rope.mscale) / scale(_factor(rope), rope.mscale_all_dim)
    return scale(_factor(rope))


def _dynamic(rope: RopeParameters, features: int, exponents: np.ndarray, longest: int, positions: Array) -> Array:
    """Let the base grow with the text once it is longer than the model is meant for."""
    length = vnp.maximum(vnp.max(positions) + 1, longest).astype(exponents.dtype)
    factor = _factor(rope)
    growth = (factor * length / longest - (factor - 1)) ** (features / max(features - 2, 1))
    return (rope.rope_theta * growth) ** -exponents


def _longrope(rope: RopeParameters, plain: np.ndarray, positions: Array, dtype: np.dtype) -> Array:
    """Divide frequencies by one of two lists of factors, by the length of the text."""
    short, long = (np.asarray(factors, np.float64) for factors in (rope.short_factor, rope.long_factor))
    if not len(short) == len(long) == len(plain):
        raise ArgumentError(
            f"rotary_rotation: short_factor and long_factor need {len(plain)} numbers, one for each pair, got {len(short)} and {len(long)}"
        )
    is_long = vnp.max(positions) + 1 > _original_length(rope)
    return vnp.where(is_long, (plain / long).astype(dtype), (plain / short).astype(dtype))


def _longrope_attention_factor(rope: RopeParameters, longest: int) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    factor = longest / _original_length(rope) if rope.factor is None else rope.factor
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(_original_length(rope)))


# Projections, norms, attention and gated MLPs.

Cache = FullCache | RollingCache | PagedCache

#: Activations by Hugging Face's names.
ACTIVATIONS: dict[str, Callable[[Any], Array]] = {
    "silu": silu,
    "swish": silu,
    "relu": relu,
    "gelu": functools.partial(gelu, approximate=False),
    "gelu_new": gelu,
    "gelu_pytorch_tanh": gelu,
    "gelu_fast": gelu,
}


def activation(name: str) -> Callable[[Any], Array]:
    """Return an activation by Hugging Face's name, or raise `ArgumentError`."""
    check_option(name, "CausalLMConfig: hidden_act", ACTIVATIONS)
    return ACTIVATIONS[name]


class Projection(Module):
    """x @ weightᵀ + bias, over the last axis: `Linear` in PyTorch's layout.

    `weight` has shape (out_features, in_features), as files of PyTorch's and Hugging Face's models store it, so that it need not be
    transposed when it is loaded; `bias` has shape (out_features,) or is None. The weight may be quantised (`nn.quantize`).

    >>> nn.Projection.init(vf.random.key(0), 3, 2)(jnp.ones((5, 3))).shape
    (5, 2)
    """

    weight: Array
    bias: Array | None = None

    @classmethod
    def init(cls, key: Any, in_features: int, out_features: int, *, bias: bool = False, std: float = 0.02, dtype: Any = "float32") -> Self:
        """Create the layer with normal weights of standard deviation `std`, biases 0.

        Raises `ArgumentError` for sizes that are negative or not integers.
        """
        check_sizes("Projection", in_features=in_features, out_features=out_features)
        weight = random.normal(key, (out_features, in_features), dtype) * std
        return cls(weight.astype(dtype), vnp.zeros(out_features, dtype) if bias else None)

    def __call__(self, x: Any, *, preferred_element_type: Any = None) -> Array:
        """Return the products, of shape (…, out_features).

        `preferred_element_type` is the dtype of the sums, see `lax.dot_general`. Raises `ShapeError` unless the last axis of `x` has size
        in_features.
        """
        value = as_value(x)
        check_features("Projection", value, self.weight.shape[1])
        if isinstance(self.weight, WeightArray):
            product = _quantized_product(value, self.weight, preferred_element_type)
        else:
            numbers = (((value.ndim - 1,), (1,)), ((), ()))
            product = lax.dot_general(value, self.weight, numbers, preferred_element_type=preferred_element_type)
        return product if self.bias is None else product + self.bias


def _quantized_product(x: Array, weight: WeightArray, dtype: Any) -> Array:
    """Return x @ weightᵀ in a dtype that is no narrower, or None for that of `x`.

    A product with a quantised weight has the dtype of its other operand, which is widened here for a wider result.
    """
    result = product_dtype("Projection", x.aval, x.aval, None if dtype is None else as_dtype(dtype))
    product: Array = x.astype(result) @ weight.T
    return product


class RMSNormPlusOne(RMSNorm):
    """`RMSNorm` whose weights are stored minus 1, as Gemma's are.

    >>> nn.RMSNormPlusOne(jnp.zeros(2), (2,), 1e-6)(jnp.array([[3.0, 4.0]])).round(3)
    Array([[0.849, 1.131]], dtype=float32)
    """

    def __call__(self, x: Any) -> Array:
        """Return the normalised numbers; see `RMSNorm` for errors."""
        scales = None if self.weight is None else 1 + self.weight.astype(accumulator(self.weight.dtype))
        return RMSNorm(scales, self.normalized_shape, self.eps)(x)


def norm_of(config: CausalLMConfig, features: int) -> Module:
    """Return a new norm of the family's kind."""
    match config.family.norm:
        case "layer":
            return LayerNorm.init(features, eps=config.rms_norm_eps, dtype=config.dtype)
        case "rms":
            return RMSNorm.init(features, eps=config.rms_norm_eps, dtype=config.dtype)
    return RMSNormPlusOne(vnp.zeros(features, config.dtype), (features,), config.rms_norm_eps)


class DecoderMLP(Module):
    """down_proj(activation(gate_proj(x)) * up_proj(x)), or without the gate.

    `gate_up_proj` holds gate and up in one matrix, as Phi-3 does.

    >>> config = nn.CausalLMConfig(model_type="llama", vocab_size=8, hidden_size=4, intermediate_size=6, num_hidden_layers=1,
    ...                            num_attention_heads=2)
    >>> nn.DecoderMLP.init(vf.random.key(0), config)(jnp.ones((1, 3, 4))).shape
    (1, 3, 4)
    """

    down_proj: Projection
    up_proj: Projection | None = None
    gate_proj: Projection | None = None
    gate_up_proj: Projection | None = None
    hidden_act: str = static(default="silu")

    @classmethod
    def init(cls, key: Any, config: CausalLMConfig, intermediate_size: int | None = None) -> Self:
        """Create the layer, of the config's or another inner size."""
        family, hidden = config.family, config.intermediate_size if intermediate_size is None else intermediate_size
        activation(config.hidden_act)
        bias = family.parallel or (config.mlp_bias and family.qkv_bias is None)
        project = functools.partial(Projection.init, bias=bias, std=config.initializer_range, dtype=config.dtype)
        first, second, third = random.split(key, 3)
        down = project(first, hidden, config.hidden_size)
        if family.packed:
            return cls(down, gate_up_proj=project(second, config.hidden_size, 2 * hidden), hidden_act=config.hidden_act)
        gate = None if family.parallel else project(third, config.hidden_size, hidden)
        return cls(down, project(second, config.hidden_size, hidden), gate, hidden_act=config.hidden_act)

    def __call__(self, x: Any) -> Array:
        """Return the result, of the shape of `x`, (…, hidden_size)."""
        act = activation(self.hidden_act)
        if self.gate_up_proj is not None:
            gate, up = vnp.split(self.gate_up_proj(x), 2, -1)
            return self.down_proj(act(gate) * up)
        assert self.up_proj is not None
        if self.gate_proj is None:
            return self.down_proj(act(self.up_proj(x)))
        gate, up = self.gate_proj(x), self.up_proj(x)  # one after the other, so that what follows is one kernel
        return self.down_proj(act(gate) * up)


class DecoderAttention(Module):
    """Causal attention of grouped queries, with the traits of all families.

    `qkv_proj` holds queries, keys and values in one matrix, as Phi-3 does. With `q_norm` and `k_norm` heads are normalised before they are
    rotated (Henry et al. 2020). Logits are capped as softcap tanh(logit / softcap) if there is a `softcap` (Gemma 2).
    """

    o_proj: Projection
    q_proj: Projection | None = None
    k_proj: Projection | None = None
    v_proj: Projection | None = None
    qkv_proj: Projection | None = None
    q_norm: Module | None = None
    k_norm: Module | None = None
    num_heads: int = static(default=1)
    num_kv_heads: int = static(default=1)
    head_dim: int = static(default=1)
    scale: float = static(default=1.0)
    softcap: float | None = static(default=None)

    @classmethod
    def init(cls, key: Any, config: CausalLMConfig) -> Self:
        """Create the layer with the config's initial weights."""
        family, heads, groups, features = config.family, config.num_attention_heads, config.num_key_value_heads, config.head_dim
        biases = [config.attention_bias if choice is None else choice for choice in (family.qkv_bias, family.out_bias)]
        project = functools.partial(Projection.init, std=config.initializer_range, dtype=config.dtype)
        keys = random.split(key, 4)
        widths = [heads * features, groups * features, groups * features]
        projections: dict[str, Projection] = {}
        if family.packed:
            projections["qkv_proj"] = project(keys[0], config.hidden_size, sum(widths), bias=biases[0])
        else:
            for name, k, width in zip(("q_proj", "k_proj", "v_proj"), keys, widths, strict=False):
                projections[name] = project(k, config.hidden_size, width, bias=biases[0])
        norms: dict[str, Any] = {name: norm_of(config, features) for name in ("q_norm", "k_norm")} if family.qk_norm else {}
        scalar = features if config.query_pre_attn_scalar is None else config.query_pre_attn_scalar
        return cls(
            project(keys[3], heads * features, config.hidden_size, bias=biases[1]),
            **projections, **norms, num_heads=heads, num_kv_heads=groups, head_dim=features,
            scale=float(scalar) ** -0.5, softcap=config.attn_logit_softcapping,
        )  # fmt: skip

    def project(self, x: Array, rotation: Rotation | None) -> tuple[Array, KeysValues]:
        """Return queries, keys and values for each head.

        They have shape (batch, heads, T, head_dim). Queries and keys are rotated, if there is a rotation.
        """
        counts = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        if self.qkv_proj is not None:
            ends = [counts[0] * self.head_dim, (counts[0] + counts[1]) * self.head_dim]
            rows = vnp.split(self.qkv_proj(x), ends, -1)
        else:
            assert self.q_proj is not None and self.k_proj is not None and self.v_proj is not None
            rows = [self.q_proj(x), self.k_proj(x), self.v_proj(x)]
        q, k, v = (row.reshape(*row.shape[:-1], count, self.head_dim) for row, count in zip(rows, counts, strict=True))
        q = q if self.q_norm is None else self.q_norm(q)
        k = k if self.k_norm is None else self.k_norm(k)
        if rotation is not None:
            cos, sin = (x[:, :, None] for x in rotation)  # the same for all heads
            q, k = rotate_pairs(q, cos, sin), rotate_pairs(k, cos, sin)
        # Only now: the result of attention has its heads where the queries have them in memory, which the next product reads in place.
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        return q, KeysValues(k, v)

    def __call__(
        self,
        x: Array,
        rotation: Rotation | None,
        seen: Callable[[Array | None], tuple[list[Array], Window]],
        cache: Cache | None = None,
        placement: Placement | None = None,
        prefill: bool = False,
    ) -> tuple[Array, Cache | None]:
        """Return the attention of new tokens to all that they see, and the new cache.

        Args:
            x: shape (batch, T, hidden_size).
            rotation: that of the tokens' positions, or None.
            seen: returns masks of keys, bool, that broadcast to (batch, heads, T, S), and the window of those that are seen by their
                positions, by the keys' slots; by None, those of the new tokens among themselves.
            cache, placement: earlier keys and values, and where the new ones go.
            prefill: the cache is empty: new tokens attend to one another.
        """
        q, new = self.project(x, rotation)
        slots: Array | None = None
        attended = new
        if cache is not None and placement is not None:
            cache, stored, slots = cache.update(new, placement)
            attended, slots = (new, None) if prefill else (stored, slots)
        masks, window = seen(slots)
        k, v = (a.astype(q.dtype) for a in attended)
        out, _ = attention_with_statistics(q, k, v, None, masks, LogitOptions(self.scale, window, self.softcap or 0.0))
        out = out.swapaxes(1, 2)
        return self.o_proj(out.reshape(*out.shape[:2], self.num_heads * self.head_dim)), cache


# Sparse layers.

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
        scaled = results * weights.reshape(-1)[entry][..., None].astype(results.dtype)
        scaled = vnp.where(used[..., None], scaled, 0)  # of another token, or infinite by an expert that no token chose
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
    (logits,) = promote_inexact("load_balancing_loss", vnp.stack(layers))
    probabilities = softmax(wide(logits), -1)
    _, indices = lax.top_k(probabilities, top_k)
    seen = one_hot(indices, shape[-1]).sum(-2)
    valid = vnp.ones(shape[:-1], probabilities.dtype) if mask is None else as_value(mask).astype(probabilities.dtype)
    if valid.shape != shape[:-1]:
        raise ShapeError(f"load_balancing_loss: the mask has shape {shape[:-1]}, got {valid.shape}")
    axes = tuple(range(len(shape)))
    total = vnp.maximum(valid.sum() * len(layers), 1)
    fractions, means = ((x * valid[..., None]).sum(axes) / total for x in (seen, probabilities))
    return shape[-1] * (fractions * means).sum()

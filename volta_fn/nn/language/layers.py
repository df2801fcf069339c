"""Layers of decoders: projections, norms, attention, and gated MLPs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

from volta_fn import lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.dtypes import accumulator, as_dtype
from volta_fn.errors import ArgumentError
from volta_fn.nn.activations import gelu, relu, silu
from volta_fn.nn.attention import LogitOptions, attention_with_statistics
from volta_fn.nn.language.caches import FullCache, PagedCache, Placement, RollingCache
from volta_fn.nn.language.config import CausalLMConfig
from volta_fn.nn.language.rotary import Rotation
from volta_fn.nn.layers.arguments import check_features, check_sizes
from volta_fn.nn.layers.normalization import LayerNorm, RMSNorm
from volta_fn.nn.module import Module, static
from volta_fn.nn.quantization.quantized_array import WeightArray
from volta_fn.nn.transformer.multi_head_attention import KeysValues, rotate_pairs
from volta_fn.primitives.call import Window
from volta_fn.primitives.contraction import product_dtype

__all__ = ["DecoderAttention", "DecoderMLP", "Projection", "RMSNormPlusOne"]

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
    if name not in ACTIVATIONS:
        raise ArgumentError(f"CausalLMConfig: hidden_act is one of {', '.join(ACTIVATIONS)}, got {name!r}")
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
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        if rotation is not None:
            cos, sin = (x[:, None] for x in rotation)  # the same for all heads
            q, k = rotate_pairs(q, cos, sin), rotate_pairs(k, cos, sin)
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

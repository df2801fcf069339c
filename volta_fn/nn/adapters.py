"""Low-rank adapters: LoRA and DoRA fine-tune a model by few parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Self, TypeVar

from volta_fn import advice, lax, random, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.dtypes import INEXACT, accumulator, promote_types
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.nn.language.layers import Projection
from volta_fn.nn.layers.arguments import is_integer
from volta_fn.nn.layers.linear import Linear
from volta_fn.nn.layers.normalization import SpectralNorm, WeightNorm
from volta_fn.nn.module import Module, static
from volta_fn.nn.quantized_array import WeightArray
from volta_fn.primitives.call import stop_gradient

__all__ = ["LoRA", "lora", "lora_filter", "merge_lora"]

T = TypeVar("T", bound=Any)


class LoRA(Module):
    """A linear layer plus a product of two thin matrices (Hu et al. 2022).

    It computes layer(x) + scale · (x lora_Aᵀ) lora_Bᵀ, where `lora_A` has shape (rank, in_features) and `lora_B` (out_features, rank). With
    a `magnitude` of shape (out_features,) it is DoRA (Liu et al. 2024): the sum of weights is divided by the lengths of its vectors, which
    gradients see as constants, and multiplied by the magnitude. The layer's weight may be quantised (QLoRA, Dettmers et al. 2023); DoRA
    then computes its floats at each call.

    >>> layer = nn.LoRA.init(vf.random.key(0), nn.Linear.init(vf.random.key(1), 3, 4), rank=2)
    >>> layer(jnp.ones((5, 3))).shape
    (5, 4)
    """

    layer: Linear | Projection
    lora_A: Array
    lora_B: Array
    magnitude: Array | None = None
    scale: float = static(default=1.0)

    @classmethod
    def init(cls, key: Any, layer: Linear | Projection, rank: int, *, scale: float = 1.0, dora: bool = False, dtype: Any = None) -> Self:
        """Create an adapter that computes what `layer` does.

        `lora_A` is uniform between ±1/√in_features, `lora_B` 0, and the magnitude that of the layer's weight.

        Args:
            key: of the random weights.
            layer: a `Linear` or a `Projection`.
            rank: the rank of the product.
            scale: its factor.
            dora: whether there is a magnitude.
            dtype: of the new parameters (default: the layer's).

        Raises:
            ArgumentTypeError: another layer. ArgumentError: the rank is not an integer of at least 1. ShapeError: the weight is no matrix,
                as that of stacked layers.
        """
        if not isinstance(layer, (Linear, Projection)):
            raise ArgumentTypeError(f"LoRA: a Linear or a Projection is needed, got {type(layer).__name__}")
        if not is_integer(rank, 1):
            raise ArgumentError(f"LoRA: the rank is an integer of at least 1, got {rank!r}")
        shape = layer.weight.shape
        if len(shape) != 2:
            raise ShapeError(f"LoRA: the weight is a matrix, got shape {shape}; model.unstack() takes stacked layers apart")
        out, features = shape[::-1] if isinstance(layer, Linear) else shape
        kind = layer.weight.dtype if dtype is None else dtype
        bound = 1 / math.sqrt(max(features, 1))
        a = random.uniform(key, (rank, features), kind, -bound, bound)
        magnitude = _lengths(_rows(layer)).astype(kind) if dora else None
        return cls(layer, a, vnp.zeros((out, rank), kind), magnitude, float(scale))

    def __call__(self, x: Any, **options: Any) -> Array:
        """Return the adapted layer's result; arguments and errors are those of `layer`."""
        value = as_value(x)
        if value.dtype not in INEXACT:  # the layer promotes them, and the thin matrices would be cut to integers
            value = value.astype(promote_types(value.dtype, self.layer.weight.dtype))
        thin = lax.dot_general(value, self.lora_A.astype(value.dtype), (((value.ndim - 1,), (1,)), ((), ())))
        change = lax.dot_general(thin, self.lora_B.astype(value.dtype), (((value.ndim - 1,), (1,)), ((), ())), **options) * self.scale
        if self.magnitude is None:
            return self.layer(value, **options) + change
        product = self.layer.replace(bias=None)(value, **options) + change
        lengths = _lengths(_rows(self.layer) + stop_gradient(self._change()))
        scaled = product * _shares(self.magnitude, stop_gradient(lengths)).astype(product.dtype)
        return scaled if self.layer.bias is None else scaled + self.layer.bias

    def _change(self) -> Array:
        """Return what is added to the weight, of shape (out_features, in_features)."""
        wide = accumulator(self.layer.weight.dtype)
        return self.scale * vnp.matmul(self.lora_B.astype(wide), self.lora_A.astype(wide))

    def merged(self) -> Linear | Projection:
        """Return a layer of the wrapped one's type that computes the same.

        Its weight is of floats; `nn.quantize` rounds it anew.
        """
        weight = self.layer.weight
        rows = _rows(self.layer).astype(accumulator(weight.dtype)) + self._change()
        if self.magnitude is not None:
            rows = rows * _shares(self.magnitude, _lengths(rows))[:, None]
        return self.layer.replace(weight=(rows.T if isinstance(self.layer, Linear) else rows).astype(weight.dtype))


def _rows(layer: Linear | Projection) -> Array:
    """Return a layer's weight as floats of shape (out_features, in_features)."""
    weight = layer.weight.dequantize() if isinstance(layer.weight, WeightArray) else layer.weight
    return weight.T if isinstance(layer, Linear) else weight


def _lengths(rows: Array) -> Array:
    return vnp.sqrt(vnp.sum(vnp.square(rows.astype(accumulator(rows.dtype))), -1))


def _shares(magnitude: Array, lengths: Array) -> Array:
    """Return the magnitude over lengths, and 1 for rows of zeros."""
    return vnp.where(lengths == 0, 1, magnitude / vnp.where(lengths == 0, 1, lengths))


def _is_linear(node: Any) -> bool:
    return isinstance(node, (Linear, Projection))


def _is_whole(node: Any) -> bool:
    """Return True for a layer that is wrapped, if at all, as a whole."""
    return isinstance(node, (Linear, Projection, LoRA, WeightNorm, SpectralNorm))


@advice.explained
def lora(
    model: T,
    key: Any,
    rank: int,
    alpha: float | None = None,
    *,
    where: str | Sequence[str] | Callable[[str], bool] = "*",
    dora: bool = False,
    dtype: Any = None,
) -> T:
    """Return a model whose linear layers are wrapped in `LoRA`.

    The result computes what `model` does, until its adapters are trained: see `lora_filter`. Layers in `WeightNorm` and `SpectralNorm`,
    whose weights are computed from their parameters, are left out.

    Args:
        model: a tree of modules.
        key: of the random weights.
        rank: the adapters' rank.
        alpha: the factor of the products is alpha / rank (default: 1).
        where: which `Linear` and `Projection` layers: patterns of their dotted names as in ``fnmatch``, or a function of a name. The output
            layer `lm_head` of language models must be named by itself.
        dora: whether adapters have magnitudes.
        dtype: of the new parameters (default: each layer's).

    Raises:
        ArgumentError: no layer matches, one is an adapter already, or the rank is not an integer of at least 1.

    >>> mlp = nn.MLP.init(vf.random.key(0), 4, 2, width_size=8, depth=1)
    >>> adapted = nn.lora(mlp, vf.random.key(1), rank=2, where="layers.0")
    >>> type(adapted.layers[0]).__name__, type(adapted.layers[1]).__name__
    ('LoRA', 'Linear')
    """
    if not is_integer(rank, 1):
        raise ArgumentError(f"lora: the rank is an integer of at least 1, got {rank!r}")
    patterns = (where,) if isinstance(where, str) else where

    def matches(name: str) -> bool:
        if callable(patterns):
            return bool(patterns(name))
        return any(fnmatchcase(name, pattern) and (name != "lm_head" or pattern == name) for pattern in patterns)

    leaves = tree.leaves_with_path(model, is_leaf=_is_whole)
    layers = {tree.keystr(path, simple=True, separator="."): node for path, node in leaves}
    names = [name for name, node in layers.items() if (_is_linear(node) or isinstance(node, LoRA)) and matches(name)]
    if not names:
        linear = [name for name, node in layers.items() if _is_linear(node)]
        shown = ", ".join(linear[:6]) + (", …" if len(linear) > 6 else "")
        raise ArgumentError(f"lora: no Linear or Projection matches where={where!r}; there are {len(linear)}: {shown}")
    if adapted := [name for name in names if isinstance(layers[name], LoRA)]:
        raise ArgumentError(f"lora: {adapted[0]} is an adapter already; merge_lora(model) makes it a plain layer")
    keys = dict(zip(names, random.split(key, len(names)), strict=True))
    scale = 1.0 if alpha is None else alpha / rank

    def wrapped(path: tree.KeyPath, node: Any) -> Any:
        name = tree.keystr(path, simple=True, separator=".")
        return LoRA.init(keys[name], node, rank, scale=scale, dora=dora, dtype=dtype) if name in keys else node

    changed: T = tree.map_with_path(wrapped, model, is_leaf=_is_whole)
    return changed


def lora_filter(model: T) -> T:
    """Return a tree of booleans, True for the adapters' parameters alone.

    It is for `nn.partition`: optimizers and gradients then see the trained part, and `io.save_safetensors` saves it alone. Raises
    `ArgumentError` for a model without adapters.

    >>> mlp = nn.lora(nn.MLP.init(vf.random.key(0), 4, 2, width_size=8, depth=1), vf.random.key(1), rank=2)
    >>> trained, frozen = nn.partition(mlp, nn.lora_filter(mlp))
    >>> nn.parameter_count(trained), nn.parameter_count(frozen)
    (44, 58)
    >>> loss = lambda trained, x: (nn.combine(trained, frozen)(x) ** 2).mean()
    >>> vf.grad(loss)(trained, jnp.ones((3, 4))).layers[0].lora_B.shape
    (8, 2)
    """
    if not _has_adapters(model):
        raise ArgumentError(f"lora_filter: {type(model).__name__} has no adapters to train; nn.lora(model, key, rank) adds them")
    marked: T = tree.map(_flags_of, model, is_leaf=_is_adapter)
    return marked


def _is_adapter(node: Any) -> bool:
    return isinstance(node, LoRA)


def _has_adapters(model: Any) -> bool:
    return any(map(_is_adapter, tree.leaves(model, is_leaf=_is_adapter)))


def _flags_of(node: Any) -> Any:
    """Return booleans in the structure of an adapter, or False for another leaf."""
    if not isinstance(node, LoRA):
        return False
    leaves, treedef = tree.flatten(node)
    frozen = len(tree.leaves(node.layer))  # the first field
    return tree.unflatten(treedef, [False] * frozen + [True] * (len(leaves) - frozen))


def merge_lora(model: T) -> T:
    """Return the model with adapters merged into plain layers that compute the same.

    Raises `ArgumentError` for a model without adapters.

    >>> mlp = nn.MLP.init(vf.random.key(0), 4, 2, width_size=8, depth=1)
    >>> nn.tree_equal(nn.merge_lora(nn.lora(mlp, vf.random.key(1), rank=2)), mlp)
    True
    """
    if not _has_adapters(model):
        raise ArgumentError(f"merge_lora: {type(model).__name__} has no adapters to merge; nn.lora(model, key, rank) adds them")
    merged: T = tree.map(lambda node: node.merged() if isinstance(node, LoRA) else node, model, is_leaf=_is_adapter)
    return merged

"""Quantisation of a model's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from volta_fn import dtypes, tree
from volta_fn.errors import ArgumentError
from volta_fn.nn.language.experts import Experts
from volta_fn.nn.language.layers import Projection
from volta_fn.nn.layers.conv import Conv1d, Conv2d, Conv3d
from volta_fn.nn.layers.linear import Embedding, Linear
from volta_fn.nn.module import Module
from volta_fn.nn.quantization.quantized_array import Scheme, WeightArray, quantize_array
from volta_fn.primitives.quantized import SCHEMES

__all__ = ["dequantize", "quantize"]

T = TypeVar("T")


class _Weight(NamedTuple):
    """How the weights of a layer are quantised."""

    #: The axes over which products sum.
    axis: int | tuple[int, ...]
    schemes: tuple[str, ...] = SCHEMES
    fields: tuple[str, ...] = ("weight",)
    #: Whether products may round their other operand to 8 bits, too.
    integers: bool = False


_FOUR_BITS = ("int4", "nf4")

#: The layers that are quantised. Convolutions convert their weights at each call, which pays for 8 bits alone.
_WEIGHTS: dict[type[Module], _Weight] = {
    Linear: _Weight(-2, integers=True),
    Projection: _Weight(-1, integers=True),
    Experts: _Weight(-1, fields=("gate_up_proj", "down_proj"), integers=True),
    Embedding: _Weight(-1),
    Conv1d: _Weight((1, 2), ("int8",)),
    Conv2d: _Weight((1, 2, 3), ("int8",)),
    Conv3d: _Weight((1, 2, 3, 4), ("int8",)),
}


def quantize(
    model: T,
    scheme: Scheme,
    *,
    group_size: int | Literal["default"] | None = "default",
    symmetric: bool = True,
    where: Callable[[str, Module], bool] | None = None,
    scale_dtype: Any = None,
    activations: Literal["int8"] | None = None,
    embeddings: Scheme | Literal["default"] = "default",
) -> T:
    """Return a model whose weights are quantised; everything else stays as it is.

    Weights are those of `Linear` (so also of attention and of perceptrons), of `Projection` and `Experts` (so of language models), of
    `Embedding`, and with "int8" of convolutions. They become `QuantizedArray`, whose products convert numbers where they are used; biases
    and norms remain floats. Weights that are quantised already stay as they are, so that some layers may get more bits by a call before.

    Numbers are rounded to the nearest; `gptq` rounds them by calibration with data, which loses far less at 4 bits.

    Under schemes of 4 bits an `Embedding` gets 8, because each of its rows stands for a token alone and in many language models they are
    the output layer, too: 4 bits there would raise SmolLM2-135M's perplexity by a tenth more. Small models lose more by 4 bits than large
    ones. Without data most is gained, in this order, by groups of 32; by 8 bits for the layers that sum most and for the values of
    attention, in a call before with `where`; and by groups of 16.

    Args:
        model: a tree of modules.
        scheme: "int8", "int4", "nf4" or "fp8".
        group_size: the numbers that share a scale; None: all that are summed for an output. By default 64 for 4 bits, None for 8.
        symmetric: without offsets, see `quantize_array`.
        where: ``where(name, layer)`` returns whether a layer is quantised, by its path in the model such as "layers.0.linear1"; by default
            all are.
        scale_dtype: the dtype of scales and offsets; that of the weight by default.
        activations: "int8" has products of `Linear`, `Projection` and `Experts` round each row of their input to 8 bits, too, and multiply
            integers (needs "int8", symmetric, and group_size=None). Derivatives pass through the rounding. An output layer that shares the
            table of an `Embedding` multiplies floats.
        embeddings: the scheme of each `Embedding`; by default `scheme` if it has 8 bits, else "int8". An "int8" or "fp8" that differs from
            `scheme` has one scale for each row, without offsets.

    Raises:
        ArgumentError: another scheme or option, or `where` selects no layer.

    >>> model = vf.nn.MLP.init(vf.random.key(0), 64, 8, 128, 1)
    >>> small = nn.quantize(model, "int4", where=lambda name, layer: name != "layers.1")
    >>> small
    MLP(  # 9,352 parameters
      layers: [
        0: Linear(weight: QuantizedArray(int4[64,128], group_size=64, dtype=float32), bias: f32[128])  # 8,320
        1: Linear(weight: f32[128,8], bias: f32[8])  # 1,032
      ]
      activation=relu
      final_activation=identity
      in_size=64
      out_size=8
    )
    """
    options = {"group_size": group_size, "symmetric": symmetric, "scale_dtype": scale_dtype, "activations": activations}
    if activations is not None and (activations != "int8" or scheme != "int8" or not symmetric or group_size not in (None, "default")):
        raise ArgumentError("quantize: activations='int8' needs the scheme 'int8', symmetric, with group_size=None")
    return map_weights(
        "quantize", lambda _, weight, chosen, how: quantize_array(weight, chosen, **how), model, scheme, where, embeddings, options
    )


def map_weights(
    caller: str,
    function: Callable[[str, Any, Scheme, dict[str, Any]], Any],
    model: T,
    scheme: Scheme,
    where: Callable[[str, Module], bool] | None,
    embeddings: Scheme | Literal["default"],
    options: Mapping[str, Any],
) -> T:
    """Replace the weights that `quantize` quantises by what a function returns.

    It gets the name of a weight, the weight, its scheme, and the options of `quantize_array` for it, of which `options` has those of the
    model. Errors are those of `quantize`.
    """
    if scheme not in SCHEMES or embeddings not in (*SCHEMES, "default"):
        raise ArgumentError(f"{caller}: the scheme is one of {list(SCHEMES)}, got {(scheme if scheme not in SCHEMES else embeddings)!r}")
    of_embeddings: Scheme = ("int8" if scheme in _FOUR_BITS else scheme) if embeddings == "default" else embeddings
    count = 0

    def layer(name: str, value: Module) -> Module:
        nonlocal count
        how = next((how for kind, how in _WEIGHTS.items() if isinstance(value, kind)), None)
        if how is None or scheme not in how.schemes or (where is not None and not where(name, value)):
            return value
        count += 1
        of_layer = {**options, "axis": how.axis, "activations": options["activations"] if how.integers else None}
        chosen = of_embeddings if isinstance(value, Embedding) else scheme
        if chosen != scheme:  # sizes of groups and offsets are those of `scheme`
            of_layer |= {"group_size": "default", "symmetric": True}
        weights = {field: getattr(value, field) for field in how.fields}
        prefix = f"{name}." if name else ""
        return value.replace(
            **{field: function(prefix + field, w, chosen, of_layer) for field, w in weights.items() if not isinstance(w, WeightArray)}
        )

    result = _map_layers(layer, model)
    if not count:
        raise ArgumentError(f"{caller}: no layer of the model is quantised to {scheme!r}; look at `where`, and at its layers' types")
    return result


def _map_layers(function: Callable[[str, Module], Module], model: Any) -> Any:
    """Apply a function to the modules of a tree that `quantize` knows, by name."""
    kinds = tuple(_WEIGHTS)
    is_layer = lambda value: isinstance(value, kinds)  # noqa: E731
    return tree.map_with_path(
        lambda path, value: function(tree.keystr(path, simple=True, separator="."), value) if is_layer(value) else value,
        model,
        is_leaf=is_layer,
    )


def dequantize(model: T, dtype: Any = None) -> T:
    """Return a model whose quantised weights are floats again, rounded as they are.

    They have the dtype that they stand for, or the given one.

    >>> layer = vf.nn.Linear.init(vf.random.key(0), 64, 8)
    >>> nn.dequantize(nn.quantize(layer, "int8"))
    Linear(weight: f32[64,8], bias: f32[8])
    """
    target = None if dtype is None else dtypes.as_dtype(dtype)
    is_quantized = lambda value: isinstance(value, WeightArray)  # noqa: E731
    result: T = tree.map(lambda value: value.dequantize(target) if is_quantized(value) else value, model, is_leaf=is_quantized)
    return result

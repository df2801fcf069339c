"""Quantisation of a model's weights: by themselves, by GPTQ, and in training."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Self, TypeVar

import numpy as np

from volta_fn import advice, dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.jit.function import jit
from volta_fn.nn.language.layers import Experts, Projection
from volta_fn.nn.layers.linear import Conv1d, Conv2d, Conv3d, Embedding, Linear
from volta_fn.nn.module import Module
from volta_fn.nn.quantized_array import (
    QuantizedArray,
    Scales,
    Scheme,
    WeightArray,
    as_rows,
    divided,
    encoded,
    groups_of,
    nearest,
    quantize_array,
    rows_of,
    scales_by_error,
)
from volta_fn.primitives.call import stop_gradient
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.quantized import SCHEMES, QuantizedLayout
from volta_fn.transforms.custom_derivatives import custom_vjp
from volta_fn.transforms.grad import grad
from volta_fn.transforms.vmap import vmap

__all__ = ["dequantize", "fake_quant", "gptq", "quantize"]

# In training.


def fake_quant(x: Any, scale: Any, zero_point: Any = 0, quant_min: int = -128, quant_max: int = 127, *, axis: int | None = None) -> Array:
    """Round numbers to those that integers represent, and return them as floats.

    The result is ``(clip(round(x / scale) + zero_point, quant_min, quant_max) - zero_point) * scale``. The derivative by `x` passes
    through where the integer lies within the bounds, and is 0 elsewhere (Bengio et al. 2013); that by `scale` and `zero_point` is 0. Both
    are PyTorch's, of `fake_quantize_per_tensor_affine` and, with an axis, of `fake_quantize_per_channel_affine`.

    Args:
        x: floats.
        scale: a number above 0; with an axis, one for each channel.
        zero_point: the integer that stands for 0, of the shape of the scale or a scalar.
        quant_min, quant_max: the bounds of the integers.
        axis: the axis of the channels; None: one scale for all.

    Raises:
        ArgumentError: the bounds are not integers in order. DTypeError: `x` is not float. ShapeError: scales do not fit.

    >>> nn.fake_quant(vf.numpy.array([0.04, 0.26, 200.0]), 0.1).round(3)
    Array([ 0. ,  0.3, 12.7], dtype=float32)
    >>> vf.grad(lambda x: nn.fake_quant(x, 0.1).sum())(vf.numpy.array([0.04, 0.26, 200.0]))
    Array([1., 1., 0.], dtype=float32)
    """
    value = as_value(x)
    if value.dtype not in dtypes.FLOATS:
        raise DTypeError(f"fake_quant: x is float, got {value.aval}")
    if not (isinstance(quant_min, int) and isinstance(quant_max, int)) or quant_min >= quant_max:
        raise ArgumentError(f"fake_quant: quant_min < quant_max are integers, got {quant_min!r} and {quant_max!r}")
    wide = dtypes.accumulator(value.dtype)
    step, zero = [_by_channel(stop_gradient(to_dtype(each, wide)), value, axis) for each in (scale, zero_point)]
    codes = vnp.round(stop_gradient(value).astype(wide) * (1 / step)) + zero
    inside = (codes >= quant_min) & (codes <= quant_max)
    rounded = ((vnp.clip(codes, quant_min, quant_max) - zero) * step).astype(value.dtype)
    return stop_gradient(rounded) + vnp.where(inside, value - stop_gradient(value), 0)


def _by_channel(values: Array, x: Array, axis: int | None) -> Array:
    """Reshape a number for each channel to broadcast along the axis."""
    if values.ndim == 0:
        return values
    if axis is None or not -x.ndim <= axis < x.ndim or values.shape != (x.shape[axis],):
        raise ShapeError(
            f"fake_quant: scale and zero_point are scalars, or with axis=… one number for each entry of that axis; got {values.shape} for "
            f"x of shape {x.shape} and axis={axis}"
        )
    return values.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


# After training, from the weights alone.

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


@advice.explained
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


# Gram matrices.
#
# An `ObservedArray` takes the place of a weight W. Beside x Wᵀ its product has a derivative xᵀ x, by an array of zeros that the result does
# not depend on. So the Gram matrices of all layers are the gradient of a model by those arrays, whatever transforms and control flow it
# consists of, and nothing is recorded on the side. Compiled, all of the gradient but these products is dead code.


@dataclasses.dataclass(frozen=True, eq=False)
class ObservedArray(WeightArray):
    """A weight whose products have the Gram matrix of their input as a derivative.

    Attributes:
        rows: the weight, of shape (…, out, in).
        gram: zeros of shape (…, in, in), float32.
        rows_last: whether the shape is (…, in, out), as of `Linear`.
    """

    rows: Any
    gram: Any
    rows_last: bool = False

    @property
    def aval(self) -> ShapedArray:
        """The shape and dtype of the weight."""
        *lead, out, size = self.rows.shape
        return ShapedArray((*lead, size, out) if self.rows_last else (*lead, out, size), self.rows.dtype)

    @property
    def T(self) -> Self:
        """The transpose, which is observed by the same array."""
        return dataclasses.replace(self, rows_last=not self.rows_last)

    mT = T

    def dequantize(self, dtype: Any = None) -> Array:
        """Return the weight, whose products are not observed."""
        value = as_value(self.rows)
        return (vnp.swapaxes(value, -1, -2) if self.rows_last else value).astype(value.dtype if dtype is None else dtype)

    def take(self, indices: Any) -> Array:
        """Return entries along the first axis."""
        return vnp.take(self.dequantize(), indices, axis=0)

    def __rmatmul__(self, other: Any) -> Array:
        """Return ``other @ self``; where it sums over the axis `in`, it is observed."""
        x, rows = as_value(other), as_value(self.rows)
        return _observed_product(x, rows, as_value(self.gram)) if self.rows_last else vnp.matmul(x, rows)


tree.register_dataclass(ObservedArray, data_fields=["rows", "gram"], meta_fields=["rows_last"])


@custom_vjp
def _observed_product(x: Array, rows: Array, gram: Array) -> Array:
    return vnp.matmul(x, vnp.swapaxes(rows, -1, -2))


def _forward(x: Array, rows: Array, gram: Array) -> tuple[Array, tuple[Array, Array]]:
    return _observed_product(x, rows, gram), (x, rows)


def _backward(residuals: tuple[Array, Array], ct: Array) -> tuple[Array, None, Array]:
    x, rows = residuals
    inputs = x if rows.ndim > 2 else x.reshape((math.prod(x.shape[:-1]), x.shape[-1]))
    shared = tuple(range(rows.ndim - 2))
    numbers = (((inputs.ndim - 2,), (inputs.ndim - 2,)), (shared, shared))
    gram = lax.dot_general(inputs, inputs, numbers, preferred_element_type=dtypes.accumulator(x.dtype))
    return vnp.matmul(ct, rows).astype(x.dtype), None, gram.astype("float32")


_observed_product.defvjp(_forward, _backward)


def gram_matrices(
    observe: Callable[[T, Mapping[str, Array]], T],
    model: T,
    sizes: Mapping[str, tuple[int, ...]],
    batches: Iterable[Any],
    call: Callable[[T, Any], Any],
) -> dict[str, Array]:
    """Return the sum of xᵀ x for each observed weight, over all batches.

    Args:
        observe: puts `ObservedArray` into a model, of zeros by name.
        model: the model.
        sizes: the shape of each array of zeros by name.
        batches: inputs.
        call: calls a model with one of them.

    Raises `ArgumentError` if there are no batches, or the model returns no floats.
    """

    def total(zeros: dict[str, Array], model: T, batch: Any) -> Array:
        floats = [leaf for leaf in map(as_value, tree.leaves(call(observe(model, zeros), batch))) if leaf.dtype in dtypes.FLOATS]
        if not floats:
            raise ArgumentError("gptq: calls of the model return no floats; give a `call` that returns its output")
        return sum([leaf.astype("float32").sum() for leaf in floats], start=vnp.zeros(()))

    def add(sums: dict[str, Array], model: T, batch: Any) -> dict[str, Array]:
        matrices: dict[str, Array] = grad(total)(tree.map(vnp.zeros_like, sums), model, batch)
        return tree.map(vnp.add, sums, matrices)

    step = jit(add, donate_argnums=0)
    sums = {name: vnp.zeros(shape) for name, shape in sizes.items()}
    count = 0
    for batch in batches:
        sums = step(sums, model, batch)
        count += 1
    if not count:
        raise ArgumentError("gptq: at least one batch of inputs is needed; quantize() needs none")
    return sums


# GPTQ.

#: Numbers of a row that are rounded before the other numbers learn of their errors.
_BLOCK = 64


def gptq(
    model: T,
    batches: Iterable[Any],
    scheme: Scheme = "int4",
    *,
    call: Callable[[T, Any], Any] | None = None,
    group_size: int | Literal["default"] | None = "default",
    symmetric: bool = True,
    act_order: bool = False,
    damping: float = 0.01,
    where: Callable[[str, Module], bool] | None = None,
    scale_dtype: Any = None,
    embeddings: Scheme | Literal["default"] = "default",
) -> T:
    """Return a model whose weights are quantised by calibration with inputs.

    It is GPTQ (Frantar et al. 2022). Where `quantize` rounds each number of a weight W to the nearest, this rounds them one after another,
    and moves the numbers that follow in the row so that they make up for the error in outputs W x. What counts is xᵀ x, summed over the
    inputs of the layer, here those of the model of floats. The result has the same arrays as that of `quantize` with the same options, and
    computes as fast.

    A few dozen texts of a few hundred tokens are enough for a language model, of the kind that it will see, and other ones than it is
    evaluated on. The model runs once over them and needs a reverse-mode derivative (see `grad`). Beside the model, memory holds two
    matrices in × in of float32 for each weight (out, in) at a time.

    Args:
        model: a tree of modules.
        batches: inputs of the model; batches of one shape are compiled once.
        scheme: "int8", "int4", "nf4" or "fp8".
        call: calls the model with a batch, ``model(batch)`` by default. It is traced, so that anything jit compiles may be in it.
        group_size, symmetric, where, scale_dtype, embeddings: as for `quantize`. An `Embedding` with another scheme than `scheme`, a weight
            of a convolution, and one that no batch reaches are rounded as `quantize` does.
        act_order: round the numbers first that are multiplied by the largest inputs (`desc_act` of Hugging Face's `GPTQConfig`). Groups
            stay as they are.
        damping: what is added to the diagonal of xᵀ x, as a part of its mean (`damp_percent` there).

    Raises:
        ArgumentError: another scheme or option, `where` selects no layer, there are no batches, the model returns no floats, or inputs of a
            layer that are not finite.

    >>> model = vf.nn.MLP.init(vf.random.key(0), 64, 8, 128, 1)
    >>> x = vf.random.normal(vf.random.key(1), (512, 64)) @ vf.random.normal(vf.random.key(2), (64, 64))
    >>> error = lambda small: vf.numpy.abs(small(x) - model(x)).mean()
    >>> bool(error(nn.gptq(model, [x])) < 0.6 * error(nn.quantize(model, "int4")))
    True
    """
    if isinstance(damping, bool) or not isinstance(damping, (int, float)) or not 0 < damping < np.inf:
        raise ArgumentError(f"gptq: damping is a number above 0, got {damping!r}")
    options = {"group_size": group_size, "symmetric": symmetric, "scale_dtype": scale_dtype, "activations": None}

    def replace_weights(function: Callable[[str, Any, Scheme, dict[str, Any]], Any], model: T) -> T:
        return map_weights("gptq", function, model, scheme, where, embeddings, options)

    sizes: dict[str, tuple[int, ...]] = {}
    replace_weights(functools.partial(_note_size, sizes, scheme), model)

    def observe(model: T, grams: Mapping[str, Array]) -> T:
        return replace_weights(functools.partial(_observed, grams), model)

    grams = gram_matrices(observe, model, sizes, batches, _call if call is None else call)

    def rounded(name: str, weight: Any, chosen: Scheme, how: dict[str, Any]) -> QuantizedArray:
        if name not in grams:
            return quantize_array(weight, chosen, **how)
        if not bool(vnp.isfinite(grams[name]).all()):
            raise ArgumentError(f"gptq: some inputs of {name} are not finite")
        return _quantized_with(grams.pop(name), weight, chosen, how, act_order, float(damping))

    return replace_weights(rounded, model)


def _note_size(sizes: dict[str, tuple[int, ...]], scheme: Scheme, name: str, weight: Any, chosen: Scheme, how: dict[str, Any]) -> Any:
    """Add the shape of a weight's Gram matrix if it is calibrated; return the weight."""
    if chosen == scheme and isinstance(how["axis"], int):
        *lead, _, size = as_rows(as_value(weight), how["axis"])[0].shape
        sizes[name] = (*lead, size, size)
    return weight


def _observed(grams: Mapping[str, Array], name: str, weight: Any, chosen: Scheme, how: dict[str, Any]) -> Any:
    """Return a weight that adds to its Gram matrix if it has one."""
    if name not in grams:
        return weight
    rows, _, rows_last = as_rows(as_value(weight), how["axis"])
    return ObservedArray(rows, grams[name], rows_last)


def _call(model: Any, batch: Any) -> Any:
    return model(batch)


def _quantized_with(gram: Array, weight: Any, scheme: Scheme, how: Mapping[str, Any], act_order: bool, damping: float) -> QuantizedArray:
    """Return a weight rounded by the Gram matrix of its inputs."""
    rounded = quantize_array(weight, scheme, **how)
    rows = as_rows(as_value(weight), how["axis"])[0]
    if not rows.size:
        return rounded
    dtype = rounded.scales.dtype
    data, scales = _solve(rows, gram, damping, rounded.layout, rounded.offsets is None, dtype, act_order)
    offsets = None if scales.offsets is None else scales.offsets.astype(dtype)
    return dataclasses.replace(rounded, data=data, scales=scales.scales.astype(dtype), offsets=offsets)


@functools.partial(jit, static_argnums=(3, 4, 5, 6))
def _solve(
    rows: Array, gram: Array, damping: Any, layout: QuantizedLayout, symmetric: bool, dtype: np.dtype, act_order: bool
) -> tuple[Array, Scales]:
    """Return codes and scales of rows (…, out, in), by Gram matrices (…, in, in)."""
    if rows.ndim > 2:
        return vmap(lambda w, h: _solve(w, h, damping, layout, symmetric, dtype, act_order))(rows, gram)
    groups, squares = groups_of(rows.astype("float32"), layout), vnp.diagonal(gram)
    mean = vnp.mean(squares)
    importance = vnp.where(mean > 0, squares, 1.0)  # without inputs: all numbers alike
    scales = scales_by_error(groups, groups_of(importance, layout), layout.scheme, symmetric, dtype)
    by_number = tree.map(lambda x: rows_of(vnp.broadcast_to(x[..., None], groups.shape), layout).T, scales)
    hessian = gram + vnp.diag(vnp.full_like(squares, damping) * vnp.where(mean > 0, mean, 1.0))
    order = vnp.argsort(-importance) if act_order else vnp.arange(layout.size)
    weights, by_number = tree.map(lambda x: x[order], (rows_of(groups, layout).T, by_number))
    values = _round_in_order(weights, hessian[order][:, order], by_number, layout.scheme)
    return encoded(values[vnp.argsort(order)].T, layout), scales


def _round_in_order(weights: Array, hessian: Array, scales: Scales, scheme: str) -> Array:
    """Return values of codes of weights (in, out), one row after another.

    With H = R Rᵀ, R upper triangular, the error of outputs, eᵀ H e of a column e of errors, is the sum of squares of Rᵀ e. Its entry k has
    errors up to e_k, so that each number in turn makes the best of those before it: it rounds w_k + Σ_{i<k} R_ik e_i / R_kk. (GPTQ computes
    this by H⁻¹; Chen et al. 2025, "The Geometry of LLM Quantization", show that it is Babai's nearest plane.)
    """
    size, out = weights.shape
    factor = lax.linalg.cholesky(hessian[::-1, ::-1])[::-1, ::-1]
    factor = factor / vnp.diagonal(factor)
    missing = -size % _BLOCK
    weights, factor, scales = tree.map(lambda x: vnp.pad(x, [(0, missing), (0, 0)]), (weights, factor, scales))
    factor = vnp.pad(factor, [(0, 0), (0, missing)])

    def round_block(errors: Array, start: Array) -> tuple[Array, Array]:
        def rows(x: Array) -> Array:
            return lax.dynamic_slice_in_dim(x, start, _BLOCK, 0)

        columns = lax.dynamic_slice_in_dim(factor, start, _BLOCK, 1)
        inner = rows(columns)
        targets = rows(weights) + vnp.matmul(columns.T, errors)  # the errors of this block and of later ones are 0 yet

        def round_row(errors: Array, inputs: Any) -> tuple[Array, Array]:
            k, weight, target, step, offset = inputs
            shifted = target + vnp.matmul(inner[:, k], errors) - (0.0 if offset is None else offset)
            value = nearest(divided(shifted, step), scheme)
            number = value * step if offset is None else value * step + offset
            return errors.at[k].set(weight - number), value

        block = (vnp.arange(_BLOCK), rows(weights), targets, *tree.map(rows, tuple(scales)))
        new, values = lax.scan(round_row, vnp.zeros((_BLOCK, out)), block)
        return lax.dynamic_update_slice_in_dim(errors, new, start, 0), values

    _, values = lax.scan(round_block, vnp.zeros_like(weights), vnp.arange(0, size + missing, _BLOCK))
    return values.reshape(-1, out)[:size]

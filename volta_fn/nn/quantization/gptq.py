"""GPTQ: weights rounded so that a layer's outputs change least."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

import numpy as np

from volta_fn import lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.jit.function import jit
from volta_fn.nn.module import Module
from volta_fn.nn.quantization.observed_array import ObservedArray, gram_matrices
from volta_fn.nn.quantization.quantize import map_weights
from volta_fn.nn.quantization.quantized_array import QuantizedArray, Scheme, as_rows, quantize_array
from volta_fn.nn.quantization.rounding import Scales, divided, encoded, groups_of, nearest, rows_of, scales_by_error
from volta_fn.primitives.quantized import QuantizedLayout
from volta_fn.transforms.vmap import vmap

__all__ = ["gptq"]

T = TypeVar("T")

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
    sizes: dict[str, tuple[int, ...]] = {}

    def replace_weights(function: Callable[[str, Any, Scheme, dict[str, Any]], Any], model: T) -> T:
        return map_weights("gptq", function, model, scheme, where, embeddings, options)

    def note(name: str, weight: Any, chosen: Scheme, how: dict[str, Any]) -> Any:
        if chosen == scheme and isinstance(how["axis"], int):
            *lead, _, size = as_rows(as_value(weight), how["axis"])[0].shape
            sizes[name] = (*lead, size, size)
        return weight

    def observe(model: T, grams: Mapping[str, Array]) -> T:
        def observed(name: str, weight: Any, chosen: Scheme, how: dict[str, Any]) -> Any:
            if name not in grams:
                return weight
            rows, _, rows_last = as_rows(as_value(weight), how["axis"])
            return ObservedArray(rows, grams[name], rows_last)

        return replace_weights(observed, model)

    replace_weights(note, model)
    grams = gram_matrices(observe, model, sizes, batches, _call if call is None else call)

    def rounded(name: str, weight: Any, chosen: Scheme, how: dict[str, Any]) -> QuantizedArray:
        if name not in grams:
            return quantize_array(weight, chosen, **how)
        if not bool(vnp.isfinite(grams[name]).all()):
            raise ArgumentError(f"gptq: some inputs of {name} are not finite")
        return _quantized_with(grams.pop(name), weight, chosen, how, act_order, float(damping))

    return replace_weights(rounded, model)


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

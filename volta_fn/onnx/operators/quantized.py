"""Operators of quantised numbers.

These are Q and DQ nodes, products of 8-bit integers, and onnxruntime's operators with weights of 4 and 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.errors import OnnxError
from volta_fn.onnx.nodes import Node, along, as_array, dtype_of, operator, per_channel
from volta_fn.onnx.operators.networks import Window, conv, run_lstm
from volta_fn.primitives.quantized import BLOCK, QuantizedLayout, quantized_dot

# Numbers and codes: Q and DQ nodes.


def _broadcast_parameter(node: Node, values: Any, shape: tuple[int, ...]) -> Any:
    """Broadcast scales or zero points of a tensor, an axis or blocks of it."""
    values, axis, block = as_array(values), node.get("axis", 1), node.get("block_size", 0)
    if values.size == 1:
        return values.reshape(())
    if values.ndim == 1 and len(shape) != 1 and not block:
        return along(values, axis, len(shape))
    if not block:
        return values
    return vnp.repeat(values, block, axis)[tuple([slice(n) for n in shape])]


@operator("QuantizeLinear")
def quantize(node: Node, x: Any, scale: Any, zero_point: Any = None) -> Any:
    """Divide by the scale, round, add the zero point, and saturate."""
    x, scale = as_array(x), _broadcast_parameter(node, scale, x.shape)
    number = node.get("output_dtype", 0)
    dtype = zero_point.dtype if zero_point is not None else dtype_of(number) if number else np.dtype(np.uint8)
    limits = np.iinfo(dtype)
    precision = node.get("precision", 0)
    wide = dtype_of(precision) if precision else np.dtype(np.float32)
    rounded = vnp.round(x.astype(wide) / scale.astype(wide)).astype(np.float32)
    shifted = rounded if zero_point is None else rounded + _broadcast_parameter(node, zero_point, x.shape).astype(np.float32)
    return vnp.clip(shifted, limits.min, limits.max).astype(dtype)


@operator("DequantizeLinear")
def dequantize(node: Node, x: Any, scale: Any, zero_point: Any = None) -> Any:
    """Subtract the zero point and multiply with the scale."""
    number = node.get("output_dtype", 0)
    dtype = dtype_of(number) if number else scale.dtype
    x, scale = as_array(x), _broadcast_parameter(node, scale, x.shape)
    shifted = x.astype(np.float32)
    if zero_point is not None:
        shifted = shifted - _broadcast_parameter(node, zero_point, x.shape).astype(np.float32)
    return (shifted * scale.astype(np.float32)).astype(dtype)


@operator("DynamicQuantizeLinear")
def dynamic_quantize(node: Node, x: Any) -> Any:
    """Quantise to 8 bits by the range of the elements."""
    return _dynamic_codes(as_array(x))


def _dynamic_codes(x: Any) -> tuple[Any, Any, Any]:
    high, low = vnp.maximum(x.max(), 0), vnp.minimum(x.min(), 0)
    scale = (high - low) / np.float32(255)
    scale = vnp.where(scale == 0, 1, scale)  # of a range of zero, or of one that vanishes when it is divided
    zero = vnp.clip(vnp.round(-low / scale), 0, 255)
    quantized = vnp.clip(vnp.round(x / scale) + zero, 0, 255).astype(np.uint8)
    return quantized, scale, zero.astype(np.uint8)


# Products of 8-bit integers.


def _subtract_zero_point(values: Any, zero_point: Any, is_weight: bool) -> Any:
    values = as_array(values).astype(np.int32)
    if zero_point is None:
        return values
    zero = as_array(zero_point).astype(np.int32)
    if zero.ndim == 1 and zero.size > 1:
        zero = zero if is_weight else zero[:, None]
    return values - (zero.reshape(()) if zero.size == 1 else zero)


def _signed(values: Any, zero: Any, is_weight: bool) -> tuple[Any, Any]:
    """Return 8-bit integers as signed ones, and their zero points; None for 0."""
    codes = as_array(values)
    shift = 128 if codes.dtype == np.uint8 else 0
    if shift:
        codes = lax.bitcast_convert_type(codes ^ np.uint8(128), np.int8)
    if zero is None:
        return codes, np.int32(-shift) if shift else None
    points = as_array(zero).astype(np.int32) - np.int32(shift)
    if points.size == 1:
        return codes, points.reshape(())
    if points.ndim == 1:
        return codes, points if is_weight else points[:, None]
    return codes, points


def _integer_product(x: Any, x_zero: Any, y: Any, y_zero: Any) -> Any:
    """Return (x - x_zero) @ (y - y_zero) in int32.

    It is a product of the 8-bit integers, corrected by their sums.
    """
    (left, left_zero), (right, right_zero) = _signed(x, x_zero, False), _signed(y, y_zero, True)
    if left.ndim == 1 or right.ndim == 1:
        return _subtract_zero_point(x, x_zero, False) @ _subtract_zero_point(y, y_zero, True)
    product = vnp.matmul(left, right, preferred_element_type=np.int32)
    if left_zero is not None:
        product = product - left_zero * right.astype(np.int32).sum(-2, keepdims=True)
    if right_zero is not None:
        rows = left.astype(np.int32).sum(-1, keepdims=True)
        product = product - right_zero * (rows if left_zero is None else rows - left_zero * np.int32(left.shape[-1]))
    return product


@operator("MatMulInteger")
def matmul_integer(node: Node, x: Any, y: Any, x_zero: Any = None, y_zero: Any = None) -> Any:
    """Multiply matrices of 8-bit integers to 32-bit ones."""
    return _integer_product(x, x_zero, y, y_zero)


# Convolutions of 8-bit integers.


@operator("ConvInteger")
def conv_integer(node: Node, x: Any, weight: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    """Convolve 8-bit integers to 32-bit ones."""
    return _integer_conv(node, as_array(x), x_zero, weight, w_zero)


def _integer_conv(node: Node, x: Any, x_zero: Any, weight: Any, w_zero: Any) -> Any:
    """Return the convolution of x - x_zero with weight - w_zero in int32.

    It is a convolution of the 8-bit integers, corrected by their sums. The padding has x's zero point, so that every window's correction is
    the same.
    """
    codes, by_output = _signed(weight, None if w_zero is None else as_array(w_zero).reshape(-1), True)
    window = Window(node, x.shape[2:], codes.shape[2:])
    zero = np.zeros((), x.dtype) if x_zero is None else as_array(x_zero).reshape(())
    padded = lax.pad(x, zero, [(0, 0, 0), (0, 0, 0), *[(low, high, 0) for low, high in window.pads]])
    groups, outputs = node.get("group", 1), codes.shape[0]
    no_pads = [(0, 0)] * len(window.pads)
    sums = lax.conv_general_dilated(
        padded,
        codes,
        window.strides,
        no_pads,
        rhs_dilation=window.dilations,
        feature_group_count=groups,
        preferred_element_type=np.int32,
    )
    if x_zero is not None:
        totals = codes.astype(np.int32).sum(tuple(range(1, codes.ndim)))
        sums = sums - zero.astype(np.int32) * per_channel(totals, sums.ndim)
    if by_output is not None:
        terms = padded.astype(np.int32)
        if x_zero is not None:
            terms = terms - zero.astype(np.int32)
        by_group = terms.reshape(x.shape[0], groups, -1, *padded.shape[2:]).sum(2)
        sizes, strides, dilations = [(1, 1, *values) for values in (window.kernel, window.strides, window.dilations)]
        totals = lax.reduce_window(by_group, np.int32(0), lax.add, sizes, strides, [(0, 0)] * (2 + len(no_pads)), None, dilations)
        sums = sums - per_channel(by_output, sums.ndim) * vnp.repeat(totals, outputs // groups, 1)
    return sums


@operator("QLinearConv")
def quantized_conv(
    node: Node, x: Any, x_scale: Any, x_zero: Any, weight: Any, w_scale: Any, w_zero: Any, scale: Any, zero: Any, bias: Any = None
) -> Any:
    """Convolve quantised images to quantised ones."""
    sums = _integer_conv(node, as_array(x), x_zero, weight, w_zero)
    if bias is not None:
        sums = sums + per_channel(bias, sums.ndim)
    factor = as_array(x_scale) * as_array(w_scale) / as_array(scale)
    factor = per_channel(factor.reshape(-1), sums.ndim) if factor.size > 1 else factor.reshape(())
    return _requantize(sums, factor, as_array(zero).reshape(()))


@operator("QLinearMatMul")
def quantized_matmul(node: Node, x: Any, x_scale: Any, x_zero: Any, y: Any, y_scale: Any, y_zero: Any, scale: Any, zero: Any) -> Any:
    """Multiply quantised matrices to a quantised one."""
    product = _integer_product(x, x_zero, y, y_zero)
    factor = _by_row(x_scale) * (as_array(y_scale).reshape(()) if y_scale.size == 1 else as_array(y_scale)) / _by_row(scale)
    return _requantize(product, factor, _by_row(zero))


def _by_row(values: Any) -> Any:
    """Return scales or zero points of rows such that they broadcast to matrices."""
    values = as_array(values)
    return values.reshape(()) if values.size == 1 else values[:, None] if values.ndim == 1 else values


def _requantize(product: Any, factor: Any, zero: Any) -> Any:
    limits = np.iinfo(zero.dtype)
    rounded = vnp.round(product.astype(np.float32) * factor.astype(np.float32)) + zero.astype(np.float32)
    return vnp.clip(rounded, limits.min, limits.max).astype(zero.dtype)


# Products of dequantised arrays, whose codes are multiplied instead.
#
# The loader passes a `Codes` from a DequantizeLinear to products and convolutions where nothing else reads its result.


@dataclass(frozen=True)
class Codes:
    """An array of 8-bit integers, with the other arguments of its DequantizeLinear."""

    node: Node
    values: Any
    scale: Any
    zero: Any
    #: The axis of the scales; None for one scale.
    axis: int | None

    def decoded(self) -> Any:
        """Return the floats."""
        return dequantize(self.node, self.values, self.scale, self.zero)

    def transposed(self) -> Codes:
        """Return the codes of the transpose."""
        return replace(self, values=self.values.T, axis=None if self.axis is None else 1 - self.axis)


def codes_of(node: Node, x: Any, scale: Any, zero_point: Any = None) -> Any:
    """Return the result of DequantizeLinear as `Codes`.

    Others than matrices and images of 8-bit integers are converted to floats.
    """
    factors = as_array(scale)
    eight_bits = x.dtype in (np.dtype(np.int8), np.dtype(np.uint8)) and factors.dtype == np.float32
    if not eight_bits or node.get("block_size", 0) or node.get("output_dtype", 0) or x.ndim < 2:
        return dequantize(node, x, scale, zero_point)
    return Codes(node, x, factors, zero_point, None if factors.size == 1 else node.get("axis", 1) % x.ndim)


def _product(x: Any, y: Any) -> Any:
    """Multiply matrices, of which some are `Codes`: in integers if both are."""
    if not isinstance(y, Codes) or y.values.ndim > 2 or y.axis == 0:
        left, right = (v.decoded() if isinstance(v, Codes) else v for v in (x, y))
        return left @ right
    if isinstance(x, Codes) and x.axis is None:
        sums = _integer_product(x.values, x.zero, y.values, y.zero)
        return sums.astype(np.float32) * (x.scale.reshape(()) * (y.scale if y.axis is not None else y.scale.reshape(())))
    left = x.decoded() if isinstance(x, Codes) else x
    data, zero = _signed(y.values, y.zero, True)
    size, rows = data.shape
    scales = vnp.broadcast_to(y.scale.reshape(-1, 1), (rows, 1))
    offsets = None if zero is None else -scales * vnp.broadcast_to(as_array(zero).reshape(-1, 1), (rows, 1)).astype(np.float32)
    return quantized_dot(left, data.T, scales, offsets, QuantizedLayout("int8", size, max(size, 1)))


def _matmul_of_codes(node: Node, x: Any, y: Any) -> Any:
    return _product(x, y)


def _gemm_of_codes(node: Node, x: Any, y: Any, c: Any = None) -> Any:
    sides = [(x, node.get("transA", 0)), (y, node.get("transB", 0))]
    left, right = [(v.transposed() if isinstance(v, Codes) else v.T) if turns else v for v, turns in sides]
    product, alpha, beta = _product(left, right), node.get("alpha", 1.0), node.get("beta", 1.0)
    product = product if alpha == 1 else product * alpha
    if c is None:
        return product
    addend = c.decoded() if isinstance(c, Codes) else as_array(c)
    return product + (addend if beta == 1 else addend * beta)


def _conv_of_codes(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
    """Convolve arrays, of which some are `Codes`: in integers if both are."""
    addend = bias.decoded() if isinstance(bias, Codes) else bias
    if not (isinstance(x, Codes) and x.axis is None and isinstance(weight, Codes) and weight.axis in (None, 0)):
        images, weights = (v.decoded() if isinstance(v, Codes) else v for v in (x, weight))
        return conv(node, images, weights, addend)
    sums = _integer_conv(node, x.values, x.zero, weight.values, weight.zero)
    factor = x.scale.reshape(()) * weight.scale
    y = sums.astype(np.float32) * (factor.reshape(()) if weight.axis is None else per_channel(factor, sums.ndim))
    return y if addend is None else y + per_channel(addend, y.ndim)


#: The operators that take `Codes`.
PRODUCTS_OF_CODES: dict[str, Callable[..., Any]] = {"MatMul": _matmul_of_codes, "Gemm": _gemm_of_codes, "Conv": _conv_of_codes}


# Operators of onnxruntime (github.com/microsoft/onnxruntime, docs/ContribOperators.md).


@operator("com.microsoft.MatMulNBits")
def matmul_nbits(node: Node, x: Any, data: Any, scales: Any, zeros: Any = None, order: Any = None, bias: Any = None) -> Any:
    """Multiply by weights of 4 or 8 bits that share scales block by block."""
    bits, block, size, rows = (node.get(name, default) for name, default in (("bits", 4), ("block_size", 32), ("K", 0), ("N", 0)))
    if bits not in (4, 8) or order is not None:
        raise OnnxError(f"{node}: weights of {bits} bits{'' if order is None else ' with g_idx'} are not supported; 4 and 8 are, without")
    x, codes = as_array(x), as_array(data)
    blocks = -(-size // block)
    by_block = as_array(scales).reshape(rows, blocks)
    middle = 8 if bits == 4 else 128
    offsets = None
    if zeros is not None:
        points = as_array(zeros)
        if points.dtype == np.uint8 and bits == 4:
            points = vnp.stack([points & 15, points >> 4], -1).reshape(rows, -1)[:, :blocks]
        offsets = by_block.astype(np.float32) * (middle - points.reshape(rows, blocks).astype(np.float32))
    value = vnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, blocks * block - size)])
    codes = codes.reshape(rows, -1)
    if bits == 8:
        layout = QuantizedLayout("int8", blocks * block, block)
        out = quantized_dot(value, lax.bitcast_convert_type(codes ^ np.uint8(128), np.int8), by_block, offsets, layout)
    elif block % BLOCK == 0:
        # A byte has neighbours here, and numbers 16 apart in `QuantizedLayout`: the other operand's numbers are moved instead of the codes.
        pairs = value.reshape(*x.shape[:-1], -1, BLOCK // 2, 2)
        moved = vnp.swapaxes(pairs, -1, -2).reshape(value.shape)
        out = quantized_dot(moved, codes, by_block, offsets, QuantizedLayout("int4", blocks * block, block))
    else:
        numbers = vnp.stack([codes & 15, codes >> 4], -1).reshape(rows, blocks, block).astype(np.float32) - 8
        weights = numbers * by_block[..., None] + (0 if offsets is None else offsets[..., None])
        out = value @ weights.reshape(rows, -1).T.astype(value.dtype)
    return out if bias is None else out + bias


class _Weights(NamedTuple):
    """A matrix (in, out) of 8-bit integers with its scales and zero points."""

    codes: Any
    #: One of each, or one for each column.
    scale: Any
    zero: Any


def _dynamic_product(x: Any, weights: _Weights) -> Any:
    """Multiply floats in integers: they are quantised by their range."""
    codes, scale, zero = _dynamic_codes(x)
    rows = codes.reshape(-1, codes.shape[-1])
    sums = _integer_product(rows, zero, weights.codes, weights.zero).astype(np.float32)
    return (sums * (scale * weights.scale)).reshape(*codes.shape[:-1], -1)


@operator("com.microsoft.DynamicQuantizeLSTM")
def dynamic_quantize_lstm(
    node: Node,
    x: Any,
    w: Any,
    r: Any,
    bias: Any,
    lengths: Any,
    initial: Any,
    initial_cell: Any,
    peepholes: Any,
    w_scale: Any,
    w_zero: Any,
    r_scale: Any,
    r_zero: Any,
) -> tuple[Any, ...]:
    """Run long short-term memories of 8 bits: weights, inputs and states."""
    by_input, by_state = (
        _Weights(as_array(codes), *[as_array(each).reshape(codes.shape[0], -1) for each in (scale, zero)])
        for codes, scale, zero in ((w, w_scale, w_zero), (r, r_scale, r_zero))
    )
    return run_lstm(node, x, by_input, by_state, bias, lengths, initial, initial_cell, peepholes, _dynamic_product)

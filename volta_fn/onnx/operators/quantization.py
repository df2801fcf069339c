"""Quantised numbers: Q and DQ nodes, and products of 8-bit integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.onnx.operators.convolution import Window
from volta_fn.onnx.operators.registry import Node, along, as_array, operator, per_channel
from volta_fn.onnx.tensors import dtype_of


def _spread(node: Node, values: Any, shape: tuple[int, ...]) -> Any:
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
    x, scale = as_array(x), _spread(node, scale, x.shape)
    number = node.get("output_dtype", 0)
    dtype = zero_point.dtype if zero_point is not None else dtype_of(number) if number else np.dtype(np.uint8)
    limits = np.iinfo(dtype)
    precision = node.get("precision", 0)
    wide = dtype_of(precision) if precision else np.dtype(np.float32)
    rounded = vnp.round(x.astype(wide) / scale.astype(wide)).astype(np.float32)
    shifted = rounded if zero_point is None else rounded + _spread(node, zero_point, x.shape).astype(np.float32)
    return vnp.clip(shifted, limits.min, limits.max).astype(dtype)


@operator("DequantizeLinear")
def dequantize(node: Node, x: Any, scale: Any, zero_point: Any = None) -> Any:
    """Subtract the zero point and multiply with the scale."""
    number = node.get("output_dtype", 0)
    dtype = dtype_of(number) if number else scale.dtype
    x, scale = as_array(x), _spread(node, scale, x.shape)
    shifted = x.astype(np.float32)
    if zero_point is not None:
        shifted = shifted - _spread(node, zero_point, x.shape).astype(np.float32)
    return (shifted * scale.astype(np.float32)).astype(dtype)


@operator("DynamicQuantizeLinear")
def dynamic_quantize(node: Node, x: Any) -> Any:
    """Quantise to 8 bits by the range of the elements."""
    x = as_array(x)
    high, low = vnp.maximum(x.max(), 0), vnp.minimum(x.min(), 0)
    scale = (high - low) / np.float32(255)
    safe = vnp.where(scale == 0, 1, scale)
    zero = vnp.clip(vnp.round(-low / safe), 0, 255)
    found = vnp.clip(vnp.round(x / safe) + zero, 0, 255).astype(np.uint8)
    return found, scale, zero.astype(np.uint8)


def _shifted(values: Any, zero_point: Any, is_weight: bool) -> Any:
    values = as_array(values).astype(np.int32)
    if zero_point is None:
        return values
    zero = as_array(zero_point).astype(np.int32)
    if zero.ndim == 1 and zero.size > 1:
        zero = zero if is_weight else zero[:, None]
    return values - (zero.reshape(()) if zero.size == 1 else zero)


@operator("MatMulInteger")
def matmul_integer(node: Node, x: Any, y: Any, x_zero: Any = None, y_zero: Any = None) -> Any:
    """Multiply matrices of 8-bit integers to 32-bit ones."""
    return _shifted(x, x_zero, False) @ _shifted(y, y_zero, True)


@operator("ConvInteger")
def conv_integer(node: Node, x: Any, weight: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    """Convolve 8-bit integers to 32-bit ones."""
    return _integer_conv(node, _shifted(x, x_zero, False), _channels(weight, w_zero))


def _channels(weight: Any, zero: Any) -> Any:
    values = as_array(weight).astype(np.int32)
    return values if zero is None else values - along(as_array(zero).reshape(-1).astype(np.int32), 0, values.ndim)


def _integer_conv(node: Node, x: Any, weight: Any) -> Any:
    window = Window(node, x.shape[2:], weight.shape[2:])
    found = lax.conv_general_dilated(
        x.astype(np.float64),
        weight.astype(np.float64),
        window.strides,
        window.pads,
        rhs_dilation=window.dilations,
        feature_group_count=node.get("group", 1),
    )
    return found.astype(np.int32)  # exact: sums of products of 8-bit integers are below 2**53


@operator("QLinearMatMul")
def quantized_matmul(node: Node, x: Any, x_scale: Any, x_zero: Any, y: Any, y_scale: Any, y_zero: Any, scale: Any, zero: Any) -> Any:
    """Multiply quantised matrices to a quantised one."""
    product = _shifted(x, x_zero, False) @ _shifted(y, y_zero, True)
    return _requantized(product, as_array(x_scale) * as_array(y_scale) / as_array(scale), zero)


@operator("QLinearConv")
def quantized_conv(
    node: Node, x: Any, x_scale: Any, x_zero: Any, weight: Any, w_scale: Any, w_zero: Any, scale: Any, zero: Any, bias: Any = None
) -> Any:
    """Convolve quantised images to quantised ones."""
    found = _integer_conv(node, _shifted(x, x_zero, False), _channels(weight, w_zero))
    if bias is not None:
        found = found + per_channel(bias, found.ndim)
    factor = as_array(x_scale) * as_array(w_scale) / as_array(scale)
    return _requantized(found, per_channel(factor.reshape(-1), found.ndim) if factor.size > 1 else factor.reshape(()), zero)


def _requantized(product: Any, factor: Any, zero: Any) -> Any:
    limits = np.iinfo(zero.dtype)
    rounded = vnp.round(product.astype(np.float32) * factor.astype(np.float32)) + as_array(zero).astype(np.float32).reshape(())
    return vnp.clip(rounded, limits.min, limits.max).astype(zero.dtype)

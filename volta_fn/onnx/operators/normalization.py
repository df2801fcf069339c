"""Normalisation, and dropout, which models for inference do not apply."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.errors import OnnxError
from volta_fn.onnx.operators.registry import Node, as_array, operator, per_channel


@operator("BatchNormalization")
def batch_norm(node: Node, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    """Normalise channels by statistics that are given, or by the batch's in training."""
    x, epsilon = as_array(x), node.get("epsilon", 1e-5)
    if not node.get("training_mode", 0):
        slope = as_array(scale) / vnp.sqrt(as_array(variance) + epsilon)
        offset = as_array(bias) - as_array(mean) * slope
        return (x * per_channel(slope, x.ndim) + per_channel(offset, x.ndim)).astype(x.dtype)
    axes, momentum = (0, *range(2, x.ndim)), node.get("momentum", 0.9)
    seen_mean, seen_variance = x.mean(axes), x.var(axes)
    normal = (x - per_channel(seen_mean, x.ndim)) / vnp.sqrt(per_channel(seen_variance, x.ndim) + epsilon)
    result = normal * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)
    running = [as_array(old) * momentum + new * (1 - momentum) for old, new in ((mean, seen_mean), (variance, seen_variance))]
    return result.astype(x.dtype), *running


@operator("LayerNormalization")
def layer_norm(node: Node, x: Any, scale: Any, bias: Any = None) -> Any:
    """Normalise the axes from one on."""
    x = as_array(x)
    axes = tuple(range(node.get("axis", -1) % x.ndim, x.ndim))
    wide = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    mean = wide.mean(axes, keepdims=True)
    inverse = 1 / vnp.sqrt(wide.var(axes, keepdims=True) + node.get("epsilon", 1e-5))
    found = ((wide - mean) * inverse).astype(x.dtype) * as_array(scale)
    return (found if bias is None else found + as_array(bias)), mean, inverse


@operator("RMSNormalization")
def rms_norm(node: Node, x: Any, scale: Any) -> Any:
    """Divide by the root of the mean square of the axes from one on."""
    x = as_array(x)
    axes = tuple(range(node.get("axis", -1) % x.ndim, x.ndim))
    wide = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    found = wide / vnp.sqrt((wide * wide).mean(axes, keepdims=True) + node.get("epsilon", 1e-5))
    return found.astype(x.dtype) * as_array(scale)


@operator("InstanceNormalization")
def instance_norm(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    """Normalise each channel of each example."""
    x = as_array(x)
    axes = tuple(range(2, x.ndim))
    normal = (x - x.mean(axes, keepdims=True)) / vnp.sqrt(x.var(axes, keepdims=True) + node.get("epsilon", 1e-5))
    return normal * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)


@operator("MeanVarianceNormalization")
def mean_variance_norm(node: Node, x: Any) -> Any:
    """Subtract means and divide by standard deviations."""
    x, axes = as_array(x), tuple(node.get("axes", [0, 2, 3]))
    return (x - x.mean(axes, keepdims=True)) / (vnp.sqrt(x.var(axes, keepdims=True)) + 1e-9)


@operator("GroupNormalization")
def group_norm(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    """Normalise groups of channels."""
    x, groups = as_array(x), node.get("num_groups")
    rows = x.reshape(x.shape[0], groups, -1)
    normal = (rows - rows.mean(2, keepdims=True)) / vnp.sqrt(rows.var(2, keepdims=True) + node.get("epsilon", 1e-5))
    scale, bias = as_array(scale), as_array(bias)
    if scale.shape[0] != x.shape[1]:  # one for each group, before version 21
        scale, bias = [vnp.repeat(v, x.shape[1] // groups) for v in (scale, bias)]
    return normal.reshape(x.shape) * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)


@operator("LpNormalization")
def lp_norm(node: Node, x: Any) -> Any:
    """Divide by the norm along an axis; zeros stay zeros."""
    x, axis = as_array(x), node.get("axis", -1)
    if node.get("p", 2) == 1:
        norm = vnp.sum(abs(x), axis, keepdims=True)
    else:
        norm = vnp.sqrt(vnp.sum(x * x, axis, keepdims=True))
    return vnp.where(norm == 0, 0, x / vnp.where(norm == 0, 1, norm))


@operator("LRN")
def local_response_norm(node: Node, x: Any) -> Any:
    """Divide by the squares of neighbouring channels."""
    x, size = as_array(x), node.get("size")
    rest = x.ndim - 2
    pads = [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * rest]
    squares = lax.reduce_window(x * x, np.zeros((), x.dtype), lax.add, (1, size, *[1] * rest), (1,) * x.ndim, pads)
    return x / (node.get("bias", 1.0) + node.get("alpha", 1e-4) / size * squares) ** node.get("beta", 0.75)


@operator("Dropout")
def dropout(node: Node, x: Any, ratio: Any = None, training: Any = None) -> Any:
    """Return the input, and a mask of ones.

    Raises `OnnxError` if a training node asks for random numbers, which ONNX does not define.
    """
    rate = 0.5 if ratio is None else float(node.host(ratio, "ratio").reshape(()))
    if training is not None and bool(node.host(training, "training_mode")) and rate:
        raise OnnxError(f"{node}: dropout in training mode has no defined random numbers; export the model for inference")
    return x, vnp.ones(x.shape, bool)

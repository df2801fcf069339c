"""Convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.onnx.operators.registry import Node, as_array, is_float, operator, per_channel

Pads = list[tuple[int, int]]


class Window:
    """The window of a convolution or a pooling, from a node's attributes."""

    def __init__(self, node: Node, sizes: Sequence[int], kernel: Sequence[int]) -> None:
        n = len(kernel)
        self.kernel, self.sizes = list(kernel), list(sizes)
        self.strides: list[int] = node.get("strides") or [1] * n
        self.dilations: list[int] = node.get("dilations") or [1] * n
        self.spans = [(k - 1) * d + 1 for k, d in zip(kernel, self.dilations, strict=True)]
        self.pads = self._pads(node)

    def _pads(self, node: Node) -> Pads:
        auto = node.get("auto_pad", "NOTSET")
        n = len(self.kernel)
        if auto in ("NOTSET", ""):
            given = node.get("pads") or [0] * 2 * n
            return list(zip(given[:n], given[n:], strict=True))
        if auto == "VALID":
            return [(0, 0)] * n
        totals = [max((-(-i // s) - 1) * s + k - i, 0) for i, s, k in zip(self.sizes, self.strides, self.spans, strict=True)]
        return [halves(total, auto == "SAME_UPPER") for total in totals]

    def with_ceil(self) -> Pads:
        """Return the padding with which incomplete windows at the end count."""
        found = []
        for size, (low, high), span, stride in zip(self.sizes, self.pads, self.spans, self.strides, strict=True):
            count = -(-(size + low + high - span) // stride) + 1
            if (count - 1) * stride >= size + low:  # it would begin in the padding
                count -= 1
            found.append((low, max(high, (count - 1) * stride + span - size - low)))
        return found


def halves(total: int, more_at_end: bool) -> tuple[int, int]:
    """Split padding between both sides."""
    less = total // 2
    return (less, total - less) if more_at_end else (total - less, less)


@operator("Conv")
def conv(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
    """Convolve images with channels first."""
    x, weight = as_array(x), as_array(weight)
    window = Window(node, x.shape[2:], weight.shape[2:])
    found = lax.conv_general_dilated(
        x, weight, window.strides, window.pads, rhs_dilation=window.dilations, feature_group_count=node.get("group", 1)
    )
    return found if bias is None else found + per_channel(bias, found.ndim)


@operator("ConvTranspose")
def conv_transpose(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
    """Apply a transposed convolution."""
    x, weight = as_array(x), as_array(weight)
    n, groups = x.ndim - 2, node.get("group", 1)
    kernel = weight.shape[2:]
    strides, dilations = node.get("strides") or [1] * n, node.get("dilations") or [1] * n
    extra = node.get("output_padding") or [0] * n
    pads = _transposed_pads(node, x.shape[2:], kernel, strides, dilations, extra)
    inputs, outputs = weight.shape[:2]
    flipped = vnp.flip(weight, tuple(range(2, 2 + n))).reshape(groups, inputs // groups, outputs, *kernel)
    flipped = flipped.swapaxes(1, 2).reshape(groups * outputs, inputs // groups, *kernel)
    around = [((k - 1) * d - low, (k - 1) * d - high + e) for k, d, (low, high), e in zip(kernel, dilations, pads, extra, strict=True)]
    found = lax.conv_general_dilated(x, flipped, [1] * n, around, lhs_dilation=strides, rhs_dilation=dilations, feature_group_count=groups)
    return found if bias is None else found + per_channel(bias, found.ndim)


def _transposed_pads(
    node: Node, sizes: Sequence[int], kernel: Sequence[int], strides: list[int], dilations: list[int], extra: list[int]
) -> Pads:
    n, auto, wanted = len(kernel), node.get("auto_pad", "NOTSET"), node.get("output_shape")
    if wanted is None and auto in ("NOTSET", "", "VALID"):
        given = node.get("pads") or [0] * 2 * n
        return list(zip(given[:n], given[n:], strict=True))
    wanted = [i * s for i, s in zip(sizes, strides, strict=True)] if wanted is None else wanted[-n:]
    pads = []
    for size, stride, k, dilation, more, want in zip(sizes, strides, kernel, dilations, extra, wanted, strict=True):
        total = max((size - 1) * stride + more + (k - 1) * dilation + 1 - want, 0)
        pads.append(halves(total, auto == "SAME_UPPER"))
    return pads


def _pooled(node: Node, x: Any, start: Any, step: Any, pads: Pads | None = None) -> Any:
    window = Window(node, x.shape[2:], node.get("kernel_shape"))
    around = pads or (window.with_ceil() if node.get("ceil_mode", 0) else window.pads)
    return lax.reduce_window(
        x,
        start,
        step,
        (1, 1, *window.kernel),
        (1, 1, *window.strides),
        [(0, 0), (0, 0), *around],
        window_dilation=(1, 1, *window.dilations),
    )


@operator("MaxPool")
def max_pool(node: Node, x: Any) -> Any:
    """Take the maximum of each window, and its position if asked for."""
    x = as_array(x)
    lowest = -np.inf if is_float(x) else np.iinfo(x.dtype).min
    found = _pooled(node, x, np.asarray(lowest, x.dtype), lax.max)
    if node.outputs == 1:
        return found
    return found, _positions(node, x, lowest)


def _positions(node: Node, x: Any, lowest: Any) -> Any:
    """Return the positions of the maxima in the flattened input, first ones first."""
    window = Window(node, x.shape[2:], node.get("kernel_shape"))
    pads = window.with_ceil() if node.get("ceil_mode", 0) else window.pads
    numbers = np.arange(math.prod(x.shape)).reshape(x.shape)
    if node.get("storage_order", 0):
        numbers = np.arange(math.prod(x.shape)).reshape(*x.shape[:2], *x.shape[:1:-1]).transpose(0, 1, *range(x.ndim - 1, 1, -1))
    values = vnp.pad(x, [(0, 0), (0, 0), *pads], constant_values=lowest)
    positions = np.pad(numbers, [(0, 0), (0, 0), *pads])
    counts = [(n - k) // s + 1 for n, k, s in zip(values.shape[2:], window.spans, window.strides, strict=True)]
    shown, where = [], []
    for tap in np.ndindex(*window.kernel):
        index = (slice(None), slice(None), *[
            slice(t * d, t * d + (c - 1) * s + 1, s)
            for t, d, c, s in zip(tap, window.dilations, counts, window.strides, strict=True)
        ])  # fmt: skip
        shown.append(values[index])
        where.append(positions[index])
    best = vnp.argmax(vnp.stack(shown), axis=0)
    return vnp.take_along_axis(vnp.asarray(np.stack(where)), best[None], 0)[0].astype(np.int64)


@operator("MaxUnpool")
def max_unpool(node: Node, x: Any, indices: Any, wanted: Any = None) -> Any:
    """Put maxima back where they came from."""
    x = as_array(x)
    kernel = node.get("kernel_shape")
    n = len(kernel)
    strides, pads = node.get("strides") or [1] * n, node.get("pads") or [0] * 2 * n
    natural = [
        (size - 1) * s + k - low - high for size, s, k, low, high in zip(x.shape[2:], strides, kernel, pads[:n], pads[n:], strict=True)
    ]
    shape = [*x.shape[:2], *natural]
    flat = vnp.zeros(math.prod(shape), x.dtype).at[as_array(indices).reshape(-1)].set(x.reshape(-1)).reshape(shape)
    if wanted is None:
        return flat
    final = node.ints(wanted, "output_shape")
    return vnp.pad(flat, [(0, want - have) for want, have in zip(final, shape, strict=True)])


@operator("AveragePool")
def average_pool(node: Node, x: Any) -> Any:
    """Average each window, with or without its padding."""
    x = as_array(x)
    zero = np.zeros((), x.dtype)
    window = Window(node, x.shape[2:], node.get("kernel_shape"))
    around = window.with_ceil() if node.get("ceil_mode", 0) else window.pads
    total = _pooled(node, x, zero, lax.add, around)
    ones = vnp.ones(x.shape, x.dtype)
    if not node.get("count_include_pad", 0):
        return total / _pooled(node, ones, zero, lax.add, around)
    ones = vnp.pad(ones, [(0, 0), (0, 0), *window.pads], constant_values=1)
    beyond = [(0, wide - given) for (_, wide), (_, given) in zip(around, window.pads, strict=True)]
    counts = lax.reduce_window(
        ones,
        zero,
        lax.add,
        (1, 1, *window.kernel),
        (1, 1, *window.strides),
        [(0, 0), (0, 0), *beyond],
        window_dilation=(1, 1, *window.dilations),
    )
    return total / counts


@operator("LpPool")
def lp_pool(node: Node, x: Any) -> Any:
    """Compute the p-norm of each window."""
    x, p = as_array(x), node.get("p", 2)
    return _pooled(node, abs(x) ** p, np.zeros((), x.dtype), lax.add) ** (1 / p)


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(node: Node, x: Any) -> Any:
    """Reduce each channel to one number."""
    x = as_array(x)
    axes = tuple(range(2, x.ndim))
    if node.op == "GlobalLpPool":
        p = node.get("p", 2)
        return vnp.sum(abs(x) ** p, axis=axes, keepdims=True) ** (1 / p)
    return (vnp.mean if node.op == "GlobalAveragePool" else vnp.max)(x, axis=axes, keepdims=True)


@operator("Col2Im")
def col_to_image(node: Node, x: Any, image: Any, block: Any) -> Any:
    """Add columns of windows up to images."""
    x = as_array(x)
    sizes, kernel = node.ints(image, "image_shape"), node.ints(block, "block_shape")
    window = Window(node, sizes, kernel)
    padded = [size + low + high for size, (low, high) in zip(sizes, window.pads, strict=True)]
    counts = [(n - k) // s + 1 for n, k, s in zip(padded, window.spans, window.strides, strict=True)]
    channels = x.shape[1] // math.prod(kernel)
    columns = x.reshape(x.shape[0], channels, *kernel, *counts)
    found = vnp.zeros((x.shape[0], channels, *padded), x.dtype)
    for tap in np.ndindex(*kernel):
        index = (slice(None), slice(None), *[
            slice(t * d, t * d + (c - 1) * s + 1, s)
            for t, d, c, s in zip(tap, window.dilations, counts, window.strides, strict=True)
        ])  # fmt: skip
        found = found.at[index].add(columns[(slice(None), slice(None), *tap)])
    return found[(slice(None), slice(None), *[slice(low, low + n) for (low, _), n in zip(window.pads, sizes, strict=True)])]

"""Reductions of windows, and the gradient of their maximum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn.core.jaxpr import Equation
from volta_fn.errors import OnnxError
from volta_fn.onnx.rules.registry import Writer, aval, ints, result, rule, scalar, shaped
from volta_fn.onnx.rules.shapes import spread_out


class Geometry:
    """Which axes windows cover, and how."""

    def __init__(self, eqn: Equation, position: int = 0) -> None:
        params = eqn.params
        self.shape = list(aval(eqn, position).shape)
        n = len(self.shape)
        self.window, self.strides = list(params["window_dimensions"]), list(params["window_strides"])
        self.pads, self.dilations = list(params["padding"]), list(params["window_dilation"] or [1] * n)
        self.spacing = list(params["base_dilation"] or [1] * n)
        self.is_plain = all(d == 1 for d in self.spacing) and all(width >= 0 for pair in self.pads for width in pair)
        self.axes = [i for i in range(n) if self.window[i] != 1 or self.strides[i] != 1 or any(self.pads[i])] or [n - 1]
        #: The axes in the order of pooling: the others first.
        self.order = [i for i in range(n) if i not in self.axes] + self.axes

    def prepared(self, w: Writer, x: str, value: str) -> str:
        """Put values between elements and crop, which pooling does not do."""
        for axis, stride in enumerate(self.spacing):
            if stride != 1:
                x = spread_out(w, x, self.shape, axis, stride, value)
                self.shape[axis] = (self.shape[axis] - 1) * stride + 1
        if all(width >= 0 for pair in self.pads for width in pair):
            return x
        x = w.op("Pad", x, ints(w, [low for low, _ in self.pads] + [high for _, high in self.pads]), value)
        self.shape = [size + low + high for size, (low, high) in zip(self.shape, self.pads, strict=True)]
        self.pads = [(0, 0)] * len(self.shape)
        return x

    def pool(self, w: Writer, x: str, operator: str, out: tuple[int, ...], **more: Any) -> str:
        """Apply a pooling operator."""
        k = self.axes
        merged = math.prod([self.shape[i] for i in self.order[: len(self.order) - len(k)]])
        images = shaped(w, w.op("Transpose", x, perm=self.order), [1, merged, *[self.shape[i] for i in k]])
        found = w.op(
            operator,
            images,
            kernel_shape=[self.window[i] for i in k],
            strides=[self.strides[i] for i in k],
            dilations=[self.dilations[i] for i in k],
            pads=[self.pads[i][0] for i in k] + [self.pads[i][1] for i in k],
            **more,
        )
        back = shaped(w, found, [out[i] for i in self.order])
        return w.op("Transpose", back, perm=[self.order.index(i) for i in range(len(out))])


@rule("reduce_window_max", "reduce_window_min", "reduce_window_sum")
def reduce_window(w: Writer, eqn: Equation, x: str) -> str:
    """Reduce each window."""
    geometry, out = Geometry(eqn), result(eqn).shape
    if aval(eqn).dtype.kind != "f":
        raise OnnxError(f"ONNX pools floats, not {aval(eqn).dtype.name}")
    neutral = {"reduce_window_max": -np.inf, "reduce_window_min": np.inf, "reduce_window_sum": 0}[eqn.primitive.name]
    x = geometry.prepared(w, x, scalar(w, neutral, aval(eqn)))
    if eqn.primitive.name == "reduce_window_max":
        return geometry.pool(w, x, "MaxPool", out)
    if eqn.primitive.name == "reduce_window_min":
        return w.op("Neg", geometry.pool(w, w.op("Neg", x), "MaxPool", out))
    count = math.prod(geometry.window)
    return w.op("Mul", geometry.pool(w, x, "AveragePool", out, count_include_pad=1), scalar(w, count, aval(eqn)))


@rule("select_and_scatter_add", "select_and_gather_add")
def select_and_move(w: Writer, eqn: Equation, moved: str, operand: str) -> str:
    """Send each update to the first winner of its window, or fetch what stands there."""
    geometry, kind = Geometry(eqn, 1), aval(eqn, 1)
    if not geometry.is_plain:
        raise OnnxError(f"{eqn.primitive.name} with dilated or cropped operands has no operator in ONNX")
    n, largest = kind.ndim, eqn.params["select"] == "ge"
    pads = [low for low, _ in geometry.pads] + [high for _, high in geometry.pads]
    worst = scalar(w, -np.inf if largest else np.inf, kind)
    padded_shape = [size + low + high for size, (low, high) in zip(geometry.shape, geometry.pads, strict=True)]
    strides = [math.prod(padded_shape[k + 1 :]) for k in range(n)]
    counts = [
        (size - (k - 1) * d - 1) // s + 1
        for size, k, d, s in zip(padded_shape, geometry.window, geometry.dilations, geometry.strides, strict=True)
    ]
    base, offsets = np.zeros([1] * n, np.int64), np.zeros([1] * n, np.int64)
    for i in range(n):
        along = [-1 if j == i else 1 for j in range(n)]
        base = base + (np.arange(counts[i]) * geometry.strides[i] * strides[i]).reshape(along)
        offsets = offsets + (np.arange(geometry.window[i]) * geometry.dilations[i] * strides[i]).reshape(along)
    starts, taps = ints(w, base[..., None]), ints(w, offsets.reshape(-1))
    values = shaped(w, w.op("Pad", operand, ints(w, pads), worst), [-1])
    windows = w.op("Gather", values, w.op("Add", starts, taps), axis=0)
    winner = w.op("ArgMax" if largest else "ArgMin", windows, axis=n, keepdims=0)
    positions = w.op("Add", ints(w, base), w.op("Gather", taps, winner, axis=0))
    if eqn.primitive.name == "select_and_gather_add":
        return w.op("Gather", shaped(w, w.op("Pad", moved, ints(w, pads), scalar(w, 0, kind)), [-1]), positions, axis=0)
    zeros = w.op("Expand", scalar(w, 0, kind), ints(w, [math.prod(padded_shape)]))
    flat = w.op("ScatterElements", zeros, shaped(w, positions, [-1]), shaped(w, moved, [-1]), axis=0, reduction="add")
    low = [low for low, _ in geometry.pads]
    end = [start + size for start, size in zip(low, geometry.shape, strict=True)]
    return w.op("Slice", shaped(w, flat, padded_shape), ints(w, low), ints(w, end), ints(w, range(n)))

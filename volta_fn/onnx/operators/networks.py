"""Operators of networks: convolutions, pooling, norms, recurrence, optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from volta_fn import lax, nn, tree
from volta_fn import numpy as vnp
from volta_fn.errors import OnnxError
from volta_fn.numpy.arguments import wide
from volta_fn.onnx.nodes import Node, as_array, is_float, operator, per_channel

# Convolutions and pooling.

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
            pads = node.get("pads") or [0] * 2 * n
            return list(zip(pads[:n], pads[n:], strict=True))
        if auto == "VALID":
            return [(0, 0)] * n
        totals = [max((-(-i // s) - 1) * s + k - i, 0) for i, s, k in zip(self.sizes, self.strides, self.spans, strict=True)]
        return [halves(total, auto == "SAME_UPPER") for total in totals]

    def with_ceil(self) -> Pads:
        """Return the padding with which incomplete windows at the end count."""
        pads = []
        for size, (low, high), span, stride in zip(self.sizes, self.pads, self.spans, self.strides, strict=True):
            count = -(-(size + low + high - span) // stride) + 1
            if (count - 1) * stride >= size + low:  # it would begin in the padding
                count -= 1
            pads.append((low, max(high, (count - 1) * stride + span - size - low)))
        return pads

    def counts(self, sizes: Sequence[int]) -> list[int]:
        """Return the number of windows along each axis of an array with its padding."""
        return [(n - span) // stride + 1 for n, span, stride in zip(sizes, self.spans, self.strides, strict=True)]

    def elements(self, counts: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """Yield each position in a window, and the index of all windows' elements there."""
        for position in np.ndindex(*self.kernel):
            axes = zip(position, self.dilations, counts, self.strides, strict=True)
            yield position, (slice(None), slice(None), *[slice(p * d, p * d + (c - 1) * s + 1, s) for p, d, c, s in axes])


def halves(total: int, more_at_end: bool) -> tuple[int, int]:
    """Split padding between both sides."""
    less = total // 2
    return (less, total - less) if more_at_end else (total - less, less)


@operator("Conv")
def conv(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
    """Convolve images with channels first."""
    x, weight = as_array(x), as_array(weight)
    window = Window(node, x.shape[2:], weight.shape[2:])
    y = lax.conv_general_dilated(
        x, weight, window.strides, window.pads, rhs_dilation=window.dilations, feature_group_count=node.get("group", 1)
    )
    return y if bias is None else y + per_channel(bias, y.ndim)


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
    y = lax.conv_general_dilated(x, flipped, [1] * n, around, lhs_dilation=strides, rhs_dilation=dilations, feature_group_count=groups)
    return y if bias is None else y + per_channel(bias, y.ndim)


def _transposed_pads(
    node: Node, sizes: Sequence[int], kernel: Sequence[int], strides: list[int], dilations: list[int], extra: list[int]
) -> Pads:
    n, auto, output_shape = len(kernel), node.get("auto_pad", "NOTSET"), node.get("output_shape")
    if output_shape is None and auto in ("NOTSET", "", "VALID"):
        widths = node.get("pads") or [0] * 2 * n
        return list(zip(widths[:n], widths[n:], strict=True))
    output_shape = [i * s for i, s in zip(sizes, strides, strict=True)] if output_shape is None else output_shape[-n:]
    pads = []
    for size, stride, k, dilation, more, want in zip(sizes, strides, kernel, dilations, extra, output_shape, strict=True):
        total = (size - 1) * stride + more + (k - 1) * dilation + 1 - want
        low, high = halves(max(total, 0), auto == "SAME_UPPER")
        pads.append((low, high + min(total, 0)))  # a larger shape has zeros at the end
    return pads


def _pool(node: Node, x: Any, start: Any, step: Any, pads: Pads | None = None) -> Any:
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
    maxima = _pool(node, x, np.asarray(lowest, x.dtype), lax.max)
    if node.outputs == 1:
        return maxima
    return maxima, _positions(node, x, lowest, maxima)


def _positions(node: Node, x: Any, lowest: Any, maxima: Any) -> Any:
    """Return the positions of the maxima in the flattened input, first ones first."""
    window = Window(node, x.shape[2:], node.get("kernel_shape"))
    pads = window.with_ceil() if node.get("ceil_mode", 0) else window.pads
    numbers = np.arange(math.prod(x.shape)).reshape(x.shape)
    if node.get("storage_order", 0):
        numbers = np.arange(math.prod(x.shape)).reshape(*x.shape[:2], *x.shape[:1:-1]).transpose(0, 1, *range(x.ndim - 1, 1, -1))
    values = vnp.pad(x, [(0, 0), (0, 0), *pads], constant_values=lowest)
    positions = np.pad(numbers, [(0, 0), (0, 0), *pads], constant_values=-1)
    indices = [index for _, index in window.elements(window.counts(values.shape[2:]))]
    where = np.stack([positions[index] for index in indices])
    windows = vnp.stack([values[index] for index in indices])
    # A maximum may be the value of the padding, which has no position.
    is_best = (where >= 0) & ((windows == maxima) | vnp.isnan(windows))
    return vnp.take_along_axis(vnp.asarray(where), vnp.argmax(is_best, axis=0)[None], 0)[0].astype(np.int64)


@operator("MaxUnpool")
def max_unpool(node: Node, x: Any, indices: Any, output_shape: Any = None) -> Any:
    """Write maxima to the positions that they were taken from."""
    x = as_array(x)
    kernel = node.get("kernel_shape")
    n = len(kernel)
    strides, pads = node.get("strides") or [1] * n, node.get("pads") or [0] * 2 * n
    natural = [
        (size - 1) * s + k - low - high for size, s, k, low, high in zip(x.shape[2:], strides, kernel, pads[:n], pads[n:], strict=True)
    ]
    shape = [*x.shape[:2], *natural]
    flat = vnp.zeros(math.prod(shape), x.dtype).at[as_array(indices).reshape(-1)].set(x.reshape(-1)).reshape(shape)
    if output_shape is None:
        return flat
    final = node.ints(output_shape, "output_shape")
    return vnp.pad(flat, [(0, want - have) for want, have in zip(final, shape, strict=True)])


@operator("AveragePool")
def average_pool(node: Node, x: Any) -> Any:
    """Average each window, with or without its padding."""
    x = as_array(x)
    zero = np.zeros((), x.dtype)
    window = Window(node, x.shape[2:], node.get("kernel_shape"))
    around = window.with_ceil() if node.get("ceil_mode", 0) else window.pads
    total = _pool(node, x, zero, lax.add, around)
    ones = vnp.ones(x.shape, x.dtype)
    if not node.get("count_include_pad", 0):
        return total / _pool(node, ones, zero, lax.add, around)
    ones = vnp.pad(ones, [(0, 0), (0, 0), *window.pads], constant_values=1)
    beyond = [(0, end - high) for (_, end), (_, high) in zip(around, window.pads, strict=True)]
    return total / _pool(node, ones, zero, lax.add, beyond)


@operator("LpPool")
def lp_pool(node: Node, x: Any) -> Any:
    """Compute the p-norm of each window."""
    x, p = as_array(x), node.get("p", 2)
    return _pool(node, abs(x) ** p, np.zeros((), x.dtype), lax.add) ** (1 / p)


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
    counts = window.counts(padded)
    channels = x.shape[1] // math.prod(kernel)
    columns = x.reshape(x.shape[0], channels, *kernel, *counts)
    images = vnp.zeros((x.shape[0], channels, *padded), x.dtype)
    for position, index in window.elements(counts):
        images = images.at[index].add(columns[(slice(None), slice(None), *position)])
    return images[(slice(None), slice(None), *[slice(low, low + n) for (low, _), n in zip(window.pads, sizes, strict=True)])]


# Normalisation, and dropout, which models for inference do not apply.


@operator("BatchNormalization")
def batch_norm(node: Node, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    """Normalise channels by running statistics, or in training by the batch's."""
    x, epsilon = as_array(x), node.get("epsilon", 1e-5)
    if not node.get("training_mode", 0):
        slope = as_array(scale) / vnp.sqrt(as_array(variance) + epsilon)
        offset = as_array(bias) - as_array(mean) * slope
        return (x * per_channel(slope, x.ndim) + per_channel(offset, x.ndim)).astype(x.dtype)
    axes, momentum = (0, *range(2, x.ndim)), node.get("momentum", 0.9)
    batch_mean, batch_variance = x.mean(axes), x.var(axes)
    normal = (x - per_channel(batch_mean, x.ndim)) / vnp.sqrt(per_channel(batch_variance, x.ndim) + epsilon)
    result = normal * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)
    running = [as_array(old) * momentum + new * (1 - momentum) for old, new in ((mean, batch_mean), (variance, batch_variance))]
    return result.astype(x.dtype), *running


@operator("LayerNormalization")
def layer_norm(node: Node, x: Any, scale: Any, bias: Any = None) -> Any:
    """Normalise the axes from one on."""
    x = as_array(x)
    axes = tuple(range(node.get("axis", -1) % x.ndim, x.ndim))
    values = wide(x)
    mean = values.mean(axes, keepdims=True)
    inverse = 1 / vnp.sqrt(values.var(axes, keepdims=True) + node.get("epsilon", 1e-5))
    y = ((values - mean) * inverse).astype(x.dtype) * as_array(scale)
    return (y if bias is None else y + as_array(bias)), mean, inverse


@operator("RMSNormalization")
def rms_norm(node: Node, x: Any, scale: Any) -> Any:
    """Divide by the root of the mean square of the axes from one on."""
    x = as_array(x)
    axes = tuple(range(node.get("axis", -1) % x.ndim, x.ndim))
    values = wide(x)
    normal = values / vnp.sqrt((values * values).mean(axes, keepdims=True) + node.get("epsilon", 1e-5))
    return normal.astype(x.dtype) * as_array(scale)


@operator("InstanceNormalization")
def instance_norm(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    """Normalise each channel of each example."""
    x = as_array(x)
    values = _normalized(x, tuple(range(2, x.ndim)), node.get("epsilon", 1e-5)).astype(x.dtype)
    return values * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)


def _normalized(x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    """Return numbers less their mean, over their deviation, in float32 at least."""
    values = wide(x)
    return (values - values.mean(axes, keepdims=True)) / vnp.sqrt(values.var(axes, keepdims=True) + epsilon)


@operator("MeanVarianceNormalization")
def mean_variance_norm(node: Node, x: Any) -> Any:
    """Subtract means and divide by standard deviations."""
    x, axes = as_array(x), tuple(node.get("axes", [0, 2, 3]))
    values = wide(x)
    deviation = vnp.sqrt(values.var(axes, keepdims=True))
    return ((values - values.mean(axes, keepdims=True)) / (deviation + 1e-9)).astype(x.dtype)


@operator("GroupNormalization")
def group_norm(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    """Normalise groups of channels."""
    x, groups = as_array(x), node.get("num_groups")
    normal = _normalized(x.reshape(x.shape[0], groups, -1), (2,), node.get("epsilon", 1e-5)).astype(x.dtype)
    scale, bias = as_array(scale), as_array(bias)
    if scale.shape[0] != x.shape[1]:  # one for each group, before version 21
        scale, bias = [vnp.repeat(v, x.shape[1] // groups) for v in (scale, bias)]
    return normal.reshape(x.shape) * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)


@operator("LpNormalization")
def lp_norm(node: Node, x: Any) -> Any:
    """Divide by the norm along an axis; zeros stay zeros."""
    x, axis, is_sum = as_array(x), node.get("axis", -1), node.get("p", 2) == 1
    total = vnp.sum(abs(x) if is_sum else x * x, axis, keepdims=True)
    nonzero = vnp.where(total == 0, 1, total)  # the root has no derivative at 0
    return vnp.where(total == 0, 0, x / (nonzero if is_sum else vnp.sqrt(nonzero)))


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


# RNN, GRU and LSTM, as scans over time.

_ACTIVATIONS: dict[str, Callable[[Any, float, float], Any]] = {
    "affine": lambda x, a, b: a * x + b,
    "elu": lambda x, a, b: vnp.where(x > 0, x, a * vnp.expm1(vnp.minimum(x, 0))),
    "hardsigmoid": lambda x, a, b: vnp.clip(a * x + b, 0, 1),
    "leakyrelu": lambda x, a, b: vnp.where(x >= 0, x, a * x),
    "relu": lambda x, a, b: nn.relu(x),
    "scaledtanh": lambda x, a, b: a * vnp.tanh(b * x),
    "sigmoid": lambda x, a, b: nn.sigmoid(x),
    "softplus": lambda x, a, b: nn.softplus(x),
    "softsign": lambda x, a, b: x / (1 + abs(x)),
    "tanh": lambda x, a, b: vnp.tanh(x),
    "thresholdedrelu": lambda x, a, b: vnp.where(x > a, x, 0),
}
_DEFAULTS = {
    "affine": (1.0, 0.0),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, 0.0),
    "elu": (1.0, 0.0),
    "thresholdedrelu": (1.0, 0.0),
    "scaledtanh": (1.0, 1.0),
}

Cell = Callable[..., tuple[Any, ...]]


class Layer:
    """A recurrent layer: activations, weights, directions, lengths."""

    def __init__(self, node: Node, gates: int, defaults: list[str]) -> None:
        self.node, self.gates = node, gates
        self.hidden: int = node.get("hidden_size")
        self.direction = node.get("direction", "forward")
        self.directions = 2 if self.direction == "bidirectional" else 1
        names = [str(n).lower() for n in node.get("activations") or defaults * self.directions]
        if unknown := [n for n in names if n not in _ACTIVATIONS]:
            raise OnnxError(f"{node}: unknown activations {unknown}")
        self.functions = self._functions(names)
        self.per_direction = len(defaults)

    def _functions(self, names: list[str]) -> list[Callable[[Any], Any]]:
        alphas, betas = list(self.node.get("activation_alpha") or []), list(self.node.get("activation_beta") or [])
        functions = []
        for name in names:
            a, b = _DEFAULTS.get(name, (1.0, 0.0))
            a = alphas.pop(0) if alphas and name in _DEFAULTS else a
            b = betas.pop(0) if betas and name in ("hardsigmoid", "scaledtanh", "affine") else b
            functions.append(self._with_clip(_ACTIVATIONS[name], a, b))
        return functions

    def _with_clip(self, function: Callable[..., Any], a: float, b: float) -> Callable[[Any], Any]:
        limit = self.node.get("clip")
        return (lambda x: function(x, a, b)) if limit is None else (lambda x: function(vnp.clip(x, -limit, limit), a, b))

    def run(
        self, cell: Cell, x: Any, lengths: Any, states: list[Any], w: Any, weights: list[Any], multiply: Callable[[Any, Any], Any]
    ) -> tuple[Any, list[Any]]:
        """Run all directions; return the outputs, and the last states.

        Their axes are (time, directions, batch, hidden), without the first for states. The inputs of all times are multiplied with the
        weights `w` at once; the cell gets the products.
        """
        x = as_array(x)
        if self.node.get("layout", 0):
            x = x.swapaxes(0, 1)
            states = [None if s is None else as_array(s).swapaxes(0, 1) for s in states]
        batch = x.shape[1]
        initial = [vnp.zeros((self.directions, batch, self.hidden), x.dtype) if s is None else as_array(s) for s in states]
        outputs, lasts = [], []
        for d in range(self.directions):
            chosen = [_of_direction(each, d) for each in weights]
            inputs = multiply(x, _of_direction(w, d))
            functions = self.functions[d * self.per_direction : (d + 1) * self.per_direction]
            backward = self.direction == "reverse" or d == 1
            output, last = _scan_direction(cell, functions, inputs, lengths, tuple([s[d] for s in initial]), chosen, backward)
            outputs.append(output)
            lasts.append(last)
        stacked = [vnp.stack(column) for column in zip(*lasts, strict=True)]
        result = vnp.stack(outputs, 1)
        if self.node.get("layout", 0):
            result, stacked = result.transpose(2, 0, 1, 3), [s.swapaxes(0, 1) for s in stacked]
        return result, stacked


def _of_direction(weights: Any, direction: int) -> Any:
    """Return the part of the arrays of a tree that belongs to a direction."""
    return tree.map(lambda values: as_array(values)[direction], weights)


def _multiply(x: Any, weights: Any) -> Any:
    """Multiply with a matrix (out, in)."""
    return x @ weights.T


def _scan_direction(
    cell: Cell, functions: Any, inputs: Any, lengths: Any, start: tuple[Any, ...], weights: list[Any], backward: bool
) -> tuple[Any, tuple[Any, ...]]:
    """Run one direction; where a sequence has ended, states stay and outputs are zero."""

    def step(states: tuple[Any, ...], slices: tuple[Any, Any]) -> tuple[tuple[Any, ...], Any]:
        time, now = slices
        new = cell(functions, now, states, *weights)
        if lengths is None:
            return new, new[0]
        alive = (time < as_array(lengths))[:, None]
        return tuple([vnp.where(alive, n, s) for n, s in zip(new, states, strict=True)]), vnp.where(alive, new[0], 0)

    last, outputs = lax.scan(step, start, (vnp.arange(inputs.shape[0], dtype=np.int32), inputs), reverse=backward)
    return outputs, last


def _bias(bias: Any, gates: int, hidden: int, like: Any) -> tuple[Any, Any]:
    """Return the biases of the input and of the recurrence."""
    if bias is None:
        zeros = vnp.zeros(gates * hidden, like.dtype)
        return zeros, zeros
    return bias[: gates * hidden], bias[gates * hidden :]


@operator("RNN")
def rnn(node: Node, x: Any, w: Any, r: Any, bias: Any = None, lengths: Any = None, initial: Any = None) -> tuple[Any, ...]:
    """Run simple recurrent layers."""
    layer = Layer(node, 1, ["Tanh"])

    def cell(functions: Any, now: Any, states: tuple[Any, ...], r: Any, b: Any) -> tuple[Any, ...]:
        (h,), (on_input, on_state) = states, _bias(b, 1, layer.hidden, now)
        return (functions[0](now + on_input + h @ r.T + on_state),)

    result, (last,) = layer.run(cell, x, lengths, [initial], w, [r, bias], _multiply)
    return result, last


@operator("GRU")
def gru(node: Node, x: Any, w: Any, r: Any, bias: Any = None, lengths: Any = None, initial: Any = None) -> tuple[Any, ...]:
    """Run gated recurrent units."""
    layer = Layer(node, 3, ["Sigmoid", "Tanh"])
    linear_first = bool(node.get("linear_before_reset", 0))

    def cell(functions: Any, now: Any, states: tuple[Any, ...], r: Any, b: Any) -> tuple[Any, ...]:
        (h,), (on_input, on_state) = states, _bias(b, 3, layer.hidden, now)
        n = layer.hidden
        f, g = functions
        inputs, moved = now + on_input, h @ r[: 2 * n].T + on_state[: 2 * n]
        update, reset = f(inputs[:, :n] + moved[:, :n]), f(inputs[:, n : 2 * n] + moved[:, n:])
        if linear_first:
            new = reset * (h @ r[2 * n :].T + on_state[2 * n :])
        else:
            new = (reset * h) @ r[2 * n :].T + on_state[2 * n :]
        return ((1 - update) * g(inputs[:, 2 * n :] + new) + update * h,)

    result, (last,) = layer.run(cell, x, lengths, [initial], w, [r, bias], _multiply)
    return result, last


@operator("LSTM")
def lstm(
    node: Node,
    x: Any,
    w: Any,
    r: Any,
    bias: Any = None,
    lengths: Any = None,
    initial: Any = None,
    initial_cell: Any = None,
    peepholes: Any = None,
) -> tuple[Any, ...]:
    """Run long short-term memories."""
    return run_lstm(node, x, w, r, bias, lengths, initial, initial_cell, peepholes)


def run_lstm(
    node: Node,
    x: Any,
    w: Any,
    r: Any,
    bias: Any,
    lengths: Any,
    initial: Any,
    initial_cell: Any,
    peepholes: Any,
    multiply: Callable[[Any, Any], Any] = _multiply,
) -> tuple[Any, ...]:
    """Run long short-term memories.

    `multiply` multiplies inputs and states with the weights `w` and `r` of a direction.
    """
    layer = Layer(node, 4, ["Sigmoid", "Tanh", "Tanh"])
    coupled = bool(node.get("input_forget", 0))

    def cell(functions: Any, now: Any, states: tuple[Any, ...], r: Any, b: Any, p: Any) -> tuple[Any, ...]:
        (h, c), (on_input, on_state), n = states, _bias(b, 4, layer.hidden, now), layer.hidden
        f, g, last = functions
        gates = now + on_input + multiply(h, r) + on_state
        peephole = vnp.zeros(3 * n, now.dtype) if p is None else p
        input_gate = f(gates[:, :n] + peephole[:n] * c)
        forget = 1 - input_gate if coupled else f(gates[:, 2 * n : 3 * n] + peephole[2 * n :] * c)
        new = forget * c + input_gate * g(gates[:, 3 * n :])
        output_gate = f(gates[:, n : 2 * n] + peephole[n : 2 * n] * new)
        return output_gate * last(new), new

    result, (last, last_cell) = layer.run(cell, x, lengths, [initial, initial_cell], w, [r, bias, peepholes], multiply)
    return result, last, last_cell


# Optimizers.
#
# They take a learning rate, the number of steps so far, and then arrays, their gradients and the optimizer's state.

_DOMAIN = "ai.onnx.preview.training"


@operator(f"{_DOMAIN}.Adagrad")
def adagrad(node: Node, rate: Any, count: Any, *arrays: Any) -> Any:
    """Divide by the root of the sum of squares of all gradients."""
    rate = rate / (1 + as_array(count).astype(rate.dtype) * node.get("decay_factor", 0.0))

    def update(x: Any, gradient: Any, squares: Any) -> Any:
        gradient = gradient + node.get("norm_coefficient", 0.0) * x
        squares = squares + gradient * gradient
        return x - rate * gradient / (vnp.sqrt(squares) + node.get("epsilon", 1e-6)), squares

    return tuple(_update_all(update, arrays, 3))


@operator(f"{_DOMAIN}.Adam")
def adam(node: Node, rate: Any, count: Any, *arrays: Any) -> Any:
    """Divide a mean of gradients by the root of a mean of their squares."""
    alpha, beta = node.get("alpha", 0.9), node.get("beta", 0.999)
    steps = as_array(count).astype(rate.dtype)
    rate = vnp.where(steps > 0, rate * vnp.sqrt(1 - beta**steps) / (1 - alpha ** vnp.maximum(steps, 1)), rate)

    def update(x: Any, gradient: Any, mean: Any, squares: Any) -> Any:
        gradient = gradient + node.get("norm_coefficient", 0.0) * x
        mean = alpha * mean + (1 - alpha) * gradient
        squares = beta * squares + (1 - beta) * gradient * gradient
        x = x - rate * mean / (vnp.sqrt(squares) + node.get("epsilon", 1e-6))
        return (1 - node.get("norm_coefficient_post", 0.0)) * x, mean, squares

    return tuple(_update_all(update, arrays, 4))


@operator(f"{_DOMAIN}.Momentum")
def momentum(node: Node, rate: Any, count: Any, *arrays: Any) -> Any:
    """Follow a sum of gradients that decays, or Nesterov's look ahead."""
    alpha = node.get("alpha")
    beta = vnp.where(as_array(count) > 0, node.get("beta"), 1.0).astype(rate.dtype)

    def update(x: Any, gradient: Any, velocity: Any) -> Any:
        gradient = gradient + node.get("norm_coefficient") * x
        velocity = alpha * velocity + beta * gradient
        direction = gradient + alpha * velocity if node.get("mode") == "nesterov" else velocity
        return x - rate * direction, velocity

    return tuple(_update_all(update, arrays, 3))


def _update_all(update: Callable[..., Any], arrays: tuple[Any, ...], kinds: int) -> Iterator[Any]:
    """Yield the updated arrays, then the first states of all arrays, and so on.

    `arrays` has all arrays to train, all their gradients, and all states, which are so many `kinds`.
    """
    count = len(arrays) // kinds
    rows = [[as_array(array) for array in arrays[k::count]] for k in range(count)]
    for column in zip(*[update(*row) for row in rows], strict=True):
        yield from column

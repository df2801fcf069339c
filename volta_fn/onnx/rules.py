"""Rules that write ONNX's nodes for primitives."""

from __future__ import annotations

import functools
import math
import string
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from volta_fn import lax
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, inline_calls
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.dtypes import bfloat16
from volta_fn.errors import OnnxError
from volta_fn.onnx.nodes import number_of
from volta_fn.primitives.contraction import masked
from volta_fn.primitives.data_movement.gather import GatherScatterMode
from volta_fn.primitives.quantized import BLOCK, TABLES, QuantizedLayout, decode, per_number

# Declaration.
#
# A rule is a function ``(writer, eqn, *names) -> name or names``: given the names of the operands' values, it adds nodes and returns the
# names of the results.

Rule = Callable[..., Any]

#: Rules by primitive.
RULES: dict[str, Rule] = {}


class Writer(Protocol):
    """Adds nodes to a graph; values have names."""

    def op(self, kind: str, *names: str, **attributes: Any) -> str:
        """Add a node with one result, and return that result's name."""

    def ops(self, kind: str, outputs: int, *names: str, **attributes: Any) -> list[str]:
        """Add a node with several results."""

    def constant(self, value: Any) -> str:
        """Return the name of a constant."""

    def program(self, closed: ClosedJaxpr, operands: Sequence[str]) -> list[str]:
        """Add the nodes of a program, and return the names of its results."""

    def graph(self, name: str, inputs: Sequence[ShapedArray], build: Callable[[Writer, Sequence[str]], Sequence[str]]) -> Any:
        """Return a graph that a node runs; `build` adds its nodes."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Declare a function to be the rule of primitives (decorator)."""

    def declare(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return declare


def ints(w: Writer, values: Any) -> str:
    """Return the name of a constant of integers."""
    return w.constant(np.asarray(values, np.int64))


def scalar(w: Writer, value: Any, like: ShapedArray) -> str:
    """Return the name of a number of a dtype."""
    return w.constant(np.asarray(value, like.dtype))


def aval(eqn: Equation, position: int = 0) -> ShapedArray:
    """Return the type of an operand."""
    return eqn.invars[position].aval


def result(eqn: Equation) -> ShapedArray:
    """Return the type of the first result."""
    return eqn.outvars[0].aval


def shaped(w: Writer, name: str, shape: Sequence[int]) -> str:
    """Reshape a value."""
    return w.op("Reshape", name, ints(w, shape), allowzero=1)


# Shapes, slices and padding.

_FAR = -(2**31)
BFLOAT16 = np.dtype(bfloat16)
#: Primitives whose operators runtimes have for bfloat16, too: they move elements, and compute nothing.
MOVEMENTS = {
    "concatenate", "cond", "convert_element_type", "dynamic_slice", "dynamic_update_slice", "gather", "name", "optimization_barrier", "pad",
    "reshape", "rev", "scan", "slice", "squeeze", "stop_gradient", "transpose", "while",
}  # fmt: skip


RULES |= {
    "concatenate": lambda w, eqn, *names: w.op("Concat", *names, axis=int(eqn.params["dimension"])),
    "reshape": lambda w, eqn, x: shaped(w, x, result(eqn).shape),
    "squeeze": lambda w, eqn, x: shaped(w, x, result(eqn).shape),
    "transpose": lambda w, eqn, x: w.op("Transpose", x, perm=[int(i) for i in eqn.params["permutation"]]),
}


@rule("broadcast_in_dim")
def broadcast(w: Writer, eqn: Equation, x: str) -> str:
    """Add axes, and repeat along them."""
    shape, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    spread = [1] * len(shape)
    for size, dim in zip(aval(eqn).shape, dims, strict=True):
        spread[dim] = size
    return w.op("Expand", shaped(w, x, spread), ints(w, shape))


@rule("slice")
def take_slice(w: Writer, eqn: Equation, x: str) -> str:
    """Take a slice along every axis."""
    starts, limits, strides = (eqn.params[name] for name in ("start_indices", "limit_indices", "strides"))
    n = len(starts)
    return w.op("Slice", x, ints(w, starts), ints(w, limits), ints(w, range(n)), ints(w, strides or [1] * n))


@rule("rev")
def reverse(w: Writer, eqn: Equation, x: str) -> str:
    """Reverse axes."""
    dims = list(eqn.params["dimensions"])
    steps = ints(w, [-1] * len(dims))
    return w.op("Slice", x, steps, ints(w, [_FAR] * len(dims)), ints(w, dims), steps)


@rule("pad")
def pad(w: Writer, eqn: Equation, x: str, value: str) -> str:
    """Pad with a value, between elements too; negative widths crop."""
    config, shape = eqn.params["padding_config"], list(aval(eqn).shape)
    for axis, (_, _, between) in enumerate(config):
        if between and shape[axis]:
            x = spread_out(w, x, shape, axis, between + 1, value)
            shape[axis] += (shape[axis] - 1) * between
    if any(low or high for low, high, _ in config):
        x = w.op("Pad", x, ints(w, [low for low, _, _ in config] + [high for _, high, _ in config]), value)
    return w.op("Identity", x)


def spread_out(w: Writer, x: str, shape: list[int], axis: int, stride: int, value: str) -> str:
    """Put `stride - 1` values between the elements of an axis."""
    deeper = [*shape[: axis + 1], 1, *shape[axis + 1 :]]
    pads = [0] * 2 * len(deeper)
    pads[len(deeper) + axis + 1] = stride - 1
    padded = w.op("Pad", shaped(w, x, deeper), ints(w, pads), value)
    flat = shaped(w, padded, [*shape[:axis], shape[axis] * stride, *shape[axis + 1 :]])
    return w.op("Slice", flat, ints(w, [0]), ints(w, [(shape[axis] - 1) * stride + 1]), ints(w, [axis]))


@rule("iota")
def iota(w: Writer, eqn: Equation) -> str:
    """Count along an axis."""
    kind, axis = result(eqn), eqn.params["dimension"]
    numbers = np.arange(kind.shape[axis]).astype(kind.dtype).reshape([-1 if i == axis else 1 for i in range(kind.ndim)])
    return w.op("Expand", w.constant(numbers), ints(w, kind.shape))


def starts_of(w: Writer, names: tuple[str, ...], limits: list[int], sizes: list[int]) -> str:
    """Return the starts of a slice as one vector, moved inside of the array."""
    chunks = [w.op("Reshape", w.op("Cast", name, to=7), ints(w, [1])) for name in names]
    joined = w.op("Concat", *chunks, axis=0)
    counted = w.op("Where", w.op("Less", joined, ints(w, 0)), w.op("Add", joined, ints(w, limits)), joined)
    most = ints(w, [limit - size for limit, size in zip(limits, sizes, strict=True)])
    return w.op("Max", w.op("Min", counted, most), ints(w, 0))


@rule("dynamic_slice")
def dynamic_slice(w: Writer, eqn: Equation, x: str, *starts: str) -> str:
    """Take a slice whose start is computed."""
    sizes, shape = list(eqn.params["slice_sizes"]), list(aval(eqn).shape)
    if not shape:
        return w.op("Identity", x)
    begin = starts_of(w, starts, shape, sizes)
    return w.op("Slice", x, begin, w.op("Add", begin, ints(w, sizes)), ints(w, range(len(sizes))))


@rule("dynamic_update_slice")
def dynamic_update_slice(w: Writer, eqn: Equation, x: str, update: str, *starts: str) -> Any:
    """Replace a slice whose start is computed."""
    shape, sizes = list(aval(eqn).shape), list(aval(eqn, 1).shape)
    if not shape:
        return w.op("Identity", update)
    positions = np.moveaxis(np.indices(sizes), 0, -1).astype(np.int64)
    return w.op("ScatterND", x, w.op("Add", w.constant(positions), starts_of(w, starts, shape, sizes)), update)


def zero_of(w: Writer, eqn: Equation) -> str:
    """Return a zero of the first operand's dtype."""
    return scalar(w, 0, aval(eqn))


# Gathers and scatters, as indices into the flattened operand.

_SCATTERS = {"scatter": "none", "scatter_add": "add", "scatter_max": "max", "scatter_min": "min", "scatter_mul": "mul"}
_INT64 = 7


class Positions:
    """The positions in a flattened operand that index vectors and windows address."""

    def __init__(
        self,
        w: Writer,
        indices: str,
        index_shape: Sequence[int],
        shape: Sequence[int],
        window: Sequence[int],
        mapped: Sequence[int],
        operand_batching: Sequence[int],
        index_batching: Sequence[int],
    ) -> None:
        self.w, self.shape, self.window = w, shape, window
        self.strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
        self.batch = list(index_shape[:-1])
        wide = w.op("Cast", indices, to=_INT64)
        chunks = [w.op("Gather", wide, ints(w, j), axis=len(self.batch)) for j in range(len(mapped))]
        limits = [shape[k] - window[k] for k in mapped]
        #: Whether every start lies inside.
        self.inside = self._inside(chunks, limits)
        start = ints(w, np.zeros(self.batch))
        for chunk, k, limit in zip(chunks, mapped, limits, strict=True):
            clamped = w.op("Max", w.op("Min", chunk, ints(w, limit)), ints(w, 0))
            start = w.op("Add", start, w.op("Mul", clamped, ints(w, self.strides[k])))
        for k, b in zip(operand_batching, index_batching, strict=True):
            numbers = np.arange(self.batch[b]).reshape([-1 if i == b else 1 for i in range(len(self.batch))])
            start = w.op("Add", start, ints(w, numbers * self.strides[k]))
        self.start = start

    def _inside(self, chunks: list[str], limits: list[int]) -> str:
        w = self.w
        inside = w.constant(np.ones(self.batch, bool))
        for chunk, limit in zip(chunks, limits, strict=True):
            low, high = w.op("GreaterOrEqual", chunk, ints(w, 0)), w.op("LessOrEqual", chunk, ints(w, limit))
            inside = w.op("And", inside, w.op("And", low, high))
        return inside

    def flat(self, window_dims: Sequence[int], operand_dims: Sequence[int], rank: int) -> str:
        """Return positions in the flattened operand, windows along the given dimensions."""
        offsets = np.zeros([1] * rank, np.int64)
        for dim, k in zip(window_dims, operand_dims, strict=True):
            numbers = np.arange(self.window[k]) * self.strides[k]
            offsets = offsets + numbers.reshape([-1 if i == dim else 1 for i in range(rank)])
        return self.w.op("Add", self.spread(self.start, window_dims, rank), ints(self.w, offsets))

    def spread(self, name: str, window_dims: Sequence[int], rank: int) -> str:
        """Add axes of size 1 for the windows."""
        sizes = iter(self.batch)
        return shaped(self.w, name, [1 if i in window_dims else next(sizes) for i in range(rank)])


@rule("gather")
def gather(w: Writer, eqn: Equation, x: str, indices: str) -> str:
    """Take windows of an array."""
    params, operand, index = eqn.params, aval(eqn), aval(eqn, 1)
    d = params["dimension_numbers"]
    missing = (*d.collapsed_slice_dims, *d.operand_batching_dims)
    window_axes = [k for k in range(operand.ndim) if k not in missing]
    positions = Positions(
        w,
        indices,
        index.shape,
        operand.shape,
        params["slice_sizes"],
        d.start_index_map,
        d.operand_batching_dims,
        d.start_indices_batching_dims,
    )
    rank = result(eqn).ndim
    windows = w.op("Gather", shaped(w, x, [-1]), positions.flat(d.offset_dims, window_axes, rank), axis=0)
    if params["mode"] is not GatherScatterMode.FILL_OR_DROP:
        return windows
    inside, fill = positions.spread(positions.inside, d.offset_dims, rank), scalar(w, _fill(eqn), operand)
    if operand.dtype == np.bool_:
        return w.op("Or", windows, w.op("Not", inside))  # the fill value is true
    if operand.dtype == BFLOAT16:
        windows, fill = (w.op("Cast", name, to=number_of(np.dtype(np.float32))) for name in (windows, fill))
    filled = w.op("Where", inside, windows, fill)
    return w.op("Cast", filled, to=number_of(operand.dtype)) if operand.dtype == BFLOAT16 else filled


def _fill(eqn: Equation) -> object:
    """Return the fill value of a gather for indices out of range."""
    value, dtype = eqn.params["fill_value"], aval(eqn).dtype
    if value is not None:
        return value
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return limits.min if dtype.kind == "i" else limits.max
    return True if dtype == np.bool_ else np.nan


@rule(*_SCATTERS)
def scatter(w: Writer, eqn: Equation, x: str, indices: str, updates: str) -> str:
    """Update windows of an array; those out of range go to an element that is dropped."""
    params, operand, index, new = eqn.params, aval(eqn), aval(eqn, 1), aval(eqn, 2)
    d = params["dimension_numbers"]
    missing = (*d.inserted_window_dims, *d.operand_batching_dims)
    window_axes = [k for k in range(operand.ndim) if k not in missing]
    window = [1] * operand.ndim
    for dim, k in zip(d.update_window_dims, window_axes, strict=True):
        window[k] = new.shape[dim]
    positions = Positions(
        w,
        indices,
        index.shape,
        operand.shape,
        window,
        d.scatter_dims_to_operand_dims,
        d.operand_batching_dims,
        d.scatter_indices_batching_dims,
    )
    flat = positions.flat(d.update_window_dims, window_axes, new.ndim)
    if params["mode"] is not GatherScatterMode.CLIP:
        flat = w.op("Where", positions.spread(positions.inside, d.update_window_dims, new.ndim), flat, ints(w, operand.size))
    longer = w.op("Concat", shaped(w, x, [-1]), w.constant(np.zeros(1, operand.dtype)), axis=0)
    spread = w.op("Expand", flat, ints(w, new.shape))
    updated = w.op(
        "ScatterElements", longer, shaped(w, spread, [-1]), shaped(w, updates, [-1]), axis=0, reduction=_SCATTERS[eqn.primitive.name]
    )
    return shaped(w, w.op("Slice", updated, ints(w, [0]), ints(w, [operand.size]), ints(w, [0])), operand.shape)


# Reductions of windows, and the gradient of their maximum.


class Geometry:
    """The geometry of windows: sizes, strides, padding and dilations by axis."""

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
        """Dilate with a value and crop, which pooling operators cannot do."""
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
        pooled = w.op(
            operator,
            images,
            kernel_shape=[self.window[i] for i in k],
            strides=[self.strides[i] for i in k],
            dilations=[self.dilations[i] for i in k],
            pads=[self.pads[i][0] for i in k] + [self.pads[i][1] for i in k],
            **more,
        )
        back = shaped(w, pooled, [out[i] for i in self.order])
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
    """Add each update at the selected position of its window, or gather from there."""
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


# Control flow: scan is Scan, cond is If, while is Loop.
#
# The graphs that these run read surrounding values by name, so that constants need not be passed.

_COUNTER, _FLAG = ShapedArray((), np.dtype(np.int64)), ShapedArray((), np.dtype(np.bool_))


@rule("scan")
def scan(w: Writer, eqn: Equation, *names: str) -> Sequence[str]:
    """Run a program over the slices of arrays."""
    params = eqn.params
    consts, carried, program = params["num_consts"], params["num_carry"], params["jaxpr"]
    states, rows = names[consts : consts + carried], list(names[consts + carried :])
    kinds = program.in_avals[consts:]
    counted = not rows
    if counted:  # Scan needs something to scan
        rows, kinds = [ints(w, np.arange(params["length"]))], [*kinds, _COUNTER]

    def build(inner: Writer, inputs: Sequence[str]) -> Sequence[str]:
        return inner.program(program, [*names[:consts], *(inputs[:-1] if counted else inputs)])

    outputs, backward = len(eqn.outvars), params["reverse"]
    directions = {"scan_input_directions": [1] * len(rows)} if backward else {}
    if backward and outputs > carried:
        directions["scan_output_directions"] = [1] * (outputs - carried)
    body = w.graph("step", kinds, build)
    return w.ops("Scan", outputs, *states, *rows, body=body, num_scan_inputs=len(rows), **directions)


@rule("cond")
def cond(w: Writer, eqn: Equation, index: str, *operands: str) -> Sequence[str]:
    """Run one of several programs: a chain of choices between two."""
    branches: Sequence[ClosedJaxpr] = eqn.params["branches"]

    def choose(inner: Writer, number: int) -> Sequence[str]:
        if number == len(branches) - 1:
            return inner.program(branches[number], operands)
        is_it = inner.op("Equal", index, scalar(inner, number, aval(eqn)))
        then = inner.graph("branch", [], lambda branch, _: branch.program(branches[number], operands))
        otherwise = inner.graph("branch", [], lambda branch, _: choose(branch, number + 1))
        return inner.ops("If", len(eqn.outvars), is_it, then_branch=then, else_branch=otherwise)

    return choose(w, 0)


@rule("while")
def while_loop(w: Writer, eqn: Equation, *names: str) -> Sequence[str]:
    """Repeat a program while the result of another is true."""
    params: dict[str, Any] = eqn.params
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    for_cond, for_body, carried = names[:first], names[first:second], names[second:]
    (begin,) = w.program(params["cond_jaxpr"], [*for_cond, *carried])
    kinds = [_COUNTER, _FLAG, *params["body_jaxpr"].in_avals[len(for_body) :]]

    def build(inner: Writer, inputs: Sequence[str]) -> Sequence[str]:
        values = inner.program(params["body_jaxpr"], [*for_body, *inputs[2:]])
        (again,) = inner.program(params["cond_jaxpr"], [*for_cond, *values])
        return [again, *values]

    return w.ops("Loop", len(carried), "", begin, *carried, body=w.graph("turn", kinds, build))


# Elementwise primitives.

#: Primitives that an operator computes as it is.
_SAME = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "add": "Add", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "div": "Div", "eq": "Equal", "erf": "Erf", "exp": "Exp", "floor": "Floor",
    "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "log": "Log", "logistic": "Sigmoid", "lt": "Less", "max": "Max",
    "min": "Min", "mul": "Mul", "name": "Identity", "neg": "Neg", "pow": "Pow", "round_half_even": "Round", "sign": "Sign",
    "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "stop_gradient": "Identity", "sub": "Sub", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
#: Of booleans and of integers.
_LOGIC = {"and": ("And", "BitwiseAnd"), "not": ("Not", "BitwiseNot"), "or": ("Or", "BitwiseOr"), "xor": ("Xor", "BitwiseXor")}
_BOOLEAN = {"max": "Or", "min": "And", "mul": "And", "add": "Or"}


def _same(operator: str, w: Writer, eqn: Equation, *names: str) -> str:
    is_bool = aval(eqn).dtype == np.bool_
    return w.op(_BOOLEAN.get(eqn.primitive.name, operator) if is_bool else operator, *names)


RULES.update({name: functools.partial(_same, operator) for name, operator in _SAME.items()})


@rule(*_LOGIC)
def logic(w: Writer, eqn: Equation, *names: str) -> str:
    """Combine booleans or bits."""
    of_bools, of_bits = _LOGIC[eqn.primitive.name]
    return w.op(of_bools if aval(eqn).dtype == np.bool_ else of_bits, *names)


def _one(w: Writer, eqn: Equation) -> str:
    return scalar(w, 1, aval(eqn))


RULES |= {
    "cbrt": lambda w, eqn, x: w.op("Mul", w.op("Sign", x), w.op("Pow", w.op("Abs", x), scalar(w, 1 / 3, aval(eqn)))),
    "clamp": lambda w, eqn, low, x, high: w.op("Min", w.op("Max", x, low), high),
    "cumsum": lambda w, eqn, x: w.op("CumSum", x, ints(w, eqn.params["axis"]), reverse=int(eqn.params["reverse"])),
    "erfc": lambda w, eqn, x: w.op("Sub", _one(w, eqn), w.op("Erf", x)),
    "exp2": lambda w, eqn, x: w.op("Pow", scalar(w, 2, aval(eqn)), x),
    "fma": lambda w, eqn, x, y, z: w.op("Add", w.op("Mul", x, y), z),
    "gelu": lambda w, eqn, x: w.op("Gelu", x, approximate="tanh" if eqn.params.get("approximate") else "none"),
    "integer_pow": lambda w, eqn, x: w.op("Pow", x, scalar(w, eqn.params["y"], aval(eqn))),
    "is_finite": lambda w, eqn, x: w.op("Not", w.op("Or", w.op("IsNaN", x), w.op("IsInf", x))),
    "log2": lambda w, eqn, x: w.op("Div", w.op("Log", x), scalar(w, math.log(2), aval(eqn))),
    "ne": lambda w, eqn, x, y: w.op("Not", w.op("Equal", x, y)),
    "optimization_barrier": lambda w, eqn, *names: list(names),
    "rem": lambda w, eqn, x, y: w.op("Mod", x, y, fmod=1),  # with the dividend's sign
    "rsqrt": lambda w, eqn, x: w.op("Reciprocal", w.op("Sqrt", x)),
}


@rule("round")
def round_away(w: Writer, eqn: Equation, x: str) -> str:
    """Round to the nearest integer, halves away from zero."""
    size = w.op("Abs", x)
    below = w.op("Floor", size)  # a sum of the size and 1/2 would be rounded
    up = w.op("GreaterOrEqual", w.op("Sub", size, below), scalar(w, 0.5, aval(eqn)))
    return w.op("Mul", w.op("Sign", x), w.op("Where", up, w.op("Add", below, _one(w, eqn)), below))


@rule("expm1")
def expm1(w: Writer, eqn: Equation, x: str) -> str:
    """Compute exp(x) - 1, near 0 as tanh(x / 2) (exp(x) + 1)."""
    half = w.op("Tanh", w.op("Mul", x, scalar(w, 0.5, aval(eqn))))
    grown = w.op("Exp", x)
    near = w.op("Mul", half, w.op("Add", grown, _one(w, eqn)))
    return w.op("Where", w.op("Less", w.op("Abs", x), _one(w, eqn)), near, w.op("Sub", grown, _one(w, eqn)))


@rule("log1p")
def log1p(w: Writer, eqn: Equation, x: str) -> str:
    """Compute log(1 + x) as x log(u) / (u - 1), which corrects u = 1 + x."""
    one = _one(w, eqn)
    moved = w.op("Add", one, x)
    error = w.op("Sub", moved, one)
    exact = w.op("Equal", error, scalar(w, 0, aval(eqn)))
    far = w.op("IsInf", moved, detect_negative=0)
    safe = w.op("Where", exact, one, error)
    corrected = w.op("Mul", w.op("Log", moved), w.op("Div", x, safe))
    return w.op("Where", exact, x, w.op("Where", far, moved, corrected))


@rule("logaddexp")
def logaddexp(w: Writer, eqn: Equation, x: str, y: str) -> str:
    """Compute log(exp(x) + exp(y)), where infinities stay."""
    high = w.op("Max", x, y)
    distance = w.op("Neg", w.op("Abs", w.op("Sub", x, y)))
    rest = log1p(w, eqn, w.op("Exp", distance))
    same = w.op("Equal", x, y)
    twice = scalar(w, math.log(2), aval(eqn))
    return w.op("Add", high, w.op("Where", same, twice, rest))


@rule("atan2")
def atan2(w: Writer, eqn: Equation, y: str, x: str) -> str:
    """Compute angles, by the quadrant."""
    zero, pi = scalar(w, 0, aval(eqn)), scalar(w, math.pi, aval(eqn))
    angle = w.op("Atan", w.op("Div", y, x))
    turned = w.op("Where", w.op("Less", y, zero), w.op("Sub", angle, pi), w.op("Add", angle, pi))
    by_side = w.op("Where", w.op("Less", x, zero), turned, angle)
    origin = w.op("And", w.op("Equal", x, zero), w.op("Equal", y, zero))
    return w.op("Where", origin, zero, by_side)


@rule("convert_element_type")
def convert(w: Writer, eqn: Equation, x: str) -> str:
    """Convert to another dtype."""
    new_dtype = result(eqn).dtype
    return w.op("Identity", x) if new_dtype == aval(eqn).dtype else w.op("Cast", x, to=number_of(new_dtype))


@rule("select_n")
def select(w: Writer, eqn: Equation, which: str, *cases: str) -> Any:
    """Choose between arrays by element."""
    if aval(eqn, 1).dtype == np.bool_:  # runtimes choose between numbers
        if aval(eqn).dtype != np.bool_:
            raise OnnxError("a choice between more than two arrays of booleans has no operator in ONNX")
        return w.op("Or", w.op("And", which, cases[1]), w.op("And", w.op("Not", which), cases[0]))
    if aval(eqn).dtype == np.bool_:
        return w.op("Where", which, cases[1], cases[0])
    chosen = cases[-1]
    for number in range(len(cases) - 2, -1, -1):
        chosen = w.op("Where", w.op("Equal", which, scalar(w, number, aval(eqn))), cases[number], chosen)
    return chosen


# Reductions, cumulative operations and sorting.

_REDUCED = {"reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd", "reduce_sum": "ReduceSum"}
_INT32, _BOOL = 6, 9


@rule(*_REDUCED)
def reduce(w: Writer, eqn: Equation, x: str) -> str:
    """Reduce along axes."""
    axes = eqn.params["axes"]
    if not axes:
        return w.op("Identity", x)
    if aval(eqn).dtype == np.bool_:
        reduced = w.op(_REDUCED[eqn.primitive.name], w.op("Cast", x, to=_INT32), ints(w, axes), keepdims=0)
        return w.op("Cast", reduced, to=_BOOL)
    return w.op(_REDUCED[eqn.primitive.name], x, ints(w, axes), keepdims=0)


@rule("reduce_and", "reduce_or")
def reduce_logic(w: Writer, eqn: Equation, x: str) -> str:
    """Reduce booleans: whether all, or any, are true."""
    if aval(eqn).dtype != np.bool_:
        raise OnnxError(f"ONNX has no {eqn.primitive.name} of integers")
    if not eqn.params["axes"]:
        return w.op("Identity", x)
    operator = "ReduceMin" if eqn.primitive.name == "reduce_and" else "ReduceMax"
    return w.op("Cast", w.op(operator, w.op("Cast", x, to=_INT32), ints(w, eqn.params["axes"]), keepdims=0), to=_BOOL)


@rule("argmax", "argmin")
def arg_extreme(w: Writer, eqn: Equation, x: str) -> str:
    """Return the position of an extreme along an axis."""
    (axis,) = eqn.params["axes"]
    position = w.op("ArgMax" if eqn.primitive.name == "argmax" else "ArgMin", x, axis=int(axis), keepdims=0)
    return w.op("Cast", position, to=number_of(result(eqn).dtype))


@rule("top_k")
def top_k(w: Writer, eqn: Equation, x: str) -> Sequence[str]:
    """Return the largest elements along the last axis."""
    values, positions = w.ops("TopK", 2, x, ints(w, [eqn.params["k"]]), axis=int(eqn.params["axis"]))
    return values, w.op("Cast", positions, to=number_of(eqn.outvars[1].aval.dtype))


@rule("sort")
def sort(w: Writer, eqn: Equation, *names: str) -> Sequence[str]:
    """Sort by the first operand; equal ones keep their order."""
    if eqn.params["num_keys"] != 1:
        raise OnnxError("ONNX sorts by one key")
    axis = int(eqn.params["dimension"])
    values, positions = w.ops("TopK", 2, names[0], ints(w, [aval(eqn).shape[axis]]), axis=axis, largest=0)
    return [values, *[w.op("GatherElements", name, positions, axis=axis) for name in names[1:]]]


# Matrix products and convolutions.


def _transposed(w: Writer, x: str, order: list[int]) -> str:
    return x if order == [*range(len(order))] else w.op("Transpose", x, perm=[int(i) for i in order])


@rule("dot_general")
def dot_general(w: Writer, eqn: Equation, x: str, y: str) -> str:
    """Contract: as a matrix product, or by an einsum equation."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    if aval(eqn).dtype != result(eqn).dtype:
        x, y = [w.op("Cast", name, to=number_of(result(eqn).dtype)) for name in (x, y)]
    ranks = aval(eqn).ndim, aval(eqn, 1).ndim
    rows, columns = (
        [i for i in range(rank) if i not in (*summed, *batch)]
        for rank, summed, batch in zip(ranks, (left, right), (left_batch, right_batch), strict=True)
    )
    if len(left) == 1 and len(columns) == 1 and (len(rows) == 1 or not left_batch):
        return w.op("MatMul", _transposed(w, x, [*left_batch, *rows, *left]), _transposed(w, y, [*right_batch, *right, *columns]))
    letters = list(string.ascii_letters[: ranks[0]])
    others = list(string.ascii_letters[ranks[0] : sum(ranks)])
    for i, j in zip((*left, *left_batch), (*right, *right_batch), strict=True):
        others[j] = letters[i]
    outputs = [letters[i] for i in left_batch]
    outputs += [c for i, c in enumerate(letters) if i not in (*left, *left_batch)]
    outputs += [c for j, c in enumerate(others) if j not in (*right, *right_batch)]
    return w.op("Einsum", x, y, equation=f"{''.join(letters)},{''.join(others)}->{''.join(outputs)}")


@rule("quantized_dot")
def quantized_dot(w: Writer, eqn: Equation, x: str, data: str, *by_group: str) -> str:
    """Multiply by the matrix as floats, which nodes look up by its codes."""
    layout, codes = eqn.params["layout"], aval(eqn, 1)
    values = ShapedArray((*codes.shape[:-1], layout.size), np.dtype(np.float32))

    def multiply(x: Any, values: Any, scales: Any, *offsets: Any) -> list[Any]:
        weights = values * per_number(scales, layout, values.dtype)
        weights = weights + per_number(offsets[0], layout, values.dtype) if offsets else weights
        stack, last = tuple(range(x.ndim - 2)), x.ndim - 1
        numbers = (((last,), (last - eqn.params["transposed"],)), (stack, stack))
        return [lax.dot_general(x, weights.astype(x.dtype), numbers)]

    kinds = [aval(eqn), values, *[v.aval for v in eqn.invars[2:]]]
    program = inline_calls(trace_to_jaxpr(multiply, kinds, "quantized_dot"))
    (product,) = w.program(program, [x, _values_of_codes(w, data, codes, layout), *by_group])
    return product


@rule("ragged_dot")
def ragged_dot(w: Writer, eqn: Equation, x: str, y: str, sizes: str) -> str:
    """Multiply rows masked by group with all matrices."""
    program = inline_calls(trace_to_jaxpr(lambda *operands: [masked(*operands, **eqn.params)], [v.aval for v in eqn.invars], "ragged_dot"))
    (product,) = w.program(program, [x, y, sizes])
    return product


def _values_of_codes(w: Writer, data: str, codes: ShapedArray, layout: QuantizedLayout) -> str:
    """Add the nodes of the values of codes, as float32."""
    if layout.scheme == "int8":
        return w.op("Cast", data, to=number_of(np.dtype(np.float32)))
    numbers = w.op("Cast", data, to=number_of(np.dtype(np.int32)))
    if not layout.is_packed:
        return w.op("Gather", w.constant(decode(np.arange(256, dtype=np.uint8), layout._replace(size=256))), numbers)
    blocks = shaped(w, numbers, (*codes.shape[:-1], layout.width * 2 // BLOCK, 1, BLOCK // 2))
    sixteen = w.constant(np.int32(16))
    halves = [w.op(kind, blocks, sixteen) for kind in ("Mod", "Div")]
    rows = shaped(w, w.op("Concat", *halves, axis=codes.ndim), (*codes.shape[:-1], 2 * layout.width))
    rows = w.op("Slice", rows, ints(w, [0]), ints(w, [layout.size]), ints(w, [codes.ndim - 1]))
    return w.op("Gather", w.constant(TABLES[layout.scheme]), rows)


@rule("conv_general_dilated")
def convolution(w: Writer, eqn: Equation, x: str, weight: str) -> str:
    """Convolve, after transpositions and padding that Conv does not support."""
    params = eqn.params
    dims, n = params["dimension_numbers"], aval(eqn).ndim - 2
    x, weight = w.op("Transpose", x, perm=list(dims.lhs_spec)), w.op("Transpose", weight, perm=list(dims.rhs_spec))
    shape = [aval(eqn).shape[i] for i in dims.lhs_spec]
    kernel = [aval(eqn, 1).shape[i] for i in dims.rhs_spec]
    groups = params["feature_group_count"]
    if params["batch_group_count"] != 1:
        x, shape, groups = _batches_as_channels(w, x, shape, params["batch_group_count"], groups)
    for k, stride in enumerate(params["lhs_dilation"] or ()):
        if stride != 1:
            x = spread_out(w, x, shape, 2 + k, stride, zero_of(w, eqn))
            shape[2 + k] = (shape[2 + k] - 1) * stride + 1
    pads = list(params["padding"])
    if any(width < 0 for pair in pads for width in pair):
        x = w.op("Pad", x, ints(w, [0, 0, *[p[0] for p in pads], 0, 0, *[p[1] for p in pads]]))
        pads = [(0, 0)] * n
    if n == 0:
        raise OnnxError("a convolution without spatial axes has no operator in ONNX; use a matrix product")
    y = w.op(
        "Conv",
        x,
        weight,
        strides=list(params["window_strides"] or [1] * n),
        dilations=list(params["rhs_dilation"] or [1] * n),
        group=groups,
        kernel_shape=kernel[2:],
        pads=[p[0] for p in pads] + [p[1] for p in pads],
    )
    return w.op("Transpose", y, perm=[dims.out_spec.index(i) for i in range(n + 2)])


def _batches_as_channels(w: Writer, x: str, shape: list[int], count: int, groups: int) -> tuple[str, list[int], int]:
    """Move groups of the batch to groups of channels."""
    if groups != 1:
        raise OnnxError("a convolution cannot have groups of batches and of channels in ONNX")
    batch, channels, *rest = shape
    split = shaped(w, x, [count, batch // count, channels, *rest])
    moved = w.op("Transpose", split, perm=[1, 0, 2, *range(3, 3 + len(rest))])
    merged = [batch // count, count * channels, *rest]
    return shaped(w, moved, merged), merged, count

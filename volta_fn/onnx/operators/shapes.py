"""Operators of shapes and selection: casts, gathers, sequences, control flow.

Sequences are Python tuples, strings NumPy arrays on the host. Control flow is Python's where the host decides it, else that of `lax`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import lax, vision
from volta_fn import numpy as vnp
from volta_fn.core.trace import Tracer
from volta_fn.errors import OnnxError, OutOfMemoryError
from volta_fn.onnx.nodes import OPERATORS, Node, as_array, dtype_of, operator, wrapped
from volta_fn.transforms.vmap import vmap

# Shapes, constants, casts, and elements that move.


OPERATORS |= {
    "Cast": lambda node, x: x.astype(dtype_of(node.get("to"))),
    "CastLike": lambda node, x, like: x.astype(like.dtype),
    "Concat": lambda node, *inputs: node.xp.concatenate(inputs, node.get("axis", 1)),
    "Expand": lambda node, x, shape: node.xp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(node.ints(shape, "shape")))),
    "Shape": lambda node, x: np.array(x.shape[slice(node.get("start", 0), node.get("end"))], np.int64),
    "Size": lambda node, x: np.array(math.prod(x.shape), np.int64),
    "Squeeze": lambda node, x, axes=None: node.xp.squeeze(x, tuple(node.axes(axes) or ()) or None),
    "Tile": lambda node, x, repeats: node.xp.tile(x, node.ints(repeats, "repeats")),
    "Transpose": lambda node, x: node.xp.transpose(x, node.get("perm")),
    "Unsqueeze": lambda node, x, axes=None: node.xp.expand_dims(x, tuple(node.axes(axes) or ())),
}


@operator("Constant")
def constant(node: Node) -> Any:
    """Return a constant."""
    ((name, value),) = node.attributes.items()
    if name == "value":
        return value
    if name not in ("value_int", "value_ints", "value_float", "value_floats"):
        raise OnnxError(f"{node}: constants given by {name} are not supported")
    return np.array(value, np.int64 if name.startswith("value_int") else np.float32)


@operator("ConstantOfShape")
def constant_of_shape(node: Node, shape: Any) -> Any:
    """Return an array of equal elements."""
    value = node.get("value", np.zeros(1, np.float32)).reshape(-1)[0]
    sizes = node.ints(shape, "input")
    return np.full(sizes, value) if math.prod(sizes) <= _SMALL or value.dtype.kind != "f" else vnp.full(sizes, value, dtype=value.dtype)


_SMALL = 1024
#: The most numbers of a range, which decide shapes or are indices.
_MOST = 1 << 28


@operator("Range")
def arange(node: Node, start: Any, limit: Any, delta: Any) -> Any:
    """Return numbers from `start` on, below `limit`."""
    begin, end, step = [node.host(v, "start, limit or delta").reshape(()) for v in (start, limit, delta)]
    if not step:
        raise OnnxError(f"the node {node} has steps of 0")
    is_exact = begin.dtype.kind in "iu"
    count = max(0, -((int(begin) - int(end)) // int(step)) if is_exact else math.ceil(float(end - begin) / float(step)))
    if count > _MOST:
        raise OutOfMemoryError(f"{node} makes {count} numbers on the host, more than the {_MOST} that there may be")
    return (begin + np.arange(count).astype(begin.dtype) * step).astype(begin.dtype)


@operator("EyeLike")
def eye_like(node: Node, x: Any) -> Any:
    """Return ones on a diagonal, zeros elsewhere."""
    rows, columns = x.shape
    dtype = dtype_of(node.get("dtype")) if "dtype" in node.attributes else x.dtype
    return vnp.eye(rows, columns, k=node.get("k", 0), dtype=dtype)


@operator("BitCast")
def bit_cast(node: Node, x: Any) -> Any:
    """Interpret the bits of elements in another dtype of the same width."""
    dtype = dtype_of(node.get("to"))
    x = as_array(x)
    if np.bool_ in (x.dtype, dtype):
        return (x.astype(np.uint8) if x.dtype == np.bool_ else lax.bitcast_convert_type(x, np.uint8)).astype(dtype)
    return lax.bitcast_convert_type(x, dtype)


@operator("Reshape")
def reshape(node: Node, x: Any, new_shape: Any = None) -> Any:
    """Reshape; 0 keeps an axis, -1 takes what is left."""
    sizes = node.get("shape") if new_shape is None else node.ints(new_shape, "shape")
    if not node.get("allowzero", 0):
        sizes = [x.shape[i] if n == 0 else n for i, n in enumerate(sizes)]
    return x.reshape(sizes)


@operator("Flatten")
def flatten(node: Node, x: Any) -> Any:
    """Merge the axes before one, and those from it on."""
    axis = node.get("axis", 1)
    axis += x.ndim * (axis < 0)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("Split")
def split(node: Node, x: Any, sizes: Any = None) -> Any:
    """Split an array along an axis."""
    axis = node.get("axis", 0)
    count = x.shape[axis]
    chunks = node.get("split") if sizes is None else node.ints(sizes, "split")
    if chunks is None:
        number = node.get("num_outputs", node.outputs)
        chunk = -(-count // number)
        chunks = [min(chunk, max(0, count - chunk * i)) for i in range(number)]
    return tuple(node.xp.split(x, np.cumsum(chunks)[:-1].tolist(), axis))


@operator("Slice")
def take_slice(node: Node, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Any:
    """Take slices along axes."""
    first = node.get("starts") if starts is None else node.ints(starts, "starts")
    last = node.get("ends") if ends is None else node.ints(ends, "ends")
    along = node.axes(axes) or list(range(len(first)))
    strides = [1] * len(first) if steps is None else node.ints(steps, "steps")
    index = [slice(None)] * x.ndim
    for start, end, axis, step in zip(first, last, along, strides, strict=True):
        size = x.shape[axis]
        open_end = step < 0 and end < -size
        # Going backward, a start before the array is its first element; Python's slices are empty there.
        index[axis] = slice(max(start, -size) if step < 0 else start, None if open_end else end, step)
    return x[tuple(index)]


@operator("Pad")
def pad(node: Node, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    """Pad with a constant, edges, reflections or repetitions; negative widths crop."""
    widths = node.get("pads", node.get("paddings")) if pads is None else node.ints(pads, "pads")
    along = list(range(x.ndim)) if axes is None else node.ints(axes, "axes")
    around = [(0, 0)] * x.ndim
    for i, axis in enumerate(along):
        around[axis] = (widths[i], widths[len(along) + i])
    x = x[tuple([slice(max(-low, 0), n - max(-high, 0)) for n, (low, high) in zip(x.shape, around, strict=True)])]
    around = [(max(low, 0), max(high, 0)) for low, high in around]
    mode = node.get("mode", "constant")
    if mode != "constant":
        return node.xp.pad(x, around, mode=mode)
    fill = node.get("value", 0) if value is None else value.reshape(())
    return node.xp.pad(x, around, constant_values=fill)


@operator("Trilu")
def triangle(node: Node, x: Any, k: Any = None) -> Any:
    """Keep the upper or the lower triangle."""
    return (vnp.triu if node.get("upper", 1) else vnp.tril)(as_array(x), 0 if k is None else node.ints(k, "k")[0])


@operator("DepthToSpace")
def depth_to_space(node: Node, x: Any) -> Any:
    """Move blocks of channels to blocks of pixels."""
    block, (n, c, h, w) = node.get("blocksize"), x.shape
    channels = c // block**2
    if node.get("mode", "DCR") == "DCR":
        moved = x.reshape(n, block, block, channels, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        moved = x.reshape(n, channels, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return moved.reshape(n, channels, h * block, w * block)


@operator("SpaceToDepth")
def space_to_depth(node: Node, x: Any) -> Any:
    """Move blocks of pixels to channels."""
    block, (n, c, h, w) = node.get("blocksize"), x.shape
    order = (0, 3, 5, 1, 2, 4) if node.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = x.reshape(n, c, h // block, block, w // block, block).transpose(order)
    return moved.reshape(n, c * block**2, h // block, w // block)


# Gathers, scatters, sorting and selection.


@operator("Gather")
def gather(node: Node, x: Any, indices: Any) -> Any:
    """Take elements along an axis."""
    axis = node.get("axis", 0)
    if node.xp is np:
        return np.take(x, indices, axis)
    return vnp.take(as_array(x), wrapped(indices, x.shape[axis]), axis)


@operator("GatherElements")
def gather_elements(node: Node, x: Any, indices: Any) -> Any:
    """Take elements along an axis, at positions of their own."""
    axis = node.get("axis", 0) % x.ndim
    positions = _positions_along(wrapped(indices, x.shape[axis]), axis)
    return as_array(x)[positions]


def _positions_along(indices: Any, axis: int) -> tuple[Any, ...]:
    """Return indices for all axes: `indices` for one, all positions for the others."""
    positions: list[Any] = list(np.indices(indices.shape, sparse=True))
    positions[axis] = indices
    return tuple(positions)


@operator("GatherND")
def gather_nd(node: Node, x: Any, indices: Any) -> Any:
    """Take slices at positions of several axes."""

    def take(x: Any, indices: Any) -> Any:
        if not indices.shape[-1]:
            return vnp.broadcast_to(x, (*indices.shape[:-1], *x.shape))
        return x[_split(indices, x.shape)]

    for _ in range(node.get("batch_dims", 0)):
        take = vmap(take)
    return take(as_array(x), as_array(indices))


def _split(indices: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the indices of each axis, from those along the last axis."""
    return tuple([wrapped(indices[..., i], shape[i]) for i in range(indices.shape[-1])])


def _scatter(node: Node, x: Any, positions: tuple[Any, ...], updates: Any) -> Any:
    at = as_array(x).at[positions]
    functions = {"none": at.set, "add": at.add, "mul": at.multiply, "max": at.max, "min": at.min}
    return functions[node.get("reduction", "none")](as_array(updates))


OPERATORS |= {
    "NonZero": lambda node, x: np.stack(np.nonzero(np.atleast_1d(node.host(x, "X")))).astype(np.int64),
    "ScatterND": lambda node, x, indices, updates: _scatter(node, x, _split(indices, x.shape), updates),
}


@operator("ScatterElements", "Scatter")
def scatter_elements(node: Node, x: Any, indices: Any, updates: Any) -> Any:
    """Update elements along an axis, at positions of their own."""
    axis = node.get("axis", 0) % x.ndim
    return _scatter(node, x, _positions_along(wrapped(indices, x.shape[axis]), axis), updates)


@operator("TensorScatter")
def tensor_scatter(node: Node, cache: Any, update: Any, starts: Any = None) -> Any:
    """Write new positions of a sequence to a cache, from each example's start."""
    axis = node.get("axis", -2) % cache.ndim
    size, count = cache.shape[axis], update.shape[axis]
    begins = vnp.zeros(cache.shape[0], np.int64) if starts is None else as_array(starts)
    positions = begins[:, None] + vnp.arange(count, dtype=np.int64)
    positions = positions % size if node.get("mode", "linear") == "circular" else positions

    def write(old: Any, new: Any, at: Any) -> Any:
        return vnp.moveaxis(vnp.moveaxis(old, axis - 1, 0).at[at].set(vnp.moveaxis(new, axis - 1, 0)), 0, axis - 1)

    return vmap(write)(as_array(cache), as_array(update), positions)


@operator("OneHot")
def one_hot(node: Node, indices: Any, depth: Any, values: Any) -> Any:
    """Set one element per index to one value, and the others to another."""
    (count,), indices = node.ints(depth, "depth"), as_array(indices).astype(np.int64)
    axis = node.get("axis", -1) % (indices.ndim + 1)
    numbers = vnp.arange(count, dtype=np.int64).reshape([-1 if i == axis else 1 for i in range(indices.ndim + 1)])
    return vnp.where(vnp.expand_dims(wrapped(indices, count), axis) == numbers, as_array(values)[1], as_array(values)[0])


@operator("Compress")
def compress(node: Node, x: Any, condition: Any) -> Any:
    """Take the elements that a condition on the host selects."""
    chosen = np.flatnonzero(node.host(condition, "condition"))
    return vnp.take(as_array(x), chosen, node.get("axis")) if "axis" in node.attributes else as_array(x).reshape(-1)[chosen]


@operator("TopK")
def top_k(node: Node, x: Any, k: Any = None) -> Any:
    """Return the largest or smallest elements along an axis, and their positions."""
    x = as_array(x)
    axis, count = node.get("axis", -1) % x.ndim, node.get("k") if k is None else node.ints(k, "k")[0]
    order = vnp.argsort(x, axis=axis, stable=True, descending=bool(node.get("largest", 1)))
    chosen = lax.slice_in_dim(order, 0, count, axis=axis)
    return vnp.take_along_axis(x, chosen, axis), chosen.astype(np.int64)


@operator("Unique")
def unique(node: Node, x: Any) -> Any:
    """Return the distinct elements, their positions, and their counts."""
    values, axis = node.host(x, "X"), node.get("axis")
    distinct, first, inverse, counts = np.unique(values, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.reshape(-1)
    if not node.get("sorted", 1):
        order = np.argsort(first)
        distinct, first, counts = np.take(distinct, order, axis or 0), first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return distinct, *[chunk.astype(np.int64) for chunk in (first, inverse, counts)]


@operator("ReverseSequence")
def reverse_sequence(node: Node, x: Any, lengths: Any) -> Any:
    """Reverse the first elements of each sequence."""
    time, batch = node.get("time_axis", 0), node.get("batch_axis", 1)
    x = vnp.moveaxis(as_array(x), (batch, time), (0, 1))
    numbers, lengths = vnp.arange(x.shape[1], dtype=np.int64)[None], as_array(lengths)[:, None]
    order = vnp.where(numbers < lengths, lengths - 1 - numbers, numbers)
    result = vnp.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - 2)), 1)
    return vnp.moveaxis(result, (0, 1), (batch, time))


@operator("NonMaxSuppression")
def non_max_suppression(node: Node, boxes: Any, scores: Any, most: Any = None, overlap: Any = None, threshold: Any = None) -> Any:
    """Return the boxes of each class that overlap with no better one.

    Their number depends on the data, so the result is on the host; the boxes are compared where they are.
    """
    count = 0 if most is None else node.ints(most, "max_output_boxes_per_class")[0]
    limit = 0.0 if overlap is None else float(node.host(overlap, "iou_threshold").reshape(-1)[0])
    least = None if threshold is None else float(node.host(threshold, "score_threshold").reshape(-1)[0])
    corners, numbers = as_array(boxes), as_array(scores)
    if node.get("center_point_box", 0):
        corners = vision.ops.box_convert(corners, "cxcywh", "xyxy")
    ends = corners[..., :2], corners[..., 2:]
    corners = vnp.concatenate([vnp.minimum(*ends), vnp.maximum(*ends)], -1)
    size = min(count, numbers.shape[2])

    def select(box: Any, of_classes: Any) -> Any:
        return vmap(lambda score: vision.ops.nms(box, score, limit, max_output_size=size, score_threshold=least))(of_classes)

    indices, counts = (node.host(result, "boxes") for result in vmap(select)(corners, numbers))
    places = np.argwhere(np.arange(size) < counts[..., None])
    return np.concatenate([places[:, :2], indices[tuple(places.T)][:, None]], 1).astype(np.int64)


# Sequences of arrays, which are Python tuples here.


OPERATORS |= {
    "SequenceAt": lambda node, sequence, position: sequence[node.ints(position, "position")[0]],
    "SequenceConstruct": lambda node, *inputs: (inputs,),
    "SequenceEmpty": lambda node: ((),),
    "SequenceLength": lambda node, sequence: np.array(len(sequence), np.int64),
}


@operator("SequenceInsert")
def sequence_insert(node: Node, sequence: Any, value: Any, position: Any = None) -> Any:
    """Insert an array, at the end by default."""
    at = len(sequence) if position is None else node.ints(position, "position")[0]
    at += len(sequence) * (at < 0)
    return ((*sequence[:at], value, *sequence[at:]),)


@operator("SequenceErase")
def sequence_erase(node: Node, sequence: Any, position: Any = None) -> Any:
    """Remove an array, the last by default."""
    at = (-1 if position is None else node.ints(position, "position")[0]) % len(sequence)
    return ((*sequence[:at], *sequence[at + 1 :]),)


@operator("SplitToSequence")
def split_to_sequence(node: Node, x: Any, split: Any = None) -> Any:
    """Split an array to a sequence, by sizes or into chunks of one size."""
    axis = node.get("axis", 0)
    count = x.shape[axis]
    if split is None:
        chunks = [1] * count
    elif np.ndim(split) == 0:
        size = node.ints(split, "split")[0]
        chunks = [min(size, count - start) for start in range(0, count, size)]
    else:
        chunks = node.ints(split, "split")
    arrays = node.xp.split(x, np.cumsum(chunks)[:-1].tolist(), axis)
    if split is None and not node.get("keepdims", 1):
        arrays = [node.xp.squeeze(chunk, axis) for chunk in arrays]
    return (tuple(arrays),)


@operator("ConcatFromSequence")
def concat_from_sequence(node: Node, sequence: Any) -> Any:
    """Join the arrays of a sequence, along a new axis if asked for."""
    join = vnp.stack if node.get("new_axis", 0) else vnp.concatenate
    return join([as_array(v) for v in sequence], axis=node.get("axis"))


# Strings, which are NumPy arrays on the host.

_CASES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


@operator("StringNormalizer")
def string_normalizer(node: Node, texts: np.ndarray) -> np.ndarray:
    """Leave out some words, and change the case of the others."""
    if texts.ndim not in (1, 2) or (texts.ndim == 2 and texts.shape[0] != 1):
        raise OnnxError(f"{node}: strings must have shape (n,) or (1, n), not {texts.shape}")
    folded = str if node.get("is_case_sensitive", 0) else str.lower
    left_out = {folded(word) for word in node.get("stopwords", [])}
    changed = _CASES[node.get("case_change_action", "NONE")]
    words = [changed(text) for text in texts.reshape(-1).tolist() if folded(text) not in left_out]
    return np.array(words or [""], dtype=object).reshape(*texts.shape[:-1], -1)


# If, Loop and Scan: Python's control flow where the host decides it, else that of `lax`.

#: Loops of at most so many iterations, with a constant count, are unrolled, so that shapes and integers stay on the host.
_UNROLLED = 16


@operator("If")
def conditional(node: Node, condition: Any) -> Any:
    """Run one of two graphs."""
    then, otherwise = node.get("then_branch"), node.get("else_branch")
    if not isinstance(condition, Tracer):
        return tuple(node.run(then if bool(np.asarray(condition).reshape(())) else otherwise))
    branches = [lambda graph=graph: [as_array(v) for v in node.run(graph)] for graph in (then, otherwise)]
    return tuple(lax.cond(condition.reshape(()), branches[0], branches[1]))


@operator("Loop")
def loop(node: Node, count: Any, condition: Any, *carried: Any) -> Any:
    """Repeat a graph while a condition holds, at most `count` times."""
    body = node.get("body")
    outputs = len(carried)
    is_concrete = count is None or not isinstance(count, Tracer)
    limit = np.iinfo(np.int64).max if count is None else int(np.asarray(count).reshape(())) if is_concrete else None
    if limit is None or isinstance(condition, Tracer):
        return _while(node, body, count, condition, carried)
    if _UNROLLED < limit < 2**31 and (condition is None or bool(np.asarray(condition))) and _never_stops(node, body, carried):
        return _scan(node, body, limit, carried)
    values, rows = list(carried), list[list[Any]]()
    going, step = condition is None or bool(np.asarray(condition).reshape(())), 0
    while going and step < limit:
        again, *results = node.run(body, np.array(step, np.int64), np.array(True), *values)
        if isinstance(again, Tracer):
            if rows or step or len(results) > outputs:
                raise OnnxError(f"{node}: it stops by a traced condition and collects results, whose number is then unknown")
            return _while(node, body, count, condition, carried)
        values, collected = results[:outputs], results[outputs:]
        rows.append(collected)
        going, step = bool(np.asarray(again).reshape(())), step + 1
    stacked = [vnp.stack([as_array(v) for v in column]) for column in zip(*rows, strict=True)]
    return *values, *(stacked or [vnp.zeros((0,)) for _ in range(node.outputs - outputs)])


def _never_stops(node: Node, body: Any, carried: tuple[Any, ...]) -> bool:
    """Return True if a body keeps its condition true, and its carry's types."""
    again, *results = node.run(body, np.array(0, np.int64), np.array(True), *carried)
    same = [(v.shape, v.dtype) == (f.shape, f.dtype) for v, f in zip(carried, results, strict=False)]
    return isinstance(again, np.ndarray) and bool(again) and all(same)


def _scan(node: Node, body: Any, count: int, carried: tuple[Any, ...]) -> Any:
    def step(values: list[Any], number: Any) -> tuple[list[Any], list[Any]]:
        _, *results = node.run(body, number, np.array(True), *values)
        arrays = [as_array(v) for v in results]
        return arrays[: len(values)], arrays[len(values) :]

    last, collected = lax.scan(step, [as_array(v) for v in carried], vnp.arange(count, dtype=np.int64))
    return *last, *collected


def _while(node: Node, body: Any, count: Any, condition: Any, carried: tuple[Any, ...]) -> Any:
    limit = vnp.asarray(np.iinfo(np.int64).max if count is None else count, dtype=np.int64).reshape(())

    def is_running(state: Any) -> Any:
        return (state[0] < limit) & state[1]

    def step(state: Any) -> Any:
        again, *results = node.run(body, state[0], state[1], *state[2])
        if len(results) > len(carried):
            raise OnnxError(f"{node}: it stops by a traced condition and collects results, whose number is then unknown")
        return state[0] + 1, as_array(again).reshape(()).astype(bool), [as_array(v) for v in results]

    first = vnp.asarray(True) if condition is None else as_array(condition).reshape(())
    return tuple(lax.while_loop(is_running, step, (vnp.asarray(np.int64(0)), first, [as_array(v) for v in carried]))[2])


@operator("Scan")
def scan(node: Node, *inputs: Any) -> Any:
    """Run a graph over the slices of arrays."""
    body, count = node.get("body"), node.get("num_scan_inputs")
    if node.opset < 9:
        return _batched_scan(node, body, count, inputs[1:])
    return _run_scan(node, body, inputs[: len(inputs) - count], inputs[len(inputs) - count :])


def _run_scan(node: Node, body: Any, states: Any, sequences: Any) -> Any:
    axes = node.get("scan_input_axes") or [0] * len(sequences)
    backward = node.get("scan_input_directions", node.get("directions")) or [0] * len(sequences)
    rows = [_flip_if(vnp.moveaxis(as_array(s), a, 0), b) for s, a, b in zip(sequences, axes, backward, strict=True)]

    def step(values: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
        results = [as_array(v) for v in node.run(body, *values, *slices)]
        return results[: len(values)], results[len(values) :]

    last, collected = lax.scan(step, [as_array(s) for s in states], rows)
    out_axes = node.get("scan_output_axes") or [0] * len(collected)
    flags = node.get("scan_output_directions") or [0] * len(collected)
    moved = [vnp.moveaxis(_flip_if(c, f), 0, a) for c, a, f in zip(collected, out_axes, flags, strict=True)]
    return *last, *moved


def _flip_if(x: Any, backward: int) -> Any:
    return vnp.flip(x, 0) if backward else x


def _batched_scan(node: Node, body: Any, count: int, inputs: Any) -> Any:
    """Run version 8, whose first axis is the batch and whose second is time."""
    batch = inputs[0].shape[0]
    split = len(inputs) - count
    results = [_run_scan(node, body, [v[i] for v in inputs[:split]], [v[i] for v in inputs[split:]]) for i in range(batch)]
    return tuple([vnp.stack(column) for column in zip(*results, strict=True)])

"""Shapes, constants, casts, and elements that move."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.errors import OnnxError, OutOfMemoryError
from volta_fn.onnx.operators.registry import Node, as_array, operator
from volta_fn.onnx.tensors import dtype_of


@operator("Shape")
def shape(node: Node, x: Any) -> Any:
    """Return the shape, or a chunk of it."""
    return np.array(x.shape[slice(node.get("start", 0), node.get("end"))], np.int64)


@operator("Size")
def size(node: Node, x: Any) -> Any:
    """Return the number of elements."""
    return np.array(math.prod(x.shape), np.int64)


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
def constant_of_shape(node: Node, wanted: Any) -> Any:
    """Return an array of equal elements."""
    value = node.get("value", np.zeros(1, np.float32)).reshape(-1)[0]
    sizes = node.ints(wanted, "input")
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
    count = max(0, math.ceil((end - begin) / step))
    if count > _MOST:
        raise OutOfMemoryError(f"{node} makes {count} numbers on the host, more than the {_MOST} that there may be")
    return (begin + np.arange(count).astype(begin.dtype) * step).astype(begin.dtype)


@operator("EyeLike")
def eye_like(node: Node, x: Any) -> Any:
    """Return ones on a diagonal, zeros elsewhere."""
    rows, columns = x.shape
    dtype = dtype_of(node.get("dtype")) if "dtype" in node.attributes else x.dtype
    return vnp.eye(rows, columns, k=node.get("k", 0), dtype=dtype)


@operator("Cast")
def cast(node: Node, x: Any) -> Any:
    """Convert elements to a dtype."""
    return _cast(node, x, dtype_of(node.get("to")))


@operator("CastLike")
def cast_like(node: Node, x: Any, like: Any) -> Any:
    """Convert elements to the dtype of another array."""
    return _cast(node, x, like.dtype)


def _cast(node: Node, x: Any, dtype: np.dtype) -> Any:
    return x.astype(dtype)


@operator("BitCast")
def bit_cast(node: Node, x: Any) -> Any:
    """Interpret the bits of elements in another dtype of the same width."""
    dtype = dtype_of(node.get("to"))
    x = as_array(x)
    if np.bool_ in (x.dtype, dtype):
        return (x.astype(np.uint8) if x.dtype == np.bool_ else lax.bitcast_convert_type(x, np.uint8)).astype(dtype)
    return lax.bitcast_convert_type(x, dtype)


@operator("Reshape")
def reshape(node: Node, x: Any, wanted: Any = None) -> Any:
    """Reshape; 0 keeps an axis, -1 takes what is left."""
    sizes = node.get("shape") if wanted is None else node.ints(wanted, "shape")
    if not node.get("allowzero", 0):
        sizes = [x.shape[i] if n == 0 else n for i, n in enumerate(sizes)]
    return x.reshape(sizes)


@operator("Flatten")
def flatten(node: Node, x: Any) -> Any:
    """Merge the axes before one, and those from it on."""
    axis = node.get("axis", 1)
    axis += x.ndim * (axis < 0)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("Transpose")
def transpose(node: Node, x: Any) -> Any:
    """Permute axes; reverse them by default."""
    return node.xp.transpose(x, node.get("perm"))


@operator("Squeeze")
def squeeze(node: Node, x: Any, axes: Any = None) -> Any:
    """Remove axes of size 1."""
    along = node.axes(axes)
    return node.xp.squeeze(x, tuple(along) if along else None)


@operator("Unsqueeze")
def unsqueeze(node: Node, x: Any, axes: Any = None) -> Any:
    """Add axes of size 1."""
    return node.xp.expand_dims(x, tuple(node.axes(axes) or ()))


@operator("Concat")
def concat(node: Node, *inputs: Any) -> Any:
    """Join arrays along an axis."""
    return node.xp.concatenate(inputs, node.get("axis", 1))


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
        open_end = step < 0 and end < -x.shape[axis]
        index[axis] = slice(start, None if open_end else end, step)
    return x[tuple(index)]


@operator("Expand")
def expand(node: Node, x: Any, wanted: Any) -> Any:
    """Broadcast to a shape, in both directions."""
    return node.xp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(node.ints(wanted, "shape"))))


@operator("Tile")
def tile(node: Node, x: Any, repeats: Any) -> Any:
    """Repeat an array along its axes."""
    return node.xp.tile(x, node.ints(repeats, "repeats"))


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
def trilu(node: Node, x: Any, k: Any = None) -> Any:
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

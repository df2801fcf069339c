"""Shapes, slices and padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn.core.jaxpr import Equation
from volta_fn.onnx.rules.registry import Writer, aval, ints, result, rule, scalar, shaped

_FAR = -(2**31)


@rule("reshape", "squeeze")
def reshape(w: Writer, eqn: Equation, x: str) -> str:
    """Give the elements another shape."""
    return shaped(w, x, result(eqn).shape)


@rule("transpose")
def transpose(w: Writer, eqn: Equation, x: str) -> str:
    """Permute axes."""
    return w.op("Transpose", x, perm=[int(i) for i in eqn.params["permutation"]])


@rule("concatenate")
def concatenate(w: Writer, eqn: Equation, *names: str) -> str:
    """Join arrays."""
    return w.op("Concat", *names, axis=int(eqn.params["dimension"]))


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

"""The executable specification of kernels: which kernels are well formed."""

from __future__ import annotations

import math

from volta_fn.compiler.ir.index import Affine, Index, Range
from volta_fn.compiler.ir.kernel import Inside, Kernel, Load, affines, levels, operands
from volta_fn.core.aval import Shape
from volta_fn.errors import JaxprError


def check_kernel(kernel: Kernel) -> None:
    """Raise `JaxprError` unless the kernel is well formed.

    Nodes read earlier nodes; axes exist; loads stay inside their buffers wherever their masks let them through; a value per element of a
    row is stored at an index of its own, and every element of an output is written.
    """
    for number, node in enumerate(kernel.nodes):
        _require(all(i < number for i in operands(node)), f"node {number} reads a later node")
        _require(all(axis < len(kernel.sizes) for a in affines(node) for axis in a.axes), f"node {number} uses an axis that does not exist")
        if isinstance(node, Load):
            _check_load(kernel, node, number)
        if isinstance(node, Inside):
            _require(bool(node.ranges), f"node {number} asks for no condition")
    per_element = levels(kernel)
    for number, store in enumerate(kernel.stores):
        _check_store(kernel, store.shape, store.index, number)
        depends = {axis for a in store.index for axis in a.axes}
        varies = per_element[store.value]
        _require(not varies or depends >= set(kernel.reduction_axes) - _single(kernel), f"store {number} keeps one of a row's many values")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise JaxprError(f"malformed kernel: {message}")


def _single(kernel: Kernel) -> set[int]:
    return {axis for axis, size in enumerate(kernel.sizes) if size == 1}


def _check_load(kernel: Kernel, node: Load, number: int) -> None:
    buffer = kernel.inputs[node.input]
    _require(math.prod(node.shape) == buffer.size and node.dtype == buffer.dtype, f"node {number} sees another array than its buffer is")
    _require(len(node.index) == len(node.shape), f"node {number} has an index of another rank than its buffer")
    if 0 in kernel.sizes:
        return
    for affine, size in zip(node.index, node.shape, strict=True):
        inside = Range(affine, 0, size)
        asked = inside.canonical()
        guarded = any(r.value == asked.value and r.low >= asked.low and r.high <= asked.high for r in node.mask)
        _require(bool(inside.holds(kernel.sizes)) or guarded, f"node {number} may read outside of its buffer")


def _check_store(kernel: Kernel, shape: Shape, index: Index, number: int) -> None:
    """Check that an index is a bijection.

    It is one if, as a row-major number, its terms are the strides of a mixed-radix system that fills the shape.
    """
    if 0 in kernel.sizes or 0 in shape:
        return
    flat: dict[int, int] = {}
    offset = 0
    for d, affine in enumerate(index):
        stride = math.prod(shape[d + 1 :])
        offset += stride * affine.offset
        for axis, c in affine.terms:
            flat[axis] = flat.get(axis, 0) + stride * c
    filled = 1
    for axis, c in sorted(flat.items(), key=lambda item: (abs(item[1]), kernel.sizes[item[0]])):
        _require(abs(c) == filled, f"store {number} writes an element twice, or leaves one out")
        filled *= kernel.sizes[axis]
    lowest = Affine(tuple(flat.items()), offset).bounds(kernel.sizes)[0]
    _require(filled == math.prod(shape) and lowest == 0, f"store {number} does not fill its output")

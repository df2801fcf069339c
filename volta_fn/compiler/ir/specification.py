"""The specification of kernels: when one is well formed, and what it computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from volta_fn.compiler.ir.index import Affine, Index, Range
from volta_fn.compiler.ir.kernel import Apply, Constant, Inside, Kernel, Load, Node, Position, Reduce, Store, affines, levels, operands
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.primitive import PRIMITIVES, evaluation_of
from volta_fn.errors import JaxprError, VoltaError

# The rules of well-formed kernels.


def check_kernel(kernel: Kernel) -> None:
    """Raise `JaxprError` unless the kernel is well formed.

    Nodes read earlier nodes, and have the dtypes that their primitives give; axes exist; loads stay inside their buffers wherever their
    masks let them through; a value per element of a row is stored at an index of its own, and every element of an output is written.
    """
    _require(0 <= kernel.parallel <= len(kernel.sizes), f"{kernel.parallel} of {len(kernel.sizes)} axes number the rows")
    for number, node in enumerate(kernel.nodes):
        _require(all(0 <= i < number for i in operands(node)), f"node {number} reads a later node")
        _check_dtype(kernel, node, number)
        _require(all(axis < len(kernel.sizes) for a in affines(node) for axis in a.axes), f"node {number} uses an axis that does not exist")
        if isinstance(node, Load):
            _check_load(kernel, node, number)
        if isinstance(node, Inside):
            _require(bool(node.ranges), f"node {number} asks for no condition")
    per_element = levels(kernel)
    for number, store in enumerate(kernel.stores):
        _require(0 <= store.value < len(kernel.nodes), f"store {number} keeps a node that does not exist")
        _require(len(store.index) == len(store.shape), f"store {number} has an index of another rank than its output")
        _require(all(axis < len(kernel.sizes) for a in store.index for axis in a.axes), f"store {number} uses an axis that does not exist")
        _check_store(kernel, store.shape, store.index, number)
        depends = {axis for a in store.index for axis in a.axes}
        varies = per_element[store.value]
        row_axes = {axis for axis in kernel.reduction_axes if kernel.sizes[axis] != 1}
        _require(not varies or depends >= row_axes, f"store {number} keeps one of a row's many values")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise JaxprError(f"malformed kernel: {message}")


def _check_dtype(kernel: Kernel, node: Node, number: int) -> None:
    read = [kernel.nodes[i].dtype for i in operands(node)]
    if isinstance(node, Apply):
        gives = _scalar_result(node.op, tuple(read), node.params)
        _require(gives == node.dtype, f"node {number} is {node.dtype}, but {node.op} of {', '.join(map(str, read))} gives {gives}")
    elif isinstance(node, Reduce):
        gives = node.dtype if node.is_index else read[0]
        _require(gives == node.dtype, f"node {number} is {node.dtype}, but {node.op} of {read[0]} gives {gives}")


@lru_cache(maxsize=4096)
def _scalar_result(op: str, dtypes: tuple[np.dtype, ...], params: tuple[tuple[str, Any], ...]) -> np.dtype | str:
    """Return the dtype of an operation on scalars, or the reason for none."""
    try:
        result: ShapedArray = PRIMITIVES[op].abstract(*[ShapedArray((), dtype) for dtype in dtypes], **dict(params))
    except (VoltaError, TypeError) as error:
        return f"no result: {error.args[0]}"
    return result.dtype


def _check_load(kernel: Kernel, node: Load, number: int) -> None:
    _require(0 <= node.input < len(kernel.inputs), f"node {number} reads a buffer that does not exist")
    buffer = kernel.inputs[node.input]
    _require(math.prod(node.shape) == buffer.size and node.dtype == buffer.dtype, f"node {number} sees another array than its buffer is")
    _require(len(node.index) == len(node.shape), f"node {number} has an index of another rank than its buffer")
    if 0 in kernel.sizes:
        return
    for affine, size in zip(node.index, node.shape, strict=True):
        inside = Range(affine, 0, size)
        _require(bool(inside.holds(kernel.sizes)) or _is_guarded(kernel, node, inside), f"node {number} may read outside of its buffer")


def _is_guarded(kernel: Kernel, node: Load, inside: Range) -> bool:
    """Return True if a condition holds wherever the load's mask lets it through."""
    condition = inside.canonical()
    if any(r.value == condition.value and r.low >= condition.low and r.high <= condition.high for r in node.mask):
        return True
    intervals = _narrowed(node.mask, kernel.sizes)
    if intervals is None:
        return True  # it never lets it through
    least = inside.value.offset + sum(min(c * intervals[axis][0], c * intervals[axis][1]) for axis, c in inside.value.terms)
    greatest = inside.value.offset + sum(max(c * intervals[axis][0], c * intervals[axis][1]) for axis, c in inside.value.terms)
    return inside.low <= least and greatest < inside.high


def _narrowed(mask: Sequence[Range], sizes: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return each axis's bounds where all conditions hold; None if they never do."""
    intervals = [(0, size - 1) for size in sizes]
    for _ in range(2):  # what one condition narrows may let another narrow more
        for condition in mask:
            ends = {axis: sorted((c * intervals[axis][0], c * intervals[axis][1])) for axis, c in condition.value.terms}
            for axis, c in condition.value.terms:
                others = [end for other, end in ends.items() if other != axis]
                low = condition.low - condition.value.offset - sum(end[1] for end in others)
                high = condition.high - 1 - condition.value.offset - sum(end[0] for end in others)
                first, last = (-(-low // c), high // c) if c > 0 else (-(high // -c), -low // -c)
                intervals[axis] = (max(intervals[axis][0], first), min(intervals[axis][1], last))
                if intervals[axis][0] > intervals[axis][1]:
                    return None
    return intervals


def _check_store(kernel: Kernel, shape: Shape, index: Index, number: int) -> None:
    """Check that an index is a bijection."""
    # It is one if, as a row-major number, its terms are the strides of a mixed-radix system that fills the shape.
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


# An interpreter in NumPy: the oracle of every code generator.
#
# Each node is one array over all axes at once; nothing here is fast. Scalar operations and reductions mean what the evaluation rules of
# the primitives of those names mean.


def interpret(kernel: Kernel, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the outputs of a kernel for inputs of its sizes and dtypes."""
    if [(x.size, x.dtype) for x in inputs] != [(b.size, b.dtype) for b in kernel.inputs]:
        raise VoltaError(f"the kernel takes {list(kernel.inputs)}, got {[(x.size, x.dtype) for x in inputs]}")
    run = _Interpreter(kernel, inputs)
    with np.errstate(all="ignore"):
        values: list[np.ndarray] = []
        for node in kernel.nodes:
            values.append(run.node(node, values))
        return tuple([run.stored(store, values[store.value]) for store in kernel.stores])


def _evaluation(op: str) -> Callable[..., Any]:
    evaluate = evaluation_of(PRIMITIVES[op])
    if evaluate is None:
        raise VoltaError(f"the primitive {op} has no evaluation rule")
    return evaluate


class _Interpreter:
    """Evaluates nodes as arrays of the kernel's rank, of size 1 along unused axes."""

    def __init__(self, kernel: Kernel, inputs: Sequence[np.ndarray]) -> None:
        self.kernel = kernel
        self.inputs = inputs

    def affine(self, affine: Affine) -> np.ndarray:
        rank = len(self.kernel.sizes)
        result = np.full((1,) * rank, affine.offset, np.int64)
        for axis, c in affine.terms:
            shape = [1] * rank
            shape[axis] = self.kernel.sizes[axis]
            result = result + c * np.arange(self.kernel.sizes[axis]).reshape(shape)
        return result

    def inside(self, ranges: Sequence[Range]) -> np.ndarray:
        """Return a mask of the iterations in which all conditions hold."""
        result = np.ones((1,) * len(self.kernel.sizes), np.bool_)
        for condition in ranges:
            value = self.affine(condition.value)
            result = result & (condition.low <= value) & (value < condition.high)
        return result

    def node(self, node: Node, values: Sequence[np.ndarray]) -> np.ndarray:
        if isinstance(node, Constant):
            return node.value.reshape((1,) * len(self.kernel.sizes))
        if isinstance(node, Load):
            return self.load(node)
        if isinstance(node, Position):
            return self.affine(node.value).astype(node.dtype)
        if isinstance(node, Inside):
            return self.inside(node.ranges)
        if isinstance(node, Apply):
            return self.apply(node, values)
        return self.reduce(node, values[node.operand])

    def load(self, node: Load) -> np.ndarray:
        """Return the elements that a load reads, and its fill value where it is masked."""
        buffer = self.inputs[node.input].reshape(node.shape)
        where = self.inside(node.mask)
        index = [self.affine(affine) for affine in node.index]
        if not node.mask:
            return buffer[tuple(index)] if index else buffer.reshape(where.shape)
        if not buffer.size:
            return np.broadcast_to(node.fill.value, where.shape)
        safe = [np.where(where, i, 0) for i in index]
        return np.where(where, buffer[tuple(safe)] if safe else buffer, node.fill.value)

    def apply(self, node: Apply, values: Sequence[np.ndarray]) -> np.ndarray:
        return np.asarray(_evaluation(node.op)(*[values[i] for i in node.operands], **dict(node.params)))

    def reduce(self, node: Reduce, operand: np.ndarray) -> np.ndarray:
        sizes, parallel = self.kernel.sizes, self.kernel.parallel
        rows = operand.shape[:parallel]
        row = math.prod(sizes[parallel:])
        flat = np.ascontiguousarray(np.broadcast_to(operand, (*rows, *sizes[parallel:]))).reshape((*rows, row))
        params = {"index_dtype": node.dtype} if node.is_index else {}
        reduced = np.asarray(_evaluation(node.op)(flat, axes=(parallel,), **params))
        return reduced.reshape((*rows, *(1,) * (len(sizes) - parallel)))

    def stored(self, store: Store, value: np.ndarray) -> np.ndarray:
        out = np.empty(store.shape, value.dtype)
        index = [self.affine(affine) for affine in store.index]
        if not store.shape:
            out[()] = value.reshape(-1)[0] if value.size else 0
        elif out.size:
            position = np.broadcast_arrays(*index)
            out[tuple(position)] = np.broadcast_to(value, np.broadcast_shapes(value.shape, position[0].shape))
        return out

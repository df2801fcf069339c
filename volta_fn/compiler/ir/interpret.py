"""Kernels in NumPy: the oracle of every code generator.

Each node is one array over all axes at once; nothing here is fast. Scalar operations and reductions mean what the evaluation rules of the
primitives of those names mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from volta_fn.compiler.ir.index import Affine, Range
from volta_fn.compiler.ir.kernel import Apply, Constant, Inside, Kernel, Load, Node, Position, Reduce, Store
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.errors import VoltaError


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


class _Interpreter:
    """Evaluates nodes as arrays of the kernel's rank.

    They have size 1 along axes that they do not depend on.
    """

    def __init__(self, kernel: Kernel, inputs: Sequence[np.ndarray]) -> None:
        self.kernel = kernel
        self.inputs = inputs

    def affine(self, affine: Affine) -> np.ndarray:
        """Return the number in every iteration."""
        rank = len(self.kernel.sizes)
        result = np.full((1,) * rank, affine.offset, np.int64)
        for axis, c in affine.terms:
            shape = [1] * rank
            shape[axis] = self.kernel.sizes[axis]
            result = result + c * np.arange(self.kernel.sizes[axis]).reshape(shape)
        return result

    def inside(self, ranges: Sequence[Range]) -> np.ndarray:
        """Return where all conditions hold."""
        result = np.ones((1,) * len(self.kernel.sizes), np.bool_)
        for condition in ranges:
            value = self.affine(condition.value)
            result = result & (condition.low <= value) & (value < condition.high)
        return result

    def node(self, node: Node, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return the value of a node in every iteration."""
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
        evaluate = PRIMITIVES[node.op].evaluate
        if evaluate is None:
            raise VoltaError(f"the primitive {node.op} has no evaluation rule")
        return np.asarray(evaluate(*[values[i] for i in node.operands], **dict(node.params)))

    def reduce(self, node: Reduce, operand: np.ndarray) -> np.ndarray:
        sizes, parallel = self.kernel.sizes, self.kernel.parallel
        rows = operand.shape[:parallel]
        row = math.prod(sizes[parallel:])
        flat = np.ascontiguousarray(np.broadcast_to(operand, (*rows, *sizes[parallel:]))).reshape((*rows, row))
        evaluate = PRIMITIVES[node.op].evaluate
        if evaluate is None:
            raise VoltaError(f"the primitive {node.op} has no evaluation rule")
        params = {"index_dtype": node.dtype} if node.is_index else {}
        reduced = np.asarray(evaluate(flat, axes=(parallel,), **params))
        return reduced.reshape((*rows, *(1,) * (len(sizes) - parallel)))

    def stored(self, store: Store, value: np.ndarray) -> np.ndarray:
        """Return the output that a store writes."""
        out = np.empty(store.shape, value.dtype)
        index = [self.affine(affine) for affine in store.index]
        if not store.shape:
            out[()] = value.reshape(-1)[0] if value.size else 0
        elif out.size:
            position = np.broadcast_arrays(*index)
            out[tuple(position)] = np.broadcast_to(value, np.broadcast_shapes(value.shape, position[0].shape))
        return out

"""Reductions of narrow numbers made reductions of wide ones.

Sums and products of float16 and bfloat16 are accumulated in float32. Other reductions of numbers of one or two bytes give the same either
way, as do integers that wrap; in 32 bits, partial results are words of memory, and there are fewer kinds of them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.ir.kernel import Apply, Kernel, Node, Reduce
from volta_fn.errors import OutOfMemoryError

INT32 = np.dtype(np.int32)


def widened(kernel: Kernel) -> Kernel:
    """Return the kernel with reductions of at least four bytes and int32 indices.

    Raises `OutOfMemoryError` if those cannot number the elements of a row.
    """
    reduced = [node for node in kernel.nodes if isinstance(node, Reduce)]
    count = math.prod(kernel.sizes[kernel.parallel :])
    if count > np.iinfo(INT32).max and any(node.is_index for node in reduced):
        raise OutOfMemoryError(
            f"the position of an extremum among {count} elements does not fit the 32 bits that a GPU's shader has; split it"
        )
    if not any(node.is_index or kernel.nodes[node.operand].dtype.itemsize < 4 for node in reduced):
        return kernel
    nodes: list[Node] = []
    new: list[int] = []

    def converted(number: int, dtype: np.dtype) -> int:
        if nodes[number].dtype == dtype:
            return number
        nodes.append(Apply(dtype, "convert_element_type", (number,), (("new_dtype", dtype), ("weak_type", False))))
        return len(nodes) - 1

    for node in kernel.nodes:
        if isinstance(node, Apply):
            node = replace(node, operands=tuple([new[i] for i in node.operands]))
        if isinstance(node, Reduce):
            wide = wide_dtype(nodes[new[node.operand]].dtype)
            operand = converted(new[node.operand], wide)
            nodes.append(Reduce(INT32 if node.is_index else wide, node.op, operand))
            new.append(converted(len(nodes) - 1, node.dtype))
        else:
            nodes.append(node)
            new.append(len(nodes) - 1)
    return replace(kernel, nodes=tuple(nodes), stores=tuple([replace(s, value=new[s.value]) for s in kernel.stores]))


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of at least 32 bits in which numbers of a dtype are combined."""
    if dtype.itemsize >= 4:
        return dtype
    return np.dtype(np.float32 if dtype in dtypes.FLOATS else np.int32 if dtype in dtypes.SIGNED else np.uint32)

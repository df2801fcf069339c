"""The kernel IR: one loop nest over scalar operations."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from volta_fn.compiler.ir.index import Affine, Index, Range
from volta_fn.core.aval import Shape
from volta_fn.core.primitive import Reduction, reduction_of
from volta_fn.errors import JaxprError

# A kernel is a loop over *rows*. Its *parallel* axes number the rows, which are independent; its *reduction* axes number the elements
# of a row. The body is a list of *nodes*, each a scalar: loads from input buffers, constants, indices, scalar operations (named as the
# elementwise primitives that they are), and *reductions*, which combine an element-wise value over a row into one value per row. A
# later node may use that value along the same row again, so that softmax or layer norm, which visit each row several times, are one
# kernel and one pass over memory. Stores write nodes to output buffers.
#
# A value has a *level*: it is per element of a row if it depends on a reduction axis, else per row. It has a *stage*: how many earlier
# passes over the row it waits for. Both follow from the nodes (`levels`, `stages`).
#
# Kernels are values: equal ones are equal and hash alike, whatever program they come from. Sizes are part of them.


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, stored as its bits: NaN equals itself, and 0.0 is not -0.0."""

    dtype: np.dtype
    bits: bytes

    @staticmethod
    def of(value: Any, dtype: np.dtype) -> Constant:
        """Return the constant of a Python or NumPy number."""
        return Constant(dtype, np.asarray(value, dtype).tobytes())

    @property
    def value(self) -> np.ndarray:
        """The number as a zero-dimensional array."""
        return np.frombuffer(self.bits, self.dtype).reshape(())


@dataclass(frozen=True, slots=True)
class Load:
    """An element of an input, seen as a contiguous array of `shape`.

    Where a condition of `mask` fails, it is `fill`, and memory is not accessed.
    """

    dtype: np.dtype
    input: int
    shape: Shape
    index: Index
    mask: tuple[Range, ...]
    fill: Constant


@dataclass(frozen=True, slots=True)
class Position:
    """An affine function of the axes as a number (`iota`)."""

    dtype: np.dtype
    value: Affine


@dataclass(frozen=True, slots=True)
class Inside:
    """Whether all of the conditions hold, as bool."""

    ranges: tuple[Range, ...]

    @property
    def dtype(self) -> np.dtype:
        """The dtype bool."""
        return np.dtype(np.bool_)


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar operation on earlier nodes: an elementwise primitive, by name."""

    dtype: np.dtype
    op: str
    operands: tuple[int, ...]
    params: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Reduce:
    """An earlier node combined over the row by a reduction primitive.

    ``argmax`` and ``argmin`` give the row-major number in the row.
    """

    dtype: np.dtype
    op: str
    operand: int
    #: Of a sum of products, the precision to which targets may round the factors, such as "tensorfloat32".
    precision: str = ""

    @property
    def reduction(self) -> Reduction:
        """The reduction that the primitive is."""
        return reduction_of(self.op)

    @property
    def is_index(self) -> bool:
        """Whether the result is an element's number (``argmax``, ``argmin``)."""
        return self.reduction.index_of is not None


Node = Constant | Load | Position | Inside | Apply | Reduce


@dataclass(frozen=True, slots=True)
class Buffer:
    """An input: a contiguous array of `size` elements."""

    size: int
    dtype: np.dtype


@dataclass(frozen=True, slots=True)
class Store:
    """A node written to the output with the store's number.

    The output is a contiguous array of `shape`; each element is written once.
    """

    shape: Shape
    index: Index
    value: int


@dataclass(frozen=True)
class Kernel:
    """A loop nest; the first `parallel` axes number rows, the others their elements."""

    sizes: tuple[int, ...]
    parallel: int
    inputs: tuple[Buffer, ...]
    nodes: tuple[Node, ...]
    stores: tuple[Store, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.sizes, self.parallel, self.inputs, self.nodes, self.stores))

    def __hash__(self) -> int:
        return self._hash

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The buffers that the kernel writes."""
        return tuple([Buffer(math.prod(s.shape), self.nodes[s.value].dtype) for s in self.stores])

    @property
    def reduction_axes(self) -> tuple[int, ...]:
        """The axes of a row."""
        return tuple(range(self.parallel, len(self.sizes)))


class PendingStores(set[int]):
    """The stores of a kernel that have no code yet: whoever emits one removes it."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(range(len(kernel.stores)))

    def check(self, later: Collection[int] = ()) -> None:
        """Raise `JaxprError` if stores have no code, other than those that come later."""
        if missing := self.difference(later):
            raise JaxprError(f"no code was generated for stores {sorted(missing)} of a kernel")


def operands(node: Node) -> tuple[int, ...]:
    """Return the numbers of the nodes that a node reads."""
    if isinstance(node, Apply):
        return node.operands
    return (node.operand,) if isinstance(node, Reduce) else ()


def affines(node: Node) -> tuple[Affine, ...]:
    """Return the affine functions of the axes in a node."""
    if isinstance(node, Load):
        return (*node.index, *[r.value for r in node.mask])
    if isinstance(node, Position):
        return (node.value,)
    return tuple([r.value for r in node.ranges]) if isinstance(node, Inside) else ()


def levels(kernel: Kernel) -> tuple[bool, ...]:
    """Return for every node whether it is per element of a row (else it is per row)."""
    result: list[bool] = []
    for node in kernel.nodes:
        is_per_element = any(axis >= kernel.parallel for affine in affines(node) for axis in affine.axes)
        result.append(not isinstance(node, Reduce) and (is_per_element or any(result[i] for i in operands(node))))
    return tuple(result)


@lru_cache(maxsize=1024)
def stages(kernel: Kernel) -> tuple[int, ...]:
    """Return for every node the passes over the row that must precede it."""
    result: list[int] = []
    for node in kernel.nodes:
        before = max([result[i] for i in operands(node)], default=0)
        result.append(before + isinstance(node, Reduce))
    return tuple(result)

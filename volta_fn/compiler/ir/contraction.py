"""Contractions: kernels that sum products of elements of two arrays.

Every target has schedules of its own for them. A contraction is a kernel like any other. Its rows are the elements of a result C[b, m, n];
an element sums, along its row k, the products A(b, m, k) · B(b, k, n), whose operands are loads: views of arrays are other indices. What a
row does with its sum is the *epilogue*: elementwise operations on further loads, and stores through indices of their own.
`contraction_of` finds these in a kernel, so that a code generator may use its best loops for the sum, and print the epilogue as the
elementwise kernel that it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from volta_fn.compiler.contractions.matmul_problem import Operand, Problem, Walk, merged
from volta_fn.compiler.ir.axes import simplified
from volta_fn.compiler.ir.index import Affine, along
from volta_fn.compiler.ir.kernel import Apply, Buffer, Constant, Kernel, Load, Node, Reduce, affines, levels, operands
from volta_fn.compiler.ir.views import row_major

#: Sums, and the products that they are of.
_PRODUCTS = {"reduce_sum": "mul", "reduce_or": "and"}

Axes = tuple[int, ...]


class Contraction(NamedTuple):
    """A kernel in as few axes as possible, with its operands, sum and axes."""

    kernel: Kernel
    lhs: Load
    rhs: Load
    #: The node that is the sum.
    total: int
    #: The axes of stacked products, of rows (which only the left operand has), and of columns (only the right one).
    batch: Axes
    rows: Axes
    columns: Axes

    @property
    def summed(self) -> Axes:
        """The axes of the sum."""
        return self.kernel.reduction_axes

    def swapped(self) -> Contraction:
        """Return the contraction with operands, and rows and columns, swapped."""
        return self._replace(lhs=self.rhs, rhs=self.lhs, rows=self.columns, columns=self.rows)

    def size(self, axes: Axes) -> int:
        """Return the number of iterations along some axes."""
        return math.prod(self.kernel.sizes[a] for a in axes)

    def problem(self) -> Problem:
        """Return the sums as a stack of matrix products, in the dtype of the sums."""
        sizes, offsets = self.kernel.sizes, [row_major(x.index, x.shape) for x in (self.lhs, self.rhs)]
        strides = [dict(offset.terms) for offset in offsets]

        def walks(axes: Sequence[int], *sides: dict[int, int]) -> list[Walk]:
            return merged([sizes[a] for a in axes], [[side.get(a, 0) for a in axes] for side in sides])

        orders = [sorted(self.summed, key=lambda a: (-side.get(a, 0), a)) for side in strides]
        stack, inner = walks(self.batch, *strides), min([walks(o, *strides) for o in orders], key=lambda found: len(found[0].sizes))
        outer = [walks(axes, side)[0] for axes, side in zip((self.rows, self.columns), strides, strict=True)]
        lhs, rhs = [
            Operand(x.dtype, stack[n], outer[n], inner[n], offset.offset)
            for n, (x, offset) in enumerate(zip((self.lhs, self.rhs), offsets, strict=True))
        ]
        return Problem(lhs, rhs, self.kernel.nodes[self.total].dtype)

    def epilogue(self, width: int | None = None) -> tuple[Kernel, Axes]:
        """Return what follows from the sums as an elementwise kernel.

        Also return which inputs of the kernel are its inputs from the second on. The first is a matrix of sums, whose rows are numbered by
        batch and rows, and which has room for `width` columns (by default for all): it may hold some of them.
        """
        old, row = self.kernel, (*self.batch, *self.rows)
        kept = self._after_sum()
        new = {n: k for k, n in enumerate(kept)}
        inputs = tuple(sorted({node.input for n in kept if isinstance(node := old.nodes[n], Load)}))
        shape = self.size(row), width or self.size(self.columns)
        nodes: list[Node] = []
        for n in kept:
            node = old.nodes[n]
            if isinstance(node, Reduce):
                node = Load(node.dtype, 0, shape, (self._number(row), self._number(self.columns)), (), Constant.of(0, node.dtype))
            elif isinstance(node, Load):
                node = replace(node, input=inputs.index(node.input) + 1)
            elif isinstance(node, Apply):
                node = replace(node, operands=tuple([new[i] for i in node.operands]))
            nodes.append(node)
        buffers = (Buffer(math.prod(shape), old.nodes[self.total].dtype), *[old.inputs[i] for i in inputs])
        stores = tuple([replace(s, value=new[s.value]) for s in old.stores])
        return Kernel(old.sizes[: old.parallel], old.parallel, buffers, tuple(nodes), stores), inputs

    def _number(self, axes: Axes) -> Affine:
        """Return the row-major number of an iteration along some axes."""
        return row_major(tuple(map(along, axes)), tuple([self.kernel.sizes[a] for a in axes]))

    def _after_sum(self) -> list[int]:
        """Return the sum, and the other nodes that the stores need."""
        found: set[int] = set()
        waiting = [store.value for store in self.kernel.stores]
        while waiting:
            n = waiting.pop()
            if n not in found:
                found.add(n)
                waiting += () if n == self.total else operands(self.kernel.nodes[n])
        return sorted(found | {self.total})


@lru_cache(maxsize=1024)
def contraction_of(kernel: Kernel) -> Contraction | None:
    """Return a kernel as a contraction with rows and columns; None for other kernels."""
    sums = [n for n, node in enumerate(kernel.nodes) if isinstance(node, Reduce)]
    if len(sums) != 1 or 0 in kernel.sizes:
        return None
    kernel = simplified(kernel)
    sums = [n for n, node in enumerate(kernel.nodes) if isinstance(node, Reduce)]
    product = _product(kernel, sums[0]) if sums else None
    if product is None:
        return None
    lhs, rhs, under = product
    per_element = levels(kernel)
    if any(per_element[n] and n not in under for n in range(len(kernel.nodes))):
        return None
    left, right = _axes(lhs), _axes(rhs)
    outer = range(kernel.parallel)
    rows, columns = tuple([a for a in outer if a in left - right]), tuple([a for a in outer if a in right - left])
    batch = tuple([a for a in outer if a not in (*rows, *columns)])
    return Contraction(kernel, lhs, rhs, sums[0], batch, rows, columns) if rows and columns else None


def _product(kernel: Kernel, total: int) -> tuple[Load, Load, set[int]] | None:
    """Return the operands of a summed product, and the nodes that only it needs.

    None if the node sums something else.
    """
    reduce = kernel.nodes[total]
    assert isinstance(reduce, Reduce)
    product = kernel.nodes[reduce.operand]
    if not isinstance(product, Apply) or product.op != _PRODUCTS.get(reduce.op):
        return None
    found, under = [], {reduce.operand}
    for n in product.operands:
        under.add(n)
        node = kernel.nodes[n]
        if isinstance(node, Apply) and node.op == "convert_element_type":
            under.add(node.operands[0])
            node = kernel.nodes[node.operands[0]]
        if not isinstance(node, Load) or node.mask:
            return None
        found.append(node)
    return found[0], found[1], under


def _axes(load: Load) -> frozenset[int]:
    return frozenset([axis for affine in affines(load) for axis in affine.axes])

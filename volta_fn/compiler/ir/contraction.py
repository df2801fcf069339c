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
from functools import lru_cache
from typing import NamedTuple

from volta_fn.compiler.contractions import Operand, Problem, Walk, merged
from volta_fn.compiler.ir.axes import simplified
from volta_fn.compiler.ir.index import Affine, along, row_major
from volta_fn.compiler.ir.kernel import Apply, Constant, Kernel, Load, Reduce, affines, remainder
from volta_fn.dtypes import can_cast

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
        epilogue = self._remainder(width)
        assert epilogue is not None, "contraction_of refuses such kernels"
        return epilogue

    @property
    def is_complete(self) -> bool:
        """Whether the sums and an epilogue are all that the kernel computes."""
        return self._remainder(None) is not None

    def _remainder(self, width: int | None) -> tuple[Kernel, Axes] | None:
        row, dtype = (*self.batch, *self.rows), self.kernel.nodes[self.total].dtype
        shape = self.size(row), width or self.size(self.columns)
        sums = Load(dtype, 0, shape, (self._number(row), self._number(self.columns)), (), Constant.of(0, dtype))
        return remainder(self.kernel, {self.total: sums})

    def _number(self, axes: Axes) -> Affine:
        """Return the row-major number of an iteration along some axes."""
        return row_major(tuple(map(along, axes)), tuple([self.kernel.sizes[a] for a in axes]))


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
    lhs, rhs = product
    left, right = _axes(lhs), _axes(rhs)
    outer = range(kernel.parallel)
    rows, columns = tuple([a for a in outer if a in left - right]), tuple([a for a in outer if a in right - left])
    batch = tuple([a for a in outer if a not in (*rows, *columns)])
    contraction = Contraction(kernel, lhs, rhs, sums[0], batch, rows, columns)
    return contraction if rows and columns and contraction.is_complete else None


def _product(kernel: Kernel, total: int) -> tuple[Load, Load] | None:
    """Return the operands of a summed product; None if the node sums something else.

    An operand may be converted to a dtype that represents all of its numbers: such a conversion changes no product.
    """
    reduce = kernel.nodes[total]
    assert isinstance(reduce, Reduce)
    product = kernel.nodes[reduce.operand]
    if not isinstance(product, Apply) or product.op != _PRODUCTS.get(reduce.op):
        return None
    operands = []
    for n in product.operands:
        node = kernel.nodes[n]
        if isinstance(node, Apply) and node.op == "convert_element_type" and can_cast(kernel.nodes[node.operands[0]].dtype, node.dtype):
            node = kernel.nodes[node.operands[0]]
        if not isinstance(node, Load) or node.mask:
            return None
        operands.append(node)
    return operands[0], operands[1]


def _axes(load: Load) -> frozenset[int]:
    return frozenset([axis for affine in affines(load) for axis in affine.axes])

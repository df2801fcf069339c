"""Contractions: sums of products, as all targets describe them.

`Problem` is a stack of matrix products, with walks through memory for indices. `Contraction` is a kernel that is one, with its epilogue.
`IndexedContraction` is a sum of products of arrays of any layout, which matrix products and correlations (`correlations`) both are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from volta_fn.compiler.ir.axes import inputs_read_at_store, simplified
from volta_fn.compiler.ir.index import Affine, along, row_major
from volta_fn.compiler.ir.kernel import Apply, Constant, Kernel, Load, Reduce, affines, remainder
from volta_fn.dtypes import can_cast

# Stacks of matrix products, and how their indices walk memory.
#
# ``C[m, n] = sum over k of A(m, k) B(k, n)``. The axes of an operand that become one index (m, k, n, or the number of the matrix in the
# stack) are merged where they lie in memory as one axis would. What is left is an *index map*: sizes and strides, the outermost first.

Axes = tuple[int, ...]


class Walk(NamedTuple):
    """The sizes and strides with which an index walks an array."""

    #: Sizes of the index's axes (the same in all arrays it moves through), and their strides in elements.
    sizes: Axes
    strides: Axes

    @property
    def size(self) -> int:
        """The number of values that the index has."""
        return prod(self.sizes)

    @property
    def stride(self) -> int | None:
        """The stride of the only axis; None if there are several, 0 if there is none."""
        if len(self.strides) > 1:
            return None
        return self.strides[0] if self.strides else 0


class Operand(NamedTuple):
    """A stack of matrices in memory.

    `outer` is the index of its rows or columns (m or n), `inner` the one that is summed over.
    """

    dtype: np.dtype
    stack: Walk
    outer: Walk
    inner: Walk
    #: Elements of the array before the first matrix.
    start: int = 0


class _Factor(Protocol):
    """An operand of products: the walks of its indices."""

    @property
    def stack(self) -> Walk: ...
    @property
    def outer(self) -> Walk: ...
    @property
    def inner(self) -> Walk: ...


F = TypeVar("F", bound=_Factor)


@dataclass(frozen=True)
class Products(Generic[F]):
    """A stack of products; operands have stacks and inner indices of the same sizes."""

    lhs: F
    rhs: F

    @property
    def operands(self) -> tuple[F, F]:
        """Both operands."""
        return self.lhs, self.rhs

    @property
    def batch(self) -> int:
        """The number of products."""
        return self.lhs.stack.size

    @property
    def m(self) -> int:
        """The rows of each."""
        return self.lhs.outer.size

    @property
    def n(self) -> int:
        """The columns of each."""
        return self.rhs.outer.size

    @property
    def k(self) -> int:
        """The terms of each sum."""
        return self.lhs.inner.size


@dataclass(frozen=True)
class Problem(Products[Operand]):
    """Products of matrices, and the dtype of their results."""

    dtype: np.dtype

    def swapped(self) -> Problem:
        """Return the product of the transposes: the transpose of this one's result."""
        return Problem(self.rhs, self.lhs, self.dtype)


def problem_of(
    lhs_shape: Axes, rhs_shape: Axes, dimension_numbers: tuple[tuple[Axes, Axes], tuple[Axes, Axes]], dtypes: Sequence[np.dtype]
) -> Problem:
    """Return the problem of contiguous operands; `dtypes` are theirs and the result's."""
    (lhs_inner, rhs_inner), (lhs_stack, rhs_stack) = dimension_numbers
    shapes = lhs_shape, rhs_shape
    strides = contiguous_strides(lhs_shape), contiguous_strides(rhs_shape)
    stacks = _walks(shapes, strides, lhs_stack, rhs_stack)
    inners = min((_walks(shapes, strides, *order) for order in _orders(lhs_inner, rhs_inner)), key=lambda walks: len(walks[0].sizes))
    operands = []
    for side, paired in enumerate(((lhs_inner, lhs_stack), (rhs_inner, rhs_stack))):
        free = [axis for axis in range(len(shapes[side])) if axis not in paired[0] and axis not in paired[1]]
        (outer,) = merged([shapes[side][axis] for axis in free], [[strides[side][axis] for axis in free]])
        operands.append(Operand(dtypes[side], stacks[side], outer, inners[side]))
    return Problem(operands[0], operands[1], dtypes[2])


def contiguous_strides(shape: Sequence[int]) -> Axes:
    """Return the strides of a contiguous array."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _orders(lhs: Axes, rhs: Axes) -> list[tuple[Axes, Axes]]:
    """Return candidate orders of the axes summed over: the operands' in memory."""
    pairs = list(zip(lhs, rhs, strict=True))
    both = sorted(pairs), sorted(pairs, key=lambda pair: pair[1])
    return [(tuple(p[0] for p in order), tuple(p[1] for p in order)) for order in both]


def _walks(shapes: Sequence[Axes], strides: Sequence[Axes], lhs: Axes, rhs: Axes) -> list[Walk]:
    return merged([shapes[0][axis] for axis in lhs], [[strides[0][axis] for axis in lhs], [strides[1][axis] for axis in rhs]])


def merged(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> list[Walk]:
    """Return one walk for each of `strides` over axes of these sizes.

    Axes of size 1 are left out and neighbours are merged.
    """
    loops: list[tuple[int, tuple[int, ...]]] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        if loops and all(outer == size * step for outer, step in zip(loops[-1][1], steps, strict=True)):
            loops[-1] = (loops[-1][0] * size, tuple(steps))
        else:
            loops.append((size, tuple(steps)))
    shape = tuple(size for size, _ in loops)
    return [Walk(shape, tuple(steps[side] for _, steps in loops)) for side in range(len(strides))]


# Kernels that are contractions: they sum products of elements of two arrays.
#
# Every target has schedules of its own for them. A contraction is a kernel like any other. Its parallel axes number the elements of a
# result C[b, m, n], a stack of matrices; its reduction axes are k, along which an element sums the products A(b, m, k) · B(b, k, n). The
# operands are loads: views of arrays are other indices. What is done with a sum is the *epilogue*: elementwise operations on further
# loads, and stores through indices of their own. `contraction_of` finds these in a kernel, so that a code generator may use its best
# loops for the sum, and print the epilogue as the elementwise kernel that it is. *Rows* and *columns* are those of the matrices C here.

#: Sums, and the products that they are of.
_PRODUCTS = {"reduce_sum": "mul", "reduce_or": "and"}


class Contraction(NamedTuple):
    """A kernel in as few axes as possible, with its operands, sum and axes."""

    kernel: Kernel
    lhs: Load
    rhs: Load
    #: The node that is the sum.
    total: int
    #: The parallel axes b of stacked products, m of the rows of C (which only the left operand has), and n of its columns (only the right).
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

    def oriented(self, swapped: bool | None = None) -> Contraction:
        """Make the axis along which the first result is contiguous one of the columns.

        `swapped` forces or forbids an exchange of the operands.
        """
        if swapped is None:
            store = self.kernel.stores[0]
            side_by_side = [axis for axis, c in row_major(store.index, store.shape).terms if c == 1]
            swapped = bool(side_by_side) and side_by_side[0] in self.rows
        return self.swapped() if swapped else self

    def size(self, axes: Axes) -> int:
        """Return the number of iterations along some axes."""
        return prod(self.kernel.sizes[a] for a in axes)

    def problem(self) -> Problem:
        """Return the sums as a stack of matrix products, in the dtype of the sums."""
        sizes, offsets = self.kernel.sizes, [row_major(x.index, x.shape) for x in (self.lhs, self.rhs)]
        strides = [dict(offset.terms) for offset in offsets]

        def walks(axes: Sequence[int], *sides: dict[int, int]) -> list[Walk]:
            return merged([sizes[a] for a in axes], [[side.get(a, 0) for a in axes] for side in sides])

        orders = [sorted(self.summed, key=lambda a: (-side.get(a, 0), a)) for side in strides]
        stack = walks(self.batch, *strides)
        # The order of terms is free: of the operands' orders in memory, take the one whose axes merge into the fewest.
        inner = min([walks(o, *strides) for o in orders], key=lambda pair: len(pair[0].sizes))
        outer = [walks(axes, side)[0] for axes, side in zip((self.rows, self.columns), strides, strict=True)]
        lhs, rhs = [
            Operand(x.dtype, stack[n], outer[n], inner[n], offset.offset)
            for n, (x, offset) in enumerate(zip((self.lhs, self.rhs), offsets, strict=True))
        ]
        return Problem(lhs, rhs, self.kernel.nodes[self.total].dtype)

    def epilogue(self, width: int | None = None) -> tuple[Kernel, Axes]:
        """Return the epilogue, the elementwise kernel over the sums.

        Also return which inputs of the kernel are its inputs from the second on. The first is a matrix of sums, whose rows are numbered by
        batch and rows, and which has room for `width` columns (by default for all): it may hold some of them.
        """
        epilogue = self._remainder(width)
        assert epilogue is not None, "contraction_of refuses such kernels"
        return epilogue

    @property
    def is_complete(self) -> bool:
        """Whether the kernel computes nothing but the sums and an epilogue."""
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
    contraction = _contraction_of(kernel)
    return contraction if contraction is not None and contraction.rows and contraction.columns else None


@lru_cache(maxsize=1024)
def vector_product_of(kernel: Kernel) -> Contraction | None:
    """Return a kernel as a contraction that lacks rows or columns, or None.

    It is a stack of matrices times vectors, or of dot products.
    """
    contraction = _contraction_of(kernel)
    return None if contraction is None or (contraction.rows and contraction.columns) else contraction


def _contraction_of(kernel: Kernel) -> Contraction | None:
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
    return contraction if contraction.is_complete else None


@lru_cache(maxsize=1024)
def accumulators(kernel: Kernel, output: int) -> tuple[int, ...]:
    """Return the inputs of a contraction whose memory may hold an output.

    Each of their elements is read only after its sum, and where that is written.
    """
    if contraction_of(kernel) is None or kernel.outputs[output].size != prod(kernel.sizes[: kernel.parallel]):
        return ()
    return inputs_read_at_store(kernel, output)  # the operands of the products are read at other offsets, along the summed axes


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


# Contractions over index maps: sums of products of arrays of any layout.
#
# ``y[s, m, n] = sum over k of a(s, m, k) b(s, k, n)``, over one index. Stacks of matrix products and correlations are both
# of this form. The operand's element that indices lead to is at the sum of how far each index walks. Where windows of a correlation
# leave its input, elements are zero: each *bound* is the coordinate along an axis, also a sum of walks, and has a range.


class Bound(NamedTuple):
    """A coordinate that must be in ``range(size)``.

    It is `start` plus the walks along the operand's outer and inner index.
    """

    start: int
    outer: Axes
    inner: Axes
    size: int


@dataclass(frozen=True)
class OperandMap:
    """The index map of an operand: `start` plus the walks of its indices.

    `outer` is m or n, `inner` the index summed over.
    """

    dtype: np.dtype
    #: Elements of the array.
    elements: int
    start: int
    stack: Walk
    outer: Walk
    inner: Walk
    bounds: tuple[Bound, ...] = ()

    def fours(self, *, along_inner: bool) -> bool:
        """Return True if aligned groups of four along an index are aligned in memory.

        The first number of the four is a multiple of 4.
        """
        along, across = (self.inner, self.outer) if along_inner else (self.outer, self.inner)
        steps = [bound.inner if along_inner else bound.outer for bound in self.bounds]
        still = all(not step or step[-1] == 0 for step in steps)
        return still and self.elements % 4 == 0 and _in_fours(self.start, along, (self.stack, across))


@dataclass(frozen=True)
class ResultMap:
    """The index map of the results: `start` plus the walks of their indices."""

    dtype: np.dtype
    elements: int
    start: int
    stack: Walk
    rows: Walk
    columns: Walk

    @property
    def fours(self) -> bool:
        """Whether aligned groups of four in a row are aligned in memory.

        The first number of the four is a multiple of 4.
        """
        return self.elements % 4 == 0 and _in_fours(self.start, self.columns, (self.stack, self.rows))


def _in_fours(start: int, along: Walk, others: Sequence[Walk]) -> bool:
    if not along.sizes or along.strides[-1] != 1 or along.sizes[-1] % 4 or start % 4:
        return False
    strides = [*along.strides[:-1], *[stride for walk in others for stride in walk.strides]]
    return all(stride % 4 == 0 for stride in strides)


@dataclass(frozen=True)
class IndexedContraction(Products[OperandMap]):
    """Products over index maps, and that of their results."""

    target: ResultMap

    @property
    def products(self) -> int:
        """The number of multiplications."""
        return self.batch * self.m * self.n * self.k

    def swapped(self) -> IndexedContraction:
        """Return the contraction with rows and columns, and operands, swapped."""
        target = replace(self.target, rows=self.target.columns, columns=self.target.rows)
        return IndexedContraction(self.rhs, self.lhs, target)


def of_problem(problem: Problem) -> IndexedContraction:
    """Return a stack of matrix products of complete arrays as a contraction."""
    batch, m, n = problem.batch, problem.m, problem.n
    maps = []
    for side in problem.operands:
        size = side.stack.size * side.outer.size * side.inner.size
        maps.append(OperandMap(side.dtype, size, 0, side.stack, side.outer, side.inner))
    target = ResultMap(problem.dtype, batch * m * n, 0, walk_of(batch, m * n), walk_of(m, n), walk_of(n, 1))
    return IndexedContraction(maps[0], maps[1], target)


def walk_of(size: int, stride: int) -> Walk:
    """Return the walk of an index along one axis; an index of one value has none."""
    return Walk((size,), (stride,)) if size != 1 else Walk((), ())

"""Contractions and convolutions: sums of products, as all targets describe them.

`Problem` is a stack of matrix products, with walks through memory for indices. `Contraction` is a kernel that is one, with its epilogue.
`IndexedContraction` is a sum of products of arrays of any layout, which matrix products and convolutions both are: these as
*correlations*, the canonical form that all algorithms take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import gcd, log2, prod
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from volta_fn.compiler.ir.axes import inputs_read_at_store, simplified
from volta_fn.compiler.ir.index import Affine, along, row_major
from volta_fn.compiler.ir.kernel import Apply, Constant, Kernel, Load, Reduce, affines, remainder
from volta_fn.dtypes import can_cast
from volta_fn.primitives.convolution import window_counts

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
    #: The right operand and the sum of a second product, which has the same left operand (`paired_contraction`).
    second: tuple[Load, int] | None = None

    @property
    def totals(self) -> tuple[int, ...]:
        """The nodes that are sums."""
        return (self.total,) if self.second is None else (self.total, self.second[1])

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

    @lru_cache(maxsize=1024)  # noqa: B019 - as few as of kernels' contractions
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

        Also return which inputs of the kernel are its inputs after the first, or the first two of a pair. These are matrices of sums, whose
        rows are numbered by batch and rows, and which have room for `width` columns (by default for all): they may hold some of them.
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
        index = self._number(row), self._number(self.columns)
        sums = {total: Load(dtype, n, shape, index, (), Constant.of(0, dtype)) for n, total in enumerate(self.totals)}
        return remainder(self.kernel, sums)

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


@lru_cache(maxsize=1024)
def paired_contraction(kernel: Kernel) -> Contraction | None:
    """Return a kernel as two contractions with the same left operand and axes.

    None for other kernels.
    """
    contractions = _contractions(kernel, 2)
    if contractions is None:
        return None
    for first, second in (contractions, [c.swapped() for c in contractions]):
        if first.lhs == second.lhs and first[4:] == second[4:] and first.rows and first.columns:
            pair = first._replace(second=(second.rhs, second.total))
            return pair if pair.is_complete else None
    return None


def _contraction_of(kernel: Kernel) -> Contraction | None:
    contractions = _contractions(kernel, 1)
    return contractions[0] if contractions is not None and contractions[0].is_complete else None


def _contractions(kernel: Kernel, count: int) -> list[Contraction] | None:
    """Return the sums of a kernel as contractions; None unless there are so many.

    The epilogue of each has the others.
    """
    if sum(isinstance(node, Reduce) for node in kernel.nodes) != count or 0 in kernel.sizes:
        return None
    kernel = simplified(kernel)
    contractions = []
    for total in [n for n, node in enumerate(kernel.nodes) if isinstance(node, Reduce)]:
        product = _product(kernel, total)
        if product is None:
            return None
        lhs, rhs = product
        left, right = _axes(lhs), _axes(rhs)
        outer = range(kernel.parallel)
        rows, columns = tuple([a for a in outer if a in left - right]), tuple([a for a in outer if a in right - left])
        batch = tuple([a for a in outer if a not in (*rows, *columns)])
        contractions.append(Contraction(kernel, lhs, rhs, total, batch, rows, columns))
    return contractions if len(contractions) == count else None


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


# Sliding windows along one axis, and their phases over dilated inputs.


class SlidingWindow(NamedTuple):
    """The positions of windows: `position * stride + tap * dilation - low`."""

    stride: int
    dilation: int
    low: int


class Phase(NamedTuple):
    """The taps and positions of one phase, and their window over the undilated input."""

    taps: slice
    positions: slice
    window: SlidingWindow


def phases(window: SlidingWindow, base: int, taps: int, positions: int) -> list[Phase]:
    """Decompose windows over a dilated input into phases over the undilated one.

    The input has base - 1 holes between its elements. Position r + m j and tap k meet input coordinate ((r + m j) stride + k dilation -
    low) / base, if that is an integer. With m = base / gcd(stride, base) that depends on r and k alone, and the taps that fit a given r
    are an arithmetic progression.
    """
    if base == 1:
        return [Phase(slice(None), slice(None), window)]
    position_step, tap_step = base // gcd(window.stride, base), base // gcd(window.dilation, base)
    result = []
    for r in range(min(position_step, positions)):
        start = r * window.stride - window.low
        first = next((k for k in range(min(tap_step, taps)) if (start + k * window.dilation) % base == 0), taps)
        low = -(start + first * window.dilation) // base
        reduced = SlidingWindow(window.stride * position_step // base, window.dilation * tap_step // base, low)
        result.append(Phase(slice(first, None, tap_step), slice(r, None, position_step), reduced))
    return result


# Convolutions as *correlations*: one canonical form, which all algorithms take.
#
# Of the operands x[g, n, c, *space], w[g, o, c, *taps] and the result y[g, n, o, *positions] (group, image, channel, output) a
# correlation is
#
# y[g, n, o, p] = sum over c, k of x[g, n, c, p * stride + k * dilation - low] * w[g, o, c, k]
#
# with zeros outside x. The arrays are views, given by an offset and a stride per index, so that any order of dimensions, feature groups,
# batch groups and both gradients are correlations; where the left operand is dilated, each residue class of the output positions is a
# correlation of its own. In a gradient by the weights the "taps" are as many as the cotangent has positions, and "channels" are images.


class View(NamedTuple):
    """The elements of an operand: at `offset` plus each index times its stride."""

    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Axis:
    """A spatial axis along which windows slide.

    Position p and tap k meet the element ``p * stride + k * dilation - low`` of `size`.
    """

    size: int
    taps: int
    positions: int
    stride: int
    dilation: int
    low: int

    def reach(self, positions: int, taps: int) -> int:
        """Return the number of elements that adjacent positions and taps span."""
        return (positions - 1) * self.stride + (taps - 1) * self.dilation + 1

    @property
    def inside(self) -> bool:
        """Whether all windows lie inside x."""
        return self.low <= 0 and self.reach(self.positions, self.taps) - self.low <= self.size


@dataclass(frozen=True)
class Correlation:
    """The canonical form.

    Views have strides in the order (group, image, channel or output, *spatial).
    """

    groups: int
    images: int
    outputs: int
    channels: int
    axes: tuple[Axis, ...]
    x: View
    w: View
    y: View

    @property
    def taps(self) -> int:
        """The number of taps of a window."""
        return prod(axis.taps for axis in self.axes)

    @property
    def positions(self) -> int:
        """The number of output positions of an image."""
        return prod(axis.positions for axis in self.axes)

    @property
    def products(self) -> int:
        """The number of multiplications that the definition takes."""
        return self.groups * self.images * self.outputs * self.channels * self.taps * self.positions


def correlations(lhs: Sequence[int], rhs: Sequence[int], params: dict[str, Any]) -> list[Correlation]:
    """Return the correlations whose results form that of `conv_general_dilated`.

    Where some position meets no tap at all there is a correlation with no taps, whose result is zero.
    """
    dense, bases = _dense(lhs, rhs, params)
    axes = [list(_phases(axis, base)) for axis, base in zip(dense.axes, bases, strict=True)]
    return [_simplified(_restricted(dense, chosen)) for chosen in product(*axes)]


def _dense(lhs: Sequence[int], rhs: Sequence[int], params: dict[str, Any]) -> tuple[Correlation, tuple[int, ...]]:
    """Return a convolution as a correlation of the dilated input, and the dilations."""
    lhs_spec, rhs_spec, out_spec = params["dimension_numbers"]
    x_sizes, w_sizes = [lhs[i] for i in lhs_spec], [rhs[i] for i in rhs_spec]
    feature_groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    groups = max(feature_groups, batch_groups)
    strides, dilations, bases, padding = (params[k] for k in ("window_strides", "rhs_dilation", "lhs_dilation", "padding"))
    counts = window_counts(tuple(x_sizes[2:]), tuple(w_sizes[2:]), strides, padding, bases, dilations)
    y_sizes = [x_sizes[0] // batch_groups, w_sizes[0], *counts]
    x = _grouped(_contiguous(lhs, lhs_spec), 0 if batch_groups > 1 else 1, x_sizes, groups)
    w = _grouped(_contiguous(rhs, rhs_spec), 0, w_sizes, groups)
    y = _grouped(_contiguous(_placed(y_sizes, out_spec), out_spec), 1, y_sizes, groups)
    sizes = zip(x_sizes[2:], w_sizes[2:], counts, strides, dilations, padding, strict=True)
    axes = [Axis(size, taps, positions, stride, dilation, low) for size, taps, positions, stride, dilation, (low, _) in sizes]
    if not axes:  # no spatial dimensions: as if there were one, of size 1
        axes, bases = [Axis(1, 1, 1, 1, 1, 0)], (1,)
        x, w, y = (View(view.offset, (*view.strides, 0)) for view in (x, w, y))
    return Correlation(groups, y_sizes[0], w_sizes[0] // groups, w_sizes[1], tuple(axes), x, w, y), tuple(bases)


class PhasesAxis(NamedTuple):
    """The phases of an axis, as outputs of one window over the undilated input.

    Of phase r, tap t of that window is tap ``t * phases - r + start`` of the convolution, if there is one.
    """

    phases: int
    start: int
    taps: int

    def taps_of(self, phase: int) -> int:
        """Return the number of taps of a phase."""
        return len(range((self.start - phase) % self.phases, self.taps, self.phases))


def with_phases(lhs: Sequence[int], rhs: Sequence[int], params: dict[str, Any]) -> tuple[Correlation, tuple[PhasesAxis, ...]] | None:
    """Return a convolution over a dilated input as one correlation with phases.

    It has as many results for each position as there are phases. Its axes are those of positions and taps of all phases together; views are
    those of phase 0. None if axes have other strides or dilations, or phases have different positions.
    """
    dense, bases = _dense(lhs, rhs, params)
    axes, phases = list(dense.axes), [PhasesAxis(1, 0, axis.taps) for axis in dense.axes]
    w, y, offset = list(dense.w.strides), list(dense.y.strides), dense.w.offset
    for number, (axis, base) in enumerate(zip(dense.axes, bases, strict=True)):
        if base == 1:
            continue
        if axis.stride != 1 or axis.dilation != 1 or axis.positions % base:
            return None
        first, last = -(axis.low // base), (base + axis.taps - 2 - axis.low) // base
        if last < first:
            return None
        start = axis.low + base * first
        axes[number] = Axis(axis.size, last - first + 1, axis.positions // base, 1, 1, -first)
        phases[number] = PhasesAxis(base, start, axis.taps)
        offset += start * w[3 + number]
        w[3 + number], y[3 + number] = base * w[3 + number], base * y[3 + number]
    c = replace(dense, axes=tuple(axes), w=View(offset, tuple(w)), y=View(dense.y.offset, tuple(y)))
    return c, tuple(phases)


class _PhaseAxis(NamedTuple):
    """An axis that meets no hole, and the taps and positions of the dilated axis.

    These are the first, and every n-th from there.
    """

    axis: Axis
    tap: int
    tap_step: int
    position: int
    position_step: int


def _phases(axis: Axis, base: int) -> Iterator[_PhaseAxis]:
    """Yield the phases of an axis whose input is dilated by `base`."""
    for phase in phases(SlidingWindow(axis.stride, axis.dilation, axis.low), base, axis.taps, axis.positions):
        taps, positions = range(axis.taps)[phase.taps], range(axis.positions)[phase.positions]
        stride, dilation, low = phase.window
        reduced = Axis(axis.size, len(taps), len(positions), stride, dilation, low)
        yield _PhaseAxis(reduced, taps.start if taps else 0, taps.step, positions.start, positions.step)


def _restricted(c: Correlation, phases_of: Sequence[_PhaseAxis]) -> Correlation:
    w_offset = sum(phase.tap * stride for phase, stride in zip(phases_of, c.w.strides[3:], strict=True))
    y_offset = sum(phase.position * stride for phase, stride in zip(phases_of, c.y.strides[3:], strict=True))
    w_strides = [stride * phase.tap_step for phase, stride in zip(phases_of, c.w.strides[3:], strict=True)]
    y_strides = [stride * phase.position_step for phase, stride in zip(phases_of, c.y.strides[3:], strict=True)]
    return replace(
        c,
        axes=tuple([phase.axis for phase in phases_of]),
        w=View(w_offset, (*c.w.strides[:3], *w_strides)),
        y=View(y_offset, (*c.y.strides[:3], *y_strides)),
    )


def _simplified(c: Correlation) -> Correlation:
    """Merge axes along which windows do not slide; at least one axis is left."""
    # With one tap, no padding and adjacent rows, two axes are one; an axis of one tap or one position steps through a view; one position
    # and one tap are no axis.
    axes, x, w, y = list(c.axes), list(c.x.strides), list(c.w.strides), list(c.y.strides)
    x_offset = c.x.offset
    for i, axis in enumerate(axes):
        if axis.inside and 1 in (axis.taps, axis.positions):
            x_offset -= axis.low * x[3 + i]
            step = axis.stride if axis.taps == 1 else axis.dilation
            x[3 + i] *= step
            axes[i] = Axis(max(axis.positions, axis.taps), axis.taps, axis.positions, 1, 1, 0)
    i = 0
    while i < len(axes) and len(axes) > 1:
        if axes[i].taps == axes[i].positions == 1 and axes[i].inside:
            del axes[i], x[3 + i], w[3 + i], y[3 + i]
        elif i + 1 < len(axes) and (merged := _merged(axes[i : i + 2], x[3 + i : 5 + i], w[3 + i : 5 + i], y[3 + i : 5 + i])):
            axes[i : i + 2] = [merged]
            del x[3 + i], w[3 + i], y[3 + i]
        else:
            i += 1
    return replace(c, axes=tuple(axes), x=View(x_offset, tuple(x)), w=View(c.w.offset, tuple(w)), y=View(c.y.offset, tuple(y)))


def _merged(axes: Sequence[Axis], x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> Axis | None:
    """Merge two axes that both have only one position, or both only one tap."""
    outer, inner = axes
    if not (outer.inside and inner.inside) or x[0] != x[1] * inner.size:
        return None
    size = outer.size * inner.size
    if outer.taps == inner.taps == 1 and inner.positions == inner.size and y[0] == y[1] * inner.positions:
        return Axis(size, 1, outer.positions * inner.positions, 1, 1, 0)
    if outer.positions == inner.positions == 1 and inner.taps == inner.size and w[0] == w[1] * inner.taps:
        return Axis(size, outer.taps * inner.taps, 1, 1, 1, 0)
    return None


def _placed(sizes: Sequence[int], spec: Sequence[int]) -> tuple[int, ...]:
    """Return the shape whose dimension ``spec[i]`` has size ``sizes[i]``."""
    return tuple([size for _, size in sorted(zip(spec, sizes, strict=True))])


def _contiguous(shape: Sequence[int], spec: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous array, in the order of `spec`."""
    return tuple([prod(shape[i + 1 :]) for i in spec])


def _grouped(strides: tuple[int, ...], split: int, sizes: Sequence[int], groups: int) -> View:
    """Return the view with the dimension `split` as (groups, rest), groups first."""
    return View(0, (strides[split] * (sizes[split] // groups), *strides))


#: Nanoseconds of a multiplication of the definition, and of each element and doubling of a Fourier transform, about.
_PRODUCT, _TRANSFORM = 0.02, 2.5


def fft_is_faster(x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> bool:
    """Return True if Fourier transforms are likely much faster, for canonical shapes."""
    groups, images, channels, outputs = *x[:3], w[1]
    length = float(prod(x[3:]) + prod(w[3:]))
    transforms = groups * (images * channels + channels * outputs + images * outputs) * length * log2(length + 2)
    products = groups * images * outputs * channels * float(prod(w[3:])) * float(prod(y[3:]))
    spectral = transforms * _TRANSFORM + 4 * groups * images * outputs * channels * length * _PRODUCT
    return 2 * spectral < products * _PRODUCT


def of_correlation(c: Correlation, dtypes: Sequence[np.dtype], elements: Sequence[int]) -> IndexedContraction:
    """Return a correlation as a contraction.

    Rows are images and output positions, columns are outputs, and sums are over taps and channels. `dtypes` and `elements` are
    those of x, w and y. Neighbours in x are neighbours in the indices, too, as a rule; but channels come after taps where there are more
    output positions than taps, if slices of 16 channels do not meet different taps.
    """
    axes, (xs, ws, ys) = c.axes, (c.x.strides, c.w.strides, c.y.strides)
    bounded = [i for i, axis in enumerate(axes) if not axis.inside]
    positions, terms = [c.images, *[axis.positions for axis in axes]], [c.channels, *[axis.taps for axis in axes]]
    by_position, by_tap = [axis.stride for axis in axes], [axis.dilation for axis in axes]
    rows = [[xs[1], *_times(by_position, xs[3:])], *_coordinates(by_position, bounded), [ys[1], *ys[3:]]]
    sums = [[xs[2], *_times(by_tap, xs[3:])], *_coordinates(by_tap, bounded), [ws[2], *ws[3:]]]
    if xs[1] < xs[-1]:
        positions, rows = _first_last(positions), [_first_last(walk) for walk in rows]
    if xs[2] < xs[-1] or (c.channels % 16 == 0 and axes[-1].taps <= axes[-1].positions):
        terms, sums = _first_last(terms), [_first_last(walk) for walk in sums]
    (rows_y,) = merged(positions, rows[-1:])
    rows_x, *outer = merged(positions, rows[:-1])
    inner_x, *inner, inner_w = merged(terms, sums)
    bounds = [Bound(-axes[i].low, x.strides, y.strides, axes[i].size) for i, x, y in zip(bounded, outer, inner, strict=True)]
    stack_x, stack_w, stack_y = [walk_of(c.groups, strides[0]) for strides in (xs, ws, ys)]
    start = c.x.offset - sum(axis.low * stride for axis, stride in zip(axes, xs[3:], strict=True))
    x = OperandMap(dtypes[0], elements[0], start, stack_x, rows_x, inner_x, tuple(bounds))
    w = OperandMap(dtypes[1], elements[1], c.w.offset, stack_w, walk_of(c.outputs, ws[1]), inner_w)
    return IndexedContraction(x, w, ResultMap(dtypes[2], elements[2], c.y.offset, stack_y, rows_y, walk_of(c.outputs, ys[2])))


def _coordinates(steps: Sequence[int], bounded: Sequence[int]) -> list[list[int]]:
    """Return the walks of the bounded axes' coordinates: each along its axis alone."""
    return [[0, *[step if i == j else 0 for j, step in enumerate(steps)]] for i in bounded]


def _times(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [x * y for x, y in zip(left, right, strict=True)]


def _first_last(values: list[int]) -> list[int]:
    return [*values[1:], values[0]]

"""Contractions, as all targets describe them: correlations and stacks of products.

A correlation is the canonical form of convolutions and their gradients. Contractions over index maps are sums of products of arrays of any
layout, which matrix products and correlations both are. Winograd's transforms replace products of short correlations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, log2, prod
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from volta_fn.primitives.convolution import window_counts

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
    outputs = w_sizes[0] // groups
    axes = []
    for size, taps, positions, stride, dilation, (low, _), base in zip(
        x_sizes[2:], w_sizes[2:], counts, strides, dilations, padding, bases, strict=True
    ):
        axes.append(list(_phases(Axis(size, taps, positions, stride, dilation, low), base)))
    if not axes:  # no spatial dimensions: as if there were one, of size 1
        axes.append([_PhaseAxis(Axis(1, 1, 1, 1, 1, 0), 0, 1, 0, 1)])
        x, w, y = (View(view.offset, (*view.strides, 0)) for view in (x, w, y))
    dense = Correlation(groups, y_sizes[0], outputs, w_sizes[1], (), x, w, y)
    return [_simplified(_restricted(dense, chosen)) for chosen in product(*axes)]


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
    """Merge axes along which windows do not slide; at least one axis is left.

    With one tap, no padding and adjacent rows, two axes are one; an axis of one tap or one position steps through a view; one position and
    one tap are no axis.
    """
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


# Contractions over index maps: any sums of products over one index.
#
# ``y[s, m, n] = sum over k of a(s, m, k) b(s, k, n)``, with arrays of any layout. Stacks of matrix products and correlations are both
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
class IndexedContraction:
    """A contraction; operands have stacks and inner indices of the same sizes."""

    lhs: OperandMap
    rhs: OperandMap
    target: ResultMap

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
    for side in (problem.lhs, problem.rhs):
        size = side.stack.size * side.outer.size * side.inner.size
        maps.append(OperandMap(side.dtype, size, 0, side.stack, side.outer, side.inner))
    target = ResultMap(problem.dtype, batch * m * n, 0, _walk(batch, m * n), _walk(m, n), _walk(n, 1))
    return IndexedContraction(maps[0], maps[1], target)


def _walk(size: int, stride: int) -> Walk:
    return Walk((size,), (stride,)) if size != 1 else Walk((), ())


def of_correlation(c: Correlation, dtypes: Sequence[np.dtype], elements: Sequence[int], *, deep: int = 16) -> IndexedContraction:
    """Return a correlation as a contraction.

    Rows are images and output positions, columns are outputs, and sums are over taps and channels. `dtypes` and `elements` are
    those of x, w and y. Neighbours in x are neighbours in the indices, too, as a rule; but channels come after taps where there are more
    output positions than taps, if slices of `deep` channels do not meet different taps.
    """
    axes, (xs, ws, ys) = c.axes, (c.x.strides, c.w.strides, c.y.strides)
    bounded = [i for i, axis in enumerate(axes) if not axis.inside]
    positions, terms = [c.images, *[axis.positions for axis in axes]], [c.channels, *[axis.taps for axis in axes]]
    by_position, by_tap = [axis.stride for axis in axes], [axis.dilation for axis in axes]
    rows = [[xs[1], *_times(by_position, xs[3:])], *_coordinates(by_position, bounded), [ys[1], *ys[3:]]]
    sums = [[xs[2], *_times(by_tap, xs[3:])], *_coordinates(by_tap, bounded), [ws[2], *ws[3:]]]
    if xs[1] < xs[-1]:
        positions, rows = _first_last(positions), [_first_last(walk) for walk in rows]
    if xs[2] < xs[-1] or (c.channels % deep == 0 and axes[-1].taps <= axes[-1].positions):
        terms, sums = _first_last(terms), [_first_last(walk) for walk in sums]
    (rows_y,) = merged(positions, rows[-1:])
    rows_x, *outer = merged(positions, rows[:-1])
    inner_x, *inner, inner_w = merged(terms, sums)
    bounds = [Bound(-axes[i].low, x.strides, y.strides, axes[i].size) for i, x, y in zip(bounded, outer, inner, strict=True)]
    stack_x, stack_w, stack_y = [_walk(c.groups, strides[0]) for strides in (xs, ws, ys)]
    start = c.x.offset - sum(axis.low * stride for axis, stride in zip(axes, xs[3:], strict=True))
    x = OperandMap(dtypes[0], elements[0], start, stack_x, rows_x, inner_x, tuple(bounds))
    w = OperandMap(dtypes[1], elements[1], c.w.offset, stack_w, _walk(c.outputs, ws[1]), inner_w)
    return IndexedContraction(x, w, ResultMap(dtypes[2], elements[2], c.y.offset, stack_y, rows_y, _walk(c.outputs, ys[2])))


def _coordinates(steps: Sequence[int], bounded: Sequence[int]) -> list[list[int]]:
    """Return the walks of the bounded axes' coordinates: each along its axis alone."""
    return [[0, *[step if i == j else 0 for j, step in enumerate(steps)]] for i in bounded]


def _times(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [x * y for x, y in zip(left, right, strict=True)]


def _first_last(values: list[int]) -> list[int]:
    return [*values[1:], values[0]]


# A contraction as a stack of matrix products, and how its indices walk memory.
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


class Problem(NamedTuple):
    """A stack of products; operands have stacks and inner indices of the same sizes."""

    lhs: Operand
    rhs: Operand
    dtype: np.dtype

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


def contiguous_strides(shape: Axes) -> Axes:
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


# Winograd's transforms (Toom and Cook): polynomials by their values at points.
#
# A correlation of m outputs with r taps along an axis meets n = m + r - 1 elements. Seen as polynomials, its operands are known from their
# values at n points, one of them infinity, where multiplying is n products instead of m r. Here n is 4 (the points 0, 1, -1) or 6 (and 2,
# -2), as in Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016):
#
# y = A' ((B' x) * (G w)),  A'[j, i] = p_i ** j,  G[i, k] = f_i * p_i ** k
#
# and at infinity only the last output and the last tap count.

_POINTS = {4: (0, 1, -1), 6: (0, 1, -1, 2, -2)}
_FACTORS = {4: (1.0, 0.5, 0.5), 6: (1 / 4, -1 / 6, -1 / 6, 1 / 24, 1 / 24)}

T = TypeVar("T")


class Algebra(Protocol[T]):
    """Arithmetic with known factors, on whatever a code generator computes with."""

    def plus(self, x: T, y: T) -> T:
        """Return x + y."""

    def minus(self, x: T, y: T) -> T:
        """Return x - y."""

    def more(self, x: T, factor: float, y: T) -> T:
        """Return x + factor y."""

    def times(self, factor: float, x: T) -> T:
        """Return factor x."""


def of_input(a: Algebra[T], x: Sequence[T]) -> list[T]:
    """Return B' x for n elements of the input."""
    if len(x) == 4:
        return [a.minus(x[0], x[2]), a.plus(x[1], x[2]), a.minus(x[2], x[1]), a.minus(x[3], x[1])]
    even, odd = a.more(x[4], -4, x[2]), a.more(x[3], -4, x[1])
    high, low = a.minus(x[4], x[2]), a.minus(x[3], x[1])
    first, last = a.more(a.more(x[4], 4, x[0]), -5, x[2]), a.more(a.more(x[5], 4, x[1]), -5, x[3])
    return [first, a.plus(even, odd), a.minus(even, odd), a.more(high, 2, low), a.more(high, -2, low), last]


def of_taps(a: Algebra[T], w: Sequence[T], count: int) -> list[T]:
    """Return G w for r taps, at `count` points."""
    points = []
    for point, factor in zip(_POINTS[count], _FACTORS[count], strict=True):
        points.append(_combined(a, [factor * point**k for k in range(len(w))], w))
    return [*points, w[-1]]


def _combined(a: Algebra[T], factors: Sequence[float], xs: Sequence[T]) -> T:
    """Return the sum of factors times values; the first factor is not 0."""
    total = a.times(factors[0], xs[0])
    for factor, x in zip(factors[1:], xs[1:], strict=True):
        if factor:
            total = a.more(total, factor, x)
    return total


def to_outputs(a: Algebra[T], values: Sequence[T], outputs: int) -> list[T]:
    """Return A' times values at all points: the sums of the outputs."""
    pairs = [(values[i], values[i + 1]) for i in range(1, len(values) - 1, 2)]
    sums, differences = [a.plus(x, y) for x, y in pairs], [a.minus(x, y) for x, y in pairs]
    sums_of_outputs = []
    for j in range(outputs):
        terms = differences if j % 2 else sums
        total = terms[0]
        if len(terms) > 1:
            total = a.more(total, 2**j, terms[1])
        if j == 0:
            total = a.plus(total, values[0])
        if j == outputs - 1:
            total = a.plus(total, values[-1])
        sums_of_outputs.append(total)
    return sums_of_outputs

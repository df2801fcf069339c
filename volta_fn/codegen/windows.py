"""Sliding windows, those of gathers and scatters, and Winograd's transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from volta_fn.codegen.scalars import IndexArithmetic, V
from volta_fn.compiler import contractions
from volta_fn.compiler.contractions import contiguous_strides
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.convolution import counts_of_windows
from volta_fn.primitives.data_movement.gather import GatherScatterMode, gather_p

#: Sizes of axes, or strides along them.
Dims = tuple[int, ...]


def merged(sizes: Sequence[int], *strides: Sequence[int]) -> tuple[Dims, ...]:
    """Return the same loops without size 1, with contiguous neighbours merged."""
    walks = contractions.merged(sizes, strides)
    return walks[0].sizes, *[walk.strides for walk in walks]


# Sliding windows over rows of contiguous elements.
#
# The axes of an operand are merged into an *outer* one that no window slides over, *vertical* ones, and the one *across*, which is
# contiguous: the last one, or all those after the last that windows slide over.


class Axis(NamedTuple):
    """An axis on which windows slide.

    At position p, tap k meets the element (p * stride + k * dilation - low) / base, if there is one.
    """

    size: int
    taps: int
    stride: int
    low: int
    base: int
    dilation: int
    positions: int

    @property
    def plain(self) -> bool:
        """True if every element is a window of its own."""
        return self.taps == self.stride == self.base == 1 and self.low == 0 and self.positions == self.size

    @property
    def inside(self) -> bool:
        """True if every tap of every window meets an element."""
        reach, last = (self.taps - 1) * self.dilation, (self.positions - 1) * self.stride - self.low
        return self.base == 1 and min(reach, 0) >= self.low and last + max(reach, 0) < self.size

    @property
    def inverse(self) -> Axis:
        """The axis on which elements slide over windows.

        An element's tap k meets the window whose tap k meets the element.
        """
        return Axis(self.positions, self.taps, self.base, -self.low, self.stride, -self.dilation, self.size)

    @property
    def backward(self) -> Axis:
        """The same axis with the taps in reverse order."""
        return self._replace(low=self.low - (self.taps - 1) * self.dilation, dilation=-self.dilation)


class Windows(NamedTuple):
    """The windows on an operand."""

    outer: int
    vertical: tuple[Axis, ...]
    across: Axis

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The vertical axes, and that across."""
        return (*self.vertical, self.across)

    @property
    def elements(self) -> int:
        """The number of elements of the operand."""
        return self.outer * self.rows * self.across.size

    @property
    def number(self) -> int:
        """The number of windows."""
        return self.outer * self.results * self.across.positions

    @property
    def inverse(self) -> Windows:
        """The same with elements and windows swapped."""
        return Windows(self.outer, tuple([axis.inverse for axis in self.vertical]), self.across.inverse)

    @property
    def rows(self) -> int:
        """Rows of the operand for each index of the outer axis."""
        return math.prod(axis.size for axis in self.vertical)

    @property
    def results(self) -> int:
        """Rows of windows for each index of the outer axis."""
        return math.prod(axis.positions for axis in self.vertical)

    @property
    def taps(self) -> int:
        """The number of taps of a window."""
        return self.across.taps * math.prod(axis.taps for axis in self.vertical)

    @property
    def reach(self) -> int:
        """A bound of the distances along axes at which windows meet elements, or padding."""
        return max([axis.positions * axis.stride + axis.taps * abs(axis.dilation) + abs(axis.low) for axis in self.axes])

    def upright(self) -> Windows:
        """Return the same windows with all their axes vertical, and rows of one element."""
        return self if self.across.plain else Windows(self.outer, (*self.vertical, self.across), Axis(1, 1, 1, 0, 1, 1, 1))


def windows_of(shape: Sequence[int], params: dict[str, Any]) -> Windows:
    """Return the windows of a window primitive's parameters."""
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    taps, strides, padding, bases, dilations = (params[name] for name in names)
    counts = counts_of_windows(tuple(shape), params)
    lows = [low for low, _ in padding]
    strides = [stride if count > 1 else 1 for stride, count in zip(strides, counts, strict=True)]  # there is no step from a single window
    axes = [Axis(*axis) for axis in zip(shape, taps, strides, lows, bases, dilations, counts, strict=True)]
    slid = [d for d, axis in enumerate(axes) if not axis.plain]
    first, last = (slid[0], slid[-1]) if slid else (len(axes), len(axes) - 1)
    outer, inner = math.prod(shape[:first]), math.prod(shape[last + 1 :])
    if inner != 1 or not slid:
        return Windows(outer, tuple(axes[first : last + 1]), Axis(inner, 1, 1, 0, 1, 1, inner))
    return Windows(outer, tuple(axes[first:last]), axes[last])


#: What a walk over taps carries: values that iterations pass on, or nothing where code assigns variables.
C = TypeVar("C")

#: ``over_axis(axis, position, carried, body)`` emits ``body(element, carried)`` for the elements that a window's taps meet along an axis.
OverAxis = Callable[[Axis, V, C, Callable[[V, C], C]], C]


def over_taps(
    f: IndexArithmetic[V],
    axes: Sequence[Axis],
    position: Sequence[V],
    outer: V,
    carried: C,
    over_axis: OverAxis[V, C],
    body: Callable[[V, C], C],
) -> C:
    """Emit the body for every element, in row-major order, that a window meets.

    The body gets the element's number, which begins with the index `outer`, and what is carried, and returns what is carried on.
    """

    def level(depth: int, number: V, carried: C) -> C:
        if depth == len(axes):
            return body(number, carried)
        axis = axes[depth]

        def inner(element: V, carried: C) -> C:
            return level(depth + 1, f.plus(f.times(number, axis.size), element), carried)

        return inner(position[depth], carried) if axis.plain else over_axis(axis, position[depth], carried, inner)

    return level(0, outer, carried)


# The windows of a gather or scatter: starts and memory layout.


class Starts(NamedTuple):
    """The windows of a call.

    Attributes:
        indices: the aval of the index vectors.
        addressed: for each entry of an index vector, the operand's dimension, its stride, and the greatest valid start.
        batching: for each dimension that runs in step with the indices: itself, its stride, and the dimension of the batch.
        clips: whether invalid windows move inside; else they are filled, or left out.
    """

    indices: ShapedArray
    addressed: tuple[tuple[int, int, int], ...]
    batching: tuple[tuple[int, int, int], ...]
    clips: bool

    @property
    def batch(self) -> Dims:
        """The dimensions along which windows are numbered."""
        return self.indices.shape[:-1]

    @property
    def number(self) -> int:
        """The number of windows."""
        return math.prod(self.batch)

    @property
    def dimensions(self) -> Dims:
        """The operand's dimensions along which windows begin at positions of their own."""
        return tuple([entry[0] for entry in self.addressed + self.batching])


class Layout(NamedTuple):
    """The memory layout of an array with one window per batch coordinate.

    It is a gather's result or a scatter's updates.

    Attributes:
        batch: sizes and strides of the batch, `merged`.
        lead: sizes, strides here and strides in the operand of the window's dimensions before the batch, `merged`.
        rest: the same of the other dimensions.
    """

    batch: tuple[Dims, ...]
    lead: tuple[Dims, ...]
    rest: tuple[Dims, ...]


class IndexedWindows(NamedTuple):
    """The windows of a gather or scatter: starts, sizes, and memory layout."""

    starts: Starts
    sizes: Dims
    layout: Layout


def gather_of(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> IndexedWindows:
    """Return the windows of a gather."""
    operand, indices = avals
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    batching = list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    clips = params["mode"] is not GatherScatterMode.FILL_OR_DROP
    starts = _starts(operand, indices, sizes, numbers.start_index_map, batching, clips)
    absent = numbers.operand_batching_dims + numbers.collapsed_slice_dims
    result = gather_p.result_avals(avals, params)
    return IndexedWindows(starts, sizes, _layout(result.shape, numbers.offset_dims, _window(operand, sizes, absent)))


def scatter_of(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> IndexedWindows:
    """Return the windows of a scatter."""
    operand, indices, updates = avals
    numbers = params["dimension_numbers"]
    absent = numbers.operand_batching_dims + numbers.inserted_window_dims
    inside = iter([updates.shape[d] for d in numbers.update_window_dims])
    sizes = tuple([1 if d in absent else next(inside) for d in range(operand.ndim)])
    batching = list(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    clips = params["mode"] is GatherScatterMode.CLIP
    starts = _starts(operand, indices, sizes, numbers.scatter_dims_to_operand_dims, batching, clips)
    return IndexedWindows(starts, sizes, _layout(updates.shape, numbers.update_window_dims, _window(operand, sizes, absent)))


class WindowStart(NamedTuple, Generic[V]):
    """The start of a window in the operand.

    Attributes:
        offset: the offset of its first element.
        coordinates: its coordinate along each of the operand's dimensions in which windows begin anywhere.
        valid: whether the window lies inside the operand; None if all do.
    """

    offset: V
    coordinates: dict[int, V]
    valid: V | None


def window_start(
    f: IndexArithmetic[V], starts: Starts, clamp: Callable[[V, int], tuple[V, V | None]], conjunction: Callable[[V, V], V], number: V
) -> WindowStart[V]:
    """Emit the start of the window of a number.

    ``clamp(position, limit)`` loads a number of the index vectors and moves it into [0, limit]; with it comes whether it was there already.
    """
    coordinates: dict[int, V] = {}
    valid: list[V] = []

    def terms() -> Iterator[V]:
        for entry, (dim, stride, limit) in enumerate(starts.addressed):
            position = f.plus(f.times(number, len(starts.addressed)), f.index(entry))
            coordinates[dim], inside = clamp(position, limit)
            if inside is not None and not starts.clips:
                valid[:] = [conjunction(valid[0], inside) if valid else inside]
            yield f.times(coordinates[dim], stride)
        for dim, stride, batch_dim in starts.batching:
            steps = f.quotient(number, math.prod(starts.batch[batch_dim + 1 :]))
            coordinates[dim] = f.remainder(steps, starts.batch[batch_dim]) if batch_dim else steps
            yield f.times(coordinates[dim], stride)

    return WindowStart(f.sum(terms()), coordinates, valid[0] if valid else None)


def window_offset(f: IndexArithmetic[V], layout: Layout, number: V) -> V:
    """Emit the offset of the window of a number in the result or the updates."""
    sizes, strides = layout.batch
    return f.dotted(f.coordinates(number, sizes), strides)


def _starts(
    operand: ShapedArray,
    indices: ShapedArray,
    sizes: Sequence[int],
    addressed: Sequence[int],
    batching: Sequence[tuple[int, int]],
    clips: bool,
) -> Starts:
    strides = contiguous_strides(operand.shape)
    return Starts(
        indices,
        tuple([(d, strides[d], operand.shape[d] - sizes[d]) for d in addressed]),
        tuple([(d, strides[d], partner) for d, partner in batching]),
        clips,
    )


def _window(operand: ShapedArray, sizes: Sequence[int], absent: Sequence[int]) -> list[tuple[int, int]]:
    """Return size and stride of the operand's dimensions that windows have."""
    strides = contiguous_strides(operand.shape)
    return [(size, strides[d]) for d, size in enumerate(sizes) if d not in absent]


def _layout(shape: Sequence[int], window_dims: Sequence[int], window: Sequence[tuple[int, int]]) -> Layout:
    strides = contiguous_strides(shape)
    batch = [d for d in range(len(shape)) if d not in window_dims]
    first = batch[0] if batch else len(shape)
    inside = [(d, size, strides[d], step) for d, (size, step) in zip(window_dims, window, strict=True)]
    lead = [dims for d, *dims in inside if d < first]
    rest = [dims for d, *dims in inside if d >= first]
    return Layout(
        merged([shape[d] for d in batch], [strides[d] for d in batch]),
        merged(*(zip(*lead, strict=True) if lead else ((), (), ()))),
        merged(*(zip(*rest, strict=True) if rest else ((), (), ()))),
    )


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


def transform_input(a: Algebra[T], x: Sequence[T]) -> list[T]:
    """Return B' x for n elements of the input."""
    if len(x) == 4:
        return [a.minus(x[0], x[2]), a.plus(x[1], x[2]), a.minus(x[2], x[1]), a.minus(x[3], x[1])]
    even, odd = a.more(x[4], -4, x[2]), a.more(x[3], -4, x[1])
    high, low = a.minus(x[4], x[2]), a.minus(x[3], x[1])
    first, last = a.more(a.more(x[4], 4, x[0]), -5, x[2]), a.more(a.more(x[5], 4, x[1]), -5, x[3])
    return [first, a.plus(even, odd), a.minus(even, odd), a.more(high, 2, low), a.more(high, -2, low), last]


def transform_taps(a: Algebra[T], w: Sequence[T], count: int) -> list[T]:
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


def inverse_transform(a: Algebra[T], values: Sequence[T], outputs: int) -> list[T]:
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

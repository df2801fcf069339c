"""Index arithmetic with constant folding, strides, windows, and sort keys.

`IndexArithmetic` is the printer with which shared code emits indices. Written over it are loops over
strided arrays, sliding windows, the windows of gathers and scatters, sort keys (integers in the order of numbers), and the combination of
elements by cumulative operations.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Reduction, reduction_of
from volta_fn.primitives.convolution import counts_of_windows
from volta_fn.primitives.data_movement.gather import gather_p
from volta_fn.primitives.data_movement.slicing import GatherScatterMode
from volta_fn.primitives.formulas.values import Values

# Index arithmetic with constant folding, written once for all targets.
#
# Values that shapes determine are folded at compile time. `IndexArithmetic` is the printer with which shared code emits indices: a
# target says how it prints a constant and an operation on two indices; what folds to a constant or to an operand is decided here.

V = TypeVar("V")


class IndexArithmetic(ABC, Generic[V]):
    """Arithmetic of non-negative integers: a target's values `V` with Python integers."""

    @abstractmethod
    def index(self, number: int) -> V:
        """Return a constant."""

    @abstractmethod
    def known(self, x: V) -> int | None:
        """Return the number of a constant value, else None."""

    @abstractmethod
    def print_index(self, operator: str, x: V, y: V) -> V:
        """Emit an operation on two indices: ``+``, ``-``, ``*``, ``/`` or ``%``."""

    def named_index(self, x: V) -> V:
        """Give an index a name, so that it is evaluated once."""
        return x

    def sum(self, terms: Iterable[V]) -> V:
        """Emit a sum of terms, each of which is emitted lazily."""
        total = self.index(0)
        for term in terms:
            a, b = self.known(total), self.known(term)
            if a is not None and b is not None:
                total = self.index(a + b)
            elif b != 0:
                total = term if a == 0 else self.print_index("+", total, term)
        return total

    def plus(self, *terms: V) -> V:
        """Emit the sum of values."""
        return self.sum(terms)

    def minus(self, x: V, y: V) -> V:
        """Emit x - y."""
        a, b = self.known(x), self.known(y)
        if a is not None and b is not None:
            return self.index(a - b)
        return x if b == 0 else self.print_index("-", x, y)

    def times(self, x: V, number: int) -> V:
        """Emit x * number."""
        a = self.known(x)
        if a is not None or number == 0:
            return self.index((a or 0) * number)
        return x if number == 1 else self.print_index("*", x, self.index(number))

    def quotient(self, x: V, number: int) -> V:
        """Emit x // number."""
        a = self.known(x)
        if a is not None:
            return self.index(a // number)
        return x if number == 1 else self.print_index("/", x, self.index(number))

    def remainder(self, x: V, number: int) -> V:
        """Emit x % number."""
        a = self.known(x)
        if a is not None or number == 1:
            return self.index((a or 0) % number)
        return self.print_index("%", x, self.index(number))

    def divided(self, x: V, number: int) -> tuple[V, V]:
        """Emit x // number and x % number by one division."""
        quotient = self.quotient(x, number)
        return quotient, self.minus(x, self.times(quotient, number)) if number != 1 else self.index(0)

    def dotted(self, indices: Iterable[V], strides: Iterable[int]) -> V:
        """Emit the sum of indices times strides."""
        return self.sum(self.times(index, stride) for index, stride in zip(indices, strides, strict=True))

    def coordinates(self, number: V, sizes: Sequence[int]) -> list[V]:
        """Emit the coordinates of an element by its number in row-major order."""
        coordinates = []
        for d, size in enumerate(sizes):
            quotient = self.quotient(number, math.prod(sizes[d + 1 :]))
            coordinates.append(self.named_index(self.remainder(quotient, size) if d else quotient))
        return coordinates


# Loops over arrays, by their sizes and strides.

Dims = tuple[int, ...]


def row_major(shape: Sequence[int]) -> Dims:
    """Return the strides, in elements, of a contiguous array."""
    return tuple([math.prod(shape[d + 1 :]) for d in range(len(shape))])


def merged(sizes: Sequence[int], *strides: Sequence[int]) -> tuple[Dims, ...]:
    """Return the same loops without size 1, with contiguous neighbours merged."""
    loops: list[tuple[int, ...]] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        if loops and all(outer == inner * size for outer, inner in zip(loops[-1][1:], steps, strict=True)):
            loops[-1] = (loops[-1][0] * size, *steps)
        else:
            loops.append((size, *steps))
    columns = list(zip(*loops, strict=True))
    return tuple(columns) if columns else ((),) * (1 + len(strides))


def row_offset(f: IndexArithmetic[V], row: V, i: V, size: int, columns: int) -> V:
    """Emit the offset of element `i` of a row along an axis.

    The axis has `size` elements; the axes after it have `columns` together.
    """

    def terms() -> Iterator[V]:
        yield f.times(f.quotient(row, columns), size * columns)
        yield f.remainder(row, columns)
        yield f.times(i, columns)

    return f.sum(terms())


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

    def upright(self) -> Windows:
        """Return the same windows with all their axes vertical, and rows of one element."""
        return self if self.across.plain else Windows(self.outer, (*self.vertical, self.across), Axis(1, 1, 1, 0, 1, 1, 1))


def windows_of(shape: Sequence[int], params: dict[str, Any]) -> Windows:
    """Return the windows of a window primitive's parameters."""
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    taps, strides, padding, bases, dilations = (params[name] for name in names)
    counts = counts_of_windows(tuple(shape), params)
    lows = [low for low, _ in padding]
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
    f: IndexArithmetic[V],
    starts: Starts,
    clamp: Callable[[V, int], tuple[V, V | None]],
    conjunction: Callable[[V, V], V],
    number: V,
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
    strides = row_major(operand.shape)
    return Starts(
        indices,
        tuple([(d, strides[d], operand.shape[d] - sizes[d]) for d in addressed]),
        tuple([(d, strides[d], partner) for d, partner in batching]),
        clips,
    )


def _window(operand: ShapedArray, sizes: Sequence[int], absent: Sequence[int]) -> list[tuple[int, int]]:
    """Return size and stride of the operand's dimensions that windows have."""
    strides = row_major(operand.shape)
    return [(size, strides[d]) for d, size in enumerate(sizes) if d not in absent]


def _layout(shape: Sequence[int], window_dims: Sequence[int], window: Sequence[tuple[int, int]]) -> Layout:
    strides = row_major(shape)
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


# Sort keys: unsigned integers in the order of numbers of any dtype.
#
# Negative floats have all bits flipped, the others their sign; every NaN is the greatest key. Zeros of either sign are equal, but a key
# that is to be turned back into its number must distinguish them: such *faithful* keys of -0.0 and 0.0 are neighbours.

_V = TypeVar("_V", bound=Values)

#: The bits of infinity.
INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0 << 48}


def is_float(dtype: np.dtype) -> bool:
    """Return True if numbers of the dtype have signed zeros and NaN."""
    return dtype in dtypes.FLOATS


def sort_key(bits: _V, dtype: np.dtype, *, faithful: bool) -> _V:
    """Emit the key of a number of a dtype, in an integer that may have more bits."""
    sign, mask = _sign_and_mask(dtype)
    if not is_float(dtype):
        return bits ^ sign if dtype.kind == "i" else bits
    size = bits & (sign - 1)
    key = bits ^ bits.compare("uge", sign).select(bits.like(mask), sign)
    if not faithful:
        key = size.equals(0).select(sign, key)
    return size.compare("ugt", INFINITY[dtype.name]).select(mask, key)


def number_of_key(key: _V, dtype: np.dtype) -> _V:
    """Emit the bits of the number of a faithful key (of a NaN, of some NaN)."""
    sign, mask = _sign_and_mask(dtype)
    if not is_float(dtype):
        return key ^ sign if dtype.kind == "i" else key
    return key ^ key.compare("ult", sign).select(key.like(mask), sign)


def _sign_and_mask(dtype: np.dtype) -> tuple[int, int]:
    return 1 << (8 * dtype.itemsize - 1), (1 << 8 * dtype.itemsize) - 1


# Cumulative operations: how elements are combined, and along which axis.


class CumulativeOp(NamedTuple):
    """A cumulative operation on an array.

    Attributes:
        name: the name of the primitive.
        reduction: how it combines elements.
        stored: the dtype in memory.
        dtype: the dtype that is accumulated in.
        rows, size, columns: the sizes of the axes before, of, and after the accumulation.
        reverse: whether it begins at the end.
    """

    name: str
    reduction: Reduction
    stored: np.dtype
    dtype: np.dtype
    rows: int
    size: int
    columns: int
    reverse: bool

    @property
    def is_sequential(self) -> bool:
        """True if elements are combined one by one.

        Products of parts of a row might overflow where the result does not.
        """
        return self.reduction.step == "mul" and self.dtype.kind in "fc"

    def position(self, f: IndexArithmetic[V], i: V, width: int = 1) -> V:
        """Emit the position of the i-th element in order, or of the first of `width`."""
        return f.minus(f.index(self.size - width), i) if self.reverse else i


def cumulative_op(name: str, operand: ShapedArray, dtype: np.dtype, axis: int, reverse: bool) -> CumulativeOp:
    """Return the operation of a primitive along an axis, accumulated in a dtype."""
    rows, columns = math.prod(operand.shape[:axis]), math.prod(operand.shape[axis + 1 :])
    return CumulativeOp(name, reduction_of(name), operand.dtype, dtype, rows, operand.shape[axis], columns, reverse)

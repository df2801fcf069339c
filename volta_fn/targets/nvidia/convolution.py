"""Convolutions on the matrix units of NVIDIA GPUs, and both of their gradients.

A correlation (`compiler.contractions`) is a product of windows with taps or, in a gradient by the weights, with cotangents. The tensor
memory accelerator gathers windows while the product is computed. Images are copied before where their channels are not contiguous, and taps
where those of an output are not. Numbers of float32 are rounded to TensorFloat-32 if their precision allows it: then cotangents are copied
where positions are not contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.contractions import (
    Axis,
    Correlation,
    Operand,
    PhasesAxis,
    Problem,
    ResultMap,
    View,
    Walk,
    contiguous_strides,
    merged,
    walk_of,
    with_phases,
)
from volta_fn.compiler.ir.index import Affine, Range, along, undecided
from volta_fn.compiler.ir.kernel import Apply, Buffer, Constant, Kernel, Load, Node, Store
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.contraction import TENSORFLOAT32
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia import patches
from volta_fn.targets.nvidia.kernel import KernelFunction, kernel_dispatch
from volta_fn.targets.nvidia.matmul import dispatch_of, elementwise_dispatches
from volta_fn.targets.nvidia.matmul.problem import (
    HALVES,
    ROW,
    UNIT,
    AnySchedule,
    MatrixOperand,
    MatrixProduct,
    Schedule,
    WarpSchedule,
    WindowAxis,
    WindowOperand,
    candidates,
    choose,
    cost,
    estimated,
    faster_transposed,
    matrix_product,
)
from volta_fn.targets.nvidia.matmul.results import Bounds, Results, Rounded, Stored, partial_sums
from volta_fn.targets.wgsl.convolution import canonical, zeros
from volta_fn.targets.wgsl.convolution import conv_general_dilated as by_shaders
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Workspaces

_FLOAT32 = np.dtype(np.float32)

#: The fewest multiplications, and the fewest channels, outputs and windows, with which matrix units are faster than shaders.
_FEWEST, _NARROWEST, _FEWEST_WINDOWS = 1 << 26, 16, 64

#: Terms of sums with which they are with any number of outputs, though tiles have 64.
_LONG = 256

#: The least columns of a tile: boxes of windows that sums are over have 64, and would not end within a narrower tile.
_FEWEST_COLUMNS = 64

#: Schedules besides those of matrix products: for few outputs and many windows.
_FURTHER = (
    Schedule(256, 2, stages=5, turns=True),
    Schedule(128, 3, stages=5),
    Schedule(64, 3, stages=6),
    Schedule(64, 2, blocks=2, stages=5),
)

#: Copies, and sums of partial sums, number elements by 32 bits.
_MOST_ELEMENTS = 1 << 31

#: Columns of results that are so far apart are stored one by one, rather than as partial sums.
_NEAR = 2

#: The most axes along which windows slide.
_MOST_AXES = 3


class Arrangement(NamedTuple):
    """A correlation as a product for matrix units, up to where its operands lie."""

    c: Correlation
    #: Of the operands.
    dtype: np.dtype
    #: Whether sums are over taps and channels, or else over windows, as in gradients by the weights.
    along_k: bool
    #: By axis, the phases of positions (`with_phases`), each of which is a product of some taps; empty if all have all taps.
    phases: tuple[PhasesAxis, ...] = ()
    #: Whether the taps of a row become channels, of which there are too few (`_unfolded`).
    unfolds: bool = False

    @property
    def images(self) -> int:
        """The images that windows slide over."""
        return self.c.images if self.along_k else self.c.channels

    @property
    def channels(self) -> int:
        """The channels of an image in a group."""
        return self.c.channels if self.along_k else self.c.images

    @property
    def axes(self) -> tuple[WindowAxis, ...]:
        """The axes along which windows slide."""
        if self.along_k:
            return tuple([WindowAxis(a.size, a.positions, a.stride, a.taps, a.dilation, a.low) for a in self.c.axes])
        return tuple([WindowAxis(a.size, a.taps, a.dilation, a.positions, a.stride, a.low) for a in self.c.axes])

    @property
    def phase_axes(self) -> list[tuple[int, PhasesAxis]]:
        """The axes with several phases, by their numbers."""
        return [(number, axis) for number, axis in enumerate(self.phases) if axis.phases > 1]

    def stack(self, group: int, phases: Sequence[int]) -> Walk:
        """Return a walk over the stack of products.

        It has groups, or phases, which are so far apart.
        """
        if self.phases:
            return Walk(tuple([axis.phases for _, axis in self.phase_axes]), tuple(phases))
        return walk_of(self.c.groups, group)

    @property
    def in_registers(self) -> bool:
        """Whether windows are the left operand, which lanes load to registers.

        Then the right one is contiguous along the sums. That is so where `wgmma` cannot transpose them: if sums are over windows, of other
        than 16 bits.
        """
        return not self.along_k and self.dtype not in HALVES

    @property
    def padding(self) -> int:
        """The zeros after the channels of every tap in sums over windows.

        Their results are dropped.
        """
        return 0 if self.along_k else -self.channels % (ROW // self.dtype.itemsize)

    @property
    def outer(self) -> list[int]:
        """The strides of images and channels in x."""
        _, image, channel, *_ = self.c.x.strides
        return [image, channel] if self.along_k else [channel, image]

    def target(self, dtype: np.dtype, elements: int) -> tuple[ResultMap, bool]:
        """Return where results are stored, and whether columns are windows (or outputs)."""
        c, (group, image, output, *space) = self.c, self.c.y.strides
        counts = [axis.positions for axis in c.axes]
        if self.along_k:
            (windows,) = merged([c.images, *counts], [[image, *space]])
        elif self.padding:  # zeros follow the channels of every tap
            (taps,) = merged(counts, [space])
            windows = Walk((*taps.sizes, c.images + self.padding), (*taps.strides, image))
        else:
            (windows,) = merged([*counts, c.images], [[*space, image]])
        outputs = walk_of(c.outputs, output)
        stack = self.stack(group, [space[number] // axis.phases for number, axis in self.phase_axes])
        across = not self.in_registers and _last(windows) < _last(outputs)
        rows, columns = (outputs, windows) if across else (windows, outputs)
        return ResultMap(dtype, elements, c.y.offset, stack, rows, columns), across


def _last(walk: Walk) -> int:
    return walk.strides[-1] if walk.strides else 1 << 62


def arrangement(c: Correlation, dtypes: Sequence[np.dtype], params: dict[str, Any], device: TargetCapabilities) -> Arrangement | None:
    """Return how matrix units compute a correlation; None if they do not."""
    x, w, y = dtypes
    by_groups = device.matrix_units == "wgmma"
    operands = HALVES | {_FLOAT32} if by_groups and params.get("precision") == TENSORFLOAT32 else HALVES
    if not device.matrix_units or x != w or x not in operands or len(c.axes) > _MOST_AXES:
        return None
    if y != _FLOAT32 and y not in HALVES:
        return None
    if min(c.x.strides + c.w.strides + c.y.strides) < 0:
        return None
    a = Arrangement(c, x, c.positions >= c.taps)
    unit, atom = UNIT // x.itemsize, ROW // x.itemsize
    windows = a.images * prod([axis.windows for axis in a.axes])
    is_long = by_groups and a.along_k and c.channels * c.taps >= _LONG
    if c.outputs < _NARROWEST and not is_long:
        return None
    if windows < _FEWEST_WINDOWS or (a.in_registers and windows % unit):
        return None
    if by_groups and not all(axis.fits(len(a.axes)) for axis in a.axes):
        return None
    if a.channels < _NARROWEST:
        return a._replace(unfolds=True) if by_groups and c.groups == 1 and len(c.axes) > 1 and a.axes[-1].taps > 1 else None
    if a.channels % atom and (c.groups > 1 or (not by_groups and not a.along_k)):
        return None
    return None if c.groups > 1 and c.outputs % unit else a


def arrangements(avals: Sequence[ShapedArray], params: dict[str, Any], device: TargetCapabilities) -> list[Arrangement]:
    """Return how matrix units compute a convolution; none if shaders are to do it."""
    lhs, rhs = avals
    problems, dtypes, elements = canonical((lhs, rhs), params)
    if max(elements, default=0) >= _MOST_ELEMENTS:
        return []
    summed = [c for c in problems if c.taps * c.channels]
    if params.get("algorithm", "auto") not in ("auto", "igemm") or sum(c.products for c in summed) < _FEWEST:
        return []
    chosen = [arrangement(c, dtypes, params, device) for c in summed]
    if len(problems) > 1 and any(a is not None and a.unfolds for a in chosen):
        return []
    is_divisible = device.matrix_units == "wgmma" and len(summed) == len(problems) > 1
    together = _with_phases((lhs, rhs), params, device) if is_divisible else None
    if together is not None:
        return [together]
    return [a for a in chosen if a is not None] if None not in chosen else []


def _with_phases(avals: Sequence[ShapedArray], params: dict[str, Any], device: TargetCapabilities) -> Arrangement | None:
    """Return how matrix units compute all phases of a convolution in one dispatch."""
    pair = with_phases(avals[0].shape, avals[1].shape, params)
    a = None if pair is None else arrangement(pair[0], canonical(tuple(avals), params).dtypes, params, device)
    if pair is None or a is None or not a.along_k or a.unfolds or a.c.groups > 1:
        return None
    return a._replace(phases=pair[1])


def conv_general_dilated(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of a convolution: on matrix units, or else shaders."""
    chosen = arrangements(avals, params, device)
    if not chosen:
        return by_shaders(avals, params, device)
    problems, dtypes, elements = canonical(avals, params)
    arrays = _Arrays(len(avals) + 1, elements, dtypes[0], device)
    is_complete = bool(chosen[0].phases) or len(chosen) == len(problems)
    dispatches: list[Dispatch] = [] if is_complete else [zeros(dtypes[2], elements[2], device)]
    for a in chosen:
        dispatches += _product(a, arrays, dtypes[2], elements[2], device)
    return Routine((*arrays.dispatches, *dispatches), tuple(arrays.sizes))


def operand_orders(avals: Sequence[ShapedArray], params: dict[str, Any], device: TargetCapabilities) -> list[tuple[int, ...]]:
    """Return the orders of dimensions that are read in place; none for shaders."""
    chosen = arrangements(avals, params, device)
    if not chosen or chosen[0].c.groups > 1:
        return []
    a, orders = chosen[0], []
    same = [tuple(range(aval.ndim)) for aval in avals]
    for number, (aval, spec) in enumerate(zip(avals, params["dimension_numbers"], strict=False)):
        outer, inner, *space = spec
        if number == 1 and a.in_registers:
            orders.append((outer, inner, *space))
            continue
        if number == 1 and _taps_in_place(a) is not None:
            orders.append(tuple(range(aval.ndim)))
            continue
        order = (outer, *space, inner) if a.along_k else (inner, *space, outer)
        is_padded = aval.shape[order[-1]] * aval.dtype.itemsize % (ROW if number == 1 and a.along_k else UNIT)
        orders.append(tuple(range(aval.ndim)) if is_padded else order)
    if a.unfolds:
        return [same[0], same[1] if a.along_k else orders[1]]
    if _problem_of(a.c, a.dtype) is not None:  # whatever is in place stays there, or the larger operand
        along_k = [(outer, inner, *space) for outer, inner, *space in params["dimension_numbers"][:2]]
        candidates = [[one, same[1]] for one in (orders[0], along_k[0])], [[same[0], one] for one in (orders[1], along_k[1])]
        smaller, larger = candidates if avals[0].size <= avals[1].size else candidates[::-1]
        for candidate in (same, *smaller, *larger):
            if _is_in_place(avals, params, candidate, device):
                return candidate
    return orders


def _is_in_place(
    avals: Sequence[ShapedArray], params: dict[str, Any], orders: Sequence[tuple[int, ...]], device: TargetCapabilities
) -> bool:
    """Return whether transposed operands are matrices that are multiplied in place."""
    transposed = [ShapedArray(tuple([aval.shape[dim] for dim in order]), aval.dtype) for aval, order in zip(avals, orders, strict=True)]
    lhs, rhs, out = params["dimension_numbers"]
    numbers = [tuple([order.index(dim) for dim in spec]) for order, spec in zip(orders, (lhs, rhs), strict=True)]
    chosen = arrangements(transposed, params | {"dimension_numbers": (*numbers, out)}, device)
    return len(chosen) == 1 and _matrices(chosen[0], device) is not None


def schedules(device: TargetCapabilities) -> tuple[AnySchedule, ...]:
    """Return the schedules that fit a device."""
    further = _FURTHER if device.matrix_units == "wgmma" else ()
    of_products = [s for s in candidates(device) if s.columns >= _FEWEST_COLUMNS]
    return (*of_products, *[s for s in further if s.shared <= device.block_memory])


class _Arrays(Workspaces):
    """The operands of a convolution, and workspaces: copies of them, and partial sums.

    Workspaces are numbered from `first` on. `elements` are those of operands and result.
    """

    def __init__(self, first: int, elements: Sequence[int], dtype: np.dtype, device: TargetCapabilities) -> None:
        super().__init__(first)
        self._elements, self._device = list(elements), device
        #: The buffers of operands and result.
        self.numbers = [*range(len(elements))]
        self.dtype = dtype
        self.dispatches: list[Dispatch] = []
        self._copies: dict[tuple[int, Kernel], int] = {}

    def replace(self, number: int, buffer: int, elements: int) -> None:
        """Have another buffer, of so many elements, for an operand or the result."""
        self.numbers[number], self._elements[number] = buffer, elements

    def arranged(
        self, number: int, start: int, axes: Sequence[tuple[int, int]], padded: int, apart: int = 0, ranges: Sequence[Range] = ()
    ) -> _Arranged:
        """Return an operand as an array of axes with sizes and strides.

        The last one is padded with zeros. Along the first `apart` axes elements may be anywhere, along others they follow one another. Out
        of `ranges` there are zeros.
        """
        sizes, unit = [*[size for size, _ in axes[:-1]], padded], UNIT // self.dtype.itemsize
        strides = contiguous_strides(sizes)
        in_place = axes[-1][0] == padded and start % unit == 0 and not ranges
        steps = list(strides)
        for axis, (size, stride) in enumerate(axes):
            if size > 1 and stride != strides[axis]:
                in_place = in_place and axis < apart and stride > 0 and stride % unit == 0
                steps[axis] = stride
        if in_place:
            return _Arranged(self.numbers[number], start, tuple(steps), is_copy=False)
        return _Arranged(self.copied(number, start, axes, padded, ranges), 0, strides, is_copy=True)

    def copied(self, number: int, start: int, axes: Sequence[tuple[int, int]], padded: int, ranges: Sequence[Range]) -> int:
        """Return the number of a contiguous copy of an operand; see `arranged`."""
        kernel = self._copy_kernel(number, start, axes, [*[size for size, _ in axes[:-1]], padded], ranges)
        key = self.numbers[number], kernel
        if key not in self._copies:
            self._copies[key] = self.new(prod(kernel.sizes) * self.dtype.itemsize)
            self.dispatches += elementwise_dispatches(kernel, (key[0], self._copies[key]), self._device)
        return self._copies[key]

    def _copy_kernel(
        self, number: int, start: int, axes: Sequence[tuple[int, int]], sizes: Sequence[int], ranges: Sequence[Range]
    ) -> Kernel:
        source = Affine(tuple([(axis, stride) for axis, (size, stride) in enumerate(axes) if size > 1 and stride]), start)
        target = Affine(tuple([(axis, stride) for axis, stride in enumerate(contiguous_strides(sizes)) if sizes[axis] > 1]), 0)
        last = len(axes) - 1
        padding = [Range(along(last), 0, axes[last][0])] if sizes[last] > axes[last][0] else []
        exists = undecided([*ranges, *padding], sizes)
        assert exists is not None, "some tap of each axis exists"
        elements, zero = self._elements[number], Constant.of(0, self.dtype)
        load = Load(self.dtype, 0, (elements,), (source,), exists, zero)
        store = Store((prod(sizes),), (target,), 0)
        return Kernel(tuple(sizes), len(sizes), (Buffer(elements, self.dtype),), (load,), (store,))


class _Arranged(NamedTuple):
    """An array: the number of its buffer, its first element, and strides."""

    number: int
    start: int
    strides: tuple[int, ...]
    is_copy: bool


def _product(a: Arrangement, arrays: _Arrays, dtype: np.dtype, elements: int, device: TargetCapabilities) -> list[Dispatch]:
    """Return the dispatches of a correlation."""
    if a.unfolds:
        return _unfolded(a, arrays, dtype, elements, device)
    matrices = _matrices(a, device)
    if matrices is not None:
        product, is_swapped = matrices
        target, _ = _matrix_target(a.c, dtype, elements, is_swapped)
        finish = _finish_axes(product, target)
        results = product.batch * product.m * product.n
        schedule = choose(product, device, _MOST_ELEMENTS // results if finish else 1)
        return _stored(product, schedule, target, finish, arrays, arrays.numbers[1::-1] if is_swapped else arrays.numbers[:2], device)
    windows, other, numbers = _operands(a, arrays)
    target, across = a.target(dtype, elements)
    left, right = numbers
    product = MatrixProduct(windows, other)
    if across:
        left, right, product = right, left, MatrixProduct(other._replace(binding=0), windows._replace(binding=1))
    finish = _finish_axes(product, target, a.channels if a.padding else 0, across)
    results = product.batch * product.m * product.n
    splits = _MOST_ELEMENTS // results if finish and not a.phases else 1
    options = [s for s in schedules(device) if isinstance(s, WarpSchedule) or not (s.turns and (a.in_registers or a.phases))]
    schedule = estimated(product, device, options, splits)
    by_patches = patches.patches(product) if device.matrix_units == "wgmma" else None
    if by_patches is not None:
        fills = a.c.y.offset == 0 and results == elements
        tiling = patches.estimated(by_patches, device, _MOST_ELEMENTS // elements if fills else 1)
        if tiling is not None and patches.cost(by_patches, tiling, device.processors) < cost(product, schedule, device.processors):
            return _by_patches(a, by_patches, tiling, arrays, numbers, dtype, elements, device)
    bounds = partial(_exists, product=product, a=a, across=across) if a.padding else None
    return _stored(product, schedule, target, finish, arrays, (left, right), device, bounds)


def _exists(
    f: KernelFunction, number: Value, row: Value, column: Value, product: MatrixProduct, a: Arrangement, across: bool
) -> list[Value]:
    """Emit the conditions of a result: that it exists, and is of no padding."""
    channel = f.remainder(column if across else row, a.channels + a.padding)
    return [f.below(row, product.m), f.below(column, product.n), f.below(channel, a.channels)]


def _stored(
    product: MatrixProduct,
    schedule: AnySchedule,
    target: ResultMap,
    finish: Sequence[tuple[int, int, int]] | None,
    arrays: _Arrays,
    numbers: Sequence[int],
    device: TargetCapabilities,
    bounds: Bounds | None = None,
) -> list[Dispatch]:
    """Return the dispatches of a product of two buffers.

    `finish` are the axes of its results.
    """
    dtype, results = target.dtype, product.batch * product.m * product.n
    stored = Stored(product, schedule, target, 2, bounds)
    is_scattered = not stored.down and not 0 < min(target.columns.strides[-1:], default=0) <= _NEAR
    if schedule.splits == 1 and not (is_scattered and finish):
        is_rounded = dtype.itemsize == 2 and isinstance(schedule, Schedule) and Rounded.fits(target)
        store: Results = Rounded(product, schedule, target, 2, bounds) if is_rounded else stored
        return [dispatch_of(product, schedule, store, (*numbers, arrays.numbers[2]), 1, device)]
    assert finish is not None
    source = arrays.new(4 * schedule.splits * results)
    sums = partial_sums(product, schedule, 2)
    dispatches = [dispatch_of(product, schedule, sums, (*numbers, source), 1, device)]
    *before, last = _finishing_kernels(finish, schedule.splits, results, dtype)
    for kernel in before:
        total = arrays.new(4 * results)
        dispatches += elementwise_dispatches(kernel, (source, total), device)
        source = total
    return [*dispatches, *elementwise_dispatches(last, (source, arrays.numbers[2]), device)]


# Few channels, as those of colours: the taps of a row become channels of a copy of the images, which has them for each window of a row. Its
# windows slide along the other axes.


def _unfolded(a: Arrangement, arrays: _Arrays, dtype: np.dtype, elements: int, device: TargetCapabilities) -> list[Dispatch]:
    """Return the dispatches of a correlation with few channels."""
    c, last, unit = a.c, a.axes[-1], UNIT // a.dtype.itemsize
    columns = next(n for n in range(last.taps, last.taps + unit) if n * a.channels % unit == 0)
    width, rows = columns * a.channels, [axis.size for axis in c.axes[:-1]]
    image, channel = a.outer
    *before, near = c.x.strides[3:]
    tap = 2 + len(rows)  # the axis of the copy's kernel
    place = Affine(((tap - 1, last.step), (tap, last.dilation)), -last.low)
    axes = [(a.images, image), *zip(rows, before, strict=True), (last.windows, last.step * near), (columns, last.dilation * near)]
    ranges = [Range(place, 0, last.size), Range(along(tap), 0, last.taps)]
    x = arrays.copied(0, c.x.offset - last.low * near, [*axes, (a.channels, channel)], a.channels, ranges)
    arrays.replace(0, x, a.images * prod(rows) * last.windows * width)
    far, *space = contiguous_strides([a.images, *rows, last.windows, width])[:-1]
    slides = Axis(last.windows, 1, last.windows, 1, 1, 0) if a.along_k else Axis(last.windows, last.windows, 1, 1, 1, 0)
    c = replace(c, axes=(*c.axes[:-1], slides))
    taps = [axis.taps if a.along_k else axis.positions for axis in c.axes[:-1]]
    if a.along_k:
        _, output, inner, *taps_before, tap_near = c.w.strides
        axes = [(c.outputs, output), *zip(taps, taps_before, strict=True), (columns, tap_near), (c.channels, inner)]
        w = arrays.copied(1, c.w.offset, axes, c.channels, [Range(along(len(axes) - 2), 0, last.taps)])
        arrays.replace(1, w, c.outputs * prod(taps) * width)
        w_far, *w_space = contiguous_strides([c.outputs, *taps, width])[:-1]
        c = replace(c, channels=width, x=View(0, (0, far, 1, *space)), w=View(0, (0, w_far, 1, *w_space, 0)))
        return _product(Arrangement(c, a.dtype, along_k=True), arrays, dtype, elements, device)
    size = prod(taps) * width * c.outputs
    sums, result = arrays.new(4 * size), arrays.numbers[2]
    steps = contiguous_strides([*taps, width, c.outputs])[:-1]
    stored = [(n, y, step) for n, y, step in zip(taps, c.y.strides[3:-1], steps, strict=False)]
    _, to_channel, to_output, *_, to_tap = c.y.strides
    stored += [(last.taps, to_tap, a.channels * c.outputs), (a.channels, to_channel, c.outputs), (c.outputs, to_output, 1)]
    stored.sort(key=lambda axis: -axis[1])
    arrays.replace(2, sums, size)
    c = replace(c, images=width, x=View(0, (0, 1, far, *space)), y=View(0, (0, c.outputs, 1, *steps[:-1], 0)))
    first = _product(Arrangement(c, a.dtype, along_k=False), arrays, _FLOAT32, size, device)
    return [*first, *elementwise_dispatches(_finishing_kernel(stored, 1, size, dtype), (sums, result), device)]


# Correlations whose windows do not overlap, as those of one tap, and their gradients, are products of matrices that may be in place.


class _MatrixAxes(NamedTuple):
    """The axes of a correlation as those of products of matrices: walks of x, w and y."""

    stack: tuple[Walk, Walk, Walk]
    windows: tuple[Walk, Walk]
    terms: tuple[Walk, Walk]


def _matrix_axes(c: Correlation) -> _MatrixAxes | None:
    """Return a correlation's axes as those of matrices.

    None if windows overlap, or those of an image are no rows of a matrix.
    """
    if not all(axis.inside and 1 in (axis.taps, axis.positions) for axis in c.axes):
        return None
    (xg, image, channel, *x), (wg, _, inner, *w), (yg, to_image, _, *y) = c.x.strides, c.w.strides, c.y.strides
    positions = [axis.positions for axis in c.axes]
    terms = merged([c.channels, *[axis.taps for axis in c.axes]], [[channel, *x], [inner, *w]])
    stack = [(c.groups, xg, wg, yg)] if c.groups > 1 else []
    images = c.images
    (read,) = merged([images, *positions], [[image, *x]])
    if len(read.sizes) > 1:  # a matrix for each image
        stack.append((images, image, 0, to_image))
        images = 1
        (read,) = merged(positions, [x])
    (stored,) = merged([images, *positions], [[to_image, *y]])
    if len(read.sizes) != 1:
        return None
    sizes, *strides = [tuple([axis[k] for axis in stack]) for k in range(4)]
    return _MatrixAxes((Walk(sizes, strides[0]), Walk(sizes, strides[1]), Walk(sizes, strides[2])), (read, stored), (terms[0], terms[1]))


def _problem_of(c: Correlation, dtype: np.dtype) -> Problem | None:
    """Return a correlation as products of matrices of windows and of outputs."""
    axes = _matrix_axes(c)
    if axes is None:
        return None
    outputs = Walk((c.outputs,), (c.w.strides[1],))
    windows = Operand(dtype, axes.stack[0], axes.windows[0], axes.terms[0], c.x.offset)
    return Problem(windows, Operand(dtype, axes.stack[1], outputs, axes.terms[1], c.w.offset), _FLOAT32)


def _matrix_target(c: Correlation, dtype: np.dtype, elements: int, is_swapped: bool) -> tuple[ResultMap, bool]:
    """Return where such products are stored, and whether outputs are better rows.

    They are where windows are nearer to each other.
    """
    axes = _matrix_axes(c)
    assert axes is not None
    outputs = Walk((c.outputs,), (c.y.strides[2],))
    windows = axes.windows[1]
    rows, columns = (outputs, windows) if is_swapped else (windows, outputs)
    return ResultMap(dtype, elements, c.y.offset, axes.stack[2], rows, columns), _last(windows) < _last(outputs)


def _matrices(a: Arrangement, device: TargetCapabilities) -> tuple[MatrixProduct, bool] | None:
    """Return a correlation as a product of matrices in place.

    With it comes whether outputs are its rows. None if operands have to be copied.
    """
    problem = None if a.phases else _problem_of(a.c, a.dtype)
    if problem is None:
        return None
    _, across = _matrix_target(a.c, a.dtype, 0, is_swapped=False)
    for is_swapped in (across, not across):
        ordered = problem.swapped() if is_swapped else problem
        product = matrix_product(ordered, 0, 1, frozenset([a.dtype]), parts=device.matrix_units == "wgmma")
        if product is not None and not product.lhs.is_copy and not product.rhs.is_copy:
            return product, is_swapped
    if device.matrix_units != "wgmma" or a.dtype != _FLOAT32:
        return None
    both = problem, problem.swapped()
    options = [matrix_product(each, 0, 1, frozenset([a.dtype]), transposes=True) for each in both]
    best = faster_transposed(options, matrix_product(problem, 0, 1, frozenset([a.dtype])), device)
    return None if best is None else (best, options.index(best) == 1)


def _by_patches(
    a: Arrangement,
    problem: patches.Patches,
    schedule: patches.PatchSchedule,
    arrays: _Arrays,
    numbers: tuple[int, int],
    dtype: np.dtype,
    elements: int,
    device: TargetCapabilities,
) -> list[Dispatch]:
    """Return the dispatches of a correlation by patches.

    `numbers` are the buffers of images and taps.
    """
    y, windows, taps = a.c.y, *numbers
    group, image, output, *space = y.strides
    strides = (group, image, output, *[0] * (2 - len(space)), *space)
    splits = schedule.splits
    target = patches.target(problem, schedule, dtype if splits == 1 else _FLOAT32, elements, y.offset, strides)
    number = arrays.numbers[2] if splits == 1 else arrays.new(4 * splits * elements)
    kernel = patches.PatchKernel(problem, schedule, patches.results(target, schedule, 2), 3)
    first = kernel_dispatch(kernel.header, (taps, windows, number), 1, kernel.text(), min(kernel.total, device.processors))
    if splits == 1:
        return [first]
    sums = _finishing_kernel([(elements, 1, 1)], splits, elements, dtype)
    return [first, *elementwise_dispatches(sums, (number, arrays.numbers[2]), device)]


def _operands(a: Arrangement, arrays: _Arrays) -> tuple[WindowOperand, MatrixOperand, tuple[int, int]]:
    """Return the operands, windows first, and the numbers of their buffers."""
    c, dtype, unit = a.c, arrays.dtype, UNIT // arrays.dtype.itemsize
    image, channel = a.outer
    space = [(axis.size, stride) for axis, stride in zip(c.axes, c.x.strides[3:], strict=True)]
    grouped = [(c.groups, c.x.strides[0])] if c.groups > 1 else []
    padded = -(-a.channels // unit) * unit
    x = arrays.arranged(0, c.x.offset, [(a.images, image), *space, *grouped, (a.channels, channel)], padded, 1 + len(space))
    strides = x.strides[: 1 + len(space)]
    stack = a.stack(a.channels, [0] * len(a.phase_axes))
    windows = WindowOperand(0, dtype, a.along_k, a.images, a.axes, a.channels, stack, strides, x.start, x.is_copy, a.phases)
    taps = [(axis.taps, stride) for axis, stride in zip(c.axes, c.w.strides[3:], strict=True)]
    grouped = [(c.groups, c.w.strides[0])] if c.groups > 1 else []
    outputs, inner = (c.outputs, c.w.strides[1]), (c.channels, c.w.strides[2])
    in_place = _taps_in_place(a)
    if in_place is not None:
        return windows, in_place, (x.number, arrays.numbers[1])
    if a.along_k:
        phases = [(axis.phases, -c.w.strides[3 + number] // axis.phases) for number, axis in a.phase_axes]
        axes = [*grouped, *phases, outputs, *taps, inner]
        w = arrays.arranged(1, c.w.offset, axes, windows.padded, ranges=_tap_ranges(a))
        terms = windows.features
        matrix = c.outputs * terms
        stack = a.stack(matrix, [matrix * stride for stride in contiguous_strides([count for count, _ in phases])])
        other = MatrixOperand(1, dtype, True, c.outputs, terms, terms, stack, w.start, w.is_copy)
    elif a.in_registers:
        w = arrays.arranged(1, c.w.offset, [*grouped, outputs, inner, *taps], taps[-1][0])
        terms = windows.windows
        other = MatrixOperand(1, dtype, True, c.outputs, terms, terms, walk_of(c.groups, c.outputs * terms), w.start, w.is_copy)
    else:
        width = -(-c.outputs // unit) * unit
        w = arrays.arranged(1, c.w.offset, [inner, *taps, *grouped, outputs], width)
        stride = width * c.groups
        other = MatrixOperand(1, dtype, False, c.outputs, windows.windows, stride, walk_of(c.groups, width), w.start, w.is_copy)
    return windows, other, (x.number, w.number)


def _taps_in_place(a: Arrangement) -> MatrixOperand | None:
    """Return taps whose outputs follow one another as they lie in memory.

    None if they have to be copied.
    """
    c, unit = a.c, UNIT // a.dtype.itemsize
    _, output, channel, *space = c.w.strides
    if not a.along_k or a.phases or c.groups > 1 or a.dtype not in HALVES or output != 1 or c.channels % (ROW // a.dtype.itemsize):
        return None
    (terms,) = merged([*[axis.taps for axis in c.axes], c.channels], [[*space, channel]])
    if len(terms.sizes) != 1 or terms.strides[0] % unit or c.w.offset % unit:
        return None
    return MatrixOperand(1, a.dtype, False, c.outputs, terms.size, terms.strides[0], walk_of(1, 0), c.w.offset)


def _tap_ranges(a: Arrangement) -> list[Range]:
    """Return where taps of phases exist, by the axes of the arranged taps."""
    first = len(a.phase_axes) + 1  # after phases and outputs
    ranges = []
    for number, (axis, each) in enumerate(a.phase_axes):
        tap = Affine(tuple(sorted([(number, -1), (first + axis, each.phases)])), each.start)
        ranges.append(Range(tap, 0, each.taps))
    return ranges


def _finish_axes(product: MatrixProduct, target: ResultMap, channels: int = 0, across: bool = False) -> list[tuple[int, int, int]] | None:
    """Return the axes of results, in the order of memory.

    Each is given by its size, its stride there, and that in partial sums. None if results do not fill their array. With `channels` there
    are so many of a tap, and zeros after them; they are rows, or columns if `across`.
    """
    axes = []
    for walk, step in ((target.stack, product.m * product.n), (target.rows, product.n), (target.columns, 1)):
        listed = [(s, y, step * p) for s, y, p in zip(walk.sizes, walk.strides, contiguous_strides(walk.sizes), strict=True)]
        if channels and walk is (target.columns if across else target.rows):
            listed[-1] = (channels, *listed[-1][1:])
        axes += listed
    axes.sort(key=lambda axis: -axis[1])
    fills = target.start == 0 and [y for _, y, _ in axes] == list(contiguous_strides([s for s, _, _ in axes]))
    return axes if fills and axes and prod([s for s, _, _ in axes]) == target.elements else None


def _finishing_kernels(axes: Sequence[tuple[int, int, int]], splits: int, apart: int, dtype: np.dtype) -> list[Kernel]:
    """Return the kernels that add up partial sums and store results.

    Arrays of partial sums are `apart`. If their contiguous axes differ from those of results, a kernel of its own transposes the sums: else
    neighbours would read each partial sum from far apart.
    """
    if splits == 1 or axes[-1][2] == 1:
        return [_finishing_kernel(axes, splits, apart, dtype)]
    return [_finishing_kernel([(apart, 1, 1)], splits, apart, _FLOAT32), _finishing_kernel(axes, 1, apart, dtype)]


def _finishing_kernel(axes: Sequence[tuple[int, int, int]], splits: int, apart: int, dtype: np.dtype) -> Kernel:
    """Return the kernel that adds up partial sums in the order of results."""
    sizes, results = tuple([size for size, _, _ in axes]), prod([size for size, _, _ in axes])
    source = tuple([(axis, stride) for axis, (_, _, stride) in enumerate(axes)])
    index = Affine(tuple([(axis, stride) for axis, (_, stride, _) in enumerate(axes)]), 0)
    elements = splits * apart
    nodes: list[Node] = [
        Load(_FLOAT32, 0, (elements,), (Affine(source, split * apart),), (), Constant.of(0, _FLOAT32)) for split in range(splits)
    ]
    pending = list(range(splits))
    while len(pending) > 1:  # pairwise
        first, second, *pending = pending
        nodes.append(Apply(_FLOAT32, "add", (first, second)))
        pending.append(len(nodes) - 1)
    if dtype != _FLOAT32:
        nodes.append(Apply(dtype, "convert_element_type", (len(nodes) - 1,)))
    store = Store((results,), (index,), len(nodes) - 1)
    return Kernel(sizes, len(sizes), (Buffer(elements, _FLOAT32),), tuple(nodes), (store,))


#: Makers of routines by the name of the primitive.
ROUTINES = {"conv_general_dilated": conv_general_dilated}

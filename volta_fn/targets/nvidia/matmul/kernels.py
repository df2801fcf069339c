"""Kernels of products, by `mma.sync` and by `wgmma`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.targets.nvidia.kernel import ZERO, KernelFunction, KernelHeader, i32
from volta_fn.targets.nvidia.matmul.problem import (
    HALVES,
    ROW,
    STAGING,
    UNIT,
    MatrixOperand,
    MatrixProduct,
    ProductOperand,
    Schedule,
    WarpSchedule,
    WindowOperand,
    chunk,
    columns,
    tiles,
)
from volta_fn.targets.nvidia.matmul.results import Results
from volta_fn.targets.nvidia.matrix_units import (
    BARRIER,
    ROWS,
    TERM_BYTES,
    GroupProduct,
    GroupStep,
    SharedMatrix,
    SwizzledRows,
    TilePipeline,
    await_products,
    divide_groups,
    fragment_addresses,
)

# By `mma.sync`, for GPUs of compute capability 8.0 and later.
#
# All warps copy slices of both operands to shared memory (`cp.async`), in several stages, load fragments from there to registers
# (`ldmatrix`) and multiply them. In shared memory the number of a row's unit of 16 bytes is changed by the row's number, by exclusive or,
# so that eight rows of a fragment lie in different banks.

#: Terms of a slice, and of one `mma`; elements of a unit.
_TERMS, _STEP, _ELEMENTS = 64, 16, 8


class _Side(SwizzledRows, ABC):
    """A slice of an operand in shared memory, and a thread's share of the work.

    A row has 64 terms of one row of the left operand or column of the right one; if the operand is not contiguous along k, it has one term
    of all rows or columns of the tile.
    """

    def __init__(self, f: KernelFunction, operand: ProductOperand, is_left: bool, schedule: WarpSchedule, offset: int) -> None:
        self.tile = schedule.rows if is_left else schedule.columns
        rows, units = (self.tile, _TERMS // _ELEMENTS) if operand.along_k else (_TERMS, self.tile // _ELEMENTS)
        super().__init__(f, rows, units, offset)
        self.operand, self.is_left = operand, is_left
        self.warp_size = schedule.warp_rows if is_left else schedule.warp_columns

    # copies

    #: Bytes from a slice to the next.
    advance: int

    @abstractmethod
    def begin(self, first: Value, term: Value, positions: list[Value]) -> Value:
        """Return where this thread's copies of a tile begin.

        `first` is the tile's first row or column.
        """

    @abstractmethod
    def copy(self, source: Value, stage: Value, term: Value, part: int = 0, parts: int = 1) -> None:
        """Begin to copy this thread's share of a slice, or a part of it.

        The slice begins with `term`. Elements out of range become zeros.
        """

    # fragments

    def begin_fragments(self, warp: Value) -> None:
        """Compute the lane's addresses in a slice, for the rows or columns of a warp.

        There is one for each change of the unit's number.
        """
        f, first, along_k = self.f, self.f.times(warp, self.warp_size), self.operand.along_k
        row, unit = (first, i32(0)) if along_k else (i32(0), f.quotient(first, _ELEMENTS))
        units = (_TERMS if along_k else self.warp_size) // _ELEMENTS
        self.addresses = fragment_addresses(f, self.row_bytes, row, unit, units, crossed=self.is_left != along_k)

    def fragment(self, stage: Value, step: int, index: int) -> list[Value]:
        """Load the fragment of 16 rows or columns, and 16 terms: four registers."""
        f = self.f
        if self.operand.along_k:
            address, further = self.addresses[step], index * 16 * self.row_bytes
        else:
            address, further = self.addresses[index], step * _STEP * self.row_bytes
        pointer = f.shared(f.plus(address, stage, i32(self.offset + further)))
        return f.load_matrices(pointer, transposed=not self.operand.along_k)


class _MatrixSide(_Side):
    """Rows of a matrix."""

    operand: MatrixOperand

    def __init__(self, f: KernelFunction, operand: MatrixOperand, is_left: bool, schedule: WarpSchedule, offset: int) -> None:
        super().__init__(f, operand, is_left, schedule, offset)
        #: Bytes from a row to the next.
        self.pitch = operand.stride * 2
        self.advance = _TERMS * 2 if operand.along_k else _TERMS * self.pitch

    def begin(self, first: Value, term: Value, positions: list[Value]) -> Value:
        """Return the pointer to this thread's first unit."""
        f, operand = self.f, self.operand
        self.first = first
        row, start = (f.plus(first, self.row), term) if operand.along_k else (f.plus(term, self.row), first)
        #: The index of the first element of this thread's units along the contiguous axis, in the first slice.
        unit = f.plus(start, f.times(self.unit, _ELEMENTS))
        far = f.wide_times(row, operand.stride)
        total = f.binary("add", far, f.widened_index(unit))
        for axis, _, stride in operand.steps():
            total = f.binary("add", total, f.wide_times(positions[axis], stride))
        total = f.binary("add", total, i64(operand.start))
        return f.element(f.bindings[operand.binding], total, 2)

    def copy(self, source: Value, stage: Value, term: Value, part: int = 0, parts: int = 1) -> None:
        """Begin to copy units of some rows."""
        f, operand = self.f, self.operand
        along, across = (term, self.first) if operand.along_k else (self.first, term)
        ends = (operand.inner, operand.outer) if operand.along_k else (operand.outer, operand.inner)
        size = self._bytes(f.plus(along, f.times(self.unit, _ELEMENTS)), ends[0])
        for j in range(part, self.passes, parts):
            row = f.plus(across, self.row, i32(j * self.together))
            exists = f.select(f.below(row, ends[1]), size, i32(0))
            self.copy_unit(j, f.further(source, i64(j * self.together * self.pitch)), stage, exists)

    def _bytes(self, begin: Value, end: int) -> Value:
        """Emit the bytes of a unit that exist."""
        f = self.f
        some = i32(UNIT)
        if end % _ELEMENTS:
            some = f.times(f.umin(f.minus(i32(end), begin), i32(_ELEMENTS)), 2)
        return f.select(f.below(begin, end), some, i32(0))


class _WindowSide(_Side):
    """Windows of images: a unit has channels of one tap of one window."""

    operand: WindowOperand
    advance = 0

    def begin(self, first: Value, term: Value, positions: list[Value]) -> Value:
        """Locate what the slices of a tile share.

        That is the windows, or else the tap and channel of the unit.
        """
        f, operand = self.f, self.operand
        start = f.times(positions[0], operand.channels) if operand.groups > 1 else i32(0)
        self.base = f.further(f.bindings[operand.binding], f.wide_times(f.plus(start, i32(operand.start)), 2))
        if operand.along_k:
            rows = [f.plus(first, self.row, i32(j * self.together)) for j in range(self.passes)]
            self.windows = [self._window(row) for row in rows]
        else:
            self.tap = self._tap(f.plus(first, f.times(self.unit, _ELEMENTS)))
        return self.base

    def copy(self, source: Value, stage: Value, term: Value, part: int = 0, parts: int = 1) -> None:
        """Begin to copy the same tap of some windows."""
        f, operand = self.f, self.operand
        tap = self._tap(f.plus(term, f.times(self.unit, _ELEMENTS))) if operand.along_k else self.tap
        for j in range(part, self.passes, parts):
            window = self.windows[j] if operand.along_k else self._window(f.plus(term, self.row, i32(j * self.together)))
            exists = f.binary("and", window.exists, tap.exists)
            total = f.binary("add", window.offset, tap.offset)
            for begin, offset, axis in zip(window.places, tap.places, operand.axes, strict=True):
                exists = f.binary("and", exists, f.below(f.plus(begin, offset), axis.size))  # unsigned: neither side of the image
            pointer = f.element(source, total, 2)
            self.copy_unit(j, pointer, stage, f.select(exists, i32(UNIT), i32(0)))

    def _window(self, number: Value) -> _Place:
        """Locate the first tap of a window."""
        f, operand = self.f, self.operand
        image, *positions = f.coordinates(number, (operand.images, *[axis.windows for axis in operand.axes]))
        places = [f.plus(f.times(p, axis.step), i32(-axis.low)) for p, axis in zip(positions, operand.axes, strict=True)]
        return _Place(f.below(number, operand.windows), places, self._offset([image, *places], operand.strides))

    def _tap(self, feature: Value) -> _Place:
        """Locate a tap and channel in a window."""
        f, operand = self.f, self.operand
        number, channel = f.divided(feature, operand.padded)
        taps = f.coordinates(number, [axis.taps for axis in operand.axes])
        places = [f.times(tap, axis.dilation) for tap, axis in zip(taps, operand.axes, strict=True)]
        exists = f.binary("and", f.below(feature, operand.features), f.below(channel, operand.channels))
        return _Place(exists, places, self._offset([channel, *places], (1, *operand.strides[1:])))

    def _offset(self, places: Sequence[Value], strides: Sequence[int]) -> Value:
        """Emit how far places, which may be before the image, are in memory, in elements."""
        f, total = self.f, i64(0)
        for place, stride in zip(places, strides, strict=True):
            total = f.binary("add", total, f.binary("mul", f.cast("sext", place, "i64"), i64(stride)))
        return total


class _Place(NamedTuple):
    """The place of a window's first tap, or of a tap relative to it."""

    exists: Value
    #: Along every axis.
    places: list[Value]
    #: In memory, in elements.
    offset: Value


def _side(f: KernelFunction, operand: ProductOperand, is_left: bool, schedule: WarpSchedule, offset: int) -> _Side:
    if isinstance(operand, MatrixOperand):
        return _MatrixSide(f, operand, is_left, schedule, offset)
    return _WindowSide(f, operand, is_left, schedule, offset)


class WarpKernel:
    """The kernel of a product by `mma.sync` under construction."""

    def __init__(self, product: MatrixProduct, schedule: WarpSchedule, results: Results, bindings: int) -> None:
        self.product, self.schedule, self.results = product, schedule, results
        self.f = f = KernelFunction(0, bindings, schedule.threads, schedule.residents)
        left = _side(f, product.lhs, True, schedule, 0)
        self.sides = left, _side(f, product.rhs, False, schedule, left.bytes)
        self.down, self.across = tiles(product, schedule)
        self.slices = chunk(product, schedule.splits)
        self.total = self.down * self.across * product.batch * schedule.splits

    @property
    def header(self) -> KernelHeader:
        """How the kernel is launched."""
        return KernelHeader(self.schedule.threads, self.schedule.shared)

    def text(self) -> str:
        """Return the finished module."""
        f, schedule = self.f, self.schedule
        warps = schedule.columns // schedule.warp_columns
        self.warp_row, self.warp_column = f.divided(f.warp, warps)
        for side, warp in zip(self.sides, (self.warp_row, self.warp_column), strict=True):
            side.begin_fragments(warp)
        f.repeat(f.special("ctaid.x"), i32(self.total), f.special("nctaid.x"), [], self._tile)
        return f.text()

    def _tile(self, tile: Value, _: list[Value]) -> None:
        """Compute a tile."""
        f, schedule, stages = self.f, self.schedule, self.schedule.stages
        number, rest = f.divided(tile, self.down * self.across) if self.total > self.down * self.across else (i32(0), tile)
        row, column = f.raster(rest, self.down, self.across)
        split, stack = f.divided(number, self.product.batch) if schedule.splits > 1 else (i32(0), number)
        positions = f.coordinates(stack, self.product.stack)
        begin = f.times(split, self.slices * _TERMS)
        row, column = f.times(row, schedule.rows), f.times(column, schedule.columns)
        sources = [side.begin(first, begin, positions) for side, first in zip(self.sides, (row, column), strict=True)]
        for stage in range(stages - 1):
            for side, source in zip(self.sides, sources, strict=True):
                at = f.further(source, i64(stage * side.advance))
                side.copy(at, i32(stage * schedule.slice_bytes), f.plus(begin, i32(stage * _TERMS)))
            f.commit_copies()
        sources = [f.further(source, i64((stages - 1) * side.advance)) for side, source in zip(self.sides, sources, strict=True)]
        sums = [ZERO] * (schedule.warp_rows * schedule.warp_columns // 32)
        state = [*sources, i32(0), i32((stages - 1) * schedule.slice_bytes), f.plus(begin, i32((stages - 1) * _TERMS)), *sums]
        sums = f.repeat(i32(0), i32(self.slices), i32(1), state, self._slice)[5:]
        f.wait_for_copies(0)
        f.synchronise()
        staging = f.times(f.warp, STAGING)
        row = f.plus(row, f.times(self.warp_row, schedule.warp_rows))
        column = f.plus(column, f.times(self.warp_column, schedule.warp_columns))
        each = schedule.warp_columns // 2
        for block in range(schedule.warp_rows // 16):
            block_sums = sums[block * each : (block + 1) * each]
            self.results.store(f, number, f.plus(row, i32(16 * block)), column, block_sums, staging)
        f.synchronise()

    def _slice(self, _: Value, state: list[Value]) -> list[Value]:
        """Multiply a slice, and begin to copy a later one.

        Copies begin between the products, which hide them.
        """
        f, schedule = self.f, self.schedule
        left, right = self.sides
        sources, (read, written, term), sums = state[:2], state[2:5], state[5:]
        f.wait_for_copies(schedule.stages - 2)
        f.synchronise()
        steps = _TERMS // _STEP
        for step in range(steps):
            rows = [left.fragment(read, step, x) for x in range(schedule.warp_rows // 16)]
            columns = [right.fragment(read, step, y) for y in range(schedule.warp_columns // 16)]
            for side, source in zip(self.sides, sources, strict=True):
                side.copy(source, written, term, step, steps)
            for y in range(schedule.warp_columns // 8):
                for x, fragment in enumerate(rows):
                    at = (x * (schedule.warp_columns // 8) + y) * 4
                    right_fragment = columns[y // 2][y % 2 * 2 : y % 2 * 2 + 2]
                    sums[at : at + 4] = f.multiply_add(left.operand.dtype, fragment, right_fragment, sums[at : at + 4])
        f.commit_copies()
        following = [f.further(source, i64(side.advance)) for side, source in zip(self.sides, sources, strict=True)]
        for stage in (read, written):
            after = f.plus(stage, i32(schedule.slice_bytes))
            following.append(f.select(f.equals(after, schedule.stages * schedule.slice_bytes), i32(0), after))
        return [*following, f.plus(term, i32(_TERMS)), *sums]


# By `wgmma`, for GPUs of compute capability 9.0.
#
# One warp group copies slices of both operands to shared memory by the tensor memory accelerator, as far ahead as there are stages
# (`matrix_units`); one thread of it issues all copies. The others multiply slices from there (`wgmma.mma_async`), the sums in registers,
# and store results by way of shared memory after the stages, of which each warp has a part (`results`). Blocks are persistent: each
# computes several tiles of the results, one after another. The warp groups share a tile's rows; or, with `Schedule.turns`, two of them have
# tiles of their own and multiply in turn, so that one stores while the other multiplies: the named barriers 1 and 2 give the turn to the
# first and the second.


class _GroupSide:
    """A slice of an operand in shared memory, as copies and `wgmma` see it.

    Along k, a row of 128 bytes has terms of one row of the left operand, or one column of the right one. Otherwise the slice is a sequence
    of boxes of rows or columns, whose rows of 128 bytes have one term each. Of these, `wgmma` transposes those of 16 bits alone. Others are
    `apart`: lanes load those of the left operand to registers, and write those of the right one along k.
    """

    def __init__(self, operand: ProductOperand, pointer: Value, tile: int, offset: int) -> None:
        self.operand, self.pointer, self.offset = operand, pointer, offset
        #: The box of a copy, in rows or columns.
        self.box = tile if operand.along_k else ROW // operand.dtype.itemsize
        #: Whole boxes, which may have more than a tile.
        self.tile = -(-tile // self.box) * self.box
        self.bytes = self.tile * ROW
        self.tensor_map = operand.tensor_map(self.box)
        self.apart = not operand.along_k and operand.dtype not in HALVES
        is_read_along_k = operand.along_k or self.apart
        #: The bytes between boxes, in its descriptors.
        self.between_boxes = 16 if is_read_along_k else ROW // 2 * ROW
        #: What the terms of one `wgmma` add to the descriptor.
        self.step = (TERM_BYTES if is_read_along_k else TERM_BYTES // 2 * ROW) >> 4


def _window_box(f: KernelFunction, operand: WindowOperand, outer: Value, term: Value, group: Value) -> tuple[list[Value], list[Value]]:
    """Emit the coordinates of the first window of a box, and the offsets of the tap.

    Both are listed from the contiguous axis outwards. `group` is the number of the matrix in the stack.
    """
    window, feature = (outer, term) if operand.along_k else (term, outer)
    image, *positions = f.coordinates(window, (operand.images, *[axis.windows for axis in operand.axes]))
    number, channel = f.divided(feature, operand.padded)
    exists = f.below(feature, operand.features)  # else there are zeros
    taps = f.coordinates(number, [axis.taps for axis in operand.axes])
    channel = f.select(exists, f.plus(channel, f.times(group, operand.channels)), i32(operand.channels * operand.groups))
    starts = [f.plus(f.times(p, axis.step), i32(-axis.low)) for p, axis in zip(positions, operand.axes, strict=True)]
    offsets = [f.select(exists, f.times(tap, axis.dilation), i32(0)) for tap, axis in zip(taps, operand.axes, strict=True)]
    return [channel, *starts[::-1], image], [f.cast("trunc", offset, "i16") for offset in offsets[::-1]]


class _Fill(NamedTuple):
    """Parts of slices that are copied to the stages of a pipeline.

    The first stage begins at `start`, and others follow.
    """

    pipeline: TilePipeline
    sides: Sequence[_GroupSide]
    start: int
    stage_bytes: int


#: Warps that transpose slices, and the terms that a lane has of a column at a time: 16 bytes.
_TRANSPOSING, _QUAD = 3, 4


class _Slices(NamedTuple):
    """The slices of a tile: how many there are, and the first term of each."""

    total: Value
    term: Callable[[Value], Value]


def _phase_slices(f: KernelFunction, operand: WindowOperand, positions: Sequence[Value]) -> _Slices:
    """Emit the slices of a phase: those of its taps.

    Along every axis these are consecutive.
    """
    digits, ranges = iter(positions), []
    for axis in operand.phases:
        r = next(digits) if axis.phases > 1 else i32(0)
        shift = -(-axis.start // axis.phases)  # so that numbers are not negative
        first = f.quotient(f.plus(r, i32((shift + 1) * axis.phases - 1 - axis.start)), axis.phases)
        end = f.quotient(f.plus(r, i32((shift + 1) * axis.phases + axis.taps - 1 - axis.start)), axis.phases)
        ranges.append((f.minus(first, i32(shift)), f.minus(end, first)))
    each = operand.padded // operand.atom
    total = i32(each)
    for _, count in ranges:
        total = f.binary("mul", total, count)

    def term(k: Value) -> Value:
        tap, part = f.divided(k, each)
        number, size = i32(0), 1
        for axis, (first, count) in zip(operand.axes[::-1], ranges[::-1], strict=True):
            at = f.plus(first, f.binary("urem", tap, count))
            number, tap = f.plus(number, f.times(at, size)), f.binary("udiv", tap, count)
            size *= axis.taps
        return f.plus(f.times(number, operand.padded), f.times(part, operand.atom))

    return _Slices(total, term)


class WarpGroupKernel:
    """The kernel of a product by `wgmma` under construction."""

    def __init__(self, product: MatrixProduct, schedule: Schedule, results: Results, bindings: int) -> None:
        self.product, self.schedule, self.results = product, schedule, results
        self.f = f = KernelFunction(1 + len(product.right), bindings, schedule.threads, schedule.residents)
        self.columns = columns(product, schedule)
        left = _GroupSide(product.lhs, f.maps[0], schedule.rows, 0)
        #: The left operand, and the right ones, which follow one another as one of all columns.
        self.sides = [left]
        for number, operand in enumerate(product.right):
            offset = left.bytes + number * self.columns * ROW
            self.sides.append(_GroupSide(operand, f.maps[1 + number], self.columns, offset))
        self.slice_bytes = sum([side.bytes for side in self.sides])
        down, across = tiles(product, schedule)
        self.down, self.across = down, across
        self.slices = chunk(product, schedule.splits)
        #: The operand whose taps are divided among phases, if any.
        self.phased = next((side for side in product if isinstance(side, WindowOperand) and side.phases), None)
        assert self.phased is None or (schedule.splits == 1 and not schedule.turns), "tiles have different numbers of slices"
        #: Slices whose products may still be under way when those of the next begin: registers may not change while `wgmma` reads them.
        self.ahead = 0 if left.apart else 1
        #: What sums begin with.
        self.zero = ZERO if product.sum_dtype == np.float32 else i32(0)
        #: Terms of a slice.
        self.terms = ROW // product.lhs.dtype.itemsize
        self.total = down * across * product.batch * schedule.splits
        self.base = f.shared_base()
        self.staging = schedule.stages * self.slice_bytes
        barriers = self.staging + schedule.groups * 4 * STAGING
        #: Stages of whole slices. The last one's place has slices of the right operand before they are transposed, if they are.
        stages = schedule.stages - product.transposes
        self.pipeline = TilePipeline(f, self.base, barriers, stages)
        self.stages, self.fills = stages, [_Fill(self.pipeline, self.sides, 0, self.slice_bytes)]
        #: Bytes of shared memory that the schedule does not count.
        self.further = schedule.stages * (self.slice_bytes - schedule.slice_bytes)
        if product.transposes:
            right, place = self.sides[1], barriers + 2 * BARRIER * stages
            untransposed = TilePipeline(f, self.base, place, schedule.untransposed)
            start = stages * self.slice_bytes - right.offset
            self.fills = [_Fill(untransposed, [right], start, right.bytes), _Fill(self.pipeline, [left], 0, self.slice_bytes)]
            self.further = 2 * BARRIER * (schedule.untransposed - 1)
        #: The first tile of the block, and the number of blocks.
        self.first, self.count = f.special("ctaid.x"), f.special("nctaid.x")

    @property
    def header(self) -> KernelHeader:
        """How the kernel is launched."""
        maps = tuple([side.tensor_map for side in self.sides])
        return KernelHeader(self.schedule.threads, self.schedule.shared + self.further, maps)

    def text(self) -> str:
        """Return the finished module."""
        f = self.f
        with f.only_if(f.equals(f.thread, 0)):
            f.prefetch_maps()
            readers = 4 * (1 if self.schedule.turns else self.schedule.groups)
            self.pipeline.begin(readers, 1 + _TRANSPOSING * self.product.transposes)
            if self.product.transposes:
                self.fills[0].pipeline.begin(_TRANSPOSING)
            f.publish_barriers()
        return divide_groups(f, self._copy, self._multiply)

    def _position(self, tile: Value) -> tuple[Value, Value, Value]:
        """Return the number of a tile's product, and its first row and column.

        With split sums, products of the second chunk are numbered after those of the first.
        """
        f, schedule = self.f, self.schedule
        number, rest = f.divided(tile, self.down * self.across) if self.total > self.down * self.across else (i32(0), tile)
        row, column = f.raster(rest, self.down, self.across)
        if self.phased is not None and self.phased.grows:  # long sums first, so that blocks end together
            number = f.minus(i32(self.product.batch - 1), number)
        return number, f.times(row, schedule.rows), f.times(column, self.columns)

    def _slices(self, number: Value) -> tuple[list[Value], _Slices]:
        """Return the place in the stack of the product of a number, and its slices."""
        f, terms = self.f, self.terms
        split, stack = f.divided(number, self.product.batch) if self.schedule.splits > 1 else (i32(0), number)
        positions = f.coordinates(stack, self.product.stack)
        if self.phased is not None:
            return positions, _phase_slices(f, self.phased, positions)
        begin = f.times(split, self.slices * terms)
        return positions, _Slices(i32(self.slices), lambda k: f.plus(begin, f.times(k, terms)))

    # the warp group that copies

    def _copy(self) -> None:
        f, schedule = self.f, self.schedule
        if schedule.registers is not None:
            f.ptx(f"setmaxnreg.dec.sync.aligned.u32 {schedule.registers[0]};")
        with f.only_if(f.equals(f.thread, 0)):
            f.repeat(self.first, i32(self.total), self.count, [i32(0)] * 2 * len(self.fills), self._copy_tile)
        if self.product.transposes:
            self._transpose()

    def _copy_tile(self, tile: Value, state: list[Value]) -> list[Value]:
        f = self.f
        number, row, column = self._position(tile)
        positions, slices = self._slices(number)

        def copy_slice(k: Value, state: list[Value]) -> list[Value]:
            following = []
            for number, (pipeline, sides, start, stage_bytes) in enumerate(self.fills):
                stage, parity = state[2 * number : 2 * number + 2]
                barrier = pipeline.expect(stage, parity, sum([side.bytes for side in sides]))
                to = f.plus(self.base, f.times(stage, stage_bytes))
                term = slices.term(k)
                for side in sides:
                    first = row if side is self.sides[0] else column
                    self._copy_side(side, f.plus(to, i32(start + side.offset)), first, term, positions, barrier)
                following += pipeline.next(stage, parity)
            return following

        return f.repeat(i32(0), slices.total, i32(1), state, copy_slice)

    def _copy_side(self, side: _GroupSide, to: Value, first: Value, term: Value, positions: list[Value], barrier: Value) -> None:
        """Copy a slice of an operand, box by box."""
        f, operand = self.f, side.operand
        for offset in range(0, side.tile, side.box):
            outer, at = f.plus(first, i32(offset)), f.plus(to, i32(offset * ROW))
            if isinstance(operand, WindowOperand):
                group = positions[0] if operand.groups > 1 else i32(0)
                box, taps = _window_box(f, operand, outer, term, group)
                f.copy_box(at, side.pointer, box, barrier, taps)
            else:
                part, along = f.divided(term, operand.padded) if operand.parts > 1 else (None, term)
                further = [positions[axis] for axis, _, _ in operand.steps()] + ([] if part is None else [part])
                f.copy_box(at, side.pointer, [*((along, outer) if operand.along_k else (outer, along)), *further], barrier)

    # its other warps, if the right operand's slices are transposed: a lane has four terms of a column, 16 bytes, at a time

    def _transpose(self) -> None:
        f, right, (source, target) = self.f, self.sides[1], self.fills
        low, (lane_unit, lane_word) = f.remainder(f.lane, 8), f.divided(f.lane, 4)
        moves = []
        for number in range(0, ROW // UNIT, _TRANSPOSING):  # the last quad may be written twice, with the same numbers
            quad = f.umin(f.plus(f.warp, i32(number - 1)), i32(ROW // UNIT - 1))
            unit = f.exclusive_or(lane_unit, f.times(f.remainder(quad, 2), _QUAD))
            begin = f.plus(f.times(quad, _QUAD * ROW), f.times(unit, UNIT), f.times(lane_word, 4))
            moves.append((begin, f.plus(f.times(f.lane, ROW), f.times(f.exclusive_or(quad, low), UNIT))))

        def transpose_slice(_: Value, state: list[Value]) -> list[Value]:
            (stage, parity), (to_stage, to_parity) = state[:2], state[2:]
            source.pipeline.wait(stage, parity)
            target.pipeline.wait_for_room(to_stage, to_parity)
            begin = f.plus(f.times(stage, source.stage_bytes), i32(source.start + right.offset))
            to = f.plus(f.times(to_stage, target.stage_bytes), i32(right.offset))
            for box in range(0, right.bytes, ROW // 4 * ROW):
                for first, place in moves:
                    at = f.plus(begin, first)
                    rows = [f.shared(f.plus(f.exclusive_or(at, k * UNIT), i32(box + k * ROW))) for k in range(_QUAD)]
                    f.store(f.vector([f.load("i32", row, 4) for row in rows]), f.shared(f.plus(to, place, i32(box))), UNIT)
            f.ptx("fence.proxy.async.shared::cta;")
            f.synchronise_warp()
            target.pipeline.fill(to_stage)
            source.pipeline.release(stage)
            return [*source.pipeline.next(stage, parity), *target.pipeline.next(to_stage, to_parity)]

        def transpose_tile(tile: Value, state: list[Value]) -> list[Value]:
            slices = self._slices(self._position(tile)[0])[1]
            return f.repeat(i32(0), slices.total, i32(1), state, transpose_slice)

        with f.only_if(f.compare("icmp ne", f.warp, i32(0))):
            f.repeat(self.first, i32(self.total), self.count, [i32(0)] * 4, transpose_tile)

    # the warp groups that multiply

    def _multiply(self) -> None:
        f, schedule = self.f, self.schedule
        if schedule.registers is not None:
            f.ptx(f"setmaxnreg.inc.sync.aligned.u32 {schedule.registers[1]};")
        self.group = f.minus(f.quotient(f.warp, 4), i32(1))
        self.elements = self._element_offsets() if self.sides[0].apart else []
        if not schedule.turns:
            f.repeat(self.first, i32(self.total), self.count, [i32(0)], self._multiply_tile)
            return
        with f.only_if(f.equals(self.group, 1)):  # the first group may begin
            f.ptx("bar.arrive 1, 256;")
        start = f.plus(self.first, f.binary("mul", self.group, self.count))
        before = f.times(self.group, self.slices)
        with f.only_if(f.below(start, self.total)):
            f.repeat(start, i32(self.total), f.times(self.count, schedule.groups), [before], self._multiply_tile)

    def _multiply_tile(self, tile: Value, state: list[Value]) -> list[Value]:
        """Multiply a tile's slices, and store its results.

        The state is the number of slices copied before.
        """
        f, schedule = self.f, self.schedule
        before = state[0]
        round_, stage = f.divided(before, self.stages)
        part = i32(0) if schedule.turns else self.group
        sums = [self.zero] * (schedule.blocks * schedule.columns // 2)
        if schedule.turns:  # one group multiplies at a time: a wait may not be more than one round of the stages behind
            f.ptx("bar.sync $0, 256;", f.plus(self.group, i32(1)))

        def multiply_slice(k: Value, values: list[Value]) -> list[Value]:
            stage, parity, last = values[:3]
            self.pipeline.wait(stage, parity)
            sums = self._multiply_slice(stage, part, values[3:])
            if self.ahead:  # what the slice before was read from is free now
                with f.only_if(f.compare("icmp ne", k, i32(0))):
                    self.pipeline.release(last)
            else:
                self.pipeline.release(stage)
            return [*self.pipeline.next(stage, parity), stage, *sums]

        state = [stage, f.remainder(round_, 2), i32(0), *sums]
        number, row, column = self._position(tile)
        count = self._slices(number)[1].total
        values = f.repeat(i32(0), count, i32(1), state, multiply_slice)
        last, sums = values[2], values[3:]
        if schedule.turns:
            f.ptx("bar.arrive $0, 256;", f.minus(i32(2), self.group))
        if self.ahead:
            sums = await_products(f, sums)
            self.pipeline.release(last)
        self._store(number, f.plus(row, f.times(part, ROWS * schedule.blocks)), column, sums)
        return [f.plus(before, f.times(count, schedule.groups if schedule.turns else 1))]

    def _multiply_slice(self, stage: Value, part: Value, sums: list[Value]) -> list[Value]:
        """Add the products of a slice to the sums, by one piece of PTX."""
        f, schedule, steps = self.f, self.schedule, []
        left, right = self.sides[:2]
        start = f.plus(self.base, f.times(stage, self.slice_bytes))
        columns = f.descriptor(f.plus(start, i32(right.offset)), right.between_boxes)
        blocks = [f.times(f.plus(f.times(part, schedule.blocks), i32(r)), ROWS * ROW) for r in range(schedule.blocks)]
        words = [self._fragments(f.plus(f.times(stage, self.slice_bytes), block)) if left.apart else [] for block in blocks]
        rows = [f.descriptor(f.plus(start, block), left.between_boxes) for block in blocks if not left.apart]
        for step in range(ROW // TERM_BYTES):
            for r in range(schedule.blocks):
                terms = words[r][4 * step : 4 * step + 4] if left.apart else SharedMatrix(rows[r], step * left.step)
                steps.append(GroupStep(terms, SharedMatrix(columns, step * right.step), r))
        product = GroupProduct(left.operand.dtype, schedule.columns, not left.operand.along_k, not right.operand.along_k)
        return product.begin(f, steps, sums, self.ahead)

    # Rows in registers: of 64 rows and 8 terms, lane 4g + t of a warp has terms t and t + 4 of its rows g and g + 8. A box has 32 rows, a
    # term of which is a row of 128 bytes, whose unit of 16 bytes has its number changed by that of the term, by exclusive or. Lanes with g
    # below 4 load term t first, the others term t + 4, so that all 32 load from different banks.

    def _element_offsets(self) -> list[Value]:
        """Emit the offsets of a lane's first elements in a block of rows.

        They are those of row g, of the term that is loaded first and the other one, then of row g + 8.
        """
        f = self.f
        g, t = f.divided(f.lane, 4)
        box, half = f.divided(f.remainder(f.warp, 4), 2)
        self.swaps, column = f.divided(g, 4)
        term = f.plus(t, f.times(self.swaps, 4))
        unit = f.exclusive_or(f.plus(f.times(half, 4), self.swaps), term)
        first = f.plus(f.times(box, ROWS // 2 * ROW), f.times(term, ROW), f.times(unit, 16), f.times(column, 4))
        return [f.exclusive_or(first, change) for change in (0, 4 * ROW | 4 * 16, 2 * 16, 4 * ROW | 4 * 16 | 2 * 16)]

    def _fragments(self, block: Value) -> list[Value]:
        """Load this lane's elements of a block of rows: four registers for each `wgmma`."""
        f, words = self.f, []
        places = [f.plus(element, block) for element in self.elements]
        swaps = f.equals(self.swaps, 1)
        for step in range(ROW // TERM_BYTES):
            loaded = [f.load("i32", f.shared(f.plus(place, i32(step * 8 * ROW))), 4) for place in places]
            pairs = [(f.select(swaps, b, a), f.select(swaps, a, b)) for a, b in (loaded[:2], loaded[2:])]
            words += [pair[k] for k in range(2) for pair in pairs]
        return words

    def _store(self, number: Value, row: Value, column: Value, sums: list[Value]) -> None:
        """Store the results of a warp: of each block of 64 rows it has 16."""
        f, schedule = self.f, self.schedule
        each = schedule.columns // 2
        staging = f.plus(f.times(f.minus(f.warp, i32(4)), STAGING), i32(self.staging))
        row = f.plus(row, f.times(f.remainder(f.warp, 4), 16))
        for r in range(schedule.blocks):
            self.results.store(f, number, f.plus(row, i32(r * ROWS)), column, sums[r * each : (r + 1) * each], staging)

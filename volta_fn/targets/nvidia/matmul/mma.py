"""Products by `mma.sync`, for GPUs of compute capability 8.0 and later.

All warps copy slices of both operands to shared memory (`cp.async`), in several stages, load fragments from there to registers
(`ldmatrix`) and multiply them. In shared memory the number of a row's unit of 16 bytes is changed by the row's number, by exclusive or, so
that eight rows of a fragment lie in different banks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.targets.nvidia.function import ZERO, KernelFunction, i32
from volta_fn.targets.nvidia.kernel import KernelHeader
from volta_fn.targets.nvidia.matmul.problem import UNIT, MatrixOperand, MatrixProduct, ProductOperand, WindowOperand
from volta_fn.targets.nvidia.matmul.results import Results
from volta_fn.targets.nvidia.matmul.schedule import STAGING, WarpSchedule, chunk, tiles
from volta_fn.targets.nvidia.matrix_units import SwizzledRows, fragment_addresses

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

        def tile(number: Value, _: list[Value]) -> list[Value]:
            self._tile(number)
            return []

        f.repeat(f.special("ctaid.x"), i32(self.total), f.special("nctaid.x"), [], tile)
        return f.text()

    def _tile(self, tile: Value) -> None:
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

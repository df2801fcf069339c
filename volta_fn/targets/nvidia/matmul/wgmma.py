"""Products by `wgmma`, for GPUs of compute capability 9.0.

One warp group copies slices of both operands to shared memory by the tensor memory accelerator, as far ahead as there are stages
(`pipeline`); one thread of it issues all copies. The others multiply slices from there (`wgmma.mma_async`), with the sums in registers, and
store results by way of shared memory after the stages, of which each warp has a part (`results`). Blocks are persistent: each computes
several tiles of the results, one after another. The warp groups share a tile's rows; or, with `Schedule.turns`, two of them have tiles of
their own and multiply in turn, so that one stores while the other multiplies: the named barriers 1 and 2 give the turn to the first and the
second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.function import ZERO, KernelFunction, i32
from volta_fn.targets.nvidia.kernel import KernelHeader
from volta_fn.targets.nvidia.matmul.problem import HALVES, ROW, MatrixProduct, ProductOperand, WindowOperand
from volta_fn.targets.nvidia.matmul.results import Results
from volta_fn.targets.nvidia.matmul.schedule import STAGING, Schedule, chunk, tiles
from volta_fn.targets.nvidia.matrix_units import ROWS, TERM_BYTES, GroupProduct, GroupStep, SharedMatrix, TilePipeline, await_products


class _Side:
    """A slice of an operand in shared memory, as copies and `wgmma` see it.

    Along k, a row of 128 bytes has terms of one row of the left operand, or one column of the right one. Otherwise the slice is a sequence
    of boxes of rows or columns, whose rows of 128 bytes have one term each. Of these, `wgmma` transposes those of 16 bits alone: the left
    operand may have others, which lanes load to registers.
    """

    def __init__(self, operand: ProductOperand, pointer: Value, tile: int, offset: int) -> None:
        self.operand, self.pointer, self.tile, self.offset = operand, pointer, tile, offset
        self.bytes = tile * ROW
        #: The box of a copy, in rows or columns.
        self.box = tile if operand.along_k else ROW // operand.dtype.itemsize
        self.tensor_map = operand.tensor_map(self.box)
        #: The bytes between boxes, in its descriptors.
        self.between_boxes = 16 if operand.along_k else ROW // 2 * ROW
        #: What the terms of one `wgmma` add to the descriptor.
        self.step = (TERM_BYTES if operand.along_k else TERM_BYTES // 2 * ROW) >> 4
        self.in_registers = not operand.along_k and operand.dtype not in HALVES


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
        self.f = f = KernelFunction(2, bindings, schedule.threads, schedule.residents)
        left = _Side(product.lhs, f.maps[0], schedule.rows, 0)
        self.sides = left, _Side(product.rhs, f.maps[1], schedule.columns, left.bytes)
        down, across = tiles(product, schedule)
        self.down, self.across = down, across
        self.slices = chunk(product, schedule.splits)
        #: The operand whose taps are divided among phases, if any.
        self.phased = next((side for side in product if isinstance(side, WindowOperand) and side.phases), None)
        assert self.phased is None or (schedule.splits == 1 and not schedule.turns), "tiles have different numbers of slices"
        assert not self.sides[1].in_registers, "registers are for the left operand"
        #: Slices whose products may still be under way when those of the next begin: registers may not change while `wgmma` reads them.
        self.ahead = 0 if left.in_registers else 1
        #: What sums begin with.
        self.zero = ZERO if product.sum_dtype == np.float32 else i32(0)
        #: Terms of a slice.
        self.terms = ROW // product.lhs.dtype.itemsize
        self.total = down * across * product.batch * schedule.splits
        self.base = f.shared_base()
        self.staging = schedule.stages * schedule.slice_bytes
        barriers = self.staging + schedule.groups * 4 * STAGING
        self.pipeline = TilePipeline(f, self.base, barriers, schedule.stages)
        #: The first tile of the block, and the number of blocks.
        self.first, self.count = f.special("ctaid.x"), f.special("nctaid.x")

    @property
    def header(self) -> KernelHeader:
        """How the kernel is launched."""
        return KernelHeader(self.schedule.threads, self.schedule.shared, (self.sides[0].tensor_map, self.sides[1].tensor_map))

    def text(self) -> str:
        """Return the finished module."""
        f = self.f
        with f.only_if(f.equals(f.thread, 0)):
            self.pipeline.begin(4 * (1 if self.schedule.turns else self.schedule.groups))
            f.publish_barriers()
        f.synchronise()
        f.do(f"br {f.below(f.warp, 4)}, label %copies, label %multiplies")
        f.label("copies")
        self._copy()
        f.do("br label %end")
        f.label("multiplies")
        self._multiply()
        f.do("br label %end")
        f.label("end")
        return f.text()

    def _position(self, tile: Value) -> tuple[Value, Value, Value]:
        """Return the number of a tile's product, and its first row and column.

        With split sums, products of the second chunk are numbered after those of the first.
        """
        f, schedule = self.f, self.schedule
        number, rest = f.divided(tile, self.down * self.across) if self.total > self.down * self.across else (i32(0), tile)
        row, column = f.raster(rest, self.down, self.across)
        if self.phased is not None and self.phased.grows:  # long sums first, so that blocks end together
            number = f.minus(i32(self.product.batch - 1), number)
        return number, f.times(row, schedule.rows), f.times(column, schedule.columns)

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
            f.repeat(self.first, i32(self.total), self.count, [i32(0), i32(0)], self._copy_tile)

    def _copy_tile(self, tile: Value, state: list[Value]) -> list[Value]:
        f = self.f
        number, row, column = self._position(tile)
        positions, slices = self._slices(number)

        def copy_slice(k: Value, state: list[Value]) -> list[Value]:
            stage, parity = state
            other_parity = f.exclusive_or(parity, 1)
            f.wait_for_barrier(self.pipeline.empty(stage), other_parity)
            barrier = self.pipeline.expect(stage, self.schedule.slice_bytes)
            to = f.plus(self.base, f.times(stage, self.schedule.slice_bytes))
            term = slices.term(k)
            for side, first in zip(self.sides, (row, column), strict=True):
                self._copy_side(side, f.plus(to, i32(side.offset)), first, term, positions, barrier)
            return self.pipeline.next(stage, parity)

        return f.repeat(i32(0), slices.total, i32(1), state, copy_slice)

    def _copy_side(self, side: _Side, to: Value, first: Value, term: Value, positions: list[Value], barrier: Value) -> None:
        """Copy a slice of an operand, box by box."""
        f, operand = self.f, side.operand
        for offset in range(0, side.tile, side.box):
            outer, at = f.plus(first, i32(offset)), f.plus(to, i32(offset * ROW))
            if isinstance(operand, WindowOperand):
                group = positions[0] if operand.groups > 1 else i32(0)
                box, taps = _window_box(f, operand, outer, term, group)
                f.copy_box(at, side.pointer, box, barrier, taps)
            else:
                stack = [positions[axis] for axis, _, _ in operand.steps()]
                f.copy_box(at, side.pointer, [*((term, outer) if operand.along_k else (outer, term)), *stack], barrier)

    # the warp groups that multiply

    def _multiply(self) -> None:
        f, schedule = self.f, self.schedule
        if schedule.registers is not None:
            f.ptx(f"setmaxnreg.inc.sync.aligned.u32 {schedule.registers[1]};")
        self.group = f.minus(f.quotient(f.warp, 4), i32(1))
        self.elements = self._element_offsets() if self.sides[0].in_registers else []
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
        round_, stage = f.divided(before, schedule.stages)
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
        left, right = self.sides
        start = f.plus(self.base, f.times(stage, schedule.slice_bytes))
        columns = self._descriptor(right, f.plus(start, i32(right.offset)))
        blocks = [f.times(f.plus(f.times(part, schedule.blocks), i32(r)), ROWS * ROW) for r in range(schedule.blocks)]
        words = [self._fragments(f.plus(f.times(stage, schedule.slice_bytes), block)) if left.in_registers else [] for block in blocks]
        rows = [self._descriptor(left, f.plus(start, block)) for block in blocks if not left.in_registers]
        for step in range(ROW // TERM_BYTES):
            for r in range(schedule.blocks):
                terms = words[r][4 * step : 4 * step + 4] if left.in_registers else SharedMatrix(rows[r], step * left.step)
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

    def _descriptor(self, side: _Side, address: Value) -> Value:
        """Emit the descriptor of a matrix in shared memory."""
        return self.f.descriptor(address, side.between_boxes)

    def _store(self, number: Value, row: Value, column: Value, sums: list[Value]) -> None:
        """Store the results of a warp: of each block of 64 rows it has 16."""
        f, schedule = self.f, self.schedule
        each = schedule.columns // 2
        staging = f.plus(f.times(f.minus(f.warp, i32(4)), STAGING), i32(self.staging))
        row = f.plus(row, f.times(f.remainder(f.warp, 4), 16))
        for r in range(schedule.blocks):
            self.results.store(f, number, f.plus(row, i32(r * ROWS)), column, sums[r * each : (r + 1) * each], staging)

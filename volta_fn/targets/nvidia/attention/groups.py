"""Kernels of attention by `wgmma`, for GPUs of compute capability 9.0.

One warp group copies the rows that the block has, then those of the other arrays tile by tile, by the tensor memory accelerator. Each of
the others has 64 rows, and multiplies them by the rows of a tile. Each of the two arrays of tiles has stages of its own (`TilePipeline`).
Shared memory has the block's rows, the stages of both arrays, results, further bytes of tiles, and barriers, in this order. With
`GroupSchedule.turns` warp groups begin products in turn, which the named barriers from 1 on pass. `kernels` has what the
kernels compute.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from volta_fn.compiler.attention import Attention, Rows
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.attention.tiles import FRAGMENT, FragmentKernel, Fragments, WarpTile, exponent_factor
from volta_fn.targets.nvidia.kernel import KernelFunction, KernelHeader, TensorMap, i32, kernel_dispatch
from volta_fn.targets.nvidia.matmul.problem import ROW, UNIT
from volta_fn.targets.nvidia.matrix_units import (
    BARRIER,
    ROWS,
    GroupProduct,
    GroupStep,
    SharedMatrix,
    TilePipeline,
    await_products,
    divide_groups,
    fragment_addresses,
)
from volta_fn.targets.wgsl.routine import Dispatch

#: Features of a box, and terms of one `wgmma`.
BOX, _TERMS = 64, 16

#: The most axes of a tensor map besides features and rows.
_HEAD_AXES = 3

#: The body of a loop over tiles, of the number of a tile, the state, and whether its keys may be hidden from some queries.
TileBody = Callable[[Value, list[Value], bool | None], list[Value]]

#: Registers by warp groups that multiply and blocks of a multiprocessor: no more together than 128, 168 and 128 for each thread.
_REGISTERS = {(1, 2): (40, 208), (2, 1): (24, 240), (3, 1): (32, 160)}


@dataclass(frozen=True)
class GroupSchedule:
    """A division of the work of a block.

    Its warp groups have 64 rows each; the other arrays' rows follow in tiles.
    """

    groups: int = 2
    tile: int = 128
    #: Tiles in shared memory.
    stages: int = 2
    #: Whether warp groups begin products one after another, so that one multiplies while another computes weights.
    turns: bool = False
    #: Whether a block's rows stay in registers, so that products read the tile alone from shared memory.
    retained: bool = False
    #: Blocks that a multiprocessor has room for.
    residents: int = 1
    #: Whether gradients by keys multiply cotangents by values when weights have been computed and rounded, in the same registers.
    late: bool = False

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return ROWS * self.groups

    @property
    def threads(self) -> int:
        """Threads of a block: one warp group copies."""
        return 128 * (self.groups + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that copies, and of one that multiplies.

        Together they must be no more than the block begins with, or it waits for ever.
        """
        return _REGISTERS[self.groups, self.residents]

    def result_bytes(self, width: int) -> int:
        """Return the bytes of shared memory for the results of a row."""
        return 2 * width

    def shared(self, width: int, operands: int, extra: int) -> int:
        """Return the bytes of shared memory.

        It has the block's rows of `operands` arrays, tiles of two arrays with `extra` bytes more for each row, results, and barriers.
        """
        rows = self.rows * (2 * operands * width + self.result_bytes(width))
        return rows + self.stages * self.tile * (4 * width + extra) + BARRIER * (1 + 4 * self.stages)


def has_tensor_maps(*arrays: Rows) -> bool:
    """Return whether the tensor memory accelerator can copy the arrays' rows.

    All strides must be multiples of 16 bytes.
    """
    return all(
        len(x.heads.sizes) <= _HEAD_AXES and x.step > 0 and all(stride >= 0 and stride % 8 == 0 for stride in (x.step, *x.heads.strides))
        for x in arrays
    )


class GroupArray(NamedTuple):
    """Rows of an array in shared memory.

    They are in boxes of 64 features, whose rows of 128 bytes are those of the tile.
    """

    rows: Rows
    binding: int
    pointer: Value
    #: Rows of a tile.
    tile: int
    #: Where the first tile is.
    offset: int

    @property
    def bytes(self) -> int:
        """Bytes of a tile."""
        return 2 * self.tile * self.rows.width

    @property
    def axes(self) -> list[int]:
        """The axes of heads that lead to other rows, innermost first."""
        return [axis for axis, stride in reversed([*enumerate(self.rows.heads.strides)]) if stride]

    @property
    def tensor_map(self) -> TensorMap:
        """The map of boxes."""
        rows, heads = self.rows, self.rows.heads
        dims = rows.width, rows.count, *[heads.sizes[axis] for axis in self.axes]
        strides = rows.step, *[heads.strides[axis] for axis in self.axes]
        box = BOX, self.tile, *[1 for _ in self.axes]
        return TensorMap(self.binding, rows.dtype.name, 0, dims, tuple([2 * stride for stride in strides]), box)


class GroupKernel(FragmentKernel, ABC):
    """A kernel under construction.

    `row_arrays` are the bindings and arrays of which the block has rows, `column_arrays` the two that follow tile by tile; a tile of the
    first of these has `extra` bytes more for each row. All have the same features.
    """

    #: The blocks of the grid; a block's head and the first of its rows, and the number of its tiles.
    blocks: int
    head: Value
    first: Value
    count: Value
    #: Whether the second array's tile is read together with the next tile of the first, so that it is copied after that.
    is_second_later = False

    def __init__(
        self,
        a: Attention,
        schedule: GroupSchedule,
        bindings: int,
        row_arrays: Sequence[tuple[int, Rows]],
        column_arrays: Sequence[tuple[int, Rows]],
        extra: int = 0,
    ) -> None:
        f = KernelFunction(len(row_arrays) + len(column_arrays), bindings, schedule.threads, schedule.residents)
        super().__init__(f, WarpTile(1, schedule.tile, schedule.tile), a.q.dtype, a.q.width, f.times(f.minus(f.warp, i32(4)), FRAGMENT))
        self.a, self.schedule, self.factor = a, schedule, exponent_factor(a)
        self.row_arrays: list[GroupArray] = []
        self.column_arrays: list[GroupArray] = []
        offset = 0
        for arrays, of_rows, tile, count in (
            (self.row_arrays, row_arrays, schedule.rows, 1),
            (self.column_arrays, column_arrays, schedule.tile, schedule.stages),
        ):
            for binding, rows in of_rows:
                number = len(self.row_arrays) + len(self.column_arrays)
                arrays.append(GroupArray(rows, binding, f.maps[number], tile, offset))
                offset += count * arrays[-1].bytes
        self.results = offset
        #: Bytes more of a tile, and where the first tile's are.
        self.extra_bytes, self.extra = extra * schedule.tile, offset + schedule.rows * schedule.result_bytes(a.q.width)
        #: The address of shared memory, and where barriers are.
        self.base = f.shared_base()
        barriers = self.extra + schedule.stages * self.extra_bytes
        #: The barrier that tells that the block's rows have arrived, and those of each array of tiles.
        self.begun = f.plus(self.base, i32(barriers))
        places = [barriers + BARRIER * (1 + 2 * schedule.stages * side) for side in range(2)]
        self.pipelines = [TilePipeline(f, self.base, place, schedule.stages) for place in places]

    def dispatch(self, buffers: Sequence[int], results: int) -> Dispatch:
        """Return the dispatch of the kernel on buffers.

        It writes the last `results` of them.
        """
        schedule = self.schedule
        shared = schedule.shared(self.width, len(self.row_arrays), self.extra_bytes // schedule.tile)
        header = KernelHeader(schedule.threads, shared, tuple([array.tensor_map for array in (*self.row_arrays, *self.column_arrays)]))
        return kernel_dispatch(header, buffers, results, self._text(), self.blocks)

    def _text(self) -> str:
        """Return the module."""
        f = self.f
        with f.only_if(f.equals(f.thread, 0)):
            f.begin_barrier(self.begun, len(self.row_arrays))
            for pipeline in self.pipelines:
                pipeline.begin(4 * self.schedule.groups)
            self.begin_barriers()
            f.publish_barriers()
        return divide_groups(f, self._copy, self._multiply)

    def _multiply(self) -> None:
        f = self.f
        self.divide_groups()
        f.ptx(f"setmaxnreg.inc.sync.aligned.u32 {self.schedule.registers[1]};")
        #: The number of the thread's warp group among those that multiply.
        self.group = f.minus(f.quotient(f.warp, 4), i32(1))
        f.wait_for_barrier(self.begun, i32(0))
        #: The left operands of the products of each array of rows, by its binding.
        self._left = {array.binding: self._terms_of_rows(array) for array in self.row_arrays}
        self.compute()

    @abstractmethod
    def compute(self) -> None:
        """Append what a warp group computes when the block's rows have arrived."""

    def begin_barriers(self) -> None:
        """Initialise further barriers, if there are any."""

    def assist(self) -> None:
        """Append what other warps do of the warp group that copies, if they do anything."""

    def divide_groups(self) -> None:
        """Append what warp groups do that neither copy nor `compute`, if there are any."""

    # the warp group that copies

    def position(self, tile_number: Value) -> tuple[Value, Value]:
        """Return the head of a tile, and its first row."""
        return self.head, self.f.times(tile_number, self.schedule.tile)

    def copy_extra(self, head: Value, first: Value, to: Value, barrier: Value) -> None:
        """Begin to copy the further bytes of a tile, if it has any."""

    def _copy(self) -> None:
        f = self.f
        f.ptx(f"setmaxnreg.dec.sync.aligned.u32 {self.schedule.registers[0]};")
        with f.only_if(f.equals(f.thread, 0)):
            self._copy_tiles()
        self.assist()

    def _copy_tiles(self) -> None:
        f = self.f
        for array in self.row_arrays:
            f.expect_bytes(self.begun, array.bytes)
            self._copy_rows(array, i32(0), self.head, self.first, self.begun)

        def copy_tile(side: int, tile_number: Value, stage: Value, parity: Value) -> None:
            array, pipeline, (head, first) = self.column_arrays[side], self.pipelines[side], self.position(tile_number)
            extra = 0 if side else self.extra_bytes
            barrier = pipeline.expect(stage, parity, array.bytes + extra)
            self._copy_rows(array, stage, head, first, barrier)
            if extra:
                self.copy_extra(head, first, f.plus(self.base, i32(self.extra), f.times(stage, extra)), barrier)

        def copy_both(tile_number: Value, state: list[Value]) -> list[Value]:
            copy_tile(0, tile_number, *state)
            copy_tile(1, tile_number, *state)
            return self.pipelines[0].next(*state)

        def copy_in_turn(tile_number: Value, state: list[Value]) -> list[Value]:
            following = f.plus(tile_number, i32(1))
            stage = self.pipelines[0].next(*state)
            with f.only_if(f.below(following, self.count)):
                copy_tile(0, following, *stage)
            copy_tile(1, tile_number, *state)
            return stage

        if self.is_second_later:
            copy_tile(0, i32(0), i32(0), i32(0))
        f.repeat(i32(0), self.count, i32(1), [i32(0), i32(0)], copy_in_turn if self.is_second_later else copy_both)

    def _copy_rows(self, array: GroupArray, stage: Value, head: Value, first: Value, barrier: Value) -> None:
        """Begin to copy rows from `first` on, box by box.

        Those beyond the last become zeros.
        """
        f = self.f
        positions = f.coordinates(head, array.rows.heads.sizes)
        to = self.tile_address(array, stage)
        for begin in range(0, array.rows.width, BOX):
            box = [i32(begin), first, *[positions[axis] for axis in array.axes]]
            f.copy_box(f.plus(to, i32(begin // BOX * array.tile * ROW)), array.pointer, box, barrier)

    def tile_address(self, array: GroupArray, stage: Value) -> Value:
        """Return the address of a tile."""
        return self.f.plus(self.base, i32(array.offset), self.f.times(stage, array.bytes))

    # the warp groups that multiply

    def first_masked(self) -> Value | None:
        """Return the first tile with keys that are hidden from some query.

        That is of blocks of queries, for the queries of the warp group; None if all see all.
        """
        f, a, tile = self.f, self.a, self.schedule.tile
        ends = [f.quotient(f.plus(self.first, f.times(self.group, ROWS), i32(1)), tile)] if a.causal else []
        ends += [i32(a.keys // tile)] if a.keys % tile else []
        return f.umin(*ends) if len(ends) == 2 else ends[0] if ends else None

    def take_turn(self) -> None:
        """Wait until the warp group before has begun its products, if they take turns."""
        if self.schedule.turns:
            self.f.ptx(f"bar.sync $0, {2 * 128};", self.f.plus(self.group, i32(1)))

    def end_turn(self) -> None:
        """Let the next warp group begin its products."""
        if self.schedule.turns:
            following = self.f.plus(self.group, i32(1))
            wrapped = self.f.select(self.f.equals(following, self.schedule.groups), i32(0), following)
            self.f.ptx(f"bar.arrive $0, {2 * 128};", self.f.plus(wrapped, i32(1)))

    def begin_turns(self) -> None:
        """Let the first warp group begin."""
        if self.schedule.turns:
            with self.f.only_if(self.f.equals(self.group, self.schedule.groups - 1)):
                self.end_turn()

    def begin_products(self, left: GroupArray, right: GroupArray, stage: Value) -> list[Value]:
        """Begin to multiply the group's rows of an array by those of a tile.

        The tile's rows are columns of the result.
        """
        f = self.f
        descriptor = f.descriptor(self.tile_address(right, stage), 16)
        terms = [SharedMatrix(descriptor, further) for further in self._terms(right)]
        steps = [GroupStep(*operands) for operands in zip(self._left[left.binding], terms, strict=True)]
        return GroupProduct(self.dtype, right.tile).begin(f, steps)

    def _terms_of_rows(self, array: GroupArray) -> Sequence[SharedMatrix | Sequence[Value]]:
        """Return the group's rows of an array as left operands of each `wgmma`."""
        f = self.f
        if not self.schedule.retained:
            descriptor = f.descriptor(f.plus(self.base, i32(array.offset), f.times(self.group, ROWS * ROW)), 16)
            return [SharedMatrix(descriptor, further) for further in self._terms(array)]
        places = fragment_addresses(f, ROW, self.first_row, i32(0), ROW // UNIT, crossed=False)
        boxes = [array.offset + box * array.tile * ROW for box in range(self.width // BOX)]
        return [f.load_matrices(f.shared(f.plus(place, i32(box))), transposed=False) for box in boxes for place in places]

    def _terms(self, array: GroupArray) -> list[int]:
        """Return where the terms of each `wgmma` begin in a tile, in units of 16 bytes."""
        places = [divmod(term, BOX) for term in range(0, self.width, _TERMS)]
        return [(box * array.tile * ROW + 2 * inside) >> 4 for box, inside in places]

    def begin_adding(self, sums: Sequence[Value], left: Fragments, right: GroupArray, stage: Value) -> list[Value]:
        """Begin to add the products of fragments and a tile.

        The tile's rows are terms, and its features columns of the result.
        """
        f, (fragments,) = self.f, left
        descriptor = f.descriptor(self.tile_address(right, stage), right.tile * ROW)
        terms = [SharedMatrix(descriptor, (_TERMS * k * ROW) >> 4) for k in range(len(fragments))]
        steps = [GroupStep(*operands) for operands in zip(fragments, terms, strict=True)]
        return GroupProduct(self.dtype, self.width, right_across=True).begin(f, steps, sums)

    def over_tiles(self, start: int, middle: Value | None, masked_first: bool, begin: Sequence[Value], body: TileBody) -> list[Value]:
        """Append the loop over tiles from `start` on.

        The body is ``body(number, state, is_masked)``. If it masks while products with rows in registers are under way, there are two
        loops, of tiles before and from `middle` on; masks are needed in one of them, the first if `masked_first`. So no body branches
        before these products have ended, where ptxas 13.0 changes registers that they still read. Otherwise, or if `middle` is None,
        `is_masked` is None: then the body has to find out.
        """
        f, first = self.f, i32(start)
        if middle is None or not (self.schedule.retained or self.is_second_later):

            def loop_over_all() -> list[Value]:
                return f.repeat(first, self.count, i32(1), begin, lambda number, state: body(number, state, None))

            return f.branch(f.below(first, self.count), loop_over_all, lambda: begin) if start else loop_over_all()
        second = f.umin(middle, self.count)
        second = f.select(f.below(second, first), first, second) if start else second

        def part(start: Value, end: Value, is_masked: bool, state: Sequence[Value]) -> list[Value]:
            def loop() -> list[Value]:
                return f.repeat(start, end, i32(1), state, lambda number, state: body(number, state, is_masked))

            return f.branch(f.below(start, end), loop, lambda: state)

        return part(second, self.count, not masked_first, part(first, second, masked_first, begin))

    def begin_results(self) -> int:
        """Return where results pass through shared memory, when that is free."""
        return self.results

    def await_products(self, values: Sequence[Value], remaining: int = 0) -> list[Value]:
        """Wait for products, as `matrix_units.await_products` does."""
        return await_products(self.f, values, remaining)

    def settle(self, values: Sequence[Value]) -> None:
        """Compute values before products are awaited.

        The driver's compiler moves a wait before all that does not depend on it, except for a store. This one goes where the warp's results
        will be.
        """
        f = self.f
        start = f.plus(f.times(self.first_row, 2 * self.width), f.times(f.lane, 4))
        for number, value in enumerate(values):
            to = f.shared(f.plus(start, i32(self.results + 128 * number)))
            f.do(f"store volatile {value}, {to}, align 4")

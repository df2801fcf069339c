"""Convolutions by patches of images.

A patch has the pixels of many overlapping windows. A tile of windows meets most pixels once for every tap. A block copies each pixel once,
some channels at a time, and multiplies all taps by windows from the same patch in shared memory: `wgmma` reads a matrix from any row of the
swizzle on, and its groups of eight rows may be any number of rows apart. So the windows of a tap are the patch, from another pixel on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, gcd, prod
from typing import ClassVar, NamedTuple

import numpy as np

from volta_fn.compiler.contractions import ResultMap, Walk
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.kernel import ZERO, KernelFunction, KernelHeader, TensorMap, i32
from volta_fn.targets.nvidia.matmul.problem import ROW, STAGING, MatrixOperand, MatrixProduct, WindowAxis, WindowOperand, split_cost
from volta_fn.targets.nvidia.matmul.results import Results, Rounded, Stored
from volta_fn.targets.nvidia.matrix_units import (
    ROWS,
    TERM_BYTES,
    GroupProduct,
    GroupStep,
    SharedMatrix,
    TilePipeline,
    await_products,
    divide_groups,
)

# Patches. With steps between windows, the taps whose elements leave the same remainder have a patch of their own, of every second, third, …
# pixel.

#: Columns of products are in groups of so many, and stored in twice as many; they have at most so many columns, and a box at most so many
#: pixels along an axis.
_EIGHT, _SIXTEEN, _MOST_COLUMNS, _LARGEST_BOX = 8, 16, 256, 256

#: Patches in shared memory: the next one is copied while one is multiplied.
_PATCHES = 2

#: Warp groups that multiply, in turns.
_GROUPS = 2

#: Registers of a thread that copies, and of one that multiplies.
_REGISTERS = 40, 232

#: The alignment of a patch.
_ALIGNMENT = 1024


class Residue(NamedTuple):
    """The taps of an axis whose elements leave the same remainder.

    They are divided by the step between windows.

    Attributes:
        remainder: what they leave.
        first: the number of the first tap's element in window 0, among those that leave it.
        tap: the first tap.
        step: the number of taps from one to the next.
        taps: their number.
        apart: the elements from one to the next, among those.
    """

    remainder: int
    first: int
    tap: int
    step: int
    taps: int
    apart: int

    @property
    def span(self) -> int:
        """The elements after the first one that the taps of a window meet."""
        return (self.taps - 1) * self.apart


def residues(axis: WindowAxis) -> list[Residue]:
    """Return the taps of an axis by what their elements leave."""
    taps: dict[int, list[tuple[int, int]]] = {}
    for tap in range(axis.taps):
        number, remainder = divmod(tap * axis.dilation - axis.low, axis.step)
        taps.setdefault(remainder, []).append((tap, number))
    listed = []
    for remainder, ((tap, first), *others) in taps.items():
        step, apart = (others[0][0] - tap, others[0][1] - first) if others else (0, 0)
        listed.append(Residue(remainder, first, tap, step, 1 + len(others), apart))
    return listed


class PatchTile(NamedTuple):
    """A tile of windows: so many images, rows and columns of windows.

    Attributes:
        row: the pixels of a row of a patch.
        period: the columns of a product that a row of windows has: eight, or those of a whole row of the patch.
        columns: the columns of a product.
    """

    images: int
    height: int
    width: int
    row: int
    period: int
    columns: int

    @property
    def is_strip(self) -> bool:
        """Whether rows of windows are eight columns; else columns are consecutive pixels."""
        return self.period == _EIGHT

    @property
    def between_eights(self) -> int:
        """The bytes between groups of eight columns."""
        return (self.row if self.is_strip else _EIGHT) * ROW


@dataclass(frozen=True)
class PatchSchedule:
    """A tiling by patches: two warp groups that multiply in turns, a third one copies."""

    kind: ClassVar = "patches"
    tile: PatchTile
    #: Bytes of a patch, and slices of taps in shared memory.
    patch_bytes: int
    stages: int
    #: Chunks of each sum that different blocks compute; a second dispatch adds them up.
    splits: int = 1
    rows: ClassVar = ROWS
    threads: ClassVar = 128 * (_GROUPS + 1)

    @property
    def columns(self) -> int:
        """The columns of a tile."""
        return self.tile.columns

    @property
    def slices(self) -> int:
        """The offset of slices of taps."""
        return _PATCHES * self.patch_bytes

    @property
    def staging(self) -> int:
        """The offset of what warps stage."""
        return self.slices + self.stages * ROWS * ROW

    @property
    def barriers(self) -> int:
        """The offset of barriers."""
        return self.staging + _GROUPS * 4 * STAGING

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.barriers + 16 * (_PATCHES + self.stages)


class Patches(NamedTuple):
    """A product of taps and windows, as one of taps and patches."""

    taps: MatrixOperand
    windows: WindowOperand

    @property
    def product(self) -> MatrixProduct:
        """The product: outputs are its rows."""
        return MatrixProduct(self.taps, self.windows)

    @property
    def axes(self) -> tuple[WindowAxis, WindowAxis]:
        """The rows and columns of images."""
        *before, last = self.windows.axes
        return (before[0] if before else WindowAxis(1, 1, 1, 1, 1, 0)), last

    @property
    def strides(self) -> tuple[int, int, int]:
        """The strides of images, rows and columns."""
        image, *before, last = self.windows.strides
        return image, (before[0] if before else image), last

    @property
    def chunks(self) -> int:
        """The chunks of channels."""
        return self.windows.padded // self.windows.atom

    @property
    def groups(self) -> int:
        """The groups of channels."""
        return self.windows.groups

    def residues(self) -> list[tuple[Residue, Residue]]:
        """Return the patches of a tile by what the elements of their taps leave, by axis."""
        down, across = map(residues, self.axes)
        return [(rows, columns) for rows in down for columns in across]

    def counts(self, tile: PatchTile) -> tuple[int, int, int]:
        """Return the number of tiles along images, rows and columns."""
        down, across = self.axes
        return ceil(self.windows.images / tile.images), ceil(down.windows / tile.height), ceil(across.windows / tile.width)

    def patch_rows(self, tile: PatchTile) -> int:
        """Return the pixels of the largest patch."""
        return tile.images * tile.row * (tile.height + max(rows.span for rows, _ in self.residues()))


def patches(product: MatrixProduct) -> Patches | None:
    """Return a product of windows as one of patches; None if there are none.

    Windows have one or two axes, several taps, and no phases. Sums are over taps and channels.
    """
    windows, taps = (product.lhs, product.rhs) if isinstance(product.lhs, WindowOperand) else (product.rhs, product.lhs)
    if not isinstance(windows, WindowOperand) or not isinstance(taps, MatrixOperand) or not windows.along_k or windows.phases:
        return None
    if not 1 <= len(windows.axes) <= 2 or prod([axis.taps for axis in windows.axes]) == 1:
        return None
    if any(axis.size < axis.step for axis in windows.axes):
        return None
    return Patches(taps._replace(binding=0), windows._replace(binding=1))


def tiles(problem: Patches) -> Iterator[PatchTile]:
    """Yield the tiles that a problem may be computed by.

    A row of windows is eight columns, or else the columns are a patch's pixels from the first one on: then some are no windows.
    """
    down, across = problem.axes
    spans = [max(residue.span for residue in residues(axis)) for axis in (down, across)]
    for width, row in {(_EIGHT, _EIGHT + spans[1]), (across.windows, across.windows + spans[1])}:
        period = _EIGHT if width == _EIGHT else row
        heights = sorted({ceil(down.windows / parts) for parts in range(1, down.windows + 1)})
        for height in heights:
            for images in range(1, problem.windows.images + 1) if height == down.windows else (1,):
                rows = height * images
                columns = ceil((rows * _EIGHT if period == _EIGHT else (rows - 1) * row + width) / _SIXTEEN) * _SIXTEEN
                if columns > _MOST_COLUMNS or max(row, images, height + spans[0]) > _LARGEST_BOX:
                    break
                yield PatchTile(images, height, width, row, period, columns)


# The estimate of times is that of other products (`matmul.problem`).

#: What a slice costs besides its products, and what a row of it costs to copy; how much longer all of them take beside other tiles, whose
#: costs were measured with more slices.
_SLICE_COST, _ROW_COST, _RATIO = 1500, 73, 1.15

#: How long a patch takes to arrive: one is on its way while another one is multiplied.
_LATENCY = 22_400

#: What storing a number of the last tile costs, and a tile besides.
_STORE_COST, _TILE_COST = 3, 40_000

#: Slices of taps in shared memory, at most and at least.
_MOST_STAGES, _FEWEST_STAGES = 8, 3


def schedules(problem: Patches, memory: int, most_splits: int) -> Iterator[PatchSchedule]:
    """Yield the schedules of a problem that fit into shared memory."""
    for tile in tiles(problem):
        rows = problem.patch_rows(tile) + _SIXTEEN + tile.row  # columns after the last window read beyond
        size = ceil(rows * ROW / _ALIGNMENT) * _ALIGNMENT
        room = memory - PatchSchedule(tile, size, 0).shared
        stages = min(_MOST_STAGES, room // (ROWS * ROW + 16))
        if stages < _FEWEST_STAGES:
            continue
        for splits in range(1, min(most_splits, problem.chunks) + 1):
            if problem.chunks % splits == 0:
                yield PatchSchedule(tile, size, stages, splits)


def cost(problem: Patches, schedule: PatchSchedule, processors: int) -> float:
    """Estimate the time of a schedule."""
    tile, outputs = schedule.tile, problem.taps.outer
    count = prod(problem.counts(tile)) * problem.groups * ceil(outputs / ROWS) * schedule.splits
    each = 0
    for rows, columns in problem.residues():
        taps, pixels = rows.taps * columns.taps, tile.images * tile.row * (tile.height + rows.span)
        each += max(taps * ROWS * tile.columns, _ROW_COST * (taps * ROWS + pixels), _LATENCY) + taps * _SLICE_COST
    time = _RATIO * ceil(count / processors) * each * problem.chunks / schedule.splits + _STORE_COST * ROWS * tile.columns + _TILE_COST
    return time + split_cost(schedule.splits, problem.groups * outputs * problem.windows.windows, processors)


def estimated(problem: Patches, device: TargetCapabilities, most_splits: int) -> PatchSchedule | None:
    """Return the schedule estimated to be fastest; None if none fits."""
    options = schedules(problem, device.block_memory, most_splits)
    return min(options, key=lambda s: cost(problem, s, device.processors), default=None)


# Results.


class PatchTarget(NamedTuple):
    """Where the results of tiles are.

    The number of a product is that of a split, a group and a tile of windows.
    """

    problem: Patches
    tile: PatchTile
    map: ResultMap

    def exists(self, f: KernelFunction, number: Value, row: Value, column: Value) -> list[Value]:
        """Emit the conditions of a row and a column: that they are an output and a window."""
        tile, counts = self.tile, self.problem.counts(self.tile)
        down, across = self.problem.axes
        *_, image_tile, row_tile, column_tile = f.coordinates(number, (1 << 30, *counts))
        line, image, window = f.coordinates(column, (tile.height, tile.images, tile.period))
        conditions = [f.below(row, self.problem.taps.outer)] if self.problem.taps.outer % ROWS else []
        if tile.period > tile.width:
            conditions.append(f.below(window, tile.width))
        if across.windows % tile.width:
            conditions.append(f.below(f.plus(f.times(column_tile, tile.width), window), across.windows))
        if self.problem.windows.images % tile.images:
            conditions.append(f.below(f.plus(f.times(image_tile, tile.images), image), self.problem.windows.images))
        if down.windows % tile.height:
            conditions.append(f.below(f.plus(f.times(row_tile, tile.height), line), down.windows))
        windows = tile.period * tile.images * tile.height
        if windows < tile.columns or tile.columns % (ROW // 4):
            conditions.append(f.below(column, min(windows, tile.columns)))
        return conditions


def target(problem: Patches, schedule: PatchSchedule, dtype: np.dtype, elements: int, start: int, strides: Sequence[int]) -> PatchTarget:
    """Return where results lie.

    `strides` are those of groups, images, outputs, rows and columns. With `splits` each chunk of the sums has an array of its own.
    """
    tile = schedule.tile
    group, image, output, down, across = strides
    images, rows, columns = problem.counts(tile)
    stack = Walk(
        (schedule.splits, problem.groups, images, rows, columns),
        (elements, group, tile.images * image, tile.height * down, tile.width * across),
    )
    together = gcd(tile.period, tile.width, problem.axes[1].windows, _EIGHT)  # windows that follow one another exist together
    walk = Walk((tile.height, tile.images, tile.period // together, together), (down, image, together * across, across))
    return PatchTarget(problem, tile, ResultMap(dtype, elements, start, stack, Walk((problem.taps.outer,), (output,)), walk))


def results(place: PatchTarget, schedule: PatchSchedule, binding: int) -> Results:
    """Return the way to store results."""
    store = Rounded if place.map.dtype.itemsize == 2 and Rounded.fits(place.map) else Stored
    return store(place.problem.product, schedule, place.map, binding, place.exists)


class PatchKernel:
    """The kernel of a problem under construction."""

    def __init__(self, problem: Patches, schedule: PatchSchedule, results: Results, bindings: int) -> None:
        self.problem, self.schedule, self.results = problem, schedule, results
        self.residues = problem.residues()
        self.f = f = KernelFunction(1 + len(self.residues), bindings, schedule.threads)
        self.taps_map = problem.taps.tensor_map(ROWS)
        self.patch_maps = [self._patch_map(*pair) for pair in self.residues]
        self.down = ceil(problem.taps.outer / ROWS)
        self.total = self.down * prod(problem.counts(schedule.tile)) * problem.groups * schedule.splits
        self.chunks = problem.chunks // schedule.splits
        self.base = f.shared_base()
        self.slices = TilePipeline(f, self.base, schedule.barriers, schedule.stages)
        self.patches = TilePipeline(f, self.base, schedule.barriers + 16 * schedule.stages, _PATCHES)
        self.first, self.count = f.special("ctaid.x"), f.special("nctaid.x")

    def _patch_map(self, rows: Residue, columns: Residue) -> TensorMap:
        """Return the tensor map of patches of pixels whose places leave these remainders."""
        windows, tile, (down, across) = self.problem.windows, self.schedule.tile, self.problem.axes
        image, row, column = self.problem.strides
        size = windows.dtype.itemsize
        heights, widths = [ceil((axis.size - x.remainder) / axis.step) for axis, x in ((down, rows), (across, columns))]
        dims = (windows.channels * windows.groups, widths, windows.images, heights)
        strides = tuple([x * size for x in (column * across.step, image, row * down.step)])
        offset = (windows.start + rows.remainder * row + columns.remainder * column) * size
        box = (windows.atom, tile.row, tile.images, tile.height + rows.span)
        return TensorMap(windows.binding, windows.dtype.name, offset, dims, strides, box)

    @property
    def header(self) -> KernelHeader:
        """How the kernel is launched."""
        return KernelHeader(self.schedule.threads, self.schedule.shared, (self.taps_map, *self.patch_maps))

    def text(self) -> str:
        """Return the finished module."""
        f = self.f
        with f.only_if(f.equals(f.thread, 0)):
            f.prefetch_maps()
            self.slices.begin(4)
            self.patches.begin(4)
            f.publish_barriers()
        return divide_groups(f, self._copy, self._multiply)

    def _position(self, tile: Value) -> tuple[Value, Value]:
        """Return the number of a tile's product, and its first output."""
        number, row = self.f.divided(tile, self.down)
        return number, self.f.times(row, ROWS)

    def _digits(self, number: Value) -> tuple[Value, Value, list[Value]]:
        """Return the first chunk of a product's channels, its group, and its tile by axis."""
        problem, schedule = self.problem, self.schedule
        counts = problem.counts(schedule.tile)
        split, group, *tile = self.f.coordinates(number, (schedule.splits, problem.groups, *counts))
        return self.f.times(split, self.chunks), group, tile

    def _each(self, body: Callable[[Value, int, Value, list[Value]], list[Value]], state: list[Value]) -> list[Value]:
        """Emit the loops over chunks of channels, patches, and taps.

        A body has their numbers.
        """

        def chunk(number: Value, state: list[Value]) -> list[Value]:
            for patch, pair in enumerate(self.residues):

                def slice_(tap: Value, state: list[Value], patch: int = patch) -> list[Value]:
                    return body(number, patch, tap, state)

                state = self.f.repeat(i32(0), i32(prod([x.taps for x in pair])), i32(1), state, slice_)
            return state

        return self.f.repeat(i32(0), i32(self.chunks), i32(1), state, chunk)

    # the warp group that copies

    def _copy(self) -> None:
        f = self.f
        f.ptx(f"setmaxnreg.dec.sync.aligned.u32 {_REGISTERS[0]};")
        for thread, copy in ((0, self._copy_taps), (32, self._copy_patches)):
            with f.only_if(f.equals(f.thread, thread)):
                f.repeat(self.first, i32(self.total), self.count, [i32(0), i32(0)], copy)

    def _copy_taps(self, tile: Value, state: list[Value]) -> list[Value]:
        f, problem, windows = self.f, self.problem, self.problem.windows
        number, row = self._position(tile)
        first, group, _ = self._digits(number)
        stack = [group] if problem.groups > 1 else []

        def copy(chunk: Value, patch: int, k: Value, state: list[Value]) -> list[Value]:
            stage, parity = state
            barrier = self.slices.expect(stage, parity, ROWS * ROW)
            down, across = [
                f.plus(i32(x.tap), f.times(place, x.step)) for x, place in zip(self.residues[patch], self._tap(patch, k), strict=True)
            ]
            tap = f.plus(f.times(down, problem.axes[1].taps), across)
            term = f.plus(f.times(tap, windows.padded), f.times(f.plus(first, chunk), windows.atom))
            to = f.plus(self.base, i32(self.schedule.slices), f.times(stage, ROWS * ROW))
            f.copy_box(to, f.maps[0], [*((term, row) if problem.taps.along_k else (row, term)), *stack], barrier)
            return self.slices.next(stage, parity)

        return self._each(copy, state)

    def _tap(self, patch: int, k: Value) -> tuple[Value, Value]:
        """Return the row and column of a tap among those of a patch."""
        return self.f.divided(k, self.residues[patch][1].taps)

    def _copy_patches(self, tile: Value, state: list[Value]) -> list[Value]:
        f, windows, shape = self.f, self.problem.windows, self.schedule.tile
        number, _ = self._position(tile)
        first, group, (image, row, column) = self._digits(number)

        def chunk(k: Value, state: list[Value]) -> list[Value]:
            stage, parity = state
            channel = f.plus(f.times(group, windows.channels), f.times(f.plus(first, k), windows.atom))
            for number, (down, across) in enumerate(self.residues):
                barrier = self.patches.expect(stage, parity, prod(self.patch_maps[number].box[1:]) * ROW)
                x, y = f.plus(f.times(column, shape.width), i32(across.first)), f.plus(f.times(row, shape.height), i32(down.first))
                position = [channel, x, f.times(image, shape.images), y]
                to = f.plus(self.base, f.times(stage, self.schedule.patch_bytes))
                f.copy_box(to, f.maps[1 + number], position, barrier)
                stage, parity = self.patches.next(stage, parity)
            return [stage, parity]

        return f.repeat(i32(0), i32(self.chunks), i32(1), state, chunk)

    # the warp groups that multiply

    def _multiply(self) -> None:
        f = self.f
        f.ptx(f"setmaxnreg.inc.sync.aligned.u32 {_REGISTERS[1]};")
        self.group = f.minus(f.quotient(f.warp, 4), i32(1))
        with f.only_if(f.equals(self.group, 1)):  # the first group may begin
            f.ptx("bar.arrive 1, 256;")
        start = f.plus(self.first, f.binary("mul", self.group, self.count))
        with f.only_if(f.below(start, self.total)):
            f.repeat(start, i32(self.total), f.times(self.count, _GROUPS), [self.group], self._multiply_tile)

    def _multiply_tile(self, tile: Value, state: list[Value]) -> list[Value]:
        """Multiply a tile's slices, and store its results.

        The state is the number of the block's tiles before.
        """
        f, schedule = self.f, self.schedule
        taps = prod([axis.taps for axis in self.problem.axes])
        round_, stage = f.divided(f.times(state[0], self.chunks * taps), schedule.stages)
        before = f.times(state[0], self.chunks * len(self.residues))
        sums = [ZERO] * (schedule.columns // 2)
        f.ptx("bar.sync $0, 256;", f.plus(self.group, i32(1)))

        def multiply(chunk: Value, patch: int, k: Value, values: list[Value]) -> list[Value]:
            stage, parity, last = values[:3]
            number = f.plus(before, f.times(chunk, len(self.residues)), i32(patch))
            patch_round, patch_stage = f.divided(number, _PATCHES)
            self.patches.wait(patch_stage, f.remainder(patch_round, 2))
            self.slices.wait(stage, parity)
            sums = self._multiply_slice(stage, patch_stage, patch, k, values[3:])
            # what the slice before was read from is free now
            is_first = f.binary("and", f.equals(chunk, 0), f.equals(k, 0)) if patch == 0 else Value("i1", "false")
            with f.only_if(f.binary("xor", is_first, Value("i1", "true"))):
                self.slices.release(last)
                with f.only_if(f.equals(k, 0)):
                    self.patches.release(f.remainder(f.plus(number, i32(_PATCHES - 1)), _PATCHES))
            return [*self.slices.next(stage, parity), stage, *sums]

        values = self._each(multiply, [stage, f.remainder(round_, 2), i32(0), *sums])
        f.ptx("bar.arrive $0, 256;", f.minus(i32(2), self.group))
        sums = await_products(f, values[3:])
        self.slices.release(values[2])
        self.patches.release(f.remainder(f.plus(before, i32(self.chunks * len(self.residues) - 1)), _PATCHES))
        number, row = self._position(tile)
        place = f.plus(i32(schedule.staging), f.times(f.minus(f.warp, i32(4)), STAGING))
        row = f.plus(row, f.times(f.remainder(f.warp, 4), ROWS // 4))
        self.results.store(f, number, row, i32(0), sums, place)
        return [f.plus(state[0], i32(_GROUPS))]

    def _multiply_slice(self, stage: Value, patch_stage: Value, patch: int, k: Value, sums: list[Value]) -> list[Value]:
        """Add the products of a tap and some channels to the sums."""
        f, schedule, tile = self.f, self.schedule, self.schedule.tile
        down, across = self._tap(patch, k)
        rows, columns = self.residues[patch]
        pixel = f.plus(f.times(down, rows.apart * tile.images * tile.row), f.times(across, columns.apart))
        right_at = f.plus(self.base, f.times(patch_stage, schedule.patch_bytes), f.times(pixel, ROW))
        left_at = f.plus(self.base, i32(schedule.slices), f.times(stage, ROWS * ROW))
        left, right = f.descriptor(left_at, 16), f.descriptor(right_at, 16, tile.between_eights)
        taps_across = not self.problem.taps.along_k
        left_step = TERM_BYTES // self.problem.windows.dtype.itemsize * ROW if taps_across else TERM_BYTES
        steps = [
            GroupStep(SharedMatrix(left, step * left_step >> 4), SharedMatrix(right, step * TERM_BYTES >> 4))
            for step in range(ROW // TERM_BYTES)
        ]
        return GroupProduct(self.problem.windows.dtype, tile.columns, taps_across).begin(f, steps, sums, 1)

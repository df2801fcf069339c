"""Direct convolution: sums as defined, with vectors along positions or groups.

Where a group has few outputs, vectors along the outputs would be mostly empty. Vectors *along positions* take neighbours along an axis,
if windows move along it by single steps, and one tap for all of them. Vectors *along groups* serve depthwise convolutions whose channels
are innermost: every lane is a convolution of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from volta_fn.compiler.contractions import Correlation
from volta_fn.runtime.llvm.text import Function, Value
from volta_fn.targets.cpu.convolution.blocking import (
    NANOSECONDS,
    TILE,
    Arguments,
    CacheBlocks,
    CorrelationBuilder,
    RegisterTile,
    SumTile,
    divisor,
    fitting,
    register_tile,
)
from volta_fn.targets.cpu.convolution.emission import (
    Index,
    InputTile,
    LoopIndex,
    Operands,
    TileLoops,
    block_starts,
    dense,
    fill_zeros,
    gather,
    plus,
    repeat,
    split,
    tile_of,
    times,
)
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, stored_as

#: Registers for sums along groups; others hold elements of x for several taps.
_FEW_REGISTERS = 16


@dataclass(frozen=True)
class DirectPlan:
    """How one correlation is computed."""

    c: Correlation
    work: ComputeType
    #: The index along vectors: "g", or an axis of positions ("p0", …).
    along: str
    #: How many of these a block has.
    lanes: int
    blocks: CacheBlocks
    tile: RegisterTile

    @property
    def grid(self) -> list[int]:
        """The number of blocks of groups, images, and positions along every axis."""
        groups = -(-self.c.groups // self.lanes) if self.along == "g" else self.c.groups
        positions = [-(-axis.positions // size) for axis, size in zip(self.c.axes, self.blocks.positions, strict=True)]
        return [groups, self.c.images, *positions]

    @property
    def iterations(self) -> list[int]:
        """The number of blocks of the sum, along channels and the taps of the first axis."""
        return [self.c.channels // self.blocks.channels, self.c.axes[0].taps // self.blocks.taps[0]]

    @property
    def cycles(self) -> float:
        """The estimated cycles."""
        return self.tile.cycles * self.c.channels * self.c.taps * prod(self.grid)


def direct_plans(c: Correlation, work: ComputeType) -> list[DirectPlan]:
    """Return plans to compute a correlation directly, one per axis that vectors suit."""
    return [plan for along in ("g", *(f"p{i}" for i in range(len(c.axes)))) if (plan := _along(c, work, along)) is not None]


def _along(c: Correlation, work: ComputeType, along: str) -> DirectPlan | None:
    if along == "g":
        vectors = c.groups // work.lanes
        if vectors == 0 or c.groups % work.lanes or c.x.strides[0] != 1 or c.w.strides[0] != 1:
            return None
        wide = divisor(vectors, 4 if c.images * c.positions > 256 else max(1, vectors // 2))
        return _planned(c, work, along, wide * work.lanes)
    number = int(along[1:])
    axis = c.axes[number]
    if axis.stride != 1 or axis.positions < 2 or 1 not in (c.x.strides[3 + number], c.x.strides[2]):
        return None
    return _planned(c, work, along, 1)


def _planned(c: Correlation, work: ComputeType, along: str, groups: int) -> DirectPlan | None:
    """Choose blocks of few positions or, where windows are large, of few taps."""
    positions, taps, channels = [axis.positions for axis in c.axes], [axis.taps for axis in c.axes], c.channels

    def blocks() -> CacheBlocks:
        return CacheBlocks(1, channels, tuple(positions), tuple(taps))

    if c.taps <= 4 * c.positions:
        for i, axis in enumerate(c.axes):
            while blocks().reach(c) * groups > TILE and positions[i] > (64 if f"p{i}" == along else 1):
                positions[i] = fitting(axis.positions, positions[i] - 1)
    else:
        channels = 1
        while blocks().reach(c) * groups > TILE and taps[0] > 1:
            taps[0] = divisor(c.axes[0].taps, taps[0] - 1)
    if blocks().reach(c) * groups > 4 * TILE:
        return None
    rows = [(f"p{i}", size) for i, size in enumerate(positions) if f"p{i}" != along]
    steps = channels * prod(taps)
    if along == "g":
        tile = register_tile([("o", c.outputs), *rows], 1, steps, None, _FEW_REGISTERS)
        return DirectPlan(c, work, along, groups, blocks(), replace(tile, cycles=tile.cycles * groups // work.lanes))
    number = int(along[1:])
    quick = None if c.y.strides[3 + number] == 1 else "o" if c.y.strides[2] == 1 else ""
    tile = register_tile([*rows, ("o", c.outputs)], -(-positions[number] // work.lanes), steps, quick)
    return DirectPlan(c, work, along, positions[number], blocks(), tile)


class Direct:
    """The writer of one correlation's code."""

    def __init__(self, builder: CorrelationBuilder, plan: DirectPlan) -> None:
        self.builder, self.plan, self.c, self.work = builder, plan, builder.c, builder.work
        c, block = builder.c, plan.blocks
        spans = {3 + i: axis.reach(p, k) for i, (axis, p, k) in enumerate(zip(c.axes, block.positions, block.taps, strict=True))}
        groups = {0: plan.lanes} if plan.along == "g" else {}
        self.vector = 0 if groups else 3 + int(plan.along[1:])
        self.x_tile: InputTile | None = tile_of(c, self.work, {2: block.channels, **groups, **spans}, innermost=self.vector)
        full = plan.lanes % (plan.tile.vectors * self.work.lanes) == 0  # else vectors would be read beyond the end of x
        if full and all(axis.inside for axis in c.axes) and builder.x.unchanged and c.x.strides[self.vector] == 1:
            self.x_tile = None
        self.tile_room = self.sum_room = 0

    def write(self) -> None:
        """Add the stage to the builder."""
        plan, builder, size = self.plan, self.builder, self.work.itemsize
        units = prod(plan.grid)
        tasks = builder.tasks(units, self._tile_elements + self._sums)
        self.tile_room = builder.reserve(tasks * self._tile_elements, size)
        if prod(plan.iterations) > 1:
            self.sum_room = builder.reserve(tasks * self._sums, size)
        builder.shared_job("sum", tasks, max(plan.cycles / 2.7, self.c.products * NANOSECONDS), units, self._block)

    @property
    def _tile_elements(self) -> int:
        """Elements of a task's tile, with room for vectors read beyond its end."""
        return self.x_tile.elements + 4 * self.work.lanes if self.x_tile else 0

    def _x_stride(self, index: int) -> int:
        return self.x_tile.stride(index) if self.x_tile else self.c.x.strides[index]

    def _block(self, f: Function, args: Arguments, task: Value, unit: Index) -> None:
        """Emit a block's sums, in one iteration or more."""
        plan, c, work = self.plan, self.c, self.work
        first, image, *coordinates = split(f, unit, plan.grid)
        group = times(f, first, plan.lanes) if plan.along == "g" else first
        positions = block_starts(f, coordinates, plan.blocks.positions, [axis.positions for axis in c.axes])
        y = self.builder.at(f, "y", args.y, group, image, 0, *positions)
        if prod(plan.iterations) == 1:
            nest = self._nest(c.y.strides, stored_as(self.builder.y_dtype))
            operands = self._operands(f, args, task, (group, image, positions), [0, 0], y)
            self._each_tile(f, nest, operands, lambda at, sums: nest.emit(f, at, lambda *args: sums.result(f, *args)))
            return
        nest = self._nest(self._sum_strides(), work.type)
        room = args.room(f, self.sum_room, self._sums * work.itemsize, task)
        fill_zeros(f, work, room, self._sums)

        def sum_tile(at: Operands, sums: SumTile) -> None:
            nest.emit(f, at, lambda *args: sums.store_sums(f, *args), lambda operands, counts: sums.load_sums(f, operands.y, counts))

        def iteration(index: Index) -> None:
            operands = self._operands(f, args, task, (group, image, positions), split(f, index, plan.iterations), room)
            self._each_tile(f, nest, operands, sum_tile)

        repeat(f, prod(plan.iterations), iteration)
        self._write_out(f, room, y)

    def _operands(
        self, f: Function, args: Arguments, task: Value, at: tuple[Index, Index, list[Index]], iteration: list[Index], y: Value
    ) -> Operands:
        """Emit the addresses of an iteration's operands, after copying x to a tile."""
        plan, c = self.plan, self.c
        group, image, positions = at
        channel, tap = times(f, iteration[0], plan.blocks.channels), times(f, iteration[1], plan.blocks.taps[0])
        starts = [plus(f, times(f, p, axis.stride), -axis.low) for p, axis in zip(positions, c.axes, strict=True)]
        starts[0] = plus(f, starts[0], times(f, tap, c.axes[0].dilation))
        w = self.builder.at(f, "w", args.w, group, 0, channel, tap)
        if self.x_tile is None:
            return Operands(self.builder.at(f, "x", args.x, group, image, channel, *starts), w, y)
        x = self.builder.at(f, "x", args.x, group, image, channel)
        to = args.room(f, self.tile_room, self._tile_elements * self.work.itemsize, task)
        gather(f, self.builder.x, c, self.x_tile, x, starts, [axis.inside for axis in c.axes], to)
        return Operands(to, w, y)

    def _nest(self, y: tuple[int, ...], y_type: str) -> TileLoops:
        """Return the loops of a block, for y's strides."""
        plan, c, x = self.plan, self.c, self._x_stride
        dims = {"o": LoopIndex(c.outputs, 0, c.w.strides[1], y[2]), "c": LoopIndex(plan.blocks.channels, x(2), c.w.strides[2])}
        if plan.along == "g":
            dims["g"] = LoopIndex(plan.lanes, 1, 1, y[0])
        for i, axis in enumerate(c.axes):
            dims[f"p{i}"] = LoopIndex(plan.blocks.positions[i], x(3 + i) * axis.stride, 0, y[3 + i])
            dims[f"k{i}"] = LoopIndex(plan.blocks.taps[i], x(3 + i) * axis.dilation, c.w.strides[3 + i])
        depth = ("c", *(f"k{i}" for i in range(len(c.axes))))
        unrolled = {plan.along, *dict(plan.tile.rows), *depth}
        rows = tuple(sorted(plan.tile.rows, key=lambda row: row[0] == "o"))
        return TileLoops(self.work, y_type, dims, tuple(sorted(set(dims) - unrolled)), rows, plan.along, plan.tile.vectors, depth)

    def _each_tile(self, f: Function, nest: TileLoops, at: Operands, body: Callable[[Operands, SumTile], None]) -> None:
        """Call `body` for the vectors of each tile along a block, with what remains there."""
        span, size, dim = nest.vectors * self.work.lanes, self.plan.lanes, nest.dims[self.plan.along]

        def tile(k: Index) -> None:
            remaining = None if size % span == 0 else plus(f, size, times(f, k, -span))
            body(at.moved(f, self.work, nest.y_type, dim, times(f, k, span)), SumTile(nest, self.builder.y_dtype, remaining))

        repeat(f, -(-size // span), tile)

    # sums that are kept in the workspace: by positions, outputs, and the index along vectors

    def _sum_strides(self) -> tuple[int, ...]:
        sizes = [1 if 3 + i == self.vector else size for i, size in enumerate(self.plan.blocks.positions)]
        outputs, *positions = dense([self.c.outputs, *sizes], self._row)
        positions = [1 if 3 + i == self.vector else stride for i, stride in enumerate(positions)]
        return (1, 0, outputs, *positions)

    @property
    def _row(self) -> int:
        """Elements along the vectors, in full tiles."""
        span = self.plan.tile.vectors * self.work.lanes
        return -(-self.plan.lanes // span) * span

    @property
    def _sums(self) -> int:
        """Elements of the sums of a block."""
        return prod(size for i, size in enumerate(self.plan.blocks.positions) if 3 + i != self.vector) * self.c.outputs * self._row

    def _write_out(self, f: Function, room: Value, y: Value) -> None:
        """Bring a block's sums into the result."""
        nest = self._nest(self.c.y.strides, stored_as(self.builder.y_dtype))
        workspace_nest = self._nest(self._sum_strides(), self.work.type)
        dims = {name: dim._replace(x=workspace_nest.dims[name].y, w=0) for name, dim in nest.dims.items()}
        nest = replace(nest, dims=dims, depth=())

        def write_tile(at: Operands, sums: SumTile) -> None:
            nest.emit(f, at, lambda *args: sums.result(f, *args), lambda operands, counts: sums.load_splits(f, operands.x, counts, 1, 0))

        self._each_tile(f, nest, Operands(room, room, y), write_tile)

"""Implicit GEMM: matrix products of tiles of x with panels of w."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from volta_fn.compiler.contractions import Correlation
from volta_fn.runtime.llvm.text import Function, Value, i64, transposed, vector_of
from volta_fn.targets.cpu.convolution.blocking import (
    NANOSECONDS,
    SUMS,
    Arguments,
    CacheBlocks,
    CorrelationBuilder,
    RegisterTile,
    SumTile,
    position_blocks,
    register_tile,
    sum_blocks,
)
from volta_fn.targets.cpu.convolution.emission import (
    Elements,
    Index,
    InputTile,
    LoopIndex,
    Operands,
    TileLoops,
    between,
    block_starts,
    dense,
    fill_zeros,
    gather,
    least,
    plus,
    repeat,
    split,
    step,
    tile_of,
    times,
    value,
)
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, bias_of, first_lanes, stored_as

# The blocking of a correlation for implicit GEMM.

#: The sums of results in fewer blocks than this are split.
_FEW = 8


@dataclass(frozen=True)
class IgemmPlan:
    """How one correlation is computed."""

    c: Correlation
    work: ComputeType
    blocks: CacheBlocks
    tile: RegisterTile
    #: Panels of w in all, and in a task's block.
    panels: int
    panel_block: int
    #: Whether the panels are packed once, ahead.
    packed: bool
    #: Splits of the sum.
    splits: int

    @property
    def width(self) -> int:
        """Outputs in a panel."""
        return self.tile.vectors * self.work.lanes

    @property
    def depth(self) -> list[tuple[str, int]]:
        """The indices that a block sums over, with sizes; the blocked index is first.

        In panels that are packed once, channels are last if they are adjacent in x, else first. Taps along unrolled axes come before
        others, so that unrolled steps read different elements of x: the same elements, kept for the next steps, would fill the registers.
        Panels that are packed for every block are in w's own order, in which packing is fast.
        """
        block = self.blocks
        sizes = {"c": block.channels, **{f"k{i}": size for i, size in enumerate(block.taps)}}
        strides = {"c": self.c.w.strides[2], **{f"k{i}": stride for i, stride in enumerate(self.c.w.strides[3:])}}
        cut = None if block.covers_sum(self.c) else "c" if block.channels < self.c.channels else "k0"
        rows = {f"k{name[1:]}" for name, _ in self.tile.rows}
        if self.packed:
            innermost = self.c.x.strides[2] == 1 or block.channels == 1
            order = sorted(sizes, key=lambda name: (2 if innermost else 0) if name == "c" else 1 + (name not in rows) / 2)
        else:
            order = sorted(sizes, key=lambda name: (name != cut, -strides[name]))
        return [(name, sizes[name]) for name in order]

    @property
    def steps(self) -> int:
        """The number of steps of a block's sum."""
        return prod(size for _, size in self.depth)

    @property
    def panel(self) -> int:
        """Elements of a panel, with room for what is written at its end.

        That is a square, or the sums with which those of a biased type begin.
        """
        return (self.steps + (self.work.biased if self.packed else self.work.lanes)) * self.width

    @property
    def grid(self) -> list[int]:
        """The number of blocks of groups, images, positions and panels; and of splits."""
        c, block = self.c, self.blocks
        positions = [-(-axis.positions // size) for axis, size in zip(c.axes, block.positions, strict=True)]
        return [c.groups, -(-c.images // block.images), *positions, -(-self.panels // self.panel_block), self.splits]

    @property
    def cycles(self) -> float:
        """The estimated cycles."""
        groups, images, *positions = self.grid[:-2]
        return self.tile.cycles * self.c.channels * self.c.taps * groups * images * prod(positions)

    @property
    def sums(self) -> int:
        """Elements of the sums of a task's block."""
        return self.blocks.images * prod(self.blocks.positions) * self.panel_block * self.width


def igemm_plan(c: Correlation, work: ComputeType, room: int, *, other: bool = False) -> IgemmPlan | None:
    """Choose how to compute a correlation with `room` bytes of workspace.

    Panels of w are packed once, if blocks have all terms of their sums, there is room, and it pays; or else again for every block. `other`
    asks for the one of the two that is not chosen; None if it does not apply.
    """
    blocks, outputs = position_blocks(c), -(-c.outputs // work.lanes) * work.lanes
    possible = blocks.covers_sum(c) and c.groups * outputs * c.channels * c.taps * work.itemsize <= room // 2
    packed = (possible and c.taps <= 8 * c.positions) != other
    if packed and not possible:
        return None
    if not packed:
        blocks = sum_blocks(c)
    rows = [("n", blocks.images), *((f"p{i}", size) for i, size in enumerate(blocks.positions))]
    steps = blocks.channels * prod(blocks.taps)
    adjacent = [f"p{i}" for i in range(len(c.axes)) if c.y.strides[3 + i] == 1]
    quick = None if c.y.strides[2] == 1 or not packed else adjacent[0] if adjacent else ""
    contiguous = [f"p{i}" for i in range(len(c.axes)) if c.x.strides[3 + i] == 1]
    same_row = None if c.x.strides[2] == 1 or not packed else contiguous[0] if contiguous else ""
    tile = register_tile(rows, -(-c.outputs // work.lanes), steps, quick, same_row=same_row)
    panels = -(-c.outputs // (tile.vectors * work.lanes))
    plan = IgemmPlan(c, work, blocks, tile, panels, panels, packed, 1)
    if not packed:
        single_panel = replace(plan, panel_block=1)
        plan = replace(plan, panel_block=max(1, min(panels, SUMS // single_panel.sums)))
    if not packed and prod(plan.grid) < _FEW:  # each split reads its own range of x; by panels, all of it would be read again
        iterations = prod(iterations_of(plan))
        most = max(1, room // 4 // (plan.sums * prod(plan.grid) * work.itemsize))
        plan = replace(plan, splits=max(1, min(-(-_FEW // prod(plan.grid)), iterations, most)))
    while prod(plan.grid) < _FEW and plan.panel_block > 1:
        plan = replace(plan, panel_block=-(-plan.panel_block // 2))
    return plan


def iterations_of(plan: IgemmPlan) -> list[int]:
    """Return the blocks of the sum along channels and along the first axis's taps."""
    return [-(-plan.c.channels // plan.blocks.channels), -(-plan.c.axes[0].taps // plan.blocks.taps[0])]


# Panels of w: its elements in the order in which register tiles read them.
#
# A panel holds, for each step of the summation, the elements of `width` adjacent outputs, with zeros beyond the last output.


def pack(
    f: Function, elements: Elements, depth: Sequence[LoopIndex], along: int, remaining: Index, width: int, w: Value, to: Value
) -> None:
    """Fill one panel from `w`, which points to its first output.

    `depth` has the steps of the summation, outermost first: `w` is the stride in memory, `y` that in the panel, in elements.
    `along` is the stride of outputs in memory; `remaining` of them are in bounds.
    """
    depth = [dim for dim in depth if dim.size != 1]
    if along != 1 and depth and depth[-1].w == 1:
        depth = _with_one_run(depth)
        _loops(f, elements, depth[:-1], w, to, lambda at, to: _transposed(f, elements, depth[-1], along, remaining, width, at, to))
    else:
        _loops(f, elements, depth, w, to, lambda at, to: _vectors(f, elements, along, remaining, width, at, to))


def _with_one_run(depth: list[LoopIndex]) -> list[LoopIndex]:
    """Merge the innermost steps that are adjacent in memory and in the panel."""
    *outer, last = depth
    while outer and isinstance(last.size, int) and outer[-1].w == last.size and outer[-1].y == last.size * last.y:
        size = outer.pop().size
        if not isinstance(size, int):
            return depth
        last = last._replace(size=size * last.size)
    return [*outer, last]


def _loops(f: Function, elements: Elements, depth: Sequence[LoopIndex], w: Value, to: Value, body: Callable[[Value, Value], None]) -> None:
    if not depth:
        body(w, to)
        return
    dim = depth[0]

    def iteration(index: Index) -> None:
        pointers = step(f, w, elements.stored, times(f, index, dim.w)), step(f, to, elements.work.type, times(f, index, dim.y))
        _loops(f, elements, depth[1:], *pointers, body)

    repeat(f, dim.size, iteration)


def _vectors(f: Function, elements: Elements, along: int, remaining: Index, width: int, at: Value, to: Value) -> None:
    """Emit one step of a panel, by vectors along the outputs."""
    work = elements.work
    for start in range(0, width, work.lanes):
        mask = _mask(f, work, start, remaining)
        vector = elements.strided(f, step(f, at, elements.stored, start * along), along, mask)
        f.store(vector, step(f, to, work.type, start), work.itemsize)


def _mask(f: Function, work: ComputeType, start: int, remaining: Index) -> Value | None:
    if isinstance(remaining, int):
        return first_lanes(max(0, remaining - start), work.lanes)
    return between(f, work.lanes, start, 0, remaining)


def _transposed(f: Function, elements: Elements, run: LoopIndex, along: int, remaining: Index, width: int, at: Value, to: Value) -> None:
    """Emit adjacent steps of a panel: read along the steps, written along the outputs."""
    work, lanes = elements.work, elements.work.lanes
    for start in range(0, width, lanes):

        def square(index: Index, count: int, start: int = start) -> None:
            rows = []
            for k in range(lanes):
                address = step(f, at, elements.stored, plus(f, index, (start + k) * along))
                inside = between(f, lanes, index, 0, run.size) if not isinstance(run.size, int) else first_lanes(count, lanes)
                rows.append(elements.read(f, address, lanes, _if_remaining(f, lanes, inside, remaining, start + k)))
            columns = transposed(f, rows)
            for k in range(count):
                offset = plus(f, times(f, plus(f, index, k), run.y), start)
                f.store(columns[k], step(f, to, work.type, offset), work.itemsize)

        if isinstance(run.size, int):
            full_vectors = run.size // lanes * lanes
            repeat(f, full_vectors, functools.partial(square, count=lanes), 0, lanes)
            if run.size > full_vectors:
                square(full_vectors, run.size - full_vectors)
        else:
            repeat(f, run.size, functools.partial(square, count=lanes), 0, lanes)


def _if_remaining(f: Function, lanes: int, inside: Value | None, remaining: Index, k: int) -> Value | None:
    """Emit the mask `inside` where output `k` exists."""
    if isinstance(remaining, int):
        return inside if k < remaining else Value(vector_of("i1", lanes), "zeroinitializer")
    exists = f.splat(f.compare("icmp sgt", remaining, Value("i64", str(k))), lanes)
    return exists if inside is None else f.binary("and", exists, inside)


# Implicit GEMM: matrix products of tiles of x with panels of w.
#
# Vectors are along the outputs. No matrix of patches is built: the rows of the product are read from the tile of x, each at its
# positions and taps. Forward and by the input, w is small: its panels are packed once, and a block of positions sums over all terms. The
# weight gradient sums over images and positions. It is computed block by block: each block packs its panels and adds to accumulators in
# the workspace. If there are few results for the tasks, the sum is split, and the partial sums are added at the end in order.


class Igemm:
    """The writer of one correlation's code."""

    def __init__(self, builder: CorrelationBuilder, plan: IgemmPlan) -> None:
        self.builder, self.plan, self.c, self.work = builder, plan, builder.c, builder.work
        block, c = plan.blocks, builder.c
        spans = {3 + i: axis.reach(p, k) for i, (axis, p, k) in enumerate(zip(c.axes, block.positions, block.taps, strict=True))}
        self.x_tile: InputTile | None = tile_of(c, self.work, {1: block.images, 2: block.channels, **spans})
        if plan.packed and all(axis.inside for axis in c.axes) and builder.x.unchanged and c.x.strides[2] == 1:
            self.x_tile = None  # channels are contiguous and read in place
        self.panel_room = self.tile_room = self.w_room = self.sum_room = 0

    @property
    def tile_elements(self) -> int:
        """Elements of a task's room for what it reads of x."""
        return self.x_tile.elements if self.x_tile else 0

    def write(self) -> None:
        """Add the stages to the builder."""
        plan, builder, size = self.plan, self.builder, self.work.itemsize
        units = prod(plan.grid)
        task_elements = self.tile_elements
        if not plan.packed:
            task_elements += plan.panel_block * plan.panel + (plan.sums if plan.splits == 1 else 0)
        tasks = builder.tasks(units, task_elements)
        if plan.packed:
            count = self.c.groups * plan.panels
            self.panel_room = builder.reserve(count * plan.panel, size)
            builder.shared_job("prepare", builder.tasks(count, 0), count * plan.panel * 0.5, count, self._prepare)
        else:
            self.w_room = builder.reserve(tasks * plan.panel_block * plan.panel, size)
            self.sum_room = builder.reserve((units if plan.splits > 1 else tasks) * plan.sums, size)
        self.tile_room = builder.reserve(tasks * self.tile_elements, size)
        builder.shared_job("sum", tasks, self.c.products * NANOSECONDS, units, self._block)
        if plan.splits > 1:
            blocks = units // plan.splits
            builder.job("finish", blocks, units * plan.sums * 0.3, self._finish)

    # panels

    def _depth(self, index: dict[str, Index]) -> list[LoopIndex]:
        """Return the indices summed over, with strides in x's tile, panels and (as y) w.

        `index` has sizes that are known only when the code runs.
        """
        names, sizes = zip(*self.plan.depth, strict=True)
        panel_strides = dense(sizes, self.plan.width)
        indices = []
        for name, size, stride in zip(names, sizes, panel_strides, strict=True):
            axis = 2 if name == "c" else 3 + int(name[1:])
            x = self._x_stride(axis) * (1 if name == "c" else self.c.axes[axis - 3].dilation)
            indices.append(LoopIndex(index.get(name, size), x, stride, self.c.w.strides[axis]))
        return indices

    def _x_stride(self, index: int) -> int:
        return self.x_tile.stride(index) if self.x_tile else self.c.x.strides[index]

    def _pack(
        self, f: Function, args: Arguments, group: Index, panel: Index, starts: list[Index], depth: list[LoopIndex], to: Value
    ) -> None:
        c, width = self.c, self.plan.width
        first = times(f, panel, width)
        w = self.builder.at(f, "w", args.w, group, first, *starts)
        remaining: Index = width if c.outputs % width == 0 else plus(f, c.outputs, times(f, first, -1))
        elements, steps = self.builder.w, [LoopIndex(dim.size, 0, dim.y, dim.w) for dim in depth]
        if elements.channels is None:
            pack(f, elements, steps, c.w.strides[1], remaining, width, w, to)
            return
        channels = steps.pop([name for name, _ in self.plan.depth].index("c"))

        def pack_channel(index: Index) -> None:
            some = elements._replace(channel=plus(f, starts[0], index))
            at = step(f, w, elements.stored, times(f, index, channels.w)), step(f, to, self.work.type, times(f, index, channels.y))
            pack(f, some, steps, c.w.strides[1], remaining, width, *at)

        repeat(f, channels.size, pack_channel)

    def _prepare(self, f: Function, args: Arguments, task: Value, unit: Index) -> None:
        group, panel = split(f, unit, [self.c.groups, self.plan.panels])
        to = args.room(f, self.panel_room, self.plan.panel * self.work.itemsize, unit)
        self._pack(f, args, group, panel, [0] * (1 + len(self.c.axes)), self._depth({}), to)
        if self.work.biased:
            self._write_bias(f, to)

    def _write_bias(self, f: Function, panel: Value) -> None:
        """Emit, after a panel, the sums with which those of a biased type begin.

        They are what the bias adds, subtracted from 0.
        """
        plan, work = self.plan, self.work
        vectors = range(plan.tile.vectors)

        def add(index: Value, totals: list[Value]) -> list[Value]:
            at = step(f, panel, work.type, times(f, index, plan.width))
            return [bias_of(f, work, f.load(work.vector, step(f, at, work.type, v * work.lanes), 4), totals[v]) for v in vectors]

        for v, total in enumerate(f.loop(i64(0), i64(plan.steps), 1, [work.zero() for _ in vectors], add, nonempty=True)):
            at = step(f, panel, work.type, plan.steps * plan.width + v * work.lanes)
            f.store(f.binary("sub", work.zero(), total), at, work.itemsize)

    def _initial_sums(self, f: Function, at: Operands, rows: int) -> list[Value]:
        """Load what `_write_bias` stores, for each row."""
        work, start = self.work, self.plan.steps * self.plan.width
        return [f.load(work.vector, step(f, at.w, work.type, start + v * work.lanes), 4) for v in range(self.plan.tile.vectors)] * rows

    # sums

    def _located(self, f: Function, args: Arguments, indices: list[Index]) -> tuple[tuple[Index, Index, list[Index], Index], Value]:
        """Emit a block's group, image, positions and panel, and its results' address."""
        plan, c, block = self.plan, self.c, self.plan.blocks
        group, *coordinates, panel_group = indices
        image, *positions = block_starts(f, coordinates, [block.images, *block.positions], [c.images, *(axis.positions for axis in c.axes)])
        panel = least(f, times(f, panel_group, plan.panel_block), plan.panels - plan.panel_block)
        y = self.builder.at(f, "y", args.y, group, image, times(f, panel, plan.width), *positions)
        return (group, image, positions, panel), y

    def _block(self, f: Function, args: Arguments, task: Value, unit: Index) -> None:
        plan, work = self.plan, self.work
        *indices, split_index = split(f, unit, plan.grid)
        (group, image, positions, panel), y = self._located(f, args, indices)
        if self.plan.packed:
            x = self._x(f, args, task, group, image, positions, [0] * (1 + len(positions)))
            w = args.room(f, self.panel_room, plan.panel * work.itemsize, plus(f, times(f, group, plan.panels), panel))
            self._panels(f, self._depth({}), Operands(x, w, y), panel)
            return
        sums = args.room(f, self.sum_room, plan.sums * work.itemsize, unit if plan.splits > 1 else task)
        fill_zeros(f, work, sums, plan.sums)
        iterations = iterations_of(plan)
        first, last = [
            f.binary("udiv", f.binary("mul", value(plus(f, split_index, k)), i64(prod(iterations))), i64(plan.splits)) for k in (0, 1)
        ]

        def iteration(index: Index) -> None:
            self._iteration(f, args, task, (group, image, positions, panel), split(f, index, iterations), sums)

        repeat(f, last, iteration, first)
        if plan.splits == 1:
            self._write_out(f, sums, y, panel)

    def _iteration(
        self, f: Function, args: Arguments, task: Value, at: tuple[Index, Index, list[Index], Index], cut: list[Index], sums: Value
    ) -> None:
        """Emit the addition of one block of the summation to the sums."""
        plan, c, work = self.plan, self.c, self.work
        group, image, positions, panel = at
        tap = times(f, cut[1], plan.blocks.taps[0])
        starts = [times(f, cut[0], plan.blocks.channels), tap, *[0] * (len(c.axes) - 1)]
        sizes: dict[str, Index] = {}
        if c.axes[0].taps % plan.blocks.taps[0]:
            sizes["k0"] = least(f, plan.blocks.taps[0], plus(f, c.axes[0].taps, times(f, tap, -1)))
        x = self._x(f, args, task, group, image, positions, starts)
        depth = self._depth(sizes)
        w = args.room(f, self.w_room, plan.panel_block * plan.panel * work.itemsize, task)

        def fill(k: Index) -> None:
            self._pack(f, args, group, plus(f, panel, k), starts, depth, step(f, w, work.type, times(f, k, plan.panel)))

        repeat(f, plan.panel_block, fill)
        self._panels(f, depth, Operands(x, w, sums), panel)

    def _x(
        self, f: Function, args: Arguments, task: Value, group: Index, image: Index, positions: list[Index], starts: list[Index]
    ) -> Value:
        """Emit the address of a block's x, after copying it to the task's tile if need be."""
        c, tile = self.c, self.x_tile
        channel, *taps = starts
        first = [
            plus(f, times(f, position, axis.stride), times(f, tap, axis.dilation), -axis.low)
            for position, tap, axis in zip(positions, taps, c.axes, strict=True)
        ]
        if tile is None:
            return self.builder.at(f, "x", args.x, group, image, channel, *first)
        to = args.room(f, self.tile_room, self.tile_elements * self.work.itemsize, task)
        sure = [axis.inside and axis.taps % block == 0 for axis, block in zip(c.axes, self.plan.blocks.taps, strict=True)]
        x = self.builder.at(f, "x", args.x, group, image, channel)
        gather(f, self.builder.x._replace(channel=channel), c, tile, x, first, sure, to)
        return to

    def _panels(self, f: Function, depth: list[LoopIndex], operands: Operands, panel: Index) -> None:
        """Emit the products of a block with each of its panels."""
        plan, c = self.plan, self.c
        names = tuple([name for name, _ in plan.depth])
        strides = [c.y.strides[1], *c.y.strides[3:]] if self.plan.packed else self._sum_strides()
        nest = self._nest(strides, c.y.strides[2] if self.plan.packed else 1, dict(zip(names, depth, strict=True)))

        def multiply_panel(k: Index) -> None:
            along = LoopIndex(1, 0, plan.panel, plan.width * nest.dims["o"].y)
            tile = SumTile(nest, self.builder.y_dtype, self._left(f, plus(f, panel, k)) if self.plan.packed else None)

            def load(at: Operands, counts: Mapping[str, int]) -> list[Value]:
                return self._initial_sums(f, at, nest.sums(counts) // nest.vectors) if plan.packed else tile.load_sums(f, at.y, counts)

            store = tile.result if self.plan.packed else tile.store_sums
            nest.emit(
                f,
                operands.moved(f, self.work, nest.y_type, along, k),
                lambda *args: store(f, *args),
                None if plan.packed and not self.work.biased else load,
            )

        repeat(f, plan.panel_block, multiply_panel)

    def _nest(self, y_strides: list[int], along: int, depth: dict[str, LoopIndex]) -> TileLoops:
        """Return the loops over a block and one panel, with y's strides."""
        plan, c = self.plan, self.c
        names = ["n", *(f"p{i}" for i in range(len(c.axes)))]
        dims = {"o": LoopIndex(plan.width, 0, 1, along), **depth}
        x_strides = [self._x_stride(1), *(self._x_stride(3 + i) * axis.stride for i, axis in enumerate(c.axes))]
        for name, size, x, y in zip(names, [plan.blocks.images, *plan.blocks.positions], x_strides, y_strides, strict=True):
            dims[name] = LoopIndex(size, x, 0, y)
        loops = tuple([name for name in dims if name[0] in "np" and name not in dict(plan.tile.rows)])
        y_type = stored_as(self.builder.y_dtype) if self.plan.packed else self.work.type
        return TileLoops(self.work, y_type, dims, loops, plan.tile.rows, "o", plan.tile.vectors, tuple(depth))

    def _left(self, f: Function, panel: Index) -> Index | None:
        """Emit how many outputs remain at a panel's start; None where all panels are full."""
        if self.c.outputs % self.plan.width == 0:
            return None
        return plus(f, self.c.outputs, times(f, panel, -self.plan.width))

    # sums that are kept in the workspace: by image, position, panel and output

    def _sum_strides(self) -> list[int]:
        block = self.plan.blocks
        return dense([block.images, *block.positions], self.plan.panel_block * self.plan.width)

    def _write_out(self, f: Function, sums: Value, y: Value, panel: Index) -> None:
        """Emit the addition of a block's splits, stored to the result."""
        plan, c = self.plan, self.c
        nest = self._nest([c.y.strides[1], *c.y.strides[3:]], c.y.strides[2], {})
        strides = dict(zip(["n", *(f"p{i}" for i in range(len(c.axes)))], self._sum_strides(), strict=True))
        dims = {name: dim._replace(x=strides.get(name, 0)) for name, dim in nest.dims.items()} | {"o": nest.dims["o"]._replace(x=1, w=0)}
        nest = replace(nest, y_type=stored_as(self.builder.y_dtype), dims=dims)

        def write_panel(k: Index) -> None:
            tile = SumTile(nest, self.builder.y_dtype, self._left(f, plus(f, panel, k)))
            at = Operands(step(f, sums, self.work.type, times(f, k, plan.width)), sums, y)
            at = at._replace(y=step(f, y, nest.y_type, times(f, k, plan.width * c.y.strides[2])))
            nest.emit(
                f,
                at,
                lambda *args: tile.result(f, *args),
                lambda operands, counts: tile.load_splits(f, operands.x, counts, plan.splits, plan.sums),
            )

        repeat(f, plan.panel_block, write_panel)

    def _finish(self, f: Function, args: Arguments, task: Value) -> None:
        """Emit the addition of the splits of one block's sums."""
        plan = self.plan
        *indices, _ = split(f, times(f, task, plan.splits), plan.grid)
        (*_, panel), y = self._located(f, args, indices)
        sums = args.room(f, self.sum_room, plan.sums * self.work.itemsize * plan.splits, task)
        self._write_out(f, sums, y, panel)

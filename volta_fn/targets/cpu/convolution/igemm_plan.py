"""How implicit GEMM blocks a correlation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from volta_fn.compiler.contractions.correlation import Correlation
from volta_fn.targets.cpu.convolution.blocking import SUMS, CacheBlocks, RegisterTile, position_blocks, register_tile, sum_blocks
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType

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
        """What a block sums over: by name, with sizes. The index that is cut is first.

        Of panels made once, channels are last if they are adjacent in x, else first; and taps along axes that are unrolled come before
        others: steps that are unrolled then meet different elements of x, where the same ones, kept for the next steps, would fill the
        registers. Panels made again and again are in w's own order, in which they are quickly filled.
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
        """Elements of a panel, with room for a square written at its end."""
        return (self.steps + (0 if self.packed else self.work.lanes)) * self.width

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
    found = IgemmPlan(c, work, blocks, tile, panels, panels, packed, 1)
    if not packed:
        one = replace(found, panel_block=1)
        found = replace(found, panel_block=max(1, min(panels, SUMS // one.sums)))
    if not packed and prod(found.grid) < _FEW:  # each split reads its own range of x; by panels, all of it would be read again
        iterations = prod(iterations_of(found))
        most = max(1, room // 4 // (found.sums * prod(found.grid) * work.itemsize))
        found = replace(found, splits=max(1, min(-(-_FEW // prod(found.grid)), iterations, most)))
    while prod(found.grid) < _FEW and found.panel_block > 1:
        found = replace(found, panel_block=-(-found.panel_block // 2))
    return found


def iterations_of(plan: IgemmPlan) -> list[int]:
    """Return the blocks of the sum along channels and along the first axis's taps."""
    return [-(-plan.c.channels // plan.blocks.channels), -(-plan.c.axes[0].taps // plan.blocks.taps[0])]

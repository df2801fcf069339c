"""Tile a correlation for Winograd's convolution, and estimate its time.

With n points along an axis, squares of n by n elements of x (*tiles*) and of r by r taps (*blocks*) give m by m results, m = n - r + 1.
In a convolution a block has all taps, and the results are tiled. In a gradient by the weights the results are few: there a tile has them
all, and the taps are divided into blocks, over which sums run.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

import numpy as np

from volta_fn.compiler.contractions.correlation import Correlation
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.compute_dtype import working

#: Taps, or results, along both axes, and the numbers of points that serve them.
_POINTS = {(3, 3): (4, 6), (5, 5): (6,)}

#: Channels above which six points round too much, where windows have few taps.
_MANY = 128

#: Multiplications that a large device does while it accesses a byte, and while a dispatch waits for the one before it.
_BYTE, _DISPATCH = 8, 80_000_000


@dataclass(frozen=True)
class Shape:
    """A tiling of a correlation."""

    c: Correlation
    points: int
    #: Taps of a block along an axis.
    block: int

    @property
    def positions(self) -> int:
        """Results of a tile along an axis."""
        return self.points - self.block + 1

    @property
    def tiles(self) -> tuple[int, ...]:
        """Images, and tiles along both axes."""
        return self.c.images, *[-(-axis.positions // self.positions) for axis in self.c.axes]

    @property
    def blocks(self) -> tuple[int, ...]:
        """Channels, and blocks of taps along both axes."""
        return self.c.channels, *[-(-axis.taps // self.block) for axis in self.c.axes]

    @property
    def count(self) -> int:
        """Tiles, padded to a multiple of 4."""
        return -(-prod(self.tiles) // 4) * 4

    @property
    def terms(self) -> int:
        """Terms of a sum: all blocks."""
        return prod(self.blocks)

    @property
    def stack(self) -> int:
        """Points times groups."""
        return self.points**2 * self.c.groups

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements of the workspaces for taps, tiles and products."""
        outputs, terms, count = self.c.outputs, self.terms, self.count
        return self.stack * terms * outputs, self.stack * terms * count, self.stack * outputs * count

    @property
    def cost(self) -> float:
        """The estimated time, in multiplications."""
        return self.stack * self.terms * self.c.outputs * self.count + 8 * _BYTE * sum(self.sizes) + 3 * _DISPATCH

    @property
    def by_outputs(self) -> bool:
        """Whether outputs, or else terms, are contiguous in the workspace for taps."""
        channel, *corner = self.c.w.strides[2:]
        steps = channel, *[self.block * stride for stride in corner]
        return self.c.w.strides[1] < min([step for step, count in zip(steps, self.blocks, strict=True) if count > 1], default=inf)

    @property
    def by_tiles(self) -> tuple[bool, bool]:
        """Whether tiles are contiguous, in the workspaces for tiles and for products.

        The alternatives are terms and outputs.
        """
        x, y = self.c.x.strides, self.c.y.strides
        return x[1] == 1 if self._cuts_taps else x[2] != 1, y[2] != 1

    @property
    def _cuts_taps(self) -> bool:
        return max(self.blocks[1:]) > 1


def shape_of(c: Correlation, dtypes: tuple[np.dtype, np.dtype, np.dtype], device: TargetCapabilities, *, wanted: bool) -> Shape | None:
    """Return the fastest tiling that rounds little enough and fits the bindings."""
    if len(c.axes) != 2 or any((axis.stride, axis.dilation) != (1, 1) for axis in c.axes) or working(dtypes[2]).dtype != np.float32:
        return None
    taps, positions = (c.axes[0].taps, c.axes[1].taps), (c.axes[0].positions, c.axes[1].positions)
    found = [Shape(c, n, taps[0]) for n in _POINTS.get(taps, ()) if n == 4 or taps != (3, 3) or c.channels <= _MANY]
    if not found:
        found = [Shape(c, n, n - positions[0] + 1) for n in _POINTS.get(positions, ())]
    found = [shape for shape in found if 4 * max(shape.sizes) <= device.binding]
    best = min(found, key=lambda shape: shape.cost, default=None)
    return best if best is not None and (wanted or best.cost < c.products) else None

"""How Winograd's convolution cuts up a correlation, when it serves, and how long it takes.

With n points along an axis, squares of n by n elements of x (*tiles*) and of r by r taps (*blocks*) give m by m places, m = n - r + 1.
Of a convolution a block has all taps, and its places are cut up. In a gradient by the weights it is the places that are few: there a tile
has them all, and the taps are cut up into blocks, over which sums run.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

import numpy as np

from volta_fn.compiler.contractions.correlation import Correlation
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.compute_dtype import working

#: Taps, or places, along both axes, and the numbers of points that serve them.
_POINTS = {(3, 3): (4, 6), (5, 5): (6,)}

#: Channels above which six points round too much, where windows have few taps.
_MANY = 128

#: Multiplications that a large device does while it reads or writes a byte, and while a dispatch waits for the one before it.
_BYTE, _DISPATCH = 8, 80_000_000


@dataclass(frozen=True)
class Shape:
    """How a correlation is cut up."""

    c: Correlation
    points: int
    #: Taps of a block along an axis.
    block: int

    @property
    def places(self) -> int:
        """Places of a tile along an axis."""
        return self.points - self.block + 1

    @property
    def tiles(self) -> tuple[int, ...]:
        """Images, and tiles along both axes."""
        return self.c.images, *[-(-axis.places // self.places) for axis in self.c.axes]

    @property
    def blocks(self) -> tuple[int, ...]:
        """Channels, and blocks of taps along both axes."""
        return self.c.channels, *[-(-axis.taps // self.block) for axis in self.c.axes]

    @property
    def count(self) -> int:
        """All tiles, and some that are none: a multiple of 4."""
        return -(-prod(self.tiles) // 4) * 4

    @property
    def terms(self) -> int:
        """What is summed over: all blocks."""
        return prod(self.blocks)

    @property
    def stack(self) -> int:
        """Points times groups."""
        return self.points**2 * self.c.groups

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements of the workspaces: for taps, for tiles, for products."""
        outputs, terms, count = self.c.outputs, self.terms, self.count
        return self.stack * terms * outputs, self.stack * terms * count, self.stack * outputs * count

    @property
    def cost(self) -> float:
        """About how long it takes, in multiplications."""
        return self.stack * self.terms * self.c.outputs * self.count + 8 * _BYTE * sum(self.sizes) + 3 * _DISPATCH

    @property
    def by_outputs(self) -> bool:
        """Whether outputs, or else terms, are neighbours in the workspace for taps: what is nearer in memory."""
        channel, *corner = self.c.w.strides[2:]
        steps = channel, *[self.block * stride for stride in corner]
        return self.c.w.strides[1] < min([step for step, count in zip(steps, self.blocks, strict=True) if count > 1], default=inf)

    @property
    def by_tiles(self) -> tuple[bool, bool]:
        """Whether tiles are neighbours in the workspaces for tiles, or else terms, and in that for products, or else outputs."""
        x, y = self.c.x.strides, self.c.y.strides
        return x[1] == 1 if self._cuts_taps else x[2] != 1, y[2] != 1

    @property
    def _cuts_taps(self) -> bool:
        return max(self.blocks[1:]) > 1


def shape_of(c: Correlation, dtypes: tuple[np.dtype, np.dtype, np.dtype], facts: TargetCapabilities, *, wanted: bool) -> Shape | None:
    """The fastest way to cut up a correlation that rounds little enough, and whose workspaces can be bound.

    None if there is none, or others are faster; if it is `wanted`, it need not be faster.
    """
    if len(c.axes) != 2 or any((axis.stride, axis.dilation) != (1, 1) for axis in c.axes) or working(dtypes[2]).dtype != np.float32:
        return None
    taps, places = (c.axes[0].taps, c.axes[1].taps), (c.axes[0].places, c.axes[1].places)
    found = [Shape(c, n, taps[0]) for n in _POINTS.get(taps, ()) if n == 4 or taps != (3, 3) or c.channels <= _MANY]
    if not found:
        found = [Shape(c, n, n - places[0] + 1) for n in _POINTS.get(places, ())]
    found = [shape for shape in found if 4 * max(shape.sizes) <= facts.binding]
    best = min(found, key=lambda shape: shape.cost, default=None)
    return best if best is not None and (wanted or best.cost < c.products) else None

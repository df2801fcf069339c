"""How Winograd's convolution cuts up a correlation, when it serves, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from volta_fn.backends.native.convolution.blocks import TILE, fitting, register_tile
from volta_fn.backends.native.convolution.pieces import NANOSECONDS
from volta_fn.backends.native.matmul.numbers import Working
from volta_fn.compiler.contractions.geometry import Correlation

#: Elements that a block has at all points, of x and of the products together, at most.
_BLOCK = 128 * 1024

#: Elements of transformed taps that are read again for every block, at most.
_RELOADED = 256 * 1024

#: Bytes of transformed taps, and of these with x and the products at all points, if all are kept, at most.
_TAPS, SPREAD = 18 << 20, 26 << 20

#: Tiles for which the transformed taps are worth reading.
_TILES = 24

#: Channels of which six points round too much.
MANY = 128


def points_for(c: Correlation, work: Working) -> int | None:
    """How many points along an axis serve a correlation; None if Winograd's convolution does not.

    More points multiply less, but round more, the more so the more channels there are, and transform more taps.
    """
    if len(c.axes) != 2 or any((axis.stride, axis.dilation) != (1, 1) for axis in c.axes):
        return None
    points = {(3, 3): 4 if c.channels > MANY else 6, (5, 5): 6}.get((c.axes[0].taps, c.axes[1].taps))
    fits = points is not None and points**2 * c.groups * max(c.channels, 16) * max(c.outputs, 16) * work.itemsize <= _TAPS
    return points if fits else None


def time_of(c: Correlation, points: int) -> float:
    """About how many nanoseconds it takes; infinitely many if it rounds too much to be chosen."""
    places = points - c.axes[0].taps + 1
    tiles = c.groups * c.images * prod(-(-axis.places // places) for axis in c.axes)
    channels, outputs = max(c.channels, 16), max(c.outputs, 16)
    if points == 6 and c.channels > MANY:
        return float("inf")
    return tiles * points**2 * (0.7 * (channels + outputs) + channels * outputs * NANOSECONDS * 1.1)


def odd_vectors(elements: int, lanes: int) -> int:
    """So many elements or a few more, in an odd number of vectors: what is that far apart is spread over the caches."""
    vectors = -(-elements // lanes)
    return (vectors + 1 - vectors % 2) * lanes


@dataclass(frozen=True)
class Shape:
    """How a correlation is cut up."""

    c: Correlation
    work: Working
    points: int
    #: Images, and tiles along both axes, of a block.
    images: int
    tiles: tuple[int, int]
    #: Vectors of a panel of outputs, and panels.
    vectors: int
    panels: int
    #: Whether all blocks are transformed before they are multiplied: where taps are too large to be read again for every block.
    spread: bool

    @property
    def places(self) -> int:
        """Places of a tile along an axis."""
        return self.points - self.c.axes[0].taps + 1

    @property
    def channels(self) -> int:
        """Channels, in whole vectors."""
        return -(-self.c.channels // self.work.lanes) * self.work.lanes

    @property
    def width(self) -> int:
        """Outputs of a panel."""
        return self.vectors * self.work.lanes

    @property
    def outputs(self) -> int:
        """Outputs of all panels."""
        return self.panels * self.width

    @property
    def all_tiles(self) -> list[int]:
        """Tiles along both axes."""
        return [-(-axis.places // self.places) for axis in self.c.axes]

    @property
    def count(self) -> int:
        """Tiles that are multiplied together: a block's, or all."""
        return self.c.images * prod(self.all_tiles) if self.spread else self.images * prod(self.tiles)

    @property
    def tapped(self) -> int:
        """Elements of one group's taps at one point."""
        return odd_vectors(self.panels * self.channels * self.width, self.work.lanes)

    @property
    def entered(self) -> int:
        """Elements of x at one point."""
        return odd_vectors(self.count * self.channels, self.work.lanes)

    @property
    def multiplied(self) -> int:
        """Elements of the products at one point."""
        return odd_vectors(self.count * self.outputs, self.work.lanes)

    @property
    def grid(self) -> list[int]:
        """How many blocks there are of groups, images and tiles along both axes."""
        tiles = [-(-n // size) for n, size in zip(self.all_tiles, self.tiles, strict=True)]
        return [self.c.groups, -(-self.c.images // self.images), *tiles]


def shape_of(c: Correlation, work: Working, points: int) -> Shape:
    """Blocks that fit the caches, but are worth reading the taps for."""
    places = points - c.axes[0].taps + 1
    tiles = [-(-axis.places // places) for axis in c.axes]
    vectors = -(-c.outputs // work.lanes)
    channels = -(-c.channels // work.lanes) * work.lanes
    both = points**2 * (channels + vectors * work.lanes)
    taps, all_tiles = points**2 * channels * vectors * work.lanes, c.images * prod(tiles)
    spread = c.groups == 1 and taps > _RELOADED and (all_tiles * both + taps) * work.itemsize < SPREAD
    target = TILE // (2 * places**2 * channels) if spread else max(_TILES, _BLOCK // both)
    columns = tiles[1] if spread else fitting(tiles[1], min(tiles[1], target))
    rows = fitting(tiles[0], max(1, min(tiles[0], target // columns)))
    images = 1 if spread else max(1, min(c.images, target // (rows * columns)))
    count = c.images * prod(tiles) if spread else images * rows * columns
    register = register_tile([("m", count)], vectors, c.channels, None)
    panels = -(-vectors // register.vectors)
    return Shape(c, work, points, images, (rows, columns), register.vectors, panels, spread)

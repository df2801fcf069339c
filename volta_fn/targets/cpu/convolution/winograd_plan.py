"""How Winograd's convolution tiles a correlation, when it applies, and its time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from volta_fn.compiler.contractions.correlation import Axis, Correlation
from volta_fn.targets.cpu.convolution.blocking import TILE, fitting, register_tile
from volta_fn.targets.cpu.convolution.stages import NANOSECONDS
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType

#: Elements that a block has at all points, of x and of the products together, at most.
_BLOCK = 128 * 1024

#: Elements of transformed taps that are read again for every block, at most.
_RELOADED = 256 * 1024

#: Bytes of transformed taps, and of these with x and the products at all points, if all are kept, at most.
_TAPS, SPREAD = 18 << 20, 26 << 20

#: Tiles for which the transformed taps are worth reading.
_TILES = 24

#: The most channels for six points, which round too much with more.
MANY = 128


class Scheme(NamedTuple):
    """How windows become products along an axis: tiles of positions by points.

    Windows of more taps than points - positions + 1 are cut into `segments`, each as many taps from the next one as a tile has positions,
    so that what a segment meets in a tile is what the segment before it meets in the next one.
    """

    points: int
    positions: int
    segments: int

    @property
    def taps(self) -> int:
        """Taps of a segment."""
        return self.points - self.positions + 1

    @property
    def terms(self) -> int:
        """Products of one channel, of a tile with the taps."""
        return (self.points * self.segments) ** 2


def schemes_for(c: Correlation, work: ComputeType) -> list[Scheme]:
    """Return the schemes that apply."""
    if len(c.axes) != 2 or any(axis.stride != 1 for axis in c.axes) or c.axes[0].taps != c.axes[1].taps:
        return []
    return [scheme for scheme in _schemes(c.axes[0].taps) if _fits(c, work, scheme)]


def _schemes(taps: int) -> list[Scheme]:
    if taps == 2:  # six points would give five positions, which round twenty times as much and are no faster
        return [Scheme(4, 3, 1)]
    undivided = [Scheme(points, points - taps + 1, 1) for points in (6, 4) if 2 < taps < points]
    return undivided or ([Scheme(6, 3, -(-(taps - 1) // 3))] if 5 < taps <= 10 else [])


def _fits(c: Correlation, work: ComputeType, scheme: Scheme) -> bool:
    return scheme.terms * c.groups * max(c.channels, 16) * max(c.outputs, 16) * work.itemsize <= _TAPS


def time_of(c: Correlation, scheme: Scheme) -> float:
    """Estimate the nanoseconds; infinite if it rounds too much to be chosen.

    More points multiply less, but round more, the more so the more channels there are, and transform more weights.
    """
    tiles = c.groups * c.images * prod(tiles_of(axis, scheme) for axis in c.axes)
    channels, outputs = max(c.channels, 16), max(c.outputs, 16)
    if scheme.points == 6 and c.channels > MANY:
        return float("inf")
    moved = scheme.points**2 * (0.7 if scheme.points == 6 else 0.5) * (channels + outputs)
    return tiles * (moved + scheme.terms * channels * outputs * NANOSECONDS * 1.1)


def tiles_of(axis: Axis, scheme: Scheme) -> int:
    """Return the tiles along an axis: as many for every residue by the dilation."""
    return -(-axis.positions // (scheme.positions * axis.dilation)) * axis.dilation


def odd_vectors(elements: int, lanes: int) -> int:
    """Round elements up to an odd number of vectors, which spread over cache sets."""
    vectors = -(-elements // lanes)
    return (vectors + 1 - vectors % 2) * lanes


@dataclass(frozen=True)
class WinogradPlan:
    """How a correlation is cut up."""

    c: Correlation
    work: ComputeType
    scheme: Scheme
    #: Images, and tiles along both axes, of a block.
    images: int
    tiles: tuple[int, int]
    #: Vectors of a panel of outputs, and panels.
    vectors: int
    panels: int
    #: Whether all blocks are transformed before they are multiplied, as taps are too large to be read for every block.
    spread: bool

    @property
    def points(self) -> int:
        """Points along an axis."""
        return self.scheme.points

    @property
    def positions(self) -> int:
        """Positions of a tile along an axis."""
        return self.scheme.positions

    @property
    def segments(self) -> int:
        """Segments of the taps, along both axes."""
        return self.scheme.segments**2

    @property
    def channels(self) -> int:
        """Channels, in full vectors."""
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
        return [tiles_of(axis, self.scheme) for axis in self.c.axes]

    @property
    def met(self) -> list[int]:
        """Tiles along both axes that a block's tiles meet in x, with any part of the taps."""
        return [size + (self.scheme.segments - 1) * axis.dilation for size, axis in zip(self.tiles, self.c.axes, strict=True)]

    @property
    def spans(self) -> list[int]:
        """Elements along both axes that a block meets."""
        more = self.points - self.positions
        return [size * self.positions + more * axis.dilation for size, axis in zip(self.met, self.c.axes, strict=True)]

    @property
    def count(self) -> int:
        """Tiles that are multiplied together: a block's, or all."""
        return self.c.images * prod(self.all_tiles) if self.spread else self.images * prod(self.tiles)

    @property
    def rows(self) -> list[tuple[str, int]]:
        """The rows of the products at each point: all tiles, or image and both axes."""
        if self.segments == 1:
            return [("m", self.count)]
        return [("n", self.images), ("t0", self.tiles[0]), ("t1", self.tiles[1])]

    @property
    def tapped(self) -> int:
        """Elements of one group's taps at one point."""
        return odd_vectors(self.panels * self.segments * self.channels * self.width, self.work.lanes)

    @property
    def entered(self) -> int:
        """Elements of x at one point."""
        tiles = self.count if self.spread else self.images * prod(self.met)
        return odd_vectors(tiles * self.channels, self.work.lanes)

    @property
    def multiplied(self) -> int:
        """Elements of the products at one point."""
        return odd_vectors(self.count * self.outputs, self.work.lanes)

    @property
    def grid(self) -> list[int]:
        """How many blocks there are of groups, images and tiles along both axes."""
        tiles = [-(-n // size) for n, size in zip(self.all_tiles, self.tiles, strict=True)]
        return [self.c.groups, -(-self.c.images // self.images), *tiles]


def winograd_plan(c: Correlation, work: ComputeType, scheme: Scheme) -> WinogradPlan:
    """Choose blocks that fit the caches, but are worth reading the weights for."""
    tiles = [tiles_of(axis, scheme) for axis in c.axes]
    vectors = -(-c.outputs // work.lanes)
    channels = -(-c.channels // work.lanes) * work.lanes
    both = scheme.points**2 * (channels + vectors * work.lanes)
    taps, all_tiles = scheme.terms * channels * vectors * work.lanes, c.images * prod(tiles)
    spread = c.groups == scheme.segments == 1 and taps > _RELOADED and (all_tiles * both + taps) * work.itemsize < SPREAD
    target = TILE // (2 * scheme.positions**2 * channels) if spread else max(_TILES, _BLOCK // both)
    columns = tiles[1] if spread else _fitting(tiles[1], target, c.axes[1].dilation)
    rows = _fitting(tiles[0], target // columns, c.axes[0].dilation)
    images = 1 if spread else max(1, min(c.images, target // (rows * columns)))
    shape = WinogradPlan(c, work, scheme, images, (rows, columns), 1, vectors, spread)
    register = register_tile(shape.rows, vectors, scheme.segments**2 * c.channels, None)
    return replace(shape, vectors=register.vectors, panels=-(-vectors // register.vectors))


def _fitting(tiles: int, at_most: int, dilation: int) -> int:
    """Return a number of tiles along an axis that has all residues."""
    each = tiles // dilation
    return dilation * fitting(each, max(1, min(each, round(at_most / dilation))))

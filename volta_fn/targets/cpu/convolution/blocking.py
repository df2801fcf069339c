"""Blocking of a correlation: cache blocks, and register tiles within them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from volta_fn.compiler.contractions.correlation import Correlation
from volta_fn.runtime.llvm.host import host
from volta_fn.targets.cpu.convolution.emit_utils import even_chunks

#: Elements of a tile of x, and of the sums that a block holds, at most.
TILE = 48 * 1024
SUMS = 48 * 1024

#: Steps of a summation that are worth loading and storing the sums for.
STEPS = 256


@dataclass(frozen=True)
class CacheBlocks:
    """The sizes of blocks in images, channels, and positions and taps per axis."""

    images: int
    channels: int
    positions: tuple[int, ...]
    taps: tuple[int, ...]

    def covers_sum(self, c: Correlation) -> bool:
        """Return True if a block has all terms of its sums."""
        return self.channels == c.channels and prod(self.taps) == c.taps

    def reach(self, c: Correlation) -> int:
        """Return how many elements of x a block meets."""
        spans = [axis.reach(p, k) for axis, p, k in zip(c.axes, self.positions, self.taps, strict=True)]
        return self.images * self.channels * prod(spans)


def position_blocks(c: Correlation) -> CacheBlocks:
    """Choose blocks of few positions, with all channels and taps if x's tile fits."""
    positions = [axis.positions for axis in c.axes]
    taps = tuple([axis.taps for axis in c.axes])
    channels = c.channels

    def blocks() -> CacheBlocks:
        return CacheBlocks(1, channels, tuple(positions), taps)

    def too_large(bound: int) -> bool:
        return blocks().reach(c) > bound

    for i, axis in enumerate(c.axes):
        while too_large(TILE) and positions[i] > (1 if i + 1 < len(positions) else 16):
            positions[i] = fitting(axis.positions, positions[i] - 1)
    while too_large(4 * TILE) and channels > 16:
        channels = divisor(c.channels, channels // 2)
    return blocks()


def sum_blocks(c: Correlation) -> CacheBlocks:
    """Choose blocks of a long summation: some images, and some taps or channels.

    They have all positions, or as many as there is room for.
    """
    positions = [axis.positions for axis in c.axes]
    for i in range(len(positions)):
        while prod(positions) > SUMS // 64 and positions[i] > 1:
            positions[i] = -(-positions[i] // 2)
    images = fitting(c.images, max(1, min(c.images, SUMS // 64 // prod(positions))))
    taps, channels = [axis.taps for axis in c.axes], c.channels
    if prod(taps) <= STEPS:
        channels = divisor(channels, max(1, STEPS // prod(taps)))
    else:
        channels = 1
        taps[0] = max(1, min(taps[0], STEPS // prod(taps[1:])))

    def blocks() -> CacheBlocks:
        return CacheBlocks(images, channels, tuple(positions), tuple(taps))

    def too_large() -> bool:
        return blocks().reach(c) > 2 * TILE

    while too_large() and images > 1:
        images = fitting(c.images, images - 1)
    while too_large() and channels > 1:
        channels = divisor(c.channels, channels // 2)
    while too_large() and taps[0] > 1:
        taps[0] = -(-taps[0] // 2)
    return blocks()


def fitting(size: int, at_most: int) -> int:
    """Return the length of blocks up to a bound of which the last overlaps least."""
    return min(range(at_most, at_most // 2, -1), key=lambda length: -(-size // length) * length)


def divisor(number: int, at_most: int) -> int:
    """Return the largest divisor up to a bound."""
    return next(k for k in range(min(number, at_most), 0, -1) if number % k == 0)


@dataclass(frozen=True)
class RegisterTile:
    """A register tile's rows (by index) and vectors, and the cycles of a step."""

    rows: tuple[tuple[str, int], ...]
    vectors: int
    cycles: float


def register_tile(
    candidates: Sequence[tuple[str, int]],
    vectors: int,
    steps: int,
    quick: str | None,
    registers: int | None = None,
    same_row: str | None = None,
) -> RegisterTile:
    """Choose the tile for rows along some candidates (index, size) and vectors.

    Storing a vector costs a few steps of the summation, and many unless the last of the tile's rows are along the index `quick`. Every row
    meets its own cache line in every step, unless it is along the index `same_row` (None: if cache lines last for several steps).
    """
    registers = registers or host().vector_registers
    best: RegisterTile | None = None
    sizes = dict(candidates)
    for pair, count, tile in _tiles(candidates, vectors, registers):
        rest = prod(size for name, size in candidates if name not in pair)
        cycles = rest * -(-vectors // count) * _cycles([even_chunks(sizes[n], k) for n, k in zip(pair, tile, strict=True)], count)
        if same_row is not None:
            cycles *= 1 + 0.04 * prod(size for name, size in zip(pair, tile, strict=True) if name != same_row)
        cycles += prod(sizes.values()) * vectors * (5 if quick is None or quick == pair[-1] else 25) / steps
        if best is None or cycles < best.cycles * 0.995:
            best = RegisterTile(tuple(zip(pair, tile, strict=True)), count, cycles)
    assert best is not None
    return best


def _tiles(candidates: Sequence[tuple[str, int]], vectors: int, registers: int) -> Iterator[tuple[tuple[str, ...], int, tuple[int, ...]]]:
    """Yield the tiles that fit the registers: indices, vectors, rows of each index."""
    names = [name for name, size in candidates if size > 1] or [candidates[0][0]]
    sizes = dict(candidates)
    pairs = [(a,) for a in names] + [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    for count, pair in product(range(1, min(4, vectors) + 1), pairs):
        for tile in _shapes([sizes[name] for name in pair], (registers - 3 - count) // count):
            yield pair, count, tile


def _shapes(sizes: Sequence[int], room: int) -> list[tuple[int, ...]]:
    if len(sizes) == 1:
        return [(k,) for k in range(1, min(sizes[0], room) + 1)]
    return [(a, b) for a in range(1, min(sizes[0], room) + 1) for b in range(1, min(sizes[1], room // a) + 1)]


def _cycles(split: Sequence[list[tuple[int, int]]], vectors: int) -> float:
    """Estimate a step's cycles, each with two multiplications and two loads."""
    total = 0.0
    shapes = [(1, 1)]
    for chunks in split:
        shapes = [(rows * size, times * number) for rows, times in shapes for size, number in chunks]
    for rows, times in shapes:
        sums = rows * vectors
        total += times * max(sums / 2, (rows + vectors) / 2, 4.0 if sums < 8 else 0) + 0.25 * times
    return total

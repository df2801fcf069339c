"""Tilings of recurrences: which rows and units a block has."""

from __future__ import annotations

from math import ceil, gcd
from typing import NamedTuple

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.nvidia.recurrence.problem import Product, Read, Recurrence

#: Rows and columns of a fragment of sums, and bytes of a row's terms in one step of `mma`.
ROWS, COLUMNS, STEP_BYTES = 16, 8, 32

#: The most warps of a block.
_WARPS = 8
#: Registers of a thread for fragments of matrices and for sums, and for all that it keeps.
_MOST_FRAGMENTS, _MOST_SUMS, _MOST_REGISTERS = 128, 64, 200
#: The most arrivals of blocks of the same rows, which a counter of 32 bits numbers.
_MOST_ARRIVALS = (1 << 31) - 1
#: The cost of an operation on an element, in bytes that a block loads meanwhile.
_OPERATION_COST = 0.5


class Tiling(NamedTuple):
    """A division of a recurrence among blocks and their warps."""

    #: Rows and units of a block.
    rows: int
    units: int
    #: Warps, each of which has a share of the terms of all products.
    warps: int
    #: Fragments of the left operand that a warp loads at once.
    ahead: int = 16

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def elements(self) -> int:
        """Elements of a thread: pairs of a row and a unit."""
        return ceil(self.rows * self.units / self.threads)

    def blocks(self, r: Recurrence) -> tuple[int, int]:
        """Return the numbers of blocks along rows and along units."""
        return ceil(r.rows / self.rows), r.units // self.units

    def pitch(self, product: Product) -> int:
        """Return the floats of a row of partial sums in shared memory.

        They are so many that fragments cause no bank conflicts.
        """
        return product.parts * self.units + COLUMNS

    def shared(self, r: Recurrence) -> int:
        """Return the bytes of shared memory: the partial sums of all products."""
        return 4 * self.warps * self.rows * sum(self.pitch(product) for product in r.products)

    def fragments(self, product: Product) -> int:
        """Return the registers of a thread that hold its share of a product's matrix."""
        return 2 * steps(product) // self.warps * product.parts * (self.units // COLUMNS)

    def sums(self, product: Product) -> int:
        """Return the registers of a thread that hold sums of a product."""
        return 4 * (self.rows // ROWS) * product.parts * (self.units // COLUMNS)


def steps(product: Product) -> int:
    """Return the steps of `mma` along the terms of a product."""
    return product.terms * product.dtype.itemsize // STEP_BYTES


def choose(r: Recurrence, device: TargetCapabilities) -> Tiling | None:
    """Return the tiling estimated to be fastest.

    None if blocks that fit a GPU at once have no registers for all matrices.
    """
    common = gcd(*[steps(product) for product in r.products])
    warps = max([n for n in range(1, _WARPS + 1) if common % n == 0])
    tilings = [Tiling(rows, units, warps, ahead) for rows in (16, 32, 64) for units in (8, 16, 32) for ahead in (16, 4)]
    return min([t for t in tilings if _fits(r, t, device)], key=lambda t: _cost(r, t), default=None)


def _fits(r: Recurrence, t: Tiling, device: TargetCapabilities) -> bool:
    down, across = t.blocks(r)
    if r.units % t.units or down * across > device.processors or t.shared(r) > device.block_memory:
        return False
    if r.length * max(r.levels()) * across > _MOST_ARRIVALS:
        return False
    fragments, sums = sum(map(t.fragments, r.products)), max(map(t.sums, r.products))
    if fragments > _MOST_FRAGMENTS or sums > _MOST_SUMS:
        return False
    carried = sum(len(result.nodes) for result in r.carry) + sum(isinstance(node, Read) for node in r.nodes)
    loaded = 4 * min(t.ahead, max(steps(product) // t.warps * (t.rows // ROWS) for product in r.products))
    return fragments + sums + loaded + t.elements * carried <= _MOST_REGISTERS


def _cost(r: Recurrence, t: Tiling) -> float:
    """Estimate the time of an iteration, in bytes that a block loads."""
    loaded = t.rows * sum(product.terms * product.dtype.itemsize for product in r.products)
    return loaded + _OPERATION_COST * t.rows * t.units * len(r.nodes)

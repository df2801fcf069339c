"""Schedules of products on matrix units: tiles, and how they are chosen."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.nvidia.matmul.problem import HALVES, ROW, MatrixProduct

#: Bytes of shared memory in which a warp transposes results: 16 rows of 128 bytes.
STAGING = 16 * ROW

# Times are in multiplications of one slice by one multiprocessor, of which there are 32 in a clock cycle: 64 terms each.

#: What a slice costs besides its products, and what a row or column of it costs to copy: 128 bytes, of which about 56 in a clock cycle.
_SLICE_COST, _ROW_COST = 4000, 73

#: What adding up partial sums costs: a dispatch, and each partial sum that is stored and loaded.
_DISPATCH_COST, _PARTIAL_COST = 180_000, 12


@dataclass(frozen=True)
class Schedule:
    """A tiling for `wgmma`: one warp group copies, the others multiply.

    A slice is 128 bytes of every row and column of a tile along k.
    """

    kind: ClassVar = "wgmma"
    columns: int = 256
    #: Warp groups that multiply, and the blocks of 64 rows of each.
    groups: int = 2
    blocks: int = 1
    #: Slices in shared memory.
    stages: int = 4
    #: Whether each warp group has tiles of its own, so that one multiplies while the other stores.
    turns: bool = False
    #: Chunks of each sum that different blocks compute (split-K); a second dispatch adds them up.
    splits: int = 1

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return 64 * self.blocks * (1 if self.turns else self.groups)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (self.groups + 1)

    @property
    def residents(self) -> int:
        """Blocks that a multiprocessor has room for."""
        return 2 if self.groups == 1 else 1

    @property
    def registers(self) -> tuple[int, int] | None:
        """Registers of a thread that copies, and of one that multiplies.

        None: those that the compiler gives all of them. Together they must be no more than a multiprocessor has, or a block waits for ever.
        """
        return (40, 232) if self.groups == 2 else None

    def copies(self, left_along_k: bool, right_along_k: bool) -> bool:
        """Return whether operands can be copied that are contiguous along k, or not.

        Boxes of those that are not have 64 rows or columns.
        """
        return (left_along_k or self.rows % (ROW // 2) == 0) and (right_along_k or self.columns % (ROW // 2) == 0)

    @property
    def slice_bytes(self) -> int:
        """Bytes of a slice of both operands."""
        return (self.rows + self.columns) * ROW

    @property
    def shared(self) -> int:
        """Bytes of shared memory.

        It has slices, two barriers for each, and room for each warp to transpose results.
        """
        return self.stages * (self.slice_bytes + 16) + self.groups * 4 * STAGING


@dataclass(frozen=True)
class WarpSchedule:
    """A tiling for `mma.sync`: every warp copies and multiplies."""

    kind: ClassVar = "mma"
    rows: int = 128
    columns: int = 128
    #: Rows and columns of the part of a tile that a warp multiplies.
    warp_rows: int = 64
    warp_columns: int = 64
    #: Slices of 128 bytes along k in shared memory.
    stages: int = 3
    splits: int = 1
    residents: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // self.warp_rows * (self.columns // self.warp_columns) * 32

    def copies(self, left_along_k: bool, right_along_k: bool) -> bool:
        """Return whether operands can be copied that are contiguous along k, or not.

        Rows in shared memory have eight units of 16 bytes at least, by which they are swizzled.
        """
        return (left_along_k or self.rows >= ROW // 2) and (right_along_k or self.columns >= ROW // 2)

    @property
    def slice_bytes(self) -> int:
        """Bytes of a slice of both operands."""
        return (self.rows + self.columns) * ROW

    @property
    def shared(self) -> int:
        """Bytes of shared memory; results are staged where slices were."""
        return max(self.stages * self.slice_bytes, self.threads // 32 * STAGING)


AnySchedule = Schedule | WarpSchedule

_WGMMA = (
    Schedule(256, 2, stages=4),
    Schedule(192, 2, stages=5),
    Schedule(128, 2, blocks=2, stages=6, turns=True),
    Schedule(192, 2, stages=5, turns=True),
    Schedule(128, 1, stages=4),
    Schedule(64, 1, stages=4),
    Schedule(32, 1, stages=8),
)
_MMA = (
    WarpSchedule(128, 128, stages=3),
    WarpSchedule(64, 128, 32, 64, stages=3, residents=2),
    WarpSchedule(64, 64, 32, 32, stages=3, residents=2),
)

#: The fewest slices of a chunk of a split sum, the most chunks, and the most rounds of tiles that these fill.
_FEWEST_SLICES, _MOST_SPLITS, _MOST_ROUNDS = 8, 64, 4


def candidates(capabilities: TargetCapabilities) -> tuple[AnySchedule, ...]:
    """Return the schedules that fit a device."""
    schedules: tuple[AnySchedule, ...] = _WGMMA if capabilities.matrix_units == "wgmma" else _MMA
    return tuple([s for s in schedules if s.shared <= capabilities.block_memory])


def choose(product: MatrixProduct, capabilities: TargetCapabilities) -> AnySchedule:
    """Return the schedule measured to be fastest, or the one estimated to be."""
    tuned = shipped().get(capabilities.adapter, {}).get(product.name)
    kinds = capabilities.matrix_units, WarpSchedule.kind
    if tuned is not None and tuned.kind in kinds and tuned.shared <= capabilities.block_memory and is_legal(product, tuned):
        return tuned
    return estimated(product, capabilities, [s for s in candidates(capabilities) if is_legal(product, s)])


def estimated(
    product: MatrixProduct, capabilities: TargetCapabilities, schedules: Sequence[AnySchedule], most_splits: int = _MOST_SPLITS
) -> AnySchedule:
    """Return the schedule estimated to be fastest.

    Sums are in at most so many chunks.
    """
    processors = capabilities.processors
    options = [replace(s, splits=n) for s in schedules for n in _splits(product, s, processors) if n <= most_splits]
    return min(options, key=lambda s: _cost(product, s, processors))


def _splits(product: MatrixProduct, schedule: AnySchedule, processors: int) -> list[int]:
    """Return numbers of chunks: one, and those with which tiles fill whole rounds."""
    down, across = tiles(product, schedule)
    room = processors * schedule.residents
    most = min(_MOST_SPLITS, chunk(product, 1) // _FEWEST_SLICES)
    filling = {min(most, rounds * room // (down * across * product.batch)) for rounds in range(1, _MOST_ROUNDS + 1)}
    return sorted({1, *filling} - {0})


def is_legal(product: MatrixProduct, schedule: AnySchedule) -> bool:
    """Return whether a schedule's kernel computes a product.

    That by `mma.sync` computes those of 16 bits.
    """
    if isinstance(schedule, WarpSchedule) and product.lhs.dtype not in HALVES:
        return False
    return schedule.copies(product.lhs.along_k, product.rhs.along_k)


def chunk(product: MatrixProduct, splits: int) -> int:
    """Return the slices of a chunk of the sums."""
    slices = ceil(product.k * product.lhs.dtype.itemsize / ROW)
    return ceil(slices / splits)


def tiles(product: MatrixProduct, schedule: AnySchedule) -> tuple[int, int]:
    """Return the rows and columns of tiles."""
    return ceil(product.m / schedule.rows), ceil(product.n / schedule.columns)


def _cost(product: MatrixProduct, schedule: AnySchedule, processors: int) -> float:
    """Estimate the time of a schedule: rounds of tiles, times what each costs.

    To store a tile is estimated to take as long as to multiply a slice.
    """
    down, across = tiles(product, schedule)
    blocks = ceil(down * across * product.batch * schedule.splits / processors)
    rounds, residents = ceil(blocks / schedule.residents), min(blocks, schedule.residents)
    each = max(schedule.rows * schedule.columns, _ROW_COST * (schedule.rows + schedule.columns))
    stores = schedule.rows * schedule.columns * residents
    time = rounds * ((each * residents + _SLICE_COST) * chunk(product, schedule.splits) + stores)
    if schedule.splits == 1:
        return time
    return time + _DISPATCH_COST + _PARTIAL_COST * (schedule.splits + 1) * product.batch * product.m * product.n / processors


# Schedules that were measured to be the fastest, by adapter and name of product. They are shipped with the package, in a JSON file.

#: The schedules that come with the package.
SHIPPED = Path(__file__).with_name("tuned.json")

Choices = dict[str, dict[str, AnySchedule]]


def read(path: Path) -> Choices:
    """Read a file of schedules; empty if it is missing or has another format."""
    try:
        content = json.loads(path.read_text())
        return {adapter: {name: _schedule(**fields) for name, fields in schedules.items()} for adapter, schedules in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _schedule(kind: str, **fields: Any) -> AnySchedule:
    return WarpSchedule(**fields) if kind == "mma" else Schedule(**fields)


def write(path: Path, choices: Choices) -> None:
    """Write a file that `read` reads."""
    content = {
        adapter: {name: {"kind": schedule.kind, **asdict(schedule)} for name, schedule in sorted(schedules.items())}
        for adapter, schedules in sorted(choices.items())
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


@functools.cache
def shipped() -> Choices:
    """Return the schedules that come with the package."""
    return read(SHIPPED)

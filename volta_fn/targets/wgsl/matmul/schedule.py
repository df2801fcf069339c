"""Schedules: how a contraction is divided among workgroups and invocations."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from volta_fn.compiler.contractions.index_maps import Contraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.compute_dtype import Working

#: Multiplications in the text of shaders that count as long, at least; and how many steps of a slice short ones unroll.
_LONG, _SHORT = 1024, 2


@dataclass(frozen=True)
class Schedule:
    """A workgroup computes a tile of results, summing over one slice of both operands after the other.

    A slice is `depth` terms of the sums, and is staged in workgroup memory. All sizes are powers of two.
    """

    rows: int = 64
    columns: int = 64
    depth: int = 16
    #: The results of the tile that one invocation computes, in its registers.
    thread_rows: int = 8
    thread_columns: int = 4
    #: Neighbouring invocations form patches of at most so many rows by so many columns of invocations (see `patches`).
    lane_rows: int = 4
    lane_columns: int = 8
    #: Whether the next slice is prefetched into registers while one is being multiplied.
    ahead: bool = True
    #: How many steps of a slice are unrolled; 0: all.
    unroll: int = 0
    #: Consecutive workgroups compute tiles column by column within bands of so many rows of tiles, so that slices are found in the cache.
    band: int = 8
    #: In how many parts each sum is computed by different workgroups (split-K); a second dispatch adds them up.
    splits: int = 1
    #: Vectors of padding behind each line of a slice that is transposed while it is stored, against bank conflicts.
    pad: int = 1
    #: Whether workgroup memory is double-buffered: one slice is stored while the other is read.
    twice: bool = False
    #: Whether the last slice is multiplied in the loop as well, not by code of its own behind it: half the code.
    once: bool = False
    #: Whether compilers are kept from unrolling loops, and results are stored by a loop, too, so that the shader compiles quickly.
    brief: bool = False

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        return (self.rows // self.thread_rows) * (self.columns // self.thread_columns)

    def memory(self, work: Working) -> int:
        """Bytes of workgroup memory."""
        vectors = (self.rows + self.columns) // work.lanes + 2 * self.pad
        return vectors * work.lanes * self.depth * work.dtype.itemsize * (2 if self.twice else 1)

    def fits(self, work: Working, facts: TargetCapabilities) -> bool:
        """Whether a device has the workgroup memory and invocations for it."""
        return self.memory(work) <= facts.workgroup_memory and self.invocations <= facts.invocations

    def tiles(self, c: Contraction) -> tuple[int, int]:
        """How many rows and columns of tiles there are."""
        return -(-c.m // self.rows), -(-c.n // self.columns)

    def groups(self, c: Contraction) -> int:
        """How many workgroups there are."""
        down, across = self.tiles(c)
        return down * across * c.batch * self.splits

    def part(self, c: Contraction) -> int:
        """Terms of one part of a split sum: a whole number of slices."""
        slices = -(-c.k // self.depth)
        return -(-slices // self.splits) * self.depth

    def split(self, splits: int) -> Schedule:
        """The same with sums in `splits` parts."""
        return replace(self, splits=splits)

    def fitted(self, c: Contraction) -> Schedule:
        """The same with fewer splits where some would be empty."""
        return self.split(-(-c.k // self.part(c)))

    @property
    def length(self) -> int:
        """How many multiplications are written in the shader, which says how long it takes to compile."""
        return self.thread_rows * self.thread_columns * (self.unroll or self.depth) * (1 if self.once else 2)

    def short(self, work: Working, facts: TargetCapabilities, *, always: bool = False) -> Schedule | None:
        """A schedule that gives the same bits by a shader that compiles much faster, but runs slower.

        Tiles and parts of sums are the same. More invocations compute a tile, if the device allows: most of a shader's text is what each
        does. None for schedules that are not long themselves, unless one is wanted `always`.
        """
        if self.length < _LONG and not always:
            return None
        short = replace(self, unroll=_SHORT, once=True, twice=False, ahead=False, brief=True)
        shared = replace(short, thread_rows=work.lanes, thread_columns=work.lanes)
        return shared if shared.fits(work, facts) else short

    def as_dict(self) -> dict[str, Any]:
        """What `Schedule` takes."""
        return asdict(self)

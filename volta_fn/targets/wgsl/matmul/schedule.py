"""Define schedules: how a contraction is divided among workgroups and invocations."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from volta_fn.compiler.contractions.index_maps import IndexedContraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.compute_dtype import Working

#: Multiplications in the text of long shaders, at least; and iterations that short ones unroll.
_LONG, _SHORT = 1024, 2


@dataclass(frozen=True)
class Schedule:
    """A tiling: a workgroup computes a tile of results, slice by slice.

    A slice is `depth` terms of the sums of both operands, and is staged in workgroup memory. All sizes are powers of two.
    """

    rows: int = 64
    columns: int = 64
    depth: int = 16
    #: The results of the tile that one invocation computes, in its registers.
    thread_rows: int = 8
    thread_columns: int = 4
    #: Neighbouring invocations form patches of at most this many rows and columns of invocations (see `subgroup_patches`).
    lane_rows: int = 4
    lane_columns: int = 8
    #: Whether the next slice is prefetched into registers while one is being multiplied.
    ahead: bool = True
    #: Iterations over a slice that are unrolled; 0: all.
    unroll: int = 0
    #: Consecutive workgroups compute tiles column by column within bands of this many rows of tiles, so that slices hit the cache.
    band: int = 8
    #: Chunks of each sum that different workgroups compute (split-K); a second dispatch adds them up.
    splits: int = 1
    #: Vectors of padding after each line of a slice that is transposed when stored, against bank conflicts.
    pad: int = 1
    #: Whether workgroup memory is double-buffered: one slice is stored while the other is read.
    twice: bool = False
    #: Whether the last slice is multiplied in the loop as well, not by its own code after it: half the code.
    once: bool = False
    #: Whether compilers are kept from unrolling loops, and results are stored by a loop, so that the shader compiles quickly.
    brief: bool = False

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        return (self.rows // self.thread_rows) * (self.columns // self.thread_columns)

    def memory(self, work: Working) -> int:
        """Return the bytes of workgroup memory."""
        vectors = (self.rows + self.columns) // work.lanes + 2 * self.pad
        return vectors * work.lanes * self.depth * work.dtype.itemsize * (2 if self.twice else 1)

    def fits(self, work: Working, device: TargetCapabilities) -> bool:
        """Return whether a device has the workgroup memory and invocations for it."""
        return self.memory(work) <= device.workgroup_memory and self.invocations <= device.invocations

    def tiles(self, c: IndexedContraction) -> tuple[int, int]:
        """Return the numbers of rows and columns of tiles."""
        return -(-c.m // self.rows), -(-c.n // self.columns)

    def groups(self, c: IndexedContraction) -> int:
        """Return the number of workgroups."""
        down, across = self.tiles(c)
        return down * across * c.batch * self.splits

    def chunk(self, c: IndexedContraction) -> int:
        """Return the terms of a chunk of a split sum: a multiple of the slice."""
        slices = -(-c.k // self.depth)
        return -(-slices // self.splits) * self.depth

    def split(self, splits: int) -> Schedule:
        """Return the schedule with sums in `splits` chunks."""
        return replace(self, splits=splits)

    def fitted(self, c: IndexedContraction) -> Schedule:
        """Return the schedule without empty chunks."""
        return self.split(-(-c.k // self.chunk(c)))

    @property
    def length(self) -> int:
        """The multiplications in the shader's text, which tell its compile time."""
        return self.thread_rows * self.thread_columns * (self.unroll or self.depth) * (1 if self.once else 2)

    def short(self, work: Working, device: TargetCapabilities, *, always: bool = False) -> Schedule | None:
        """Return a schedule with the same bits that compiles much faster, but runs slower.

        Tiles and chunks of sums are the same. More invocations compute a tile, if the device allows: most of a shader's text is what each
        does. None for schedules that are not long themselves, unless one is wanted `always`.
        """
        if self.length < _LONG and not always:
            return None
        short = replace(self, unroll=_SHORT, once=True, twice=False, ahead=False, brief=True)
        shared = replace(short, thread_rows=work.lanes, thread_columns=work.lanes)
        return shared if shared.fits(work, device) else short

    def as_dict(self) -> dict[str, Any]:
        """Return the arguments of `Schedule` that differ from the defaults."""
        return asdict(self)

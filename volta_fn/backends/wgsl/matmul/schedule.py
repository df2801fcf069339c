"""Schedules: how workgroups and invocations share a contraction out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.matmul.working import Working
from volta_fn.compiler.contractions.maps import Contraction

#: Multiplications written in shaders that are long, at least, and the steps of a slice that are written out in short ones.
_LONG, _SHORT = 1024, 2


@dataclass(frozen=True)
class Schedule:
    """A workgroup sums a tile of results, a slice of so much depth after the other, which it keeps in workgroup memory.

    All sizes are powers of two.
    """

    rows: int = 64
    columns: int = 64
    depth: int = 16
    #: An invocation's part of the tile.
    thread_rows: int = 8
    thread_columns: int = 4
    #: Neighbours in a subgroup are so many rows of invocations, at most, by this.
    lane_rows: int = 4
    lane_columns: int = 8
    #: Whether the next slice is loaded, into registers, while one is being multiplied.
    ahead: bool = True
    #: So many steps of a slice are written out in a turn of the loop; 0: all.
    unroll: int = 0
    #: Workgroups of one number after another do tiles in bands of so many rows of tiles, whose slices they find in the cache.
    band: int = 8
    #: Parts of the sum, which are added up in the end.
    splits: int = 1
    #: Vectors between the lines of a slice into which columns are stored, so that they do not meet one bank of memory only.
    pad: int = 1
    #: Whether there is room for two slices in workgroup memory, so that one is stored while the other is read.
    twice: bool = False
    #: Whether the products of a slice are written once, in place of once in the loop and once behind it for the last slice: half the code.
    once: bool = False
    #: Whether compilers are kept from writing out loops, of which the results are one, too: the shader compiles soon.
    brief: bool = False

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        return (self.rows // self.thread_rows) * (self.columns // self.thread_columns)

    def memory(self, work: Working) -> int:
        """Bytes of workgroup memory."""
        vectors = (self.rows + self.columns) // work.lanes + 2 * self.pad
        return vectors * work.lanes * self.depth * work.dtype.itemsize * (2 if self.twice else 1)

    def fits(self, work: Working, facts: Facts) -> bool:
        """Whether a device can do it."""
        return self.memory(work) <= facts.workgroup_memory and self.invocations <= facts.invocations

    def tiles(self, c: Contraction) -> tuple[int, int]:
        """Rows and columns of tiles."""
        return -(-c.m // self.rows), -(-c.n // self.columns)

    def groups(self, c: Contraction) -> int:
        """How many workgroups there are."""
        down, across = self.tiles(c)
        return down * across * c.batch * self.splits

    def part(self, c: Contraction) -> int:
        """Terms of a part of the sum: a whole number of slices."""
        slices = -(-c.k // self.depth)
        return -(-slices // self.splits) * self.depth

    def split(self, splits: int) -> Schedule:
        """The same with so many parts of the sum."""
        return replace(self, splits=splits)

    def fitted(self, c: Contraction) -> Schedule:
        """The same with no part of the sum empty."""
        return self.split(-(-c.k // self.part(c)))

    @property
    def length(self) -> int:
        """How many multiplications are written in the shader, which says how long it takes to compile."""
        return self.thread_rows * self.thread_columns * (self.unroll or self.depth) * (1 if self.once else 2)

    def short(self, work: Working, facts: Facts, *, always: bool = False) -> Schedule | None:
        """One that gives the same bits by a shader that compiles much sooner, but takes more time.

        Tiles and parts of sums are the same. More invocations share out a tile, if the device allows: most of a shader is what each does.
        None for those that are not long themselves, unless one is wanted `always`.
        """
        if self.length < _LONG and not always:
            return None
        short = replace(self, unroll=_SHORT, once=True, twice=False, ahead=False, brief=True)
        shared = replace(short, thread_rows=work.lanes, thread_columns=work.lanes)
        return shared if shared.fits(work, facts) else short

    def as_dict(self) -> dict[str, Any]:
        """What `Schedule` takes."""
        return asdict(self)

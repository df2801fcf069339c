"""Schedules of contractions: how work is divided, and which were measured."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from volta_fn.compiler.contractions import IndexedContraction, OperandMap
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.runtime.caches import cache_dir
from volta_fn.targets.wgsl.matmul.results import Working

# Schedules: how a contraction is divided among workgroups and invocations.

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
    #: Neighbouring invocations form patches of at most this many rows and columns of invocations (see `tiles`).
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

    def fits(self, work: Working, capabilities: TargetCapabilities) -> bool:
        """Return whether a device has the workgroup memory and invocations for it."""
        return self.memory(work) <= capabilities.workgroup_memory and self.invocations <= capabilities.invocations

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

    def short(self, work: Working, capabilities: TargetCapabilities, *, always: bool = False) -> Schedule | None:
        """Return a schedule with the same bits that compiles much faster, but runs slower.

        Tiles and chunks of sums are the same. More invocations compute a tile, if the device allows: most of a shader's text is what each
        does. None for schedules that are not long themselves, unless one is wanted `always`.
        """
        if self.length < _LONG and not always:
            return None
        short = replace(self, unroll=_SHORT, once=True, twice=False, ahead=False, brief=True)
        shared = replace(short, thread_rows=work.lanes, thread_columns=work.lanes)
        return shared if shared.fits(work, capabilities) else short

    def as_dict(self) -> dict[str, Any]:
        """Return the arguments of `Schedule`."""
        return asdict(self)


# Remember the fastest schedules measured, by adapter and class of contraction.
#
# Some are shipped with the package, in a JSON file; others were measured in this process, or in an earlier one and are in such a file
# in the user's cache folder. Where none is known and tuning is enabled, schedules are measured (see `contract`).

#: The schedules that come with the package.
SHIPPED = Path(__file__).with_name("tuned.json")

#: Elements of a vector, of which tiles consist, and the most rows or columns of a tile, or splits.
_VECTOR, _LARGEST = 4, 1 << 12

#: Schedules by adapter and class.
Choices = dict[str, dict[str, Schedule]]


def class_of(c: IndexedContraction) -> str:
    """Return the class of a contraction, for which one schedule serves.

    It consists of dtypes, sizes, and how operands and results lie in memory.
    """
    dtypes = ",".join(x.dtype.name for x in (c.lhs, c.rhs, c.target))
    forms = _form(c.lhs), _form(c.rhs), "4" if c.target.fours else "1"
    return f"{dtypes} {c.batch}x{c.m}x{c.n}x{c.k} {' '.join(forms)}"


def _form(map_: OperandMap) -> str:
    """Describe the indices that allow vectors of four: summed (k4) or other (o4).

    Bounds follow.
    """
    fours = [name for name, inner in (("k4", True), ("o4", False)) if map_.fours(along_inner=inner)]
    return "".join(fours or ["1"]) + ("b" * len(map_.bounds))


def read_schedules(path: Path) -> Choices:
    """Read a file of schedules; empty if it is missing or has another format.

    Schedules that no code can be generated for are left out.
    """
    try:
        content = json.loads(path.read_text())
        choices = {adapter: {key: Schedule(**value) for key, value in schedules.items()} for adapter, schedules in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {adapter: {key: value for key, value in schedules.items() if is_valid(value)} for adapter, schedules in choices.items()}


def is_valid(schedule: Schedule) -> bool:
    """Return True for sizes of the types and magnitudes that code is generated for."""
    values = schedule.as_dict()
    if any(type(value) is not type(default) for value, default in zip(values.values(), Schedule().as_dict().values(), strict=True)):
        return False
    tile = schedule.rows, schedule.columns, schedule.depth, schedule.thread_rows, schedule.thread_columns
    in_bounds = all(_VECTOR <= size <= _LARGEST and not size & (size - 1) for size in tile)
    patches = all(size > 0 and not size & (size - 1) for size in (schedule.lane_rows, schedule.lane_columns))
    divides = schedule.thread_rows <= schedule.rows and schedule.thread_columns <= schedule.columns
    counts = schedule.band > 0 and 0 < schedule.splits <= _LARGEST and 0 <= schedule.pad <= _VECTOR
    unrolls = 0 <= schedule.unroll <= schedule.depth and not schedule.unroll & (schedule.unroll - 1)
    return in_bounds and patches and divides and counts and unrolls


def write_schedules(path: Path, choices: Choices) -> None:
    """Write a file that `read_schedules` reads."""
    content = {
        adapter: {key: value.as_dict() for key, value in sorted(schedules.items())} for adapter, schedules in sorted(choices.items())
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(path)


@functools.cache
def shipped() -> Choices:
    """Return the schedules that come with the package."""
    return read_schedules(SHIPPED)


def users_file() -> Path | None:
    """Return the file of schedules measured on the user's devices; None without cache."""
    where = cache_dir()
    return None if where is None else where / "schedules.json"


@functools.cache
def _users() -> Choices:
    where = users_file()
    return {} if where is None else read_schedules(where)


#: The schedules that were measured in this process.
_learnt: Choices = {}

#: Measures the fastest schedule of a contraction; by the names of adapters for which tuning is enabled.
Finder = Callable[[IndexedContraction, Working, TargetCapabilities], Schedule]
_finders: dict[str, Finder] = {}


def record_schedules(choices: Choices) -> None:
    """Remember schedules in this process."""
    for adapter, schedules in choices.items():
        _learnt.setdefault(adapter, {}).update(schedules)


def set_finder(adapter: str, finder: Finder) -> None:
    """Measure unknown schedules on a device from now on."""
    _finders[adapter] = finder


def remembered(c: IndexedContraction, work: Working, capabilities: TargetCapabilities) -> Schedule | None:
    """Return the schedule measured to be fastest on such a device, if it fits.

    With a finder for the device, it is measured now; None if it is unknown.
    """
    name = class_of(c)
    for choices in (_learnt, _users(), shipped()):
        schedule = choices[capabilities.adapter].get(name) if capabilities.adapter in choices else None
        if schedule is not None and schedule.fits(work, capabilities):
            return schedule
    finder = _finders.get(capabilities.adapter)
    return None if finder is None else finder(c, work, capabilities)

"""Tiled contractions: schedules, slices in workgroup memory, sums in registers."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from volta_fn.compiler.contractions import IndexedContraction, OperandMap, Walk
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.runtime.caches import cache_dir
from volta_fn.targets.wgsl.matmul.results import (
    ZERO,
    BufferNumbers,
    Epilogue,
    Working,
    chunk,
    complete_routine,
    emit_store,
    loaded,
    strided_offset,
    sum_dispatch,
    total,
)
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader
from volta_fn.targets.wgsl.shader import times

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


def is_measuring(capabilities: TargetCapabilities) -> bool:
    """Return whether unknown schedules are measured on such a device."""
    return capabilities.adapter in _finders


def measured(capabilities: TargetCapabilities) -> tuple[list[tuple[str, Schedule]], ...]:
    """Return the schedules measured on such a device, in this process and before."""
    return tuple([sorted(choices.get(capabilities.adapter, {}).items(), key=itemgetter(0)) for choices in (_learnt, _users())])


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


# Arrange the invocations of a subgroup in patches of results.


def patch(f: Shader, rows: int, columns: int, across: int) -> tuple[str, str, str, str]:
    """Return the row and column of an invocation's patch, and its own in the patch.

    `across` patches are next to each other; each has `rows` by `columns` invocations.
    """
    lane, number = f.digits(f.local, (0, rows * columns))[::-1]
    pair, x, low = f.digits(lane, (0, columns, min(2, rows)))
    y = total(f, times(pair, 2), low)
    below, right = f.digits(number, (0, across))
    return below, right, y, x


# Stage slices of operands in workgroup memory.
#
# A slice has a pitch for each of `depth` k, with a number of each of the operand's rows (of A) or columns (of B) in the tile. An
# invocation loads a few *units* of it: vectors of four along the contiguous index, where they are aligned, or else single elements.
# Neighbouring invocations load neighbouring units. The loop-invariant terms of addresses are computed before the loop.


class _Unit(NamedTuple):
    """The position of a unit in a slice, its row or column and k, from the first unit."""

    across: int
    k: int


class Slice:
    """The slice of an operand: `width` numbers in each of `depth` lines."""

    def __init__(self, f: Shader, work: Working, name: str, number: int, map_: OperandMap, schedule: Schedule, width: int) -> None:
        self.f, self.work, self.name, self.map = f, work, name, map_
        self.width, self.depth = width, schedule.depth
        self.along_inner = _nearness(map_.inner) < _nearness(map_.outer)
        self.pitch = self.width // work.lanes + (schedule.pad if self.along_inner else 0)
        self.size = self.pitch * self.depth
        self.tile = f.workgroup(name, work.vector, self.size * (2 if schedule.twice else 1))
        self.unit = 4 if work.lanes == 4 and map_.fours(along_inner=self.along_inner) else 1
        self.type = work.vector if self.unit == 4 else work.type
        self.array = f.buffer(number, map_.dtype, False, map_.elements if self.unit == 4 else 0)
        #: Whether the k, or rows, of a slice differ only in their last digit, and all exist.
        self.k_is_plain = len(map_.inner.sizes) <= 1 or map_.inner.sizes[-1] % self.depth == 0
        self.across_is_plain = bool(map_.outer.sizes) and map_.outer.sizes[-1] % self.width == 0
        self._distribute_units()

    def _distribute_units(self) -> None:
        """Distribute the units among invocations, neighbours along the contiguous index."""
        f = self.f
        quick, slow = (self.depth, self.width) if self.along_inner else (self.width, self.depth)
        quick //= self.unit
        unit_count = quick * slow
        count = max(1, unit_count // f.invocations)
        if f.invocations >= quick:
            positions = [(0, i * (f.invocations // quick)) for i in range(count)]
        else:
            rounds = quick // f.invocations
            positions = [(i % rounds * f.invocations * self.unit, i // rounds) for i in range(count)]
        self.units = [_Unit(*(position[::-1] if self.along_inner else position)) for position in positions]
        far, near = f.digits(f.local, (0, quick))
        first = total(f, times(near, self.unit)), far
        self.across, self.k = first[::-1] if self.along_inner else first
        #: The condition that an invocation has units; empty if all have.
        self.has_units = f"local < {unit_count}u" if unit_count < f.invocations else ""

    # before the loop

    def prepare(self, stack: str, first: str, end: str, *, exact: bool) -> None:
        """Compute the loop-invariant terms of addresses.

        They are those of product `stack`, and rows or columns from `first` on. The sum ends at `end`; `exact` slices never exceed it.
        """
        f = self.f
        self.end, self.exact = end, exact
        self.start = strided_offset(f, f.digits(stack, self.map.stack.sizes), self.map.stack.strides, self.map.start)
        self.bases: dict[int, list[str]] = {}
        for unit in self.units:
            if unit.across not in self.bases:
                self.bases[unit.across] = self._base(first, unit.across)
        for i in range(len(self.units)):
            f.emit(f"var {self.name}_{i}: {self.type};")

    def _base(self, first: str, further: int) -> list[str]:
        """Return the offset of a row or column, and its coordinates, at k = 0.

        They are taken at the invocation's first k if that is all that remains.
        """
        f, outer = self.f, self.map.outer
        bounds = [(bound.outer, bound.inner, bound.start) for bound in self.map.bounds]
        if self.across_is_plain:
            positions = f.digits(first, outer.sizes)
            positions[-1] = total(f, positions[-1], self.across, further)
        else:
            last = outer.size - (1 if self.along_inner else self.unit)
            positions = f.digits(f.let("u32", f"min({total(f, first, self.across, further)}, {last}u)"), outer.sizes)
        bases = []
        for outwards, inwards, start in [(outer.strides, self.map.inner.strides, 0), *bounds]:
            step = times(self.k, inwards[-1]) if self.k_is_plain and inwards else ZERO
            bases.append(total(f, strided_offset(f, positions, outwards, start), step))
        bases[0] = total(f, self.start, bases[0])
        return bases

    # in the loop

    def load(self, k: str) -> None:
        """Load the units of the slice that begins with `k`."""
        f, inner = self.f, self.map.inner
        walks = [inner.strides, *[bound.inner for bound in self.map.bounds]]
        shared: dict[int, list[str]] = {}
        for i, unit in enumerate(self.units):
            key = 0 if self.k_is_plain else unit.k
            if key not in shared:
                positions = f.digits(k if self.k_is_plain else total(f, k, self.k, unit.k), inner.sizes)
                shared[key] = [strided_offset(f, positions, walk) for walk in walks]
            further = [unit.k * walk[-1] if self.k_is_plain and walk else 0 for walk in walks]
            address, *coordinates = [
                total(f, base, step, more) for base, step, more in zip(self.bases[unit.across], shared[key], further, strict=True)
            ]
            conditions = [self.has_units] if self.has_units else []
            if not self.exact:
                conditions.append(f"{total(f, k, self.k, unit.k)} < {self.end}")
            conditions += [f"{c} < {bound.size}u" for c, bound in zip(coordinates, self.map.bounds, strict=True)]
            value, condition = loaded(f, self.work, self.array, address, conditions, fours=self.unit == 4)
            f.emit(f"{self.name}_{i} = {f'select({self.type}(), {value}, {condition})' if condition else value};")

    def store(self, second: str = "") -> None:
        """Store the loaded units to workgroup memory; `second` selects one of two buffers."""
        f = self.f
        with f.block(f"if ({self.has_units})" if self.has_units else ""):
            shared: dict[int, tuple[str, str]] = {}
            for i, unit in enumerate(self.units):
                past = unit.across % self.work.lanes
                if past not in shared:
                    shared[past] = self._position(total(f, self.across, past))
                position, lane = shared[past]
                at = total(f, position, times(second, self.size) if second else 0, unit.k * self.pitch + unit.across // self.work.lanes)
                self._put(f"{self.name}_{i}", at, lane)

    def _position(self, across: str) -> tuple[str, str]:
        """Return the offset of a row or column in workgroup memory, and its component."""
        f, lanes = self.f, self.work.lanes
        return f.let("u32", f"{self.k} * {self.pitch}u + {across} / {lanes}u"), f"[{across} % {lanes}u]"

    def _put(self, unit: str, at: str, lane: str) -> None:
        f = self.f
        if self.along_inner and self.unit == 4:
            for e in range(4):
                f.emit(f"{self.tile}[{at} + {e * self.pitch}u]{lane} = {unit}.{'xyzw'[e]};")
        else:
            f.emit(f"{self.tile}[{at}]{lane if self.unit < self.work.lanes else ''} = {unit};")


def _nearness(walk: Walk) -> tuple[float, int]:
    """Return the distance of neighbours, and minus their number."""
    return (walk.strides[-1], -walk.sizes[-1]) if walk.strides else (inf, 0)


# Tiled contractions: slices in workgroup memory, sums in registers.


def tiled(
    c: IndexedContraction,
    work: Working,
    schedule: Schedule,
    capabilities: TargetCapabilities,
    epilogue: Epilogue,
    buffers: BufferNumbers,
    *,
    alone: bool = False,
) -> Routine:
    """Return the routine of a contraction by a schedule.

    If a program consists of it `alone`, it always starts with a short shader.
    """
    if c.k == 0:
        return Routine((sum_dispatch(c, work, 0, capabilities, epilogue, buffers),))
    schedule = schedule.fitted(c)
    first = _dispatch(c, work, schedule, capabilities, epilogue, buffers, alone)
    return complete_routine(first, c, work, schedule.splits, capabilities, epilogue, buffers)


def _dispatch(
    c: IndexedContraction,
    work: Working,
    schedule: Schedule,
    capabilities: TargetCapabilities,
    epilogue: Epilogue,
    buffers: BufferNumbers,
    alone: bool,
) -> Dispatch:
    """Return the dispatch of a schedule.

    It starts with a shader that compiles faster if the schedule's own is long, or it is `alone`.
    """

    def written(by: Schedule) -> Dispatch:
        return Tiles(c, work, by, capabilities, epilogue, buffers).dispatch()

    short = schedule.short(work, capabilities, always=alone)
    if short is None:
        return written(schedule)
    return replace(written(short), faster=cache(lambda: written(schedule).shader))


class Tiles:
    """The shader of a tiled contraction under construction."""

    def __init__(
        self,
        c: IndexedContraction,
        work: Working,
        schedule: Schedule,
        capabilities: TargetCapabilities,
        epilogue: Epilogue,
        buffers: BufferNumbers,
    ) -> None:
        self.c, self.work, self.schedule = c, work, schedule
        #: The variable that tells which of two buffers in workgroup memory is read.
        self.second = ""
        #: A zero that compilers cannot fold, which keeps them from unrolling loops; empty if they may.
        self.opaque_zero = ""
        self.f = f = Shader(capabilities, schedule.invocations)
        sizes = schedule.rows, schedule.columns
        self.sides = [
            Slice(f, work, name, number, map_, schedule, size)
            for name, number, map_, size in zip("ab", (buffers.lhs, buffers.rhs), (c.lhs, c.rhs), sizes, strict=True)
        ]
        self.put = emit_store(f, work, c, epilogue, buffers, work.lanes, schedule.splits)

    def dispatch(self) -> Dispatch:
        """Return the finished dispatch."""
        f, schedule, work = self.f, self.schedule, self.work
        stack, row, column, split = self._position()
        begin, end = chunk(f, split, schedule.chunk(self.c), schedule.splits, self.c.k)
        if schedule.brief:
            self.opaque_zero = f.let("u32", "_workgroup_id.z")
            end = f.let("u32", self._unknown(end))
        exact = self.c.k % schedule.depth == 0
        for side, first in zip(self.sides, (row, column), strict=True):
            side.prepare(stack, first, end, exact=exact)
        self._lanes()
        for r in range(schedule.thread_rows):
            for j in range(schedule.thread_columns // (work.lanes if schedule.brief else 1)):
                f.emit(f"var c{r}_{j} = {work.vector if schedule.brief else work.type}();")
        self._sum(begin, end)
        self._finish(stack, row, column, split)
        return f.dispatch(schedule.groups(self.c), self.c.products)

    def _position(self) -> tuple[str, str, str, str]:
        """Compute the product, the first row and column, and the chunk of a workgroup."""
        f, schedule = self.f, self.schedule
        down, across = schedule.tiles(self.c)
        band = next(b for b in range(min(schedule.band, down), 0, -1) if down % b == 0)
        split, stack, strip, j, i = f.digits(f.group, (schedule.splits, self.c.batch, down // band, across, band))
        row = f.let("u32", f"({strip} * {band}u + {i}) * {schedule.rows}u")
        return stack, row, f.let("u32", f"{j} * {schedule.columns}u"), split

    def _lanes(self) -> None:
        """Compute the first vector of rows, and of columns, of an invocation.

        Its further vectors are `lane_rows` and `lane_columns` apart.
        """
        f, s, lanes = self.f, self.schedule, self.work.lanes
        self.lane_rows = min(s.lane_rows, s.rows // s.thread_rows)
        self.lane_columns = min(s.lane_columns, s.columns // s.thread_columns)
        down, right, y, x = patch(f, self.lane_rows, self.lane_columns, s.columns // (self.lane_columns * s.thread_columns))
        self.top = f.let("u32", f"{down} * {self.lane_rows * s.thread_rows // lanes}u + {y}")
        self.left = f.let("u32", f"{right} * {self.lane_columns * s.thread_columns // lanes}u + {x}")

    def _sum(self, begin: str, end: str) -> None:
        """Sum the terms from `begin` to `end`, slice by slice."""
        f, depth, schedule = self.f, self.schedule.depth, self.schedule
        if not schedule.ahead:
            with f.loop(end, begin, depth) as k:
                self._load(k)
                self._stage()
                self._multiply()
                f.emit("workgroupBarrier();")
            return
        if schedule.once and not schedule.twice:
            self._sum_in_one_loop(begin, end)
            return
        with f.block(""):
            self._load(begin)
            self._stage()
        if schedule.twice:
            self._sum_double_buffered(begin, end)
            return
        with f.loop(end, f"{begin} + {depth}u", depth) as k:
            self._load(k)
            self._multiply()
            f.emit("workgroupBarrier();")
            self._stage()
        self._multiply()

    def _sum_in_one_loop(self, begin: str, end: str) -> None:
        """Sum with one copy of the multiplications, prefetching the next slice if any."""
        f, depth = self.f, self.schedule.depth
        with f.block(""):
            self._load(begin)
        with f.loop(end, begin, depth) as k:
            self._stage()
            following = f.let("u32", f"{k} + {depth}u")
            with f.block(f"if ({following} < {end})"):
                self._load(following)
            self._multiply()
            f.emit("workgroupBarrier();")

    def _sum_double_buffered(self, begin: str, end: str) -> None:
        """Sum with slices that alternate between two buffers of workgroup memory."""
        f, depth = self.f, self.schedule.depth
        self.second = f.var("u32", "0u")
        with f.loop(end, f"{begin} + {depth}u", depth) as k:
            self._load(k)
            self._multiply()
            f.emit(f"{self.second} = 1u - {self.second};")
            self._stage()
        self._multiply()

    def _load(self, k: str) -> None:
        for side in self.sides:
            side.load(k)

    def _stage(self) -> None:
        """Store the loaded slice to workgroup memory."""
        for side in self.sides:
            side.store(self.second)
        self.f.emit("workgroupBarrier();")

    def _multiply(self) -> None:
        """Add the products of a slice."""
        f, depth, unroll = self.f, self.schedule.depth, self.schedule.unroll
        self.firsts = [self.top, self.left]
        if self.second:
            self.firsts = [total(f, times(self.second, side.size), x) for side, x in zip(self.sides, self.firsts, strict=True)]
        if not unroll or unroll >= depth:
            for number in range(depth):
                self._step(f"{number}u")
            return
        with f.loop(self._unknown(f"{depth}u"), 0, unroll) as k:
            for more in range(unroll):
                self._step(f"({k} + {more}u)")

    def _unknown(self, end: str) -> str:
        """Hide the end of a loop from compilers, if `opaque_zero` is set."""
        return f"{end} + {self.opaque_zero}" if self.opaque_zero else end

    def _step(self, k: str) -> None:
        """Add the outer product of line `k` of both slices."""
        with self.f.block(""):
            rows = self._factors("a", self.sides[0], k, self.firsts[0], self.schedule.thread_rows, self.lane_rows)
            columns = self._factors("b", self.sides[1], k, self.firsts[1], self.schedule.thread_columns, self.lane_columns)
            self._add_products(rows, columns)

    def _factors(self, name: str, side: Slice, k: str, first: str, count: int, spacing: int) -> list[str]:
        """Load `count` numbers of line `k` of a slice into variables named after `name`.

        Consecutive vectors are `spacing` lanes apart.
        """
        f, work, factors = self.f, self.work, []
        for i in range(count // work.lanes):
            f.emit(f"let {name}{i}: {work.vector} = {side.tile}[{k} * {side.pitch}u + {first} + {i * spacing}u];")
            numbers = [f"{name}{i}.{c}" for c in "xyzw"] if work.lanes == 4 else [f"{name}{i}"]
            factors += numbers if self.schedule.brief or work.lanes == 1 else [f.let(work.type, x) for x in numbers]
        return factors

    def _add_products(self, rows: list[str], columns: list[str]) -> None:
        """Add each product of two numbers to its sum; by vectors in a brief shader."""
        f, work = self.f, self.work
        for r, x in enumerate(rows):
            if self.schedule.brief:
                for v in range(len(columns) // work.lanes):
                    f.emit(f"c{r}_{v} = {work.add_scaled(x, f'b{v}', f'c{r}_{v}')};")
                continue
            # In alternating order, so that consecutive products share a factor, which then stays in its register.
            for j, y in [*enumerate(columns)][:: -1 if r % 2 else 1]:
                f.emit(f"c{r}_{j} = {work.add_product(x, y, f'c{r}_{j}')};")

    def _finish(self, stack: str, row: str, column: str, split: str) -> None:
        f, s, lanes = self.f, self.schedule, self.work.lanes
        if s.splits > 1:
            stack = total(f, times(split, self.c.batch), stack)
        top, left = f.let("u32", f"{row} + {self.top} * {lanes}u"), f.let("u32", f"{column} + {self.left} * {lanes}u")
        if s.brief:
            self._finish_in_a_loop(stack, top, left)
            return
        for r in range(s.thread_rows):
            block, element = divmod(r, lanes)
            for v in range(s.thread_columns // lanes):
                position = f"{top} + {block * self.lane_rows * lanes + element}u, {left} + {v * self.lane_columns * lanes}u"
                sums = ", ".join(f"c{r}_{v * lanes + e}" for e in range(lanes))
                f.emit(f"{self.put}({stack}, {position}, {self.work.vector}({sums}));")

    def _finish_in_a_loop(self, stack: str, top: str, left: str) -> None:
        """Store the sums by a loop over vectors, so that the epilogue occurs once."""
        f, s, lanes = self.f, self.schedule, self.work.lanes
        across = s.thread_columns // lanes
        vectors = [f"c{r}_{v}" for r in range(s.thread_rows) for v in range(across)]
        f.emit(f"var sums = array<{self.work.vector}, {len(vectors)}>({', '.join(vectors)});")
        with f.loop(self._unknown(f"{len(vectors)}u")) as n:
            r, v = f.digits(n, (0, across))
            y = f"{r} / {lanes}u * {self.lane_rows * lanes}u + {r} % {lanes}u"
            f.emit(f"{self.put}({stack}, {top} + {y}, {left} + {times(v, self.lane_columns * lanes)}, sums[{n}]);")

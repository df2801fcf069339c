"""Stage slices of operands in workgroup memory.

A slice has a pitch for each of `depth` k, with a number of each of the operand's rows (of A) or columns (of B) in the tile. An invocation
loads a few *units* of it: vectors of four along the contiguous index, where they are aligned, or else single elements. Neighbouring
invocations load neighbouring units. The loop-invariant terms of addresses are computed before the loop.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from volta_fn.compiler.contractions.index_maps import OperandMap
from volta_fn.compiler.contractions.matmul_problem import Walk
from volta_fn.targets.wgsl.matmul.compute_dtype import Working
from volta_fn.targets.wgsl.matmul.indices import ZERO, digits, quotient, remainder, times, total, walked
from volta_fn.targets.wgsl.matmul.schedule import Schedule
from volta_fn.targets.wgsl.scalars.shader import Shader


class _Unit(NamedTuple):
    """The position of a unit in a slice: its row or column, and its k.

    Both are relative to the invocation's first unit.
    """

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
        self.all = quick * slow
        count = max(1, self.all // f.invocations)
        if f.invocations >= quick:
            positions = [(0, i * (f.invocations // quick)) for i in range(count)]
        else:
            rounds = quick // f.invocations
            positions = [(i % rounds * f.invocations * self.unit, i // rounds) for i in range(count)]
        self.units = [_Unit(*(position[::-1] if self.along_inner else position)) for position in positions]
        first = total(f, times(remainder(f, f.local, quick), self.unit)), quotient(f, f.local, quick)
        self.across, self.k = first[::-1] if self.along_inner else first
        self.idle = f"local < {self.all}u" if self.all < f.invocations else ""

    # before the loop

    def prepare(self, stack: str, first: str, end: str, *, exact: bool) -> None:
        """Compute what is loop-invariant.

        It is for the product number `stack`, and rows or columns from `first` on. The sum ends at `end`; `exact` slices never exceed it.
        """
        f = self.f
        self.end, self.exact = end, exact
        self.start = walked(f, digits(f, stack, self.map.stack.sizes), self.map.stack.strides, self.map.start)
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
            positions = digits(f, first, outer.sizes)
            positions[-1] = total(f, positions[-1], self.across, further)
        else:
            last = outer.size - (1 if self.along_inner else self.unit)
            positions = digits(f, f.let("u32", f"min({total(f, first, self.across, further)}, {last}u)"), outer.sizes)
        found = []
        for outwards, inwards, start in [(outer.strides, self.map.inner.strides, 0), *bounds]:
            step = times(self.k, inwards[-1]) if self.k_is_plain and inwards else ZERO
            found.append(total(f, walked(f, positions, outwards, start), step))
        found[0] = total(f, self.start, found[0])
        return found

    # in the loop

    def load(self, k: str) -> None:
        """Load the units of the slice that begins with `k`."""
        f, inner = self.f, self.map.inner
        walks = [inner.strides, *[bound.inner for bound in self.map.bounds]]
        shared: dict[int, list[str]] = {}
        for i, unit in enumerate(self.units):
            key = 0 if self.k_is_plain else unit.k
            if key not in shared:
                positions = digits(f, k if self.k_is_plain else total(f, k, self.k, unit.k), inner.sizes)
                shared[key] = [walked(f, positions, walk) for walk in walks]
            further = [unit.k * walk[-1] if self.k_is_plain and walk else 0 for walk in walks]
            address, *coordinates = [
                total(f, base, step, more) for base, step, more in zip(self.bases[unit.across], shared[key], further, strict=True)
            ]
            conditions = [self.idle] if self.idle else []
            if not self.exact:
                conditions.append(f"{total(f, k, self.k, unit.k)} < {self.end}")
            conditions += [f"{c} < {bound.size}u" for c, bound in zip(coordinates, self.map.bounds, strict=True)]
            f.emit(f"{self.name}_{i} = {self._loaded(address, ' && '.join(conditions))};")

    def _loaded(self, address: str, condition: str) -> str:
        """Return a unit's numbers, zero unless the condition holds."""
        f = self.f
        if condition:
            condition = f.let("bool", condition)
            address = f.let("u32", f"select(0u, {address}, {condition})")
        if self.unit == 4:
            four = [self.work.read(f, x) for x in self.array.load4(f.let("u32", f"{address} / 4u"))]
            value = f"{self.type}({', '.join(four)})"
        else:
            value = self.work.read(f, self.array.load(address))
        return f"select({self.type}(), {value}, {condition})" if condition else value

    def store(self, second: str = "") -> None:
        """Store the loaded units to workgroup memory; `second` selects one of two buffers."""
        f = self.f
        with f.block(f"if ({self.idle})" if self.idle else ""):
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

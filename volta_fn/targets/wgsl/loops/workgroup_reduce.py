"""Workgroup reductions: the states of a workgroup's invocations combined.

Each writes its state to workgroup memory; after a barrier all invocations read all states, or some combine several of them first. Two
areas of memory alternate, so that one barrier is enough between writing an area, reading it, and writing it again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from volta_fn.targets.wgsl.loops.accumulate import Accumulator, State
from volta_fn.targets.wgsl.loops.subgroups import has_rows, is_possible, over_subgroup
from volta_fn.targets.wgsl.scalars import Number, Shader, wgsl_type

#: Up to so many states are combined by every invocation in one step.
_ONCE = 16


class Team(NamedTuple):
    """The invocations of a workgroup: `per_row` for each of `rows_per_group` rows.

    `rank` is an invocation's number in its row, `row` the number of the row: neighbours are in one row, or, in `columns`, have the same
    rank in neighbouring rows.
    """

    per_row: int
    rows_per_group: int
    columns: bool
    rank: str
    row: str

    @property
    def invocations(self) -> int:
        """The size of a workgroup."""
        return self.per_row * self.rows_per_group

    def slot(self, rank: str) -> str:
        """Return the index in workgroup memory of a rank of this invocation's row."""
        if self.rows_per_group == 1:
            return rank
        return f"({rank}) * {self.rows_per_group}u + {self.row}" if self.columns else f"{self.row} * {self.per_row}u + {rank}"


def team(shader: Shader, per_row: int, rows_per_group: int, columns: bool) -> Team:
    """Return the team of an invocation; both numbers are powers of two."""
    if rows_per_group > 1 and not columns and has_rows(shader.module.device, per_row, per_row * rows_per_group):
        shader.number_by_subgroups()
    local = shader.local
    if per_row == 1 or rows_per_group == 1:
        return Team(per_row, rows_per_group, columns, "0u" if per_row == 1 else local, "0u" if rows_per_group == 1 else local)
    fast = rows_per_group if columns else per_row
    low, high = shader.let("u32", f"{local} & {fast - 1}u"), shader.let("u32", f"{local} >> {fast.bit_length() - 1}u")
    return Team(per_row, rows_per_group, columns, high if columns else low, low if columns else high)


class WorkgroupReduction:
    """Emits the combination of what a workgroup's invocations have accumulated."""

    def __init__(self, shader: Shader, team: Team) -> None:
        self.shader = shader
        self.team = team
        self._area = 0

    def combined(self, accumulator: Accumulator, states: list[State]) -> list[State]:
        """Emit the combination of all states of a row, known to all its invocations.

        `states` has one for each lane.
        """
        left, per_row = states, self.team.per_row
        if len(states) == 1 and is_possible(accumulator):
            ((x,),) = states
            if self._is_in_subgroup:
                return [(over_subgroup(self.shader, accumulator, x, per_row),)]
            if self._has_subgroups:
                return [(self._over_subgroups(accumulator, x),)]
        while per_row > 1:
            rest = 1 if per_row <= _ONCE else 1 << (per_row.bit_length() - 1) // 2
            left = self._hop(accumulator, left, per_row, rest)
            per_row = rest
        return left

    @property
    def _is_in_subgroup(self) -> bool:
        """True if the invocations of each row are neighbours in one subgroup."""
        return not self.team.columns and has_rows(self.shader.module.device, self.team.per_row, self.team.invocations)

    @property
    def _has_subgroups(self) -> bool:
        """True if the workgroup is one row of full subgroups."""
        device = self.shader.module.device
        return device.subgroups and self.team.rows_per_group == 1 and self.team.per_row % device.subgroup_most == 0

    def _over_subgroups(self, accumulator: Accumulator, x: Number) -> Number:
        """Emit one number for each subgroup, and then one for all.

        Every subgroup computes the latter.
        """
        shader, device = self.shader, self.shader.module.device
        self._area ^= 1
        lane, count = shader.builtin("subgroup_invocation_id"), shader.builtin("num_subgroups")
        x = over_subgroup(shader, accumulator, x)
        memory = self._memory(x.dtype, "0_0")
        shader.emit(f"if ({lane} == 0u) {{ {memory}[{shader.builtin('subgroup_id')}] = {x.text}; }}")
        shader.emit("workgroupBarrier();")
        total = shader.var(x.type, accumulator.start[0].text)

        def add(number: str) -> None:
            there = shader.let("bool", f"{number} < {count}")
            one = Number(x.dtype, shader.let(x.type, f"{memory}[min({number}, {count} - 1u)]"))
            accumulator.add([total], accumulator.where(there, (one,)))

        if self.team.per_row <= device.subgroup_least**2:  # there are no more subgroups than one has invocations
            add(lane)
        else:
            with shader.loop(count, 0, shader.builtin("subgroup_size")) as i:
                add(f"{i} + {lane}")
        return over_subgroup(shader, accumulator, Number(x.dtype, total))

    def _hop(self, accumulator: Accumulator, states: list[State], per_row: int, rest: int) -> list[State]:
        """Emit the combination of `per_row` states to `rest`.

        The first invocations have one each.
        """
        shader, team = self.shader, self.team
        self._area ^= 1
        names = [[self._memory(d, f"{k}_{n}") for n, d in enumerate(accumulator.dtypes)] for k in range(len(states))]
        if per_row < team.per_row:
            with shader.block(f"if ({team.rank} < {per_row}u)"):
                self._write(names, states)
        else:
            self._write(names, states)
        shader.emit("workgroupBarrier();")
        first = shader.let("u32", f"{team.rank} & {rest - 1}u") if rest > 1 else "0u"
        slots = [team.slot(f"{first} + {k * rest}u" if rest > 1 else f"{k}u") for k in range(per_row // rest)]
        if len(states) == 1 and not accumulator.node.is_index:
            return [accumulator.merged([self._read(accumulator, names[0], slot) for slot in slots])]
        return self._read_in_a_loop(accumulator, names, per_row, rest, first)

    def _read(self, accumulator: Accumulator, names: list[str], slot: str) -> State:
        texts = [self.shader.let(wgsl_type(d), f"{n}[{slot}]") for d, n in zip(accumulator.dtypes, names, strict=True)]
        return tuple([Number(d, text) for d, text in zip(accumulator.dtypes, texts, strict=True)])

    def _read_in_a_loop(self, accumulator: Accumulator, names: list[list[str]], per_row: int, rest: int, first: str) -> list[State]:
        """Emit the same for several lanes, with less text."""
        totals = [accumulator.variables() for _ in names]
        with self.shader.loop(per_row, first, rest) as i:
            for lane, total in zip(names, totals, strict=True):
                accumulator.add(total, self._read(accumulator, lane, self.team.slot(i)))
        return [accumulator.read(total) for total in totals]

    def _write(self, names: list[list[str]], states: list[State]) -> None:
        for lane, state in zip(names, states, strict=True):
            for name, x in zip(lane, state, strict=True):
                self.shader.emit(f"{name}[{self.team.slot(self.team.rank)}] = {x.text};")

    def _memory(self, dtype: np.dtype, suffix: str) -> str:
        type_ = wgsl_type(dtype)
        name = f"shared_{''.join(c for c in type_ if c.isalnum())}_{suffix}_{self._area}"
        return self.shader.workgroup(name, type_, self.team.invocations)

"""Packing a whole operand, beforehand, whose rows (or columns) lie beside each other in memory: line by line, as memory has them.

A task packs some k of all panels. So memory is read from end to end, which the machine fetches ahead by itself; pieces of lines, as many
as belong to a few panels, have to be asked for one by one, and wait for memory where the caches hold something else by now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.matmul.compute_dtype import Working
from volta_fn.targets.cpu.matmul.schedule import Schedule
from volta_fn.targets.cpu.matmul.shared import RUN
from volta_fn.targets.cpu.matmul.sources import Panels, Source, Span
from volta_fn.targets.cpu.matmul.tasks import digits_of

_TASK_BYTES = 64 << 10  # that a task packs, about


class Section(NamedTuple):
    """Panels of one size: the first one, how many there are, their first row (or column), and how many each has, in lines of a width."""

    panel: int
    panels: int
    start: int
    each: int
    width: int


class LinePacking(NamedTuple):
    """How an operand is packed so. Panels are `panel_bytes` apart."""

    work: Working
    plan: Schedule
    source: Source
    sections: tuple[Section, ...]
    panel_bytes: int

    @property
    def run(self) -> int:
        """The k of a task."""
        line = sum(section.panels * section.width for section in self.sections) * self.work.itemsize
        return max(1, _TASK_BYTES // line // RUN) * RUN

    @property
    def pieces(self) -> int:
        """Tasks of a block."""
        return max(1, -(-self.plan.depth // self.run))

    @property
    def tasks(self) -> int:
        """All tasks."""
        return self.plan.batch * self.plan.blocks * self.pieces

    def write(
        self, f: Function, number: Value, span: Callable[[Value, Value], Span], place: Callable[[Value, Value, Value], Value]
    ) -> None:
        """Do a task. ``span(batch, block)`` is all of a block, and ``place(batch, block, panel)`` where a packed panel of it begins."""
        batch, block, piece = digits_of(f, number, self.plan.batch, self.plan.blocks, self.pieces)
        whole, k = span(batch, block), f.binary("mul", piece, i64(self.run))
        rest = f.intrinsic("llvm.smax.i64", "i64", f.binary("sub", whole.depth, k), i64(0))
        depth = f.intrinsic("llvm.smin.i64", "i64", rest, i64(self.run))
        part = whole._replace(inner=f.binary("add", whole.inner, k), depth=depth)
        for section in self.sections:
            line = f"[{section.width * self.work.itemsize} x i8]"
            target = f.at(place(batch, block, i64(section.panel)), line, k)
            panels = Panels(section.panels, self.panel_bytes)
            self.source.spread(f, part._replace(outer=i64(section.start)), section.each, section.width, target, panels)


def column_sections(plan: Schedule, edge_width: int) -> tuple[Section, ...]:
    """The sections of B: whole panels, and the last one if it has fewer columns."""
    whole = plan.column_panels - (plan.edge < plan.width)
    sections = (
        Section(0, whole, 0, plan.width, plan.width),
        Section(whole, plan.column_panels - whole, whole * plan.width, plan.edge, edge_width),
    )
    return tuple(section for section in sections if section.panels)


def row_sections(plan: Schedule, pitch: int) -> tuple[Section, ...]:
    """The sections of A: panels with a row more, and the others."""
    tall = Section(0, plan.taller, 0, plan.rows + 1, pitch)
    others = Section(plan.taller, plan.row_panels - plan.taller, plan.taller * (plan.rows + 1), plan.rows, pitch)
    return tuple(section for section in (tall, others) if section.panels)

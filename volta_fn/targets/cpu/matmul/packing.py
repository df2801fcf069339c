"""Packing panels of operands, in the order in which their memory is best read.

A task packs a group of panels (`PackTasks`), or, of an operand whose rows (or columns) are adjacent in memory, a range of k of all panels
(`RowPacking`): memory is then read sequentially, which the hardware prefetches, where short runs of a few panels would each wait for
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.matmul.blocking import Schedule
from volta_fn.targets.cpu.matmul.compute_dtype import Working
from volta_fn.targets.cpu.matmul.operands import Panels, Source, Span
from volta_fn.targets.cpu.matmul.pack_kernels import RUN
from volta_fn.targets.cpu.matmul.task_loops import digits_of, each, part_of


def pack_panels(
    f: Function,
    span: Span,
    panels: tuple[Value, Value],
    chunk: int | None,
    pack: Callable[[Value, Span, Value], None],
    fetch: Callable[[Span], None],
) -> None:
    """Pack a range of panels for the k of `span`: ``pack(panel, span, k)`` packs one for the k of a span which begins `k` after ours.

    With a `chunk`, so many k are packed of every panel, then the next ones: lines of memory that belong to several panels are read once.
    Before that, `fetch(span)` has the next ones' lines brought near, as they are too far apart for the machine to see what will come.
    """
    if chunk is None:
        each(f, *panels, lambda panel: pack(panel, span, i64(0)))
        return

    def piece(k: Value) -> None:
        depth = f.intrinsic("llvm.smin.i64", "i64", i64(chunk), f.binary("sub", span.depth, k))
        part = span._replace(inner=f.binary("add", span.inner, k), depth=depth)
        fetch(part._replace(inner=f.binary("add", part.inner, i64(chunk))))
        each(f, *panels, lambda panel: pack(panel, part, k))

    each(f, i64(0), span.depth, piece, chunk)


_TASK_BYTES = 64 << 10  # that a task packs, about


class PackTasks(NamedTuple):
    """The tasks that pack an operand of so many panels, a group of them for a block of k in each."""

    plan: Schedule
    panels: int
    group: int

    @property
    def groups(self) -> int:
        """Groups of panels."""
        return -(-self.panels // self.group)

    @property
    def tasks(self) -> int:
        """All tasks."""
        return self.plan.batch * self.plan.blocks * self.groups

    def decode(self, f: Function, number: Value) -> tuple[Value, Value, tuple[Value, Value]]:
        """The product of the stack, the block of k and the range of panels of a task."""
        batch, block, group = digits_of(f, number, self.plan.batch, self.plan.blocks, self.groups)
        return batch, block, part_of(f, group, self.groups, self.panels)


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

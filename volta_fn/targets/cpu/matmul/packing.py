"""Packing panels of operands, in the order in which their memory is best read.

A task packs a group of panels (`PackTasks`), or, of an operand whose rows (or columns) are adjacent in memory, a range of k of all panels
(`RowPacking`): memory is then read sequentially, which the hardware prefetches, where short runs of a few panels would each wait for
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.matmul.blocking import Blocking
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType
from volta_fn.targets.cpu.matmul.operands import Panels, Span, StridedOperand
from volta_fn.targets.cpu.matmul.pack_kernels import RUN
from volta_fn.targets.cpu.matmul.task_loops import each, indices_of, range_of


def pack_panels(
    f: Function,
    span: Span,
    panels: tuple[Value, Value],
    chunk: int | None,
    pack: Callable[[Value, Span, Value], None],
    prefetch: Callable[[Span], None],
) -> None:
    """Pack a range of panels; ``pack(panel, span, k)`` packs one, from our k on.

    With a `chunk`, that many k are packed of every panel, then the next ones: cache lines that belong to several panels are read once.
    Before that, `prefetch(span)` prefetches the next chunk, whose rows are too distant for the hardware to predict.
    """
    if chunk is None:
        each(f, *panels, lambda panel: pack(panel, span, i64(0)))
        return

    def chunk_index(k: Value) -> None:
        depth = f.intrinsic("llvm.smin.i64", "i64", i64(chunk), f.binary("sub", span.depth, k))
        subspan = span._replace(inner=f.binary("add", span.inner, k), depth=depth)
        prefetch(subspan._replace(inner=f.binary("add", subspan.inner, i64(chunk))))
        each(f, *panels, lambda panel: pack(panel, subspan, k))

    each(f, i64(0), span.depth, chunk_index, chunk)


_TASK_BYTES = 64 << 10  # bytes that a task packs, about


class PackTasks(NamedTuple):
    """Tasks that pack groups of panels of an operand, for a block of k each."""

    plan: Blocking
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
        """Emit a task's product of the stack, block of k and range of panels."""
        batch, block, group = indices_of(f, number, self.plan.batch, self.plan.blocks, self.groups)
        return batch, block, range_of(f, group, self.groups, self.panels)


class Section(NamedTuple):
    """Panels of one size: the first, how many, their first row, and rows in each."""

    panel: int
    panels: int
    start: int
    each: int
    width: int


class RowPacking(NamedTuple):
    """How an operand that is contiguous along m or n is packed, row by row.

    `panel_bytes` is the stride of panels.
    """

    work: ComputeType
    plan: Blocking
    source: StridedOperand
    sections: tuple[Section, ...]
    panel_bytes: int

    @property
    def run(self) -> int:
        """The k of a task."""
        row_type = sum(section.panels * section.width for section in self.sections) * self.work.itemsize
        return max(1, _TASK_BYTES // row_type // RUN) * RUN

    @property
    def chunks(self) -> int:
        """Tasks of a block."""
        return max(1, -(-self.plan.depth // self.run))

    @property
    def tasks(self) -> int:
        """All tasks."""
        return self.plan.batch * self.plan.blocks * self.chunks

    def write(
        self, f: Function, number: Value, span: Callable[[Value, Value], Span], address: Callable[[Value, Value, Value], Value]
    ) -> None:
        """Emit a task; ``address(batch, block, panel)`` is where a packed panel begins.

        ``span(batch, block)`` is the span of a block.
        """
        batch, block, chunk_index = indices_of(f, number, self.plan.batch, self.plan.blocks, self.chunks)
        block_span, k = span(batch, block), f.binary("mul", chunk_index, i64(self.run))
        rest = f.intrinsic("llvm.smax.i64", "i64", f.binary("sub", block_span.depth, k), i64(0))
        depth = f.intrinsic("llvm.smin.i64", "i64", rest, i64(self.run))
        subspan = block_span._replace(inner=f.binary("add", block_span.inner, k), depth=depth)
        for section in self.sections:
            row_type = f"[{section.width * self.work.itemsize} x i8]"
            target = f.at(address(batch, block, i64(section.panel)), row_type, k)
            panels = Panels(section.panels, self.panel_bytes)
            self.source.spread(f, subspan._replace(outer=i64(section.start)), section.each, section.width, target, panels)


def column_sections(plan: Blocking, edge_width: int) -> tuple[Section, ...]:
    """Return the sections of B: full panels, and the last one if it is narrower."""
    block_span = plan.column_panels - (plan.edge < plan.width)
    sections = (
        Section(0, block_span, 0, plan.width, plan.width),
        Section(block_span, plan.column_panels - block_span, block_span * plan.width, plan.edge, edge_width),
    )
    return tuple(section for section in sections if section.panels)


def row_sections(plan: Blocking, pitch: int) -> tuple[Section, ...]:
    """Return the sections of A: panels with one more row, and the others."""
    tall = Section(0, plan.taller, 0, plan.rows + 1, pitch)
    others = Section(plan.taller, plan.row_panels - plan.taller, plan.taller * (plan.rows + 1), plan.rows, pitch)
    return tuple(section for section in (tall, others) if section.panels)

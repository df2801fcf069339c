"""The loops around tiles: ``C[m, n] = sum over k of A(m, k) B(k, n)``, stacked.

As in GotoBLAS and BLIS, panels are packed so that the innermost loop reads memory in order. A task computes a block of C: for each
block of k it packs the block of B (unless that is done ahead, or B is read in place), and then for each panel of A, which stays in
the level-1 cache, goes over the block's panels of B, which stay in the level-2 cache. `packing` has the packing of
panels, `epilogues` what follows from the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from volta_fn.compiler.contractions import Problem, contiguous_strides
from volta_fn.runtime.llvm.text import Function, Module, Value, greatest, i64, least
from volta_fn.targets.cpu.matmul.blocking import (
    UNFORCED,
    BlockingOptions,
    Packing,
    choose_blocking,
    each,
    legal_blockings,
    parameters_of,
    range_of,
)
from volta_fn.targets.cpu.matmul.epilogues import (
    BlockState,
    Epilogue,
    FusedEpilogue,
    PartialSums,
    Strip,
    TileArguments,
    TileWriter,
    combine,
)
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, write_corrections
from volta_fn.targets.cpu.matmul.packing import PackTasks, RowPacking, Span, StridedOperand, column_sections, pack_panels, row_sections
from volta_fn.targets.cpu.routine import Launch, Routine, buffer_pointer, empty_routine, entry_point

_GROUP = 8  # panels that are packed together
_ELEMENT = 0.1  # nanoseconds that packing a number takes
_STEP = 0.2  # nanoseconds that a multiplication of vectors takes


def _columns_in_place(work: ComputeType, rhs: StridedOperand) -> tuple[int, int] | None:
    """Return the strides of B, of n and of k, if it can be read in place.

    What biased sums begin with is computed of packed panels.
    """
    return None if work.biased else rhs.in_place()


class Task(NamedTuple):
    """The work of a task: a product of the stack, a split of the sum, and panels."""

    batch: Value
    split: Value
    first_row: Value
    end_row: Value
    first_column: Value
    end_column: Value
    number: Value


class Gemm:
    """Writes the routine of a product, whose workspace is the last buffer."""

    def __init__(
        self,
        work: ComputeType,
        problem: Problem,
        operands: tuple[int, int],
        epilogue: Epilogue,
        buffers: int,
        name: str,
        options: BlockingOptions = UNFORCED,
    ) -> None:
        """Take a problem whose operands are these buffers."""
        lhs, rhs = [StridedOperand(work.packed(side), problem.operands[side], buffer) for side, buffer in enumerate(operands)]
        sizes = problem.batch, problem.m, problem.n, -(-problem.k // work.group)
        transposed, apart = lhs.chunk is not None, lhs.rows_apart()
        in_place = lhs.in_place(), _columns_in_place(work, rhs)
        blocking = choose_blocking(work, sizes, *in_place, transposed=transposed, rows_apart=apart, options=options)
        self.work, self.blocking, self.lhs, self.rhs, self.epilogue, self.name = work, blocking, lhs, rhs, epilogue, name
        self.workspace_buffer = buffers
        self.module = Module()
        self.workspace = 0
        packs_rows = blocking.pack_rows is not Packing.NONE
        self.pitch = blocking.tallest + blocking.tallest % 2
        self.a_strides = (1, self.pitch) if packs_rows or in_place[0] is None else in_place[0]
        self.packed = self._reserve(self._packed_bytes())
        rows_ahead = blocking.pack_rows is Packing.AHEAD
        self.packed_rows = self._reserve(
            blocking.batch * blocking.blocks * blocking.row_panels * self._rows_elements * work.itemsize * rows_ahead
        )
        self.partial = self._partial()
        columns = rhs.in_place() if blocking.pack_columns is Packing.NONE else None
        self.tiles = TileWriter(work, blocking, self.a_strides, columns[1] if columns else None, epilogue, self.partial, options.strips)

    def routine(self) -> Routine:
        """Write the code."""
        blocking = self.blocking
        launches = []
        panel_steps = (blocking.rows + 1) * (blocking.width // self.work.lanes) * blocking.k
        steps = blocking.batch * blocking.row_panels * blocking.column_panels * panel_steps
        if not blocking.batch * blocking.m * blocking.n:
            return empty_routine()
        if Packing.AHEAD in (blocking.pack_rows, blocking.pack_columns):
            launches.append(self._write_packing())
        self._write_multiplying()
        launches.append(Launch(self.name, blocking.tasks, steps * _STEP))
        if blocking.splits > 1:
            launches.append(combine(self.module, f"{self.name}_combine", self.work, blocking, self.partial, self.epilogue))
        return Routine.of(self.module, launches, self.workspace)

    # the workspace

    def _reserve(self, size: int) -> int:
        start = self.workspace
        self.workspace += size + -size % 64
        return start

    def _packed_bytes(self) -> int:
        blocking = self.blocking
        if blocking.pack_columns is Packing.AHEAD:
            return blocking.batch * blocking.blocks * blocking.column_panels * self._panel_bytes
        if blocking.pack_columns is Packing.TASK and not blocking.on_stack(self.work.itemsize):
            return blocking.tasks * blocking.block_elements * self.work.itemsize
        return 0

    @property
    def _panel_bytes(self) -> int:
        """The size of a packed panel of B."""
        return self.blocking.panel_elements * self.work.itemsize

    def _partial(self) -> PartialSums:
        blocking = self.blocking
        size = blocking.batch * blocking.m * blocking.n * self.work.itemsize
        if blocking.splits > 1:
            return PartialSums(self.workspace_buffer, self._reserve(size * blocking.splits), blocking)
        if self.epilogue.sums_buffer is not None:
            return PartialSums(self.epilogue.sums_buffer, 0, blocking)
        return PartialSums(self.workspace_buffer, self._reserve(size) if blocking.blocks > 1 else 0, blocking)

    def _workspace_at(self, f: Function, buffers: Value, offset: int) -> Value:
        return f.at(buffer_pointer(f, self.workspace_buffer, buffers), "i8", i64(offset))

    # packing B

    def _pack_columns(self, count: int) -> str:
        """Return the function that packs a panel of `count` columns."""
        name = f"{self.name}_columns{count}"

        def write() -> None:
            f = Function(self.module, name, parameters_of("buffers", "batch", "outer", "inner", "depth", "target"), "internal void")
            *span, target = f.parameters
            self.rhs.pack(f, Span(*span), count, self._width_of(count), target)
            f.finish()

        self.module.define(name, write)
        return name

    def _width_of(self, count: int) -> int:
        return count + -count % self.work.lanes

    def _packed_panel(self, f: Function, buffers: Value, batch: Value, block: Value, panel: Value) -> Value:
        """Emit the address of a panel of B that was packed ahead."""
        blocking = self.blocking
        number = f.dotted((batch, block, panel), contiguous_strides((blocking.batch, blocking.blocks, blocking.column_panels)))
        start = self._workspace_at(f, buffers, self.packed)
        return f.at(start, f"[{self._panel_bytes} x i8]", number)

    def _write_packing(self) -> Launch:
        """Write the launch that packs operands ahead: first tasks for B, then for A."""
        blocking = self.blocking
        f = entry_point(self.module, f"{self.name}_pack")
        buffers, begin, end = f.parameters
        sides = [self._columns_ahead(f, buffers)] if blocking.pack_columns is Packing.AHEAD else []
        sides += [self._rows_ahead(f, buffers)] if blocking.pack_rows is Packing.AHEAD else []
        first = 0
        for tasks, write in sides:
            start = greatest(f, begin, i64(first))
            stop = least(f, end, i64(first + tasks))
            each(f, f.binary("sub", start, i64(first)), f.binary("sub", stop, i64(first)), write)
            first += tasks
        f.finish()
        elements = (
            blocking.k
            * blocking.batch
            * (blocking.n * (blocking.pack_columns is Packing.AHEAD) + blocking.m * (blocking.pack_rows is Packing.AHEAD))
        )
        return Launch(f.name, first, elements * _ELEMENT)

    def _columns_ahead(self, f: Function, buffers: Value) -> _PackAhead:
        """Return the tasks that pack B ahead."""
        blocking, address = self.blocking, partial(self._packed_panel, f, buffers)
        if self.rhs.in_rows() and not self.work.biased:  # its tasks pack some of the k, and corrections sum over all
            sections = column_sections(blocking, self._width_of(blocking.edge))
            row_packing = RowPacking(self.work, blocking, self.rhs, sections, self._panel_bytes)
            return _PackAhead(row_packing.tasks, lambda number: row_packing.write(f, number, partial(self._span, f, buffers), address))
        columns = PackTasks(blocking, blocking.column_panels, _GROUP)

        def write(number: Value) -> None:
            batch, block, panels = columns.decode(f, number)
            self._pack_block(f, self._span(f, buffers, batch, block), panels, address(batch, block, i64(0)))

        return _PackAhead(columns.tasks, write)

    def _rows_ahead(self, f: Function, buffers: Value) -> _PackAhead:
        """Return the tasks that pack A ahead, which is contiguous along m then."""
        row_packing = RowPacking(
            self.work, self.blocking, self.lhs, row_sections(self.blocking, self.pitch), self._rows_elements * self.work.itemsize
        )
        address = partial(self._packed_rows, f, buffers)
        return _PackAhead(row_packing.tasks, lambda number: row_packing.write(f, number, partial(self._span, f, buffers), address))

    def _span(self, f: Function, buffers: Value, batch: Value, block: Value) -> Span:
        """Return the span of an operand for a block of k."""
        return Span(buffers, batch, i64(0), *self._block(f, block))

    def _pack_row_panels(self, f: Function, span: Span, panels: tuple[Value, Value], address: Callable[[Value], Value]) -> None:
        """Pack a range of panels of A, each to its address."""

        def pack(panel: Value, subspan: Span, k: Value) -> None:
            target = f.at(address(panel), self.work.type, f.binary("mul", k, i64(self.pitch)))
            self._for_height(f, panel, lambda row, count: f.run(self._pack_rows(count), *subspan._replace(outer=row), target))

        def prefetch(subspan: Span) -> None:
            first, end = [self._first_row(f, panel) for panel in panels]
            self.lhs.prefetch(f, subspan._replace(outer=first), f.binary("sub", end, first))

        pack_panels(f, span, panels, self.lhs.chunk, pack, prefetch)

    def _pack_block(self, f: Function, span: Span, panels: tuple[Value, Value], start: Value) -> None:
        """Pack a range of panels of B from `start` on."""
        panel_type = f"[{self._panel_bytes} x i8]"

        def pack(panel: Value, subspan: Span, k: Value) -> None:
            subspan = subspan._replace(outer=f.binary("mul", panel, i64(self.blocking.width)))
            address = f.at(start, panel_type, panel)

            def sized(count: int) -> None:
                target = f.at(address, self.work.type, f.binary("mul", k, i64(self._width_of(count))))
                f.run(self._pack_columns(count), *subspan, target)

            self._for_width(f, panel, sized)

        def prefetch(subspan: Span) -> None:
            first, end = [f.binary("mul", panel, i64(self.blocking.width)) for panel in panels]
            self.rhs.prefetch(f, subspan._replace(outer=first), f.binary("sub", end, first))

        def correct(panel: Value) -> None:
            address = f.at(start, panel_type, panel)
            self._for_width(f, panel, lambda count: f.run_shared(write_corrections(self.work, count), address, span.depth))

        pack_panels(f, span, panels, self.rhs.chunk, pack, prefetch)
        if self.work.biased:
            each(f, *panels, correct)

    def _for_width(self, f: Function, panel: Value, body: Callable[[int], None]) -> None:
        """Call `body` for the panel's number of columns."""
        blocking = self.blocking
        if blocking.edge == blocking.width:
            body(blocking.width)
        elif blocking.column_panels == 1:
            body(blocking.edge)
        else:
            last = f.compare("icmp eq", panel, i64(blocking.column_panels - 1))
            f.branch(last, lambda: body(blocking.edge), lambda: body(blocking.width))

    def _for_height(self, f: Function, panel: Value, body: Callable[[Value, int], None]) -> None:
        """Call `body` for the first row of a panel of A and its number of rows."""
        blocking, row = self.blocking, self._first_row(f, panel)
        if not blocking.taller:
            body(row, blocking.rows)
            return
        tall = f.compare("icmp slt", panel, i64(blocking.taller))
        f.branch(tall, lambda: body(row, blocking.rows + 1), lambda: body(row, blocking.rows))

    def _first_row(self, f: Function, panel: Value) -> Value:
        row = f.binary("mul", panel, i64(self.blocking.rows))
        if not self.blocking.taller:
            return row
        return f.binary("add", row, least(f, panel, i64(self.blocking.taller)))

    def _block(self, f: Function, block: Value) -> tuple[Value, Value]:
        """Emit the first k of a block, and its number of k."""
        blocking = self.blocking
        if blocking.blocks == 1:
            return i64(0), i64(blocking.k)
        first = f.binary("mul", block, i64(blocking.depth))
        return first, least(f, i64(blocking.depth), f.binary("sub", i64(blocking.k), first))

    # packing A

    def _pack_rows(self, rows: int) -> str:
        name = f"{self.name}_rows{rows}"

        def write() -> None:
            f = Function(self.module, name, parameters_of("buffers", "batch", "outer", "inner", "depth", "target"), "internal void")
            *span, target = f.parameters
            self.lhs.pack(f, Span(*span), rows, self.pitch, target)
            f.finish()

        self.module.define(name, write)
        return name

    def _packed_rows(self, f: Function, buffers: Value, batch: Value, block: Value, panel: Value) -> Value:
        """Emit the address of a panel of A that was packed ahead."""
        blocking = self.blocking
        number = f.dotted((batch, block, panel), contiguous_strides((blocking.batch, blocking.blocks, blocking.row_panels)))
        return f.at(self._workspace_at(f, buffers, self.packed_rows), f"[{self._rows_elements * self.work.itemsize} x i8]", number)

    @property
    def _rows_elements(self) -> int:
        """The size of a packed panel of A."""
        return self.blocking.depth * self.pitch

    # multiplying

    def _write_multiplying(self) -> None:
        blocking = self.blocking
        f = entry_point(self.module, self.name)
        buffers, begin, end = f.parameters
        column_block = f.alloca(self.work.type, blocking.block_elements) if self._own_stack else Value("ptr", "null")
        rows = (
            f.alloca(self.work.type, self._rows_elements * blocking.row_group)
            if blocking.pack_rows is Packing.TASK
            else Value("ptr", "null")
        )
        strip = f.alloca(self.work.type, blocking.tallest * self.tiles.strip_width) if self.tiles.strips else Value("ptr", "null")
        scratch = _Scratch(column_block, rows, strip)

        def task(number: Value) -> None:
            sizes = blocking.batch, blocking.splits, blocking.column_tasks, blocking.row_tasks
            batch, split, column, row = f.coordinates(number, sizes)
            first_row, end_row = range_of(f, row, blocking.row_tasks, blocking.row_panels)
            first_column, end_column = range_of(f, column, blocking.column_tasks, blocking.column_panels)
            item = Task(batch, split, first_row, end_row, first_column, end_column, number)
            if blocking.blocks == 1:
                self._block_of_task(f, buffers, item, i64(0), i64(BlockState.FIRST | BlockState.LAST), scratch)
                return
            start, stop = range_of(f, split, blocking.splits, blocking.blocks)
            final = f.binary("sub", stop, i64(1))

            def block(k: Value) -> None:
                opening = f.cast("zext", f.compare("icmp eq", k, start), "i64")
                closing = f.cast("zext", f.compare("icmp eq", k, final), "i64")
                state = f.binary("or", opening, f.binary("shl", closing, i64(1)))  # a `BlockState`
                self._block_of_task(f, buffers, item, k, state, scratch)

            each(f, start, stop, block)

        each(f, begin, end, task)
        f.finish()

    @property
    def _own_stack(self) -> bool:
        return self.blocking.pack_columns is Packing.TASK and self.blocking.on_stack(self.work.itemsize)

    def _block_of_task(self, f: Function, buffers: Value, task: Task, block: Value, state: Value, scratch: _Scratch) -> None:
        """Emit all tiles of a task, for one block of k."""
        blocking = self.blocking
        first, depth = self._block(f, block)
        span = Span(buffers, task.batch, i64(0), first, depth)
        columns = self._columns_of_task(f, task, block, span, scratch)

        def row_group(start_row: Value) -> None:
            stop = least(f, f.binary("add", start_row, i64(blocking.row_group)), task.end_row)
            rows_type = f"[{self._rows_elements * self.work.itemsize} x i8]"

            def packed_panel(panel: Value) -> Value:
                return f.at(scratch.rows, rows_type, f.binary("sub", panel, start_row))

            if blocking.pack_rows is Packing.TASK:
                self._pack_row_panels(f, span, (start_row, stop), packed_panel)

            def row_panel(panel: Value) -> None:
                def sized(row: Value, count: int) -> None:
                    of_rows = span._replace(outer=row)
                    if blocking.pack_rows is Packing.AHEAD:
                        a = self._packed_rows(f, buffers, task.batch, block, panel)
                    else:
                        a = packed_panel(panel) if blocking.pack_rows is Packing.TASK else self.lhs.address(f, of_rows)
                    self._across(f, task, of_rows, a, columns, count, state, scratch)

                self._for_height(f, panel, sized)

            each(f, start_row, stop, row_panel)

        each(f, task.first_row, task.end_row, row_group, blocking.row_group)

    def _columns_of_task(self, f: Function, task: Task, block: Value, span: Span, scratch: _Scratch) -> Value:
        """Emit the address of B's panels, after packing them if each task packs its own."""
        blocking = self.blocking
        if blocking.pack_columns is Packing.AHEAD:
            return self._packed_panel(f, span.buffers, task.batch, block, i64(0))
        if blocking.pack_columns is not Packing.TASK:
            return scratch.columns
        start = scratch.columns
        if not self._own_stack:
            elements = f"[{blocking.block_elements * self.work.itemsize} x i8]"
            start = f.at(self._workspace_at(f, span.buffers, self.packed), elements, task.number)
        back = f.binary("mul", task.first_column, i64(-self._panel_bytes))
        start = f.let("ptr", f"getelementptr i8, {start}, {back}")  # panels are numbered from the first of all
        self._pack_block(f, span, (task.first_column, task.end_column), start)
        return start

    def _across(self, f: Function, task: Task, span: Span, a: Value, columns: Value, count: int, state: Value, scratch: _Scratch) -> None:
        """Emit the tiles of a panel of `count` rows of A with the task's columns."""
        blocking, itemsize, strips = self.blocking, self.work.itemsize, self.tiles.strips
        sums = scratch.strip
        strip_itemsize = itemsize if strips is None else strips.dtype.itemsize

        def column_panel(panel: Value) -> None:
            column = f.binary("mul", panel, i64(blocking.width))
            if blocking.pack_columns is Packing.NONE:
                b = self.rhs.address(f, span._replace(outer=column))
            else:
                b = f.at(columns, f"[{self._panel_bytes} x i8]", panel)
            index = f.binary("sub", panel, task.first_column)
            strip = f.at(sums, f"[{blocking.width * strip_itemsize} x i8]", index)
            arguments = TileArguments(span.buffers, task.batch, span.outer, column, span.depth, a, b, task.split, state, strip)
            self._for_width(f, panel, lambda width: self.tiles.write(f, count, width, arguments))

        each(f, task.first_column, task.end_column, column_panel)
        if strips is not None and blocking.splits == 1:
            self._finish_strip(f, strips, task, span, count, state, sums)

    def _finish_strip(self, f: Function, epilogue: FusedEpilogue, task: Task, span: Span, count: int, state: Value, sums: Value) -> None:
        """Emit the epilogue of a panel of A's rows, after the last block of k."""
        first = f.binary("mul", task.first_column, i64(self.blocking.width))
        end = least(f, f.binary("mul", task.end_column, i64(self.blocking.width)), i64(self.blocking.n))
        strip = Strip(span.buffers, task.batch, span.outer, i64(count), first, f.binary("sub", end, first), sums, self.tiles.strip_width)
        last = f.compare("icmp ne", f.binary("and", state, i64(BlockState.LAST)), i64(0))
        f.branch(last, lambda: epilogue.finish(f, strip))


class _PackAhead(NamedTuple):
    """Tasks that pack an operand ahead, and the function that writes one of them."""

    tasks: int
    write: Callable[[Value], None]


class _Scratch(NamedTuple):
    """A task's memory: packed operands, and a strip of sums."""

    columns: Value
    rows: Value
    strip: Value


def gemm_options(work: ComputeType, problem: Problem) -> Iterator[BlockingOptions]:
    """Yield the options that `Gemm` takes for a problem, for tests."""
    lhs, rhs = [StridedOperand(work.packed(side), operand, 0) for side, operand in enumerate(problem.operands)]
    sizes = problem.batch, problem.m, problem.n, -(-problem.k // work.group)
    transposed, apart = lhs.chunk is not None, lhs.rows_apart()
    yield from legal_blockings(work, sizes, lhs.in_place(), _columns_in_place(work, rhs), transposed=transposed, rows_apart=apart)

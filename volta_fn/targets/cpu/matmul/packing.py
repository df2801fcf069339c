"""Panels of operands, in the order in which they are read, and their packing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions import Operand
from volta_fn.runtime.llvm.host import cache_for_host
from volta_fn.runtime.llvm.text import Function, SharedFunction, Value, greatest, i64, lanes_of, least, shared_function, vector_of
from volta_fn.targets.cpu.matmul.blocking import Blocking, each, offset_of, origin, range_of
from volta_fn.targets.cpu.matmul.micro_kernel import (
    CACHE_LINE,
    ComputeType,
    RowPointers,
    first_lanes,
    is_itself,
    load,
    prefetch,
    read,
    store_lanes,
    stored_as,
    type_name,
    with_bias,
)
from volta_fn.targets.cpu.routine import buffer_pointer

# A task packs a group of panels (`PackTasks`), or, of an operand whose rows (or columns) are adjacent in memory, a range of k of all
# panels (`RowPacking`): memory is then read sequentially, which the hardware prefetches, where short runs of a few panels would each
# wait for memory.


def pack_panels(
    f: Function,
    span: Span,
    panels: tuple[Value, Value],
    chunk: int | None,
    pack: Callable[[Value, Span, Value], None],
    prefetch: Callable[[Span], None],
) -> None:
    """Pack a range of panels; ``pack(panel, span, k)`` packs one, from k on.

    With a `chunk`, that many k are packed of every panel, then the next ones: cache lines that belong to several panels are read once.
    Before that, `prefetch(span)` prefetches the next chunk, whose rows are too distant for the hardware to predict.
    """
    if chunk is None:
        each(f, *panels, lambda panel: pack(panel, span, i64(0)))
        return

    def chunk_index(k: Value) -> None:
        depth = least(f, i64(chunk), f.binary("sub", span.depth, k))
        subspan = span._replace(inner=f.binary("add", span.inner, k), depth=depth)
        prefetch(subspan._replace(inner=f.binary("add", subspan.inner, i64(chunk))))
        each(f, *panels, lambda panel: pack(panel, subspan, k))

    each(f, i64(0), span.depth, chunk_index, chunk)


_TASK_BYTES = 64 << 10  # bytes that a task packs, about


class PackTasks(NamedTuple):
    """Tasks that pack groups of panels of an operand, for a block of k each."""

    blocking: Blocking
    panels: int
    group: int

    @property
    def groups(self) -> int:
        """Groups of panels."""
        return -(-self.panels // self.group)

    @property
    def tasks(self) -> int:
        """All tasks."""
        return self.blocking.batch * self.blocking.blocks * self.groups

    def decode(self, f: Function, number: Value) -> tuple[Value, Value, tuple[Value, Value]]:
        """Emit a task's product of the stack, block of k and range of panels."""
        batch, block, group = f.coordinates(number, (self.blocking.batch, self.blocking.blocks, self.groups))
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
    blocking: Blocking
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
        return max(1, -(-self.blocking.depth // self.run))

    @property
    def tasks(self) -> int:
        """All tasks."""
        return self.blocking.batch * self.blocking.blocks * self.chunks

    def write(
        self, f: Function, number: Value, span: Callable[[Value, Value], Span], address: Callable[[Value, Value, Value], Value]
    ) -> None:
        """Emit a task; ``address(batch, block, panel)`` is where a packed panel begins.

        ``span(batch, block)`` is the span of a block.
        """
        batch, block, chunk_index = f.coordinates(number, (self.blocking.batch, self.blocking.blocks, self.chunks))
        block_span, k = span(batch, block), f.binary("mul", chunk_index, i64(self.run))
        rest = greatest(f, f.binary("sub", block_span.depth, k), i64(0))
        depth = least(f, rest, i64(self.run))
        subspan = block_span._replace(inner=f.binary("add", block_span.inner, k), depth=depth)
        for section in self.sections:
            row_type = f"[{section.width * self.work.itemsize} x i8]"
            target = f.at(address(batch, block, i64(section.panel)), row_type, k)
            panels = Panels(section.panels, self.panel_bytes)
            self.source.spread(f, subspan._replace(outer=i64(section.start)), section.each, section.width, target, panels)


def column_sections(blocking: Blocking, edge_width: int) -> tuple[Section, ...]:
    """Return the sections of B: full panels, and the last one if it is narrower."""
    block_span = blocking.column_panels - (blocking.edge < blocking.width)
    sections = (
        Section(0, block_span, 0, blocking.width, blocking.width),
        Section(block_span, blocking.column_panels - block_span, block_span * blocking.width, blocking.edge, edge_width),
    )
    return tuple(section for section in sections if section.panels)


def row_sections(blocking: Blocking, pitch: int) -> tuple[Section, ...]:
    """Return the sections of A: panels with one more row, and the others."""
    tall = Section(0, blocking.taller, 0, blocking.rows + 1, pitch)
    others = Section(blocking.taller, blocking.row_panels - blocking.taller, blocking.taller * (blocking.rows + 1), blocking.rows, pitch)
    return tuple(section for section in (tall, others) if section.panels)


# Operands of products: code that packs their panels, or finds them in place.
#
# A panel has, for each of `depth` k, the numbers of a few rows of A, or of a few vectors of columns of B, next to each other.

_CHUNK = 16


class Span(NamedTuple):
    """A range of an operand: a product of the stack, first row or column, and k."""

    buffers: Value
    batch: Value
    outer: Value
    inner: Value
    depth: Value


class Panels(NamedTuple):
    """The number of panels that are packed together, and their stride in bytes."""

    number: int
    stride: int


class StridedOperand:
    """An operand that is an array, number `buffer` of the routine's buffers."""

    def __init__(self, work: ComputeType, operand: Operand, buffer: int) -> None:
        """Take the type of the operand's lanes (`ComputeType.packed`).

        Where these are groups, spans count groups along k.
        """
        self.work, self.operand, self.buffer = work, operand, buffer
        #: Numbers of the last group, if it lacks some; else 0.
        self.rest = operand.inner.size % work.group
        #: How many k of a panel are packed before the next panel's, where panels are adjacent in memory; None: all of them.
        self.chunk = _CHUNK if operand.outer.stride == 1 and operand.inner.stride != 1 else None

    def in_place(self) -> tuple[int, int] | None:
        """Return the strides (of m or n, of k) in elements if it can be read in place."""
        outer, inner, group = self.operand.outer.stride, self.operand.inner.stride, self.work.group
        if group > 1:
            is_packed = inner == 1 and outer is not None and not outer % group and not self.rest
            return ((outer or 0) // group, 1) if is_packed else None
        if outer is None or inner is None or not is_itself(self.work, self.operand.dtype):
            return None
        return outer, inner

    def address(self, f: Function, span: Span) -> Value:
        """Emit where the span begins, of an operand that is read in place."""
        return self._at(f, self._matrix(f, span), span.outer, span.inner)

    def pack(self, f: Function, span: Span, count: int, width: int, target: Value) -> None:
        """Write a panel: for each k, `count` neighbours, and zeros up to `width`."""
        matrix = self._matrix(f, span)
        outer, inner = self.operand.outer, self.operand.inner
        dtype = self.operand.dtype
        shared = copy_rows if outer.stride == 1 else transpose_rows if inner.stride == 1 else None
        stride = inner.stride if outer.stride == 1 else outer.stride
        if shared is not None and stride is not None:
            start, whole = self._at(f, matrix, span.outer, span.inner), self._whole_groups(f, span)
            f.run_shared(shared(self.work, dtype, count, width), start, i64(stride * dtype.itemsize), whole, target)
            self._with_rest(f, span, lambda: self._pack_rest(f, span, matrix, count, width, target))
        elif outer.stride == 1:
            self._copy_rows(f, span, matrix, count, width, target)
        else:
            first = f.times(span.inner, self.work.group) if inner.stride == 1 else i64(0)
            starts = [offset_of(f, outer, f.binary("add", span.outer, i64(j))) for j in range(count)]
            rows = [self._move(f, self._move(f, matrix, start), first) for start in starts]
            if inner.stride == 1:
                whole, group = self._whole_groups(f, span), self.work.group
                at = lambda k: [self._move(f, row, f.times(k, group)) for row in rows]  # noqa: E731
                transposed_rows(f, self.work, dtype, at, width, whole, target, width)
                self._with_rest(f, span, lambda: self._pack_rest(f, span, matrix, count, width, target))
            else:
                self._gather_rows(f, span, rows, width, target)

    def _whole_groups(self, f: Function, span: Span) -> Value:
        """Emit the number of a span's groups that are whole."""
        if not self.rest:
            return span.depth
        rest = f.binary("sub", i64(self.operand.inner.size // self.work.group), span.inner)
        return least(f, span.depth, greatest(f, rest, i64(0)))

    def _with_rest(self, f: Function, span: Span, emit: Callable[[], None]) -> None:
        """Run code in the span that ends with the group that lacks numbers."""
        if self.rest:
            end, last = f.binary("add", span.inner, span.depth), i64(self.operand.inner.size // self.work.group)
            reaches = f.binary("and", f.compare("icmp sgt", end, last), f.compare("icmp sle", span.inner, last))
            f.branch(reaches, emit)

    def _pack_rest(self, f: Function, span: Span, matrix: Value, count: int, width: int, target: Value) -> None:
        """Emit the last group, with zeros for the numbers that it lacks."""
        work, dtype, last = self.work, self.operand.dtype, i64(self.operand.inner.size // self.work.group)
        k = f.binary("sub", last, span.inner)
        if self.operand.outer.stride == 1:
            copy_row(f, work, dtype, count, width, self._rows_of_group(f, self._at(f, matrix, span.outer, last)), target, k)
            return
        first, narrow = f.at(target, work.type, f.binary("mul", k, i64(width))), stored_as(dtype)

        def row(j: Value) -> None:
            start = self._at(f, matrix, f.binary("add", span.outer, j), last)
            numbers = [f.load(narrow, f.at(start, narrow, i64(i)), dtype.itemsize) for i in range(self.rest)]
            f.store(joined(f, work, numbers), f.at(first, work.type, j), work.itemsize)

        each(f, i64(0), i64(count), row)
        for j in range(count, width):
            f.store(Value(work.type, "0"), f.at(first, work.type, i64(j)), work.itemsize)

    def _rows_of_group(self, f: Function, start: Value) -> list[Value]:
        """Emit the addresses of the rows of the last group, which lacks some."""
        stride = self.operand.inner.stride
        assert stride is not None
        return [f.at(start, f"[{self.operand.dtype.itemsize} x i8]", i64(i * stride)) for i in range(self.rest)]

    def in_rows(self) -> bool:
        """Return True if neighbours along m or n are adjacent, and k has one stride."""
        return self.chunk is not None and self.operand.inner.stride is not None

    def rows_apart(self) -> int:
        """Return the bytes between the rows of an operand `in_rows`; 0 for others."""
        return (self.operand.inner.stride or 0) * self.operand.dtype.itemsize if self.in_rows() else 0

    def spread(self, f: Function, span: Span, count: int, width: int, target: Value, panels: Panels) -> None:
        """Write several panels of an operand `in_rows`, row by row to all of them."""
        dtype, stride = self.operand.dtype, self.operand.inner.stride
        assert stride is not None
        matrix = self._matrix(f, span)
        start, whole = self._at(f, matrix, span.outer, span.inner), self._whole_groups(f, span)
        packing = spread_rows(self.work, dtype, count, width)
        f.run_shared(packing, start, i64(stride * dtype.itemsize), whole, target, i64(panels.number), i64(panels.stride))

        def rest() -> None:
            last = i64(self.operand.inner.size // self.work.group)
            k, row = f.binary("sub", last, span.inner), self._at(f, matrix, span.outer, last)

            def panel(number: Value) -> None:
                source = f.at(row, f"[{count * dtype.itemsize} x i8]", number)
                address = f.at(target, f"[{panels.stride} x i8]", number)
                copy_row(f, self.work, dtype, count, width, self._rows_of_group(f, source), address, k)

            each(f, i64(0), i64(panels.number), panel)

        self._with_rest(f, span, rest)

    def prefetch(self, f: Function, span: Span, count: Value) -> None:
        """Prefetch `count` neighbours for each k, of an operand with a chunk."""
        matrix, group = self._matrix(f, span), self.work.group
        first = f.times(span.inner, group)

        def row(k: Value) -> None:
            start = self._move(f, matrix, offset_of(f, self.operand.outer, span.outer))
            start = self._move(f, start, offset_of(f, self.operand.inner, f.binary("add", first, k)))
            each(f, i64(0), count, lambda j: prefetch(f, self._move(f, start, j), soon=False), CACHE_LINE // self.operand.dtype.itemsize)

        each(f, i64(0), f.times(span.depth, group), row)

    def _copy_rows(self, f: Function, span: Span, matrix: Value, count: int, width: int, target: Value) -> None:
        """Emit for each k `count` adjacent elements, and zeros up to `width`."""

        def row(k: Value) -> None:
            source = self._at(f, matrix, span.outer, f.binary("add", span.inner, k))
            copy_row(f, self.work, self.operand.dtype, count, width, [source], target, k)

        each(f, i64(0), span.depth, row)

    def _gather_rows(self, f: Function, span: Span, rows: list[Value], width: int, target: Value) -> None:
        """Emit for each k the element of every row, and zeros up to `width`."""
        zero = Value(self.work.type, "zeroinitializer")

        def row(k: Value) -> None:
            offset = offset_of(f, self.operand.inner, f.binary("add", span.inner, k))
            first = f.at(target, self.work.type, f.binary("mul", k, i64(width)))
            for j in range(width):
                value = read(f, self.work, self.operand.dtype, self._move(f, rows[j], offset), 1) if j < len(rows) else zero
                f.store(value, f.at(first, self.work.type, i64(j)), self.work.itemsize)

        each(f, i64(0), span.depth, row)

    def _matrix(self, f: Function, span: Span) -> Value:
        array = buffer_pointer(f, self.buffer, span.buffers)
        return self._move(f, array, origin(f, self.operand, span.batch))

    def _at(self, f: Function, matrix: Value, outer: Value, inner: Value) -> Value:
        row = self._move(f, matrix, offset_of(f, self.operand.outer, outer))
        return row if inner.name == "0" else self._move(f, row, offset_of(f, self.operand.inner, f.times(inner, self.work.group)))

    def _move(self, f: Function, pointer: Value, offset: Value) -> Value:
        return pointer if offset.name == "0" else f.at(pointer, f"[{self.operand.dtype.itemsize} x i8]", offset)


# Functions that pack panels, compiled once for all products.
#
# They copy rows, spread them over panels, or transpose them in registers. Their arguments are an address, the bytes between rows in
# memory, the number of k, and the panel's address.

#: Rows that are packed at a time where they belong to several panels.
RUN = 8
#: Registers of rows that are transposed at a time. More are a loop: less code, and rows do not drive one another from the cache.
_ROWS = 2


@cache_for_host
def copy_rows(work: ComputeType, dtype: np.dtype, count: int, width: int) -> SharedFunction:
    """Return the function that copies `count` numbers per k, padded to `width`."""

    def write(f: Function) -> None:
        source, stride, depth, target = f.parameters
        row_pointers = RowPointers(f, stride, work.group)

        def row(k: Value) -> None:
            starts = row_pointers.starts(f, f.at(source, "i8", f.binary("mul", f.times(k, work.group), stride)))
            copy_row(f, work, dtype, count, width, [row_pointers.row(f, starts, i) for i in range(work.group)], target, k)

        each(f, i64(0), depth, row)

    return shared_function(f"copy_{type_name(work)}_{dtype.name}_{count}to{width}", _packing_parameters(), write)


def copy_row(
    f: Function, work: ComputeType, dtype: np.dtype, count: int, width: int, rows: Sequence[Value], target: Value, k: Value
) -> None:
    """Emit row `k` of a panel: `count` adjacent numbers, and zeros up to `width`.

    It joins the rows of a group, of which the last one may lack some.
    """
    address = f.at(target, work.type, f.binary("mul", k, i64(width)))
    for start, value in _padded(f, work, dtype, count, width, rows):
        store_lanes(f, work, value, f.at(address, work.type, i64(start)), width - start)


def _padded(f: Function, work: ComputeType, dtype: np.dtype, count: int, width: int, rows: Sequence[Value]) -> Iterator[tuple[int, Value]]:
    """Emit `count` numbers, and zeros up to `width`; yield columns and vectors."""
    for start in range(0, width, work.lanes):
        value = work.zero()
        if start < count:
            pointers, mask = [f.at(row, f"[{dtype.itemsize} x i8]", i64(start)) for row in rows], first_lanes(count - start, work.lanes)
            value = across_rows(f, work, dtype, pointers, mask)
        yield start, value


def across_rows(f: Function, work: ComputeType, dtype: np.dtype, rows: Sequence[Value], mask: Value | None = None) -> Value:
    """Load a vector of groups, whose numbers are in a row each; some may be missing."""
    if work.group == 1:
        return read(f, work, dtype, rows[0], work.lanes, mask)
    return joined(f, work, [load(f, stored_as(dtype), dtype.itemsize, row, work.lanes, mask) for row in rows])


def joined(f: Function, work: ComputeType, numbers: Sequence[Value]) -> Value:
    """Emit groups of numbers, the first one in the low bits; lanes are independent."""
    lanes = lanes_of(numbers[0].type)
    total, bits = None, 8 * work.itemsize // work.group
    for i, number in enumerate(numbers):
        wide = f.cast("zext", number, vector_of(work.type, lanes))
        if i:
            wide = f.binary("shl", wide, f.splat(Value(work.type, str(i * bits)), lanes))
        total = wide if total is None else f.binary("or", total, wide)
    assert total is not None
    return with_bias(f, work, total)


@cache_for_host
def spread_rows(work: ComputeType, dtype: np.dtype, count: int, width: int) -> SharedFunction:
    """Return the function that copies rows of `count` numbers to several panels.

    Two more arguments are the number of panels, and their stride in bytes.
    """

    def write(f: Function) -> None:
        source, stride, depth, target, panels, panel_stride = f.parameters
        row_pointers = RowPointers(f, stride, RUN * work.group)
        runs_end = f.binary("and", depth, i64(-RUN))

        def addresses(k: Value, panel: Value) -> tuple[Value, Value]:
            row_address = f.at(
                f.at(source, "i8", f.binary("mul", f.times(k, work.group), stride)), f"[{count * dtype.itemsize} x i8]", panel
            )
            return row_address, f.at(target, "i8", f.binary("mul", panel, panel_stride))

        def several(k: Value, panel: Value) -> None:
            row_address, address = addresses(k, panel)
            starts = row_pointers.starts(f, row_address)
            rows = [row_pointers.row(f, starts, row) for row in range(RUN * work.group)]
            groups = [rows[i : i + work.group] for i in range(0, len(rows), work.group)]
            vectors = [pair for group in groups for pair in _padded(f, work, dtype, count, width, group)]
            numbers = [(vector, lane) for start, vector in vectors for lane in range(min(work.lanes, width - start))]
            first = f.at(address, f"[{width * work.itemsize} x i8]", k)
            for start in range(0, RUN * width, work.lanes):
                value = assembled(f, numbers[start : start + work.lanes])
                f.store(value, f.at(first, work.type, i64(start)), work.itemsize)

        def single(k: Value, panel: Value) -> None:
            row_address, address = addresses(k, panel)
            starts = row_pointers.starts(f, row_address)
            copy_row(f, work, dtype, count, width, [row_pointers.row(f, starts, i) for i in range(work.group)], address, k)

        each(f, i64(0), runs_end, lambda k: each(f, i64(0), panels, lambda panel: several(k, panel)), RUN)
        each(f, runs_end, depth, lambda k: each(f, i64(0), panels, lambda panel: single(k, panel)))

    parameters = [*_packing_parameters(), Value("i64", "%panels"), Value("i64", "%panel_apart")]
    return shared_function(f"spread_{type_name(work)}_{dtype.name}_{count}to{width}", parameters, write)


@cache_for_host
def transpose_rows(work: ComputeType, dtype: np.dtype, count: int, width: int) -> SharedFunction:
    """Return the function that packs `count` rows along k, and zeros up to `width`."""

    def write(f: Function) -> None:
        source, stride, depth, target = f.parameters
        in_registers = count == width and count % work.lanes == 0 and count > _ROWS * work.lanes
        rows = work.lanes if in_registers else count
        row_pointers = RowPointers(f, stride, rows)

        def several(first: Value) -> None:
            start = f.at(source, "i8", f.binary("mul", first, stride))

            def at(k: Value) -> list[Value]:
                starts = row_pointers.starts(f, f.at(start, f"[{dtype.itemsize * work.group} x i8]", k))
                return [row_pointers.row(f, starts, row) for row in range(rows)]

            transposed_rows(f, work, dtype, at, rows if in_registers else width, depth, f.at(target, work.type, first), width)

        if in_registers:
            each(f, i64(0), i64(count), several, rows)
        else:
            several(i64(0))

    return shared_function(f"turn_{type_name(work)}_{dtype.name}_{count}to{width}", _packing_parameters(), write)


def _packing_parameters() -> list[Value]:
    return [Value("ptr" if name in ("source", "target") else "i64", f"%{name}") for name in ("source", "apart", "depth", "target")]


def transposed_rows(
    f: Function,
    work: ComputeType,
    dtype: np.dtype,
    rows_at: Callable[[Value], Sequence[Value]],
    width: int,
    depth: Value,
    target: Value,
    pitch: int,
) -> None:
    """Write the transpose of rows: for each of `depth` k, element k of every row.

    ``rows_at(k)`` gives the rows' addresses from k on. Those of the transpose are `pitch` numbers long, with zeros up to `width`.
    """

    def address(k: Value, start: int) -> Value:
        return f.at(target, work.type, f.binary("add", f.binary("mul", k, i64(pitch)), i64(start)))

    square = 16 // work.itemsize  # a quarter of the widest register, within which shuffles are cheap

    def squares(k: Value) -> None:
        rows = rows_at(k)
        for start in range(0, width, work.lanes):
            block = [
                _gathered([_row(f, work, dtype, rows, start + group * square + r, square) for group in range(work.lanes // square)], f)
                for r in range(square)
            ]
            for c, vector in enumerate(_squares_transposed(f, block, square)):
                store_lanes(f, work, vector, address(f.binary("add", k, i64(c)), start), width - start)

    def single(k: Value) -> None:
        rows = rows_at(k)
        for j in range(width):
            value = read(f, work, dtype, rows[j], 1) if j < len(rows) else Value(work.type, "zeroinitializer")
            f.store(value, address(k, j), work.itemsize)

    squares_end = f.binary("and", depth, i64(-square))
    each(f, i64(0), squares_end, squares, square)
    each(f, squares_end, depth, single)


def _row(f: Function, work: ComputeType, dtype: np.dtype, rows: Sequence[Value], number: int, square: int) -> Value:
    """Emit `square` numbers of a row; zeros beyond the last row."""
    return read(f, work, dtype, rows[number], square) if number < len(rows) else work.zero(square)


def _gathered(groups: Sequence[Value], f: Function) -> Value:
    """Emit the concatenation of vectors."""
    groups = list(groups)
    while len(groups) > 1:
        order = range(2 * lanes_of(groups[0].type))
        groups = [f.shuffle(x, order, y) for x, y in zip(groups[::2], groups[1::2], strict=True)]
    return groups[0]


def _squares_transposed(f: Function, block: Sequence[Value], square: int) -> list[Value]:
    """Emit vectors with each run of `square` lanes transposed over `square` vectors."""
    lanes = lanes_of(block[0].type)
    starts = range(0, lanes, square)
    if square == 2:
        x, y = block
        return [f.shuffle(x, [s for b in starts for s in (b + half, lanes + b + half)], y) for half in (0, 1)]
    w, x, y, z = block
    low = [f.shuffle(p, [s for b in starts for s in (b, lanes + b, b + 1, lanes + b + 1)], q) for p, q in ((w, x), (y, z))]
    high = [f.shuffle(p, [s for b in starts for s in (b + 2, lanes + b + 2, b + 3, lanes + b + 3)], q) for p, q in ((w, x), (y, z))]
    first = [s for b in starts for s in (b, b + 1, lanes + b, lanes + b + 1)]
    second = [s for b in starts for s in (b + 2, b + 3, lanes + b + 2, lanes + b + 3)]
    return [f.shuffle(p, picks, q) for p, q in (low, high) for picks in (first, second)]


def assembled(f: Function, picks: Sequence[tuple[Value, int]]) -> Value:
    """Emit a vector of lanes of others, each by its vector and its number."""
    first, *others = dict.fromkeys([vector for vector, _ in picks])
    lanes = len(picks)
    result, order = first, [lane if vector == first else 0 for vector, lane in picks]
    for other in others or [first]:
        chosen = [lanes + lane if vector == other else now for (vector, lane), now in zip(picks, order, strict=True)]
        result, order = f.shuffle(result, chosen, other), list(range(lanes))
    return result
